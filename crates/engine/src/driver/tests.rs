//! A driver thread between a source in memory and a queue that nobody empties: control goes on whatever is blocked, and
//! every barrier is answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_schema::{DataType, Field, Schema};
use landfall_types::{Epoch, PartitionId, Place, SystemClock};

use super::{Beat, Chains, Command, Driver, DriverCx, DriverReport, NewLane, NewSlot};
use crate::chain::{Chain, ChainCx, ChainFactory, ChainParts, SinkPath};
use crate::codes;
use crate::contract::{
    Decoded, Decoder, EngineError, LaneId, PipelineId, PlanError, PollLimit, RowErrors, SinkId, Source, Wanted, columns,
};
use crate::core::{Harvester, Mailbox, Wake, Waker, ring};
use crate::dead_letter::Sender;
use crate::meters::DriverMeters;
use crate::options::{OnError, OnErrors, Route};
use crate::shard::{ShardQueue, ShareLimits};
use crate::testing::{MemoryLane, MemorySource, NumberDecoder, numbers};

const SOON: Duration = Duration::from_secs(10);

struct Rig {
    source: MemorySource,
    commands: Arc<Mailbox<Command<MemoryLane>>>,
    reports: Arc<Mailbox<DriverReport>>,
    queue: Arc<ShardQueue>,
    controller: Arc<Waker>,
    beat: Arc<Beat>,
    thread: Option<std::thread::JoinHandle<()>>,
    next_lane: u32,
}

impl Rig {
    fn new(factory: ChainFactory, limits: ShareLimits) -> Self {
        Rig::flushing(factory, limits, Duration::from_millis(1))
    }

    fn flushing(factory: ChainFactory, limits: ShareLimits, idle_flush: Duration) -> Self {
        let queue = ShardQueue::new(limits, metrics::Counter::noop());
        let waker = Arc::new(Waker::new());
        queue.add_driver(waker.clone());
        let commands = Mailbox::new(waker);
        let controller = Arc::new(Waker::new());
        controller.own();
        let reports = Mailbox::new(controller.clone());
        let path = SinkPath {
            sink: SinkId(1),
            name: Arc::from("out"),
            schema: Arc::new(Schema::new(vec![
                Field::new("value", DataType::Int64, false),
                Field::new(columns::OFFSET, DataType::UInt64, false),
            ])),
            filter: None,
            route: Route::Partition,
            queues: vec![queue.clone()],
            chunk_target: 1_000,
            keeps_origin: false,
        };
        let chain = Chain::new(ChainCx {
            factory,
            sinks: vec![path],
            on_error: OnErrors::all(OnError::Skip),
            sender: Sender { pipeline: PipelineId("p".to_owned()), source: "memory".to_owned() },
            letters: None,
            meters: DriverMeters::new("p"),
            dead_decode: metrics::Counter::noop(),
            dead_sql: metrics::Counter::noop(),
        })
        .expect("a good plan");
        let beat = Beat::new("drv0.p".to_owned(), Instant::now());
        let told = reports.clone();
        let cx = DriverCx {
            index: 0,
            commands: commands.clone(),
            report: Arc::new(move |report| told.post(report)),
            limit: PollLimit { rows: 100, bytes: 1 << 20 },
            max_pending_bytes: u64::MAX,
            idle_flush,
            clock: Arc::new(SystemClock),
            meters: DriverMeters::new("p"),
            beat: beat.clone(),
        };
        let thread = std::thread::spawn(move || Driver::new(cx, Chains::Records(Box::new(chain))).run());
        let source = MemorySource::new("memory", 3);
        Rig { source, commands, reports, queue, controller, beat, thread: Some(thread), next_lane: 0 }
    }

    /// Gives the driver a lane of one partition.
    fn add(&mut self, partition: u32) -> (LaneId, Harvester) {
        self.next_lane += 1;
        let id = LaneId(self.next_lane);
        let at = (PartitionId(partition), Place::START, Epoch(1));
        let lane = self.source.open_lane(id, &[at]).expect("it opens");
        let (issuer, harvester) = ring(at.0, at.2, at.1, 1024, 1, self.controller.clone(), Instant::now());
        let slot = NewSlot { issuer, table: None, skip: vec![Place::START; 2], alone_until: None };
        self.commands.post(Command::Add(Box::new(NewLane { id, lane, slots: vec![slot] })));
        (id, harvester)
    }

