//! Opens tables while a pipeline runs: a destination of its own per sink, queues and workers, and the chain of a shape.
//!
//! All of it happens in tasks beside the controller, which hears of the end: a destination that is down, or a chain
//! that cannot be planned, holds up its own table and no other (I13).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use landfall_types::ByteSize;

use super::prepare::{NotYet, answered, open, planned};
use super::staging::Stage;
use super::{Parts, SinkPart, TableParts};
use crate::chain::{Chain, ChainFactory};
use crate::codes;
use crate::contract::{PlanCx, PlanError, TableSpec};
use crate::controller::{Note, OpenTable, TableJob, TableReady, TableSeat};
use crate::core::{FailCause, Waker};
use crate::options::{PipelineOptions, SinkOptions};
use crate::shard::Urgency;
use crate::worker::panic_text;

/// See the module.
pub(super) struct Opener {
    pub(super) stage: Stage,
    pub(super) tables: TableParts,
    pub(super) plan_cx: PlanCx,
    /// The driver's, whom queues wake.
    pub(super) waker: Arc<Waker>,
}

impl Opener {
    /// As the controller calls it.
    pub(super) fn seat(self) -> TableSeat {
        let opener = Arc::new(self);
        Arc::new(move |job: TableJob| {
            let at_work = opener.clone();
            opener.stage.runtime.spawn(async move {
                let (table, shape, number) = (job.spec.id, job.spec.shape, job.number);
                let worked = AssertUnwindSafe(at_work.work(job)).catch_unwind().await;
                let result = worked.unwrap_or_else(|panic| {
                    let text = format!("opening a table panicked: {}", panic_text(panic));
                    tracing::error!(code = %codes::PANIC, pipeline = %at_work.stage.pipeline, "{text}");
                    let cause = FailCause::new(codes::PANIC, text);
                    Err(NotYet { at: "table".to_owned(), cause, is_blocked: false, after: None })
                });
                at_work.stage.notes.post(Note::TableReady { table, shape, number, result: result.map(Box::new) });
            });
        })
    }

    async fn work(&self, job: TableJob) -> Result<TableReady, NotYet> {
        match job.open {
            None => self.open(&job.spec).await,
            Some(open) => self.reshape(&job.spec, open).await,
        }
    }

    fn factory(&self, spec: &TableSpec) -> ChainFactory {
        let (make, spec) = (self.tables.chain.clone(), spec.clone());
        Arc::new(move || make(&spec))
    }

    /// Opens a table in its first shape.
    async fn open(&self, spec: &TableSpec) -> Result<TableReady, NotYet> {
        let factory = self.factory(spec);
        let filters = self.tables.sinks.iter().map(|part| part.options.filter.clone());
        let schemas = crate::chain::Stages::plan(&factory, filters).map_err(|error| refused("chain", error))?.schemas();
        let mut opened = Vec::with_capacity(self.tables.sinks.len());
        for (part, rows) in self.tables.sinks.iter().zip(&schemas.sinks) {
            let sink = (part.factory)(spec).map_err(|error| refused(&format!("sink {}", part.name), error))?;
            let part = SinkPart { name: part.name.clone(), sink, options: part.options.clone() };
            // A table that is gone is made anew and copied again; its source says so.
            opened.push(open(&part, rows, &self.plan_cx, None).await?);
        }
        let (mut runs, mut paths) = (Vec::new(), Vec::new());
        for (at, open) in opened.iter().enumerate() {
            let (run, path) = self.stage.sink(Some(spec), at, open).await;
            path.queues.iter().for_each(|queue| queue.add_driver(self.waker.clone()));
            runs.push(run);
            paths.push(path);
        }
        match Chain::new(self.stage.chain(factory, paths.clone())) {
            Ok(chain) => Ok(TableReady { sinks: runs, paths, chain }),
            Err(error) => {
                runs.iter().flat_map(|run| &run.queues).for_each(|queue| queue.urge(Urgency::Stop));
                Err(refused("chain", error))
            }
        }
    }

    /// Plans another shape of a table that is open, and tells its sinks before any row of it comes.
    async fn reshape(&self, spec: &TableSpec, OpenTable { sinks, mut paths }: OpenTable) -> Result<TableReady, NotYet> {
        let factory = self.factory(spec);
        let filters = self.tables.sinks.iter().map(|part| part.options.filter.clone());
        let schemas = crate::chain::Stages::plan(&factory, filters).map_err(|error| refused("chain", error))?.schemas();
        for ((sink, path), rows) in sinks.iter().zip(&mut paths).zip(&schemas.sinks) {
            let place = format!("sink {}", path.name);
            let plan = planned(&place, sink.plan_shape(spec, rows, &self.plan_cx)).await?;
            answered(&place, sink.reshape(spec.shape, &plan, &self.plan_cx)).await?;
            path.schema = plan.schema.clone();
        }
        let chain = Chain::new(self.stage.chain(factory, paths.clone())).map_err(|error| refused("chain", error))?;
        Ok(TableReady { sinks: Vec::new(), paths, chain })
    }
}

fn refused(at: &str, error: PlanError) -> NotYet {
    NotYet { at: at.to_owned(), cause: FailCause::new(error.code, error.text), is_blocked: true, after: None }
}

impl TableParts {
    /// The same with batches and queues that fit the pipeline's memory, however many tables are known (E94). A table
    /// that comes later gets the same numbers.
    pub(super) fn shrunk(&self, parts: &Parts) -> TableParts {
        let mut tables = self.clone();
        let known = self.known.max(1) as u64;
        let all: u64 = self.sinks.iter().map(|part| known * part.options.share_bytes(&parts.options)).sum();
        if let Some(most) = self.max_inflight_bytes.filter(|most| most.get() < all) {
            let ratio = most.get() as f64 / all as f64;
            for part in &mut tables.sinks {
                part.options = shrink(&part.options, &parts.options, ratio);
            }
        }
        tables
    }
}

/// Not below B = 1 MiB and Q = 2 · P; chunks stay a quarter of the queue.
fn shrink(options: &SinkOptions, pipeline: &PipelineOptions, ratio: f64) -> SinkOptions {
    let scaled = |bytes: u64, least: u64| ByteSize(((bytes as f64 * ratio) as u64).max(least));
    let queue = scaled(options.queue_bytes(pipeline), 2 * pipeline.poll_max_bytes.get());
    SinkOptions {
        batch_bytes: scaled(options.batch_bytes.get(), 1 << 20),
        queue_max_bytes: Some(queue),
        chunk_target_bytes: options.chunk_target_bytes.min(ByteSize(queue.get() / 4)),
        ..options.clone()
    }
}
