//! The work on one slice of a source batch: from its rows to an ordered list of handoffs and a parcel of letters,
//! with every source row entered into the books of each sink once (E113).

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use landfall_types::{Place, Timestamp};

use super::rows::{Refusals, is_rising, offsets, records, refuse, without};
use super::{BlockReason, Chain, Handed, Handoff, PushOutcome, ResumePoint, Unfinished};
use crate::codes;
use crate::contract::{BadRow, CopyMark, Covered, Decoded, EngineError, RowErrors, SinkId, Stage, TableNote};
use crate::core::{Ack, Books, FailCause};
use crate::dead_letter::{Parcel, bad_record, letter_bytes, record_at, times_of};
use crate::options::OnError;
use crate::poll::SourceBatch;
use crate::shard::{Segment, compacted, memory_of};
use crate::source_rows::SourceRows;

const SLICE_ROWS_MAX: usize = 4096;
const SLICE_BYTES_MAX: usize = 1 << 20;

/// How a source batch is cut into slices.
pub(super) struct Slices {
    rows: usize,
    per_slice: usize,
    source: SourceRows,
}

impl Slices {
    pub(super) fn of(batch: &SourceBatch, is_first: bool) -> Result<Slices, EngineError> {
        let rows = batch.rows.num_rows();
        let offsets = offsets(&batch.rows, "the source")?;
        let broken = |what: &str| EngineError {
            code: codes::LANE_CONTRACT,
            text: format!("the offsets of a batch of partition {} {what}", batch.covered.partition),
        };
        let source = match &batch.places {
            None => SourceRows::records(offsets),
            Some(places) => SourceRows::of_table(offsets, places.clone()).ok_or_else(|| broken("have other places"))?,
        };
        // A batch that comes again was looked at before: a retry costs the handover only (E43).
        if is_first && !source.rises() {
            return Err(broken("do not rise"));
        }
        let average = batch.bytes / rows.max(1);
        let per_slice = (SLICE_BYTES_MAX / average.max(1)).clamp(1, SLICE_ROWS_MAX);
        Ok(Slices { rows, per_slice, source })
    }

    /// At least one: a batch without rows still stands for its range.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.rows.div_ceil(self.per_slice)).unwrap_or(u32::MAX).max(1)
    }

    pub(super) fn offset(&self, row: usize) -> u64 {
        self.source.offsets().value(row)
    }

    pub(super) fn rows_of(&self, slice: u32) -> Range<usize> {
        let start = (slice as usize * self.per_slice).min(self.rows);
        start..(start + self.per_slice).min(self.rows)
    }

    fn range_of(&self, slice: u32, batch: &Covered) -> Range<Place> {
        let rows = self.rows_of(slice);
        let start = if rows.start == 0 { batch.range.start } else { self.source.place(rows.start) };
        let end = if rows.end >= self.rows { batch.range.end } else { self.source.place(rows.end) };
        start..end
    }
}

/// What is the same for every sink of a slice.
struct Slice<'a> {
    source: RecordBatch,
    places: SourceRows,
    /// Rows that the source could not make; they lie between the others.
    bad: &'a [BadRow],
    note: Option<TableNote>,
    cover: Covered,
    ack: &'a Ack,
    oldest: Timestamp,
    bytes: usize,
}

impl Slice<'_> {
    /// How many source rows lie below a place.
    fn below(&self, place: Place) -> usize {
        self.places.below(place)
    }
}

fn count(rows: usize) -> u32 {
    u32::try_from(rows).unwrap_or(u32::MAX)
}

