//! Class `memory`: units in memory alone, no files. What is trimmed or closed is gone (C11).
//!
//! "Segments" here are runs of units of about the configured size, so that retention works as on disk.

use std::collections::VecDeque;
use std::sync::Arc;

use landfall_log::{
    AbsentReason, Append, AppendTimes, Budget, CloseError, Evidence, Intent, Located, OpenError, Page, ReadError,
    RefusedError, SegmentSummary, Settled, StoreLimits, StoredUnit, TrimError, UncertainCause, Unit, VisibleTail,
};
use landfall_types::{ByteSize, Durability, Epoch, Offset, SegmentNumber, TicketNumber, Timestamp};
use parking_lot::RwLock;

use super::{OpenedStore, PartitionReader, PartitionStore, PartitionWriter, Upkeep};

/// A partition that lives as long as the process. Opening it again, after a panic, finds what was appended.
#[derive(Debug)]
pub(crate) struct MemoryStore {
    shared: Arc<RwLock<Units>>,
}

#[derive(Debug)]
struct Units {
    segment_bytes: u64,
    epoch: Epoch,
    start: Offset,
    tail: Offset,
    last_append_time: Timestamp,
    segments: VecDeque<Segment>,
    next_segment: u64,
}

#[derive(Debug)]
struct Segment {
    number: SegmentNumber,
    base: Offset,
    bytes: u64,
    units: Vec<StoredUnit>,
}

impl MemoryStore {
    pub(crate) fn new(segment_bytes: ByteSize) -> Self {
        let units = Units {
            segment_bytes: segment_bytes.0,
            epoch: Epoch::ZERO,
            start: Offset::ZERO,
            tail: Offset::ZERO,
            last_append_time: Timestamp::default(),
            segments: VecDeque::new(),
            next_segment: 0,
        };
        MemoryStore { shared: Arc::new(RwLock::new(units)) }
    }
}

impl PartitionStore for MemoryStore {
    fn open(&self) -> Result<OpenedStore, OpenError> {
        let mut units = self.shared.write();
        let next = units.epoch.checked_add(1);
        units.epoch = next.ok_or(OpenError::NumbersExhausted { number: "epoch", limit: u64::from(u32::MAX) })?;
        Ok(OpenedStore {
            writer: Box::new(Writer { shared: Arc::clone(&self.shared), epoch: units.epoch }),
            reader: Box::new(Reader { shared: Arc::clone(&self.shared) }),
            upkeep: Box::new(Nothing),
            tail: units.tail,
            last_append_time: units.last_append_time,
            adopted_units: 0,
            torn_bytes: 0,
            damaged: Vec::new(),
            window_start: units.start,
            tags: Vec::new(),
            sequences: Vec::new(),
            strays: Vec::new(),
        })
    }
}

struct Writer {
    shared: Arc<RwLock<Units>>,
    epoch: Epoch,
}

impl PartitionWriter for Writer {
    fn epoch(&self) -> Epoch {
        self.epoch
    }
    fn tail(&self) -> Offset {
        self.shared.read().tail
    }
    fn class(&self) -> Durability {
        Durability::Memory
    }
    fn limits(&self) -> StoreLimits {
        StoreLimits { unit_bytes_max: landfall_log::BODY_BYTES_MAX, append_bytes_max: usize::MAX }
    }
    fn has_spare(&self) -> bool {
        true
    }
    fn evidence(&self, units: Vec<Unit>) -> Evidence {
        Evidence { epoch: self.epoch, segment: SegmentNumber::ZERO, start_byte: 0, first: self.tail(), units }
    }

    fn append(&mut self, expected: Offset, units: &[Unit]) -> Append {
        let mut stored = self.shared.write();
        if expected != stored.tail {
            return Append::Refused(RefusedError::WrongExpected { expected, actual: stored.tail });
        }
        let records: u64 = units.iter().map(|unit| u64::from(unit.body.records())).sum();
        let Some(end) = expected.checked_add(records) else {
            return Append::Refused(RefusedError::NumbersExhausted { number: "offset", limit: u64::MAX });
        };
        for unit in units {
            let bytes = unit.body.rows().len() as u64;
            let limit = stored.segment_bytes;
            let fits = stored.segments.back().is_some_and(|segment| segment.bytes + bytes <= limit);
            if !fits {
                let number = SegmentNumber(stored.next_segment);
                stored.next_segment += 1;
                let base = stored.tail;
                stored.segments.push_back(Segment { number, base, bytes: 0, units: Vec::new() });
            }
            let first = stored.tail;
            let kept = StoredUnit {
                first,
                records: unit.body.records(),
                append_time: unit.append_time,
                origin_epoch: self.epoch,
                ticket: unit.ticket,
                tag: *unit.body.tag(),
                rows: unit.body.rows().clone(),
            };
            stored.tail = kept.end();
            stored.last_append_time = unit.append_time;
            if let Some(segment) = stored.segments.back_mut() {
                segment.bytes += bytes;
                segment.units.push(kept);
            }
        }
        Append::Durable { end, times: AppendTimes::default() }
    }

