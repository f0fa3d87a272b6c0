//! `landfall demo-postgres`: a database followed into Delta tables on this machine, and the proof that they are equal.
//!
//! Starts a Postgres of its own, fills a shop, and runs the very configuration that a user would write while transactions
//! go on: first the copy, then the stream. An insert, an update, a delete and a new column are made one by one, and each is
//! waited for in the tables. Then the work stops, and `landfall verify` compares every table at one position. Exit code 0
//! only if all are equal. Each run is a new database, so it starts anew in its directory.

mod progress;
mod shop;
mod workload;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use arrow_array::{Int64Array, RecordBatch};
use futures::TryStreamExt;
use landfall_postgres::{ConnectOptions, SqlConnection};
use serde::Serialize;
use serde_json::Value;

use crate::assembly::{self, ConfigText, PlanOptions, Running};
use crate::cli::{DemoPostgresArgs, VerifyArgs};
use crate::cluster::Cluster;
use crate::config;
use crate::endpoint::Endpoint;
use crate::exit::Exit;
use crate::query::{CurrentState, QueriedTable};
use crate::signals::Signals;
use crate::{logging, memory, query, stdout, verify};

use progress::Progress;
use shop::{TABLES, Table};
use workload::Workload;

const PIPELINE: &str = "shop";
const DATABASE: &str = "shop";
/// What says that a directory is a demo's, whose data may be replaced.
const CONFIGURATION: &str = "demo-postgres.yaml";
/// Without any progress for so long the demo gives up and says so.
const STUCK_AFTER: Duration = Duration::from_secs(120);
/// Between two looks at the status.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The last line of `demo-postgres --json`.
#[derive(Debug, Serialize)]
struct Outcome {
    tables: usize,
    rows_copied: u64,
    changes: u64,
    transactions: u64,
    verified: bool,
    seconds: f64,
    copy_seconds: f64,
    postgres: u32,
    lake: String,
    peak_memory_bytes: u64,
}

