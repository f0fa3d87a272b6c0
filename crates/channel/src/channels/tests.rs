//! Whole channels over real files and over the in-memory file system with faults.

use landfall_log::MemoryVfs;
use landfall_state::StateStore;
use landfall_types::{Offset, SystemClock};

use self::slow_vfs::SlowVfs;
use super::*;
use crate::{Delivered, PublishOptions, PublishOutcome, Record, Start, SubscribeOptions};

mod deadlines;
mod faults;
mod keyed;
mod model;
mod publishing;
mod reading;
mod retaining;
mod slow_vfs;

/// A data directory with its state, so that channels can be opened on it again and again.
struct World {
    dir: tempfile::TempDir,
    state: StateStore,
    /// None: real files.
    vfs: Option<Arc<SlowVfs>>,
    clock: Arc<dyn Clock>,
}

const NAME: &str = "orders";
const P0: PartitionId = PartitionId(0);

impl World {
    fn on_disk() -> World {
        World {
            dir: tempfile::tempdir().unwrap(),
            state: StateStore::in_memory().unwrap(),
            vfs: None,
            clock: Arc::new(SystemClock),
        }
    }

    fn in_memory() -> World {
        World { vfs: Some(Arc::new(SlowVfs::over(MemoryVfs::new()))), ..World::on_disk() }
    }

    fn open_with(&self, configs: Vec<(String, ChannelOptions)>) -> Result<Channels, OpenError> {
        let vfs: Arc<dyn Vfs> = match &self.vfs {
            Some(vfs) => Arc::clone(vfs) as Arc<dyn Vfs>,
            None => Arc::new(DiskVfs),
        };
        let process = ProcessOptions::default();
        Channels::open_on(vfs, None, self.dir.path(), configs, process, self.state.handle(), Arc::clone(&self.clock))
    }

    fn open(&self, options: ChannelOptions) -> (Channels, Channel) {
        let channels = self.open_with(vec![(NAME.into(), options)]).unwrap();
        let channel = channels.get(NAME).unwrap();
        (channels, channel)
    }
}

/// A segment of 1 MiB, so that tests roll.
fn small_segments() -> ChannelOptions {
    let mut options = ChannelOptions { segment_bytes: ByteSize::mib(1), ..ChannelOptions::default() };
    options.limits.record_bytes = ByteSize::kib(256);
    options.limits.batch_bytes = ByteSize::kib(512);
    options.turn.bytes = ByteSize::kib(512);
    options
}

fn record(n: u64) -> Record {
    Record::new(format!("record {n}").into_bytes())
}

fn committed(outcome: PublishOutcome) -> crate::Committed {
    match outcome {
        PublishOutcome::Committed(committed) => committed,
        other => panic!("not committed: {other:?}"),
    }
}

fn not_stored(outcome: PublishOutcome) -> crate::NotStored {
    match outcome {
        PublishOutcome::NotStored(not) => not,
        other => panic!("stored or unresolved: {other:?}"),
    }
}

async fn read_from(channel: &Channel, partition: PartitionId, from: Offset) -> Vec<Delivered> {
    try_read_from(channel, partition, from).await.unwrap()
}

async fn try_read_from(
    channel: &Channel,
    partition: PartitionId,
    from: Offset,
) -> Result<Vec<Delivered>, crate::ReadError> {
    let mut all = Vec::new();
    let mut from = from;
    loop {
        let page = channel.read(partition, from, 1_000, 1 << 20).await?;
        match page.last() {
            None => return Ok(all),
            Some(last) => from = Offset(last.offset.0 + 1),
        }
        all.extend(page);
    }
}

async fn read_all(channel: &Channel, partition: PartitionId) -> Vec<Delivered> {
    read_from(channel, partition, channel.log_start(partition).unwrap()).await
}

/// Dense from `from` on, and each payload the one of its offset.
fn assert_records(delivered: &[Delivered], from: u64) {
    for (at, one) in delivered.iter().enumerate() {
        assert_eq!(one.offset.0, from + at as u64);
        assert_eq!(one.record, record(one.offset.0));
    }
}
