//! What can go wrong at the crate's border, one enum per operation (C9). Sources stay chained.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use landfall_log::{RefusedError, UncertainCause};
use landfall_types::{ByteSize, Code, Coded, Epoch, Kind, Offset, PartitionId, Retry};

use crate::options::OptionError;

pub(crate) const fn ch(number: u16) -> Code {
    Code::new("CH", number)
}

/// A publish was refused: the records are not in the log and cannot get there by this publish.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PublishError {
    /// One record is above the limit.
    #[error("record {index} takes {bytes} bytes, the limit is {limit}: send it in parts, or raise limits.record_bytes")]
    RecordTooLarge {
        /// Its index in the call.
        index: usize,
        /// Its encoded size.
        bytes: u64,
        /// The limit.
        limit: ByteSize,
    },
    /// The batch is above a limit.
    #[error("the batch has {value} {what}, the limit is {limit}: send smaller batches")]
    BatchTooLarge {
        /// `records` or `bytes`.
        what: &'static str,
        /// How many.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A field is not as it must be.
    #[error("record {index}: {field} {reason}")]
    BadField {
        /// Its index in the call.
        index: usize,
        /// Which field.
        field: &'static str,
        /// What is wrong and what is taken.
        reason: String,
    },
    /// No such schema.
    #[error("schema id {id} is not known to channel {channel}: offer the schema first")]
    UnknownSchema {
        /// The id.
        id: u32,
        /// The channel.
        channel: Arc<str>,
    },
    /// No such partition.
    #[error("channel {channel} has {partitions} partitions, there is no partition {partition}")]
    UnknownPartition {
        /// The channel.
        channel: Arc<str>,
        /// What was named.
        partition: PartitionId,
        /// How many there are.
        partitions: u32,
    },
    /// The key names another record.
    #[error("the idempotency key was used for other content, which is at offset {first} of partition {partition}")]
    KeyReused {
        /// The partition.
        partition: PartitionId,
        /// Where the other record is; [`Offset::MAX`] while it is in flight.
        first: Offset,
    },
    /// The log is not where the publisher expected it.
    #[error("expected offset {expected}, the next record gets {actual}: read up to {actual} and decide again")]
    OffsetConflict {
        /// What the publisher expected.
        expected: Offset,
        /// What the record would have got.
        actual: Offset,
    },
    /// An earlier publish of the chain did not get in.
    #[error("an earlier publish of this chain ended with {first}: start a new chain from there")]
    ChainBroken {
        /// How that one ended.
        first: Code,
    },
    /// The queue has no room.
    #[error("the queue of partition {partition} is full ({what}): try again later")]
    QueueFull {
        /// The partition.
        partition: PartitionId,
        /// Which bound was met, with its value.
        what: String,
    },
    /// The deadline passed before the committer took it.
    #[error("not taken up within {deadline:?}: the queue is longer than that, try again later")]
    DeadlineBeforeClaim {
        /// The deadline.
        deadline: Duration,
    },
    /// The publisher dropped the call.
    #[error("the publish was withdrawn before it was taken up")]
    Withdrawn,
    /// The channel takes nothing now.
    #[error("channel {channel} takes no records: {reason}")]
    AtCapacity {
        /// The channel.
        channel: Arc<str>,
        /// `retained_for_consumers` or `disk_reserve`, with the values.
        reason: String,
    },
    /// The store refused the append before it wrote a byte.
    #[error("partition {partition} could not append: {cause}")]
    Refused {
        /// The partition.
        partition: PartitionId,
        /// Why.
        #[source]
        cause: Arc<RefusedError>,
    },
    /// An append could not be made durable and was fenced away.
    #[error("the append to partition {partition} was abandoned after {attempts} attempts: try again later")]
    Abandoned {
        /// The partition.
        partition: PartitionId,
        /// How many settles had failed.
        attempts: u32,
        /// What went wrong first.
        #[source]
        cause: Option<Arc<UncertainCause>>,
    },
    /// An earlier append is not settled yet.
    #[error("an append to partition {partition} is uncertain since {since:?}: try again later")]
    PartitionUncertain {
        /// The partition.
        partition: PartitionId,
        /// For how long.
        since: Duration,
    },
    /// The partition takes nothing until it is repaired.
    #[error("partition {partition} is stopped: {cause}")]
    PartitionStopped {
        /// The partition.
        partition: PartitionId,
        /// Why.
        cause: Arc<str>,
    },
    /// The process is going down.
    #[error("channel {channel} is draining: go elsewhere, or reconnect after the restart")]
    Draining {
        /// The channel.
        channel: Arc<str>,
    },
    /// Another process owns the data directory.
    #[error("another process owns the data directory: this one takes no more records")]
    Superseded,
}

