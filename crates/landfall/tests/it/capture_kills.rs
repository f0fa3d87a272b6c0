//! The capture's oracle (T4): random work on a real Postgres, `kill -9` of the binary and of the server at random moments,
//! judged row for row by `SELECT`, by `verify`, by an independent Delta reader, and by what triggers noted at the source.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use landfall_testkit::{HttpClient, Postgres, PostgresInstall, Running, balance_of};
use serde_json::{Map, Value};

use crate::random::{Random, number_of_run};
use crate::site::{COMMAND_WITHIN, LAND_WITHIN, Site, python};

/// Each table with its key.
const TABLES: [(&str, &str); 4] = [("plain", "id"), ("pair", "a,b"), ("big", "id"), ("parts", "id,region")];

/// Rows enough that a kill falls into the first copy; an UPDATE of `big` leaves its large column alone more often than not.
const SCHEMA: &str = "
    CREATE TABLE plain (id int PRIMARY KEY, n bigint);
    CREATE TABLE pair (a int, b text, n bigint, PRIMARY KEY (a, b));
    CREATE TABLE big (id text PRIMARY KEY, n int, body text);
    ALTER TABLE big REPLICA IDENTITY FULL;
    ALTER TABLE big ALTER COLUMN body SET STORAGE EXTERNAL;
    CREATE TABLE parts (id int, region text, n int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
    CREATE TABLE parts_north PARTITION OF parts FOR VALUES IN ('north');
    CREATE TABLE parts_rest PARTITION OF parts DEFAULT;
    INSERT INTO plain SELECT n, n FROM generate_series(1, 40000) n;
    INSERT INTO pair SELECT n, 'k' || n % 7, n FROM generate_series(1, 5000) n;
    INSERT INTO big SELECT n::text, n, repeat('w', 4000) FROM generate_series(1, 600) n;
    INSERT INTO parts SELECT n, (ARRAY['north', 'south'])[1 + n % 2], n FROM generate_series(1, 3000) n;

    CREATE SCHEMA audit;
    CREATE TABLE audit.changes (xid bigint, of_table text, op text, at pg_lsn);
    CREATE FUNCTION audit.note() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE moved boolean := false; of_key text;
    BEGIN
      IF TG_OP = 'UPDATE' THEN
        FOREACH of_key IN ARRAY TG_ARGV[1:] LOOP
          moved := moved OR to_jsonb(OLD) -> of_key IS DISTINCT FROM to_jsonb(NEW) -> of_key;
        END LOOP;
      END IF;
      INSERT INTO audit.changes SELECT txid_current(), TG_ARGV[0], op, pg_current_wal_insert_lsn()
        FROM unnest(CASE TG_OP WHEN 'INSERT' THEN '{i}' WHEN 'DELETE' THEN '{d}' WHEN 'TRUNCATE' THEN '{t}'
                    ELSE CASE WHEN moved THEN '{d,i}' ELSE '{u}' END END::text[]) op;
      RETURN NULL;
    END $$;";

/// From when on a process lives for a random while.
#[derive(Clone, Copy, PartialEq)]
enum Since {
    Start,
    Listening,
    /// Every table is copied and followed.
    Followed,
}

struct Bed {
    server: Postgres,
    site: Site,
    random: Random,
    added: u32,
    prepared: u32,
}

impl Bed {
    fn new(mut random: Random) -> Bed {
        let mut installs = PostgresInstall::oldest_and_newest().expect("a Postgres");
        let install = installs.swap_remove(random.below(installs.len() as u64) as usize);
        println!("Postgres {}", install.major());
        let server = Postgres::start(&install).expect("the server starts");
        let url = server.create_database("shop").expect("a database");
        server.psql("shop", SCHEMA).expect("tables");
        for (table, key) in TABLES {
            let quoted = key.split(',').map(|column| format!(", '{column}'")).collect::<String>();
            let triggers = format!(
                "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION audit.note('{table}'{quoted});
                 CREATE TRIGGER note_all AFTER TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION audit.note('{table}');"
            );
            server.psql("shop", &triggers).expect("triggers");
        }
        let config = format!(
            "data_dir: ./data\nserver: {{ listen: \"127.0.0.1:0\" }}\nprocess: {{ drain_timeout: 20s }}\npipelines:\n  shop:\n    \
             from: {{ postgres: {{ url: \"{url}\", feedback_interval: 1s, tables: {{ \"public.*\": {{}} }} }} }}\n    \
             to: {{ delta: {{ path: \"./lake/{{table}}\", commit_every: 200ms }} }}\n    \
             checkpoint: {{ interval: 100ms }}\n"
        );
        Bed { server, site: Site::with(&config), random, added: 0, prepared: 0 }
    }

    fn psql(&self, sql: &str) -> String {
        self.server.psql("shop", sql).expect("the statement runs")
    }

    /// One piece of work; each is a transaction or several, in an order that the server's log repeats.
    fn work(&mut self) -> String {
        let n = self.random.below(45_000) + 1;
        let m = self.random.below(45_000) + 1;
        let small = n % 700;
        match self.random.below(17) {
            0 => format!(
                "INSERT INTO plain (id, n) SELECT g, -1 FROM generate_series({n}, {}) g ON CONFLICT DO NOTHING;",
                n + 200
            ),
            1 => format!("UPDATE plain SET n = n + 1 WHERE id % 211 = {};", n % 211),
            2 => format!("DELETE FROM plain WHERE id BETWEEN {n} AND {};", n + 60),
            3 => format!(
                "UPDATE plain SET id = id + 100000 WHERE id = {n} AND NOT EXISTS (SELECT FROM plain WHERE id = {n} + 100000);"
            ),
            4 => format!(
                "BEGIN; UPDATE plain SET id = -1 WHERE id = {n}; UPDATE plain SET id = {n} WHERE id = {m}; UPDATE plain SET id = {m} WHERE id = -1; COMMIT;"
            ),
            5 => format!(
                "BEGIN; INSERT INTO pair VALUES ({n}, 'new', 1) ON CONFLICT DO NOTHING; SAVEPOINT s; UPDATE pair SET n = n + 1 WHERE a < {small}; ROLLBACK TO s; UPDATE pair SET n = -n WHERE a = {n}; COMMIT;"
            ),
            6 => format!("BEGIN; DELETE FROM pair WHERE a < {n}; ROLLBACK;"),
            7 => format!(
                "DELETE FROM pair WHERE a % 97 = {}; INSERT INTO pair SELECT g, 'again', g FROM generate_series({small}, {small} + 30) g ON CONFLICT DO NOTHING;",
                n % 97
            ),
            8 => "BEGIN; TRUNCATE pair; INSERT INTO pair SELECT g, 't', g FROM generate_series(1, 50) g; COMMIT;"
                .to_owned(),
            9 => format!("UPDATE big SET n = n + 1 WHERE id IN ('{small}', '{}');", m % 700),
            10 => format!(
                "UPDATE big SET id = id || 'x' WHERE id = '{small}' AND length(id) < 20 AND NOT EXISTS (SELECT FROM big WHERE id = '{small}x');"
            ),
            11 => format!(
                "INSERT INTO big VALUES ('{small}', 0, repeat('b', {n})) ON CONFLICT (id) DO UPDATE SET body = repeat('c', {m}), n = NULL;"
            ),
            12 => format!(
                "BEGIN; UPDATE parts SET region = CASE region WHEN 'north' THEN 'east' ELSE 'north' END WHERE id = {0} AND (SELECT count(*) FROM parts p WHERE p.id = {0}) = 1; DELETE FROM parts WHERE id = {1}; COMMIT;",
                n % 3_000,
                m % 3_000
            ),
            13 => format!(
                "INSERT INTO parts (id, region, n) SELECT g, 'south', {m} FROM generate_series({}, {}) g ON CONFLICT (id, region) DO UPDATE SET n = excluded.n;",
                n % 3_000,
                n % 3_000 + 20
            ),
            14 if self.added < 6 => {
                self.added += 1;
                let column = format!("extra_{}", self.added);
                format!(
                    "BEGIN; ALTER TABLE plain ADD COLUMN {column} int; UPDATE plain SET {column} = {m} WHERE id % 307 = {}; COMMIT;",
                    n % 307
                )
            }
            15 => {
                self.prepared += 1;
                let name = format!("held_{}", self.prepared);
                format!(
                    "BEGIN; UPDATE parts SET n = {m} WHERE id = {}; INSERT INTO big VALUES ('p{m}', 1, NULL) ON CONFLICT DO NOTHING; PREPARE TRANSACTION '{name}'; COMMIT PREPARED '{name}';",
                    n % 3_000
                )
            }
            // Over several rounds of the lane, and of all tables at once.
            _ => format!(
                "BEGIN; UPDATE plain SET n = {m} WHERE id % 10 = {}; UPDATE pair SET n = {m} WHERE a % 5 = 0; UPDATE big SET n = {m} WHERE n % 9 = 0; COMMIT;",
                n % 10
            ),
        }
    }

    /// Runs the binary and kills it, so long after it has come to `since`, and amid work if `works`. Gives what it was at.
    fn live_and_be_killed(&mut self, alive: Duration, since: Since, works: bool) -> &'static str {
        let running = match since {
            Since::Start => self.site.landfall(["run", "landfall.yaml"]).start().expect("it starts"),
            Since::Listening | Since::Followed => self.site.serve(),
        };
        if since == Since::Followed {
            self.wait_until_followed(&running);
        }
        // The moment of the kill is what is random here, so there is nothing to wait for.
        let killer = std::thread::spawn(move || {
            std::thread::sleep(alive);
            let said = running.stderr();
            running.kill().expect("it is killed");
            said
        });
        // In two lives of three the server is struck down too, after some of the work, and comes back under the process.
        let struck_after = [4, 10, u64::MAX][self.random.below(3) as usize];
        let mut pieces = 0;
        while works && !killer.is_finished() {
            let work = self.work();
            self.psql(&work);
            pieces += 1;
            if pieces == struck_after {
                self.server.kill().expect("the server is killed");
                self.server.start_again().expect("the server recovers");
            }
        }
        let said = killer.join().expect("the killer ends");
        assert!(!said.contains("panicked"), "{said}");
        match (said.contains("listening on"), said.contains("streaming")) {
            (false, _) => "start",
            (true, false) => "connect or copy",
            (true, true) => "stream",
        }
    }

    /// Runs until every table is followed and equal, whatever was left behind, and then ends in order.
    fn drain(&self) {
        let running = self.site.serve();
        self.wait_until_followed(&running);
        let args = ["verify", "landfall.yaml", "shop", "--json", "--server", running.address()];
        let ended = self.site.landfall(args).run(COMMAND_WITHIN).expect("verify ends");
        assert_eq!(ended.code(), Some(0), "{}\n{}\n{}", ended.stdout, ended.stderr, running.stderr());
        let balances = balance_of(&mut HttpClient::new(running.address()), "shop").expect("balanced");
        assert!(balances.iter().all(|balance| balance.dead_lettered == 0), "{balances:?}");
        let ended = running.terminate(LAND_WITHIN).expect("the process drains");
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    }

    fn wait_until_followed(&self, running: &Running) {
        let mut http = HttpClient::new(running.address());
        let until = Instant::now() + LAND_WITHIN;
        loop {
            let status = http.get("/v1/status").expect("an answer").json().expect("JSON");
            let tables = status["pipelines"][0]["source"]["tables"].as_array().cloned().unwrap_or_default();
            if tables.iter().filter(|table| table["phase"] == "streaming").count() == TABLES.len() {
                return;
            }
            assert!(Instant::now() < until, "the tables are not followed: {status}\n{}", running.stderr());
            // Another process's progress: asked for with a pause, bounded above.
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Compares every table with the source, and its change rows with what the triggers noted.
    fn judge(&self) {
        let place = |table: &str| self.site.path(&format!("lake/public.{table}"));
        let state = |table: &str| self.site.path(&format!("{table}.state"));
        let args = TABLES.iter().flat_map(|(table, key)| [place(table), key.into(), state(table)]);
        let verdicts = python().run("change_table.py", args, COMMAND_WITHIN).expect("the tables are read");
        for ((table, key), verdict) in TABLES.into_iter().zip(verdicts["tables"].as_array().expect("verdicts")) {
            assert_eq!(verdict["doubles"], 0, "{table} has changes twice: {verdict}");
            assert_eq!(verdict["holes"], 0, "{table} has rows that are no whole change: {verdict}");
            let points = verdict["points"].as_array().expect("points");
            assert_eq!(points.len(), 1, "{table} has the rows of one copy: {points:?}");
            let landed = std::fs::read_to_string(state(table)).expect("the state is read");
            let source = self.psql(&format!("SELECT row_to_json(t) FROM {table} t"));
            let (landed, source) = (by_key(&landed, key), by_key(&source, key));
            let differs: Vec<_> = landed
                .keys()
                .chain(source.keys())
                .collect::<BTreeSet<_>>()
                .into_iter()
                .filter(|key| landed.get(*key) != source.get(*key))
                .map(|key| (key, landed.get(key), source.get(key)))
                .collect();
            let first: Vec<_> = differs.iter().take(3).collect();
            assert!(differs.is_empty(), "{table}: {} rows differ, landed and source: {first:?}", differs.len());
            println!("{table}: {} rows, {} below the copy", verdict["rows"], verdict["passed"]);
            self.judge_changes(table, points[0].as_u64().expect("a position"), &verdict["changes"]);
        }
    }

    /// Every change of every transaction behind the copy is there, and none besides; what streamed below it is not judged. One session does all work, so the
    /// transactions' numbers are in the order of their commits.
    fn judge_changes(&self, table: &str, point: u64, landed: &Value) {
        let landed = landed.as_object().expect("transactions");
        let noted = self.psql(&format!(
            "SELECT xid, op, count(*), max(at) - '0/0' FROM audit.changes WHERE of_table = '{table}' GROUP BY xid, op ORDER BY xid, op"
        ));
        let mut of_source: BTreeMap<u64, (u64, BTreeMap<String, u64>)> = BTreeMap::new();
        for line in noted.lines() {
            let fields: Vec<&str> = line.split('|').collect();
            let [xid, op, count, at] = fields[..] else { panic!("four columns: {line}") };
            let number = |text: &str| text.parse::<u64>().expect("a number");
            let (last, counts) = of_source.entry(number(xid)).or_default();
            *last = (*last).max(number(at));
            counts.insert(op.to_owned(), number(count));
        }
        let mut is_behind_the_copy = false;
        let mut seen = 0;
        for (xid, (at, counts)) in &of_source {
            let found = landed.get(&xid.to_string());
            // Of the one transaction around the copy's point only the stream itself knows on which side it is.
            is_behind_the_copy |= found.is_some() || *at >= point;
            if !is_behind_the_copy {
                continue;
            }
            let found = found.unwrap_or_else(|| panic!("{table}: transaction {xid} is not there: {counts:?}"));
            let found: BTreeMap<String, u64> = serde_json::from_value(found.clone()).expect("counts");
            assert_eq!(&found, counts, "{table}: transaction {xid}");
            seen += 1;
        }
        assert_eq!(seen, landed.len(), "{table}: transactions that the source does not know of");
    }
}

/// Rows as objects without their nulls, by key.
fn by_key(lines: &str, key: &str) -> BTreeMap<String, Map<String, Value>> {
    let row = |line: &str| {
        let row: Map<String, Value> = serde_json::from_str(line).expect("an object");
        let row: Map<String, Value> = row.into_iter().filter(|(_, value)| !value.is_null()).collect();
        let key: Vec<String> = key.split(',').map(|column| row[column].to_string()).collect();
        (key.join(","), row)
    };
    lines.lines().filter(|line| !line.is_empty()).map(row).collect()
}

/// Catches any order of work, kills and restarts after which source and target differ, a change is missing, or stands
/// twice (T4, I7, I8, I9, P44, P56, P98).
#[test]
fn kill_of_a_capture_at_random_moments_loses_and_doubles_no_change() {
    let rounds = number_of_run("LANDFALL_ROUNDS", 6);
    let seed = number_of_run("LANDFALL_SEED", 0x0c0f_fee5);
    println!("LANDFALL_ROUNDS={rounds} LANDFALL_SEED={seed}");
    let began = Instant::now();
    let mut bed = Bed::new(Random(seed.max(1)));
    println!("the source is there, {:?}", began.elapsed());
    for round in 1..=rounds {
        // The first ones fall into the first start and the copy.
        let alive = Duration::from_millis(bed.random.below(if round < 3 { 300 } else { 2_000 }));
        let is_late = round > 3 && bed.random.below(2) == 0;
        let first = bed.live_and_be_killed(alive, if is_late { Since::Followed } else { Since::Listening }, true);
        match bed.random.below(4) {
            0 => {
                bed.server.kill().expect("the server is killed");
                bed.server.start_again().expect("the server recovers");
            }
            1 => bed.server.restart().expect("the server restarts"),
            _ => {}
        }
        // A restart that is killed itself, before or while it reads what the first one left.
        let again = Duration::from_millis(bed.random.below(700));
        let since = if bed.random.below(2) == 0 { Since::Start } else { Since::Listening };
        let second = bed.live_and_be_killed(again, since, false);
        println!("round {round}: killed in {first}, {second}, {:?}", began.elapsed());
        if round % 25 == 0 {
            bed.drain();
            bed.judge();
            println!("round {round}: equal, {:?}", began.elapsed());
        }
    }
    // The server goes away under a running process, and comes back.
    let running = bed.site.serve();
    let work = bed.work();
    bed.psql(&work);
    bed.server.kill().expect("the server is killed");
    bed.server.start_again().expect("the server recovers");
    let work = bed.work();
    bed.psql(&work);
    running.kill().expect("it is killed");
    bed.drain();
    println!("drained, {:?}", began.elapsed());
    bed.judge();
    // Two starts more, one killed and one in order, with nothing to do: what is there already must not come again.
    bed.live_and_be_killed(Duration::from_millis(500), Since::Followed, false);
    let running = bed.site.serve();
    bed.wait_until_followed(&running);
    let ended = running.terminate(LAND_WITHIN).expect("it drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    bed.judge();
    println!("equal, {:?}", began.elapsed());
}
