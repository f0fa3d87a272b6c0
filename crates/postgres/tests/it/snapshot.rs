//! The copy against real servers (P54 to P56).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use landfall_postgres::{
    CopiedRange, CopiedRanges, CopyError, CopyEvent, CopyOptions, CopyRun, CopySnapshot, CopyTable, Lsn,
    PublicationFacts, SqlConnection, TableFacts, add_table_locked, add_table_waiting, read_tables, start_copy,
};
use landfall_testkit::PostgresInstall;

use crate::database::{DEADLINE, Shop};

/// A transaction that holds a snapshot, as the slot's connection does.
struct Holder {
    sql: SqlConnection,
    snapshot: CopySnapshot,
}

impl Holder {
    async fn open(shop: &Shop) -> Result<Self> {
        let sql = shop.sql().await?;
        sql.run("hold a snapshot", "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?;
        let row = sql.row("export a snapshot", "SELECT pg_export_snapshot()", &[]).await?;
        let snapshot = CopySnapshot { name: row.try_get(0)?, consistent_point: Lsn(1), taken_at: Instant::now() };
        Ok(Holder { sql, snapshot })
    }
}

async fn tables_of(shop: &Shop, pattern: &str, publication: Option<&str>) -> Result<Vec<TableFacts>> {
    let sql = shop.sql().await?;
    let published = match publication {
        Some(name) => PublicationFacts::read(&sql, shop.server.major(), name).await?.context("it was made")?.tables,
        None => Vec::new(),
    };
    Ok(read_tables(&sql, &[pattern.parse()?], &published).await?.tables)
}

fn copy(shop: &Shop, holder: &Holder, tables: Vec<TableFacts>, options: CopyOptions) -> CopyRun {
    let tables = tables.into_iter().map(|facts| CopyTable { facts, done: CopiedRanges::default() }).collect();
    start_copy(options, shop.options.clone(), holder.snapshot.clone(), tables)
}

/// Everything that a copy hands over: rows by table, ends checked against the rows before them.
#[derive(Default)]
struct Landed {
    rows: BTreeMap<u32, Vec<String>>,
    of_range: BTreeMap<(u32, u32), u64>,
    ranges: u32,
    tables: Vec<u32>,
    rewritten: Vec<u32>,
}

impl Landed {
    async fn all_of(run: &mut CopyRun) -> Result<Landed> {
        let mut landed = Landed::default();
        landed.rest_of(run).await?;
        Ok(landed)
    }

    async fn rest_of(&mut self, run: &mut CopyRun) -> Result<()> {
        while let Some(event) = tokio::time::timeout(DEADLINE, run.next()).await? {
            self.take(event?)?;
        }
        ensure!(self.of_range.is_empty(), "ranges without an end: {:?}", self.of_range);
        Ok(())
    }

    fn take(&mut self, event: CopyEvent) -> Result<()> {
        match event {
            CopyEvent::Rows(chunk) => {
                let text = std::str::from_utf8(&chunk.bytes)?;
                ensure!(text.ends_with('\n'), "a chunk ends inside a row");
                let rows: Vec<String> = text.lines().map(str::to_owned).collect();
                ensure!(rows.len() as u64 == chunk.rows, "{} rows in a chunk of {}", rows.len(), chunk.rows);
                *self.of_range.entry((chunk.range.leaf.0, chunk.range.number)).or_default() += chunk.rows;
                self.rows.entry(chunk.range.table.0).or_default().extend(rows);
            }
            CopyEvent::RangeDone { range, rows } => {
                let seen = self.of_range.remove(&(range.leaf.0, range.number)).unwrap_or(0);
                ensure!(seen == rows, "a range of {rows} rows handed over {seen}");
                self.ranges += 1;
            }
            CopyEvent::TableDone { table } => self.tables.push(table.0),
            CopyEvent::Refused { table, text, .. } => bail!("table {table} is refused: {text}"),
            CopyEvent::Rewritten { table } => self.rewritten.push(table.0),
        }
        Ok(())
    }

