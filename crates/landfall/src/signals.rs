//! SIGTERM and SIGINT: the first asks for a drain, the second ends the process at once (E74).

use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// One order to end may come as several signals: `timeout` sends its own to the process and to its group, a terminal to
/// everyone in it. What follows the first one so closely is the same order.
const SAME_ORDER_WITHIN: Duration = Duration::from_millis(200);

/// Both signals of this process, from the moment it is made.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    first: Option<Instant>,
}

impl Signals {
    /// Takes the signals over. Needs a tokio runtime.
    pub(crate) fn take() -> std::io::Result<Self> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Signals { terminate, interrupt, first: None })
    }

    /// Waits for the next order and gives the signal's number. Cancelling the wait loses none.
    pub(crate) async fn next(&mut self) -> u8 {
        const SIGINT: u8 = 2;
        const SIGTERM: u8 = 15;
        loop {
            let signal = tokio::select! {
                _ = self.terminate.recv() => SIGTERM,
                _ = self.interrupt.recv() => SIGINT,
            };
            if is_new_order(&mut self.first, Instant::now()) {
                return signal;
            }
        }
    }
}

fn is_new_order(first: &mut Option<Instant>, now: Instant) -> bool {
    match *first {
        None => {
            *first = Some(now);
            true
        }
        Some(first) => now.saturating_duration_since(first) > SAME_ORDER_WITHIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a drain that is cut short because one order to end came as two signals, and a second order that is not
    /// heard.
    #[test]
    fn what_follows_the_first_signal_at_once_is_the_same_order() {
        let (mut first, start) = (None, Instant::now());
        let mut hears = |after| is_new_order(&mut first, start + Duration::from_millis(after));
        assert!(hears(0));
        assert!(!hears(0) && !hears(3) && !hears(200));
        assert!(hears(201) && hears(202));
    }
}
