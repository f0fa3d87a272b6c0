//! The waker of a driver or controller: a word of reason bits and one parking place (E4).
//!
//! A producer sets its bit, then unparks only if the owner announced that it sleeps; the owner announces sleep, reads
//! the bits again, then parks until its next timer. A fence lies between the two steps of each, so one of them sees the
//! other: no wake is lost, and none is needed twice.

use super::sync::{AtomicBool, AtomicU32, Ordering, fence, thread};

/// Why a thread is woken; a set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wake(pub(crate) u32);

impl Wake {
    /// A command or a report waits.
    pub(crate) const CONTROL: Wake = Wake(1);
    /// A lane or the source has something.
    pub(crate) const DATA: Wake = Wake(1 << 1);
    /// A shard or the dead-letter queue has room again.
    pub(crate) const ROOM: Wake = Wake(1 << 2);
    /// A ring has advanced past a closed gate.
    pub(crate) const ADVANCED: Wake = Wake(1 << 3);
    /// The head of a ring has been resolved.
    pub(crate) const RESOLVED: Wake = Wake(1 << 4);
    /// Flush what is coalesced.
    pub(crate) const FLUSH: Wake = Wake(1 << 5);
    /// End at once.
    pub(crate) const STOP: Wake = Wake(1 << 6);
    /// Nothing.
    pub(crate) const NONE: Wake = Wake(0);

    /// Whether all bits of `other` are set.
    pub(crate) fn has(self, other: Wake) -> bool {
        self.0 & other.0 == other.0
    }
}

/// See the module. `wake` may be called from any thread; `take` and `park` by the owning thread alone.
#[derive(Debug)]
pub(crate) struct Waker {
    bits: AtomicU32,
    is_asleep: AtomicBool,
    owner: parking_lot::Mutex<Option<thread::Thread>>,
}

impl Waker {
    /// A waker without an owner; wakes are kept until one takes them.
    pub(crate) fn new() -> Self {
        Waker { bits: AtomicU32::new(0), is_asleep: AtomicBool::new(false), owner: parking_lot::Mutex::new(None) }
    }

    /// Makes the calling thread the owner. Called once, before the first `park`.
    pub(crate) fn own(&self) {
        *self.owner.lock() = Some(thread::current());
    }

    /// Sets the bits and wakes the owner if it sleeps.
    pub(crate) fn wake(&self, why: Wake) {
        self.bits.fetch_or(why.0, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) && self.is_asleep.swap(false, Ordering::AcqRel) {
            let owner = self.owner.lock().clone();
            if let Some(owner) = owner {
                owner.unpark();
            }
        }
    }

    /// Takes the bits that are set.
    pub(crate) fn take(&self) -> Wake {
        Wake(self.bits.swap(0, Ordering::AcqRel))
    }

    /// Parks until a bit is set or `timeout` has passed (`None`: no timer), and takes the bits.
    #[cfg(not(feature = "loom"))]
    pub(crate) fn park(&self, timeout: Option<std::time::Duration>) -> Wake {
        self.is_asleep.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if self.bits.load(Ordering::Relaxed) == 0 {
            // A spurious return is harmless: the owner finds no bit and goes round once more.
            match timeout {
                Some(timeout) => thread::park_timeout(timeout),
                None => thread::park(),
            }
        }
        self.is_asleep.swap(false, Ordering::AcqRel);
        self.take()
    }

    /// The same without timers, which loom does not have.
    #[cfg(feature = "loom")]
    pub(crate) fn park(&self, _timeout: Option<std::time::Duration>) -> Wake {
        self.is_asleep.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if self.bits.load(Ordering::Relaxed) == 0 {
            thread::park();
        }
        self.is_asleep.swap(false, Ordering::AcqRel);
        self.take()
    }
}
