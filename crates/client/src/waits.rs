//! Who waits for which acknowledgement on one sub-stream.
//!
//! Ordered by stream offset, so that a moving front wakes exactly the waits that are due (and costs nothing
//! for those that are not). A wait is level-triggered: it looks at the front itself when it wakes.

use std::collections::BTreeMap;
use std::task::Waker;

/// A wait's key: its offset and a number of its own.
pub(crate) type WaitKey = (u64, u64);

#[derive(Debug, Default)]
pub(crate) struct WaitSet {
    waits: BTreeMap<WaitKey, Waker>,
    next: u64,
}

impl WaitSet {
    /// Registers a wait, or renews its waker.
    pub(crate) fn wait(&mut self, key: Option<WaitKey>, offset: u64, waker: &Waker) -> WaitKey {
        let key = key.unwrap_or_else(|| {
            self.next += 1;
            (offset, self.next)
        });
        self.waits.entry(key).and_modify(|old| old.clone_from(waker)).or_insert_with(|| waker.clone());
        key
    }

    /// Forgets a wait.
    pub(crate) fn cancel(&mut self, key: WaitKey) {
        self.waits.remove(&key);
    }

    /// Takes out the waits for offsets below `front`.
    pub(crate) fn due(&mut self, front: u64, woken: &mut Vec<Waker>) {
        while let Some(first) = self.waits.first_entry()
            && first.key().0 < front
        {
            woken.push(first.remove());
        }
    }

    /// Takes out all.
    pub(crate) fn all(&mut self, woken: &mut Vec<Waker>) {
        woken.extend(std::mem::take(&mut self.waits).into_values());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch an ack that wakes every waiter, as work that grows with the number of waits.
    #[test]
    fn ack_wakes_only_due_waits() {
        let mut waits = WaitSet::default();
        let keys: Vec<_> = (0..100).map(|offset| waits.wait(None, offset, Waker::noop())).collect();
        waits.cancel(keys[3]);
        assert_eq!(waits.wait(Some(keys[5]), 5, Waker::noop()), keys[5], "a renewed wait is the same wait");
        let mut woken = Vec::new();
        waits.due(10, &mut woken);
        assert_eq!(woken.len(), 9);
        woken.clear();
        waits.due(10, &mut woken);
        assert!(woken.is_empty());
        waits.all(&mut woken);
        assert_eq!(woken.len(), 90);
    }
}
