//! A channel's handle: publishing, reading, status.
//!
//! The publisher's side of a publish runs here: check, route, encode, pass the key gate, reserve, queue, wait (C20).
//! None of it does file I/O.

mod publish;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use landfall_types::{ChannelId, Durability, Offset, PartitionId, Timestamp};
use parking_lot::Mutex;

use crate::chain::ChainId;
use crate::error::{OpenError, ReadError};
use crate::floors::Floors;
use crate::identity::Identity;
use crate::keys::{KeySeed, Sequences};
use crate::options::{ChannelOptions, RecordFormat};
use crate::partition::Partition;
use crate::record::Delivered;
use crate::schemas::{SchemaError, Schemas};
use crate::status::{ChannelStatus, ConsumerStatus, Health};
use crate::subscription::{
    Start, SubscribeOptions, Subscription, SubscriptionPlace, TailSeat, deliver, offset_at, read_page,
};

/// How one call publishes.
#[derive(Clone, Debug, Default)]
pub struct PublishOptions {
    /// An explicit partition (C12).
    pub partition: Option<PartitionId>,
    /// Where a record without any key goes, unless `partition` is named; `None`: in turns. For a caller whose repeats
    /// must meet the partition that the first attempt went to.
    pub keyless: Option<PartitionId>,
    /// The chain it belongs to.
    pub chain: Option<ChainId>,
    /// How long to wait for room and for the answer; 10 ms to 5 min, default 10 s.
    pub deadline: Option<Duration>,
    /// Only if the first record would get this offset (C13).
    pub expect: Option<Offset>,
    /// Sequence keys instead of idempotency keys, one per record (C53). A caller names the partition with them.
    pub sequences: Option<Sequences>,
}

/// A handle of a channel; clones share it. Publishing and reading need a tokio runtime with time.
#[derive(Clone, Debug)]
pub struct Channel {
    pub(crate) shared: Arc<ChannelShared>,
}

#[derive(Debug)]
pub(crate) struct ChannelShared {
    pub(crate) name: Arc<str>,
    pub(crate) id: ChannelId,
    pub(crate) seed: KeySeed,
    pub(crate) options: Arc<ChannelOptions>,
    pub(crate) partitions: Vec<Arc<Partition>>,
    pub(crate) floors: Arc<Floors>,
    pub(crate) schemas: Schemas,
    /// None: class `memory`, which has no file.
    pub(crate) dir: Option<PathBuf>,
    pub(crate) identity: Mutex<Identity>,
    /// The record type that is being made durable.
    pub(crate) decided_format: Mutex<Option<RecordFormat>>,
    /// For records without a key: stays with a partition for a while, then moves on.
    pub(crate) rotation: AtomicU64,
    pub(crate) open_subscriptions: Arc<AtomicU32>,
    pub(crate) subscriptions_max: u32,
}

/// Publishes without a key that go to one partition before the next one has its turn.
const STICKY: u64 = 64;

