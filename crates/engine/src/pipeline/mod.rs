//! A pipeline as it is put together: one source, a chain, up to eight sinks, and their numbers. `plan` is what `check`
//! prints and the very path that `start` takes.

mod handle;
mod plan;
mod prepare;
mod staging;
mod supervisor;
mod tables;

#[cfg(all(test, not(feature = "loom")))]
mod table_tests;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use landfall_state::StateHandle;
use landfall_types::{ByteSize, Clock, Code, Coded, Kind, Retry, SystemClock};
use tokio::runtime::Handle;

use crate::chain::{ChainFactory, ChainParts, Schemas, Stages};
use crate::codes;
use crate::contract::{DeadLetter, PipelineId, PlanError, Sink, Source, TableSpec};
use crate::options::{OnError, PipelineOptions, SinkOptions};

pub use handle::PipelineHandle;
pub use plan::{ColumnPlan, MemoryTerm, PipelinePlan, SinkPath, TablePath};
pub(crate) use prepare::NotYet;

/// One sink as it is configured.
#[derive(Clone)]
pub(crate) struct SinkPart {
    pub(crate) name: Arc<str>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) options: SinkOptions,
}

/// Makes the parts of a table's chain for one of its shapes.
pub type TableChainFactory = Arc<dyn Fn(&TableSpec) -> Result<ChainParts, PlanError> + Send + Sync>;

/// Makes a table's own destination in a sink. Called once for each table and run, on an async thread; no I/O.
pub type TableSinkFactory = Arc<dyn Fn(&TableSpec) -> Result<Arc<dyn Sink>, PlanError> + Send + Sync>;

/// One sink of a change source as it is configured.
#[derive(Clone)]
pub(crate) struct TableSinkPart {
    pub(crate) name: Arc<str>,
    pub(crate) factory: TableSinkFactory,
    pub(crate) options: SinkOptions,
}

/// What a pipeline over tables is made of.
#[derive(Clone)]
pub(crate) struct TableParts {
    pub(crate) chain: TableChainFactory,
    pub(crate) sinks: Vec<TableSinkPart>,
    pub(crate) max_inflight_bytes: Option<ByteSize>,
    /// How many tables the source told of when the pipeline was planned.
    pub(crate) known: usize,
}

/// A pipeline that is not started.
pub struct Pipeline<S> {
    pub(crate) parts: Parts,
    pub(crate) source: S,
}

/// Everything but the source, which belongs to one thread at a time.
pub(crate) struct Parts {
    pub(crate) id: PipelineId,
    pub(crate) name: String,
    /// Of a record source.
    pub(crate) chain: Option<ChainFactory>,
    pub(crate) sinks: Vec<SinkPart>,
    /// Of a change source, which has no other chain and sinks.
    pub(crate) tables: Option<TableParts>,
    pub(crate) dead_letters: Option<Arc<dyn DeadLetter>>,
    pub(crate) options: PipelineOptions,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Why a pipeline could not be started.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// It cannot be built as configured.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Coded for StartError {
    fn code(&self) -> Code {
        match self {
            StartError::Plan(error) => error.code,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            StartError::Plan(_) => Kind::Invalid,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            StartError::Plan(_) => Retry::Never,
        }
    }
}

impl<S: Source + 'static> Pipeline<S> {
    /// A pipeline without sinks. Its name is its id until [`Self::named`].
    pub fn new(id: PipelineId, source: S, chain: ChainFactory) -> Self {
        Pipeline::made(id, source, Some(chain), None)
    }

    /// A pipeline over a change source, without sinks: each table gets a chain, and in each sink a destination, of its
    /// own ([`Self::table_sink`]).
    pub fn of_tables(id: PipelineId, source: S, chain: TableChainFactory) -> Self {
        let tables = TableParts { chain, sinks: Vec::new(), max_inflight_bytes: None, known: 0 };
        Pipeline::made(id, source, None, Some(tables))
    }

    fn made(id: PipelineId, source: S, chain: Option<ChainFactory>, tables: Option<TableParts>) -> Self {
        let parts = Parts {
            name: id.0.clone(),
            id,
            chain,
            tables,
            sinks: Vec::new(),
            dead_letters: None,
            options: PipelineOptions::default(),
            clock: Arc::new(SystemClock),
        };
        Pipeline { parts, source }
    }

    /// The name that the status shows.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.parts.name = name.into();
        self
    }

    /// One more sink, up to eight; each gets every row, or those of its filter.
    #[must_use]
    pub fn sink(mut self, name: impl AsRef<str>, sink: Arc<dyn Sink>, options: SinkOptions) -> Self {
        self.parts.sinks.push(SinkPart { name: Arc::from(name.as_ref()), sink, options });
        self
    }

    /// One more sink of a pipeline over tables, up to eight: `factory` makes each table's destination.
    #[must_use]
    pub fn table_sink(mut self, name: impl AsRef<str>, factory: TableSinkFactory, options: SinkOptions) -> Self {
        if let Some(tables) = &mut self.parts.tables {
            tables.sinks.push(TableSinkPart { name: Arc::from(name.as_ref()), factory, options });
        }
        self
    }

    /// Batches and queues of all tables together stay under this: with many tables each gets less, in proportion, not
    /// below 1 MiB a batch (E94).
    #[must_use]
    pub fn max_inflight_bytes(mut self, bytes: ByteSize) -> Self {
        if let Some(tables) = &mut self.parts.tables {
            tables.max_inflight_bytes = Some(bytes);
        }
        self
    }

    /// Where dead letters go. Needed wherever `on_error` says dead letter.
    #[must_use]
    pub fn dead_letters(mut self, store: Arc<dyn DeadLetter>) -> Self {
        self.parts.dead_letters = Some(store);
        self
    }

    /// The numbers.
    #[must_use]
    pub fn options(mut self, options: PipelineOptions) -> Self {
        self.parts.options = options;
        self
    }

    /// The clock; the machine's by default.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.parts.clock = clock;
        self
    }

    /// Starts it. It runs until [`PipelineHandle::shutdown`], the end of a bounded source, or a broken invariant;
    /// what else goes wrong is retried in process. A destination that does not answer does not fail the start.
    pub fn start(mut self, state: StateHandle, runtime: &Handle) -> Result<PipelineHandle, StartError> {
        self.parts.check()?;
        let plan = self.source.plan()?;
        if let Some(tables) = &mut self.parts.tables {
            tables.known = plan.tables.len();
        }
        Ok(supervisor::start(self, state, runtime))
    }
}

