//! One slot that feeds several pipelines through a channel: a real Postgres, the binary, and every change in the channel
//! exactly once, in the order of its row.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use landfall_testkit::{HttpClient, Running};
use serde_json::Value;

use crate::capture::{Shop, TABLES, end_well_with, plain};
use crate::site::LAND_WITHIN;

const PARTITIONS: u32 = 3;

/// The tables go to a lake, which knows repeats by position, and to a channel, which two pipelines read.
const TO_A_CHANNEL: &str = r#"
data_dir: ./data
server: { listen: "127.0.0.1:0" }
process: { drain_timeout: 20s }
channels:
  shop.changes: { partitions: 3 }
pipelines:
  shop:
    from:
      postgres:
        url: "{url}"
        tables: { "public.*": {} }
    to:
      lake: { delta: { path: "./lake/{table}", commit_every: 300ms } }
      feed: { channel: shop.changes }
    checkpoint: { interval: 200ms }
  orders:
    from: { channel: shop.changes }
    decode:
      json:
        schema:
          _table: string not null
          _op: string not null
          _commit_lsn: bigint not null
          _seq: bigint not null
          id: bigint
          item: string
          qty: int
          note: string
    sql: SELECT id, item, qty, note, _op, _commit_lsn, _seq FROM input WHERE _table = 'public.orders'
    to: { delta: { path: ./fed/public.orders, commit_every: 300ms } }
    checkpoint: { interval: 200ms }
  lines:
    from: { channel: shop.changes }
    decode:
      json:
        schema:
          _table: string not null
          _op: string not null
          _commit_lsn: bigint not null
          _seq: bigint not null
          order_id: bigint
          n: int
          price: "decimal(10,2)"
    sql: SELECT order_id, n, price, _op, _commit_lsn, _seq FROM input WHERE _table = 'public.lines'
    to: { delta: { path: ./fed/public.lines, commit_every: 300ms } }
    checkpoint: { interval: 200ms }
"#;

/// A change in the channel: its table and key as the record has them, and what it says.
pub(crate) struct Record {
    pub(crate) partition: u32,
    pub(crate) key: String,
    pub(crate) change: Value,
}

impl Record {
    fn number(&self, name: &str) -> u64 {
        self.change[name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.change))
    }

    pub(crate) fn place(&self) -> (u64, u64) {
        (self.number("_commit_lsn"), self.number("_seq"))
    }

    pub(crate) fn op(&self) -> &str {
        self.change["_op"].as_str().expect("an operation")
    }

    pub(crate) fn table(&self) -> &str {
        self.change["_table"].as_str().expect("a table")
    }
}

/// All of the channel, each partition in its order.
pub(crate) fn read(address: &str) -> Vec<Record> {
    let mut client = HttpClient::new(address);
    let mut all = Vec::new();
    for partition in 0..PARTITIONS {
        let mut from = 0;
        loop {
            let path = format!("/v1/channels/shop.changes/records?partition={partition}&from={from}&limit=1000");
            let records = client.get(&path).expect("the channel is read").json_lines().expect("an object a line");
            let Some(last) = records.last() else { break };
            from = last["offset"].as_u64().expect("an offset") + 1;
            all.extend(records.into_iter().map(|mut record| Record {
                partition,
                key: record["key"].as_str().expect("a key").to_owned(),
                change: record["payload"].take(),
            }));
        }
    }
    all
}

/// Asks until the channel holds such a record.
pub(crate) fn wait_for(running: &Running, is_it: impl Fn(&Record) -> bool) {
    wait_until(running, "it is not in the channel", || read(running.address()).iter().any(&is_it));
}

