//! How far a pipeline has come and where its tables stand: from the running process, or from what is stored (P105).

use std::time::Duration;

use anyhow::Context;
use landfall_postgres::{Lsn, SourceRecord, TablePhase};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior};

use crate::endpoint::Endpoint;

/// Between two looks at a running process.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Where a pipeline stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Everything that was committed before it is durable in every sink.
    pub(crate) through: Lsn,
    /// Its tables.
    pub(crate) tables: Vec<TableStanding>,
}

/// Where a table stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableStanding {
    /// `schema.table` at the source.
    pub(crate) name: String,
    /// What it is called in targets.
    pub(crate) target: String,
    /// Its phase, as the status says it.
    pub(crate) phase: String,
    /// Why it is parked.
    pub(crate) parked: Option<String>,
}

impl TableStanding {
    /// Whether its rows in the target are those of the source, up to `through`.
    pub(crate) fn follows(&self) -> bool {
        self.phase == TablePhase::Streaming.to_string()
    }
}

impl Standing {
    /// From the `source` object of a pipeline's status.
    pub(crate) fn of_report(report: &Value) -> anyhow::Result<Self> {
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let through = text(report, "through").and_then(|text| text.parse().ok());
        let through = through.context("the pipeline's status has no `through`: its source has not opened yet")?;
        let tables = report.get("tables").and_then(Value::as_array).into_iter().flatten();
        let tables = tables.map(|table| {
            let name = text(table, "name").context("a table of the pipeline's status has no name")?;
            let parked = table.get("parked").filter(|park| !park.is_null()).map(|park| {
                format!(
                    "{} ({})",
                    text(park, "reason").unwrap_or_else(|| park.to_string()),
                    text(park, "code").unwrap_or_default()
                )
            });
            Ok(TableStanding {
                target: text(table, "target").unwrap_or_else(|| name.clone()),
                phase: text(table, "phase").unwrap_or_default(),
                parked,
                name,
            })
        });
        Ok(Standing { through, tables: tables.collect::<anyhow::Result<_>>()? })
    }

    /// From the stored record.
    pub(crate) fn of_record(record: &SourceRecord) -> Self {
        let tables = record.tables.iter().map(|table| TableStanding {
            name: table.name.to_string(),
            target: table.target.clone(),
            phase: table.phase.to_string(),
            parked: table.park.as_ref().map(|park| format!("{} ({})", park.reason, park.code)),
        });
        Standing { through: record.through, tables: tables.collect() }
    }

    /// A table's. Of a table that was dropped and made again, the one that is there now.
    pub(crate) fn table(&self, name: &str) -> Option<&TableStanding> {
        let named = || self.tables.iter().filter(|table| table.name == name);
        named().find(|table| table.phase != TablePhase::Removed.to_string()).or_else(|| named().next())
    }
}

/// A pipeline of a running process.
pub(crate) struct Served<'a> {
    /// The process.
    pub(crate) endpoint: &'a Endpoint,
    /// The pipeline's name.
    pub(crate) pipeline: &'a str,
}

impl Served<'_> {
    /// Where it stands now.
    pub(crate) async fn look(&self) -> anyhow::Result<Standing> {
        let status = self.endpoint.status().await?;
        let pipelines = status.get("pipelines").and_then(Value::as_array).into_iter().flatten();
        let own = pipelines.into_iter().find(|one| one.get("name").and_then(Value::as_str) == Some(self.pipeline));
        let own = own.with_context(|| format!("the running process has no pipeline `{}`", self.pipeline))?;
        let report = own.get("source").cloned().unwrap_or_default();
        Standing::of_report(&report).with_context(|| {
            let state = own.get("state").map(Value::to_string).unwrap_or_default();
            let cause = own.get("cause").map(Value::to_string).unwrap_or_default();
            format!("pipeline `{}` is in state {state}, cause {cause}", self.pipeline)
        })
    }

    /// Waits until everything before `position` is durable in every sink.
    pub(crate) async fn wait_until(&self, position: Lsn, within: Duration) -> anyhow::Result<Standing> {
        let until = Instant::now() + within;
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Another process's progress: asked for at intervals, bounded above.
            looks.tick().await;
            let standing = self.look().await?;
            if standing.through >= position {
                return Ok(standing);
            }
            anyhow::ensure!(
                Instant::now() < until,
                "the pipeline has come to {} and not to {position} within {} s: look at `landfall top` for what it \
                 waits for, or give it longer with --within",
                standing.through,
                within.as_secs()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a status field that is read under another name, a parked table taken for one that follows, and a source
    /// that has not opened taken for one at the beginning.
    #[test]
    fn a_status_and_a_record_say_the_same() {
        let report = serde_json::json!({
            "through": "16/B374D848",
            "tables": [
                {"name": "public.orders", "target": "public.orders", "phase": "streaming", "parked": null},
                {"name": "public.items", "target": "items", "phase": "parked",
                 "parked": {"code": "LF-PG0501", "reason": "its key is gone", "at": "0/1"}},
            ],
        });
        let standing = Standing::of_report(&report).expect("read");
        assert_eq!(standing.through, Lsn(0x16_B374_D848));
        let orders = standing.table("public.orders").expect("there");
        assert!(orders.follows() && orders.parked.is_none());
        let items = standing.table("public.items").expect("there");
        assert!(!items.follows() && items.target == "items");
        assert_eq!(items.parked.as_deref(), Some("its key is gone (LF-PG0501)"));
        assert!(Standing::of_report(&Value::Null).is_err());
        // Dropped and made again: the one that is there now is meant.
        let twice = serde_json::json!({ "through": "0/1", "tables": [
            {"name": "public.orders", "target": "public.orders", "phase": "removed"},
            {"name": "public.orders", "target": "public.orders", "phase": "streaming"},
        ]});
        assert!(Standing::of_report(&twice).expect("read").table("public.orders").expect("there").follows());
    }
}
