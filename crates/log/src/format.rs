//! The bytes of a segment (C72–C74, C77): header, unit heads, summaries. Pure: no I/O, no policy.
//!
//! Everything here takes hostile bytes: a length is checked before it is used, and nothing is allocated from an
//! unchecked one (I14). `docs/formats/segment.md` is the page that readers of other languages go by.

mod body;
mod head;
mod header;
mod summary;

pub(crate) use body::split_body;
pub(crate) use head::{Front, HEAD_BYTES, Kind, UnitHead, padded};
pub(crate) use header::{FORMAT_VERSION, HEADER_BYTES, HeaderRead, Predecessor, Reason, Seed, SegmentHeader};
pub(crate) use summary::{IndexEntry, Summary, TagEntry};

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}