    fn settle(&mut self, _evidence: &Evidence, _intent: Intent) -> Settled {
        // Nothing here is ever uncertain, so there is nothing of it in the log.
        Settled::Absent { why: AbsentReason::Abandoned }
    }
    fn sync(&mut self) -> Result<(), UncertainCause> {
        Ok(())
    }
    fn mark(&mut self) -> Result<(), UncertainCause> {
        Ok(())
    }

    fn trim(&mut self, before: Offset) -> Result<Offset, TrimError> {
        let mut stored = self.shared.write();
        while stored.segments.len() > 1 && stored.segments.get(1).is_some_and(|next| next.base <= before) {
            stored.segments.pop_front();
        }
        if let Some(base) = stored.segments.front().map(|segment| segment.base) {
            stored.start = base;
        }
        Ok(stored.start)
    }

    fn segments(&self) -> Vec<SegmentSummary> {
        let stored = self.shared.read();
        let last = stored.segments.back().map(|segment| segment.number);
        let summary = |segment: &Segment| SegmentSummary {
            number: segment.number,
            base: segment.base,
            end: segment.units.last().map_or(segment.base, StoredUnit::end),
            bytes: segment.bytes,
            last_append_time: segment.units.last().map(|unit| unit.append_time),
            is_active: Some(segment.number) == last,
            is_damaged: false,
        };
        stored.segments.iter().map(summary).collect()
    }

    fn close(self: Box<Self>) -> Result<(), CloseError> {
        Ok(())
    }
}

#[derive(Debug)]
struct Reader {
    shared: Arc<RwLock<Units>>,
}

impl Units {
    /// The units from the one holding `from` on.
    fn from(&self, from: Offset) -> impl Iterator<Item = &StoredUnit> {
        let at = self.segments.partition_point(|segment| segment.base <= from).saturating_sub(1);
        self.segments.iter().skip(at).flat_map(move |segment| {
            let first = segment.units.partition_point(|unit| unit.end() <= from);
            segment.units.iter().skip(first)
        })
    }

    fn check(&self, from: Offset, upto: VisibleTail) -> Result<(), ReadError> {
        if from < self.start {
            return Err(ReadError::Trimmed { from, log_start: self.start });
        }
        if from > upto.0 {
            return Err(ReadError::PastTail { from, tail: upto.0 });
        }
        Ok(())
    }
}

impl PartitionReader for Reader {
    fn log_start(&self) -> Offset {
        self.shared.read().start
    }

    fn read(&self, from: Offset, upto: VisibleTail, budget: Budget, page: &mut Page) -> Result<(), ReadError> {
        let stored = self.shared.read();
        stored.check(from, upto)?;
        page.units.clear();
        let (mut records, mut bytes) = (0u32, 0usize);
        for unit in stored.from(from).take_while(|unit| unit.end() <= upto.0) {
            records = records.saturating_add(unit.records);
            bytes = bytes.saturating_add(unit.rows.len());
            if !page.units.is_empty() && (records > budget.records || bytes > budget.bytes) {
                break;
            }
            page.units.push(unit.clone());
        }
        Ok(())
    }

    fn at_time(&self, at: Timestamp, upto: VisibleTail) -> Result<Offset, ReadError> {
        let stored = self.shared.read();
        let found = stored.from(stored.start).find(|unit| unit.append_time >= at);
        Ok(found.map_or(upto.0, |unit| unit.first.min(upto.0)))
    }

    fn origin_epoch(&self, offset: Offset, upto: VisibleTail) -> Result<Epoch, ReadError> {
        let stored = self.shared.read();
        stored.check(offset, upto)?;
        let unit = stored.from(offset).next();
        unit.map(|unit| unit.origin_epoch).ok_or(ReadError::PastTail { from: offset, tail: upto.0 })
    }

    fn locate(
        &self,
        first: Offset,
        epoch: Epoch,
        ticket: TicketNumber,
        upto: VisibleTail,
    ) -> Result<Located, ReadError> {
        let stored = self.shared.read();
        if first < stored.start {
            return Ok(Located::Trimmed);
        }
        let found = stored.from(first).next().filter(|unit| {
            unit.first == first && unit.origin_epoch == epoch && unit.ticket == ticket && unit.end() <= upto.0
        });
        Ok(found.map_or(Located::NotThere, |unit| Located::There { first, records: unit.records }))
    }
}

struct Nothing;

impl Upkeep for Nothing {
    fn is_due(&self) -> bool {
        false
    }
    fn run(&self) -> std::io::Result<()> {
        Ok(())
    }
}
