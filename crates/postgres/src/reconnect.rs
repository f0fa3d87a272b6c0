//! Delays between connections (P50): growing, jittered, bounded.

use std::time::Duration;

use rand::{Rng, RngExt};

/// The least delay after a failure.
pub const RECONNECT_FIRST: Duration = Duration::from_secs(1);
/// The largest.
pub const RECONNECT_MAX: Duration = Duration::from_secs(60);

/// Doubles from 1 s to 60 s; each delay is drawn from its upper half, so that many sources of one server do not come
/// back at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// After no failure.
    pub fn new() -> Self {
        Backoff::default()
    }

    /// One more failure: how long to wait.
    pub fn next_delay(&mut self, random: &mut impl Rng) -> Duration {
        let whole =
            RECONNECT_FIRST.saturating_mul(1u32.checked_shl(self.failures).unwrap_or(u32::MAX)).min(RECONNECT_MAX);
        self.failures = self.failures.saturating_add(1);
        let millis = u64::try_from(whole.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(random.random_range(millis / 2..=millis))
    }

    /// How many failures there were in a row.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// A connection has proved itself: a frame came. A log-in alone does not: a server that lets us in and throws us
    /// out must not be asked again at once.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    /// Catches a delay that shrinks to a busy loop, grows past a minute, or overflows after days of failures.
    #[test]
    fn delays_grow_from_one_second_to_a_minute_and_stay() {
        let mut random = StdRng::seed_from_u64(7);
        let mut backoff = Backoff::new();
        for failure in 0..200u32 {
            let whole = Duration::from_secs(1 << failure.min(6)).min(RECONNECT_MAX);
            let delay = backoff.next_delay(&mut random);
            assert!(delay >= whole / 2 && delay <= whole, "{failure}: {delay:?}");
        }
        backoff.reset();
        assert!(backoff.next_delay(&mut random) <= RECONNECT_FIRST);
    }

    /// Catches a delay without jitter: all sources of a server would come back in one instant.
    #[test]
    fn two_sources_do_not_wait_alike() {
        let delays = |seed| {
            let mut random = StdRng::seed_from_u64(seed);
            let mut backoff = Backoff::new();
            (0..8).map(|_| backoff.next_delay(&mut random)).collect::<Vec<_>>()
        };
        assert_ne!(delays(1), delays(2));
    }
}
