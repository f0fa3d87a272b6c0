//! The open ingest streams of the process: which partition each is bound to, and what is left of it at a drain.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use landfall_channel::Channel;
use landfall_types::PartitionId;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A stream that a drain could not finish (I11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftStream {
    /// Its id, as told to the client.
    pub stream_id: String,
    /// Its channel.
    pub channel: String,
    /// Its first frame that was not acknowledged.
    pub first_unacked: i64,
    /// How many frames were not acknowledged.
    pub calls: u64,
}

/// All open streams.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    state: Mutex<State>,
    /// Told whenever a stream ends.
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: HashMap<u64, Arc<Progress>>,
    /// Per channel, the open streams of each partition and where the search for the next one starts.
    load: HashMap<String, Load>,
}

#[derive(Debug)]
struct Load {
    streams: Vec<u32>,
    turn: usize,
}

/// What a stream tells of itself.
#[derive(Debug)]
struct Progress {
    stream_id: String,
    channel: String,
    first_unacked: AtomicI64,
    calls: AtomicU64,
}

/// A stream's place in the list, given back on drop.
#[derive(Debug)]
pub(crate) struct StreamEntry {
    streams: Arc<Streams>,
    number: u64,
    progress: Arc<Progress>,
    partition: PartitionId,
}

impl Streams {
    /// Binds a stream to the partition named, or to the ready one with the fewest open streams; ties rotate (G13).
    /// `None`: no partition is ready.
    pub(crate) fn bind(
        self: &Arc<Self>,
        stream_id: String,
        channel: &Channel,
        named: Option<PartitionId>,
        ready: &[PartitionId],
    ) -> Option<StreamEntry> {
        let mut state = self.state.lock();
        let load = state
            .load
            .entry(channel.name().to_owned())
            .or_insert_with(|| Load { streams: vec![0; channel.partitions() as usize], turn: 0 });
        let partition = match named {
            Some(partition) => partition,
            None => load.choose(ready)?,
        };
        if let Some(count) = load.streams.get_mut(partition.0 as usize) {
            *count += 1;
        }
        let number = state.next;
        state.next += 1;
        let progress = Arc::new(Progress {
            stream_id,
            channel: channel.name().to_owned(),
            first_unacked: AtomicI64::new(0),
            calls: AtomicU64::new(0),
        });
        state.open.insert(number, Arc::clone(&progress));
        Some(StreamEntry { streams: Arc::clone(self), number, progress, partition })
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        self.state.lock().open.len()
    }

    /// Resolves when none is open.
    pub(crate) async fn none_left(&self) {
        loop {
            let ended = self.ended.notified();
            if self.count() == 0 {
                return;
            }
            ended.await;
        }
    }

    /// Those that are open, by their ids.
    pub(crate) fn left(&self) -> Vec<LeftStream> {
        let mut left: Vec<_> = self
            .state
            .lock()
            .open
            .values()
            .map(|progress| LeftStream {
                stream_id: progress.stream_id.clone(),
                channel: progress.channel.clone(),
                first_unacked: progress.first_unacked.load(Ordering::Relaxed),
                calls: progress.calls.load(Ordering::Relaxed),
            })
            .collect();
        left.sort_by(|a, b| a.stream_id.cmp(&b.stream_id));
        left
    }
}

impl Load {
    fn choose(&mut self, ready: &[PartitionId]) -> Option<PartitionId> {
        let count = |partition: &PartitionId| self.streams.get(partition.0 as usize).copied().unwrap_or(0);
        let fewest = ready.iter().map(count).min()?;
        let tied: Vec<_> = ready.iter().filter(|partition| count(partition) == fewest).collect();
        let chosen = **tied.get(self.turn % tied.len())?;
        self.turn = self.turn.wrapping_add(1);
        Some(chosen)
    }
}

impl StreamEntry {
    /// The partition it is bound to.
    pub(crate) fn partition(&self) -> PartitionId {
        self.partition
    }

    /// The id told to the client.
    pub(crate) fn stream_id(&self) -> &str {
        &self.progress.stream_id
    }

    /// Keeps what a drain would report.
    pub(crate) fn progress(&self, first_unacked: i64, calls: u64) {
        self.progress.first_unacked.store(first_unacked, Ordering::Relaxed);
        self.progress.calls.store(calls, Ordering::Relaxed);
    }
}

impl Drop for StreamEntry {
    fn drop(&mut self) {
        let mut state = self.streams.state.lock();
        state.open.remove(&self.number);
        if let Some(load) = state.load.get_mut(&self.progress.channel)
            && let Some(count) = load.streams.get_mut(self.partition.0 as usize)
        {
            *count = count.saturating_sub(1);
        }
        drop(state);
        self.streams.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch streams that pile up on one partition, or go to one that cannot serve.
    #[test]
    fn streams_go_where_the_fewest_are() {
        let mut load = Load { streams: vec![2, 0, 0, 1], turn: 0 };
        let all: Vec<_> = (0..4).map(PartitionId).collect();
        assert_eq!(load.choose(&all), Some(PartitionId(1)));
        assert_eq!(load.choose(&all), Some(PartitionId(2)));
        assert_eq!(load.choose(&[PartitionId(0), PartitionId(3)]), Some(PartitionId(3)));
        assert_eq!(load.choose(&[]), None);
    }
}
