//! The controller thread: alone owns the source, the epochs and the harvest side of every ring (I5).
//!
//! One pass: reports → harvest → supervision → commit clock → source events → drain → park (E63). Every wait is a
//! state, never a block: a partition that restarts or a shutdown in progress stops neither the harvest nor the commits
//! of other partitions (I13). A watermark is persisted before the source is told, and moves only over what was
//! harvested as a contiguous settled prefix (I7, H8, H9).

mod assign;
mod commit;
mod drain;
mod partition;
mod restart;
mod revoke;
mod show;
mod tables;

#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_state::{StateError, StateHandle};
use landfall_types::{Clock, PartitionId, Place};
use tokio::runtime::Handle;

use crate::codes;
use crate::contract::{
    LaneId, LaneWaker, PipelineId, Positions, Sink, SinkIdentity, Source, SourceCx, SourceError, TableId,
};
use crate::core::{FailCause, Mailbox, Wake, Waker};
use crate::driver::{Beat, Command, DriverReport};
use crate::meters::{BalanceMeters, CheckpointMeters};
use crate::options::PipelineOptions;
use crate::pipeline::NotYet;
use crate::positions::{SinkMark, Stored};
use crate::shard::{ShardQueue, Urgency};
use crate::sight::{Books, PipelineState, Shared};
use crate::worker::{ShardView, WorkerReport};

use commit::CommitClock;
use drain::Drain;
use partition::Part;
use revoke::Revocation;
use tables::Table;
pub(crate) use tables::{OpenTable, TableJob, TableReady, TableSeat};

/// What reaches the controller.
#[derive(Debug)]
pub(crate) enum Note {
    /// From a driver.
    Driver(DriverReport),
    /// From a worker.
    Worker { table: Option<TableId>, sink: usize, shard: usize, report: WorkerReport },
    /// A table is open, or a shape of it is planned, or not.
    TableReady { table: TableId, shape: u32, number: u64, result: Result<Box<TableReady>, NotYet> },
    /// The worker of dead letters has stored everything and ended.
    LettersEnded,
    /// A transaction is durable, or failed.
    Stored { number: u64, result: Result<(), StateError> },
    /// What the sinks hold, for a partition that restarts.
    Positions { partition: PartitionId, number: u64, result: Result<Vec<Option<Positions>>, FailCause> },
}

/// One sink of a run.
pub(crate) struct SinkRun {
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) identity: SinkIdentity,
    /// What it held when the run began; None for sinks that hold no positions.
    pub(crate) committed: Option<Positions>,
    pub(crate) queues: Vec<Arc<ShardQueue>>,
    pub(crate) views: Vec<Arc<ShardView>>,
}

impl std::fmt::Debug for SinkRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SinkRun").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// A sink by its name, over all tables.
pub(crate) struct SinkHead {
    pub(crate) name: Arc<str>,
    pub(crate) meters: BalanceMeters,
}

/// A driver, as the controller keeps it.
pub(crate) struct DriverSeat<L> {
    pub(crate) commands: Arc<Mailbox<Command<L>>>,
    pub(crate) lanes: usize,
    pub(crate) has_ended: bool,
}

/// What a controller is made with.
pub(crate) struct ControllerCx<L> {
    pub(crate) pipeline: PipelineId,
    pub(crate) identity: String,
    pub(crate) options: PipelineOptions,
    pub(crate) heads: Vec<SinkHead>,
    /// Of a record source, beside `heads`; a change source has them per table.
    pub(crate) sinks: Vec<SinkRun>,
    /// How tables are opened, for a change source.
    pub(crate) tables: Option<TableSeat>,
    pub(crate) drivers: Vec<DriverSeat<L>>,
    pub(crate) has_letters: bool,
    pub(crate) letters: Option<Arc<crate::dead_letter::LetterQueue>>,
    pub(crate) state: StateHandle,
    pub(crate) stored: Stored,
    pub(crate) epochs: BTreeMap<PartitionId, u32>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) runtime: Handle,
    pub(crate) shared: Arc<Shared>,
    pub(crate) notes: Arc<Mailbox<Note>>,
    pub(crate) beat: Arc<Beat>,
    pub(crate) meters: CheckpointMeters,
    pub(crate) plan_cx: crate::contract::PlanCx,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) enum RunEnd {
    /// By a drain: everything settled and committed, or not.
    Drained { unfinished: Vec<crate::exit::UnfinishedRange>, cause: Option<FailCause> },
    /// A second signal.
    Aborted,
    /// An error. `is_final`: an invariant broke, and it must not start again by itself.
    Failed { cause: FailCause, is_final: bool },
}

