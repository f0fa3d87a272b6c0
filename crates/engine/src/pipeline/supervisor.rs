//! A pipeline's life: prepare → threads → run → end, again by a back-off after a failure (E72, E77), until it is shut
//! down, its bounded source has ended, or an invariant broke. Neighbours are untouched by any of it (I13).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use landfall_state::StateHandle;
use landfall_types::PartitionId;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

use super::prepare::{NotYet, OpenSink, open, stored};
use super::staging::{Hands, Stage};
use super::tables::Opener;
use super::{LEFT_BEHIND_AFTER, Parts, Pipeline, PipelineHandle};
use crate::chain::Chain;
use crate::codes;
use crate::contract::{PipelineId, PlanCx, PollLimit, Sink, Source, SourceLane};
use crate::controller::{Controller, ControllerCx, DriverSeat, Note, RunEnd, SinkHead, SinkRun, TableSeat};
use crate::core::{FailCause, Mailbox, Wake, Waker};
use crate::dead_letter::LetterQueue;
use crate::driver::{Beat, Chains, Command, Driver, DriverCx, DriverReport};
use crate::exit::{Ending, ExitReport};
use crate::meters::{BalanceMeters, CheckpointMeters, DriverMeters};
use crate::options::OnError;
use crate::positions::Stored;
use crate::sight::{Asked, PipelineState, Rates, Shared, Sight, SinkSight, Why, Word};
use crate::worker::panic_text;

pub(super) fn start<S: Source + 'static>(
    pipeline: Pipeline<S>,
    state: StateHandle,
    runtime: &Handle,
) -> PipelineHandle {
    let parts = &pipeline.parts;
    let now = parts.clock.instant();
    let shared = Arc::new(Shared {
        id: parts.id.clone(),
        name: parts.name.clone(),
        clock: parts.clock.clone(),
        word: Mutex::new(Word {
            state: PipelineState::Starting,
            since: parts.clock.now(),
            since_instant: now,
            why: None,
        }),
        sight: Mutex::new(Sight::default()),
        sinks: Mutex::new(sights(parts)),
        letters: Mutex::new(None),
        beats: Mutex::new(Vec::new()),
        asked: Mutex::new(Asked::default()),
        controller: Mutex::new(None),
        supervisor: Notify::new(),
        changes: watch::Sender::new(0),
        ended: watch::Sender::new(None),
        rates: Mutex::new(Rates::new(now)),
    });
    let supervisor = Supervisor { shared: shared.clone(), state, runtime: runtime.clone() };
    runtime.spawn(supervisor.live(pipeline));
    PipelineHandle { shared }
}

/// The sinks as they are shown before a run has opened them.
fn sights(parts: &Parts) -> Vec<SinkSight> {
    let sight = |name: &Arc<str>, sink: Option<Arc<dyn Sink>>| SinkSight {
        name: name.clone(),
        guarantee: sink.as_ref().map_or("at least once", |sink| sink.guarantee().as_str()),
        sink,
        queues: Vec::new(),
        views: Vec::new(),
    };
    let of_tables = parts.tables.iter().flat_map(|tables| &tables.sinks).map(|part| sight(&part.name, None));
    parts.sinks.iter().map(|part| sight(&part.name, Some(part.sink.clone()))).chain(of_tables).collect()
}

fn heads(parts: &Parts) -> Vec<SinkHead> {
    let meters = |name: &Arc<str>| BalanceMeters::new(&parts.id.0, name);
    parts.sink_names().map(|name| SinkHead { name: name.clone(), meters: meters(name) }).collect()
}

struct Supervisor {
    shared: Arc<Shared>,
    state: StateHandle,
    runtime: Handle,
}

/// Threads and tasks of one run.
struct Crew {
    drivers: Vec<JoinHandle<()>>,
    wakers: Vec<Arc<Waker>>,
    hands: Hands,
    letters: Option<(Arc<LetterQueue>, tokio::task::JoinHandle<()>)>,
}

