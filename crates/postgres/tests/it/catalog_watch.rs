//! What no event of the stream tells of a table: found by looks into the catalog, and that table's affair alone
//! (P82–P84, F-P18, I13).

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use landfall_engine::PipelineHandle;
use landfall_postgres::{CaptureOptions, OrderCommand, Orders};
use landfall_testkit::PostgresInstall;
use serde_json::Value;

use crate::capture::{Bed, COLUMNS, ORDERS, end};
use crate::orders::{copies_of, give, phase, until, until_streaming};

const EVENTS: &[&str] = &["id", "day", "note"];
const ITEMS: &[&str] = &["id", "n"];

/// A neighbour, a table with partitions, and a plain one.
fn tables() -> String {
    format!(
        "{ORDERS} CREATE TABLE items (id int PRIMARY KEY, n bigint); INSERT INTO items SELECT g, g FROM generate_series(1, 300) g;
         CREATE TABLE events (id int, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
         CREATE TABLE day_1 PARTITION OF events FOR VALUES FROM (1) TO (2);
         CREATE TABLE day_2 PARTITION OF events FOR VALUES FROM (2) TO (3);
         INSERT INTO events SELECT g, 1 + g % 2, 'event ' || g FROM generate_series(1, 400) g;"
    )
}

fn looks_often(options: &mut CaptureOptions) {
    options.schema_poll = Duration::from_millis(200);
}

async fn start(bed: &Bed, change: impl FnOnce(&mut CaptureOptions)) -> Result<(PipelineHandle, Orders)> {
    let (handle, orders) = bed.start_ordered(|options| {
        looks_often(options);
        change(options);
    })?;
    for table in ["public.orders", "public.items", "public.events"] {
        until_streaming(&handle, table).await?;
    }
    Ok((handle, orders))
}

fn shown(handle: &PipelineHandle, table: &str) -> Value {
    let source = handle.status().source;
    let tables = source["tables"].as_array().cloned().unwrap_or_default();
    tables.into_iter().find(|one| one["name"] == table).unwrap_or_default()
}

async fn until_parked(handle: &PipelineHandle, table: &str, code: &str, texts: &[&str]) -> Result<()> {
    until(handle, &format!("{table} is parked"), || Ok(phase(handle, table).as_deref() == Some("parked"))).await?;
    let parked = shown(handle, table)["parked"].clone();
    let reason = parked["reason"].as_str().unwrap_or_default();
    ensure!(parked["code"] == code && texts.iter().all(|text| reason.contains(text)), "{parked}");
    Ok(())
}

async fn until_noted(handle: &PipelineHandle, table: &str, code: &str, text: &str) -> Result<()> {
    until(handle, &format!("{table}: {text}"), || {
        let notes = shown(handle, table)["notes"].as_array().cloned().unwrap_or_default();
        Ok(notes.iter().any(|note| note["code"] == code && note["text"].as_str().unwrap_or_default().contains(text)))
    })
    .await
}

async fn the_neighbour_goes_on(bed: &Bed, handle: &PipelineHandle) -> Result<()> {
    bed.shop.psql("UPDATE orders SET amount = amount + 1 WHERE id % 50 = 0;")?;
    bed.until_equal(handle, "public.orders", COLUMNS, &["id"]).await?;
    ensure!(phase(handle, "public.orders").as_deref() == Some("streaming"), "{:?}", handle.status());
    ensure!(copies_of(bed, "public.orders") == 1, "its neighbour was copied again");
    Ok(())
}

/// Catches rows that come or go with a partition, which no event tells: the target would lack them, or keep them, and say
/// nothing (F-P18). Only that table is set aside, and a copy mends it.
#[tokio::test(flavor = "multi_thread")]
async fn f_p18_an_attached_partition_parks_its_table_alone() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let bed = Bed::on(&install, &tables())?;
        let (handle, orders) = start(&bed, |_| {}).await?;
        let attach = |day: i32| {
            format!("ALTER TABLE events ATTACH PARTITION day_{day} FOR VALUES FROM ({day}) TO ({})", day + 1)
        };
        for (what, statements) in [
            (
                "day_3 was attached",
                format!(
                    "CREATE TABLE day_3 (LIKE events INCLUDING ALL); INSERT INTO day_3 SELECT g, 3, 'before' FROM generate_series(1, 50) g; {};",
                    attach(3)
                ),
            ),
            // All in one transaction: the row of `pg_class` is as old as the partition.
            (
                "day_4 was attached",
                format!(
                    "BEGIN; CREATE TABLE day_4 (LIKE events INCLUDING ALL); INSERT INTO day_4 VALUES (1, 4, 'before'); {}; COMMIT;",
                    attach(4)
                ),
            ),
            // Made as a partition, but of another table than ours.
            (
                "day_5_a was attached",
                format!(
                    "CREATE TABLE day_5 (id int, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (id);
                     CREATE TABLE day_5_a PARTITION OF day_5 FOR VALUES FROM (1) TO (1000);
                     INSERT INTO day_5 VALUES (1, 5, 'before'); {};",
                    attach(5)
                ),
            ),
            ("day_1 was detached", "ALTER TABLE events DETACH PARTITION day_1;".to_owned()),
            ("was dropped", "DROP TABLE day_2;".to_owned()),
            ("day_3 was emptied", "TRUNCATE day_3;".to_owned()),
            // Emptied, filled and counted before the next look, as a load does it.
            (
                "day_4 was emptied",
                "BEGIN; TRUNCATE day_4; INSERT INTO day_4 VALUES (7, 4, 'behind'); COMMIT; ANALYZE day_4;".to_owned(),
            ),
            (
                "day_4 was detached for a while",
                format!(
                    "BEGIN; ALTER TABLE events DETACH PARTITION day_4; UPDATE day_4 SET note = 'aside'; {}; COMMIT;",
                    attach(4)
                ),
            ),
        ] {
            bed.shop.psql(&statements)?;
            until_parked(&handle, "public.events", "LF-PG0501", &["needs re-sync", what]).await?;
            the_neighbour_goes_on(&bed, &handle).await?;
            give(&orders, OrderCommand::Resync, "public.events").await?;
            bed.until_equal(&handle, "public.events", EVENTS, &["id", "day"]).await?;
            until_streaming(&handle, "public.events").await?;
        }
        // What happens while nobody looks is found by the next start.
        end(handle).await;
        bed.shop.psql(&format!(
            "CREATE TABLE day_8 (LIKE events INCLUDING ALL); INSERT INTO day_8 VALUES (1, 8, 'x'); {};",
            attach(8)
        ))?;
        let (handle, orders) = bed.start_ordered(looks_often)?;
        until_parked(&handle, "public.events", "LF-PG0501", &["day_8 was attached"]).await?;
        the_neighbour_goes_on(&bed, &handle).await?;
        give(&orders, OrderCommand::Resync, "public.events").await?;
        bed.until_equal(&handle, "public.events", EVENTS, &["id", "day"]).await?;
        assert_eq!(bed.lake.doubles("public.events"), 0);
        end(handle).await;
    }
    Ok(())
}

