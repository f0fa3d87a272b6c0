//! A pipeline as it is put together: one source, a chain, up to eight sinks, and their numbers. `plan` is what `check`
//! prints and the very path that `start` takes.

mod handle;
mod plan;
mod prepare;
mod supervisor;

#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use landfall_state::StateHandle;
use landfall_types::{Clock, Code, Coded, Kind, Retry, SystemClock};
use tokio::runtime::Handle;

use crate::chain::{ChainFactory, Schemas, Stages};
use crate::codes;
use crate::contract::{DeadLetter, PipelineId, PlanError, Sink, Source};
use crate::options::{OnError, PipelineOptions, SinkOptions};

pub use handle::PipelineHandle;
pub use plan::{ColumnPlan, MemoryTerm, PipelinePlan, SinkPath};

/// One sink as it is configured.
#[derive(Clone)]
pub(crate) struct SinkPart {
    pub(crate) name: Arc<str>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) options: SinkOptions,
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
    pub(crate) chain: ChainFactory,
    pub(crate) sinks: Vec<SinkPart>,
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
        let parts = Parts {
            name: id.0.clone(),
            id,
            chain,
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
    pub fn start(self, state: StateHandle, runtime: &Handle) -> Result<PipelineHandle, StartError> {
        self.parts.check()?;
        self.source.plan()?;
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
        if self.sinks.is_empty() || self.sinks.len() > SINKS_MAX {
            return refused(format!("pipeline `{id}` has {} sinks, but must have 1 to {SINKS_MAX}", self.sinks.len()));
        }
        self.options.validate()?;
        let mut names = HashSet::new();
        for part in &self.sinks {
            if !is_name(&part.name, "_-") {
                return refused(format!("sink name `{}` must be 1 to 64 of a-z, 0-9, `_`, `-`", part.name));
            }
            if !names.insert(part.name.clone()) {
                return refused(format!("pipeline `{id}` has two sinks of the name `{}`", part.name));
            }
            part.options.validate(&part.name, &self.options)?;
        }
        let policies = [self.options.on_error.decode, self.options.on_error.sql, self.options.on_error.sink];
        if self.dead_letters.is_none() && policies.contains(&OnError::DeadLetter) {
            return refused(format!(
                "pipeline `{id}` sets bad rows aside (`on_error: dead_letter`), but has no dead-letter channel"
            ));
        }
        let filters = self.sinks.iter().map(|part| part.options.filter.clone());
        Ok(Stages::plan(&self.chain, filters)?.schemas())
    }

    /// Driver threads for so many partitions.
    pub(crate) fn threads(&self, partitions: usize) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.options.threads.unwrap_or_else(|| partitions.min(cores.saturating_sub(1))).max(1)
    }

    /// Slots of a ring, so that all rings of a pipeline stay small (E85).
    pub(crate) fn ring_slots(&self, partitions: usize) -> usize {
        const RINGS_BYTES_MAX: usize = 64 << 20;
        const SLOTS_MIN: usize = 16;
        let slot_bytes = 96 + (self.sinks.len() + 1) * 32;
        let allowed = RINGS_BYTES_MAX / partitions.max(1) / slot_bytes;
        let power = allowed.checked_ilog2().map_or(SLOTS_MIN, |log| 1usize << log);
        self.options.max_pending_batches.min(power).max(SLOTS_MIN)
    }
}

/// How long a stopped thread or task is waited for before it is left behind.
pub(crate) const LEFT_BEHIND_AFTER: Duration = Duration::from_secs(2);
