//! Idempotency keys and sequences of one partition (C44–C48, C53): at most one record per key in the window (I4).
//!
//! No claim is ever written: the tag stands in front of the record's unit, and with one owner per tail a key in flight
//! survives a crash as a record or as nothing. The table is rebuilt from the log before the first publish.

use std::collections::{HashMap, VecDeque};
use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use landfall_log::{RecentSequence, RecentTag, SequenceBlock};
use landfall_types::{Offset, Timestamp};
use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher24 as SipHasher128};

use crate::intake::QueuedUnit;
use crate::options::KeyLimits;
use crate::record::Record;

/// A channel's secret: tags of equal keys differ between channels, and nobody can search for collisions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeySeed(pub(crate) [u8; 16]);

impl std::fmt::Debug for KeySeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySeed")
    }
}

/// What a key is known by.
pub(crate) type KeyName = [u8; 16];

impl KeySeed {
    pub(crate) fn name(&self, key: &[u8]) -> KeyName {
        let mut hasher = SipHasher128::new_with_key(&self.0);
        hasher.write(key);
        hasher.finish128().as_bytes()
    }

    /// A hash of everything a repeat must have in common: all fields but event times and trace (C44).
    pub(crate) fn body(&self, records: &[Record]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        let mut field = |number: u8, bytes: &[u8]| {
            hasher.write_u8(number);
            hasher.write_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            hasher.write(bytes);
        };
        for record in records {
            if let Some(name) = &record.publisher {
                field(1, name.as_bytes());
            }
            if let Some(key) = &record.idempotency_key {
                field(2, key);
            }
            if let Some(key) = &record.key {
                field(3, key);
            }
            if let Some(parent) = &record.parent {
                field(4, &parent.channel.0);
                field(4, &parent.partition.0.to_le_bytes());
                field(4, &parent.offset.0.to_le_bytes());
            }
            if let Some(schema) = record.schema {
                field(6, &schema.to_le_bytes());
            }
            for header in &record.headers {
                field(7, header.name.as_bytes());
                field(7, &header.value);
            }
            field(8, &record.payload);
        }
        hasher.finish()
    }
}

/// The tag in front of a keyed unit: the key's name, then the body hash, little-endian.
pub(crate) fn tag(name: &KeyName, body: u64) -> [u8; 24] {
    let mut tag = [0u8; 24];
    tag[..16].copy_from_slice(name);
    tag[16..].copy_from_slice(&body.to_le_bytes());
    tag
}

fn split_tag(tag: &[u8; 24]) -> (KeyName, u64) {
    let (mut name, mut body) = ([0u8; 16], [0u8; 8]);
    name.copy_from_slice(&tag[..16]);
    body.copy_from_slice(&tag[16..]);
    (name, u64::from_le_bytes(body))
}

#[derive(Debug)]
struct Entry {
    body: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    InFlight(QueuedUnit),
    Committed { first: Offset, count: u32 },
}

/// What a keyed publish meets (C47).
pub(crate) enum Gate {
    /// The key is this ticket's now.
    Vacant,
    /// An equal publish is in flight; this one got a seat at its ticket.
    Join(QueuedUnit, usize),
    /// It is in the log.
    Committed { first: Offset, count: u32 },
    /// The key names something else; [`Offset::MAX`] while that is in flight.
    Reused { first: Offset },
    /// As many as may have joined already.
    Crowded,
}

/// The last record of a producer, and when.
#[derive(Clone, Copy, Debug)]
struct Last {
    number: (u64, u64),
    at: Timestamp,
}

/// The table of one partition.
#[derive(Debug)]
pub(crate) struct KeyTable {
    limits: KeyLimits,
    entries: HashMap<KeyName, Entry>,
    /// Committed entries, oldest first, to forget them by age and count.
    order: VecDeque<(KeyName, Offset, Timestamp)>,
    /// From here on every keyed record is in the table; it only grows (C46).
    window_start: Offset,
    producers: HashMap<[u8; 16], Last>,
}

impl KeyTable {
    pub(crate) fn rebuilt(
        limits: KeyLimits,
        window_start: Offset,
        tags: &[RecentTag],
        sequences: &[RecentSequence],
    ) -> KeyTable {
        let (entries, order) = (HashMap::new(), VecDeque::new());
        let mut table = KeyTable { limits, entries, order, window_start, producers: HashMap::new() };
        for recent in tags {
            let (name, body) = split_tag(&recent.tag);
            table.commit(name, body, recent.first, recent.records, recent.append_time);
        }
        for recent in sequences {
            table.advance(recent.block.producer, (recent.block.sequence, recent.block.index), recent.append_time);
        }
        table
    }

