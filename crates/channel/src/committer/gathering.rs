//! Group commit without timers (C26): how long a turn waits for publishers that were just answered.
//!
//! Publishers that publish again as soon as they are answered fall into groups: while one group is being synced, the
//! other waits, and each sync carries half of them. So after a turn that left several publishers, the next one gives all
//! of them a moment: who was answered, and who was queued already. The moment is a part of what a sync takes, since
//! waiting longer than it saves is a loss; it shrinks while publishers do not come back and grows again once they do. Groups
//! that have formed while it was short would keep it so, since all of them come back only to who waits for all: so the whole
//! moment is tried again now and then. A lone publish never waits.

use std::time::{Duration, Instant};

/// How a committer gathers a turn. Yields, never sleeps.
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

    /// Gives the expected publishers a moment to be in the queue, whose length `queued` tells.
    pub(super) fn wait(&mut self, queued: impl Fn() -> usize) {
        if !self.is_expecting() {
            return;
        }
        let (start, patience) = (Instant::now(), self.patience());
        let pause = GROWTH_PAUSE.max(patience / 4);
        let (mut seen, mut grew) = (queued(), start);
        while seen < self.expected {
            std::thread::yield_now();
            let (now, length) = (Instant::now(), queued());
            if length > seen {
                (seen, grew) = (length, now);
            } else if now.duration_since(start) > patience || now.duration_since(grew) > pause {
                self.disappointments = (self.disappointments + 1).min(DISAPPOINTMENTS_MAX);
                return;
            }
        }
        self.disappointments = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn gathering(expected: usize, sync: Duration) -> Gathering {
        let mut gathering = Gathering::default();
        (0..64).for_each(|_| gathering.note_sync(sync));
        gathering.expect(expected);
        gathering
    }

    /// Catches a lone publisher that is made to wait, on however slow a device.
    #[test]
    fn a_lone_publish_never_waits() {
        let looks = Cell::new(0);
        gathering(1, Duration::from_secs(1)).wait(|| looks.replace(looks.get() + 1));
        assert_eq!(looks.get(), 0);
    }

    /// Catches turns that leave before everybody is there, and patience that is lost for good.
    #[test]
    fn a_turn_waits_for_those_who_come_back_and_less_for_those_who_do_not() {
        let mut gathering = gathering(4, Duration::from_millis(8));
        let queued = Cell::new(0);
        let come = || queued.replace((queued.get() + 1).min(4));
        gathering.wait(come);
        assert_eq!(queued.get(), 4);
        let whole = gathering.patience();
        (0..9).for_each(|_| gathering.wait(|| 2));
        assert_eq!((0..SHORT_WAITS).map(|_| gathering.patience()).min(), Some(whole / 8));
        queued.set(0);
        gathering.wait(come);
        assert_eq!(gathering.patience(), whole);
    }

    /// Catches groups that keep each other apart: while one is being synced the other comes back, later than a turn waits
    /// that has been disappointed, and so every turn is.
    #[test]
    fn groups_that_have_formed_are_brought_together_again() {
        let mut gathering = gathering(4, Duration::from_millis(8));
        (0..9).for_each(|_| gathering.wait(|| 2));
        let late = |start: Instant| 2 + (start.elapsed().as_micros() / 1_500).min(2) as usize;
        let waits = (0..SHORT_WAITS).any(|_| {
            let start = Instant::now();
            gathering.wait(|| late(start));
            gathering.disappointments == 0
        });
        assert!(waits);
    }
}
