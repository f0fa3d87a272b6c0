//! Shutdown: the close signal, what is refused, what is named (G21, G23, I11).

use std::time::{Duration, Instant};

use landfall_protocol::wire::ephemeral_stream_response::Payload;
use tonic::Code;

use crate::world::{PATIENCE, RawStream, World, soon};

/// Would catch a drain that drops what was taken, forgets the signal, or lets new calls in.
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_signals_reads_on_and_finishes() {
    let world = World::plain().await;
    let mut client = world.connect().await;
    let mut stream = RawStream::open(&mut client, "events").await;
    stream.record("1");
    stream.acked(0).await;
    let server = world.server.clone();
    let grace = Duration::from_secs(2);
    let drain = tokio::spawn(async move { server.drain(grace, Instant::now() + PATIENCE).await });
    let Some(Payload::CloseStreamSignal(signal)) = stream.message().await.unwrap() else {
        panic!("expected the signal")
    };
    let duration = Duration::try_from(signal.duration.expect("a duration")).unwrap();
    assert!(duration <= grace && duration > Duration::from_millis(500), "{duration:?}");
    // Still read and acknowledged.
    stream.record("2");
    stream.acked(1).await;
    let refused = RawStream::call(&mut client).await.map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    let refusal = landfall_protocol::Refusal::from_status(&refused);
    assert_eq!(refusal.code, "LF-IN0020");
    assert!(refusal.retry_after.is_some());
    let answer = world.post("/v1/channels/events/records", "application/json", "3").await;
    assert_eq!(answer.problem(), (503, "LF-IN0020".into()));
    assert_eq!(answer.json()["outcome"], "not_stored");
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(world.get("/readyz").await.status, 503);
    stream.record("3");
    stream.half_close();
    let (acked, status) = stream.end().await;
    assert_eq!((acked, status.map(|status| status.code())), (2, Some(Code::Unavailable)));
    let report = soon(drain).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(world.payloads("events").await, ["1", "2", "3"]);
    assert!(tokio::net::TcpStream::connect(world.address()).await.is_err(), "the port is free again");
}

/// Would catch a drain that waits for a client that does not leave.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_stays_is_ended_after_the_grace() {
    let world = World::plain().await;
    let mut client = world.connect().await;
    let mut stream = RawStream::open(&mut client, "events").await;
    stream.record("1");
    stream.acked(0).await;
    let started = Instant::now();
    let server = world.server.clone();
    let drain = tokio::spawn(async move { server.drain(Duration::from_millis(300), Instant::now() + PATIENCE).await });
    let (_, code, refusal) = stream.refused().await;
    assert_eq!((code, refusal.code.as_str()), (Code::Unavailable, "LF-IN0020"));
    assert!(soon(drain).await.unwrap().is_clean());
    assert!(started.elapsed() >= Duration::from_millis(300) && started.elapsed() < PATIENCE / 2);
}

/// Would catch a shutdown without anything in flight that waits for its grace.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_server_drains_at_once() {
    let world = World::plain().await;
    let _idle = world.connect().await;
    let started = Instant::now();
    let report = world.server.drain(Duration::from_secs(10), Instant::now() + PATIENCE).await;
    assert!(report.is_clean(), "{report:?}");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert!(world.server.drain(Duration::ZERO, Instant::now()).await.is_clean(), "a second call has nothing to do");
}

/// Would catch a shutdown that waits for the answer of a peer that gives none: the library's own wait is a PING's, half a
/// minute long (I11).
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_answers_no_ping_does_not_hold_a_drain() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let world = World::plain().await;
    let mut silent = tokio::net::TcpStream::connect(world.address()).await.unwrap();
    // The preface and empty SETTINGS; from here on it says nothing.
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").await.unwrap();
    let mut said = [0u8; 9];
    soon(silent.read_exact(&mut said)).await.unwrap();
    assert_eq!(said[3], 4, "the server's SETTINGS: it serves the connection");
    let started = Instant::now();
    let report = world.server.drain(Duration::from_secs(10), Instant::now() + PATIENCE).await;
    assert!(report.is_clean(), "{report:?}");
    assert!(started.elapsed() < PATIENCE / 4, "{:?}", started.elapsed());
}

/// Would catch a drain that waits for a create that never comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_create_does_not_hold_a_drain() {
    let world = World::plain().await;
    let mut client = world.connect().await;
    let mut stream = RawStream::call(&mut client).await.unwrap();
    let report = world.server.drain(Duration::from_secs(10), Instant::now() + PATIENCE).await;
    assert!(report.is_clean(), "{report:?}");
    let (_, code, refusal) = stream.refused().await;
    assert_eq!((code, refusal.code.as_str()), (Code::Unavailable, "LF-IN0020"));
}
