//! Ingest streams: `EphemeralStream` from its create to its last acknowledgement (G7–G22).
//!
//! One task per stream reads, checks, hands over and acknowledges ([`session`]); what goes out passes through one
//! bounded place ([`outbox`]). [`create`] opens a stream, [`frame`] turns messages into records, [`piece`] makes
//! units of them, [`recovery`] keeps those that the channel had no room for.

mod create;
mod frame;
mod outbox;
mod piece;
mod recovery;
mod schema;
mod service;
mod session;

pub(crate) use frame::{MAX_KEY_BYTES, RECORD_OVERHEAD, encoded_len, pointed_at};
pub(crate) use service::IngestService;
