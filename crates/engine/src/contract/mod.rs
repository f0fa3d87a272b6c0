//! The seams of the engine: what a source, a decoder, a transform, a sink and a dead-letter store promise.
//!
//! Everything between a lane and a sink is an Arrow `RecordBatch` (overview §4); hidden columns ride along,
//! so that each row keeps its origin up to the sink. Connectors implement these traits and know nothing of
//! each other; the engine implements everything else. No item here does I/O.

mod decode;
mod error;
mod payload;
mod sink;
mod source;
mod table;

pub use decode::{Decoded, Decoder, ReadyHandle, RowError, RowErrors, Stage, Transform, Wanted};
pub use error::{BarrierError, EngineError, PlanError, SinkError, SourceError};
pub use payload::{Header, OwnedRecord, columns, is_hidden, payload_schema};
pub use sink::{
    CommitId, Covered, DeadLetter, Guarantee, Letter, PipelineId, PlanCx, Positions, SealedBatch, Settled, ShardId,
    ShardWriter, Sink, SinkId, SinkIdentity, SinkPlan, TokenScope, Written,
};
pub use source::{
    GapReason, LaneId, LaneWaker, PollLimit, Polled, RevokeGuard, Source, SourceCx, SourceEvent, SourceLane,
    SourcePlan, SourceProfile,
};
pub use table::{BadRow, CopyMark, TableAbilities, TableDecoder, TableId, TableNote, TableRows, TableSpec};
