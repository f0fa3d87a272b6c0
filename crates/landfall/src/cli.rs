//! The command line: what each command takes. What it does lies in the module of its name.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Landfall: acknowledged ingest, durable ordered channels, SQL, Delta tables.
#[derive(Debug, Parser)]
#[command(name = "landfall", version, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs server, channels and pipelines of one configuration file; SIGTERM drains, a second signal stops at once.
    Run(RunArgs),
    /// Checks a configuration by the very build path of `run`, without side effects.
    Check(CheckArgs),
    /// Shows the whole thing on this machine: generated events, SQL, a Delta table, and a proof that nothing is lost.
    Demo(DemoArgs),
    /// Follows a Postgres of its own into Delta tables while work goes on in it, and verifies that they are equal.
    DemoPostgres(DemoPostgresArgs),
    /// Publishes NDJSON from a file or stdin and prints the committed positions.
    Publish(PublishArgs),
    /// Prints records of a channel, or the dead letters of a pipeline.
    Tail(TailArgs),
    /// Runs SQL, read only, over landed Delta tables.
    Query(QueryArgs),
    /// Shows a row per channel and pipeline of a running server.
    Top(TopArgs),
    /// Compares the tables of a captured database with the tables they landed in, at one position.
    ///
    /// Exit code 0: all equal; 1: at least one is not; 2: it could not be said.
    Verify(VerifyArgs),
    /// Shows the tables of a captured database, and parks, resumes or copies them again one at a time.
    Tables(TablesArgs),
    /// Says what an error code means and what to do.
    Explain(ExplainArgs),
    /// Measures, each against its limit in the same run, contents verified.
    Bench(BenchArgs),
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The configuration file.
    pub(crate) config: PathBuf,
    /// Ends with exit code 1 once a pipeline has failed for good, for those whose orchestrator restarts.
    #[arg(long)]
    pub(crate) exit_on_failure: bool,
    /// Writes the bound address here once the listener is up; for scripts that listen on port 0.
    #[arg(long, value_name = "FILE")]
    pub(crate) address_file: Option<PathBuf>,
    /// Log lines as JSON.
    #[arg(long)]
    pub(crate) log_json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The configuration file.
    pub(crate) config: PathBuf,
    /// Asks no peer; says which checks it left out.
    #[arg(long)]
    pub(crate) offline: bool,
    /// Shows each pipeline's schema and steps.
    #[arg(long)]
    pub(crate) schema: bool,
    /// One JSON object on stdout.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// How many events this run publishes.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) records: u64,
    /// Where everything lies; a second run goes on there.
    #[arg(long, default_value = "./landfall-demo", value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// The result as one JSON object, the last line of stdout.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DemoPostgresArgs {
    /// How many customers the shop has; it has four orders and some twelve items for each.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) customers: u32,
    /// How long work goes on after the changes that are shown one by one.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub(crate) seconds: u64,
    /// Where the tables are landed; a second run replaces what the first one landed.
    #[arg(long, default_value = "./landfall-demo-postgres", value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// The result as one JSON object, the last line of stdout.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where a running server is.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// The server's address.
    #[arg(long, env = "LANDFALL_SERVER", default_value = "http://127.0.0.1:7420", value_name = "URL")]
    pub(crate) server: String,
    /// The bearer token, by LANDFALL_TOKEN only: a command line is seen by others.
    #[arg(skip = std::env::var("LANDFALL_TOKEN").ok())]
    pub(crate) token: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    /// The channel; with `--from-dead-letters` it is taken from the letters and left out here.
    #[arg(required_unless_present = "from_dead_letters")]
    pub(crate) channel: Option<String>,
    /// NDJSON; stdin if left out.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Records a request.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) batch: u32,
    /// JSON pointer to the record key.
    #[arg(long, value_name = "POINTER")]
    pub(crate) key_field: Option<String>,
    /// JSON pointer to the idempotency key.
    #[arg(long, value_name = "POINTER")]
    pub(crate) idempotency_field: Option<String>,
    /// Publishes this pipeline's dead letters again, as they were, into its source channel.
    #[arg(long, value_name = "PIPELINE", conflicts_with_all = ["channel", "file", "key_field", "idempotency_field"])]
    pub(crate) from_dead_letters: Option<String>,
    /// The summary as one JSON object on stdout.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TailFormat {
    /// An object a line: position, timestamp, key, headers, payload.
    Json,
    /// Payloads, each followed by a newline.
    Raw,
    /// Columns.
    Table,
}