    /// Waits until something is so.
    fn until(&self, mut what: impl FnMut() -> bool) {
        let deadline = Instant::now() + SOON;
        while !what() {
            assert!(Instant::now() < deadline, "it did not come");
            self.controller.park(Some(Duration::from_millis(5)));
        }
    }

    fn next_report(&self) -> DriverReport {
        let mut found = None;
        self.until(|| {
            found = self.reports.take();
            found.is_some()
        });
        found.expect("waited for it")
    }

    fn arrives(&self, barrier: u64) {
        loop {
            if let DriverReport::Arrived { barrier: reached, .. } = self.next_report() {
                assert_eq!(reached, barrier);
                return;
            }
        }
    }

    fn ends(mut self, within: Duration) {
        let began = Instant::now();
        self.commands.post(Command::Drain { deadline: Instant::now() + within, barrier: 99 });
        self.arrives(99);
        self.thread.take().expect("once").join().expect("it ends well");
        assert!(began.elapsed() < within + Duration::from_secs(2), "took {:?}", began.elapsed());
    }
}

const SMALL: ShareLimits = ShareLimits { high: 3_000, low: 1_500, chunks: 2 };
const WIDE: ShareLimits = ShareLimits { high: usize::MAX, low: usize::MAX, chunks: usize::MAX };

fn settle(queue: &ShardQueue) -> usize {
    let mut rows = 0;
    while let Some(chunk) = queue.pop() {
        for segment in chunk.segments {
            rows += segment.len();
            segment.hold.deliver();
        }
    }
    rows
}

/// Would catch a driver that serves no control while a batch waits for room.
#[test]
fn stop_lanes_is_served_while_a_batch_is_blocked() {
    let mut rig = Rig::new(numbers(None), SMALL);
    let (blocked, mut first) = rig.add(0);
    let (idle, second) = rig.add(1);
    rig.source.append(0, 0..5_000);
    rig.until(|| rig.queue.is_shut());
    rig.commands.post(Command::Drop { lanes: vec![idle], barrier: 1 });
    rig.arrives(1);
    assert_eq!(second.rows_issued(), 0);
    // The blocked lane has until its deadline, and then fails; the arrival comes either way.
    rig.commands.post(Command::Stop { lanes: vec![blocked], deadline: Instant::now(), barrier: 2 });
    rig.arrives(2);
    assert!(rig.beat.age(Instant::now()) < SOON);
    settle(&rig.queue);
    first.harvest(|_| {});
    assert!(!first.is_settled(), "what was given up is not settled");
    rig.ends(Duration::from_secs(5));
}

/// Would catch a blocked batch that waits for a timer, is lost, or handed over twice.
#[test]
fn a_blocked_batch_resumes_on_space_without_a_timer() {
    let mut rig = Rig::new(numbers(None), SMALL);
    let (_, mut harvester) = rig.add(0);
    rig.source.append(0, 0..2_000);
    let mut rows = 0;
    rig.until(|| {
        rows += settle(&rig.queue);
        harvester.harvest(|_| {});
        harvester.watermark(1).at == 2_000
    });
    assert_eq!(rows, 2_000);
    rig.ends(Duration::from_secs(5));
}

/// Would catch one slow shard, or one lane without records, that stops the other lanes.
#[test]
fn a_cold_lane_never_delays_a_hot_one() {
    let mut rig = Rig::new(numbers(None), WIDE);
    let (_, cold) = rig.add(0);
    let (_, mut hot) = rig.add(1);
    rig.source.append(1, 0..10_000);
    rig.until(|| {
        settle(&rig.queue);
        hot.harvest(|_| {});
        hot.watermark(1).at == 10_000
    });
    assert_eq!(cold.rows_issued(), 0);
    rig.ends(Duration::from_secs(5));
}

