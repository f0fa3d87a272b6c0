//! The write half: one owner of a partition's tail (I5).
//!
//! An append is one gathered write and one `fdatasync` (I1). If either fails the descriptor is never used again: the
//! writer holds a [`Pending`] and takes nothing but a settle (I3, C35). It knows units and offsets, not records,
//! tickets or keys, and it starts no thread and no retry by itself.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use landfall_types::{Durability, Epoch, Offset, SegmentNumber, Timestamp};

use crate::catalog::Catalog;
use crate::error::{RefusedError, UncertainCause};
use crate::format::{HEADER_BYTES, Kind, Predecessor, Reason, SegmentHeader, padded};
use crate::gather::{Gather, Target, gathered_bytes};
use crate::options::{LogIdentity, LogOptions, StoreLimits};
use crate::outcome::{Append, AppendTimes, Evidence, Settled};
use crate::prepare::{Chore, Preparer, Space};
use crate::segment::Segment;
use crate::successor::{Draft, Placed, SuccessionError, control_head, is_no_space};
use crate::summarize::Summarizer;
use crate::unit::Unit;
use crate::vfs::{Access, VfsFile};

/// Class `written`: above this the append that passes it syncs (C41).
const UNSYNCED_BYTES_MAX: u64 = 64 << 20;
/// What the page cache holds at the least.
const PAGE: u64 = 4_096;
/// A segment's summary may take this part of the next one.
pub(crate) const SUMMARY_PART: u64 = 8;

/// Owns the tail. Dropping it at any point leaves a partition that `open` can take over (C16).
#[derive(Debug)]
pub struct LogWriter {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) space: Arc<Space>,
    pub(crate) options: LogOptions,
    pub(crate) identity: LogIdentity,
    pub(crate) active: Active,
    pub(crate) next: Offset,
    pub(crate) epoch: Epoch,
    /// Also counts attempts that failed: numbers are never used twice (C38).
    pub(crate) highest_epoch: Epoch,
    pub(crate) highest_number: SegmentNumber,
    pub(crate) pending: Option<Pending>,
    /// Class `written`: what no sync has confirmed yet, kept as evidence.
    pub(crate) unsynced: Vec<Unit>,
    pub(crate) gather: Gather,
    pub(crate) last_settled: Option<LastSettled>,
}

/// The segment that is appended to.
#[derive(Debug)]
pub(crate) struct Active {
    pub segment: Arc<Segment>,
    pub file: Arc<dyn VfsFile>,
    pub tip: Tip,
    pub durable: Tip,
    pub summarizer: Summarizer,
    /// The body of the predecessor's summary, while this segment holds no record and may be replaced (C43).
    pub predecessor_summary: Option<Vec<u8>>,
    /// Whether nothing came since the last durable mark.
    pub is_marked: bool,
}

/// A point between two units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tip {
    pub byte: u64,
    pub offset: Offset,
    pub chain: u32,
}

/// How the next segment follows: what it closes, and where.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub base: Offset,
    pub predecessor: Option<Predecessor>,
    pub summary: Option<Vec<u8>>,
    /// The segment to close; `None` where it holds no record and its name is taken over.
    pub closes: Option<(Arc<Segment>, u64)>,
}

