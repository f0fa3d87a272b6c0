//! Opening: late headers, refusals, retries, all or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use landfall_client::{AckDurability, Client, Credentials, IngestError};
use landfall_types::Coded;
use tonic::Status;

use crate::peer::{Opening, Peer, Script};
use crate::{single, stream};

/// Would catch a client that cannot do the simplest thing: 5 records, a batch of 3, flush, close.
#[tokio::test]
async fn records_and_a_batch_are_acknowledged_in_order() {
    let peer = Peer::acking().await;
    let stream = single(&peer).await;
    for n in 0..5 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    let batch = stream.ingest_batch(["5", "6", "7"]).await.unwrap().unwrap();
    stream.flush().await.unwrap();
    assert_eq!(stream.wait_for(batch).await.unwrap().durability, AckDurability::Unspecified);
    stream.close().await.unwrap();
    assert_eq!(peer.all_records(), ["0", "1", "2", "3", "4", "5", "6", "7"]);
    assert!(stream.take_unacked().unwrap().is_empty());
    let frames = peer.received();
    assert_eq!(frames.last().map(|frame| (frame.wire_offset, frame.batch)), Some((5, true)));
    peer.until("half-close", |peer| peer.was_half_closed(0)).await;
}

/// Would catch a final refusal that is retried, and a passing one that is not.
#[tokio::test]
async fn a_refusal_ends_opening_and_a_failure_does_not() {
    let refused = Peer::start(vec![Script::refuse(Status::not_found("no such table"))]).await;
    let error = stream(&refused).open().await.unwrap_err();
    assert!(matches!(&error, IngestError::Status { refusal, .. } if refusal.message == "no such table"), "{error}");
    assert_eq!((refused.rpcs(), error.code().to_string().as_str()), (1, "LF-IN0110"));

    let away = Script::refuse(Status::unavailable("starting"));
    let third = Peer::start(vec![away.clone(), away, Script::default()]).await;
    let stream = stream(&third).open().await.unwrap();
    assert_eq!(third.rpcs(), 3);
    stream.close().await.unwrap();
}

/// Would catch a client that hangs on, or believes, an odd answer to its create.
#[tokio::test]
async fn odd_answers_to_create_are_retried_then_typed() {
    let odd = |opening: Opening| Script { opening, ..Script::default() };
    let peer =
        Peer::start(vec![odd(Opening::WithoutId), odd(Opening::WrongReply), odd(Opening::Eof), Script::default()])
            .await;
    stream(&peer).open().await.unwrap().close().await.unwrap();
    assert_eq!(peer.rpcs(), 4);

    let never = Peer::start(vec![odd(Opening::WithoutId)]).await;
    let error = stream(&never).recovery_budget(Duration::from_millis(100)).open().await.unwrap_err();
    let IngestError::Lost { cause, attempts, .. } = &error else { panic!("{error}") };
    assert!(matches!(**cause, IngestError::ProtocolViolation { .. }) && *attempts > 1, "{error}");

    let silent = Peer::start(vec![odd(Opening::Silent)]).await;
    let open = stream(&silent).open_timeout(Duration::from_millis(100)).recovery_budget(Duration::ZERO);
    let error = open.open().await.unwrap_err();
    assert!(matches!(error, IngestError::OpenTimeout { phase: "the answer to create", .. }), "{error}");
}

/// Would catch a client that waits for response headers before it sends its create: the two would wait for each
/// other.
#[tokio::test]
async fn late_headers_do_not_deadlock() {
    let peer = Peer::start(vec![Script { late_headers: true, ..Script::default() }]).await;
    let stream = stream(&peer).open_timeout(Duration::from_secs(5)).recovery_budget(Duration::ZERO);
    let stream = stream.open().await.unwrap();
    stream.publish("1").await.unwrap();
    stream.close().await.unwrap();
}

/// Would catch an error that does not say where to, or a client that waits although nobody listens.
#[tokio::test]
async fn nobody_listening_is_told_with_the_address() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Client::builder(format!("http://{free}")).build().unwrap();
    let error = client.stream("t").json().recovery_budget(Duration::ZERO).open().await.unwrap_err();
    assert!(matches!(error, IngestError::Connect { .. }) && error.to_string().contains(&free.to_string()), "{error}");
}