impl Crew {
    /// Whoever still runs is stopped, and waited for within a bound.
    async fn dismiss(self) {
        self.wakers.iter().for_each(|waker| waker.wake(Wake::STOP));
        let workers = self.hands.stop();
        let drivers = self.drivers;
        let joined = tokio::task::spawn_blocking(move || {
            for driver in drivers {
                // A driver that panicked outside of user code has failed its holds by unwinding.
                drop(driver.join());
            }
        });
        if tokio::time::timeout(LEFT_BEHIND_AFTER, joined).await.is_err() {
            tracing::error!(code = %codes::DRAIN_DEADLINE, "a driver thread did not end and is left behind");
        }
        for worker in workers {
            let abort = worker.abort_handle();
            if tokio::time::timeout(LEFT_BEHIND_AFTER, worker).await.is_err() {
                abort.abort();
            }
        }
        if let Some((queue, task)) = self.letters {
            queue.close();
            task.abort();
        }
    }
}

/// What keeps a pipeline from running.
struct Obstacle {
    cause: FailCause,
    /// It may end by itself.
    is_passing: bool,
}

enum Stopped {
    Shutdown,
    Aborted,
}

impl Supervisor {
    async fn live<S: Source + 'static>(self, pipeline: Pipeline<S>) {
        let report = self.runs(pipeline).await;
        self.shared.set_state(PipelineState::Stopped, None);
        match report.ending {
            Ending::Settled => tracing::info!(
                pipeline = %self.shared.id, committed = ?report.committed, "the pipeline has ended: all is settled"
            ),
            ending => tracing::error!(
                pipeline = %self.shared.id, code = %report.code.unwrap_or(codes::PIPELINE_FAILED),
                committed = ?report.committed, unfinished = report.unfinished.len(), "the pipeline has ended: {ending:?}"
            ),
        }
        *self.shared.controller.lock() = None;
        self.shared.ended.send_replace(Some(report));
        self.shared.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    async fn runs<S: Source + 'static>(&self, mut pipeline: Pipeline<S>) -> ExitReport {
        let mut failures = 0u32;
        let mut epochs = BTreeMap::new();
        let mut obstacle = None;
        loop {
            let facts = SourceFacts {
                identity: Arc::from(pipeline.source.profile().identity),
                partitions: pipeline.source.plan().map(|plan| plan.partitions).unwrap_or_default(),
            };
            let prepared = match self.prepare(&pipeline.parts, &facts, &mut obstacle).await {
                Ok(prepared) => prepared,
                Err(Stopped::Shutdown) => return self.report_without_run(obstacle),
                Err(Stopped::Aborted) => {
                    return self.report(Ending::Aborted, obstacle.map(|obstacle| obstacle.cause), Vec::new());
                }
            };
            let began = Instant::now();
            let (back, end) = self.run(pipeline, prepared, &mut epochs).await;
            let cause = match end {
                RunEnd::Drained { unfinished, cause } => {
                    let ending = match (&cause, unfinished.is_empty()) {
                        (None, true) => Ending::Settled,
                        (None, false) if self.shared.asked.lock().shutdown.is_none() => Ending::Failed,
                        (None, false) => Ending::Unfinished,
                        (Some(_), _) => Ending::Failed,
                    };
                    return self.report(ending, cause, unfinished);
                }
                RunEnd::Aborted => return self.report(Ending::Aborted, None, Vec::new()),
                RunEnd::Failed { cause, is_final: true } => {
                    self.shared.set_state(PipelineState::Failed, Some(Why::of("pipeline", &cause)));
                    return self.report(Ending::Failed, Some(cause), Vec::new());
                }
                RunEnd::Failed { cause, is_final: false } => cause,
            };
            let Some(back) = back else {
                // The source went down with its thread: there is nothing to run again.
                return self.report(Ending::Failed, Some(cause), Vec::new());
            };
            pipeline = back;
            if began.elapsed() > pipeline.parts.options.restart.max {
                failures = 0;
            }
            failures = failures.saturating_add(1);
            let asks_human = [codes::POSITION_WENT_BACK, codes::SOURCE_CHANGED, codes::SINK_CHANGED];
            let is_blocked = asks_human.contains(&cause.code);
            let delay = if is_blocked {
                pipeline.parts.options.restart.max
            } else {
                pipeline.parts.options.restart.delay(failures, crate::random::fraction())
            };
            let state = if is_blocked { PipelineState::Blocked } else { PipelineState::Failed };
            let mut why = Why::of("pipeline", &cause);
            why.attempt = failures;
            why.next_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            self.shared.set_state(state, Some(why));
            match self.wait(delay).await {
                None => {}
                Some(Stopped::Shutdown) => return self.report(Ending::Failed, Some(cause), Vec::new()),
                Some(Stopped::Aborted) => return self.report(Ending::Aborted, Some(cause), Vec::new()),
            }
            obstacle = Some(Obstacle { cause, is_passing: false });
            self.shared.set_state(PipelineState::Starting, None);
        }
    }

    fn stopped(&self) -> Option<Stopped> {
        let asked = self.shared.asked.lock();
        if asked.abort {
            return Some(Stopped::Aborted);
        }
        asked.shutdown.map(|_| Stopped::Shutdown)
    }

    /// Waits, unless an end is asked for.
    async fn wait(&self, delay: Duration) -> Option<Stopped> {
        let until = tokio::time::Instant::now() + delay;
        loop {
            if let Some(stopped) = self.stopped() {
                return Some(stopped);
            }
            tokio::select! {
                () = tokio::time::sleep_until(until) => return self.stopped(),
                () = self.shared.supervisor.notified() => {}
            }
        }
    }

    /// Tries until it is done or an end is asked for. `obstacle`: what the last try met.
    async fn prepare(
        &self,
        parts: &Parts,
        source: &SourceFacts,
        obstacle: &mut Option<Obstacle>,
    ) -> Result<Prepared, Stopped> {
        let mut attempt = 0u32;
        loop {
            if let Some(stopped) = self.stopped() {
                return Err(stopped);
            }
            let not_yet = tokio::select! {
                prepared = self.try_prepare(parts, source) => match prepared {
                    Ok(prepared) => {
                        *obstacle = None;
                        return Ok(prepared);
                    }
                    Err(not_yet) => not_yet,
                },
                stopped = self.until_stopped() => return Err(stopped),
            };
            attempt = attempt.saturating_add(1);
            let backoff = parts.sinks.first().map_or(parts.options.restart, |part| part.options.retry.backoff);
            let delay = match not_yet.after {
                _ if not_yet.is_blocked => backoff.max,
                Some(after) => after.min(backoff.max),
                None => backoff.delay(attempt, crate::random::fraction()),
            };
            let mut why = Why::of(&not_yet.at, &not_yet.cause);
            why.attempt = attempt;
            why.next_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            let state = if not_yet.is_blocked { PipelineState::Blocked } else { PipelineState::Retrying };
            self.shared.set_state(state, Some(why));
            *obstacle = Some(Obstacle { cause: not_yet.cause, is_passing: !not_yet.is_blocked });
            if let Some(stopped) = self.wait(delay).await {
                return Err(stopped);
            }
        }
    }

    async fn until_stopped(&self) -> Stopped {
        loop {
            if let Some(stopped) = self.stopped() {
                return stopped;
            }
            self.shared.supervisor.notified().await;
        }
    }

    async fn try_prepare(&self, parts: &Parts, source: &SourceFacts) -> Result<Prepared, NotYet> {
        let identity = source.identity.clone();
        let stored = stored(&self.state, &parts.id, &identity).await?;
        let plan_cx = PlanCx { pipeline: parts.id.clone(), source: identity.to_string(), online: true };
        let schemas = parts.check().map_err(|error| NotYet {
            at: "chain".to_owned(),
            cause: FailCause::new(error.code, error.text),
            is_blocked: true,
            after: None,
        })?;
        let mut sinks = Vec::with_capacity(parts.sinks.len());
        for (part, rows) in parts.sinks.iter().zip(&schemas.sinks) {
            sinks.push(open(part, rows, &plan_cx, stored.destination(&part.name)).await?);
        }
        Ok(Prepared { identity, stored, plan_cx, sinks, partitions: source.partitions.clone() })
    }

    /// One run: from threads to their end. The pipeline comes back unless its thread took it down.
    async fn run<S: Source + 'static>(
        &self,
        pipeline: Pipeline<S>,
        prepared: Prepared,
        epochs: &mut BTreeMap<PartitionId, u32>,
    ) -> (Option<Pipeline<S>>, RunEnd) {
        let failed = |text: String| RunEnd::Failed { cause: FailCause::new(codes::START, text), is_final: false };
        let waker = Arc::new(Waker::new());
        let notes: Arc<Mailbox<Note>> = Mailbox::new(waker.clone());
        let mut crew = Crew { drivers: Vec::new(), wakers: Vec::new(), hands: Hands::default(), letters: None };
        let staged = self.build::<S::Lane>(&pipeline.parts, &prepared, &notes, &mut crew).await;
        let (sinks, seats, tables) = match staged {
            Ok(all) => all,
            Err(text) => {
                crew.dismiss().await;
                return (Some(pipeline), failed(text));
            }
        };
        let now = pipeline.parts.clock.instant();
        let beat = Beat::new(thread_name("ctl", &pipeline.parts.id), now);
        self.shared.beats.lock().insert(0, beat.clone());
        let mut options = pipeline.parts.options.clone();
        options.max_pending_batches = pipeline.parts.ring_slots(prepared.partitions.len());
        let cx = ControllerCx {
            pipeline: pipeline.parts.id.clone(),
            identity: prepared.identity.to_string(),
            options,
            heads: heads(&pipeline.parts),
            sinks,
            tables,
            drivers: seats,
            has_letters: crew.letters.is_some(),
            letters: crew.letters.as_ref().map(|(queue, _)| queue.clone()),
            state: self.state.clone(),
            stored: prepared.stored,
            epochs: std::mem::take(epochs),
            clock: pipeline.parts.clock.clone(),
            runtime: self.runtime.clone(),
            shared: self.shared.clone(),
            notes,
            beat: beat.clone(),
            meters: CheckpointMeters::new(&pipeline.parts.id.0),
            plan_cx: prepared.plan_cx,
        };
        *self.shared.controller.lock() = Some(waker);
        let (tell, told) = oneshot::channel();
        let mut pipeline = pipeline;
        let spawned = std::thread::Builder::new().name(beat.name.clone()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| Controller::new(cx, &mut pipeline.source).run()));
            drop(tell.send((pipeline, ended)));
        });
        let ended = match spawned {
            Ok(thread) => {
                let ended = told.await;
                drop(tokio::task::spawn_blocking(move || drop(thread.join())).await);
                ended
            }
            Err(error) => {
                crew.dismiss().await;
                return (None, failed(format!("the controller's thread cannot be made: {error}")));
            }
        };
        *self.shared.controller.lock() = None;
        crew.dismiss().await;
        self.shared.beats.lock().clear();
        match ended {
            Ok((pipeline, Ok((end, used)))) => {
                *epochs = used;
                (Some(pipeline), end)
            }
            Ok((pipeline, Err(panic))) => {
                // Drivers are stopped by now; what they held has failed and is read again (E77).
                let text = format!("the controller panicked: {}", panic_text(panic));
                tracing::error!(code = %codes::PANIC, pipeline = %self.shared.id, "{text}");
                self.forget_live_rings();
                epochs_after_panic(epochs, &prepared.partitions);
                (Some(pipeline), RunEnd::Failed { cause: FailCause::new(codes::PANIC, text), is_final: false })
            }
            Err(_) => (None, failed("the controller's thread ended without a word".to_owned())),
        }
    }

    /// Rings of a controller that panicked: what was issued and not harvested is returned.
    fn forget_live_rings(&self) {
        let mut sight = self.shared.sight.lock();
        let live = std::mem::take(&mut sight.live);
        for ring in live.into_values() {
            let issued = ring.counted.rows_issued();
            sight.books.close(issued, &ring.harvested);
            if let Some(books) = ring.table.and_then(|table| sight.tables.get_mut(&table)) {
                books.close(issued, &ring.harvested);
            }
        }
    }

    /// The end of a pipeline between two runs, or before its first one. One that waited for its destination, or for a
    /// human, has settled nothing of what lies in its source (E75).
    fn report_without_run(&self, obstacle: Option<Obstacle>) -> ExitReport {
        match obstacle {
            None => self.report(Ending::Settled, None, Vec::new()),
            Some(Obstacle { cause, is_passing }) => {
                let ending = if is_passing { Ending::Unfinished } else { Ending::Failed };
                self.report(ending, Some(cause), Vec::new())
            }
        }
    }

    fn report(
        &self,
        ending: Ending,
        cause: Option<FailCause>,
        unfinished: Vec<crate::exit::UnfinishedRange>,
    ) -> ExitReport {
        let names: Vec<Arc<str>> = self.shared.sinks.lock().iter().map(|sink| sink.name.clone()).collect();
        let committed = self
            .shared
            .sight
            .lock()
            .committed
            .iter()
            .map(|(partition, place)| (partition.to_string(), place.at))
            .collect();
        ExitReport {
            pipeline: self.shared.id.clone(),
            ending,
            code: cause.as_ref().map(|cause| cause.code),
            cause: cause.map(|cause| cause.text.to_string()),
            committed,
            unfinished,
            balance: names
                .iter()
                .enumerate()
                .map(|(at, name)| (name.to_string(), self.shared.balance_of(at)))
                .collect(),
        }
    }
}

