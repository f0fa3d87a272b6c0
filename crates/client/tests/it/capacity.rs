//! Room: first come, first served, bounded, and given back (I10).

use std::time::Duration;

use futures::future::join_all;
use landfall_client::{IngestError, Load, StreamBuilder};
use landfall_types::ByteSize;
use tokio::time::Instant;
use tonic::Status;

use crate::peer::{Act, Gate, Peer, Script};
use crate::{poll_once, stream};

/// A stream with room for two records.
fn narrow(peer: &Peer) -> StreamBuilder {
    stream(peer).max_in_flight_records(2).max_call_records(1).coalesce_records(1)
}

/// Would catch a fixed wait for room, one that never ends, or one that ends early.
#[tokio::test]
async fn capacity_wait_follows_its_option() {
    for wait in [Duration::from_millis(100), Duration::from_secs(5)] {
        let peer = Peer::start(vec![Script::never()]).await;
        let stream = narrow(&peer).capacity_wait(wait).open().await.unwrap();
        stream.ingest("1").await.unwrap();
        stream.ingest("2").await.unwrap();
        peer.until("both frames", |peer| peer.received().len() == 2).await;
        tokio::time::pause();
        let began = Instant::now();
        let mut waiting = Box::pin(stream.ingest("3"));
        let early = tokio::time::timeout(wait - Duration::from_millis(1), &mut waiting).await;
        assert!(early.is_err(), "ended after {:?}", began.elapsed());
        let rejected = waiting.await.unwrap_err();
        assert!(began.elapsed() <= wait + Duration::from_millis(1), "{:?}", began.elapsed());
        assert!(matches!(rejected.error, IngestError::CapacityTimeout { in_flight: Load { records: 2, .. }, .. }));
        tokio::time::resume();
    }
}

/// Would catch a timeout that eats the record, takes an id, or poisons.
#[tokio::test]
async fn capacity_timeout_returns_payload() {
    let gate = Gate::new();
    let peer = Peer::start(vec![Script::default().at(0, Act::Wait(gate.clone()))]).await;
    let stream = narrow(&peer).capacity_wait(Duration::from_millis(30)).open().await.unwrap();
    stream.ingest("1").await.unwrap();
    stream.ingest("2").await.unwrap();
    let rejected = stream.ingest("\"mine\"").await.unwrap_err();
    assert!(matches!(rejected.error, IngestError::CapacityTimeout { .. }), "{}", rejected.error);
    let call = rejected.call.expect("the payload is gone");
    assert_eq!(call.records(), ["\"mine\""]);
    gate.open();
    assert_eq!(stream.publish(call).await.unwrap().id.offset(), 2, "the timeout took an id");
    stream.close().await.unwrap();
    assert_eq!(peer.all_records(), ["1", "2", "\"mine\""]);
}

/// Would catch a wait on a single stream that has no end (F-I7 for one record at a time).
#[tokio::test]
async fn single_stream_capacity_wait_is_bounded() {
    let peer = Peer::start(vec![Script::never()]).await;
    let stream = narrow(&peer).capacity_wait(Duration::ZERO).open().await.unwrap();
    stream.ingest("1").await.unwrap();
    stream.ingest("2").await.unwrap();
    assert!(matches!(stream.ingest("3").await.unwrap_err().error, IngestError::CapacityTimeout { .. }));
}

/// Would catch a form that never waits and does, or one that says nothing of the limits.
#[tokio::test]
async fn try_ingest_never_waits() {
    let peer = Peer::start(vec![Script::never()]).await;
    let stream = narrow(&peer).open().await.unwrap();
    stream.try_ingest("1").unwrap();
    stream.try_ingest("2").unwrap();
    let rejected = stream.try_ingest("3").unwrap_err();
    assert!(matches!(rejected.error, IngestError::Full { limits: Load { records: 2, .. }, .. }));
    assert_eq!(rejected.call.unwrap().records(), ["3"]);
}

/// Would catch a line in which a later publisher gets in first, whoever is polled first.
#[tokio::test]
async fn waiters_are_admitted_in_their_order() {
    let gate = Gate::new();
    let peer = Peer::start(vec![Script::default().at(0, Act::Wait(gate.clone()))]).await;
    let stream = narrow(&peer).open().await.unwrap();
    stream.ingest("1000").await.unwrap();
    stream.ingest("1001").await.unwrap();
    let mut waiting: Vec<_> = (0..15).map(|n| Box::pin(stream.ingest(format!("{n}")))).collect();
    for wait in &mut waiting {
        assert!(poll_once(wait.as_mut()).is_pending());
    }
    assert_eq!(stream.snapshot().capacity_waiters, 15);
    for wait in waiting.iter_mut().rev() {
        assert!(poll_once(wait.as_mut()).is_pending());
    }
    gate.open();
    waiting.reverse();
    let ids: Vec<_> = join_all(waiting).await.into_iter().map(|id| id.unwrap().offset()).collect();
    // Each is admitted when it is polled with its grant; grants go out in the order of arrival, two at a time.
    let mut by_arrival: Vec<u64> = ids.into_iter().rev().collect();
    for (arrival, id) in by_arrival.iter().enumerate() {
        assert!((*id as i64 - 2 - arrival as i64).abs() <= 1, "arrival {arrival} got {id}");
    }
    by_arrival.sort_unstable();
    assert_eq!(by_arrival, (2..17).collect::<Vec<u64>>());
    stream.close().await.unwrap();
}