    fn sorted(mut self, table: u32) -> Vec<String> {
        let mut rows = self.rows.remove(&table).unwrap_or_default();
        rows.sort_unstable();
        rows
    }
}

const SMALL: fn() -> CopyOptions =
    || CopyOptions { range_bytes: 8 * 8_192, chunk_bytes: 1_000, connections: 3, ..CopyOptions::default() };

/// Catches rows that are copied twice or not at all while the table is written to, ranges that overlap, and rows that
/// moved to another range after the snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn rows_written_during_the_copy_are_not_in_it() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let shop = Shop::start(&install, &[])?;
        shop.psql("CREATE TABLE t (id int PRIMARY KEY, body text); CREATE TABLE empty (id int PRIMARY KEY);
                   INSERT INTO t SELECT n, repeat(chr(97 + n % 26), 50) || E'\\t\\n\\\\' FROM generate_series(1, 20000) n;
                   DELETE FROM t WHERE id % 7 = 0; VACUUM t;")?;
        let expected = shop.psql("COPY (SELECT * FROM t) TO STDOUT")?;
        let holder = Holder::open(&shop).await?;
        let tables = tables_of(&shop, "public.*", None).await?;
        // The catalog under the snapshot is that of the snapshot.
        shop.psql("ALTER TABLE t ADD COLUMN later int")?;
        let under = shop.sql().await?;
        under.enter_snapshot(&holder.snapshot.name).await?;
        ensure!(read_tables(&under, &["public.*".parse()?], &[]).await?.tables == tables, "a later column is seen");
        // Updated rows move to other blocks, and the heap grows past the last measured block.
        shop.psql("UPDATE t SET body = 'new'; INSERT INTO t SELECT n, 'late' FROM generate_series(100001, 120000) n; DELETE FROM t WHERE id < 5000;")?;
        let oids: Vec<u32> = tables.iter().map(|table| table.shape.relation.0).collect();
        let mut run = copy(&shop, &holder, tables, SMALL());
        let landed = Landed::all_of(&mut run).await?;
        let report = run.report();
        ensure!(
            report.ratio == 1.0 && report.ranges.0 == report.ranges.1 && report.ranges.0 == landed.ranges,
            "{report:?}"
        );
        ensure!(landed.ranges > 10, "{} ranges: too few to prove anything", landed.ranges);
        let mut ended = landed.tables.clone();
        ended.sort_unstable();
        let (empty, t) = (oids[0], oids[1]);
        ensure!(
            ended == {
                let mut all = oids.clone();
                all.sort_unstable();
                all
            },
            "{ended:?}"
        );
        ensure!(!landed.rows.contains_key(&empty));
        let mut expected: Vec<String> = expected.lines().map(str::to_owned).collect();
        expected.sort_unstable();
        assert_eq!(landed.sorted(t), expected);
    }
    Ok(())
}

/// Catches rows issued twice or lost when a COPY's connection ends in the middle of a range.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_copy_resumes_to_the_same_rows() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    shop.psql(
        "CREATE TABLE t (id int PRIMARY KEY, body text);
               INSERT INTO t SELECT n, repeat('x', 200) FROM generate_series(1, 200000) n;",
    )?;
    let holder = Holder::open(&shop).await?;
    let tables = tables_of(&shop, "public.t", None).await?;
    // One large range, read by a slow consumer: its connection is in the middle of it when it is killed.
    let options = CopyOptions { chunk_bytes: 4_096, connections: 1, ..CopyOptions::default() };
    let mut run = copy(&shop, &holder, tables, options);
    let mut rows = Vec::new();
    let (mut kills, mut next) = (0, 5_000);
    while let Some(event) = tokio::time::timeout(DEADLINE, run.next()).await? {
        if let CopyEvent::Rows(chunk) = event? {
            rows.extend(std::str::from_utf8(&chunk.bytes)?.lines().map(str::to_owned));
        }
        // What is still in the sockets arrives behind a kill, so that the next one may find no COPY yet.
        if kills < 2 && rows.len() >= next {
            next = rows.len() + 5_000;
            let killed = shop.psql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'COPY (SELECT%' AND state = 'active' AND pid <> pg_backend_pid()")?;
            kills += killed.parse::<u32>()?;
        }
    }
    ensure!(kills == 2);
    let ids: Vec<String> = rows.iter().filter_map(|row| row.split('\t').next().map(str::to_owned)).collect();
    ensure!(ids.len() == 200_000, "{} rows", ids.len());
    ensure!(ids.iter().enumerate().all(|(at, id)| *id == (at + 1).to_string()), "rows out of order or twice");
    Ok(())
}