impl Coded for PublishError {
    fn code(&self) -> Code {
        match self {
            PublishError::RecordTooLarge { .. } => ch(1),
            PublishError::BatchTooLarge { .. } => ch(2),
            PublishError::BadField { .. } => ch(3),
            PublishError::UnknownSchema { .. } => ch(4),
            PublishError::UnknownPartition { .. } => ch(6),
            PublishError::KeyReused { .. } => ch(10),
            PublishError::OffsetConflict { .. } => ch(13),
            PublishError::ChainBroken { .. } => ch(14),
            PublishError::QueueFull { .. } => ch(20),
            PublishError::DeadlineBeforeClaim { .. } => ch(21),
            PublishError::Withdrawn => ch(22),
            PublishError::AtCapacity { .. } => ch(23),
            PublishError::Refused { cause, .. } => cause.code(),
            PublishError::Abandoned { .. } => ch(31),
            PublishError::PartitionUncertain { .. } => ch(32),
            PublishError::PartitionStopped { .. } => ch(33),
            PublishError::Draining { .. } => ch(34),
            PublishError::Superseded => ch(35),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            PublishError::RecordTooLarge { .. }
            | PublishError::BatchTooLarge { .. }
            | PublishError::BadField { .. }
            | PublishError::UnknownSchema { .. }
            | PublishError::UnknownPartition { .. } => Kind::Invalid,
            PublishError::KeyReused { .. } | PublishError::OffsetConflict { .. } | PublishError::ChainBroken { .. } => {
                Kind::Conflict
            }
            PublishError::QueueFull { .. }
            | PublishError::DeadlineBeforeClaim { .. }
            | PublishError::Withdrawn
            | PublishError::AtCapacity { .. }
            | PublishError::Abandoned { .. }
            | PublishError::PartitionUncertain { .. } => Kind::Unavailable,
            PublishError::Refused { cause, .. } => cause.kind(),
            PublishError::PartitionStopped { .. } => Kind::Internal,
            PublishError::Draining { .. } | PublishError::Superseded => Kind::Closed,
        }
    }

    fn retry(&self) -> Retry {
        match self.kind() {
            Kind::Unavailable | Kind::Closed => Retry::Later,
            _ => Retry::Never,
        }
    }
}

/// A read got no records.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// No such partition.
    #[error("channel {channel} has {partitions} partitions, there is no partition {partition}")]
    UnknownPartition {
        /// The channel.
        channel: Arc<str>,
        /// What was named.
        partition: PartitionId,
        /// How many there are.
        partitions: u32,
    },
    /// A start past the tail.
    #[error("offset {offset} is past the tail {tail} of partition {partition}: start at {tail} or before")]
    PastTail {
        /// The partition.
        partition: PartitionId,
        /// What was asked for.
        offset: Offset,
        /// The visible tail.
        tail: Offset,
    },
    /// Retention has passed the cursor.
    #[error(
        "offsets {from} to {log_start} (exclusive) of partition {partition} are gone by retention: start at {log_start}"
    )]
    Trimmed {
        /// The partition.
        partition: PartitionId,
        /// The cursor.
        from: Offset,
        /// The first offset there is.
        log_start: Offset,
    },
    /// Records are lost to damage.
    #[error(
        "offsets {from} to {to} (exclusive) of partition {partition} are damaged: read on at {to}, and run `landfall log check`"
    )]
    Damaged {
        /// The partition.
        partition: PartitionId,
        /// The first lost offset.
        from: Offset,
        /// The first offset after the damage.
        to: Offset,
    },
    /// The device did not give the bytes, or they are not records.
    #[error("reading partition {partition} at offset {offset} failed: {cause}")]
    Failed {
        /// The partition.
        partition: PartitionId,
        /// The cursor.
        offset: Offset,
        /// Why.
        #[source]
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The log holds other records under these offsets than when the cursor was taken (C63).
    #[error(
        "partition {partition}: the record before offset {offset} was of epoch {expected}, the log has {found} there: it was \
         restored from a copy or lost its unsynced tail; choose a new position"
    )]
    HistoryChanged {
        /// The partition.
        partition: PartitionId,
        /// The cursor.
        offset: Offset,
        /// The epoch of the record before it when the cursor was taken.
        expected: Epoch,
        /// What is there now.
        found: String,
    },
    /// The process has its fill of subscriptions.
    #[error("{limit} subscriptions are open, which is the limit: close some, or raise process.channels.subscriptions")]
    TooManySubscribers {
        /// The limit.
        limit: u32,
    },
    /// The partition never opened.
    #[error("partition {partition} is not open: {cause}")]
    NotOpen {
        /// The partition.
        partition: PartitionId,
        /// Why.
        cause: Arc<str>,
    },
    /// The process is going down.
    #[error("the channels are closed: reconnect after the restart")]
    Closed,
}

