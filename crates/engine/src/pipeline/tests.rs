//! Whole pipelines between a source and destinations in memory: what is acknowledged lands, once, in order, and the
//! books balance at every end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_state::StateStore;
use landfall_types::{ByteSize, Offset, PartitionId, Place};
use tokio::runtime::Handle;

use super::{Pipeline, PipelineHandle};
use crate::contract::{PipelineId, Positions, RevokeGuard, SourceEvent, Stage};
use crate::testing::{Act, MemoryLetters, MemorySource, ScriptedSink, numbers};
use crate::{
    Backoff, Ending, OnError, OnErrors, PipelineOptions, PipelineState, RetryOptions, Route, SinkOptions, codes,
};

const SOON: Duration = Duration::from_secs(10);

/// What outlives a pipeline: its source, its state, its dead letters.
struct Bed {
    source: MemorySource,
    letters: MemoryLetters,
    store: StateStore,
}

fn fast() -> Backoff {
    Backoff { initial: Duration::from_millis(2), max: Duration::from_millis(20), multiplier: 2.0, jitter: 0.2 }
}

fn options() -> PipelineOptions {
    PipelineOptions {
        checkpoint_interval: Duration::from_millis(100),
        idle_flush: Duration::from_millis(1),
        restart: fast(),
        ..PipelineOptions::default()
    }
}

fn sink_options() -> SinkOptions {
    SinkOptions {
        batch_age: Duration::from_millis(1),
        retry: RetryOptions { backoff: fast(), ..RetryOptions::default() },
        ..SinkOptions::default()
    }
}

impl Bed {
    fn new(partitions: u32) -> Self {
        Bed {
            source: MemorySource::new("memory-1", partitions),
            letters: MemoryLetters::new(),
            store: StateStore::in_memory().expect("a store in memory"),
        }
    }

    fn pipeline(&self, keep: Option<fn(i64) -> bool>) -> Pipeline<MemorySource> {
        Pipeline::new(PipelineId("orders".to_owned()), self.source.clone(), numbers(keep))
            .dead_letters(Arc::new(self.letters.clone()))
            .options(options())
    }

    fn start(&self, pipeline: Pipeline<MemorySource>) -> PipelineHandle {
        pipeline.start(self.store.handle(), &Handle::current()).expect("it starts")
    }

    /// What the source was told to commit; a first start is committed as such.
    fn committed(&self, partition: u32) -> u64 {
        self.source.committed(partition).map_or(0, |place| place.at)
    }

    fn run(&self, sink: &ScriptedSink) -> PipelineHandle {
        self.start(self.pipeline(None).sink("out", Arc::new(sink.clone()), sink_options()))
    }
}

async fn landed(handle: &PipelineHandle, source: &MemorySource) {
    assert!(handle.wait_until(&source.ends(), SOON).await, "not settled in time: {:#?}", handle.status());
}

/// Ends a pipeline in good order; its books balance and nothing is left.
async fn finished(handle: PipelineHandle) {
    let report = handle.shutdown(SOON).await;
    assert_eq!(report.ending, Ending::Settled, "{report:#?}");
    assert_eq!(report.exit_code(), 0);
    for (sink, balance) in &report.balance {
        assert!(balance.ok && balance.in_flight == 0, "sink {sink}: {balance:?}");
    }
}

/// Waits for something that changes with the pipeline, within a bound.
async fn until(handle: &PipelineHandle, what: impl Fn() -> bool) {
    let mut changes = handle.changes();
    let deadline = Instant::now() + SOON;
    while !what() {
        assert!(Instant::now() < deadline, "it did not come: {:#?}", handle.status());
        // Some things change without a change of the pipeline's own; the bound of a wait is short for them.
        let _ = tokio::time::timeout(Duration::from_millis(5), changes.changed()).await;
    }
}

fn at(offset: u64) -> Place {
    Place::of(Offset(offset))
}

fn mark(handle: &PipelineHandle, partition: u32) -> u64 {
    handle.watermarks().get(&PartitionId(partition)).map_or(0, |place| place.at)
}

