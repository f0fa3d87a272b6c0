//! The primitives of the queue's shared part, so that loom can run the same code as production.

#[cfg(feature = "loom")]
pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(super) use std::sync::Arc;
#[cfg(not(feature = "loom"))]
pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A short, memory-only lock. It is taken per bundle, never per log record, and never held over a call to a sink.
#[derive(Debug)]
pub(super) struct Mutex<T>(
    #[cfg(feature = "loom")] loom::sync::Mutex<T>,
    #[cfg(not(feature = "loom"))] parking_lot::Mutex<T>,
);

impl<T> Mutex<T> {
    #[cfg(feature = "loom")]
    pub(super) fn new(value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value))
    }

    #[cfg(not(feature = "loom"))]
    pub(super) fn new(value: T) -> Self {
        Mutex(parking_lot::Mutex::new(value))
    }

    #[cfg(feature = "loom")]
    pub(super) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[cfg(not(feature = "loom"))]
    pub(super) fn lock(&self) -> parking_lot::MutexGuard<'_, T> {
        self.0.lock()
    }
}
