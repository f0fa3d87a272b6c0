//! What can go wrong, one enum per operation, each with its stable code (C9).

use std::io;
use std::path::PathBuf;

use landfall_types::{Code, Coded, Kind, Offset, Retry};

use crate::options::LogIdentity;
use crate::read::LogReader;

/// An append was refused: no byte of it was written.
#[derive(Debug, thiserror::Error)]
pub enum RefusedError {
    /// No room on the device, or no spare file for a fence (C42).
    #[error("no room for {needed} bytes in {dir}: free disk space, publishing resumes by itself")]
    NoSpace {
        /// The partition's directory.
        dir: PathBuf,
        /// What the append needed.
        needed: u64,
        /// What the device said.
        #[source]
        source: Option<io::Error>,
    },
    /// Space for the append, or a spare file, could not be prepared for another reason than a full device.
    #[error("preparing {needed} bytes in {dir} failed: look at the device, publishing resumes by itself")]
    Unprepared {
        /// The partition's directory.
        dir: PathBuf,
        /// What the append needed.
        needed: u64,
        /// What the device said.
        #[source]
        source: io::Error,
    },
    /// The caller's idea of the tail is not the writer's.
    #[error("append at offset {expected} refused: the tail is {actual}")]
    WrongExpected {
        /// What the caller named.
        expected: Offset,
        /// What the next record gets.
        actual: Offset,
    },
    /// A unit holds no record.
    #[error("a unit without records has no offset")]
    EmptyUnit,
    /// One unit, or all of the append, is above the writer's limit.
    #[error("{what} of {bytes} bytes is above the limit of {limit}")]
    TooLarge {
        /// `unit` or `append`.
        what: &'static str,
        /// Its encoded size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A number of the format is at its limit; never wraps (F-L6).
    #[error("the {number} is at its limit of {limit}: this partition takes no more records; create a new channel")]
    NumbersExhausted {
        /// `offset`, `epoch` or `segment number`.
        number: &'static str,
        /// The limit.
        limit: u64,
    },
    /// An earlier append is uncertain and not settled yet.
    #[error("an append at offset {first} is not settled yet")]
    Unsettled {
        /// Where it begins.
        first: Offset,
    },
}

/// Why an append may or may not be in the log.
#[derive(Debug, thiserror::Error)]
pub enum UncertainCause {
    /// The gathered write failed.
    #[error("the write to {path} failed at byte {at}")]
    WriteFailed {
        /// The segment file.
        path: PathBuf,
        /// Where the append begins.
        at: u64,
        /// What the device said.
        #[source]
        source: io::Error,
    },
    /// The gathered write took fewer bytes than given.
    #[error("the write to {path} took {written} of {given} bytes")]
    WriteShort {
        /// The segment file.
        path: PathBuf,
        /// Bytes taken.
        written: u64,
        /// Bytes given.
        given: u64,
    },
    /// `fdatasync` failed.
    #[error("the sync of {path} failed")]
    SyncFailed {
        /// The segment file.
        path: PathBuf,
        /// What the device said.
        #[source]
        source: io::Error,
    },
    /// A new segment could not be put in place.
    #[error("{step} failed for {path}")]
    FenceFailed {
        /// What was being done: `write`, `sync`, `rename`, `directory sync`, ….
        step: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the device said.
        #[source]
        source: io::Error,
    },
    /// No spare file for the fence, and none could be made.
    #[error("no spare file in {dir} for a fence")]
    NoSpare {
        /// The partition's directory.
        dir: PathBuf,
        /// What the device said.
        #[source]
        source: io::Error,
    },
    /// The evidence is not that of the append in question.
    #[error("the evidence begins at offset {given}, the uncertain append at {actual}")]
    EvidenceMismatch {
        /// What the evidence says.
        given: Offset,
        /// What the writer knows.
        actual: Offset,
    },
    /// The epoch or the segment number is at its limit, so no fence can be written.
    #[error("the {number} is at its limit of {limit}: no fence can be written")]
    NumbersExhausted {
        /// `epoch` or `segment number`.
        number: &'static str,
        /// The limit.
        limit: u64,
    },
}

/// A read got no page.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Retention has passed the offset.
    #[error("offset {from} is below the log start {log_start}: start at {log_start} or later")]
    Trimmed {
        /// What was asked for.
        from: Offset,
        /// The first offset there is.
        log_start: Offset,
    },
    /// The records are lost to damage.
    #[error("offsets {from} to {to} (exclusive) are damaged: read on at {to}, and look into `landfall log check`")]
    Damaged {
        /// The first lost offset at or after what was asked for.
        from: Offset,
        /// The first offset after the damage.
        to: Offset,
    },
    /// The device did not give the bytes.
    #[error("reading {path} failed")]
    Failed {
        /// The segment file.
        path: PathBuf,
        /// What the device said.
        #[source]
        source: io::Error,
    },
    /// The offset is above the visible tail.
    #[error("offset {from} is past the tail {tail}")]
    PastTail {
        /// What was asked for.
        from: Offset,
        /// The visible tail.
        tail: Offset,
    },
}