/// Would catch rows that are lost or doubled on the straight path, or a source that is never told.
#[tokio::test(flavor = "multi_thread")]
async fn every_row_lands_once_and_the_source_is_told() {
    let bed = Bed::new(3);
    let sink = ScriptedSink::durable();
    let handle = bed.run(&sink);
    for partition in 0..3 {
        bed.source.append(partition, (0..10_000).map(|n| n * 3 + i64::from(partition)));
    }
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(sink.values(), (0..30_000).collect::<Vec<_>>());
    for partition in 0..3 {
        assert_eq!(bed.committed(partition), 10_000);
        let offsets: Vec<u64> =
            sink.rows().iter().filter(|row| row.partition == partition).map(|row| row.offset).collect();
        assert!(offsets.is_sorted(), "order is kept per partition");
    }
}

/// Would catch a last row that waits for a successor before it is committed.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_row_before_silence_is_committed() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::table(Duration::from_millis(100));
    let handle = bed.run(&sink);
    bed.source.append(0, [1, 2, 3]);
    until(&handle, || bed.committed(0) == 3).await;
    assert_eq!(sink.values(), [1, 2, 3]);
    finished(handle).await;
}

/// Would catch a refused credential that is taken for a bad row and passed over.
#[tokio::test(flavor = "multi_thread")]
async fn f_l1_a_refused_credential_holds_the_watermark() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::durable();
    sink.script([Act::Store, Act::Refuse, Act::Refuse]);
    let one = || SinkOptions { batch_rows: 1, ..sink_options() };
    let handle = bed.start(bed.pipeline(None).sink("out", Arc::new(sink.clone()), one()));
    bed.source.append(0, [1, 2, 3]);
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(sink.values(), [1, 2, 3], "nothing was skipped, nothing doubled");
    assert!(bed.letters.letters().is_empty());

    // For ever refused: nothing more is committed, and the sink is named with its cause.
    sink.always(Some(Act::Refuse));
    let handle = bed.start(bed.pipeline(None).sink("out", Arc::new(sink.clone()), one()));
    bed.source.append(0, [4, 5]);
    until(&handle, || handle.state() == PipelineState::Blocked).await;
    let status = handle.status();
    let why = status.why.expect("a blocked pipeline says why");
    assert!(why.at.contains("out") && why.cause.contains("Refuse"), "{why:?}");
    assert_eq!(why.first.map(|first| first.offset), Some(3));
    assert_eq!((mark(&handle, 0), status.lag.records), (3, 2));
    let report = handle.shutdown(Duration::from_secs(1)).await;
    assert_eq!((report.ending, report.exit_code()), (Ending::Unfinished, 3));
    assert_eq!(bed.committed(0), 3);
}

/// Would catch a commit behind the first hole, or a filtered row that holds everything back.
#[tokio::test(flavor = "multi_thread")]
async fn f_l2_the_commit_is_the_end_of_the_finished_prefix() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::durable();
    sink.hang_values([1]);
    let two = SinkOptions { batch_rows: 1, concurrency: 2, ..sink_options() };
    let pipeline = PipelineOptions { poll_max_rows: 1, low_ratio: 0.9, ..options() };
    let keep: fn(i64) -> bool = |value| value > 0;
    let handle =
        bed.start(bed.pipeline(Some(keep)).options(pipeline.clone()).sink("out", Arc::new(sink.clone()), two.clone()));
    bed.source.append(0, [0, 1, 2]);
    until(&handle, || bed.committed(0) == 1 && sink.calls() >= 2).await;
    assert_eq!(sink.values(), [2], "row 1 hangs, row 2 is in");
    handle.abort();
    assert_eq!(handle.ended().await.ending, Ending::Aborted);
    assert_eq!(bed.committed(0), 1, "nothing was committed past row 1");
    sink.hang_values([]);

    let handle = bed.start(bed.pipeline(Some(keep)).options(pipeline).sink("out", Arc::new(sink.clone()), two));
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(sink.values(), [1, 2, 2], "1 and 2 were read again; the sink keeps no positions");
}

