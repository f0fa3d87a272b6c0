//! `landfall demo`: the whole way of a record on this machine, and the proof that each one arrived.
//!
//! Serves on a free loopback port, publishes generated storefront events through the multiplexed client over gRPC,
//! runs the SQL pipeline into a Delta table, drains, then reads the table and the dead letters back and accounts for
//! every number ever published into this directory: exactly once in the table, or a named dead letter (I7, I8, I9).

mod account;
mod history;
mod progress;
mod publish;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use landfall_types::Place;
use serde::Serialize;

use crate::assembly::{self, ConfigText, PlanOptions, Running};
use crate::cli::DemoArgs;
use crate::config::{self, codes};
use crate::exit::Exit;
use crate::signals::Signals;
use crate::{logging, memory, query, stdout};

use account::Account;
use history::History;
use progress::Progress;

const CHANNEL: &str = "storefront.events";
const PIPELINE: &str = "orders";
/// Without any progress for so long the demo gives up and says so.
const STUCK_AFTER: Duration = Duration::from_secs(120);

/// The last line of `demo --json`.
#[derive(Debug, Serialize)]
struct Outcome {
    published: u64,
    committed: u64,
    landed: u64,
    dead_lettered: u64,
    duplicates: u64,
    lost: u64,
    seconds: f64,
    records_per_second: f64,
    table: String,
    balanced: bool,
    table_rows: u64,
    peak_memory_bytes: u64,
}

/// Runs the demo.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<Exit> {
    logging::start(false, "error");
    let dir = prepare(&args.data_dir)?;
    let text = configuration(&dir);
    let file = dir.join("demo.yaml");
    std::fs::write(&file, &text).with_context(|| format!("cannot write {}", file.display()))?;
    let (config, findings) = config::read(&text, &|name| std::env::var(name).ok());
    let shown = |findings: &[config::Finding]| -> String {
        findings.iter().map(|finding| finding.render(&file.display().to_string(), &text)).collect()
    };
    let config = config.with_context(|| shown(&findings))?;
    let runtime = crate::run::runtime(config.process.io_threads)?;
    let table = dir.join("lake/orders");
    let exit = runtime.block_on(async {
        let plan = assembly::plan(&config, &text, PlanOptions { online: false }).await?;
        anyhow::ensure!(plan.findings.is_empty(), shown(&plan.findings));
        let config_text = ConfigText { file: file.display().to_string(), text: text.clone() };
        demonstrate(args, &dir, &table, config, config_text).await
    });
    runtime.shutdown_timeout(Duration::from_millis(500));
    exit
}

fn prepare(dir: &Path) -> anyhow::Result<PathBuf> {
    let cannot = || format!("cannot use `{}` as the demo's directory", dir.display());
    std::fs::create_dir_all(dir.join("lake")).with_context(cannot)?;
    std::fs::canonicalize(dir).with_context(cannot)
}

/// What a user would write; kept beside the data to be read and tried.
fn configuration(dir: &Path) -> String {
    // A path can hold anything but a NUL; YAML's double quotes are JSON's.
    let quoted =
        |path: PathBuf| serde_json::to_string(&path.to_string_lossy().replace("${", "$${")).unwrap_or_default();
    format!(
        r#"# Written by `landfall demo`. Try it yourself:  landfall run demo.yaml
data_dir: {data}
server:
  listen: ${{LANDFALL_DEMO_LISTEN:-127.0.0.1:0}}
channels:
  {CHANNEL}:
    partitions: 2
    validate: off                  # broken records get in and become dead letters
pipelines:
  {PIPELINE}:
    from: {{ channel: {CHANNEL} }}
    decode:
      json:
        schema:
          event_id: string not null
          type: string not null
          order_id: bigint not null
          customer: "struct<id: bigint, country: string>"
          amount: "decimal(12,2)"
          currency: string
          items: "array<struct<sku: string, quantity: int, price: decimal(10,2)>>"
          placed_at: timestamp
    sql: |
      SELECT event_id, type, order_id,
             customer.id AS customer_id, customer.country,
             amount, currency, items, placed_at
      FROM input
    to:
      delta: {{ path: {table}, commit_every: 2s }}
    on_error: dead_letter
"#,
        data = quoted(dir.join("data")),
        table = quoted(dir.join("lake/orders")),
    )
}

