//! The commit loop (E128): one commit per group at exactly the version after the newest one seen, and the check that
//! keeps a row from being in the table twice.
//!
//! Carries I7 and I9. A commit holds the group's files and one Txn per partition whose version is the end of the range
//! (E127), so rows and position become visible together or not at all. The library compares no Txn (T1), so before
//! *every* put the newest commits are read and [`stand`] decides: ours is in already (a lost answer, T10), it may go in,
//! or another writer moved a position. No outcome is guessed from an error: after any error the log is asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use deltalake_core::kernel::transaction::{CommitData, TransactionError};
use deltalake_core::kernel::{Action, Remove, Transaction};
use deltalake_core::logstore::{CommitOrBytes, LogStoreRef};
use deltalake_core::protocol::{DeltaOperation, SaveMode};
use landfall_engine::contract::{Positions, SinkError};
use landfall_types::{Clock, Epoch, PartitionId, Place};
use serde_json::json;

use crate::code::{self, DeltaError};
use crate::group::{Sealed, Spans};
use crate::layout::Layout;
use crate::listing::copied_files;
use crate::options::DeltaOptions;
use crate::protocol::Metadata;
use crate::shape::Shape;
use crate::table::{AppIds, Table, txn_version};
use crate::turn::Slot;

/// Where this writer left each partition: its epoch and the end of its last commit.
pub(crate) type Ours = HashMap<PartitionId, (Epoch, Place)>;

/// How a group stands to the table's positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// None of it is in the table.
    Absent,
    /// All of it is in the table.
    Held,
    /// Someone else moved these positions.
    Foreign(Vec<PartitionId>),
}

/// Compares a group with the table's positions. A partition that this writer has committed in this epoch must stand where
/// it was left; any other must not be past the group's start.
pub(crate) fn stand(table: &Positions, spans: &Spans, ours: &Ours) -> Standing {
    let mut foreign = Vec::new();
    let (mut held, mut absent) = (0, 0);
    for (partition, span) in spans {
        if span.start == span.end {
            continue;
        }
        let previous = table.get(partition);
        let left_by_us = ours.get(partition).filter(|(epoch, _)| *epoch == span.epoch);
        if previous.is_some_and(|previous| *previous >= span.end) {
            held += 1;
        } else if match left_by_us {
            Some((_, left)) => previous == Some(left) && *left <= span.start,
            None => previous.is_none_or(|previous| *previous <= span.start),
        } {
            absent += 1;
        } else {
            foreign.push(*partition);
        }
    }
    if !foreign.is_empty() || (held > 0 && absent > 0) {
        // Part of the group being in is no less another writer's doing: a commit of ours is whole.
        let moved = spans.iter().filter(|(partition, span)| table.get(partition).is_some_and(|at| *at > span.start));
        foreign.extend(moved.map(|(partition, _)| *partition));
        foreign.sort_unstable();
        foreign.dedup();
        return Standing::Foreign(foreign);
    }
    if held > 0 { Standing::Held } else { Standing::Absent }
}

/// A commit that did not happen.
#[derive(Debug)]
pub(crate) enum CommitFailure {
    /// The group is kept; it is tried again.
    Kept(DeltaError),
    /// The group cannot go in: another writer's position.
    Superseded { text: String, partitions: Vec<PartitionId> },
    /// The group cannot go in for its own sake.
    Dropped(DeltaError),
}

impl CommitFailure {
    pub(crate) fn into_sink(self) -> SinkError {
        match self {
            CommitFailure::Kept(error) | CommitFailure::Dropped(error) => error.into_sink(),
            CommitFailure::Superseded { text, partitions } => {
                SinkError::Superseded { code: code::SUPERSEDED, text, partitions }
            }
        }
    }
}

/// What came of a commit.
#[derive(Debug)]
pub(crate) struct Committed {
    /// The version that holds the group; where it was there before, the newest one.
    pub(crate) version: u64,
    /// Whether the group was in the table before.
    pub(crate) already_there: bool,
    /// Positions after it.
    pub(crate) positions: Positions,
    /// How often the version was taken by another.
    pub(crate) conflicts: u32,
}

