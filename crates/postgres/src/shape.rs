//! What a table looks like: its columns, their types as the catalog resolves them, and its identity (P69, P74, P81).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::RelationId;

/// A table's name with its schema, unquoted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TableName {
    /// The schema.
    pub schema: Arc<str>,
    /// The table.
    pub table: Arc<str>,
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.table)
    }
}

/// How the server names the row that a change is about (P69).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Identity {
    /// The primary key.
    Default,
    /// The columns of one unique index.
    Index,
    /// All columns: old rows come whole.
    Full,
    /// None: updates and deletes do not say which row.
    Nothing,
}

/// A type with domains followed to their base and arrays to their element, as far as values depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PgType {
    /// `boolean`.
    Bool,
    /// `smallint`.
    Int2,
    /// `integer`.
    Int4,
    /// `bigint`.
    Int8,
    /// `oid`, `xid`, `cid`: 32 bits without sign.
    Oid,
    /// `xid8`: 64 bits without sign.
    Xid8,
    /// `real`.
    Float4,
    /// `double precision`.
    Float8,
    /// `numeric(precision, scale)`; `None` without modifier. The scale may be negative or above the precision.
    Numeric(Option<(u16, i16)>),
    /// `money`.
    Money,
    /// `text` and what is text to us: `varchar`, `name`, `citext`, `xml`, `tsvector`, `ltree`.
    Text,
    /// `char(n)` and `"char"`: padding kept.
    Char,
    /// `bytea`.
    Bytea,
    /// `date`.
    Date,
    /// `timestamp`.
    Timestamp,
    /// `timestamp with time zone`.
    TimestampTz,
    /// `time`.
    Time,
    /// `time with time zone`.
    TimeTz,
    /// `interval`.
    Interval,
    /// `uuid`.
    Uuid,
    /// `json`.
    Json,
    /// `jsonb`.
    Jsonb,
    /// An enum: its label.
    Enum,
    /// Anything else, by its text: network, geometric, bit, range, composite and extension types.
    Other(Arc<str>),
    /// An array of any number of dimensions. `delimiter` separates elements in its text: `;` for `box`, else `,`.
    Array {
        /// The element's type.
        element: Box<PgType>,
        /// The separator of its text form.
        delimiter: char,
    },
}

/// One column, as the stream and the copy send it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnShape {
    /// Its name, unquoted.
    pub name: Arc<str>,
    /// Its number in the catalog, which a rename keeps and a dropped column never gives back; 0 where it is not known.
    pub attnum: i16,
    /// The type's oid, as the Relation message gives it.
    pub type_oid: u32,
    /// The type's modifier, as the Relation message gives it; -1 for none.
    pub modifier: i32,
    /// What values of it are.
    pub kind: PgType,
    /// Whether it is declared NOT NULL.
    pub is_not_null: bool,
    /// Whether it is part of the key that changes are applied by.
    pub is_key: bool,
    /// Whether the column is generated.
    pub is_generated: bool,
    /// Whether values may be stored out of line, and so be left out of an update (P70).
    pub is_toastable: bool,
}

/// A table as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableShape {
    /// Its oid: of the partition root where the publication sends through the root.
    pub relation: RelationId,
    /// Its name.
    pub name: TableName,
    /// Its identity.
    pub identity: Identity,
    /// What the stream and the copy send, in the stream's order.
    pub columns: Vec<ColumnShape>,
}

impl TableShape {
    /// Indexes of the key columns, in column order.
    pub fn key(&self) -> impl Iterator<Item = usize> + '_ {
        self.columns.iter().enumerate().filter(|(_, column)| column.is_key).map(|(at, _)| at)
    }

    /// Names of the key columns, in column order.
    pub fn key_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.columns.iter().filter(|column| column.is_key).map(|column| &column.name)
    }
}
