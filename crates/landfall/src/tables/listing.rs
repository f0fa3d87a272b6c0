//! `landfall tables … list`: where each table stands.

use comfy_table::{Table, presets};
use landfall_postgres::{SourceRecord, TableRecord};
use landfall_state::{StateLook, StateReader};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Captured, Held, endpoint};
use crate::cli::TablesArgs;
use crate::config::Config;
use crate::endpoint::escaped;
use crate::exit::Exit;
use crate::refusal::coded;
use crate::stdout;

/// What `list --json` prints, and what a running process answers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Listing {
    pipeline: String,
    /// Whether a process runs, and this is its status; else it is what was stored.
    running: bool,
    slot: String,
    /// What the capture is doing, of a running one.
    stage: Option<String>,
    /// What a running one waits for, or why it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// Below it everything is settled.
    through: Option<String>,
    last_commit: Option<String>,
    tables: Vec<TableLine>,
}

/// A table, as `list` and `top` show it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TableLine {
    /// Its name now.
    pub(crate) name: String,
    /// What it is called in destinations, which a rename does not change.
    target: String,
    /// `waiting`, `copying`, `catching_up`, `streaming`, `parked` or `removed`.
    pub(crate) phase: String,
    /// The engine's word for it, of a running one.
    pub(crate) state: Option<String>,
    shape: u64,
    /// Rows that were settled since the start, of a running one.
    pub(crate) rows: Option<u64>,
    /// Bytes of log that it is behind, of a running one.
    pub(crate) lag: Option<u64>,
    parked: Option<Parked>,
    /// Why its rows do not move, where they do not.
    cause: Option<String>,
    /// What was noted of it since its copy, the newest last.
    #[serde(default)]
    notes: Vec<Noted>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Noted {
    code: String,
    text: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Parked {
    code: String,
    reason: String,
    at: String,
}

/// The tables of a running pipeline, by its part of the status; none of one that reads a channel.
pub(crate) fn lines_of(pipeline: &Value) -> Vec<TableLine> {
    let nothing = Value::Null;
    let engine: Vec<&Value> = list(pipeline, "tables").collect();
    let mut tables: Vec<TableLine> = list(pipeline.get("source").unwrap_or(&nothing), "tables")
        .map(|table| {
            let target = text(table, "target").unwrap_or_default();
            let shown = engine.iter().find(|one| text(one, "name").as_deref() == Some(&target)).copied();
            TableLine::of_status(table, shown.unwrap_or(&nothing))
        })
        .collect();
    tables.sort_by(|one, other| one.name.cmp(&other.name));
    tables
}

/// A pipeline's state and what it waits for: of its own, or of its source (P112).
pub(crate) fn standing(pipeline: &Value) -> (String, Option<String>) {
    let state = text(pipeline, "state").unwrap_or_default();
    let said = |why: &Value| {
        let cause = text(why, "cause").unwrap_or_default();
        // A source's own words end with their code.
        match text(why, "code").filter(|code| !code.is_empty() && !cause.contains(code.as_str())) {
            Some(code) => format!("{code}: {cause}"),
            None => cause,
        }
    };
    if let Some(why) = pipeline.get("why").filter(|why| !why.is_null()) {
        return (state, Some(said(why)));
    }
    let source = pipeline.get("source").filter(|source| source.is_object());
    match source.and_then(|source| Some((text(source, "stage")?, source.get("detail")?))) {
        Some((stage, detail)) if stage == "waiting" => ("retrying".to_owned(), Some(said(detail))),
        Some((stage, _)) if stage == "creating_slot" => {
            (state, Some("the slot is being made, which waits for transactions that are open".to_owned()))
        }
        _ => (state, None),
    }
}

pub(super) fn run(args: &TablesArgs, config: &Config, of: &Captured<'_>) -> anyhow::Result<Exit> {
    let listing = match StateReader::look(&config.data_dir).map_err(coded)? {
        StateLook::InUse => {
            let listing = crate::client_runtime()?.block_on(running(args, config, of))?;
            let slot = if listing.slot.is_empty() { of.slot() } else { listing.slot };
            Listing { slot, ..listing }
        }
        StateLook::Absent => Listing { pipeline: of.pipeline.name.clone(), slot: of.slot(), ..Listing::default() },
        StateLook::Readable(reader) => {
            let place = of.place();
            let bytes = reader.read(place.table, &place.key).map_err(coded)?;
            Listing::of_record(of, of.record(bytes.as_deref())?.as_ref())
        }
        StateLook::NeedsRecovery => {
            let held = Held::take(config)?;
            let record = held.read(of);
            held.give_back();
            Listing::of_record(of, record?.as_ref())
        }
    };
    if args.json {
        stdout::line(serde_json::to_string(&listing)?)?;
    } else {
        stdout::line(listing.text())?;
    }
    Ok(Exit::Ok)
}

/// As the running process shows it.
async fn running(args: &TablesArgs, config: &Config, of: &Captured<'_>) -> anyhow::Result<Listing> {
    let path = format!("/v1/pipelines/{}/tables", escaped(&of.pipeline.name));
    let answer = endpoint(args, config)?.get(&path).await?;
    Ok(serde_json::from_slice(&answer.body)?)
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

impl Listing {
    fn of_record(of: &Captured<'_>, record: Option<&SourceRecord>) -> Listing {
        Listing {
            pipeline: of.pipeline.name.clone(),
            slot: of.slot(),
            through: record.map(|record| record.through.to_string()),
            last_commit: record.map(|record| record.last_commit.to_string()),
            tables: record.iter().flat_map(|record| &record.tables).map(TableLine::of_record).collect(),
            ..Listing::default()
        }
    }

    /// Of a running pipeline, by its part of the status.
    pub(crate) fn of_pipeline(name: &str, pipeline: &Value) -> Listing {
        let nothing = Value::Null;
        let source = pipeline.get("source").unwrap_or(&nothing);
        let (state, cause) = standing(pipeline);
        // A pipeline that has failed, or waits as a whole, is not in its source's stage any more.
        let stage = text(source, "stage").filter(|_| !matches!(state.as_str(), "failed" | "blocked"));
        Listing {
            pipeline: name.to_owned(),
            running: true,
            slot: text(source, "slot").unwrap_or_default(),
            stage: stage.or(Some(state)),
            cause,
            through: text(source, "through"),
            last_commit: text(source, "last_commit"),
            tables: lines_of(pipeline),
        }
    }

    fn text(&self) -> String {
        let whose = match (&self.stage, self.running) {
            (Some(stage), _) => stage.as_str(),
            (None, true) => "running",
            (None, false) => "not running",
        };
        let through = self.through.as_deref().unwrap_or("nothing yet");
        let mut head = format!("pipeline {}: {whose}, slot {}, settled through {through}", self.pipeline, self.slot);
        if let Some(cause) = &self.cause {
            head.push_str("\n  ");
            head.push_str(cause);
        }
        if self.tables.is_empty() {
            return format!("{head}\nno table is known yet");
        }
        let mut shown = Table::new();
        shown.load_preset(presets::NOTHING).set_header(["TABLE", "PHASE", "STATE", "SHAPE", "ROWS", "LAG", "CAUSE"]);
        for table in &self.tables {
            shown.add_row([
                table.name.clone(),
                table.phase.clone(),
                table.state.clone().unwrap_or_default(),
                table.shape.to_string(),
                table.rows.map(|rows| rows.to_string()).unwrap_or_default(),
                table.lag.map(|lag| format!("{lag} B")).unwrap_or_default(),
                table.whys().join("\n"),
            ]);
        }
        format!("{head}\n{shown}")
    }
}

impl TableLine {
    /// Why it is not simply followed, if it is not; else what was noted of it, the newest first.
    fn whys(&self) -> Vec<String> {
        let parked = self.parked.as_ref().map(|parked| format!("{}: {}", parked.code, parked.reason));
        match parked.or_else(|| self.cause.clone()) {
            Some(why) => vec![why],
            None => self.notes.iter().rev().map(|note| format!("{}: {}", note.code, note.text)).collect(),
        }
    }

    /// The first of these.
    pub(crate) fn why(&self) -> String {
        self.whys().into_iter().next().unwrap_or_default()
    }

    fn of_record(table: &TableRecord) -> TableLine {
        TableLine {
            name: table.name.to_string(),
            target: table.target.clone(),
            phase: table.phase.to_string(),
            shape: table.shape.into(),
            parked: table.park.as_ref().map(|park| Parked {
                code: park.code.clone(),
                reason: park.reason.clone(),
                at: park.at.to_string(),
            }),
            notes: table.notes.iter().map(|note| Noted { code: note.code.clone(), text: note.text.clone() }).collect(),
            ..TableLine::default()
        }
    }

    fn of_status(table: &Value, engine: &Value) -> TableLine {
        let parked = table.get("parked").filter(|parked| !parked.is_null());
        let in_log = table.get("waits_in_log").and_then(Value::as_bool).unwrap_or_default();
        let in_log = in_log.then(|| "its stream waits in the server's log until its copy is settled".to_owned());
        let why = engine.get("why").filter(|why| !why.is_null());
        let is_shown = !engine.is_null();
        TableLine {
            name: text(table, "name").unwrap_or_default(),
            target: text(table, "target").unwrap_or_default(),
            phase: text(table, "phase").unwrap_or_default(),
            state: text(engine, "state"),
            shape: number(table, "shape"),
            rows: is_shown.then(|| number(engine, "rows")),
            lag: is_shown.then(|| number(engine, "lag")),
            parked: parked.map(|parked| Parked {
                code: text(parked, "code").unwrap_or_default(),
                reason: text(parked, "reason").unwrap_or_default(),
                at: text(parked, "at").unwrap_or_default(),
            }),
            cause: why.and_then(|why| text(why, "cause")).or_else(|| text(table, "refused")).or(in_log),
            notes: list(table, "notes")
                .filter_map(|note| Some(Noted { code: text(note, "code")?, text: text(note, "text")? }))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches what was noted of a table that goes on, and is shown to nobody; and a note in the place of a cause.
    #[test]
    fn a_note_is_the_cause_where_nothing_else_is() {
        let mut table = serde_json::json!({
            "name": "public.items", "target": "public.items", "phase": "streaming", "shape": 1, "parked": null, "refused": null,
            "notes": [{"code": "LF-PG0520", "text": "older"}, {"code": "LF-PG0521", "text": "column `n` is called `m` now"}],
        });
        let why = |table: &Value| {
            lines_of(&serde_json::json!({"source": {"tables": [table]}}))
                .first()
                .map(TableLine::why)
                .unwrap_or_default()
        };
        assert_eq!(why(&table), "LF-PG0521: column `n` is called `m` now");
        let lines = lines_of(&serde_json::json!({"source": {"tables": [table]}}));
        assert_eq!(lines[0].whys(), ["LF-PG0521: column `n` is called `m` now", "LF-PG0520: older"]);
        table["parked"] = serde_json::json!({"code": "LF-PG0501", "reason": "needs re-sync", "at": "0/1"});
        assert_eq!(why(&table), "LF-PG0501: needs re-sync");
    }
}