impl Parts {
    /// Every check that needs no peer: names, bounds, policies, and the chain's own plan.
    pub(crate) fn check(&self) -> Result<Schemas, PlanError> {
        const SINKS_MAX: usize = 8;
        let refused = |text: String| Err(PlanError::new(codes::PLAN, text));
        let id = &self.id.0;
        let is_name = |text: &str, also: &str| {
            (1..=64).contains(&text.len())
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || also.as_bytes().contains(&byte))
        };
        if !is_name(id, "._-") {
            return refused(format!("pipeline id `{id}` must be 1 to 64 of a-z, 0-9, `.`, `_`, `-`"));
        }
        let count = self.sink_names().count();
        if count == 0 || count > SINKS_MAX {
            return refused(format!("pipeline `{id}` has {count} sinks, but must have 1 to {SINKS_MAX}"));
        }
        if self.tables.is_some() && !self.sinks.is_empty() {
            return refused(format!("pipeline `{id}` is over tables: each of its sinks needs a factory per table"));
        }
        self.options.validate()?;
        let mut names = HashSet::new();
        let of_tables = self.tables.iter().flat_map(|tables| &tables.sinks).map(|part| (&part.name, &part.options));
        for (name, options) in self.sinks.iter().map(|part| (&part.name, &part.options)).chain(of_tables) {
            if !is_name(name, "_-") {
                return refused(format!("sink name `{name}` must be 1 to 64 of a-z, 0-9, `_`, `-`"));
            }
            if !names.insert(name.clone()) {
                return refused(format!("pipeline `{id}` has two sinks of the name `{name}`"));
            }
            options.validate(name, &self.options)?;
        }
        let policies = [self.options.on_error.decode, self.options.on_error.sql, self.options.on_error.sink];
        if self.dead_letters.is_none() && policies.contains(&OnError::DeadLetter) {
            return refused(format!(
                "pipeline `{id}` sets bad rows aside (`on_error: dead_letter`), but has no dead-letter channel"
            ));
        }
        let filters = self.sinks.iter().map(|part| part.options.filter.clone());
        match &self.chain {
            Some(chain) => Ok(Stages::plan(chain, filters)?.schemas()),
            // Each table's chain is planned when the table is opened.
            None => Ok(Schemas { query: Arc::new(arrow_schema::Schema::empty()), sinks: Vec::new() }),
        }
    }

    /// Names of the sinks, in order.
    pub(crate) fn sink_names(&self) -> impl Iterator<Item = &Arc<str>> {
        let of_tables = self.tables.iter().flat_map(|tables| &tables.sinks).map(|part| &part.name);
        self.sinks.iter().map(|part| &part.name).chain(of_tables)
    }

    /// Driver threads for so many partitions.
    pub(crate) fn threads(&self, partitions: usize) -> usize {
        if self.tables.is_some() {
            // A change source is one lane.
            return 1;
        }
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.options.threads.unwrap_or_else(|| partitions.min(cores.saturating_sub(1))).max(1)
    }

    /// Slots of a ring, so that all rings of a pipeline stay small (E85).
    pub(crate) fn ring_slots(&self, partitions: usize) -> usize {
        const RINGS_BYTES_MAX: usize = 64 << 20;
        const SLOTS_MIN: usize = 16;
        let slot_bytes = 96 + (self.sink_names().count() + 1) * 32;
        let allowed = RINGS_BYTES_MAX / partitions.max(1) / slot_bytes;
        let power = allowed.checked_ilog2().map_or(SLOTS_MIN, |log| 1usize << log);
        self.options.max_pending_batches.min(power).max(SLOTS_MIN)
    }
}

/// How long a stopped thread or task is waited for before it is left behind.
pub(crate) const LEFT_BEHIND_AFTER: Duration = Duration::from_secs(2);
