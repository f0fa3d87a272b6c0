//! Orders to the tables of a running capture, by the binary: over HTTP, with the same words as to a stopped one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use landfall_testkit::{Ended, HttpClient, Running};
use serde_json::json;

use crate::capture::{Shop, TABLES, end_well, phase_of};
use crate::site::COMMAND_WITHIN;

const LINES: (&str, &str, &str) = ("lines", "order_id, n", "order_id, n, price");
const ORDERS: (&str, &str, &str) = ("orders", "id", "id, item, qty");

fn order(shop: &Shop, running: &Running, args: &[&str]) -> Ended {
    shop.order(&[args, &["--server", running.address()]].concat())
}

fn verified(shop: &Shop, running: &Running) {
    // A query of its own gives a table other columns than its source has: the other one is compared.
    let args = ["verify", "landfall.yaml", "shop", "public.orders", "--server", running.address()];
    let ended = shop.site.landfall(args).run(COMMAND_WITHIN).expect("verify ends");
    ended.expect_code(0).expect("equal");
}

/// Catches an order over HTTP that is answered and not carried out, acts unasked, stops a neighbour, or prints another thing
/// than the same order to a stopped process (P1, P86, P87, G85).
#[test]
fn a_running_process_parks_and_resyncs_one_table() {
    let shop = Arc::new(Shop::start(&[], TABLES));
    let running = shop.site.serve();
    shop.wait_until_landed(LINES.0, LINES.1, LINES.2);
    shop.wait_for_phase(&running, "public.lines", "streaming");
    shop.wait_for_phase(&running, "public.orders", "streaming");

    let told = order(&shop, &running, &["park", "public.lines"]).expect_code(0).expect("told");
    assert!(told.stdout.contains("nothing was changed"), "{}", told.stdout);
    shop.wait_for_phase(&running, "public.lines", "streaming");
    let unknown = order(&shop, &running, &["park", "public.nothing", "--confirm"]).expect_code(1).expect("refused");
    assert!(unknown.stderr.contains("LF-PG0701") && unknown.stderr.contains("public.orders"), "{}", unknown.stderr);
    let parked =
        order(&shop, &running, &["park", "public.lines", "--confirm", "--json"]).expect_code(0).expect("parked");
    let outcome = parked.last_json().expect("JSON");
    assert_eq!((&outcome["applied"], &outcome["tables"]), (&json!(true), &json!(["public.lines"])));
    assert!(outcome["text"].as_str().expect("a text").contains("the order is stored"), "{outcome}");
    shop.wait_for_phase(&running, "public.lines", "parked");
    shop.psql("INSERT INTO lines VALUES (9001, 1, 5); INSERT INTO orders VALUES (9001, 'beside', 1);");
    shop.wait_until_landed(ORDERS.0, ORDERS.1, ORDERS.2);
    assert_eq!(shop.query("SELECT count(*) AS n FROM lines WHERE order_id = 9001").expect("read")[0]["n"], 0);

    // Copied again under load.
    let stop = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (shop, stop) = (Arc::clone(&shop), Arc::clone(&stop));
        move || {
            let mut turn = 0;
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                shop.psql(&format!(
                    "INSERT INTO orders VALUES ({0}, 'load', 1); UPDATE orders SET qty = {turn} WHERE id % 50 = {turn} % 50;
                     DELETE FROM orders WHERE id = {turn}; INSERT INTO lines VALUES ({0}, 1, 2);",
                    20_000 + turn
                ));
            }
            turn
        }
    });
    order(&shop, &running, &["resume", "public.lines", "--confirm"]).expect_code(0).expect("resumed");
    order(&shop, &running, &["resync", "public.orders", "--confirm"]).expect_code(0).expect("copied again");
    shop.wait_for_phase(&running, "public.orders", "streaming");
    shop.wait_for_phase(&running, "public.lines", "streaming");
    verified(&shop, &running);
    stop.store(true, Ordering::Relaxed);
    assert!(writer.join().expect("the writer ends") > 0, "there was load");
    verified(&shop, &running);
    shop.wait_until_landed(LINES.0, LINES.1, LINES.2);
    shop.assert_each_once("lines", "order_id");

    let mut http = HttpClient::new(running.address());
    assert_eq!(http.get("/v1/pipelines/nobody/tables").expect("an answer").status, 404);
    let listed = http.get("/v1/pipelines/shop/tables").expect("an answer").json().expect("JSON");
    assert_eq!(phase_of(&listed, "public.orders").as_deref(), Some("streaming"), "{listed}");
    let Ok(shop) = Arc::try_unwrap(shop) else { panic!("the writer holds it") };
    end_well(running);
    drop(shop);
}