/// Would catch rows that show as neither lag nor in flight while a sink is down, or are lost over a kill.
#[tokio::test(flavor = "multi_thread")]
async fn f_l3_a_sink_that_refuses_connections_loses_nothing_over_a_kill() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::durable();
    sink.always(Some(Act::Later));
    let handle = bed.run(&sink);
    bed.source.append(0, 0..10);
    until(&handle, || handle.state() == PipelineState::Retrying).await;
    let mut changes = handle.changes();
    let status = loop {
        handle.flush();
        let status = handle.status();
        if status.oldest_unacked_ms > 0 {
            break status;
        }
        let _ = tokio::time::timeout(Duration::from_millis(5), changes.changed()).await;
    };
    assert_eq!(status.lag.records, 10);
    assert_eq!(status.in_flight.rows, 10);
    handle.abort();
    handle.ended().await;
    assert_eq!(bed.committed(0), 0);

    sink.always(None);
    let handle = bed.run(&sink);
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(sink.values(), (0..10).collect::<Vec<_>>());
}

/// Would catch a position that is stored at the poll, or at a failed write.
#[tokio::test(flavor = "multi_thread")]
async fn f_l7_a_position_is_stored_only_after_a_durable_write() {
    for first in [Act::Hang, Act::Later] {
        let bed = Bed::new(1);
        let sink = ScriptedSink::table(Duration::from_millis(100));
        sink.script([first]);
        let handle = bed.run(&sink);
        bed.source.append(0, 0..100);
        sink.wait_calls(1).await;
        handle.abort();
        handle.ended().await;
        assert_eq!((bed.committed(0), sink.positions().len()), (0, 0));

        let handle = bed.run(&sink);
        landed(&handle, &bed.source).await;
        finished(handle).await;
        assert_eq!(sink.values(), (0..100).collect::<Vec<_>>());
    }
}

/// Would catch a missing table that costs rows, or a pipeline that gives up on it.
#[tokio::test(flavor = "multi_thread")]
async fn f_l12_a_missing_table_is_waited_for() {
    let bed = Bed::new(2);
    let sink = ScriptedSink::table(Duration::from_millis(100));
    sink.set_missing(true);
    bed.source.append(0, 0..5_000);
    bed.source.append(1, 5_000..10_000);
    let handle = bed.run(&sink);
    until(&handle, || handle.state() == PipelineState::Blocked).await;
    let why = handle.status().why.expect("it says what it waits for");
    assert!(why.at.contains("out") && why.cause.contains("does not exist"), "{why:?}");
    assert_eq!(bed.committed(0), 0);
    sink.set_missing(false);
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(sink.values(), (0..10_000).collect::<Vec<_>>());
    assert!(bed.letters.letters().is_empty());
}

/// Would catch a pipeline that never came to run and is reported as settled, with exit 0 (E75).
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_is_kept_from_running_is_not_settled() {
    let waits = [
        (PipelineState::Blocked, Ending::Failed, 1, "does not exist"),
        (PipelineState::Retrying, Ending::Unfinished, 3, "does not answer"),
    ];
    for (state, ending, code, words) in waits {
        let bed = Bed::new(1);
        let sink = ScriptedSink::durable();
        sink.set_missing(state == PipelineState::Blocked);
        sink.set_unreachable(state == PipelineState::Retrying);
        bed.source.append(0, 0..10);
        let handle = bed.run(&sink);
        until(&handle, || handle.state() == state).await;
        let report = handle.shutdown(SOON).await;
        assert_eq!((report.ending, report.exit_code()), (ending, code), "{report:#?}");
        assert!(
            report.code.is_some() && report.cause.as_ref().is_some_and(|cause| cause.contains(words)),
            "{report:#?}"
        );
        assert_eq!(bed.committed(0), 0);
        // What ended it is over: the same pipeline lands all of it and is settled.
        sink.set_missing(false);
        sink.set_unreachable(false);
        let handle = bed.run(&sink);
        landed(&handle, &bed.source).await;
        finished(handle).await;
        assert_eq!(sink.values(), (0..10).collect::<Vec<_>>());
    }
}

/// Would catch a retry that appends, or sends other bytes or another name.
#[tokio::test(flavor = "multi_thread")]
async fn f_d1_a_retry_sends_the_sealed_batch_again() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::durable();
    sink.script([Act::Later, Act::Later, Act::LostBefore, Act::LostAfter]);
    let handle = bed.run(&sink);
    bed.source.append(0, [7]);
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(sink.values(), [7], "one row, though the last answer was lost");
    assert_eq!(sink.batches().len(), 1);
}

