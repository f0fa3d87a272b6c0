//! The read half: whole units by offset, below the visible tail.
//!
//! Every unit is verified before it is given out (I12). Trimmed, damaged, unreadable and past the tail are four different
//! answers, and none of them is "empty". Nothing here waits for data or for the writer, and nothing is written.

use std::sync::Arc;

use bytes::Bytes;
use landfall_types::{Epoch, Offset, SegmentNumber, TicketNumber, Timestamp};

use crate::catalog::{Catalog, Place};
use crate::error::ReadError;
use crate::format::{HEAD_BYTES, HEADER_BYTES, IndexEntry, Kind, split_body};
use crate::scan::{Found, Window, next_unit, unit_at};
use crate::segment::Segment;
use crate::spare::Spare;
use crate::unit::StoredUnit;

/// Least and most that one read of a page fetches; a larger unit is fetched whole.
const PAGE_BYTES_MIN: usize = 16 << 10;
const PAGE_BYTES_MAX: usize = 1 << 20;
/// What a look-up of one unit fetches.
const LOOK_BYTES: usize = 64 << 10;

/// The offset after the last record that a reader may see. The committer alone advances it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VisibleTail(pub Offset);

/// How much one page may hold; at least one unit is always given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Records.
    pub records: u32,
    /// Bytes of rows.
    pub bytes: usize,
}

/// Units of one read; reusable. It remembers where it ended, so that reading on needs no search.
#[derive(Debug, Default)]
pub struct Page {
    /// Whole units, ascending, without a gap.
    pub units: Vec<StoredUnit>,
    resume: Option<Resume>,
    spare: Option<Spare>,
}

impl Page {
    /// A page whose buffers come back to it, a few mebibytes at most: for a reader that goes on reading.
    pub fn recycling() -> Page {
        Page { spare: Some(Spare::default()), ..Page::default() }
    }
}

#[derive(Clone, Copy, Debug)]
struct Resume {
    segment: SegmentNumber,
    byte: u64,
    offset: Offset,
    /// What the largest unit of the page took on disk: the next ones are likely to be like it.
    unit_bytes: u64,
}

/// Whether the unit of a reference is in the log (C52).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Located {
    /// The unit there has the same origin epoch and ticket.
    There {
        /// Its first offset.
        first: Offset,
        /// Its records.
        records: u32,
    },
    /// Another unit is there, or the tail has not passed the offset.
    NotThere,
    /// Retention has passed the offset.
    Trimmed,
}

/// Reads a partition's segments. Clones share the segment list; no call waits for data or for the writer.
#[derive(Clone, Debug)]
pub struct LogReader {
    catalog: Arc<Catalog>,
}

/// A place in a segment's file, moving forward.
struct Cursor {
    segment: Arc<Segment>,
    window: Window,
    byte: u64,
    /// The offset that the next data unit must have.
    next: Offset,
    /// Nothing at or past this is given out.
    limit: Offset,
}

enum Step {
    Unit(Found),
    /// The segment, or what may be seen of it, is at its end.
    End,
    /// Offsets up to `to` are lost; the cursor stands behind them.
    Lost {
        from: Offset,
        to: Offset,
    },
}

impl LogReader {
    pub(crate) fn new(catalog: Arc<Catalog>) -> LogReader {
        LogReader { catalog }
    }

    /// The first offset there is.
    pub fn log_start(&self) -> Offset {
        self.catalog.log_start()
    }

    /// Offsets known to be lost, ascending: found at open, and by readers since.
    pub fn damaged(&self) -> Vec<std::ops::Range<Offset>> {
        self.catalog.damaged()
    }

    /// Summaries that had to be rebuilt by a scan so far.
    pub fn summary_rebuilds(&self) -> u64 {
        self.catalog.summary_rebuilds()
    }

