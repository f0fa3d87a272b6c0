//! Orders to a capture while it runs, and tables that come while it does (P1, P59, P60, P86–P88).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use landfall_engine::PipelineHandle;
use landfall_postgres::{Order, OrderCommand, Ordered, OrderedTables, Orders, RECONNECT_FIRST};
use landfall_types::Coded;

use crate::capture::{Bed, COLUMNS, ORDERS, end};
use crate::database::DEADLINE;

const ITEMS: &[&str] = &["id", "n"];

fn two_tables() -> String {
    format!(
        "{ORDERS} CREATE TABLE items (id int PRIMARY KEY, n bigint);
         INSERT INTO items SELECT n, n FROM generate_series(1, 3000) n;"
    )
}

pub(crate) async fn give(orders: &Orders, command: OrderCommand, table: &str) -> Result<Ordered> {
    Ok(orders.give(Order::named(command, table)?, false, DEADLINE).await?)
}

pub(crate) fn phase(handle: &PipelineHandle, table: &str) -> Option<String> {
    let source = handle.status().source;
    let found = source["tables"].as_array()?.iter().find(|one| one["name"] == table)?;
    found["phase"].as_str().map(str::to_owned)
}

pub(crate) async fn until(handle: &PipelineHandle, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + DEADLINE;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "{what}: {:#?}", handle.status());
        let _ = tokio::time::timeout(Duration::from_millis(20), handle.changes().changed()).await;
    }
    Ok(())
}

pub(crate) async fn until_streaming(handle: &PipelineHandle, table: &str) -> Result<()> {
    until(handle, table, || Ok(phase(handle, table).as_deref() == Some("streaming"))).await
}

pub(crate) fn copies_of(bed: &Bed, table: &str) -> usize {
    let rows = bed.lake.rows(table);
    let mut points: Vec<u64> = rows.iter().filter(|row| row.op == "s").map(|row| row.at.0).collect();
    points.dedup();
    points.len()
}

/// Catches an order that makes the stream of all tables wait as if the server had failed: the stream is begun anew for it, and
/// the server may not have seen yet that the one before was left.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_waits_for_no_back_off() -> Result<()> {
    const ROUNDS: usize = 8;
    let bed = Bed::new(&two_tables())?;
    let (handle, orders) = bed.start_ordered(|_| {})?;
    until_streaming(&handle, "public.items").await?;
    until_streaming(&handle, "public.orders").await?;
    let mut fastest = DEADLINE;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        give(&orders, OrderCommand::Resync, "public.items").await?;
        until_streaming(&handle, "public.items").await?;
        fastest = fastest.min(began.elapsed());
    }
    assert!(fastest < RECONNECT_FIRST / 2, "the least delay between connections is in the way: {fastest:?}");
    end(handle).await;
    Ok(())
}

/// Catches an order that is answered and not carried out, one that costs its neighbours a copy or a row, and rows that passed
/// by and are missing from what is copied again (P86, P87, P60).
#[tokio::test(flavor = "multi_thread")]
async fn a_running_capture_parks_and_resumes_one_table() -> Result<()> {
    let bed = Bed::new(&two_tables())?;
    let (handle, orders) = bed.start_ordered(|_| {})?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    until_streaming(&handle, "public.items").await?;
    until_streaming(&handle, "public.orders").await?;

    let rehearsed = orders.give(Order::named(OrderCommand::Park, "public.items")?, true, DEADLINE).await?;
    assert_eq!(
        (rehearsed.tables, phase(&handle, "public.items").as_deref()),
        (vec!["public.items".to_owned()], Some("streaming"))
    );
    let parked = give(&orders, OrderCommand::Park, "public.items").await?;
    assert_eq!(parked.tables, ["public.items"]);
    bed.shop.psql(
        "UPDATE items SET n = -1 WHERE id <= 100; DELETE FROM items WHERE id > 2900;
         UPDATE orders SET note = 'beside' WHERE id <= 100;",
    )?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    assert_eq!(phase(&handle, "public.items").as_deref(), Some("parked"));
    assert!(bed.lake.rows("public.items").iter().all(|row| row.op == "s"), "its rows pass by");

    give(&orders, OrderCommand::Resume, "public.items").await?;
    bed.shop.psql(
        "INSERT INTO items SELECT n, n FROM generate_series(5000, 5100) n; UPDATE orders SET amount = 1 WHERE id = 1;",
    )?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    until_streaming(&handle, "public.items").await?;
    assert_eq!((copies_of(&bed, "public.orders"), bed.lake.doubles("public.orders")), (1, 0), "its neighbour");
    assert_eq!(bed.lake.doubles("public.items"), 0);

    let unknown = give(&orders, OrderCommand::Park, "public.nothing").await.unwrap_err().to_string();
    assert!(unknown.contains("public.nothing") && unknown.contains("public.items"), "{unknown}");
    end(handle).await;
    Ok(())
}

