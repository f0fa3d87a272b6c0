//! Turning units into one gathered write: heads and small rows in one reused buffer, large rows where they are.
//!
//! No allocation per unit. A small row is copied, because a system call's list entry costs more than its bytes; what was
//! written can then stand for the units' own rows ([`Gather::share`]).

use std::io::{self, IoSlice};
use std::ops::Range;

use bytes::Bytes;
use landfall_types::{Epoch, Offset};

use crate::format::{Front, HEAD_BYTES, Kind, Seed, UnitHead, padded};
use crate::unit::{Unit, UnitBody};
use crate::vfs::{VfsFile, zeros};

/// Rows up to this are copied.
const COPY_BYTES_MAX: usize = 4_096;
/// What Linux takes in one call.
const SLICES_MAX: usize = 1_024;

/// The append being written, and of the last one the buffer, unless it was shared.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    scratch: Vec<u8>,
    pieces: Vec<Piece>,
    /// Where in `scratch` the stored rows of each unit are; empty where they are not.
    copied: Vec<Range<usize>>,
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

fn is_copied(body: &UnitBody) -> bool {
    body.stored().len() <= COPY_BYTES_MAX
}

/// What of a unit goes into the buffer.
fn copied_bytes(unit: &Unit) -> usize {
    let body = &unit.body;
    padded(HEAD_BYTES + body.encoded_len()) - if is_copied(body) { 0 } else { body.stored().len() }
}

impl Gather {
    /// Lays the units out; gives the chain after the last one.
    pub(crate) fn lay_out(&mut self, units: &[Unit], target: &Target) -> u32 {
        // As large as it has to be: who holds a part of it holds all of it.
        self.scratch = Vec::with_capacity(units.iter().map(copied_bytes).sum());
        self.pieces.clear();
        self.copied.clear();
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
            let from = self.scratch.len();
            if is_copied(body) {
                self.scratch.extend_from_slice(body.stored());
                self.copied.push(from..self.scratch.len());
            } else {
                self.copied.push(from..from);
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

    /// Points the rows of the units that were laid out last into what was written: one buffer for all of them, which is still
    /// in the cache, instead of one each that another thread has made and would have freed here.
    pub(crate) fn share(&mut self, units: &mut [Unit]) {
        if units.len() != self.copied.len() {
            return;
        }
        let written = Bytes::from_owner(std::mem::take(&mut self.scratch));
        for (unit, range) in units.iter_mut().zip(self.copied.drain(..)) {
            if !range.is_empty() {
                unit.body.move_rows(written.slice(range));
            }
        }
    }
}