impl Coded for ReadError {
    fn code(&self) -> Code {
        match self {
            ReadError::UnknownPartition { .. } => ch(6),
            ReadError::PastTail { .. } => ch(3),
            ReadError::Trimmed { .. } => ch(50),
            ReadError::Damaged { .. } => ch(51),
            ReadError::Failed { .. } => ch(59),
            ReadError::HistoryChanged { .. } => ch(52),
            ReadError::TooManySubscribers { .. } => ch(57),
            ReadError::NotOpen { .. } => ch(33),
            ReadError::Closed => ch(34),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            ReadError::UnknownPartition { .. }
            | ReadError::PastTail { .. }
            | ReadError::Trimmed { .. }
            | ReadError::HistoryChanged { .. } => Kind::Invalid,
            ReadError::Damaged { .. } | ReadError::NotOpen { .. } => Kind::Internal,
            ReadError::Failed { .. } | ReadError::TooManySubscribers { .. } => Kind::Unavailable,
            ReadError::Closed => Kind::Closed,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            ReadError::Failed { .. } | ReadError::TooManySubscribers { .. } | ReadError::Closed => Retry::Later,
            _ => Retry::Never,
        }
    }
}

/// A channel, or all of them, could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An option is out of its bounds.
    #[error("channel {channel}: {cause}")]
    Option {
        /// The channel; `process` for what all share.
        channel: String,
        /// Which and why.
        #[source]
        cause: OptionError,
    },
    /// Two names differ in case only.
    #[error("channel {name} differs from {existing} in case only: choose another name")]
    NameTaken {
        /// The new name.
        name: String,
        /// The one that exists.
        existing: String,
    },
    /// The number of partitions was changed.
    #[error(
        "channel {name} has {stored} partitions, which are fixed at its creation; the configuration says {configured}"
    )]
    PartitionsChanged {
        /// The channel.
        name: String,
        /// What `channel.yaml` says.
        stored: u32,
        /// What the configuration says.
        configured: u32,
    },
    /// `channel.yaml` is not what it was written as.
    #[error("{path} cannot be read as a channel's identity ({reason}): put the right file back, records are untouched")]
    Identity {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The directory holds segments, but no `channel.yaml`.
    #[error("{path} holds partitions but no channel.yaml: put the file back; nothing was deleted")]
    IdentityLost {
        /// The directory.
        path: PathBuf,
    },
    /// The file system failed.
    #[error("{step} failed for {path}: {source}")]
    Failed {
        /// What was being done.
        step: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The process is going down.
    #[error("the channels are draining: no channel is created any more")]
    Draining,
}

impl Coded for OpenError {
    fn code(&self) -> Code {
        match self {
            OpenError::Option { .. } | OpenError::NameTaken { .. } => ch(3),
            OpenError::PartitionsChanged { .. } | OpenError::Identity { .. } | OpenError::IdentityLost { .. } => ch(72),
            OpenError::Failed { .. } => ch(76),
            OpenError::Draining => ch(34),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            OpenError::Option { .. } | OpenError::NameTaken { .. } => Kind::Invalid,
            OpenError::PartitionsChanged { .. } | OpenError::Identity { .. } | OpenError::IdentityLost { .. } => {
                Kind::Conflict
            }
            OpenError::Failed { .. } => Kind::Unavailable,
            OpenError::Draining => Kind::Closed,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            OpenError::Failed { .. } | OpenError::Draining => Retry::Later,
            _ => Retry::Never,
        }
    }
}
