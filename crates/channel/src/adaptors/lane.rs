//! The lane of a channel's partitions: batches from the tail ring, else from a page that the read pool has fetched.
//!
//! `poll` never blocks and never reads a file: it takes what is there, asks for the next page, and promises a wake
//! (C57 on the driver's thread). The next page is asked for as soon as one is there to be handed out, so that the device
//! works while the driver does; a partition holds at most these two, and a few buffers to read into until it has caught up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use landfall_engine::contract::{
    GapReason, LaneId, LaneWaker, PollLimit, Polled, SourceError, SourceEvent, SourceLane,
};
use landfall_engine::{OnTrimmed, PollCx};
use landfall_log::{Page, StoredUnit, VisibleTail};
use landfall_types::{Code, Coded, Epoch, Offset, PartitionId, Place};
use parking_lot::Mutex;

use super::columns::{Columns, ColumnsError};
use super::source::Feed;
use crate::error::{ReadError, ch};
use crate::partition::Partition;
use crate::subscription::{TailSeat, page_job};

/// A page of segments, as for subscriptions (C57).
const PAGE_RECORDS: u32 = 4_096;
const PAGE_BYTES: usize = 1 << 20;

/// The data plane of some of a channel's partitions.
#[derive(Debug)]
pub struct ChannelLane {
    id: LaneId,
    ids: Vec<PartitionId>,
    parts: Vec<Part>,
    /// Whose turn it is.
    turn: usize,
    feed: Arc<Feed>,
    waker: Option<(LaneWaker, Waker)>,
}

/// One partition of the lane.
#[derive(Debug)]
struct Part {
    partition: Arc<Partition>,
    cursor: Offset,
    /// The epoch that the record before the cursor must have, until that is checked (C63).
    expects: Option<Epoch>,
    units: VecDeque<StoredUnit>,
    is_from_ring: bool,
    /// Between two fetches: where the last one ended, so that the next needs no search, and buffers that come back. `None`
    /// where the ring goes on: there may be many partitions, and each would keep mebibytes for nothing.
    page: Option<Page>,
    seat: TailSeat,
    fetch: Arc<Fetch>,
    is_fetching: bool,
    /// Stands at a gap that it must not pass; the engine opens another lane where it decides.
    is_halted: bool,
}

/// A page on its way from the read pool.
#[derive(Debug, Default)]
struct Fetch {
    done: AtomicBool,
    page: Mutex<Option<Result<Page, ReadError>>>,
}

/// A lane's waker as the tail's wait list takes it.
struct WakeLane(LaneWaker);

impl Wake for WakeLane {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

impl ChannelLane {
    pub(super) fn new(id: LaneId, parts: Vec<(Arc<Partition>, Offset, Option<Epoch>)>, feed: Arc<Feed>) -> ChannelLane {
        let parts: Vec<Part> = parts
            .into_iter()
            .map(|(partition, cursor, expects)| Part {
                seat: TailSeat::new(&partition),
                partition,
                cursor,
                expects,
                units: VecDeque::new(),
                is_from_ring: false,
                page: None,
                fetch: Arc::default(),
                is_fetching: false,
                is_halted: false,
            })
            .collect();
        let ids = parts.iter().map(|part| part.partition.id).collect();
        ChannelLane { id, ids, parts, turn: 0, feed, waker: None }
    }

    /// Whether buffers of pages are kept for any partition.
    #[cfg(test)]
    pub(super) fn keeps_buffers(&self) -> bool {
        self.parts.iter().any(|part| part.page.is_some())
    }
}

impl SourceLane for ChannelLane {
    fn id(&self) -> LaneId {
        self.id
    }

    fn partitions(&self) -> &[PartitionId] {
        &self.ids
    }

