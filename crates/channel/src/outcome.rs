//! How a publish ends: exactly one of three outcomes, chosen by structure (C1, I3).

use std::fmt;
use std::time::Duration;

use landfall_types::{ChannelId, Code, Coded, Durability, Epoch, Kind, Offset, PartitionId, Retry, TicketNumber};

use crate::error::{PublishError, ch};
use crate::record::Record;

/// The end of a publish.
#[derive(Clone, Debug)]
#[must_use = "a publish that is not Committed must be retried, resolved or reported"]
pub enum PublishOutcome {
    /// In the log at that position, as durable as `class` says, and readable.
    Committed(Committed),
    /// Not in the log by this publish, and no copy of it in flight can enter it.
    NotStored(NotStored),
    /// In the log, or not: this answer cannot say.
    Unresolved(Unresolved),
}

impl PublishOutcome {
    /// The position, if it is committed.
    pub fn committed(&self) -> Option<&Committed> {
        match self {
            PublishOutcome::Committed(committed) => Some(committed),
            _ => None,
        }
    }

    pub(crate) fn refused(error: PublishError, records: Vec<Record>) -> PublishOutcome {
        PublishOutcome::NotStored(NotStored { error, records })
    }
}

/// Where a publish is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its partition.
    pub partition: PartitionId,
    /// The offset of its first record. [`Offset::MAX`], which is never assigned, for a repeat that is known by its
    /// sequence alone: the table keeps no position of it (C53).
    pub first: Offset,
    /// How many records it has, at consecutive offsets.
    pub count: u32,
    /// The epoch under which it was answered.
    pub epoch: Epoch,
    /// What this answer is worth.
    pub class: Durability,
    /// An earlier attempt under the key owns the position.
    pub duplicate: bool,
    /// Where the time went.
    pub timings: Timings,
}

/// Monotonic durations since admission (C96).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Until the committer took it.
    pub claimed: Duration,
    /// Until its bytes were handed to the device.
    pub written: Duration,
    /// Until they were synced.
    pub synced: Duration,
    /// Until readers could see it.
    pub visible: Duration,
}

/// A definite refusal.
#[derive(Clone, Debug)]
pub struct NotStored {
    /// Why.
    pub error: PublishError,
    /// The payload, given back.
    pub records: Vec<Record>,
}

/// An answer that came too early to know.
#[derive(Clone, Debug)]
pub struct Unresolved {
    /// Names the publish, across restarts.
    pub reference: Reference,
    /// Why it is not known.
    pub cause: UnresolvedCause,
}

/// Why a publish could not be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnresolvedCause {
    /// The deadline passed after the committer had taken it.
    #[error("no answer within {deadline:?}, and the append is under way: retry with the same key, or ask later")]
    AnswerLate {
        /// The publish's deadline.
        deadline: Duration,
    },
    /// The committer is gone and could not be brought back.
    #[error("the partition's committer was lost while the append was under way: retry with the same key, or ask later")]
    CommitterLost,
}

impl Coded for UnresolvedCause {
    fn code(&self) -> Code {
        match self {
            UnresolvedCause::AnswerLate { .. } => ch(40),
            UnresolvedCause::CommitterLost => ch(41),
        }
    }

    fn kind(&self) -> Kind {
        Kind::Unresolved
    }

    fn retry(&self) -> Retry {
        Retry::Now
    }
}

/// Names a publish whose outcome is not known (C52). Opaque to callers, valid across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    pub(crate) channel: ChannelId,
    pub(crate) partition: PartitionId,
    pub(crate) epoch: Epoch,
    pub(crate) ticket: TicketNumber,
    pub(crate) first: Offset,
    pub(crate) count: u32,
}

impl Reference {
    /// The bytes of a reference, little-endian: channel, partition, epoch, ticket, first offset, count.
    pub const BYTES: usize = 44;

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0u8; Self::BYTES];
        bytes[..16].copy_from_slice(&self.channel.0);
        bytes[16..20].copy_from_slice(&self.partition.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.ticket.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[40..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
