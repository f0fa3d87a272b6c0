//! Copies beside the stream (P56, P59, P60): a slot with its snapshot is made, then its tables are copied, while their
//! neighbours go on.
//!
//! What is copied is followed from the snapshot's point C2, so the stream has to come by C2 with the table in it: from
//! before the slot is made until the stream starts again, `through` is held, and that start lies at or below C2. Rows below
//! C2 are in the copy, those from C2 on in the stream. Making the slot waits for open writers, and copying takes as long as
//! the tables are large; neither stops anybody else (I13). A copy that fails is begun anew, after a while.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use landfall_types::PartitionId;
use rand::RngExt;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::copy::{self, ToCopy};
use super::handover::Generation;
use super::options::CaptureOptions;
use super::shared::Shared;
use super::task::{Ended, tables};
use crate::catalog::{ServerFacts, TableFacts, read_sightings};
use crate::publication::{PublicationFacts, plan_publication};
use crate::reconnect::Backoff;
use crate::record::WatchedRecord;
use crate::slot::ExportedSlot;
use crate::snapshot::CopyOptions;
use crate::sql::SqlConnection;
use crate::{Lsn, RelationId};

/// A snapshot for tables that wait for one.
pub(super) struct Prepared {
    pub(super) exported: ExportedSlot,
    /// Tables as they are in it. Only these may be copied under it: one that was published later may have rows that are
    /// in neither snapshot nor stream.
    pub(super) tables: Vec<TableFacts>,
    /// What the catalog showed of them in it.
    pub(super) sightings: BTreeMap<RelationId, WatchedRecord>,
    server: ServerFacts,
}

/// A task that ends with what holds it.
struct Task<T>(JoinHandle<Result<T, Ended>>);

