//! Rows and records that cannot be landed.

use std::sync::Arc;
use std::time::Duration;

use landfall_types::{Offset, PartitionId};

use super::{Bed, finished, landed, mark, options, sink_options, until};
use crate::contract::Stage;
use crate::testing::{Act, ScriptedSink};
use crate::{OnError, OnErrors, PipelineOptions, PipelineState, codes};

/// Would catch one bad row that takes its batch with it, or vanishes.
#[tokio::test(flavor = "multi_thread")]
async fn one_bad_row_in_a_thousand_lands_999() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::durable();
    sink.refuse_values([421]);
    let handle = bed.run(&sink);
    bed.source.append(0, 0..1000);
    landed(&handle, &bed.source).await;
    assert_eq!(handle.balance("out").map(|b| (b.delivered, b.dead_lettered)), Some((999, 1)));
    finished(handle).await;
    let expected: Vec<i64> = (0..1000).filter(|value| *value != 421).collect();
    assert_eq!(sink.values(), expected);
    let letters = bed.letters.letters();
    assert_eq!(letters.len(), 1);
    assert_eq!(&letters[0].record.payload[..], b"421");
    assert_eq!((letters[0].stage, letters[0].sink.as_deref()), (Stage::Sink, Some("out")));
    assert_eq!(letters[0].record.offset, Offset(421));
}

/// Would catch rows named by the destination that are mapped to the wrong records.
#[tokio::test(flavor = "multi_thread")]
async fn rows_refused_by_name_are_set_aside_and_the_rest_lands() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::durable();
    sink.script([Act::Rows(vec![0, 7])]);
    bed.source.append(0, 100..110);
    let handle = bed.run(&sink);
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(sink.values(), [101, 102, 103, 104, 105, 106, 108, 109]);
    assert_eq!(bed.letters.offsets(PartitionId(0)), [0, 7]);
}

/// Would catch a mismatch that is taken for thousands of bad rows.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_refusals_blocks_and_sets_nothing_aside() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::durable();
    sink.refuse_values(0..2000);
    let pipeline = PipelineOptions { max_bad_rows: 50, ..options() };
    bed.source.append(0, 0..2000);
    let handle = bed.start(bed.pipeline(None).options(pipeline).sink("out", Arc::new(sink.clone()), sink_options()));
    until(&handle, || handle.state() == PipelineState::Blocked).await;
    assert!(bed.letters.letters().is_empty());
    let why = handle.status().why.expect("it says why");
    assert_eq!(why.code, codes::TOO_MANY_BAD_ROWS);
    // The destination is mended: everything lands.
    sink.refuse_values([]);
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(sink.values(), (0..2000).collect::<Vec<_>>());
}

/// Would catch records that cannot be decoded and are lost, doubled, or counted in two classes.
#[tokio::test(flavor = "multi_thread")]
async fn bad_records_become_dead_letters_once_over_restarts() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::table(Duration::from_millis(100));
    let payloads: Vec<String> =
        (0..500).map(|n| if n % 50 == 3 { format!("bad {n}") } else { n.to_string() }).collect();
    bed.source.append(0, payloads);
    bed.letters.fail(2);
    let keep: fn(i64) -> bool = |value| value % 2 == 0;
    let start = || bed.start(bed.pipeline(Some(keep)).sink("out", Arc::new(sink.clone()), sink_options()));
    let handle = start();
    landed(&handle, &bed.source).await;
    let balance = handle.balance("out").expect("the sink");
    assert_eq!((balance.rows_in, balance.dead_lettered), (500, 10));
    assert_eq!((balance.delivered, balance.filtered), (250, 240));
    handle.abort();
    handle.ended().await;
    let handle = start();
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(bed.letters.letters().len(), 10);
    assert_eq!(sink.values().len(), 250);
}

/// Would catch `skip` that sets aside, or `fail` that goes on.
#[tokio::test(flavor = "multi_thread")]
async fn policies_skip_and_fail_do_as_they_say() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::durable();
    bed.source.append(0, ["1", "x", "3"]);
    let skip = PipelineOptions { on_error: OnErrors::all(OnError::Skip), ..options() };
    let handle = bed.start(bed.pipeline(None).options(skip).sink("out", Arc::new(sink.clone()), sink_options()));
    landed(&handle, &bed.source).await;
    assert_eq!(handle.balance("out").map(|b| (b.delivered, b.filtered, b.dead_lettered)), Some((2, 1, 0)));
    finished(handle).await;

    bed.source.append(0, ["4", "y", "6"]);
    let fail = PipelineOptions { on_error: OnErrors::all(OnError::Fail), ..options() };
    let handle = bed.start(bed.pipeline(None).options(fail).sink("out", Arc::new(sink.clone()), sink_options()));
    until(&handle, || handle.state() == PipelineState::Blocked).await;
    let why = handle.status().why.expect("it says why");
    assert!(why.cause.contains("offset 4"), "{why:?}");
    assert_eq!(mark(&handle, 0), 3);
    let report = handle.shutdown(Duration::from_secs(1)).await;
    assert_eq!(report.exit_code(), 3);
    assert!(bed.letters.letters().is_empty());
}

/// Would catch dead letters that are dropped when they cannot be stored, or a commit that passes them.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_that_cannot_be_stored_hold_the_watermark() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::durable();
    bed.letters.fail(u32::MAX);
    bed.source.append(0, ["1", "x", "3"]);
    let handle = bed.run(&sink);
    until(&handle, || sink.values() == [1, 3]).await;
    until(&handle, || handle.status().why.is_some_and(|why| why.code == codes::DEAD_LETTERS_BLOCKED)).await;
    assert_eq!((mark(&handle, 0), bed.committed(0)), (0, 0));
    bed.letters.fail(0);
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(bed.letters.offsets(PartitionId(0)), [1]);
}

/// Would catch a record that takes the pipeline down with it each time it is read.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_panics_the_chain_ends_as_a_dead_letter() {
    let bed = Bed::new(2);
    let sink = ScriptedSink::table(Duration::from_millis(100));
    bed.source.append(0, (0..200).map(|n| if n == 77 { "panic".to_owned() } else { n.to_string() }));
    bed.source.append(1, 1000..1100);
    let handle = bed.run(&sink);
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(sink.values().len(), 299);
    let letters = bed.letters.letters();
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].record.offset, letters[0].code), (Offset(77), codes::PANIC));
}
