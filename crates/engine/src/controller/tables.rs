//! The tables of a change source (E12, P85): opened one by one, each with destinations, queues and workers of its own,
//! so that a table that is blocked, refused or restarting stops no other (I13).
//!
//! Opening and planning happen in tasks; the controller only keeps where each table stands. A partition of a table
//! that is not open waits, and joins the one open lane once it is. A shape that no chain knows is planned while its
//! first batch waits in the driver.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arrow_schema::SchemaRef;
use landfall_types::PartitionId;

use super::{Controller, SinkRun};
use crate::chain::{Chain, SinkPath};
use crate::codes;
use crate::contract::{Sink, Source, TableId, TableSpec};
use crate::core::FailCause;
use crate::driver::Command;
use crate::pipeline::NotYet;
use crate::positions::start_at;
use crate::shard::Urgency;
use crate::sight::{Books, PipelineState, TableSight, Why};

/// What is asked of the pipeline: open a table, or plan another shape of one that is open.
pub(crate) struct TableJob {
    pub(crate) number: u64,
    pub(crate) spec: TableSpec,
    /// For a further shape of an open table.
    pub(crate) open: Option<OpenTable>,
}

/// What a further shape is planned for.
pub(crate) struct OpenTable {
    pub(crate) sinks: Vec<Arc<dyn Sink>>,
    pub(crate) paths: Vec<SinkPath>,
}

/// Starts a job; its end comes as a note.
pub(crate) type TableSeat = Arc<dyn Fn(TableJob) + Send + Sync>;

/// A table, or a shape of one, that rows can go to.
pub(crate) struct TableReady {
    /// Empty for a further shape.
    pub(crate) sinks: Vec<SinkRun>,
    pub(crate) paths: Vec<SinkPath>,
    pub(crate) chain: Chain,
}

impl std::fmt::Debug for TableReady {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableReady").field("chain", &self.chain).finish_non_exhaustive()
    }
}

/// Where a job stands.
#[derive(Debug)]
enum Step {
    /// It is at work.
    Asked { number: u64 },
    /// It failed, and is done again at this moment.
    Waiting { until: Instant },
    /// It is done.
    Done,
}

/// A job with its failures.
#[derive(Debug)]
struct Progress {
    step: Step,
    attempts: u32,
    failed: Option<Failed>,
}

#[derive(Clone, Debug)]
struct Failed {
    at: String,
    cause: FailCause,
    is_blocked: bool,
}

impl Progress {
    fn asked(number: u64) -> Self {
        Progress { step: Step::Asked { number }, attempts: 0, failed: None }
    }

    fn is_asked(&self, number: u64) -> bool {
        matches!(self.step, Step::Asked { number: asked } if asked == number)
    }

    /// A job that waits for its next try waits no longer; tells whether it had failed.
    fn again(&mut self) -> bool {
        let Step::Waiting { until } = &mut self.step else { return false };
        *until = Instant::now();
        self.failed.take().is_some()
    }