/// Would catch a batch without rows that waits for the sink.
#[tokio::test(flavor = "multi_thread")]
async fn f_m4_batches_without_rows_are_settled_at_once() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::table(Duration::from_secs(3600));
    let pipeline = PipelineOptions { poll_max_rows: 10, ..options() };
    let handle = bed.start(bed.pipeline(Some(|value| value < 0)).options(pipeline).sink(
        "out",
        Arc::new(sink.clone()),
        sink_options(),
    ));
    bed.source.append(0, 0..10_000);
    landed(&handle, &bed.source).await;
    assert_eq!(sink.calls(), 0, "no sink call was needed");
    assert_eq!(handle.balance("out").map(|balance| balance.filtered), Some(10_000));
    // The next row's cover takes the filtered ranges in, so that the table's positions have no hole.
    bed.source.append(0, [-1]);
    until(&handle, || sink.calls() > 0).await;
    finished(handle).await;
    assert_eq!(sink.values(), [-1]);
    assert_eq!(sink.positions(), Positions::from([(PartitionId(0), at(10_001))]));
}

/// Would catch a drain that waits for the age limit of a half-full batch.
#[tokio::test(flavor = "multi_thread")]
async fn f_s1_a_drain_seals_at_once() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::table(Duration::from_secs(3600));
    let slow = SinkOptions { batch_age: Duration::from_secs(600), ..sink_options() };
    let handle = bed.start(bed.pipeline(None).sink("out", Arc::new(sink.clone()), slow));
    bed.source.append(0, [1]);
    until(&handle, || handle.balance("out").is_some_and(|balance| balance.in_flight == 1)).await;
    let began = Instant::now();
    finished(handle).await;
    assert!(began.elapsed() < Duration::from_secs(1), "took {:?}", began.elapsed());
    assert_eq!(sink.values(), [1]);
    assert_eq!(bed.committed(0), 1);
}

/// Would catch a sink that is down and holds up the shutdown, or is committed past.
#[tokio::test(flavor = "multi_thread")]
async fn f_s2_a_drain_ends_by_its_deadline_and_names_what_is_left() {
    for act in [Act::Later, Act::Hang] {
        let bed = Bed::new(1);
        let sink = ScriptedSink::durable();
        sink.always(Some(act));
        let handle = bed.run(&sink);
        bed.source.append(0, 0..100);
        sink.wait_calls(1).await;
        let began = Instant::now();
        let report = handle.shutdown(Duration::from_secs(2)).await;
        assert!(began.elapsed() < Duration::from_millis(2_500), "took {:?}", began.elapsed());
        assert_eq!((report.ending, report.exit_code()), (Ending::Unfinished, 3));
        let left = report.unfinished.first().expect("the range is named");
        assert_eq!((left.partition, left.from, left.to), (0, 0, 100));
        assert_eq!(left.sink.as_deref(), Some("out"));
        assert_eq!(bed.committed(0), 0);
    }
}

/// Would catch a second signal that waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_at_once() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::durable();
    sink.always(Some(Act::Hang));
    let handle = bed.run(&sink);
    bed.source.append(0, 0..100);
    sink.wait_calls(1).await;
    let first = tokio::spawn({
        let handle = handle.clone();
        async move { handle.shutdown(Duration::from_secs(60)).await }
    });
    until(&handle, || handle.state() == PipelineState::Draining).await;
    let began = Instant::now();
    handle.abort();
    let report = first.await.expect("the first shutdown returns as well");
    assert!(began.elapsed() < Duration::from_secs(3), "took {:?}", began.elapsed());
    assert_eq!((report.ending, report.exit_code()), (Ending::Aborted, 130));
}

