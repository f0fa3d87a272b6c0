//! The owned form of log records: one buffer for the bytes of a whole bundle (P12).
//!
//! Appending is one copy and, once an arena has been round once, no allocation. An arena tells its cost, the memory
//! that it holds and not what of it is used, and grows only by the shape that was paid for: the queue's caps are caps
//! on memory.

use landfall_types::Timestamp;

use crate::log_record::{Boundary, LogRecord, RecordKind};
use crate::{Lsn, Xid};

/// What the first record of a fresh arena makes room for.
const FIRST_BYTES: usize = 4 << 10;
const FIRST_ENTRIES: usize = 16;

/// A record without its bytes, which lie in the arena up to `bytes_end` from where those of the one before end.
#[derive(Clone, Copy, Debug)]
struct Entry {
    lsn: Lsn,
    end_lsn: Lsn,
    sent_at: Timestamp,
    bytes_end: usize,
    aborted_end: usize,
    kind: RecordKind,
    boundary: Option<Boundary>,
    xid: Xid,
    subxid: Xid,
    route: u32,
    page_version: u16,
    is_deferred: bool,
}

/// The size of what a record adds, apart from its fixed part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Bytes of the message.
    pub bytes: usize,
    /// Sub-transactions that it names.
    pub aborted: usize,
}

impl Need {
    /// A logical record's.
    pub fn bytes(bytes: usize) -> Self {
        Need { bytes, aborted: 0 }
    }

    /// Of this record.
    pub fn of(record: &LogRecord<'_>) -> Self {
        Need { bytes: record.bytes.len(), aborted: record.aborted.len() }
    }

    /// Whether this much is enough for `other`.
    pub(super) fn covers(self, other: Need) -> bool {
        self.bytes >= other.bytes && self.aborted >= other.aborted
    }
}

/// Capacities of an arena: what is paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    bytes: usize,
    entries: usize,
    aborted: usize,
}

impl Shape {
    /// In bytes of memory.
    pub(super) fn cost(self) -> u64 {
        let entries = self.entries.saturating_mul(size_of::<Entry>());
        let aborted = self.aborted.saturating_mul(size_of::<Xid>());
        self.bytes.saturating_add(entries).saturating_add(aborted) as u64
    }
}

/// Log records in order, in three buffers.
#[derive(Debug, Default)]
pub(super) struct Arena {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    aborted: Vec<Xid>,
}

impl Arena {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of messages in it.
    pub(super) fn used(&self) -> usize {
        self.bytes.len()
    }

    fn shape(&self) -> Shape {
        Shape { bytes: self.bytes.capacity(), entries: self.entries.capacity(), aborted: self.aborted.capacity() }
    }

    /// The memory that it holds.
    pub(super) fn cost(&self) -> u64 {
        self.shape().cost()
    }

    /// The shape in which one more record of this size fits: grown by doubling, so that a bundle grows a few times and
    /// not once per record.
    pub(super) fn shape_for(&self, need: Need) -> Shape {
        let grown = |capacity: usize, len: usize, more: usize, first: usize| {
            let needed = len.saturating_add(more);
            if needed <= capacity { capacity } else { needed.max(capacity.saturating_mul(2)).max(first) }
        };
        Shape {
            bytes: grown(self.bytes.capacity(), self.bytes.len(), need.bytes, FIRST_BYTES.min(need.bytes * 4)),
            entries: grown(self.entries.capacity(), self.entries.len(), 1, FIRST_ENTRIES),
            aborted: grown(self.aborted.capacity(), self.aborted.len(), need.aborted, 0),
        }
    }

    /// The shape for just this and no doubling: for a record that would not fit otherwise.
    pub(super) fn shape_for_exactly(need: Need) -> Shape {
        Shape { bytes: need.bytes, entries: 1, aborted: need.aborted }
    }

    /// Grows to a shape of [`shape_for`](Arena::shape_for).
    pub(super) fn grow_to(&mut self, shape: Shape) {
        self.bytes.reserve_exact(shape.bytes.saturating_sub(self.bytes.len()));
        self.entries.reserve_exact(shape.entries.saturating_sub(self.entries.len()));
        self.aborted.reserve_exact(shape.aborted.saturating_sub(self.aborted.len()));
    }

    /// Appends a record. The pattern names every field, so that a new one does not compile until it is carried (P14).
    pub(super) fn push(&mut self, record: &LogRecord<'_>) {
        let LogRecord {
            lsn,
            end_lsn,
            xid,
            subxid,
            kind,
            sent_at,
            bytes,
            page_version,
            route,
            boundary,
            aborted,
            is_deferred,
        } = *record;
        self.bytes.extend_from_slice(bytes);
        self.aborted.extend_from_slice(aborted);
        self.entries.push(Entry {
            lsn,
            end_lsn,
            sent_at,
            bytes_end: self.bytes.len(),
            aborted_end: self.aborted.len(),
            kind,
            boundary,
            xid,
            subxid,
            route,
            page_version,
            is_deferred,
        });
    }

    /// The record at `at`.
    pub(super) fn get(&self, at: usize) -> Option<LogRecord<'_>> {
        let entry = self.entries.get(at)?;
        let before = at.checked_sub(1).and_then(|before| self.entries.get(before));
        let bytes_from = before.map_or(0, |entry| entry.bytes_end);
        let aborted_from = before.map_or(0, |entry| entry.aborted_end);
        Some(LogRecord {
            lsn: entry.lsn,
            end_lsn: entry.end_lsn,
            xid: entry.xid,
            subxid: entry.subxid,
            kind: entry.kind,
            sent_at: entry.sent_at,
            bytes: self.bytes.get(bytes_from..entry.bytes_end)?,
            page_version: entry.page_version,
            route: entry.route,
            boundary: entry.boundary,
            aborted: self.aborted.get(aborted_from..entry.aborted_end)?,
            is_deferred: entry.is_deferred,
        })
    }

    /// The transactions of its records, one after the other.
    pub(super) fn xids(&self) -> impl Iterator<Item = Xid> + '_ {
        self.entries.iter().map(|entry| entry.xid)
    }

    /// Whether most of its memory is unused: then a copy is cheaper to keep in flight.
    pub(super) fn is_sparse(&self) -> bool {
        let entries = self.entries.len().saturating_mul(size_of::<Entry>());
        let used = self.bytes.len().saturating_add(entries).saturating_add(FIRST_BYTES) as u64;
        used.saturating_mul(4) < self.cost()
    }

    /// A copy that holds no more than it needs.
    pub(super) fn fitted(&self) -> Arena {
        Arena { bytes: self.bytes.clone(), entries: self.entries.clone(), aborted: self.aborted.clone() }
    }

    /// Empties it and keeps its memory.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
        self.aborted.clear();
    }
}
