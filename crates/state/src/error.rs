//! What can go wrong with LOCK and the state file, and the pages of its codes.

use std::io;
use std::path::PathBuf;

use landfall_types::{Code, CodePage, Coded, Kind, Retry};

/// The data directory could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error(
        "{path} is held by process {pid} on host {host}: stop that process, or use another data_dir; \
         nothing was written"
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The holder's process id, as it wrote it; `unknown` if it has not yet.
        pid: String,
        /// The holder's host.
        host: String,
    },
    /// The device refused.
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

/// The state store refused or failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StateError {
    /// The file is gone although the data directory is in use.
    #[error(
        "{path} is missing or empty, but {channels} is not: cursors and watermarks are lost; put the file back, or \
         make a new one with `landfall positions CONFIG --new-state`"
    )]
    Missing {
        /// The state file.
        path: PathBuf,
        /// The directory that shows it was in use.
        channels: PathBuf,
    },
    /// A new file was asked for where there is one.
    #[error("{path} exists already: move it away before making a new one")]
    Exists {
        /// The state file.
        path: PathBuf,
    },
    /// The file is there but cannot be read.
    #[error("{path} cannot be read: {reason}; restore it from a copy, nothing was changed")]
    Unreadable {
        /// The state file.
        path: PathBuf,
        /// What the store said.
        reason: String,
    },
    /// A read or a transaction failed; what was asked for may or may not be durable.
    #[error("the state store failed: {reason}; free disk space or check the device, then the owner tries again")]
    Failed {
        /// What the store said.
        reason: String,
    },
    /// The request queue is full.
    #[error("the state store has {limit} requests waiting: try again")]
    Busy {
        /// The queue's bound.
        limit: usize,
    },
    /// A newer owner has taken over; the write was refused and nothing changed.
    #[error("owner {given} was superseded by owner {current}: this write was refused")]
    StaleOwner {
        /// Who wrote.
        given: u64,
        /// Who owns the store.
        current: u64,
    },
    /// The store is closed.
    #[error("the state store is closed")]
    Closed,
}

const SUPERSEDED: Code = Code::new("CH", 35);
const UNAVAILABLE: Code = Code::new("CH", 58);
const LOCKED: Code = Code::new("CH", 70);
const OPEN_FAILED: Code = Code::new("CH", 76);

impl Coded for LockError {
    fn code(&self) -> Code {
        match self {
            LockError::Locked { .. } => LOCKED,
            LockError::Failed { .. } => OPEN_FAILED,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            LockError::Locked { .. } => Kind::Conflict,
            LockError::Failed { .. } => Kind::Unavailable,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            LockError::Locked { .. } => Retry::Never,
            LockError::Failed { .. } => Retry::Later,
        }
    }
}

impl Coded for StateError {
    fn code(&self) -> Code {
        match self {
            StateError::StaleOwner { .. } => SUPERSEDED,
            _ => UNAVAILABLE,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            StateError::StaleOwner { .. } | StateError::Closed => Kind::Closed,
            StateError::Busy { .. } | StateError::Failed { .. } => Kind::Unavailable,
            StateError::Missing { .. } | StateError::Exists { .. } | StateError::Unreadable { .. } => Kind::Internal,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            StateError::Busy { .. } | StateError::Failed { .. } => Retry::Later,
            _ => Retry::Never,
        }
    }
}

/// The pages of `landfall explain` for this crate. CH0035 and CH0058 are the channel's, CH0076 is the log's: their
/// pages say what this crate means by them too.
pub const CODES: &[CodePage] = &[CodePage {
    code: LOCKED,
    name: "Locked",
    kind: Kind::Conflict,
    retry: Retry::Never,
    meaning: "Another process holds the data directory's LOCK. One process at a time may own it.",
    help: "The message names the holder's process id and host. Stop it, or give this process another data_dir. \
           `landfall log check` and `dump` work beside a running process.",
}];