impl Chain {
    pub(super) fn work_slice(
        &mut self,
        batch: &SourceBatch,
        slices: &Slices,
        at: u32,
        skip: &[Place],
        panicking: Refusals,
    ) -> Result<Unfinished, PushOutcome> {
        let Some(ack) = batch.ack.as_ref() else {
            let text = "a batch without a hold was pushed".to_owned();
            return Err(PushOutcome::Fatal(EngineError { code: codes::LANE_CONTRACT, text }));
        };
        let rows = slices.rows_of(at);
        let source = batch.rows.slice(rows.start, rows.len());
        let range = slices.range_of(at, &batch.covered);
        let from = batch.bad.partition_point(|bad| bad.place < range.start);
        let to = batch.bad.partition_point(|bad| bad.place < range.end);
        let bad = batch.bad.get(from..to).unwrap_or_default();
        // A copy's mark belongs to its first or last rows alone.
        let note = batch.note.map(|note| match note.copy {
            CopyMark::Begins(_) if at > 0 => TableNote { copy: CopyMark::None, ..note },
            CopyMark::Ends(_) if at + 1 < slices.count() => TableNote { copy: CopyMark::None, ..note },
            _ => note,
        });
        let slice = Slice {
            places: slices.source.slice(rows.start, rows.len()),
            bad,
            note,
            oldest: oldest_of(&source),
            source,
            cover: Covered { range, rows: count(rows.len() + bad.len()), ..batch.covered.clone() },
            ack,
            bytes: batch.bytes / slices.rows.max(1) * rows.len(),
        };
        let mut unfinished = Unfinished { slice: at, handoff: 0, parcel: None, handoffs: VecDeque::new() };
        // What every sink has, and whose letters are stored, is not even decoded.
        if skip.iter().all(|place| *place >= slice.cover.range.end) {
            for sink in 1..=self.paths.len() {
                self.book(&slice, sink, Books { replayed: slice.cover.rows, ..Books::default() });
            }
            return Ok(unfinished);
        }
        let mut refusals = panicking;
        self.stop_at_bad_row(&slice)?;
        let decoded = self.run_stages(&slice, at, &mut refusals)?;
        self.stop_at_failing_row(&slice, &refusals)?;
        let mut parcel = Parcel { letters: Vec::new(), bytes: 0, holds: Vec::new() };
        let stored = skip.first().copied().unwrap_or(Place::START);
        self.write_bad_letters(&slice, stored, &mut parcel);
        self.write_letters(&slice, SinkId(0), None, &refusals, stored, &mut parcel);
        for path in 0..self.paths.len() {
            let position = skip.get(path + 1).copied().unwrap_or(Place::START);
            self.fan_out(path, &slice, &decoded, &refusals, position, &mut parcel, &mut unfinished.handoffs)?;
        }
        if !parcel.letters.is_empty() {
            unfinished.parcel = Some(parcel);
        }
        Ok(unfinished)
    }

    /// Decoder and transforms.
    fn run_stages(&mut self, slice: &Slice<'_>, at: u32, refusals: &mut Refusals) -> Result<RecordBatch, PushOutcome> {
        let fatal = |error: EngineError| PushOutcome::Fatal(error);
        let mut bad = RowErrors::default();
        let started = Instant::now();
        let mut source = slice.source.clone();
        let mut input = slice.places.offsets().clone();
        if !refusals.is_empty() {
            source = without(source, refusals, "the source").map_err(fatal)?;
            input = offsets(&source, "the source").map_err(fatal)?;
        }
        let decoded = self.stages.decoder.decode(&source, &mut bad).map_err(fatal)?;
        self.cx.meters.decode_seconds.record(started.elapsed().as_secs_f64());
        let mut rows = match decoded {
            Decoded::Rows(rows) => rows,
            Decoded::NotReady(handle) => {
                self.cx.meters.not_ready.increment(1);
                let resume_at = ResumePoint { slice: at, handoff: 0 };
                return Err(PushOutcome::Blocked { resume_at, reason: BlockReason::NotReady(handle) });
            }
        };
        refuse(&mut bad, &input, Stage::Decode, refusals).map_err(fatal)?;
        for transform in &mut self.stages.transforms {
            let input = offsets(&rows, "a stage").map_err(fatal)?;
            rows = transform.apply(rows, &mut bad).map_err(fatal)?;
            if !bad.is_empty() {
                refuse(&mut bad, &input, Stage::Sql, refusals).map_err(fatal)?;
                rows = without(rows, refusals, "a transform").map_err(fatal)?;
            }
        }
        Ok(rows)
    }

    /// `on_error: fail` leaves the whole batch unsettled at its first bad row.
    fn stop_at_failing_row(&self, slice: &Slice<'_>, refusals: &Refusals) -> Result<(), PushOutcome> {
        let failing = refusals.iter().find(|(_, refusal)| self.policy(refusal.stage) == OnError::Fail);
        let Some((offset, refusal)) = failing else { return Ok(()) };
        let place = slice.places.place_of(*offset);
        Err(row_fails(&slice.cover, place, &refusal.text, refusal.code))
    }

