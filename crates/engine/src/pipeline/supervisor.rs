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
use super::{LEFT_BEHIND_AFTER, Parts, Pipeline, PipelineHandle};
use crate::chain::{Chain, ChainCx, SinkPath};
use crate::codes;
use crate::contract::{Guarantee, PipelineId, PlanCx, PollLimit, ShardId, ShardWriter, SinkId, Source, Stage};
use crate::controller::{Controller, ControllerCx, DriverSeat, Note, RunEnd, SinkRun};
use crate::core::{FailCause, Mailbox, Wake, Waker};
use crate::dead_letter::{LetterQueue, Sender};
use crate::driver::{Beat, Command, Driver, DriverCx, DriverReport};
use crate::exit::{Ending, ExitReport};
use crate::meters::{BalanceMeters, CheckpointMeters, DriverMeters, SinkMeters, dead_lettered};
use crate::options::{OnError, Route, SinkOptions};
use crate::positions::Stored;
use crate::shard::{ShardQueue, ShareLimits, Urgency};
use crate::sight::{Asked, PipelineState, Rates, Shared, Sight, SinkSight, Why, Word};
use crate::worker::{RESET_MAX, ShardView, Worker, WorkerCx, panic_text};

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
        sinks: Mutex::new(
            parts
                .sinks
                .iter()
                .map(|part| SinkSight {
                    name: part.name.clone(),
                    sink: part.sink.clone(),
                    queues: Vec::new(),
                    views: Vec::new(),
                })
                .collect(),
        ),
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

struct Supervisor {
    shared: Arc<Shared>,
    state: StateHandle,
    runtime: Handle,
}

/// Threads and tasks of one run.
struct Crew {
    drivers: Vec<JoinHandle<()>>,
    wakers: Vec<Arc<Waker>>,
    queues: Vec<Arc<ShardQueue>>,
    workers: Vec<tokio::task::JoinHandle<()>>,
    letters: Option<(Arc<LetterQueue>, tokio::task::JoinHandle<()>)>,
}

