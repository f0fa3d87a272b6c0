//! The listener: who is let in, who is told what, who is closed (G33, G86).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use landfall_channel::ChannelOptions;
use landfall_protocol::{Limits, Refusal};
use landfall_server::{Server, ServerError, ServerOptions, ServerParts};
use landfall_types::{ByteSize, Coded};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use crate::world::{RawStream, World, json_create, soon};

async fn http2(world: &World, request: http::Request<Full<Bytes>>) -> (u16, http::HeaderMap, Bytes) {
    let stream = TcpStream::connect(world.address()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let response = soon(sender.send_request(request)).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = soon(body.collect()).await.unwrap().to_bytes();
    connection.abort();
    (parts.status.as_u16(), parts.headers, body)
}

/// Would catch an unknown URL that answers 200 with a gRPC status, and an unknown method that answers in HTTP.
#[tokio::test]
async fn unknown_paths_answer_in_their_own_kind() {
    let world = World::plain().await;
    let url = |path: &str| format!("http://{}{path}", world.address());
    let post = |path: &str, content_type: &str| {
        http::Request::post(url(path)).header("content-type", content_type).body(Full::default()).unwrap()
    };
    for path in ["/databricks.zerobus.Zerobus/Nope", "/some.Other/Method", "/v1/channels/events/records"] {
        let (status, headers, _) = http2(&world, post(path, "application/grpc")).await;
        assert_eq!((status, headers["grpc-status"].as_bytes()), (200, &b"12"[..]), "{path}");
        assert!(headers.contains_key("grpc-status-details-bin"));
    }
    for (path, content_type) in
        [("/databricks.zerobus.Zerobus/EphemeralStream", "text/plain"), ("/x", "application/grpc-web")]
    {
        let (status, headers, body) = http2(&world, post(path, content_type)).await;
        assert_eq!((status, headers["content-type"].as_bytes()), (415, &b"application/problem+json"[..]), "{path}");
        assert!(std::str::from_utf8(&body).unwrap().contains("LF-IN0034"));
    }
    let answer = world.post("/databricks.zerobus.Zerobus/EphemeralStream", "application/grpc", "").await;
    assert_eq!(answer.problem(), (415, "LF-IN0034".into()), "gRPC over HTTP/1.1");
    assert_eq!(world.get("/nope").await.problem(), (404, "LF-IN0037".into()));
    assert_eq!(world.get("/v1/channels/events").await.problem(), (404, "LF-IN0037".into()));
    assert_eq!(world.http(http::Request::delete("/v1/status"), "").await.problem(), (405, "LF-IN0034".into()));
    assert_eq!(world.post("/v1/reload", "application/json", "").await.problem(), (501, "LF-IN0036".into()));
    assert_eq!(world.get("/v1/channels/events/outcomes/abc").await.problem(), (501, "LF-IN0036".into()));
    world.close().await;
}

/// Would catch a peer that holds a socket for nothing, in each state that it can be silent in.
#[tokio::test]
async fn a_silent_connection_is_closed() {
    let limits = Limits { open_timeout: Duration::from_millis(200), ..Limits::default() };
    let world =
        World::with(ServerOptions { limits, ..ServerOptions::default() }, vec![("events", ChannelOptions::default())])
            .await;
    for said in [&b""[..], b"PRI * HTTP/2.0\r\n", b"GET /healthz HT", b"GET /healthz HTTP/1.1\r\nhost: x\r\n"] {
        let mut stream = TcpStream::connect(world.address()).await.unwrap();
        stream.write_all(said).await.unwrap();
        let started = Instant::now();
        let mut answer = Vec::new();
        // Closed with or without a word.
        let _ = soon(stream.read_to_end(&mut answer)).await;
        assert!(started.elapsed() < Duration::from_secs(5), "{said:?}");
    }
    // One that speaks is not.
    assert_eq!(world.get("/healthz").await.status, 200);
    world.close().await;
}

/// Would catch a second server on a port, or one that strangers can reach, that starts all the same.
#[tokio::test]
async fn an_address_that_cannot_be_served_is_refused_with_the_next_step() {
    let world = World::plain().await;
    let bind = |options| Server::bind(options, ServerParts::new(world.channels.clone()));
    let error = bind(ServerOptions { listen: world.address(), ..ServerOptions::default() }).await.unwrap_err();
    assert!(matches!(&error, ServerError::Listen { address, .. } if *address == world.address()));
    assert_eq!(error.code().to_string(), "LF-IN0060");
    let text = error.to_string();
    assert!(text.contains(&world.address().to_string()) && text.contains("server.listen"), "{text}");

    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    let error = bind(ServerOptions { listen: everywhere, ..ServerOptions::default() }).await.unwrap_err();
    assert!(error.to_string().contains("server.insecure"), "{error}");
    bind(ServerOptions { listen: everywhere, insecure: true, ..ServerOptions::default() }).await.unwrap();

    let limits = Limits { max_call_bytes: ByteSize(1), ..Limits::default() };
    let error = bind(ServerOptions { limits, listen: everywhere, ..ServerOptions::default() }).await.unwrap_err();
    assert!(error.to_string().contains("max_call_bytes"), "{error}");
}

/// Would catch a limit of streams or connections that is not kept, or whose refusal is never told.
#[tokio::test]
async fn past_a_limit_of_streams_a_call_is_told_and_past_that_of_connections_closed() {
    let limits = Limits { max_streams_per_connection: 2, max_connections: 2, ..Limits::default() };
    let world =
        World::with(ServerOptions { limits, ..ServerOptions::default() }, vec![("events", ChannelOptions::default())])
            .await;
    let mut client = world.connect().await;
    let first = RawStream::open(&mut client, "events").await;
    let _second = RawStream::open(&mut client, "events").await;
    let refused = RawStream::call(&mut client).await.map(drop).unwrap_err();
    assert_eq!((refused.code(), Refusal::from_status(&refused).code.as_str()), (Code::ResourceExhausted, "LF-IN0022"));
    assert!(refused.message().contains("max_streams_per_connection"), "{}", refused.message());
    drop(first);
    // The place is free once the server has seen the end of the first.
    let mut third = loop {
        match RawStream::call(&mut client).await {
            Ok(stream) => break stream,
            Err(status) => assert_eq!(status.code(), Code::ResourceExhausted),
        }
        tokio::task::yield_now().await;
    };
    third.create(json_create("events"));
    third.expect_created().await;

    let _other = TcpStream::connect(world.address()).await.unwrap();
    let mut over = TcpStream::connect(world.address()).await.unwrap();
    let mut nothing = Vec::new();
    let read = soon(over.read_to_end(&mut nothing)).await;
    assert!(nothing.is_empty() && !matches!(read, Ok(n) if n > 0));
}
