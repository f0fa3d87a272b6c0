//! Tables: what a change source announces of each, and what rides with their batches (E5, E12, P85).
//!
//! A table has a chain and, per sink, a destination of its own; the rows of its stream and of each of its copies are
//! partitions of their own, numbered by the source. A *shape* is one version of its columns, numbered per table.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use landfall_types::{Code, Place};

use super::{Decoded, Decoder, EngineError, PlanError, RowErrors, Wanted};

/// A table's number inside its source. Given once, never to another table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct TableId(pub u32);

impl std::fmt::Display for TableId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A table in one of its shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSpec {
    /// Its number.
    pub id: TableId,
    /// Its name, as the status shows it and `{table}` of a path is filled: `schema.table`.
    pub name: Arc<str>,
    /// Its columns in this shape, then `_op`, `_commit_lsn`, `_seq`, `_commit_ts`, `_xid`, `__partition`, `__offset`.
    pub schema: SchemaRef,
    /// The number of the shape; a later one is higher.
    pub shape: u32,
    /// The columns that tell its rows apart in this shape, in the table's order. Empty where there are none.
    pub key: Arc<[Arc<str>]>,
}

/// What a destination can carry on with when a table is another one from some change on (P84). What any destination of a
/// table cannot, its source must not let pass: it parks the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableAbilities {
    /// Changes are put in order by `_commit_lsn` and `_seq`, so a table's stream need not wait for its copy. Elsewhere what
    /// comes later is what happened later.
    pub orders_by_position: bool,
    /// A column may have another type from some row on, whatever the rows before it hold.
    pub takes_new_types: bool,
    /// Rows may be told apart by other columns from some row on, or by none.
    pub takes_new_keys: bool,
}

impl TableAbilities {
    /// Everything: what to begin with where those of several destinations are joined.
    pub const ALL: TableAbilities =
        TableAbilities { orders_by_position: true, takes_new_types: true, takes_new_keys: true };

    /// What both can.
    #[must_use]
    pub const fn and(self, other: TableAbilities) -> TableAbilities {
        TableAbilities {
            orders_by_position: self.orders_by_position && other.orders_by_position,
            takes_new_types: self.takes_new_types && other.takes_new_types,
            takes_new_keys: self.takes_new_keys && other.takes_new_keys,
        }
    }
}

/// Where a batch stands in a copy of its table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMark {
    /// In the middle of one, or in the stream.
    #[default]
    None,
    /// It holds the first rows of a copy whose snapshot is at this place. Copied rows of another place are what an
    /// interrupted copy left behind (P56).
    Begins(Place),
    /// It holds the last rows of the copy at this place (P60).
    Ends(Place),
}

/// From a change source to the sink. No chunk and no sealed batch joins two different notes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableNote {
    /// The shape of the rows.
    pub shape: u32,
    /// Whether a copy begins or ends with them.
    pub copy: CopyMark,
}

/// A row that the source itself could not make (P89): it is counted as read, and set aside by the policy of `decode`.
#[derive(Clone, Debug)]
pub struct BadRow {
    /// Where it stands: inside the batch's range, and at no other row's place.
    pub place: Place,
    /// Why, for programs.
    pub code: Code,
    /// Why, for people; names column and reason, at most 1 KiB.
    pub text: String,
    /// The tuple as received: a JSON object of column → text.
    pub bytes: Bytes,
}

/// One batch of a table's rows, as a lane hands it to [`crate::PollCx::table_batch`].
#[derive(Clone, Debug)]
pub struct TableRows {
    /// Rows in the shape's schema. `__offset` rises strictly inside the batch and from batch to batch of an epoch.
    pub rows: RecordBatch,
    /// The place of each row, rising strictly: of a streamed row (commit LSN, `_seq`), of a copied one (C − 1, n).
    pub places: Arc<[Place]>,
    /// Rows that could not be made, by rising place.
    pub bad: Vec<BadRow>,
    /// The shape and the copy's mark.
    pub note: TableNote,
    /// The key of the shape, as [`TableSpec`] has it: a batch may be the first that is heard of its shape.
    pub key: Arc<[Arc<str>]>,
}

/// Rows that are columns already: hands them on as they are, once they have the schema that was planned.
#[derive(Debug)]
pub struct TableDecoder {
    schema: SchemaRef,
}

impl TableDecoder {
    /// For one shape of a table.
    pub fn new(schema: SchemaRef) -> Self {
        TableDecoder { schema }
    }
}

impl Decoder for TableDecoder {
    fn plan(&mut self, _wanted: &Wanted) -> Result<SchemaRef, PlanError> {
        Ok(self.schema.clone())
    }

    fn decode(&mut self, records: &RecordBatch, _bad: &mut RowErrors) -> Result<Decoded, EngineError> {
        let same = records.schema_ref().fields() == self.schema.fields();
        if !same {
            return Err(EngineError {
                code: crate::codes::LANE_CONTRACT,
                text: format!(
                    "a batch has the columns {:?}, but its shape has {:?}",
                    names(records.schema_ref()),
                    names(&self.schema)
                ),
            });
        }
        Ok(Decoded::Rows(records.clone()))
    }
}

fn names(schema: &SchemaRef) -> Vec<String> {
    const NAMES_MAX: usize = 32;
    schema.fields().iter().take(NAMES_MAX).map(|field| format!("{} {}", field.name(), field.data_type())).collect()
}
