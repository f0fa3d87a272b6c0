//! The Delta sink: plans, creates and opens a table, answers its positions, and hands out writers (E125, E131).
//!
//! Carries I9 by [`Guarantee::Positions`]: ends of ranges lie in the table with the rows. `plan` has no side effect. A
//! table that is missing is created from the query; who loses the race for version 0 takes the winner's table or says what
//! stands against it (T4).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use deltalake_core::kernel::transaction::CommitProperties;
use deltalake_core::logstore::LogStoreRef;
use deltalake_core::operations::create::CreateBuilder;
use deltalake_core::protocol::SaveMode;
use futures::future::BoxFuture;
use landfall_engine::contract::{
    Covered, Guarantee, PlanCx, PlanError, Positions, ShardId, ShardWriter, Sink, SinkError, SinkIdentity, SinkPlan,
    TableAbilities,
};
use landfall_types::{Clock, SystemClock};
use object_store::{ObjectStore, ObjectStoreExt};
use parking_lot::Mutex;
use serde_json::json;

use crate::code::DeltaError;
use crate::commit::{Committed, Committer};
use crate::data_file::{DataFiles, properties};
use crate::group::Held;
use crate::housekeeping::Housekeeping;
use crate::layout::Layout;
use crate::local_store::LocalStore;
use crate::meters::Handles;
use crate::options::DeltaOptions;
use crate::protocol::RETENTION_PROPERTY;
use crate::shape::{Shape, Shapes, is_changes};
use crate::statistics::INDEXED_COLUMNS;
use crate::table::{AppIds, Table, log_store};
use crate::turn::Slot;
use crate::writer::DeltaWriter;

/// A destination that appends to a Delta table. Cheap to clone; all clones are one sink.
#[derive(Clone)]
pub struct DeltaSink {
    shared: Arc<Shared>,
}

/// What the sink's parts share.
pub(crate) struct Shared {
    options: DeltaOptions,
    clock: Arc<dyn Clock>,
    log: LogStoreRef,
    table: Arc<Slot<Option<Table>>>,
    memory: Mutex<Memory>,
}

/// Short looks only; never held across I/O (I5).
#[derive(Default)]
struct Memory {
    opened: Option<Arc<Opened>>,
    known: Positions,
    version: Option<u64>,
    commits: u64,
    rows: u64,
    held: Vec<Arc<Mutex<Held>>>,
    /// As the last plan saw it.
    is_partitioned: bool,
    is_changes: bool,
}

/// What `open` found out.
pub(crate) struct Opened {
    pub(crate) committer: Committer,
    pub(crate) shapes: Shapes,
    pub(crate) housekeeping: Housekeeping,
    pub(crate) metrics: Handles,
}

impl Opened {
    /// How many files may be open at once.
    pub(crate) fn max_open_files(&self) -> usize {
        let first = self.shapes.first();
        let is_partitioned = !first.layout.partition.is_empty();
        self.committer.options.open_files(is_partitioned, is_changes(&first.rows))
    }
}

/// What `open` needs of the plan.
struct Detail {
    rows: arrow_schema::SchemaRef,
}

impl DeltaSink {
    /// Rows of before keep the type and the key that they landed with, so another one needs a copy (P84).
    pub const ABILITIES: TableAbilities =
        TableAbilities { orders_by_position: true, takes_new_types: false, takes_new_keys: false };

    /// A sink over a table on the local file system, with synced puts (I1).
    pub fn new(options: DeltaOptions) -> Result<DeltaSink, PlanError> {
        DeltaSink::over(options, Arc::new(LocalStore::new()), Arc::new(SystemClock))
    }

    /// The same over another store whose root is the root of all paths, and another clock. The store must keep
    /// put-if-absent: two puts of one new name, and exactly one is told that it wrote it.
    pub fn over(
        options: DeltaOptions,
        store: Arc<dyn ObjectStore>,
        clock: Arc<dyn Clock>,
    ) -> Result<DeltaSink, PlanError> {
        options.check().map_err(DeltaError::into_plan)?;
        let log = log_store(&options.path, store).map_err(DeltaError::into_plan)?;
        let shared = Shared { options, clock, log, table: Slot::new(None), memory: Mutex::default() };
        Ok(DeltaSink { shared: Arc::new(shared) })
    }