/// See the module.
pub(crate) struct Controller<'s, S: Source> {
    cx: ControllerCx<S::Lane>,
    source: &'s mut S,
    waker: Arc<Waker>,
    parts: BTreeMap<PartitionId, Part>,
    tables: BTreeMap<TableId, Table>,
    /// The one lane of a change source.
    lane: Option<LaneId>,
    books: Books,
    commit: CommitClock,
    drain: Option<Drain>,
    is_drained: bool,
    next_lane: u32,
    next_number: u64,
    workers_ended: HashSet<(Option<TableId>, usize, usize)>,
    letters_ended: bool,
    failed: Option<(FailCause, bool)>,
    aborted: bool,
    is_stalled: bool,
    /// What was read when a commit was wanted soon, until it is settled.
    hurry: Option<Hurry>,
    revocations: Vec<Revocation>,
    /// Positions of partitions that have left, should they come back in this run.
    left_marks: BTreeMap<PartitionId, Vec<Place>>,
    dirty: bool,
    /// Something moved that waiters wait for; told once it can be seen.
    is_news: bool,
}

impl<'s, S: Source> Controller<'s, S> {
    pub(crate) fn new(cx: ControllerCx<S::Lane>, source: &'s mut S) -> Self {
        let waker = cx.notes.waker().clone();
        let now = cx.clock.instant();
        let letters_ended = !cx.has_letters;
        let mut books = cx.shared.sight.lock().books.clone();
        books.fit(cx.heads.len());
        Controller {
            commit: CommitClock::new(now),
            source,
            waker,
            parts: BTreeMap::new(),
            tables: BTreeMap::new(),
            lane: None,
            books,
            drain: None,
            is_drained: false,
            next_lane: 0,
            next_number: 0,
            workers_ended: HashSet::new(),
            letters_ended,
            failed: None,
            aborted: false,
            is_stalled: false,
            hurry: None,
            revocations: Vec::new(),
            left_marks: BTreeMap::new(),
            dirty: true,
            is_news: false,
            cx,
        }
    }

    /// Runs until a drain, a failure or an abort has ended it.
    pub(crate) fn run(mut self) -> (RunEnd, BTreeMap<PartitionId, u32>) {
        self.waker.own();
        let to_wake = self.waker.clone();
        let waker = LaneWaker::new(move || to_wake.wake(Wake::DATA));
        let (record, on_trimmed) = (self.cx.stored.record.clone(), self.cx.options.on_trimmed);
        let opened = self.source.open(SourceCx { record, waker, on_trimmed });
        if let Err(error) = opened {
            let cause = source_cause(&error);
            let end = self.end_failed(cause, false);
            return (end, std::mem::take(&mut self.cx.epochs));
        }
        self.cx.shared.set_state(PipelineState::Running, None);
        let end = loop {
            let now = self.cx.clock.instant();
            self.cx.beat.beat(now);
            if let Some(end) = self.pass(now) {
                break end;
            }
            let timeout = self.until_timer(self.cx.clock.instant());
            self.waker.park(Some(timeout));
        };
        self.show(self.cx.clock.instant());
        (end, std::mem::take(&mut self.cx.epochs))
    }

    fn pass(&mut self, now: Instant) -> Option<RunEnd> {
        self.take_notes(now);
        self.take_asked(now);
        self.harvest();
        self.supervise(now);
        self.press_on(now);
        self.tick_commit(now);
        self.take_events(now);
        self.step_tables(now);
        self.step_revocations(now);
        self.step_drain(now);
        self.look_for_stall(now);
        self.show(now);
        if self.aborted {
            return Some(self.end_aborted());
        }
        if let Some((cause, is_final)) = self.failed.take() {
            return Some(self.end_failed(cause, is_final));
        }
        self.drain_end(now)
    }

    fn take_notes(&mut self, now: Instant) {
        while let Some(note) = self.cx.notes.take() {
            match note {
                Note::Driver(report) => self.driver_reported(report, now),
                Note::Worker { table, sink, shard, report } => match report {
                    WorkerReport::Quiesced(partition, number) => self.quiesced(partition, number),
                    WorkerReport::Ended => {
                        self.workers_ended.insert((table, sink, shard));
                    }
                },
                Note::TableReady { table, shape, number, result } => {
                    self.table_ready(table, shape, number, result, now);
                }
                Note::LettersEnded => self.letters_ended = true,
                Note::Stored { number, result } => self.stored(number, result, now),
                Note::Positions { partition, number, result } => {
                    self.positions_read(partition, number, result, now);
                }
            }
        }
    }

