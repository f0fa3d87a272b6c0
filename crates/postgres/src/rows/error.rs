//! Rows that are not in the batch, and why (P89): LF-PG0303, LF-PG0307, LF-PG04xx.

use std::sync::Arc;

use landfall_types::{Code, Coded, Kind, Retry};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::{Op, Stamp};
use crate::decode::Cell;
use crate::row_codes as codes;
use crate::values::Fault;
use crate::{ColumnShape, Lsn, RelationId, TableName, TableShape};

/// Why a row's column has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellFault {
    /// The text gives none.
    Value(Fault),
    /// The message leaves it out, and nothing else tells it.
    Unchanged,
    /// NULL in the key.
    NullInKey,
}

/// Why a change is not in the batch. The builder is as it was before, but for a key change whose new row is refused: the
/// end of its old row is there.
#[derive(Debug)]
pub enum Refused {
    /// The batch has no room for the row: finish it and push the row again.
    Full,
    /// The row cannot be carried: a dead letter.
    Row(Box<RowError>),
    /// The row does not have the table's columns: parks the table.
    Table(ColumnCount),
}

/// LF-PG0303: a row of another shape than its table's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a row of {table} (relation {relation}) at {lsn} has {found} columns, the table's shape has {expected}")]
pub struct ColumnCount {
    /// The table.
    pub table: TableName,
    /// Its oid.
    pub relation: RelationId,
    /// The commit LSN, or the snapshot's consistent point.
    pub lsn: Lsn,
    /// Columns of the row.
    pub found: usize,
    /// Columns of the shape.
    pub expected: usize,
}

impl Coded for ColumnCount {
    fn code(&self) -> Code {
        codes::COLUMN_COUNT
    }

    fn kind(&self) -> Kind {
        codes::kind_of(self.code())
    }

    fn retry(&self) -> Retry {
        codes::retry_of(self.code())
    }
}

/// A row that cannot be carried. Its text names no value; the row itself is in `received` alone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct RowError {
    /// What happened.
    pub code: Code,
    /// The table.
    pub table: TableName,
    /// The first column without a value.
    pub column: Arc<str>,
    /// What the change was.
    pub op: Op,
    /// Where it was committed; its number is the one that its row would have had.
    pub stamp: Stamp,
    /// The error in words.
    pub text: String,
    /// The row as it was received: a JSON object of column to text, NULL to null. Left out is what was not received.
    /// A text that is not UTF-8 is an object with its bytes as `hex`.
    pub received: Vec<u8>,
}

impl RowError {
    pub(super) fn new(
        shape: &TableShape,
        column: &ColumnShape,
        op: Op,
        stamp: Stamp,
        fault: CellFault,
        received: Vec<Cell<'_>>,
    ) -> Self {
        let table = &shape.name;
        let (code, why) = describe(fault);
        let name = &column.name;
        let lsn = stamp.commit_lsn;
        let text = match op {
            Op::Snapshot => format!("column `{name}` of {table}, copied at {lsn}: {why}"),
            _ => format!("column `{name}` of {table}, change {} of the commit at {lsn}: {why}", stamp.seq),
        };
        let received = Received { columns: &shape.columns, cells: received };
        RowError {
            code,
            table: table.clone(),
            column: name.clone(),
            op,
            stamp,
            text,
            // Writing texts as JSON into memory does not fail.
            received: serde_json::to_vec(&received).unwrap_or_default(),
        }
    }
}

impl Coded for RowError {
    fn code(&self) -> Code {
        self.code
    }

    fn kind(&self) -> Kind {
        codes::kind_of(self.code)
    }

    fn retry(&self) -> Retry {
        codes::retry_of(self.code)
    }
}

fn describe(fault: CellFault) -> (Code, &'static str) {
    match fault {
        CellFault::Unchanged => (
            codes::UNCHANGED_UNKNOWN,
            "the update does not carry this large value, which it did not touch; REPLICA IDENTITY FULL would",
        ),
        CellFault::NullInKey => (codes::NULL_VALUE, "NULL in the key"),
        CellFault::Value(Fault::Bad) => (codes::BAD_VALUE, "the text is not one of the column's type"),
        CellFault::Value(Fault::NotANumber) => (codes::NAN, "NaN, which a decimal cannot hold; see `values.nan`"),
        CellFault::Value(Fault::Infinite) => {
            (codes::INFINITE, "an infinite value, which the column cannot hold; see `values.infinity`")
        }
        CellFault::Value(Fault::Beyond) => {
            (codes::OUT_OF_RANGE, "a value past what the column can hold; see `values.out_of_range`")
        }
        CellFault::Value(Fault::NotUtf8) => {
            (codes::INVALID_TEXT, "a text that is not UTF-8; see `values.invalid_text`")
        }
        CellFault::Value(Fault::ManyDimensions) => {
            (codes::ARRAY_SHAPE, "an array of more than one dimension; see `values.array_shape`")
        }
        CellFault::Value(Fault::Full) => (codes::OUT_OF_RANGE, "a value of more than 2 GiB"),
    }
}

/// A row as JSON, its columns in their order.
struct Received<'a> {
    columns: &'a [ColumnShape],
    cells: Vec<Cell<'a>>,
}

impl Serialize for Received<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        for (column, cell) in self.columns.iter().zip(&self.cells) {
            let name = &*column.name;
            match cell {
                Cell::Null => object.serialize_entry(name, &None::<&str>)?,
                Cell::Text(text) => match std::str::from_utf8(text) {
                    Ok(text) => object.serialize_entry(name, text)?,
                    Err(_) => object.serialize_entry(name, &HexBytes { hex: text })?,
                },
                Cell::Unchanged => {}
            }
        }
        object.end()
    }
}

#[derive(Serialize)]
struct HexBytes<'a> {
    #[serde(serialize_with = "hex")]
    hex: &'a [u8],
}

fn hex<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    struct Digits<'a>(&'a [u8]);
    impl std::fmt::Display for Digits<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        }
    }
    serializer.collect_str(&Digits(bytes))
}
