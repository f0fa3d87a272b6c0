//! `landfall tables`: the tables of a captured database, one at a time (P86–P88, P63).
//!
//! A running process is asked over HTTP, of a stopped one the data directory is read and written under LOCK; either way the
//! same is shown and the same change made.

mod listing;
mod orders;

pub(crate) use listing::{Listing, TableLine, lines_of, standing};
pub(crate) use orders::{Outcome, command_of, order_of};

use anyhow::Context;
use landfall_engine::SourceRecordPlace;
use landfall_engine::contract::PipelineId;
use landfall_postgres::{RecordError, SourceRecord};
use landfall_state::{DataDirLock, LockError, StateStore};
use landfall_types::SystemClock;

use crate::assembly::source_identity;
use crate::cli::{ServerArgs, TablesAction, TablesArgs};
use crate::config::{self, Config, PipelineConfig, PostgresConfig, codes};
use crate::endpoint::Endpoint;
use crate::exit::Exit;
use crate::refusal::coded;

/// Looks, or gives an order.
pub(crate) fn run(args: &TablesArgs) -> anyhow::Result<Exit> {
    let loaded = config::load(&args.config);
    if !loaded.findings.is_empty() {
        eprintln!("{}", loaded.render());
    }
    let Some(config) = loaded.config else { return Ok(Exit::Failed) };
    let pipeline = captured(&config, &args.pipeline)?;
    let is_one_or_all = args.table.is_some() || args.all;
    if !matches!(args.action, TablesAction::List | TablesAction::DropSlot) && !is_one_or_all {
        anyhow::bail!("`{}` wants a table like `public.orders`, or --all ({})", args.action.word(), codes::ARGUMENT);
    }
    match args.action {
        TablesAction::List => listing::run(args, &config, &pipeline),
        TablesAction::Park
        | TablesAction::Resume
        | TablesAction::Resync
        | TablesAction::Remove
        | TablesAction::Add
        | TablesAction::DropSlot => orders::run(args, &config, &pipeline),
    }
}

/// A pipeline that captures a database.
struct Captured<'a> {
    pipeline: &'a PipelineConfig,
    capture: &'a PostgresConfig,
}

fn captured<'a>(config: &'a Config, name: &str) -> anyhow::Result<Captured<'a>> {
    let known = || {
        let names: Vec<&str> =
            config.pipelines.iter().filter(|one| one.capture().is_some()).map(|one| one.name.as_str()).collect();
        if names.is_empty() { "no pipeline of it captures a database".to_owned() } else { names.join(", ") }
    };
    let Some(pipeline) = config.pipelines.iter().find(|pipeline| pipeline.name == name) else {
        anyhow::bail!("the configuration has no pipeline `{name}` ({}); it has: {}", codes::ARGUMENT, known());
    };
    let Some(capture) = pipeline.capture() else {
        anyhow::bail!(
            "pipeline `{name}` reads a channel, which has no tables ({}); captures: {}",
            codes::ARGUMENT,
            known()
        );
    };
    Ok(Captured { pipeline, capture })
}

impl Captured<'_> {
    fn slot(&self) -> String {
        self.capture.slot_name(&self.pipeline.id)
    }

    fn place(&self) -> SourceRecordPlace {
        SourceRecordPlace::of(&PipelineId(self.pipeline.id.clone()), &source_identity(&self.slot()))
    }

    /// A stored record, for an operator: what cannot be read is refused, never guessed (I12).
    fn record(&self, bytes: Option<&[u8]>) -> anyhow::Result<Option<SourceRecord>> {
        let decoded = bytes.map(SourceRecord::decode).transpose();
        decoded.map_err(|error: RecordError| coded(error)).with_context(|| format!("pipeline `{}`", self.pipeline.name))
    }
}

/// The process that runs on the data directory.
fn endpoint(args: &TablesArgs, config: &Config) -> anyhow::Result<Endpoint> {
    let listen = config.server.listen;
    if args.server.is_none() && listen.port() == 0 {
        anyhow::bail!(
            "a process runs on `{}`, on a port that the configuration leaves open ({}): name it with --server",
            config.data_dir.display(),
            codes::ARGUMENT
        );
    }
    let server = args.server.clone().unwrap_or_else(|| format!("http://{listen}"));
    Ok(Endpoint::new(&ServerArgs { server, token: std::env::var("LANDFALL_TOKEN").ok() })?)
}

/// The data directory of a stopped process, in this command's hands.
struct Held {
    lock: DataDirLock,
    store: StateStore,
}

impl Held {
    fn take(config: &Config) -> anyhow::Result<Held> {
        Self::take_if_stopped(config)?.ok_or_else(|| {
            anyhow::anyhow!(
                "a process runs on `{}`, and its slot is in use ({}): stop the process (SIGTERM; it drains), then give this order",
                config.data_dir.display(),
                codes::ARGUMENT
            )
        })
    }

    /// Nothing if a process has it.
    fn take_if_stopped(config: &Config) -> anyhow::Result<Option<Held>> {
        let data_dir = &config.data_dir;
        anyhow::ensure!(
            data_dir.is_dir(),
            "there is no data directory `{}` ({}): nothing has run here yet",
            data_dir.display(),
            codes::ARGUMENT
        );
        let lock = match DataDirLock::acquire(data_dir, &SystemClock) {
            Ok(lock) => lock,
            Err(LockError::Locked { .. }) => return Ok(None),
            Err(error) => return Err(coded(error)),
        };
        let store = StateStore::open(&lock).map_err(coded)?;
        Ok(Some(Held { lock, store }))
    }

    fn read(&self, of: &Captured<'_>) -> anyhow::Result<Option<SourceRecord>> {
        let place = of.place();
        let bytes = self.store.handle().read(place.table, &place.key).map_err(coded)?;
        of.record(bytes.as_deref())
    }

    fn is_damaged(&self, of: &Captured<'_>) -> anyhow::Result<bool> {
        let place = of.place();
        let bytes = self.store.handle().read(place.table, &place.key).map_err(coded)?;
        Ok(bytes.is_some_and(|bytes| SourceRecord::decode(&bytes).is_err()))
    }

    fn write(&self, of: &Captured<'_>, record: &SourceRecord) -> anyhow::Result<()> {
        let handle = self.store.handle();
        handle.commit_blocking(vec![of.place().put(record.encode())], handle.owner()).map_err(coded)
    }

    fn give_back(self) {
        self.store.close();
        drop(self.lock);
    }
}
