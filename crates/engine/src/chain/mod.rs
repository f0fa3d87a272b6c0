//! The chain of one driver: decode → transforms → per sink: skip below its position → filter → conform → route →
//! coalesce → hand over (E97). Synchronous; it never blocks, and what it cannot hand over it is asked to again.
//!
//! A batch is pushed in slices, and a slice yields an ordered list of handoffs; the resume point counts both and never
//! goes back (E11, E43), so no row is handed over twice and none is decoded twice. A record is refused whole: where
//! one of its rows is bad, none of its rows goes on, in all sinks if the query refused it, else in the one sink. It
//! keeps I8 (each source row gets one class per sink, entered into its slot's books) and carries no lane and no lock.

mod coalesce;
mod conform;
mod culprits;
mod route;
mod rows;
mod slice;

#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use arrow_schema::SchemaRef;
use landfall_types::{PartitionId, Place};

use crate::codes;
use crate::contract::{
    Decoder, EngineError, PlanError, ReadyHandle, ShardId, SinkId, Stage, TableId, Transform, Wanted,
};
use crate::core::{Books, FailCause};
use crate::dead_letter::{LetterQueue, Parcel, Sender, letter_bytes, offsets_of, record_at};
use crate::meters::DriverMeters;
use crate::options::{FilterFactory, OnError, OnErrors, Route};
use crate::poll::SourceBatch;
use crate::shard::{Segment, ShardQueue};
use crate::worker::panic_text;

pub(crate) use coalesce::Coalescer;
pub(crate) use conform::Conform;
pub(crate) use route::Router;
use rows::Refusals;
use slice::Slices;

/// What a chain is made of, one set for each driver. Made again after a panic.
pub struct ChainParts {
    /// Bytes to columns.
    pub decoder: Box<dyn Decoder>,
    /// In order.
    pub transforms: Vec<Box<dyn Transform>>,
    /// What the transforms need of the decoder.
    pub wanted: Wanted,
}

/// Makes the parts of a chain.
pub type ChainFactory = Arc<dyn Fn() -> Result<ChainParts, PlanError> + Send + Sync>;

/// How far a batch was handed over: (slice, next handoff), in lexicographic order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResumePoint {
    pub(crate) slice: u32,
    pub(crate) handoff: u32,
}

/// Why a batch is not handed over yet.
#[derive(Clone, Debug)]
pub(crate) enum BlockReason {
    /// The queue of a shard refuses.
    Capacity(usize, ShardId),
    /// The decoder waits for something.
    NotReady(ReadyHandle),
    /// The queue of dead letters refuses.
    DeadLetters,
    /// The table's chain for this shape is not there yet, or another shape's still holds rows.
    Shape(TableId, u32),
}

/// What came of a push.
#[derive(Debug)]
pub(crate) enum PushOutcome {
    /// Every row is in a coalescer, a queue, a dead letter, or filtered.
    Done,
    /// The same batch again, from here.
    Blocked { resume_at: ResumePoint, reason: BlockReason },
    /// A row failed and policy stops the partition there (E73).
    RowFails(FailCause),
    /// Decoder, transform or filter panicked; they were made anew.
    Panicked(FailCause),
    /// A defect of the chain as a whole.
    Fatal(EngineError),
}

/// What came of a flush.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Nothing is coalesced any more.
    Done,
    /// Some shard refuses.
    Blocked,
}

/// What a chain needs to know of a sink.
#[derive(Clone)]
pub(crate) struct SinkPath {
    pub(crate) sink: SinkId,
    pub(crate) name: Arc<str>,
    pub(crate) schema: SchemaRef,
    pub(crate) filter: Option<FilterFactory>,
    pub(crate) route: Route,
    pub(crate) queues: Vec<Arc<ShardQueue>>,
    pub(crate) chunk_target: usize,
    pub(crate) keeps_origin: bool,
}

