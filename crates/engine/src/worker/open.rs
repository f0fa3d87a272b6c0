//! The open batch of a shard, and how it is sealed: by rows, bytes or age, cut between records, under a name that
//! follows from what it stands for (E87, E115).

use std::collections::VecDeque;
use std::hash::Hasher;
use std::time::Duration;

use arrow_array::RecordBatch;
use landfall_types::PartitionId;
use siphasher::sip128::{Hasher128, SipHasher13};
use tokio::time::Instant;

use super::ledger::{Hold, Ledger, OriginPart, Origins};
use crate::contract::{CommitId, Covered, PipelineId, SealedBatch, ShardId};
use crate::shard::Segment;

/// When a batch is full.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
    pub(crate) age: Duration,
}

/// Why a batch was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealReason {
    Rows,
    Bytes,
    Age,
    Pressure,
    /// Nothing more comes for now.
    Lull,
    /// The writer gathers, and has nothing to do.
    Idle,
    Settle,
    Quiesce,
    Drain,
}

/// What is the same in the names of all batches of a shard.
#[derive(Clone, Debug)]
pub(crate) struct BatchName {
    hasher: SipHasher13,
}

impl BatchName {
    pub(crate) fn new(pipeline: &PipelineId, sink: &str, shard: ShardId, source: &str) -> Self {
        let mut hasher = SipHasher13::new_with_keys(0x4c61_6e64_6661_6c6c, 1);
        for part in [pipeline.0.as_str(), sink, source] {
            hasher.write_u64(part.len() as u64);
            hasher.write(part.as_bytes());
        }
        hasher.write_u16(shard.0);
        BatchName { hasher }
    }

    /// The name of the batch that stands for these ranges. Epochs are left out: a replay has the same name.
    pub(crate) fn of(&self, covers: &[Covered]) -> CommitId {
        let mut hasher = self.hasher;
        for cover in covers {
            hasher.write_u32(cover.partition.0);
            for place in [cover.range.start, cover.range.end] {
                hasher.write_u64(place.at);
                hasher.write_u64(place.within);
            }
        }
        CommitId(hasher.finish128().as_u128())
    }

    /// The name of a part of a batch that was split (E119).
    pub(crate) fn part(id: CommitId, path: &str) -> CommitId {
        let mut hasher = SipHasher13::new_with_keys(0x4c61_6e64_6661_6c6c, 2);
        hasher.write_u64((id.0 >> 64) as u64);
        hasher.write_u64(id.0 as u64);
        hasher.write(path.as_bytes());
        CommitId(hasher.finish128().as_u128())
    }
}

/// Segments that wait to be sealed.
#[derive(Debug, Default)]
pub(crate) struct OpenBatch {
    segments: VecDeque<Segment>,
    rows: usize,
    bytes: usize,
    opened: Option<Instant>,
    /// When the newest rows came.
    grown: Option<Instant>,
}

impl OpenBatch {
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(crate) fn opened(&self) -> Option<Instant> {
        self.opened
    }

    /// When rows came last.
    pub(crate) fn grown(&self) -> Option<Instant> {
        self.grown
    }

    pub(crate) fn age(&self, now: Instant) -> Option<Duration> {
        self.opened.map(|opened| now.duration_since(opened))
    }

    pub(crate) fn is_full(&self, limits: &Limits) -> bool {
        self.rows >= limits.rows || self.bytes >= limits.bytes
    }

    pub(crate) fn holds(&self, partition: PartitionId) -> bool {
        self.segments.iter().any(|segment| segment.cover.partition == partition)
    }

    pub(crate) fn push(&mut self, segment: Segment, now: Instant) {
        self.opened.get_or_insert(now);
        self.grown = Some(now);
        self.rows += segment.len();
        self.bytes += segment.bytes;
        self.segments.push_back(segment);
    }

    /// Drops what will be read again because its epoch has ended.
    pub(crate) fn drop_stale(&mut self) {
        if self.segments.iter().any(Segment::is_stale) {
            self.segments.retain(|segment| !segment.is_stale());
            self.recount();
        }
    }

    /// Drops what is of a partition.
    pub(crate) fn remove(&mut self, partition: PartitionId) {
        self.segments.retain(|segment| segment.cover.partition != partition);
        self.recount();
    }

    /// Takes everything out.
    pub(crate) fn take(&mut self) -> VecDeque<Segment> {
        let all = std::mem::take(&mut self.segments);
        self.recount();
        all
    }

