//! Destinations that refuse, are away, or lose what they took.

use std::sync::Arc;
use std::time::Duration;

use super::{Bed, finished, landed, mark, options, sink_options, until};
use crate::testing::{Act, ScriptedSink};
use crate::{Ending, PipelineOptions, PipelineState, SinkOptions};

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
