//! Records: what is published and what is delivered (C70).

use std::sync::Arc;

use bytes::Bytes;
pub use landfall_engine::contract::Header;
use landfall_types::{ChannelId, Offset, PartitionId, Timestamp};

/// One payload with what belongs to it. What is delivered equals what was published, field by field; nothing is
/// defaulted, normalised or checked again after the append.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Any bytes.
    pub payload: Bytes,
    /// The record key: routes, and names the row in sinks. At most 64 KiB.
    pub key: Option<Bytes>,
    /// In order; names may repeat.
    pub headers: Vec<Header>,
    /// The publisher's time; never used for order, retention or keys.
    pub event_time: Option<Timestamp>,
    /// The publisher's own name for the record (I4): 1 to 256 bytes.
    pub idempotency_key: Option<Bytes>,
    /// The one record that led to this one (C71).
    pub parent: Option<Parent>,
    /// The publish span.
    pub trace: Option<Trace>,
    /// The schema at publish time.
    pub schema: Option<u32>,
    /// The authenticated principal: 1 to 128 bytes.
    pub publisher: Option<Arc<str>>,
}

impl Record {
    /// A record with a payload alone.
    pub fn new(payload: impl Into<Bytes>) -> Record {
        Record { payload: payload.into(), ..Record::default() }
    }
}

/// The position of the record that led to another one. It adds no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parent {
    /// Its channel.
    pub channel: ChannelId,
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
}

/// A W3C trace context.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Trace {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The publish span.
    pub span_id: [u8; 8],
    /// All flags, kept as they are.
    pub flags: u8,
    /// `tracestate`, verbatim, at most 512 bytes.
    pub state: Option<Arc<str>>,
}

/// A record at its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Its partition.
    pub partition: PartitionId,
    /// Its offset.
    pub offset: Offset,
    /// When it was appended: one time per unit, never going back in a partition.
    pub append_time: Timestamp,
    /// The record; its bytes share the buffer it was read from.
    pub record: Record,
}
