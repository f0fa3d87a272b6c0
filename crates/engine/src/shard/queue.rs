//! The queue of a shard: `try_send` never blocks and gives the chunk back (E3, E92).
//!
//! The share counts every byte from the moment it is queued until it is settled or held by the writer. A shard that
//! refused opens again only below its low mark, and then wakes the drivers once. A chunk larger than the room enters
//! an empty share, so that no chunk is too large for ever.

use std::collections::VecDeque;
use std::sync::Arc;

use landfall_types::PartitionId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Chunk, Segment};
use crate::core::{Wake, Waker};

/// The bounds of a shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShareLimits {
    /// H: bytes of queue, open batch and batches in writing.
    pub(crate) high: usize,
    /// Below it a shard that refused opens again.
    pub(crate) low: usize,
    /// Chunks in the queue.
    pub(crate) chunks: usize,
}

/// What a worker is asked to do beside its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Seal, write and settle whatever holds rows of the partition; the number comes back once it is done.
    Quiesce(PartitionId, u64),
    /// Give up whatever holds rows of the partition.
    Abort(PartitionId, u64),
    /// Seal and settle what there is soon: a commit is wanted.
    Settle,
    /// Seal at once, settle all, end. Nothing is queued after it.
    Drain(tokio::time::Instant),
    /// End at once.
    Stop,
}

#[derive(Debug, Default)]
struct Inside {
    chunks: VecDeque<Chunk>,
    used: usize,
    queued: usize,
    is_shut: bool,
    is_closed: bool,
    /// Who sends has said that no more comes for now, and nothing came since.
    is_lull: bool,
    urgencies: VecDeque<Urgency>,
}

/// See the module.
pub(crate) struct ShardQueue {
    inside: Mutex<Inside>,
    limits: ShareLimits,
    work: Notify,
    drivers: Mutex<Vec<Arc<Waker>>>,
    refusals: metrics::Counter,
}

impl std::fmt::Debug for ShardQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardQueue").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// The chunk that was not taken.
#[derive(Debug)]
pub(crate) struct Full(pub(crate) Chunk);

/// What a queue holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queued {
    /// Chunks in the queue.
    pub(crate) chunks: usize,
    /// Bytes in the queue.
    pub(crate) bytes: usize,
    /// Bytes of the share that are in use.
    pub(crate) share: usize,
    /// Whether it refuses.
    pub(crate) is_shut: bool,
}

/// Bytes of a share; given back on drop.
#[derive(Debug)]
pub(crate) struct Charge {
    queue: Arc<ShardQueue>,
    bytes: usize,
}

impl Charge {
    /// Splits off up to `bytes`.
    pub(crate) fn split(&mut self, bytes: usize) -> Charge {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Charge { queue: self.queue.clone(), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.queue.release(self.bytes);
        }
    }
}

impl ShardQueue {
    /// An empty queue.
    pub(crate) fn new(limits: ShareLimits, refusals: metrics::Counter) -> Arc<Self> {
        Arc::new(ShardQueue {
            inside: Mutex::new(Inside::default()),
            limits,
            work: Notify::new(),
            drivers: Mutex::new(Vec::new()),
            refusals,
        })
    }

    /// Takes the chunk or gives it back with every byte and hold in it.
    pub(crate) fn try_send(self: &Arc<Self>, mut chunk: Chunk) -> Result<(), Full> {
        let mut inside = self.inside.lock();
        let fits = inside.used == 0 || inside.used.saturating_add(chunk.bytes) <= self.limits.high;
        if inside.is_closed || inside.is_shut || !fits || inside.chunks.len() >= self.limits.chunks {
            let wakes = !std::mem::replace(&mut inside.is_shut, true);
            drop(inside);
            self.refusals.increment(1);
            if wakes {
                // The worker may have to seal under pressure (E93).
                self.work.notify_one();
            }
            return Err(Full(chunk));
        }
        inside.used += chunk.bytes;
        inside.queued += chunk.bytes;
        inside.is_lull = false;
        for segment in &mut chunk.segments {
            segment.charge = Some(Charge { queue: self.clone(), bytes: segment.bytes });
        }
        inside.chunks.push_back(chunk);
        drop(inside);
        self.work.notify_one();
        Ok(())
    }

