//! The process's byte budget for what is queued and claimed, first come first served (C21, I10).

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Shared by all partitions. Permits are bytes.
#[derive(Clone, Debug)]
pub(crate) struct ProcessBudget {
    bytes: Arc<Semaphore>,
    total: usize,
}

impl ProcessBudget {
    pub(crate) fn new(total: usize) -> Self {
        let total = total.min(Semaphore::MAX_PERMITS);
        ProcessBudget { bytes: Arc::new(Semaphore::new(total)), total }
    }

    /// The largest sum that one hand-over may ask for.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Takes bytes if nobody waits for them and they are there.
    pub(crate) fn try_take(&self, bytes: usize) -> bool {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.bytes.try_acquire_many(permits).map(|permit| permit.forget()).is_ok()
    }

    /// Waits for bytes in line; false: not by then.
    pub(crate) async fn take_by(&self, bytes: usize, by: Instant) -> bool {
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        match tokio::time::timeout_at(by, self.bytes.acquire_many(permits)).await {
            Ok(Ok(permit)) => {
                permit.forget();
                true
            }
            // Closed it never is; late it may be.
            Ok(Err(_)) | Err(_) => false,
        }
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.bytes.add_permits(bytes);
        }
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.total - self.bytes.available_permits().min(self.total)
    }
}
