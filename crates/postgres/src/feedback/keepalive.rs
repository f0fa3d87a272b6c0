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
    /// The furthest position that could not set out when it came; zero if there is none.
    held: Lsn,
}

impl KeepAliveAdvance {
    /// At most one advance per `interval`, from `through` on.
    pub fn new(interval: Duration, through: Lsn) -> Self {
        KeepAliveAdvance { interval, last: None, through, held: Lsn::ZERO }
    }

    /// Everything before `through` is settled some other way: a commit was made durable.
    pub fn settled(&mut self, through: Lsn) {
        self.through = self.through.max(through);
    }

    /// A keepalive was dispatched in order; gives the position that may now be stored, and after that confirmed.
    pub fn offer(&mut self, now: Instant, wal_end: Lsn, pending: Pending) -> Option<Lsn> {
        if pending.has_open_transaction {
            return None;
        }
        self.held = self.held.max(wal_end);
        self.again(now, pending)
    }

    /// Whether a position waits for [`KeepAliveAdvance::again`].
    pub fn is_held(&self) -> bool {
        self.held > self.through
    }

    /// Offers once more what could not set out: a server with nothing to say repeats a keepalive only after half of its
    /// timeout, and its position must not wait for that. Positions are dispatched in order, so what was pending at the
    /// keepalive and is settled now is before it.
    pub fn again(&mut self, now: Instant, pending: Pending) -> Option<Lsn> {
        if !self.is_held() || pending.has_open_transaction || pending.has_unacked_rows {
            return None;
        }
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < self.interval) {
            return None;
        }
        (self.last, self.through) = (Some(now), self.held);
        Some(self.held)
    }
}
