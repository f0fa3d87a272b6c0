//! The plain threads that do file I/O: commit pool, read pool, housekeeping (C28). No async worker ever does.

mod commit_pool;
mod housekeeping;
mod read_pool;

pub(crate) use commit_pool::CommitPool;
pub(crate) use housekeeping::{DiskReserve, Housekeeping};
pub(crate) use read_pool::ReadPool;

use crate::options::ProcessOptions;

/// All threads of a process's channels.
#[derive(Debug)]
pub(crate) struct Threads {
    pub(crate) commit: CommitPool,
    pub(crate) read: ReadPool,
    pub(crate) housekeeping: Housekeeping,
}

impl Threads {
    pub(crate) fn new(options: &ProcessOptions, reserve: Option<DiskReserve>) -> Threads {
        Threads {
            commit: CommitPool::new(options.commit_threads as usize),
            read: ReadPool::new(options.read_threads as usize),
            housekeeping: Housekeeping::new(reserve),
        }
    }
}