    /// The same for a row that came bad.
    fn stop_at_bad_row(&self, slice: &Slice<'_>) -> Result<(), PushOutcome> {
        match slice.bad.first() {
            Some(bad) if self.policy(Stage::Decode) == OnError::Fail => {
                Err(row_fails(&slice.cover, bad.place, &bad.text, bad.code))
            }
            _ => Ok(()),
        }
    }

    /// The letters of rows that came bad and are not stored yet.
    fn write_bad_letters(&self, slice: &Slice<'_>, stored: Place, parcel: &mut Parcel) {
        if self.policy(Stage::Decode) != OnError::DeadLetter || self.cx.letters.is_none() {
            return;
        }
        let before = parcel.letters.len();
        for bad in slice.bad.iter().filter(|bad| bad.place >= stored) {
            let record = bad_record(bad, slice.cover.partition, slice.oldest);
            let letter = self.cx.sender.letter(record, None, Stage::Decode, bad.code, &bad.text);
            self.cx.dead_decode.increment(1);
            parcel.bytes += letter_bytes(&letter);
            parcel.letters.push(letter);
        }
        if parcel.letters.len() > before {
            parcel.holds.push(slice.ack.share(SinkId(0)));
        }
    }

    /// The letters of refused records that are not stored yet, held by `sink` of the slice's batch.
    fn write_letters(
        &self,
        slice: &Slice<'_>,
        sink: SinkId,
        sink_name: Option<&str>,
        refusals: &Refusals,
        stored: Place,
        parcel: &mut Parcel,
    ) {
        let before = parcel.letters.len();
        for (offset, refusal) in refusals {
            let place = slice.places.place_of(*offset);
            let is_stored = place < stored;
            if self.policy(refusal.stage) != OnError::DeadLetter || is_stored || self.cx.letters.is_none() {
                continue;
            }
            let Some(row) = slice.places.row_of(*offset) else { continue };
            let record = record_at(&slice.source, row, slice.cover.partition, place);
            let letter = self.cx.sender.letter(record, sink_name, refusal.stage, refusal.code, &refusal.text);
            match refusal.stage {
                Stage::Decode => self.cx.dead_decode.increment(1),
                Stage::Sql | Stage::Sink => self.cx.dead_sql.increment(1),
            }
            parcel.bytes += letter_bytes(&letter);
            parcel.letters.push(letter);
        }
        if parcel.letters.len() > before {
            parcel.holds.push(slice.ack.share(sink));
        }
    }

