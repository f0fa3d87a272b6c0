//! Order, joining, flush and waits.

use std::time::Duration;

use landfall_client::{IngestError, MessageId, PrepareError, UnackedOutcome};
use tokio::time::Instant;

use crate::peer::{Acks, Act, Gate, Peer, Script};
use crate::{multiplexed, poll_once, single, stream};

/// Would catch a flush that returns before a record that was submitted without waiting (F-I1).
#[tokio::test]
async fn f_i1_flush_covers_all_submitted() {
    let peer = Peer::acking().await;
    for n in 0..200 {
        let stream = single(&peer).await;
        let id = stream.try_ingest(format!("{n}")).unwrap();
        stream.flush().await.unwrap();
        let ack = tokio::time::timeout(Duration::ZERO, stream.wait_for(id)).await;
        assert!(ack.is_ok_and(|ack| ack.is_ok()), "flushed and not acknowledged");
        stream.close().await.unwrap();
    }
    let mut records = peer.all_records();
    records.sort_unstable_by_key(|text| text.parse::<u32>().unwrap());
    assert_eq!(records, (0..200).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// Would catch a flush that forgets what is queued behind the transport.
#[tokio::test]
async fn flush_includes_queued_nowait() {
    let gate = Gate::new();
    let peer = Peer::start(vec![Script::default().at(0, Act::Wait(gate.clone()))]).await;
    let stream = single(&peer).await;
    for n in 0..2_000 {
        stream.try_ingest(format!("{n}")).unwrap();
    }
    let mut flush = Box::pin(stream.flush());
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut flush).await.is_err());
    gate.open();
    flush.await.unwrap();
    assert_eq!(peer.all_records().len(), 2_000);
    stream.close().await.unwrap();
}

/// Would catch records that are not sent in the order of their ids, on one sub-stream or several.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_are_the_order_on_the_wire() {
    for sub_streams in [1, 3] {
        let peer = Peer::acking().await;
        let stream = stream(&peer).multiplexed(sub_streams).open().await.unwrap();
        let publishers = (0..4).map(|publisher| {
            let stream = stream.clone();
            tokio::spawn(async move {
                let mut ids = Vec::new();
                for n in 0..500 {
                    let text = format!("{}", publisher * 10_000 + n);
                    ids.push((stream.ingest(text.as_str()).await.unwrap(), text));
                }
                ids
            })
        });
        let mut ids = Vec::new();
        for publisher in publishers.collect::<Vec<_>>() {
            ids.extend(publisher.await.unwrap());
        }
        stream.flush().await.unwrap();
        for index in 0..sub_streams {
            let mut of: Vec<_> = ids.iter().filter(|(id, _)| id.sub_stream() == index).collect();
            of.sort_unstable_by_key(|(id, _)| id.offset());
            assert!(of.iter().enumerate().all(|(at, (id, _))| id.offset() == at as u64), "ids have a hole");
            let expected: Vec<&str> = of.iter().map(|(_, text)| text.as_str()).collect();
            let found = (0..peer.rpcs()).any(|rpc| peer.records_of(rpc) == expected);
            assert!(found, "no RPC has the {} records of sub-stream {index} in order", expected.len());
        }
        stream.close().await.unwrap();
    }
}

/// Would catch one message per record while records queue, and a batch that is joined or torn apart.
#[tokio::test]
async fn queued_singles_share_a_frame() {
    let gate = Gate::new();
    let peer = Peer::start(vec![Script::default().at(0, Act::Wait(gate.clone()))]).await;
    let stream = stream(&peer).coalesce_records(100).open().await.unwrap();
    for n in 0..1_000 {
        stream.try_ingest(format!("{n}")).unwrap();
    }
    let batch = stream.prepare_batch(["a", "b"].map(|text| format!("\"{text}\""))).unwrap().unwrap();
    stream.try_ingest(batch).unwrap();
    gate.open();
    stream.flush().await.unwrap();
    let frames = peer.received();
    assert!(frames.len() <= 15, "{} frames for 1,001 calls", frames.len());
    assert!(frames.iter().all(|frame| frame.records.len() <= 100));
    assert_eq!(frames.last().unwrap().records, ["\"a\"", "\"b\""]);
    assert_eq!(peer.all_records().len(), 1_002);
    stream.close().await.unwrap();
}