impl<T: Send + 'static> Task<T> {
    fn spawn(work: impl Future<Output = Result<T, Ended>> + Send + 'static) -> Self {
        Task(tokio::spawn(work))
    }

    /// Its end; not to be asked for again. Cancel-safe.
    async fn end(&mut self) -> Result<T, Ended> {
        match (&mut self.0).await {
            Ok(ended) => ended,
            Err(error) => {
                Err(Ended::Later { code: crate::code::COPY_FAILED, text: format!("the copy ended: {error}") })
            }
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

enum State {
    Idle,
    Preparing(Task<Prepared>),
    Ready(Box<Prepared>),
    Running { task: Task<()>, partitions: Vec<PartitionId>, generation: Generation },
    Waiting { until: Instant },
}

/// See the module. One copy at a time: a slot and some connections are all that the server is asked for.
pub(super) struct Copies {
    state: State,
    backoff: Backoff,
}

impl Copies {
    pub(super) fn new() -> Self {
        Copies { state: State::Idle, backoff: Backoff::new() }
    }

    /// For the start of a stream: the snapshot under which tables are copied now, if one is ready. The place to start from
    /// is then the stored one, which was held.
    pub(super) fn take_ready(&mut self, shared: &Shared, generation: Generation) -> Option<Box<Prepared>> {
        shared.keep_copies_of(generation);
        if matches!(&self.state, State::Running { generation: of, .. } if *of != generation) {
            // What the lane had taken of the copy is lost with it.
            self.state = State::Idle;
        }
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Ready(prepared) => Some(prepared),
            other => {
                self.state = other;
                if !matches!(self.state, State::Preparing(_)) {
                    shared.progress.lock().release();
                }
                None
            }
        }
    }

    /// Copies tables under what was taken, beside the stream.
    pub(super) fn start(
        &mut self,
        shared: &Arc<Shared>,
        prepared: Prepared,
        generation: Generation,
        copies: Vec<ToCopy>,
    ) {
        if copies.is_empty() {
            return;
        }
        let partitions: Vec<PartitionId> = copies.iter().map(|copy| copy.partition).collect();
        shared.copies_begin(&partitions, generation);
        let options = options(shared, &prepared.server);
        let of_task = Arc::clone(shared);
        let task = Task::spawn(async move {
            let snapshot = prepared.exported.snapshot();
            copy::copy(&of_task, snapshot, options, copies, generation, true).await
        });
        self.state = State::Running { task, partitions, generation };
    }

    /// Goes on with what waits for a copy; comes back when the stream has to start again, with a snapshot that is ready or
    /// without the tables whose copy has failed. Cancel-safe.
    pub(super) async fn until_ready(&mut self, shared: &Arc<Shared>, generation: Generation) {
        loop {
            match &mut self.state {
                State::Ready(_) => return,
                State::Idle => {
                    let wanted = shared.wanting(generation);
                    if wanted.is_empty() || !shared.options.copies {
                        // An order, or a table that is found, starts the stream again, and so comes by here.
                        return std::future::pending().await;
                    }
                    shared.progress.lock().hold();
                    self.state = State::Preparing(Task::spawn(prepare(Arc::clone(shared), wanted)));
                }
                State::Preparing(task) => match task.end().await {
                    Ok(prepared) => self.state = State::Ready(Box::new(prepared)),
                    Err(ended) => {
                        shared.progress.lock().release();
                        self.wait(shared, &ended);
                    }
                },
                State::Running { task, partitions, .. } => match task.end().await {
                    Ok(()) => {
                        self.backoff.reset();
                        shared.sight.lock().copy = None;
                        self.state = State::Idle;
                    }
                    Err(ended) => {
                        shared.sight.lock().copy = None;
                        shared.copies_fail(partitions);
                        self.wait(shared, &ended);
                        // Their streams end before the next snapshot is taken: what they bring past its point would come
                        // a second time behind the next copy.
                        if !shared.wanting(generation).is_empty() {
                            return;
                        }
                    }
                },
                State::Waiting { until } => {
                    tokio::time::sleep_until(*until).await;
                    self.state = State::Idle;
                }
            }
        }
    }

    fn wait(&mut self, shared: &Shared, ended: &Ended) {
        let delay = self.backoff.next_delay(&mut rand::rng());
        if let Ended::Later { code, text } | Ended::Final { code, text } = ended {
            tracing::warn!(pipeline = %shared.options.pipeline, %code, delay_ms = delay.as_millis() as u64,
                "tables wait for their copy, the others go on: {text}");
        }
        self.state = State::Waiting { until: Instant::now() + delay };
    }
}

/// How a copy runs against this server.
pub(super) fn options(shared: &Shared, server: &ServerFacts) -> CopyOptions {
    CopyOptions {
        row_bytes_max: shared.options.max_message,
        block_bytes: server.number("block_size").and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(8_192),
        ..shared.options.copy.clone()
    }
}

/// What the catalog shows of tables in the snapshot of a copy: later looks are compared with it.
pub(super) async fn sightings(
    frozen: &SqlConnection,
    options: &CaptureOptions,
    tables: &[TableFacts],
) -> Result<BTreeMap<RelationId, WatchedRecord>, Ended> {
    let relations: Vec<RelationId> = tables.iter().map(|facts| facts.shape.relation).collect();
    let seen = read_sightings(frozen, &options.publication, &relations).await.map_err(|error| Ended::later(&error))?;
    Ok(seen.iter().map(|(relation, sighting)| (*relation, WatchedRecord::begin(sighting, Lsn::ZERO))).collect())
}

/// Makes a slot that goes with its connection, and looks at the tables in its snapshot.
async fn prepare(shared: Arc<Shared>, wanted: BTreeSet<RelationId>) -> Result<Prepared, Ended> {
    let options = &shared.options;
    let look_within = options.liveness_timeout;
    let sql = options.sql().await.map_err(|error| Ended::later(&error))?;
    let server = ServerFacts::read(&sql).await.map_err(|error| Ended::later(&error))?;
    let published = PublicationFacts::read(&sql, server.major(), &options.publication).await;
    let published = published.map_err(|error| Ended::later(&error))?;
    let name = format!("landfall_copy_{:08x}", rand::rng().random::<u32>());
    let exported = ExportedSlot::temporary(&options.connect, &sql, &name, options.slot_timeout).await;
    let exported = exported.map_err(|error| Ended::later(&error))?;
    let looked = tokio::time::timeout(look_within, async {
        let frozen = options.sql().await.map_err(|error| Ended::later(&error))?;
        frozen.enter_snapshot(&exported.snapshot().name).await.map_err(|error| Ended::later(&error))?;
        let found = tables(&frozen, options, published.as_ref()).await?.tables;
        let sightings = sightings(&frozen, options, &found).await?;
        Ok((found, sightings))
    });
    let late = |_| Ended::Later {
        code: crate::code::DEADLINE,
        text: format!("the catalog was not read within {look_within:?}"),
    };
    let (mut found, sightings) = looked.await.map_err(late)??;
    // Published before the snapshot was taken, or refused for good: what is neither has rows that nobody would see.
    let lacking = plan_publication(&options.publication, published.as_ref(), &found).missing_tables;
    found.retain(|facts| {
        let relation = facts.shape.relation;
        wanted.contains(&relation) && lacking.iter().all(|(lacks, _)| *lacks != relation)
    });
    if found.is_empty() {
        let text = "none of the tables that wait is there and published".to_owned();
        return Err(Ended::Later { code: crate::code::NO_TABLE, text });
    }
    Ok(Prepared { exported, tables: found, sightings, server })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use landfall_engine::contract::LaneWaker;

    use super::*;
    use crate::record::{CopyRecord, SourceRecord, TablePhase, TableRecord};
    use crate::{ConnectOptions, SlotIdentity, TableName};

    /// Catches a table that is followed while the snapshot of its next copy is taken, after the one before had failed: what
    /// comes in between lands twice, once behind each (I4).
    #[tokio::test]
    async fn a_copy_that_fails_ends_the_stream_of_its_table_before_the_next_snapshot() {
        let slot = SlotIdentity {
            system_identifier: 7,
            database_oid: 5,
            slot: "landfall_shop".to_owned(),
            plugin: crate::PLUGIN.to_owned(),
            consistent_point: Lsn(20),
        };
        let copy = CopyRecord { partition: 9, consistent_point: Lsn(20), done: Default::default() };
        let connect = ConnectOptions::parse("postgres://landfall@db/shop", None, None).expect("a url");
        let options = CaptureOptions::new("shop", connect, Vec::new());
        let mut record = SourceRecord::intent(slot.slot.clone(), 7, 5, 1, options.option_set());
        record.made(slot);
        record.tables = vec![TableRecord {
            relation: RelationId(1),
            name: TableName { schema: "public".into(), table: "items".into() },
            target: "public.items".to_owned(),
            stream_partition: 8,
            phase: TablePhase::Copying,
            shape: 1,
            copy: Some(copy),
            park: None,
            watched: None,
            notes: Vec::new(),
        }];
        let shared = Arc::new(Shared::new(options, Some(record), LaneWaker::new(|| {})));
        let generation = shared.handover.generation();
        let partitions = vec![PartitionId(9)];
        shared.copies_begin(&partitions, generation);
        let fails =
            async { Err(Ended::Later { code: crate::code::COPY_FAILED, text: "the snapshot is gone".to_owned() }) };
        let mut copies = Copies::new();
        copies.state = State::Running { task: Task::spawn(fails), partitions, generation };
        let again = tokio::time::timeout(Duration::from_millis(500), copies.until_ready(&shared, generation)).await;
        assert!(again.is_ok(), "the stream starts again");
        assert!(matches!(copies.state, State::Waiting { .. }), "and no snapshot is taken before");
    }
}