async fn demonstrate(
    args: &DemoArgs,
    dir: &Path,
    table: &Path,
    config: config::Config,
    text: ConfigText,
) -> anyhow::Result<Exit> {
    let mut signals = Signals::take()?;
    let mut history = History::open(dir)?;
    let metrics = crate::run::metrics();
    let running = Running::start(config, text, metrics).await?;
    // Only now is the directory ours alone, so that two demos cannot take the same numbers.
    let range = history.begin(args.records)?;
    if !args.json {
        stdout::line(format!("serving gRPC and HTTP on http://{}; data in {}", running.address(), dir.display()))?;
    }
    let before = positions_sum(&running);
    let started = Instant::now();
    let progress = Progress::start(args.records, std::io::stderr().is_terminal() && !args.json);
    let moving = async {
        publish::all(&running, range.clone(), history.seed(), &progress).await?;
        land(&running, &progress).await
    };
    let moved = tokio::select! {
        moved = moving => Some(moved),
        signal = signals.next() => {
            progress.finish();
            eprintln!("landfall: interrupted; draining, a second signal stops at once");
            let report = tokio::select! {
                report = running.shutdown() => report,
                second = signals.next() => std::process::exit(Exit::Signalled(second).code().into()),
            };
            crate::run::print_report(&report);
            return Ok(Exit::Signalled(signal));
        }
    };
    let seconds = started.elapsed().as_secs_f64();
    progress.finish();
    let committed = positions_sum(&running).saturating_sub(before);
    if let Some(Err(error)) = moved {
        let report = running.shutdown().await;
        crate::run::print_report(&report);
        return Err(error);
    }
    history.complete(&range)?;
    let mut account = Account::new(history.published(), range.clone());
    account.read_dead_letters(&running, &format!("_dead_letters.{PIPELINE}")).await?;
    let report = running.shutdown().await;
    let account = {
        let table = table.to_owned();
        let files = landfall_delta::table_files(&table).await?;
        tokio::task::spawn_blocking(move || account.read_table(&files)).await??
    };
    let verdict = account.verdict(&history);
    let settled =
        report.exit() == Exit::Ok && report.pipelines.iter().all(|one| one.balance.values().all(|sink| sink.ok));
    let outcome = Outcome {
        published: args.records,
        committed,
        landed: verdict.landed,
        dead_lettered: verdict.dead_lettered,
        duplicates: verdict.duplicates,
        lost: verdict.lost,
        seconds,
        records_per_second: args.records as f64 / seconds.max(f64::MIN_POSITIVE),
        table: table.display().to_string(),
        balanced: settled && verdict.is_clean() && committed == verdict.landed + verdict.dead_lettered,
        table_rows: verdict.table_rows,
        peak_memory_bytes: memory::resident().1,
    };
    if !args.json {
        show(&outcome, &report, dir).await?;
    }
    if !outcome.balanced {
        eprintln!(
            "error[{}]: not every record landed exactly once or is a named dead letter: {verdict:?}",
            codes::NOT_BALANCED
        );
    }
    if args.json {
        stdout::line(serde_json::to_string(&outcome)?)?;
    }
    Ok(if outcome.balanced { Exit::Ok } else { Exit::Failed })
}

fn positions_sum(running: &Running) -> u64 {
    running.channel(CHANNEL).map_or(0, |channel| channel.positions().values().map(|offset| offset.get()).sum())
}

/// Waits until everything committed is settled in the table, with a commit asked for instead of waited for.
async fn land(running: &Running, progress: &Progress) -> anyhow::Result<()> {
    let channel = running.channel(CHANNEL).context("the demo's channel is open")?;
    let pipeline = running.pipeline(PIPELINE).context("the demo's pipeline is started")?;
    let ends = channel.positions().into_iter().map(|(partition, offset)| (partition, Place::of(offset))).collect();
    let mut last = (0, Instant::now());
    loop {
        pipeline.flush();
        if pipeline.wait_until(&ends, Duration::from_millis(200)).await {
            progress.landed(u64::MAX);
            return Ok(());
        }
        let settled = pipeline.balance("delta").map_or(0, |balance| balance.delivered + balance.dead_lettered);
        progress.landed(settled);
        if settled > last.0 {
            last = (settled, Instant::now());
        }
        if last.1.elapsed() > STUCK_AFTER {
            let why = serde_json::to_string(&pipeline.status())?;
            anyhow::bail!("nothing has landed for {} s; the pipeline says {why}", STUCK_AFTER.as_secs());
        }
    }
}

async fn show(outcome: &Outcome, report: &assembly::ShutdownReport, dir: &Path) -> anyhow::Result<()> {
    stdout::line(format!(
        "\n{} records in {:.1} s ({:.0} a second), peak memory {:.0} MiB",
        outcome.published,
        outcome.seconds,
        outcome.records_per_second,
        outcome.peak_memory_bytes as f64 / 1_048_576.0
    ))?;
    stdout::line(format!("  committed      {:>12}", outcome.committed))?;
    stdout::line(format!("  landed         {:>12}", outcome.landed))?;
    stdout::line(format!(
        "  dead letters   {:>12}   (broken on purpose, 1 in {})",
        outcome.dead_lettered,
        crate::storefront::BROKEN_EVERY
    ))?;
    stdout::line(format!("  lost           {:>12}", outcome.lost))?;
    stdout::line(format!("  duplicates     {:>12}", outcome.duplicates))?;
    for (sink, balance) in report.pipelines.iter().flat_map(|pipeline| &pipeline.balance) {
        stdout::line(format!(
            "  balance at {sink}: in {} = delivered {} + filtered {} + dead-lettered {} + in flight {}",
            balance.rows_in, balance.delivered, balance.filtered, balance.dead_lettered, balance.in_flight
        ))?;
    }
    let sql = "SELECT country, count(*) AS orders, sum(amount) AS amount, max(placed_at) AS latest \
               FROM orders WHERE type = 'order_placed' GROUP BY country ORDER BY orders DESC, country LIMIT 5";
    stdout::line(format!("\n{sql}"))?;
    stdout::line(query::shown(sql, "orders", Path::new(&outcome.table)).await?)?;
    stdout::line(format!(
        "\nthe table        {}  ({} rows, a Delta table for any reader)",
        outcome.table, outcome.table_rows
    ))?;
    stdout::line(format!("the channel      {}", dir.join("data").display()))?;
    stdout::line(format!("the config       {}", dir.join("demo.yaml").display()))?;
    stdout::line(format!("ask it yourself  landfall query \"SELECT ...\" --table orders={}", outcome.table))?;
    Ok(())
}