/// Catches memory that grows with the table when the consumer is slow: the workers must stand still (I6).
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_consumer_holds_the_workers_back() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    shop.psql(
        "CREATE TABLE t (id int PRIMARY KEY, body text);
               INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 100000) n;",
    )?;
    let holder = Holder::open(&shop).await?;
    let options =
        CopyOptions { chunk_bytes: 64 << 10, connections: 2, range_bytes: 16 << 20, ..CopyOptions::default() };
    let mut run = copy(&shop, &holder, tables_of(&shop, "public.t", None).await?, options);
    let first = tokio::time::timeout(DEADLINE, run.next()).await?.context("there are rows")??;
    let mut landed = Landed::default();
    landed.take(first)?;
    // The server's COPYs wait for the client: that is the thing to wait for, and it stays so.
    shop.wait_for(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY (SELECT%' AND wait_event = 'ClientWrite'",
        "2",
    )?;
    let held = run.report().rows;
    // Two chunks in the channel, one taken, of some 130 rows each.
    ensure!(held < 1_000, "{held} rows were issued to a consumer that took one chunk");
    // It goes on where it stood.
    landed.rest_of(&mut run).await?;
    assert_eq!(landed.rows.values().map(Vec::len).sum::<usize>(), 100_000);
    Ok(())
}

/// Catches a copy that reads the root instead of its leaves, or whose filter and columns are not the publication's.
#[tokio::test(flavor = "multi_thread")]
async fn filters_and_column_lists_apply_to_the_copy() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        if install.major() < 15 {
            continue;
        }
        let shop = Shop::start(&install, &[])?;
        shop.psql("CREATE TABLE \"Events\" (id int, at date, secret text, body text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
                   CREATE TABLE e1 PARTITION OF \"Events\" FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
                   CREATE TABLE e2 (body text, secret text, at date NOT NULL, id int NOT NULL, PRIMARY KEY (id, at));
                   ALTER TABLE \"Events\" ATTACH PARTITION e2 FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
                   INSERT INTO \"Events\" SELECT n, date '2026-01-01' + n % 50, 'secret', 'b' || n FROM generate_series(1, 1000) n;
                   CREATE PUBLICATION p FOR TABLE \"Events\" (id, at, body) WHERE (id <= 600) WITH (publish_via_partition_root = true);")?;
        let holder = Holder::open(&shop).await?;
        let tables = tables_of(&shop, "public.Events", Some("p")).await?;
        ensure!(tables.len() == 1 && tables[0].leaves.len() == 2, "{tables:?}");
        let columns: Vec<&str> = tables[0].shape.columns.iter().map(|column| &*column.name).collect();
        assert_eq!(columns, ["id", "at", "body"]);
        let oid = tables[0].shape.relation.0;
        let landed = Landed::all_of(&mut copy(&shop, &holder, tables, SMALL())).await?;
        let expected = shop.psql("COPY (SELECT id, at, body FROM \"Events\" WHERE id <= 600) TO STDOUT")?;
        let mut expected: Vec<String> = expected.lines().map(str::to_owned).collect();
        expected.sort_unstable();
        assert_eq!(landed.sorted(oid), expected);
    }
    Ok(())
}

