//! A copy that is cut while its table is written to: its connections end at the server's side, again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::capture::{Shop, end_well};
use crate::site::COMMAND_WITHIN;

/// Several ranges of the smallest size; no column of it could be left out by an update.
const WIDE: &str = "
    CREATE TABLE orders (id int PRIMARY KEY, n bigint NOT NULL, a uuid, b uuid, c uuid, d uuid);
    INSERT INTO orders SELECT g, 0, x, x, x, x FROM generate_series(1, 200000) g, gen_random_uuid() x;
    CREATE SCHEMA aside;
    CREATE FUNCTION aside.cut(wanted int, with_slot bool) RETURNS int LANGUAGE plpgsql AS $$
    DECLARE victim int; cuts int := 0; until timestamptz := clock_timestamp() + interval '5 s';
    BEGIN
      WHILE cuts < wanted AND clock_timestamp() < until LOOP
        PERFORM pg_stat_clear_snapshot();
        SELECT pid INTO victim FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY (SELECT%';
        IF FOUND THEN
          IF with_slot THEN
            PERFORM pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE temporary;
          END IF;
          cuts := cuts + pg_terminate_backend(victim, 5000)::int;
        END IF;
        PERFORM pg_sleep(0.005);
      END LOOP;
      RETURN cuts;
    END $$;";

const CONFIG: &str = r#"
data_dir: ./data
server: { listen: "127.0.0.1:0" }
process: { drain_timeout: 20s }
pipelines:
  shop:
    from:
      postgres:
        url: "{url}"
        tables: { "public.orders": {} }
        snapshot: { range: 8MiB, connections: 1 }
    to: { delta: { path: "./lake/{table}", commit_every: 200ms } }
    checkpoint: { interval: 200ms }
"#;

/// Catches a range that begins anew with rows it has handed over, a copy under another snapshot that leaves rows of the one
/// before, and a change that is streamed beside either and comes twice or not at all (P54, P56, P60, I9).
#[test]
fn a_copy_that_is_cut_under_load_leaves_no_row_twice() {
    let shop = Arc::new(Shop::start_on(&[("max_slot_wal_keep_size", "10GB")], WIDE, CONFIG));
    let running = shop.site.serve();
    shop.wait_for_phase(&running, "public.orders", "streaming");
    let stop = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (shop, stop) = (Arc::clone(&shop), Arc::clone(&stop));
        move || {
            let mut turn: u64 = 0;
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                let updates: Vec<String> = (0..40)
                    .map(|n| {
                        format!("UPDATE orders SET n = n + 1 WHERE id = {};", 1 + (turn * 7_919 + n * 6_007) % 200_000)
                    })
                    .collect();
                shop.psql(&updates.join("\n"));
            }
            turn
        }
    });
    // The connection alone: the range goes on. With the snapshot: the copy begins anew.
    for with_slot in [false, true] {
        let mut cuts: u32 = 0;
        while cuts < 3 {
            let resync = ["resync", "public.orders", "--confirm", "--server", running.address()];
            shop.order(&resync).expect_code(0).expect("ordered");
            let cut = shop.psql(&format!("SELECT aside.cut({}, {with_slot})", 3 - cuts));
            cuts += cut.parse::<u32>().expect("a number");
        }
        shop.wait_for_phase(&running, "public.orders", "streaming");
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.join().expect("the writer ends") > 0, "there was load");
    let said = running.stderr();
    assert!(said.contains("the range goes on after the rows it has issued"), "{said}");

    let args = ["verify", "landfall.yaml", "shop", "--server", running.address()];
    let ended = shop.site.landfall(args).run(COMMAND_WITHIN).expect("verify ends");
    ended.expect_code(0).expect("equal");
    shop.assert_each_once("orders", "id");
    let streamed = "SELECT _commit_lsn, _seq, count(*) AS n FROM orders WHERE _op <> 's' GROUP BY _commit_lsn, _seq HAVING count(*) > 1";
    assert_eq!(shop.query(streamed).expect("the table is read"), Vec::<Value>::new());
    let points = "SELECT DISTINCT _commit_lsn FROM orders WHERE _op = 's'";
    assert_eq!(shop.query(points).expect("the table is read").len(), 1, "the rows of one copy");
    end_well(running);
}