impl Crew {
    /// Whoever still runs is stopped, and waited for within a bound.
    async fn dismiss(self) {
        self.wakers.iter().for_each(|waker| waker.wake(Wake::STOP));
        self.queues.iter().for_each(|queue| queue.urge(Urgency::Stop));
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
        for worker in self.workers {
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
            sinks.push(open(part, rows, &plan_cx).await?);
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
        let stage = Staging { supervisor: self, pipeline: &pipeline.parts, prepared: &prepared, notes: &notes };
        let mut crew =
            Crew { drivers: Vec::new(), wakers: Vec::new(), queues: Vec::new(), workers: Vec::new(), letters: None };
        let staged = stage.build::<S::Lane>(&mut crew).await;
        let (sinks, seats) = match staged {
            Ok(both) => both,
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
            sinks,
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
            sight.closed_issued += issued;
            for (totals, harvested) in sight.totals.iter_mut().zip(&ring.harvested) {
                totals.returned += issued - harvested;
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

/// Builds a run's queues, workers and drivers.
struct Staging<'a> {
    supervisor: &'a Supervisor,
    pipeline: &'a Parts,
    prepared: &'a Prepared,
    notes: &'a Arc<Mailbox<Note>>,
}

impl Staging<'_> {
    async fn build<L: crate::contract::SourceLane + 'static>(
        &self,
        crew: &mut Crew,
    ) -> Result<(Vec<SinkRun>, Vec<DriverSeat<L>>), String> {
        let pipeline = self.pipeline;
        let on_error = pipeline.options.on_error;
        let needs_letters = on_error.decode == OnError::DeadLetter || on_error.sql == OnError::DeadLetter;
        if let Some(store) = pipeline.dead_letters.clone().filter(|_| needs_letters) {
            let queue = LetterQueue::new();
            let notes = self.notes.clone();
            let work = queue.clone().work(store, pipeline.options.restart);
            let task = self.supervisor.runtime.spawn(async move {
                work.await;
                notes.post(Note::LettersEnded);
            });
            crew.letters = Some((queue, task));
        }
        let mut runs = Vec::with_capacity(self.prepared.sinks.len());
        let mut paths = Vec::with_capacity(self.prepared.sinks.len());
        for (at, open) in self.prepared.sinks.iter().enumerate() {
            let (run, path) = self.sink(at, open, crew).await;
            runs.push(run);
            paths.push(path);
        }
        *self.supervisor.shared.letters.lock() = crew.letters.as_ref().map(|(queue, _)| queue.clone());
        *self.supervisor.shared.sinks.lock() = runs
            .iter()
            .map(|run| SinkSight {
                name: run.name.clone(),
                sink: run.sink.clone(),
                queues: run.queues.clone(),
                views: run.views.clone(),
            })
            .collect();
        let id = &pipeline.id;
        let chain_cx = ChainCx {
            factory: pipeline.chain.clone(),
            sinks: paths,
            on_error,
            sender: Sender { pipeline: id.clone(), source: self.prepared.identity.to_string() },
            letters: crew.letters.as_ref().map(|(queue, _)| queue.clone()),
            meters: DriverMeters::new(&id.0),
            dead_decode: dead_lettered(&id.0, Stage::Decode),
            dead_sql: dead_lettered(&id.0, Stage::Sql),
        };
        let mut seats = Vec::new();
        for index in 0..pipeline.threads(self.prepared.partitions.len()) {
            seats.push(self.driver(index, chain_cx.clone(), crew)?);
        }
        Ok((runs, seats))
    }

    async fn sink(&self, at: usize, open: &OpenSink, crew: &mut Crew) -> (SinkRun, SinkPath) {
        let pipeline = self.pipeline;
        let (part, options) = (&open.part, &open.part.options);
        let id = SinkId(u8::try_from(at + 1).unwrap_or(u8::MAX));
        let guarantee = part.sink.guarantee();
        let holds_positions = matches!(guarantee, Guarantee::Positions);
        let is_serial = part.sink.ordered() || matches!(guarantee, Guarantee::Positions | Guarantee::Redo);
        let meters = SinkMeters::new(&pipeline.id.0, &part.name);
        let limits = self.limits(options);
        let mut queues = Vec::new();
        let mut views = Vec::new();
        for shard in 0..options.shards {
            let queue = ShardQueue::new(limits, meters.queue_refusals.clone());
            let view =
                Arc::new(ShardView::new(&pipeline.id.0, &part.name, &*pipeline.clock).with_gauge(meters.up.clone()));
            if let Some(committed) = &open.committed {
                view.move_positions(committed.clone());
            }
            let writer = part.sink.writer(ShardId(shard));
            self.spawn_worker(at, shard, part, writer, &queue, &view, is_serial, &meters, crew).await;
            queues.push(queue);
            views.push(view);
        }
        crew.queues.extend(queues.iter().cloned());
        let path = SinkPath {
            sink: id,
            name: part.name.clone(),
            schema: open.plan.schema.clone(),
            filter: options.filter.clone(),
            route: if holds_positions { Route::Partition } else { options.route.clone() },
            queues: queues.clone(),
            chunk_target: options.chunk_target_bytes.as_usize(),
            keeps_origin: part.sink.refuses_rows() && pipeline.options.on_error.sink == OnError::DeadLetter,
        };
        let run = SinkRun {
            name: part.name.clone(),
            sink: part.sink.clone(),
            identity: open.identity.clone(),
            committed: open.committed.clone(),
            queues,
            views,
            meters: BalanceMeters::new(&pipeline.id.0, &part.name),
        };
        (run, path)
    }

    fn limits(&self, options: &SinkOptions) -> ShareLimits {
        let high = usize::try_from(options.share_bytes(&self.pipeline.options)).unwrap_or(usize::MAX);
        ShareLimits {
            high,
            low: (high as f64 * self.pipeline.options.low_ratio) as usize,
            chunks: options.queue_max_chunks,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one shard's parts, each made a line above its only call")]
    async fn spawn_worker(
        &self,
        at: usize,
        shard: u16,
        part: &super::SinkPart,
        writer: Arc<dyn ShardWriter>,
        queue: &Arc<ShardQueue>,
        view: &Arc<ShardView>,
        is_serial: bool,
        meters: &SinkMeters,
        crew: &mut Crew,
    ) {
        // What an earlier run left accepted is not ours any more: its rows are read again.
        drop(tokio::time::timeout(RESET_MAX, writer.reset()).await);
        let pipeline = self.pipeline;
        let notes = self.notes.clone();
        let cx = WorkerCx {
            pipeline: pipeline.id.clone(),
            source: self.prepared.identity.to_string(),
            sink_name: part.name.clone(),
            shard: ShardId(shard),
            writer,
            barrier_every: part.sink.barrier_every(),
            is_serial,
            queue: queue.clone(),
            options: part.options.clone(),
            on_error: pipeline.options.on_error.sink,
            max_bad_fraction: pipeline.options.max_bad_fraction,
            max_bad_rows: pipeline.options.max_bad_rows,
            letters: pipeline.dead_letters.clone(),
            view: view.clone(),
            meters: meters.clone(),
            clock: pipeline.clock.clone(),
            report: Arc::new(move |report| {
                notes.post(Note::Worker { sink: at, shard: usize::from(shard), report });
            }),
        };
        crew.workers.push(self.supervisor.runtime.spawn(Worker::new(cx).run()));
    }

    fn driver<L: crate::contract::SourceLane + 'static>(
        &self,
        index: usize,
        chain_cx: ChainCx,
        crew: &mut Crew,
    ) -> Result<DriverSeat<L>, String> {
        let pipeline = self.pipeline;
        let waker = Arc::new(Waker::new());
        chain_cx.sinks.iter().flat_map(|path| &path.queues).for_each(|queue| queue.add_driver(waker.clone()));
        if let Some(letters) = &chain_cx.letters {
            letters.add_driver(waker.clone());
        }
        let commands: Arc<Mailbox<Command<L>>> = Mailbox::new(waker.clone());
        let now = pipeline.clock.instant();
        let beat = Beat::new(thread_name(&format!("drv{index}"), &pipeline.id), now);
        let meters = chain_cx.meters.clone();
        let chain = Chain::new(chain_cx).map_err(|error| error.to_string())?;
        let notes = self.notes.clone();
        let cx = DriverCx {
            index,
            commands: commands.clone(),
            report: Arc::new(move |report| notes.post(Note::Driver(report))),
            limit: PollLimit {
                rows: pipeline.options.poll_max_rows,
                bytes: pipeline.options.poll_max_bytes.as_usize(),
            },
            max_pending_bytes: pipeline.options.max_pending_bytes.get(),
            idle_flush: pipeline.options.idle_flush,
            clock: pipeline.clock.clone(),
            meters,
            beat: beat.clone(),
        };
        let notes = self.notes.clone();
        let thread = std::thread::Builder::new().name(beat.name.clone()).spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| Driver::new(cx, chain).run()));
            if let Err(panic) = ended {
                let text = panic_text(panic);
                tracing::error!(code = %codes::PANIC, driver = index, "a driver panicked: {text}");
                notes.post(Note::Driver(DriverReport::Ended { driver: index }));
            }
        });
        let thread = thread.map_err(|error| format!("a driver's thread cannot be made: {error}"))?;
        crew.drivers.push(thread);
        crew.wakers.push(waker);
        self.supervisor.shared.beats.lock().push(beat);
        Ok(DriverSeat { commands, lanes: 0, has_ended: false })
    }
}
