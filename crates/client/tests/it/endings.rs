//! Failure, close, and what comes back.

use std::time::Duration;

use landfall_client::{IngestError, StreamState, UnackedOutcome};
use landfall_protocol::{IngestCode, Refusal};
use landfall_types::Coded;
use tokio::time::Instant;
use tonic::Status;

use crate::peer::{Act, Gate, Peer, Script};
use crate::{eventually, multiplexed, poll_once, single, stream};

/// Would catch a close that says Ok after a failure, records that come back twice, without ids or out of order
/// (F-I6).
#[tokio::test]
async fn f_i6_unacked_come_back_once_in_order() {
    let script = Script::never().at(2, Act::Ack(2)).at(9, Act::Fail(Status::permission_denied("revoked")));
    let peer = Peer::start(vec![script]).await;
    let stream = single(&peer).await;
    for n in 0..10 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    let error = stream.close().await.unwrap_err();
    assert!(
        matches!(error.first_cause(), IngestError::Status { refusal, .. } if refusal.message == "revoked"),
        "{error}"
    );
    let again = stream.close().await.unwrap_err();
    assert_eq!(error.to_string(), again.to_string(), "closing again says something else");
    let unacked = stream.take_unacked().unwrap();
    let found: Vec<_> = unacked.iter().map(|call| (call.id.offset(), call.call.records()[0].clone())).collect();
    let expected: Vec<_> = (3..10u64).map(|n| (n, bytes::Bytes::from(n.to_string()))).collect();
    assert_eq!(found, expected);
    assert!(unacked.iter().all(|call| call.outcome == UnackedOutcome::Unresolved));
    assert!(stream.take_unacked().unwrap().is_empty(), "they came back twice");
    assert_eq!(stream.state(), StreamState::Failed);
}

/// Would catch a refusal without its calls, and calls behind it that are called unresolved although they are not
/// stored.
#[tokio::test]
async fn a_refusal_names_its_calls() {
    let refusal = Refusal::new(IngestCode::RecordMalformed, "not JSON").at_frame(3).at_record(0);
    let script = Script::never().at(3, Act::Ack(1)).at(3, Act::Fail(refusal.to_status()));
    let peer = Peer::start(vec![script]).await;
    let stream = single(&peer).await;
    for n in 0..7 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    let error = stream.flush().await.unwrap_err();
    let IngestError::Refused { ids, record_index, .. } = error.first_cause() else { panic!("{error}") };
    assert_eq!((ids.first.offset(), ids.count(), *record_index), (3, 1, Some(0)));
    assert_eq!(error.code().to_string(), "LF-IN0011");
    let outcomes: Vec<_> = stream.take_unacked().unwrap().iter().map(|call| (call.id.offset(), call.outcome)).collect();
    assert_eq!(outcomes[0], (2, UnackedOutcome::Unresolved));
    assert!(outcomes[1..].iter().all(|(_, outcome)| *outcome == UnackedOutcome::NotStored), "{outcomes:?}");
}

/// Would catch a failure that nobody sees until the dead sub-stream is touched.
#[tokio::test]
async fn background_end_is_seen_at_once() {
    let peer =
        Peer::start(vec![Script::never().at(0, Act::Fail(Status::permission_denied("x"))), Script::default()]).await;
    let stream = multiplexed(&peer, 4).await;
    let first = stream.ingest("1").await.unwrap();
    let mut ids = vec![first];
    while ids.len() < 4 {
        ids.push(stream.ingest("2").await.unwrap());
    }
    eventually("the failure", || stream.terminal_error().is_some()).await;
    assert_eq!(stream.state(), StreamState::Failed);
    let rejected = stream.ingest("3").await.unwrap_err();
    assert!(matches!(rejected.error, IngestError::Poisoned { .. }) && rejected.call.is_some());
}

/// Would catch healthy sub-streams that stop with the poison: three acknowledge everything, the fourth's come back.
#[tokio::test]
async fn healthy_sub_streams_ack_after_poison() {
    let gate = Gate::new();
    let bad = Script::never().at(0, Act::Wait(gate.clone())).at(0, Act::Fail(Status::permission_denied("x")));
    let release = Gate::new();
    let slow = Script::default().at(0, Act::Wait(release.clone()));
    let peer = Peer::start(vec![bad, slow.clone(), slow.clone(), slow]).await;
    let stream = multiplexed(&peer, 4).await;
    let mut ids = Vec::new();
    for n in 0..40 {
        ids.push(stream.ingest(format!("{n}")).await.unwrap());
    }
    gate.open();
    let mut close = Box::pin(stream.close());
    assert!(poll_once(close.as_mut()).is_pending());
    eventually("the failure", || stream.terminal_error().is_some()).await;
    assert!(poll_once(close.as_mut()).is_pending(), "closed before the healthy ones were done");
    release.open();
    let error = close.await.unwrap_err();
    let IngestError::Poisoned { sub_stream: dead, .. } = error else { panic!("{error}") };
    for id in &ids {
        assert_eq!(stream.wait_for(*id).await.is_ok(), id.sub_stream() != dead, "{id}");
    }
    let unacked = stream.take_unacked().unwrap();
    assert_eq!(unacked.len(), ids.iter().filter(|id| id.sub_stream() == dead).count());
    assert!(unacked.iter().all(|call| call.id.sub_stream() == dead));
}

