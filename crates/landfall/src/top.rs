//! `landfall top`: a row per channel and pipeline of a running server.
//!
//! Everything comes from `/v1/status` (E144), which the server puts together from the parts' own reports.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::Value;

use crate::cli::TopArgs;
use crate::endpoint::Endpoint;
use crate::exit::Exit;
use crate::stdout;
use crate::tables::{TableLine, lines_of, standing};

const REFRESH: Duration = Duration::from_secs(1);

/// What `top --once --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Overview {
    channels: Vec<ChannelRow>,
    pipelines: Vec<PipelineRow>,
}

#[derive(Debug, Serialize)]
struct ChannelRow {
    name: String,
    tail: u64,
    log_start: u64,
    partitions: Vec<PartitionRow>,
    #[serde(skip)]
    health: String,
}

#[derive(Debug, Serialize)]
struct PartitionRow {
    partition: u64,
    tail: u64,
    log_start: u64,
    state: String,
}

#[derive(Debug, Serialize)]
struct PipelineRow {
    name: String,
    #[serde(rename = "in")]
    taken: u64,
    delivered: u64,
    filtered: u64,
    dead_lettered: u64,
    in_flight: u64,
    lag_records: u64,
    state: String,
    cause: Option<String>,
    /// Of a captured database.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tables: Vec<TableLine>,
    #[serde(skip)]
    oldest_unacked_ms: u64,
    #[serde(skip)]
    rows_in_per_second: f64,
}

fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or(0)
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

impl Overview {
    /// Reads a status.
    pub(crate) fn of(status: &Value) -> Self {
        Overview {
            channels: list(status, "channels").map(ChannelRow::of).collect(),
            pipelines: list(status, "pipelines").map(PipelineRow::of).collect(),
        }
    }
}

impl ChannelRow {
    fn of(channel: &Value) -> Self {
        ChannelRow {
            name: text(channel, "name"),
            tail: number(channel, "tail"),
            log_start: number(channel, "log_start"),
            partitions: list(channel, "partitions")
                .map(|partition| PartitionRow {
                    partition: number(partition, "partition"),
                    tail: number(partition, "tail"),
                    log_start: number(partition, "log_start"),
                    state: text(partition, "state"),
                })
                .collect(),
            health: text(channel, "health"),
        }
    }
}

impl PipelineRow {
    fn of(pipeline: &Value) -> Self {
        // The sink that is furthest behind has settled the least.
        let settled = |balance: &Value| {
            number(balance, "delivered") + number(balance, "filtered") + number(balance, "dead_lettered")
        };
        let nothing = Value::Null;
        let balance =
            list(pipeline, "sinks").filter_map(|sink| sink.get("balance")).min_by_key(|balance| settled(balance));
        let balance = balance.unwrap_or(&nothing);
        let (state, cause) = standing(pipeline);
        PipelineRow {
            name: text(pipeline, "name"),
            taken: number(balance, "in"),
            delivered: number(balance, "delivered"),
            filtered: number(balance, "filtered"),
            dead_lettered: number(balance, "dead_lettered"),
            in_flight: number(balance, "in_flight"),
            lag_records: pipeline.get("lag").map_or(0, |lag| number(lag, "records")),
            state,
            cause,
            tables: lines_of(pipeline),
            oldest_unacked_ms: number(pipeline, "oldest_unacked_ms"),
            rows_in_per_second: pipeline
                .get("rates")
                .and_then(|rates| rates.get("rows_in"))
                .and_then(Value::as_f64)
                .unwrap_or(0.0),
        }
    }
}

/// Prints once, or until interrupted.
pub(crate) async fn run(args: &TopArgs) -> anyhow::Result<Exit> {
    let endpoint = Endpoint::new(&args.server)?;
    if args.once {
        let overview = Overview::of(&endpoint.status().await?);
        if args.json {
            stdout::line(serde_json::to_string(&overview)?)?;
        } else {
            stdout::line(tables(&overview))?;
        }
        return Ok(Exit::Ok);
    }
    let terminal = std::io::stdout().is_terminal();
    let mut ticks = tokio::time::interval(REFRESH);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Ok),
        }
        let shown = tables(&Overview::of(&endpoint.status().await?));
        let mut out = std::io::stdout().lock();
        if terminal {
            // Home, then clear what is below: no flicker, no scrolling.
            writeln!(out, "\u{1b}[H\u{1b}[J{shown}")?;
        } else {
            writeln!(out, "{shown}\n")?;
        }
        out.flush()?;
    }
}

