//! One partition's embedded log: segments, framing, recovery, fences, reading by offset.
//!
//! ```text
//!   log start                 visible tail          prepared
//!      |                          |                    |
//!  [ closed segment ][ closed ][ active: units | zeros   ]     spare.0 spare.1
//! ```
//!
//! [`PartitionLog::open`] gives one [`LogWriter`], which owns the tail (I5), any number of [`LogReader`]s, and a
//! [`Preparer`] for a housekeeping thread. An append is one gathered write and one `fdatasync` (I1); when either
//! fails, the append is uncertain and a fence decides, for good (I3). Opening never trusts bytes that no sync has
//! confirmed, never reads a torn tail twice, and names damage instead of cutting it (I12). Any bytes on disk are
//! read without a panic and without unbounded memory (I14).
//!
//! It knows units, not records: rows are opaque. Keys, tickets, live delivery, retention rules and retries are the
//! channel's. It takes no lock on the directory; `landfall-state` does.

mod catalog;
mod codes;
mod directory;
mod error;
mod format;
mod gather;
mod open;
mod options;
mod outcome;
mod prepare;
mod read;
mod retain;
mod scan;
mod segment;
mod settle;
mod spare;
mod split;
mod successor;
mod summarize;
mod unit;
mod vfs;
mod window;
mod writer;

pub use codes::CODES;
pub use error::{CloseError, OpenError, ReadError, RefusedError, StoppedCause, TrimError, UncertainCause};
pub use open::PartitionLog;
pub use options::{KeyWindow, LogIdentity, LogOptions, Preparation, StoreLimits};
pub use outcome::{
    AbsentReason, Append, AppendTimes, Evidence, Intent, Opened, RecentSequence, RecentTag, SegmentSummary, Settled,
    Stray, StrayReason,
};
pub use prepare::Preparer;
pub use read::{Budget, Located, LogReader, Page, VisibleTail};
pub use unit::{Codec, SequenceBlock, StoredUnit, Tag, Unit, UnitBody};
pub use vfs::{Access, DirEntry, DiskVfs, Vfs, VfsFile};
#[cfg(any(test, feature = "testing"))]
pub use vfs::{Fault, Loss, MemoryVfs, Operation};
pub use writer::LogWriter;

/// The largest body of a unit that the format allows: the batch limit's upper bound and the fields in front of it.
pub const BODY_BYTES_MAX: usize = (64 << 20) + 64;
