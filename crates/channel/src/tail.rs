//! The visible tail of a partition, and who waits for it to move (C56).
//!
//! Records at or past it do not exist for any reader. A reader registers before it looks, and a move looks at the
//! list after it stored, both sequentially consistent, so no wake-up is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

use landfall_types::Offset;
use parking_lot::Mutex;

use crate::threads::wake_all;

#[derive(Debug, Default)]
pub(crate) struct VisibleTail {
    tail: AtomicU64,
    is_awaited: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// One place per registered reader; taken by each move.
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
    /// Readers that wait for no more than the end of the channel are woken by it too.
    is_closed: bool,
}

/// A reader's place in the wait list.
#[derive(Debug)]
pub(crate) struct Seat(usize);

impl VisibleTail {
    pub(crate) fn at(tail: Offset) -> Self {
        VisibleTail { tail: AtomicU64::new(tail.0), ..VisibleTail::default() }
    }

    pub(crate) fn get(&self) -> Offset {
        Offset(self.tail.load(Ordering::SeqCst))
    }

    /// Only a committer calls this, after the bytes below are as durable as the class says. Infallible (C24).
    pub(crate) fn advance(&self, to: Offset) {
        self.tail.store(to.0, Ordering::SeqCst);
    }

    /// Wakes whoever waits; after [`Self::advance`].
    pub(crate) fn wake(&self) {
        if self.is_awaited.swap(false, Ordering::SeqCst) {
            let mut wakers: Vec<Waker> = {
                let mut waiting = self.waiting.lock();
                waiting.wakers.iter_mut().filter_map(Option::take).collect()
            };
            wake_all(&mut wakers);
        }
    }

    /// No reader waits any more.
    pub(crate) fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.is_awaited.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.waiting.lock().is_closed
    }

    pub(crate) fn take_seat(&self) -> Seat {
        let mut waiting = self.waiting.lock();
        match waiting.free.pop() {
            Some(place) => Seat(place),
            None => {
                waiting.wakers.push(None);
                Seat(waiting.wakers.len() - 1)
            }
        }
    }

    pub(crate) fn leave(&self, seat: &Seat) {
        let mut waiting = self.waiting.lock();
        if let Some(place) = waiting.wakers.get_mut(seat.0) {
            *place = None;
            waiting.free.push(seat.0);
        }
    }

    /// Registers `waker` unless the tail is past `offset` already: then true, and nothing is registered for longer
    /// than it takes to look.
    pub(crate) fn is_past_or_register(&self, seat: &Seat, offset: Offset, waker: &Waker) -> bool {
        {
            let mut waiting = self.waiting.lock();
            if let Some(place) = waiting.wakers.get_mut(seat.0) {
                match place {
                    Some(old) if old.will_wake(waker) => {}
                    _ => *place = Some(waker.clone()),
                }
            }
            self.is_awaited.store(true, Ordering::SeqCst);
        }
        self.get() > offset
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Catches a reader that sleeps although the tail has moved, and one that is woken without having asked.
    #[test]
    fn a_registered_reader_is_woken_once_by_a_move() {
        let tail = VisibleTail::at(Offset(5));
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let seat = tail.take_seat();
        assert!(tail.is_past_or_register(&seat, Offset(4), &waker));
        assert!(!tail.is_past_or_register(&seat, Offset(5), &waker));
        tail.advance(Offset(6));
        tail.wake();
        tail.advance(Offset(7));
        tail.wake();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        tail.leave(&seat);
        assert_eq!(tail.take_seat().0, 0, "a place is used again");
    }
}
