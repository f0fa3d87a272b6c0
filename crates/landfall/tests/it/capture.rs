//! A captured database end to end: a real Postgres, the binary, Delta tables, and every change in them exactly once.

use std::time::{Duration, Instant};

use landfall_testkit::{HttpClient, Postgres, PostgresInstall, Running, balance_of};
use serde_json::Value;

use crate::site::{COMMAND_WITHIN, LAND_WITHIN, Site};

/// Two tables of a shop; one with a query of its own.
pub(crate) const TABLES: &str = "
    CREATE TABLE orders (id bigint PRIMARY KEY, item text NOT NULL, qty int);
    ALTER TABLE orders REPLICA IDENTITY FULL;
    CREATE TABLE lines (order_id bigint, n int, price numeric(10,2), PRIMARY KEY (order_id, n));
    ALTER TABLE lines REPLICA IDENTITY FULL;
    INSERT INTO orders SELECT i, 'item ' || i, i % 7 FROM generate_series(1, 1000) i;
    INSERT INTO lines SELECT i, 1, i / 4.0 FROM generate_series(1, 500) i;";

/// The rows as they are now: what no later change of the same key, and no later TRUNCATE, has put an end to.
const NOW: &str = "
    SELECT {columns} FROM (
      SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY _commit_lsn DESC, _seq DESC) AS newest FROM {table}
      WHERE _op <> 't' AND _commit_lsn * 1000000 + _seq >
            (SELECT coalesce(max(_commit_lsn * 1000000 + _seq), 0) FROM {table} WHERE _op = 't')) AS changes
    WHERE newest = 1 AND _op <> 'd' ORDER BY {key}";

/// Each table in a Delta table of its own.
const TO_THE_LAKE: &str = r#"
data_dir: ./data
server: { listen: "127.0.0.1:0" }
process: { drain_timeout: 20s }
pipelines:
  shop:
    from:
      postgres:
        url: "{url}"
        tables:
          "public.orders": {}
          "public.*": { sql: "SELECT order_id, n, price, price * 2 AS double FROM input" }
    to: { delta: { path: "./lake/{table}", commit_every: 300ms } }
    checkpoint: { interval: 200ms }
"#;

pub(crate) struct Shop {
    server: Postgres,
    pub(crate) site: Site,
}

impl Shop {
    pub(crate) fn start(settings: &[(&str, &str)], tables: &str) -> Shop {
        Shop::start_on(settings, tables, TO_THE_LAKE)
    }

    /// A server and a site whose configuration has `{url}` for the database.
    pub(crate) fn start_on(settings: &[(&str, &str)], tables: &str, config: &str) -> Shop {
        let install = PostgresInstall::any().expect("a Postgres");
        let server = Postgres::start_with(&install, settings).expect("the server starts");
        let url = server.create_database("shop").expect("a database");
        server.psql("shop", tables).expect("tables");
        let site = Site::with(&config.replace("{url}", &url));
        Shop { server, site }
    }

    pub(crate) fn psql(&self, sql: &str) -> String {
        self.server.psql("shop", sql).expect("the statement runs")
    }

    /// What the server says to a statement that it refuses.
    pub(crate) fn refused(&self, sql: &str) -> String {
        format!("{:#}", self.server.psql("shop", sql).expect_err("the statement is refused"))
    }

    pub(crate) fn query(&self, sql: &str) -> Option<Vec<Value>> {
        self.query_in("lake", sql)
    }

    /// A query over the tables landed in a folder; nothing while they are not there yet.
    pub(crate) fn query_in(&self, lake: &str, sql: &str) -> Option<Vec<Value>> {
        let table = |name: &str| format!("{name}={}", self.site.path(&format!("{lake}/public.{name}")).display());
        let (orders, lines) = (table("orders"), table("lines"));
        let mut args = vec!["query", sql, "-o", "json"];
        for (name, table) in [("orders", &orders), ("lines", &lines)] {
            if sql.contains(name) {
                args.extend(["--table", table]);
            }
        }
        let ended = self.site.landfall(args).run(COMMAND_WITHIN).expect("the query ends");
        (ended.code() == Some(0)).then(|| ended.json_lines().expect("JSON"))
    }