#[derive(Debug, Args)]
pub(crate) struct TailArgs {
    /// The channel, or with `--dead-letters` the pipeline.
    pub(crate) channel: String,
    /// Only this partition.
    #[arg(long)]
    pub(crate) partition: Option<u32>,
    /// An offset, `earliest` or `latest`; the last records if left out.
    #[arg(long, value_name = "OFFSET|earliest|latest")]
    pub(crate) from: Option<String>,
    /// How many records.
    #[arg(short = 'n', default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: u64,
    /// Goes on as records come.
    #[arg(long)]
    pub(crate) follow: bool,
    /// The form of each record.
    #[arg(short, long, value_enum, default_value_t = TailFormat::Json)]
    pub(crate) output: TailFormat,
    /// Reads the dead letters of the pipeline of this name.
    #[arg(long)]
    pub(crate) dead_letters: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum QueryFormat {
    /// Columns.
    Table,
    /// An object a line.
    Json,
    /// Comma-separated, with a header.
    Csv,
}

#[derive(Debug, Args)]
pub(crate) struct QueryArgs {
    /// The query.
    pub(crate) sql: String,
    /// A Delta table by the name that the query uses; may be repeated.
    #[arg(long = "table", value_name = "NAME=PATH")]
    pub(crate) tables: Vec<String>,
    /// Shows a table of change rows by its current state, by the columns of its key; its change rows are `NAME_changes`
    /// then. May be repeated.
    #[arg(long, value_name = "NAME=KEY,KEY")]
    pub(crate) current: Vec<String>,
    /// The form of the result.
    #[arg(short, long, value_enum, default_value_t = QueryFormat::Table)]
    pub(crate) output: QueryFormat,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Prints once and ends.
    #[arg(long)]
    pub(crate) once: bool,
    /// One JSON object on stdout; only with `--once`.
    #[arg(long, requires = "once")]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// What is done with the tables of a captured database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TablesAction {
    /// Shows where each stands.
    List,
    /// Lets its rows pass by.
    Park,
    /// Copies a parked one again, and follows it.
    Resume,
    /// Copies it again, and follows it; `--all`: with a new slot.
    Resync,
    /// Carries it no more; what landed stays.
    Remove,
    /// Copies one that is new or was removed, and follows it.
    Add,
    /// Drops the pipeline's replication slot on the server.
    DropSlot,
}

impl TablesAction {
    /// As it is written.
    pub(crate) fn word(self) -> &'static str {
        match self {
            TablesAction::List => "list",
            TablesAction::Park => "park",
            TablesAction::Resume => "resume",
            TablesAction::Resync => "resync",
            TablesAction::Remove => "remove",
            TablesAction::Add => "add",
            TablesAction::DropSlot => "drop-slot",
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct TablesArgs {
    /// The configuration file.
    pub(crate) config: PathBuf,
    /// The pipeline that captures the database.
    pub(crate) pipeline: String,
    /// What to do.
    #[arg(value_enum)]
    pub(crate) action: TablesAction,
    /// A table like `public.orders`, or a pattern like `audit.*`.
    #[arg(conflicts_with = "all")]
    pub(crate) table: Option<String>,
    /// Every table.
    #[arg(long)]
    pub(crate) all: bool,
    /// Acts; without it, an order only says what it would do.
    #[arg(long)]
    pub(crate) confirm: bool,
    /// One JSON object on stdout.
    #[arg(long)]
    pub(crate) json: bool,
    /// Where the running process listens; by default as the configuration says.
    #[arg(long, env = "LANDFALL_SERVER", value_name = "URL")]
    pub(crate) server: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The configuration file.
    pub(crate) config: PathBuf,
    /// The pipeline.
    pub(crate) pipeline: String,
    /// Only these tables, as `schema.table` or, where that is one, `table`.
    pub(crate) tables: Vec<String>,
    /// Compares numbers of rows only.
    #[arg(long)]
    pub(crate) counts: bool,
    /// Shows the values of unequal rows, not just their keys.
    #[arg(long, conflicts_with = "counts")]
    pub(crate) show_values: bool,
    /// How long a running pipeline may take to come to the position that is compared.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) within: u64,
    /// The process that runs the pipeline; by default at `server.listen` of the configuration.
    #[arg(long, env = "LANDFALL_SERVER", value_name = "URL")]
    pub(crate) server: Option<String>,
    /// The bearer token, by LANDFALL_TOKEN only.
    #[arg(skip = std::env::var("LANDFALL_TOKEN").ok())]
    pub(crate) token: Option<String>,
    /// One JSON object on stdout.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A code like `LF-CH0003`; all of them if left out.
    pub(crate) code: Option<String>,
    /// JSON on stdout.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchName {
    /// Publish at 1, 16, 64 and 512 publishers, into one partition and into 16, against raw append and fdatasync of the same
    /// batch sizes.
    Channel,
    /// Channel to SQL to Delta against the same Arrow batches written straight by the Parquet writer.
    Pipeline,
    /// Change capture against `pg_recvlogical`, `psql` and a plain channel, on a Postgres of its own.
    Cdc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CdcPart {
    /// The queue alone.
    Queue,
    /// Changes, processor time and memory.
    Stream,
    /// The copy.
    Copy,
    /// Memory during one transaction of 5,000,000 rows.
    Large,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Which one.
    #[arg(value_enum)]
    pub(crate) name: BenchName,
    /// An object a line on stdout.
    #[arg(long)]
    pub(crate) json: bool,
    /// A short run that shows that everything works; its numbers mean little.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Of `cdc`: one part of it. `large` is in no run that does not name it: it takes minutes and gigabytes.
    #[arg(long, value_enum)]
    pub(crate) only: Option<CdcPart>,
    /// Where the data goes while it runs; emptied afterwards.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}