/// Would catch a lone record that is held back to be joined although nobody asked for it, and a linger that is
/// ignored.
#[tokio::test]
async fn linger_zero_adds_no_latency() {
    let peer = Peer::acking().await;
    let prompt = stream(&peer).open().await.unwrap();
    let began = Instant::now();
    for _ in 0..20 {
        prompt.publish("1").await.unwrap();
    }
    assert!(began.elapsed() < Duration::from_millis(1_000), "{:?}", began.elapsed());
    prompt.close().await.unwrap();

    let lingering = Peer::acking().await;
    let patient = stream(&lingering).coalesce_linger(Duration::from_millis(60)).open().await.unwrap();
    let began = Instant::now();
    let first = patient.ingest("1").await.unwrap();
    patient.ingest("2").await.unwrap();
    patient.wait_for(first).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(60), "{:?}", began.elapsed());
    assert_eq!(lingering.received().len(), 1, "the two did not share a frame");
    patient.close().await.unwrap();
}

/// Would catch a bad record that costs room, an id, or the stream.
#[tokio::test]
async fn bad_record_takes_no_room_and_no_offset() {
    let peer = Peer::acking().await;
    let stream =
        stream(&peer).max_call_bytes(landfall_types::ByteSize::kib(1)).coalesce_bytes(landfall_types::ByteSize::kib(1));
    let stream = stream.multiplexed(2).open().await.unwrap();
    let bad = stream.ingest(vec![0xff, 0xfe]).await.unwrap_err();
    assert!(matches!(bad.error, IngestError::Prepare(PrepareError::InvalidRecord { .. })) && bad.call.is_none());
    let large = stream.ingest("x".repeat(1_025)).await.unwrap_err();
    assert!(matches!(large.error, IngestError::Prepare(PrepareError::CallTooLarge { size: 1_025, limit: 1_024, .. })));
    assert_eq!(stream.snapshot().in_flight, landfall_client::Load::default());
    assert_eq!(stream.ingest("1").await.unwrap().offset(), 0);
    stream.close().await.unwrap();
    assert_eq!(peer.all_records(), ["1"]);
}

/// Would catch a batch that is spread over sub-streams.
#[tokio::test]
async fn batch_stays_on_one_sub_stream() {
    let peer = Peer::acking().await;
    let stream = multiplexed(&peer, 4).await;
    for n in 0..20 {
        stream.ingest_batch((0..5).map(|at| format!("{}", n * 5 + at))).await.unwrap();
    }
    stream.close().await.unwrap();
    let frames = peer.received();
    assert_eq!(frames.len(), 20);
    assert!(frames.iter().all(|frame| frame.records.len() == 5 && frame.batch));
}

/// Would catch an empty batch that is an error, or one that is fine on a closed stream.
#[tokio::test]
async fn empty_batch_is_none_unless_closed() {
    let peer = Peer::acking().await;
    let stream = single(&peer).await;
    assert!(stream.ingest_batch(Vec::<String>::new()).await.unwrap().is_none());
    stream.close().await.unwrap();
    assert!(matches!(stream.ingest_batch(Vec::<String>::new()).await.unwrap_err().error, IngestError::Closed));
}

/// Would catch an id that was never given out and is waited for until the deadline.
#[tokio::test]
async fn unknown_id_fails_at_once() {
    let peer = Peer::acking().await;
    let stream = multiplexed(&peer, 2).await;
    for raw in [0, 1 << 48, 7 << 48, u64::MAX] {
        let wait = stream.wait_for(MessageId::from_raw(raw));
        let answer = tokio::time::timeout(Duration::from_secs(5), wait).await.expect("it waited");
        assert!(matches!(answer, Err(IngestError::UnknownId { .. })));
    }
    stream.close().await.unwrap();
}