    /// Asks until the table holds what the database holds, column for column.
    pub(crate) fn wait_until_landed(&self, table: &str, key: &str, columns: &str) {
        self.wait_until_landed_in("lake", table, key, columns);
    }

    /// The same of the table in this folder.
    pub(crate) fn wait_until_landed_in(&self, lake: &str, table: &str, key: &str, columns: &str) {
        let fields =
            columns.split(',').map(|column| format!("'{0}', {0}", column.trim())).collect::<Vec<_>>().join(", ");
        // Numbers with a fraction come as numbers from one and as text from the other.
        let source = self.psql(&format!("SELECT json_build_object({fields})::text FROM {table} ORDER BY {key}"));
        let expected: Vec<Value> =
            source.lines().map(|line| plain(serde_json::from_str(line).expect("JSON"))).collect();
        let now = NOW.replace("{columns}", columns).replace("{key}", key).replace("{table}", table);
        let until = Instant::now() + LAND_WITHIN;
        loop {
            let landed = self.query_in(lake, &now).unwrap_or_default();
            let landed: Vec<Value> = landed.into_iter().map(plain).collect();
            if landed == expected {
                return;
            }
            if Instant::now() > until {
                let differs = landed.iter().zip(&expected).find(|(landed, expected)| landed != expected);
                panic!(
                    "{table} has {} rows in {lake} and {} in the database; first difference: {differs:?}",
                    landed.len(),
                    expected.len()
                );
            }
            // Another process's progress is asked for, not waited on: a pause between questions, bounded above.
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// No change is there twice, and no copied row.
    pub(crate) fn assert_each_once(&self, table: &str, key: &str) {
        let twice = format!(
            "SELECT _commit_lsn, _seq, {key}, count(*) AS n FROM {table} GROUP BY _commit_lsn, _seq, {key} HAVING count(*) > 1"
        );
        assert_eq!(self.query(&twice).expect("the table is read"), Vec::<Value>::new(), "{table}");
    }

    pub(crate) fn list(&self, more: &[&str]) -> Value {
        let args = ["tables", "landfall.yaml", "shop", "list", "--json"].iter().chain(more).copied();
        let ended = self.site.landfall(args).run(COMMAND_WITHIN).expect("list ends");
        ended.expect_code(0).expect("listed").last_json().expect("JSON")
    }

    /// Asks until every table has this phase.
    pub(crate) fn wait_for_phase(&self, running: &Running, table: &str, phase: &str) {
        let until = Instant::now() + LAND_WITHIN;
        loop {
            let listed = self.list(&["--server", running.address()]);
            assert_eq!(listed["running"], true, "{listed}");
            if phase_of(&listed, table).as_deref() == Some(phase) {
                return;
            }
            assert!(Instant::now() < until, "{table} is not {phase}: {listed}\n{}", running.stderr());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn order(&self, args: &[&str]) -> landfall_testkit::Ended {
        let args = ["tables", "landfall.yaml", "shop"].iter().chain(args).copied();
        self.site.landfall(args).run(COMMAND_WITHIN).expect("the command ends")
    }

    pub(crate) fn check(&self, more: &[&str]) -> landfall_testkit::Ended {
        let args = ["check", "landfall.yaml"].iter().chain(more).copied();
        self.site.landfall(args).run(COMMAND_WITHIN).expect("check ends")
    }
}

pub(crate) fn phase_of(listed: &Value, table: &str) -> Option<String> {
    let tables = listed["tables"].as_array()?;
    let found = tables.iter().find(|one| one["name"] == table)?;
    found["phase"].as_str().map(str::to_owned)
}

/// Every number as text without a fraction's trailing zeros; nulls left out, as one of the two writers does.
pub(crate) fn plain(row: Value) -> Value {
    let Value::Object(fields) = row else { return row };
    let plain = |value: Value| match value {
        Value::Number(number) => Value::String(format!("{:.4}", number.as_f64().unwrap_or_default())),
        other => other,
    };
    Value::Object(
        fields.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name, plain(value))).collect(),
    )
}

pub(crate) fn end_well(running: Running) {
    end_well_with(running, &["shop"]);
}

pub(crate) fn end_well_with(running: Running, pipelines: &[&str]) {
    for pipeline in pipelines {
        let balances = balance_of(&mut HttpClient::new(running.address()), pipeline).expect("balanced");
        assert!(balances.iter().all(|balance| balance.dead_lettered == 0), "{balances:?}");
    }
    let ended = running.terminate(LAND_WITHIN).expect("the process drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

/// Catches rows lost or doubled between copy and stream, over a restart or a kill, changes that land as another thing than
/// they were, and a column that is added and does not arrive (I7, I9, P52, P84).
#[test]
fn a_database_is_copied_followed_and_gone_on_with() {
    let shop = Shop::start(&[], TABLES);
    let running = shop.site.serve();
    shop.wait_until_landed("orders", "id", "id, item, qty");
    shop.wait_until_landed("lines", "order_id, n", "order_id, n, price");
    shop.wait_for_phase(&running, "public.orders", "streaming");

    shop.psql(
        "INSERT INTO orders VALUES (2001, 'new', 1);
         UPDATE orders SET qty = 99 WHERE id = 1;
         UPDATE orders SET id = 2002 WHERE id = 2;
         DELETE FROM orders WHERE id = 3;
         BEGIN; UPDATE orders SET item = item || '!' WHERE id <= 100; DELETE FROM orders WHERE id = 50; COMMIT;
         TRUNCATE lines;
         INSERT INTO lines VALUES (7, 1, 1.25), (7, 2, NULL);
         ALTER TABLE orders ADD COLUMN note text;
         INSERT INTO orders VALUES (2003, 'noted', 2, 'by hand');",
    );
    shop.wait_until_landed("orders", "id", "id, item, qty, note");
    shop.wait_until_landed("lines", "order_id, n", "order_id, n, price");
    let computed = "SELECT count(*) AS n FROM lines WHERE double = price * 2 AND _op IN ('s', 'i')";
    assert_eq!(shop.query(computed).expect("the query's own column")[0]["n"], 501);
    end_well(running);

    let listed = shop.list(&[]);
    assert_eq!(listed["running"], false, "{listed}");
    assert_eq!(phase_of(&listed, "public.orders").as_deref(), Some("streaming"), "{listed}");
    shop.psql("INSERT INTO orders SELECT i, 'while away', 0 FROM generate_series(3001, 3100) i; DELETE FROM orders WHERE id = 4;");
    let running = shop.site.serve();
    shop.wait_until_landed("orders", "id", "id, item, qty, note");
    shop.psql("INSERT INTO orders SELECT i, 'before a kill', 0 FROM generate_series(4001, 4200) i;");
    running.kill().expect("it is killed");
    let running = shop.site.serve();
    shop.wait_until_landed("orders", "id", "id, item, qty, note");
    shop.assert_each_once("orders", "id");
    shop.assert_each_once("lines", "order_id");
    let operations = shop.query("SELECT _op, count(*) AS n FROM orders GROUP BY _op ORDER BY _op").expect("operations");
    let copied = operations.iter().find(|row| row["_op"] == "s").expect("copied rows");
    assert_eq!(copied["n"], 1000, "a restart copies nothing again: {operations:?}");
    end_well(running);
}

/// Catches a check that calls a server fit that is not, or does not say the statement that mends it; and one that asks
/// the server although it was told not to (P64).
#[test]
fn check_says_what_the_server_lacks() {
    let broken = Shop::start(
        &[("wal_level", "replica")],
        "CREATE TABLE orders (id bigint PRIMARY KEY, item text); CREATE TABLE lines (order_id bigint, price int);",
    );
    let text = broken.check(&[]).expect_code(1).expect("refused");
    for statement in [
        "ALTER SYSTEM SET wal_level = 'logical';",
        "ALTER TABLE public.lines REPLICA IDENTITY FULL;",
        "ALTER TABLE public.orders REPLICA IDENTITY FULL;",
    ] {
        assert!(text.stdout.contains(statement), "no `{statement}` in\n{}", text.stdout);
    }
    let json = broken.check(&["--json"]).expect_code(1).expect("refused").last_json().expect("JSON");
    assert_eq!(json["ok"], false);
    let findings = json["findings"].as_array().expect("findings");
    let of =
        |code: &str| findings.iter().find(|one| one["code"] == code).unwrap_or_else(|| panic!("no {code} in {json}"));
    for (code, level) in [("LF-PG0114", "error"), ("LF-PG0505", "error"), ("LF-PG0506", "error")] {
        let found = of(code);
        assert_eq!(found["level"], level, "{found}");
        assert!(found["line"].as_u64().is_some_and(|line| line > 0), "a place in the file: {found}");
        broken.site.landfall(["explain", code]).run(COMMAND_WITHIN).expect("ends").expect_code(0).expect("a page");
    }
    let offline =
        broken.check(&["--offline", "--json"]).expect_code(0).expect("nothing asked").last_json().expect("JSON");
    assert!(offline["left_out"].to_string().contains("the server of pipeline shop"), "{offline}");

    let fit = Shop::start(&[("max_slot_wal_keep_size", "10GB")], TABLES);
    let text = fit.check(&[]).expect_code(0).expect("fit");
    assert!(text.stdout.contains("slot `landfall_shop` will be created"), "{}", text.stdout);
    assert!(text.stdout.contains("table public.orders") && text.stdout.contains("exactly once"), "{}", text.stdout);
    let left: Vec<_> =
        std::fs::read_dir(fit.site.path("")).expect("the directory").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["landfall.yaml"], "check leaves something behind");
    assert_eq!(fit.psql("SELECT count(*) FROM pg_replication_slots"), "0");
    assert_eq!(fit.psql("SELECT count(*) FROM pg_publication"), "0");

    let running = fit.site.serve();
    fit.wait_for_phase(&running, "public.orders", "streaming");
    let beside = fit.check(&["--json"]).last_json().expect("JSON");
    assert!(beside["left_out"].to_string().contains("a process runs"), "{beside}");
    end_well(running);
    let text = fit.check(&[]).expect_code(0).expect("fit");
    assert!(text.stdout.contains("slot `landfall_shop` goes on at"), "{}", text.stdout);
}

/// Catches an order that acts unasked, one that guesses which process to ask, a parked table whose rows come through, and one that is
/// resumed without the rows that passed by (P86, P87, P63).
#[test]
fn orders_to_a_table_are_carried_out_by_the_next_start() {
    let shop = Shop::start(&[], TABLES);
    let running = shop.site.serve();
    shop.wait_until_landed("lines", "order_id, n", "order_id, n, price");
    shop.wait_for_phase(&running, "public.lines", "streaming");
    let beside = shop.order(&["park", "public.lines", "--confirm"]).expect_code(1).expect("refused");
    assert!(beside.stderr.contains("--server"), "{}", beside.stderr);
    let beside = shop.order(&["drop-slot", "--confirm"]).expect_code(1).expect("its slot is in use");
    assert!(beside.stderr.contains("stop the process"), "{}", beside.stderr);
    end_well(running);

    let told = shop.order(&["park", "public.lines"]).expect_code(0).expect("told");
    assert!(told.stdout.contains("nothing was changed"), "{}", told.stdout);
    assert_eq!(phase_of(&shop.list(&[]), "public.lines").as_deref(), Some("streaming"));
    shop.order(&["park", "public.nothing", "--confirm"]).expect_code(1).expect("no such table");
    shop.order(&["park", "--confirm"]).expect_code(1).expect("no table named");
    let done = shop.order(&["park", "public.lines", "--confirm", "--json"]).expect_code(0).expect("parked");
    assert_eq!(done.last_json().expect("JSON")["tables"], serde_json::json!(["public.lines"]));
    assert_eq!(phase_of(&shop.list(&[]), "public.lines").as_deref(), Some("parked"));

    let running = shop.site.serve();
    shop.psql("INSERT INTO lines VALUES (9001, 1, 5); INSERT INTO orders VALUES (9001, 'beside', 1);");
    // Both came in one log, the parked one's row first.
    shop.wait_until_landed("orders", "id", "id, item, qty");
    assert_eq!(shop.query("SELECT count(*) AS n FROM lines WHERE order_id = 9001").expect("read")[0]["n"], 0);
    end_well(running);

    shop.order(&["resume", "public.lines", "--confirm"]).expect_code(0).expect("resumed");
    assert_eq!(phase_of(&shop.list(&[]), "public.lines").as_deref(), Some("waiting"));
    let running = shop.site.serve();
    shop.wait_until_landed("lines", "order_id, n", "order_id, n, price");
    shop.wait_for_phase(&running, "public.lines", "streaming");
    end_well(running);

    shop.order(&["resync", "--all", "--confirm"]).expect_code(0).expect("everything again");
    let running = shop.site.serve();
    shop.wait_for_phase(&running, "public.orders", "streaming");
    shop.psql("INSERT INTO orders VALUES (9002, 'behind a new slot', 1);");
    shop.wait_until_landed("orders", "id", "id, item, qty");
    end_well(running);

    shop.order(&["drop-slot"]).expect_code(0).expect("told");
    assert_eq!(shop.psql("SELECT count(*) FROM pg_replication_slots"), "1");
    shop.order(&["drop-slot", "--confirm"]).expect_code(0).expect("dropped");
    assert_eq!(shop.psql("SELECT count(*) FROM pg_replication_slots"), "0");
    let text = shop.check(&[]).expect_code(1).expect("a slot that is gone");
    assert!(text.stdout.contains("LF-PG0201"), "{}", text.stdout);
}

/// Catches a query that takes away the key of its table, and a table whose key is deferrable, without a word of `check`; and
/// a start that lands such a table all the same (P64, P72).
#[test]
fn check_says_of_which_table_no_current_state_follows() {
    let shop = Shop::start(
        &[("max_slot_wal_keep_size", "10GB")],
        "CREATE TABLE orders (id bigint PRIMARY KEY DEFERRABLE, item text); ALTER TABLE orders REPLICA IDENTITY FULL;
         CREATE TABLE lines (id bigint PRIMARY KEY, order_id bigint, n int, price int); INSERT INTO lines VALUES (1, 1, 1, 1);",
    );
    let json = shop.check(&["--json"]).expect_code(1).expect("refused").last_json().expect("JSON");
    let findings = json["findings"].as_array().expect("findings");
    let of =
        |code: &str| findings.iter().find(|one| one["code"] == code).unwrap_or_else(|| panic!("no {code} in {json}"));
    let deferrable = of("LF-PG0510").to_string();
    assert!(deferrable.contains("DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id);"), "{deferrable}");
    shop.site.landfall(["explain", "LF-PG0510"]).run(COMMAND_WITHIN).expect("ends").expect_code(0).expect("a page");
    let lost = findings.iter().find(|one| one["text"].as_str().is_some_and(|text| text.contains("columns of its key")));
    assert_eq!(lost.unwrap_or_else(|| panic!("nothing of the query: {json}"))["level"], "warning");

    let running = shop.site.serve();
    shop.wait_for_phase(&running, "public.lines", "streaming");
    shop.wait_for_phase(&running, "public.orders", "parked");
    end_well(running);
    shop.psql(
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id); INSERT INTO orders VALUES (1, 'one');",
    );
    shop.order(&["resync", "public.orders", "--confirm"]).expect_code(0).expect("to be copied");
    let running = shop.site.serve();
    shop.wait_until_landed("orders", "id", "id, item");
    end_well(running);
}
