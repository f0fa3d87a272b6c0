//! The rules of feedback and liveness, without a runtime.

use std::time::{Duration, Instant};

use super::{FeedbackRules, MOVED_INTERVAL};
use crate::Lsn;
use crate::transport::StatusUpdate;

/// What the core sees at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sight {
    /// The end of the last frame taken.
    pub(crate) received: Lsn,
    /// What may be confirmed.
    pub(crate) durable: Lsn,
    /// Bytes that have come in so far.
    pub(crate) bytes: u64,
    /// Whether the pump reads, or would if something came.
    pub(crate) is_reading: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeedbackStep {
    /// Send this, then ask again.
    Send(StatusUpdate),
    /// The peer is silent: connect again.
    Silent(Duration),
    /// Look again then, or when something happens.
    Wait(Instant),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FeedbackCore {
    rules: FeedbackRules,
    /// The floors.
    write: Lsn,
    flush: Lsn,
    sent_flush: Lsn,
    sent_at: Option<Instant>,
    is_reply_wanted: bool,
    heard_bytes: u64,
    heard_at: Instant,
    has_asked: bool,
}

impl FeedbackCore {
    pub(crate) fn new(rules: FeedbackRules, now: Instant) -> Self {
        FeedbackCore {
            rules,
            write: Lsn::ZERO,
            flush: Lsn::ZERO,
            sent_flush: Lsn::ZERO,
            sent_at: None,
            is_reply_wanted: false,
            heard_bytes: 0,
            heard_at: now,
            has_asked: false,
        }
    }

    /// A keepalive wants an answer: the next step sends one.
    pub(crate) fn reply_wanted(&mut self) {
        self.is_reply_wanted = true;
    }

    /// What to do now.
    pub(crate) fn step(&mut self, now: Instant, sight: Sight) -> FeedbackStep {
        self.look(sight);
        // Nothing heard while we do not read says nothing about the peer: the clock stands (P48).
        if !sight.is_reading || sight.bytes != self.heard_bytes {
            (self.heard_bytes, self.heard_at, self.has_asked) = (sight.bytes, now, false);
        }
        let silent = now.saturating_duration_since(self.heard_at);
        if silent >= self.rules.liveness {
            return FeedbackStep::Silent(silent);
        }
        if silent >= self.rules.liveness / 3 && !self.has_asked {
            self.has_asked = true;
            return FeedbackStep::Send(self.sends(now, true));
        }
        let Some(sent_at) = self.sent_at else { return FeedbackStep::Send(self.sends(now, false)) };
        let is_moved = self.flush > self.sent_flush;
        let due = sent_at + if is_moved { MOVED_INTERVAL.min(self.rules.interval) } else { self.rules.interval };
        if self.is_reply_wanted || now >= due {
            return FeedbackStep::Send(self.sends(now, false));
        }
        let patience = if self.has_asked { self.rules.liveness } else { self.rules.liveness / 3 };
        FeedbackStep::Wait(due.min(self.heard_at + patience))
    }

    /// The last message of a connection.
    pub(crate) fn last(&mut self, now: Instant, sight: Sight) -> StatusUpdate {
        self.look(sight);
        self.sends(now, false)
    }

    fn look(&mut self, sight: Sight) {
        self.write = self.write.max(sight.received);
        self.flush = self.flush.max(sight.durable);
    }

    fn sends(&mut self, now: Instant, wants_reply: bool) -> StatusUpdate {
        self.is_reply_wanted = false;
        (self.sent_at, self.sent_flush) = (Some(now), self.flush);
        StatusUpdate { write: self.write, flush: self.flush, apply: self.flush, wants_reply }
    }
}