fn tables(overview: &Overview) -> String {
    let mut channels = Table::new();
    channels.load_preset(presets::NOTHING).set_header(["CHANNEL", "PARTITIONS", "RECORDS", "FIRST", "TAIL", "HEALTH"]);
    for channel in &overview.channels {
        channels.add_row([
            channel.name.clone(),
            channel.partitions.len().to_string(),
            channel.tail.saturating_sub(channel.log_start).to_string(),
            channel.log_start.to_string(),
            channel.tail.to_string(),
            channel.health.clone(),
        ]);
    }
    align_right(&mut channels, 1..=4);
    let mut pipelines = Table::new();
    pipelines.load_preset(presets::NOTHING).set_header([
        "PIPELINE",
        "IN",
        "IN/S",
        "DELIVERED",
        "FILTERED",
        "DEAD",
        "IN FLIGHT",
        "LAG",
        "OLDEST",
        "STATE",
        "CAUSE",
    ]);
    for pipeline in &overview.pipelines {
        pipelines.add_row([
            pipeline.name.clone(),
            pipeline.taken.to_string(),
            format!("{:.0}", pipeline.rows_in_per_second),
            pipeline.delivered.to_string(),
            pipeline.filtered.to_string(),
            pipeline.dead_lettered.to_string(),
            pipeline.in_flight.to_string(),
            pipeline.lag_records.to_string(),
            format!("{}ms", pipeline.oldest_unacked_ms),
            pipeline.state.clone(),
            pipeline.cause.clone().unwrap_or_default(),
        ]);
    }
    align_right(&mut pipelines, 1..=8);
    let captured = overview.pipelines.iter().filter(|pipeline| !pipeline.tables.is_empty());
    let tables: String = captured.map(|pipeline| format!("\n\n{}", of_tables(pipeline))).collect();
    format!("{channels}\n\n{pipelines}{tables}")
}

/// The tables of a captured database: those that want a look first, and no more than a screen holds.
fn of_tables(pipeline: &PipelineRow) -> String {
    const TABLES_MAX: usize = 20;
    let mut shown = Table::new();
    let head = format!("TABLE OF {}", pipeline.name);
    shown.load_preset(presets::NOTHING).set_header([head.as_str(), "ROWS", "LAG", "PHASE", "STATE", "CAUSE"]);
    let mut tables: Vec<&TableLine> = pipeline.tables.iter().collect();
    let is_as_usual = |table: &&TableLine| table.phase == "streaming" && table.state.as_deref() == Some("running");
    tables.sort_by_key(is_as_usual);
    for table in tables.iter().take(TABLES_MAX) {
        shown.add_row([
            table.name.clone(),
            table.rows.map(|rows| rows.to_string()).unwrap_or_default(),
            table.lag.map(|lag| format!("{lag} B")).unwrap_or_default(),
            table.phase.clone(),
            table.state.clone().unwrap_or_default(),
            table.why(),
        ]);
    }
    align_right(&mut shown, 1..=2);
    match tables.len().checked_sub(TABLES_MAX) {
        Some(more @ 1..) => {
            format!("{shown}\n … and {more} more, all of them: landfall tables CONFIG {} list", pipeline.name)
        }
        _ => shown.to_string(),
    }
}

fn align_right(table: &mut Table, columns: std::ops::RangeInclusive<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a captured table that is not shown, or shown without what the source and the engine say of it.
    #[test]
    fn tables_of_a_capture_are_shown_with_what_stands_against_them() {
        let table = |name: &str, phase: &str, parked: Value| serde_json::json!({"name": name, "target": name, "phase": phase, "shape": 2, "parked": parked});
        let parked = serde_json::json!({"code": "LF-PG0501", "reason": "rewritten", "at": "0/1"});
        let tables = [table("public.orders", "streaming", Value::Null), table("public.prices", "parked", parked)];
        let status = serde_json::json!({"pipelines": [{"name": "shop", "state": "running", "sinks": [],
            "source": {"tables": tables}, "tables": [{"name": "public.orders", "state": "running", "lag": 96, "rows": 7}]}]});
        let overview = Overview::of(&status);
        let shown = serde_json::to_value(&overview).expect("JSON");
        let orders = &shown["pipelines"][0]["tables"][0];
        assert_eq!((orders["lag"].as_u64(), orders["rows"].as_u64()), (Some(96), Some(7)), "{shown}");
        let text = super::tables(&overview);
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().position(|line| line.contains("TABLE OF shop")).expect("a head");
        assert!(lines[at + 1].contains("public.prices") && lines[at + 1].contains("LF-PG0501: rewritten"), "{text}");
        assert!(lines[at + 2].contains("public.orders") && lines[at + 2].contains("96 B"), "{text}");
    }

    /// Would catch a script-visible field that is renamed, or numbers taken from a sink that is not the furthest
    /// behind.
    #[test]
    fn the_json_shape_is_the_documented_one() {
        let status = serde_json::json!({
            "channels": [{"name": "a", "health": "ok", "tail": 7, "log_start": 2,
                "partitions": [{"partition": 0, "tail": 7, "log_start": 2, "state": "ready"}]}],
            "pipelines": [{"name": "p", "state": "retrying", "why": {"code": "LF-DT0012", "cause": "503"},
                "lag": {"records": 3}, "sinks": [
                    {"balance": {"in": 9, "delivered": 9, "filtered": 0, "dead_lettered": 0, "in_flight": 0}},
                    {"balance": {"in": 9, "delivered": 4, "filtered": 1, "dead_lettered": 1, "in_flight": 3}}]}]
        });
        let shown = serde_json::to_value(Overview::of(&status)).expect("JSON");
        assert_eq!(
            shown,
            serde_json::json!({
                "channels": [{"name": "a", "tail": 7, "log_start": 2,
                    "partitions": [{"partition": 0, "tail": 7, "log_start": 2, "state": "ready"}]}],
                "pipelines": [{"name": "p", "in": 9, "delivered": 4, "filtered": 1, "dead_lettered": 1, "in_flight": 3,
                    "lag_records": 3, "state": "retrying", "cause": "LF-DT0012: 503"}]
            })
        );
    }
}