/// Runs the demo.
pub(crate) fn run(args: &DemoPostgresArgs) -> anyhow::Result<Exit> {
    logging::start(false, "error");
    let dir = prepare(&args.data_dir)?;
    let cluster = Cluster::start()?;
    let text = configuration(&dir, &cluster.url(DATABASE));
    let file = dir.join(CONFIGURATION);
    std::fs::write(&file, &text).with_context(|| format!("cannot write {}", file.display()))?;
    let (config, findings) = config::read(&text, &|name| std::env::var(name).ok());
    let shown = |findings: &[config::Finding]| -> String {
        findings.iter().map(|finding| finding.render(&file.display().to_string(), &text)).collect()
    };
    let config = config.with_context(|| shown(&findings))?;
    let runtime = crate::run::runtime(config.process.io_threads)?;
    let exit = runtime.block_on(async {
        let mut signals = Signals::take()?;
        let text = ConfigText { file: file.display().to_string(), text: text.clone() };
        let demo = Demo { args, dir: &dir, cluster: &cluster, config: &config };
        tokio::select! {
            exit = demo.show(text) => exit,
            signal = signals.next() => {
                eprintln!("landfall: interrupted; the demo's database goes with it");
                Ok(Exit::Signalled(signal))
            }
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(2));
    exit
}

/// The directory, empty but for what is not ours to remove.
fn prepare(dir: &Path) -> anyhow::Result<PathBuf> {
    let cannot = || format!("cannot use `{}` as the demo's directory", dir.display());
    std::fs::create_dir_all(dir).with_context(cannot)?;
    let dir = std::fs::canonicalize(dir).with_context(cannot)?;
    let is_demos = dir.join(CONFIGURATION).exists();
    for name in ["data", "lake"] {
        let path = dir.join(name);
        if !path.exists() {
            continue;
        }
        anyhow::ensure!(
            is_demos,
            "`{}` is there and no earlier demo made it: give the demo another directory with --data-dir",
            path.display()
        );
        std::fs::remove_dir_all(&path).with_context(cannot)?;
    }
    Ok(dir)
}

/// What a user would write; kept beside the data to be read and tried.
fn configuration(dir: &Path, url: &str) -> String {
    // A path can hold anything but a NUL; YAML's double quotes are JSON's.
    let quoted = |text: String| serde_json::to_string(&text.replace("${", "$${")).unwrap_or_default();
    let path = |name: &str| quoted(dir.join(name).to_string_lossy().into_owned());
    format!(
        r#"# Written by `landfall demo-postgres`.
data_dir: {data}
server:
  listen: 127.0.0.1:0
pipelines:
  {PIPELINE}:
    from:
      postgres:
        url: {url}
        feedback_interval: 1s        # the demo ends with the work; a long-lived source does well with the default
        tables:
          "public.*": {{}}
    to:
      delta: {{ path: {lake}, commit_every: 500ms }}
    batch: {{ age: 200ms }}
    on_error: dead_letter
"#,
        data = path("data"),
        url = quoted(url.to_owned()),
        lake = path("lake/{table}"),
    )
}

/// One run.
struct Demo<'a> {
    args: &'a DemoPostgresArgs,
    dir: &'a Path,
    cluster: &'a Cluster,
    config: &'a config::Config,
}

impl Demo<'_> {
    async fn show(&self, text: ConfigText) -> anyhow::Result<Exit> {
        let began = Instant::now();
        let connect = |database: &str| ConnectOptions::parse(&self.cluster.url(database), None, None);
        SqlConnection::open(&connect("postgres")?).await?.run("make the database", "CREATE DATABASE shop").await?;
        let connect = connect(DATABASE)?;
        let sql = SqlConnection::open(&connect).await?.with_deadline(Duration::from_secs(600));
        shop::open(&sql, self.args.customers).await?;
        self.say(&format!(
            "a Postgres {} of its own with {} customers and their orders; work goes on in it",
            self.cluster.major(),
            self.args.customers
        ))?;
        // Before the capture: what is written while a table is copied is the hard part.
        let workload = Workload::start(&connect, 2, self.args.customers);
        let plan = assembly::plan(self.config, &text.text, PlanOptions { online: true }).await?;
        let refused: String = plan.findings.iter().map(|finding| finding.render(&text.file, &text.text)).collect();
        anyhow::ensure!(plan.findings.is_empty(), refused);
        let metrics = crate::run::metrics();
        let running = Running::start(self.config.clone(), text, metrics).await?;
        let endpoint =
            Endpoint::new(&crate::cli::ServerArgs { server: format!("http://{}", running.address()), token: None })?;
        let shown = self.shown(&endpoint, &sql, workload).await;
        let (copy_seconds, transactions) = match shown {
            Ok(shown) => shown,
            Err(error) => {
                crate::run::print_report(&running.shutdown().await);
                return Err(error);
            }
        };
        self.say("\nthe work has stopped; both sides at one position:\n")?;
        let verify = VerifyArgs {
            config: self.dir.join(CONFIGURATION),
            pipeline: PIPELINE.to_owned(),
            tables: Vec::new(),
            counts: false,
            show_values: true,
            within: STUCK_AFTER.as_secs(),
            server: Some(format!("http://{}", running.address())),
            token: None,
            json: false,
        };
        let verdict = verify::verify(self.config, &verify).await;
        let report = running.shutdown().await;
        let verdict = verdict?;
        if !self.args.json {
            verdict.print(false)?;
        }
        let is_settled = report.exit() == Exit::Ok
            && report.pipelines.iter().all(|pipeline| pipeline.balance.values().all(|balance| balance.ok));
        if !is_settled {
            crate::run::print_report(&report);
        }
        let (rows_copied, changes) = self.landed().await?;
        let outcome = Outcome {
            tables: verdict.tables.len(),
            rows_copied,
            changes,
            transactions,
            verified: is_settled && verdict.exit() == Exit::Ok && verdict.tables.len() == TABLES.len(),
            seconds: began.elapsed().as_secs_f64(),
            copy_seconds,
            postgres: self.cluster.major(),
            lake: self.dir.join("lake").display().to_string(),
            peak_memory_bytes: memory::resident().1,
        };
        self.close(&outcome).await?;
        Ok(if outcome.verified { Exit::Ok } else { Exit::Failed })
    }

    fn say(&self, text: &str) -> anyhow::Result<()> {
        if !self.args.json {
            stdout::line(text)?;
        }
        Ok(())
    }

    /// The copy, the stream, the four changes. How long the copy took, and how many transactions there were.
    async fn shown(&self, endpoint: &Endpoint, sql: &SqlConnection, workload: Workload) -> anyhow::Result<(f64, u64)> {
        let progress = Progress::start(std::io::stderr().is_terminal() && !self.args.json);
        let began = Instant::now();
        self.follow(endpoint, &progress, &workload, |report| {
            let tables = report["tables"].as_array();
            let follow = tables.into_iter().flatten().filter(|table| table["phase"] == "streaming").count();
            follow >= TABLES.len()
        })
        .await
        .context("waiting for the copy")?;
        let copy_seconds = began.elapsed().as_secs_f64();
        self.say(&format!("every table is copied and followed after {copy_seconds:.1} s; now one change at a time:"))?;
        self.changes(sql, &progress).await?;
        let until = Instant::now() + Duration::from_secs(self.args.seconds);
        self.follow(endpoint, &progress, &workload, |_| Instant::now() >= until).await?;
        let transactions = workload.stop().await?;
        Ok((copy_seconds, transactions))
    }

    /// Shows the source's report until something holds of it.
    async fn follow(
        &self,
        endpoint: &Endpoint,
        progress: &Progress,
        workload: &Workload,
        is_enough: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<()> {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        let mut last = (Value::Null, Instant::now());
        loop {
            ticks.tick().await;
            let status = endpoint.status().await?;
            let pipeline = &status["pipelines"][0];
            let report = &pipeline["source"];
            progress.show(report, workload.transactions());
            if is_enough(report) {
                return Ok(());
            }
            if *report != last.0 {
                last = (report.clone(), Instant::now());
            }
            anyhow::ensure!(
                last.1.elapsed() < STUCK_AFTER && pipeline["state"] != "failed",
                "nothing moves; the pipeline says {pipeline}"
            );
        }
    }

    /// An insert, an update, a delete and a new column, each waited for in the tables.
    async fn changes(&self, sql: &SqlConnection, progress: &Progress) -> anyhow::Result<()> {
        const ORDER: i64 = 1_000_000_000;
        let insert = format!(
            "INSERT INTO orders (order_id, customer_id, labels) VALUES ({ORDER}, 1, '{{demo}}');
             INSERT INTO items VALUES ({ORDER}, 1, 2, 4200)"
        );
        let steps = [
            (
                "an order with one item is inserted",
                insert,
                format!("SELECT count(*) FROM items WHERE order_id = {ORDER} AND cents = 4200"),
            ),
            (
                "its status is updated",
                format!("UPDATE orders SET status = 'shipped' WHERE order_id = {ORDER}"),
                format!("SELECT count(*) FROM orders WHERE order_id = {ORDER} AND status = 'shipped'"),
            ),
            (
                "its item is deleted",
                format!("DELETE FROM items WHERE order_id = {ORDER}"),
                format!("SELECT CAST(count(*) = 0 AS bigint) FROM items WHERE order_id = {ORDER}"),
            ),
            (
                "the table gets a column, and the order a value in it",
                format!(
                    "ALTER TABLE orders ADD COLUMN shipped_by text; UPDATE orders SET shipped_by = 'bicycle' WHERE order_id = {ORDER}"
                ),
                format!("SELECT count(*) FROM orders WHERE order_id = {ORDER} AND shipped_by = 'bicycle'"),
            ),
        ];
        for (what, statements, question) in steps {
            sql.run("change the shop", &statements).await?;
            let committed = Instant::now();
            let until = committed + STUCK_AFTER;
            // The tables are files: whether they say it is asked for, at intervals and with an end.
            let mut ticks = tokio::time::interval(Duration::from_millis(100));
            loop {
                ticks.tick().await;
                // A column that is not there yet is an answer too.
                if self.number(&question).await.is_ok_and(|count| count == 1) {
                    break;
                }
                anyhow::ensure!(Instant::now() < until, "{what}, and it has not arrived within {STUCK_AFTER:?}");
            }
            let text = format!("  {what:<55} in the lake after {:>5} ms", committed.elapsed().as_millis());
            if self.args.json { progress.print(&text) } else { self.say(&text)? }
        }
        Ok(())
    }

    fn tables(&self) -> Vec<QueriedTable> {
        let view = |table: &Table| {
            let key = table.key.iter().map(|column| (*column).to_owned()).collect();
            QueriedTable {
                name: table.name.rsplit('.').next().unwrap_or(table.name).to_owned(),
                path: self.dir.join("lake").join(table.name),
                current: Some(CurrentState { key, below: None }),
            }
        };
        TABLES.iter().map(view).collect()
    }

    /// The one number that a query over the current states gives.
    async fn number(&self, sql: &str) -> anyhow::Result<i64> {
        let batches: Vec<RecordBatch> = query::open(sql, &self.tables()).await?.try_collect().await?;
        let number = batches
            .iter()
            .find(|batch| batch.num_rows() == 1)
            .and_then(|batch| Some(batch.column(0).as_any().downcast_ref::<Int64Array>()?.value(0)));
        number.with_context(|| format!("{sql} gave no number"))
    }

    /// Rows that were copied, and changes after them, as the tables hold them.
    async fn landed(&self) -> anyhow::Result<(u64, u64)> {
        let (mut copied, mut changes) = (0, 0);
        for table in self.tables() {
            let count = |condition: &str| format!("SELECT count(*) FROM {}_changes WHERE _op {condition}", table.name);
            copied += u64::try_from(self.number(&count("= 's'")).await?)?;
            changes += u64::try_from(self.number(&count("<> 's'")).await?)?;
        }
        Ok((copied, changes))
    }

    async fn close(&self, outcome: &Outcome) -> anyhow::Result<()> {
        if self.args.json {
            return Ok(stdout::line(serde_json::to_string(outcome)?)?);
        }
        self.say(&format!(
            "\n{} rows copied, {} changes of {} transactions followed, in {:.1} s; peak memory {:.0} MiB",
            outcome.rows_copied,
            outcome.changes,
            outcome.transactions,
            outcome.seconds,
            outcome.peak_memory_bytes as f64 / 1_048_576.0
        ))?;
        let sql = "SELECT o.status, count(DISTINCT o.order_id) AS orders, sum(i.quantity * i.cents) / 100 AS amount \
                   FROM orders o JOIN items i ON i.order_id = o.order_id GROUP BY o.status ORDER BY orders DESC";
        self.say(&format!("\n{sql}\n{}", query::shown_over(sql, &self.tables()).await?))?;
        self.say(&format!("\nthe tables       {}", outcome.lake))?;
        self.say(&format!("the config       {}", self.dir.join(CONFIGURATION).display()))?;
        self.say(&format!(
            "ask it yourself  landfall query \"SELECT ...\" --table orders={}/public.orders --current orders=order_id",
            outcome.lake
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a demo that removes what it has not made, and a second one that finds the first one's data.
    #[test]
    fn only_a_demo_s_own_data_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("lake")).expect("made");
        assert!(prepare(dir.path()).expect_err("refused").to_string().contains("--data-dir"));
        assert!(dir.path().join("lake").exists());
        std::fs::write(dir.path().join(CONFIGURATION), "").expect("written");
        prepare(dir.path()).expect("an earlier demo's");
        assert!(!dir.path().join("lake").exists());
    }

    /// Catches a configuration that `run` would not take.
    #[test]
    fn the_configuration_is_one_that_a_user_could_write() {
        let text =
            configuration(Path::new("/tmp/with \"quotes\" and ${braces}"), "postgres://postgres@127.0.0.1:1/shop");
        let (config, findings) = config::read(&text, &|_| None);
        assert!(findings.is_empty(), "{text}");
        assert_eq!(config.expect("a configuration").pipelines.len(), 1);
    }
}
