//! How pipelines end, and what is flushed on the way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Bed, SOON, finished, landed, sink_options, until};
use crate::testing::{Act, ScriptedSink};
use crate::{Ending, PipelineState, SinkOptions};

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
