//! Commands that go on until they are told to stop, and options that the tour of `tools` does not take.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use landfall::storefront;
use landfall_testkit::{HttpClient, unused_port, wait_until_landed};

use crate::site::{COMMAND_WITHIN, LAND_WITHIN, STOREFRONT, Site, read_column};

/// A command that goes on; its lines of stdout as they come. Killed with the test.
struct Going {
    child: Child,
    lines: Receiver<String>,
}

impl Going {
    fn start(site: &Site, args: &[&str]) -> Going {
        let mut command = Command::new(env!("CARGO_BIN_EXE_landfall"));
        command.args(args).current_dir(site.path("")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.env_remove("LANDFALL_SERVER").env_remove("LANDFALL_TOKEN");
        let mut child = command.spawn().expect("the command starts");
        let stdout = child.stdout.take().expect("stdout is piped");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Going { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(COMMAND_WITHIN).expect("a line in time")
    }

    /// SIGINT, as a terminal sends it; gives the exit code.
    fn interrupted(mut self) -> Option<i32> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
        let deadline = Instant::now() + COMMAND_WITHIN;
        loop {
            if let Some(status) = self.child.try_wait().expect("its status") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end");
            // Another process's end: asked for with a pause, bounded above.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn events(numbers: std::ops::Range<u64>) -> String {
    let (mut record, mut text) = (String::new(), String::new());
    for n in numbers {
        storefront::write_record(1, n, &mut record);
        text.push_str(&record);
        text.push('\n');
    }
    text
}

fn published(site: &Site, server: &str, channel: &str, text: &str, more: &[&str]) -> serde_json::Value {
    let file = site.write("published.ndjson", text);
    let file = file.to_str().expect("a path");
    let publish = site.landfall(["publish", channel, "--file", file, "--json", "--server", server]);
    let ended = publish.args(more).run(COMMAND_WITHIN).expect("publish ends").expect_code(0).expect("committed");
    ended.last_json().expect("a summary")
}

fn ended_well(running: landfall_testkit::Running) {
    let ended = running.terminate(Duration::from_secs(30)).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

/// Would catch a follower that stops at the tail, repeats, or mixes lines, and one that a terminal cannot end.
#[test]
fn tail_follows_until_it_is_interrupted() {
    let site = Site::with(STOREFRONT);
    let running = site.serve();
    let server = running.address();
    published(&site, server, "storefront.events", &events(0..50), &[]);
    let tail = Going::start(
        &site,
        &["tail", "storefront.events", "--from", "earliest", "--follow", "-o", "raw", "--server", server],
    );
    let mut seen: Vec<String> = (0..50).map(|_| tail.line()).collect();
    published(&site, server, "storefront.events", &events(50..120), &[]);
    seen.extend((50..120).map(|_| tail.line()));
    seen.sort();
    let mut expected: Vec<String> = events(0..120).lines().map(str::to_owned).collect();
    expected.sort();
    assert_eq!(seen, expected);
    assert_eq!(tail.interrupted(), Some(0));
    ended_well(running);
}

/// Would catch a screen that is drawn once and never again, or that a terminal cannot end.
#[test]
fn top_goes_on_until_it_is_interrupted() {
    let site = Site::with(STOREFRONT);
    let running = site.serve();
    let top = Going::start(&site, &["top", "--server", running.address()]);
    let wait_for = |what: &str| {
        let deadline = Instant::now() + COMMAND_WITHIN;
        loop {
            let line = top.line();
            if line.trim_start().starts_with(what) {
                return line;
            }
            assert!(Instant::now() < deadline, "no line of {what}");
        }
    };
    assert!(wait_for("storefront.events").contains("ok"));
    wait_for("orders");
    published(&site, running.address(), "storefront.events", &events(0..100), &[]);
    let deadline = Instant::now() + LAND_WITHIN;
    while wait_for("orders").split_whitespace().nth(1) != Some("100") {
        assert!(Instant::now() < deadline, "the screen does not show what came in");
    }
    assert_eq!(top.interrupted(), Some(0));
    ended_well(running);
}

/// Would catch a start past the tail that looks like an empty channel.
#[test]
fn tail_says_why_it_shows_nothing() {
    let site = Site::with(STOREFRONT);
    let running = site.serve();
    let server = running.address();
    let tail = |args: &[&str]| {
        let base = ["tail", "storefront.events", "--server", server];
        let ended = site.landfall(base).args(args).run(COMMAND_WITHIN).expect("tail ends").expect_code(0);
        ended.expect("nothing is no error")
    };
    assert!(tail(&[]).stderr.contains("holds no records"));
    published(&site, server, "storefront.events", &events(0..50), &[]);
    let past = tail(&["--partition", "0", "--from", "1000"]);
    assert!(past.stdout.is_empty() && past.stderr.contains("1000 lies past"), "{}", past.stderr);
    assert!(tail(&["--from", "latest"]).stderr.contains("--follow"));
    ended_well(running);
}

/// Would catch records counted as possibly stored although there was nobody to store them (I3).
#[test]
fn what_found_no_server_is_not_stored() {
    let site = Site::with(STOREFRONT);
    let file = site.write("events.ndjson", &events(0..7));
    let server = format!("http://127.0.0.1:{}", unused_port().expect("a port"));
    let publish = ["publish", "storefront.events", "--file", file.to_str().expect("a path"), "--json", "--server"];
    let ended = site.landfall(publish).args([&server]).run(COMMAND_WITHIN).expect("publish ends");
    let summary = ended.expect_code(1).expect("not stored").last_json().expect("a summary");
    assert_eq!((summary["not_stored"].as_u64(), summary["unresolved"].as_u64()), (Some(7), Some(0)), "{summary}");
}

/// Would catch a bad line that takes its neighbours with it, or the account of what was committed before it.
#[test]
fn a_line_without_its_key_is_not_stored_and_its_neighbours_are() {
    let site = Site::with(STOREFRONT);
    let running = site.serve();
    let good = events(0..30);
    let lines: Vec<&str> = good.lines().collect();
    let text = format!("{}\nnot JSON\n{}\n{{\"no\":\"key\"}}\n", lines[..25].join("\n"), lines[25..].join("\n"));
    let file = site.write("events.ndjson", &text);
    let publish = ["publish", "storefront.events", "--batch", "10", "--key-field", "/event_id", "--json", "--file"];
    let publish = site.landfall(publish).args([file.to_str().expect("a path"), "--server", running.address()]);
    let ended = publish.run(COMMAND_WITHIN).expect("publish ends").expect_code(1).expect("two are not stored");
    let summary = ended.last_json().expect("a summary");
    let counted = ["records", "committed", "not_stored", "unresolved"].map(|key| summary[key].as_u64());
    assert_eq!(counted, [Some(32), Some(30), Some(2), Some(0)], "{summary}");
    assert!(
        ended.stderr.contains("line 26 is not JSON") && ended.stderr.contains("line 32 has no"),
        "{}",
        ended.stderr
    );
    // A file that cannot be read on is an error, and what came before it is accounted for.
    let folder = site.path("").display().to_string();
    let publish = ["publish", "storefront.events", "--json", "--file", folder.as_str(), "--server", running.address()];
    let ended = site.landfall(publish).run(COMMAND_WITHIN).expect("publish ends").expect_code(1).expect("a folder");
    assert!(ended.stderr.contains(&folder), "the file is named: {}", ended.stderr);
    assert_eq!(ended.last_json().expect("a summary")["records"].as_u64(), Some(0));
    wait_until_landed(running.address(), "orders", LAND_WITHIN).expect("balanced");
    ended_well(running);
}

/// Would catch a command that goes through all its tries for each request although nobody is there.
#[test]
fn where_nobody_answers_later_requests_are_tried_once() {
    let site = Site::with(STOREFRONT);
    let file = site.write("events.ndjson", &events(0..300));
    let server = format!("http://127.0.0.1:{}", unused_port().expect("a port"));
    let publish = ["publish", "storefront.events", "--batch", "10", "--json", "--server", &server, "--file"];
    let ended =
        site.landfall(publish).args([file.to_str().expect("a path")]).run(COMMAND_WITHIN).expect("it ends in time");
    let summary = ended.expect_code(1).expect("not stored").last_json().expect("a summary");
    assert_eq!(summary["not_stored"].as_u64(), Some(300), "{summary}");
}

/// Would catch letters that change on their way back, come under the letter's own headers, or are stored again by a
/// second run.
#[test]
fn dead_letters_are_published_again_as_they_were() {
    let site = Site::with(STOREFRONT);
    let running = site.serve();
    let server = running.address();
    published(&site, server, "storefront.events", &events(0..3_000), &[]);
    let balances = wait_until_landed(server, "orders", LAND_WITHIN).expect("everything lands");
    assert_eq!(balances[0].dead_lettered, 3, "{balances:?}");
    let again = || {
        let publish = site.landfall(["publish", "--from-dead-letters", "orders", "--json", "--server", server]);
        let ended = publish.run(COMMAND_WITHIN).expect("publish ends").expect_code(0).expect("committed");
        let summary = ended.last_json().expect("a summary");
        ["records", "committed", "duplicates"].map(|key| summary[key].as_u64().expect("a number"))
    };
    assert_eq!(again(), [3, 3, 0]);
    let balances = wait_until_landed(server, "orders", LAND_WITHIN).expect("everything lands");
    assert_eq!((balances[0].taken, balances[0].dead_lettered), (3_003, 6), "still broken, so letters again");
    // Of the six letters, the first three were published again before.
    assert_eq!(again(), [6, 6, 3]);
    let letters = ["tail", "orders", "--dead-letters", "-n", "100", "-o", "raw", "--server", server];
    let letters = site.landfall(letters).run(COMMAND_WITHIN).expect("tail ends").expect_code(0).expect("read").stdout;
    let sent = events(0..3_000);
    for letter in letters.lines() {
        assert!(sent.contains(letter), "a letter's bytes have changed: {letter}");
    }
    wait_until_landed(server, "orders", LAND_WITHIN).expect("balanced");
    ended_well(running);
}

/// Would catch keys that do not route, are not stored, or are not there for a sink's condition; and unknown fields that are
/// not counted.
#[test]
fn a_record_key_routes_and_a_sinks_condition_reads_it() {
    let config = r#"
data_dir: ./data
server: { listen: "127.0.0.1:0" }
process: { drain_timeout: 15s }
channels: { clicks: { partitions: 4 } }
pipelines:
  clicks:
    from: { channel: clicks }
    decode: { json: { unknown: count, schema: { n: bigint not null } } }
    sql: SELECT n FROM input
    to:
      all: { delta: { path: ./lake/all, commit_every: 200ms } }
      seven: { delta: { path: ./lake/seven, commit_every: 200ms, where: "record_key() = '7'" } }
"#;
    let site = Site::with(config);
    let running = site.serve();
    let server = running.address();
    let text: String = (0..300).map(|n| format!("{{\"user\":{{\"id\":{}}},\"n\":{n}}}\n", n % 10)).collect();
    let summary = published(&site, server, "clicks", &text, &["--key-field", "/user/id"]);
    assert_eq!(summary["committed"].as_u64(), Some(300), "{summary}");
    let tail = ["tail", "clicks", "--from", "earliest", "-n", "1000", "--server", server];
    let records = site.landfall(tail).run(COMMAND_WITHIN).expect("tail ends").expect_code(0).expect("read");
    let mut places = std::collections::BTreeMap::<String, std::collections::BTreeSet<u64>>::new();
    for record in records.json_lines().expect("JSON") {
        let key = record["key"].as_str().expect("a key").to_owned();
        assert_eq!(key, record["payload"]["user"]["id"].to_string());
        places.entry(key).or_default().insert(record["partition"].as_u64().expect("a partition"));
    }
    assert_eq!(places.len(), 10);
    assert!(places.values().all(|partitions| partitions.len() == 1), "a key has one partition: {places:?}");
    wait_until_landed(server, "clicks", LAND_WITHIN).expect("everything lands");
    let metrics = HttpClient::new(server).get("/metrics").expect("metrics");
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let counted = metrics.lines().find(|line| line.starts_with("landfall_unknown_fields_total{"));
    assert!(counted.is_some_and(|line| line.ends_with(" 300")), "one field of each record: {counted:?}");
    ended_well(running);
    let mut all: Vec<i64> =
        read_column(&site.path("lake/all"), "n").iter().map(|n| n.parse().expect("a number")).collect();
    all.sort_unstable();
    assert_eq!(all, (0..300).collect::<Vec<_>>());
    let mut seven: Vec<i64> =
        read_column(&site.path("lake/seven"), "n").iter().map(|n| n.parse().expect("a number")).collect();
    seven.sort_unstable();
    assert_eq!(seven, (0..300).filter(|n| n % 10 == 7).collect::<Vec<_>>());
}

/// Would catch a query that reads partitioned tables as if their column were in the files, or does not read it at all.
#[test]
fn a_query_reads_partitioned_tables() {
    let site = Site::with(&STOREFRONT.replace("commit_every: 300ms", "commit_every: 300ms, partition_by: [country]"));
    let running = site.serve();
    let server = running.address();
    published(&site, server, "storefront.events", &events(0..2_000), &[]);
    wait_until_landed(server, "orders", LAND_WITHIN).expect("everything lands");
    let table = format!("orders={}", site.path("lake/orders").display());
    let rows = |sql: &str| {
        let query = site.landfall(["query", sql, "--table", &table, "-o", "json"]).run(COMMAND_WITHIN);
        query.expect("query ends").expect_code(0).expect("read").json_lines().expect("rows")
    };
    let by_country =
        rows("SELECT country, count(*) AS n, count(DISTINCT event_id) AS ids FROM orders GROUP BY country");
    let mut expected = std::collections::BTreeMap::<String, u64>::new();
    for line in events(0..2_000).lines() {
        // Broken records are dead letters, not rows.
        let Ok(event) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let whole = event["order_id"].is_u64() && !event["amount"].is_string();
        if whole {
            *expected.entry(event["customer"]["country"].as_str().expect("text").to_owned()).or_default() += 1;
        }
    }
    assert!(expected.len() > 1, "more than one partition: {expected:?}");
    let found: std::collections::BTreeMap<String, u64> = by_country
        .iter()
        .map(|row| (row["country"].as_str().expect("text").to_owned(), row["n"].as_u64().expect("a number")))
        .collect();
    assert_eq!(found, expected);
    assert!(by_country.iter().all(|row| row["n"] == row["ids"]));
    let (country, count) = expected.iter().next().expect("one");
    let one = rows(&format!("SELECT count(*) AS n FROM orders WHERE country = '{country}'"));
    assert_eq!(one[0]["n"].as_u64(), Some(*count));
    ended_well(running);
}

const INFERRED: &str = r#"
data_dir: ./data
server: { listen: "127.0.0.1:0" }
process: { drain_timeout: 15s }
channels: { clicks: { partitions: 1, validate: "off" } }
pipelines:
  clicks:
    from: { channel: clicks }
    decode: { json: { infer: { records: 3, within: 60s } } }
    to: { delta: { path: ./lake/clicks, commit_every: 200ms } }
"#;

/// Would catch a schema that is inferred anew at each start, or from other records than the first.
#[test]
fn an_inferred_schema_is_pinned_and_stays() {
    let site = Site::with(INFERRED);
    let running = site.serve();
    let text = "{\"n\":1,\"who\":\"a\"}\n{\"n\":2}\n{\"n\":3,\"who\":null}\n";
    published(&site, running.address(), "clicks", text, &[]);
    wait_until_landed(running.address(), "clicks", LAND_WITHIN).expect("it starts and lands");
    ended_well(running);
    let running = site.serve();
    // A later field is no part of what is pinned; a value of another type is a letter.
    published(&site, running.address(), "clicks", "{\"n\":4,\"more\":true}\n{\"n\":\"five\"}\n", &[]);
    let balances = wait_until_landed(running.address(), "clicks", LAND_WITHIN).expect("it lands");
    assert_eq!((balances[0].delivered, balances[0].dead_lettered), (1, 1), "{balances:?}");
    ended_well(running);
    let mut numbers = read_column(&site.path("lake/clicks"), "n");
    numbers.sort();
    assert_eq!(numbers, ["1", "2", "3", "4"]);
    assert_eq!(read_column(&site.path("lake/clicks"), "who").iter().filter(|who| *who == "a").count(), 1);
}

/// Would catch a pipeline that has failed for good and a process that goes on all the same, although it is to end.
#[test]
fn exit_on_failure_ends_a_process_whose_pipeline_has_failed() {
    let site = Site::with(INFERRED);
    let running = site.landfall(["run", "--exit-on-failure", "landfall.yaml"]);
    let running = running.serve(crate::site::START_WITHIN).expect("the server listens");
    published(&site, running.address(), "clicks", "17\n18\n19\n", &[]);
    let ended = running.wait(Duration::from_secs(60)).expect("it ends by itself");
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("--exit-on-failure"), "{}", ended.stderr);
}