    /// Whole units from the one holding `from` (which may begin below it) within the budget, never at or past
    /// `upto`. `from == upto` gives an empty page.
    pub fn read(&self, from: Offset, upto: VisibleTail, budget: Budget, page: &mut Page) -> Result<(), ReadError> {
        page.units.clear();
        let resume = page.resume.take();
        let tail = upto.0;
        if from >= tail {
            return if from == tail { Ok(()) } else { Err(ReadError::PastTail { from, tail }) };
        }
        let chunk = budget.bytes.saturating_add(64 * HEAD_BYTES).clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX);
        // A unit that a fetch cuts off is fetched again whole. Where units are larger than a page, a fetch with some room
        // to spare holds one.
        let like_the_last = resume.map_or(0, |resume| resume.unit_bytes.saturating_add(resume.unit_bytes / 8));
        let chunk = chunk.max(usize::try_from(like_the_last).unwrap_or(chunk));
        let mut at = from;
        loop {
            let mut cursor = match self.cursor(at, tail, chunk, resume) {
                Ok(cursor) => Cursor { window: cursor.window.with_spare(page.spare.clone()), ..cursor },
                Err(_) if !page.units.is_empty() => return Ok(()),
                Err(error) => return Err(error),
            };
            let outcome = fill(&mut cursor, from, budget, page, &self.catalog);
            match outcome {
                Ok(()) if page.units.is_empty() && cursor.next < tail => at = cursor.next,
                Ok(()) => return Ok(()),
                Err(_) if !page.units.is_empty() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// The first offset whose append time is not before `at`; `upto` if there is none.
    pub fn at_time(&self, at: Timestamp, upto: VisibleTail) -> Result<Offset, ReadError> {
        let segments = self.catalog.segments();
        // Append times never go back: find the last segment that begins before `at`. One without records says nothing; the
        // nearest one before it that has some speaks for it.
        let (mut low, mut high) = (0, segments.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let mut first = None;
            for segment in segments.get(low..=middle).unwrap_or_default().iter().rev() {
                self.load_index(segment)?;
                first = segment.first_append_time();
                if first.is_some() {
                    break;
                }
            }
            let begins_before = first.is_none_or(|first| first < at);
            (low, high) = if begins_before { (middle + 1, high) } else { (low, middle) };
        }
        for segment in segments.get(low.saturating_sub(1)..).unwrap_or_default() {
            let entry = segment.look_up(|entry| entry.append_time < at);
            let (byte, next) = start_of(segment, entry);
            let mut cursor = self.cursor_at(segment, byte, next, upto.0, LOOK_BYTES)?;
            loop {
                match cursor.step(&self.catalog)? {
                    Step::Unit(found) if found.head.append_time >= at => {
                        return Ok(found.head.first.max(self.log_start()));
                    }
                    Step::Unit(_) | Step::Lost { .. } => {}
                    Step::End => break,
                }
            }
        }
        Ok(upto.0)
    }

    /// The origin epoch of the unit that holds `offset` (C63).
    pub fn origin_epoch(&self, offset: Offset, upto: VisibleTail) -> Result<Epoch, ReadError> {
        Ok(self.unit_holding(offset, upto.0)?.head.origin_epoch)
    }

    /// Whether the unit at `first` is the one that `epoch` wrote under `ticket`.
    pub fn locate(
        &self,
        first: Offset,
        epoch: Epoch,
        ticket: TicketNumber,
        upto: VisibleTail,
    ) -> Result<Located, ReadError> {
        let head = match self.unit_holding(first, upto.0) {
            Ok(found) => found.head,
            Err(ReadError::Trimmed { .. }) => return Ok(Located::Trimmed),
            Err(ReadError::PastTail { .. }) => return Ok(Located::NotThere),
            Err(error) => return Err(error),
        };
        let is_ours = (head.first, head.origin_epoch, head.ticket) == (first, epoch, ticket);
        Ok(if is_ours { Located::There { first, records: head.records } } else { Located::NotThere })
    }

    fn unit_holding(&self, offset: Offset, tail: Offset) -> Result<Found, ReadError> {
        if offset >= tail {
            return Err(ReadError::PastTail { from: offset, tail });
        }
        let mut cursor = self.cursor(offset, tail, LOOK_BYTES, None)?;
        loop {
            match cursor.step(&self.catalog)? {
                Step::Unit(found) if found.end() > offset => return Ok(found),
                Step::Unit(_) => {}
                Step::Lost { from, to } if to > offset => {
                    return Err(ReadError::Damaged { from: from.max(offset), to });
                }
                Step::Lost { .. } => {}
                // What is in the segment ends before the offset: the rest of it is lost.
                Step::End => return Err(self.missing(offset, cursor.segment.end().min(tail))),
            }
        }
    }

    fn missing(&self, from: Offset, to: Offset) -> ReadError {
        let log_start = self.log_start();
        if from < log_start { ReadError::Trimmed { from, log_start } } else { ReadError::Damaged { from, to } }
    }

    fn load_index(&self, segment: &Arc<Segment>) -> Result<(), ReadError> {
        let failed = |source| ReadError::Failed { path: segment.path.clone(), source };
        self.catalog.load_index(segment).map_err(failed)
    }

    /// A cursor before the unit that holds an offset.
    fn cursor(&self, from: Offset, tail: Offset, chunk: usize, resume: Option<Resume>) -> Result<Cursor, ReadError> {
        let log_start = self.log_start();
        if from < log_start {
            return Err(ReadError::Trimmed { from, log_start });
        }
        if let Some(lost) = self.catalog.damage_at(from) {
            return Err(ReadError::Damaged { from, to: lost.end.min(tail) });
        }
        let segment = match self.catalog.find(from) {
            Place::In(segment) => segment,
            Place::Gap { to } => return Err(self.missing(from, to.min(tail))),
            Place::Nowhere => return Err(self.missing(from, tail)),
        };
        let (byte, next) = match resume {
            Some(resume) if (resume.segment, resume.offset) == (segment.number(), from) => (resume.byte, from),
            _ => {
                self.load_index(&segment)?;
                start_of(&segment, segment.look_up(|entry| entry.offset <= from))
            }
        };
        self.cursor_at(&segment, byte, next, tail, chunk)
    }

    fn cursor_at(
        &self,
        segment: &Arc<Segment>,
        byte: u64,
        next: Offset,
        tail: Offset,
        chunk: usize,
    ) -> Result<Cursor, ReadError> {
        let opened = self.catalog.file(segment).and_then(|file| {
            let end = file.len()?.min(segment.end_byte());
            Ok(Window::new(file, end, chunk))
        });
        let limit = segment.end().min(tail);
        match opened {
            Ok(window) => Ok(Cursor { segment: Arc::clone(segment), window, byte, next, limit }),
            // Trimmed between finding it and opening it.
            Err(_) if segment.end() <= self.log_start() => {
                Err(ReadError::Trimmed { from: next, log_start: self.log_start() })
            }
            Err(source) => Err(ReadError::Failed { path: segment.path.clone(), source }),
        }
    }
}

fn start_of(segment: &Segment, entry: Option<IndexEntry>) -> (u64, Offset) {
    entry.map_or((HEADER_BYTES as u64, segment.base()), |entry| (entry.byte, entry.offset))
}

impl Cursor {
    /// The next data unit. Damage is noted where all can see it, and stepped over.
    fn step(&mut self, catalog: &Catalog) -> Result<Step, ReadError> {
        let failed = |segment: &Segment| {
            let path = segment.path.clone();
            move |source| ReadError::Failed { path, source }
        };
        while self.next < self.limit {
            let found = unit_at(&mut self.window, self.byte, self.segment.seed).map_err(failed(&self.segment))?;
            if let Some(found) = found.filter(|found| found.head.first == self.next) {
                self.byte = found.end_byte();
                self.next = found.end();
                if found.head.kind == Kind::Data {
                    return Ok(Step::Unit(found));
                }
                continue;
            }
            let found = next_unit(&mut self.window, self.byte + 8, self.segment.seed, self.next);
            let found = found.map_err(failed(&self.segment))?;
            let from = self.next;
            match found.filter(|found| found.head.first < self.limit) {
                Some(found) => {
                    self.byte = found.at;
                    self.next = found.head.first;
                    let append_time = found.head.append_time;
                    self.segment.add_to_index(IndexEntry { offset: self.next, byte: self.byte, append_time });
                }
                None => self.next = self.limit,
            }
            if self.next > from {
                // The end of an active segment is the visible tail of this one read: what is behind it is not known.
                tracing::error!(
                    segment = %self.segment.path.display(), from = from.0, to = self.next.0,
                    "LF-CH0051: units below the tail do not verify"
                );
                self.segment.set_damaged();
                catalog.add_damage(from..self.next);
                return Ok(Step::Lost { from, to: self.next });
            }
        }
        Ok(Step::End)
    }
}

/// Takes units into the page until the budget or the segment ends.
fn fill(
    cursor: &mut Cursor,
    from: Offset,
    budget: Budget,
    page: &mut Page,
    catalog: &Catalog,
) -> Result<(), ReadError> {
    let (mut records, mut bytes, mut unit_bytes) = (0u32, 0usize, 0u64);
    loop {
        let (byte, next) = (cursor.byte, cursor.next);
        let here = Resume { segment: cursor.segment.number(), byte, offset: next, unit_bytes };
        match cursor.step(catalog)? {
            Step::End => {
                page.resume = Some(Resume { byte: cursor.byte, offset: cursor.next, ..here });
                return Ok(());
            }
            Step::Lost { from: lost, to } => {
                if page.units.is_empty() && to > from {
                    return Err(ReadError::Damaged { from: lost.max(from), to });
                }
                if !page.units.is_empty() {
                    return Ok(());
                }
            }
            Step::Unit(found) if found.end() <= from => {}
            Step::Unit(found) => {
                let unit = match stored_unit(&found) {
                    Some(unit) => unit,
                    None => {
                        // The checksum holds and no log wrote it: as lost as a unit that does not verify.
                        catalog.add_damage(found.head.first..found.end());
                        cursor.segment.set_damaged();
                        let lost = ReadError::Damaged { from: found.head.first.max(from), to: found.end() };
                        return if page.units.is_empty() { Err(lost) } else { Ok(()) };
                    }
                };
                records = records.saturating_add(unit.records);
                bytes = bytes.saturating_add(unit.rows.len());
                if !page.units.is_empty() && (records > budget.records || bytes > budget.bytes) {
                    page.resume = Some(here);
                    return Ok(());
                }
                page.units.push(unit);
                unit_bytes = unit_bytes.max(found.head.unit_bytes());
                if records >= budget.records || bytes >= budget.bytes {
                    page.resume = Some(Resume { byte: cursor.byte, offset: cursor.next, unit_bytes, ..here });
                    return Ok(());
                }
            }
        }
    }
}

fn stored_unit(found: &Found) -> Option<StoredUnit> {
    let head = &found.head;
    let (tag, rows): (_, Bytes) = split_body(head, &found.body).ok()?;
    Some(StoredUnit {
        first: head.first,
        records: head.records,
        append_time: head.append_time,
        origin_epoch: head.origin_epoch,
        ticket: head.ticket,
        tag,
        rows,
    })
}
