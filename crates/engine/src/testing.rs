//! Helpers for the tests of sources, sinks and the engine itself (feature `testing`).
//!
//! [`TableSource`] and [`MemoryTable`] are the same for tables. [`LaneBench`] polls a lane without a pipeline. [`MemorySource`], [`ScriptedSink`], [`MemoryLetters`] and
//! [`NumberDecoder`] are whole peers in memory: a source that is appended to while it is read, a destination that does
//! per call what a script says and outlives the pipelines that write to it.

mod lane_bench;
mod memory_source;
mod memory_table;
mod numbers;
mod scripted_sink;
mod table_source;

pub use lane_bench::LaneBench;
pub use memory_source::{MemoryLane, MemorySource, payloads};
pub use memory_table::{LandedRow, MemoryTable, SeenBatch};
pub use numbers::{KeepIf, NumberDecoder, numbers};
pub use scripted_sink::{Act, MemoryLetters, ScriptedSink, StoredRow};
pub use table_source::{TableLane, TableSource, table_schema};
