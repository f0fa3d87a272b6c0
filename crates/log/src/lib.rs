//! One partition's embedded log: segments, framing, recovery, fences, reading by offset.

mod error;
mod options;
mod outcome;
mod prepare;
mod read;
mod unit;
mod vfs;
mod writer;

pub use error::{CloseError, OpenError, ReadError, RefusedError, StoppedCause, TrimError, UncertainCause};
pub use options::{KeyWindow, LogIdentity, LogOptions, Preparation, StoreLimits};
pub use outcome::{
    AbsentReason, Append, AppendTimes, Evidence, Intent, Opened, RecentSequence, RecentTag, SegmentSummary, Settled,
    Stray, StrayReason,
};
pub use prepare::Preparer;
pub use read::{Budget, Located, LogReader, Page, VisibleTail};
pub use unit::{Codec, SequenceBlock, StoredUnit, Tag, Unit, UnitBody};
pub use vfs::{Access, DirEntry, Vfs, VfsFile};
pub use writer::{LogWriter, PartitionLog};

/// The largest body of a unit that the format allows: the batch limit's upper bound and the fields in front of it.
pub const BODY_BYTES_MAX: usize = (64 << 20) + 64;