/// Would catch a watermark that moves at Accepted.
#[tokio::test(flavor = "multi_thread")]
async fn accepted_rows_do_not_move_the_watermark() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::table(Duration::from_secs(3600));
    let handle = bed.run(&sink);
    bed.source.append(0, 0..1000);
    until(&handle, || handle.status().sinks.first().is_some_and(|sink| sink.accepted_rows == 1000)).await;
    assert_eq!((mark(&handle, 0), bed.committed(0)), (0, 0));
    handle.flush();
    landed(&handle, &bed.source).await;
    until(&handle, || bed.committed(0) == 1000).await;
    finished(handle).await;
}

/// Would catch a given-up batch that stalls its partition for good, or rows that a table gets twice by it.
#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_batch_is_re_read_in_process() {
    for acts in [vec![Act::Panic; 3], vec![Act::Superseded]] {
        let bed = Bed::new(2);
        let sink = ScriptedSink::table(Duration::from_millis(100));
        sink.script(acts);
        let handle = bed.run(&sink);
        bed.source.append(0, 0..1000);
        bed.source.append(1, 1000..2000);
        landed(&handle, &bed.source).await;
        assert!(handle.balance("out").is_some_and(|balance| balance.returned > 0), "it was read again");
        finished(handle).await;
        assert_eq!(sink.values(), (0..2000).collect::<Vec<_>>());
        assert!(bed.source.opened_at().len() > 2, "a lane was opened again");
    }
}

/// Would catch an accepted group that is lost with its commit and not read again, or read twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_group_is_read_again_and_a_kept_one_is_committed_later() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::table(Duration::from_millis(100));
    sink.script_barrier([Act::Later, Act::Refuse, Act::LostBefore, Act::Panic, Act::Later]);
    let handle = bed.run(&sink);
    bed.source.append(0, 0..1000);
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(sink.values(), (0..1000).collect::<Vec<_>>());
}

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

/// Would catch a source that was made anew and inherits positions, so that its first records are passed over.
#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_channel_does_not_inherit_positions() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::durable();
    bed.source.append(0, 0..10);
    let handle = bed.run(&sink);
    landed(&handle, &bed.source).await;
    until(&handle, || bed.committed(0) == 10).await;
    finished(handle).await;

    let recreated = bed.source.recreated("memory-2");
    let pipeline = Pipeline::new(PipelineId("orders".to_owned()), recreated, numbers(None))
        .dead_letters(Arc::new(bed.letters.clone()))
        .options(options())
        .sink("out", Arc::new(sink.clone()), sink_options());
    let handle = bed.start(pipeline);
    until(&handle, || handle.state() == PipelineState::Blocked).await;
    let why = handle.status().why.expect("it says why");
    assert_eq!(why.code, codes::SOURCE_CHANGED);
    assert!(why.cause.contains("memory-1") && why.cause.contains("memory-2"), "{why:?}");
    handle.shutdown(Duration::from_secs(1)).await;
    assert_eq!(sink.values().len(), 10);
}

/// Would catch a restored or replaced table that silently misses the rows it lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_went_back_blocks() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::table(Duration::from_millis(100));
    bed.source.append(0, 0..10);
    let handle = bed.run(&sink);
    until(&handle, || bed.committed(0) == 10).await;
    finished(handle).await;

    sink.set_positions(Positions::from([(PartitionId(0), at(4))]));
    let handle = bed.run(&sink);
    until(&handle, || handle.state() == PipelineState::Blocked).await;
    assert_eq!(handle.status().why.map(|why| why.code), Some(codes::POSITION_WENT_BACK));
    sink.set_positions(Positions::from([(PartitionId(0), at(10))]));
    sink.set_identity("another table");
    until(&handle, || handle.status().why.is_some_and(|why| why.code == codes::SINK_CHANGED)).await;
    handle.shutdown(Duration::from_secs(1)).await;
    assert_eq!(sink.values().len(), 10);
}

