//! Tables that patterns mean: shape, key, partitions with the identity of each, rights, sizes (P69, P74, P77).

mod facts;
mod key;
mod read;

#[cfg(test)]
mod tests;

pub use facts::{KeyOrigin, LeafFacts, NotCarried, SkippedRelation, TableFacts};
pub use read::{MatchedTables, TABLES_MAX, read_tables};
pub(crate) use read::{filled_columns, read_full_key};
