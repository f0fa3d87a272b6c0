//! The ring of one (pipeline, partition, epoch): a slot for each source batch that is not settled (E79–E84).
//!
//! The driver alone issues (it writes the slot, then raises `issued`); anyone resolves (the worst status, then one
//! hold less); the controller alone harvests. The types say so: [`ring`] makes one [`Issuer`] and one [`Harvester`],
//! and neither can be cloned. Per sink (0 is the chain) a slot has a number of holds, a status and its books (E113).
//!
//! No head is missed (E80): the last hold loads the sink's head after its decrement and wakes the controller if its
//! slot is the head; the harvest stores the head, then loads the next slot's holds. A sequentially consistent fence
//! lies between the two steps of each, so one of the two sees the other. A slot is reused only past the least head,
//! where no hold is left.

use std::ops::Range;
use std::time::{Duration, Instant};

use landfall_types::{Epoch, PartitionId, Place};
use parking_lot::Mutex;

use super::sync::{Arc, AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use super::{Ack, FailCause, Wake, Waker};

const DELIVERED: u8 = 1;
const FAILED: u8 = 2;

/// One sink's view of one slot.
#[derive(Debug)]
struct Cell {
    holds: AtomicU32,
    status: AtomicU8,
    /// Sink rows that the chain made of the slot's source rows.
    made: AtomicU32,
    /// Sink rows that were settled or refused.
    settled: AtomicU32,
    /// Source rows of which no sink row was made.
    filtered: AtomicU32,
    /// Source rows that were dead-lettered (or skipped by policy, in `skipped`).
    dead: AtomicU32,
    /// Source rows that were dropped by `on_error: skip`; part of the filtered ones in the balance.
    skipped: AtomicU32,
    /// Source rows that the sink had before they were read.
    replayed: AtomicU32,
}

impl Cell {
    fn new() -> Self {
        Cell {
            holds: AtomicU32::new(0),
            status: AtomicU8::new(0),
            made: AtomicU32::new(0),
            settled: AtomicU32::new(0),
            filtered: AtomicU32::new(0),
            dead: AtomicU32::new(0),
            skipped: AtomicU32::new(0),
            replayed: AtomicU32::new(0),
        }
    }

    fn reset(&self) {
        self.status.store(0, Ordering::Relaxed);
        for count in [&self.made, &self.settled, &self.filtered, &self.dead, &self.skipped, &self.replayed] {
            count.store(0, Ordering::Relaxed);
        }
        self.holds.store(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Slot {
    end_at: AtomicU64,
    end_within: AtomicU64,
    start_at: AtomicU64,
    start_within: AtomicU64,
    rows: AtomicU32,
    bytes: AtomicU64,
    issued_micros: AtomicU64,
    cells: Box<[Cell]>,
}

impl Slot {
    fn new(sinks: usize) -> Self {
        Slot {
            end_at: AtomicU64::new(0),
            end_within: AtomicU64::new(0),
            start_at: AtomicU64::new(0),
            start_within: AtomicU64::new(0),
            rows: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            issued_micros: AtomicU64::new(0),
            cells: (0..sinks).map(|_| Cell::new()).collect(),
        }
    }

    fn range(&self) -> Range<Place> {
        Place { at: self.start_at.load(Ordering::Relaxed), within: self.start_within.load(Ordering::Relaxed) }..Place {
            at: self.end_at.load(Ordering::Relaxed),
            within: self.end_within.load(Ordering::Relaxed),
        }
    }
}

/// What the holders, the issuer and the harvester share.
#[derive(Debug)]
pub(crate) struct Shared {
    partition: PartitionId,
    epoch: Epoch,
    mask: u64,
    slots: Box<[Slot]>,
    heads: Box<[AtomicU64]>,
    issued: AtomicU64,
    advanced: AtomicU64,
    bytes_advanced: AtomicU64,
    rows_issued: AtomicU64,
    is_gated: AtomicBool,
    is_closed: AtomicBool,
    /// Per sink, the first batch that has failed, `u64::MAX` if none has: with it the epoch will end.
    failed_from: Box<[AtomicU64]>,
    stale: AtomicU64,
    causes: Mutex<Vec<Option<FailCause>>>,
    started: Instant,
    controller: Arc<Waker>,
}

impl Shared {
    fn slot(&self, sequence: u64) -> &Slot {
        // The mask keeps the index inside the ring.
        &self.slots[(sequence & self.mask) as usize]
    }

    fn cell(&self, sequence: u64, sink: usize) -> &Cell {
        &self.slot(sequence).cells[sink]
    }

    pub(crate) fn sinks(&self) -> usize {
        self.heads.len()
    }

    pub(crate) fn partition(&self) -> PartitionId {
        self.partition
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether the epoch has ended: whatever is still held moves nothing.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether a batch before this one has failed in this sink. What comes behind it is read again with it, and must not be
    /// written: a position past it would say that it is there (I7). What came before it is settled as it stands.
    pub(crate) fn is_behind_a_failed(&self, sequence: u64, sink: usize) -> bool {
        sequence > self.failed_from[sink].load(Ordering::Acquire)
    }

    pub(crate) fn hold(&self, sequence: u64, sink: usize) {
        // The caller has a hold on the same cell, so the count cannot be seen at 0 in between.
        self.cell(sequence, sink).holds.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn resolve(&self, sequence: u64, sink: usize, failed: Option<&FailCause>) {
        let cell = self.cell(sequence, sink);
        if let Some(cause) = failed {
            self.failed_from[sink].fetch_min(sequence, Ordering::AcqRel);
            if self.is_closed() {
                self.stale.fetch_add(1, Ordering::Relaxed);
            } else {
                self.causes.lock()[sink].get_or_insert_with(|| cause.clone());
            }
            cell.status.fetch_max(FAILED, Ordering::Release);
        } else {
            cell.status.fetch_max(DELIVERED, Ordering::Release);
        }
        if cell.holds.fetch_sub(1, Ordering::AcqRel) == 1 {
            fence(Ordering::SeqCst);
            if self.heads[sink].load(Ordering::Relaxed) == sequence {
                self.controller.wake(Wake::RESOLVED);
            }
        }
    }

    pub(crate) fn book(&self, sequence: u64, sink: usize, entry: Books) {
        let cell = self.cell(sequence, sink);
        for (count, by) in [
            (&cell.made, entry.made),
            (&cell.settled, entry.settled),
            (&cell.filtered, entry.filtered),
            (&cell.dead, entry.dead),
            (&cell.skipped, entry.skipped),
            (&cell.replayed, entry.replayed),
        ] {
            if by > 0 {
                count.fetch_add(by, Ordering::Relaxed);
            }
        }
    }
}

/// Entries of a slot's two books, for one sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Books {
    /// Sink rows made by the chain.
    pub(crate) made: u32,
    /// Sink rows settled or refused by a worker.
    pub(crate) settled: u32,
    /// Source rows of which no sink row was made.
    pub(crate) filtered: u32,
    /// Source rows dead-lettered.
    pub(crate) dead: u32,
    /// Source rows dropped by policy.
    pub(crate) skipped: u32,
    /// Source rows that the sink had already.
    pub(crate) replayed: u32,
}

/// Why a batch cannot be issued.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IssueError {
    /// The epoch has ended (E34).
    Closed,
    /// Every slot is pending; the driver asks `has_room` first.
    Full,
    /// The range starts before the end of what was issued, or ends before it starts.
    DoesNotChain {
        /// The end of what was issued.
        end: Place,
        /// The range that was offered.
        range: Range<Place>,
    },
}

/// A ring of `slots` (rounded up to a power of two) for `sinks` sinks and the chain, from `start` on.
pub(crate) fn ring(
    partition: PartitionId,
    epoch: Epoch,
    start: Place,
    slots: usize,
    sinks: usize,
    controller: Arc<Waker>,
    started: Instant,
) -> (Issuer, Harvester) {
    let slots = slots.max(2).next_power_of_two();
    let sinks = sinks + 1;
    let shared = Arc::new(Shared {
        partition,
        epoch,
        mask: slots as u64 - 1,
        slots: (0..slots).map(|_| Slot::new(sinks)).collect(),
        heads: (0..sinks).map(|_| AtomicU64::new(0)).collect(),
        issued: AtomicU64::new(0),
        advanced: AtomicU64::new(0),
        bytes_advanced: AtomicU64::new(0),
        rows_issued: AtomicU64::new(0),
        is_gated: AtomicBool::new(false),
        is_closed: AtomicBool::new(false),
        stale: AtomicU64::new(0),
        failed_from: (0..sinks).map(|_| AtomicU64::new(u64::MAX)).collect(),
        causes: Mutex::new(vec![None; sinks]),
        started,
        controller,
    });
    let harvester = Harvester {
        shared: shared.clone(),
        heads: vec![0; sinks],
        ends: vec![start; sinks],
        failed: vec![false; sinks],
        is_told: false,
        rows_harvested: vec![0; sinks],
    };
    (Issuer { shared, sequence: 0, end: start, bytes: 0 }, harvester)
}

/// The driver's side.
#[derive(Debug)]
pub(crate) struct Issuer {
    shared: Arc<Shared>,
    sequence: u64,
    end: Place,
    bytes: u64,
}

impl Issuer {
    pub(crate) fn partition(&self) -> PartitionId {
        self.shared.partition
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.shared.epoch
    }

    /// Where the next batch starts.
    pub(crate) fn end(&self) -> Place {
        self.end
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Whether one more batch may be polled (E27). The first ceiling is hard; the second may be passed by one batch.
    /// The read of `advanced` may lag, so pending is only ever over-estimated.
    pub(crate) fn has_room(&self, bytes_max: u64) -> bool {
        let open = |advanced: u64, passed: u64| {
            self.sequence - advanced <= self.shared.mask && self.bytes - passed < bytes_max
        };
        let advanced = self.shared.advanced.load(Ordering::Acquire);
        let passed = self.shared.bytes_advanced.load(Ordering::Relaxed);
        if open(advanced, passed) {
            return true;
        }
        // The flag is raised before the second look, and the harvest advances before it reads the flag.
        self.shared.is_gated.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let advanced = self.shared.advanced.load(Ordering::Acquire);
        let passed = self.shared.bytes_advanced.load(Ordering::Relaxed);
        open(advanced, passed)
    }

    /// Publishes a slot and takes the driver's own hold on it (H1, H2). A range that starts behind the end of what was
    /// issued takes the gap in, so that covers chain (E67).
    pub(crate) fn issue(
        &mut self,
        range: Range<Place>,
        rows: u32,
        bytes: usize,
        now: Instant,
    ) -> Result<Ack, IssueError> {
        if self.shared.is_closed() {
            return Err(IssueError::Closed);
        }
        if range.start < self.end || range.end < range.start {
            return Err(IssueError::DoesNotChain { end: self.end, range });
        }
        let sequence = self.sequence;
        if sequence - self.shared.advanced.load(Ordering::Acquire) > self.shared.mask {
            return Err(IssueError::Full);
        }
        let slot = self.shared.slot(sequence);
        slot.start_at.store(self.end.at, Ordering::Relaxed);
        slot.start_within.store(self.end.within, Ordering::Relaxed);
        slot.end_at.store(range.end.at, Ordering::Relaxed);
        slot.end_within.store(range.end.within, Ordering::Relaxed);
        slot.rows.store(rows, Ordering::Relaxed);
        slot.bytes.store(bytes as u64, Ordering::Relaxed);
        let age = now.saturating_duration_since(self.shared.started);
        slot.issued_micros.store(u64::try_from(age.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        slot.cells.iter().for_each(Cell::reset);
        self.sequence += 1;
        self.end = range.end;
        self.bytes += bytes as u64;
        self.shared.rows_issued.fetch_add(u64::from(rows), Ordering::Relaxed);
        self.shared.issued.store(self.sequence, Ordering::SeqCst);
        Ok(Ack::whole(self.shared.clone(), sequence))
    }
}

/// What the harvest tells of one slot of one sink.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    /// The sink, 0 for the chain.
    pub(crate) sink: usize,
    /// The slot's places.
    pub(crate) range: Range<Place>,
    /// Its source rows.
    pub(crate) rows: u32,
    /// Its books.
    pub(crate) books: Books,
}

impl Resolved {
    /// Whether both books agree: each source row has one class, and each sink row made was settled.
    pub(crate) fn balances(&self) -> bool {
        let classed = u64::from(self.books.filtered)
            + u64::from(self.books.dead)
            + u64::from(self.books.skipped)
            + u64::from(self.books.replayed);
        self.books.made == self.books.settled && classed <= u64::from(self.rows)
    }
}

/// The controller's side.
#[derive(Debug)]
pub(crate) struct Harvester {
    shared: Arc<Shared>,
    heads: Vec<u64>,
    ends: Vec<Place>,
    failed: Vec<bool>,
    /// The chain's failure was told.
    is_told: bool,
    rows_harvested: Vec<u64>,
}

/// A view of a ring's count of issued rows, for whoever only looks.
#[derive(Clone, Debug)]
pub(crate) struct Counted {
    shared: Arc<Shared>,
}

impl Counted {
    /// Source rows issued so far.
    pub(crate) fn rows_issued(&self) -> u64 {
        self.shared.rows_issued.load(Ordering::SeqCst)
    }
}

/// What a harvest has found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Harvest {
    /// Some sink's watermark moved.
    pub(crate) has_moved: bool,
    /// The driver waits at its gate and may go on.
    pub(crate) reopens: bool,
    /// Sinks whose head has failed since the last harvest.
    pub(crate) failed: Vec<usize>,
}

impl Harvester {
    /// How a slot of a sink was resolved: delivered or failed; `None` while something is held.
    #[cfg(all(test, not(feature = "loom")))]
    pub(crate) fn outcome(&self, sequence: u64, sink: usize) -> Option<bool> {
        let cell = self.shared.cell(sequence, sink);
        let is_resolved = cell.holds.load(Ordering::SeqCst) == 0;
        is_resolved.then(|| cell.status.load(Ordering::Acquire) == DELIVERED)
    }

    /// The ring's partition.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn partition(&self) -> PartitionId {
        self.shared.partition
    }

    /// Moves each sink over its contiguous resolved prefix (E81), and calls `each` for every slot passed. A failed
    /// head stops its sink for the rest of the epoch.
    pub(crate) fn harvest(&mut self, mut each: impl FnMut(Resolved)) -> Harvest {
        let mut found = Harvest::default();
        let issued = self.shared.issued.load(Ordering::SeqCst);
        for sink in 0..self.heads.len() {
            while !self.failed[sink] && self.heads[sink] < issued {
                let sequence = self.heads[sink];
                let slot = self.shared.slot(sequence);
                let cell = &slot.cells[sink];
                if cell.holds.load(Ordering::Acquire) != 0 {
                    break;
                }
                if cell.status.load(Ordering::Acquire) != DELIVERED {
                    self.failed[sink] = true;
                    if sink > 0 {
                        found.failed.push(sink);
                    }
                    break;
                }
                let rows = slot.rows.load(Ordering::Relaxed);
                let range = slot.range();
                self.ends[sink] = range.end;
                self.rows_harvested[sink] += u64::from(rows);
                found.has_moved = true;
                each(Resolved {
                    sink,
                    range,
                    rows,
                    books: Books {
                        made: cell.made.load(Ordering::Relaxed),
                        settled: cell.settled.load(Ordering::Relaxed),
                        filtered: cell.filtered.load(Ordering::Relaxed),
                        dead: cell.dead.load(Ordering::Relaxed),
                        skipped: cell.skipped.load(Ordering::Relaxed),
                        replayed: cell.replayed.load(Ordering::Relaxed),
                    },
                });
                self.heads[sink] += 1;
                self.shared.heads[sink].store(self.heads[sink], Ordering::Relaxed);
                fence(Ordering::SeqCst);
            }
        }
        // The chain is ahead of its sinks: what it handed over before it failed is settled first, or a row that always
        // fails would keep those in front of it from landing for ever.
        let first = self.heads.first().copied().unwrap_or(0);
        let have_reached = self.heads.iter().zip(&self.failed).all(|(head, failed)| *head >= first || *failed);
        if self.failed.first() == Some(&true) && have_reached && !self.is_told {
            self.is_told = true;
            found.failed.insert(0, 0);
        }
        let least = self.heads.iter().copied().min().unwrap_or(0);
        let advanced = self.shared.advanced.load(Ordering::Relaxed);
        if least > advanced {
            let passed: u64 =
                (advanced..least).map(|sequence| self.shared.slot(sequence).bytes.load(Ordering::Relaxed)).sum();
            // Read before the slots are given back: the issuer may write them from then on.
            self.shared.bytes_advanced.fetch_add(passed, Ordering::Relaxed);
            self.shared.advanced.store(least, Ordering::Release);
            fence(Ordering::SeqCst);
            found.reopens = self.shared.is_gated.swap(false, Ordering::AcqRel);
        }
        found
    }

    /// The end of a sink's contiguous delivered prefix.
    pub(crate) fn watermark(&self, sink: usize) -> Place {
        self.ends[sink]
    }

    /// Why a sink's head failed.
    pub(crate) fn cause(&self, sink: usize) -> Option<FailCause> {
        self.shared.causes.lock()[sink].clone()
    }

    /// The place from which a sink has not settled what was issued, with the age of its head slot (E83).
    pub(crate) fn oldest(&self, sink: usize, now: Instant) -> Option<(Range<Place>, Duration)> {
        (self.heads[sink] < self.shared.issued.load(Ordering::SeqCst)).then(|| {
            let slot = self.shared.slot(self.heads[sink]);
            let issued = Duration::from_micros(slot.issued_micros.load(Ordering::Relaxed));
            (slot.range(), now.saturating_duration_since(self.shared.started).saturating_sub(issued))
        })
    }

    /// The end of what was issued, if anything was.
    pub(crate) fn issued_to(&self) -> Option<Place> {
        let issued = self.shared.issued.load(Ordering::SeqCst);
        issued.checked_sub(1).map(|last| self.shared.slot(last).range().end)
    }

    /// All that a sink has not settled of what was issued, as one range.
    pub(crate) fn unsettled(&self, sink: usize) -> Option<Range<Place>> {
        let issued = self.shared.issued.load(Ordering::SeqCst);
        (self.heads[sink] < issued).then(|| self.ends[sink]..self.shared.slot(issued - 1).range().end)
    }

    /// Whether everything issued is settled in every sink.
    pub(crate) fn is_settled(&self) -> bool {
        let issued = self.shared.issued.load(Ordering::SeqCst);
        self.heads.iter().all(|head| *head == issued)
    }

    /// (batches, bytes) that some sink has not settled.
    pub(crate) fn pending(&self) -> (u64, u64) {
        let issued = self.shared.issued.load(Ordering::SeqCst);
        let least = self.heads.iter().copied().min().unwrap_or(0);
        let bytes = (least..issued).map(|sequence| self.shared.slot(sequence).bytes.load(Ordering::Relaxed)).sum();
        (issued - least, bytes)
    }

    /// For whoever only looks.
    pub(crate) fn counted(&self) -> Counted {
        Counted { shared: self.shared.clone() }
    }

    /// Source rows issued so far. Read once per snapshot, so that a snapshot balances at every instant.
    pub(crate) fn rows_issued(&self) -> u64 {
        self.shared.rows_issued.load(Ordering::SeqCst)
    }

    /// Source rows that a sink has settled.
    pub(crate) fn rows_harvested(&self, sink: usize) -> u64 {
        self.rows_harvested[sink]
    }

    /// Ends the epoch: nothing is issued any more, and whatever is still held moves nothing (E82).
    pub(crate) fn close(&self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
    }

    /// Holds that failed after the ring was closed.
    pub(crate) fn stale(&self) -> u64 {
        self.shared.stale.load(Ordering::Relaxed)
    }
}
