//! Floors of a channel's consumers: below them everything is done with (C69, C86).
//!
//! Durable in `state.redb`, table `channel_floors`: key = channel id (16 B), partition (u32, big-endian), name; value =
//! version 1 (u8), offset (u64, little-endian). A floor never goes back, and is never moved by reading.

use std::collections::BTreeMap;

use bytes::Bytes;
use landfall_state::{Change, StateError, StateHandle};
use landfall_types::{ChannelId, Offset, PartitionId};
use parking_lot::Mutex;

/// The table's name.
pub(crate) const TABLE: &str = "channel_floors";
const VERSION: u8 = 1;
/// The longest name of a consumer; `pipeline:` and 64 bytes fit.
const NAME_BYTES_MAX: usize = 128;

#[derive(Debug)]
pub(crate) struct Floors {
    channel: ChannelId,
    /// None: class `memory`, which has no durable consumers.
    state: Option<StateHandle>,
    known: Mutex<BTreeMap<String, BTreeMap<PartitionId, Offset>>>,
    /// Rows that could not be read: whose floors they are, and where, is not known.
    has_unreadable: bool,
}

impl Floors {
    /// Reads what is stored. A row that cannot be read is named and left alone (I12); as long as this lasts, every
    /// partition's log is held from its start, as by a consumer that has never attached. Blocks on I/O.
    pub(crate) fn open(channel: ChannelId, state: Option<StateHandle>) -> Result<Floors, StateError> {
        let mut known: BTreeMap<String, BTreeMap<PartitionId, Offset>> = BTreeMap::new();
        let mut has_unreadable = false;
        let rows = match &state {
            Some(state) => state.scan(TABLE, &channel.0)?,
            None => Vec::new(),
        };
        for (key, value) in rows {
            match read_row(&key, &value) {
                Some((partition, name, offset)) => {
                    known.entry(name).or_default().insert(partition, offset);
                }
                None => {
                    has_unreadable = true;
                    tracing::error!(%channel, bytes = key.len(), code = "LF-CH0058", "a consumer's floor cannot be read; it is left alone and holds the log from its start");
                }
            }
        }
        Ok(Floors { channel, state, known: Mutex::new(known), has_unreadable })
    }

    /// The highest floor of a partition: a durable mark of its log (C78).
    pub(crate) fn highest(&self, partition: PartitionId) -> Option<Offset> {
        self.known.lock().values().filter_map(|floors| floors.get(&partition)).max().copied()
    }

    /// The lowest floor of all consumers and of those declared; one that never attached, or whose floor cannot be read,
    /// holds the log from its start.
    pub(crate) fn lowest(&self, partition: PartitionId, declared: &[String]) -> Offset {
        if self.has_unreadable {
            return Offset::ZERO;
        }
        let known = self.known.lock();
        let attached = known.values().map(|floors| floors.get(&partition).copied().unwrap_or_default());
        let missing = declared.iter().filter(|name| !known.contains_key(*name)).map(|_| Offset::ZERO);
        attached.chain(missing).min().unwrap_or_default()
    }

    /// Every consumer with its floors.
    pub(crate) fn all(&self) -> Vec<(String, BTreeMap<PartitionId, Offset>)> {
        self.known.lock().iter().map(|(name, floors)| (name.clone(), floors.clone())).collect()
    }

    /// Raises floors durably, then tells. A floor below the known one changes nothing.
    pub(crate) fn raise(
        self: &std::sync::Arc<Self>,
        name: &str,
        below: Vec<(PartitionId, Offset)>,
        done: impl FnOnce(Result<(), StateError>) + Send + 'static,
    ) {
        let Some(state) = &self.state else {
            self.note(name, &below);
            done(Ok(()));
            return;
        };
        let changes = {
            let known = self.known.lock();
            let floors = known.get(name);
            let is_news = |(partition, offset): &&(PartitionId, Offset)| {
                floors.and_then(|floors| floors.get(partition)).is_none_or(|floor| offset > floor)
            };
            let news = below.iter().filter(is_news);
            news.map(|(partition, offset)| Change::put(TABLE, self.key(*partition, name), row(*offset))).collect()
        };
        let changes: Vec<Change> = changes;
        if changes.is_empty() {
            done(Ok(()));
            return;
        }
        let (floors, name) = (std::sync::Arc::clone(self), name.to_owned());
        let answer = Box::new(move |result: Result<(), StateError>| {
            if result.is_ok() {
                floors.note(&name, &below);
            }
            done(result);
        });
        state.commit_with(changes, state.owner(), answer);
    }