    fn poll(&mut self, cx: &mut PollCx<'_>, limit: PollLimit) -> Result<Polled, SourceError> {
        if self.feed.is_stopped() {
            return Ok(Polled::Empty);
        }
        let (lane_waker, waker) = self.waker.get_or_insert_with(|| {
            let waker = cx.waker();
            (waker.clone(), Waker::from(Arc::new(WakeLane(waker))))
        });
        for step in 0..self.parts.len() {
            let at = (self.turn + step) % self.parts.len();
            let part = &mut self.parts[at];
            if !cx.takes(part.partition.id) || !part.fill(limit, lane_waker, waker, &self.feed)? {
                continue;
            }
            self.turn = at + 1;
            part.fetch_ahead(lane_waker);
            let (start, columns) = (part.cursor, part.columns(limit, &self.feed)?);
            let end = columns.end();
            let (rows, bytes) = columns.finish().map_err(|error| part.failed(&error))?;
            part.cursor = end;
            let metrics = &part.partition.metrics;
            let read = if part.is_from_ring { &metrics.read_ring } else { &metrics.read_segment };
            read.increment(rows.num_rows() as u64);
            let batch = cx.batch(part.partition.id, rows, Place::of(start)..Place::of(end), bytes);
            return Ok(Polled::Batch(batch));
        }
        Ok(Polled::Empty)
    }
}

impl Part {
    /// Whether there are units to hand out; asks for them or for a wake if not.
    fn fill(
        &mut self,
        limit: PollLimit,
        lane_waker: &LaneWaker,
        waker: &Waker,
        feed: &Feed,
    ) -> Result<bool, SourceError> {
        loop {
            if self.is_halted {
                return Ok(false);
            }
            if !self.units.is_empty() {
                return Ok(true);
            }
            if self.is_fetching {
                if !self.fetch.done.load(Ordering::Acquire) {
                    return Ok(false);
                }
                self.is_fetching = false;
                let page = self.fetch.page.lock().take();
                match page {
                    Some(Ok(mut page)) => {
                        self.expects = None;
                        self.is_from_ring = false;
                        self.take_over(page.units.drain(..));
                        self.page = Some(page);
                    }
                    Some(Err(error)) => self.pass(error, feed)?,
                    // Unrun: the pool is closed.
                    None => return Ok(false),
                }
                continue;
            }
            let tail = self.partition.tail.get();
            if self.expects.is_some() {
                self.fetch(tail, lane_waker);
                return Ok(false);
            }
            if self.cursor < tail {
                let mut units = Vec::new();
                let records = u32::try_from(limit.rows).unwrap_or(u32::MAX);
                if self.partition.ring.take(self.cursor, tail, records, limit.bytes, &mut units) {
                    self.is_from_ring = true;
                    self.page = None;
                    self.take_over(units.drain(..));
                } else {
                    self.fetch(tail, lane_waker);
                    return Ok(false);
                }
            } else if !self.seat.is_past_or_register(self.cursor, waker) {
                self.page = None;
                return Ok(false);
            }
        }
    }

    fn take_over(&mut self, units: impl Iterator<Item = StoredUnit>) {
        let cursor = self.cursor;
        self.units.extend(units.filter(|unit| unit.end() > cursor));
    }

    /// Asks the read pool for the page at the cursor; checks the history before it, if that is due.
    fn fetch(&mut self, tail: Offset, lane_waker: &LaneWaker) {
        self.fetch_from(self.cursor, tail, lane_waker);
    }

    fn fetch_from(&mut self, cursor: Offset, tail: Offset, lane_waker: &LaneWaker) {
        let fetch = Arc::new(Fetch::default());
        self.fetch = Arc::clone(&fetch);
        self.is_fetching = true;
        let (partition, expects) = (Arc::clone(&self.partition), self.expects);
        let page = self.page.take().unwrap_or_else(Page::recycling);
        let read = page_job(&partition, cursor, tail, PAGE_RECORDS, PAGE_BYTES, page);
        let waker = lane_waker.clone();
        let own = Arc::clone(&partition);
        partition.threads.read.spawn(move || {
            // Told on every way out, a panic included, so that the lane does not wait for ever.
            let told = Told { fetch, waker };
            let checked = expects.map_or(Ok(()), |epoch| check_history(&own, cursor, tail, epoch));
            let page = match checked {
                Ok(()) if cursor >= tail => Ok(Page::default()),
                Ok(()) => read(),
                Err(error) => Err(error),
            };
            *told.fetch.page.lock() = Some(page);
        });
    }