    fn recount(&mut self) {
        self.rows = self.segments.iter().map(Segment::len).sum();
        self.bytes = self.segments.iter().map(|segment| segment.bytes).sum();
        if self.segments.is_empty() {
            (self.opened, self.grown) = (None, None);
        }
    }

    /// Seals up to the limits; what is over stays open. A record is never cut, so a batch may be a record longer.
    pub(crate) fn seal(&mut self, limits: &Limits, name: &BatchName) -> Option<(SealedBatch, Ledger, Origins)> {
        let (mut rows, mut bytes) = (0usize, 0usize);
        let mut taken: Vec<Segment> = Vec::with_capacity(self.segments.len());
        while let Some(segment) = self.segments.pop_front() {
            if taken.first().is_some_and(|first| first.note != segment.note) {
                // No sealed batch joins two notes (E5).
                self.segments.push_front(segment);
                break;
            }
            let (room, bytes_room) = (limits.rows - rows, limits.bytes - bytes);
            let allowed = if segment.bytes <= bytes_room {
                segment.len().min(room)
            } else {
                // As many rows as fit by their average size, but at least one: a batch is never empty.
                let average = (segment.bytes / segment.len().max(1)).max(1);
                (bytes_room / average).min(room).max(usize::from(rows == 0))
            };
            if allowed == 0 && segment.len() > 0 {
                self.segments.push_front(segment);
                break;
            }
            let (head, rest) = if allowed < segment.len() {
                match segment.cut(allowed) {
                    Ok((head, rest)) => (head, Some(rest)),
                    Err(whole) => (*whole, None),
                }
            } else {
                (segment, None)
            };
            rows += head.len();
            bytes += head.bytes;
            taken.push(head);
            if let Some(rest) = rest {
                self.segments.push_front(rest);
                break;
            }
            if rows >= limits.rows || bytes >= limits.bytes {
                break;
            }
        }
        self.recount();
        if taken.is_empty() {
            return None;
        }
        if !self.segments.is_empty() {
            // What is over keeps its age: it came no later than what was sealed last.
            self.opened = self.opened.or_else(|| Some(Instant::now()));
        }
        Some(sealed(taken, name))
    }
}

fn sealed(segments: Vec<Segment>, name: &BatchName) -> (SealedBatch, Ledger, Origins) {
    let mut covers: Vec<Covered> = Vec::new();
    for segment in &segments {
        let last = covers
            .iter_mut()
            .rev()
            .find(|cover| cover.partition == segment.cover.partition && cover.epoch == segment.cover.epoch);
        match last {
            Some(last) if last.range.end == segment.cover.range.start => {
                last.range.end = segment.cover.range.end;
                last.rows = last.rows.saturating_add(segment.cover.rows);
            }
            // The same slice gave rows twice: a cover that is there already is not counted again.
            Some(last) if last.range.end >= segment.cover.range.end => {}
            _ => covers.push(segment.cover.clone()),
        }
    }
    let id = name.of(&covers);
    let bytes = segments.iter().map(|segment| segment.bytes).sum();
    let oldest = segments.iter().map(|segment| segment.oldest).min().unwrap_or_default();
    let note = segments.first().and_then(|segment| segment.note);
    let mut ledger = Ledger {
        id,
        covers: covers.clone(),
        holds: Vec::with_capacity(segments.len()),
        charges: Vec::with_capacity(segments.len()),
        rows: segments.iter().map(Segment::len).sum(),
        oldest,
    };
    let mut parts = Vec::with_capacity(segments.len());
    let mut origins = Vec::with_capacity(segments.len());
    for segment in segments {
        origins.push(OriginPart {
            offsets: segment.offsets,
            partition: segment.cover.partition,
            origin: segment.origin,
            source: segment.source,
        });
        ledger.holds.push(Hold { rows: segment.rows.num_rows(), ack: segment.hold });
        ledger.charges.extend(segment.charge);
        parts.push(segment.rows);
    }
    let batch = SealedBatch { id, parts: joined(parts), covers, bytes, oldest, note };
    (batch, ledger, Origins { parts: origins })
}

/// Small parts become one: a writer pays per part.
fn joined(parts: Vec<RecordBatch>) -> Vec<RecordBatch> {
    const ROWS_PER_PART_MIN: usize = 512;
    let rows: usize = parts.iter().map(RecordBatch::num_rows).sum();
    if parts.len() < 2 || rows / parts.len() >= ROWS_PER_PART_MIN {
        return parts;
    }
    match arrow_select::concat::concat_batches(&parts[0].schema(), &parts) {
        Ok(whole) => vec![whole],
        // All parts have the planned schema; a type that cannot be joined goes out in its parts.
        Err(_) => parts,
    }
}