/// Catches an order that was answered and does not survive a crash at that very moment (P1, I7).
#[test]
fn an_answered_order_survives_a_kill() {
    let shop = Shop::start(&[], TABLES);
    let mut running = shop.site.serve();
    shop.wait_until_landed(LINES.0, LINES.1, LINES.2);
    for (command, phase) in [("park", "parked"), ("resync", "streaming"), ("remove", "removed"), ("add", "streaming")] {
        order(&shop, &running, &[command, "public.lines", "--confirm"]).expect_code(0).expect("stored");
        running.kill().expect("it is killed");
        running = shop.site.serve();
        shop.wait_for_phase(&running, "public.lines", phase);
    }
    shop.psql("INSERT INTO lines VALUES (9002, 1, 7); DELETE FROM orders WHERE id = 9;");
    shop.wait_until_landed(LINES.0, LINES.1, LINES.2);
    shop.wait_until_landed(ORDERS.0, ORDERS.1, ORDERS.2);
    verified(&shop, &running);
    end_well(running);
}

/// Catches a table that is empty when it is copied again and shows its old rows to whoever asks for its state (P60).
#[test]
fn an_emptied_table_that_is_copied_again_is_empty() {
    let shop = Shop::start(&[], TABLES);
    let running = shop.site.serve();
    shop.wait_until_landed(ORDERS.0, ORDERS.1, ORDERS.2);
    shop.wait_for_phase(&running, "public.orders", "streaming");
    shop.psql("INSERT INTO orders VALUES (5000, 'streamed', 1);");
    shop.wait_until_landed(ORDERS.0, ORDERS.1, ORDERS.2);
    order(&shop, &running, &["park", "public.orders", "--confirm"]).expect_code(0).expect("parked");
    shop.psql("DELETE FROM orders;");
    order(&shop, &running, &["resume", "public.orders", "--confirm"]).expect_code(0).expect("resumed");
    shop.wait_for_phase(&running, "public.orders", "streaming");
    verified(&shop, &running);
    let table = format!("orders={}", shop.site.path("lake/public.orders").display());
    let args = ["query", "SELECT count(*) AS n FROM orders", "--table", &table, "--current", "orders=id", "-o", "json"];
    let shown = shop.site.landfall(args).run(COMMAND_WITHIN).expect("it ends").expect_code(0).expect("shown");
    assert_eq!(shown.json_lines().expect("JSON")[0]["n"], 0);
    end_well(running);
}

