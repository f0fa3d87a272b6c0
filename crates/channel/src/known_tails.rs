//! The last durable tail of each partition, kept outside of its log (C78).
//!
//! A log whose newest segment was taken away ends like one that never had it, and would give the same offsets out again.
//! This is what tells the two apart. Written after a mark is durable: when a partition has gone quiet, and at close; so it
//! is never above the tail, and may be behind it. Durable in `state.redb`, table `channel_tails`: key = channel id (16 B),
//! partition (u32, big-endian); value = version 1 (u8), offset (u64, little-endian).

use std::collections::BTreeMap;

use landfall_state::{Change, StateError, StateHandle};
use landfall_types::{ChannelId, Offset, PartitionId};
use parking_lot::Mutex;

const TABLE: &str = "channel_tails";
const VERSION: u8 = 1;

#[derive(Debug)]
pub(crate) struct KnownTails {
    channel: ChannelId,
    /// None: class `memory`, whose log ends with the process.
    state: Option<StateHandle>,
    /// As handed over for storing.
    known: Mutex<BTreeMap<PartitionId, Offset>>,
}

impl KnownTails {
    /// Reads what is stored. A row that cannot be read is named and counts for nothing. Blocks on I/O.
    pub(crate) fn open(channel: ChannelId, state: Option<StateHandle>) -> Result<KnownTails, StateError> {
        let mut known = BTreeMap::new();
        let rows = match &state {
            Some(state) => state.scan(TABLE, &channel.0)?,
            None => Vec::new(),
        };
        for (key, value) in rows {
            match read_row(&key, &value) {
                Some((partition, offset)) => {
                    known.insert(partition, offset);
                }
                None => {
                    tracing::warn!(%channel, bytes = key.len(), "the tail that an earlier run has kept cannot be read; whether the newest segment is missing cannot be told from it");
                }
            }
        }
        Ok(KnownTails { channel, state, known: Mutex::new(known) })
    }

    /// Below it everything was durable.
    pub(crate) fn of(&self, partition: PartitionId) -> Option<Offset> {
        self.known.lock().get(&partition).copied()
    }

    /// The row to store for a tail that is durable, if it is not known yet.
    pub(crate) fn news(&self, partition: PartitionId, tail: Offset) -> Option<Change> {
        self.state.as_ref()?;
        let mut known = self.known.lock();
        if known.get(&partition).copied().unwrap_or_default() >= tail {
            return None;
        }
        known.insert(partition, tail);
        let mut key = Vec::with_capacity(20);
        key.extend_from_slice(&self.channel.0);
        key.extend_from_slice(&partition.0.to_be_bytes());
        let mut value = vec![VERSION];
        value.extend_from_slice(&tail.0.to_le_bytes());
        Some(Change::put(TABLE, key, value))
    }

    /// Stores a tail that is durable, without waiting. One that cannot be stored is left to the next.
    pub(crate) fn keep(&self, partition: PartitionId, tail: Offset) {
        let (Some(change), Some(state)) = (self.news(partition, tail), &self.state) else { return };
        let channel = self.channel;
        let told = move |result: Result<(), StateError>| {
            if let Err(error) = result {
                tracing::warn!(%channel, %partition, %tail, cause = %error, "the tail was not kept; a segment that goes missing above the last one that was is not noticed");
            }
        };
        state.commit_with(vec![change], state.owner(), Box::new(told));
    }
}

fn read_row(key: &[u8], value: &[u8]) -> Option<(PartitionId, Offset)> {
    let (_, partition) = key.split_first_chunk::<16>()?;
    let partition: [u8; 4] = partition.try_into().ok()?;
    let (version, offset) = value.split_first()?;
    let offset: [u8; 8] = offset.try_into().ok()?;
    (*version == VERSION).then(|| (PartitionId(u32::from_be_bytes(partition)), Offset(u64::from_le_bytes(offset))))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// Catches a tail that goes back, one that is written again and again, and a row of a later version that is guessed
    /// at or stops the start.
    #[test]
    fn a_tail_rises_is_written_once_and_survives() {
        let store = landfall_state::StateStore::in_memory().unwrap();
        let state = store.handle();
        let open = || KnownTails::open(ChannelId([1; 16]), Some(state.clone())).unwrap();
        let tails = open();
        assert_eq!(tails.of(PartitionId(7)), None);
        assert_eq!(tails.news(PartitionId(7), Offset(0)), None, "an empty log has nothing to miss");
        let change = tails.news(PartitionId(7), Offset(40)).unwrap();
        state.commit_blocking(vec![change], state.owner()).unwrap();
        assert_eq!(tails.news(PartitionId(7), Offset(40)), None);
        assert_eq!(tails.news(PartitionId(7), Offset(39)), None);
        assert_eq!((open().of(PartitionId(7)), open().of(PartitionId(0))), (Some(Offset(40)), None));
        let change = Change {
            value: Some(Bytes::from_static(&[VERSION + 1, 9])),
            ..tails.news(PartitionId(7), Offset(41)).unwrap()
        };
        state.commit_blocking(vec![change], state.owner()).unwrap();
        assert_eq!(open().of(PartitionId(7)), None);
    }
}