pub(crate) fn wait_until(running: &Running, otherwise: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + LAND_WITHIN;
    while !is_so() {
        assert!(Instant::now() < until, "{otherwise}\n{}", running.stderr());
        // Another process's progress is asked for, not waited on: a pause between questions, bounded above.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The last commit that the source has read.
pub(crate) fn last_commit(running: &Running) -> Value {
    let status = HttpClient::new(running.address()).get("/v1/status").expect("the status").json().expect("JSON");
    let pipelines = status["pipelines"].as_array().expect("pipelines");
    let shop = pipelines.iter().find(|pipeline| pipeline["name"] == "shop").expect("the capture");
    shop["source"]["last_commit"].clone()
}

/// What a change is told apart by: its place, and of a copied row, where all have one, its key.
fn name(op: &str, place: (u64, u64), key: &Value) -> String {
    match op {
        "s" => format!("{} copied {key}", place.0),
        _ => format!("{} {} {op}", place.0, place.1),
    }
}

/// Every change that the lake has is in the channel once, in the order of its row, and the newest make up the table. What
/// an interrupted copy left stands before all of that.
fn assert_each_once(shop: &Shop, records: &[Record], table: &str, key: &[&str], columns: &[&str]) {
    let of_table: Vec<&Record> = records.iter().filter(|record| record.table() == format!("public.{table}")).collect();
    let key_of = |row: &Value| Value::Array(key.iter().map(|column| row[*column].clone()).collect());
    let fed: Vec<String> =
        of_table.iter().map(|record| name(record.op(), record.place(), &key_of(&record.change))).collect();
    let once: BTreeSet<&String> = fed.iter().collect();
    assert_eq!(once.len(), fed.len(), "a change of {table} is in the channel twice");
    let newest = of_table.iter().filter(|record| record.op() == "s").map(|record| record.place()).max();
    let (before, of_table): (Vec<&Record>, Vec<&Record>) =
        of_table.into_iter().partition(|record| newest.is_some_and(|copy| record.place() < copy));
    assert!(before.iter().all(|record| record.op() == "s"), "{table}: a change before the copy that counts");
    let fed: Vec<String> =
        of_table.iter().map(|record| name(record.op(), record.place(), &key_of(&record.change))).collect();
    let sql = format!("SELECT _op, _commit_lsn, _seq, {} FROM {table}", key.join(", "));
    let landed = shop.query_in("lake", &sql).expect("the lake is read");
    let number = |row: &Value, name: &str| row[name].as_u64().expect("a number");
    let landed: BTreeSet<String> = landed
        .iter()
        .map(|row| {
            let place = (number(row, "_commit_lsn"), number(row, "_seq"));
            name(row["_op"].as_str().expect("an operation"), place, &key_of(row))
        })
        .collect();
    let fed: BTreeSet<String> = fed.into_iter().collect();
    let differs: Vec<_> = fed.symmetric_difference(&landed).take(5).collect();
    assert!(differs.is_empty(), "{table}: the channel has {}, the lake {}: {differs:?}", fed.len(), landed.len());
    // What a reader makes of the newest change of each key, read in the order of the channel alone.
    let emptied = of_table.iter().filter(|record| record.op() == "t").map(|record| record.place()).max();
    let mut state: BTreeMap<&str, &Value> = BTreeMap::new();
    let mut seen: BTreeMap<&str, (u32, (u64, u64))> = BTreeMap::new();
    for record in of_table.iter().filter(|record| record.op() != "t") {
        let here = (record.partition, record.place());
        if let Some(before) = seen.insert(&record.key, here) {
            assert_eq!(before.0, record.partition, "{} is in two partitions", record.key);
            assert!(before.1 < record.place(), "{}: {:?} comes after {:?}", record.key, record.place(), before.1);
        }
        if emptied.is_some_and(|at| record.place() < at) {
            continue;
        }
        match record.op() {
            "d" => drop(state.remove(record.key.as_str())),
            _ => drop(state.insert(&record.key, &record.change)),
        }
    }
    let source = shop.psql(&format!("SELECT row_to_json(t)::text FROM (SELECT {} FROM {table}) t", columns.join(", ")));
    let expected: BTreeSet<String> =
        source.lines().map(|line| plain(serde_json::from_str(line).expect("JSON")).to_string()).collect();
    let own = |change: &Value| {
        let fields = columns.iter().filter_map(|name| Some(((*name).to_owned(), change.get(name)?.clone())));
        plain(Value::Object(fields.collect())).to_string()
    };
    let found: BTreeSet<String> = state.values().map(|change| own(change)).collect();
    let differs: Vec<_> = found.symmetric_difference(&expected).take(5).collect();
    assert!(differs.is_empty(), "{table}: {} rows, {} in the database: {differs:?}", found.len(), expected.len());
}

/// Catches a change that a kill leaves out of the channel or puts into it twice, changes of a row that change places or
/// partitions, a streamed change before the copied row that it changes, and a pipeline behind the channel that lands
/// anything else than the database holds (P59, P84, P98, E124, I2, I9).
#[test]
fn one_slot_feeds_pipelines_through_a_channel_over_kills() {
    let shop = Shop::start_on(&[("max_slot_wal_keep_size", "10GB")], TABLES, TO_A_CHANNEL);
    let printed = shop.check(&[]).expect_code(0).expect("fit").stdout;
    for word in ["to feed: exactly once", "within a window of 1h", "keyed by its table and order_id, n", "interrupted"]
    {
        assert!(printed.contains(word), "no `{word}` in\n{printed}");
    }
    let running = shop.site.serve();
    // Into the copy, and behind it.
    shop.psql(
        "UPDATE orders SET qty = 98 WHERE id % 3 = 0; UPDATE lines SET price = price + 1 WHERE order_id % 5 = 0;",
    );
    shop.wait_for_phase(&running, "public.orders", "streaming");
    shop.wait_for_phase(&running, "public.lines", "streaming");
    for round in 0..4 {
        shop.psql(&format!(
            "INSERT INTO orders SELECT i, 'round {round}', 1 FROM generate_series({0}, {0} + 299) i;
             UPDATE orders SET qty = {round} WHERE id % 7 = {round};
             UPDATE orders SET id = id + 100000 WHERE id BETWEEN {1} AND {1} + 5;
             DELETE FROM orders WHERE id % 31 = {round};
             BEGIN; UPDATE lines SET price = price * 2 WHERE order_id < 200; DELETE FROM lines WHERE order_id % 41 = {round}; COMMIT;",
            10_000 + round * 1_000,
            100 + round * 10
        ));
    }
    // In the middle of all that.
    running.kill().expect("it is killed");
    shop.psql(
        "TRUNCATE lines;
         INSERT INTO lines SELECT i, 1, i / 2.0 FROM generate_series(1, 400) i;
         ALTER TABLE orders ADD COLUMN note text;
         UPDATE orders SET note = 'noted', qty = NULL WHERE id % 11 = 0;",
    );
    let running = shop.site.serve();
    shop.psql("UPDATE lines SET price = -price WHERE order_id % 2 = 0; ALTER TABLE orders DROP COLUMN qty;");
    shop.psql("UPDATE orders SET item = item || '!' WHERE id % 13 = 0;");
    running.kill().expect("it is killed");
    let running = shop.site.serve();
    for lake in ["lake", "fed"] {
        shop.wait_until_landed_in(lake, "orders", "id", "id, item, note");
        shop.wait_until_landed_in(lake, "lines", "order_id, n", "order_id, n, price");
    }
    let records = read(running.address());
    assert_each_once(&shop, &records, "orders", &["id"], &["id", "item", "note"]);
    assert_each_once(&shop, &records, "lines", &["order_id", "n"], &["order_id", "n", "price"]);
    let last = records.iter().filter(|record| record.table() == "public.orders").max_by_key(|record| record.place());
    let last = &last.expect("changes").change;
    assert!(last.get("note").is_some() && last.get("qty").is_none(), "a column that came, and one that ended: {last}");
    let copied = records.iter().filter(|record| record.op() == "s");
    let points: BTreeSet<u64> = copied.map(|record| record.number("_commit_lsn")).collect();
    assert_eq!(points.len(), 1, "a restart behind the copy makes no other: {points:?}");
    end_well_with(running, &["shop", "orders", "lines"]);

    // Nothing new, nothing again.
    let running = shop.site.serve();
    shop.wait_for_phase(&running, "public.orders", "streaming");
    shop.psql("INSERT INTO orders VALUES (900001, 'last', NULL);");
    shop.wait_until_landed_in("fed", "orders", "id", "id, item, note");
    assert_eq!(read(running.address()).len(), records.len() + 1);
    end_well_with(running, &["shop", "orders", "lines"]);
}

/// Catches a copy that begins anew and numbers its rows like the one before, so that they are dropped as repeats, and a row
/// that the first copy alone knows and nothing tells apart (P56, P98, decision 0014).
#[test]
fn an_interrupted_copy_stays_and_the_one_that_counts_follows_it() {
    // Nothing is settled before the kill: only the copy that is made anew ever is.
    let slow = TO_A_CHANNEL.replace("interval: 200ms }", "interval: 60s }\n    batch: { age: 10ms }");
    let shop = Shop::start_on(&[], TABLES, &slow);
    let written = std::fs::read_to_string(shop.site.path("landfall.yaml")).expect("the configuration");
    let running = shop.site.serve();
    wait_for(&running, |record| record.table() == "public.orders");
    // Read from the log, and held: the copy is not settled, and the next one will have what these have done.
    // `a_stream_follows_its_tables_copy_and_a_neighbours_does_not_wait` decides that they are.
    for id in 1..=8 {
        let before = last_commit(&running);
        shop.psql(&format!("DELETE FROM orders WHERE id = {id}"));
        wait_until(&running, "the stream has not come so far", || last_commit(&running) != before);
    }
    running.kill().expect("it is killed");
    shop.psql("INSERT INTO orders VALUES (5001, 'while away', 1);");
    shop.site.write("landfall.yaml", &written.replace("interval: 60s", "interval: 200ms"));
    let running = shop.site.serve();
    shop.wait_for_phase(&running, "public.orders", "streaming");
    shop.wait_for_phase(&running, "public.lines", "streaming");
    shop.psql("UPDATE orders SET qty = 7 WHERE id BETWEEN 21 AND 40; DELETE FROM orders WHERE id = 41;");
    shop.wait_until_landed_in("lake", "orders", "id", "id, item, qty");
    shop.wait_until_landed_in("lake", "lines", "order_id, n", "order_id, n, price");
    // The last change that was made: on one chain, those before it are there too (C6).
    wait_for(&running, |record| record.op() == "d" && record.change["id"] == 41);
    let records = read(running.address());
    assert_each_once(&shop, &records, "orders", &["id"], &["id", "item", "qty"]);
    assert_each_once(&shop, &records, "lines", &["order_id", "n"], &["order_id", "n", "price"]);
    let copied = records.iter().filter(|record| record.op() == "s" && record.table() == "public.orders");
    let points: BTreeSet<u64> = copied.map(|record| record.number("_commit_lsn")).collect();
    assert_eq!(points.len(), 2, "what the first copy published is there, and the second: {points:?}");
    end_well_with(running, &["shop", "orders", "lines"]);
}
