//! Bytes that no client sends: never a panic, never a server that stops serving (I14).

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use landfall_channel::ChannelOptions;
use landfall_protocol::Limits;
use landfall_server::ServerOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::world::{RawStream, World, soon};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// A small reproducible source of bytes.
struct Noise(u64);

impl Noise {
    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n)
            .map(|_| {
                self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (self.0 >> 33) as u8
            })
            .collect()
    }
}

async fn world() -> World {
    let limits = Limits { open_timeout: Duration::from_millis(500), ..Limits::default() };
    World::with(ServerOptions { limits, ..ServerOptions::default() }, vec![("events", ChannelOptions::default())]).await
}

/// Sends bytes and reads until the server closes.
async fn poke(world: &World, bytes: &[u8]) {
    let mut stream = TcpStream::connect(world.address()).await.unwrap();
    // The server may close in the middle of what it does not like.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = soon(stream.read_to_end(&mut answer)).await;
}

async fn still_serves(world: &World) {
    let mut client = world.connect().await;
    let mut stream = RawStream::open(&mut client, "events").await;
    stream.record("\"still here\"");
    stream.acked(0).await;
}

/// Would catch a panic or a hang on bytes of no protocol, and on noise behind a valid preface.
#[tokio::test]
async fn noise_closes_its_connection_and_no_other() {
    let world = world().await;
    let mut neighbour = world.connect().await;
    let mut neighbour = RawStream::open(&mut neighbour, "events").await;
    let mut noise = Noise(7);
    for round in 0..40 {
        let tail = noise.bytes(1 + round * 37);
        poke(&world, &tail).await;
        poke(&world, &[PREFACE, &tail].concat()).await;
        poke(&world, &[PREFACE, SETTINGS, &tail].concat()).await;
        poke(&world, &[b"POST /v1/channels/events/records HTTP/1.1\r\n".as_slice(), &tail].concat()).await;
        poke(&world, &PREFACE[..round % PREFACE.len()]).await;
    }
    neighbour.record("\"unharmed\"");
    neighbour.acked(0).await;
    still_serves(&world).await;
}

/// One gRPC call with a body of any bytes; answers the status in the trailers, if one came.
async fn call(world: &World, body: Vec<u8>) -> Option<String> {
    let stream = TcpStream::connect(world.address()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::post(format!("http://{}/databricks.zerobus.Zerobus/EphemeralStream", world.address()))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let response = soon(sender.send_request(request)).await.unwrap();
    assert_eq!(response.status(), 200);
    let body = soon(response.into_body().collect()).await.ok()?;
    connection.abort();
    let status = body.trailers()?.get("grpc-status")?;
    Some(status.to_str().unwrap().to_owned())
}

fn framed(flag: u8, declared: usize, message: &[u8]) -> Vec<u8> {
    [&[flag][..], &u32::try_from(declared).unwrap().to_be_bytes(), message].concat()
}

/// Would catch a message whose length is believed, and garbage that is answered with a status that clients retry.
#[tokio::test]
async fn garbage_messages_end_their_call_with_a_definite_status() {
    let world = world().await;
    let mut noise = Noise(11);
    let create = {
        use prost::Message;
        landfall_protocol::wire::EphemeralStreamRequest {
            payload: Some(landfall_protocol::wire::ephemeral_stream_request::Payload::CreateStream(
                crate::world::json_create("events"),
            )),
        }
        .encode_to_vec()
    };
    let opened = framed(0, create.len(), &create);
    // 3 INVALID_ARGUMENT, 11 OUT_OF_RANGE.
    let definite = |status: Option<String>| assert!(matches!(status.as_deref(), Some("3" | "11")), "{status:?}");
    definite(call(&world, framed(0, u32::MAX as usize, b"x")).await);
    definite(call(&world, framed(0, 10, b"short")).await);
    definite(call(&world, framed(9, 1, b"x")).await);
    definite(call(&world, framed(1, 1, b"x")).await);
    for n in 1..30 {
        let garbage = noise.bytes(n * 3);
        definite(call(&world, framed(0, garbage.len(), &garbage)).await);
        // After a create an unknown field is skipped, as protobuf says, so that the call holds no record.
        definite(call(&world, [opened.clone(), framed(0, garbage.len(), &garbage)].concat()).await);
    }
    definite(call(&world, [opened, framed(0, u32::MAX as usize, b"x")].concat()).await);
    still_serves(&world).await;
    assert_eq!(world.payloads("events").await, ["\"still here\""]);
}
