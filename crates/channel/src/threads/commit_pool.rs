//! The commit pool: one FIFO run queue of committers that have work, and threads that run one turn each (C29).
//!
//! Threads are made when work waits and none is idle, up to the bound, so partitions sync in parallel and a hung
//! device under one of them does not stop the rest (I13). A panic in a turn is caught here (C31).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::committer::{After, Committer};

#[derive(Debug)]
pub(crate) struct CommitPool {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<RunQueue>,
    work: Condvar,
    /// Length of `queue.ready`, for a look without the lock.
    ready: AtomicUsize,
    threads_max: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct RunQueue {
    ready: VecDeque<Box<Committer>>,
    /// Committers that wait for a time.
    later: BinaryHeap<Reverse<Later>>,
    idle: usize,
    threads: usize,
    is_closed: bool,
}

#[derive(Debug)]
struct Later {
    at: Instant,
    committer: Box<Committer>,
}

impl PartialEq for Later {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl Eq for Later {}
impl PartialOrd for Later {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Later {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

impl CommitPool {
    pub(crate) fn new(threads_max: usize) -> CommitPool {
        CommitPool { shared: Arc::new(Shared { threads_max: threads_max.max(1), ..Shared::default() }) }
    }

    /// Puts a committer at the back of the run queue.
    pub(crate) fn submit(&self, committer: Box<Committer>) {
        let needs_thread = {
            let mut queue = self.shared.queue.lock();
            if queue.is_closed {
                // Whoever closed the pool answers what is queued; the committer is parked for it.
                drop(queue);
                committer.partition().clone().intake.park_always(committer);
                return;
            }
            queue.ready.push_back(committer);
            self.shared.ready.store(queue.ready.len(), Ordering::Release);
            let needs = queue.ready.len() > queue.idle && queue.threads < self.shared.threads_max;
            if needs {
                queue.threads += 1;
            }
            needs
        };
        self.shared.work.notify_one();
        if needs_thread {
            add_thread(&self.shared);
        }
    }

    /// Ends the threads after their turns; waits for them until then. Committers are parked at their partitions.
    pub(crate) fn close(&self, by: Instant) {
        let left: Vec<Box<Committer>> = {
            let mut queue = self.shared.queue.lock();
            queue.is_closed = true;
            let later = std::mem::take(&mut queue.later).into_iter().map(|Reverse(later)| later.committer);
            let ready = std::mem::take(&mut queue.ready);
            ready.into_iter().chain(later).collect()
        };
        self.shared.work.notify_all();
        for committer in left {
            committer.partition().clone().intake.park_always(committer);
        }
        let mut queue = self.shared.queue.lock();
        while queue.threads > 0 {
            if self.shared.work.wait_until(&mut queue, by).timed_out() {
                tracing::error!(threads = queue.threads, "commit threads hang in the device; they are left behind");
                return;
            }
        }
        drop(queue);
        for thread in self.shared.threads.lock().drain(..) {
            // It has left its loop; a panic in it was reported there.
            let _ = thread.join();
        }
    }
}

/// Starts a thread that the queue counts already.
fn add_thread(shared: &Arc<Shared>) {
    let mut threads = shared.threads.lock();
    let own = Arc::clone(shared);
    let number = threads.len();
    match std::thread::Builder::new().name(format!("commit-{number}")).spawn(move || run(&own)) {
        Ok(thread) => threads.push(thread),
        Err(error) => {
            let mut queue = shared.queue.lock();
            queue.threads -= 1;
            tracing::error!(cause = %error, threads = queue.threads, "no further commit thread could be started");
        }
    }
}

/// How long a thread looks for work before it sleeps: about what waking it would take, so that a lone publisher that
/// publishes again at once meets a thread that is awake.
const SPIN: Duration = Duration::from_micros(20);

fn run(shared: &Arc<Shared>) {
    while let Some(mut committer) = next(shared) {
        let after = match catch_unwind(AssertUnwindSafe(|| committer.turn())) {
            Ok(after) => after,
            Err(panic) => {
                let text = panic_text(&*panic);
                match catch_unwind(AssertUnwindSafe(|| committer.recover(text))) {
                    Ok(true) => After::Again,
                    // Stopped: nothing will be queued for it any more.
                    Ok(false) => continue,
                    Err(panic) => {
                        committer.give_up(format!("recovery panicked: {}", panic_text(&*panic)).into());
                        continue;
                    }
                }
            }
        };
        put_back(shared, committer, after);
    }
    let mut queue = shared.queue.lock();
    queue.threads -= 1;
    drop(queue);
    shared.work.notify_all();
}

fn put_back(shared: &Shared, committer: Box<Committer>, after: After) {
    let partition = Arc::clone(committer.partition());
    let committer = match after {
        // Those who come back find it at work: nobody has to wake a thread for it.
        After::Again if committer.is_gathering() && shared.ready.load(Ordering::Acquire) == 0 => committer,
        After::Park | After::Again => match partition.intake.park(committer) {
            None => return,
            Some(committer) => committer,
        },
        After::At(_) => committer,
    };
    let mut queue = shared.queue.lock();
    if queue.is_closed {
        drop(queue);
        partition.intake.park_always(committer);
        return;
    }
    match after {
        After::At(at) => {
            queue.later.push(Reverse(Later { at, committer }));
            drop(queue);
            // Some idle thread has to learn of the new time.
            shared.work.notify_one();
        }
        After::Park | After::Again => {
            queue.ready.push_back(committer);
            shared.ready.store(queue.ready.len(), Ordering::Release);
        }
    }
}

fn next(shared: &Arc<Shared>) -> Option<Box<Committer>> {
    let mut has_spun = false;
    let mut queue = shared.queue.lock();
    loop {
        if queue.is_closed {
            return None;
        }
        let now = Instant::now();
        if queue.later.peek().is_some_and(|Reverse(later)| later.at <= now) {
            let committer = queue.later.pop().map(|Reverse(later)| later.committer);
            leave_rest(shared, queue);
            return committer;
        }
        if let Some(committer) = queue.ready.pop_front() {
            shared.ready.store(queue.ready.len(), Ordering::Release);
            leave_rest(shared, queue);
            return Some(committer);
        }
        // A thread that spins counts as idle, so that nobody starts another one for what it is about to take.
        queue.idle += 1;
        if !has_spun {
            has_spun = true;
            MutexGuard::unlocked(&mut queue, || {
                while shared.ready.load(Ordering::Acquire) == 0 && now.elapsed() < SPIN {
                    std::thread::yield_now();
                }
            });
        } else if let Some(at) = queue.later.peek().map(|Reverse(later)| later.at) {
            let _ = shared.work.wait_until(&mut queue, at);
        } else {
            shared.work.wait(&mut queue);
        }
        queue.idle -= 1;
    }
}

/// Sees to it that somebody looks after what is left while this thread is in a turn, which may hang in its device (I13):
/// who published into a partition that stands in the queue wakes nobody.
fn leave_rest(shared: &Arc<Shared>, mut queue: MutexGuard<'_, RunQueue>) {
    if queue.ready.is_empty() && queue.later.is_empty() {
        return;
    }
    if queue.idle > 0 {
        drop(queue);
        // It takes it, or learns of its time.
        shared.work.notify_one();
    } else if queue.threads < shared.threads_max {
        queue.threads += 1;
        drop(queue);
        add_thread(shared);
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