    /// The table's directory as configured.
    pub fn path(&self) -> &Path {
        &self.shared.options.path
    }

    /// The options it was made with.
    pub fn options(&self) -> &DeltaOptions {
        &self.shared.options
    }

    #[cfg(test)]
    pub(crate) fn housekeeping(&self) -> Housekeeping {
        self.shared.opened().expect("open").housekeeping.clone()
    }

    #[cfg(test)]
    pub(crate) fn delta_writer(&self, shard: ShardId) -> DeltaWriter {
        DeltaWriter::new(shard, self.shared.clone())
    }

    async fn plan_for(&self, rows: &arrow_schema::SchemaRef, cx: &PlanCx) -> Result<SinkPlan, DeltaError> {
        let shared = &self.shared;
        let options = &shared.options;
        let at = options.path.display();
        let new = Layout::of_new(rows, options);
        let table = match cx.online {
            true => Table::load(&shared.log, &AppIds::of(&cx.pipeline, &cx.source)).await?,
            false => None,
        };
        let mut notes = Vec::new();
        let layout = match &table {
            Some(table) => {
                let layout = Layout::of_table(rows, table, options).map_err(|error| resync(error, rows))?;
                notes.push(format!("delta: appends to the table at `{at}` (version {})", table.version));
                for field in &layout.added {
                    notes.push(format!("delta: the first commit adds column `{}`", field.name()));
                }
                if let Some(retention) = table.metadata.property(RETENTION_PROPERTY) {
                    notes.push(format!(
                        "delta: `{RETENTION_PROPERTY}` is `{retention}`: a pipeline that is away for longer is blocked"
                    ));
                }
                notes.push(
                    "delta: RESTORE of the table does not move positions back: rows after it are not landed again"
                        .into(),
                );
                layout
            }
            None => {
                let layout = new?;
                notes.push(match (cx.online, options.create) {
                    (false, _) => format!("delta: the table at `{at}` was not looked at (offline)"),
                    (true, true) => format!("delta: creates a table at `{at}`{}", partitioned(options)),
                    (true, false) => {
                        format!(
                            "delta: there is no table at `{at}` and `create` is false: rows wait until there is one"
                        )
                    }
                });
                layout
            }
        };
        let (is_partitioned, is_changes) = (!layout.partition.is_empty(), is_changes(rows));
        {
            let mut memory = shared.memory.lock();
            memory.is_partitioned = is_partitioned;
            memory.is_changes = is_changes;
        }
        notes.push(format!("delta: holds up to {} for encoding", options.memory_max(is_partitioned, is_changes)));
        Ok(SinkPlan { schema: layout.schema.clone(), notes, detail: Box::new(Detail { rows: rows.clone() }) })
    }

