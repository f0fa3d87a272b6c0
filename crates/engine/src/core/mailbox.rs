//! Messages to a thread that sleeps on a [`Waker`]. The senders bound it: each message answers or makes one request.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Wake, Waker};

/// See the module.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    queue: Mutex<VecDeque<T>>,
    waker: Arc<Waker>,
}

impl<T> Mailbox<T> {
    pub(crate) fn new(waker: Arc<Waker>) -> Arc<Self> {
        Arc::new(Mailbox { queue: Mutex::new(VecDeque::new()), waker })
    }

    pub(crate) fn post(&self, message: T) {
        self.queue.lock().push_back(message);
        self.waker.wake(Wake::CONTROL);
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.queue.lock().pop_front()
    }

    pub(crate) fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }
}
