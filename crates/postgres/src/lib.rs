//! The Postgres change source: a database's tables, copied once and followed for ever, each change exactly once (I9).
//!
//! One source is one replication slot of one database. Log records come out of a transport, pass a bounded queue, are
//! decoded into rows per table, and become source batches of the engine; what every sink has made durable is what the
//! slot is told (I7). Tables stand for themselves: what cannot be carried parks its table, not its neighbours (I13).
//!
//! It does not write to the source database, but for the publication and the slot that it makes.

mod copy;
mod decode;
mod lsn;
mod relations;
mod row_codes;
mod rows;
mod shape;
mod values;
mod version;

pub use copy::{CopyLine, CopyLineError, CopyLines};
pub use decode::{
    Begin, COLUMNS_MAX, Cell, Cells, Commit, DecodeError, Message, Misread, NAME_BYTES_MAX, Note, OldTuple,
    RelationBody, RelationColumn, RelationColumns, Truncate, Tuple, decode,
};
pub use lsn::{Lsn, ParseLsnError, RelationId, Xid};
pub use relations::{
    RELATIONS_MAX, Rekeyed, Relation, RelationError, Relations, Retyped, ShapeDiff, StreamColumn, Taken,
};
pub use row_codes::ROW_CODES;
pub use rows::{
    ColumnCount, Op, Refused, RowError, RowOptions, RowPlan, RowPlanError, Sequencer, Stamp, TableRows, meta_columns,
    table_schema,
};
pub use shape::{ColumnShape, Identity, PgType, TableName, TableShape};
pub use values::{
    ArrayShape, InvalidText, NanPolicy, NumericUnbounded, Policies, PolicyError, RangePolicy, Tally, Target, arrow_type,
};
pub use version::{SEQ_MAX, SeqExhausted, Version};