impl Supervisor {
    /// Builds a run's queues, workers and drivers.
    async fn build<L: SourceLane + 'static>(
        &self,
        parts: &Parts,
        prepared: &Prepared,
        notes: &Arc<Mailbox<Note>>,
        crew: &mut Crew,
    ) -> Result<(Vec<SinkRun>, Vec<DriverSeat<L>>, Option<TableSeat>), String> {
        let on_error = parts.options.on_error;
        let needs_letters = on_error.decode == OnError::DeadLetter || on_error.sql == OnError::DeadLetter;
        if let Some(store) = parts.dead_letters.clone().filter(|_| needs_letters) {
            let queue = LetterQueue::new();
            let to_tell = notes.clone();
            let work = queue.clone().work(store, parts.options.restart);
            let task = self.runtime.spawn(async move {
                work.await;
                to_tell.post(Note::LettersEnded);
            });
            crew.letters = Some((queue, task));
        }
        *self.shared.letters.lock() = crew.letters.as_ref().map(|(queue, _)| queue.clone());
        let stage = Stage {
            pipeline: parts.id.clone(),
            identity: prepared.identity.clone(),
            options: parts.options.clone(),
            dead_letters: parts.dead_letters.clone(),
            letters: crew.letters.as_ref().map(|(queue, _)| queue.clone()),
            clock: parts.clock.clone(),
            runtime: self.runtime.clone(),
            notes: notes.clone(),
            hands: crew.hands.clone(),
        };
        let mut runs = Vec::with_capacity(prepared.sinks.len());
        let mut paths = Vec::with_capacity(prepared.sinks.len());
        for (at, open) in prepared.sinks.iter().enumerate() {
            let (run, path) = stage.sink(None, at, open).await;
            runs.push(run);
            paths.push(path);
        }
        let mut sights = sights(parts);
        for (sight, run) in sights.iter_mut().zip(&runs) {
            sight.queues.clone_from(&run.queues);
            sight.views.clone_from(&run.views);
        }
        *self.shared.sinks.lock() = sights;
        if let Some(tables) = &parts.tables {
            let waker = Arc::new(Waker::new());
            if let Some(letters) = &stage.letters {
                letters.add_driver(waker.clone());
            }
            let seat = self.driver(parts, 0, Chains::Tables(BTreeMap::new()), waker.clone(), notes, crew)?;
            let opener = Opener { stage, tables: tables.shrunk(parts), plan_cx: prepared.plan_cx.clone(), waker };
            return Ok((runs, vec![seat], Some(opener.seat())));
        }
        let factory = parts.chain.clone().ok_or_else(|| "the pipeline has no chain".to_owned())?;
        let chain_cx = stage.chain(factory, paths);
        let mut seats = Vec::new();
        for index in 0..parts.threads(prepared.partitions.len()) {
            let waker = Arc::new(Waker::new());
            chain_cx.sinks.iter().flat_map(|path| &path.queues).for_each(|queue| queue.add_driver(waker.clone()));
            if let Some(letters) = &chain_cx.letters {
                letters.add_driver(waker.clone());
            }
            let chain = Chain::new(chain_cx.clone()).map_err(|error| error.to_string())?;
            seats.push(self.driver(parts, index, Chains::Records(Box::new(chain)), waker, notes, crew)?);
        }
        Ok((runs, seats, None))
    }

    fn driver<L: SourceLane + 'static>(
        &self,
        parts: &Parts,
        index: usize,
        chains: Chains,
        waker: Arc<Waker>,
        notes: &Arc<Mailbox<Note>>,
        crew: &mut Crew,
    ) -> Result<DriverSeat<L>, String> {
        let commands: Arc<Mailbox<Command<L>>> = Mailbox::new(waker.clone());
        let beat = Beat::new(thread_name(&format!("drv{index}"), &parts.id), parts.clock.instant());
        let to_tell = notes.clone();
        let cx = DriverCx {
            index,
            commands: commands.clone(),
            report: Arc::new(move |report| to_tell.post(Note::Driver(report))),
            limit: PollLimit { rows: parts.options.poll_max_rows, bytes: parts.options.poll_max_bytes.as_usize() },
            max_pending_bytes: parts.options.max_pending_bytes.get(),
            idle_flush: parts.options.idle_flush,
            clock: parts.clock.clone(),
            meters: DriverMeters::new(&parts.id.0),
            beat: beat.clone(),
        };
        let notes = notes.clone();
        let thread = std::thread::Builder::new().name(beat.name.clone()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| Driver::new(cx, chains).run()));
            if let Err(panic) = ended {
                let text = panic_text(panic);
                tracing::error!(code = %codes::PANIC, driver = index, "a driver panicked: {text}");
                notes.post(Note::Driver(DriverReport::Ended { driver: index }));
            }
        });
        let thread = thread.map_err(|error| format!("a driver's thread cannot be made: {error}"))?;
        crew.drivers.push(thread);
        crew.wakers.push(waker);
        self.shared.beats.lock().push(beat);
        Ok(DriverSeat { commands, lanes: 0, has_ended: false })
    }
}

/// Epochs that a lost controller may have given: later ones must be higher.
fn epochs_after_panic(epochs: &mut BTreeMap<PartitionId, u32>, partitions: &[PartitionId]) {
    const GIVEN_MAX: u32 = 1 << 16;
    for partition in partitions {
        let epoch = epochs.entry(*partition).or_insert(0);
        *epoch = epoch.saturating_add(GIVEN_MAX);
    }
}

/// At most 15 bytes, which is what the system keeps.
fn thread_name(kind: &str, pipeline: &PipelineId) -> String {
    format!("{kind}.{pipeline}").chars().take(15).collect()
}

/// What is asked of a source before a run.
struct SourceFacts {
    identity: Arc<str>,
    partitions: Vec<PartitionId>,
}

/// What a run begins with.
struct Prepared {
    identity: Arc<str>,
    stored: Stored,
    plan_cx: PlanCx,
    sinks: Vec<OpenSink>,
    partitions: Vec<PartitionId>,
}