    fn driver_reported(&mut self, report: DriverReport, now: Instant) {
        match report {
            DriverReport::Arrived { driver, barrier } => self.arrived(driver, barrier, now),
            DriverReport::LaneFailed { lane, cause } => self.lane_failed(lane, &cause),
            DriverReport::ShapeWanted { table, shape, schema, key } => {
                self.shape_wanted(table, shape, schema, key, now);
            }
            DriverReport::SourceFailed(cause) => self.fail(cause, false),
            DriverReport::Fatal { driver, error } => {
                let is_final = error.code == codes::INVARIANT || error.code == codes::LANE_CONTRACT;
                tracing::error!(code = %error.code, driver, "the chain has ended: {}", error.text);
                self.fail(FailCause::new(error.code, error.text), is_final);
            }
            DriverReport::Gated(partition) => {
                tracing::debug!(
                    pipeline = %self.cx.pipeline, partition = partition.0,
                    "a partition stands at its ceiling of pending batches"
                );
                self.hurry(now);
            }
            DriverReport::Ended { driver } => {
                if let Some(seat) = self.cx.drivers.get_mut(driver) {
                    seat.has_ended = true;
                }
                if self.drain.is_none() {
                    self.fail(FailCause::new(codes::PANIC, format!("driver {driver} ended by itself")), false);
                }
            }
        }
    }

    /// The first failure is the one that is told.
    fn fail(&mut self, cause: FailCause, is_final: bool) {
        if self.failed.is_none() {
            self.failed = Some((cause, is_final));
        }
    }

    fn take_asked(&mut self, now: Instant) {
        let asked = {
            let mut asked = self.cx.shared.asked.lock();
            let taken = asked.clone();
            asked.flush = false;
            taken
        };
        if asked.abort {
            self.aborted = true;
        }
        if asked.flush {
            self.hurry(now);
        }
        if let (Some(deadline), None) = (asked.shutdown, &self.drain) {
            self.start_drain(deadline, asked.grace, now);
        }
    }

    /// Drivers hand over what is coalesced (E69).
    fn flush_drivers(&self) {
        for seat in &self.cx.drivers {
            seat.commands.waker().wake(Wake::FLUSH);
        }
    }

    /// Workers that hold rows of these partitions seal what they have and make it durable (E67, E84).
    fn settle_soon(&self, partitions: &[PartitionId]) {
        let tables: HashSet<Option<TableId>> =
            partitions.iter().filter_map(|partition| self.parts.get(partition)).map(|part| part.table).collect();
        for (_, _, sink) in self.every_sink().filter(|(table, ..)| tables.contains(table)) {
            sink.queues.iter().for_each(|queue| queue.urge(Urgency::Settle));
        }
    }

    /// What was read so far is to be settled and committed soon. Rows are on their way from drivers to workers, so the
    /// wish is repeated until they have arrived.
    fn hurry(&mut self, now: Instant) {
        let read = self.parts.values().filter_map(|part| Some((part.partition, part.harvester.as_ref()?.issued_to()?)));
        let is_flushed = self.hurry.is_some();
        self.hurry = Some(Hurry { targets: read.collect(), next: now, is_flushed });
        self.press_on(now);
    }

    fn press_on(&mut self, now: Instant) {
        const HANDED_OVER: Duration = Duration::from_millis(1);
        const AGAIN: Duration = Duration::from_millis(50);
        let Some(hurry) = &mut self.hurry else { return };
        let before = hurry.targets.len();
        hurry.targets.retain(|(partition, end)| self.parts.get(partition).is_some_and(|part| part.watermark() < *end));
        if hurry.targets.len() < before {
            // What a slow table holds back is no reason to keep the others waiting.
            self.commit.soon();
        }
        if hurry.targets.is_empty() {
            self.hurry = None;
            self.commit.soon();
        } else if now >= hurry.next {
            // Workers that are told before the drivers' last rows are there would commit those on their own.
            let is_flushed = std::mem::replace(&mut hurry.is_flushed, true);
            hurry.next = now + if is_flushed { AGAIN } else { HANDED_OVER };
            let waiting: Vec<PartitionId> = hurry.targets.iter().map(|(partition, _)| *partition).collect();
            self.flush_drivers();
            if is_flushed {
                self.settle_soon(&waiting);
            }
        }
    }

    /// The positions of sinks, as [`crate::positions`] wants them.
    fn sink_marks(&self, table: Option<TableId>) -> Vec<SinkMark<'_>> {
        self.cx
            .heads
            .iter()
            .zip(self.sinks_of(table))
            .map(|(head, sink)| SinkMark {
                name: &head.name,
                destination: &sink.identity.0,
                committed: sink.committed.as_ref(),
            })
            .collect()
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn until_timer(&self, now: Instant) -> Duration {
        const IDLE: Duration = Duration::from_secs(5);
        let mut until = IDLE;
        let mut due = |at: Instant| until = until.min(at.saturating_duration_since(now));
        let is_busy = self.parts.values().any(|part| !part.is_settled()) || self.dirty;
        if is_busy || self.commit.is_waiting() {
            due(self.commit.next(self.cx.options.checkpoint_interval));
        }
        for part in self.parts.values() {
            part.timer().into_iter().for_each(&mut due);
        }
        if let Some(drain) = &self.drain {
            due(drain.next_deadline(now));
        }
        for revocation in &self.revocations {
            due(revocation.deadline());
        }
        self.tables_timer().into_iter().for_each(&mut due);
        if let Some(hurry) = &self.hurry {
            due(hurry.next);
        }
        until.max(Duration::from_millis(1))
    }

