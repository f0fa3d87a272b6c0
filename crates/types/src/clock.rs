//! Time as a parameter: wall time for records, monotonic time for waits.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Timestamp;

/// Where a component gets its time. Wall time may jump; monotonic time never goes back.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// Wall time in µs since 1970.
    fn now(&self) -> Timestamp;
    /// Monotonic time.
    fn instant(&self) -> Instant;
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let micros = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
        };
        Timestamp(micros)
    }

    fn instant(&self) -> Instant {
        Instant::now()
    }
}

/// A clock that moves only when told to; for tests.
#[derive(Debug)]
pub struct ManualClock {
    base: Instant,
    state: Mutex<(Timestamp, Duration)>,
}

impl ManualClock {
    /// A clock that shows `now` until it is moved.
    pub fn at(now: Timestamp) -> Self {
        ManualClock { base: Instant::now(), state: Mutex::new((now, Duration::ZERO)) }
    }

    /// Moves both clocks forward.
    pub fn advance(&self, by: Duration) {
        let mut state = self.lock();
        state.0.0 = state.0.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX));
        state.1 += by;
    }

    /// Sets wall time alone, as an administrator or NTP would.
    pub fn set_wall(&self, now: Timestamp) {
        self.lock().0 = now;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Timestamp, Duration)> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.lock().0
    }

    fn instant(&self) -> Instant {
        self.base + self.lock().1
    }
}
