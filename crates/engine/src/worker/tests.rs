//! A worker between a queue and a scripted writer: rows are conserved, every hold is resolved, and a drain ends by its
//! deadline whatever the writer does.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, UInt32Array, UInt64Array};
use landfall_types::{Epoch, Offset, PartitionId, Place, SystemClock, Timestamp};
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use super::{ShardView, Worker, WorkerCx, WorkerReport};
use crate::contract::{Covered, PipelineId, ShardId, Sink, SinkId, columns};
use crate::core::{Books, Harvester, Issuer, Waker, ring};
use crate::meters::SinkMeters;
use crate::options::{Backoff, OnError, RetryOptions, SinkOptions};
use crate::shard::{Chunk, Segment, ShardQueue, ShareLimits, Urgency};
use crate::source_rows::SourceRows;
use crate::testing::{Act, MemoryLetters, ScriptedSink, payloads};

struct Rig {
    queue: Arc<ShardQueue>,
    sink: ScriptedSink,
    letters: MemoryLetters,
    view: Arc<ShardView>,
    reports: Arc<Mutex<Vec<WorkerReport>>>,
    issuer: Issuer,
    harvester: Harvester,
    worker: Option<Worker>,
    next: i64,
}

fn options() -> SinkOptions {
    let backoff =
        Backoff { initial: Duration::from_millis(1), max: Duration::from_millis(4), multiplier: 2.0, jitter: 0.0 };
    SinkOptions {
        batch_rows: 50,
        batch_age: Duration::from_millis(2),
        retry: RetryOptions { backoff, ..RetryOptions::default() },
        ..SinkOptions::default()
    }
}

impl Rig {
    fn new(sink: ScriptedSink, options: SinkOptions, is_serial: bool) -> Self {
        let (issuer, harvester) =
            ring(PartitionId(0), Epoch(1), Place::START, 256, 1, Arc::new(Waker::new()), std::time::Instant::now());
        let limits = ShareLimits { high: 1 << 30, low: 1 << 29, chunks: 1024 };
        let queue = ShardQueue::new(limits, metrics::Counter::noop());
        let view = Arc::new(ShardView::new("p", "out", &SystemClock));
        let letters = MemoryLetters::new();
        let reports = Arc::new(Mutex::new(Vec::new()));
        let told = reports.clone();
        let worker = Worker::new(WorkerCx {
            pipeline: PipelineId("p".to_owned()),
            source: "memory".to_owned(),
            sink_name: Arc::from("out"),
            shard: ShardId(0),
            writer: sink.writer(ShardId(0)),
            barrier_every: sink.barrier_every(),
            is_serial,
            queue: queue.clone(),
            options,
            on_error: OnError::DeadLetter,
            max_bad_fraction: 0.9,
            max_bad_rows: 1000,
            letters: Some(Arc::new(letters.clone())),
            view: view.clone(),
            meters: SinkMeters::new("p", "out"),
            clock: Arc::new(SystemClock),
            report: Arc::new(move |report| told.lock().push(report)),
        });
        Rig { queue, sink, letters, view, reports, issuer, harvester, worker: Some(worker), next: 0 }
    }

    /// A source batch of so many records, each with so many rows, as one chunk.
    fn send(&mut self, records: &[usize]) {
        let count = records.len() as u64;
        let start = self.issuer.end().at;
        let range = Place::of(Offset(start))..Place::of(Offset(start + count));
        let source_rows = u32::try_from(count).expect("small");
        let ack =
            self.issuer.issue(range.clone(), source_rows, 100, std::time::Instant::now()).expect("room in the ring");
        let offsets: Vec<u64> = records.iter().zip(start..).flat_map(|(rows, offset)| vec![offset; *rows]).collect();
        let rows = offsets.len();
        let values: Vec<i64> = (self.next..self.next + rows as i64).collect();
        self.next += rows as i64;
        if rows > 0 {
            let filtered = records.iter().filter(|rows| **rows == 0).count();
            ack.book_for(SinkId(1), Books { made: rows as u32, filtered: filtered as u32, ..Books::default() });
            let texts: Vec<String> = (0..count).map(|record| format!("record {record}")).collect();
            let columns: Vec<(&str, ArrayRef)> = vec![
                ("value", Arc::new(Int64Array::from(values))),
                (columns::PARTITION, Arc::new(UInt32Array::from(vec![0; rows]))),
                (columns::OFFSET, Arc::new(UInt64Array::from(offsets.clone()))),
            ];
            let mut chunk = Chunk::default();
            chunk.push(Segment {
                rows: RecordBatch::try_from_iter(columns).expect("columns"),
                offsets: offsets.into(),
                origin: Some(payloads(PartitionId(0), start..start + count, &texts)),
                source: SourceRows::records(UInt64Array::from_iter_values(start..start + count)),
                note: None,
                cover: Covered { partition: PartitionId(0), epoch: Epoch(1), range, rows: source_rows },
                hold: ack.share(SinkId(1)),
                oldest: Timestamp(0),
                bytes: rows * 64,
                charge: None,
            });
            self.queue.try_send(chunk).expect("room in the queue");
        } else {
            ack.book_for(SinkId(1), Books { filtered: source_rows, ..Books::default() });
        }
        ack.deliver();
    }

