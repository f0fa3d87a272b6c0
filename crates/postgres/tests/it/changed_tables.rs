//! Tables that become others while they are captured, and destinations that need their copies before their streams (P59, P84,
//! P90).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use landfall_engine::PipelineHandle;
use landfall_engine::contract::TableAbilities;
use serde_json::Value;

use crate::capture::{Bed, COLUMNS, ORDERS, end};
use crate::database::DEADLINE;

/// As a channel says of itself.
const CHANNEL: TableAbilities =
    TableAbilities { orders_by_position: false, takes_new_types: true, takes_new_keys: true };

fn shown(handle: &PipelineHandle, table: &str) -> Value {
    let source = handle.status().source;
    let tables = source["tables"].as_array().cloned().unwrap_or_default();
    tables.into_iter().find(|one| one["name"] == table).unwrap_or_default()
}

/// What is noted of changes of the items.
fn changes(handle: &PipelineHandle) -> Vec<String> {
    let notes = shown(handle, "public.items")["notes"].as_array().cloned().unwrap_or_default();
    let changes = notes.iter().filter(|note| note["code"] == "LF-PG0512");
    changes.filter_map(|note| note["text"].as_str().map(str::to_owned)).collect()
}

async fn until(handle: &PipelineHandle, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + DEADLINE;
    while !is_so()? {
        ensure!(Instant::now() < deadline, "{what}: {:#?}", handle.status());
        let _ = tokio::time::timeout(Duration::from_millis(20), handle.changes().changed()).await;
    }
    Ok(())
}

/// Catches a table that is parked although its destination takes each change as it is, rows that are made in a form of before,
/// a change that nobody is told of or that is told of again after a restart, and a plain column that is told of (P84).
#[tokio::test(flavor = "multi_thread")]
async fn a_table_whose_type_and_key_change_goes_on_where_its_destination_takes_both() -> Result<()> {
    const ITEMS: &[&str] = &["id", "n", "code"];
    let bed = Bed::new(
        "CREATE TABLE items (id int PRIMARY KEY, n bigint, code text NOT NULL DEFAULT 'c');
         INSERT INTO items SELECT n, n FROM generate_series(1, 300) n;",
    )?;
    let (handle, _) = bed.start_ordered(|options| options.abilities = CHANNEL)?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    // Rows of both types in one transaction, and more behind it.
    bed.shop.psql(
        "BEGIN; UPDATE items SET n = -n WHERE id <= 3; ALTER TABLE items ALTER COLUMN n TYPE text USING n::text;
         INSERT INTO items VALUES (1001, 'many'); COMMIT; UPDATE items SET n = 'few' WHERE id = 1;",
    )?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    let noted = changes(&handle);
    assert!(matches!(noted.as_slice(), [one] if one.contains("`n`")), "{noted:?}");
    bed.shop.psql(
        "ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (code, id);
         UPDATE items SET code = 'd' WHERE id = 2; DELETE FROM items WHERE id = 3;",
    )?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    end(handle).await;

    bed.shop.psql("ALTER TABLE items DROP CONSTRAINT items_pkey; INSERT INTO items VALUES (1002, 'while away');")?;
    let (handle, _) = bed.start_ordered(|options| options.abilities = CHANNEL)?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    let refused = bed.shop.psql("UPDATE items SET n = 'x' WHERE id = 5").expect_err("there is no identity");
    assert!(refused.to_string().contains("replica identity"), "{refused:#}");
    bed.shop.psql("ALTER TABLE items ADD PRIMARY KEY (id); UPDATE items SET n = 'x' WHERE id = 5;")?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    bed.shop.psql(
        "ALTER TABLE items ADD COLUMN token text DEFAULT random()::text, ADD COLUMN plain text;
         ALTER TABLE items ADD COLUMN fixed text DEFAULT 'f'; INSERT INTO items VALUES (1003, 'last');",
    )?;
    let has_landed = |id: &str| Ok(bed.lake.current("public.items", &["id"]).contains_key(&vec![id.to_owned()]));
    until(&handle, "the row behind the new columns lands", || has_landed("1003")).await?;
    let table = shown(&handle, "public.items");
    let noted = changes(&handle);
    let reason = noted.last().expect("it is noted");
    assert!(reason.contains("`token`") && !reason.contains("`plain`") && !reason.contains("`fixed`"), "{table}");
    assert_eq!((&table["phase"], bed.lake.doubles("public.items")), (&"streaming".into(), 0), "{table}");
    end(handle).await;
    // Nothing new: nothing is told again.
    let (handle, _) = bed.start_ordered(|options| options.abilities = CHANNEL)?;
    bed.shop.psql("INSERT INTO items VALUES (1004, 'again')")?;
    until(&handle, "the last row lands", || has_landed("1004")).await?;
    assert_eq!(changes(&handle), noted);
    end(handle).await;
    Ok(())
}

