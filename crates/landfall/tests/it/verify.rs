//! `landfall verify` against a real Postgres and the tables that the binary lands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use landfall_testkit::{Ended, HttpClient, Postgres, PostgresInstall, Running};

use crate::site::{COMMAND_WITHIN, LAND_WITHIN, Site};

const SHOP: &str = "
    CREATE TYPE colour AS ENUM ('red', 'green');
    CREATE TABLE items (
        shop int, line text, colour colour, cents numeric(12,2), tags text[], details jsonb, at timestamptz, share real,
        PRIMARY KEY (shop, line));
    ALTER TABLE items REPLICA IDENTITY FULL;
    CREATE TABLE notes (id uuid PRIMARY KEY, note varchar(50), at date);
    ALTER TABLE notes ALTER COLUMN note SET STORAGE PLAIN;
    INSERT INTO items SELECT n / 3, 'line ' || n % 3, (ARRAY['red','green']::colour[])[1 + n % 2], n / 7.0,
        CASE WHEN n % 5 > 0 THEN ARRAY['a', NULL, n::text] END, jsonb_build_object('n', n), timestamptz '2026-01-01' + n * interval '1 s', n / 3.0
      FROM generate_series(1, 3000) n;
    INSERT INTO notes SELECT gen_random_uuid(), 'note ' || n, date '2026-01-01' + n FROM generate_series(1, 500) n;";

/// A database, a directory, and the binary between them.
struct Shop {
    postgres: Postgres,
    site: Site,
}

impl Shop {
    fn open() -> Shop {
        let postgres = Postgres::start(&PostgresInstall::any().expect("a Postgres")).expect("it starts");
        let url = postgres.create_database("shop").expect("a database");
        postgres.psql("shop", SHOP).expect("the tables");
        let config = format!(
            "data_dir: ./data\nserver: {{ listen: \"127.0.0.1:0\" }}\nprocess: {{ drain_timeout: 15s }}\npipelines:\n  shop:\n    \
             from: {{ postgres: {{ url: \"{url}\", feedback_interval: 1s, schema: {{ poll: 1h }}, tables: {{ \"public.*\": {{}} }} }} }}\n    \
             to: {{ delta: {{ path: \"./lake/{{table}}\", commit_every: 300ms }} }}\n    \
             checkpoint: {{ interval: 200ms }}\n    on_error: dead_letter\n"
        );
        Shop { postgres, site: Site::with(&config) }
    }