/// A trim did not happen.
#[derive(Debug, thiserror::Error)]
pub enum TrimError {
    /// Refused before a byte was written.
    #[error(transparent)]
    Refused(#[from] RefusedError),
    /// The trim's own unit is uncertain; settle (with evidence without units) before anything else.
    #[error("the trim unit is uncertain")]
    Uncertain(#[source] UncertainCause),
}

/// A close lost nothing but a mark.
#[derive(Debug, thiserror::Error)]
#[error("the closing mark was not written; the next open scans instead")]
pub struct CloseError(#[source] pub UncertainCause);

/// A partition's log could not be opened for writing.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A segment has a format version above ours.
    #[error("{path} has format version {version}, this build reads up to {supported}: use a newer landfall")]
    FormatTooNew {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u16,
        /// The highest we read.
        supported: u16,
    },
    /// The segments belong to another channel or partition.
    #[error(
        "{path} belongs to channel {found_channel} partition {found_partition}, not to channel {} partition {}: \
         put the right directory in place", .expected.channel, .expected.partition
    )]
    IdentityMismatch {
        /// The file.
        path: PathBuf,
        /// What its header says.
        found_channel: landfall_types::ChannelId,
        /// What its header says.
        found_partition: landfall_types::PartitionId,
        /// What was opened.
        expected: LogIdentity,
    },
    /// The tail is not known: nothing is accepted, what verifies can be read (C83).
    #[error("the partition in {dir} is stopped, readable up to offset {readable_end}: {cause}")]
    Stopped {
        /// The partition's directory.
        dir: PathBuf,
        /// Why.
        #[source]
        cause: StoppedCause,
        /// The first offset that retention has kept.
        log_start: Offset,
        /// The offset after the last record that can be read.
        readable_end: Offset,
        /// Reads what verifies.
        reader: Box<LogReader>,
    },
    /// A number of the format is at its limit.
    #[error("the {number} is at its limit of {limit}: this partition can only be read")]
    NumbersExhausted {
        /// `epoch` or `segment number`.
        number: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The device failed, or had no room for the new epoch's file.
    #[error("{step} failed for {path}")]
    Failed {
        /// What was being done.
        step: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the device said.
        #[source]
        source: io::Error,
    },
}

/// Why a tail is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoppedCause {
    /// A mark names a durable end beyond what can be read.
    #[error("a durable mark lies beyond the last unit that verifies in {path}: run `landfall log repair`")]
    TailUnknown {
        /// The last segment.
        path: PathBuf,
    },
    /// Both header copies of the last segment are bad.
    #[error("both header copies of {path} are damaged: run `landfall log repair`")]
    HeaderDamaged {
        /// The last segment.
        path: PathBuf,
    },
    /// What stands in the place of the newest segment is no file.
    #[error(
        "{path} stands in the place of the newest segment and is not a regular file: move it away and put the segment back"
    )]
    NotAFile {
        /// The directory, link or the like.
        path: PathBuf,
    },
    /// Records that were durable are missing at the end.
    #[error(
        "all below offset {cursor} was durable (a consumer's floor, or an earlier run's tail), but the log ends at {tail}: the newest segment is missing; put it back from a copy"
    )]
    CursorPastTail {
        /// What was durable.
        cursor: Offset,
        /// The tail that was found.
        tail: Offset,
    },
}

const fn ch(number: u16) -> Code {
    Code::new("CH", number)
}

impl Coded for RefusedError {
    fn code(&self) -> Code {
        match self {
            RefusedError::NoSpace { .. } | RefusedError::Unprepared { .. } => ch(30),
            RefusedError::WrongExpected { .. } => ch(13),
            RefusedError::EmptyUnit => ch(3),
            RefusedError::TooLarge { .. } => ch(2),
            RefusedError::NumbersExhausted { .. } => ch(36),
            RefusedError::Unsettled { .. } => ch(32),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            RefusedError::NoSpace { .. } | RefusedError::Unprepared { .. } | RefusedError::Unsettled { .. } => {
                Kind::Unavailable
            }
            RefusedError::WrongExpected { .. } => Kind::Conflict,
            RefusedError::EmptyUnit | RefusedError::TooLarge { .. } => Kind::Invalid,
            RefusedError::NumbersExhausted { .. } => Kind::Internal,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            RefusedError::NoSpace { .. } | RefusedError::Unprepared { .. } | RefusedError::Unsettled { .. } => {
                Retry::Later
            }
            _ => Retry::Never,
        }
    }
}

impl Coded for ReadError {
    fn code(&self) -> Code {
        match self {
            ReadError::Trimmed { .. } => ch(50),
            ReadError::Damaged { .. } => ch(51),
            ReadError::Failed { .. } => ch(59),
            ReadError::PastTail { .. } => ch(3),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            ReadError::Trimmed { .. } | ReadError::PastTail { .. } => Kind::Invalid,
            ReadError::Damaged { .. } => Kind::Internal,
            ReadError::Failed { .. } => Kind::Unavailable,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            ReadError::Failed { .. } => Retry::Later,
            _ => Retry::Never,
        }
    }
}

impl Coded for OpenError {
    fn code(&self) -> Code {
        match self {
            OpenError::FormatTooNew { .. } => ch(71),
            OpenError::IdentityMismatch { .. } => ch(72),
            OpenError::Stopped { cause: StoppedCause::TailUnknown { .. } | StoppedCause::NotAFile { .. }, .. } => {
                ch(73)
            }
            OpenError::Stopped { cause: StoppedCause::HeaderDamaged { .. }, .. } => ch(74),
            OpenError::Stopped { cause: StoppedCause::CursorPastTail { .. }, .. } => ch(75),
            OpenError::NumbersExhausted { .. } => ch(36),
            OpenError::Failed { .. } => ch(76),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            OpenError::FormatTooNew { .. } => Kind::Invalid,
            OpenError::IdentityMismatch { .. } => Kind::Conflict,
            OpenError::Stopped { .. } | OpenError::NumbersExhausted { .. } => Kind::Internal,
            OpenError::Failed { .. } => Kind::Unavailable,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            OpenError::Failed { .. } => Retry::Later,
            _ => Retry::Never,
        }
    }
}
