//! The read pool: threads that read segments for subscriptions, lanes and one-shot reads (C28).
//!
//! Each reader has at most one job in it, so the queue is bounded by the number of readers.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
pub(crate) struct ReadPool {
    shared: Arc<Shared>,
    threads_max: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Jobs>,
    work: Condvar,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    idle: usize,
    threads: usize,
    is_closed: bool,
}

impl ReadPool {
    pub(crate) fn new(threads_max: usize) -> ReadPool {
        ReadPool { shared: Arc::default(), threads_max: threads_max.max(1), threads: Mutex::default() }
    }

    /// Runs the job on a thread of the pool. The job is dropped unrun if the pool is closed.
    pub(crate) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let needs_thread = {
            let mut jobs = self.shared.queue.lock();
            if jobs.is_closed {
                return;
            }
            jobs.waiting.push_back(Box::new(job));
            let needs = jobs.waiting.len() > jobs.idle && jobs.threads < self.threads_max;
            if needs {
                jobs.threads += 1;
            }
            needs
        };
        self.shared.work.notify_one();
        if needs_thread {
            self.add_thread();
        }
    }

    /// Runs the job and waits for what it gives; `None` if the pool is closed or the job panicked.
    pub(crate) async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        self.spawn(move || {
            // The reader may have gone; then nobody wants it.
            let _ = answer.send(job());
        });
        answered.await.ok()
    }

    fn add_thread(&self) {
        let mut threads = self.threads.lock();
        let shared = Arc::clone(&self.shared);
        match std::thread::Builder::new().name(format!("read-{}", threads.len())).spawn(move || run(&shared)) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                let mut jobs = self.shared.queue.lock();
                jobs.threads -= 1;
                if jobs.threads == 0 {
                    // Readers get an error instead of waiting for a thread that never comes.
                    jobs.waiting.clear();
                }
                tracing::error!(cause = %error, threads = jobs.threads, "no further read thread could be started");
            }
        }
    }

    /// Drops what waits and ends the threads. A thread that hangs in the device is left behind, since a read has nothing
    /// to lose.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut jobs = self.shared.queue.lock();
            jobs.is_closed = true;
            std::mem::take(&mut jobs.waiting)
        };
        drop(waiting);
        self.shared.work.notify_all();
        for thread in self.threads.lock().drain(..) {
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

fn run(shared: &Shared) {
    let mut jobs = shared.queue.lock();
    while !jobs.is_closed {
        let Some(job) = jobs.waiting.pop_front() else {
            jobs.idle += 1;
            shared.work.wait(&mut jobs);
            jobs.idle -= 1;
            continue;
        };
        drop(jobs);
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!(code = "LF-CH0059", "a read panicked; its reader gets an error");
        }
        jobs = shared.queue.lock();
    }
    jobs.threads -= 1;
}
