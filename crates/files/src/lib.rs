//! The files sink: publishes a pipeline's rows as NDJSON or Parquet files in a local directory, each row in exactly one
//! file (I9).
//!
//! A file has its final name only when it is complete and on stable storage (I1), and is never changed afterwards.
//! Positions and the decision to publish are one atomic replacement of a ledger, so a crash at any point leaves the files
//! of an undisturbed run. It does not write to object stores, merge small files or delete old ones.

mod code;
mod encode;
mod ledger;
mod options;
mod shard;
mod sink;
mod writer;

#[cfg(test)]
mod tests;

pub use code::{CODES, FilesError};
pub use options::{Compression, FilesOptions, Format};
pub use sink::FilesSink;
