//! `park`, `resume`, `resync`, `drop-slot`: orders that the next start carries out.
//!
//! Each says what will happen and acts only with `--confirm`. An order is one durable change of the stored record: there
//! is no half of it after a crash.

use anyhow::Context;
use landfall_postgres::{
    OptionSet, ParkNote, RelationId, ServerFacts, SourceRecord, SqlConnection, TablePattern, TablePhase, TableRecord,
    drop_slot,
};
use serde::Serialize;

use super::{Captured, Held};
use crate::cli::{TablesAction, TablesArgs};
use crate::config::{Config, codes};
use crate::exit::Exit;
use crate::refusal::coded;
use crate::stdout;

/// What an order prints with `--json`.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    pipeline: &'a str,
    action: &'static str,
    /// Whether it was carried out; else it is what `--confirm` would do.
    applied: bool,
    tables: Vec<String>,
    text: String,
}

pub(super) fn run(args: &TablesArgs, config: &Config, of: &Captured<'_>) -> anyhow::Result<Exit> {
    let held = Held::take(config)?;
    let done = give(args, of, &held);
    held.give_back();
    let (tables, text) = done?;
    if args.json {
        let (pipeline, action) = (of.pipeline.name.as_str(), args.action.word());
        let outcome = Outcome { pipeline, action, applied: args.confirm, tables, text };
        stdout::line(serde_json::to_string(&outcome)?)?;
    } else if args.confirm {
        stdout::line(text)?;
    } else {
        stdout::line(format!("{text}\nnothing was changed: say --confirm to do it"))?;
    }
    Ok(Exit::Ok)
}

fn give(args: &TablesArgs, of: &Captured<'_>, held: &Held) -> anyhow::Result<(Vec<String>, String)> {
    if args.action == TablesAction::DropSlot {
        return drop_the_slot(args, of);
    }
    if args.action == TablesAction::Resync && args.all && held.is_damaged(of)? {
        return begin_anew(args, of, held);
    }
    let Some(mut record) = held.read(of)? else {
        anyhow::bail!(
            "nothing is stored of pipeline `{}` yet ({}): its first start copies every table",
            of.pipeline.name,
            codes::ARGUMENT
        );
    };
    let meant = meant(args, &record)?;
    let copies_again = matches!(args.action, TablesAction::Resume | TablesAction::Resync);
    if copies_again && !of.capture.copies {
        anyhow::bail!(
            "`snapshot.mode` of pipeline `{}` is `never`, so nothing would be copied ({}): set it to `initial` first",
            of.pipeline.name,
            codes::CONTRADICTION
        );
    }
    let (tables, text) = apply(args, of, &mut record, meant)?;
    if args.confirm {
        held.write(of, &record)?;
    }
    Ok((tables, text))
}

/// A record that cannot be read holds nothing to go on from. The next start takes the slot of this name for one of a first
/// start that crashed, drops it, and copies under partitions that no destination knows.
fn begin_anew(args: &TablesArgs, of: &Captured<'_>, held: &Held) -> anyhow::Result<(Vec<String>, String)> {
    let text = format!(
        "pipeline {}: the stored record cannot be read and is given up: the next start drops the slot if it is still there, \
         makes a new one, and copies every table",
        of.pipeline.name
    );
    if args.confirm {
        let server = crate::client_runtime()?.block_on(async {
            let sql = SqlConnection::open(&of.capture.connect).await.map_err(coded)?;
            ServerFacts::read(&sql).await.map_err(coded)
        })?;
        let record = SourceRecord::intent(
            of.slot(),
            server.system_identifier,
            server.database_oid,
            server.timeline,
            OptionSet::default(),
        );
        held.write(of, &record)?;
    }
    Ok((Vec::new(), text))
}

