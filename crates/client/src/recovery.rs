//! When to try again, and when to give up.
//!
//! Back-off doubles with full jitter, from the first attempt on. Attempts, back-off and the budget start
//! anew by *progress* alone, an ack that moved the front: a peer that opens streams and ends them at once
//! exhausts the budget like one that is away. Pure: time and randomness are arguments.

use std::time::{Duration, Instant};

use landfall_types::Retry;
use tonic::Code as Grpc;

/// How a stream's RPC ended, as far as another attempt is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    pub(crate) retry: Retry,
    pub(crate) grpc: Option<Grpc>,
    pub(crate) retry_after: Option<Duration>,
    /// The peer announced it, or we asked for it: no fault.
    pub(crate) planned: bool,
    /// The peer said itself whether to try again; its word stands over what the bare status would mean.
    pub(crate) told: bool,
}

/// The options that matter here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecoveryPolicy {
    pub(crate) budget: Duration,
    pub(crate) initial: Duration,
    pub(crate) max: Duration,
    /// Whether credentials can be renewed.
    pub(crate) can_refresh: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Try again after a delay; credentials are asked for anew by every attempt.
    Retry {
        /// How long to wait.
        delay: Duration,
    },
    /// The peer's answer is final.
    Final,
    /// No progress for the whole budget.
    Lost {
        /// Attempts since the last progress.
        attempts: u32,
        /// Time since the first failure after the last progress.
        without_progress: Duration,
    },
}

/// Least delay after the peer said that it has too much to do.
const OVERLOADED_DELAY: Duration = Duration::from_secs(1);
/// As many INTERNAL ends in a row without progress are final.
const INTERNAL_LIMIT: u32 = 3;

#[derive(Debug)]
pub(crate) struct Recovery {
    policy: RecoveryPolicy,
    attempts: u32,
    since: Option<Instant>,
    internal_in_row: u32,
    refreshed: bool,
}

impl Recovery {
    pub(crate) fn new(policy: RecoveryPolicy) -> Self {
        Recovery { policy, attempts: 0, since: None, internal_in_row: 0, refreshed: false }
    }

    /// Attempts since the last progress.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// An ack moved the front, or an idle stream stayed open for long: the episode is over.
    pub(crate) fn progress(&mut self) {
        if self.since.is_some() || self.attempts > 0 || self.refreshed {
            *self = Recovery::new(self.policy);
        }
    }

    /// An attempt or an open RPC ended. `unit` is random in 0..1.
    pub(crate) fn after(&mut self, ending: Ending, now: Instant, unit: f64) -> Verdict {
        let attempt = self.attempts;
        if ending.retry == Retry::Never {
            let credentials = matches!(ending.grpc, Some(Grpc::Unauthenticated | Grpc::PermissionDenied));
            if !(credentials && self.policy.can_refresh && !self.refreshed) {
                return Verdict::Final;
            }
            self.refreshed = true;
        }
        if ending.grpc == Some(Grpc::Internal) && !ending.told {
            self.internal_in_row += 1;
            if self.internal_in_row >= INTERNAL_LIMIT {
                return Verdict::Final;
            }
        } else {
            self.internal_in_row = 0;
        }
        self.attempts = self.attempts.saturating_add(1);
        if ending.planned && attempt == 0 {
            return Verdict::Retry { delay: Duration::ZERO };
        }
        let since = *self.since.get_or_insert(now);
        let without_progress = now.saturating_duration_since(since);
        if without_progress >= self.policy.budget {
            return Verdict::Lost { attempts: self.attempts, without_progress };
        }
        let mut delay = self.jittered(attempt, unit).max(ending.retry_after.unwrap_or_default());
        if ending.grpc == Some(Grpc::ResourceExhausted) {
            delay = delay.max(OVERLOADED_DELAY);
        }
        // The last attempt falls on the end of the budget, not behind it.
        let left = self.policy.budget - without_progress;
        Verdict::Retry { delay: delay.min(left) }
    }

    /// The pace at which a lost sub-stream is tried again.
    pub(crate) fn lost_pace(&self, unit: f64) -> Duration {
        self.policy.max.mul_f64(0.5 + unit.clamp(0.0, 1.0) / 2.0)
    }

