//! Subscriptions: a read of the log from a cursor on (C54, C57).
//!
//! Replay and live are one loop: take what lies between cursor and visible tail from the ring, else a page of segments
//! from the read pool; deliver; advance; at the tail, wait. Nothing is pushed, so nothing can be owed, lost or
//! reordered (I2). A slow reader holds its own page and nothing else, and never slows a publisher (C60).

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use landfall_log::{Budget, Page, StoredUnit};
use landfall_types::{Offset, Timestamp};

use crate::envelope::{EnvelopeError, Rows};
use crate::error::ReadError;
use crate::partition::Partition;
use crate::record::Delivered;
use crate::tail::Seat;

/// Where a reader starts (C58).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the log start.
    Earliest,
    /// At the visible tail of this moment.
    Latest,
    /// At an offset, at most the tail.
    Offset(Offset),
    /// At the first record whose append time is not before this.
    Time(Timestamp),
}

/// What a reader does when records it wants are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnGap {
    /// It names the range and ends.
    #[default]
    End,
    /// It names the range and goes on behind it.
    Continue,
}

/// How a subscription reads (C59).
#[derive(Clone, Copy, Debug)]
pub struct SubscribeOptions {
    /// Records of one page: 1 to 65,536.
    pub records: u32,
    /// Bytes of one page: 64 KiB to 64 MiB; one larger record comes alone.
    pub bytes: usize,
    /// What happens at a trimmed or damaged range.
    pub on_gap: OnGap,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        SubscribeOptions { records: 1_024, bytes: 1 << 20, on_gap: OnGap::End }
    }
}

/// A place among the process's subscriptions, given back on drop.
#[derive(Debug)]
pub(crate) struct SubscriptionPlace {
    open: Arc<AtomicU32>,
}

impl SubscriptionPlace {
    pub(crate) fn take(open: &Arc<AtomicU32>, limit: u32) -> Result<SubscriptionPlace, ReadError> {
        let taken = open.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| (now < limit).then_some(now + 1));
        taken.map_err(|_| ReadError::TooManySubscribers { limit })?;
        metrics::gauge!("landfall_subscriptions").increment(1.0);
        Ok(SubscriptionPlace { open: Arc::clone(open) })
    }
}

impl Drop for SubscriptionPlace {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::AcqRel);
        metrics::gauge!("landfall_subscriptions").decrement(1.0);
    }
}

/// A place in a partition's wait list, left on drop.
#[derive(Debug)]
pub(crate) struct TailSeat {
    partition: Arc<Partition>,
    seat: Seat,
}

impl TailSeat {
    pub(crate) fn new(partition: &Arc<Partition>) -> TailSeat {
        TailSeat { seat: partition.tail.take_seat(), partition: Arc::clone(partition) }
    }

    pub(crate) fn is_past_or_register(&self, offset: Offset, waker: &std::task::Waker) -> bool {
        self.partition.tail.is_past_or_register(&self.seat, offset, waker)
    }

    /// Resolves once the tail is past `offset`; false: it never will be, the channels are closed.
    pub(crate) async fn wait_past(&self, offset: Offset) -> bool {
        poll_fn(|cx| {
            if self.is_past_or_register(offset, cx.waker()) {
                Poll::Ready(true)
            } else if self.partition.tail.is_closed() {
                Poll::Ready(false)
            } else {
                Poll::Pending
            }
        })
        .await
    }
}

impl Drop for TailSeat {
    fn drop(&mut self) {
        self.partition.tail.leave(&self.seat);
    }
}

/// A reader of one partition, from its cursor on, without a gap (I2). Cancelling `next` loses nothing.
#[derive(Debug)]
pub struct Subscription {
    partition: Arc<Partition>,
    cursor: Offset,
    /// A start by time that is not looked up yet, since that reads segments.
    from_time: Option<Timestamp>,
    options: SubscribeOptions,
    seat: TailSeat,
    /// Reused; None while a read is under way.
    page: Option<Page>,
    units: Vec<StoredUnit>,
    is_over: bool,
    _place: SubscriptionPlace,
}