/// The tables that the arguments mean.
fn meant(args: &TablesArgs, record: &SourceRecord) -> anyhow::Result<Vec<RelationId>> {
    let is_carried = |table: &&TableRecord| table.phase != TablePhase::Removed;
    let Some(name) = &args.table else {
        return Ok(record.tables.iter().filter(is_carried).map(|table| table.relation).collect());
    };
    let pattern: TablePattern = name.parse().map_err(anyhow::Error::new)?;
    let is_named = |table: &&TableRecord| pattern.matches(&table.name.schema, &table.name.table);
    let found: Vec<RelationId> =
        record.tables.iter().filter(is_carried).filter(is_named).map(|table| table.relation).collect();
    if found.is_empty() {
        const SHOWN_MAX: usize = 20;
        let known: Vec<String> =
            record.tables.iter().filter(is_carried).take(SHOWN_MAX).map(|table| table.name.to_string()).collect();
        anyhow::bail!("no table `{name}` is carried ({}); these are: {}", codes::ARGUMENT, known.join(", "));
    }
    Ok(found)
}

fn apply(
    args: &TablesArgs,
    of: &Captured<'_>,
    record: &mut SourceRecord,
    meant: Vec<RelationId>,
) -> anyhow::Result<(Vec<String>, String)> {
    let is_parked = |record: &SourceRecord, relation: &RelationId| {
        record.table(*relation).is_some_and(|table| table.phase == TablePhase::Parked)
    };
    let spent = || anyhow::anyhow!("the record has no partition number or epoch left: give the pipeline a new `id`");
    let (chosen, text): (Vec<RelationId>, &str) = match args.action {
        TablesAction::Park => {
            let chosen: Vec<RelationId> = meant.into_iter().filter(|table| !is_parked(record, table)).collect();
            let through = record.through;
            for relation in &chosen {
                if let Some(table) = record.table_mut(*relation) {
                    park(table, through);
                }
            }
            (chosen, "parked from the next start on: rows pass by, the slot moves on, and only a new copy ends it")
        }
        TablesAction::Resume => {
            let chosen: Vec<RelationId> = meant.into_iter().filter(|table| is_parked(record, table)).collect();
            for relation in &chosen {
                record.copy_again(*relation).then_some(()).with_context(|| spent().to_string())?;
            }
            (chosen, "copied again at the next start, then followed: rows that passed by meanwhile are in the copy")
        }
        TablesAction::Resync if args.all => {
            record.start_over().then_some(()).with_context(|| spent().to_string())?;
            (meant, "the next start drops the slot if it is still there, makes a new one, and copies every table")
        }
        TablesAction::Resync => {
            for relation in &meant {
                record.copy_again(*relation).then_some(()).with_context(|| spent().to_string())?;
            }
            (meant, "copied again at the next start, then followed")
        }
        TablesAction::List | TablesAction::DropSlot => (Vec::new(), ""),
    };
    let name_of = |relation: &RelationId| record.table(*relation).map(|table| table.name.to_string());
    let tables: Vec<String> = chosen.iter().filter_map(name_of).collect();
    let whose = if tables.is_empty() { "no table".to_owned() } else { tables.join(", ") };
    Ok((tables, format!("pipeline {}, {whose}: {text}", of.pipeline.name)))
}

/// What is half copied is of no use to a table whose rows pass by.
fn park(table: &mut TableRecord, through: landfall_postgres::Lsn) {
    if table.phase == TablePhase::Copying {
        table.copy = None;
    }
    table.phase = TablePhase::Parked;
    table.park = Some(ParkNote {
        at: through,
        passed: through,
        code: codes::PARKED.to_string(),
        reason: "parked by `landfall tables`".to_owned(),
    });
}

/// The slot is given back to the server; what is stored stays, so that a start says what is gone.
fn drop_the_slot(args: &TablesArgs, of: &Captured<'_>) -> anyhow::Result<(Vec<String>, String)> {
    let slot = of.slot();
    let pipeline = &of.pipeline.name;
    if !args.confirm {
        let text = format!(
            "slot `{slot}` would be dropped on the server: it holds no more log back, and what changes from then on is lost \
             to pipeline {pipeline} until `landfall tables … resync --all` and a new copy"
        );
        return Ok((Vec::new(), text));
    }
    let runtime = crate::client_runtime()?;
    runtime.block_on(async {
        let sql = SqlConnection::open(&of.capture.connect).await.map_err(coded)?;
        drop_slot(&sql, &slot).await.map_err(coded)
    })?;
    let text = format!(
        "slot `{slot}` is dropped; take pipeline {pipeline} out of the configuration, or give `resync --all` before its \
         next start. The publication is still there"
    );
    Ok((Vec::new(), text))
}
