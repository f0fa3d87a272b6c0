//! When a keepalive may move the durable LSN (P45): what frees the log of a slot whose own tables are idle.
//!
//! The number goes the way of every other: into the checkpoint first, then to the server. This only decides whether it
//! may set out.

use std::time::{Duration, Instant};

use crate::Lsn;

/// What is pending at the place in the stream where the keepalive was dispatched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    /// A transaction is open whose begin was dispatched and whose commit was not. One that comes in pieces before its
    /// commit does not count: the server sends all of it again.
    pub has_open_transaction: bool,
    /// Source batches that some sink has not acknowledged, and rows that are in none yet.
    pub has_unacked_rows: bool,
}

/// See the module.
#[derive(Debug)]
pub struct KeepAliveAdvance {
    interval: Duration,
    last: Option<Instant>,
    through: Lsn,
}

impl KeepAliveAdvance {
    /// At most one advance per `interval`, from `through` on.
    pub fn new(interval: Duration, through: Lsn) -> Self {
        KeepAliveAdvance { interval, last: None, through }
    }

    /// Everything before `through` is settled some other way: a commit was made durable.
    pub fn settled(&mut self, through: Lsn) {
        self.through = self.through.max(through);
    }

    /// A keepalive was dispatched in order; gives the position that may now be stored, and after that confirmed.
    pub fn offer(&mut self, now: Instant, wal_end: Lsn, pending: Pending) -> Option<Lsn> {
        let Pending { has_open_transaction, has_unacked_rows } = pending;
        if has_open_transaction || has_unacked_rows || wal_end <= self.through {
            return None;
        }
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < self.interval) {
            return None;
        }
        (self.last, self.through) = (Some(now), wal_end);
        Some(wal_end)
    }
}
