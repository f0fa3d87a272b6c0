//! `kill -9` at random moments under load, restarted each time, judged by a ledger and an independent reader.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use landfall::storefront;
use landfall_testkit::{HttpClient, Ledger, Running, wait_until_landed};

use crate::random::{Random, number_of_run};
use crate::site::{LAND_WITHIN, STOREFRONT, Site, read_column};

const SEED: u64 = 3;
const BATCH: u64 = 50;
const PUBLISHERS: u64 = 2;

/// Sends each number once and never again: what is not answered stays unknown.
struct Load {
    ledger: Mutex<Ledger>,
    next: AtomicU64,
    is_over: AtomicBool,
    address: Mutex<String>,
    /// Rises with every address, so that a publisher that lost its server waits for the next one.
    generation: (Mutex<u64>, std::sync::Condvar),
}

impl Load {
    fn announce(&self, address: &str) {
        *self.address.lock().expect("not poisoned") = address.to_owned();
        *self.generation.0.lock().expect("not poisoned") += 1;
        self.generation.1.notify_all();
    }

    fn wait_for_next(&self, known: u64) -> u64 {
        let mut generation = self.generation.0.lock().expect("not poisoned");
        while *generation <= known && !self.is_over.load(Ordering::SeqCst) {
            let waited = self.generation.1.wait_timeout(generation, Duration::from_millis(200)).expect("not poisoned");
            generation = waited.0;
        }
        *generation
    }

    fn publish(&self) {
        let mut generation = self.wait_for_next(0);
        let mut client = HttpClient::new(&self.address.lock().expect("not poisoned").clone());
        let (mut record, mut body) = (String::new(), Vec::new());
        while !self.is_over.load(Ordering::SeqCst) {
            let first = self.next.fetch_add(BATCH, Ordering::SeqCst);
            body.clear();
            for n in first..first + BATCH {
                storefront::write_record(SEED, n, &mut record);
                body.extend_from_slice(record.as_bytes());
                body.push(b'\n');
            }
            let headers = [("content-type", "application/x-ndjson")];
            let answer = client.post("/v1/channels/storefront.events/records", &headers, &body);
            let committed = match &answer {
                Ok(answer) if answer.status == 200 => Some(true),
                // Definite: not stored, as the server itself says.
                Ok(answer) if answer.json().is_ok_and(|problem| problem["outcome"] == "not_stored") => Some(false),
                _ => None,
            };
            let mut ledger = self.ledger.lock().expect("not poisoned");
            for n in first..first + BATCH {
                match committed {
                    Some(true) => ledger.acknowledge(n),
                    Some(false) => {}
                    None => ledger.leave_unknown(n),
                }
            }
            drop(ledger);
            if answer.is_err() {
                generation = self.wait_for_next(generation);
                client = HttpClient::new(&self.address.lock().expect("not poisoned").clone());
            }
        }
    }
}

fn dead_letters(address: &str) -> Vec<u64> {
    let mut client = HttpClient::new(address);
    let (mut numbers, mut from) = (Vec::new(), 0u64);
    loop {
        let path = format!("/v1/channels/_dead_letters.orders/records?partition=0&from={from}&limit=1000");
        let answer = client.get(&path).expect("the dead letters are read");
        let records = answer.json_lines().expect("an object a line");
        let Some(last) = records.last() else { return numbers };
        from = last["offset"].as_u64().expect("an offset") + 1;
        for record in records {
            let headers = record["headers"].as_array().expect("headers");
            assert!(headers.iter().any(|header| header["name"] == "landfall-code"), "no cause: {record}");
            numbers.push(number_of(&record));
        }
    }
}

fn number_of(record: &serde_json::Value) -> u64 {
    if let Some(id) = record.pointer("/payload/event_id").and_then(serde_json::Value::as_str) {
        return id.parse().expect("a number");
    }
    let encoded = record["payload_base64"].as_str().expect("a payload");
    storefront::number_of(&decode_base64(encoded)).expect("the cut record still begins with its number")
}

/// Standard base64 with padding; the tests have no other use for a library of it.
fn decode_base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits: Vec<u32> = text
        .bytes()
        .take_while(|byte| *byte != b'=')
        .map(|byte| ALPHABET.iter().position(|known| *known == byte).expect("base64") as u32)
        .collect();
    let mut out = Vec::new();
    for group in digits.chunks(4) {
        let bits = group.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - group.len()));
        out.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    out
}

/// Would catch a record that is acknowledged and then lost, a row that lands twice, a dead letter without its cause,
/// or a start that fails on what a kill has left.
#[test]
fn kill_at_random_moments_loses_nothing_and_doubles_nothing() {
    let kills = number_of_run("LANDFALL_KILLS", 30);
    let seed = number_of_run("LANDFALL_SEED", 0x5eed_1234);
    println!("kills: {kills}, seed: {seed}");
    let site = Site::with(STOREFRONT);
    let load = Arc::new(Load {
        ledger: Mutex::default(),
        next: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        address: Mutex::default(),
        generation: Default::default(),
    });
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|_| {
            let load = Arc::clone(&load);
            std::thread::spawn(move || load.publish())
        })
        .collect();
    let mut random = Random(seed);
    for _ in 0..kills {
        let running = site.serve();
        load.announce(running.address());
        // From the first write to several commits: the table commits every 300 ms here.
        let alive = Duration::from_millis(30 + random.below(900));
        wait_while_running(&running, alive);
        running.kill().expect("the process is killed");
    }
    let last = site.serve();
    load.announce(last.address());
    load.is_over.store(true, Ordering::SeqCst);
    publishers.into_iter().for_each(|publisher| publisher.join().expect("a publisher ends"));
    let balances = wait_until_landed(last.address(), "orders", LAND_WITHIN).expect("everything lands");
    balances.iter().for_each(|balance| balance.assert_balanced().expect("balanced"));
    let dead = dead_letters(last.address());
    let ended = last.terminate(Duration::from_secs(30)).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let landed: Vec<u64> =
        read_column(&site.path("lake/orders"), "event_id").iter().map(|id| id.parse().expect("a number")).collect();
    let ledger = load.ledger.lock().expect("not poisoned");
    println!(
        "acknowledged {}, unknown {}, landed {}, dead {}",
        ledger.acknowledged(),
        ledger.unknown(),
        landed.len(),
        dead.len()
    );
    assert!(ledger.acknowledged() > 30 * BATCH, "the load ran");
    let verdict = ledger.judge(&landed, &dead, |n| storefront::fault(n).is_some());
    assert!(verdict.is_clean(), "{verdict:?}");
}

/// Lets the load run for a while: the moment of the kill is what is random here, so there is nothing to wait for.
fn wait_while_running(_running: &Running, alive: Duration) {
    std::thread::sleep(alive);
}
