//! Metrics: they balance, and they are the client's own counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::Mutex;
use tonic::Status;

use crate::peer::{Act, Peer, Script};

/// Keeps counters and gauges by name and labels.
#[derive(Default)]
struct Book(Mutex<BTreeMap<String, Arc<Cell>>>);

#[derive(Default)]
struct Cell(AtomicU64);

impl CounterFn for Cell {
    fn increment(&self, value: u64) {
        self.0.fetch_add(value, Ordering::SeqCst);
    }
    fn absolute(&self, value: u64) {
        self.0.fetch_max(value, Ordering::SeqCst);
    }
}

impl metrics::GaugeFn for Cell {
    fn increment(&self, value: f64) {
        self.0.fetch_add(value as u64, Ordering::SeqCst);
    }
    fn decrement(&self, value: f64) {
        self.0.fetch_sub(value as u64, Ordering::SeqCst);
    }
    fn set(&self, value: f64) {
        self.0.store(value as u64, Ordering::SeqCst);
    }
}

impl Book {
    fn cell(&self, key: &Key) -> Arc<Cell> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::clone(self.0.lock().entry(format!("{}{{{}}}", key.name(), labels.join(","))).or_default())
    }

    fn read(&self, name: &str, labels: &str) -> u64 {
        self.0
            .lock()
            .get(&format!("landfall_client_{name}{{{labels}}}"))
            .map_or(0, |cell| cell.0.load(Ordering::SeqCst))
    }
}

impl Recorder for &'static Book {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

static BOOK: LazyLock<Book> = LazyLock::new(Book::default);

/// Would catch a record that the metrics lose or count twice: admitted = acked + taken back + dropped + in flight
/// (I8), at the end of a stream that failed, after a reconnect, and of one that was dropped.
#[tokio::test]
async fn client_metrics_balance() {
    metrics::set_global_recorder(&*BOOK).expect("this test alone installs a recorder");
    let first = Script::never().at(1, Act::Ack(1)).at(4, Act::Fail(Status::unavailable("restart")));
    let second = Script::never().at(2, Act::Ack(0)).at(2, Act::Fail(Status::not_found("gone")));
    let peer = Peer::start(vec![first, second, Script::never()]).await;
    let client = landfall_client::Client::builder(peer.url()).build().unwrap();
    let open = |table: &str| client.stream(table).json().coalesce_records(1).open();
    let stream = open("metrics.failed").await.unwrap();
    for n in 0..5 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    assert!(stream.close().await.is_err());
    assert_eq!(stream.take_unacked().unwrap().len(), 2);
    let of = |table: &str| {
        let labels = format!("channel={table},sub_stream=0");
        [
            "admitted_records_total",
            "acked_records_total",
            "taken_back_records_total",
            "dropped_unacked_total",
            "in_flight_records",
        ]
        .map(|name| BOOK.read(name, &labels))
    };
    assert_eq!(of("metrics.failed"), [5, 3, 2, 0, 0]);
    assert_eq!(BOOK.read("resent_records_total", "channel=metrics.failed,sub_stream=0,protected=no"), 3);
    assert_eq!(BOOK.read("reconnects_total", "channel=metrics.failed,sub_stream=0,cause=LF-IN0110"), 1);
    assert_eq!(BOOK.read("poisoned_total", "channel=metrics.failed,code=LF-IN0110"), 1);

    let dropped = open("metrics.dropped").await.unwrap();
    for n in 0..4 {
        dropped.ingest(format!("{n}")).await.unwrap();
    }
    drop(dropped);
    assert_eq!(of("metrics.dropped"), [4, 0, 0, 4, 0]);
}