    /// Atomic per key, since the table is under one lock.
    pub(crate) fn enter(&mut self, name: KeyName, body: u64, unit: &QueuedUnit, now: Timestamp) -> Gate {
        self.forget_old(now);
        if let Some(entry) = self.entries.get(&name) {
            let first = match &entry.state {
                State::InFlight(_) => Offset::MAX,
                State::Committed { first, .. } => *first,
            };
            match &entry.state {
                State::InFlight(earlier) => match earlier.cell.join() {
                    // NotStored, and its holder has not come round to free the key: nothing of it is in the log.
                    Err(true) => {}
                    _ if entry.body != body => return Gate::Reused { first },
                    Err(false) => return Gate::Crowded,
                    Ok(seat) => return Gate::Join(Arc::clone(earlier), seat),
                },
                State::Committed { .. } if entry.body != body => return Gate::Reused { first },
                State::Committed { first, count } => return Gate::Committed { first: *first, count: *count },
            }
        }
        self.entries.insert(name, Entry { body, state: State::InFlight(Arc::clone(unit)) });
        Gate::Vacant
    }

    /// Inside C24, or from the log at open.
    pub(crate) fn commit(&mut self, name: KeyName, body: u64, first: Offset, count: u32, at: Timestamp) {
        self.entries.insert(name, Entry { body, state: State::Committed { first, count } });
        self.order.push_back((name, first, at));
        while self.order.len() > self.limits.count as usize {
            self.forget_oldest();
        }
    }

    /// The ticket ended NotStored: the key is free again.
    pub(crate) fn release(&mut self, name: &KeyName, unit: &QueuedUnit) {
        let is_own = |entry: &Entry| matches!(&entry.state, State::InFlight(own) if Arc::ptr_eq(own, unit));
        if self.entries.get(name).is_some_and(is_own) {
            self.entries.remove(name);
        }
    }

    fn forget_old(&mut self, now: Timestamp) {
        let oldest = now.0.saturating_sub(micros(self.limits.window));
        while self.order.front().is_some_and(|(_, _, at)| at.0 < oldest) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((name, first, _)) = self.order.pop_front() {
            let is_same = |entry: &Entry| matches!(entry.state, State::Committed { first: own, .. } if own == first);
            if self.entries.get(&name).is_some_and(is_same) {
                self.entries.remove(&name);
            }
            self.window_start = self.window_start.max(Offset(first.0.saturating_add(1)));
        }
    }

    /// The last (sequence, index) that is in the log of a producer.
    pub(crate) fn last(&self, producer: &[u8; 16]) -> Option<(u64, u64)> {
        self.producers.get(producer).map(|last| last.number)
    }

    /// A unit of the producer is in the log. False: the table is full of live producers, so this one is not protected.
    pub(crate) fn advance(&mut self, producer: [u8; 16], number: (u64, u64), at: Timestamp) -> bool {
        if !self.producers.contains_key(&producer) && self.producers.len() >= self.limits.producers as usize {
            let oldest = at.0.saturating_sub(micros(self.limits.window));
            self.producers.retain(|_, last| last.at.0 >= oldest);
            if self.producers.len() >= self.limits.producers as usize {
                return false;
            }
        }
        let last = self.producers.entry(producer).or_insert(Last { number, at });
        *last = Last { number: last.number.max(number), at };
        true
    }

    /// Committed keys in the table.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// From here on every keyed record is in the table.
    #[cfg(test)]
    pub(crate) fn window_start(&self) -> Offset {
        self.window_start
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// Sequence keys of a publish: one number per record, rising.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequences {
    /// Who numbers.
    pub producer: [u8; 16],
    /// (sequence, index) of each record; indexes below 2^63.
    pub numbers: Arc<[(u64, u64)]>,
}

impl Sequences {
    /// Those from `at` on, `count` of them.
    pub(crate) fn part(&self, at: usize, count: usize) -> Sequences {
        let part = self.numbers.get(at..at + count).unwrap_or_default();
        Sequences { producer: self.producer, numbers: part.into() }
    }

    pub(crate) fn block(&self) -> SequenceBlock {
        let (sequence, index) = self.numbers.last().copied().unwrap_or_default();
        SequenceBlock { producer: self.producer, sequence, index, last_in_call: true }
    }

