//! The pipeline engine: moves records from one source to its sinks, as Arrow batches, with a watermark that never
//! passes a row that is not settled.
//!
//! [`contract`] holds the seams: sources and lanes, tables and their shapes, decoders and transforms, sinks, dead letters.
//! Everything between them is here. A record source has one chain; of a change source each table has its own, and its own
//! destinations. It carries I5 (one owner per source and checkpoint), I6 (bounded queues), I7 (no commit past an
//! unsettled row), I8 (the balance), I11 (bounded shutdown) and I13 (a failure stays where it is). It knows no
//! connector, and there is no async in the checkpoint core.

mod chain;
mod codes;
pub mod contract;
mod controller;
mod core;
mod dead_letter;
mod driver;
mod exit;
mod meters;
mod null_sink;
mod options;
mod pipeline;
mod poll;
mod positions;
mod random;
mod shard;
mod sight;
mod source_rows;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod worker;

pub use crate::core::{Ack, AckSet, FailCause};
pub use chain::{ChainFactory, ChainParts};
pub use codes::CODES;
pub use exit::{Ending, ExitReport, UnfinishedRange};
pub use null_sink::NullSink;
pub use options::{
    Backoff, FilterFactory, OnError, OnErrors, OnTrimmed, PipelineOptions, RetryOptions, Route, SinkOptions,
};
pub use pipeline::{
    ColumnPlan, MemoryTerm, Pipeline, PipelineHandle, PipelinePlan, SinkPath, StartError, TableChainFactory, TablePath,
    TableSinkFactory,
};
pub use poll::{PollCx, SourceBatch};
pub use positions::SourceRecordPlace;
pub use sight::{
    Balance, CommitStatus, FirstPlace, InFlightStatus, LagStatus, PipelineState, PipelineStatus, QueueStatus,
    RateStatus, RestartStatus, SinkStatus, TableStatus, ThreadStatus, Why,
};