impl Subscription {
    pub(crate) fn new(
        partition: Arc<Partition>,
        start: Start,
        options: SubscribeOptions,
        place: SubscriptionPlace,
    ) -> Result<Subscription, ReadError> {
        let cursor = match start {
            Start::Earliest | Start::Time(_) => partition.log_start(),
            Start::Latest => partition.tail.get(),
            Start::Offset(offset) => {
                let tail = partition.tail.get();
                if offset > tail {
                    return Err(ReadError::PastTail { partition: partition.id, offset, tail });
                }
                offset
            }
        };
        let from_time = match start {
            Start::Time(at) => Some(at),
            _ => None,
        };
        let options = SubscribeOptions {
            records: options.records.clamp(1, 65_536),
            bytes: options.bytes.clamp(64 << 10, 64 << 20),
            ..options
        };
        let seat = TailSeat::new(&partition);
        Ok(Subscription {
            partition,
            cursor,
            from_time,
            options,
            seat,
            page: Some(Page::default()),
            units: Vec::new(),
            is_over: false,
            _place: place,
        })
    }

    /// The next page; waits at the tail. Trimmed and damaged ranges are errors that name them: the subscription then
    /// ends, or goes on behind them ([`OnGap`]). A failed read is an error too; the next call tries again. `None`: it is
    /// over, or the channels are closed.
    pub async fn next(&mut self) -> Option<Result<Vec<Delivered>, ReadError>> {
        if self.is_over {
            return None;
        }
        if let Some(at) = self.from_time {
            match offset_at(&self.partition, at).await {
                Ok(offset) => (self.cursor, self.from_time) = (offset, None),
                Err(ReadError::Closed) => {
                    self.is_over = true;
                    return None;
                }
                Err(error) => return Some(Err(error)),
            }
        }
        if !self.seat.wait_past(self.cursor).await {
            self.is_over = true;
            return None;
        }
        let tail = self.partition.tail.get();
        let (records, bytes) = (self.options.records, self.options.bytes);
        let mut units = std::mem::take(&mut self.units);
        units.clear();
        let from_ring = self.partition.ring.take(self.cursor, tail, records, bytes, &mut units);
        let read = match from_ring {
            true => Ok(()),
            false => {
                let page = self.page.take().unwrap_or_default();
                match read_page(&self.partition, self.cursor, tail, records, bytes, page).await {
                    Ok(mut page) => {
                        std::mem::swap(&mut page.units, &mut units);
                        self.page = Some(page);
                        Ok(())
                    }
                    Err(error) => Err(error),
                }
            }
        };
        let delivered = read.and_then(|()| deliver(&self.partition, &units, self.cursor, records, bytes));
        self.units = units;
        self.units.clear();
        match delivered {
            Ok(records) => {
                let metrics = &self.partition.metrics;
                let read = if from_ring { &metrics.read_ring } else { &metrics.read_segment };
                read.increment(records.len() as u64);
                self.cursor = Offset(self.cursor.0 + records.len() as u64);
                Some(Ok(records))
            }
            Err(ReadError::Closed) => {
                self.is_over = true;
                None
            }
            Err(error) => {
                self.pass(&error);
                Some(Err(error))
            }
        }
    }

    /// The offset of the next record. For a start by time, the log start until the first call of `next`.
    pub fn cursor(&self) -> Offset {
        self.cursor
    }

    fn pass(&mut self, error: &ReadError) {
        let behind = match error {
            ReadError::Trimmed { log_start, .. } => *log_start,
            ReadError::Damaged { to, .. } => *to,
            _ => return,
        };
        match self.options.on_gap {
            OnGap::End => self.is_over = true,
            OnGap::Continue => self.cursor = behind.max(self.cursor),
        }
    }
}

/// A page of segments, read on the read pool. Starts with the unit that holds `from`.
pub(crate) async fn read_page(
    partition: &Arc<Partition>,
    from: Offset,
    tail: Offset,
    records: u32,
    bytes: usize,
    page: Page,
) -> Result<Page, ReadError> {
    let job = page_job(partition, from, tail, records, bytes, page);
    partition.threads.read.run(job).await.unwrap_or(Err(ReadError::Closed))
}

