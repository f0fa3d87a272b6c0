//! Where a lane makes its batches: the only way to a [`SourceBatch`] publishes its ack slot first (H1).

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::RecordBatch;
use landfall_types::{Epoch, PartitionId, Place};

use crate::codes;
use crate::contract::{BadRow, Covered, EngineError, LaneWaker, TableNote, TableRows};
use crate::core::{Ack, IssueError, Issuer};

/// One partition's rows, hidden columns included, with the driver's own hold on them.
#[derive(Debug)]
pub struct SourceBatch {
    /// Rows in the payload schema or the table's own, in order of `__offset`.
    pub rows: RecordBatch,
    /// Of a table's rows: their shape and the mark of a copy.
    pub note: Option<TableNote>,
    /// Of a table's rows, the key of their shape.
    pub(crate) key: Arc<[Arc<str>]>,
    /// Of a table's rows, the place of each.
    pub(crate) places: Option<Arc<[Place]>>,
    /// Rows that the source could not make, by rising place.
    pub(crate) bad: Vec<BadRow>,
    pub(crate) covered: Covered,
    pub(crate) bytes: usize,
    /// None only for a batch that broke the lane's contract; the driver never pushes such a one.
    pub(crate) ack: Option<Ack>,
}

impl SourceBatch {
    /// The places and the number of source rows that the batch stands for.
    pub fn covered(&self) -> &Covered {
        &self.covered
    }

    /// The memory that it keeps alive.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A partition of a lane, as the driver keeps it.
#[derive(Debug)]
pub(crate) struct PollSlot {
    pub(crate) issuer: Issuer,
    /// No parked batch, and below its ceilings.
    pub(crate) is_open: bool,
}

/// What a lane is polled with.
#[derive(Debug)]
pub struct PollCx<'a> {
    slots: &'a mut [PollSlot],
    waker: &'a LaneWaker,
    now: Instant,
    broken: Option<EngineError>,
}

impl<'a> PollCx<'a> {
    pub(crate) fn new(slots: &'a mut [PollSlot], waker: &'a LaneWaker, now: Instant) -> Self {
        PollCx { slots, waker, now, broken: None }
    }

    /// Whether a batch of this partition would be taken now.
    pub fn takes(&self, partition: PartitionId) -> bool {
        self.slots.iter().any(|slot| slot.issuer.partition() == partition && slot.is_open && !slot.issuer.is_closed())
    }

    /// What to wake once there is something again, after [`crate::contract::Polled::Empty`]. It may be kept and called
    /// from any thread.
    pub fn waker(&self) -> LaneWaker {
        self.waker.clone()
    }

    /// Makes a batch of rows in `range`, half-open, which starts at or behind the end of the last one of this
    /// partition; what lies between is a gap that the source reports. `bytes`: the memory that `rows` keep alive.
    /// Publishes the slot. One batch a poll, of a partition that [`Self::takes`]: anything else fails the lane.
    pub fn batch(
        &mut self,
        partition: PartitionId,
        rows: RecordBatch,
        range: Range<Place>,
        bytes: usize,
    ) -> SourceBatch {
        let count = u32::try_from(rows.num_rows()).unwrap_or(u32::MAX);
        let (covered, ack) = self.issue(partition, count, range, bytes);
        SourceBatch { rows, note: None, key: Arc::default(), places: None, bad: Vec::new(), covered, bytes, ack }
    }

    /// The same for a table's rows. Rows that the source could not make count as read and are set aside; all places lie
    /// in `range`. What breaks this fails the lane.
    pub fn table_batch(
        &mut self,
        partition: PartitionId,
        rows: TableRows,
        range: Range<Place>,
        bytes: usize,
    ) -> SourceBatch {
        let inside = |place: &Place| range.contains(place);
        let are_inside = rows.places.iter().all(inside) && rows.bad.iter().all(|bad| inside(&bad.place));
        let rise = rows.bad.windows(2).all(|pair| pair[0].place < pair[1].place);
        let broken = if rows.places.len() != rows.rows.num_rows() {
            Some(format!("{} rows and {} places", rows.rows.num_rows(), rows.places.len()))
        } else if !are_inside || !rise {
            Some(format!("a place outside of {}..{}, or bad rows that do not rise", range.start, range.end))
        } else {
            None
        };
        if let Some(what) = broken {
            let text = format!("a table's batch of partition {partition} has {what}");
            self.broken.get_or_insert(EngineError { code: codes::LANE_CONTRACT, text });
        }
        let TableRows { rows, places, bad, note, key } = rows;
        let count = u32::try_from(rows.num_rows() + bad.len()).unwrap_or(u32::MAX);
        let (covered, ack) = self.issue(partition, count, range, bytes);
        SourceBatch { rows, note: Some(note), key, places: Some(places), bad, covered, bytes, ack }
    }

    fn issue(
        &mut self,
        partition: PartitionId,
        count: u32,
        range: Range<Place>,
        bytes: usize,
    ) -> (Covered, Option<Ack>) {
        let mut covered = Covered { partition, epoch: Epoch::ZERO, range: range.clone(), rows: count };
        let slot = self.slots.iter_mut().find(|slot| slot.issuer.partition() == partition && slot.is_open);
        let ack = match slot {
            None => Err(format!("the lane made a batch of partition {partition}, which does not take one now")),
            Some(slot) => {
                covered.epoch = slot.issuer.epoch();
                covered.range.start = slot.issuer.end();
                slot.is_open = false;
                slot.issuer.issue(range, count, bytes, self.now).map_err(|error| match error {
                    IssueError::Closed => format!("the epoch of partition {partition} has ended"),
                    IssueError::Full => format!("partition {partition} has no free slot"),
                    IssueError::DoesNotChain { end, range } => format!(
                        "a batch of partition {partition} covers {}..{}, but {end} was reached before",
                        range.start, range.end
                    ),
                })
            }
        };
        let ack = match ack {
            Ok(ack) => Some(ack),
            Err(text) => {
                self.broken.get_or_insert(EngineError { code: codes::LANE_CONTRACT, text });
                None
            }
        };
        (covered, ack)
    }

    /// What the lane broke of its contract, if anything.
    pub(crate) fn broken(self) -> Option<EngineError> {
        self.broken
    }
}
