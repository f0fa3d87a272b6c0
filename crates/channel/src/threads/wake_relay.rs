//! Wakes the publishers of a turn from inside the runtime.
//!
//! A waker that is called on a plain thread goes through the runtime's shared queue, and through a system call where its
//! worker sleeps; and a worker that is woken for the first of many has fallen asleep again before the next. So a turn's
//! wakers travel to one task, which calls them where it is a push onto the worker's own queue. Where no runtime is, or once
//! it has ended, they are called at once: nobody is left waiting.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::threads::wake_all;

/// Fewer are called where they are: the hop would cost what it saves, and a lone publish must not pay for it.
const WORTH_A_HOP: usize = 4;

/// The way from the commit threads into the runtime. Dropped, it ends its task.
#[derive(Debug, Default)]
pub(crate) struct WakeRelay {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Vec<Waker>,
    /// The task's own; `None` before its first poll and after its end.
    task: Option<Waker>,
    is_closed: bool,
}

impl WakeRelay {
    /// On the runtime of this call; without one all wakers are called at once.
    pub(crate) fn start() -> WakeRelay {
        let relay = WakeRelay::default();
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(RelayTask { shared: Arc::clone(&relay.shared), called: Vec::new() });
        }
        relay
    }

    /// Calls all of them, here or in the runtime; leaves `wakers` empty. Never blocks.
    pub(crate) fn wake(&self, wakers: &mut Vec<Waker>) {
        if wakers.len() >= WORTH_A_HOP {
            let mut shared = self.shared.lock();
            if let Some(task) = shared.task.clone() {
                shared.waiting.append(wakers);
                drop(shared);
                task.wake();
                return;
            }
        }
        wake_all(wakers);
    }
}

impl Drop for WakeRelay {
    fn drop(&mut self) {
        let task = {
            let mut shared = self.shared.lock();
            shared.is_closed = true;
            shared.task.take()
        };
        task.into_iter().for_each(Waker::wake);
    }
}

struct RelayTask {
    shared: Arc<Mutex<Shared>>,
    /// Reused.
    called: Vec<Waker>,
}

impl Future for RelayTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let is_closed = {
            let mut shared = this.shared.lock();
            std::mem::swap(&mut shared.waiting, &mut this.called);
            let is_known = shared.task.as_ref().is_some_and(|task| task.will_wake(cx.waker()));
            if !shared.is_closed && !is_known {
                shared.task = Some(cx.waker().clone());
            }
            shared.is_closed
        };
        wake_all(&mut this.called);
        if is_closed { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Also where the runtime ends first.
impl Drop for RelayTask {
    fn drop(&mut self) {
        let mut left = {
            let mut shared = self.shared.lock();
            shared.task = None;
            std::mem::take(&mut shared.waiting)
        };
        wake_all(&mut left);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::task::Wake;
    use std::thread::ThreadId;
    use std::time::Duration;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    /// Tells on which thread it was called.
    struct Tells(Sender<ThreadId>);

    impl Wake for Tells {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(std::thread::current().id());
        }
    }

    fn wakers(count: usize) -> (Vec<Waker>, Receiver<ThreadId>) {
        let (tell, told) = channel();
        ((0..count).map(|_| Waker::from(Arc::new(Tells(tell.clone())))).collect(), told)
    }

    fn threads(told: &Receiver<ThreadId>, count: usize) -> Vec<ThreadId> {
        (0..count).map(|_| told.recv_timeout(Duration::from_secs(10)).expect("it is woken")).collect()
    }

    fn started() -> (Runtime, WakeRelay) {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
        let relay = runtime.block_on(async { WakeRelay::start() });
        while relay.shared.lock().task.is_none() {
            std::thread::yield_now();
        }
        (runtime, relay)
    }

    /// Catches wakers that are lost on their way, turns that are woken one by one from outside, and a lone publisher that
    /// has to take the detour.
    #[test]
    fn a_turn_is_woken_in_the_runtime_and_a_lone_publisher_at_once() {
        let (_runtime, relay) = started();
        let here = std::thread::current().id();
        for round in 0..100 {
            let (mut many, told) = wakers(WORTH_A_HOP + round);
            relay.wake(&mut many);
            assert!(many.is_empty());
            assert!(threads(&told, WORTH_A_HOP + round).iter().all(|thread| *thread != here), "round {round}");
        }
        let (mut few, told) = wakers(WORTH_A_HOP - 1);
        relay.wake(&mut few);
        assert!(threads(&told, WORTH_A_HOP - 1).iter().all(|thread| *thread == here));
    }

    /// Catches publishers that wait for ever because the runtime has ended, before or after their wakers were handed over.
    #[test]
    fn a_runtime_that_ends_leaves_nobody_waiting() {
        let (runtime, relay) = started();
        // The only worker is held, so that what is handed over now is never called by the task.
        let (hold, held) = channel::<()>();
        let (is_held, holds) = channel();
        runtime.spawn(async move {
            let _ = is_held.send(());
            let _ = held.recv();
        });
        holds.recv().expect("the worker is held");
        let (mut before, told) = wakers(50);
        relay.wake(&mut before);
        runtime.shutdown_background();
        drop(hold);
        threads(&told, 50);
        while relay.shared.lock().task.is_some() {
            std::thread::yield_now();
        }
        let (mut after, told) = wakers(50);
        relay.wake(&mut after);
        assert!(threads(&told, 50).iter().all(|thread| *thread == std::thread::current().id()));
    }

    /// Catches a task that outlives the channels, and a relay that needs a runtime.
    #[test]
    fn it_ends_with_its_channels_and_works_without_a_runtime() {
        let (runtime, relay) = started();
        let shared = Arc::downgrade(&relay.shared);
        drop(relay);
        while shared.strong_count() > 0 {
            std::thread::yield_now();
        }
        drop(runtime);
        let (mut many, told) = wakers(50);
        WakeRelay::start().wake(&mut many);
        threads(&told, 50);
    }
}
