//! A data unit's body: tag or sequence block, then the rows, perhaps compressed behind their raw length (C74).

use bytes::Bytes;

use super::head::Front;
use super::{UnitHead, array, u32_at};
use crate::unit::{Codec, SequenceBlock, Tag};

/// The checksum holds, but the body is not one that a log writes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BodyError;

impl Front {
    /// The tag at the front of a body.
    pub(crate) fn read(self, body: &[u8]) -> Result<Tag, BodyError> {
        match self {
            Front::None => Ok(Tag::None),
            Front::Key => array(body, 0).map(Tag::Key).ok_or(BodyError),
            Front::Sequence => {
                let block: [u8; SequenceBlock::BYTES] = array(body, 0).ok_or(BodyError)?;
                Ok(Tag::Sequence(SequenceBlock::decode(&block)))
            }
        }
    }
}

/// Tag and rows of a verified body. The rows share the buffer where no codec was used; decompression never allocates
/// above the batch limit, whatever the raw length says (I14).
pub(crate) fn split_body(head: &UnitHead, body: &Bytes) -> Result<(Tag, Bytes), BodyError> {
    let tag = head.front.read(body)?;
    let front = head.front.bytes();
    if front > body.len() {
        return Err(BodyError);
    }
    let stored = body.slice(front..);
    if head.codec == Codec::None {
        return Ok((tag, stored));
    }
    let raw = u32_at(&stored, 0).ok_or(BodyError)? as usize;
    if raw > crate::BODY_BYTES_MAX {
        return Err(BodyError);
    }
    let compressed = stored.get(4..).ok_or(BodyError)?;
    let rows = match head.codec {
        Codec::Lz4 => lz4_flex::block::decompress(compressed, raw).map_err(|_| BodyError)?,
        _ => zstd::bulk::decompress(compressed, raw).map_err(|_| BodyError)?,
    };
    if rows.len() != raw {
        return Err(BodyError);
    }
    Ok((tag, Bytes::from(rows)))
}
