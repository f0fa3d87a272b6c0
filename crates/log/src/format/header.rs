//! The segment header: 4,096 bytes, two equal copies of 2,048, one good copy is enough.

use landfall_types::{ChannelId, Epoch, Offset, PartitionId, SegmentNumber, Timestamp};

use super::{array, u32_at, u64_at};
use crate::options::LogIdentity;

/// Bytes of both copies.
pub(crate) const HEADER_BYTES: usize = 4_096;
const COPY_BYTES: usize = HEADER_BYTES / 2;
const CRC_AT: usize = COPY_BYTES - 4;
const MAGIC: &[u8; 8] = b"LFLOG\r\n\0";
/// The version that is written, and the highest that is read.
pub(crate) const FORMAT_VERSION: u16 = 1;
const CRC_32C: u16 = 1;
const NO_PREDECESSOR: u64 = u64::MAX;

/// Why a segment was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    First,
    Roll,
    Open,
    Fence,
    /// By an operator's command.
    Repair,
}

impl Reason {
    const ALL: [Reason; 5] = [Reason::First, Reason::Roll, Reason::Open, Reason::Fence, Reason::Repair];

    fn from_code(code: u32) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| *reason as u32 == code)
    }
}

/// The segment before, as this one closed it: its bytes from `end` on are void (C81).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Predecessor {
    pub number: SegmentNumber,
    pub end: u64,
    pub chain: u32,
}

/// What a segment says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub identity: LogIdentity,
    pub epoch: Epoch,
    pub number: SegmentNumber,
    pub base: Offset,
    pub predecessor: Option<Predecessor>,
    pub reason: Reason,
    pub log_start: Offset,
    pub created: Timestamp,
}

/// What stands where a header should be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderRead {
    /// A good copy; `crc` begins the chain.
    Good {
        header: SegmentHeader,
        crc: u32,
    },
    TooNew(u16),
    Damaged,
}

/// The start value of every checksum of a segment (C73).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(pub u32);

impl SegmentHeader {
    pub(crate) fn seed(&self) -> Seed {
        let mut bytes = [0u8; 32];
        bytes[..16].copy_from_slice(&self.identity.channel.0);
        bytes[16..20].copy_from_slice(&self.identity.partition.0.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.number.0.to_le_bytes());
        bytes[28..].copy_from_slice(&self.epoch.0.to_le_bytes());
        Seed(crc32c::crc32c(&bytes))
    }

    /// Both copies, and the CRC that begins the chain.
    pub(crate) fn encode(&self) -> ([u8; HEADER_BYTES], u32) {
        let mut bytes = [0u8; HEADER_BYTES];
        let (copy, second) = bytes.split_at_mut(COPY_BYTES);
        let mut put = |at: usize, field: &[u8]| copy[at..at + field.len()].copy_from_slice(field);
        put(0, MAGIC);
        put(8, &FORMAT_VERSION.to_le_bytes());
        put(10, &CRC_32C.to_le_bytes());
        put(12, &self.epoch.0.to_le_bytes());
        put(16, &self.identity.channel.0);
        put(32, &self.identity.partition.0.to_le_bytes());
        put(40, &self.number.0.to_le_bytes());
        put(48, &self.base.0.to_le_bytes());
        put(56, &self.predecessor.map_or(NO_PREDECESSOR, |before| before.number.0).to_le_bytes());
        put(64, &self.predecessor.map_or(0, |before| before.end).to_le_bytes());
        put(72, &self.predecessor.map_or(0, |before| before.chain).to_le_bytes());
        put(76, &(self.reason as u32).to_le_bytes());
        put(80, &self.log_start.0.to_le_bytes());
        put(88, &self.created.0.to_le_bytes());
        let crc = crc32c::crc32c(&copy[..CRC_AT]);
        copy[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        second.copy_from_slice(copy);
        (bytes, crc)
    }

    /// Reads the first bytes of a file, of which there may be fewer than a header's.
    pub(crate) fn read(bytes: &[u8]) -> HeaderRead {
        let copies = [bytes.get(..COPY_BYTES), bytes.get(COPY_BYTES..HEADER_BYTES)];
        let mut best = HeaderRead::Damaged;
        for copy in copies.into_iter().flatten() {
            match Self::read_copy(copy) {
                HeaderRead::Good { header, crc } => return HeaderRead::Good { header, crc },
                HeaderRead::TooNew(version) => best = HeaderRead::TooNew(version),
                HeaderRead::Damaged => {}
            }
        }
        best
    }

    fn read_copy(copy: &[u8]) -> HeaderRead {
        let read = || -> Option<HeaderRead> {
            let crc = u32_at(copy, CRC_AT)?;
            if copy.get(..8)? != MAGIC || crc != crc32c::crc32c(copy.get(..CRC_AT)?) {
                return None;
            }
            let version = u16::from_le_bytes(array(copy, 8)?);
            if version > FORMAT_VERSION {
                return Some(HeaderRead::TooNew(version));
            }
            if version == 0 || u16::from_le_bytes(array(copy, 10)?) != CRC_32C {
                return None;
            }
            let number = u64_at(copy, 40)?;
            let before = u64_at(copy, 56)?;
            let predecessor =
                Predecessor { number: SegmentNumber(before), end: u64_at(copy, 64)?, chain: u32_at(copy, 72)? };
            let header = SegmentHeader {
                identity: LogIdentity {
                    channel: ChannelId(array(copy, 16)?),
                    partition: PartitionId(u32_at(copy, 32)?),
                },
                epoch: Epoch(u32_at(copy, 12)?),
                number: SegmentNumber(number),
                base: Offset(u64_at(copy, 48)?),
                predecessor: (before != NO_PREDECESSOR).then_some(predecessor),
                reason: Reason::from_code(u32_at(copy, 76)?)?,
                log_start: Offset(u64_at(copy, 80)?),
                created: Timestamp(i64::from_le_bytes(array(copy, 88)?)),
            };
            // Numbers only grow; a header that says otherwise was not written by a log.
            let is_ordered = before == NO_PREDECESSOR || before < number;
            is_ordered.then_some(HeaderRead::Good { header, crc })
        };
        read().unwrap_or(HeaderRead::Damaged)
    }
}
