//! What can go wrong at each seam, by what has to be done about it.

use std::time::Duration;

use landfall_types::{Code, Kind, PartitionId, Retry};

use super::CommitId;

/// The engine's own failure: a defect or a broken invariant. It stops a partition or a pipeline, never a neighbour.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text} ({code})")]
pub struct EngineError {
    /// The code.
    pub code: Code,
    /// What happened, with both values of a broken invariant.
    pub text: String,
}

/// A pipeline cannot be built as configured: names the part and what to change.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{text} ({code})")]
pub struct PlanError {
    /// The code.
    pub code: Code,
    /// What is wrong and what to do instead.
    pub text: String,
    /// The bytes of the query the error points at, where it points at a query.
    pub span: Option<std::ops::Range<usize>>,
}

impl PlanError {
    /// An error without a place in the query.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        PlanError { code, text: text.into(), span: None }
    }

    /// The same, pointing at bytes of the query.
    pub fn at(mut self, span: std::ops::Range<usize>) -> Self {
        self.span = Some(span);
        self
    }
}

/// A source's failure.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SourceError {
    /// Passing: the lane backs off and asks again.
    #[error("{text} ({code})")]
    Later {
        /// The code.
        code: Code,
        /// What happened.
        text: String,
    },
    /// The lane or partition cannot go on as it is; it is re-opened under supervision (E71).
    #[error("{text} ({code})")]
    Lane {
        /// The code.
        code: Code,
        /// What happened.
        text: String,
    },
    /// The whole source cannot go on; the pipeline restarts by its back-off (E72).
    #[error("{text} ({code})")]
    Fatal {
        /// The code.
        code: Code,
        /// What happened.
        text: String,
    },
}

/// A sink's failure, by class (E117). The class decides what happens; the text is for people.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SinkError {
    /// Rows were refused. `None`: the destination does not say which; the batch is bisected (E119).
    #[error("{text} ({code})")]
    Row {
        /// The code.
        code: Code,
        /// The refused rows of the sealed batch, ascending.
        rows: Option<Vec<u32>>,
        /// The destination's words.
        text: String,
    },
    /// The destination is at fault (credentials, missing table, schema): nothing is skipped, it is tried again at the
    /// longest back-off.
    #[error("{text} ({code})")]
    Destination {
        /// The code.
        code: Code,
        /// What is wrong and what would mend it.
        text: String,
    },
    /// Passing: the same bytes again after a back-off.
    #[error("{text} ({code})")]
    Later {
        /// The code.
        code: Code,
        /// The delay that the destination asked for.
        after: Option<Duration>,
        /// What happened.
        text: String,
    },
    /// It may be stored or not.
    #[error("{text} ({code})")]
    Unknown {
        /// The code.
        code: Code,
        /// What happened.
        text: String,
    },
    /// Another writer owns these positions (E128): the group is dropped and the partitions restart.
    #[error("{text} ({code})")]
    Superseded {
        /// The code.
        code: Code,
        /// Both ranges.
        text: String,
        /// The partitions that restart.
        partitions: Vec<PartitionId>,
    },
}

impl SinkError {
    /// The code, whatever the class.
    pub fn code(&self) -> Code {
        match self {
            SinkError::Row { code, .. }
            | SinkError::Destination { code, .. }
            | SinkError::Later { code, .. }
            | SinkError::Unknown { code, .. }
            | SinkError::Superseded { code, .. } => *code,
        }
    }
}

/// A barrier that did not make everything durable.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct BarrierError {
    /// Why. `Later` and `Destination`: the writer keeps the group, call `barrier` again. Anything else: it dropped it.
    pub error: SinkError,
    /// Batches that are certainly not stored and are no longer held by the writer: their holds fail (E130).
    pub lost: Vec<CommitId>,
}

macro_rules! coded {
    ($($error:ty => $kind:expr),*) => {$(
        impl landfall_types::Coded for $error {
            fn code(&self) -> Code {
                self.code
            }
            fn kind(&self) -> Kind {
                $kind
            }
            fn retry(&self) -> Retry {
                Retry::Never
            }
        }
    )*};
}

coded!(EngineError => Kind::Internal, PlanError => Kind::Invalid);