/// Would catch ids that are worthless once the stream is closed.
#[tokio::test]
async fn wait_works_after_close() {
    let peer = Peer::acking().await;
    let stream = single(&peer).await;
    let id = stream.ingest("1").await.unwrap();
    stream.close().await.unwrap();
    assert_eq!(stream.wait_for(id).await.unwrap().id, id);
    stream.flush().await.unwrap();
}

/// Would catch a timeout of a wait or a flush that poisons, and a stream that is unusable after it.
#[tokio::test]
async fn timeouts_and_bad_records_never_poison() {
    let gate = Gate::new();
    let peer = Peer::start(vec![Script::default().at(0, Act::Wait(gate.clone()))]).await;
    let stream = multiplexed(&peer, 2).await;
    let id = stream.ingest("1").await.unwrap();
    let soon = || (Instant::now() + Duration::from_millis(30)).into_std();
    assert!(matches!(stream.wait_for_by(id, soon()).await, Err(IngestError::WaitTimeout { .. })));
    let flushed = stream.flush_by(soon()).await;
    assert!(
        matches!(flushed, Err(IngestError::FlushTimeout { unacked: 1, oldest, .. }) if oldest == id),
        "{flushed:?}"
    );
    assert!(stream.ingest(vec![0xff]).await.is_err());
    assert!(stream.terminal_error().is_none());
    gate.open();
    stream.wait_for(id).await.unwrap();
    stream.flush().await.unwrap();
    stream.close().await.unwrap();
}

/// Would catch an ack that counts for more or less than its frame (F-I4: a batch is one call, and is acked as one).
#[tokio::test]
async fn f_i4_ack_bound_is_what_was_sent() {
    let peer = Peer::start(vec![Script { acks: Acks::Every(2), ..Script::default() }]).await;
    let stream = single(&peer).await;
    let one = stream.ingest("1").await.unwrap();
    let batch = stream.ingest_batch(["2", "3", "4"]).await.unwrap().unwrap();
    let last = stream.ingest("5").await.unwrap();
    stream.wait_for(one).await.unwrap();
    stream.wait_for(batch).await.unwrap();
    let mut wait = Box::pin(stream.wait_for(last));
    assert!(poll_once(wait.as_mut()).is_pending());
    let snapshot = stream.snapshot();
    assert_eq!((snapshot.sub_streams[0].acked_records, snapshot.sub_streams[0].in_flight_records), (4, 1));
    stream.ingest("6").await.unwrap();
    wait.await.unwrap();
    stream.close().await.unwrap();
}

/// Would catch an ack beyond what was sent that is believed, in part or in whole.
#[tokio::test]
async fn over_ack_is_violation() {
    for sub_streams in [1, 2] {
        let peer = Peer::start(vec![Script::never().at(1, Act::Ack(7))]).await;
        let stream = multiplexed(&peer, sub_streams).await;
        for n in 0..4 {
            stream.ingest(format!("{n}")).await.unwrap();
        }
        let error = stream.flush().await.unwrap_err();
        assert!(matches!(error.first_cause(), IngestError::ProtocolViolation { .. }), "{error}");
        assert!(error.to_string().contains("acknowledged frame 7"), "{error}");
        assert!(matches!(stream.close().await, Err(IngestError::Failed { .. } | IngestError::Poisoned { .. })));
        let unacked = stream.take_unacked().unwrap();
        assert_eq!(unacked.len(), 4, "part of the over-ack was applied");
        assert!(unacked.iter().any(|call| call.outcome == UnackedOutcome::Unresolved));
    }
}

/// Would catch a repeated or low ack that ends the stream, or that takes anything back.
#[tokio::test]
async fn low_ack_is_ignored() {
    let script = Script::default().at(3, Act::Ack(0)).at(3, Act::Ack(-1)).at(4, Act::Ack(2)).at(4, Act::Empty);
    let peer = Peer::start(vec![script]).await;
    let stream = single(&peer).await;
    for n in 0..6 {
        stream.publish(format!("{n}")).await.unwrap();
    }
    let snapshot = stream.snapshot();
    assert_eq!((snapshot.sub_streams[0].ignored_acks, snapshot.sub_streams[0].reconnects), (3, 0));
    stream.close().await.unwrap();
    assert_eq!(peer.rpcs(), 1);
}