/// The same as a job for the read pool.
pub(crate) fn page_job(
    partition: &Arc<Partition>,
    from: Offset,
    tail: Offset,
    records: u32,
    bytes: usize,
    mut page: Page,
) -> impl FnOnce() -> Result<Page, ReadError> + Send + 'static {
    let partition = Arc::clone(partition);
    move || {
        let Some(reader) = partition.reader() else { return Err(ReadError::Closed) };
        let budget = Budget { records, bytes };
        match reader.read(from, landfall_log::VisibleTail(tail), budget, &mut page) {
            Ok(()) => Ok(page),
            Err(error) => Err(read_error(&partition, from, error)),
        }
    }
}

pub(crate) fn read_error(partition: &Partition, offset: Offset, error: landfall_log::ReadError) -> ReadError {
    if let landfall_log::ReadError::Damaged { from, to } = &error {
        partition.note_damage(*from..*to);
    }
    let partition = partition.id;
    match error {
        landfall_log::ReadError::Trimmed { from, log_start } => ReadError::Trimmed { partition, from, log_start },
        landfall_log::ReadError::Damaged { from, to } => ReadError::Damaged { partition, from, to },
        landfall_log::ReadError::PastTail { from, tail } => ReadError::PastTail { partition, offset: from, tail },
        failed => ReadError::Failed { partition, offset, cause: Arc::new(failed) },
    }
}

/// The first offset whose append time is not before `at`.
pub(crate) async fn offset_at(partition: &Arc<Partition>, at: Timestamp) -> Result<Offset, ReadError> {
    let tail = partition.tail.get();
    let own = Arc::clone(partition);
    let job = move || {
        let Some(reader) = own.reader() else { return Err(ReadError::Closed) };
        let found = reader.at_time(at, landfall_log::VisibleTail(tail));
        found.map_err(|error| read_error(&own, Offset::ZERO, error))
    };
    partition.threads.read.run(job).await.unwrap_or(Err(ReadError::Closed))
}

/// Records of the units from `cursor` on, within the budget, at least one. Asserts that the units start at the cursor.
pub(crate) fn deliver(
    partition: &Partition,
    units: &[StoredUnit],
    cursor: Offset,
    records_max: u32,
    bytes_max: usize,
) -> Result<Vec<Delivered>, ReadError> {
    let most = units.iter().map(|unit| unit.records as usize).sum::<usize>();
    let mut records = Vec::with_capacity(most.min(records_max as usize));
    let mut next = cursor;
    let mut bytes = 0usize;
    for unit in units {
        let failed = |cause: EnvelopeError| {
            let (partition, offset) = (partition.id, unit.first);
            ReadError::Failed { partition, offset, cause: Arc::new(cause) }
        };
        if unit.first > next || unit.end() <= next {
            let cause: Arc<dyn std::error::Error + Send + Sync> =
                Arc::new(NotContiguous { expected: next, first: unit.first, end: unit.end() });
            return Err(ReadError::Failed { partition: partition.id, offset: next, cause });
        }
        let mut rows = Rows::new(&unit.rows);
        rows.skip_rows(u32::try_from(next.since(unit.first)).unwrap_or(u32::MAX)).map_err(failed)?;
        while let Some(row) = rows.next_row().map_err(failed)? {
            bytes = bytes.saturating_add(row.payload.len());
            if !records.is_empty() && (records.len() >= records_max as usize || bytes > bytes_max) {
                return Ok(records);
            }
            let record = row.to_record(&unit.rows);
            let (partition, append_time) = (partition.id, unit.append_time);
            records.push(Delivered { partition, offset: next, append_time, record });
            next.0 += 1;
        }
        if next != unit.end() {
            let cause = Arc::new(NotContiguous { expected: unit.end(), first: unit.first, end: next });
            return Err(ReadError::Failed { partition: partition.id, offset: next, cause });
        }
    }
    Ok(records)
}

/// A page that does not lead on from the cursor; it is never delivered.
#[derive(Debug, thiserror::Error)]
#[error("a page begins at {first} and ends at {end} where {expected} was due")]
struct NotContiguous {
    expected: Offset,
    first: Offset,
    end: Offset,
}