impl fmt::Debug for SinkPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkPath").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What every chain of a pipeline is made with.
#[derive(Clone)]
pub(crate) struct ChainCx {
    pub(crate) factory: ChainFactory,
    pub(crate) sinks: Vec<SinkPath>,
    pub(crate) on_error: OnErrors,
    pub(crate) sender: Sender,
    pub(crate) letters: Option<Arc<LetterQueue>>,
    pub(crate) meters: DriverMeters,
    pub(crate) dead_decode: metrics::Counter,
    pub(crate) dead_sql: metrics::Counter,
}

/// Decoder, transforms and filters, with the schema that comes out of the transforms.
pub(crate) struct Stages {
    decoder: Box<dyn Decoder>,
    transforms: Vec<Box<dyn Transform>>,
    filters: Vec<Option<(Box<dyn Transform>, SchemaRef)>>,
    schema: SchemaRef,
}

impl Stages {
    /// Plans the stages in order; the very path of `check` and of `run`.
    pub(crate) fn plan(
        factory: &ChainFactory,
        filters: impl IntoIterator<Item = Option<FilterFactory>>,
    ) -> Result<Stages, PlanError> {
        let parts = factory()?;
        let ChainParts { mut decoder, transforms, wanted } = parts;
        let mut schema = decoder.plan(&wanted)?;
        for transform in &transforms {
            schema = transform.plan(&schema)?;
        }
        let filters = filters
            .into_iter()
            .map(|factory| {
                factory
                    .map(|factory| {
                        let filter = factory()?;
                        let out = filter.plan(&schema)?;
                        Ok((filter, out))
                    })
                    .transpose()
            })
            .collect::<Result<Vec<_>, PlanError>>()?;
        Ok(Stages { decoder, transforms, filters, schema })
    }

    /// What comes out.
    pub(crate) fn schemas(&self) -> Schemas {
        let of_sink = |filter: &Option<(Box<dyn Transform>, SchemaRef)>| {
            filter.as_ref().map_or_else(|| self.schema.clone(), |(_, schema)| schema.clone())
        };
        Schemas { query: self.schema.clone(), sinks: self.filters.iter().map(of_sink).collect() }
    }
}

/// What comes out of a chain's stages, hidden columns included.
#[derive(Clone, Debug)]
pub(crate) struct Schemas {
    /// The query's columns.
    pub(crate) query: SchemaRef,
    /// What each sink's filter lets through.
    pub(crate) sinks: Vec<SchemaRef>,
}

struct PathState {
    conform: Conform,
    router: Router,
    coalescers: Vec<Coalescer>,
}

struct Handoff {
    path: usize,
    shard: usize,
    what: Handed,
}

enum Handed {
    Rows(Box<Segment>),
    Cover(crate::contract::Covered),
}

/// A slice that is not handed over yet.
struct Unfinished {
    slice: u32,
    handoff: u32,
    parcel: Option<Parcel>,
    handoffs: VecDeque<Handoff>,
}

/// See the module.
pub(crate) struct Chain {
    cx: ChainCx,
    stages: Stages,
    paths: Vec<PathState>,
    unfinished: Vec<Option<Unfinished>>,
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").field("sinks", &self.paths.len()).finish_non_exhaustive()
    }
}

impl Chain {
    /// Makes the stages and an empty coalescer for each shard.
    pub(crate) fn new(cx: ChainCx) -> Result<Chain, PlanError> {
        let stages = Stages::plan(&cx.factory, cx.sinks.iter().map(|path| path.filter.clone()))?;
        let schemas = stages.schemas();
        let paths = cx
            .sinks
            .iter()
            .zip(&schemas.sinks)
            .map(|(path, rows)| {
                Ok(PathState {
                    conform: Conform::plan(rows, &path.schema, &path.name)?,
                    router: Router::plan(&path.route, rows, path.queues.len(), &path.name)?,
                    coalescers: path
                        .queues
                        .iter()
                        .map(|queue| Coalescer::new(queue.clone(), path.chunk_target))
                        .collect(),
                })
            })
            .collect::<Result<Vec<_>, PlanError>>()?;
        Ok(Chain { cx, stages, paths, unfinished: Vec::new() })
    }

