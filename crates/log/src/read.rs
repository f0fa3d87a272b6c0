//! The read half.

use std::convert::Infallible;

use landfall_types::{Epoch, Offset, TicketNumber, Timestamp};

use crate::error::ReadError;
use crate::unit::StoredUnit;

/// The offset after the last record that a reader may see. The committer alone advances it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VisibleTail(pub Offset);

/// How much one page may hold; at least one unit is always given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Records.
    pub records: u32,
    /// Bytes of rows.
    pub bytes: usize,
}

/// Units of one read; reusable. It remembers where it ended, so that reading on needs no search.
#[derive(Debug, Default)]
pub struct Page {
    /// Whole units, ascending, without a gap.
    pub units: Vec<StoredUnit>,
}

/// Whether the unit of a reference is in the log (C52).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// The unit there has the same origin epoch and ticket.
    There {
        /// Its first offset.
        first: Offset,
        /// Its records.
        records: u32,
    },
    /// Another unit is there, or the tail has not passed the offset.
    NotThere,
    /// Retention has passed the offset.
    Trimmed,
}

/// Reads a partition's segments. Clones share the segment list; no call waits for data or for the writer.
#[derive(Clone, Debug)]
pub struct LogReader {
    never: Infallible,
}

impl LogReader {
    /// The first offset there is.
    pub fn log_start(&self) -> Offset {
        match self.never {}
    }

    /// Whole units from the one holding `from` (which may begin below it) within the budget, never at or past
    /// `upto`. `from == upto` gives an empty page.
    pub fn read(&self, _: Offset, _: VisibleTail, _: Budget, _: &mut Page) -> Result<(), ReadError> {
        match self.never {}
    }

    /// The first offset whose append time is not before `at`; `upto` if there is none.
    pub fn at_time(&self, _: Timestamp, _: VisibleTail) -> Result<Offset, ReadError> {
        match self.never {}
    }

    /// The origin epoch of the unit that holds `offset` (C63).
    pub fn origin_epoch(&self, _: Offset, _: VisibleTail) -> Result<Epoch, ReadError> {
        match self.never {}
    }

    /// Whether the unit at `first` is the one that `epoch` wrote under `ticket`.
    pub fn locate(&self, _: Offset, _: Epoch, _: TicketNumber, _: VisibleTail) -> Result<Located, ReadError> {
        match self.never {}
    }
}