    /// How many records at the front are at or below what is in the log.
    pub(crate) fn known(&self, last: Option<(u64, u64)>) -> usize {
        last.map_or(0, |last| self.numbers.partition_point(|number| *number <= last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::PublishError;
    use crate::intake::tests::unit;
    use crate::outcome::UnresolvedCause;
    use crate::ticket::Settlement;

    fn table(count: u32) -> KeyTable {
        KeyTable::rebuilt(KeyLimits { count, ..KeyLimits::default() }, Offset::ZERO, &[], &[])
    }

    const NOW: Timestamp = Timestamp(1_000_000_000_000);

    /// Catches a second record under one key, and a key that stays taken after NotStored (C47, C48).
    #[test]
    fn a_key_is_vacant_joined_or_committed() {
        let mut keys = table(10);
        let (own, other) = (unit(1), unit(1));
        assert!(matches!(keys.enter([1; 16], 7, &own, NOW), Gate::Vacant));
        assert!(matches!(keys.enter([1; 16], 8, &other, NOW), Gate::Reused { first: Offset::MAX }));
        assert!(matches!(keys.enter([1; 16], 7, &other, NOW), Gate::Join(cell, 2) if Arc::ptr_eq(&cell, &own)));
        keys.release(&[1; 16], &other);
        assert!(matches!(keys.enter([1; 16], 7, &other, NOW), Gate::Join(..)), "only its own ticket frees a key");
        keys.release(&[1; 16], &own);
        assert!(matches!(keys.enter([1; 16], 8, &other, NOW), Gate::Vacant));
        keys.commit([1; 16], 8, Offset(4), 1, NOW);
        assert!(matches!(keys.enter([1; 16], 8, &own, NOW), Gate::Committed { first: Offset(4), count: 1 }));
        assert!(matches!(keys.enter([1; 16], 9, &own, NOW), Gate::Reused { first: Offset(4) }));
    }

    /// Catches a key that is free again although its record may be in the log (I3, I4).
    #[test]
    fn a_key_of_an_unresolved_publish_stays_taken_and_of_a_refused_one_does_not() {
        for is_unresolved in [true, false] {
            let mut keys = table(10);
            let (own, other) = (unit(1), unit(1));
            assert!(matches!(keys.enter([1; 16], 7, &own, NOW), Gate::Vacant));
            let end = match is_unresolved {
                true => Settlement::Unresolved(UnresolvedCause::CommitterLost),
                false => Settlement::NotStored(PublishError::Withdrawn),
            };
            own.cell.settle(end, &mut Vec::new());
            let gate = keys.enter([1; 16], 7, &other, NOW);
            match is_unresolved {
                true => assert!(matches!(gate, Gate::Join(cell, 1) if Arc::ptr_eq(&cell, &own))),
                false => assert!(matches!(gate, Gate::Vacant)),
            }
        }
    }

    /// Catches a window that does not move by count or by age, or that forgets a key used again since.
    #[test]
    fn the_window_forgets_by_count_and_age() {
        let mut keys = table(2);
        let cell = unit(1);
        for n in 0..3u8 {
            keys.commit([n; 16], 1, Offset(u64::from(n)), 1, NOW);
        }
        assert_eq!((keys.len(), keys.window_start()), (2, Offset(1)));
        assert!(matches!(keys.enter([0; 16], 1, &cell, NOW), Gate::Vacant));
        keys.commit([0; 16], 1, Offset(3), 1, Timestamp(NOW.0 + 1));
        let later = Timestamp(NOW.0 + 3_600_000_001);
        assert!(matches!(keys.enter([2; 16], 1, &cell, later), Gate::Vacant));
        assert!(matches!(keys.enter([0; 16], 1, &cell, later), Gate::Committed { first: Offset(3), .. }));
    }

    /// Catches a hash of 64 bits or of parts of the record, and one that changes with what a retry may change.
    #[test]
    fn the_body_hash_sees_every_field_but_event_time_and_trace() {
        let seed = KeySeed([3; 16]);
        let record = Record::new(&b"x"[..]);
        let base = seed.body(std::slice::from_ref(&record));
        let timed = Record { event_time: Some(Timestamp(1)), ..record.clone() };
        assert_eq!(seed.body(&[timed]), base);
        let keyed = Record { key: Some(b"x".as_slice().into()), ..record.clone() };
        assert_ne!(seed.body(&[keyed]), base);
        let schema = Record { schema: Some(1), ..record };
        assert_ne!(seed.body(&[schema]), base);
        assert_ne!(KeySeed([4; 16]).name(b"k"), seed.name(b"k"));
    }
}
