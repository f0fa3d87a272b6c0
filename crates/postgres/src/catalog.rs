//! What the server's catalogs say, as plain facts: the server itself, types, tables with their partitions and keys.
//!
//! Reading is here, judging is not: `check`, `publication` and `startup` are functions of these facts. A catalog read
//! is *now*; a message of the stream is *then* (P82), so facts are never mixed into rows of a stream.

mod pattern;
mod server;
mod sighting;
mod table;
mod types;

pub use pattern::{PatternError, TablePattern};
pub use server::{BlockingTransaction, ServerFacts};
#[cfg(test)]
pub(crate) use sighting::SightedColumn;
pub(crate) use sighting::{
    Member, Origin, TableSighting, holds_rows_of_before, log_end, major, names_of, read_origins, read_sightings,
};
pub use table::{
    KeyOrigin, LeafFacts, MatchedTables, NotCarried, SkippedRelation, TABLES_MAX, TableFacts, read_tables,
};
pub(crate) use table::{filled_columns, read_full_key};
pub(crate) use types::resolve_types;
