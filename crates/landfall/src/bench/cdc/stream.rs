//! The stream: the same log read by a pipeline into the null sink, and by `pg_recvlogical` into /dev/null.
//!
//! Before each piece of work our pipeline reads what there is, and its slot is copied for the peer: both slots stand at one
//! place, with one restart point, so both walsenders do the same work. Then both read, one after the other. Both times hold
//! the start of the reader. What arrives is counted against what was written.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use landfall_engine::contract::{PipelineId, Sink, TableDecoder, TableSpec, Wanted};
use landfall_engine::{
    ChainParts, NullSink, OnError, OnErrors, Pipeline, PipelineHandle, PipelineOptions, SinkOptions,
};
use landfall_postgres::{
    CaptureOptions, ConnectOptions, Lsn, PostgresSource, RowOptions, SqlConnection, TableChoice, Target,
};
use landfall_state::StateStore;
use landfall_types::ByteSize;
use tokio::runtime::Handle;

use super::{Amounts, BENCH};
use crate::bench::Line;
use crate::cluster::{Cluster, cpu_seconds};
use crate::memory;

const DATABASE: &str = "bench";
const PEER_SLOT: &str = "bench_peer";
/// Neither side may take longer for a piece of work.
const READ_WITHIN: Duration = Duration::from_secs(600);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A piece of work.
#[derive(Clone, Copy, Debug)]
struct Work {
    name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Small(u64),
    Insert(u64),
    Update(u64),
}

impl Work {
    fn sql(self) -> String {
        match self.kind {
            Kind::Small(transactions) => format!(
                "DO $$ DECLARE id bigint; BEGIN
                   FOR n IN 1..{transactions} LOOP
                     INSERT INTO bench_changes (account, delta, filler) VALUES (n % 1000, n, 'small') RETURNING change_id INTO id;
                     UPDATE bench_changes SET delta = delta + 1 WHERE change_id = id;
                     COMMIT;
                   END LOOP;
                 END $$"
            ),
            Kind::Insert(rows) => format!(
                "INSERT INTO bench_changes (account, delta, filler)
                 SELECT n % 1000, n, 'one of many rows of one transaction' FROM generate_series(1, {rows}) n"
            ),
            Kind::Update(rows) => format!(
                "UPDATE bench_changes SET delta = delta + 1
                 WHERE change_id IN (SELECT change_id FROM bench_changes ORDER BY change_id DESC LIMIT {rows})"
            ),
        }
    }

    fn changes(self) -> u64 {
        match self.kind {
            Kind::Small(transactions) => transactions * 2,
            Kind::Insert(rows) | Kind::Update(rows) => rows,
        }
    }
}

/// What one pair measured.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    ours: f64,
    peer: f64,
    own_cpu: f64,
    sender_cpu: f64,
    peak_bytes: u64,
}

/// A server with our slot on it.
pub(super) struct StreamBench<'a> {
    cluster: &'a Cluster,
    amounts: Amounts,
    options: CaptureOptions,
    state: StateStore,
    sql: SqlConnection,
}