/// Catches a table whose columns its Delta table cannot hold and that waits for ever, with the slot and everything that
/// asks for a common position; a copy into the way that refused it that is told nothing; and a table that takes the place of
/// one that was renamed (P86, P88).
#[test]
fn a_table_that_its_destination_cannot_hold_is_parked_and_copied_once_it_can() {
    let config = r#"
data_dir: ./data
server: { listen: "127.0.0.1:0" }
process: { drain_timeout: 20s }
pipelines:
  shop:
    from: { postgres: { url: "{url}", tables: { "public.*": {} } } }
    to: { delta: { path: "./lake/{table}", commit_every: 300ms } }
    checkpoint: { interval: 200ms }
"#;
    let odd = r#"CREATE TABLE odd (id int PRIMARY KEY, "a;b" int); INSERT INTO odd SELECT g, g FROM generate_series(1, 100) g;"#;
    let shop = Shop::start_on(&[], &format!("{TABLES} {odd}"), config);
    let running = shop.site.serve();
    shop.wait_for_phase(&running, "public.odd", "parked");
    let goes_on = |item: &str| {
        shop.psql(&format!("INSERT INTO orders SELECT coalesce(max(id), 0) + 1, '{item}', 1 FROM orders"));
        shop.wait_until_landed(ORDERS.0, ORDERS.1, ORDERS.2);
        verified(&shop, &running);
    };
    let why = |code: &str| {
        let until = std::time::Instant::now() + COMMAND_WITHIN;
        loop {
            let listed = shop.list(&["--server", running.address()]);
            let table = listed["tables"].as_array().expect("tables").iter().find(|one| one["name"] == "public.odd");
            if table.is_some_and(|table| table["parked"]["code"] == code) {
                return;
            }
            assert!(std::time::Instant::now() < until, "not {code}: {listed}");
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    };
    why("LF-DT0003");
    goes_on("beside a refused name");
    let equal = || {
        let args = ["verify", "landfall.yaml", "shop", "public.odd", "--server", running.address()];
        shop.site.landfall(args).run(COMMAND_WITHIN).expect("verify ends").expect_code(0).expect("equal");
    };

    shop.psql(r#"ALTER TABLE odd RENAME COLUMN "a;b" TO ab; INSERT INTO odd VALUES (101, 101)"#);
    order(&shop, &running, &["resync", "public.odd", "--confirm"]).expect_code(0).expect("ordered");
    shop.wait_for_phase(&running, "public.odd", "streaming");
    equal();

    shop.psql("ALTER TABLE odd ALTER COLUMN ab TYPE text USING ab::text; INSERT INTO odd VALUES (102, 'x')");
    why("LF-PG0501");
    for _ in 0..2 {
        // The Delta table has numbers there: told each time, and nothing waits.
        order(&shop, &running, &["resync", "public.odd", "--confirm"]).expect_code(0).expect("ordered");
        why("LF-DT0005");
        goes_on("beside a refused type");
    }
    // Copy and stream are both told, and either may be first.
    let parks =
        |line: &&str| line.contains("table parked") && line.contains("public.odd") && line.contains("LF-DT0005");
    let told = running.stderr().lines().filter(parks).count();
    assert_eq!(told, 2, "a park is told once\n{}", running.stderr());

    shop.psql(
        "ALTER TABLE orders RENAME TO bills; CREATE TABLE orders (id bigint PRIMARY KEY, item text NOT NULL, qty int)",
    );
    order(&shop, &running, &["add", "public.orders", "--confirm"]).expect_code(0).expect("ordered");
    shop.wait_for_phase(&running, "public.orders", "parked");

    // Dropped and made again, a table goes on in its place.
    shop.psql(
        "DROP TABLE lines; CREATE TABLE lines (order_id bigint, n int, price numeric(10,2), PRIMARY KEY (order_id, n));
         ALTER TABLE lines REPLICA IDENTITY FULL; INSERT INTO lines VALUES (7, 7, 7)",
    );
    order(&shop, &running, &["add", "public.lines", "--confirm"]).expect_code(0).expect("ordered");
    let until = std::time::Instant::now() + COMMAND_WITHIN;
    loop {
        let args = ["verify", "landfall.yaml", "shop", "public.lines", "--server", running.address()];
        let ended = shop.site.landfall(args).run(COMMAND_WITHIN).expect("verify ends");
        if ended.code() == Some(0) {
            break;
        }
        assert!(std::time::Instant::now() < until, "{}{}", ended.stdout, ended.stderr);
    }
    end_well(running);
}
