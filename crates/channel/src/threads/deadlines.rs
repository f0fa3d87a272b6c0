//! Who waits long is told so, without a timer of their own from the start.
//!
//! A publish is mostly answered within a millisecond, and a timer that never fires costs it more than anything else in its
//! way: the runtime's timer lock twice, and a system call where no earlier timer is set. So a ticket starts without one. A
//! task looks at what waits every [`TICK`]; what two looks have found is woken once, and sets its own timer then.
//! While nothing waits, nothing looks.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use landfall_types::TicketNumber;
use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Sleep;

use crate::partition::Partition;
use crate::threads::wake_all;

const TICK: Duration = Duration::from_millis(20);
/// After so many looks that found nothing the task rests.
const IDLE_TICKS: u32 = 16;
/// With less to go, a ticket has its own timer from the start: two looks may come too late for it.
const WATCHED_MIN: Duration = TICK.saturating_mul(3);

/// The watch over all partitions of a process. Dropped, it ends its task.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The task looks, or will: whoever finds it so need not wake it.
    is_armed: AtomicBool,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    added: Vec<Watched>,
    /// While the task rests.
    task: Option<Waker>,
    is_running: bool,
    is_closed: bool,
}

impl Deadlines {
    /// On the runtime of this call. Without one every ticket has its own timer, and with one that runs only while somebody
    /// blocks on it.
    pub(crate) fn start() -> Deadlines {
        let deadlines = Deadlines::default();
        let has_workers = |runtime: &Handle| runtime.runtime_flavor() != RuntimeFlavor::CurrentThread;
        if let Some(runtime) = Handle::try_current().ok().filter(has_workers) {
            deadlines.shared.inside.lock().is_running = true;
            let shared = Arc::clone(&deadlines.shared);
            runtime.spawn(Watch { shared, partitions: Vec::new(), sleep: None, idle: 0, wake: Vec::new() });
        }
        deadlines
    }

    pub(crate) fn add(&self, partition: &Arc<Partition>) {
        let watched = Watched { partition: Arc::downgrade(partition), told: 0, seen: 0, turn: None, told_turn: None };
        self.shared.inside.lock().added.push(watched);
    }

    /// Whether a ticket with this deadline needs no timer of its own.
    pub(crate) fn covers(&self, deadline: Duration) -> bool {
        deadline >= WATCHED_MIN
            && (self.shared.is_armed.load(Ordering::Relaxed) || self.shared.inside.lock().is_running)
    }

    #[cfg(test)]
    pub(crate) fn is_armed(&self) -> bool {
        self.shared.is_armed.load(Ordering::SeqCst)
    }

    /// Something was queued: it is looked at from now on. False: there is nobody to do so.
    pub(crate) fn arm(&self) -> bool {
        // Sequentially consistent, as in the task: either this sees that it rests, or it sees what was queued.
        if self.shared.is_armed.load(Ordering::SeqCst) {
            return true;
        }
        let mut inside = self.shared.inside.lock();
        if !inside.is_running {
            return false;
        }
        self.shared.is_armed.store(true, Ordering::SeqCst);
        let task = inside.task.take();
        drop(inside);
        task.into_iter().for_each(Waker::wake);
        true
    }
}

impl Drop for Deadlines {
    fn drop(&mut self) {
        let task = {
            let mut inside = self.shared.inside.lock();
            inside.is_closed = true;
            inside.task.take()
        };
        task.into_iter().for_each(Waker::wake);
    }
}

/// A partition, and how far its tickets were looked at.
#[derive(Debug)]
struct Watched {
    partition: Weak<Partition>,
    /// Queued before this: told.
    told: u64,
    /// Queued before this: there at the last look.
    seen: u64,
    /// The last ticket of the turn that was under way at the last look.
    turn: Option<TicketNumber>,
    told_turn: Option<TicketNumber>,
}

impl Watched {
    /// Tells what was there at the last look. True: something waits.
    fn look(&mut self, wake: &mut Vec<Waker>) -> bool {
        let Some(partition) = self.partition.upgrade() else { return false };
        // Between queue and claim nothing would be found; the next look finds it.
        let Some(queue) = partition.intake.tell(self.told..self.seen, wake) else { return true };
        self.told = self.seen;
        self.seen = queue.handed_over;
        let claimed = partition.claimed.lock();
        // Its last one: a turn that is being gathered grows.
        let turn = claimed.last().map(|last| last.ticket);
        if turn.is_some() && turn == self.turn && turn != self.told_turn {
            claimed.iter().for_each(|claimed| claimed.queued.cell.tell(wake));
            self.told_turn = turn;
        }
        self.turn = turn;
        queue.is_waiting || turn.is_some()
    }
}

/// The task.
struct Watch {
    shared: Arc<Shared>,
    partitions: Vec<Watched>,
    sleep: Option<Pin<Box<Sleep>>>,
    /// Looks in a row that found nothing.
    idle: u32,
    /// Reused.
    wake: Vec<Waker>,
}

impl Watch {
    fn look(&mut self) -> bool {
        self.partitions.append(&mut self.shared.inside.lock().added);
        self.partitions.retain(|watched| watched.partition.strong_count() > 0);
        let mut is_waiting = false;
        for watched in &mut self.partitions {
            is_waiting |= watched.look(&mut self.wake);
        }
        wake_all(&mut self.wake);
        is_waiting
    }
}

impl Future for Watch {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            {
                let mut inside = this.shared.inside.lock();
                if inside.is_closed {
                    return Poll::Ready(());
                }
                if !this.shared.is_armed.load(Ordering::SeqCst) {
                    inside.task = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
            let sleep = this.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(TICK)));
            if sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.sleep = None;
            this.idle = if this.look() { 0 } else { this.idle + 1 };
            if this.idle >= IDLE_TICKS {
                this.shared.is_armed.store(false, Ordering::SeqCst);
                // What was queued while it still seemed armed.
                if this.look() {
                    this.shared.is_armed.store(true, Ordering::SeqCst);
                }
                this.idle = 0;
            }
        }
    }
}

/// Also where the runtime ends first: who waits on another one has its own timer from then on.
impl Drop for Watch {
    fn drop(&mut self) {
        {
            let mut inside = self.shared.inside.lock();
            inside.is_running = false;
            self.shared.is_armed.store(false, Ordering::SeqCst);
            self.partitions.append(&mut inside.added);
        }
        self.partitions
            .iter()
            .filter_map(|watched| watched.partition.upgrade())
            .for_each(|partition| partition.tell_all());
    }
}
