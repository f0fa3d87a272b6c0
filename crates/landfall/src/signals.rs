//! SIGTERM and SIGINT: the first asks for a drain, the second ends the process at once (E74).

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Both signals of this process, from the moment it is made.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over. Needs a tokio runtime.
    pub(crate) fn take() -> std::io::Result<Self> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one and gives its number. Cancelling the wait loses none.
    pub(crate) async fn next(&mut self) -> u8 {
        const SIGINT: u8 = 2;
        const SIGTERM: u8 = 15;
        tokio::select! {
            _ = self.terminate.recv() => SIGTERM,
            _ = self.interrupt.recv() => SIGINT,
        }
    }
}
