//! What a worker keeps of a sealed batch until it is settled: holds, covers, bytes of the share; and, for the write
//! task, which record each row came from.

use arrow_array::{RecordBatch, UInt64Array};
use landfall_types::{PartitionId, Place, Timestamp};

use super::write::Refused;
use crate::contract::{CommitId, Covered, OwnedRecord};
use crate::core::{Ack, Books, FailCause};
use crate::dead_letter::record_at;
use crate::options::OnError;
use crate::shard::Charge;
use crate::source_rows::SourceRows;

/// A hold with the number of the batch's rows that it stands for.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) rows: usize,
    pub(crate) ack: Ack,
}

/// See the module. Dropping it fails every hold in it.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) id: CommitId,
    pub(crate) covers: Vec<Covered>,
    pub(crate) holds: Vec<Hold>,
    pub(crate) charges: Vec<Charge>,
    pub(crate) rows: usize,
    pub(crate) oldest: Timestamp,
}

impl Ledger {
    /// The first place it stands for.
    pub(crate) fn first(&self) -> Option<(PartitionId, Place)> {
        self.covers.first().map(|cover| (cover.partition, cover.range.start))
    }

    pub(crate) fn holds(&self, partition: PartitionId) -> bool {
        self.covers.iter().any(|cover| cover.partition == partition)
    }

    /// Whether rows of it are to be read again whatever becomes of it.
    pub(crate) fn is_stale(&self) -> bool {
        self.holds.iter().any(|hold| hold.ack.is_stale())
    }

    /// Gives the bytes back to the share.
    pub(crate) fn release(&mut self) {
        self.charges = Vec::new();
    }

    /// Enters refused rows into the books of their source batches, a record once, and tells how many records it were.
    pub(crate) fn book_refused(&mut self, refused: &[Refused], policy: OnError) -> u64 {
        let mut start = 0usize;
        let mut records = 0u64;
        let mut rest = refused;
        for hold in &self.holds {
            let end = start + hold.rows;
            let here = rest.partition_point(|refused| (refused.row as usize) < end);
            let (mine, after) = rest.split_at(here);
            let firsts = mine.iter().filter(|refused| refused.is_first).count();
            if firsts > 0 {
                let firsts = u32::try_from(firsts).unwrap_or(u32::MAX);
                records += u64::from(firsts);
                hold.ack.book(match policy {
                    OnError::Skip => Books { skipped: firsts, ..Books::default() },
                    OnError::DeadLetter | OnError::Fail => Books { dead: firsts, ..Books::default() },
                });
            }
            rest = after;
            start = end;
        }
        records
    }

    /// Everything is durable or set aside.
    pub(crate) fn deliver(self) {
        for hold in self.holds {
            let settled = u32::try_from(hold.rows).unwrap_or(u32::MAX);
            hold.ack.book(Books { settled, ..Books::default() });
            hold.ack.deliver();
        }
    }

    /// Everything must be read again.
    pub(crate) fn fail(self, cause: &FailCause) {
        self.holds.into_iter().for_each(|hold| hold.ack.fail(cause));
    }
}

/// Where the rows of one part came from.
#[derive(Debug)]
pub(crate) struct OriginPart {
    pub(crate) offsets: UInt64Array,
    pub(crate) partition: PartitionId,
    pub(crate) origin: Option<RecordBatch>,
    pub(crate) source: SourceRows,
}

/// Where each row of a sealed batch came from.
#[derive(Debug)]
pub(crate) struct Origins {
    pub(crate) parts: Vec<OriginPart>,
}

impl Origins {
    fn part_of(&self, row: usize) -> Option<(&OriginPart, usize)> {
        let mut row = row;
        for part in &self.parts {
            if row < part.offsets.len() {
                return Some((part, row));
            }
            row -= part.offsets.len();
        }
        None
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.parts.iter().map(|part| part.offsets.len()).sum()
    }

    /// The record of a row.
    pub(crate) fn position(&self, row: usize) -> Option<(PartitionId, u64)> {
        self.part_of(row).map(|(part, row)| (part.partition, part.offsets.value(row)))
    }

    /// Whether a record can be set aside: its bytes are at hand.
    pub(crate) fn has_records(&self) -> bool {
        self.parts.iter().all(|part| part.origin.is_some())
    }

    /// The record of a row with its bytes.
    pub(crate) fn record(&self, row: usize) -> Option<OwnedRecord> {
        let (part, row) = self.part_of(row)?;
        let offset = part.offsets.value(row);
        let at = part.source.row_of(offset)?;
        Some(record_at(part.origin.as_ref()?, at, part.partition, part.source.place(at)))
    }

    /// Each of `rows` with every other row of its record, rising.
    pub(crate) fn whole_records(&self, rows: &[u32]) -> Vec<u32> {
        let mut whole = Vec::with_capacity(rows.len());
        for row in rows {
            let row = *row as usize;
            let Some((part, inside)) = self.part_of(row) else { continue };
            let (offsets, base) = (part.offsets.values(), row - inside);
            let offset = offsets[inside];
            let start = offsets.partition_point(|other| *other < offset);
            let end = offsets.partition_point(|other| *other <= offset);
            whole.extend((start..end).map(|at| u32::try_from(base + at).unwrap_or(u32::MAX)));
        }
        whole.sort_unstable();
        whole.dedup();
        whole
    }
}
