//! The copy: rows of a snapshot to Arrow by four connections, against `psql` that writes the same ranges as text to
//! /dev/null, four at once.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures::TryStreamExt;
use landfall_postgres::{
    CaptureOptions, ConnectOptions, RowOptions, RowPlan, SqlConnection, TableChoice, TableFacts, Target,
};

use super::{Amounts, BENCH};
use crate::bench::Line;
use crate::cluster::Cluster;
use crate::verify::{Side, SourceSnapshot};

const CONNECTIONS: u64 = 4;
const WITHIN: Duration = Duration::from_secs(600);

/// A table that is copied.
struct Width {
    table: &'static str,
    case: &'static str,
    filler: usize,
    rows: u64,
}

/// Both widths, as lines. The publication of `options` is there already.
pub(super) async fn run(cluster: &Cluster, options: &CaptureOptions, amounts: &Amounts) -> anyhow::Result<Vec<Line>> {
    let widths = [
        Width { table: "copied_narrow", case: "copy, rows of 60 B", filler: 32, rows: amounts.copied_rows },
        Width { table: "copied_wide", case: "copy, rows of 600 B", filler: 570, rows: amounts.copied_rows / 5 },
    ];
    let connect: &ConnectOptions = &options.connect;
    let sql = SqlConnection::open(connect).await?.with_deadline(WITHIN);
    let mut lines = Vec::new();
    for width in widths {
        let fill = format!(
            "CREATE TABLE {table} (id bigint PRIMARY KEY, at timestamptz NOT NULL, filler text NOT NULL);
             INSERT INTO {table} SELECT n, timestamptz '2026-01-01' + n * interval '1 s',
               left(repeat(md5(n::text), {repeat}), {filler}) FROM generate_series(1, {rows}) n",
            table = width.table,
            repeat = width.filler.div_ceil(32),
            filler = width.filler,
            rows = width.rows
        );
        sql.run("fill a table", &fill).await?;
        // What the first reader would write back to pages must not be its own cost.
        sql.run("settle the pages", &format!("VACUUM (FREEZE, ANALYZE) {}", width.table)).await?;
        let rows = RowOptions { target: Target::Delta, ..RowOptions::default() };
        let pattern = format!("public.{}", width.table).parse()?;
        let mut options = options.clone();
        options.tables = vec![TableChoice { pattern, rows, keeps_dropped: false }];
        options.copy.connections = CONNECTIONS as usize;
        options.copy.range_bytes = 8 << 20;
        let mut pairs = Vec::new();
        for number in 0..=amounts.pairs {
            let ours = ours(&options, width.rows).await.context("our copy")?;
            let peer = peer(cluster, &sql, width.table).await.context("psql")?;
            if number > 0 {
                pairs.push((width.rows as f64 / ours.as_secs_f64(), width.rows as f64 / peer.as_secs_f64()));
            }
        }
        lines.push(Line::of(BENCH, width.case.to_owned(), "rows/s", "psql COPY TO, 4 at once", &pairs, true));
    }
    Ok(lines)
}

/// Reads the table to Arrow; the snapshot is there before the clock starts.
async fn ours(options: &CaptureOptions, rows: u64) -> anyhow::Result<Duration> {
    let snapshot = SourceSnapshot::take(options).await?;
    let facts: &TableFacts = snapshot.tables().first().context("the table is there")?;
    let choice = options.tables.first().context("one table")?;
    let plan = Arc::new(RowPlan::new(Arc::new(facts.shape.clone()), choice.rows.clone())?);
    let table = snapshot.table(facts, plan);
    let began = Instant::now();
    let mut batches = table.read().await?;
    let mut read = 0;
    while let Some(batch) = batches.try_next().await? {
        read += batch.num_rows() as u64;
    }
    let took = began.elapsed();
    ensure!(read == rows, "{read} of {rows} rows were read");
    Ok(took)
}

/// A quarter of the heap for each of four clients.
async fn peer(cluster: &Cluster, sql: &SqlConnection, table: &str) -> anyhow::Result<Duration> {
    let blocks = format!("SELECT (pg_relation_size('{table}') / current_setting('block_size')::int)::int8");
    let blocks: i64 = sql.row("measure the heap", &blocks, &[]).await?.try_get(0)?;
    let step = u64::try_from(blocks)? / CONNECTIONS + 1;
    let began = Instant::now();
    let clients = (0..CONNECTIONS).map(|number| {
        let (from, to) = (number * step, (number + 1) * step);
        let copy = format!(
            "COPY (SELECT * FROM ONLY {table} WHERE ctid >= '({from},0)'::tid AND ctid < '({to},0)'::tid) TO STDOUT"
        );
        let mut command = cluster.tool("psql", "bench");
        command.args(["-X", "-q", "-c", &copy]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        async move {
            let output = tokio::process::Command::from(command).kill_on_drop(true).output();
            let output = tokio::time::timeout(WITHIN, output).await.context("it did not end")??;
            ensure!(output.status.success(), "it failed: {}", String::from_utf8_lossy(&output.stderr).trim());
            Ok(())
        }
    });
    futures::future::try_join_all(clients).await?;
    Ok(began.elapsed())
}