    fn drain(&self, within: Duration) {
        self.queue.urge(Urgency::Drain(Instant::now() + within));
    }

    async fn ends_within(&mut self, bound: Duration) {
        let worker = self.worker.take().expect("run once").run();
        tokio::time::timeout(bound, worker).await.expect("the worker ends in time");
        assert_eq!(self.reports.lock().last(), Some(&WorkerReport::Ended));
    }
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => Just(Act::Store),
        2 => Just(Act::Later),
        1 => Just(Act::Refuse),
        1 => prop::collection::btree_set(0u32..60, 1..4).prop_map(|rows| Act::Rows(rows.into_iter().collect())),
        1 => Just(Act::LostBefore),
        1 => Just(Act::LostAfter),
        1 => Just(Act::Panic),
        1 => Just(Act::Superseded),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Would catch any series of outcomes that loses a row, stores one twice, leaves a hold behind, or keeps bytes of
    /// the share.
    #[test]
    fn random_streams_conserve_rows_and_settle_every_hold(
        batches in prop::collection::vec(prop::collection::vec(0usize..4, 1..40), 1..30),
        acts in prop::collection::vec(act(), 0..20),
        is_table in any::<bool>(),
        concurrency in 1usize..4,
    ) {
        let runtime = Runtime::new().expect("a runtime");
        let sink = if is_table { ScriptedSink::table(Duration::from_millis(1)) } else { ScriptedSink::durable() };
        sink.script(acts);
        let mut rig = Rig::new(sink, SinkOptions { concurrency, ..options() }, is_table);
        let mut values = Vec::new();
        for batch in &batches {
            let from = rig.next;
            rig.send(batch);
            values.push(from..rig.next);
        }
        rig.drain(Duration::from_secs(20));
        runtime.block_on(rig.ends_within(Duration::from_secs(25)));
        prop_assert_eq!(rig.queue.queued().share, 0);
        let landed = rig.sink.values();
        prop_assert!(landed.windows(2).all(|pair| pair[0] < pair[1]), "a row landed twice");
        let lettered = rig.letters.offsets(PartitionId(0));
        let mut offset = 0u64;
        for (sequence, (batch, values)) in batches.iter().zip(values).enumerate() {
            let outcome = rig.harvester.outcome(sequence as u64, 1);
            prop_assert!(outcome.is_some(), "a hold is left on batch {sequence}");
            let mut next = values.start;
            for rows in batch {
                let record: Vec<i64> = (next..next + *rows as i64).collect();
                next += *rows as i64;
                let in_sink = record.iter().filter(|value| landed.binary_search(value).is_ok()).count();
                let is_lettered = lettered.contains(&offset);
                if outcome == Some(true) && !record.is_empty() {
                    prop_assert_eq!(in_sink, if is_lettered { 0 } else { record.len() }, "record at {}", offset);
                }
                offset += 1;
            }
        }
        let mut is_balanced = true;
        rig.harvester.harvest(|slot| is_balanced &= slot.sink == 0 || slot.balances());
        prop_assert!(is_balanced, "books do not agree");
    }
}

/// Would catch a drain that a sink which is down for ever holds up, or holds that nobody resolves at its end.
#[test]
fn a_sink_down_for_ever_does_not_stop_the_drain() {
    let runtime = Runtime::new().expect("a runtime");
    for act in [Act::Later, Act::Refuse, Act::Hang, Act::LostBefore] {
        let mut rig = Rig::new(ScriptedSink::durable(), options(), false);
        rig.sink.always(Some(act));
        for _ in 0..5 {
            rig.send(&[1; 40]);
        }
        rig.drain(Duration::from_millis(100));
        runtime.block_on(rig.ends_within(Duration::from_secs(3)));
        assert!((0..5).all(|sequence| rig.harvester.outcome(sequence, 1) == Some(false)));
        assert_eq!(rig.queue.queued().share, 0);
    }
}

