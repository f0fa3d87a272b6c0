//! The Delta Lake sink: appends a pipeline's rows to a table, each row exactly once (I9).
//!
//! Rows become Parquet files that nothing references; one commit makes the files and the ends of their source ranges
//! visible together, so a crash at any point leaves both or neither. What is in the table decides what is read again.
//! Local tables are on stable storage before a commit answers (I1). Other writers may append, compact or delete beside
//! it; a second process with the same pipeline id is found out before it can write a row twice.
//!
//! It does not update or delete rows, optimise, vacuum or clean up logs. Object stores other than the local file system
//! go through [`DeltaSink::over`].

mod code;
mod column;
mod commit;
mod data_file;
mod encoder;
mod group;
mod housekeeping;
mod layout;
mod listing;
mod local_store;
mod meters;
mod options;
mod partition;
mod protocol;
mod rising;
mod shape;
mod sink;
mod statistics;
mod table;
mod turn;
mod writer;

#[cfg(test)]
mod tests;

pub use code::{CODES, DeltaError, SHAPE_REFUSALS};
pub use listing::{TableFile, TableFiles, table_files};
pub use options::{Compression, DeltaOptions, Evolve, Timestamps};
pub use sink::DeltaSink;
