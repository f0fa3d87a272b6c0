//! A channel as the only destination of a capture: a table that becomes another one goes on, who reads behind it is told, and a
//! table's stream follows its copy (P59, P84).

use std::collections::BTreeSet;

use landfall_testkit::{HttpClient, Running, balance_of};
use serde_json::Value;

use crate::capture::{Shop, TABLES, end_well_with};
use crate::changes::{Record, last_commit, read, wait_for, wait_until};
use crate::site::{COMMAND_WITHIN, LAND_WITHIN};

/// Keys of their own, which the server says with each change; no value that an update could leave out.
const KEYED: &str = "
    CREATE TABLE orders (id bigint PRIMARY KEY, item varchar(20) NOT NULL, qty int);
    CREATE TABLE lines (order_id bigint, n int, price numeric(10,2), PRIMARY KEY (order_id, n));
    INSERT INTO orders SELECT i, 'item ' || i, i % 7 FROM generate_series(1, 300) i;
    INSERT INTO lines SELECT i, 1, i / 4.0 FROM generate_series(1, 200) i;";

const FEED: &str = r#"
data_dir: ./data
server: { listen: "127.0.0.1:0" }
process: { drain_timeout: 20s }
channels:
  shop.changes: { partitions: 3 }
pipelines:
  shop:
    from: { postgres: { url: "{url}", tables: { "public.*": {} } } }
    to: { feed: { channel: shop.changes } }
    checkpoint: { interval: 200ms }
  orders:
    from: { channel: shop.changes }
    decode:
      json:
        schema: { _table: string not null, _op: string not null, _commit_lsn: bigint not null, _seq: bigint not null, id: bigint, item: string, qty: int }
    sql: SELECT id, item, qty, _op, _commit_lsn, _seq FROM input WHERE _table = 'public.orders'
    to: { delta: { path: ./fed/public.orders, commit_every: 300ms } }
    on_error: dead_letter
    checkpoint: { interval: 200ms }
  lines:
    from: { channel: shop.changes }
    decode:
      json:
        schema: { _table: string not null, _op: string not null, _commit_lsn: bigint not null, _seq: bigint not null, order_id: bigint, n: int, price: "decimal(10,2)" }
    sql: SELECT order_id, n, price, _op, _commit_lsn, _seq FROM input WHERE _table = 'public.lines'
    to: { delta: { path: ./fed/public.lines, commit_every: 300ms } }
    checkpoint: { interval: 200ms }
"#;

fn is_order(record: &Record, id: u64) -> bool {
    record.table() == "public.orders" && record.change["id"] == id
}

/// Of one row, by place.
fn of_order(records: &[Record], id: u64) -> Vec<&Record> {
    let mut of_order: Vec<&Record> = records.iter().filter(|record| is_order(record, id)).collect();
    of_order.sort_by_key(|record| record.place());
    of_order
}

/// What is said of changes of a table, which is followed.
fn noted(shop: &Shop, running: &Running, table: &str) -> Vec<String> {
    let listed = shop.list(&["--server", running.address()]);
    let table = listed["tables"].as_array().and_then(|tables| tables.iter().find(|one| one["name"] == table)).cloned();
    let table = table.expect("it is listed");
    assert_eq!(table["phase"], "streaming", "{table}");
    let notes = table["notes"].as_array().into_iter().flatten();
    let changes = notes.filter(|note| note["code"] == "LF-PG0512");
    changes.filter_map(|note| note["text"].as_str().map(str::to_owned)).collect()
}

fn letters(running: &Running) -> Vec<Value> {
    let answer = HttpClient::new(running.address())
        .get("/v1/channels/_dead_letters.orders/records?partition=0&from=0&limit=100")
        .expect("an answer");
    if answer.status == 200 { answer.json_lines().expect("an object a line") } else { Vec::new() }
}