    /// A process that has copied both tables and follows them.
    fn follow(&self) -> Running {
        let running = self.site.serve();
        let mut http = HttpClient::new(running.address());
        let until = Instant::now() + LAND_WITHIN;
        loop {
            let status = http.get("/v1/status").expect("an answer").json().expect("JSON");
            let tables = status["pipelines"][0]["source"]["tables"].as_array().cloned().unwrap_or_default();
            if tables.iter().filter(|table| table["phase"] == "streaming").count() == 2 {
                return running;
            }
            assert!(Instant::now() < until, "the tables are not followed: {status}\n{}", running.stderr());
            // Another process's progress: asked for with a pause, bounded above.
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn sql(&self, statements: &str) {
        self.postgres.psql("shop", statements).expect("the statements run");
    }

    fn verify(&self, server: Option<&Running>, more: &[&str]) -> Ended {
        let mut args = vec!["verify", "landfall.yaml", "shop", "--json"];
        if let Some(running) = server {
            args.extend(["--server", running.address()]);
        }
        args.extend(more);
        self.site.landfall(args).run(COMMAND_WITHIN).expect("it ends")
    }
}

fn tables(ended: &Ended) -> Vec<serde_json::Value> {
    let verdict = ended.last_json().expect("an object");
    verdict["tables"].as_array().expect("tables").clone()
}

/// Catches a cell, a row that is missing and one that is extra, each of a change that never came through; values shown
/// where nobody asked for them; and an exit code that a script would take for equal.
#[test]
fn verify_finds_one_changed_cell() {
    let shop = Shop::open();
    let running = shop.follow();
    shop.verify(Some(&running), &[]).expect_code(0).expect("equal at first");
    // What happens while a table is not published is not sent: the target cannot know of it.
    let unseen = |statement: &str| {
        shop.sql(&format!(
            "BEGIN; ALTER PUBLICATION landfall_shop DROP TABLE items; COMMIT; BEGIN; {statement}; COMMIT; \
             ALTER PUBLICATION landfall_shop ADD TABLE items"
        ));
    };
    unseen("UPDATE items SET cents = 12345.67 WHERE shop = 100 AND line = 'line 1'");
    let ended = shop.verify(Some(&running), &[]).expect_code(1).expect("unequal");
    let items = tables(&ended).into_iter().find(|table| table["table"] == "public.items").expect("items");
    assert_eq!(items["verdict"], "unequal");
    assert_eq!(
        (items["missing"].as_u64(), items["extra"].as_u64(), items["different"].as_u64()),
        (Some(0), Some(0), Some(1))
    );
    let row =
        serde_json::json!([{"kind": "different", "key": {"shop": "100", "line": "line 1"}, "columns": ["cents"]}]);
    assert_eq!(items["rows"], row);
    assert!(!ended.stdout.contains("12345.67"), "values are shown only where they are asked for");

    let shown = shop.verify(Some(&running), &["items", "--show-values"]).expect_code(1).expect("unequal");
    let items = tables(&shown);
    assert_eq!(items.len(), 1, "only the table that was named");
    assert_eq!(items[0]["rows"][0]["source"]["cents"], "12345.67");
    assert_eq!(items[0]["rows"][0]["target"]["cents"], "43.00");

    unseen(
        "DELETE FROM items WHERE shop = 200 AND line = 'line 0'; INSERT INTO items (shop, line) VALUES (9999, 'new')",
    );
    let ended = shop.verify(Some(&running), &[]).expect_code(1).expect("unequal");
    let items = tables(&ended).into_iter().find(|table| table["table"] == "public.items").expect("items");
    assert_eq!(
        (items["missing"].as_u64(), items["extra"].as_u64(), items["different"].as_u64()),
        (Some(1), Some(1), Some(1))
    );
    // One row more and one less: counts alone do not see it, which is why they are not the default.
    shop.verify(Some(&running), &["--counts"]).expect_code(0).expect("equal counts");
    shop.sql("DELETE FROM notes WHERE at < date '2026-02-01'");
    shop.verify(Some(&running), &["notes"]).expect_code(0).expect("a change that came through is no difference");
    running.terminate(COMMAND_WITHIN).expect("it ends");
}

/// Catches a verdict that depends on changes which go on on either side of the position.
#[test]
fn verify_is_quiet_under_load() {
    let shop = Arc::new(Shop::open());
    let running = shop.follow();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..2)
        .map(|number| {
            let (shop, stop) = (shop.clone(), stop.clone());
            std::thread::spawn(move || {
                // The writers' rows are apart, by odd and even shops: they never wait for each other in a circle.
                let mut turn = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    turn += 1;
                    shop.sql(&format!(
                        "BEGIN; INSERT INTO items (shop, line, cents) SELECT 100000 + {turn} * 2 + {number}, l::text, {turn} FROM generate_series(1, 20) l; COMMIT;
                         BEGIN; UPDATE items SET cents = cents + 1, tags = tags || 'x'::text WHERE shop % 2 = {number} AND shop % 50 / 2 = {turn} % 25; COMMIT;
                         BEGIN; UPDATE items SET line = line || '+' WHERE shop = {turn} * 10 + {number}; DELETE FROM items WHERE shop = {turn} * 14 + {number}; COMMIT;
                         DELETE FROM notes WHERE id IN (SELECT id FROM notes LIMIT 1)"
                    ));
                }
                turn
            })
        })
        .collect();
    for _ in 0..3 {
        let ended = shop.verify(Some(&running), &[]).expect_code(0).expect("equal under load");
        assert!(tables(&ended).iter().all(|table| table["verdict"] == "equal"), "{}", ended.stdout);
    }
    stop.store(true, Ordering::Relaxed);
    let turns: u64 = writers.into_iter().map(|writer| writer.join().expect("the writer ends")).sum();
    assert!(turns > 2, "there was load: {turns}");
    let ended = shop.verify(Some(&running), &[]).expect_code(0).expect("equal once it is quiet");
    assert!(tables(&ended).iter().all(|table| table["source_rows"] == table["target_rows"]), "{}", ended.stdout);
    running.terminate(COMMAND_WITHIN).expect("it ends");
}

/// Catches a stopped pipeline that is called equal while its slot holds changes, and one that is called behind though
/// nothing has happened.
#[test]
fn a_stopped_pipeline_is_compared_only_where_it_has_everything() {
    let shop = Shop::open();
    let running = shop.follow();
    shop.sql("UPDATE items SET cents = 1 WHERE shop = 1");
    shop.verify(Some(&running), &[]).expect_code(0).expect("equal");
    running.terminate(COMMAND_WITHIN).expect("it ends");
    shop.verify(None, &[]).expect_code(0).expect("nothing has happened since");
    shop.sql("CREATE TABLE elsewhere (id int); INSERT INTO elsewhere SELECT generate_series(1, 1000)");
    shop.verify(None, &["items", "notes"]).expect_code(0).expect("nothing of these tables has happened since");
    shop.sql("UPDATE items SET cents = 2 WHERE shop = 1");
    let ended = shop.verify(None, &[]).expect_code(2).expect("it could not be said");
    assert!(ended.stderr.contains("start `landfall run`"), "{}", ended.stderr);
    let wrong = shop.verify(None, &["no_such"]);
    assert_eq!(wrong.code(), Some(2), "{}", wrong.stderr);
}
