//! The plain threads that do file I/O: commit pool, read pool, housekeeping (C28). No async worker ever does.

mod commit_pool;
mod deadlines;
mod housekeeping;
mod read_pool;
mod wake_relay;

pub(crate) use commit_pool::CommitPool;
pub(crate) use deadlines::Deadlines;
pub(crate) use housekeeping::{DiskReserve, Housekeeping};
pub(crate) use read_pool::ReadPool;
pub(crate) use wake_relay::WakeRelay;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::task::Waker;

use crate::options::ProcessOptions;

/// All threads of a process's channels.
pub(crate) struct Threads {
    pub(crate) commit: CommitPool,
    pub(crate) read: ReadPool,
    pub(crate) housekeeping: Housekeeping,
    pub(crate) relay: WakeRelay,
    pub(crate) deadlines: Deadlines,
    owner: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Threads")
    }
}

impl Threads {
    /// Asked before each turn from now on; the first question stays.
    pub(crate) fn watch_owner(&self, is_ours: Box<dyn Fn() -> bool + Send + Sync>) {
        let _ = self.owner.set(is_ours);
    }

    /// Whether the data directory is still ours (C93).
    pub(crate) fn is_owner(&self) -> bool {
        self.owner.get().is_none_or(|is_ours| is_ours())
    }

    pub(crate) fn new(options: &ProcessOptions, reserve: Option<DiskReserve>) -> Threads {
        Threads {
            commit: CommitPool::new(options.commit_threads as usize),
            read: ReadPool::new(options.read_threads as usize),
            housekeeping: Housekeeping::new(reserve),
            relay: WakeRelay::start(),
            deadlines: Deadlines::start(),
            owner: OnceLock::new(),
        }
    }
}

/// Calls all of them; leaves `wakers` empty. A waker is somebody else's code: one that panics takes no other along, nor who
/// calls.
pub(crate) fn wake_all(wakers: &mut Vec<Waker>) {
    for waker in wakers.drain(..) {
        if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
            tracing::error!("a waker panicked; whoever it belongs to may have missed an answer");
        }
    }
}
