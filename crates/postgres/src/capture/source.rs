//! The controller's side of a capture: events, the record, the commit (P1, P44).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use landfall_engine::FailCause;
use landfall_engine::contract::{
    LaneId, PlanError, Source, SourceCx, SourceError, SourceEvent, SourcePlan, SourceProfile, TableId, TableSpec,
};
use landfall_types::{Coded, Epoch, PartitionId, Place};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::lane::PostgresLane;
use super::options::CaptureOptions;
use super::orders::{self, Mailbox, Orders};
use super::shared::Shared;
use super::task;
use crate::RelationId;
use crate::record::SourceRecord;
use crate::rows::RowPlan;

/// One slot of one database, as a source of the engine: its tables' rows as columns, each change once (I9).
pub struct PostgresSource {
    options: CaptureOptions,
    runtime: Handle,
    running: Option<Running>,
    orders: Orders,
    mailbox: Arc<Mailbox>,
}

struct Running {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    lanes: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::fmt::Debug for PostgresSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresSource").field("slot", &self.options.slot).finish_non_exhaustive()
    }
}

impl PostgresSource {
    /// A source that is not opened. Its tasks run on `runtime`.
    pub fn new(options: CaptureOptions, runtime: Handle) -> Self {
        let (orders, mailbox) = orders::mailbox();
        PostgresSource { options, runtime, running: None, orders, mailbox }
    }

    /// Gives orders to its tables, before it is opened and as long as it lives.
    pub fn orders(&self) -> Orders {
        self.orders.clone()
    }

    fn shared(&self) -> Option<&Arc<Shared>> {
        self.running.as_ref().map(|running| &running.shared)
    }
}

fn by_partition(below: &[(PartitionId, Place)]) -> BTreeMap<PartitionId, Place> {
    below.iter().copied().collect()
}

impl Source for PostgresSource {
    type Lane = PostgresLane;

    fn profile(&self) -> SourceProfile {
        SourceProfile { kind: "postgres", identity: self.options.identity().to_string(), bounded: false }
    }

    /// Asks the server which tables there are. One that does not answer is a note: the pipeline starts and waits for it.
    fn plan(&self) -> Result<SourcePlan, PlanError> {
        self.options.queue.check().map_err(|error| PlanError::new(crate::code::SERVER_SETTING, error.to_string()))?;
        crate::check_slot_name(&self.options.slot)
            .map_err(|error| PlanError::new(crate::code::SLOT_NAME, error.to_string()))?;
        if self.options.is_offline {
            return Ok(SourcePlan::default());
        }
        let options = self.options.clone();
        // A runtime of its own: the caller may be a task on the only thread of the other one, which would then wait for
        // what only itself can move.
        let asked = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime =
                runtime.map_err(|error| task::Ended::Later { code: crate::code::NOT_NOW, text: error.to_string() })?;
            runtime.block_on(task::look(&options))
        })
        .join();
        match asked {
            Ok(Ok((tables, notes))) => Ok(SourcePlan { partitions: Vec::new(), tables, notes }),
            Ok(Err(task::Ended::Final { code, text })) => Err(PlanError::new(code, text)),
            Ok(Err(task::Ended::Later { text, .. })) => Ok(SourcePlan {
                notes: vec![format!("the server cannot be asked now: {text}")],
                ..SourcePlan::default()
            }),
            Ok(Err(task::Ended::Stopped | task::Ended::Again)) | Err(_) => Ok(SourcePlan::default()),
        }
    }

    fn table_of(&self, partition: PartitionId) -> Option<TableId> {
        self.shared()?.with_record(|record| {
            let is_of = |table: &&crate::TableRecord| {
                table.stream_partition == partition.0
                    || table.copy.as_ref().is_some_and(|copy| copy.partition == partition.0)
            };
            record?.tables.iter().find(is_of).map(|table| TableId(table.relation.0))
        })
    }

    fn table_refused(&mut self, table: TableId, cause: Option<&FailCause>) {
        if let Some(shared) = self.shared() {
            shared.set_refused(table, cause.cloned());
        }
    }

    fn open(&mut self, cx: SourceCx) -> Result<(), SourceError> {
        self.running = None;
        let record = match cx.record.as_deref().map(SourceRecord::decode).transpose() {
            Ok(record) => record,
            Err(error) => return Err(SourceError::Fatal { code: error.code(), text: error.to_string() }),
        };
        let shared = Shared::new(self.options.clone(), record, cx.waker);
        let task = self.runtime.spawn(task::run(Arc::clone(&shared), Arc::clone(&self.mailbox)));
        self.running = Some(Running { shared, task, lanes: 0 });
        Ok(())
    }

    fn poll_event(&mut self) -> Result<Option<SourceEvent>, SourceError> {
        match self.shared().and_then(|shared| shared.next_event()) {
            None => Ok(None),
            Some(Ok(event)) => Ok(Some(event)),
            Some(Err(error)) => Err(error),
        }
    }

    /// A table's stream begins where its copy was taken, and the copy's rows stand just before (P98).
    fn start_of(&mut self, partition: PartitionId) -> Result<Place, SourceError> {
        let place = self.shared().and_then(|shared| {
            shared.with_record(|record| {
                let record = record?;
                record.tables.iter().find_map(|table| {
                    let copy = table.copy.as_ref();
                    if let Some(copy) = copy.filter(|copy| copy.partition == partition.0) {
                        return Some(Place { at: copy.consistent_point.0.saturating_sub(1), within: 0 });
                    }
                    let begins = copy.map_or(record.through, |copy| copy.consistent_point);
                    (table.stream_partition == partition.0).then_some(Place { at: begins.0, within: 0 })
                })
            })
        });
        Ok(place.unwrap_or(Place::START))
    }

    fn open_lane(&mut self, id: LaneId, at: &[(PartitionId, Place, Epoch)]) -> Result<PostgresLane, SourceError> {
        let Some(running) = &mut self.running else {
            let text = "a lane was opened before its source".to_owned();
            return Err(SourceError::Fatal { code: crate::code::STREAM_AGAIN, text });
        };
        running.lanes += 1;
        if running.lanes > 1 {
            // What the lane before had taken is lost: the stream starts again at the checkpoint.
            running.shared.handover.restart();
            running.shared.reopened.send_modify(|times| *times += 1);
        }
        Ok(PostgresLane::new(id, Arc::clone(&running.shared), at))
    }

    fn record(&mut self, below: &[(PartitionId, Place)]) -> Option<Bytes> {
        self.shared()?.record_for(&by_partition(below))
    }

    fn commit(&mut self, below: &[(PartitionId, Place)]) {
        if let Some(shared) = self.shared() {
            shared.is_stored(&by_partition(below));
        }
    }

    /// The server's own knowledge may lag behind: the next start tells it again (P4).
    fn flush_commits(&mut self, _deadline: Instant) -> Result<(), SourceError> {
        Ok(())
    }

    fn stop_reading(&mut self) {
        if let Some(shared) = self.shared() {
            shared.stop.send_replace(true);
        }
    }

    fn tails(&self) -> Vec<(PartitionId, Place)> {
        self.shared().map(|shared| shared.ends()).unwrap_or_default()
    }

    fn report(&self) -> serde_json::Value {
        self.shared().map_or(serde_json::Value::Null, |shared| shared.report())
    }
}

/// A table as the engine is told of it.
pub(super) fn spec(relation: RelationId, target: &str, shape: u32, plan: &RowPlan) -> TableSpec {
    let key = Arc::clone(plan.key());
    TableSpec { id: TableId(relation.0), name: target.into(), schema: plan.schema().clone(), shape, key }
}
