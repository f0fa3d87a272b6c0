//! The unmodified official Python client against the real binary.

use std::time::Duration;

use landfall_testkit::{CuttingProxy, HttpClient};

use crate::site::{COMMAND_WITHIN, Site, python, repository_file};

const CONFIG: &str = r#"
data_dir: ./data
server:
  listen: "127.0.0.1:0"
  ingest: { tables: { main.code.webhooks: code.webhooks } }
channels: { code.webhooks: {} }
pipelines:
  copies:
    from: { channel: code.webhooks }
    to: { files: { path: ./copies, compression: none, roll: { every: 1s } } }
"#;
const TABLE: &str = "main.code.webhooks";

fn lines() -> Vec<Vec<u8>> {
    let bytes = std::fs::read(repository_file("examples/data/webhook-events.ndjson")).expect("the example data");
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Every record's own bytes, one request each: nothing between the log and the comparison re-encodes them.
fn read_back(address: &str, count: u64) -> Vec<Vec<u8>> {
    let mut client = HttpClient::new(address);
    (0..count)
        .map(|offset| {
            let path = format!("/v1/channels/code.webhooks/records?partition=0&from={offset}&limit=1&max_bytes=16MiB");
            let answer = client.get(&path).expect("the record is read");
            assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
            payload(&answer.body)
        })
        .collect()
}

/// The payload's bytes inside the one object of the answer, as sent.
fn payload(line: &[u8]) -> Vec<u8> {
    let marker = b",\"payload\":";
    let at = line.windows(marker.len()).position(|window| window == marker).expect("a JSON payload") + marker.len();
    let end = line.iter().rposition(|byte| *byte == b'}').expect("an object");
    line[at..end].to_vec()
}

fn tail(address: &str) -> u64 {
    let status = HttpClient::new(address).get("/v1/status").expect("the status").json().expect("JSON");
    status["channels"].as_array().expect("channels").iter().find(|one| one["name"] == "code.webhooks").expect("it")["tail"]
        .as_u64()
        .expect("a tail")
}

/// Would catch a record that the official client publishes and that comes back with another byte, in another order,
/// or not at all.
#[test]
fn the_official_client_publishes_and_every_byte_is_read_back() {
    let site = Site::with(CONFIG);
    let running = site.serve();
    let file = repository_file("examples/data/webhook-events.ndjson");
    let args = [running.address().as_ref(), TABLE.as_ref(), file.as_os_str()];
    let told = python().run("publish_webhooks.py", args, COMMAND_WITHIN).expect("the client publishes");
    let expected = lines();
    assert_eq!(told["records"].as_u64(), Some(expected.len() as u64));
    assert_eq!(told["unacked"].as_u64(), Some(0));
    assert_eq!(tail(running.address()), expected.len() as u64);
    let found = read_back(running.address(), expected.len() as u64);
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!(found == expected, "record {at} differs");
    }
    landfall_testkit::wait_until_landed(running.address(), "copies", COMMAND_WITHIN).expect("balanced");
    let ended = running.terminate(Duration::from_secs(30)).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

/// Would catch a reconnect that loses an acknowledged record or breaks the order. The wire has no producer identity for
/// this client, so a call whose acknowledgement was cut off may be there twice, in its place.
#[test]
fn the_official_client_survives_a_cut_connection_without_loss() {
    let site = Site::with(CONFIG);
    let running = site.serve();
    let proxy = CuttingProxy::before(running.address()).expect("a proxy");
    let file = repository_file("examples/data/webhook-events.ndjson");
    let go_on = site.path("go-on");
    let address = proxy.address();
    let args = [address.as_ref(), TABLE.as_ref(), file.as_os_str(), go_on.as_os_str()];
    let mut script = python().start("publish_webhooks.py", args).expect("the client starts");
    let first = script.next_line(COMMAND_WITHIN).expect("a line").expect("half is acknowledged");
    assert!(first.contains("acknowledged"), "{first}");
    std::fs::write(&go_on, b"").expect("the file is written");
    // The second half is on its way or about to be: cut what is open now.
    assert!(proxy.cut() > 0, "a connection was open");
    while script.next_line(COMMAND_WITHIN).expect("a line in time").is_some() {}
    let told = script.finish().expect("the client recovers");
    assert_eq!(told["unacked"].as_u64(), Some(0), "{told}");
    assert!(proxy.connections() >= 2, "the client came again");
    let expected = lines();
    let stored = tail(running.address());
    assert!(stored >= expected.len() as u64, "{stored} records are stored");
    let found = read_back(running.address(), stored);
    // Every record in its order; what stands between is a repeat of one that was there before.
    let mut next = 0;
    for record in &found {
        if expected.get(next) == Some(record) {
            next += 1;
        } else {
            assert!(expected[..next].contains(record), "a record that is neither next nor a repeat");
        }
    }
    assert_eq!(next, expected.len(), "every record is there, in order");
    landfall_testkit::wait_until_landed(running.address(), "copies", COMMAND_WITHIN).expect("balanced");
    let ended = running.terminate(Duration::from_secs(30)).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}