/// Catches a copy that stops what is not copied: while its slot waits for writers, and while its rows are not taken; and rows
/// around its point that are in neither copy nor stream (P59, P60, I13).
#[tokio::test(flavor = "multi_thread")]
async fn neighbours_stream_while_one_table_is_copied_again() -> Result<()> {
    let bed = Bed::new(&two_tables())?;
    let (handle, orders) = bed.start_ordered(|options| options.ready_bytes = 256 << 10)?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;

    let writer = bed.shop.sql().await?;
    writer.run("write for long", "BEGIN").await?;
    writer.run("write for long", "INSERT INTO items VALUES (9000, 1)").await?;
    give(&orders, OrderCommand::Resync, "public.items").await?;
    until(&handle, "a slot waits for the writer", || {
        Ok(bed.shop.psql("SELECT count(*) FROM pg_replication_slots WHERE temporary")? == "1")
    })
    .await?;
    bed.shop
        .psql("UPDATE orders SET note = 'while a slot waits' WHERE id <= 50; UPDATE items SET n = 7 WHERE id <= 50;")?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    assert_eq!(phase(&handle, "public.items").as_deref(), Some("waiting"), "the copy has not begun");

    bed.lake.refuse("public.items", true);
    bed.shop.psql("INSERT INTO items SELECT n, n FROM generate_series(10000, 40000) n;")?;
    writer.run("write for long", "COMMIT").await?;
    until(&handle, "the copy begins", || Ok(phase(&handle, "public.items").as_deref() == Some("copying"))).await?;
    bed.shop.psql(
        "DELETE FROM orders WHERE id % 3 = 0; UPDATE items SET n = 8 WHERE id <= 20; DELETE FROM items WHERE id = 60;",
    )?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    assert_eq!(phase(&handle, "public.items").as_deref(), Some("copying"), "its destination takes nothing");

    bed.lake.refuse("public.items", false);
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    until_streaming(&handle, "public.items").await?;
    assert_eq!((copies_of(&bed, "public.orders"), bed.lake.doubles("public.orders")), (1, 0));
    assert_eq!((copies_of(&bed, "public.items"), bed.lake.doubles("public.items")), (1, 0));
    end(handle).await;
    Ok(())
}

/// Catches a table that is created while the capture runs and waits for the next start, rows of it that are in neither copy
/// nor stream, and a long transaction on it that stops its neighbours (P59).
#[tokio::test(flavor = "multi_thread")]
async fn a_table_created_while_the_capture_runs_is_found() -> Result<()> {
    let bed = Bed::new(&two_tables())?;
    let (handle, orders) = bed.start_ordered(|options| options.schema_poll = Duration::from_secs(1))?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    until_streaming(&handle, "public.orders").await?;
    bed.shop.psql("CREATE TABLE later (id int PRIMARY KEY, n bigint); INSERT INTO later SELECT n, n FROM generate_series(1, 500) n;")?;
    let writer = bed.shop.sql().await?;
    writer.run("write for long", "BEGIN").await?;
    writer.run("write for long", "INSERT INTO later VALUES (9000, 1)").await?;
    bed.shop.psql("UPDATE orders SET note = 'beside' WHERE id <= 50;")?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    writer.run("write for long", "COMMIT").await?;
    bed.shop.psql("UPDATE later SET n = -n WHERE id % 5 = 0;")?;
    bed.until_equal(&handle, "public.later", ITEMS, &["id"]).await?;
    until_streaming(&handle, "public.later").await?;
    assert_eq!((copies_of(&bed, "public.orders"), bed.lake.doubles("public.later")), (1, 0));

    // Not at the next look, but at once.
    bed.shop.psql("CREATE TABLE ordered (id int PRIMARY KEY, n bigint); INSERT INTO ordered VALUES (1, 1);")?;
    assert_eq!(give(&orders, OrderCommand::Add, "public.ordered").await?.tables, ["public.ordered"]);
    bed.until_equal(&handle, "public.ordered", ITEMS, &["id"]).await?;
    let unknown = orders.give(Order::named(OrderCommand::Add, "public.nothing")?, false, DEADLINE).await.unwrap_err();
    assert_eq!(unknown.code().to_string(), "LF-PG0701");

    give(&orders, OrderCommand::Remove, "public.ordered").await?;
    bed.shop.psql("INSERT INTO ordered VALUES (2, 2); UPDATE orders SET note = 'behind it' WHERE id = 7;")?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    assert_eq!(
        (phase(&handle, "public.ordered").as_deref(), bed.lake.current("public.ordered", &["id"]).len()),
        (Some("removed"), 1)
    );
    give(&orders, OrderCommand::Add, "public.ordered").await?;
    bed.until_equal(&handle, "public.ordered", ITEMS, &["id"]).await?;
    end(handle).await;
    Ok(())
}

