//! The write half: one owner of a partition's tail (I5).

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use landfall_types::{Durability, Epoch, Offset};

use crate::error::{CloseError, OpenError, TrimError, UncertainCause};
use crate::options::{LogIdentity, LogOptions, StoreLimits};
use crate::outcome::{Append, Evidence, Intent, Opened, SegmentSummary, Settled};
use crate::unit::Unit;
use crate::vfs::Vfs;

/// One partition's log in a directory of its own.
#[derive(Debug)]
pub struct PartitionLog;

impl PartitionLog {
    /// Takes the tail (C79–C84); creates the directory and an empty log where there is none. Blocks on I/O.
    pub fn open(_: Arc<dyn Vfs>, dir: &Path, _: LogIdentity, _: LogOptions) -> Result<Opened, OpenError> {
        let source = std::io::Error::from(std::io::ErrorKind::Unsupported);
        Err(OpenError::Failed { step: "open", path: dir.to_path_buf(), source })
    }
}

/// Owns the tail. Dropping it at any point leaves a partition that `open` can take over (C16).
#[derive(Debug)]
pub struct LogWriter {
    never: Infallible,
}

impl LogWriter {
    /// The epoch of what is appended now; a settle raises it.
    pub fn epoch(&self) -> Epoch {
        match self.never {}
    }
    /// The offset the next record gets while nothing is uncertain.
    pub fn tail(&self) -> Offset {
        match self.never {}
    }
    /// What `Durable` is worth.
    pub fn class(&self) -> Durability {
        match self.never {}
    }
    /// The largest unit and append.
    pub fn limits(&self) -> StoreLimits {
        match self.never {}
    }
    /// Whether a spare exists, so that a fence needs no new space (C42).
    pub fn has_spare(&self) -> bool {
        match self.never {}
    }
    /// What to keep before an append, so that it can be settled (C23).
    pub fn evidence(&self, _units: Vec<Unit>) -> Evidence {
        match self.never {}
    }
    /// Writes the units at `expected` with one gathered write, then one `fdatasync` (class `fsync`). Blocks.
    pub fn append(&mut self, _expected: Offset, _units: &[Unit]) -> Append {
        match self.never {}
    }
    /// Ends an uncertain append for good (C36, C37). Blocks.
    pub fn settle(&mut self, _evidence: &Evidence, _intent: Intent) -> Settled {
        match self.never {}
    }
    /// Class `written`: makes everything appended so far durable. Class `fsync`: nothing to do.
    pub fn sync(&mut self) -> Result<(), UncertainCause> {
        match self.never {}
    }
    /// Writes a durable mark if units came since the last one; for a partition that has been quiet for 1 s (C78).
    pub fn mark(&mut self) -> Result<(), UncertainCause> {
        match self.never {}
    }
    /// Makes a new log start durable and shows it; housekeeping frees what lies below (C87). Whole segments only,
    /// never above `before`, never the active one. Gives the log start in force.
    pub fn trim(&mut self, _before: Offset) -> Result<Offset, TrimError> {
        match self.never {}
    }
    /// The segments, ascending, for retention (C85).
    pub fn segments(&self) -> Vec<SegmentSummary> {
        match self.never {}
    }
    /// Writes a closing mark. Skipping it costs recovery time only.
    pub fn close(self) -> Result<(), CloseError> {
        match self.never {}
    }
}
