//! The payload schema: the columns that every record source yields, and the hidden columns that ride through
//! every transform.

use std::sync::{Arc, LazyLock};

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use bytes::Bytes;
use landfall_types::{Offset, PartitionId, Timestamp};

/// Names of columns. What starts with `__` is hidden: a query may read it, not write or drop it (E106).
pub mod columns {
    /// The record's bytes: BinaryView, not null.
    pub const PAYLOAD: &str = "payload";
    /// The record's key: BinaryView, null where it has none.
    pub const KEY: &str = "key";
    /// The event time, else the append time: Timestamp(µs, UTC), not null.
    pub const TIMESTAMP: &str = "timestamp";
    /// The record's headers: List of Struct of `name` Utf8, `value` Binary.
    pub const HEADERS: &str = "headers";
    /// The partition a row came from: UInt32, not null.
    pub const PARTITION: &str = "__partition";
    /// The offset a row came from: UInt64, not null. Several rows may share one.
    pub const OFFSET: &str = "__offset";
    /// The id of the schema a record was published under: UInt32, null where none.
    pub const SCHEMA: &str = "__schema";
    /// [`KEY`] after decoding, where a query reads it.
    pub const RECORD_KEY: &str = "__key";
    /// [`TIMESTAMP`] after decoding, where a query reads it.
    pub const RECORD_TIMESTAMP: &str = "__timestamp";
    /// [`HEADERS`] after decoding, where a query reads it.
    pub const RECORD_HEADERS: &str = "__headers";
    /// The number of a row among those that `unnest` made of its record: UInt32; absent where nothing is unnested.
    pub const UNNEST: &str = "__unnest";
    /// The first number of a row's place: UInt64, not null. Not a column of any source: the chain fills it in for a sink
    /// that plans with it, and it is the same over every restart.
    pub const AT: &str = "__at";
    /// The second number of a row's place, as [`AT`]: UInt64, not null; 0 for records.
    pub const WITHIN: &str = "__within";
    /// Of a table's row, what was done: `s` copied, `i`, `u`, `d`, `t`: Utf8.
    pub const OP: &str = "_op";
    /// Of a table's row, the log position of its commit: UInt64.
    pub const COMMIT_LSN: &str = "_commit_lsn";
    /// Of a table's row, its number inside its transaction, from 1; 0 for a copied one: UInt64.
    pub const SEQ: &str = "_seq";
    /// Of a table's row, when it was committed: Timestamp(µs, UTC).
    pub const COMMIT_TS: &str = "_commit_ts";
    /// Of a table's row, its transaction: UInt32, null for a copied one.
    pub const XID: &str = "_xid";
}

/// Whether a column is hidden from a sink's table.
pub fn is_hidden(name: &str) -> bool {
    name.starts_with("__")
}

static PAYLOAD_SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    let header =
        Fields::from(vec![Field::new("name", DataType::Utf8, false), Field::new("value", DataType::Binary, false)]);
    Arc::new(Schema::new(vec![
        Field::new(columns::PAYLOAD, DataType::BinaryView, false),
        Field::new(columns::KEY, DataType::BinaryView, true),
        Field::new(columns::TIMESTAMP, DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), false),
        Field::new(
            columns::HEADERS,
            DataType::List(Arc::new(Field::new("item", DataType::Struct(header), false))),
            false,
        ),
        Field::new(columns::PARTITION, DataType::UInt32, false),
        Field::new(columns::OFFSET, DataType::UInt64, false),
        Field::new(columns::SCHEMA, DataType::UInt32, true),
    ]))
});

/// The schema of a record source's batches: `payload`, `key`, `timestamp`, `headers`, `__partition`,
/// `__offset`, `__schema`, in this order.
pub fn payload_schema() -> SchemaRef {
    PAYLOAD_SCHEMA.clone()
}

/// A header of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// UTF-8, at most 128 B.
    pub name: String,
    /// Any bytes.
    pub value: Bytes,
}

/// One whole record, owned: what a dead letter is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRecord {
    /// Where it lies.
    pub partition: PartitionId,
    /// Where it lies; of a table's row its place's commit position.
    pub offset: Offset,
    /// Of a table's row, its place inside `offset`; 0 for records. The two name it over every restart.
    pub within: u64,
    /// Its bytes, as published; of a table's row a JSON object of column → text.
    pub payload: Bytes,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its headers, in order.
    pub headers: Vec<Header>,
    /// Event time, else append time.
    pub timestamp: Timestamp,
    /// The schema it was published under.
    pub schema: Option<u32>,
}