/// Catches a table that is copied as empty because it was rewritten after the snapshot, in which the server sees nothing of
/// the new file: all its rows would be missing without an error.
#[tokio::test(flavor = "multi_thread")]
async fn a_rewritten_table_is_never_copied_as_empty() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let shop = Shop::start(&install, &[])?;
        let names = ["kept", "defaulted", "retyped", "emptied", "gone", "renamed"];
        for name in names {
            shop.psql(&format!(
                "CREATE TABLE {name} (id int PRIMARY KEY, n int);
                 INSERT INTO {name} SELECT g, g FROM generate_series(1, 1000) g"
            ))?;
        }
        let holder = Holder::open(&shop).await?;
        let tables = tables_of(&shop, "public.*", None).await?;
        let oid = |name: &str| {
            let table = tables.iter().find(|table| *table.shape.name.table == *name).expect("it is there");
            table.shape.relation.0
        };
        shop.psql(
            "ALTER TABLE kept ADD COLUMN later int DEFAULT 7;
             ALTER TABLE defaulted ADD COLUMN r float DEFAULT random();
             ALTER TABLE retyped ALTER COLUMN n TYPE bigint;
             TRUNCATE emptied; INSERT INTO emptied VALUES (1, 1);
             DROP TABLE gone; CREATE TABLE gone (id int PRIMARY KEY, n int);
             ALTER TABLE renamed RENAME TO elsewhere",
        )?;
        let mut run = copy(&shop, &holder, tables.clone(), CopyOptions { connections: 2, ..SMALL() });
        let mut landed = Landed::default();
        while let Some(event) = tokio::time::timeout(DEADLINE, run.next()).await? {
            landed.take(event?)?;
        }
        assert_eq!(landed.tables, [oid("kept")]);
        assert_eq!(landed.rows.keys().copied().collect::<Vec<_>>(), [oid("kept")]);
        assert_eq!(landed.rows[&oid("kept")].len(), 1000);
        let mut rewritten = landed.rewritten.clone();
        rewritten.sort_unstable();
        rewritten.dedup();
        let mut expected: Vec<u32> = names[1..].iter().map(|name| oid(name)).collect();
        expected.sort_unstable();
        assert_eq!(rewritten, expected);
    }
    Ok(())
}

/// Catches finished ranges that are copied again after an interruption, and tables that never end because nothing of
/// them is left.
#[tokio::test(flavor = "multi_thread")]
async fn finished_ranges_are_not_copied_again() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    shop.psql(
        "CREATE TABLE t (id int PRIMARY KEY, body text); CREATE TABLE u (id int PRIMARY KEY);
               INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 20000) n; INSERT INTO u VALUES (1);",
    )?;
    let holder = Holder::open(&shop).await?;
    let tables = tables_of(&shop, "public.*", None).await?;
    let mut done = BTreeMap::<u32, CopiedRanges>::new();
    let mut run = copy(&shop, &holder, tables.clone(), SMALL());
    let mut rows = 0;
    let mut ranges = 0;
    while let Some(event) = tokio::time::timeout(DEADLINE, run.next()).await? {
        let CopyEvent::RangeDone { range, rows: of_range } = event? else { continue };
        rows += of_range;
        ranges += 1;
        let landfall_postgres::CopyRange { leaf, from_block, to_block, .. } = range;
        done.entry(range.table.0).or_default().insert(CopiedRange { leaf, from_block, to_block, rows: of_range });
        if ranges == 10 {
            break;
        }
    }
    drop(run);
    let rest = tables.into_iter().map(|facts| {
        let done = done.remove(&facts.shape.relation.0).unwrap_or_default();
        CopyTable { facts, done }
    });
    let mut run = start_copy(SMALL(), shop.options.clone(), holder.snapshot.clone(), rest.collect());
    let landed = Landed::all_of(&mut run).await?;
    assert_eq!(landed.tables.len(), 2);
    assert_eq!(rows + landed.rows.values().map(|rows| rows.len() as u64).sum::<u64>(), 20_001);
    // All done: both tables still end.
    let tables = tables_of(&shop, "public.*", None).await?;
    let all = tables.into_iter().map(|facts| {
        let mut done = CopiedRanges::default();
        for leaf in &facts.leaves {
            done.insert(CopiedRange { leaf: leaf.relation, from_block: 0, to_block: None, rows: 1 });
        }
        CopyTable { facts, done }
    });
    let landed =
        Landed::all_of(&mut start_copy(SMALL(), shop.options.clone(), holder.snapshot.clone(), all.collect())).await?;
    assert_eq!((landed.tables.len(), landed.rows.len()), (2, 0));
    Ok(())
}

