//! Landfall's decoders and SQL: bytes to Arrow columns, and row-wise queries over them.
//!
//! A [`JsonDecoder`] or [`RawDecoder`] turns payloads into columns; [`Sql`] compiles a query into a transform over
//! them; [`infer`] proposes a [`Schema`] from sampled records. All of it is pure: no I/O, no clock, no state between
//! rows, so a row that is computed again after a crash comes out the same. One bad row is reported beside the good
//! ones and never stops its neighbours (I13); no payload and no query can panic it or make it allocate without bound
//! (I14). It implements the engine's `Decoder` and `Transform` and knows nothing of sources and sinks.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod code;
mod function;
mod hidden;
mod json;
mod query;
mod raw;
mod schema;
mod wanted;

pub use code::CODES;
pub use json::{DecodeCounters, Framing, JsonDecoder, JsonOptions, Unknown};
pub use query::{CompiledSql, Sql};
pub use raw::{RawDecoder, RawForm};
pub use schema::{ColumnOptions, ColumnText, Round, Schema, infer};