    /// Lanes are stopped where they are; nothing more is committed but what is settled already.
    fn stop_everything(&mut self) {
        for seat in &self.cx.drivers {
            seat.commands.waker().wake(Wake::STOP);
        }
        for queue in self.every_sink().flat_map(|(_, _, sink)| &sink.queues) {
            queue.urge(Urgency::Stop);
        }
        if let Some(letters) = &self.cx.letters {
            letters.close();
        }
    }

    fn end_aborted(&mut self) -> RunEnd {
        self.stop_everything();
        RunEnd::Aborted
    }

    fn end_failed(&mut self, cause: FailCause, is_final: bool) -> RunEnd {
        self.stop_everything();
        let deadline = self.cx.clock.instant() + Duration::from_secs(2);
        self.wait_for_ends(deadline);
        // What was settled before the failure counts: it is committed, so that less is read again.
        self.harvest();
        self.commit_last(deadline + Duration::from_secs(2));
        for (_, part) in std::mem::take(&mut self.parts) {
            self.return_rows(&part);
        }
        RunEnd::Failed { cause, is_final }
    }

    /// Takes notes until every thread and worker has ended, or the deadline passes.
    fn wait_for_ends(&mut self, deadline: Instant) {
        loop {
            let now = self.cx.clock.instant();
            self.cx.beat.beat(now);
            while let Some(note) = self.cx.notes.take() {
                match note {
                    Note::Driver(DriverReport::Ended { driver }) => {
                        if let Some(seat) = self.cx.drivers.get_mut(driver) {
                            seat.has_ended = true;
                        }
                    }
                    Note::Worker { table, sink, shard, report: WorkerReport::Ended } => {
                        self.workers_ended.insert((table, sink, shard));
                    }
                    Note::Stored { number, result } => self.stored(number, result, now),
                    _ => {}
                }
            }
            let have_ended = self.cx.drivers.iter().all(|seat| seat.has_ended) && self.all_workers_ended();
            if have_ended || now >= deadline {
                return;
            }
            self.waker.park(Some(deadline.saturating_duration_since(now).min(Duration::from_millis(100))));
        }
    }

    fn all_workers_ended(&self) -> bool {
        self.every_sink().all(|(table, sink, run)| {
            (0..run.queues.len()).all(|shard| self.workers_ended.contains(&(table, sink, shard)))
        })
    }

    fn look_for_stall(&mut self, now: Instant) {
        let oldest = self
            .parts
            .values()
            .flat_map(|part| (0..=self.cx.heads.len()).filter_map(move |sink| part.oldest(sink, now)))
            .max_by_key(|oldest| oldest.age);
        let mut sight = self.cx.shared.sight.lock();
        sight.oldest = oldest.as_ref().map(|oldest| oldest.age);
        let stalled = oldest.filter(|oldest| oldest.age >= self.cx.options.stalled_after);
        let is_edge = stalled.is_some() != self.is_stalled;
        self.is_stalled = stalled.is_some();
        if !is_edge {
            return;
        }
        sight.stalled = stalled.map(|oldest| {
            let sink = match oldest.sink.checked_sub(1) {
                Some(sink) => format!("sink {}", self.cx.heads[sink].name),
                None => "dead letters".to_owned(),
            };
            let text = format!(
                "partition {} has not been settled from {} on for {:?} ({sink})",
                oldest.partition, oldest.range.start, oldest.age
            );
            tracing::error!(code = %codes::STALLED, pipeline = %self.cx.pipeline, "{text}");
            FailCause::new(codes::STALLED, text)
        });
    }
}

/// See [`Controller::hurry`].
#[derive(Debug)]
struct Hurry {
    targets: Vec<(PartitionId, Place)>,
    next: Instant,
    /// Drivers were told to hand over what they have; workers are told next.
    is_flushed: bool,
}

/// The oldest thing that is not settled.
#[derive(Clone, Debug)]
struct Oldest {
    partition: PartitionId,
    sink: usize,
    range: std::ops::Range<Place>,
    age: Duration,
}

/// A lane's number that was never given before.
fn lane_id(next: &mut u32) -> LaneId {
    *next = next.wrapping_add(1);
    LaneId(*next)
}

fn source_cause(error: &SourceError) -> FailCause {
    let (SourceError::Later { code, text } | SourceError::Lane { code, text } | SourceError::Fatal { code, text }) =
        error;
    FailCause::new(*code, text.as_str())
}
