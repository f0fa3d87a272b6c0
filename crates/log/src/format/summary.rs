//! The summary of a segment, stored as the first unit of the next one (C77).
//!
//! It is derived: whoever finds it missing or bad scans the segment instead.

use bytes::BufMut;
use landfall_types::{Offset, SegmentNumber, Timestamp};

use super::{array, u32_at, u64_at};
use crate::unit::SequenceBlock;

const FIXED_BYTES: usize = 56;
const INDEX_BYTES: usize = 24;
const TAG_BYTES: usize = 48;
const SEQUENCE_BYTES: usize = SequenceBlock::BYTES + 8;

/// Where a unit stands: one about every 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub offset: Offset,
    pub byte: u64,
    pub append_time: Timestamp,
}

/// A key tag and the unit it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TagEntry {
    pub first: Offset,
    pub append_time: Timestamp,
    pub records: u32,
    pub tag: [u8; 24],
}

/// What a summary holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub number: SegmentNumber,
    pub base: Offset,
    pub end: Offset,
    /// Of the last unit; `i64::MIN` if there is none.
    pub last_append_time: Timestamp,
    pub index: Vec<IndexEntry>,
    pub tags: Vec<TagEntry>,
    pub sequences: Vec<(SequenceBlock, Timestamp)>,
}

impl Summary {
    pub(crate) fn encoded_len(&self) -> usize {
        FIXED_BYTES
            + self.index.len() * INDEX_BYTES
            + self.tags.len() * TAG_BYTES
            + self.sequences.len() * SEQUENCE_BYTES
    }

    /// `None` where a count does not fit.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let mut into = Vec::with_capacity(self.encoded_len());
        into.put_u64_le(self.number.0);
        into.put_u64_le(self.base.0);
        into.put_u64_le(self.end.0);
        into.put_i64_le(self.last_append_time.0);
        into.put_u32_le(u32::try_from(self.index.len()).ok()?);
        into.put_u32_le(u32::try_from(self.tags.len()).ok()?);
        into.put_u32_le(u32::try_from(self.sequences.len()).ok()?);
        into.put_bytes(0, FIXED_BYTES - into.len());
        for entry in &self.index {
            into.put_u64_le(entry.offset.0);
            into.put_u64_le(entry.byte);
            into.put_i64_le(entry.append_time.0);
        }
        for entry in &self.tags {
            into.put_u64_le(entry.first.0);
            into.put_i64_le(entry.append_time.0);
            into.put_u32_le(entry.records);
            into.put_u32_le(0);
            into.put_slice(&entry.tag);
        }
        for (block, append_time) in &self.sequences {
            into.put_slice(&block.encode());
            into.put_i64_le(append_time.0);
        }
        Some(into)
    }

    /// Reads a body whose checksum holds; `None` if it is not a summary. What is allocated is bounded by the body's length.
    pub(crate) fn decode(body: &[u8]) -> Option<Summary> {
        let count = |at| u32_at(body, at).map(|count| count as usize);
        let (index, tags, sequences) = (count(32)?, count(36)?, count(40)?);
        let tags_at = FIXED_BYTES.checked_add(index.checked_mul(INDEX_BYTES)?)?;
        let sequences_at = tags_at.checked_add(tags.checked_mul(TAG_BYTES)?)?;
        let end = sequences_at.checked_add(sequences.checked_mul(SEQUENCE_BYTES)?)?;
        if end != body.len() {
            return None;
        }
        let time = |at| array(body, at).map(|bytes| Timestamp(i64::from_le_bytes(bytes)));
        let index = (0..index).map(|n| {
            let at = FIXED_BYTES + n * INDEX_BYTES;
            let (offset, byte) = (Offset(u64_at(body, at)?), u64_at(body, at + 8)?);
            Some(IndexEntry { offset, byte, append_time: time(at + 16)? })
        });
        let tags = (0..tags).map(|n| {
            let at = tags_at + n * TAG_BYTES;
            let (first, records) = (Offset(u64_at(body, at)?), u32_at(body, at + 16)?);
            Some(TagEntry { first, append_time: time(at + 8)?, records, tag: array(body, at + 24)? })
        });
        let sequences = (0..sequences).map(|n| {
            let at = sequences_at + n * SEQUENCE_BYTES;
            Some((SequenceBlock::decode(&array(body, at)?), time(at + SequenceBlock::BYTES)?))
        });
        Some(Summary {
            number: SegmentNumber(u64_at(body, 0)?),
            base: Offset(u64_at(body, 8)?),
            end: Offset(u64_at(body, 16)?),
            last_append_time: time(24)?,
            index: index.collect::<Option<_>>()?,
            tags: tags.collect::<Option<_>>()?,
            sequences: sequences.collect::<Option<_>>()?,
        })
    }
}
