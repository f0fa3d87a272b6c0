//! What the writer and `open` answer. Each outcome is a type, so that none is told from an error's text (I3).

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use landfall_types::{Epoch, Offset, SegmentNumber, Timestamp};

use crate::error::{RefusedError, UncertainCause};
use crate::prepare::Preparer;
use crate::read::LogReader;
use crate::unit::{SequenceBlock, Unit};
use crate::writer::LogWriter;

/// What became of an append.
#[derive(Debug)]
#[must_use = "an append that is not Durable must be settled or refused"]
pub enum Append {
    /// All units are as durable as the class says.
    Durable {
        /// The offset after the last record.
        end: Offset,
        /// What took how long.
        times: AppendTimes,
    },
    /// None of them is in the log and none can come to be: no byte was written.
    Refused(RefusedError),
    /// They may or may not be there. The writer takes nothing but [`LogWriter::settle`] until that has ended.
    Uncertain(UncertainCause),
}

/// The device's part of an append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendTimes {
    /// In the gathered write.
    pub write: Duration,
    /// In `fdatasync`; zero for class `written`.
    pub sync: Duration,
    /// Whether unprepared space was met (C75), counted as `extend_inline_total`.
    pub extended_inline: bool,
    /// Whether the append began a new segment.
    pub rolled: bool,
}

/// What the committer knows of the append in flight. Made before the first byte goes out (C23).
#[derive(Clone, Debug)]
pub struct Evidence {
    /// The epoch that wrote.
    pub epoch: Epoch,
    /// The segment that was active when it was made.
    pub segment: SegmentNumber,
    /// Where in it the append begins, unless it rolls first.
    pub start_byte: u64,
    /// The offset of the first record.
    pub first: Offset,
    /// The units, sharing the publishers' bytes.
    pub units: Vec<Unit>,
}

/// How an uncertain append shall end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// The same units at the same offsets.
    Keep,
    /// None of them.
    Abandon,
}

/// How it did end.
#[derive(Debug)]
#[must_use = "an append that is still uncertain must be settled again"]
pub enum Settled {
    /// In the log, once, at the same offsets; the first copy is void.
    Committed {
        /// The offset after the last record.
        end: Offset,
        /// The epoch of the fence.
        epoch: Epoch,
    },
    /// No copy is in the log and none can come back.
    Absent {
        /// Why it is not there.
        why: AbsentReason,
    },
    /// Ask again later.
    Uncertain(UncertainCause),
}

/// Why a settled append is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbsentReason {
    /// [`Intent::Abandon`] was asked for.
    Abandoned,
    /// [`Intent::Keep`] found no room for the units (CH0030).
    NoSpace,
}

/// A partition's log, open. The epoch is above every epoch ever used here, and durable as such (C80).
#[derive(Debug)]
pub struct Opened {
    /// The one owner of the tail.
    pub writer: LogWriter,
    /// Readers; clone freely.
    pub reader: LogReader,
    /// Housekeeping, for a thread of its own.
    pub preparer: Preparer,
    /// The first offset that retention has kept.
    pub log_start: Offset,
    /// The offset of the next record.
    pub tail: Offset,
    /// The writer's epoch.
    pub epoch: Epoch,
    /// The append time of the last unit; the next one is not below it.
    pub last_append_time: Timestamp,
    /// Data units above the last durable mark that were adopted by copy.
    pub adopted_units: u64,
    /// Non-zero bytes behind the tail that did not verify and were cut.
    pub torn_bytes: u64,
    /// Offsets lost to damage, ascending; readers get Damaged there.
    pub damaged: Vec<Range<Offset>>,
    /// From this offset on every keyed unit is in `tags`.
    pub window_start: Offset,
    /// Key tags of the window, ascending by offset.
    pub tags: Vec<RecentTag>,
    /// The last sequence of each producer in the window.
    pub sequences: Vec<RecentSequence>,
    /// Files in the directory that are not part of the log, and why; left alone.
    pub strays: Vec<Stray>,
    /// Segments below the log start that an earlier trim had not freed yet; freed by housekeeping.
    pub left_overs: u64,
    /// Summaries that were missing or bad and were rebuilt by a scan.
    pub summary_rebuilds: u64,
}

/// A key tag found at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentTag {
    /// The tag.
    pub tag: [u8; 24],
    /// The unit's first offset.
    pub first: Offset,
    /// The unit's records.
    pub records: u32,
    /// When it was appended.
    pub append_time: Timestamp,
}

/// The last sequence of a producer found at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentSequence {
    /// The last block.
    pub block: SequenceBlock,
    /// When it was appended.
    pub append_time: Timestamp,
}

/// Something in the directory that is not part of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// Its name inside the directory.
    pub name: PathBuf,
    /// Why it is left out.
    pub reason: StrayReason,
}

/// Why a file is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrayReason {
    /// A directory, a link or the like; where it has a segment's name, its range is named as damaged.
    NotAFile,
    /// Not a name that the log gives.
    ForeignName,
    /// Named like a segment, of length zero.
    Empty,
    /// The name's offset is not the header's base offset.
    Misnamed,
    /// The header names another channel or partition.
    OtherPartition,
    /// A segment that the chain passes by: superseded, overlapping, or unlinked from it.
    OutsideTheChain,
    /// Both header copies are bad; its range, if any, is named as damaged.
    HeaderDamaged,
    /// A superseded file kept by an earlier settle or open (C43).
    Torn,
}

/// One segment, as retention sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Its number.
    pub number: SegmentNumber,
    /// The first offset.
    pub base: Offset,
    /// The offset after its last record.
    pub end: Offset,
    /// Its length on disk.
    pub bytes: u64,
    /// The append time of its last unit; `None` if it holds none or it is not known yet.
    pub last_append_time: Option<Timestamp>,
    /// Whether it is the active one, which retention never takes.
    pub is_active: bool,
    /// Whether it holds damage, so that retention leaves it alone (C82).
    pub is_damaged: bool,
}
