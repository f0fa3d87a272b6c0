//! `park`, `resume`, `resync`, `remove`, `add`, `drop-slot`: orders that a running capture carries out at once, and the next
//! start of a stopped one.
//!
//! Each says what will happen and acts only with `--confirm`. An order is one durable change of the stored record: there
//! is no half of it after a crash. A running process makes it in its own record, asked over HTTP; of a stopped one it is
//! made in the data directory. Both make the same change, and print the same.

use bytes::Bytes;
use landfall_postgres::{
    OptionSet, Order, OrderCommand, OrderError, OrderedTables, ServerFacts, SourceRecord, SqlConnection, drop_slot,
};
use serde::{Deserialize, Serialize};

use super::{Captured, Held, endpoint};
use crate::cli::{TablesAction, TablesArgs};
use crate::config::Config;
use crate::endpoint::escaped;
use crate::exit::Exit;
use crate::refusal::coded;
use crate::stdout;

/// What an order prints with `--json`, and what a running process answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pipeline: String,
    action: String,
    /// Whether it was carried out; else it is what `--confirm` would do.
    applied: bool,
    tables: Vec<String>,
    text: String,
}

impl Outcome {
    /// Of an order that was stored, or would be.
    pub(crate) fn of(pipeline: &str, order: &Order, tables: Vec<String>, applied: bool, is_running: bool) -> Outcome {
        let whose = if tables.is_empty() { "no table".to_owned() } else { tables.join(", ") };
        let stored = if applied && is_running { "the order is stored; " } else { "" };
        let text = format!("pipeline {pipeline}, {whose}: {stored}{}", order.outcome(is_running));
        let action = order.command.word().to_owned();
        Outcome { pipeline: pipeline.to_owned(), action, applied, tables, text }
    }

    fn of_slot(args: &TablesArgs, of: &Captured<'_>, text: String) -> Outcome {
        Outcome {
            pipeline: of.pipeline.name.clone(),
            action: args.action.word().to_owned(),
            applied: args.confirm,
            tables: Vec::new(),
            text,
        }
    }
}

/// The command of a word, or what the words are.
pub(crate) fn command_of(word: &str) -> Result<OrderCommand, String> {
    OrderCommand::of(word).ok_or_else(|| {
        let shown: String = word.chars().take(64).collect();
        let words = OrderCommand::ALL.map(OrderCommand::word).join(", ");
        format!("`{}` is no command to tables: {words}", shown.escape_debug())
    })
}

/// An order to the tables of a name or a pattern, or to all.
pub(crate) fn order_of(command: OrderCommand, table: Option<&str>) -> Result<Order, OrderError> {
    match table {
        Some(table) => Order::named(command, table),
        None => Ok(Order { command, tables: OrderedTables::All }),
    }
}

pub(super) fn run(args: &TablesArgs, config: &Config, of: &Captured<'_>) -> anyhow::Result<Exit> {
    let outcome = match args.action.command() {
        // A slot in use cannot be dropped: its process is stopped first, and says so by its LOCK.
        None => {
            let held = Held::take(config)?;
            let done = drop_the_slot(args, of);
            held.give_back();
            done?
        }
        Some(command) => {
            let order = order_of(command, args.table.as_deref()).map_err(coded)?;
            match Held::take_if_stopped(config)? {
                None => crate::client_runtime()?.block_on(give(args, config, of, &order))?,
                Some(held) => {
                    let done = write(args, of, &held, &order);
                    held.give_back();
                    done?
                }
            }
        }
    };
    if args.json {
        stdout::line(serde_json::to_string(&outcome)?)?;
    } else if outcome.applied {
        stdout::line(outcome.text)?;
    } else {
        stdout::line(format!("{}\nnothing was changed: say --confirm to do it", outcome.text))?;
    }
    Ok(Exit::Ok)
}

/// To the running process.
async fn give(args: &TablesArgs, config: &Config, of: &Captured<'_>, order: &Order) -> anyhow::Result<Outcome> {
    let path = format!("/v1/pipelines/{}/tables", escaped(&of.pipeline.name));
    let body = serde_json::json!({
        "command": order.command.word(), "table": args.table, "all": args.table.is_none(), "rehearsal": !args.confirm,
    });
    let headers = [("content-type", "application/json")];
    let answer = endpoint(args, config)?.post(&path, &headers, Bytes::from(body.to_string())).await?;
    Ok(serde_json::from_slice(&answer.body)?)
}

/// Into the data directory of a stopped one.
fn write(args: &TablesArgs, of: &Captured<'_>, held: &Held, order: &Order) -> anyhow::Result<Outcome> {
    if order.starts_over() && held.is_damaged(of)? {
        return begin_anew(args, of, held);
    }
    let mut record = held.read(of)?.ok_or(OrderError::NothingStored).map_err(coded)?;
    let ordered = order.apply(&mut record, of.capture.copies).map_err(coded)?;
    if args.confirm {
        held.write(of, &record)?;
    }
    Ok(Outcome::of(&of.pipeline.name, order, ordered.tables, args.confirm, false))
}

/// A record that cannot be read holds nothing to go on from. The next start takes the slot of this name for one of a first
/// start that crashed, drops it, and copies under partitions that no destination knows.
fn begin_anew(args: &TablesArgs, of: &Captured<'_>, held: &Held) -> anyhow::Result<Outcome> {
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
    Ok(Outcome::of_slot(args, of, text))
}

/// The slot is given back to the server; what is stored stays, so that a start says what is gone.
fn drop_the_slot(args: &TablesArgs, of: &Captured<'_>) -> anyhow::Result<Outcome> {
    let slot = of.slot();
    let pipeline = &of.pipeline.name;
    if !args.confirm {
        let text = format!(
            "slot `{slot}` would be dropped on the server: it holds no more log back, and what changes from then on is lost \
             to pipeline {pipeline} until `landfall tables … resync --all` and a new copy"
        );
        return Ok(Outcome::of_slot(args, of, text));
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
    Ok(Outcome::of_slot(args, of, text))
}

impl TablesAction {
    /// The order that it gives, if it is one to tables.
    fn command(self) -> Option<OrderCommand> {
        match self {
            TablesAction::Park => Some(OrderCommand::Park),
            TablesAction::Resume => Some(OrderCommand::Resume),
            TablesAction::Resync => Some(OrderCommand::Resync),
            TablesAction::Remove => Some(OrderCommand::Remove),
            TablesAction::Add => Some(OrderCommand::Add),
            TablesAction::List | TablesAction::DropSlot => None,
        }
    }
}