    /// Takes a batch from `from` on. `skip[s]` is the place below which sink `s` has everything (0: the chain's own
    /// dead letters).
    pub(crate) fn push(&mut self, slot: usize, batch: &SourceBatch, from: ResumePoint, skip: &[Place]) -> PushOutcome {
        if self.unfinished.len() <= slot {
            self.unfinished.resize_with(slot + 1, || None);
        }
        let slices = match Slices::of(batch, from == ResumePoint::default()) {
            Ok(slices) => slices,
            Err(error) => return PushOutcome::Fatal(error),
        };
        let mut at = from.slice;
        while at < slices.count() {
            if self.unfinished[slot].is_none() {
                let started = Instant::now();
                let none = Refusals::new();
                let mut worked = catch_unwind(AssertUnwindSafe(|| self.work_slice(batch, &slices, at, skip, none)));
                if let (Err(_), Some(_)) = (&worked, batch.note) {
                    // A table's rows share a lane with others, so they are not read again one by one (E61).
                    worked = self.work_without_culprits(batch, &slices, at, skip, worked);
                }
                self.cx.meters.chain_seconds.record(started.elapsed().as_secs_f64());
                match worked {
                    Ok(Ok(unfinished)) => self.unfinished[slot] = Some(unfinished),
                    Ok(Err(stop)) => return stop,
                    Err(panic) => return self.panicked(batch, panic),
                }
            }
            if let Err(reason) = self.hand_over(slot) {
                let resume_at =
                    self.unfinished[slot].as_ref().map_or(ResumePoint { slice: at, handoff: 0 }, |unfinished| {
                        ResumePoint { slice: unfinished.slice, handoff: unfinished.handoff }
                    });
                return PushOutcome::Blocked { resume_at, reason };
            }
            self.unfinished[slot] = None;
            at += 1;
        }
        PushOutcome::Done
    }

    fn panicked(&mut self, batch: &SourceBatch, panic: Box<dyn std::any::Any + Send>) -> PushOutcome {
        self.cx.meters.panics.increment(1);
        let covered = batch.covered();
        let text = format!(
            "decoder or query panicked over partition {} {}..{}: {}",
            covered.partition,
            covered.range.start,
            covered.range.end,
            panic_text(panic)
        );
        // What panicked may be left in any state: it is made anew. The coalescers are the engine's and stay.
        match Stages::plan(&self.cx.factory, self.cx.sinks.iter().map(|path| path.filter.clone())) {
            Ok(stages) => {
                self.stages = stages;
                PushOutcome::Panicked(FailCause::new(codes::PANIC, text))
            }
            Err(error) => PushOutcome::Fatal(EngineError {
                code: codes::STAGE_FAILED,
                text: format!("{text}; and the chain cannot be made anew: {error}"),
            }),
        }
    }

    fn hand_over(&mut self, slot: usize) -> Result<(), BlockReason> {
        let Some(unfinished) = self.unfinished[slot].as_mut() else { return Ok(()) };
        if let Some(parcel) = unfinished.parcel.take() {
            // Without a queue there is no parcel: the policy was checked when the pipeline was built.
            if let Some(letters) = &self.cx.letters
                && let Err(parcel) = letters.try_send(parcel)
            {
                unfinished.parcel = Some(parcel);
                return Err(BlockReason::DeadLetters);
            }
        }
        while let Some(handoff) = unfinished.handoffs.pop_front() {
            let coalescer = &mut self.paths[handoff.path].coalescers[handoff.shard];
            match handoff.what {
                Handed::Cover(cover) => coalescer.cover(cover),
                Handed::Rows(segment) => {
                    if let Err(segment) = coalescer.accept(segment) {
                        let (path, shard) = (handoff.path, handoff.shard);
                        unfinished.handoffs.push_front(Handoff { path, shard, what: Handed::Rows(segment) });
                        let shard = ShardId(u16::try_from(shard).unwrap_or(u16::MAX));
                        return Err(BlockReason::Capacity(path, shard));
                    }
                }
            }
            unfinished.handoff += 1;
        }
        Ok(())
    }

