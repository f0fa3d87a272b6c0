//! Group commit without timers (C26): how long a turn waits for publishers that were just answered.
//!
//! Publishers that publish again as soon as they are answered fall into groups: while one group is being synced, the
//! other waits, and each sync carries half of them. So after a turn that left several publishers, the next one gives all
//! of them a moment: who was answered, and who was queued already. The moment is a part of what a sync takes, since
//! waiting longer than it saves is a loss; it shrinks while publishers do not come back and grows again once they do. Groups
//! that have formed while it was short would keep it so, since all of them come back only to who waits for all: so the whole
//! moment is tried again now and then. A lone publish never waits.

use std::time::{Duration, Instant};

/// How a committer gathers a turn.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    expected: usize,
    /// Smoothed time of a sync.
    sync_time: Duration,
    /// How often in a row too few came; each time halves the patience.
    disappointments: u32,
    /// Turns since the last one that had the whole patience.
    short_waits: u32,
}

/// The queue has stopped growing: this, or a quarter of the patience. Waking a thread on a processor that sleeps takes about
/// half as long.
const GROWTH_PAUSE: Duration = Duration::from_micros(100);
const PATIENCE_MAX: Duration = Duration::from_millis(2);
/// At the least an eighth of a sync is given.
const DISAPPOINTMENTS_MAX: u32 = 3;
/// Of so many turns in a row that are disappointed, one waits for the whole of it.
const SHORT_WAITS: u32 = 8;

impl Gathering {
    /// So many may be in the queue soon; none: nobody is waited for.
    pub(super) fn expect(&mut self, tickets: usize) {
        self.expected = tickets;
    }

    /// Whether there is anybody to wait for.
    pub(super) fn is_expecting(&self) -> bool {
        self.expected > 1
    }

    pub(super) fn note_sync(&mut self, took: Duration) {
        self.sync_time = (self.sync_time * 7 + took) / 8;
    }

    fn patience(&mut self) -> Duration {
        let whole = self.sync_time.min(PATIENCE_MAX);
        self.short_waits = if self.disappointments == 0 { 0 } else { (self.short_waits + 1) % SHORT_WAITS };
        match self.short_waits {
            0 => whole,
            _ => whole / (1 << self.disappointments),
        }
    }

    /// Begins to wait for those who are expected, if there are any.
    pub(super) fn begin(&mut self, now: Instant) -> Option<Wait> {
        self.is_expecting().then(|| Wait { start: now, grew: now, patience: self.patience(), seen: 0 })
    }

    /// Whether to wait on, when so many are there, queued or claimed.
    pub(super) fn goes_on(&mut self, wait: &mut Wait, there: usize, now: Instant) -> bool {
        if there >= self.expected {
            self.disappointments = 0;
            return false;
        }
        if there > wait.seen {
            (wait.seen, wait.grew) = (there, now);
        } else if now.duration_since(wait.start) > wait.patience
            || now.duration_since(wait.grew) > GROWTH_PAUSE.max(wait.patience / 4)
        {
            self.disappointments = (self.disappointments + 1).min(DISAPPOINTMENTS_MAX);
            return false;
        }
        true
    }
}

/// A turn that waits.
#[derive(Debug)]
pub(super) struct Wait {
    start: Instant,
    /// When more were there than before.
    grew: Instant,
    patience: Duration,
    seen: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn's wait, looking every `step`; `there` tells by the time since its begin who has come. How long it took.
    fn wait(gathering: &mut Gathering, step: Duration, there: impl Fn(Duration) -> usize) -> Option<Duration> {
        let start = Instant::now();
        let mut now = start;
        let mut wait = gathering.begin(now)?;
        while gathering.goes_on(&mut wait, there(now - start), now) {
            now += step;
        }
        Some(now - start)
    }

    fn gathering(expected: usize, sync: Duration) -> Gathering {
        let mut gathering = Gathering::default();
        (0..64).for_each(|_| gathering.note_sync(sync));
        gathering.expect(expected);
        gathering
    }

    const STEP: Duration = Duration::from_micros(10);
    const SYNC: Duration = Duration::from_millis(1);

    /// Catches a lone publisher that is made to wait, on however slow a device.
    #[test]
    fn a_lone_publish_never_waits() {
        assert_eq!(wait(&mut gathering(1, Duration::from_secs(1)), STEP, |_| 0), None);
    }

    /// Catches turns that leave before everybody is there, that wait longer than a sync, and patience that is lost for good.
    #[test]
    fn a_turn_waits_for_those_who_come_back_and_less_for_those_who_do_not() {
        let mut gathering = gathering(4, SYNC);
        let one_by_one = |since: Duration| (since.as_micros() / 200).min(4) as usize;
        assert_eq!(wait(&mut gathering, STEP, one_by_one), Some(4 * SYNC / 5));
        let waits: Vec<_> = (0..u64::from(3 * SHORT_WAITS)).map(|_| wait(&mut gathering, STEP, |_| 2)).collect();
        assert!(waits.iter().all(|took| *took < Some(SYNC)), "{waits:?}");
        let short = waits.iter().filter(|took| **took < Some(SYNC / 6)).count();
        assert!(short as u32 > 2 * SHORT_WAITS, "{waits:?}");
        assert_eq!(wait(&mut gathering, STEP, |_| 4), Some(Duration::ZERO));
        assert_eq!(wait(&mut gathering, STEP, one_by_one), Some(4 * SYNC / 5));
    }

    /// Catches groups that keep each other apart: while one is being synced the other comes back, later than a turn waits
    /// that has been disappointed, and so every turn is.
    #[test]
    fn groups_that_have_formed_are_brought_together_again() {
        let mut gathering = gathering(4, SYNC);
        for _ in 0..9 {
            wait(&mut gathering, STEP, |_| 2);
        }
        let late = |since: Duration| 2 + (since.as_micros() / 200).min(2) as usize;
        let turns = (0..SHORT_WAITS).map(|_| wait(&mut gathering, STEP, late));
        assert!(turns.filter(|took| *took == Some(2 * SYNC / 5)).count() > 0);
        assert_eq!(wait(&mut gathering, STEP, late), Some(2 * SYNC / 5), "and stay together");
    }
}
