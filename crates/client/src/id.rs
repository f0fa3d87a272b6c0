//! The id of a call, and what its acknowledgement says.

use std::fmt;

use landfall_types::Durability;

/// The id of an admitted call: the sub-stream and the call's number on it.
///
/// It has no order: two sub-streams share none.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageId(u64);

/// Bits of the stream offset inside an id.
const OFFSET_BITS: u32 = 48;

impl MessageId {
    /// The last stream offset that an id can hold; at 10 million calls a second it lasts 325 days.
    pub(crate) const MAX_OFFSET: u64 = (1 << OFFSET_BITS) - 1;

    pub(crate) const fn new(sub_stream: u16, offset: u64) -> Self {
        MessageId(((sub_stream as u64) << OFFSET_BITS) | (offset & Self::MAX_OFFSET))
    }

    /// The sub-stream that the call belongs to; 0 on a single stream.
    pub const fn sub_stream(self) -> u16 {
        (self.0 >> OFFSET_BITS) as u16
    }

    /// The call's number on its sub-stream, from 0, kept over reconnects.
    pub const fn offset(self) -> u64 {
        self.0 & Self::MAX_OFFSET
    }

    /// The id as one number.
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// An id from its number.
    pub const fn from_raw(raw: u64) -> Self {
        MessageId(raw)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.sub_stream(), self.offset())
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({self})")
    }
}

/// A run of calls of one sub-stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first call.
    pub first: MessageId,
    /// The last call, inclusive.
    pub last: MessageId,
}

impl IdRange {
    /// How many calls.
    pub const fn count(self) -> u64 {
        self.last.offset() - self.first.offset() + 1
    }

    /// Whether the call is one of them.
    pub const fn contains(self, id: MessageId) -> bool {
        self.first.sub_stream() == id.sub_stream()
            && self.first.offset() <= id.offset()
            && id.offset() <= self.last.offset()
    }
}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}..={}", self.first.sub_stream(), self.first.offset(), self.last.offset())
    }
}

/// What an acknowledgement is worth (I1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AckDurability {
    /// On stable storage.
    Fsync,
    /// Written: survives a crash of the server process, not of its machine.
    Written,
    /// In the server's memory.
    Memory,
    /// The peer is not Landfall and does not say.
    #[default]
    Unspecified,
}

impl AckDurability {
    /// The class by its common type, where the peer says it.
    pub const fn class(self) -> Option<Durability> {
        match self {
            AckDurability::Fsync => Some(Durability::Fsync),
            AckDurability::Written => Some(Durability::Written),
            AckDurability::Memory => Some(Durability::Memory),
            AckDurability::Unspecified => None,
        }
    }
}

/// A call is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The call.
    pub id: MessageId,
    /// The weakest class that any ack of its sub-stream has had so far: it may say less than is true of this
    /// call, never more.
    pub durability: AckDurability,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a sub-stream that bleeds into the offset.
    #[test]
    fn an_id_keeps_its_two_parts() {
        let id = MessageId::new(63, MessageId::MAX_OFFSET);
        assert_eq!((id.sub_stream(), id.offset()), (63, MessageId::MAX_OFFSET));
        assert_eq!(MessageId::from_raw(id.raw()), id);
        assert_eq!(id.to_string(), format!("63/{}", MessageId::MAX_OFFSET));
    }
}