/// Catches rows that wait for their table's copy and fill the room of all, so that a neighbour stands still, the table is
/// parked, or what was held is lost or doubled once the copy is settled (P59, P90, I13, I7).
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_table_whose_copy_takes_long_costs_no_neighbour_its_turn_and_loses_no_row() -> Result<()> {
    const ITEMS: &[&str] = &["id", "n"];
    let bed = Bed::new(&format!(
        "{ORDERS} CREATE TABLE items (id int PRIMARY KEY, n bigint);
         INSERT INTO items SELECT n, n FROM generate_series(1, 500) n;"
    ))?;
    bed.lake.withhold("public.items", true);
    let (handle, _) = bed.start_ordered(|options| {
        options.abilities = CHANNEL;
        options.ready_bytes = 1 << 20;
        options.backlog_patience = Duration::from_millis(500);
    })?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    let mut written = 500;
    let mut write = |beside: i32| -> Result<()> {
        let first = written + 1;
        written += 5_000;
        bed.shop.psql(&format!(
            "INSERT INTO items SELECT n, n FROM generate_series({first}, {written}) n; DELETE FROM items WHERE id = {first};
             UPDATE items SET n = n + 1 WHERE id % 100 = 1; UPDATE orders SET amount = amount + 1 WHERE id % 40 = {beside};"
        ))?;
        Ok(())
    };
    // As long as it takes for the log to be where they wait, and on until they would be more than all may hold.
    until(&handle, "its rows wait in the log", || {
        write(1)?;
        Ok(shown(&handle, "public.items")["waits_in_log"] == true)
    })
    .await?;
    for round in 2..12 {
        write(round)?;
        bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    }
    let table = shown(&handle, "public.items");
    assert_eq!((&table["phase"], &table["parked"]), (&"copying".into(), &Value::Null), "{table}");
    assert!(bed.lake.arrivals("public.items").is_empty(), "nothing of it is committed");
    bed.lake.withhold("public.items", false);
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    assert_eq!((bed.lake.doubles("public.items"), bed.lake.doubles("public.orders")), (0, 0));
    let came = bed.lake.arrivals("public.items");
    let copied = came.iter().rposition(|row| row.op == "s");
    assert_eq!(copied, Some(499), "the copy comes first, whole");
    assert!(came[500..].iter().map(|row| row.at).is_sorted(), "and its stream after it, in order");
    assert_eq!(shown(&handle, "public.items")["waits_in_log"], false);
    let end_of_log = bed.shop.psql("SELECT pg_current_wal_lsn() - '0/0'")?;
    until(&handle, "the slot moves on", || {
        bed.shop.psql("UPDATE orders SET amount = amount + 1 WHERE id = 1")?;
        let moved = format!(
            "SELECT confirmed_flush_lsn - '0/0' >= {end_of_log} FROM pg_replication_slots WHERE slot_name = 'landfall_shop'"
        );
        Ok(bed.shop.psql(&moved)? == "t")
    })
    .await?;
    end(handle).await;
    Ok(())
}
