//! The data plane of a capture: hands source batches over to the driver, each partition's in order (P1).
//!
//! It never blocks. What the engine has already of a partition is left out by place: after a reconnect the stream sends
//! transactions again from the checkpoint, and one whose rows were handed over once is not handed over twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use landfall_engine::PollCx;
use landfall_engine::contract::{LaneId, PollLimit, Polled, SourceError, SourceLane, TableRows};
use landfall_types::{Epoch, PartitionId, Place};

use super::handover::Ready;
use super::shared::Shared;
use crate::code;

/// The one lane of a [`PostgresSource`](super::PostgresSource).
pub struct PostgresLane {
    id: LaneId,
    shared: Arc<Shared>,
    partitions: Vec<PartitionId>,
    /// Where the next row of each partition may be.
    next: BTreeMap<PartitionId, Place>,
}

impl std::fmt::Debug for PostgresLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresLane").field("id", &self.id).field("partitions", &self.partitions.len()).finish()
    }
}

impl PostgresLane {
    pub(super) fn new(id: LaneId, shared: Arc<Shared>, at: &[(PartitionId, Place, Epoch)]) -> Self {
        PostgresLane {
            id,
            shared,
            partitions: at.iter().map(|(partition, ..)| *partition).collect(),
            next: at.iter().map(|(partition, place, _)| (*partition, *place)).collect(),
        }
    }
}

impl SourceLane for PostgresLane {
    fn id(&self) -> LaneId {
        self.id
    }

    fn partitions(&self) -> &[PartitionId] {
        &self.partitions
    }

    fn poll(&mut self, cx: &mut PollCx<'_>, _limit: PollLimit) -> Result<Polled, SourceError> {
        loop {
            let taken = self.shared.handover.take(|| cx.waker(), |partition| cx.takes(partition));
            let Some((partition, ready)) = taken else {
                return Ok(if self.shared.handover.is_finished() { Polled::Finished } else { Polled::Empty });
            };
            let next = self.next.get(&partition).copied().unwrap_or(Place::START);
            let Some(Ready { rows, end, bytes }) = from(ready, next) else { continue };
            self.next.insert(partition, end);
            return Ok(Polled::Batch(cx.table_batch(partition, rows, next..end, bytes)));
        }
    }

    fn join(&mut self, partition: PartitionId, at: Place, _epoch: Epoch) -> Result<(), SourceError> {
        if self.next.get(&partition).is_some_and(|next| at < *next) {
            let text = format!("the rows of partition {partition} from {at} on were handed over before");
            return Err(SourceError::Lane { code: code::STREAM_AGAIN, text });
        }
        if !self.partitions.contains(&partition) {
            self.partitions.push(partition);
        }
        self.next.insert(partition, at);
        Ok(())
    }

    fn leave(&mut self, partition: PartitionId) {
        // Where it ended stays known: whoever joins again earlier needs the stream again.
        self.partitions.retain(|known| *known != partition);
    }
}

/// What of a batch is at or behind a place; `None` if nothing of it is.
fn from(ready: Ready, next: Place) -> Option<Ready> {
    let Ready { rows, end, bytes } = ready;
    if end <= next {
        return None;
    }
    let is_below =
        rows.places.first().is_some_and(|place| *place < next) || rows.bad.first().is_some_and(|bad| bad.place < next);
    if !is_below {
        return Some(Ready { rows, end, bytes });
    }
    let TableRows { rows, places, mut bad, note, key } = rows;
    let first = places.partition_point(|place| *place < next);
    bad.retain(|bad| bad.place >= next);
    let rows = rows.slice(first, rows.num_rows() - first);
    let places = places.get(first..).unwrap_or_default().into();
    Some(Ready { rows: TableRows { rows, places, bad, note, key }, end, bytes })
}