/// Would catch an opened sub-stream that is left over when another could not open.
#[tokio::test]
async fn failed_open_closes_opened() {
    let peer =
        Peer::start(vec![Script::default(), Script::refuse(Status::permission_denied("no")), Script::default()]).await;
    let error = stream(&peer).multiplexed(3).open().await.unwrap_err();
    assert!(matches!(error, IngestError::Status { .. }), "{error}");
    peer.until("the end of all", |peer| peer.rpcs() == 3 && peer.open_rpcs() == 0).await;
}

/// Would catch an error of whichever sub-stream happened to be first.
#[tokio::test]
async fn lowest_index_error_wins() {
    let peer = Peer::start(vec![Script::refuse(Status::permission_denied("no"))]).await;
    let error = stream(&peer).multiplexed(4).open().await.unwrap_err();
    assert!(matches!(error, IngestError::Status { sub_stream: 0, .. }), "{error}");
}

/// Would catch tasks or RPCs that go on after the opening future was dropped.
#[tokio::test]
async fn cancelled_open_leaves_nothing() {
    let silent = Script { opening: Opening::Silent, ..Script::default() };
    let peer = Peer::start(vec![silent]).await;
    let opening = stream(&peer).multiplexed(3).open();
    tokio::select! {
        _ = opening => panic!("opened against a silent peer"),
        () = peer.until("three RPCs", |peer| peer.open_rpcs() == 3) => {}
    }
    peer.until("the end of all", |peer| peer.open_rpcs() == 0).await;
    assert_eq!(peer.rpcs(), 3);
}

/// Would catch a delay before opening (the reference waits up to a second at random).
#[tokio::test]
async fn open_has_no_delay() {
    let peer = Peer::acking().await;
    let began = Instant::now();
    let stream = stream(&peer).multiplexed(8).open().await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    stream.close().await.unwrap();
}

/// Would catch missing or wrong metadata, and a token that is never asked for again.
#[tokio::test]
async fn credentials_are_shown_and_renewed_once() {
    let peer = Peer::start(vec![Script::refuse(Status::unauthenticated("expired")), Script::default()]).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let credentials = Credentials::bearer_from(move || format!("token-{}", counted.fetch_add(1, Ordering::SeqCst)));
    let client = Client::builder(peer.url()).credentials(credentials).application("tests/1").build().unwrap();
    let open = || client.stream("a.b.c").json().backoff_initial(Duration::from_millis(1)).open();
    open().await.unwrap().close().await.unwrap();
    assert_eq!(peer.metadata(1, "authorization").as_deref(), Some("Bearer token-1"));
    assert_eq!(peer.metadata(1, "x-databricks-zerobus-table-name").as_deref(), Some("a.b.c"));
    assert_eq!(peer.metadata(1, "landfall-accept").as_deref(), Some("1"));
    let agent = peer.metadata(1, "user-agent").unwrap();
    assert!(agent.starts_with("landfall-client/") && agent.contains(" tests/1"), "{agent}");

    let always = Peer::start(vec![Script::refuse(Status::unauthenticated("no"))]).await;
    let client = Client::builder(always.url()).credentials(Credentials::bearer_from(|| "t".into())).build().unwrap();
    let error = client.stream("t").json().backoff_initial(Duration::from_millis(1)).open().await.unwrap_err();
    assert!(matches!(error, IngestError::Status { .. }));
    assert_eq!(always.rpcs(), 2, "one refresh, then the answer is final");
}

/// Would catch an ack of a Landfall server that is not taken for what it says.
#[tokio::test]
async fn an_ack_of_landfall_means_stable_storage() {
    let peer = Peer::start(vec![Script { landfall: true, ..Script::default() }]).await;
    let stream = single(&peer).await;
    assert_eq!(stream.publish("1").await.unwrap().durability, AckDurability::Fsync);
    stream.close().await.unwrap();
}

/// Would catch compressed messages that the peer cannot read back.
#[tokio::test]
async fn compressed_calls_round_trip() {
    for compression in [landfall_client::Compression::Gzip, landfall_client::Compression::Zstd] {
        let peer = Peer::acking().await;
        let stream = stream(&peer).compression(compression).open().await.unwrap();
        let text = format!("\"{}\"", "x".repeat(10_000));
        stream.publish(text.as_str()).await.unwrap();
        stream.close().await.unwrap();
        assert_eq!(peer.all_records(), [text]);
        assert!(peer.metadata(0, "grpc-encoding").is_some());
    }
}