impl<'a> StreamBench<'a> {
    /// Makes the table, and runs the pipeline once so that its slot is there.
    pub(super) async fn open(cluster: &'a Cluster, amounts: Amounts) -> anyhow::Result<Self> {
        let connect = |database: &str| ConnectOptions::parse(&cluster.url(database), None, None);
        let make = "CREATE DATABASE bench";
        SqlConnection::open(&connect("postgres")?).await?.run("make the database", make).await?;
        let sql = SqlConnection::open(&connect(DATABASE)?).await?.with_deadline(READ_WITHIN);
        let table = "CREATE TABLE bench_changes (
            change_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            account int NOT NULL, delta bigint NOT NULL, filler varchar(100) NOT NULL);
            ALTER TABLE bench_changes ALTER COLUMN filler SET STORAGE PLAIN";
        sql.run("make the table", table).await?;
        let rows = RowOptions { target: Target::Delta, ..RowOptions::default() };
        let tables = vec![TableChoice { pattern: "public.bench_changes".parse()?, rows, keeps_dropped: false }];
        let options = CaptureOptions::new("bench", connect(DATABASE)?, tables);
        let bench = StreamBench { cluster, amounts, options, state: StateStore::in_memory()?, sql };
        let pipeline = bench.start(&NullSink::new())?;
        wait(&pipeline, "the first start", |pipeline| pipeline.status().source["stage"] == "streaming").await?;
        bench.stop(&pipeline).await?;
        Ok(bench)
    }

    /// What the capture is made with.
    pub(super) fn options(&self) -> &CaptureOptions {
        &self.options
    }

    /// Every kind of work, as lines.
    pub(super) async fn run(&self) -> anyhow::Result<Vec<Line>> {
        let Amounts { small_transactions, large_rows, updated_rows, .. } = self.amounts;
        let works = [
            Work { name: "small transactions", kind: Kind::Small(small_transactions) },
            Work { name: "one large insert", kind: Kind::Insert(large_rows) },
            Work { name: "one large update", kind: Kind::Update(updated_rows) },
        ];
        let mut lines = Vec::new();
        let mut peaks: Vec<Vec<u64>> = Vec::new();
        for work in works {
            let mut pairs = Vec::new();
            for number in 0..=self.amounts.pairs {
                let pair = self.pair(work).await.with_context(|| work.name.to_owned())?;
                // The first warms up, unless it is the only one that there is time for.
                if number > 0 {
                    pairs.push(pair);
                }
            }
            let of = |pick: fn(&Pair) -> (f64, f64)| pairs.iter().map(pick).collect::<Vec<_>>();
            let case = format!("stream, {} ({} changes)", work.name, work.changes());
            let rates = of(|pair| (pair.ours, pair.peer));
            lines.push(Line::of(BENCH, case, "changes/s", "pg_recvlogical", &rates, true));
            // The kernel counts in hundredths of a second: the quick form is over before there is anything to count.
            if self.amounts.pairs > 1 {
                let case = format!("processor time, {}", work.name);
                let cpu = of(|pair| (pair.own_cpu, pair.sender_cpu));
                lines.push(Line::of(BENCH, case, "s/million", "walsender", &cpu, true));
            }
            peaks.push(pairs.iter().map(|pair| pair.peak_bytes).collect());
        }
        if let [small, large, ..] = peaks.as_slice() {
            let mib = |bytes: &u64| *bytes as f64 / 1_048_576.0;
            let pairs: Vec<_> = large.iter().zip(small).map(|(large, small)| (mib(large), mib(small))).collect();
            let case = format!("peak memory, {large_rows} rows in one transaction");
            lines.push(Line::of(BENCH, case, "MiB", "small transactions", &pairs, true));
        }
        Ok(lines)
    }

    /// Peak memory during a large transaction against that during a small one.
    pub(super) async fn large(&self) -> anyhow::Result<Line> {
        let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
        let (large, small) = self.amounts.memory_rows;
        let mut peaks = Vec::new();
        for rows in [small, small, large] {
            let work = Work { name: "one transaction", kind: Kind::Insert(rows) };
            self.catch_up().await.context("before the work")?;
            self.sql.run("do the work", &work.sql()).await?;
            peaks.push(mib(self.ours(work).await?.peak_bytes));
        }
        let pairs: Vec<_> = peaks.last().copied().zip(peaks.get(1).copied()).into_iter().collect();
        let case = format!("peak memory, {large} rows in one transaction");
        Ok(Line::of(BENCH, case, "MiB", "a small transaction", &pairs, true))
    }

    /// Our slot has nothing behind it that the next walsender would decode again: the checkpoint logs what a slot restarts
    /// from, and our pipeline confirms more than that.
    async fn catch_up(&self) -> anyhow::Result<()> {
        self.sql.run("log a restart point", "CHECKPOINT").await?;
        let end = self.text("SELECT pg_current_wal_lsn()::text").await?;
        let pipeline = self.start(&NullSink::new())?;
        let until = Instant::now() + READ_WITHIN;
        let slot = &self.options.slot;
        let ask = format!(
            "SELECT (confirmed_flush_lsn >= '{end}')::text FROM pg_replication_slots WHERE slot_name = '{slot}'"
        );
        let mut looks = tokio::time::interval(LOOK_EVERY);
        while self.text(&ask).await? != "true" {
            looks.tick().await;
            ensure!(Instant::now() < until, "the pipeline did not confirm {end}: {:?}", pipeline.status().source);
        }
        self.stop(&pipeline).await
    }

    /// Work, ours, the peer.
    async fn pair(&self, work: Work) -> anyhow::Result<Pair> {
        self.catch_up().await.context("before the work")?;
        let copy = format!("SELECT pg_copy_logical_replication_slot('{}', '{PEER_SLOT}')", self.options.slot);
        self.sql.run("copy our slot for the peer", &copy).await?;
        let before = self.rows().await?;
        self.sql.run("do the work", &work.sql()).await?;
        let end: Lsn = self.text("SELECT pg_current_wal_lsn()::text").await?.parse()?;
        if !matches!(work.kind, Kind::Update(_)) {
            let written = self.rows().await? - before;
            let inserted = match work.kind {
                Kind::Small(transactions) => transactions,
                Kind::Insert(rows) | Kind::Update(rows) => rows,
            };
            ensure!(written == inserted, "{written} rows were written, {inserted} were meant");
        }
        let mut pair = self.ours(work).await.context("our own pipeline")?;
        pair.peer = work.changes() as f64 / self.peer(end).await.context("pg_recvlogical")?.as_secs_f64();
        let drop = format!("SELECT pg_drop_replication_slot('{PEER_SLOT}')");
        self.sql.run("drop the peer's slot", &drop).await?;
        Ok(pair)
    }

    async fn ours(&self, work: Work) -> anyhow::Result<Pair> {
        // From here on the peak is of this run.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
        let sink = NullSink::new();
        let own = std::process::id();
        let cpu = cpu_seconds(own).context("our own processor time")?;
        let began = Instant::now();
        let pipeline = self.start(&sink)?;
        wait(&pipeline, work.name, |_| sink.rows() >= work.changes()).await?;
        let seconds = began.elapsed().as_secs_f64();
        let own_cpu = cpu_seconds(own).context("our own processor time")? - cpu;
        let sender =
            format!("SELECT active_pid::text FROM pg_replication_slots WHERE slot_name = '{}'", self.options.slot);
        let sender: u32 = self.text(&sender).await?.parse()?;
        let sender_cpu = cpu_seconds(sender).context("the walsender's processor time")?;
        self.stop(&pipeline).await?;
        ensure!(sink.rows() == work.changes(), "{} rows arrived of {} changes", sink.rows(), work.changes());
        let million = work.changes() as f64 / 1e6;
        Ok(Pair {
            ours: work.changes() as f64 / seconds,
            peer: 0.0,
            own_cpu: own_cpu / million,
            sender_cpu: sender_cpu / million,
            peak_bytes: memory::resident().1,
        })
    }

    async fn peer(&self, end: Lsn) -> anyhow::Result<Duration> {
        let mut command = self.cluster.tool("pg_recvlogical", DATABASE);
        let publication = format!("publication_names={}", self.options.publication);
        command.args([
            "--dbname",
            DATABASE,
            "--slot",
            PEER_SLOT,
            "--start",
            "--no-loop",
            "--endpos",
            &end.to_string(),
            "-f",
            "/dev/null",
        ]);
        command.args(["-o", "proto_version=1", "-o", &publication]).stdin(Stdio::null());
        let began = Instant::now();
        let output =
            tokio::time::timeout(READ_WITHIN, tokio::process::Command::from(command).kill_on_drop(true).output());
        let output = output.await.context("it did not end")?.context("it could not be started")?;
        ensure!(output.status.success(), "it failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(began.elapsed())
    }

    fn start(&self, sink: &NullSink) -> anyhow::Result<PipelineHandle> {
        let source = PostgresSource::new(self.options.clone(), Handle::current());
        let chain = Arc::new(|spec: &TableSpec| {
            let decoder = Box::new(TableDecoder::new(spec.schema.clone()));
            Ok(ChainParts { decoder, transforms: Vec::new(), wanted: Wanted::default() })
        });
        let sink = sink.clone();
        let destination = Arc::new(move |_: &TableSpec| Ok(Arc::new(sink.clone()) as Arc<dyn Sink>));
        // A row that cannot be carried would be a wrong measure.
        let on_error = OnErrors { decode: OnError::Fail, sql: OnError::Fail, sink: OnError::Fail };
        // The end of a run waits for no batch to fill: the peer, too, writes what it has.
        let at_once = SinkOptions { batch_age: Duration::from_millis(10), ..SinkOptions::default() };
        let pipeline = Pipeline::of_tables(PipelineId("bench".to_owned()), source, chain)
            .options(PipelineOptions { on_error, ..PipelineOptions::default() })
            .max_inflight_bytes(ByteSize::mib(256))
            .table_sink("null", destination, at_once);
        Ok(pipeline.start(self.state.handle(), &Handle::current())?)
    }

    /// Stops it, with all that it has taken confirmed.
    async fn stop(&self, pipeline: &PipelineHandle) -> anyhow::Result<()> {
        let report = pipeline.shutdown(Duration::from_secs(60)).await;
        ensure!(report.unfinished.is_empty(), "the pipeline left ranges unfinished: {:?}", report.unfinished);
        Ok(())
    }

    async fn text(&self, sql: &str) -> anyhow::Result<String> {
        Ok(self.sql.row("ask the server", sql, &[]).await?.try_get(0)?)
    }

    async fn rows(&self) -> anyhow::Result<u64> {
        Ok(self.text("SELECT count(*)::text FROM bench_changes").await?.parse()?)
    }
}

/// Waits until something holds of a pipeline.
async fn wait(pipeline: &PipelineHandle, what: &str, holds: impl Fn(&PipelineHandle) -> bool) -> anyhow::Result<()> {
    let until = Instant::now() + READ_WITHIN;
    let mut looks = tokio::time::interval(LOOK_EVERY);
    while !holds(pipeline) {
        looks.tick().await;
        let ended = pipeline.exit_report().is_some();
        if ended || Instant::now() > until {
            anyhow::bail!("{what}: the pipeline says {}", serde_json::to_string(&pipeline.status())?);
        }
    }
    Ok(())
}