/// Catches the partition of the next day that costs its table a copy every night, a truncate of the whole table taken for
/// one of each part, and a VACUUM FULL that sets a table aside.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_made_for_the_next_day_is_followed() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let bed = Bed::on(&install, &tables())?;
        let (handle, orders) = start(&bed, |_| {}).await?;
        bed.shop.psql(
            "CREATE ROLE app; CREATE TABLE day_3 PARTITION OF events FOR VALUES FROM (3) TO (4);
             ALTER TABLE day_3 OWNER TO app; GRANT SELECT ON day_3 TO app; CREATE INDEX ON day_3 (note);
             INSERT INTO events SELECT g, 3, 'next day' FROM generate_series(1, 50) g;
             BEGIN; CREATE TABLE day_4 PARTITION OF events FOR VALUES FROM (4) TO (5); INSERT INTO day_4 VALUES (1, 4, 'at once'); COMMIT;
             CREATE TABLE day_5 PARTITION OF events FOR VALUES FROM (5) TO (6) PARTITION BY RANGE (id);
             CREATE TABLE day_5_a PARTITION OF day_5 FOR VALUES FROM (1) TO (1000); INSERT INTO events VALUES (1, 5, 'below');",
        )?;
        bed.until_equal(&handle, "public.events", EVENTS, &["id", "day"]).await?;
        // Looks go one after the other: what this one is told of, it or one before it has judged the rest.
        bed.shop.psql("VACUUM FULL day_1;")?;
        until_noted(&handle, "public.events", "LF-PG0520", "day_1 was written anew").await?;
        assert_eq!(phase(&handle, "public.events").as_deref(), Some("streaming"));
        give(&orders, OrderCommand::Resume, "public.events").await?;
        until(
            &handle,
            "the note is put away",
            || Ok(shown(&handle, "public.events")["notes"] == serde_json::json!([])),
        )
        .await?;

        bed.shop.psql("CREATE TABLE day_6 (LIKE events INCLUDING ALL); ALTER TABLE events ATTACH PARTITION day_6 FOR VALUES FROM (6) TO (7);")?;
        bed.shop
            .psql("TRUNCATE events; INSERT INTO events SELECT g, 1 + g % 5, 'after' FROM generate_series(1, 100) g;")?;
        bed.until_equal(&handle, "public.events", EVENTS, &["id", "day"]).await?;
        bed.shop.psql("VACUUM FULL items;")?;
        until_noted(&handle, "public.items", "LF-PG0520", "public.items was written anew").await?;
        // The note is of the look before which the truncate had come, or of one behind it: both have judged it.
        bed.shop.psql("INSERT INTO events VALUES (9, 6, 'followed');")?;
        bed.until_equal(&handle, "public.events", EVENTS, &["id", "day"]).await?;
        assert_eq!(
            phase(&handle, "public.events").as_deref(),
            Some("streaming"),
            "{:#}",
            shown(&handle, "public.events")
        );
        assert_eq!((copies_of(&bed, "public.events"), copies_of(&bed, "public.items")), (1, 1));
        end(handle).await;
    }
    Ok(())
}

