//! Harvest and the commit clock: what is settled is counted, persisted in one transaction with the source's record, and
//! then committed at the source (E69, E81, E86, H8, H9). It runs by its own timer, so the last row before a silence is
//! committed too. A failed transaction is tried again and never moves the memory of what is committed.

use std::time::{Duration, Instant};

use landfall_state::{Change, StateError};
use landfall_types::{PartitionId, Place};

use super::Controller;
use crate::codes;
use crate::contract::Source;
use crate::core::FailCause;
use crate::positions::{Mark, put, put_record};
use crate::sight::Totals;

/// Per partition the watermark of each sink.
type Marks = Vec<(PartitionId, Vec<Place>)>;

/// A transaction that is not answered.
#[derive(Debug)]
struct InStore {
    number: u64,
    started: Instant,
    marks: Marks,
}

/// See the module.
#[derive(Debug)]
pub(super) struct CommitClock {
    last: Instant,
    is_due: bool,
    in_store: Option<InStore>,
    failures: u32,
    not_before: Option<Instant>,
    repeats: bool,
    /// Why the last transaction failed.
    pub(super) cause: Option<FailCause>,
}

impl CommitClock {
    pub(super) fn new(now: Instant) -> Self {
        CommitClock {
            last: now,
            is_due: false,
            in_store: None,
            failures: 0,
            not_before: None,
            repeats: false,
            cause: None,
        }
    }

    /// As soon as something is settled, not at the next tick.
    pub(super) fn soon(&mut self) {
        self.is_due = true;
    }

    pub(super) fn repeat_source_commit(&mut self) {
        self.repeats = true;
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.is_due || self.in_store.is_some() || self.repeats || self.not_before.is_some()
    }

    /// When there is something to do. A commit that was wanted while this pass was past its own turn is due at once:
    /// nothing else may be there to wake for.
    pub(super) fn next(&self, interval: Duration) -> Instant {
        let at_once = self.is_due && self.in_store.is_none();
        self.not_before.unwrap_or(if at_once { self.last } else { self.last + interval })
    }
}