/// Would catch a sink that misses rows because another one has them, or gets some twice because another one failed.
#[tokio::test(flavor = "multi_thread")]
async fn three_sinks_each_hold_every_row() {
    let bed = Bed::new(2);
    let sinks = [
        ScriptedSink::table(Duration::from_millis(100)),
        ScriptedSink::table(Duration::from_millis(150)),
        ScriptedSink::table(Duration::from_millis(50)),
    ];
    sinks[1].script([Act::Superseded, Act::Store, Act::Panic, Act::Panic, Act::Panic]);
    let mut pipeline = bed.pipeline(None);
    for (name, sink) in ["a", "b", "c"].into_iter().zip(&sinks) {
        pipeline = pipeline.sink(name, Arc::new(sink.clone()), sink_options());
    }
    let handle = bed.start(pipeline);
    for start in 0..10 {
        bed.source.append(0, start * 100..start * 100 + 100);
        bed.source.append(1, 10_000 + start * 100..10_000 + start * 100 + 100);
    }
    landed(&handle, &bed.source).await;
    finished(handle).await;
    let expected: Vec<i64> = (0..1000).chain(10_000..11_000).collect();
    for sink in &sinks {
        assert_eq!(sink.values(), expected);
        assert!(sink.covers_chain());
    }
}

/// Would catch rows that are lost or doubled when a pipeline is killed at any moment, over and over.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_has_each_row_once_over_kills_at_any_moment() {
    let bed = Bed::new(3);
    let sink = ScriptedSink::table(Duration::from_millis(100));
    let mut next = 0;
    for round in 0..25u64 {
        let handle = bed.run(&sink);
        for partition in 0..3 {
            bed.source.append(partition, (0..200).map(|n| next + i64::from(partition) * 200 + n));
        }
        next += 600;
        // The moment of the kill moves over the life of a batch: from before the first poll to after a commit.
        tokio::time::timeout(Duration::from_millis(round * 9), handle.ended()).await.ok();
        handle.abort();
        handle.ended().await;
    }
    let handle = bed.run(&sink);
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(sink.values(), (0..next).collect::<Vec<_>>());
    assert!(sink.covers_chain());
}

/// Would catch back-pressure that loses, doubles or reorders rows, or a share that is never given back.
#[tokio::test(flavor = "multi_thread")]
async fn tight_queues_lose_nothing_and_keep_order() {
    let bed = Bed::new(4);
    let sink = ScriptedSink::durable();
    let pipeline =
        PipelineOptions { poll_max_rows: 64, poll_max_bytes: ByteSize::kib(16), max_pending_batches: 64, ..options() };
    let tight = SinkOptions {
        batch_bytes: ByteSize::mib(1),
        batch_rows: 100,
        queue_max_bytes: Some(ByteSize::kib(64)),
        queue_max_chunks: 2,
        chunk_target_bytes: ByteSize::kib(16),
        ..sink_options()
    };
    let handle = bed.start(bed.pipeline(None).options(pipeline).sink("out", Arc::new(sink.clone()), tight));
    for partition in 0..4 {
        bed.source.append(partition, 0..5_000);
    }
    landed(&handle, &bed.source).await;
    let queue = handle.status().sinks[0].queue;
    assert_eq!(queue.share, 0, "every byte of the share was given back");
    finished(handle).await;
    for partition in 0..4 {
        let values: Vec<i64> =
            sink.rows().iter().filter(|row| row.partition == partition).map(|row| row.value).collect();
        assert_eq!(values, (0..5_000).collect::<Vec<_>>());
    }
    assert!(sink.batches().iter().all(|(_, rows)| *rows <= 100));
}

/// Would catch rows that a router loses or doubles.
#[tokio::test(flavor = "multi_thread")]
async fn shards_get_each_row_once_by_every_route() {
    for route in [Route::Partition, Route::RoundRobin, Route::Columns(vec!["value".to_owned()])] {
        let bed = Bed::new(3);
        let sink = ScriptedSink::durable();
        let routed = SinkOptions { route, shards: 4, ..sink_options() };
        let handle = bed.start(bed.pipeline(None).sink("out", Arc::new(sink.clone()), routed));
        for partition in 0..3 {
            bed.source.append(partition, (0..3_000).map(|n| n * 3 + i64::from(partition)));
        }
        landed(&handle, &bed.source).await;
        finished(handle).await;
        assert_eq!(sink.values(), (0..9_000).collect::<Vec<_>>());
    }
}