/// Would catch a worker that sees a deadline only when something else wakes it.
#[test]
fn a_deadline_set_after_the_worker_slept_is_seen() {
    let runtime = Runtime::new().expect("a runtime");
    let mut rig = Rig::new(ScriptedSink::durable(), options(), false);
    let queue = rig.queue.clone();
    runtime.block_on(async {
        let drain = tokio::spawn(async move {
            tokio::task::yield_now().await;
            queue.urge(Urgency::Drain(Instant::now() + Duration::from_secs(60)));
        });
        rig.ends_within(Duration::from_secs(3)).await;
        drain.await.expect("it only asks");
    });
}

/// Would catch a panic that costs what came before it, a batch that is tried for ever, and rows that are written behind the
/// lost ones, so that a position passes what is not there (I7).
#[test]
fn a_panicked_write_abandons_its_batch_and_what_stands_behind_it() {
    let runtime = Runtime::new().expect("a runtime");
    let mut rig = Rig::new(ScriptedSink::durable(), options(), true);
    rig.sink.script([Act::Store, Act::Panic, Act::Panic, Act::Panic, Act::Store]);
    for _ in 0..3 {
        rig.send(&[1; 50]);
    }
    rig.drain(Duration::from_secs(5));
    runtime.block_on(rig.ends_within(Duration::from_secs(6)));
    let outcomes: Vec<_> = (0..3).map(|sequence| rig.harvester.outcome(sequence, 1)).collect();
    assert_eq!(outcomes, [Some(true), Some(false), Some(false)]);
    assert_eq!(rig.sink.values().len(), 50);
}

/// Would catch a retry under another name or with other rows.
#[test]
fn a_retry_sends_the_same_rows_under_the_same_id() {
    let runtime = Runtime::new().expect("a runtime");
    let ids: Vec<_> = (0..2)
        .map(|_| {
            let mut rig = Rig::new(ScriptedSink::durable(), options(), true);
            rig.sink.script([Act::Later, Act::LostBefore, Act::LostAfter]);
            rig.send(&[1; 30]);
            rig.drain(Duration::from_secs(5));
            runtime.block_on(rig.ends_within(Duration::from_secs(6)));
            assert_eq!(rig.sink.values(), (0..30).collect::<Vec<_>>());
            rig.sink.batches()[0].0
        })
        .collect();
    assert_eq!(ids[0], ids[1], "a replay of the same ranges has the same name");
}

/// Would catch rows that wait for company although none comes, and a busy shard whose batches are cut short at each pause.
#[tokio::test(start_paused = true)]
async fn a_lull_seals_what_is_little_at_once_and_what_fills_once_it_is_quiet() {
    let lazy = SinkOptions { batch_rows: 800, batch_age: Duration::from_secs(600), ..options() };
    let mut rig = Rig::new(ScriptedSink::durable(), lazy, true);
    let mut worker = rig.worker.take().expect("not run yet");
    rig.send(&[1; 10]);
    worker.step();
    assert_eq!((worker.open.rows(), worker.writing.len()), (10, 0), "more may come");
    rig.queue.lull();
    worker.step();
    assert_eq!((worker.open.rows(), worker.writing.len()), (0, 1));
    // While the writer is at work the next batch fills.
    rig.send(&[1; 20]);
    rig.queue.lull();
    worker.step();
    assert_eq!((worker.open.rows(), worker.writing.len()), (20, 1));
    let ended = worker.writes.join_next_with_id().await.expect("it is written");
    worker.write_ended(ended);
    worker.step();
    assert_eq!((worker.open.rows(), worker.writing.len()), (0, 1));
    let ended = worker.writes.join_next_with_id().await.expect("it is written");
    worker.write_ended(ended);

    for _ in 0..3 {
        rig.send(&[1; 200]);
        rig.queue.lull();
        worker.step();
        tokio::time::advance(super::QUIET / 2).await;
    }
    assert_eq!((worker.open.rows(), worker.writing.len()), (600, 0), "it fills");
    let due = worker.next_timer().expect("it is not left open");
    tokio::time::advance(due.duration_since(Instant::now())).await;
    worker.step();
    assert_eq!((worker.open.rows(), worker.writing.len()), (0, 1));
    let ended = worker.writes.join_next_with_id().await.expect("it is written");
    worker.write_ended(ended);
    rig.harvester.harvest(|_| {});
    assert_eq!((rig.sink.values().len(), rig.harvester.is_settled()), (630, true));
}

