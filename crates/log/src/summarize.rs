//! Gathering a segment's summary while it is written or scanned (C77).

use std::collections::HashMap;

use landfall_types::{Offset, SegmentNumber, Timestamp};

use crate::format::{IndexEntry, Kind, Summary, TagEntry};
use crate::scan::Found;
use crate::unit::{SequenceBlock, Tag};

/// An index entry about every so many bytes.
const INDEX_EVERY_BYTES: u64 = 64 << 10;

/// What is known of the active segment.
#[derive(Clone, Debug)]
pub(crate) struct Summarizer {
    number: SegmentNumber,
    base: Offset,
    last_append_time: Timestamp,
    index: Vec<IndexEntry>,
    next_indexed: u64,
    tags: Vec<TagEntry>,
    sequences: HashMap<[u8; 16], (SequenceBlock, Timestamp)>,
    /// Tags and sequences may take so much; above it the summary is left out and a scan gives it.
    bytes_max: usize,
    is_overflowing: bool,
}

impl Summarizer {
    pub(crate) fn new(number: SegmentNumber, base: Offset, bytes_max: usize) -> Summarizer {
        Summarizer {
            number,
            base,
            last_append_time: Timestamp(i64::MIN),
            index: Vec::new(),
            next_indexed: 0,
            tags: Vec::new(),
            sequences: HashMap::new(),
            bytes_max,
            is_overflowing: false,
        }
    }

    /// Takes in a unit that was read.
    pub(crate) fn add(&mut self, found: &Found) -> Option<IndexEntry> {
        // A body that verifies and is too short for its tag was written by no log; it has no key to remember.
        let tag = found.head.front.read(&found.body).unwrap_or_default();
        let head = &found.head;
        if head.kind != Kind::Data {
            return None;
        }
        self.add_data(found.at, head.first, head.records, head.append_time, &tag)
    }

    /// Takes in a data unit; gives the index entry if it got one.
    pub(crate) fn add_data(
        &mut self,
        at: u64,
        first: Offset,
        records: u32,
        append_time: Timestamp,
        tag: &Tag,
    ) -> Option<IndexEntry> {
        self.last_append_time = self.last_append_time.max(append_time);
        if !self.is_overflowing {
            match tag {
                Tag::None => {}
                Tag::Key(tag) => self.tags.push(TagEntry { first, append_time, records, tag: *tag }),
                Tag::Sequence(block) => {
                    self.sequences.insert(block.producer, (*block, append_time));
                }
            }
            let bytes = (self.tags.len() + self.sequences.len()).saturating_mul(std::mem::size_of::<TagEntry>());
            if bytes > self.bytes_max {
                self.is_overflowing = true;
                self.tags = Vec::new();
                self.sequences = HashMap::new();
            }
        }
        if at < self.next_indexed {
            return None;
        }
        let entry = IndexEntry { offset: first, byte: at, append_time };
        self.index.push(entry);
        self.next_indexed = at + INDEX_EVERY_BYTES;
        Some(entry)
    }

    pub(crate) fn index(&self) -> &[IndexEntry] {
        &self.index
    }

    pub(crate) fn last_append_time(&self) -> Option<Timestamp> {
        (self.last_append_time.0 != i64::MIN).then_some(self.last_append_time)
    }

    /// What it says of a segment that ends at `end`; units behind it are left out, the next segment has them.
    pub(crate) fn summary(&self, end: Offset) -> Summary {
        let mut sequences: Vec<_> = self.sequences.values().copied().collect();
        sequences.sort_unstable_by_key(|(block, _)| block.producer);
        Summary {
            number: self.number,
            base: self.base,
            end,
            last_append_time: self.last_append_time,
            index: self.index.iter().filter(|entry| entry.offset < end).copied().collect(),
            tags: self.tags.iter().filter(|entry| entry.first < end).copied().collect(),
            sequences,
        }
    }

    /// The body to store, unless it would be too large.
    pub(crate) fn encode(&self, end: Offset) -> Option<Vec<u8>> {
        if self.is_overflowing {
            return None;
        }
        let summary = self.summary(end);
        (summary.encoded_len() <= self.bytes_max.min(crate::BODY_BYTES_MAX)).then(|| summary.encode())?
    }
}
