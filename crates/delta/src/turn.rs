//! A value that one task at a time works on, across I/O, without a lock (I5): it is taken out, and goes back when the
//! holder lets go of it, however it ends.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Where the value lies between turns.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    cell: Mutex<Option<T>>,
    freed: Notify,
}

/// The value, out of its slot until dropped.
#[derive(Debug)]
pub(crate) struct Turn<T> {
    slot: Arc<Slot<T>>,
    value: Option<T>,
}

impl<T> Slot<T> {
    pub(crate) fn new(value: T) -> Arc<Self> {
        Arc::new(Slot { cell: Mutex::new(Some(value)), freed: Notify::new() })
    }

    /// Waits for the turn. Cancelling the wait takes nothing.
    pub(crate) async fn take(self: &Arc<Self>) -> Turn<T> {
        loop {
            let freed = self.freed.notified();
            if let Some(value) = self.cell.lock().take() {
                return Turn { slot: self.clone(), value: Some(value) };
            }
            freed.await;
        }
    }
}

impl<T> Deref for Turn<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("the value is there until drop")
    }
}

impl<T> DerefMut for Turn<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("the value is there until drop")
    }
}

impl<T> Drop for Turn<T> {
    fn drop(&mut self) {
        *self.slot.cell.lock() = self.value.take();
        self.slot.freed.notify_one();
    }
}