    /// While the units of a page are handed out, the next one is read.
    fn fetch_ahead(&mut self, lane_waker: &LaneWaker) {
        if self.is_fetching || self.is_halted {
            return;
        }
        let tail = self.partition.tail.get();
        let next = self.units.back().map_or(self.cursor, StoredUnit::end);
        let mut probe = Vec::new();
        if next < tail && !self.partition.ring.take(next, tail, 1, 1, &mut probe) {
            self.fetch_from(next, tail, lane_waker);
        }
    }

    fn columns(&mut self, limit: PollLimit, feed: &Feed) -> Result<Columns, SourceError> {
        let mut columns = Columns::new(self.partition.id, self.cursor);
        while let Some(unit) = self.units.front() {
            feed.epochs.note(self.partition.id, columns.end(), unit.origin_epoch);
            match columns.add(unit, limit.rows, limit.bytes) {
                Ok(true) => {
                    self.units.pop_front();
                }
                Ok(false) => break,
                Err(error) => return Err(self.failed(&error)),
            }
        }
        if columns.is_empty() {
            let expected = self.cursor;
            return Err(self.failed(&ColumnsError::NotContiguous { expected, first: expected }));
        }
        Ok(columns)
    }

    /// Stored bytes that are no records: passing over them would lose them, so the lane stops at them and is tried again.
    fn failed(&self, error: &ColumnsError) -> SourceError {
        let text = format!(
            "channel {}, partition {}, offset {}: {error}",
            self.partition.channel, self.partition.id, self.cursor
        );
        SourceError::Lane { code: ch(59), text }
    }

    /// A gap is told, and passed unless the lane is to stop at it; anything else is the engine's to handle.
    fn pass(&mut self, error: ReadError, feed: &Feed) -> Result<(), SourceError> {
        let (to, reason) = match &error {
            ReadError::Trimmed { log_start, .. } => (*log_start, GapReason::Trimmed),
            ReadError::Damaged { to, .. } => (*to, GapReason::Damaged),
            _ => {
                let code: Code = error.code();
                let text = format!("channel {}: {error}", self.partition.channel);
                return Err(match code.number() {
                    52 => SourceError::Fatal { code, text },
                    _ => SourceError::Later { code, text },
                });
            }
        };
        self.expects = None;
        if to > self.cursor {
            self.is_halted = reason == GapReason::Trimmed && feed.on_trimmed == OnTrimmed::Stop;
            let range = Place::of(self.cursor)..Place::of(to);
            feed.tell(SourceEvent::Gap(self.partition.id, range, reason));
            if !self.is_halted {
                self.cursor = to;
            }
        }
        Ok(())
    }
}

struct Told {
    fetch: Arc<Fetch>,
    waker: LaneWaker,
}

impl Drop for Told {
    fn drop(&mut self) {
        self.fetch.done.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Whether the record before the cursor is of the epoch that it was when the position was taken (C63).
fn check_history(partition: &Partition, cursor: Offset, tail: Offset, expected: Epoch) -> Result<(), ReadError> {
    let changed =
        |found: String| ReadError::HistoryChanged { partition: partition.id, offset: cursor, expected, found };
    if cursor > tail {
        return Err(changed(format!("a tail of {tail}")));
    }
    let Some(before) = cursor.0.checked_sub(1).map(Offset) else { return Ok(()) };
    let Some(reader) = partition.reader() else { return Err(ReadError::Closed) };
    match reader.origin_epoch(before, VisibleTail(tail)) {
        Ok(epoch) if epoch == expected => Ok(()),
        Ok(epoch) => Err(changed(format!("epoch {epoch}"))),
        // Gone or damaged: it cannot be told any more, and the read that follows says what is left.
        Err(landfall_log::ReadError::Trimmed { .. } | landfall_log::ReadError::Damaged { .. }) => Ok(()),
        Err(error) => Err(crate::subscription::read_error(partition, cursor, error)),
    }
}
