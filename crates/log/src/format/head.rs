//! The head of a unit: 56 bytes, the checksum over its length and fields, seeded by the segment.

use landfall_types::{Epoch, Offset, TicketNumber, Timestamp};

use super::{Seed, array, u32_at, u64_at};
use crate::unit::{Codec, SequenceBlock, Tag};

/// Bytes of a head.
pub(crate) const HEAD_BYTES: usize = 56;
const FLAG_TAG: u16 = 1;
const FLAG_SEQUENCE: u16 = 2;

/// What a unit is. Zero is none, so that zero-filled space never reads as a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Data = 1,
    Trim = 2,
    Mark = 3,
    Summary = 4,
}

/// What is told of the front of a body by the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    None,
    Key,
    Sequence,
}

/// The fields of a head. CRCs are as stored, with the seed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitHead {
    pub body_len: u32,
    pub kind: Kind,
    pub codec: Codec,
    pub front: Front,
    pub records: u32,
    pub first: Offset,
    pub ticket: TicketNumber,
    pub origin_epoch: Epoch,
    /// Bytes back to the durable end at the time of writing.
    pub back: u32,
    /// The head CRC of the unit before; of the first, the header's CRC.
    pub chain: u32,
    /// Plain CRC of the body, xor the seed.
    pub body_crc: u32,
    pub append_time: Timestamp,
}

/// A length with its zeros to a multiple of eight.
pub(crate) const fn padded(len: usize) -> usize {
    len.next_multiple_of(8)
}

impl UnitHead {
    /// The bytes of the whole unit on disk.
    pub(crate) fn unit_bytes(&self) -> u64 {
        padded(HEAD_BYTES + self.body_len as usize) as u64
    }

    /// The offset after the last record; `None` where the number space ends (F-L6).
    pub(crate) fn end(&self) -> Option<Offset> {
        self.first.checked_add(u64::from(self.records))
    }

    /// Writes the head; gives its CRC, which is the next unit's chain.
    pub(crate) fn put(&self, seed: Seed, into: &mut Vec<u8>) -> u32 {
        let flags = match self.front {
            Front::None => 0,
            Front::Key => FLAG_TAG,
            Front::Sequence => FLAG_SEQUENCE,
        };
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let kind = u32::from(self.kind as u8) | u32::from(codec_code(self.codec)) << 8 | u32::from(flags) << 16;
        let words = [
            pair(self.body_len, 0),
            pair(kind, self.records),
            self.first.0,
            self.ticket.0,
            pair(self.origin_epoch.0, self.back),
            pair(self.chain, self.body_crc),
            self.append_time.0.cast_unsigned(),
        ];
        let mut bytes = [0u8; HEAD_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let crc = head_crc(seed, &bytes);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        into.extend_from_slice(&bytes);
        crc
    }

    /// Reads a head that verifies under the seed, with its CRC; `None` for anything else.
    pub(crate) fn read(seed: Seed, bytes: &[u8]) -> Option<(UnitHead, u32)> {
        let bytes: &[u8; HEAD_BYTES] = bytes.get(..HEAD_BYTES)?.try_into().ok()?;
        let kind = match bytes[8] {
            1 => Kind::Data,
            2 => Kind::Trim,
            3 => Kind::Mark,
            4 => Kind::Summary,
            _ => return None,
        };
        let codec = match bytes[9] {
            0 => Codec::None,
            1 => Codec::Lz4,
            2 => Codec::Zstd,
            _ => return None,
        };
        let front = match u16::from_le_bytes(array(bytes, 10)?) {
            0 => Front::None,
            FLAG_TAG => Front::Key,
            FLAG_SEQUENCE => Front::Sequence,
            _ => return None,
        };
        let head = UnitHead {
            body_len: u32_at(bytes, 0)?,
            kind,
            codec,
            front,
            records: u32_at(bytes, 12)?,
            first: Offset(u64_at(bytes, 16)?),
            ticket: TicketNumber(u64_at(bytes, 24)?),
            origin_epoch: Epoch(u32_at(bytes, 32)?),
            back: u32_at(bytes, 36)?,
            chain: u32_at(bytes, 40)?,
            body_crc: u32_at(bytes, 44)?,
            append_time: Timestamp(i64::from_le_bytes(array(bytes, 48)?)),
        };
        let is_plausible = (head.kind == Kind::Data) == (head.records > 0)
            && head.body_len as usize <= crate::BODY_BYTES_MAX
            && head.end().is_some();
        let crc = u32_at(bytes, 4)?;
        (is_plausible && crc == head_crc(seed, bytes)).then_some((head, crc))
    }

    /// Whether the body is the one the head was written for.
    pub(crate) fn verifies(&self, seed: Seed, body: &[u8]) -> bool {
        body.len() == self.body_len as usize && crc32c::crc32c(body) ^ seed.0 == self.body_crc
    }
}

impl Front {
    pub(crate) fn of(tag: &Tag) -> Front {
        match tag {
            Tag::None => Front::None,
            Tag::Key(_) => Front::Key,
            Tag::Sequence(_) => Front::Sequence,
        }
    }

    pub(crate) const fn bytes(self) -> usize {
        match self {
            Front::None => 0,
            Front::Key => Tag::KEY_BYTES,
            Front::Sequence => SequenceBlock::BYTES,
        }
    }
}

/// Over everything but its own four bytes. They lie between what it covers, so what is before them takes their place: one
/// pass, over whole words.
fn head_crc(seed: Seed, bytes: &[u8; HEAD_BYTES]) -> u32 {
    #[repr(align(8))]
    struct Aligned([u8; HEAD_BYTES]);
    let mut covered = Aligned(*bytes);
    covered.0.copy_within(..4, 4);
    crc32c::crc32c_append(seed.0, &covered.0[4..])
}

fn codec_code(codec: Codec) -> u8 {
    match codec {
        Codec::None => 0,
        Codec::Lz4 => 1,
        Codec::Zstd => 2,
    }
}