/// Catches a table that leaves the publication without a word, and then keeps every other table from starting (P57, I13).
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_leaves_the_publication_is_parked_alone() -> Result<()> {
    let bed = Bed::new(&tables())?;
    let (handle, orders) = start(&bed, |_| {}).await?;
    bed.shop.psql("ALTER PUBLICATION landfall_shop DROP TABLE items; UPDATE items SET n = -n WHERE id < 50;")?;
    until_parked(&handle, "public.items", "LF-PG0210", &["left publication `landfall_shop`", "puts it back"]).await?;
    the_neighbour_goes_on(&bed, &handle).await?;
    // The publication is ours: a resync puts it back.
    give(&orders, OrderCommand::Resync, "public.items").await?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    until_streaming(&handle, "public.items").await?;

    bed.shop.psql(
        "BEGIN; ALTER PUBLICATION landfall_shop DROP TABLE items; UPDATE items SET n = 7 WHERE id < 50;
         ALTER PUBLICATION landfall_shop ADD TABLE items; COMMIT;",
    )?;
    until_parked(&handle, "public.items", "LF-PG0210", &["was not in publication"]).await?;
    give(&orders, OrderCommand::Resync, "public.items").await?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    until_streaming(&handle, "public.items").await?;
    end(handle).await;

    bed.shop.psql("ALTER PUBLICATION landfall_shop DROP TABLE items; UPDATE items SET n = 8 WHERE id < 50;")?;
    let (handle, orders) = bed.start_ordered(looks_often)?;
    until_parked(&handle, "public.items", "LF-PG0210", &["left publication"]).await?;
    the_neighbour_goes_on(&bed, &handle).await?;
    give(&orders, OrderCommand::Resync, "public.items").await?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    until_streaming(&handle, "public.items").await?;
    end(handle).await;

    // A publication of somebody else is not changed: its owner is told what to do.
    bed.shop.psql("ALTER PUBLICATION landfall_shop DROP TABLE items; CREATE TABLE later (id int PRIMARY KEY);")?;
    let (handle, orders) = bed.start_ordered(|options| {
        looks_often(options);
        options.creates_publication = false;
    })?;
    let statement = "ALTER PUBLICATION landfall_shop ADD TABLE ONLY public.items;";
    until_parked(&handle, "public.items", "LF-PG0210", &["left publication", statement]).await?;
    the_neighbour_goes_on(&bed, &handle).await?;
    bed.shop.psql(statement)?;
    give(&orders, OrderCommand::Resync, "public.items").await?;
    bed.until_equal(&handle, "public.items", ITEMS, &["id"]).await?;
    // Nobody published that one: it is no part of the capture, and the list says why.
    let later = shown(&handle, "public.later");
    let statement = "ALTER PUBLICATION landfall_shop ADD TABLE ONLY public.later;";
    assert!(
        later["phase"] == "waiting" && later["refused"].as_str().is_some_and(|why| why.contains(statement)),
        "{later}"
    );
    bed.shop.psql(statement)?;
    until_streaming(&handle, "public.later").await?;
    end(handle).await;
    Ok(())
}