/// Catches a table that is parked although its channel takes each record as it is; a field in a form of before; a record under a
/// key of before, or a repeat under the other key, behind a kill in the middle; a change that nobody is told of; and a pipeline
/// behind the channel that stops, or lands what its declared types do not hold (P84, P85, I9, I13).
#[test]
fn a_type_and_a_key_that_change_go_on_through_a_channel_and_its_readers_are_told() {
    let shop = Shop::start_on(&[], KEYED, FEED);
    let running = shop.site.serve();
    shop.wait_for_phase(&running, "public.orders", "streaming");
    shop.wait_for_phase(&running, "public.lines", "streaming");
    assert_eq!(noted(&shop, &running, "public.orders"), Vec::<String>::new());
    shop.psql(
        "UPDATE orders SET qty = 50 WHERE id = 1;
         ALTER TABLE orders ALTER COLUMN qty TYPE varchar(20) USING qty::varchar;
         UPDATE orders SET qty = 'many' WHERE id = 1; INSERT INTO orders VALUES (5001, 'without', NULL);
         UPDATE lines SET price = -price WHERE order_id % 3 = 0;",
    );
    wait_for(&running, |record| is_order(record, 5001));
    let records = read(running.address());
    let quantities: Vec<&Value> = of_order(&records, 1).iter().map(|record| &record.change["qty"]).collect();
    assert_eq!(quantities, [&Value::from(1), &Value::from(50), &Value::from("many")]);
    let changed = noted(&shop, &running, "public.orders");
    assert_eq!(changed.len(), 1, "{changed:?}");
    assert!(running.stderr().contains("LF-PG0512"), "{}", running.stderr());
    let metrics = HttpClient::new(running.address()).get("/metrics").expect("metrics");
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(metrics.lines().any(|line| line.starts_with("landfall_pg_table_changes_total") && line.ends_with(" 1")));
    let text = shop.order(&["list", "--server", running.address()]).expect_code(0).expect("listed").stdout;
    assert!(text.contains("LF-PG0512") && text.contains("`qty`"), "{text}");

    // Behind the channel: the row whose field is none of its type is set aside by name, all others land, neighbours too.
    shop.wait_until_landed_in("fed", "lines", "order_id, n", "order_id, n, price");
    wait_until(&running, "no dead letter", || !letters(&running).is_empty());
    let landed = "SELECT count(*) AS n FROM orders WHERE id = 5001 AND qty IS NULL";
    wait_until(&running, "the row behind it has not landed", || {
        shop.query_in("fed", landed).is_some_and(|rows| rows[0]["n"] == 1)
    });
    let set_aside = letters(&running);
    assert_eq!(set_aside.len(), 1, "{set_aside:?}");
    let letter = &set_aside[0];
    assert_eq!((&letter["payload"]["id"], &letter["payload"]["qty"]), (&Value::from(1), &Value::from("many")));
    let told = letter["headers"].to_string();
    assert!(told.contains("LF-DC0015") && told.contains("`qty`"), "{letter}");

    // Another key, and a kill before anything of it is settled for sure.
    shop.psql(
        "UPDATE orders SET item = 'by id' WHERE id = 7;
         ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id, item);
         UPDATE orders SET qty = NULL WHERE id = 7; UPDATE orders SET item = 'renamed' WHERE id = 7;
         DELETE FROM orders WHERE id = 8;",
    );
    wait_for(&running, |record| is_order(record, 8) && record.op() == "d");
    running.kill().expect("it is killed");
    shop.psql("INSERT INTO orders VALUES (5002, 'while away', NULL);");
    let running = shop.site.serve();
    wait_for(&running, |record| is_order(record, 5002));
    let records = read(running.address());
    let keys: Vec<(&str, &str)> =
        of_order(&records, 7).iter().map(|record| (record.op(), record.key.as_str())).collect();
    let (by_id, by_both) = (r#"["public.orders",7]"#, r#"["public.orders",7,"by id"]"#);
    let renamed = r#"["public.orders",7,"renamed"]"#;
    assert_eq!(keys, [("s", by_id), ("u", by_id), ("u", by_both), ("d", by_both), ("i", renamed)]);
    let gone = of_order(&records, 8);
    assert_eq!(gone.last().map(|record| record.key.as_str()), Some(r#"["public.orders",8,"item 8"]"#));
    let changed = noted(&shop, &running, "public.orders");
    // The start may have seen the key of today before the stream told of the one of then, and so tell of both ways.
    let last = changed.last().filter(|_| changed.len() > 1).expect("the key's change is noted as well");
    assert!(last.contains("by `id`, `item` from here on"), "{changed:?}");

    // Without any key, the server itself refuses what would have to say which row; inserts go on.
    shop.psql("ALTER TABLE orders DROP CONSTRAINT orders_pkey; INSERT INTO orders VALUES (5003, 'keyless', NULL);");
    assert!(shop.refused("UPDATE orders SET qty = NULL WHERE id = 9").contains("replica identity"));
    wait_for(&running, |record| is_order(record, 5003));
    shop.psql("UPDATE lines SET n = 2 WHERE order_id = 5;");
    shop.wait_until_landed_in("fed", "lines", "order_id, n", "order_id, n, price");
    let records = read(running.address());
    assert_eq!(of_order(&records, 5003)[0].key, r#"["public.orders"]"#);
    assert!(noted(&shop, &running, "public.orders").len() > changed.len());
    let streamed: Vec<(&str, (u64, u64))> =
        records.iter().filter(|record| record.op() != "s").map(|record| (record.table(), record.place())).collect();
    let once: BTreeSet<_> = streamed.iter().collect();
    assert_eq!(once.len(), streamed.len(), "a change is in the channel twice");
    let balances = balance_of(&mut HttpClient::new(running.address()), "orders").expect("balanced");
    assert!(balances.iter().all(|balance| balance.dead_lettered <= 1), "{balances:?}");
    end_well_with(running, &["shop", "lines"]);
    let listed = shop.list(&[]);
    assert!(listed.to_string().contains("LF-PG0512"), "what is stored says it too: {listed}");
}

/// Catches a streamed change that comes into the channel before the copied row that it changes, and a neighbour that waits with
/// it (P59, decision 0014). Nothing is settled by the clock here, so the copy cannot be over before it is told to.
#[test]
fn a_stream_follows_its_tables_copy_and_a_neighbours_does_not_wait() {
    const ROUNDS: u64 = 6;
    let shop = Shop::start_on(&[], TABLES, FEED);
    let running = shop.site.serve();
    shop.wait_for_phase(&running, "public.orders", "streaming");
    shop.wait_for_phase(&running, "public.lines", "streaming");
    end_well_with(running, &["shop", "orders", "lines"]);
    let written = std::fs::read_to_string(shop.site.path("landfall.yaml")).expect("the configuration");
    shop.site.write("landfall.yaml", &written.replacen("interval: 200ms", "interval: 5m", 1));
    let running = shop.site.serve();
    let order = |args: &[&str]| {
        shop.order(&[args, &["--confirm", "--server", running.address()]].concat()).expect_code(0).expect("stored")
    };
    shop.wait_for_phase(&running, "public.orders", "streaming");
    order(&["resync", "public.orders"]);
    let copied = |records: &[Record]| {
        let copied = records.iter().filter(|record| record.table() == "public.orders" && record.op() == "s");
        copied.map(Record::place).collect::<Vec<_>>()
    };
    wait_until(&running, "the second copy is not in the channel", || {
        let places = copied(&read(running.address()));
        let newest = places.iter().max().copied();
        places.len() == 2_000 && places.iter().filter(|place| Some(**place) == newest).count() == 1_000
    });
    let point = copied(&read(running.address())).into_iter().max().expect("copied rows");
    for round in 1..=ROUNDS {
        let before = last_commit(&running);
        shop.psql(&format!("UPDATE orders SET qty = {} WHERE id = 1;", 100 + round));
        wait_until(&running, "the stream has not come so far", || last_commit(&running) != before);
        shop.psql(&format!("INSERT INTO lines VALUES ({}, 1, 1);", 7_000 + round));
        // It was committed after the other, and is there before it.
        wait_for(&running, |record| record.change["order_id"] == 7_000 + round);
    }
    let is_held = |record: &Record| is_order(record, 1) && record.op() == "u" && record.place() > point;
    assert!(!read(running.address()).iter().any(is_held), "a change of a table whose copy is not settled");
    let listed = shop.list(&["--server", running.address()]);
    assert_eq!(crate::capture::phase_of(&listed, "public.orders").as_deref(), Some("copying"), "{listed}");

    // What is ordered is stored, and what was delivered with it: the copy is settled.
    order(&["park", "public.lines"]);
    wait_for(&running, |record| is_order(record, 1) && record.change["qty"] == 100 + ROUNDS);
    let records = read(running.address());
    let of_row: Vec<&Record> = records.iter().filter(|record| is_order(record, 1)).collect();
    assert!(of_row.iter().all(|record| record.partition == of_row[0].partition));
    assert!(of_row.windows(2).all(|pair| pair[0].place() < pair[1].place()), "in the order of the channel alone");
    assert_eq!(of_row.iter().filter(|record| is_held(record)).count() as u64, ROUNDS);
    let ended = running.terminate(LAND_WITHIN).expect("the process drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    shop.site.landfall(["explain", "LF-PG0512"]).run(COMMAND_WITHIN).expect("ends").expect_code(0).expect("a page");
}