/// Catches a table that is empty by the time it is copied again and shows the rows of the copy before (P60).
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_empty_when_it_is_copied_again_is_empty_in_the_target() -> Result<()> {
    let bed = Bed::new(&two_tables())?;
    let (handle, orders) = bed.start_ordered(|_| {})?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    bed.shop.psql("INSERT INTO items VALUES (7000, 1);")?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    give(&orders, OrderCommand::Park, "public.items").await?;
    bed.shop.psql("DELETE FROM items;")?;
    give(&orders, OrderCommand::Resume, "public.items").await?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    until_streaming(&handle, "public.items").await?;
    assert!(bed.lake.current("public.items", &["id"]).is_empty());
    bed.shop.psql("INSERT INTO items VALUES (1, 1);")?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    end(handle).await;
    Ok(())
}

/// Catches an order that is answered and forgotten by a crash, and a new beginning that the old one's places survive (P1).
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_was_answered_survives_a_crash() -> Result<()> {
    let bed = Bed::new(&two_tables())?;
    let (mut handle, mut orders) = bed.start_ordered(|_| {})?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    for (command, then) in
        [(OrderCommand::Park, "parked"), (OrderCommand::Resync, "streaming"), (OrderCommand::Remove, "removed")]
    {
        give(&orders, command, "public.items").await?;
        handle.abort();
        handle.ended().await;
        (handle, orders) = bed.start_ordered(|_| {})?;
        until(&handle, then, || Ok(phase(&handle, "public.items").as_deref() == Some(then))).await?;
        bed.shop.psql("UPDATE orders SET amount = amount + 1 WHERE id <= 10;")?;
        bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    }
    assert_eq!((copies_of(&bed, "public.orders"), bed.lake.doubles("public.orders")), (1, 0));

    let all = Order { command: OrderCommand::Resync, tables: OrderedTables::All };
    let slot = "SELECT pg_current_wal_lsn() > '0/0' AND count(*) = 1 FROM pg_replication_slots WHERE slot_name = 'landfall_shop'";
    assert!(orders.give(all, false, DEADLINE).await?.starts_over);
    bed.shop.psql("UPDATE orders SET note = 'behind a new slot' WHERE id <= 10;")?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    until_streaming(&handle, "public.orders").await?;
    assert_eq!(bed.shop.psql(slot)?, "t");
    end(handle).await;
    Ok(())
}

/// Catches a slot that is gone and an order for a new one that nobody takes, because the capture cannot stream (P57).
#[tokio::test(flavor = "multi_thread")]
async fn a_capture_that_cannot_go_on_still_takes_orders() -> Result<()> {
    let bed = Bed::new(&two_tables())?;
    let (handle, _) = bed.start_ordered(|_| {})?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    end(handle).await;
    bed.shop.psql(
        "SELECT pg_drop_replication_slot('landfall_shop'); UPDATE orders SET note = 'nobody saw it' WHERE id = 3;",
    )?;
    let (handle, orders) = bed.start_ordered(|_| {})?;
    until(&handle, "it says why", || Ok(format!("{:?}", handle.status()).contains("LF-PG0201"))).await?;
    let all = Order { command: OrderCommand::Resync, tables: OrderedTables::All };
    assert!(orders.give(all, false, DEADLINE).await?.starts_over);
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    end(handle).await;
    Ok(())
}
