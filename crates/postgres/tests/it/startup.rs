//! The start-up list against real servers (P57): what a server really shows in each case.

use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use landfall_postgres::{
    CopiedRanges, CopyEvent, CopyOptions, CopyTable, Decision, ExportedSlot, Facts, Lsn, OptionSet, PLUGIN,
    PublicationFacts, ServerFacts, SlotCreationError, SlotFacts, SlotIdentity, SlotRecord, SourceRecord, SqlConnection,
    StartupOptions, StartupProblem, TablePattern, apply_publication, decide, drop_slot, plan_publication, read_tables,
    start_copy,
};
use landfall_testkit::PostgresInstall;

use crate::database::{DEADLINE, Shop};

const SLOT: &str = "landfall_shop";

fn options() -> StartupOptions {
    StartupOptions {
        pipeline: "shop".into(),
        slot: SLOT.into(),
        creates_slot: true,
        adopts_slot: false,
        copies: true,
        creates_publication: true,
        row_options: OptionSet { publications: vec![SLOT.into()], origin: None, messages: false },
    }
}

async fn decision(sql: &SqlConnection, record: Option<&SourceRecord>) -> Result<Decision> {
    let server = ServerFacts::read(sql).await?;
    let slot = SlotFacts::read(sql, server.major(), SLOT).await?;
    let publication = PublicationFacts::read(sql, server.major(), SLOT).await?;
    let patterns: Vec<TablePattern> = vec!["public.*".parse()?];
    let tables = read_tables(sql, &patterns, &[]).await?;
    let plan = plan_publication(SLOT, publication.as_ref(), &tables.tables);
    let facts = Facts { server: &server, slot: slot.as_ref(), publication: &plan, switch_point: None };
    Ok(decide(&options(), &facts, record))
}

/// Table, publication and slot, as after a first start; the record that it would have stored.
async fn started(shop: &Shop) -> Result<SourceRecord> {
    shop.psql("CREATE TABLE orders (id int PRIMARY KEY, body text); INSERT INTO orders SELECT n, 'x' FROM generate_series(1, 10) n;")?;
    let sql = shop.sql().await?;
    let tables = read_tables(&sql, &["public.*".parse()?], &[]).await?;
    apply_publication(&sql, &plan_publication(SLOT, None, &tables.tables)).await?;
    create_slot(shop)?;
    let server = ServerFacts::read(&sql).await?;
    let slot = SlotFacts::read(&sql, server.major(), SLOT).await?.context("the slot was just made")?;
    let point = slot.confirmed_flush_lsn.context("a logical slot has one")?;
    let mut record = intent(&server);
    record.slot = SlotRecord::Made(SlotIdentity {
        system_identifier: server.system_identifier,
        database_oid: server.database_oid,
        slot: SLOT.into(),
        plugin: PLUGIN.into(),
        consistent_point: point,
    });
    record.through = point;
    Ok(record)
}

fn intent(server: &ServerFacts) -> SourceRecord {
    SourceRecord::intent(
        SLOT.into(),
        server.system_identifier,
        server.database_oid,
        server.timeline,
        options().row_options,
    )
}

fn create_slot(shop: &Shop) -> Result<()> {
    shop.psql(&format!("SELECT pg_create_logical_replication_slot('{SLOT}', '{PLUGIN}');")).map(drop)
}

#[track_caller]
fn refused(decision: &Decision, is_expected: impl Fn(&StartupProblem) -> bool) {
    assert!(matches!(decision, Decision::Refuse(problem) if is_expected(problem)), "{decision:?}");
}