/// What commits need to know of an open sink.
pub(crate) struct Committer {
    pub(crate) log: LogStoreRef,
    pub(crate) table: Arc<Slot<Option<Table>>>,
    pub(crate) app_ids: AppIds,
    pub(crate) pipeline: String,
    pub(crate) table_id: String,
    pub(crate) partition_names: Vec<String>,
    pub(crate) options: DeltaOptions,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Committer {
    /// Commits a group once. Runs to its end in its own task: a caller that goes away changes nothing.
    pub(crate) async fn commit(&self, sealed: &Sealed, ours: &Ours) -> Result<Committed, CommitFailure> {
        // Decided before anything is put: a place that is no version would be cut.
        let mut transactions = Vec::new();
        let updated = self.clock.now().0 / 1_000;
        for (partition, span) in &sealed.taken.spans {
            let version = |half: u64| txn_version(*partition, span.end, half).map_err(CommitFailure::Dropped);
            let (at, within) = (version(span.end.at)?, version(span.end.within)?);
            // The table's position of an empty range would not move: no Txn.
            if span.start != span.end {
                let app_id = self.app_ids.name(*partition);
                transactions.push(Transaction::new_with_last_update(app_id, at, Some(updated)));
            }
            if span.start != span.end && within > 0 {
                // It ends inside a transaction: a replay skips what lies below (E129).
                let app_id = self.app_ids.name_inside(*partition, span.end.at);
                transactions.push(Transaction::new_with_last_update(app_id, within, Some(updated)));
            }
        }
        let mut turn = self.table.take().await;
        let mut conflicts = 0;
        loop {
            let table = self.newest(&mut turn).await.map_err(CommitFailure::Kept)?;
            let metadata = self.judge(table, &sealed.taken.shapes).map_err(CommitFailure::Kept)?;
            match stand(table.positions(), &sealed.taken.spans, ours) {
                Standing::Absent => {}
                Standing::Held => {
                    return Ok(Committed {
                        version: table.version,
                        already_there: true,
                        positions: table.positions().clone(),
                        conflicts,
                    });
                }
                Standing::Foreign(partitions) => return Err(self.superseded(sealed, table, partitions)),
            }
            let next = table.version + 1;
            let removes = match sealed.taken.begins {
                Some(copy) => self.left_behind(table, copy).await.map_err(CommitFailure::Kept)?,
                None => Vec::new(),
            };
            let bytes = self.bytes(sealed, metadata.as_ref(), removes, &transactions).map_err(CommitFailure::Kept)?;
            let entry = CommitOrBytes::LogBytes(bytes.clone());
            match self.log.write_commit_entry(next, entry, uuid::Uuid::new_v4()).await {
                Ok(()) => {
                    table.committed(next, &bytes, &sealed.taken.ends(), metadata);
                    return Ok(Committed {
                        version: next,
                        already_there: false,
                        positions: table.positions().clone(),
                        conflicts,
                    });
                }
                Err(TransactionError::VersionAlreadyExists(_)) => {
                    // Perhaps by our own put whose answer was lost (T10): the next round reads it back.
                    conflicts += 1;
                    if conflicts >= self.options.commit_retries {
                        let path = self.log.root_url().to_string();
                        return Err(CommitFailure::Kept(DeltaError::Conflicts { path, tries: conflicts }));
                    }
                    tokio::time::sleep(jitter()).await;
                }
                Err(error) => {
                    let doing = format!("putting commit {next} of `{}`", self.log.root_url());
                    return Err(CommitFailure::Kept(DeltaError::unavailable(doing, error)));
                }
            }
        }
    }

    async fn newest<'a>(&self, held: &'a mut Option<Table>) -> Result<&'a mut Table, DeltaError> {
        match held {
            Some(table) => {
                table.advance(&self.log).await?;
            }
            None => *held = Table::load(&self.log, &self.app_ids).await?,
        }
        held.as_mut().ok_or_else(|| DeltaError::Missing { path: self.log.root_url().to_string() })
    }

    /// The table is the one that was planned for, whatever others did to it (E132). The metadata that it gets with the
    /// shapes of a group, where they have columns that it has not.
    fn judge(&self, table: &Table, shapes: &[Arc<Shape>]) -> Result<Option<Metadata>, DeltaError> {
        if table.metadata.id != self.table_id {
            return Err(DeltaError::Replaced {
                path: self.log.root_url().to_string(),
                expected: self.table_id.clone(),
                found: table.metadata.id.clone(),
            });
        }
        let mut becomes = table.clone();
        let mut metadata = None;
        for shape in shapes {
            let layout = Layout::of_table(&shape.rows, &becomes, &self.options)?;
            if !layout.takes(&shape.layout) {
                return Err(DeltaError::Schema {
                    text: format!(
                        "the schema of the table at `{}` was changed since the pipeline planned for it: restart the \
                         pipeline",
                        self.log.root_url()
                    ),
                });
            }
            if let Some(evolved) = layout.evolved(&becomes)? {
                becomes.metadata = evolved.clone();
                metadata = Some(evolved);
            }
        }
        Ok(metadata)
    }

    /// Files of copies other than the one at this position: what an interrupted copy left (E129). Found by their
    /// statistics; a file that also holds anything else is not one of them.
    async fn left_behind(&self, table: &Table, copy: u64) -> Result<Vec<Action>, DeltaError> {
        let stale = copied_files(&self.log, table.version, copy).await?;
        if !stale.is_empty() && table.metadata.property("delta.appendOnly") == Some("true") {
            return Err(DeltaError::Schema {
                text: format!(
                    "the table at `{}` holds {} files of a copy that did not end, and `delta.appendOnly` keeps them: unset \
                     it, or re-sync into a new table",
                    self.log.root_url(),
                    stale.len()
                ),
            });
        }
        let deleted = self.clock.now().0 / 1_000;
        let gone = |mut remove: Remove| {
            remove.deletion_timestamp = Some(deleted);
            Action::Remove(remove)
        };
        Ok(stale.into_iter().map(gone).collect())
    }

    fn superseded(&self, sealed: &Sealed, table: &Table, partitions: Vec<PartitionId>) -> CommitFailure {
        let ranges = partitions.iter().filter_map(|partition| {
            let span = sealed.taken.spans.get(partition)?;
            let at = table.positions().get(partition).map_or("nothing".to_owned(), |at| at.to_string());
            Some(format!("partition {partition}: the group is {} to {}, the table holds {at}", span.start, span.end))
        });
        let text = format!(
            "another writer uses pipeline id `{}` on `{}`: {}",
            self.pipeline,
            self.log.root_url(),
            ranges.collect::<Vec<_>>().join("; ")
        );
        CommitFailure::Superseded { text, partitions }
    }

    fn bytes(
        &self,
        sealed: &Sealed,
        metadata: Option<&Metadata>,
        removes: Vec<Action>,
        transactions: &[Transaction],
    ) -> Result<bytes::Bytes, DeltaError> {
        let unreadable = |error: String| DeltaError::unreadable("writing a commit", error);
        let mut actions: Vec<Action> = Vec::with_capacity(sealed.adds.len() + 1);
        if let Some(metadata) = metadata {
            let metadata = serde_json::from_value(metadata.json()).map_err(|error| unreadable(error.to_string()))?;
            actions.push(Action::Metadata(metadata));
        }
        actions.extend(removes);
        actions.extend(sealed.adds.iter().cloned().map(Action::Add));
        let ranges: serde_json::Map<String, serde_json::Value> = sealed
            .taken
            .spans
            .iter()
            .map(|(partition, span)| (partition.to_string(), json!([place(span.start), place(span.end)])))
            .collect();
        let first = sealed.taken.batches.first().map(ToString::to_string);
        let landfall = json!({
            "pipeline": self.pipeline,
            "commitId": first,
            "batches": sealed.taken.batches.len(),
            "rows": sealed.taken.rows,
            "ranges": ranges,
        });
        let names = self.partition_names.clone();
        let operation = DeltaOperation::Write {
            mode: SaveMode::Append,
            partition_by: (!names.is_empty()).then_some(names),
            predicate: None,
        };
        let info = HashMap::from([("landfall".to_owned(), landfall)]);
        CommitData::new(actions, operation, info, transactions.to_vec())
            .get_bytes()
            .map_err(|error| unreadable(error.to_string()))
    }
}

/// A place as a commit says it: a number, or `at/within`.
fn place(place: Place) -> serde_json::Value {
    if place.within == 0 { json!(place.at) } else { json!(place.to_string()) }
}

/// Two writers that met once should not meet again.
fn jitter() -> Duration {
    Duration::from_millis(rand::random_range(10..=500))
}

#[cfg(test)]
mod tests;