    /// Hands over what the coalescers hold.
    pub(crate) fn flush(&mut self) -> Flushed {
        let mut flushed = Flushed::Done;
        for coalescer in self.paths.iter_mut().flat_map(|path| &mut path.coalescers) {
            if !coalescer.flush() {
                flushed = Flushed::Blocked;
            }
        }
        flushed
    }

    /// Tells the shards that nothing more comes for now.
    pub(crate) fn lull(&self) {
        self.paths.iter().flat_map(|path| &path.coalescers).for_each(Coalescer::lull);
    }

    /// Whether it holds nothing of any batch.
    pub(crate) fn is_idle(&self) -> bool {
        self.unfinished.iter().all(Option::is_none)
            && self.paths.iter().flat_map(|path| &path.coalescers).all(Coalescer::is_empty)
    }

    /// Hands over the chunks that shards had refused and that they would take now.
    pub(crate) fn retry_parked(&mut self) {
        for coalescer in self.paths.iter_mut().flat_map(|path| &mut path.coalescers) {
            coalescer.retry_parked();
        }
    }

    /// Whether a batch that was blocked for this reason may go on.
    pub(crate) fn may_go_on(&self, reason: &BlockReason) -> bool {
        match reason {
            BlockReason::Capacity(path, shard) => {
                self.cx.sinks[*path].queues.get(usize::from(shard.0)).is_none_or(|queue| !queue.is_shut())
            }
            BlockReason::NotReady(handle) => handle.is_ready(),
            BlockReason::DeadLetters => self.cx.letters.as_ref().is_none_or(|letters| !letters.is_shut()),
            BlockReason::Shape(..) => true,
        }
    }

    /// A record that panics the chain each time it is read alone: it is a dead letter with the panic's text (E61).
    /// Gives the batch back where it cannot be set aside.
    pub(crate) fn set_aside(&mut self, batch: SourceBatch, cause: &FailCause) -> Option<SourceBatch> {
        let policy = self.policy(Stage::Sql);
        let (Some(ack), false) = (batch.ack.as_ref(), policy == OnError::Fail || batch.rows.num_rows() != 1) else {
            return Some(batch);
        };
        let Some(offsets) = offsets_of(&batch.rows) else { return Some(batch) };
        if policy == OnError::DeadLetter {
            let Some(letters) = &self.cx.letters else { return Some(batch) };
            let place = batch.places.as_ref().and_then(|places| places.first().copied());
            let place = place.unwrap_or_else(|| Place::of(landfall_types::Offset(offsets.value(0))));
            let record = record_at(&batch.rows, 0, batch.covered.partition, place);
            let letter = self.cx.sender.letter(record, None, Stage::Sql, cause.code, &cause.text);
            let parcel =
                Parcel { bytes: letter_bytes(&letter), letters: vec![letter], holds: vec![ack.share(SinkId(0))] };
            if letters.try_send(parcel).is_err() {
                return Some(batch);
            }
            self.cx.dead_sql.increment(1);
        }
        let entry = match policy {
            OnError::Skip => Books { skipped: 1, ..Books::default() },
            OnError::DeadLetter | OnError::Fail => Books { dead: 1, ..Books::default() },
        };
        for sink in 1..=self.paths.len() {
            ack.book_for(SinkId(u8::try_from(sink).unwrap_or(u8::MAX)), entry);
        }
        if let Some(ack) = batch.ack {
            ack.deliver();
        }
        None
    }

    /// Forgets a slot's unfinished batch; its holds fail.
    pub(crate) fn abandon(&mut self, slot: usize) {
        if let Some(unfinished) = self.unfinished.get_mut(slot) {
            *unfinished = None;
        }
    }

    /// A partition left this driver: what is coalesced of it is dropped, with its holds.
    pub(crate) fn forget(&mut self, partition: PartitionId) {
        for coalescer in self.paths.iter_mut().flat_map(|path| &mut path.coalescers) {
            coalescer.forget(partition);
        }
    }

    fn policy(&self, stage: Stage) -> OnError {
        self.cx.on_error.of(stage)
    }
}