    /// `before`: the table that the pipeline's positions are of; no other is made in its place.
    async fn open_for(
        &self,
        plan: &SinkPlan,
        cx: &PlanCx,
        before: Option<&SinkIdentity>,
    ) -> Result<SinkIdentity, DeltaError> {
        let shared = &self.shared;
        let options = &shared.options;
        let rows = plan.detail.downcast_ref::<Detail>().map(|detail| detail.rows.clone()).ok_or_else(|| {
            DeltaError::Option { text: "this plan was not made by the Delta sink that is opened with it".into() }
        })?;
        let app_ids = AppIds::of(&cx.pipeline, &cx.source);
        let table = match (Table::load(&shared.log, &app_ids).await?, before) {
            (Some(table), _) => table,
            (None, Some(before)) => {
                return Err(DeltaError::Gone { path: options_path(options), id: before.0.clone() });
            }
            (None, None) if !options.create => {
                return Err(DeltaError::Missing { path: options.path.display().to_string() });
            }
            (None, None) => self.create(&rows, &app_ids).await?,
        };
        let shape = self.shape(rows, &table, plan)?;
        let pipeline = cx.pipeline.to_string();
        let identity = SinkIdentity(table.metadata.id.clone());
        let committer = Committer {
            log: shared.log.clone(),
            table: shared.table.clone(),
            app_ids,
            pipeline: pipeline.clone(),
            table_id: table.metadata.id.clone(),
            partition_names: shape.layout.partition_names(),
            options: options.clone(),
            clock: shared.clock.clone(),
        };
        let housekeeping = Housekeeping::new(shared.log.clone(), options.checkpoint_every, pipeline.clone());
        let metrics = Handles::of(&pipeline);
        let opened = Opened { committer, shapes: Shapes::new(shape), housekeeping, metrics };
        shared.remember(&table);
        shared.memory.lock().opened = Some(Arc::new(opened));
        *shared.table.take().await = Some(table);
        Ok(identity)
    }

    /// How rows with these columns are written to the table as it is.
    fn shape(&self, rows: arrow_schema::SchemaRef, table: &Table, plan: &SinkPlan) -> Result<Shape, DeltaError> {
        let shared = &self.shared;
        let options = &shared.options;
        let layout = Layout::of_table(&rows, table, options).map_err(|error| resync(error, &rows))?;
        if layout.schema != plan.schema {
            return Err(DeltaError::Schema {
                text: format!(
                    "the table at `{}` is not the one the plan was made for: restart the pipeline to plan again",
                    options.path.display()
                ),
            });
        }
        let properties = properties(options).map_err(|error| DeltaError::Option { text: error.to_string() })?;
        let indexed_columns = match table.metadata.property("delta.dataSkippingNumIndexedCols").map(str::parse::<i64>) {
            Some(Ok(all)) if all < 0 => usize::MAX,
            Some(Ok(number)) => usize::try_from(number).unwrap_or(usize::MAX),
            _ => INDEXED_COLUMNS,
        };
        let files = DataFiles {
            store: shared.log.object_store(None),
            clock: shared.clock.clone(),
            schema: layout.data_schema(),
            partition_names: layout.partition_names(),
            properties,
            row_group_bytes: options.row_group_bytes.as_usize(),
            target_bytes: options.target_file_size.as_usize(),
            indexed_columns,
        };
        Ok(Shape { rows, layout, files })
    }

    /// Another shape of the table: its new columns enter the table with its first rows (E132).
    async fn reshape_for(&self, number: u32, plan: &SinkPlan, cx: &PlanCx) -> Result<(), DeltaError> {
        let shared = &self.shared;
        let unplanned =
            || DeltaError::Option { text: "this plan was not made by the Delta sink it is given to".into() };
        let rows = plan.detail.downcast_ref::<Detail>().map(|detail| detail.rows.clone()).ok_or_else(unplanned)?;
        let opened = shared.memory.lock().opened.clone();
        let at = options_path(&shared.options);
        let opened =
            opened.ok_or_else(|| DeltaError::unavailable(format!("reshaping `{at}`"), "the sink is not open"))?;
        let table = Table::load(&shared.log, &AppIds::of(&cx.pipeline, &cx.source)).await?;
        let table = table.ok_or(DeltaError::Missing { path: at })?;
        let shape = self.shape(rows, &table, plan)?;
        opened.shapes.add(number, shape);
        Ok(())
    }