/// Catches a pipeline that keeps history and is stopped for it each time old partitions are dropped; and one for which a
/// partition that brings rows is as good as one that takes some away.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_partitions_stay_where_that_is_asked_for() -> Result<()> {
    let bed = Bed::new(&tables())?;
    let (handle, _) =
        start(&bed, |options| options.tables.iter_mut().for_each(|choice| choice.keeps_dropped = true)).await?;
    bed.shop.psql("DROP TABLE day_1; TRUNCATE day_2; INSERT INTO events VALUES (900, 2, 'goes on');")?;
    until_noted(&handle, "public.events", "LF-PG0521", "was dropped").await?;
    until_noted(&handle, "public.events", "LF-PG0521", "day_2 was emptied").await?;
    let has_row = || Ok(bed.lake.current("public.events", &["id"]).len() == 401);
    until(&handle, "rows of before stay, and new ones come", has_row).await?;
    assert_eq!(phase(&handle, "public.events").as_deref(), Some("streaming"));
    bed.shop.psql(
        "CREATE TABLE day_3 (LIKE events INCLUDING ALL); INSERT INTO day_3 VALUES (1, 3, 'x');
         ALTER TABLE events ATTACH PARTITION day_3 FOR VALUES FROM (3) TO (4);",
    )?;
    until_parked(&handle, "public.events", "LF-PG0501", &["day_3 was attached"]).await?;
    end(handle).await;
    Ok(())
}

/// Catches a table that is set aside for rows that a log of events has no place for (P84, column "channel").
#[tokio::test(flavor = "multi_thread")]
async fn where_events_land_a_partition_is_only_noted() -> Result<()> {
    let bed = Bed::new(&tables())?;
    let (handle, _) = start(&bed, |options| options.only_events = true).await?;
    bed.shop.psql(
        "CREATE TABLE day_3 (LIKE events INCLUDING ALL); INSERT INTO day_3 VALUES (1, 3, 'x');
         ALTER TABLE events ATTACH PARTITION day_3 FOR VALUES FROM (3) TO (4); ALTER TABLE events DETACH PARTITION day_1;",
    )?;
    until_noted(&handle, "public.events", "LF-PG0521", "day_3 was attached").await?;
    until_noted(&handle, "public.events", "LF-PG0521", "day_1 was detached").await?;
    assert_eq!(phase(&handle, "public.events").as_deref(), Some("streaming"));
    end(handle).await;
    Ok(())
}

