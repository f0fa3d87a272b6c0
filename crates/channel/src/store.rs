//! `PartitionStore`: where a partition's units are kept (C14). The store knows units, not records.
//!
//! Its write half is owned by one committer and blocks; its read half is shared. Success never depends on a later
//! call, and a refusal is proof that no copy can come to be (C15). Implemented by the log on disk ([`LogStore`])
//! and by memory alone for class `memory` ([`memory`]).

mod disk;
mod memory;

use std::ops::Range;

use landfall_log::{
    Append, Budget, CloseError, Evidence, Intent, Located, OpenError, Page, ReadError, RecentSequence, RecentTag,
    SegmentSummary, Settled, StoreLimits, TrimError, UncertainCause, Unit, VisibleTail,
};
use landfall_types::{Durability, Epoch, Offset, TicketNumber, Timestamp};

pub(crate) use disk::LogStore;
pub(crate) use memory::MemoryStore;

/// Opens one partition, again after a panic.
pub(crate) trait PartitionStore: Send + Sync + 'static {
    /// Takes the tail. When it returns, the epoch is above every epoch ever used here and durable as such, and
    /// nothing an earlier owner left in flight can still enter the log. Blocks on I/O.
    fn open(&self) -> Result<OpenedStore, OpenError>;
}

/// A partition, open.
pub(crate) struct OpenedStore {
    pub(crate) writer: Box<dyn PartitionWriter>,
    pub(crate) reader: Box<dyn PartitionReader>,
    pub(crate) upkeep: Box<dyn Upkeep>,
    pub(crate) tail: Offset,
    pub(crate) last_append_time: Timestamp,
    pub(crate) adopted_units: u64,
    pub(crate) torn_bytes: u64,
    pub(crate) damaged: Vec<Range<Offset>>,
    /// From this offset on every keyed unit is in `tags`.
    pub(crate) window_start: Offset,
    pub(crate) tags: Vec<RecentTag>,
    pub(crate) sequences: Vec<RecentSequence>,
    /// Files that are not part of the log, with the reason.
    pub(crate) strays: Vec<String>,
}

/// What a unit takes in the log beside its body: a head and padding, at the most.
pub(crate) const HEAD_BYTES: usize = 64;

/// The one owner of a partition's tail (I5). Dropping it at any point leaves a partition that `open` can take over
/// (C16).
pub(crate) trait PartitionWriter: Send {
    fn epoch(&self) -> Epoch;
    /// What the next unit gets while nothing is uncertain.
    fn tail(&self) -> Offset;
    /// What `Durable` is worth; never overstated.
    fn class(&self) -> Durability;
    fn limits(&self) -> StoreLimits;
    /// Whether a fence could be written without new space (C42).
    fn has_spare(&self) -> bool;
    /// What must be kept before an append, so that it can be settled (C25).
    fn evidence(&self, units: Vec<Unit>) -> Evidence;
    /// Writes the units in order at `expected`, then makes them durable; one call is one sync. Blocks.
    fn append(&mut self, expected: Offset, units: &[Unit]) -> Append;
    /// Points the rows of the units of the append that just succeeded into what it wrote, if it has them.
    fn share(&mut self, _units: &mut [Unit]) {}
    /// Ends an uncertain append for good (C36, C37). Blocks.
    fn settle(&mut self, evidence: &Evidence, intent: Intent) -> Settled;
    /// Class `written`: makes durable what was appended. Blocks.
    fn sync(&mut self) -> Result<(), UncertainCause>;
    /// Writes a durable mark if units came since the last one. Blocks.
    fn mark(&mut self) -> Result<(), UncertainCause>;
    /// Makes a new log start durable, shows it to readers, then frees what lies below. Blocks.
    fn trim(&mut self, before: Offset) -> Result<Offset, TrimError>;
    /// What retention decides on, ascending.
    fn segments(&self) -> Vec<SegmentSummary>;
    fn close(self: Box<Self>) -> Result<(), CloseError>;
}

/// The read half. No call waits for data or for the writer; `read` blocks on I/O.
pub(crate) trait PartitionReader: Send + Sync + std::fmt::Debug {
    fn log_start(&self) -> Offset;
    /// Whole units from the one holding `from`, ascending, no gap, within the budget, never at or past `upto`.
    fn read(&self, from: Offset, upto: VisibleTail, budget: Budget, page: &mut Page) -> Result<(), ReadError>;
    /// The first offset whose append time is not before `at`; `upto` if there is none.
    fn at_time(&self, at: Timestamp, upto: VisibleTail) -> Result<Offset, ReadError>;
    /// The epoch that appended the unit there first (C63).
    fn origin_epoch(&self, offset: Offset, upto: VisibleTail) -> Result<Epoch, ReadError>;
    /// Whether the unit at `first` is the one that `epoch` wrote under `ticket` (C31, C52).
    fn locate(
        &self,
        first: Offset,
        epoch: Epoch,
        ticket: TicketNumber,
        upto: VisibleTail,
    ) -> Result<Located, ReadError>;
}

/// Housekeeping beside the writer: spares, prepared space, freeing what was trimmed (C75).
pub(crate) trait Upkeep: Send + Sync {
    /// Whether there is something to do; a memory-only look.
    fn is_due(&self) -> bool;
    /// Does it. Blocks on I/O.
    fn run(&self) -> std::io::Result<()>;
}