/// An append, a trim or a mark that may or may not be on the device.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Where the evidence begins.
    pub tail: Offset,
    /// The epoch that wrote it.
    pub epoch: Epoch,
    pub cut: Cut,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LastSettled {
    pub first: Offset,
    pub epoch: Epoch,
    pub outcome: LastOutcome,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum LastOutcome {
    Committed { end: Offset, epoch: Epoch },
    Absent(crate::outcome::AbsentReason),
}

impl From<LastOutcome> for Settled {
    fn from(outcome: LastOutcome) -> Settled {
        match outcome {
            LastOutcome::Committed { end, epoch } => Settled::Committed { end, epoch },
            LastOutcome::Absent(why) => Settled::Absent { why },
        }
    }
}

impl Active {
    /// The segment as it was just put in place: all of it is durable.
    pub(crate) fn placed(placed: Placed, predecessor_summary: Option<Vec<u8>>) -> Active {
        let tip = Tip { byte: placed.end_byte, offset: placed.next, chain: placed.chain };
        Active {
            is_marked: true,
            predecessor_summary: predecessor_summary.filter(|_| placed.data_units == 0),
            segment: placed.segment,
            file: placed.file,
            tip,
            durable: tip,
            summarizer: placed.summarizer,
        }
    }

    /// How a segment that begins at a point of this one follows it.
    pub(crate) fn cut(&self, at: Tip) -> Cut {
        let segment = &self.segment;
        if at.offset == segment.base() {
            let predecessor = segment.header.predecessor;
            let summary = self.predecessor_summary.clone();
            return Cut { base: at.offset, predecessor, summary, closes: None };
        }
        Cut {
            base: at.offset,
            predecessor: Some(Predecessor { number: segment.number(), end: at.byte, chain: at.chain }),
            summary: self.summarizer.encode(at.offset),
            closes: Some((Arc::clone(segment), at.byte)),
        }
    }
}

/// Why a control unit or a roll did not happen.
#[derive(Debug)]
pub(crate) enum Failure {
    Refused(RefusedError),
    Uncertain(UncertainCause),
}

impl LogWriter {
    /// The epoch of what is appended now; a settle raises it.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The offset the next record gets while nothing is uncertain.
    pub fn tail(&self) -> Offset {
        self.next
    }

    /// What `Durable` is worth.
    pub fn class(&self) -> Durability {
        self.options.durability
    }

    /// The largest unit and append.
    pub fn limits(&self) -> StoreLimits {
        let segment = self.options.segment_bytes.get();
        let room = segment - segment / SUMMARY_PART;
        let append_bytes_max = usize::try_from(room.saturating_sub(HEADER_BYTES as u64 + 256)).unwrap_or(usize::MAX);
        let unit_bytes_max = self.options.unit_bytes_max.as_usize().min(crate::BODY_BYTES_MAX);
        StoreLimits { unit_bytes_max: unit_bytes_max.min(append_bytes_max.saturating_sub(64)), append_bytes_max }
    }

    /// Whether a spare exists, so that a fence needs no new space (C42).
    pub fn has_spare(&self) -> bool {
        self.space.spares() > 0
    }

    /// Whether an append is unsettled.
    pub fn is_uncertain(&self) -> bool {
        self.pending.is_some()
    }

    /// Another handle to housekeeping.
    pub fn preparer(&self) -> Preparer {
        Preparer { space: Arc::clone(&self.space) }
    }

    /// What to keep before an append, so that it can be settled (C23).
    pub fn evidence(&self, units: Vec<Unit>) -> Evidence {
        Evidence {
            epoch: self.epoch,
            segment: self.active.segment.number(),
            start_byte: self.active.tip.byte,
            first: self.next,
            units,
        }
    }

    /// Writes the units at `expected` with one gathered write, then one `fdatasync` (class `fsync`). Blocks.
    pub fn append(&mut self, expected: Offset, units: &[Unit]) -> Append {
        let (bytes, end) = match self.admit(expected, units) {
            Ok(admitted) => admitted,
            Err(refused) => return Append::Refused(refused),
        };
        let mut times = AppendTimes::default();
        if self.active.tip.byte + bytes > self.options.segment_bytes.get() {
            match self.roll(self.catalog.log_start()) {
                Ok(()) => times.rolled = true,
                Err(Failure::Refused(refused)) => return Append::Refused(refused),
                Err(Failure::Uncertain(cause)) => return Append::Uncertain(cause),
            }
        }
        let prepared = match self.space.ensure_prepared(self.active.file.as_ref(), self.active.tip.byte + bytes) {
            Ok(prepared) => prepared,
            Err(source) => return Append::Refused(self.no_space(bytes, Some(source))),
        };
        times.extended_inline = prepared.was_inline;
        match self.write(units, bytes, prepared.end, end, &mut times) {
            Ok(()) => Append::Durable { end, times },
            Err(cause) => Append::Uncertain(cause),
        }
    }

    /// Points the rows of the units of the last append into the buffer that it wrote, so that their own can be freed. They
    /// are the same bytes. Class `written` keeps the units until a sync: it shares nothing.
    pub fn share(&mut self, units: &mut [Unit]) {
        if self.options.durability != Durability::Written {
            self.gather.share(units);
        }
    }

    /// All checks that need no I/O, and the spare without which no append may begin.
    fn admit(&self, expected: Offset, units: &[Unit]) -> Result<(u64, Offset), RefusedError> {
        if let Some(pending) = &self.pending {
            return Err(RefusedError::Unsettled { first: pending.tail });
        }
        if expected != self.next {
            return Err(RefusedError::WrongExpected { expected, actual: self.next });
        }
        let limits = self.limits();
        let mut end = self.next;
        for unit in units {
            let bytes = unit.body.encoded_len();
            if bytes > limits.unit_bytes_max {
                let limit = limits.unit_bytes_max as u64;
                return Err(RefusedError::TooLarge { what: "unit", bytes: bytes as u64, limit });
            }
            if unit.body.records() == 0 {
                return Err(RefusedError::EmptyUnit);
            }
            let exhausted = RefusedError::NumbersExhausted { number: "offset", limit: Offset::MAX.0 };
            end = end.checked_add(u64::from(unit.body.records())).ok_or(exhausted)?;
        }
        let bytes = gathered_bytes(units);
        if bytes > limits.append_bytes_max as u64 {
            return Err(RefusedError::TooLarge { what: "append", bytes, limit: limits.append_bytes_max as u64 });
        }
        self.space.ensure_spares(1).map_err(|source| self.no_space(bytes, Some(source)))?;
        Ok((bytes, end))
    }

    fn no_space(&self, needed: u64, source: Option<std::io::Error>) -> RefusedError {
        let dir = self.catalog.dir.clone();
        match source {
            Some(source) if !is_no_space(&source) => RefusedError::Unprepared { dir, needed, source },
            source => RefusedError::NoSpace { dir, needed, source },
        }
    }

    fn write(
        &mut self,
        units: &[Unit],
        bytes: u64,
        prepared: u64,
        end: Offset,
        times: &mut AppendTimes,
    ) -> Result<(), UncertainCause> {
        let start = self.active.tip;
        // Class `fsync`: what came before this turn is durable.
        let target = Target {
            seed: self.active.segment.seed,
            epoch: self.epoch,
            at: start.byte,
            durable: self.active.durable.byte,
            first: start.offset,
            chain: start.chain,
        };
        let chain = self.gather.lay_out(units, &target);
        let began = self.options.clock.instant();
        // Whole pages: one that is in no cache would have to be read before a part of it is written.
        let end_byte = start.byte + bytes;
        let page_end = if units.is_empty() { end_byte } else { end_byte.next_multiple_of(PAGE) };
        let padding = page_end.min(prepared.max(end_byte)) - end_byte;
        let written = self.gather.write(units, padding as usize, self.active.file.as_ref(), start.byte);
        times.write = self.elapsed(began);
        let path = || self.active.segment.path.clone();
        match written {
            Ok(written) if written == bytes + padding => {}
            Ok(written) => {
                let cause = UncertainCause::WriteShort { path: path(), written, given: bytes + padding };
                return Err(self.give_up(cause));
            }
            Err(source) => {
                let cause = UncertainCause::WriteFailed { path: path(), at: start.byte, source };
                return Err(self.give_up(cause));
            }
        }
        let is_written_class = self.options.durability == Durability::Written;
        let unsynced = start.byte + bytes - self.active.durable.byte;
        if !is_written_class || unsynced > UNSYNCED_BYTES_MAX {
            let began = self.options.clock.instant();
            if let Err(source) = self.active.file.sync_data() {
                let cause = UncertainCause::SyncFailed { path: path(), source };
                return Err(self.give_up(cause));
            }
            times.sync = self.elapsed(began);
        }
        self.take_in(units, Tip { byte: start.byte + bytes, offset: end, chain });
        if !is_written_class || unsynced > UNSYNCED_BYTES_MAX {
            self.active.durable = self.active.tip;
            self.unsynced.clear();
        } else {
            self.unsynced.extend_from_slice(units);
        }
        Ok(())
    }

    fn elapsed(&self, began: std::time::Instant) -> Duration {
        self.options.clock.instant().saturating_duration_since(began)
    }

    /// The append has succeeded.
    fn take_in(&mut self, units: &[Unit], tip: Tip) {
        let active = &mut self.active;
        let (mut at, mut first) = (active.tip.byte, active.tip.offset);
        for unit in units {
            let records = unit.body.records();
            let indexed = active.summarizer.add_data(at, first, records, unit.append_time, unit.body.tag());
            if let Some(entry) = indexed {
                active.segment.add_to_index(entry);
            }
            at += padded(crate::format::HEAD_BYTES + unit.body.encoded_len()) as u64;
            first = Offset(first.0 + u64::from(records));
        }
        if let Some(last) = units.last() {
            active.segment.set_last_append_time(last.append_time);
            active.predecessor_summary = None;
            active.is_marked = false;
        }
        self.space.advance(tip.byte, tip.byte - active.tip.byte);
        active.tip = tip;
        self.next = tip.offset;
    }

    /// From here on the active file is not touched: a settle decides (C35).
    fn give_up(&mut self, cause: UncertainCause) -> UncertainCause {
        // What a class `written` writer has exposed and not synced is as uncertain as the append itself.
        let cut = self.active.cut(self.active.durable);
        self.pending = Some(Pending { tail: self.next, epoch: self.epoch, cut });
        cause
    }

    /// Class `written`: makes everything appended so far durable. Class `fsync`: nothing to do.
    pub fn sync(&mut self) -> Result<(), UncertainCause> {
        if self.pending.is_some() || self.active.durable == self.active.tip {
            return Ok(());
        }
        if let Err(source) = self.active.file.sync_data() {
            let cause = UncertainCause::SyncFailed { path: self.active.segment.path.clone(), source };
            return Err(self.give_up(cause));
        }
        self.active.durable = self.active.tip;
        self.unsynced.clear();
        Ok(())
    }

    /// Writes and syncs one control unit behind the tail. Refused where the segment has no room for it.
    pub(crate) fn append_control(&mut self, kind: Kind, body: &[u8]) -> Result<(), Failure> {
        let tip = self.active.tip;
        let back = u32::try_from(tip.byte - self.active.durable.byte).unwrap_or(u32::MAX);
        let header = &self.active.segment.header;
        let now = self.append_time();
        let head = control_head(kind, body, tip.offset, self.epoch, back, tip.chain, header, now);
        let bytes = head.unit_bytes();
        if tip.byte + bytes > self.options.segment_bytes.get() {
            return Err(Failure::Refused(self.no_space(bytes, None)));
        }
        if let Err(source) = self.space.ensure_prepared(self.active.file.as_ref(), tip.byte + bytes) {
            return Err(Failure::Refused(self.no_space(bytes, Some(source))));
        }
        let mut unit = Vec::with_capacity(bytes as usize);
        let chain = head.put(self.active.segment.seed, &mut unit);
        unit.extend_from_slice(body);
        unit.resize(padded(unit.len()), 0);
        let path = || self.active.segment.path.clone();
        let cause = match self.active.file.write_at(&[IoSlice::new(&unit)], tip.byte) {
            Ok(written) if written as u64 == bytes => match self.active.file.sync_data() {
                Ok(()) => None,
                Err(source) => Some(UncertainCause::SyncFailed { path: path(), source }),
            },
            Ok(written) => Some(UncertainCause::WriteShort { path: path(), written: written as u64, given: bytes }),
            Err(source) => Some(UncertainCause::WriteFailed { path: path(), at: tip.byte, source }),
        };
        if let Some(cause) = cause {
            return Err(Failure::Uncertain(self.give_up(cause)));
        }
        self.active.tip = Tip { byte: tip.byte + bytes, offset: tip.offset, chain };
        self.active.durable = self.active.tip;
        self.unsynced.clear();
        self.space.advance(self.active.tip.byte, bytes);
        Ok(())
    }

    /// Control units carry a time too; like all others it does not go back.
    fn append_time(&self) -> Timestamp {
        let last = self.active.segment.last_append_time().unwrap_or(Timestamp(i64::MIN));
        self.options.clock.now().max(last)
    }

    /// Begins the next segment (C76). Leaves a spare for a fence.
    pub(crate) fn roll(&mut self, log_start: Offset) -> Result<(), Failure> {
        // A successor must not close bytes that no sync has confirmed.
        self.sync().map_err(Failure::Uncertain)?;
        let needed = self.options.preparation.step_min.get();
        if let Err(source) = self.space.ensure_spares(2) {
            return Err(Failure::Refused(self.no_space(needed, Some(source))));
        }
        let number = self
            .next_number()
            .map_err(|(number, limit)| Failure::Refused(RefusedError::NumbersExhausted { number, limit }))?;
        let cut = self.active.cut(self.active.tip);
        let header = self.header(&cut, self.epoch, number, Reason::Roll, log_start);
        match self.succeed(&cut, header, |_| Ok(())) {
            Ok(()) => Ok(()),
            Err(error) if error.is_no_space() && !error.was_renamed => {
                Err(Failure::Refused(self.no_space(needed, Some(error.source))))
            }
            // The rename may have taken effect, so the next segment must void it (C25).
            Err(error) => {
                self.pending = Some(Pending { tail: self.next, epoch: self.epoch, cut });
                Err(Failure::Uncertain(error.into()))
            }
        }
    }

    pub(crate) fn next_number(&mut self) -> Result<SegmentNumber, (&'static str, u64)> {
        let number = self.highest_number.checked_add(1).ok_or(("segment number", SegmentNumber::MAX.0))?;
        self.highest_number = number;
        Ok(number)
    }

    pub(crate) fn header(
        &self,
        cut: &Cut,
        epoch: Epoch,
        number: SegmentNumber,
        reason: Reason,
        log_start: Offset,
    ) -> SegmentHeader {
        SegmentHeader {
            identity: self.identity,
            epoch,
            number,
            base: cut.base,
            predecessor: cut.predecessor,
            reason,
            log_start,
            created: self.options.clock.now(),
        }
    }

    /// Puts the next segment in place and moves on to it.
    pub(crate) fn succeed(
        &mut self,
        cut: &Cut,
        header: SegmentHeader,
        fill: impl FnOnce(&mut Draft) -> Result<(), SuccessionError>,
    ) -> Result<(), SuccessionError> {
        let is_roll = header.reason == Reason::Roll;
        let spare = self.space.take_or_make_spare().map_err(|source| SuccessionError {
            step: "making a spare",
            path: self.catalog.dir.clone(),
            source,
            was_renamed: false,
        })?;
        let summary_bytes_max = (self.options.segment_bytes.get() / SUMMARY_PART) as usize;
        let now = self.append_time();
        let mut draft = Draft::begin(spare, header, summary_bytes_max);
        if let Some(summary) = &cut.summary {
            draft.push_control(Kind::Summary, summary, now)?;
        }
        fill(&mut draft)?;
        let placed = draft.place(&self.catalog, false)?;
        if let Some((segment, end_byte)) = &cut.closes {
            segment.close_at(cut.base, *end_byte);
            self.catalog.keep_open(segment);
            if is_roll {
                self.space.add_chores([Chore::Cut(Arc::clone(segment))]);
            }
        }
        self.move_to(placed, cut.summary.clone());
        Ok(())
    }

    /// Makes a placed segment the active one, for readers and for housekeeping too.
    pub(crate) fn move_to(&mut self, placed: Placed, predecessor_summary: Option<Vec<u8>>) {
        let prepared = placed.prepared;
        self.active = Active::placed(placed, predecessor_summary);
        self.next = self.active.tip.offset;
        self.enter(prepared);
    }

    /// Shows the active segment to readers and to housekeeping.
    pub(crate) fn enter(&self, prepared: u64) {
        self.catalog.add_segment(Arc::clone(&self.active.segment));
        let own = self.catalog.vfs.open(&self.active.segment.path, Access::Write);
        let own = own.unwrap_or_else(|_| Arc::clone(&self.active.file));
        self.space.set_active(own, self.active.tip.byte, prepared);
    }
}

impl From<SuccessionError> for UncertainCause {
    fn from(error: SuccessionError) -> UncertainCause {
        UncertainCause::FenceFailed { step: error.step, path: error.path, source: error.source }
    }
}

/// Whether a cause is a full device.
pub(crate) fn is_full(cause: &UncertainCause) -> bool {
    match cause {
        UncertainCause::FenceFailed { source, .. } | UncertainCause::NoSpare { source, .. } => is_no_space(source),
        _ => false,
    }
}
