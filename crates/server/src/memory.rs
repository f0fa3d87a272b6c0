//! The budget of bytes that were received and that no channel holds yet: `server.ingest.memory` (I6, I14).
//!
//! A stream or request has an [`Account`]; its body charges each frame before it is decoded, and the account is
//! released when a channel's own budget holds the records, or on drop. Waits are first come, first served (I10).
//! The head of the queue may overdraw until its message is handed over: otherwise messages of which half is read
//! could fill the budget and all wait for each other. Plain and synchronous; it wakes by `Waker`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// The budget of the process.
#[derive(Debug)]
pub(crate) struct IngestMemory {
    state: Mutex<State>,
    next_account: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Negative while the head overdraws.
    free: i64,
    overdrawer: Option<u64>,
    queue: VecDeque<Waiter>,
    /// Granted to an account that has not come back for it yet.
    granted: HashMap<u64, i64>,
}

#[derive(Debug)]
struct Waiter {
    account: u64,
    bytes: i64,
    waker: Waker,
}

impl State {
    fn grant_heads(&mut self) {
        while let Some(head) = self.queue.front() {
            let fits = self.free >= head.bytes;
            let overdraws = self.overdrawer.is_none_or(|account| account == head.account);
            if !fits && !overdraws {
                return;
            }
            if !fits {
                self.overdrawer = Some(head.account);
            }
            if let Some(head) = self.queue.pop_front() {
                self.free -= head.bytes;
                self.granted.insert(head.account, head.bytes);
                head.waker.wake();
            }
        }
    }
}

impl IngestMemory {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(IngestMemory {
            state: Mutex::new(State {
                free: i64::try_from(bytes).unwrap_or(i64::MAX),
                overdrawer: None,
                queue: VecDeque::new(),
                granted: HashMap::new(),
            }),
            next_account: AtomicU64::new(0),
        })
    }

    pub(crate) fn account(self: &Arc<Self>) -> Arc<Account> {
        Arc::new(Account {
            id: self.next_account.fetch_add(1, Ordering::Relaxed),
            held: AtomicU64::new(0),
            memory: Arc::clone(self),
        })
    }
}

/// What one stream or request holds of the budget. One charge at a time may wait; all is given back on drop.
#[derive(Debug)]
pub(crate) struct Account {
    id: u64,
    held: AtomicU64,
    memory: Arc<IngestMemory>,
}

impl Account {
    /// Charges `bytes`. While it is pending, call it again with the same number.
    pub(crate) fn poll_charge(&self, bytes: usize, cx: &mut Context<'_>) -> Poll<()> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let mut state = self.memory.state.lock();
        if let Some(waiter) = state.queue.iter_mut().find(|waiter| waiter.account == self.id) {
            waiter.waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        if state.granted.remove(&self.id).is_none() {
            let owner = state.overdrawer == Some(self.id);
            if owner || (state.queue.is_empty() && state.free >= bytes) {
                state.free -= bytes;
            } else {
                state.queue.push_back(Waiter { account: self.id, bytes, waker: cx.waker().clone() });
                state.grant_heads();
                if state.granted.remove(&self.id).is_none() {
                    return Poll::Pending;
                }
            }
        }
        drop(state);
        self.held.fetch_add(bytes.unsigned_abs(), Ordering::Relaxed);
        Poll::Ready(())
    }

    /// Charges without waiting; `false`: there is no room.
    pub(crate) fn try_charge(&self, bytes: usize) -> bool {
        let wanted = i64::try_from(bytes).unwrap_or(i64::MAX);
        let mut state = self.memory.state.lock();
        if !state.queue.is_empty() || state.free < wanted {
            return false;
        }
        state.free -= wanted;
        drop(state);
        self.held.fetch_add(wanted.unsigned_abs(), Ordering::Relaxed);
        true
    }

    /// Gives back up to `bytes` of what is held, and the right to overdraw.
    pub(crate) fn release(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let mut freed = 0;
        // `held` only grows by the body's task and shrinks by the stream's: the update cannot fail for long.
        let _ = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            freed = held.min(bytes);
            Some(held - freed)
        });
        let mut state = self.memory.state.lock();
        state.free = state.free.saturating_add(i64::try_from(freed).unwrap_or(i64::MAX));
        if state.overdrawer == Some(self.id) {
            state.overdrawer = None;
        }
        state.grant_heads();
    }

    /// What is held now.
    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut state = self.memory.state.lock();
        if let Some(at) = state.queue.iter().position(|waiter| waiter.account == self.id) {
            state.queue.remove(at);
        }
        if let Some(bytes) = state.granted.remove(&self.id) {
            state.free = state.free.saturating_add(bytes);
        }
        drop(state);
        self.release(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    use super::*;

    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn flag() -> (Arc<Flag>, Waker) {
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        (Arc::clone(&flag), Waker::from(Arc::clone(&flag)))
    }

    fn charge(account: &Account, bytes: usize) -> bool {
        account.poll_charge(bytes, &mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Would catch a newcomer that passes a waiter, and a release that wakes nobody.
    #[test]
    fn charges_are_first_come_first_served() {
        let memory = IngestMemory::new(100);
        let (a, b, c, d) = (memory.account(), memory.account(), memory.account(), memory.account());
        assert!(charge(&a, 90));
        assert!(charge(&b, 50), "the head overdraws, so that a half-read message can end");
        let (woken, waker) = flag();
        assert!(c.poll_charge(10, &mut Context::from_waker(&waker)).is_pending());
        assert!(!charge(&d, 1), "a smaller one does not pass");
        assert!(!d.try_charge(1));
        b.release(50);
        assert!(woken.0.load(Ordering::SeqCst));
        assert!(charge(&c, 10));
        a.release(90);
        assert!(charge(&d, 1));
        assert_eq!((a.held(), b.held(), c.held(), d.held()), (0, 0, 10, 1));
    }

    /// Would catch bytes lost with an account: waiting, granted and not taken, or holding.
    #[test]
    fn a_dropped_account_gives_everything_back() {
        let memory = IngestMemory::new(100);
        let (a, b, c) = (memory.account(), memory.account(), memory.account());
        assert!(charge(&a, 100));
        assert!(charge(&b, 5));
        assert!(!charge(&c, 40));
        drop(b);
        // `c` was granted as the new head by `b`'s end and never came back for it.
        drop(c);
        drop(a);
        assert_eq!(memory.state.lock().free, 100);
        assert!(memory.state.lock().queue.is_empty() && memory.state.lock().granted.is_empty());
    }

    /// Would catch a second message let in over the budget while the first one still overdraws.
    #[test]
    fn one_account_at_a_time_overdraws() {
        let memory = IngestMemory::new(10);
        let (a, b) = (memory.account(), memory.account());
        assert!(charge(&a, 10));
        assert!(charge(&a, 10), "the overdrawer goes on until its message is handed over");
        assert!(!charge(&b, 10));
        a.release(20);
        assert!(charge(&b, 10));
    }
}