impl Channel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Its identity: survives restarts, differs for a channel that was made anew under the same name.
    pub fn id(&self) -> ChannelId {
        self.shared.id
    }

    /// How many partitions it has.
    pub fn partitions(&self) -> u32 {
        self.shared.partitions.len() as u32
    }

    /// What it was opened with.
    pub fn options(&self) -> &ChannelOptions {
        &self.shared.options
    }

    /// What an acknowledgement is worth.
    pub fn durability(&self) -> Durability {
        self.shared.options.durability
    }

    /// The record type fixed by configuration or by the first stream (G11).
    pub fn format(&self) -> Option<RecordFormat> {
        self.shared.identity.lock().format
    }

    /// Fixes the record type durably, unless it is fixed already; gives the one in force. Blocks on I/O.
    pub fn fix_format(&self, format: RecordFormat) -> Result<RecordFormat, OpenError> {
        // The first caller decides, in memory; whoever agrees writes the same file, so that no lock is held over the
        // write and none of them returns before one is durable (I1, I5).
        let identity = {
            let known = self.shared.identity.lock();
            if let Some(fixed) = known.format {
                return Ok(fixed);
            }
            let decided = *self.shared.decided_format.lock().get_or_insert(format);
            if decided != format {
                return Ok(decided);
            }
            Identity { format: Some(format), ..known.clone() }
        };
        if let Some(dir) = &self.shared.dir {
            identity.write(dir)?;
        }
        let mut known = self.shared.identity.lock();
        Ok(*known.format.get_or_insert(format))
    }

    /// A new chain.
    pub fn new_chain(&self) -> ChainId {
        ChainId::default()
    }

    /// Where a record with this key goes: CRC-32C of the key modulo partitions; without a key in turns (C12).
    pub fn partition_for(&self, record_key: Option<&[u8]>) -> PartitionId {
        let count = self.shared.partitions.len() as u64;
        match record_key {
            Some(key) => PartitionId(crc32c::crc32c(key) % count as u32),
            None => {
                let turn = self.shared.rotation.fetch_add(1, Ordering::Relaxed) / STICKY;
                // A partition that takes nothing is passed by, so one that is stopped does not stop its neighbours
                // (I13). If none takes anything, the first one says why.
                let serves = |at: &u64| self.shared.partitions[(*at % count) as usize].intake.is_open();
                let at = if count == 1 { 0 } else { (turn..turn + count).find(serves).unwrap_or(turn) % count };
                PartitionId(at as u32)
            }
        }
    }

    pub(crate) fn partition(&self, partition: PartitionId) -> Option<&Arc<Partition>> {
        self.shared.partitions.get(partition.0 as usize)
    }

    /// The next offset of every partition.
    pub fn positions(&self) -> BTreeMap<PartitionId, Offset> {
        self.shared.partitions.iter().map(|partition| (partition.id, partition.tail.get())).collect()
    }

    /// The visible tail.
    pub fn tail(&self, partition: PartitionId) -> Option<Offset> {
        self.partition(partition).map(|partition| partition.tail.get())
    }

    /// The first offset there is.
    pub fn log_start(&self, partition: PartitionId) -> Option<Offset> {
        self.partition(partition).map(|partition| partition.log_start())
    }

    /// The partition, if anything can be read from it: one that did not open is not an empty one (C14).
    fn readable(&self, partition: PartitionId) -> Result<&Arc<Partition>, ReadError> {
        let partition = self.partition(partition).ok_or_else(|| ReadError::UnknownPartition {
            channel: Arc::clone(&self.shared.name),
            partition,
            partitions: self.partitions(),
        })?;
        if partition.reader().is_none() {
            let cause = partition.condition().cause.unwrap_or_else(|| "not open".into());
            return Err(ReadError::NotOpen { partition: partition.id, cause });
        }
        Ok(partition)
    }

    /// Reads a partition from a start on, for ever.
    pub fn subscribe(
        &self,
        partition: PartitionId,
        start: Start,
        options: SubscribeOptions,
    ) -> Result<Subscription, ReadError> {
        let partition = self.readable(partition)?;
        let place = SubscriptionPlace::take(&self.shared.open_subscriptions, self.shared.subscriptions_max)?;
        Subscription::new(Arc::clone(partition), start, options, place)
    }

    /// Reads once, at most so much, at least one record if there is one; empty at the tail. Never waits for data.
    pub async fn read(
        &self,
        partition: PartitionId,
        from: Offset,
        max_records: u32,
        max_bytes: usize,
    ) -> Result<Vec<Delivered>, ReadError> {
        let partition = self.readable(partition)?;
        let tail = partition.tail.get();
        if from > tail {
            return Err(ReadError::PastTail { partition: partition.id, offset: from, tail });
        }
        if from == tail || max_records == 0 {
            return Ok(Vec::new());
        }
        let mut units = Vec::new();
        if !partition.ring.take(from, tail, max_records, max_bytes, &mut units) {
            let page = read_page(partition, from, tail, max_records, max_bytes, Default::default()).await?;
            units = page.units;
        }
        deliver(partition, &units, from, max_records, max_bytes)
    }

    /// The first offset whose append time is not before `at`; the tail if there is none.
    pub async fn offset_at(&self, partition: PartitionId, at: Timestamp) -> Result<Offset, ReadError> {
        offset_at(self.readable(partition)?, at).await
    }

    /// Resolves once the tail is past `offset`, or the channels are closed.
    pub async fn wait_past(&self, partition: PartitionId, offset: Offset) {
        if let Some(partition) = self.partition(partition) {
            TailSeat::new(partition).wait_past(offset).await;
        }
    }

    /// Takes a schema into the channel's append-only list, durably; the same bytes get the same id. Blocks on I/O.
    pub fn offer_schema(&self, format: RecordFormat, schema: &[u8]) -> Result<u32, SchemaError> {
        self.shared.schemas.offer(format, schema, self.shared.options.schema_policy)
    }

    /// A schema by its id.
    pub fn schema(&self, id: u32) -> Option<(RecordFormat, Bytes)> {
        self.shared.schemas.get(id)
    }

    /// Its part of `/v1/status`.
    pub fn status(&self) -> ChannelStatus {
        let partitions: Vec<_> = self.shared.partitions.iter().map(|partition| partition.status()).collect();
        let health = self.shared.partitions.iter().map(|partition| partition.standing().health).max();
        let consumers = self.shared.floors.all().into_iter().map(|(name, floors)| {
            let lag = |status: &crate::status::PartitionStatus| {
                status.tail.since(floors.get(&status.partition).copied().unwrap_or_default().max(status.log_start))
            };
            ConsumerStatus { name, lag_records: partitions.iter().map(lag).sum() }
        });
        ChannelStatus {
            name: self.shared.name.to_string(),
            durability: self.shared.options.durability,
            health: health.unwrap_or(Health::Ok),
            tail: partitions.iter().map(|partition| partition.tail.0).sum(),
            log_start: partitions.iter().map(|partition| partition.log_start.0).sum(),
            consumers: consumers.collect(),
            partitions,
        }
    }
}