/// Would catch a passing error of a lane that ends the pipeline.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_error_backs_off_and_goes_on() {
    let bed = Bed::new(1);
    let sink = ScriptedSink::durable();
    bed.source.fail_polls(2);
    bed.source.append(0, 0..10);
    let handle = bed.run(&sink);
    landed(&handle, &bed.source).await;
    finished(handle).await;
    assert_eq!(sink.values().len(), 10);
}

/// Would catch a bounded source whose pipeline never ends, or ends before its rows are in.
#[tokio::test(flavor = "multi_thread")]
async fn a_bounded_source_ends_when_everything_is_settled() {
    let mut bed = Bed::new(2);
    bed.source = bed.source.bounded();
    bed.source.append(0, 0..1000);
    let sink = ScriptedSink::table(Duration::from_millis(100));
    let handle = bed.run(&sink);
    let report = tokio::time::timeout(SOON, handle.ended()).await.expect("it ends by itself");
    assert_eq!(report.ending, Ending::Settled);
    assert_eq!(report.committed, BTreeMap::from([("0".to_owned(), 1000), ("1".to_owned(), 0)]));
    assert_eq!(sink.values().len(), 1000);
}

/// Would catch a revoked partition that goes on being committed, or takes the others with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_retired_partition_leaves_and_the_others_go_on() {
    let bed = Bed::new(2);
    let sink = ScriptedSink::durable();
    let handle = bed.run(&sink);
    bed.source.append(0, 0..10);
    bed.source.append(1, 100..110);
    landed(&handle, &bed.source).await;
    until(&handle, || bed.committed(0) == 10).await;
    bed.source.send(SourceEvent::Retired(vec![PartitionId(0)]));
    until(&handle, || handle.status().in_flight.rows == 0).await;
    bed.source.append(1, 110..120);
    until(&handle, || mark(&handle, 1) == 20).await;
    finished(handle).await;
    assert_eq!(sink.values().len(), 30);
}

/// Would catch a revocation that lets go before everything read is settled and committed, or never lets go.
#[tokio::test(flavor = "multi_thread")]
async fn revocation_drains_flushes_and_commits_in_order() {
    let bed = Bed::new(2);
    let sink = ScriptedSink::table(Duration::from_secs(3600));
    let handle = bed.run(&sink);
    bed.source.append(0, 0..500);
    bed.source.append(1, 1000..1500);
    until(&handle, || handle.status().sinks.first().is_some_and(|sink| sink.accepted_rows == 1000)).await;
    let (dropped, is_dropped) = tokio::sync::oneshot::channel();
    let (source, seen) = (bed.source.clone(), sink.clone());
    let guard = RevokeGuard::new(move || {
        // What is true when the source may go on.
        let _ = dropped.send((source.committed(0), seen.positions().get(&PartitionId(0)).copied()));
    });
    bed.source.send(SourceEvent::Revoked(vec![PartitionId(0)], guard));
    let then = tokio::time::timeout(SOON, is_dropped).await.expect("in time").expect("the guard is dropped");
    assert_eq!(then, (Some(at(500)), Some(at(500))));
    bed.source.append(1, 1500..1600);
    until(&handle, || handle.balance("out").is_some_and(|balance| balance.rows_in == 1100)).await;
    handle.flush();
    until(&handle, || mark(&handle, 1) == 600).await;
    finished(handle).await;
    assert_eq!(sink.values(), (0..500).chain(1000..1600).collect::<Vec<_>>());
}

/// Would catch a wish to commit that overtakes the rows it is for, and leaves them to the commit interval.
#[tokio::test(flavor = "multi_thread")]
async fn a_flush_settles_everything_that_was_read() {
    let bed = Bed::new(2);
    let sink = ScriptedSink::table(Duration::from_secs(3600));
    let lazy = SinkOptions { batch_age: Duration::from_secs(3600), ..sink_options() };
    let handle = bed.start(bed.pipeline(None).sink("out", Arc::new(sink.clone()), lazy));
    for round in 1..=5 {
        bed.source.append(0, 0..100);
        bed.source.append(1, 0..100);
        until(&handle, || handle.balance("out").is_some_and(|balance| balance.rows_in == round * 200)).await;
        handle.flush();
        landed(&handle, &bed.source).await;
    }
    finished(handle).await;
    assert_eq!(sink.rows().len(), 1000);
}
