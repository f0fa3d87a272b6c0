//! What a run's sinks are made with: queues, workers, views, and the way of a chain to them. The same for a record
//! source, whose sinks are there from the start, and for tables, whose sinks come and stay one by one.

use std::sync::Arc;

use landfall_types::Clock;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::SinkPart;
use super::prepare::OpenSink;
use crate::chain::{ChainCx, ChainFactory, SinkPath};
use crate::contract::{DeadLetter, Guarantee, PipelineId, ShardId, SinkId, Stage as ErrorStage, TableSpec};
use crate::controller::{Note, SinkRun};
use crate::core::Mailbox;
use crate::dead_letter::{LetterQueue, Sender};
use crate::meters::{DriverMeters, SinkMeters, dead_lettered};
use crate::options::{OnError, PipelineOptions, Route, SinkOptions};
use crate::shard::{ShardQueue, ShareLimits, Urgency};
use crate::worker::{RESET_MAX, ShardView, Worker, WorkerCx};

/// The workers of a run, whoever had them made. Clones are one.
#[derive(Clone, Default)]
pub(super) struct Hands {
    inside: Arc<Mutex<Hired>>,
}

#[derive(Default)]
struct Hired {
    queues: Vec<Arc<ShardQueue>>,
    workers: Vec<JoinHandle<()>>,
    /// The run has ended: a table that was still being opened comes too late.
    is_over: bool,
}

impl Hands {
    /// Tells every worker to end, and gives them to whoever waits for them.
    pub(super) fn stop(&self) -> Vec<JoinHandle<()>> {
        let Hired { queues, workers, .. } =
            std::mem::replace(&mut *self.inside.lock(), Hired { is_over: true, ..Hired::default() });
        queues.iter().for_each(|queue| queue.urge(Urgency::Stop));
        workers
    }

    fn take_on(&self, queue: Arc<ShardQueue>, worker: JoinHandle<()>) {
        let mut hired = self.inside.lock();
        if hired.is_over {
            drop(hired);
            queue.urge(Urgency::Stop);
            return;
        }
        // Those of sinks that were opened in vain have ended long ago.
        hired.workers.retain(|worker| !worker.is_finished());
        hired.queues.push(queue);
        hired.workers.push(worker);
    }
}

/// See the module.
#[derive(Clone)]
pub(super) struct Stage {
    pub(super) pipeline: PipelineId,
    pub(super) identity: Arc<str>,
    pub(super) options: PipelineOptions,
    pub(super) dead_letters: Option<Arc<dyn DeadLetter>>,
    pub(super) letters: Option<Arc<LetterQueue>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) runtime: Handle,
    pub(super) notes: Arc<Mailbox<Note>>,
    pub(super) hands: Hands,
}

impl Stage {
    /// What a chain to these sinks is made with.
    pub(super) fn chain(&self, factory: ChainFactory, sinks: Vec<SinkPath>) -> ChainCx {
        let id = &self.pipeline;
        ChainCx {
            factory,
            sinks,
            on_error: self.options.on_error,
            sender: Sender { pipeline: id.clone(), source: self.identity.to_string() },
            letters: self.letters.clone(),
            meters: DriverMeters::new(&id.0),
            dead_decode: dead_lettered(&id.0, ErrorStage::Decode),
            dead_sql: dead_lettered(&id.0, ErrorStage::Sql),
        }
    }

    /// Queues and workers of a sink that is open. A table has one shard in each of its sinks.
    pub(super) async fn sink(&self, table: Option<&TableSpec>, at: usize, open: &OpenSink) -> (SinkRun, SinkPath) {
        let (part, options) = (&open.part, &open.part.options);
        let id = SinkId(u8::try_from(at + 1).unwrap_or(u8::MAX));
        let guarantee = part.sink.guarantee();
        let holds_positions = matches!(guarantee, Guarantee::Positions);
        let is_serial = part.sink.ordered() || matches!(guarantee, Guarantee::Positions | Guarantee::Redo);
        let mut meters = SinkMeters::new(&self.pipeline.0, &part.name);
        if let Some(table) = table {
            meters = meters.of_table(&self.pipeline.0, &part.name, &table.name);
        }
        let shown: Arc<str> = match table {
            Some(table) => Arc::from(format!("{} of table {}", part.name, table.name)),
            None => part.name.clone(),
        };
        let limits = self.limits(options);
        let shards = if table.is_some() { 1 } else { options.shards };
        let mut queues = Vec::new();
        let mut views = Vec::new();
        for shard in 0..shards {
            let queue = ShardQueue::new(limits, meters.queue_refusals.clone());
            let view = ShardView::new(&self.pipeline.0, &shown, &*self.clock).with_gauge(meters.up.clone());
            let view = Arc::new(view);
            if let Some(committed) = &open.committed {
                view.move_positions(committed.clone());
            }
            let worker = Duty { table, at, shard, part, queue: &queue, view: &view, is_serial, meters: &meters };
            self.hire(worker).await;
            queues.push(queue);
            views.push(view);
        }
        let path = SinkPath {
            sink: id,
            name: part.name.clone(),
            schema: open.plan.schema.clone(),
            filter: options.filter.clone(),
            route: if holds_positions || table.is_some() { Route::Partition } else { options.route.clone() },
            queues: queues.clone(),
            chunk_target: options.chunk_target_bytes.as_usize(),
            keeps_origin: part.sink.refuses_rows() && self.options.on_error.sink == OnError::DeadLetter,
        };
        let run = SinkRun {
            sink: part.sink.clone(),
            identity: open.identity.clone(),
            committed: open.committed.clone(),
            queues,
            views,
        };
        (run, path)
    }

    fn limits(&self, options: &SinkOptions) -> ShareLimits {
        let high = usize::try_from(options.share_bytes(&self.options)).unwrap_or(usize::MAX);
        ShareLimits { high, low: (high as f64 * self.options.low_ratio) as usize, chunks: options.queue_max_chunks }
    }

    async fn hire(&self, duty: Duty<'_>) {
        let Duty { table, at, shard, part, queue, view, is_serial, meters } = duty;
        let writer = part.sink.writer(ShardId(shard));
        // What an earlier run left accepted is not ours any more: its rows are read again.
        drop(tokio::time::timeout(RESET_MAX, writer.reset()).await);
        let (notes, table) = (self.notes.clone(), table.map(|table| table.id));
        let cx = WorkerCx {
            pipeline: self.pipeline.clone(),
            source: self.identity.to_string(),
            sink_name: part.name.clone(),
            shard: ShardId(shard),
            writer,
            barrier_every: part.sink.barrier_every(),
            is_serial,
            queue: queue.clone(),
            options: part.options.clone(),
            on_error: self.options.on_error.sink,
            max_bad_fraction: self.options.max_bad_fraction,
            max_bad_rows: self.options.max_bad_rows,
            letters: self.dead_letters.clone(),
            view: view.clone(),
            meters: meters.clone(),
            clock: self.clock.clone(),
            report: Arc::new(move |report| {
                notes.post(Note::Worker { table, sink: at, shard: usize::from(shard), report });
            }),
        };
        self.hands.take_on(queue.clone(), self.runtime.spawn(Worker::new(cx).run()));
    }
}

/// One shard's parts.
struct Duty<'a> {
    table: Option<&'a TableSpec>,
    at: usize,
    shard: u16,
    part: &'a SinkPart,
    queue: &'a Arc<ShardQueue>,
    view: &'a Arc<ShardView>,
    is_serial: bool,
    meters: &'a SinkMeters,
}
