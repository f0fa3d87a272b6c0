//! Whole pipelines between a source and destinations in memory: what is acknowledged lands, once, in order, and the
//! books balance at every end.

mod endings;
mod failures;
mod letters;
mod sources;

use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_state::StateStore;
use landfall_types::{ByteSize, Offset, PartitionId, Place};
use tokio::runtime::Handle;

use super::{Pipeline, PipelineHandle};
use crate::contract::{PipelineId, Positions};
use crate::testing::{Act, MemoryLetters, MemorySource, ScriptedSink, numbers};
use crate::{Backoff, Ending, PipelineOptions, RetryOptions, Route, SinkOptions};

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