    fn due(&self) -> Option<Instant> {
        match self.step {
            Step::Waiting { until } => Some(until),
            Step::Asked { .. } | Step::Done => None,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Table {
    spec: TableSpec,
    opening: Progress,
    /// Shapes that are being planned, or were refused.
    shapes: BTreeMap<u32, (TableSpec, Progress)>,
    pub(super) sinks: Vec<SinkRun>,
    paths: Vec<SinkPath>,
    pub(super) books: Books,
    /// Partitions that begin once the table is open.
    waiting: Vec<(PartitionId, bool)>,
}

impl Table {
    fn is_open(&self) -> bool {
        matches!(self.opening.step, Step::Done)
    }

    fn as_open(&self) -> OpenTable {
        let sinks = self.sinks.iter().map(|run| run.sink.clone()).collect();
        OpenTable { sinks, paths: self.paths.clone() }
    }

    fn failures(&self) -> impl Iterator<Item = (&Failed, &Progress)> {
        let shapes = self.shapes.values().map(|(_, progress)| progress);
        std::iter::once(&self.opening)
            .chain(shapes)
            .filter_map(|progress| progress.failed.as_ref().map(|failed| (failed, progress)))
    }
}

impl<S: Source> Controller<'_, S> {
    /// The sinks that a partition's rows go to.
    pub(super) fn sinks_of(&self, table: Option<TableId>) -> &[SinkRun] {
        match table {
            None => &self.cx.sinks,
            Some(id) => self.tables.get(&id).map_or(&[], |table| &table.sinks),
        }
    }

    /// Every sink there is, of records and of all tables, with its table and number.
    pub(super) fn every_sink(&self) -> impl Iterator<Item = (Option<TableId>, usize, &SinkRun)> {
        let records = self.cx.sinks.iter().enumerate().map(|(at, run)| (None, at, run));
        let tables = self
            .tables
            .iter()
            .flat_map(|(id, table)| table.sinks.iter().enumerate().map(|(at, run)| (Some(*id), at, run)));
        records.chain(tables)
    }

    /// Partitions that wait for their table.
    pub(super) fn waiting_partitions(&self) -> impl Iterator<Item = (PartitionId, &TableSpec, Option<&FailCause>)> {
        self.tables.values().flat_map(|table| {
            let cause = table.opening.failed.as_ref().map(|failed| &failed.cause);
            table.waiting.iter().map(move |(partition, _)| (*partition, &table.spec, cause))
        })
    }

    /// The source told of tables.
    pub(super) fn announce(&mut self, specs: Vec<TableSpec>, now: Instant) {
        for spec in specs {
            let (id, shape) = (spec.id, spec.shape);
            if let Some(table) = self.tables.get_mut(&id) {
                if shape <= table.spec.shape {
                    continue;
                }
                if matches!(table.opening.step, Step::Waiting { .. }) {
                    // Nothing was read in the shape that could not be opened: it opens in the one that it has now.
                    table.spec = spec;
                    if table.opening.again() {
                        self.source.table_refused(id, None);
                    }
                } else {
                    self.shape_wanted(id, shape, spec.schema, spec.key, now);
                }
                continue;
            }
            let number = self.number();
            let table = Table {
                spec: spec.clone(),
                opening: Progress::asked(number),
                shapes: BTreeMap::new(),
                sinks: Vec::new(),
                paths: Vec::new(),
                books: self.cx.shared.sight.lock().tables.get(&id).cloned().unwrap_or_default(),
                waiting: Vec::new(),
            };
            self.tables.insert(id, table);
            self.start_job(TableJob { number, spec, open: None });
        }
    }

    fn start_job(&mut self, job: TableJob) {
        match &self.cx.tables {
            Some(start) => start(job),
            None => {
                let text = format!("the source told of table `{}`, but its pipeline is one of records", job.spec.name);
                self.fail(FailCause::new(codes::LANE_CONTRACT, text), true);
            }
        }
    }

    /// A partition of a table: true if it has to wait for its table.
    pub(super) fn waits_for_table(&mut self, partition: PartitionId, table: TableId, is_added: bool) -> bool {
        let Some(known) = self.tables.get_mut(&table) else {
            let text = format!("partition {partition} is of table {table}, which the source did not tell of");
            self.fail(FailCause::new(codes::LANE_CONTRACT, text), true);
            return true;
        };
        // The source begins with it again: what failed is tried at once, and what is wrong still is told again.
        let shapes = known.shapes.values_mut().map(|(_, progress)| progress);
        let had_failed = std::iter::once(&mut known.opening).chain(shapes).fold(false, |had, one| one.again() | had);
        if had_failed {
            self.source.table_refused(table, None);
        }
        if known.is_open() {
            return false;
        }
        if known.waiting.iter().all(|(waiting, _)| *waiting != partition) {
            known.waiting.push((partition, is_added));
        }
        true
    }

    /// A partition that waits is gone.
    pub(super) fn waits_no_more(&mut self, partition: PartitionId) {
        self.tables.values_mut().for_each(|table| table.waiting.retain(|(waiting, _)| *waiting != partition));
    }

    /// A batch waits for a shape, or the source told of it before.
    pub(super) fn shape_wanted(
        &mut self,
        id: TableId,
        shape: u32,
        schema: SchemaRef,
        key: Arc<[Arc<str>]>,
        now: Instant,
    ) {
        let number = self.number();
        let Some(table) = self.tables.get_mut(&id) else { return };
        if let Some((_, progress)) = table.shapes.get_mut(&shape)
            && matches!(progress.step, Step::Asked { .. } | Step::Waiting { .. })
        {
            return;
        }
        let spec = TableSpec { shape, schema, key, ..table.spec.clone() };
        if !table.is_open() {
            // It is planned once the table is open.
            table
                .shapes
                .insert(shape, (spec, Progress { step: Step::Waiting { until: now }, attempts: 0, failed: None }));
            return;
        }
        table.shapes.insert(shape, (spec.clone(), Progress::asked(number)));
        let open = Some(table.as_open());
        tracing::info!(
            pipeline = %self.cx.pipeline, table = %spec.name, shape, "the table has another shape, which is planned"
        );
        self.start_job(TableJob { number, spec, open });
    }

    /// A job has ended.
    pub(super) fn table_ready(
        &mut self,
        id: TableId,
        shape: u32,
        number: u64,
        result: Result<Box<TableReady>, NotYet>,
        now: Instant,
    ) {
        let is_draining = self.drain.is_some();
        let backoff = self.cx.options.restart;
        let Some(table) = self.tables.get_mut(&id) else { return };
        let is_opening = table.opening.is_asked(number);
        let name = table.spec.name.clone();
        let progress = if is_opening {
            &mut table.opening
        } else {
            match table.shapes.get_mut(&shape) {
                Some((_, progress)) if progress.is_asked(number) => progress,
                _ => return,
            }
        };
        let result = match result {
            Ok(ready) if is_opening && is_draining => {
                // It would never be settled any more.
                ready.sinks.iter().flat_map(|run| &run.queues).for_each(|queue| queue.urge(Urgency::Stop));
                progress.step = Step::Waiting { until: now + backoff.max };
                return;
            }
            other => other,
        };
        let ready = match result {
            Ok(ready) => ready,
            Err(not_yet) => {
                self.table_failed(id, is_opening, shape, not_yet, now);
                return;
            }
        };
        let TableReady { sinks, paths, chain } = *ready;
        if is_opening {
            table.sinks = sinks;
            table.paths.clone_from(&paths);
            if let Some(cause) = self.contradiction(id) {
                // Positions that contradict each other hold up this table alone; nobody guesses.
                if let Some(table) = self.tables.get_mut(&id) {
                    table.sinks.iter().flat_map(|run| &run.queues).for_each(|queue| queue.urge(Urgency::Stop));
                    table.sinks.clear();
                }
                let not_yet = NotYet { at: "positions".to_owned(), cause, is_blocked: true, after: None };
                self.table_failed(id, true, shape, not_yet, now);
                return;
            }
            self.workers_ended.retain(|(of, ..)| *of != Some(id));
        }
        let Some(table) = self.tables.get_mut(&id) else { return };
        let had_failed = table.failures().next().is_some();
        if is_opening {
            table.opening = Progress { step: Step::Done, attempts: 0, failed: None };
            let mut shown = self.cx.shared.sinks.lock();
            for (sight, run) in shown.iter_mut().zip(&table.sinks) {
                sight.guarantee = run.sink.guarantee().as_str();
                sight.queues.extend(run.queues.iter().cloned());
                sight.views.extend(run.views.iter().cloned());
            }
        } else {
            let planned = table.shapes.remove(&shape);
            if let Some((spec, _)) = planned.filter(|_| shape > table.spec.shape) {
                table.paths = paths;
                table.spec = spec;
            }
        }
        if had_failed && table.failures().next().is_none() {
            self.source.table_refused(id, None);
        }
        tracing::info!(pipeline = %self.cx.pipeline, table = %name, shape, "the table takes rows");
        if let Some(seat) = self.cx.drivers.first() {
            seat.commands.post(Command::Table { table: id, shape, chain: Box::new(chain) });
        }
        if is_opening && let Some(table) = self.tables.get_mut(&id) {
            for (partition, is_added) in std::mem::take(&mut table.waiting) {
                self.begin(partition, is_added, now);
            }
        }
        self.is_news = true;
    }

    /// Why the partitions that wait for a table cannot begin.
    fn contradiction(&self, id: TableId) -> Option<FailCause> {
        let table = self.tables.get(&id)?;
        let marks = self.sink_marks(Some(id));
        table.waiting.iter().find_map(|(partition, _)| start_at(&self.cx.stored, *partition, &marks).err())
    }

    /// A job has failed: the table waits, and the others go on.
    fn table_failed(&mut self, id: TableId, is_opening: bool, shape: u32, not_yet: NotYet, now: Instant) {
        let backoff = self.cx.options.restart;
        let Some(table) = self.tables.get_mut(&id) else { return };
        let name = table.spec.name.clone();
        let progress = if is_opening {
            &mut table.opening
        } else {
            match table.shapes.get_mut(&shape) {
                Some((_, progress)) => progress,
                None => return,
            }
        };
        progress.attempts = progress.attempts.saturating_add(1);
        let delay = match not_yet.after {
            _ if not_yet.is_blocked => backoff.max,
            Some(after) => after.min(backoff.max),
            None => backoff.delay(progress.attempts, crate::random::fraction()),
        };
        progress.step = Step::Waiting { until: now + delay };
        let is_edge = progress.failed.as_ref().is_none_or(|failed| failed.cause != not_yet.cause);
        let NotYet { at, cause, is_blocked, .. } = not_yet;
        if is_edge {
            tracing::error!(
                code = %cause.code, pipeline = %self.cx.pipeline, table = %name, shape, attempt = progress.attempts,
                "the table waits, the others go on: {at}: {}", cause.text
            );
        }
        if is_edge && is_blocked {
            self.source.table_refused(id, Some(&cause));
        }
        progress.failed = Some(Failed { at, cause, is_blocked });
    }

    /// Jobs that are due again.
    pub(super) fn step_tables(&mut self, now: Instant) {
        if self.drain.is_some() {
            return;
        }
        let mut openings = Vec::new();
        let mut shapes = Vec::new();
        for (id, table) in &self.tables {
            if table.opening.due().is_some_and(|at| now >= at) {
                openings.push(*id);
            }
            if table.is_open() {
                let due = table.shapes.iter().filter(|(_, (_, progress))| progress.due().is_some_and(|at| now >= at));
                shapes.extend(due.map(|(shape, _)| (*id, *shape)));
            }
        }
        for id in openings {
            let number = self.number();
            let Some(table) = self.tables.get_mut(&id) else { continue };
            table.opening.step = Step::Asked { number };
            let spec = table.spec.clone();
            self.start_job(TableJob { number, spec, open: None });
        }
        for (id, shape) in shapes {
            let number = self.number();
            let Some(table) = self.tables.get_mut(&id) else { continue };
            let Some((spec, progress)) = table.shapes.get_mut(&shape) else { continue };
            progress.step = Step::Asked { number };
            let spec = spec.clone();
            let open = Some(table.as_open());
            self.start_job(TableJob { number, spec, open });
        }
    }

    pub(super) fn tables_timer(&self) -> Option<Instant> {
        if self.drain.is_some() {
            return None;
        }
        let due = |table: &Table| {
            let shapes = table.shapes.values().filter(|_| table.is_open()).filter_map(|(_, progress)| progress.due());
            shapes.chain(table.opening.due()).min()
        };
        self.tables.values().filter_map(due).min()
    }

    /// Where each table stands, as far as the controller knows; its workers say the rest.
    pub(super) fn table_sights(&self, now: Instant) -> Vec<TableSight> {
        let mut sights = Vec::with_capacity(self.tables.len());
        for (id, table) in &self.tables {
            let worst = table.failures().max_by_key(|(failed, _)| failed.is_blocked);
            let (state, why) = match worst {
                Some((failed, progress)) => {
                    let mut why = Why::of(&failed.at, &failed.cause);
                    why.attempt = progress.attempts;
                    let left = progress.due().map(|at| at.saturating_duration_since(now));
                    why.next_ms = left.map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
                    let state = if failed.is_blocked { PipelineState::Blocked } else { PipelineState::Retrying };
                    (state, Some(why))
                }
                None if table.is_open() => (PipelineState::Running, None),
                None => (PipelineState::Starting, None),
            };
            let parts = self.parts.values().filter(|part| part.table == Some(*id));
            sights.push(TableSight {
                id: *id,
                name: table.spec.name.clone(),
                shape: table.spec.shape,
                state,
                why,
                partitions: parts.map(|part| part.partition).collect(),
                views: table.sinks.iter().map(|run| run.views.clone()).collect(),
            });
        }
        sights
    }
}
