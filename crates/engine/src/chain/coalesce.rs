//! The coalescer of one shard in one chain: segments grow to a chunk, and a chunk that the queue refused is parked in
//! front of everything behind it, so that none overtakes it (H4).

use std::sync::Arc;

use landfall_types::PartitionId;

use crate::contract::Covered;
use crate::shard::{Chunk, Full, Segment, ShardQueue};

/// See the module. It holds at most a parked chunk and one that grows.
#[derive(Debug)]
pub(crate) struct Coalescer {
    queue: Arc<ShardQueue>,
    target: usize,
    open: Chunk,
    parked: Option<Chunk>,
    /// Ranges without rows; each is joined to the partition's next rows, so that covers chain (E127).
    covers: Vec<Covered>,
}

impl Coalescer {
    pub(crate) fn new(queue: Arc<ShardQueue>, target: usize) -> Self {
        Coalescer { queue, target, open: Chunk::default(), parked: None, covers: Vec::new() }
    }

    /// Takes a range that has no rows for this shard. It is bounded by the number of partitions.
    pub(crate) fn cover(&mut self, cover: Covered) {
        let known = self.covers.iter_mut().find(|known| known.partition == cover.partition);
        match known {
            Some(known) if known.epoch == cover.epoch && known.range.end == cover.range.start => {
                known.range.end = cover.range.end;
                known.rows = known.rows.saturating_add(cover.rows);
            }
            Some(known) => *known = cover,
            None => self.covers.push(cover),
        }
    }

    /// Takes a segment, or gives it back while a parked chunk is still refused.
    pub(crate) fn accept(&mut self, mut segment: Box<Segment>) -> Result<(), Box<Segment>> {
        self.retry_parked();
        if self.parked.is_none() && self.open.differs_from(&segment) {
            // No chunk joins two notes (E5).
            self.send_open();
        }
        if self.parked.is_some() {
            return Err(segment);
        }
        if let Some(at) = self.covers.iter().position(|cover| cover.partition == segment.cover.partition) {
            let before = self.covers.swap_remove(at);
            if before.epoch == segment.cover.epoch && before.range.end == segment.cover.range.start {
                segment.cover.range.start = before.range.start;
                segment.cover.rows = segment.cover.rows.saturating_add(before.rows);
            }
        }
        self.open.push(*segment);
        if self.open.bytes >= self.target {
            self.send_open();
        }
        Ok(())
    }

    fn send_open(&mut self) {
        if let Err(Full(chunk)) = self.queue.try_send(std::mem::take(&mut self.open)) {
            self.parked = Some(chunk);
        }
    }

    /// Offers the parked chunk again.
    pub(crate) fn retry_parked(&mut self) {
        if let Some(chunk) = self.parked.take()
            && let Err(Full(chunk)) = self.queue.try_send(chunk)
        {
            self.parked = Some(chunk);
        }
    }

    /// Hands everything over; false while the queue refuses.
    pub(crate) fn flush(&mut self) -> bool {
        self.retry_parked();
        if self.parked.is_none() && !self.open.is_empty() {
            self.send_open();
        }
        self.parked.is_none()
    }

    /// Nothing more comes for now: what was handed over need not wait. Told behind a flush.
    pub(crate) fn lull(&self) {
        if self.is_empty() {
            self.queue.lull();
        }
    }

    /// Whether it holds no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.parked.is_none() && self.open.is_empty()
    }

    /// Drops what is of a partition; its holds fail.
    pub(crate) fn forget(&mut self, partition: PartitionId) {
        self.covers.retain(|cover| cover.partition != partition);
        for chunk in [Some(&mut self.open), self.parked.as_mut()].into_iter().flatten() {
            let whole = std::mem::take(chunk);
            whole.segments.into_iter().filter(|segment| segment.cover.partition != partition).for_each(|segment| {
                chunk.push(segment);
            });
        }
        if self.parked.as_ref().is_some_and(Chunk::is_empty) {
            self.parked = None;
        }
    }
}