    async fn create(&self, rows: &arrow_schema::SchemaRef, app_ids: &AppIds) -> Result<Table, DeltaError> {
        let shared = &self.shared;
        let options = &shared.options;
        let layout = Layout::of_new(rows, options)?;
        // With retries, the loser of the race for version 0 would commit its own metadata as version 1 (T4). Log
        // clean-up and checkpoint would run after the commit and tell their failure as the commit's (T5).
        let commit = CommitProperties::default()
            .with_max_retries(0)
            .with_create_checkpoint(false)
            .with_cleanup_expired_logs(Some(false));
        let schema = layout.kernel_schema()?;
        let configuration = options.properties.iter().map(|(key, value)| (key.clone(), Some(value.clone())));
        let created = CreateBuilder::new()
            .with_log_store(shared.log.clone())
            .with_save_mode(SaveMode::ErrorIfExists)
            .with_columns(schema.fields().cloned())
            .with_partition_columns(layout.partition_names())
            .with_configuration(configuration)
            .with_raise_if_key_not_exists(false)
            .with_commit_properties(commit)
            .await;
        // An error says nothing about whether there is a table now: it is looked up.
        let found = Table::load(&shared.log, app_ids).await?;
        match (found, created) {
            (Some(table), Ok(_)) => {
                tracing::info!(table = %shared.log.root_url(), "created a Delta table");
                Ok(table)
            }
            (Some(table), Err(error)) => {
                tracing::info!(table = %shared.log.root_url(), %error, "the table was there first");
                Ok(table)
            }
            (None, Err(error)) => {
                Err(DeltaError::unavailable(format!("creating the table at `{}`", options.path.display()), error))
            }
            (None, Ok(_)) => Err(DeltaError::unavailable(
                format!("creating the table at `{}`", options.path.display()),
                "it was created and is gone",
            )),
        }
    }

    async fn positions(&self, cx: &PlanCx) -> Result<Positions, DeltaError> {
        let shared = &self.shared;
        let app_ids = AppIds::of(&cx.pipeline, &cx.source);
        // A commit in flight has its turn first: what it lands is part of the answer.
        let mut held = shared.table.take().await;
        let Some(table) = Table::load(&shared.log, &app_ids).await? else { return Ok(Positions::new()) };
        let positions = table.positions().clone();
        shared.remember(&table);
        // The newest state there is: commits go on from it.
        if held.as_ref().is_none_or(|held| held.version <= table.version) {
            *held = Some(table);
        }
        Ok(positions)
    }
}

fn options_path(options: &DeltaOptions) -> String {
    options.path.display().to_string()
}

/// A change that the table cannot take as it is: for a table of changes there is one more way out.
fn resync(error: DeltaError, rows: &arrow_schema::Schema) -> DeltaError {
    match error {
        DeltaError::Schema { text } if is_changes(rows) => DeltaError::Schema {
            text: format!("{text}; or re-sync the table into a new one (a column's type is never widened in place)"),
        },
        other => other,
    }
}

fn partitioned(options: &DeltaOptions) -> String {
    match options.partition_by.as_slice() {
        [] => String::new(),
        columns => format!(", partitioned by {}", columns.join(", ")),
    }
}

impl Shared {
    pub(crate) fn opened(&self) -> Result<Arc<Opened>, SinkError> {
        self.memory.lock().opened.clone().ok_or_else(|| {
            DeltaError::unavailable(format!("writing to `{}`", self.options.path.display()), "the sink is not open")
                .into_sink()
        })
    }

    fn remember(&self, table: &Table) {
        let mut memory = self.memory.lock();
        memory.known = table.positions().clone();
        memory.version = Some(table.version);
    }

    pub(crate) fn committed(&self, committed: &Committed, rows: u64) {
        let mut memory = self.memory.lock();
        memory.known = committed.positions.clone();
        memory.version = Some(committed.version);
        memory.commits += 1;
        memory.rows += rows;
    }

    /// Whether the table holds all of these ranges, as far as is known without asking.
    pub(crate) fn holds(&self, covers: &[Covered]) -> bool {
        let memory = self.memory.lock();
        let mut ranges = covers.iter().filter(|cover| cover.range.start != cover.range.end).peekable();
        ranges.peek().is_some()
            && ranges.all(|cover| memory.known.get(&cover.partition).is_some_and(|end| *end >= cover.range.end))
    }

    pub(crate) fn known(&self) -> Positions {
        self.memory.lock().known.clone()
    }

