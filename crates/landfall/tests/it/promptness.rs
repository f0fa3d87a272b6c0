//! How long a change is on its way: from its commit in a real Postgres to where a reader of the destination finds it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use landfall_testkit::{HttpClient, Running};
use serde_json::Value;

use crate::capture::{Shop, TABLES, end_well_with};
use crate::site::LAND_WITHIN;

/// With the numbers that stand where nothing is said.
const FEED: &str = r#"
data_dir: ./data
server: { listen: "127.0.0.1:0" }
process: { drain_timeout: 20s }
channels:
  shop.changes: { partitions: 1 }
pipelines:
  shop:
    from: { postgres: { url: "{url}", tables: { "public.*": {} } } }
    to: { feed: { channel: shop.changes } }
"#;

/// Far above what it takes on a busy machine, and half of the longest wait that could be in the way.
const PROMPT: Duration = Duration::from_millis(500);
const CHANGES: usize = 15;

/// Follows the channel, and says of each streamed change how long it was on its way.
struct Reader {
    client: HttpClient,
    from: u64,
}

impl Reader {
    fn of(running: &Running) -> Reader {
        Reader { client: HttpClient::new(running.address()), from: 0 }
    }

    fn next(&mut self) -> Vec<Duration> {
        let path = format!("/v1/channels/shop.changes/records?partition=0&from={}&limit=1000", self.from);
        let records = self.client.get(&path).expect("the channel is read").json_lines().expect("an object a line");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
        if let Some(last) = records.last() {
            self.from = last["offset"].as_u64().expect("an offset") + 1;
        }
        let streamed = records.iter().map(|record| &record["payload"]).filter(|change| change["_op"] != "s");
        streamed.map(|change| now.saturating_sub(committed(change))).collect()
    }

    /// The next streamed changes, as many as this.
    fn wait_for(&mut self, count: usize) -> Vec<Duration> {
        let until = Instant::now() + LAND_WITHIN;
        let mut took = Vec::new();
        while took.len() < count {
            assert!(Instant::now() < until, "{} of {count} changes came", took.len());
            took.extend(self.next());
            // Another process's progress is asked for, not waited on: a pause between questions, bounded above.
            std::thread::sleep(Duration::from_millis(2));
        }
        took
    }
}

/// When a change was committed, by the server's clock, which is this machine's.
fn committed(change: &Value) -> Duration {
    let text = change["_commit_ts"].as_str().unwrap_or_else(|| panic!("no time in {change}"));
    let time: jiff::Timestamp = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    Duration::from_micros(u64::try_from(time.as_microsecond()).expect("after 1970"))
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort();
    took[took.len() / 2]
}

/// Catches a lone change that waits for company that does not come, and changes that come so often that no lull is ever found
/// between them, which wait for the next tick of a clock.
#[test]
fn a_lone_change_and_a_trickle_are_in_the_channel_at_once() {
    let shop = Shop::start_on(&[], TABLES, FEED);
    let running = shop.site.serve();
    shop.wait_for_phase(&running, "public.orders", "streaming");
    shop.wait_for_phase(&running, "public.lines", "streaming");
    let mut reader = Reader::of(&running);
    let mut alone = Vec::new();
    for id in 1..=CHANGES {
        shop.psql(&format!("UPDATE orders SET qty = 100 WHERE id = {id}"));
        alone.extend(reader.wait_for(1));
    }
    // A statement is a transaction of its own; the server paces them.
    let paced = "UPDATE orders SET qty = 200 WHERE id = 1; SELECT pg_sleep(0.03);";
    let mut trickle = Vec::new();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| shop.psql(&format!("\\o /dev/null\n{}", paced.repeat(60).replace("; ", ";\n"))));
        trickle = reader.wait_for(60);
        writing.join().expect("the statements run");
    });
    eprintln!("alone {alone:?}\ntrickle {trickle:?}");
    let (alone, trickle) = (median(alone), median(trickle));
    assert!(alone < PROMPT, "a lone change took {alone:?}");
    assert!(trickle < PROMPT, "one of many took {trickle:?}");
    end_well_with(running, &["shop"]);
}