/// Would catch an error of a later failure, or a timeout, that hides the first cause.
#[tokio::test]
async fn poison_returns_typed_cause() {
    let refused = Refusal::new(IngestCode::SchemaIncompatible, "field 3 changed").to_status();
    let peer = Peer::start(vec![Script::never().at(0, Act::Fail(refused)), Script::never()]).await;
    let stream = stream(&peer)
        .coalesce_records(1)
        .close_timeout(Duration::from_millis(300))
        .multiplexed(2)
        .open()
        .await
        .unwrap();
    for n in 0..6 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    let error = stream.close().await.unwrap_err();
    assert_eq!(error.code().to_string(), "LF-IN0008", "{error}");
    assert!(matches!(error, IngestError::Poisoned { .. }));
    let unacked = stream.take_unacked().unwrap();
    assert_eq!(unacked.len(), 6, "the healthy rest is among them");
    assert!(unacked.is_sorted_by_key(|call| (call.id.sub_stream(), call.id.offset())));
}

/// Would catch unacknowledged calls that can be taken from a stream that still sends them.
#[tokio::test]
async fn unacked_needs_terminal_state() {
    let peer = Peer::acking().await;
    let stream = single(&peer).await;
    let error = stream.take_unacked().unwrap_err();
    assert!(matches!(error, IngestError::InvalidState { state: "open", .. }), "{error}");
    stream.close().await.unwrap();
    assert!(stream.take_unacked().unwrap().is_empty());
}

/// Would catch a cancelled close that starts over, forgets its deadline, or can never be finished.
#[tokio::test]
async fn cancelled_close_resumes() {
    let gate = Gate::new();
    let peer = Peer::start(vec![Script::default().at(0, Act::Wait(gate.clone()))]).await;
    let stream = single(&peer).await;
    let id = stream.ingest("1").await.unwrap();
    let mut close = Box::pin(stream.close());
    assert!(poll_once(close.as_mut()).is_pending());
    drop(close);
    assert_eq!(stream.state(), StreamState::Closing);
    let rejected = stream.ingest("2").await.unwrap_err();
    assert!(matches!(rejected.error, IngestError::Closed));
    assert_eq!(rejected.call.unwrap().records(), ["2"]);
    gate.open();
    stream.close().await.unwrap();
    stream.close().await.unwrap();
    stream.wait_for(id).await.unwrap();
    assert_eq!(stream.state(), StreamState::Closed);
}

/// Would catch one close deadline per sub-stream, one after the other, and a timeout without the rest.
#[tokio::test]
async fn close_times_out_all_together() {
    let peer = Peer::start(vec![Script::never()]).await;
    let open = stream(&peer).coalesce_records(1).close_timeout(Duration::from_millis(200));
    let stream = open.multiplexed(4).open().await.unwrap();
    for n in 0..8 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    let began = Instant::now();
    let error = stream.close().await.unwrap_err();
    assert!(matches!(error, IngestError::CloseTimeout { unacked: 8, .. }), "{error}");
    assert!(began.elapsed() < Duration::from_millis(700), "{:?}", began.elapsed());
    assert_eq!(stream.take_unacked().unwrap().len(), 8);
    peer.until("the end of all", |peer| peer.open_rpcs() == 0).await;
}

/// Would catch waiters for room that a close leaves asleep.
#[tokio::test]
async fn close_wakes_waiters_for_room() {
    let gate = Gate::new();
    let peer = Peer::start(vec![Script::default().at(0, Act::Wait(gate.clone()))]).await;
    let open = stream(&peer).max_in_flight_records(2).max_call_records(1).coalesce_records(1);
    let stream = open.open().await.unwrap();
    stream.ingest("1").await.unwrap();
    stream.ingest("2").await.unwrap();
    let mut waiting = Box::pin(stream.ingest("3"));
    assert!(poll_once(waiting.as_mut()).is_pending());
    let mut close = Box::pin(stream.close());
    assert!(poll_once(close.as_mut()).is_pending());
    let rejected = waiting.await.unwrap_err();
    assert!(matches!(rejected.error, IngestError::Closed) && rejected.call.is_some());
    gate.open();
    close.await.unwrap();
    assert_eq!(peer.all_records(), ["1", "2"]);
}

/// Would catch tasks that outlive the last handle.
#[tokio::test]
async fn drop_stops_everything() {
    let peer = Peer::start(vec![Script::never()]).await;
    let stream = multiplexed(&peer, 3).await;
    for n in 0..9 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    let clone = stream.clone();
    drop(stream);
    clone.ingest("9").await.unwrap();
    drop(clone);
    peer.until("the end of all", |peer| peer.open_rpcs() == 0).await;
}

/// Would catch a count that loses or invents a record: admitted = acknowledged + taken back + in flight (I8).
#[tokio::test]
async fn the_counts_balance() {
    let script = Script::never().at(4, Act::Ack(4)).at(9, Act::Fail(Status::not_found("gone")));
    let peer = Peer::start(vec![script]).await;
    let stream = single(&peer).await;
    for n in 0..10 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    assert!(stream.flush().await.is_err());
    let before = stream.snapshot().sub_streams.remove(0);
    assert_eq!((before.admitted_records, before.acked_records, before.in_flight_records), (10, 5, 5));
    assert_eq!(stream.snapshot().in_flight.records, 5);
    stream.take_unacked().unwrap();
    let after = stream.snapshot().sub_streams.remove(0);
    assert_eq!((after.taken_back_records, after.in_flight_records), (5, 0));
    assert_eq!(stream.snapshot().in_flight.records, 0);
}