    /// One sink's part of a slice.
    #[expect(clippy::too_many_arguments, reason = "the slice's parts, borrowed separately from the chain")]
    fn fan_out(
        &mut self,
        path: usize,
        slice: &Slice<'_>,
        decoded: &RecordBatch,
        refusals: &Refusals,
        position: Place,
        parcel: &mut Parcel,
        handoffs: &mut VecDeque<Handoff>,
    ) -> Result<(), PushOutcome> {
        let fatal = |error: EngineError| PushOutcome::Fatal(error);
        let sink = path + 1;
        let id = self.cx.sinks[path].sink;
        let had = slice.below(position);
        let cut_at = slice.places.offset_at(position);
        let dead_below = refusals.range(..cut_at).count();
        let (bad_dead, bad_skipped) = match self.policy(Stage::Decode) {
            OnError::Skip => (0, count(slice.bad.len())),
            OnError::DeadLetter | OnError::Fail => (count(slice.bad.len()), 0),
        };
        if slice.cover.range.end <= position {
            let (dead, skipped) = self.split_by_policy(refusals);
            let (dead, skipped) = (dead + bad_dead, skipped + bad_skipped);
            let replayed = slice.cover.rows - dead - skipped;
            self.book(slice, sink, Books { dead, skipped, replayed, ..Books::default() });
            return Ok(());
        }
        let mut rows = decoded.clone();
        if had > 0 {
            let offsets = offsets(&rows, "the query").map_err(fatal)?;
            let cut = offsets.values().partition_point(|offset| *offset < cut_at);
            rows = rows.slice(cut, rows.num_rows() - cut);
        }
        let mut own = Refusals::new();
        if let Some((filter, _)) = &mut self.stages.filters[path] {
            let mut bad = RowErrors::default();
            let input = offsets(&rows, "the query").map_err(fatal)?;
            rows = filter.apply(rows, &mut bad).map_err(fatal)?;
            if !bad.is_empty() {
                refuse(&mut bad, &input, Stage::Sql, &mut own).map_err(fatal)?;
                rows = without(rows, &own, "a filter").map_err(fatal)?;
            }
        }
        let before = offsets(&rows, "the query").map_err(fatal)?;
        if !is_rising(&before) {
            let text = "the query changed the order of rows".to_owned();
            return Err(fatal(EngineError { code: codes::STAGE_FAILED, text }));
        }
        let shards = self.paths[path].router.route(&rows, slice.cover.partition).map_err(fatal)?;
        let conformed = self.paths[path].conform.apply(&rows, &before, &slice.places, &mut own).map_err(fatal)?;
        self.stop_at_failing_row(slice, &own)?;
        let name = self.cx.sinks[path].name.clone();
        self.write_letters(slice, id, Some(&name), &own, Place::START, parcel);
        let (shards, rows, offsets) = (shards.without(&conformed.dropped), conformed.rows, conformed.offsets);
        let kept = count(records(&offsets));
        let (mut dead, mut skipped) = self.split_by_policy(refusals);
        let (own_dead, own_skipped) = self.split_by_policy(&own);
        dead += own_dead + bad_dead;
        skipped += own_skipped + bad_skipped;
        let replayed = count(had.saturating_sub(dead_below));
        let classed = dead.saturating_add(skipped).saturating_add(replayed).saturating_add(kept);
        let Some(filtered) = slice.cover.rows.checked_sub(classed) else {
            let text = format!(
                "partition {} {}..{}: {} source rows, but {kept} kept, {dead} dead, {skipped} skipped, {replayed} had",
                slice.cover.partition, slice.cover.range.start, slice.cover.range.end, slice.cover.rows
            );
            return Err(fatal(EngineError { code: codes::INVARIANT, text }));
        };
        let made = count(rows.num_rows());
        self.book(slice, sink, Books { made, filtered, dead, skipped, replayed, ..Books::default() });
        let cover = Covered {
            range: slice.cover.range.start.max(position)..slice.cover.range.end,
            rows: slice.cover.rows - count(had + slice.bad.partition_point(|bad| bad.place < position)),
            ..slice.cover.clone()
        };
        let keeps_origin = self.cx.sinks[path].keeps_origin;
        for (shard, rows, offsets) in shards.split(rows, offsets).map_err(fatal)? {
            // A mark of a copy reaches the sink even where no row is left to carry it.
            let is_marked = slice.note.is_some_and(|note| note.copy != CopyMark::None);
            let what = if rows.num_rows() == 0 && !is_marked {
                Handed::Cover(cover.clone())
            } else {
                let rows = compacted(rows);
                let bytes = memory_of(&rows) + if keeps_origin { slice.bytes } else { 0 };
                Handed::Rows(Box::new(Segment {
                    rows,
                    offsets,
                    origin: keeps_origin.then(|| slice.source.clone()),
                    source: slice.places.clone(),
                    note: slice.note,
                    cover: cover.clone(),
                    hold: slice.ack.share(id),
                    oldest: slice.oldest,
                    bytes,
                    charge: None,
                }))
            };
            handoffs.push_back(Handoff { path, shard, what });
        }
        Ok(())
    }

    fn split_by_policy(&self, refusals: &Refusals) -> (u32, u32) {
        let skipped = refusals.values().filter(|refusal| self.policy(refusal.stage) == OnError::Skip).count();
        (count(refusals.len() - skipped), count(skipped))
    }

    fn book(&self, slice: &Slice<'_>, sink: usize, entry: Books) {
        slice.ack.book_for(SinkId(u8::try_from(sink).unwrap_or(u8::MAX)), entry);
    }
}

fn row_fails(cover: &Covered, place: Place, text: &str, code: landfall_types::Code) -> PushOutcome {
    let text = format!("row error at partition {} offset {place}: {text} ({code})", cover.partition);
    PushOutcome::RowFails(FailCause::new(codes::ROW_FAILS_PIPELINE, text))
}

fn oldest_of(rows: &RecordBatch) -> Timestamp {
    let first = times_of(rows)
        .and_then(|column| column.as_primitive_opt::<TimestampMicrosecondType>())
        .and_then(|times| times.values().first().copied());
    Timestamp(first.unwrap_or_default())
}