/// Catches a slot that was made anew and is taken for the old one: a silent jump over what was written between (F-P5).
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_and_recreated_slot_is_a_gap() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let shop = Shop::start(&install, &[])?;
        let record = started(&shop).await?;
        let sql = shop.sql().await?;
        let resumes = Decision::Resume { through: record.through, raises_epoch: false, adds: Vec::new() };
        assert_eq!(decision(&sql, Some(&record)).await?, resumes);
        drop_slot(&sql, SLOT).await?;
        let gone = decision(&sql, Some(&record)).await?;
        refused(&gone, |problem| matches!(problem, StartupProblem::SlotGone { .. }));
        shop.psql("INSERT INTO orders VALUES (11, 'between')")?;
        create_slot(&shop)?;
        let anew = decision(&sql, Some(&record)).await?;
        refused(
            &anew,
            |problem| matches!(problem, StartupProblem::SlotAhead { through, .. } if *through == record.through),
        );
    }
    Ok(())
}

/// Catches a slot that something else has read from: the server would start past our checkpoint without a word.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_advanced_behind_our_back_is_a_gap() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    let record = started(&shop).await?;
    shop.psql("INSERT INTO orders VALUES (11, 'lost')")?;
    shop.psql(&format!("SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn());"))?;
    let decision = decision(&shop.sql().await?, Some(&record)).await?;
    refused(
        &decision,
        |problem| matches!(problem, StartupProblem::SlotAhead { confirmed, through, .. } if confirmed > through),
    );
    Ok(())
}

/// Catches a lost slot that is retried for ever or read from as if nothing were missing (F-P3).
#[tokio::test(flavor = "multi_thread")]
async fn an_invalidated_slot_is_not_retried() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let shop = Shop::start(
            &install,
            &[("max_slot_wal_keep_size", "1MB"), ("max_wal_size", "32MB"), ("min_wal_size", "32MB")],
        )?;
        let record = started(&shop).await?;
        for _ in 0..4 {
            shop.psql("INSERT INTO orders SELECT n, repeat('x', 1000) FROM generate_series(100, 10000) n; TRUNCATE orders; SELECT pg_switch_wal();")?;
        }
        shop.psql("CHECKPOINT")?;
        shop.wait_for(&format!("SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{SLOT}'"), "lost")?;
        let decision = decision(&shop.sql().await?, Some(&record)).await?;
        refused(&decision, |problem| {
            let text = problem.to_string();
            matches!(problem, StartupProblem::SlotLost { .. })
                && text.contains("max_slot_wal_keep_size` is 1 MB")
                && text.contains("pg_drop_replication_slot")
        });
    }
    Ok(())
}

/// Catches positions of one cluster used in another that has the same names (F-U3).
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_dump_is_another_system() -> Result<()> {
    let install = PostgresInstall::any()?;
    let (first, second) = (Shop::start(&install, &[])?, Shop::start(&install, &[])?);
    let record = started(&first).await?;
    started(&second).await?;
    let decision = decision(&second.sql().await?, Some(&record)).await?;
    refused(
        &decision,
        |problem| matches!(problem, StartupProblem::OtherSystem { stored, found, .. } if stored.0 != found.0),
    );
    Ok(())
}

/// Catches a server that lost its newest log and would fill our positions with other changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_behind_the_checkpoint_is_refused() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    let mut record = started(&shop).await?;
    record.through = Lsn(record.through.0 + (1 << 40));
    let decision = decision(&shop.sql().await?, Some(&record)).await?;
    refused(&decision, |problem| matches!(problem, StartupProblem::ServerBehind { .. }));
    Ok(())
}

/// Catches a crash between making the slot and storing it that blocks every later start (LF-PG0211), and a foreign
/// slot that is dropped as if it were such an orphan.
#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_of_a_crashed_first_start_is_replaced() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    started(&shop).await?;
    let sql = shop.sql().await?;
    refused(&decision(&sql, None).await?, |problem| matches!(problem, StartupProblem::SlotForeign { .. }));
    let intent = intent(&ServerFacts::read(&sql).await?);
    assert_eq!(decision(&sql, Some(&intent)).await?, Decision::FirstStart { drops_orphan: true });
    drop_slot(&sql, SLOT).await?;
    assert_eq!(decision(&sql, Some(&intent)).await?, Decision::FirstStart { drops_orphan: false });
    Ok(())
}

