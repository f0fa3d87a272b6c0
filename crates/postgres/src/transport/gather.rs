//! When a busy stream is read: not at each message, but when many are there.
//!
//! A walsender sends each message by itself, and each would wake us, at a cost to both: the sender pays for the wake-up in
//! its send, and we for a turn of every task behind the socket. While messages follow each other closely, the kernel is
//! told to wake us only when [`LOW_WATER`] bytes are there (SO_RCVLOWAT), and a timer takes what has come by then, so
//! nothing waits longer than [`WAIT_MAX`]. A quiet stream is read at once. Where the system has no such mark, as for a
//! local socket, all is read at once.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Enough for a bundle of small rows, and half of what the smallest window of the kernel takes before a sender waits.
const LOW_WATER: u32 = 64 << 10;
/// The timers of the runtime have a resolution of a millisecond, so it may be twice this.
const WAIT_MAX: Duration = Duration::from_millis(1);
/// Reads that follow each other within this are of a busy stream …
const CLOSE: Duration = Duration::from_micros(200);
/// … when so many do: a transaction or two do not.
const CLOSE_READS: u32 = 32;
/// What a wait has to bring for another one.
const WORTH_A_WAIT: usize = 8 << 10;

/// Whether reads are gathered; without time and socket of its own.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    last: Option<Instant>,
    close_reads: u32,
    is_gathering: bool,
}

impl Pace {
    /// A read brought `count` bytes.
    fn read(&mut self, now: Instant, count: usize) {
        if self.is_gathering {
            self.is_gathering = count >= WORTH_A_WAIT;
            self.close_reads = 0;
        } else {
            let is_close = self.last.is_some_and(|last| now.saturating_duration_since(last) <= CLOSE);
            self.close_reads = if is_close { self.close_reads + 1 } else { 0 };
            self.is_gathering = self.close_reads >= CLOSE_READS;
        }
        self.last = Some(now);
    }
}

/// The mark at which the kernel wakes who reads.
#[derive(Debug)]
pub(super) struct LowWater {
    socket: OwnedFd,
    is_raised: bool,
}

impl LowWater {
    /// Of a TCP socket; `None` where there is no such mark.
    pub(super) fn of(socket: &impl AsFd) -> Option<Self> {
        if cfg!(target_os = "linux") {
            let socket = socket.as_fd().try_clone_to_owned().ok()?;
            Some(LowWater { socket, is_raised: false })
        } else {
            None
        }
    }

    /// Raises or lowers it. Lowering it wakes at once if anything is there.
    fn raise(&mut self, is_raised: bool) -> io::Result<()> {
        if is_raised != self.is_raised {
            set_low_water(&self.socket, if is_raised { LOW_WATER } else { 1 })?;
            self.is_raised = is_raised;
        }
        Ok(())
    }
}

/// No crate that we have sets this option.
fn set_low_water(socket: &OwnedFd, bytes: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let len = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    // SAFETY: the descriptor is open while `socket` is borrowed, and the option's value is an int that outlives the call,
    // with its own length.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const value).cast(), len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Gathering {
    mark: Option<LowWater>,
    pace: Pace,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Gathering {
    /// By this mark; without one, never.
    pub(super) fn new(mark: Option<LowWater>) -> Self {
        Gathering { mark, pace: Pace::default(), timer: None }
    }

    /// A read brought `count` bytes: how is the next one done?
    pub(super) fn read(&mut self, count: usize) {
        let Some(mark) = &mut self.mark else { return };
        let now = Instant::now();
        self.pace.read(now, count);
        if mark.raise(self.pace.is_gathering).is_err() {
            // A socket that knows no mark is read as it always was.
            (self.mark, self.pace.is_gathering) = (None, false);
        }
        if self.pace.is_gathering {
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(now + WAIT_MAX),
                None => self.timer = Some(Box::pin(tokio::time::sleep_until(now + WAIT_MAX))),
            }
        }
    }

    /// Nothing was there to read, and the reader is registered to be woken: once the wait is over, by whatever comes.
    pub(super) fn wait(&mut self, cx: &mut Context<'_>) {
        let (Some(mark), Some(timer)) = (&mut self.mark, &mut self.timer) else { return };
        if mark.is_raised && timer.as_mut().poll(cx).is_ready() && mark.raise(false).is_err() {
            self.mark = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    /// Catches a quiet stream that is made to wait, and a busy one that is not gathered or is gathered for ever.
    #[test]
    fn only_a_busy_stream_is_gathered() {
        let start = Instant::now();
        let mut pace = Pace::default();
        for step in 0..1_000 {
            pace.read(start + Duration::from_millis(step), 1_000);
            assert!(!pace.is_gathering, "a message each millisecond is read at once");
        }
        let start = start + Duration::from_secs(2);
        let mut reads = 0;
        while !pace.is_gathering {
            reads += 1;
            pace.read(start + Duration::from_micros(20 * reads), 100);
        }
        assert!((16..64).contains(&reads), "{reads} reads");
        pace.read(start, WORTH_A_WAIT);
        assert!(pace.is_gathering, "it goes on while it is worth it");
        pace.read(start, WORTH_A_WAIT - 1);
        assert!(!pace.is_gathering);
    }

    /// Catches bytes below the mark that nobody ever reads: the end of a busy time would wait for the next change.
    #[tokio::test]
    async fn what_is_below_the_mark_comes_all_the_same() -> io::Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let mut peer = std::net::TcpStream::connect(listener.local_addr()?)?;
        peer.set_nodelay(true)?;
        let (mut socket, _) = listener.accept().await?;
        let mut mark = LowWater::of(&socket).expect("TCP has one");
        let mut bytes = [0; 100];
        mark.raise(true)?;
        peer.write_all(b"few")?;
        let early = tokio::time::timeout(Duration::from_millis(50), socket.read(&mut bytes)).await;
        // The bytes may have been there before the mark was looked at; what counts is that they come.
        let got = match early {
            Ok(read) => read?,
            Err(_) => {
                let reading = socket.read(&mut bytes);
                let mut reading = std::pin::pin!(reading);
                assert!(futures::poll!(reading.as_mut()).is_pending(), "below the mark");
                mark.raise(false)?;
                tokio::time::timeout(Duration::from_secs(30), reading).await.expect("the kernel wakes at once")?
            }
        };
        assert_eq!(bytes.get(..got), Some(&b"few"[..]));
        Ok(())
    }
}
