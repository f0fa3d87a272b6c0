//! Sources and destinations that become others, and partitions that come and go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use landfall_types::PartitionId;

use super::super::Pipeline;
use super::{Bed, SOON, at, finished, landed, mark, options, sink_options, until};
use crate::contract::{PipelineId, Positions, RevokeGuard, SourceEvent};
use crate::testing::{ScriptedSink, numbers};
use crate::{Ending, PipelineState, codes};

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
