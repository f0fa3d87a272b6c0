//! A channel's part of `/v1/status` (E144).

use landfall_types::{Durability, Offset, PartitionId};
use serde::Serialize;

/// What a partition, a channel or the process can do (C98). Ordered: the later, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// All of it.
    Ok,
    /// Readable and writable; something is quarantined.
    Degraded,
    /// An append is not settled.
    Uncertain,
    /// No room.
    Full,
    /// Needs repair.
    Stopped,
}

/// A channel's status.
#[derive(Clone, Debug, Serialize)]
pub struct ChannelStatus {
    /// Its name.
    pub name: String,
    /// Its class.
    pub durability: Durability,
    /// The worst of its partitions.
    pub health: Health,
    /// The sum of the tails.
    pub tail: u64,
    /// The sum of the log starts.
    pub log_start: u64,
    /// Each partition.
    pub partitions: Vec<PartitionStatus>,
    /// Each consumer.
    pub consumers: Vec<ConsumerStatus>,
}

/// A partition's status.
#[derive(Clone, Debug, Serialize)]
pub struct PartitionStatus {
    /// Its number.
    pub partition: PartitionId,
    /// Its visible tail.
    pub tail: Offset,
    /// Its first offset.
    pub log_start: Offset,
    /// `ready`; `uncertain`: an append is being settled; `fenced`: no room, publishes are refused; `stopped`.
    pub state: &'static str,
    /// Why, where it is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// A consumer's status.
#[derive(Clone, Debug, Serialize)]
pub struct ConsumerStatus {
    /// Its name.
    pub name: String,
    /// Records between its floor and the tail, over all partitions.
    pub lag_records: u64,
}
