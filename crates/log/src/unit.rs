//! Units: what the log writes whole or not at all, and what it gives back.
//!
//! A publisher prepares a [`UnitBody`] once, on its own thread: rows encoded, compressed where that pays, CRC taken.
//! The committer turns it into a [`Unit`] by adding what only it knows. The rows are opaque here; the envelope
//! is the channel's. Cloning a body or a unit copies no payload, so evidence of an append in flight is free (I3).

use bytes::{BufMut, Bytes, BytesMut};
use landfall_types::{Epoch, Offset, TicketNumber, Timestamp};

/// A sequence key: the record number that a publisher gave, for streams that number their records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceBlock {
    /// Who numbers.
    pub producer: [u8; 16],
    /// The number of the call.
    pub sequence: u64,
    /// The record inside the call; 63 bits, see [`SequenceBlock::INDEX_MAX`].
    pub index: u64,
    /// Whether this is the last record of the call.
    pub last_in_call: bool,
}

impl SequenceBlock {
    /// The bytes of a block on disk.
    pub const BYTES: usize = 32;
    /// The highest index that the format holds.
    pub const INDEX_MAX: u64 = u64::MAX >> 1;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0u8; Self::BYTES];
        let last = (self.index & Self::INDEX_MAX) << 1 | u64::from(self.last_in_call);
        bytes[..16].copy_from_slice(&self.producer);
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..].copy_from_slice(&last.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        let mut producer = [0u8; 16];
        producer.copy_from_slice(&bytes[..16]);
        let number = |at: usize| {
            let mut eight = [0u8; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        let last = number(24);
        SequenceBlock { producer, sequence: number(16), index: last >> 1, last_in_call: last & 1 == 1 }
    }
}

/// What stands in front of the rows so that repeats can be known without reading them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tag {
    /// Nothing.
    #[default]
    None,
    /// The tag of an idempotency key.
    Key([u8; 24]),
    /// The sequence key of the unit's last record.
    Sequence(SequenceBlock),
}

impl Tag {
    /// The bytes of a key tag on disk.
    pub const KEY_BYTES: usize = 24;

    /// The bytes the tag takes in front of the rows.
    pub const fn encoded_len(&self) -> usize {
        match self {
            Tag::None => 0,
            Tag::Key(_) => Self::KEY_BYTES,
            Tag::Sequence(_) => SequenceBlock::BYTES,
        }
    }

    pub(crate) fn put(&self, into: &mut impl BufMut) {
        match self {
            Tag::None => {}
            Tag::Key(tag) => into.put_slice(tag),
            Tag::Sequence(block) => into.put_slice(&block.encode()),
        }
    }
}

/// How rows are compressed on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Codec {
    /// As they are.
    #[default]
    None,
    /// LZ4 block.
    Lz4,
    /// Zstandard frame.
    Zstd,
}

/// What a publisher prepares. Clone is a reference count.
#[derive(Clone, Debug)]
pub struct UnitBody {
    tag: Tag,
    codec: Codec,
    records: u32,
    /// As the publisher encoded them; what live readers get.
    rows: Bytes,
    /// The raw length and the compressed rows, where they go to disk instead of the rows.
    compressed: Option<Bytes>,
    /// Plain CRC-32C of tag and stored bytes; the committer adds the segment's seed (C73).
    crc: u32,
}

impl UnitBody {
    /// Compresses `rows` where the codec saves at least an eighth, and takes the CRC. Costs one pass over the
    /// rows, so it belongs to the publisher's thread.
    pub fn new(tag: Tag, codec: Codec, rows: Bytes, records: u32) -> UnitBody {
        let compressed = compress(codec, &rows);
        let codec = if compressed.is_some() { codec } else { Codec::None };
        let stored = compressed.as_ref().unwrap_or(&rows);
        let front = match tag {
            Tag::None => 0,
            _ => {
                let mut front = [0u8; SequenceBlock::BYTES];
                tag.put(&mut front.as_mut_slice());
                crc32c::crc32c(&front[..tag.encoded_len()])
            }
        };
        let crc = crc32c::crc32c_append(front, stored);
        UnitBody { tag, codec, records, rows, compressed, crc }
    }

    /// The bytes of the body on disk: tag and rows, without head and padding.
    pub fn encoded_len(&self) -> usize {
        self.tag.encoded_len() + self.stored().len()
    }

    /// How many records the unit holds.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// The rows, uncompressed, as the publisher encoded them.
    pub fn rows(&self) -> &Bytes {
        &self.rows
    }

    /// The rows, for who needs no more than them.
    pub fn into_rows(self) -> Bytes {
        self.rows
    }

    /// The key tag or sequence block.
    pub fn tag(&self) -> &Tag {
        &self.tag
    }

    /// The stored bytes are at another place too: where they are the rows, they are kept there from now on.
    pub(crate) fn move_rows(&mut self, stored: Bytes) {
        if self.compressed.is_none() && stored.len() == self.rows.len() {
            self.rows = stored;
        }
    }

    /// The codec in use: `None` where compressing did not pay.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// What goes to disk after the tag.
    pub(crate) fn stored(&self) -> &Bytes {
        self.compressed.as_ref().unwrap_or(&self.rows)
    }

    pub(crate) fn crc(&self) -> u32 {
        self.crc
    }
}

/// The compressed form behind its raw length, or `None` where it does not save an eighth.
fn compress(codec: Codec, rows: &Bytes) -> Option<Bytes> {
    let raw = u32::try_from(rows.len()).ok()?;
    let compressed = match codec {
        Codec::None => return None,
        Codec::Lz4 => lz4_flex::block::compress(rows),
        Codec::Zstd => zstd::bulk::compress(rows, zstd::DEFAULT_COMPRESSION_LEVEL).ok()?,
    };
    if compressed.len() + 4 > rows.len() - rows.len() / 8 {
        return None;
    }
    let mut stored = BytesMut::with_capacity(4 + compressed.len());
    stored.put_u32_le(raw);
    stored.put_slice(&compressed);
    Some(stored.freeze())
}

/// One unit as the committer hands it to the log.
#[derive(Clone, Debug)]
pub struct Unit {
    /// What the publisher prepared.
    pub body: UnitBody,
    /// Unique inside the epoch; a reference to an unresolved publish is answered by it.
    pub ticket: TicketNumber,
    /// One time for the whole unit; never below that of the unit before.
    pub append_time: Timestamp,
}

/// One unit as it was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredUnit {
    /// The offset of its first record.
    pub first: Offset,
    /// How many records it holds: at least one.
    pub records: u32,
    /// When it was appended.
    pub append_time: Timestamp,
    /// The epoch that appended it first; kept when it is copied by an open or a settle (C63).
    pub origin_epoch: Epoch,
    /// Its ticket inside the origin epoch.
    pub ticket: TicketNumber,
    /// The key tag or sequence block.
    pub tag: Tag,
    /// The rows, uncompressed. A slice of the page's buffer where no codec was used.
    pub rows: Bytes,
}

impl StoredUnit {
    /// The offset after its last record.
    pub fn end(&self) -> Offset {
        Offset(self.first.0.saturating_add(u64::from(self.records)))
    }
}