/// Would catch a quiesce that answers before everything of the partition is settled, or never.
#[test]
fn a_quiesce_answers_when_its_partition_is_settled() {
    let runtime = Runtime::new().expect("a runtime");
    let lazy = SinkOptions { batch_age: Duration::from_secs(600), ..options() };
    let mut rig = Rig::new(ScriptedSink::table(Duration::from_secs(600)), lazy, true);
    rig.send(&[1; 10]);
    rig.queue.urge(Urgency::Quiesce(PartitionId(0), 7));
    rig.queue.urge(Urgency::Quiesce(PartitionId(1), 8));
    let (reports, sink, queue) = (rig.reports.clone(), rig.sink.clone(), rig.queue.clone());
    runtime.block_on(async {
        let watch = tokio::spawn(async move {
            let is_answered = || reports.lock().contains(&WorkerReport::Quiesced(PartitionId(0), 7));
            while !is_answered() {
                tokio::task::yield_now().await;
            }
            let landed = sink.values().len();
            queue.urge(Urgency::Stop);
            landed
        });
        rig.ends_within(Duration::from_secs(5)).await;
        assert_eq!(watch.await.expect("it only watches"), 10);
    });
    assert!(rig.reports.lock().contains(&WorkerReport::Quiesced(PartitionId(1), 8)));
}

/// Would catch an abort that leaves accepted rows with the writer, to be committed beside their replay.
#[test]
fn an_abort_forgets_what_was_accepted() {
    let runtime = Runtime::new().expect("a runtime");
    let sink = ScriptedSink::table(Duration::from_millis(1));
    sink.script_barrier(vec![Act::Later; 10_000]);
    let mut rig = Rig::new(sink, options(), true);
    rig.send(&[1; 10]);
    let (view, queue, reports) = (rig.view.clone(), rig.queue.clone(), rig.reports.clone());
    runtime.block_on(async {
        let abort = tokio::spawn(async move {
            while view.failure_text().is_none() {
                tokio::task::yield_now().await;
            }
            queue.urge(Urgency::Abort(PartitionId(0), 3));
            while !reports.lock().contains(&WorkerReport::Quiesced(PartitionId(0), 3)) {
                tokio::task::yield_now().await;
            }
            queue.urge(Urgency::Drain(Instant::now() + Duration::from_secs(5)));
        });
        rig.ends_within(Duration::from_secs(6)).await;
        abort.await.expect("it only asks");
    });
    assert_eq!(rig.harvester.outcome(0, 1), Some(false));
    assert!(rig.sink.values().is_empty() && rig.sink.positions().is_empty());
}

/// Would catch holds that are delivered for batches which a sink's barrier has not settled, rows that are written behind lost
/// ones so that the sink's position passes them, and a worker that waits for good after a barrier that failed and left
/// nothing to settle (I7).
#[test]
fn a_barrier_that_lost_the_group_fails_its_holds_and_the_worker_goes_on() {
    let runtime = Runtime::new().expect("a runtime");
    for act in [Act::Forget, Act::LoseAll] {
        let sink = ScriptedSink::table(Duration::from_millis(1));
        sink.script_barrier([act.clone()]);
        let mut rig = Rig::new(sink, options(), true);
        rig.send(&[1; 50]);
        let worker = rig.worker.take().expect("run once");
        runtime.block_on(async {
            let worker = tokio::spawn(worker.run());
            let deadline = Instant::now() + Duration::from_secs(10);
            while rig.harvester.outcome(0, 1).is_none() {
                assert!(Instant::now() < deadline, "{act:?}: the hold is never resolved");
                tokio::task::yield_now().await;
            }
            // Rows that come after it are read again with it.
            rig.send(&[1; 50]);
            rig.drain(Duration::from_secs(60));
            tokio::time::timeout(Duration::from_secs(10), worker).await.expect("it goes on").expect("no panic");
        });
        let outcomes = [rig.harvester.outcome(0, 1), rig.harvester.outcome(1, 1)];
        assert_eq!(outcomes, [Some(false), Some(false)], "{act:?}");
        assert!(rig.sink.values().is_empty() && rig.sink.positions().is_empty(), "{act:?}");
    }
}

/// Would catch rows of an ended epoch that are written beside their replay.
#[test]
fn rows_of_a_closed_epoch_are_not_written() {
    let runtime = Runtime::new().expect("a runtime");
    let mut rig = Rig::new(ScriptedSink::durable(), options(), false);
    rig.send(&[1; 10]);
    rig.harvester.close();
    rig.drain(Duration::from_secs(5));
    runtime.block_on(rig.ends_within(Duration::from_secs(6)));
    assert_eq!(rig.sink.calls(), 0);
    assert_eq!(rig.queue.queued().share, 0);
}