/// Would catch a dropped wait that keeps room, an id or its place.
#[tokio::test]
async fn dropped_ingest_returns_room_and_takes_no_offset() {
    let gate = Gate::new();
    let peer = Peer::start(vec![Script::default().at(0, Act::Wait(gate.clone()))]).await;
    let stream = narrow(&peer).open().await.unwrap();
    stream.ingest("1").await.unwrap();
    stream.ingest("2").await.unwrap();
    let mut dropped = Box::pin(stream.ingest("3"));
    assert!(poll_once(dropped.as_mut()).is_pending());
    drop(dropped);
    assert_eq!(stream.snapshot().capacity_waiters, 0);
    let mut granted = Box::pin(stream.ingest("4"));
    assert!(poll_once(granted.as_mut()).is_pending());
    gate.open();
    stream.flush().await.unwrap();
    // The grant is there and was never seen; dropped with the wait, it must go back.
    drop(granted);
    assert_eq!(stream.snapshot().in_flight, Load::default());
    assert_eq!(stream.publish("5").await.unwrap().id.offset(), 2);
    stream.close().await.unwrap();
    assert_eq!(peer.all_records(), ["1", "2", "5"]);
}

/// Would catch a flush that waits for a call that has no id yet.
#[tokio::test]
async fn flush_excludes_capacity_waiter() {
    let gate = Gate::new();
    let peer = Peer::start(vec![Script::default().at(2, Act::Wait(gate.clone()))]).await;
    let stream = narrow(&peer).open().await.unwrap();
    stream.ingest("1").await.unwrap();
    stream.ingest("2").await.unwrap();
    let mut flush = Box::pin(stream.flush());
    assert!(poll_once(flush.as_mut()).is_pending());
    let later = stream.ingest("3").await.unwrap();
    flush.await.unwrap();
    let mut wait = Box::pin(stream.wait_for(later));
    assert!(poll_once(wait.as_mut()).is_pending(), "the peer holds the third");
    gate.open();
    wait.await.unwrap();
    stream.close().await.unwrap();
}

/// Would catch a bound that counts calls and not bytes (F-I7): 1 MiB records, 64 MiB budget, a peer that stalls.
#[tokio::test]
async fn f_i7_budget_counts_bytes_and_records() {
    let gate = Gate::new();
    let peer = Peer::start(vec![Script::default().at(0, Act::Wait(gate.clone()))]).await;
    let stream = stream(&peer).capacity_wait(Duration::from_millis(50)).open().await.unwrap();
    let record = bytes::Bytes::from(format!("\"{}\"", "x".repeat((1 << 20) - 2)));
    let mut admitted = 0;
    let rejected = loop {
        match stream.ingest(record.clone()).await {
            Ok(_) => admitted += 1,
            Err(rejected) => break rejected,
        }
    };
    assert!(matches!(rejected.error, IngestError::CapacityTimeout { .. }), "{}", rejected.error);
    assert_eq!(admitted, 63, "64 MiB hold 63 records of 1 MiB and 64 bytes each");
    let snapshot = stream.snapshot();
    assert!(snapshot.in_flight.bytes <= ByteSize::mib(64).get());
    gate.open();
    stream.publish(rejected.call.unwrap()).await.unwrap();
    stream.close().await.unwrap();
    assert_eq!(peer.all_records().len(), 64);
}

/// Would catch waiters that sleep on after the stream has failed, or wake without the cause and their call (F-I5).
#[tokio::test]
async fn f_i5_waiters_wake_with_the_first_cause() {
    let gate = Gate::new();
    let script = Script::never().at(0, Act::Wait(gate.clone())).at(0, Act::Fail(Status::permission_denied("revoked")));
    let peer = Peer::start(vec![script, Script::never()]).await;
    let open = narrow(&peer).close_timeout(Duration::from_millis(300)).multiplexed(2);
    let stream = open.open().await.unwrap();
    let mut admitted = 0;
    while stream.try_ingest("0").is_ok() {
        admitted += 1;
    }
    assert_eq!(admitted, 2);
    let mut waiting: Vec<_> = (0..8).map(|n| Box::pin(stream.ingest(format!("{n}")))).collect();
    for wait in &mut waiting {
        assert!(poll_once(wait.as_mut()).is_pending());
    }
    gate.open();
    for (n, rejected) in join_all(waiting).await.into_iter().enumerate() {
        let rejected = rejected.unwrap_err();
        let IngestError::Poisoned { cause, .. } = &rejected.error else { panic!("{}", rejected.error) };
        assert!(matches!(&**cause, IngestError::Status { refusal, .. } if refusal.message == "revoked"));
        assert_eq!(rejected.call.unwrap().records(), [n.to_string()]);
    }
    assert!(stream.close().await.is_err());
    assert_eq!(stream.take_unacked().unwrap().len(), 2, "what was admitted is all there");
}