/// Catches a slot in use that ends the pipeline, or a stall that nobody can see (F-P19).
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_slot_names_who_has_it() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    let record = started(&shop).await?;
    let sql = shop.sql().await?;
    let mut reader = Reader::start(&shop)?;
    shop.wait_for(&format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{SLOT}'"), "t")?;
    let busy = decision(&sql, Some(&record)).await?;
    let pid = shop.psql(&format!("SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{SLOT}'"))?;
    let Decision::Wait(StartupProblem::SlotBusy { pid: named, .. }) = busy else { panic!("{busy:?}") };
    assert_eq!(named.to_string(), pid);
    reader.stop()?;
    shop.wait_for(&format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{SLOT}'"), "f")?;
    // pg_recvlogical confirms nothing that it was not sent: the slot is where it was.
    ensure!(matches!(
        decision(&sql, Some(&record)).await?,
        Decision::Resume { .. } | Decision::Refuse(StartupProblem::SlotAhead { .. })
    ));
    Ok(())
}

/// Catches a start that takes a crash of the server for a gap.
#[tokio::test(flavor = "multi_thread")]
async fn a_primary_restart_resumes() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let mut shop = Shop::start(&install, &[("fsync", "on")])?;
        let record = started(&shop).await?;
        shop.psql("INSERT INTO orders VALUES (11, 'before the crash')")?;
        shop.server.kill()?;
        shop.server.start_again()?;
        let resumes = Decision::Resume { through: record.through, raises_epoch: false, adds: Vec::new() };
        assert_eq!(decision(&shop.sql().await?, Some(&record)).await?, resumes);
    }
    Ok(())
}

/// Catches a publication that lost a table while the source was stopped and keeps all others from starting (I13), or that
/// gets it back behind the operator's back, with what was written meanwhile lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_left_the_publication_refuses_no_start() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    let mut record = started(&shop).await?;
    let sql = shop.sql().await?;
    let tables = read_tables(&sql, &["public.orders".parse()?], &[]).await?;
    let orders = tables.tables.first().context("orders is there")?;
    record.tables.push(landfall_postgres::TableRecord {
        relation: orders.shape.relation,
        name: orders.shape.name.clone(),
        target: "orders".into(),
        stream_partition: 0,
        phase: landfall_postgres::TablePhase::Streaming,
        shape: 1,
        copy: None,
        park: None,
        watched: None,
        notes: Vec::new(),
    });
    ensure!(matches!(decision(&sql, Some(&record)).await?, Decision::Resume { .. }));
    shop.psql(&format!("ALTER PUBLICATION {SLOT} DROP TABLE orders"))?;
    let resumes = Decision::Resume { through: record.through, raises_epoch: false, adds: Vec::new() };
    assert_eq!(decision(&sql, Some(&record)).await?, resumes);
    // A table that is new in the configuration is added instead.
    shop.psql(&format!("ALTER PUBLICATION {SLOT} ADD TABLE orders; CREATE TABLE lines (id int PRIMARY KEY)"))?;
    let Decision::Resume { adds, .. } = decision(&sql, Some(&record)).await? else { panic!("it resumes") };
    assert_eq!(adds.iter().map(ToString::to_string).collect::<Vec<_>>(), ["public.lines"]);
    Ok(())
}

