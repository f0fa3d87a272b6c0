//! A channel's handle.
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use landfall_types::{ChannelId, Durability, Offset, PartitionId};

use crate::*;

/// A chain: once a publish of it has not got in, no later one does (C6).
#[derive(Clone, Debug)]
pub struct ChainId {
    _chain: Arc<()>,
}

/// How one call publishes.
#[derive(Clone, Debug, Default)]
pub struct PublishOptions {
    /// An explicit partition (C12).
    pub partition: Option<PartitionId>,
    /// The chain it belongs to.
    pub chain: Option<ChainId>,
    /// How long to wait for room and for the answer; 10 ms to 5 min, default 10 s.
    pub deadline: Option<Duration>,
    /// Only if the record would get this offset (C13).
    pub expect: Option<Offset>,
}

/// A handle of a channel; clones share it.
#[derive(Clone, Debug)]
pub struct Channel {
    never: Infallible,
}

impl Channel {
    /// Its name.
    pub fn name(&self) -> &str {
        match self.never {}
    }
    /// Its identity.
    pub fn id(&self) -> ChannelId {
        match self.never {}
    }
    /// How many partitions it has.
    pub fn partitions(&self) -> u32 {
        match self.never {}
    }
    /// What it was opened with.
    pub fn options(&self) -> &ChannelOptions {
        match self.never {}
    }
    /// What an acknowledgement is worth.
    pub fn durability(&self) -> Durability {
        match self.never {}
    }
    /// The record type fixed by configuration or by the first stream (G11).
    pub fn format(&self) -> Option<RecordFormat> {
        match self.never {}
    }
    /// Fixes the record type durably, unless it is fixed already; answers the one in force. Blocks on I/O.
    pub fn fix_format(&self, _format: RecordFormat) -> Result<RecordFormat, OpenError> {
        match self.never {}
    }
    /// Publishes one record.
    pub async fn publish(&self, _record: Record, _options: PublishOptions) -> PublishOutcome {
        match self.never {}
    }
    /// Publishes a batch: all or none, at consecutive offsets of one partition (C4).
    pub async fn publish_batch(&self, _records: Vec<Record>, _options: PublishOptions) -> PublishOutcome {
        match self.never {}
    }
    /// Publishes records together, one outcome per record (C5).
    pub async fn publish_group(&self, _records: Vec<Record>, _options: PublishOptions) -> Vec<PublishOutcome> {
        match self.never {}
    }
    /// Waits for room, then hands the batch over without waiting for the commit.
    pub async fn submit_batch(&self, _records: Vec<Record>, _options: PublishOptions) -> Ticket {
        match self.never {}
    }
    /// A new chain.
    pub fn new_chain(&self) -> ChainId {
        match self.never {}
    }
    /// Where a record with this key goes (C12).
    pub fn partition_for(&self, _record_key: Option<&[u8]>) -> PartitionId {
        match self.never {}
    }
    /// The next offset of every partition.
    pub fn positions(&self) -> BTreeMap<PartitionId, Offset> {
        match self.never {}
    }
    /// The visible tail.
    pub fn tail(&self, _partition: PartitionId) -> Option<Offset> {
        match self.never {}
    }
    /// The first offset there is.
    pub fn log_start(&self, _partition: PartitionId) -> Option<Offset> {
        match self.never {}
    }
    /// Reads a partition from a start on, for ever.
    pub fn subscribe(
        &self,
        _partition: PartitionId,
        _start: Start,
        _options: SubscribeOptions,
    ) -> Result<Subscription, ReadError> {
        match self.never {}
    }
    /// Reads once; empty at the tail.
    pub async fn read(
        &self,
        _partition: PartitionId,
        _from: Offset,
        _max_records: u32,
        _max_bytes: usize,
    ) -> Result<Vec<Delivered>, ReadError> {
        match self.never {}
    }
    /// The first offset whose append time is not before `at`.
    pub async fn offset_at(
        &self,
        _partition: PartitionId,
        _at: landfall_types::Timestamp,
    ) -> Result<Offset, ReadError> {
        match self.never {}
    }
    /// Resolves once the tail is past `offset`.
    pub async fn wait_past(&self, _partition: PartitionId, _offset: Offset) {
        match self.never {}
    }
    /// Takes a schema into the channel's append-only list, durably; the same bytes get the same id. Blocks on I/O.
    pub fn offer_schema(&self, _format: RecordFormat, _schema: &[u8]) -> Result<u32, OpenError> {
        match self.never {}
    }
    /// A schema's bytes by its id. Blocks on I/O.
    pub fn schema(&self, _id: u32) -> Option<(RecordFormat, bytes::Bytes)> {
        match self.never {}
    }
    /// Its part of `/v1/status`.
    pub fn status(&self) -> ChannelStatus {
        match self.never {}
    }
}
