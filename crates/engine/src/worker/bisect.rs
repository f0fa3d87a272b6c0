//! A batch that was refused in part, in pieces: without the rows that were named, or by halves between records
//! (E119). Ids of pieces follow from the batch's id and the path, so a repeat takes the same names.
//!
//! Pieces carry no covers: the places that the batch stands for are reached only when its last piece is in. So a
//! batch that was split ends with a piece of no rows that carries them all.

use std::sync::Arc;

use arrow_array::{RecordBatch, UInt32Array};

use super::ledger::Origins;
use super::open::BatchName;
use crate::contract::{CopyMark, SealedBatch, TableNote};

/// Rows of a sealed batch that are written together.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) batch: Arc<SealedBatch>,
    /// Which rows of the sealed batch they are, rising.
    pub(crate) rows: Vec<u32>,
    path: String,
}

/// What is still to be written of a batch. It outlives the task that writes: a task that panicked is followed by one
/// that goes on with the same piece, so that what is in is not written twice.
#[derive(Debug)]
pub(crate) struct Pieces {
    whole: Arc<SealedBatch>,
    stack: Vec<Piece>,
    current: Option<Piece>,
    is_split: bool,
    owes_covers: bool,
}

impl Pieces {
    /// The batch as it was sealed.
    pub(crate) fn of(whole: Arc<SealedBatch>, rows: usize) -> Self {
        let rows = (0..u32::try_from(rows).unwrap_or(u32::MAX)).collect();
        let first = Piece { batch: whole.clone(), rows, path: String::new() };
        Pieces { whole, stack: vec![first], current: None, is_split: false, owes_covers: false }
    }

    /// Whether nothing was taken out or split so far.
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_split
    }

    /// The piece to write: the one that was begun and not done, else the next one; after the last one the covers, where
    /// they were taken from the pieces.
    pub(crate) fn next(&mut self) -> Option<Piece> {
        if self.current.is_none() {
            self.current = self.stack.pop().or_else(|| self.covers());
        }
        self.current.clone()
    }

    /// The piece is in.
    pub(crate) fn done(&mut self) {
        self.current = None;
    }

    fn covers(&mut self) -> Option<Piece> {
        if !std::mem::take(&mut self.owes_covers) || self.whole.covers.is_empty() {
            return None;
        }
        let batch = SealedBatch {
            id: BatchName::part(self.whole.id, "covers"),
            parts: Vec::new(),
            covers: self.whole.covers.clone(),
            bytes: 0,
            oldest: self.whole.oldest,
            note: self.whole.note,
        };
        Some(Piece { batch: Arc::new(batch), rows: Vec::new(), path: "covers".to_owned() })
    }

    /// Rows that were refused are to be tried once more, as the piece after this one.
    pub(crate) fn put_back(&mut self, rows: Vec<u32>, time: u32) {
        let piece = self.piece(rows, format!("f{time}."));
        self.stack.push(piece);
    }

    /// Takes rows of the sealed batch out of a piece; the rest is written next.
    pub(crate) fn without(&mut self, piece: &Piece, out: &[u32]) {
        self.current = None;
        self.split_begins();
        let rest: Vec<u32> = piece.rows.iter().copied().filter(|row| out.binary_search(row).is_err()).collect();
        if !rest.is_empty() {
            let path = format!("{}r", piece.path);
            self.stack.push(self.piece(rest, path));
        }
    }

    /// Puts two halves in the place of a piece; false if it is a single record.
    pub(crate) fn halve(&mut self, piece: &Piece, origins: &Origins) -> bool {
        let record = |row: u32| origins.position(row as usize);
        let middle = piece.rows.len() / 2;
        let is_cut = |at: &usize| record(piece.rows[*at - 1]) != record(piece.rows[*at]);
        let cut = (middle.max(1)..piece.rows.len()).find(is_cut).or_else(|| (1..middle).rev().find(is_cut));
        let Some(cut) = cut else { return false };
        self.current = None;
        self.split_begins();
        let (left, right) = piece.rows.split_at(cut);
        let right = self.piece(right.to_vec(), format!("{}1", piece.path));
        let left = self.piece(left.to_vec(), format!("{}0", piece.path));
        self.stack.push(right);
        self.stack.push(left);
        true
    }

    fn split_begins(&mut self) {
        self.is_split = true;
        self.owes_covers = true;
    }

    fn piece(&self, rows: Vec<u32>, path: String) -> Piece {
        let parts = take_rows(&self.whole.parts, &rows);
        let total = self.whole.rows().max(1);
        let batch = SealedBatch {
            id: BatchName::part(self.whole.id, &path),
            parts,
            covers: Vec::new(),
            bytes: self.whole.bytes / total * rows.len(),
            oldest: self.whole.oldest,
            // A copy ends with the last piece, which is the one with the covers.
            note: self.whole.note.map(|note| match note.copy {
                CopyMark::Ends(_) => TableNote { copy: CopyMark::None, ..note },
                _ => note,
            }),
        };
        Piece { batch: Arc::new(batch), rows, path }
    }
}

fn take_rows(parts: &[RecordBatch], rows: &[u32]) -> Vec<RecordBatch> {
    let mut taken = Vec::new();
    let mut base = 0u32;
    let mut rest = rows;
    for part in parts {
        let length = u32::try_from(part.num_rows()).unwrap_or(u32::MAX);
        let here = rest.partition_point(|row| *row < base.saturating_add(length));
        let (mine, after) = rest.split_at(here);
        if !mine.is_empty() {
            let indices: UInt32Array = mine.iter().map(|row| row - base).collect();
            let picked = arrow_select::take::take_record_batch(part, &indices);
            // Indices lie inside the part by construction, the only thing that `take` can refuse here.
            taken.push(picked.expect("every index is inside its part"));
        }
        rest = after;
        base = base.saturating_add(length);
    }
    taken
}