/// Catches rows that are in neither copy nor stream, or in both, while they are written all through a first start
/// (F-P14): publication, then slot, then copy under its snapshot, then stream from its point.
#[tokio::test(flavor = "multi_thread")]
async fn the_publication_is_created_before_the_slot() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let shop = Shop::start(&install, &[])?;
        shop.psql("CREATE TABLE orders (id bigserial PRIMARY KEY, body text)")?;
        let sql = shop.sql().await?;
        let server = ServerFacts::read(&sql).await?;
        assert_eq!(decision(&sql, None).await?, Decision::FirstStart { drops_orphan: false });
        let writer = shop.sql().await?;
        let written = tokio::spawn(async move {
            for _ in 0..400 {
                writer.run("write", "INSERT INTO orders (body) VALUES ('x')").await?;
            }
            anyhow::Ok(())
        });
        let tables = read_tables(&sql, &["public.*".parse()?], &[]).await?.tables;
        let plan = plan_publication(SLOT, None, &tables);
        let (connect, own) = (shop.options.clone(), shop.sql().await?);
        // On a task of its own, as a source does it.
        let made = tokio::spawn(async move { ExportedSlot::first(&connect, &own, SLOT, DEADLINE, &plan, false).await });
        let exported = made.await??;
        let mut record = intent(&server);
        record.made(exported.identity(&server));
        ensure!(record.through == exported.consistent_point());
        let copied = tables.into_iter().map(|facts| CopyTable { facts, done: CopiedRanges::default() }).collect();
        let mut run = start_copy(CopyOptions::default(), shop.options.clone(), exported.snapshot(), copied);
        let mut in_copy = 0;
        while let Some(event) = tokio::time::timeout(DEADLINE, run.next()).await? {
            if let CopyEvent::Rows(chunk) = event? {
                in_copy += chunk.rows;
            }
        }
        written.await??;
        drop(exported.into_connection());
        shop.wait_for(&format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{SLOT}'"), "f")?;
        // 73 is the letter of an insert.
        let in_stream: u64 = shop
            .psql(&format!(
                "SELECT count(*) FILTER (WHERE get_byte(data, 0) = 73) FROM pg_logical_slot_peek_binary_changes('{SLOT}', NULL, NULL, 'proto_version', '1', 'publication_names', '{SLOT}')"
            ))?
            .parse()?;
        assert_eq!(in_copy + in_stream, 400, "{in_copy} copied, {in_stream} streamed");
        ensure!(matches!(decision(&sql, Some(&record)).await?, Decision::Resume { .. }));
    }
    Ok(())
}

/// Catches a first start that hangs for ever, and says nothing, behind somebody's open transaction.
#[tokio::test(flavor = "multi_thread")]
async fn slot_creation_names_the_blocking_pids() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    shop.psql("CREATE TABLE orders (id int PRIMARY KEY)")?;
    let (writer, sql) = (shop.sql().await?, shop.sql().await?);
    writer.run("write", "BEGIN; INSERT INTO orders VALUES (1)").await?;
    let short = Duration::from_millis(500);
    let error = ExportedSlot::temporary(&shop.options, &sql, "landfall_copy", short).await.err();
    let error = error.context("it waits for the writer")?;
    let SlotCreationError::Timeout { blocking, .. } = &error else { panic!("{error}") };
    assert_eq!(blocking.iter().map(|open| open.pid).collect::<Vec<_>>(), [writer.pid()]);
    ensure!(error.to_string().contains(&format!("pid {}", writer.pid())), "{error}");
    // What was begun does not stay behind.
    shop.wait_for("SELECT count(*) FROM pg_replication_slots", "0")?;
    writer.run("write", "COMMIT").await?;
    ExportedSlot::temporary(&shop.options, &sql, "landfall_copy", DEADLINE).await?;
    shop.wait_for("SELECT count(*) FROM pg_replication_slots", "0")
}

/// Something else that reads from the slot.
struct Reader(Child);

impl Reader {
    fn start(shop: &Shop) -> Result<Self> {
        let mut command = shop.server.tool("pg_recvlogical");
        command.args(["--start", "-U", "postgres", "-d", "shop", "-S", SLOT, "-f", "-", "-n", "-h"]);
        command.arg(shop.server.socket_directory()).arg("-p").arg(shop.server.port().to_string());
        command.args(["-o", "proto_version=1", "-o", &format!("publication_names={SLOT}")]);
        Ok(Reader(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }

    fn stop(&mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}