    fn jittered(&self, attempt: u32, unit: f64) -> Duration {
        let doubled = self.policy.initial.saturating_mul(1u32.checked_shl(attempt).unwrap_or(u32::MAX));
        doubled.min(self.policy.max).mul_f64(unit.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RecoveryPolicy = RecoveryPolicy {
        budget: Duration::from_secs(60),
        initial: Duration::from_millis(100),
        max: Duration::from_secs(10),
        can_refresh: false,
    };

    fn unavailable() -> Ending {
        Ending { retry: Retry::Later, grpc: Some(Grpc::Unavailable), retry_after: None, planned: false, told: false }
    }

    fn delay(verdict: Verdict) -> Duration {
        match verdict {
            Verdict::Retry { delay } => delay,
            other => panic!("{other:?}"),
        }
    }

    /// Would catch a fixed pace, a missing cap, and a peer's hint that is not heeded.
    #[test]
    fn backoff_grows_with_jitter() {
        let now = Instant::now();
        let mut recovery = Recovery::new(POLICY);
        let full: Vec<_> = (0..9).map(|_| delay(recovery.after(unavailable(), now, 1.0)).as_millis()).collect();
        assert_eq!(full, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        let mut recovery = Recovery::new(POLICY);
        assert_eq!(delay(recovery.after(unavailable(), now, 0.25)), Duration::from_millis(25));
        let hinted = Ending { retry_after: Some(Duration::from_secs(3)), ..unavailable() };
        assert_eq!(delay(recovery.after(hinted, now, 0.0)), Duration::from_secs(3));
        let overloaded = Ending { grpc: Some(Grpc::ResourceExhausted), ..unavailable() };
        assert_eq!(delay(recovery.after(overloaded, now, 0.0)), Duration::from_secs(1));
    }

    /// Would catch a budget that is refilled by a successful open: only progress does (F-I3).
    #[test]
    fn f_i3_budget_refills_by_acks_only() {
        let start = Instant::now();
        let mut recovery = Recovery::new(POLICY);
        let mut now = start;
        let mut attempts = 0;
        loop {
            match recovery.after(unavailable(), now, 0.9) {
                Verdict::Retry { delay } => now += delay,
                Verdict::Lost { without_progress, attempts: counted } => {
                    attempts += 1;
                    assert!(without_progress >= POLICY.budget);
                    assert_eq!(counted, attempts);
                    break;
                }
                Verdict::Final => panic!("a peer that is away is not final"),
            }
            attempts += 1;
            assert!(attempts < 100, "a hot loop");
        }
        assert!((8..30).contains(&attempts), "{attempts} attempts in a minute");
        recovery.progress();
        assert_eq!(delay(recovery.after(unavailable(), now, 1.0)), POLICY.initial);
    }

    /// Would catch a third INTERNAL that is retried, or one that counts although others lie between.
    #[test]
    fn internal_is_final_the_third_time_in_a_row() {
        let now = Instant::now();
        let internal = Ending { grpc: Some(Grpc::Internal), ..unavailable() };
        let mut recovery = Recovery::new(POLICY);
        for ending in [internal, internal, unavailable(), internal, internal] {
            delay(recovery.after(ending, now, 0.0));
        }
        assert_eq!(recovery.after(internal, now, 0.0), Verdict::Final);
        let mut told = Recovery::new(POLICY);
        for _ in 0..5 {
            delay(told.after(Ending { told: true, ..internal }, now, 0.0));
        }
    }

    /// Would catch a refresh without end, or none.
    #[test]
    fn credentials_are_renewed_once_per_episode() {
        let now = Instant::now();
        let denied = Ending {
            retry: Retry::Never,
            grpc: Some(Grpc::Unauthenticated),
            retry_after: None,
            planned: false,
            told: false,
        };
        let mut fixed = Recovery::new(POLICY);
        assert_eq!(fixed.after(denied, now, 0.0), Verdict::Final);
        let mut renewing = Recovery::new(RecoveryPolicy { can_refresh: true, ..POLICY });
        assert_eq!(renewing.after(denied, now, 0.0), Verdict::Retry { delay: Duration::ZERO });
        assert_eq!(renewing.after(denied, now, 0.0), Verdict::Final);
        let mut later = Recovery::new(RecoveryPolicy { can_refresh: true, ..POLICY });
        assert!(matches!(later.after(denied, now, 0.0), Verdict::Retry { .. }));
        later.progress();
        assert!(matches!(later.after(denied, now, 0.0), Verdict::Retry { .. }));
    }

    /// Would catch a planned end that waits, and one that loops hotly.
    #[test]
    fn a_planned_end_waits_only_when_it_repeats() {
        let now = Instant::now();
        let planned = Ending { planned: true, ..unavailable() };
        let mut recovery = Recovery::new(POLICY);
        assert_eq!(delay(recovery.after(planned, now, 1.0)), Duration::ZERO);
        assert_eq!(delay(recovery.after(planned, now, 1.0)), Duration::from_millis(200));
    }

    /// Would catch `recovery_budget: 0` that still tries again.
    #[test]
    fn a_budget_of_zero_means_no_recovery() {
        let mut recovery = Recovery::new(RecoveryPolicy { budget: Duration::ZERO, ..POLICY });
        assert!(matches!(recovery.after(unavailable(), Instant::now(), 0.5), Verdict::Lost { attempts: 1, .. }));
    }
}
