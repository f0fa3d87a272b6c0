//! The Postgres change source: a database's tables, copied once and followed for ever, each change exactly once (I9).
//!
//! One source is one replication slot of one database. Log records come out of a transport, pass a bounded queue, are
//! decoded into rows per table, and become source batches of the engine; what every sink has made durable is what the
//! slot is told (I7). Tables stand for themselves: what cannot be carried parks its table, not its neighbours (I13).
//!
//! It does not write to the source database, but for the publication and the slot that it makes.

mod capture;
mod catalog;
mod check;
mod code;
mod connect;
mod copy;
mod decode;
mod feedback;
#[cfg(test)]
mod fixtures;
mod log_record;
mod lsn;
mod meters;
mod orders;
mod publication;
mod pump;
mod queue;
mod reconnect;
mod record;
mod relations;
mod row_codes;
mod rows;
mod shape;
mod slot;
mod snapshot;
mod sql;
mod startup;
mod transport;
mod values;
mod version;

pub use capture::{CaptureOptions, Orders, PostgresLane, PostgresSource, TableChoice, identity_of};
pub use catalog::{
    BlockingTransaction, KeyOrigin, LeafFacts, MatchedTables, NotCarried, PatternError, ServerFacts, SkippedRelation,
    TABLES_MAX, TableFacts, TablePattern, read_tables,
};
pub use check::{CheckOptions, Finding, Level, PostgresCheck, TableRules, ToastPolicy};
pub use code::{CODES, PARKED_BY_HAND};
pub use connect::{
    CONNECT_TIMEOUT, ConnectError, ConnectOptions, Endpoint, PINNED_SETTINGS, Password, STREAM_CODES, ServerError,
    SqlDriver, Stream, TlsMode, TlsOptions,
};
pub use copy::{CopyLine, CopyLineError, CopyLines};
pub use decode::{
    Begin, COLUMNS_MAX, Cell, Cells, Commit, DecodeError, Message, Misread, NAME_BYTES_MAX, Note, OldTuple,
    OversizedMessage, RelationBody, RelationColumn, RelationColumns, Truncate, Tuple, decode,
};
pub use feedback::{DurableLsn, FeedbackEnd, FeedbackRules, KeepAliveAdvance, MOVED_INTERVAL, Pending};
pub use log_record::{Boundary, LogRecord, RecordKind, RecordSink, RecordSinkError};
pub use lsn::{Lsn, ParseLsnError, RelationId, Xid};
pub use meters::StreamMeters;
pub use orders::{Order, OrderCommand, OrderError, Ordered, OrderedTables};
pub use publication::{
    AddTableError, PublicationFacts, PublicationPlan, PublishedTable, add_table_locked, add_table_waiting,
    apply_publication, plan_publication,
};
pub use pump::{PumpEnd, PumpParts, pump};
pub use queue::{
    BundleView, CloseError, CloseReport, Need, QueueCounts, QueueError, QueueMeters, QueueParts, QueueSettings,
    QueueSettingsError, QueueView, QueueingSink, Room, RuntimeClock, TracedTransaction, TransactionTrace,
};
#[cfg(feature = "bench")]
pub use queue::{QueueBench, QueueBenchError, bench_queue};
pub use reconnect::{Backoff, RECONNECT_FIRST, RECONNECT_MAX};
pub use record::{
    CopyRecord, MemberRecord, OptionSet, ParkNote, RECORD_BYTES_MAX, RECORD_VERSION, RecordError, SlotRecord,
    SourceRecord, TableNote, TablePhase, TableRecord, WatchedRecord,
};
pub use relations::{
    RELATIONS_MAX, Rekeyed, Relation, RelationError, Relations, Retyped, ShapeDiff, StreamColumn, Taken,
};
pub use row_codes::ROW_CODES;
pub use rows::{
    ColumnCount, Op, Refused, RowError, RowOptions, RowPlan, RowPlanError, Sequencer, Stamp, TableRows, meta_columns,
    table_schema,
};
pub use shape::{ColumnShape, Identity, PgType, TableName, TableShape};
pub use slot::{
    ExportedSlot, PLUGIN, SLOT_NAME_MAX, SlotCreationError, SlotFacts, SlotIdentity, SlotNameError, check_slot_name,
    create_within, default_slot_name, drop_slot, has_pending_changes,
};
pub use snapshot::{
    CopiedRange, CopiedRanges, CopyChunk, CopyError, CopyEvent, CopyMeter, CopyOptions, CopyRange, CopyReport,
    CopyResume, CopyRun, CopySnapshot, CopyTable, TargetKind, count_rows, plan_ranges, resume_copy, start_copy,
};
pub use sql::{QUERY_DEADLINE, SqlCause, SqlConnection, SqlError};
pub use startup::{Decision, Facts, StartupOptions, StartupProblem, decide, switch_point};
pub use transport::{
    Announced, CloseCause, CreateSlot, CreatedSlot, FeedbackHandle, Frame, ReplicationConnection, ReplicationFeedback,
    ReplicationTransport, ServerVersion, SnapshotUse, StatusUpdate, StreamOptions, SystemIdentity, TimelineSwitch,
    Transport,
};
pub use values::{
    ArrayShape, InvalidText, NanPolicy, NumericUnbounded, Policies, PolicyError, RangePolicy, Tally, Target, arrow_type,
};
pub use version::{SEQ_MAX, SeqExhausted, Version};
