//! One large transaction through the binary into Delta: memory that does not grow with it (P101, F-M3).

use std::time::{Duration, Instant};

use landfall_testkit::{HttpClient, Postgres, PostgresInstall, Running, balance_of};

use crate::random::number_of_run;
use crate::site::{COMMAND_WITHIN, LAND_WITHIN, Site};

/// What both runs may differ by: buffers that a short run does not fill. 5,000,000 rows of 100 B would be 500 MB alone.
const GROWTH_MAX: u64 = 192 << 20;
/// The transaction that it is compared with.
const SMALL_ROWS: u64 = 50_000;
/// Rows a second below which something is broken, on a busy machine too.
const ROWS_PER_SECOND_MIN: u64 = 2_000;

struct Bed {
    server: Postgres,
    site: Site,
}

impl Bed {
    fn new() -> Bed {
        let install = PostgresInstall::any().expect("a Postgres");
        let server = Postgres::start(&install).expect("the server starts");
        let url = server.create_database("shop").expect("a database");
        let table =
            "CREATE TABLE moves (id bigint PRIMARY KEY, account int NOT NULL, delta bigint, filler varchar(100));
             ALTER TABLE moves ALTER COLUMN filler SET STORAGE PLAIN;";
        server.psql("shop", table).expect("the table");
        let config = format!(
            "data_dir: ./data\nserver: {{ listen: \"127.0.0.1:0\" }}\nprocess: {{ drain_timeout: 60s }}\npipelines:\n  shop:\n    \
             from: {{ postgres: {{ url: \"{url}\", tables: {{ public.moves: {{}} }} }} }}\n    \
             to: {{ delta: {{ path: ./lake/moves, commit_every: 1s }} }}\n"
        );
        Bed { server, site: Site::with(&config) }
    }

    /// One transaction of so many rows through a process of its own; gives the peak of its resident memory.
    fn carry(&self, first: u64, rows: u64) -> u64 {
        let running = self.site.serve();
        // Where the process stands before it has anything to do is no part of what the transaction costs.
        wait_until_streaming(&running);
        let mut http = HttpClient::new(running.address());
        // A first copy of an empty table says so by a row.
        let before = balance_of(&mut http, "shop").expect("balanced")[0].delivered;
        let insert = format!(
            "INSERT INTO moves SELECT n, n % 1000, n, 'one of many rows of one transaction, ' || n FROM generate_series({first}, {}) n",
            first + rows - 1
        );
        self.server.psql("shop", &insert).expect("the transaction commits");
        let within = Duration::from_secs(60 + rows / ROWS_PER_SECOND_MIN);
        let began = Instant::now();
        loop {
            let balances = balance_of(&mut http, "shop").expect("balanced");
            if balances[0].delivered == before + rows && balances[0].in_flight == 0 {
                break;
            }
            assert!(began.elapsed() < within, "{balances:?}\n{}", running.stderr());
            // Another process's progress: asked for with a pause, bounded above.
            std::thread::sleep(Duration::from_millis(100));
        }
        let peak = running.peak_memory().expect("its status");
        println!(
            "{rows} rows in one transaction: {} MiB at the peak, landed {:?} after the commit",
            peak >> 20,
            began.elapsed()
        );
        let ended = running.terminate(LAND_WITHIN).expect("the process drains");
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        peak
    }
}

fn wait_until_streaming(running: &Running) {
    let mut http = HttpClient::new(running.address());
    let until = Instant::now() + LAND_WITHIN;
    loop {
        let status = http.get("/v1/status").expect("an answer").json().expect("JSON");
        if status["pipelines"][0]["source"]["tables"][0]["phase"] == "streaming" {
            return;
        }
        assert!(Instant::now() < until, "the table is not followed: {status}\n{}", running.stderr());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Catches a transaction that is held in memory as a whole, one that is cut short, and rows of it that land twice (P101).
#[test]
fn a_large_transaction_takes_no_more_memory_than_a_small_one() {
    let rows = number_of_run("LANDFALL_LARGE_ROWS", 500_000);
    println!("LANDFALL_LARGE_ROWS={rows}");
    let bed = Bed::new();
    let small = bed.carry(1, SMALL_ROWS);
    let large = bed.carry(SMALL_ROWS + 1, rows);
    let growth = large.saturating_sub(small);
    assert!(growth <= GROWTH_MAX, "{} MiB more for {rows} rows than for {SMALL_ROWS}", growth >> 20);
    let table = format!("moves={}", bed.site.path("lake/moves").display());
    let query = "SELECT count(*) AS n, count(DISTINCT id) AS ids, max(_seq) AS last FROM moves WHERE _op <> 't'";
    let ended = bed.site.landfall(["query", query, "-o", "json", "--table", &table]).run(COMMAND_WITHIN);
    let counted = ended.expect("the query ends").expect_code(0).expect("counted").last_json().expect("JSON");
    let all = rows + SMALL_ROWS;
    assert_eq!(counted, serde_json::json!({"n": all, "ids": all, "last": rows.max(SMALL_ROWS)}));
}