    /// Nothing more comes for now: what was sent need not wait for company.
    pub(crate) fn lull(&self) {
        if !std::mem::replace(&mut self.inside.lock().is_lull, true) {
            self.work.notify_one();
        }
    }

    /// Whether everything was taken, and nothing more comes for now.
    pub(crate) fn is_lull(&self) -> bool {
        let inside = self.inside.lock();
        inside.is_lull && inside.chunks.is_empty()
    }

    /// Who is woken when the shard opens again.
    pub(crate) fn add_driver(&self, waker: Arc<Waker>) {
        self.drivers.lock().push(waker);
    }

    /// Whether a chunk would be refused whatever its size.
    pub(crate) fn is_shut(&self) -> bool {
        self.inside.lock().is_shut
    }

    /// Asks the worker for something.
    pub(crate) fn urge(&self, urgency: Urgency) {
        let mut inside = self.inside.lock();
        if matches!(urgency, Urgency::Drain(_) | Urgency::Stop) {
            inside.is_closed = true;
        }
        if !inside.urgencies.contains(&urgency) {
            inside.urgencies.push_back(urgency);
        }
        drop(inside);
        self.work.notify_one();
    }

    /// Resolves once there may be work. A wake that comes before the wait is kept.
    pub(crate) async fn has_work(&self) {
        self.work.notified().await;
    }

    /// The worker's side: the next chunk.
    pub(crate) fn pop(&self) -> Option<Chunk> {
        let mut inside = self.inside.lock();
        let chunk = inside.chunks.pop_front()?;
        inside.queued -= chunk.bytes;
        let opens = self.opens(&mut inside);
        drop(inside);
        if opens {
            self.wake_drivers();
        }
        Some(chunk)
    }

    /// The worker's side: the next request.
    pub(crate) fn pop_urgency(&self) -> Option<Urgency> {
        self.inside.lock().urgencies.pop_front()
    }

    /// Whether rows of a partition wait here.
    pub(crate) fn holds(&self, partition: PartitionId) -> bool {
        self.inside
            .lock()
            .chunks
            .iter()
            .any(|chunk| chunk.segments.iter().any(|segment| segment.cover.partition == partition))
    }

    /// Takes every segment that `is_wanted` out of the queue.
    pub(crate) fn remove(&self, mut is_wanted: impl FnMut(&Segment) -> bool) -> Vec<Segment> {
        let mut inside = self.inside.lock();
        let mut removed = Vec::new();
        for chunk in &mut inside.chunks {
            let (out, kept): (Vec<_>, Vec<_>) = chunk.segments.drain(..).partition(|segment| is_wanted(segment));
            for segment in &out {
                chunk.bytes -= segment.bytes;
                chunk.rows -= segment.len();
            }
            chunk.segments = kept;
            removed.extend(out);
        }
        inside.chunks.retain(|chunk| !chunk.is_empty());
        inside.queued = inside.chunks.iter().map(|chunk| chunk.bytes).sum();
        // The charges are dropped by the caller, outside the lock.
        removed
    }

    /// What there is.
    pub(crate) fn queued(&self) -> Queued {
        let inside = self.inside.lock();
        Queued { chunks: inside.chunks.len(), bytes: inside.queued, share: inside.used, is_shut: inside.is_shut }
    }

    /// The share's limit.
    pub(crate) fn limits(&self) -> ShareLimits {
        self.limits
    }

    fn release(&self, bytes: usize) {
        let mut inside = self.inside.lock();
        inside.used = inside.used.saturating_sub(bytes);
        let opens = self.opens(&mut inside);
        drop(inside);
        if opens {
            self.wake_drivers();
        }
    }

    fn opens(&self, inside: &mut Inside) -> bool {
        let is_low = inside.used <= self.limits.low && inside.chunks.len() <= self.limits.chunks / 2;
        inside.is_shut && !inside.is_closed && is_low && {
            inside.is_shut = false;
            true
        }
    }

    fn wake_drivers(&self) {
        for driver in self.drivers.lock().iter() {
            driver.wake(Wake::ROOM);
        }
    }
}
