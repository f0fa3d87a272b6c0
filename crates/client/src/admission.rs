//! Whether a handle takes calls, and the first cause of its end.
//!
//! Read inside the ordering section of a sub-stream, and changed before a *barrier* over all sections (take
//! and release each in turn): after the barrier no call is admitted any more, so the admitted set is final.
//! The first cause is kept; later ones change nothing.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use crate::error::IngestError;

const CLOSING: u8 = 1;
const CLOSED: u8 = 2;
const FAILED: u8 = 4;

/// The state of a stream handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// Takes calls.
    Open,
    /// Takes no more calls; those admitted are being finished.
    Closing,
    /// Closed.
    Closed,
    /// Ended for good by its first cause (on a multiplexed stream: poisoned).
    Failed,
}

impl StreamState {
    /// The word in messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            StreamState::Open => "open",
            StreamState::Closing => "closing",
            StreamState::Closed => "closed",
            StreamState::Failed => "failed",
        }
    }
}

/// Why a stream ended, and where that was seen.
#[derive(Clone, Debug)]
pub(crate) struct FirstCause {
    pub(crate) error: Arc<IngestError>,
    pub(crate) sub_stream: u16,
}

#[derive(Debug, Default)]
pub(crate) struct Admission {
    flags: AtomicU8,
    cause: OnceLock<FirstCause>,
}

impl Admission {
    /// Whether a call may be admitted. Valid for as long as the caller stays in its ordering section.
    pub(crate) fn is_open(&self) -> bool {
        self.flags.load(Ordering::Acquire) == 0
    }

    /// Refuses calls from the barrier on. False if somebody did so before.
    pub(crate) fn begin_close(&self) -> bool {
        self.flags.fetch_or(CLOSING, Ordering::AcqRel) & (CLOSING | CLOSED) == 0
    }

    pub(crate) fn finish_close(&self) {
        self.flags.fetch_or(CLOSING | CLOSED, Ordering::AcqRel);
    }

    /// Ends the stream. False if it had ended before: then the first cause stands.
    pub(crate) fn fail(&self, cause: FirstCause) -> bool {
        // The cause is stored before the state says that there is one.
        let first = self.cause.set(cause).is_ok();
        self.flags.fetch_or(FAILED, Ordering::AcqRel);
        first
    }

    pub(crate) fn cause(&self) -> Option<&FirstCause> {
        self.cause.get()
    }

    pub(crate) fn state(&self) -> StreamState {
        match self.flags.load(Ordering::Acquire) {
            0 => StreamState::Open,
            flags if flags & FAILED != 0 => StreamState::Failed,
            flags if flags & CLOSED != 0 => StreamState::Closed,
            _ => StreamState::Closing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(sub_stream: u16) -> FirstCause {
        FirstCause { error: Arc::new(IngestError::Closed), sub_stream }
    }

    /// Would catch a second failure that replaces the first, from any number of threads.
    #[test]
    fn first_cause_wins() {
        for _ in 0..200 {
            let admission = Admission::default();
            let winners = std::thread::scope(|scope| {
                let tries: Vec<_> = (0..2)
                    .map(|at| {
                        scope.spawn({
                            let admission = &admission;
                            move || admission.fail(cause(at))
                        })
                    })
                    .collect();
                tries.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            let winner = winners.iter().position(|won| *won).unwrap();
            assert_eq!(winners.iter().filter(|won| **won).count(), 1);
            assert_eq!(admission.cause().map(|cause| usize::from(cause.sub_stream)), Some(winner));
        }
    }

    /// Would catch a close that hides the failure, and a second close that believes to be the first.
    #[test]
    fn a_failure_outlives_the_close() {
        let admission = Admission::default();
        assert!(admission.is_open());
        assert!(admission.begin_close());
        assert!(!admission.begin_close());
        assert_eq!(admission.state(), StreamState::Closing);
        admission.fail(cause(3));
        admission.finish_close();
        assert_eq!(admission.state(), StreamState::Failed);
        assert!(!admission.is_open());
    }
}
