//! The end of `landfall run`: bounded, complete, named.

use std::time::{Duration, Instant};

use landfall::storefront;
use landfall_testkit::{HttpClient, Running};

use crate::site::{STOREFRONT, Site, read_column};

fn publish(running: &Running, numbers: std::ops::Range<u64>) {
    let (mut record, mut body) = (String::new(), String::new());
    for n in numbers {
        storefront::write_record(1, n, &mut record);
        body.push_str(&record);
        body.push('\n');
    }
    let headers = [("content-type", "application/x-ndjson")];
    let answer =
        HttpClient::new(running.address()).post("/v1/channels/storefront.events/records", &headers, body.as_bytes());
    let answer = answer.expect("an answer");
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
}

/// Waits until the rows are on their way; their commit is a minute off.
fn wait_until_taken(running: &Running, rows: u64) {
    let mut client = HttpClient::new(running.address());
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let balances = landfall_testkit::balance_of(&mut client, "orders").expect("balanced");
        if balances.iter().all(|balance| balance.taken == rows) {
            return;
        }
        assert!(Instant::now() < until, "the rows are not taken in: {balances:?}");
        // Another process's progress: asked for with a pause, bounded above.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Would catch a drain that drops the tail: what was acknowledged a moment before SIGTERM and sits in a batch with a
/// long age limit must be in the table when the process ends, well before its drain timeout (F-S1).
#[test]
fn sigterm_lands_what_is_in_flight_and_exits_0() {
    let site = Site::with(&STOREFRONT.replace("commit_every: 300ms", "commit_every: 60s"));
    let running = site.serve();
    publish(&running, 0..500);
    wait_until_taken(&running, 500);
    let begun = Instant::now();
    let ended = running.terminate(Duration::from_secs(20)).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(begun.elapsed() < Duration::from_secs(10), "the drain took {:?}", begun.elapsed());
    let report = ended.stderr.lines().rev().find(|line| line.starts_with('{')).expect("the report as JSON");
    let report: serde_json::Value = serde_json::from_str(report).expect("JSON");
    let pipeline = &report["pipelines"][0];
    assert_eq!(pipeline["ending"], "settled", "{report}");
    let balance = &pipeline["balance"]["delta"];
    let number = |key: &str| balance[key].as_u64().expect("a number");
    assert_eq!(number("in"), number("delivered") + number("filtered") + number("dead_lettered") + number("in_flight"));
    assert_eq!(number("in_flight"), 0);
    let mut numbers: Vec<u64> =
        read_column(&site.path("lake/orders"), "event_id").iter().map(|id| id.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..500).collect::<Vec<u64>>());
}

/// Would catch an idle process that sits out its drain timeout.
#[test]
fn an_idle_process_ends_at_once() {
    let site = Site::with(STOREFRONT);
    let running = site.serve();
    let begun = Instant::now();
    let ended = running.terminate(Duration::from_secs(20)).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(begun.elapsed() < Duration::from_secs(3), "an idle drain took {:?}", begun.elapsed());
}

/// A request whose body never comes: it holds the drain until its deadline.
fn unfinished_request(running: &Running) -> std::net::TcpStream {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(running.address().trim_start_matches("http://")).expect("connected");
    let head = "POST /v1/channels/storefront.events/records HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).expect("sent");
    // Answered on another connection: the server has accepted the one before it.
    assert_eq!(HttpClient::new(running.address()).get("/healthz").expect("an answer").status, 200);
    stream
}

fn wait_for_word(running: &Running, word: &str) {
    let until = Instant::now() + Duration::from_secs(20);
    while !running.stderr().contains(word) {
        assert!(Instant::now() < until, "it does not say `{word}`:\n{}", running.stderr());
        // Another process's progress: asked for with a pause, bounded above.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Would catch a process that a second order to end does not end at once (E74).
#[test]
fn a_second_signal_ends_a_drain_at_once() {
    let site = Site::with(&STOREFRONT.replace("drain_timeout: 15s", "drain_timeout: 60s"));
    let running = site.serve();
    let held = unfinished_request(&running);
    let term = || running.signal(rustix::process::Signal::TERM);
    term().expect("it runs");
    wait_for_word(&running, "draining");
    let begun = Instant::now();
    // Again and again: those that come with the first are the same order.
    while begun.elapsed() < Duration::from_secs(20) && !running.stderr().contains("second signal;") {
        // The signal of a process that is over is no error: it is not waited for yet.
        term().expect("a process");
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = running.wait(Duration::from_secs(20)).expect("it ends");
    assert_eq!(ended.code(), Some(143), "{}", ended.stderr);
    assert!(begun.elapsed() < Duration::from_secs(10), "it took {:?}", begun.elapsed());
    drop(held);
}

/// Would catch a drain that is cut short because the one order to end came as two signals, as `timeout` sends it.
#[test]
fn a_signal_that_comes_twice_at_once_is_one_order() {
    let site = Site::with(&STOREFRONT.replace("commit_every: 300ms", "commit_every: 60s"));
    let running = site.serve();
    publish(&running, 0..500);
    wait_until_taken(&running, 500);
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        running.signal(signal).expect("it runs");
    }
    let ended = running.wait(Duration::from_secs(20)).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(read_column(&site.path("lake/orders"), "event_id").len(), 500);
}