impl<S: Source> Controller<'_, S> {
    /// Moves watermarks over what is settled, and restarts what has failed.
    pub(super) fn harvest(&mut self) {
        let mut failed: Vec<(PartitionId, FailCause)> = Vec::new();
        let mut reopened: Vec<usize> = Vec::new();
        let mut off: Option<String> = None;
        let mut has_moved = false;
        for part in self.parts.values_mut() {
            let Some(harvester) = &mut part.harvester else { continue };
            let (all, heads, partition) = (&mut self.books, &self.cx.heads, part.partition);
            let mut table = part.table.and_then(|table| self.tables.get_mut(&table));
            if let Some(table) = &mut table {
                table.books.fit(heads.len());
            }
            let harvest = harvester.harvest(|slot| {
                let books = slot.books;
                let is_off = slot.sink > 0 && !slot.balances();
                if is_off {
                    off.get_or_insert_with(|| {
                        format!(
                            "partition {partition} {}..{} of sink {}: {} rows, books {books:?}",
                            slot.range.start, slot.range.end, slot.sink, slot.rows
                        )
                    });
                }
                let classed = books.filtered + books.dead + books.skipped + books.replayed;
                let delivered = u64::from(slot.rows.saturating_sub(classed));
                let settled = Totals {
                    delivered,
                    replayed: u64::from(books.replayed),
                    filtered: u64::from(books.filtered),
                    skipped: u64::from(books.skipped),
                    dead: u64::from(books.dead),
                    returned: 0,
                    off: u64::from(is_off),
                };
                all.totals[slot.sink].add(&settled);
                if let Some(table) = &mut table {
                    table.books.totals[slot.sink].add(&settled);
                }
                if let Some(run) = slot.sink.checked_sub(1).and_then(|sink| heads.get(sink)) {
                    run.meters.rows_in.increment(u64::from(slot.rows));
                    run.meters.delivered.increment(delivered + u64::from(books.replayed));
                    run.meters.replayed.increment(u64::from(books.replayed));
                    run.meters.filtered.increment(u64::from(books.filtered));
                    run.meters.skipped.increment(u64::from(books.skipped));
                }
            });
            if harvest.has_moved {
                has_moved = true;
                for (sink, watermark) in part.watermarks.iter_mut().enumerate() {
                    *watermark = (*watermark).max(harvester.watermark(sink));
                }
                // One settled batch ends the series of restarts.
                if part.attempts > 0
                    && part.left.as_ref().is_none_or(|left| part.watermarks.iter().all(|mark| *mark >= left.end))
                {
                    part.attempts = 0;
                    part.cause = None;
                    part.is_blocked = false;
                    part.left = None;
                }
                if part
                    .panicked
                    .as_ref()
                    .is_some_and(|(range, _)| part.watermarks.iter().all(|mark| *mark >= range.end))
                {
                    part.panicked = None;
                }
            }
            if harvest.reopens {
                reopened.push(part.driver);
            }
            if let Some(sink) = harvest.failed.first() {
                let cause = harvester.cause(*sink);
                failed.push((
                    partition,
                    cause.unwrap_or_else(|| FailCause::new(codes::HOLD_DROPPED, "a batch failed without a cause")),
                ));
            }
        }
        if has_moved {
            self.dirty = true;
            self.is_news = true;
        }
        for driver in reopened {
            if let Some(seat) = self.cx.drivers.get(driver) {
                seat.commands.waker().wake(crate::core::Wake::ADVANCED);
            }
        }
        if let Some(text) = off {
            // Rows were lost or counted twice between chain and worker: nothing more may be committed (E72).
            self.fail(FailCause::new(codes::INVARIANT, format!("the books of a batch do not agree: {text}")), true);
            return;
        }
        for (partition, cause) in failed {
            self.restart(partition, cause);
        }
    }

    /// Persists and commits by the clock.
    pub(super) fn tick_commit(&mut self, now: Instant) {
        let is_due = self.commit.is_due || now >= self.commit.last + self.cx.options.checkpoint_interval;
        let may_start = self.commit.in_store.is_none() && self.commit.not_before.is_none_or(|at| now >= at);
        if !is_due || !may_start {
            return;
        }
        if std::mem::take(&mut self.commit.repeats) {
            let below = self.persisted();
            self.source.commit(&below);
        }
        self.start_commit(now);
        let interval = self.cx.options.checkpoint_interval;
        if self.cx.shared.sight.lock().oldest.is_some_and(|age| age >= interval) {
            // Rows may wait in a coalescer that no lull flushes (E17).
            self.flush_drivers();
        }
    }

    /// Hands a transaction over; false if there is nothing to persist.
    fn start_commit(&mut self, now: Instant) -> bool {
        self.commit.last = now;
        self.dirty = false;
        let (changes, marks) = match self.changes() {
            Ok(both) => both,
            Err(cause) => {
                self.fail(cause, false);
                return false;
            }
        };
        if changes.is_empty() {
            self.commit.is_due = false;
            return false;
        }
        self.commit.is_due = false;
        let number = self.number();
        self.commit.in_store = Some(InStore { number, started: now, marks });
        let notes = self.cx.notes.clone();
        let owner = self.cx.state.owner();
        self.cx.state.commit_with(
            changes,
            owner,
            Box::new(move |result| notes.post(super::Note::Stored { number, result })),
        );
        true
    }

    /// What a partition's sinks have, per sink; a commit never passes what is harvested.
    fn changes(&mut self) -> Result<(Vec<Change>, Marks), FailCause> {
        let at = self.cx.clock.now();
        let mut changes = Vec::new();
        let mut marks = Vec::new();
        for part in self.parts.values() {
            let is_new = part.watermarks.iter().zip(&part.persisted).any(|(mark, known)| Some(*mark) != *known);
            if !is_new {
                continue;
            }
            for (sink, mark) in part.watermarks.iter().enumerate() {
                if part.persisted[sink] == Some(*mark) {
                    continue;
                }
                let number = sink.checked_sub(1);
                let run = number.and_then(|sink| self.sinks_of(part.table).get(sink));
                let held = run
                    .filter(|run| run.committed.is_some())
                    .and_then(|run| run.views.iter().filter_map(|view| view.position(part.partition)).max());
                let destination = run.map(|run| run.identity.0.clone());
                let name = number.and_then(|sink| self.cx.heads.get(sink)).map_or("", |head| head.name.as_ref());
                let mark = Mark::new(*mark, held, destination, at);
                changes.push(put(&self.cx.pipeline, &self.cx.identity, part.partition, name, &mark)?);
            }
            marks.push((part.partition, part.watermarks.clone()));
        }
        let below: Vec<(PartitionId, Place)> =
            self.parts.values().map(|part| (part.partition, part.watermark())).collect();
        if let Some(record) = self.source.record(&below) {
            changes.push(put_record(&self.cx.pipeline, &self.cx.identity, record));
        }
        Ok((changes, marks))
    }

    /// Per partition the end of what every sink has and what is durable in the state file.
    pub(super) fn persisted(&self) -> Vec<(PartitionId, Place)> {
        self.parts
            .values()
            .filter_map(|part| {
                let least = part.persisted.iter().copied().min().flatten()?;
                Some((part.partition, least))
            })
            .collect()
    }

    pub(super) fn stored(&mut self, number: u64, result: Result<(), StateError>, now: Instant) {
        let Some(in_store) = self.commit.in_store.take_if(|in_store| in_store.number == number) else { return };
        match result {
            Ok(()) => {
                let took = now.saturating_duration_since(in_store.started);
                self.cx.meters.commits.increment(1);
                self.cx.meters.commit_seconds.record(took.as_secs_f64());
                self.commit.failures = 0;
                self.commit.not_before = None;
                self.commit.cause = None;
                for (partition, marks) in in_store.marks {
                    if let Some(part) = self.parts.get_mut(&partition) {
                        part.persisted = marks.into_iter().map(Some).collect();
                    }
                }
                let below = self.persisted();
                self.source.commit(&below);
                self.is_news = true;
            }
            Err(error) => {
                self.cx.meters.commit_failures.increment(1);
                self.commit.failures = self.commit.failures.saturating_add(1);
                let delay = self.cx.options.restart.delay(self.commit.failures, crate::random::fraction());
                self.commit.not_before = Some(now + delay);
                self.dirty = true;
                let text = format!("watermarks cannot be persisted, nothing is committed: {error}");
                tracing::warn!(
                    code = %codes::STATE_UNREADABLE, pipeline = %self.cx.pipeline,
                    attempt = self.commit.failures, "{text}"
                );
                let cause = FailCause::new(codes::STATE_UNREADABLE, text);
                if matches!(error, StateError::StaleOwner { .. } | StateError::Closed) {
                    self.fail(cause.clone(), true);
                }
                self.commit.cause = Some(cause);
            }
        }
    }

    /// The last commit of a run: what is settled is persisted and committed, within the deadline. False: it failed.
    pub(super) fn commit_last(&mut self, deadline: Instant) -> bool {
        loop {
            let now = self.cx.clock.instant();
            self.cx.beat.beat(now);
            while let Some(note) = self.cx.notes.take() {
                if let super::Note::Stored { number, result } = note {
                    self.stored(number, result, now);
                }
            }
            if self.commit.in_store.is_none() {
                let may_start = self.commit.not_before.is_none_or(|at| now >= at);
                if may_start && !self.start_commit(now) {
                    break;
                }
            }
            if now >= deadline {
                return false;
            }
            self.waker.park(Some(deadline.saturating_duration_since(now).min(Duration::from_millis(50))));
        }
        match self.source.flush_commits(deadline) {
            Ok(()) => true,
            Err(error) => {
                self.commit.cause = Some(super::source_cause(&error));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a commit that is wanted when nothing else is on its way, as a source's record is at its first start, and
    /// that then waits for the controller's next reason to wake, some seconds later.
    #[test]
    fn a_commit_that_is_wanted_is_due_at_once() {
        let now = Instant::now();
        let interval = Duration::from_secs(5);
        let mut clock = CommitClock::new(now);
        assert!(!clock.is_waiting());
        assert_eq!(clock.next(interval), now + interval);
        clock.soon();
        assert!(clock.is_waiting());
        assert_eq!(clock.next(interval), now);
        // One that failed keeps its distance all the same.
        clock.not_before = Some(now + Duration::from_secs(1));
        assert_eq!(clock.next(interval), now + Duration::from_secs(1));
    }
}