/// Would catch an idle driver that does not see new records, or a drain that waits for nothing.
#[test]
fn an_idle_driver_wakes_for_data_and_for_a_drain() {
    let mut rig = Rig::new(numbers(None), WIDE);
    let (_, harvester) = rig.add(0);
    for round in 1..=20 {
        rig.source.append(0, [round]);
        rig.until(|| harvester.rows_issued() == round);
    }
    let began = Instant::now();
    rig.ends(Duration::from_secs(30));
    assert!(began.elapsed() < Duration::from_secs(1), "took {:?}", began.elapsed());
}

/// Would catch a lull that is looked for behind the last record: where records come steadily there is none, and they wait for the
/// next commit tick.
#[test]
fn records_that_come_steadily_are_handed_over() {
    const FEWER_THAN_A_CHUNK: u64 = 40;
    let mut rig = Rig::flushing(numbers(None), WIDE, Duration::from_millis(100));
    let (_, harvester) = rig.add(0);
    let mut round = 0;
    while rig.queue.queued().chunks == 0 {
        round += 1;
        assert!(round < FEWER_THAN_A_CHUNK, "none was handed over");
        rig.source.append(0, [i64::try_from(round).expect("small")]);
        rig.until(|| harvester.rows_issued() == round);
        // The pace of the source, which is what this is about.
        std::thread::sleep(Duration::from_millis(10));
    }
    rig.until(|| settle(&rig.queue) > 0);
    rig.until(|| rig.queue.is_lull());
    rig.ends(Duration::from_secs(5));
}

/// Would catch coalesced rows that a drain leaves behind.
#[test]
fn a_drain_hands_over_what_is_coalesced() {
    let mut rig = Rig::new(numbers(None), WIDE);
    let (_, harvester) = rig.add(0);
    rig.source.append(0, [1, 2, 3]);
    rig.until(|| harvester.rows_issued() == 3);
    let queue = rig.queue.clone();
    rig.ends(Duration::from_secs(5));
    assert_eq!(settle(&queue), 3);
}

struct Broken(NumberDecoder);

impl Decoder for Broken {
    fn plan(&mut self, wanted: &Wanted) -> Result<arrow_schema::SchemaRef, PlanError> {
        self.0.plan(wanted)
    }

    fn decode(&mut self, _: &arrow_array::RecordBatch, _: &mut RowErrors) -> Result<Decoded, EngineError> {
        Err(EngineError { code: codes::STAGE_FAILED, text: "a defect".to_owned() })
    }
}

/// Would catch a driver that vanishes after a fatal error, so that a barrier is never reached, or rows that are
/// committed past it.
#[test]
fn a_failed_driver_still_answers_every_barrier() {
    let factory: ChainFactory = Arc::new(|| {
        let decoder = Box::new(Broken(NumberDecoder));
        Ok(ChainParts { decoder, transforms: Vec::new(), wanted: Wanted::default() })
    });
    let mut rig = Rig::new(factory, WIDE);
    let (lane, mut harvester) = rig.add(0);
    rig.source.append(0, 0..10);
    let DriverReport::Fatal { error, .. } = rig.next_report() else { panic!("the defect is told") };
    assert_eq!(error.code, codes::STAGE_FAILED);
    assert_eq!(harvester.harvest(|_| {}).failed, [0, 1]);
    rig.commands.post(Command::Stop { lanes: vec![lane], deadline: Instant::now() + SOON, barrier: 1 });
    rig.arrives(1);
    let (_, after) = rig.add(1);
    rig.source.append(1, 0..10);
    rig.commands.post(Command::Drop { lanes: Vec::new(), barrier: 2 });
    rig.arrives(2);
    assert_eq!(after.rows_issued(), 0, "nothing is polled any more");
    rig.ends(Duration::from_secs(5));
}

/// Would catch a stop bit that waits for anything.
#[test]
fn a_stop_ends_a_blocked_driver_at_once() {
    let mut rig = Rig::new(numbers(None), SMALL);
    let (_, mut harvester) = rig.add(0);
    rig.source.append(0, 0..5_000);
    rig.until(|| rig.queue.is_shut());
    rig.commands.waker().wake(Wake::STOP);
    rig.thread.take().expect("once").join().expect("it ends well");
    drop(rig.queue.remove(|_| true));
    let harvest = harvester.harvest(|_| {});
    assert!(harvest.failed.contains(&1), "what was held has failed");
}