/// Catches a lost snapshot taken for a passing failure: another snapshot would mix two states of the table.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_snapshot_is_said_as_such() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let shop = Shop::start(&install, &[])?;
        shop.psql("CREATE TABLE t (id int PRIMARY KEY)")?;
        let holder = Holder::open(&shop).await?;
        let tables = tables_of(&shop, "public.t", None).await?;
        let pid = holder.sql.pid();
        shop.psql(&format!("SELECT pg_terminate_backend({pid})"))?;
        shop.wait_for(&format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}"), "0")?;
        let mut run = copy(&shop, &holder, tables, SMALL());
        let error = tokio::time::timeout(DEADLINE, run.next()).await?.context("an event")?.err();
        ensure!(matches!(error, Some(CopyError::Snapshot { .. })), "{error:?}");
        ensure!(run.next().await.is_none(), "nothing follows an error");
    }
    Ok(())
}

/// Catches a row above the limit that is held in memory whole, or skipped.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_above_the_limit_is_refused_by_name() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    shop.psql("CREATE TABLE t (id int PRIMARY KEY, body text); INSERT INTO t VALUES (1, repeat('x', 100000));")?;
    let holder = Holder::open(&shop).await?;
    let tables = tables_of(&shop, "public.t", None).await?;
    let options = CopyOptions { row_bytes_max: 50_000, ..SMALL() };
    let mut run = copy(&shop, &holder, tables, options);
    match tokio::time::timeout(DEADLINE, run.next()).await?.context("an event")? {
        Ok(CopyEvent::Refused { text, .. }) => {
            assert!(text.contains("public.t") && text.contains("50000") && text.contains("LF-PG0604"), "{text}");
        }
        other => bail!("{other:?}"),
    }
    Ok(())
}

/// Catches a table added while an older transaction still writes to it: what it wrote before is in neither copy nor
/// stream (P59).
#[tokio::test(flavor = "multi_thread")]
async fn add_table_waits_for_older_writers() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    shop.psql("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); CREATE PUBLICATION p;")?;
    let (writer, sql) = (shop.sql().await?, shop.sql().await?);
    let name = |table: &str| landfall_postgres::TableName { schema: "public".into(), table: table.into() };
    writer.run("write", "BEGIN; INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)").await?;
    let short = Duration::from_millis(300);
    let refused = add_table_locked(&sql, "p", &name("t"), short).await;
    ensure!(matches!(refused, Err(landfall_postgres::AddTableError::Lock { .. })), "{refused:?}");
    let refused = add_table_waiting(&sql, "p", &name("u"), short).await;
    ensure!(matches!(refused, Err(landfall_postgres::AddTableError::Writers { .. })), "{refused:?}");
    assert_eq!(
        shop.psql("SELECT tablename FROM pg_publication_tables WHERE pubname = 'p'")?,
        "u",
        "a failed lock adds nothing"
    );
    writer.run("write", "COMMIT").await?;
    add_table_locked(&sql, "p", &name("t"), DEADLINE).await?;
    assert_eq!(shop.psql("SELECT count(*) FROM pg_publication_tables WHERE pubname = 'p'")?, "2");
    Ok(())
}