    pub(crate) fn track_held(&self) -> Arc<Mutex<Held>> {
        let held = Arc::new(Mutex::new(Held::default()));
        self.memory.lock().held.push(held.clone());
        held
    }

    pub(crate) async fn probe(&self) -> Result<(), SinkError> {
        let log = deltalake_core::logstore::commit_uri_from_version(self.memory.lock().version);
        match self.log.object_store(None).head(&log).await {
            // A clean-up may have taken the entry; the store has answered.
            Ok(_) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => {
                Err(DeltaError::unavailable(format!("looking at `{}`", self.log.root_url()), error).into_sink())
            }
        }
    }
}

impl Sink for DeltaSink {
    fn plan<'a>(
        &'a self,
        rows: &'a arrow_schema::SchemaRef,
        cx: &'a PlanCx,
    ) -> BoxFuture<'a, Result<SinkPlan, PlanError>> {
        Box::pin(async move { self.plan_for(rows, cx).await.map_err(DeltaError::into_plan) })
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Positions
    }

    fn open<'a>(&'a self, plan: &'a SinkPlan, cx: &'a PlanCx) -> BoxFuture<'a, Result<SinkIdentity, SinkError>> {
        Box::pin(async move { self.open_for(plan, cx, None).await.map_err(DeltaError::into_sink) })
    }

    fn open_again<'a>(
        &'a self,
        plan: &'a SinkPlan,
        cx: &'a PlanCx,
        before: &'a SinkIdentity,
    ) -> BoxFuture<'a, Result<SinkIdentity, SinkError>> {
        Box::pin(async move { self.open_for(plan, cx, Some(before)).await.map_err(DeltaError::into_sink) })
    }

    fn committed_positions<'a>(&'a self, cx: &'a PlanCx) -> BoxFuture<'a, Result<Positions, SinkError>> {
        Box::pin(async move { self.positions(cx).await.map_err(DeltaError::into_sink) })
    }

    fn reshape<'a>(&'a self, shape: u32, plan: &'a SinkPlan, cx: &'a PlanCx) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move { self.reshape_for(shape, plan, cx).await.map_err(DeltaError::into_sink) })
    }

    fn writer(&self, shard: ShardId) -> Arc<dyn ShardWriter> {
        Arc::new(DeltaWriter::new(shard, self.shared.clone()))
    }

    fn barrier_every(&self) -> Option<Duration> {
        Some(self.shared.options.commit_every)
    }

    fn refuses_rows(&self) -> bool {
        // Types, nulls and ranges were judged by the chain; Parquet takes what has the planned schema.
        false
    }

    fn writer_bytes(&self) -> u64 {
        let (is_partitioned, is_changes) = {
            let memory = self.shared.memory.lock();
            (memory.is_partitioned, memory.is_changes)
        };
        self.shared.options.memory_max(is_partitioned || !self.shared.options.partition_by.is_empty(), is_changes).0
    }

    fn report(&self) -> serde_json::Value {
        let (version, commits, rows, held, opened) = {
            let memory = self.shared.memory.lock();
            (memory.version, memory.commits, memory.rows, memory.held.clone(), memory.opened.clone())
        };
        let held: Vec<Held> = held.iter().map(|held| *held.lock()).collect();
        let checkpoints = opened.map(|opened| opened.housekeeping.done()).unwrap_or_default();
        json!({
            "path": self.shared.options.path,
            "version": version,
            "commits": commits,
            "rows": rows,
            "open_files": held.iter().map(|held| held.open_files).sum::<usize>(),
            "encoding_bytes": held.iter().map(|held| held.memory).sum::<usize>(),
            "staged_files": held.iter().map(|held| held.closed_files).sum::<usize>(),
            "staged_bytes": held.iter().map(|held| held.closed_bytes).sum::<u64>(),
            "checkpoints": checkpoints.written,
            "checkpoints_failed": checkpoints.failed,
        })
    }
}
