//! What `/v1/status` shows of a capture (P112).

use std::collections::BTreeMap;

use landfall_engine::contract::TableId;
use landfall_types::{PartitionId, Timestamp};
use serde_json::{Value, json};

use super::shared::Shared;
use crate::record::TablePhase;
use crate::snapshot::CopyReport;
use crate::{Lsn, RelationId};

/// What the connection is doing, for the status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Stage {
    /// Asking the server how things stand.
    #[default]
    Starting,
    /// A slot is being made; it waits for open writers.
    CreatingSlot,
    /// Tables are copied.
    Copying(CopyReport),
    /// Following the log.
    Streaming,
    /// Something passes by itself.
    Waiting { cause: String, code: String, attempt: u32 },
    /// Told to stop.
    Stopped,
}

/// What the status shows beside the record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight {
    pub(crate) stage: Stage,
    pub(crate) last_commit: Option<(Lsn, Timestamp)>,
    pub(crate) server_end: Lsn,
    pub(crate) rows: BTreeMap<RelationId, u64>,
    /// Rows of parked tables, and of replayed transactions, that passed by.
    pub(crate) passed_by: u64,
    /// The copy beside the stream, if there is one.
    pub(crate) copy: Option<CopyReport>,
}

impl Shared {
    /// For `/v1/status` (P112).
    pub(crate) fn report(&self) -> Value {
        let sight = self.sight.lock().clone();
        let through = self.progress.lock().through();
        let (stage, detail) = match &sight.stage {
            Stage::Starting => ("starting", Value::Null),
            Stage::CreatingSlot => ("creating_slot", Value::Null),
            Stage::Copying(report) => ("copying", of_copy(report)),
            Stage::Streaming => ("streaming", json!({ "copy": sight.copy.as_ref().map(of_copy) })),
            Stage::Waiting { cause, code, attempt } => {
                ("waiting", json!({ "cause": cause, "code": code, "attempt": attempt }))
            }
            Stage::Stopped => ("stopped", Value::Null),
        };
        let mut tables: Vec<Value> = self.with_record(|record| {
            let tables = record.iter().flat_map(|record| &record.tables);
            tables
                .map(|table| {
                    json!({
                        "relation": table.relation.0, "name": table.name.to_string(), "target": table.target,
                        "phase": table.phase.to_string(), "shape": table.shape,
                        "rows": sight.rows.get(&table.relation).copied().unwrap_or_default(),
                        "parked": table.park.as_ref().map(|park| json!({
                            "code": park.code, "reason": park.reason, "at": park.at.to_string(),
                        })),
                        "waits_in_log": self.handover.is_set_back(PartitionId(table.stream_partition)),
                        "notes": table.notes.iter().map(|note| json!({
                            "code": note.code, "text": note.text,
                        })).collect::<Vec<_>>(),
                        "refused": self.refused(TableId(table.relation.0)).map(|cause| cause.text.to_string()),
                    })
                })
                .collect()
        });
        let left_out = self.left_out.lock();
        tables.extend(left_out.iter().map(|(relation, left_out)| {
            json!({
                "relation": relation.0, "name": left_out.name.to_string(), "target": left_out.name.to_string(),
                "phase": TablePhase::Waiting.to_string(), "shape": 0, "rows": 0, "parked": null, "waits_in_log": false,
                "notes": [], "refused": left_out.cause,
            })
        }));
        json!({
            "slot": self.options.slot,
            "stage": stage,
            "detail": detail,
            "through": through.to_string(),
            "stored": self.durable.get().to_string(),
            "last_commit": sight.last_commit.map(|(lsn, _)| lsn.to_string()),
            "last_commit_at": sight.last_commit.map(|(_, at)| at.0),
            "server_end": sight.server_end.to_string(),
            "behind_bytes": sight.server_end.since(through),
            "passed_by": sight.passed_by,
            "tables": tables,
        })
    }
}

fn of_copy(report: &CopyReport) -> Value {
    json!({
        "ratio": report.ratio, "rows": report.rows, "ranges_done": report.ranges.0, "ranges": report.ranges.1,
        "bytes_per_second": report.bytes_per_second, "seconds_left": report.left.map(|left| left.as_secs()),
        "snapshot_age_seconds": report.snapshot_age.as_secs(),
    })
}