/// Catches a rename that nobody is told of, with old values under one name and new ones under another; and a renamed key, by
/// which no row of before is found (P82, P84).
#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_column_is_said_and_one_of_the_key_parks() -> Result<()> {
    let bed = Bed::new(&tables())?;
    let (handle, _) = start(&bed, |_| {}).await?;
    bed.shop.psql("ALTER TABLE items RENAME COLUMN n TO amount;")?;
    until_noted(&handle, "public.items", "LF-PG0521", "column `n` is called `amount` now").await?;
    bed.shop.psql("INSERT INTO items VALUES (9000, 1);")?;
    until(&handle, "it is carried", || {
        let state = bed.lake.current("public.items", &["id"]);
        Ok(state.get(&vec!["9000".to_owned()]).is_some_and(|row| row.get("amount") == Some(&Some("1".to_owned()))))
    })
    .await?;
    assert_eq!(phase(&handle, "public.items").as_deref(), Some("streaming"));
    // The note is as durable as the table.
    end(handle).await;
    let (handle, _) = start(&bed, |_| {}).await?;
    until_noted(&handle, "public.items", "LF-PG0521", "column `n` is called `amount` now").await?;
    bed.shop.psql("ALTER TABLE items RENAME COLUMN id TO number;")?;
    until_parked(&handle, "public.items", "LF-PG0501", &["column `id` is called `number` now"]).await?;
    the_neighbour_goes_on(&bed, &handle).await?;
    end(handle).await;
    Ok(())
}

/// Catches a start that waits a minute for a server that does not answer, whatever `liveness_timeout` says (P48).
#[tokio::test(flavor = "multi_thread")]
async fn a_question_at_the_start_waits_as_long_as_a_silent_stream() -> Result<()> {
    let bed = Bed::new(&tables())?;
    let holder = bed.shop.sql().await?;
    holder.run("keep the catalog", "BEGIN; LOCK TABLE pg_catalog.pg_publication IN ACCESS EXCLUSIVE MODE").await?;
    let begun = Instant::now();
    let (handle, _) = bed.start_ordered(|options| {
        options.feedback_interval = Duration::from_millis(500);
        options.liveness_timeout = Duration::from_secs(3);
    })?;
    until(&handle, "it says what it waits for", || Ok(handle.status().source["detail"]["code"] == "LF-PG0109")).await?;
    ensure!(begun.elapsed() < landfall_postgres::QUERY_DEADLINE, "{:?}", begun.elapsed());
    holder.run("let it go", "ROLLBACK").await?;
    bed.until_equal(&handle, "public.orders", COLUMNS, &["id"]).await?;
    end(handle).await;
    Ok(())
}

/// Catches values that a default wrote into every row of before, which no event brings (P83, LF-PG0501); and a constant
/// default, which writes none, that sets its table aside.
#[tokio::test(flavor = "multi_thread")]
async fn a_column_with_a_volatile_default_needs_a_copy() -> Result<()> {
    let bed = Bed::new(&tables())?;
    let (handle, orders) = start(&bed, |_| {}).await?;
    bed.shop.psql(
        "ALTER TABLE items ADD COLUMN five bigint DEFAULT 5; INSERT INTO items VALUES (1000, 1);
         ALTER TABLE events ADD COLUMN dice int DEFAULT (random() * 6)::int;",
    )?;
    until_parked(&handle, "public.events", "LF-PG0501", &["column `dice`"]).await?;
    the_neighbour_goes_on(&bed, &handle).await?;
    assert_eq!(phase(&handle, "public.items").as_deref(), Some("streaming"));
    give(&orders, OrderCommand::Resync, "public.events").await?;
    bed.until_equal(&handle, "public.events", &["id", "day", "note", "dice"], &["id", "day"]).await?;
    until_streaming(&handle, "public.events").await?;
    bed.shop.psql("ALTER TABLE items ADD COLUMN dice bigint DEFAULT (random() * 6)::int;")?;
    until_parked(&handle, "public.items", "LF-PG0501", &["column `dice`"]).await?;
    end(handle).await;
    Ok(())
}
