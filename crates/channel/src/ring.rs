//! The tail ring: a partition's newest units in memory, sharing the bytes that were written (C55).
//!
//! Bounded in records and bytes; a push evicts the oldest. It holds nothing that is not in the store, so a reader that
//! misses it reads segments and sees the same bytes (I2). The newest unit always stays, however large.

use std::collections::VecDeque;

use landfall_log::StoredUnit;
use landfall_types::Offset;
use parking_lot::Mutex;

use crate::store::HEAD_BYTES;

#[derive(Debug)]
pub(crate) struct TailRing {
    inside: Mutex<Inside>,
    records_max: u64,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Inside {
    units: VecDeque<StoredUnit>,
    records: u64,
    bytes: usize,
}

/// What a unit costs beside its rows: its entry, and its head where the rows are in the buffer that was written.
const UNIT_BYTES: usize = std::mem::size_of::<StoredUnit>() + HEAD_BYTES;

impl TailRing {
    pub(crate) fn new(records_max: u32, bytes_max: usize) -> Self {
        TailRing { inside: Mutex::default(), records_max: u64::from(records_max), bytes_max }
    }

    /// Whether rows may point into one buffer of so many bytes, which stays as long as any of them: the ring then holds no more
    /// than a quarter above its bound.
    pub(crate) fn may_share(&self, bytes: usize) -> bool {
        bytes <= self.bytes_max / 4
    }

    /// Adds a turn's units, which follow those before. What they displace goes into `evicted`, to be freed outside the lock.
    pub(crate) fn push(&self, units: impl Iterator<Item = StoredUnit>, evicted: &mut Vec<StoredUnit>) {
        let mut inside = self.inside.lock();
        for unit in units {
            if inside.units.back().is_some_and(|last| last.end() != unit.first) {
                // An append of another epoch lies between: what is in the ring does not lead up to it.
                *inside = Inside::default();
            }
            inside.records += u64::from(unit.records);
            inside.bytes += unit.rows.len() + UNIT_BYTES;
            inside.units.push_back(unit);
        }
        while inside.units.len() > 1 && (inside.records > self.records_max || inside.bytes > self.bytes_max) {
            if let Some(oldest) = inside.units.pop_front() {
                inside.records -= u64::from(oldest.records);
                inside.bytes -= oldest.rows.len() + UNIT_BYTES;
                evicted.push(oldest);
            }
        }
    }

    /// Units from the one holding `from` up to `tail`, within the budget, at least one; false if `from` is not in the
    /// ring (any more).
    pub(crate) fn take(
        &self,
        from: Offset,
        tail: Offset,
        records_max: u32,
        bytes_max: usize,
        into: &mut Vec<StoredUnit>,
    ) -> bool {
        let inside = self.inside.lock();
        let at = inside.units.partition_point(|unit| unit.end() <= from);
        if inside.units.get(at).is_none_or(|unit| unit.first > from) {
            return false;
        }
        let (mut records, mut bytes) = (0u32, 0usize);
        for unit in inside.units.range(at..).take_while(|unit| unit.end() <= tail) {
            records = records.saturating_add(unit.records);
            bytes = bytes.saturating_add(unit.rows.len());
            if !into.is_empty() && (records > records_max || bytes > bytes_max) {
                break;
            }
            into.push(unit.clone());
        }
        !into.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use landfall_log::Tag;
    use landfall_types::{Epoch, TicketNumber, Timestamp};

    use super::*;

    fn unit(first: u64, records: u32, bytes: usize) -> StoredUnit {
        StoredUnit {
            first: Offset(first),
            records,
            append_time: Timestamp(0),
            origin_epoch: Epoch(1),
            ticket: TicketNumber(first),
            tag: Tag::None,
            rows: Bytes::from(vec![0u8; bytes]),
        }
    }

    fn firsts(ring: &TailRing, from: u64, tail: u64, records: u32, bytes: usize) -> Option<Vec<u64>> {
        let mut into = Vec::new();
        ring.take(Offset(from), Offset(tail), records, bytes, &mut into)
            .then(|| into.iter().map(|unit| unit.first.0).collect())
    }

    /// Catches a ring that grows past its bounds, that loses its newest unit, or that answers for what it evicted.
    #[test]
    fn the_oldest_go_first_and_the_newest_stays() {
        let ring = TailRing::new(10, 1 << 20);
        ring.push((0..5).map(|n| unit(n * 4, 4, 8)), &mut Vec::new());
        assert_eq!(firsts(&ring, 11, 20, 100, 1 << 20), None);
        assert_eq!(firsts(&ring, 13, 20, 100, 1 << 20), Some(vec![12, 16]));
        ring.push(std::iter::once(unit(20, 50, 2 << 20)), &mut Vec::new());
        assert_eq!(firsts(&ring, 19, 70, 100, 1), None);
        assert_eq!(firsts(&ring, 20, 70, 1, 1), Some(vec![20]));
    }

    /// Catches a page that passes the visible tail or its budget, or that is empty although there is something.
    #[test]
    fn a_page_keeps_to_tail_and_budget_but_moves() {
        let ring = TailRing::new(100, 1 << 20);
        ring.push((0..5).map(|n| unit(n * 2, 2, 100)), &mut Vec::new());
        assert_eq!(firsts(&ring, 0, 6, 100, 1 << 20), Some(vec![0, 2, 4]));
        assert_eq!(firsts(&ring, 0, 10, 4, 1 << 20), Some(vec![0, 2]));
        assert_eq!(firsts(&ring, 0, 10, 100, 250), Some(vec![0, 2]));
        assert_eq!(firsts(&ring, 0, 10, 1, 1), Some(vec![0]));
        assert_eq!(firsts(&ring, 10, 10, 1, 1), None);
    }
}