    fn note(&self, name: &str, below: &[(PartitionId, Offset)]) {
        let mut known = self.known.lock();
        let floors = known.entry(name.to_owned()).or_default();
        for (partition, offset) in below {
            let floor = floors.entry(*partition).or_default();
            *floor = (*floor).max(*offset);
        }
    }

    fn key(&self, partition: PartitionId, name: &str) -> Bytes {
        let mut key = Vec::with_capacity(20 + name.len());
        key.extend_from_slice(&self.channel.0);
        key.extend_from_slice(&partition.0.to_be_bytes());
        key.extend_from_slice(name.as_bytes());
        key.into()
    }
}

fn row(offset: Offset) -> Bytes {
    let mut value = vec![VERSION];
    value.extend_from_slice(&offset.0.to_le_bytes());
    value.into()
}

fn read_row(key: &[u8], value: &[u8]) -> Option<(PartitionId, String, Offset)> {
    let (_, rest) = key.split_first_chunk::<16>()?;
    let (partition, name) = rest.split_first_chunk::<4>()?;
    let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty() && name.len() <= NAME_BYTES_MAX)?;
    let (version, offset) = value.split_first()?;
    let offset: [u8; 8] = offset.try_into().ok()?;
    (*version == VERSION)
        .then(|| (PartitionId(u32::from_be_bytes(*partition)), name.to_owned(), Offset(u64::from_le_bytes(offset))))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Catches a floor that goes back, that is lost by a reopen, or a consumer that has never attached and does not hold
    /// the log (C86, F-L14).
    #[test]
    fn floors_rise_survive_and_hold() {
        let store = landfall_state::StateStore::in_memory().unwrap();
        let open = || Arc::new(Floors::open(ChannelId([1; 16]), Some(store.handle())).unwrap());
        let floors = open();
        let raise = |floors: &Arc<Floors>, offset: u64| {
            let (told, tell) = std::sync::mpsc::channel();
            floors.raise("pipeline:orders", vec![(PartitionId(0), Offset(offset))], move |result| {
                told.send(result.is_ok()).unwrap();
            });
            assert!(tell.recv_timeout(std::time::Duration::from_secs(10)).unwrap());
        };
        assert_eq!(floors.lowest(PartitionId(0), &["pipeline:orders".into()]), Offset(0));
        raise(&floors, 1_000);
        raise(&floors, 900);
        for floors in [floors, open()] {
            assert_eq!(floors.highest(PartitionId(0)), Some(Offset(1_000)));
            assert_eq!(floors.lowest(PartitionId(0), &[]), Offset(1_000));
            assert_eq!(floors.lowest(PartitionId(0), &["other".into()]), Offset(0));
            assert_eq!(floors.lowest(PartitionId(1), &[]), Offset(0));
        }
    }

    /// Catches a floor that cannot be read and lets retention free what its consumer has not had (I12, C86).
    #[test]
    fn an_unreadable_floor_holds_the_log_and_stays_as_it_is() {
        let store = landfall_state::StateStore::in_memory().unwrap();
        let (state, channel) = (store.handle(), ChannelId([1; 16]));
        let open = || Floors::open(channel, Some(state.clone())).unwrap();
        let put = |name: &str, value: Bytes| {
            let change = Change::put(TABLE, open().key(PartitionId(0), name), value);
            state.commit_blocking(vec![change], state.owner()).unwrap();
        };
        put("reads", row(Offset(1_000)));
        assert_eq!(open().lowest(PartitionId(0), &[]), Offset(1_000));
        let unknown: Bytes = vec![VERSION + 1, 7].into();
        put("broken", unknown.clone());
        let floors = open();
        assert_eq!(floors.lowest(PartitionId(0), &[]), Offset::ZERO);
        assert_eq!(floors.highest(PartitionId(0)), Some(Offset(1_000)));
        assert_eq!(state.read(TABLE, &floors.key(PartitionId(0), "broken")).unwrap(), Some(unknown));
    }
}
