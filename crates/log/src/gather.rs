//! Turning units into one gathered write: heads and small rows in one reused buffer, large rows where they are.
//!
//! No allocation per unit: the buffers keep their size from append to append. A small row is copied, because a
//! system call's list entry costs more than its bytes.

use std::io::{self, IoSlice};
use std::ops::Range;

use landfall_types::{Epoch, Offset};

use crate::format::{Front, HEAD_BYTES, Kind, Seed, UnitHead, padded};
use crate::unit::Unit;
use crate::vfs::{VfsFile, zeros};

/// Rows up to this are copied.
const COPY_BYTES_MAX: usize = 4_096;
/// What Linux takes in one call.
const SLICES_MAX: usize = 1_024;

/// The append being written.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    scratch: Vec<u8>,
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
enum Piece {
    Scratch(Range<usize>),
    /// The stored rows of the unit at this place in the list.
    Rows(usize),
}

/// Where an append goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub seed: Seed,
    pub epoch: Epoch,
    pub at: u64,
    /// The durable end while it is written.
    pub durable: u64,
    pub first: Offset,
    pub chain: u32,
}

/// The bytes that units take on disk.
pub(crate) fn gathered_bytes(units: &[Unit]) -> u64 {
    units.iter().map(|unit| padded(HEAD_BYTES + unit.body.encoded_len()) as u64).sum()
}

impl Gather {
    /// Lays the units out; gives the chain after the last one.
    pub(crate) fn lay_out(&mut self, units: &[Unit], target: &Target) -> u32 {
        self.scratch.clear();
        self.pieces.clear();
        let (mut at, mut first, mut chain, mut start) = (target.at, target.first, target.chain, 0);
        for (place, unit) in units.iter().enumerate() {
            let body = &unit.body;
            let head = UnitHead {
                // Limits are checked before: a body is far below 4 GiB.
                body_len: body.encoded_len() as u32,
                kind: Kind::Data,
                codec: body.codec(),
                front: Front::of(body.tag()),
                records: body.records(),
                first,
                ticket: unit.ticket,
                origin_epoch: target.epoch,
                back: u32::try_from(at - target.durable).unwrap_or(u32::MAX),
                chain,
                body_crc: body.crc() ^ target.seed.0,
                append_time: unit.append_time,
            };
            chain = head.put(target.seed, &mut self.scratch);
            body.tag().put(&mut self.scratch);
            if body.stored().len() <= COPY_BYTES_MAX {
                self.scratch.extend_from_slice(body.stored());
            } else {
                self.pieces.push(Piece::Scratch(start..self.scratch.len()));
                self.pieces.push(Piece::Rows(place));
                start = self.scratch.len();
            }
            let len = HEAD_BYTES + body.encoded_len();
            self.scratch.resize(self.scratch.len() + padded(len) - len, 0);
            at += head.unit_bytes();
            first = head.end().unwrap_or(Offset::MAX);
        }
        if start < self.scratch.len() {
            self.pieces.push(Piece::Scratch(start..self.scratch.len()));
        }
        chain
    }

    /// Writes what was laid out and `padding` zeros; gives the bytes taken. Fewer than given is a short write.
    pub(crate) fn write(&self, units: &[Unit], padding: usize, file: &dyn VfsFile, at: u64) -> io::Result<u64> {
        let slice = |piece: &Piece| match piece {
            Piece::Scratch(range) => IoSlice::new(self.scratch.get(range.clone()).unwrap_or_default()),
            Piece::Rows(place) => IoSlice::new(units.get(*place).map_or(&[][..], |unit| unit.body.stored())),
        };
        let padding = IoSlice::new(zeros(padding));
        if let [piece] = self.pieces.as_slice() {
            return Ok(file.write_at(&[slice(piece), padding], at)? as u64);
        }
        let mut written = 0;
        let mut left = self.pieces.len();
        for call in self.pieces.chunks(SLICES_MAX - 1) {
            let mut slices: Vec<IoSlice<'_>> = call.iter().map(slice).collect();
            left -= call.len();
            if left == 0 {
                slices.push(padding);
            }
            let given: usize = slices.iter().map(|part| part.len()).sum();
            let taken = file.write_at(&slices, at + written)?;
            written += taken as u64;
            if taken != given {
                break;
            }
        }
        Ok(written)
    }

    /// After an unusually large append, its memory is given back.
    pub(crate) fn shrink(&mut self) {
        const KEEP_BYTES: usize = 4 << 20;
        if self.scratch.capacity() > KEEP_BYTES {
            self.scratch = Vec::new();
        }
    }
}
