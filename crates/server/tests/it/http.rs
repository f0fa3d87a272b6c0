//! Publishing, reading and the rest over HTTP.

use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use landfall_channel::{ChannelOptions, Limits as ChannelLimits, RecordFormat};
use landfall_server::ServerOptions;
use tokio::net::TcpStream;

use crate::world::{World, soon};

const RECORDS: &str = "/v1/channels/events/records";
const NDJSON: &str = "application/x-ndjson";

async fn with_partitions(partitions: u32) -> World {
    let options = ChannelOptions { partitions, ..ChannelOptions::default() };
    World::with(ServerOptions::default(), vec![("events", options)]).await
}

/// Would catch a byte that changes between an NDJSON body and its records, or between a record and its reading.
#[tokio::test]
async fn ndjson_is_read_back_byte_for_byte() {
    let world = World::plain().await;
    let lines = [
        r#"{"a": 1.10,  "a":2, "é":"\u00e9\ud83d\ude00"}"#.to_owned(),
        "\t[1,2 , 3]".to_owned(),
        r#""naïve — ünïcödé 漢字 🦀""#.to_owned(),
        format!("{{\"long\":\"{}\"}}", "x".repeat(100_000)),
        "-0.0e-7".to_owned(),
    ];
    let answer = world.post(RECORDS, NDJSON, format!("\r\n{}\r\n\n", lines.join("\n"))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let json = answer.json();
    assert_eq!(
        (&json["outcome"], &json["durability"], &json["records"]),
        (&"committed".into(), &"fsync".into(), &5.into())
    );
    assert_eq!(json["groups"][0]["first_offset"], 0);
    assert_eq!((&json["groups"][0]["partition"], &json["retry_safe"]), (&0.into(), &false.into()));
    assert_eq!(world.payloads("events").await, lines.clone().map(Bytes::from));

    let read = world.get(&format!("{RECORDS}?limit=10")).await;
    assert_eq!(read.headers["content-type"], "application/x-ndjson");
    let text = std::str::from_utf8(&read.body).unwrap();
    for (n, (line, object)) in lines.iter().zip(text.lines()).enumerate() {
        assert!(object.starts_with(&format!("{{\"partition\":0,\"offset\":{n},\"timestamp\":\"")), "{object}");
        assert!(object.ends_with(&format!(",\"payload\":{line}}}")), "record {n} changed");
    }
    assert_eq!(text.lines().count(), 5);
    let header = |name: &str| read.headers[name].to_str().unwrap().to_owned();
    assert_eq!(
        (header("landfall-next-offset"), header("landfall-end-offset"), header("landfall-earliest-offset")),
        ("5".into(), "5".into(), "0".into())
    );

    let one = Request::get(format!("{RECORDS}?from=3&limit=1")).header("accept", "application/octet-stream");
    let one = world.http(one, "").await;
    assert_eq!((one.body, one.headers["landfall-next-offset"].as_bytes()), (Bytes::from(lines[3].clone()), &b"4"[..]));
    world.close().await;
}

/// Would catch a content type whose records are cut wrongly.
#[tokio::test]
async fn each_content_type_has_its_records() {
    let world = World::plain().await;
    let post = async |content_type: &str, body: &str| {
        let answer = world.post(RECORDS, content_type, body.to_owned()).await;
        assert_eq!(answer.status, 200, "{content_type} {answer:?}");
        answer.json()["records"].as_u64().unwrap()
    };
    assert_eq!(post("application/json; charset=utf-8", r#"[ {"a": [1]} ,2, "x"]"#).await, 3);
    assert_eq!(post("application/json", r#" {"one": 1}"#).await, 1);
    assert_eq!(post("application/json", "[]").await, 0);
    assert_eq!(post("application/vnd.landfall.records+json", "{\"payload\": {\"e\":1} ,\"key\":\"k\",\"timestamp\":\"2024-02-03T04:05:06Z\"}\n{\"payload_base64\":\"Ig==\",\"headers\":[{\"name\":\"h\",\"value\":\"v\"}]}").await, 2);
    let raw = Request::post(RECORDS)
        .header("content-type", "image/png")
        .header("landfall-key", "pic")
        .header("landfall-header-name", "value");
    assert_eq!(world.http(raw, Bytes::from_static(b"\x89PNG\n")).await.status, 200);
    let stored = world.stored("events", 0).await;
    let payloads: Vec<_> = stored.iter().map(|one| &one.record.payload[..]).collect();
    assert_eq!(
        payloads,
        [&br#"{"a": [1]}"#[..], b"2", b"\"x\"", br#" {"one": 1}"#, br#"{"e":1}"#, b"\"", b"\x89PNG\n"]
    );
    let text = world.get(&format!("{RECORDS}?from=4")).await;
    let objects: Vec<serde_json::Value> =
        std::str::from_utf8(&text.body).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&objects[0]["key"], &objects[0]["timestamp"]), (&"k".into(), &"2024-02-03T04:05:06Z".into()));
    assert_eq!((&objects[1]["headers"][0]["value"], &objects[1]["payload_base64"]), (&"v".into(), &"Ig==".into()));
    assert_eq!((&objects[2]["key"], &objects[2]["payload_base64"]), (&"pic".into(), &"iVBORwo=".into()));
    world.close().await;
}

/// Would catch a request of which a part is stored although it is refused (S30).
#[tokio::test]
async fn a_refused_request_stores_nothing() {
    let options = ChannelOptions {
        limits: ChannelLimits { batch_records: 10, ..ChannelLimits::default() },
        format: Some(RecordFormat::Json),
        ..ChannelOptions::default()
    };
    let world = World::with(ServerOptions::default(), vec![("events", options)]).await;
    let deep = "[".repeat(1_000_001);
    let many = "1\n".repeat(11);
    let large = format!("\"{}\"", "x".repeat(11 << 20));
    let refused: [(&str, &str, u16, &str); 9] = [
        (NDJSON, "1\n{\"cut\":", 422, "LF-IN0011"),
        (NDJSON, "1\n2 3\n", 422, "LF-IN0011"),
        ("application/json", &deep, 422, "LF-IN0011"),
        ("application/json", "[1,2", 422, "LF-IN0011"),
        ("application/vnd.landfall.records+json", "{\"payload\":1}\n{\"payload\":", 422, "LF-IN0011"),
        ("application/octet-stream", "not json", 422, "LF-IN0011"),
        (NDJSON, &many, 413, "LF-CH0002"),
        (NDJSON, &large, 413, "LF-CH0001"),
        (
            "application/vnd.landfall.records+json",
            "{\"payload\":1,\"idempotency_key\":\"a\"}\n{\"payload\":2}",
            422,
            "LF-IN0011",
        ),
    ];
    for (content_type, body, status, code) in refused {
        let answer = world.post(RECORDS, content_type, body.to_owned()).await;
        assert_eq!(answer.problem(), (status, code.to_owned()), "{content_type} {:.20}", body);
        assert_eq!(answer.json()["outcome"], "not_stored");
        assert_eq!(answer.json()["retry"], "never");
    }
    let answer = world.post(RECORDS, NDJSON, "1\n{\"cut\":").await;
    assert_eq!(answer.json()["record_index"], 1);
    assert!(!answer.json()["detail"].as_str().unwrap().contains("cut"), "no payload in an answer");

    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    for _ in 0..256 {
        encoder.write_all(&[b' '; 1 << 20]).unwrap();
    }
    let bomb = Request::post(RECORDS).header("content-type", NDJSON).header("content-encoding", "gzip");
    assert_eq!(world.http(bomb, encoder.finish().unwrap()).await.problem(), (413, "LF-IN0012".into()));
    let unknown = Request::post(RECORDS).header("content-type", NDJSON).header("content-encoding", "br");
    assert_eq!(world.http(unknown, "1").await.problem(), (415, "LF-IN0034".into()));
    let huge = vec![b' '; (16 << 20) + 1];
    assert_eq!(world.post(RECORDS, NDJSON, huge).await.problem(), (413, "LF-IN0012".into()));
    assert_eq!(world.post("/v1/channels/nope/records", NDJSON, "1").await.problem(), (404, "LF-CH0005".into()));
    assert_eq!(world.post(&format!("{RECORDS}?what=1"), NDJSON, "1").await.problem(), (400, "LF-IN0035".into()));
    assert_eq!(world.post(&format!("{RECORDS}?key_field=id"), NDJSON, "1").await.problem(), (400, "LF-IN0035".into()));
    assert!(world.payloads("events").await.is_empty());
    world.close().await;
}

/// Would catch a compressed body that is stored as it was sent.
#[tokio::test]
async fn compressed_bodies_are_stored_decompressed() {
    let world = World::plain().await;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(b"1\n2\n").unwrap();
    let gzip = Request::post(RECORDS).header("content-type", NDJSON).header("content-encoding", "gzip");
    assert_eq!(world.http(gzip, encoder.finish().unwrap()).await.status, 200);
    let zstd = Request::post(RECORDS).header("content-type", NDJSON).header("content-encoding", "zstd");
    assert_eq!(world.http(zstd, zstd::stream::encode_all(&b"3\n"[..], 1).unwrap()).await.status, 200);
    assert_eq!(world.payloads("events").await, ["1", "2", "3"]);
    world.close().await;
}

/// Would catch records of one key that go to several partitions, or positions that are not theirs.
#[tokio::test]
async fn records_are_routed_by_their_keys_and_positions_are_theirs() {
    let world = with_partitions(4).await;
    let body: String = (0..40).map(|n| format!("{{\"id\":\"k{}\",\"n\":{n}}}\n", n % 8)).collect();
    let answer = world.post(&format!("{RECORDS}?key_field=/id&positions=each"), NDJSON, body.clone()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let json = answer.json();
    let positions = json["positions"].as_array().unwrap();
    assert_eq!(positions.len(), 40);
    let mut stored = Vec::new();
    for partition in 0..4 {
        stored.push(world.stored("events", partition).await);
    }
    for (line, position) in body.lines().zip(positions) {
        let at = |name: &str| usize::try_from(position[name].as_u64().unwrap()).unwrap();
        assert_eq!(stored[at("partition")][at("offset")].record.payload, line);
    }
    let total: u64 = json["groups"].as_array().unwrap().iter().map(|group| group["records"].as_u64().unwrap()).sum();
    assert_eq!(total, 40);
    for n in 0..8 {
        let key = format!("k{n}");
        let holders =
            stored.iter().filter(|one| one.iter().any(|one| one.record.key.as_deref() == Some(key.as_bytes())));
        assert_eq!(holders.count(), 1, "{key} is in one partition");
    }
    let positions = world.get("/v1/channels/events/positions").await.json();
    let sum: u64 = (0..4).map(|p| positions["positions"][p.to_string()].as_u64().unwrap()).sum();
    assert_eq!(sum, 40);
    assert!(positions["since"].as_str().unwrap().starts_with("0:"));
    world.close().await;
}

/// Would catch a repeat that is stored twice, or other content that is passed off as the first (S28).
#[tokio::test]
async fn an_idempotency_key_names_one_unit() {
    let world = World::plain().await;
    let post = async |key: &str, body: &'static str| {
        world.http(Request::post(RECORDS).header("content-type", NDJSON).header("idempotency-key", key), body).await
    };
    let (first, second) = tokio::join!(post("\"once\"", "1\n2"), post("once", "1\n2"));
    assert_eq!((first.status, second.status), (200, 200), "{first:?} {second:?}");
    let duplicates = first.json()["duplicates"].as_u64().unwrap() + second.json()["duplicates"].as_u64().unwrap();
    assert_eq!(duplicates, 2, "one of them is the other's repeat");
    assert_eq!(first.json()["groups"][0]["first_offset"], second.json()["groups"][0]["first_offset"]);
    assert_eq!(first.json()["retry_safe"], true);
    assert_eq!(post("once", "3").await.problem(), (409, "LF-CH0010".into()));
    for bad in ["", "with space", "é"] {
        assert_eq!(post(bad, "1").await.problem().0, 400, "{bad:?}");
    }
    assert_eq!(world.payloads("events").await, ["1", "2"]);
    let each = async || world.post(&format!("{RECORDS}?idempotency_field=/id"), NDJSON, "{\"id\":1}\n{\"id\":2}").await;
    assert_eq!(each().await.json()["duplicates"], 0);
    assert_eq!(each().await.json()["duplicates"], 2);
    assert_eq!(world.payloads("events").await.len(), 4);
    world.close().await;
}

/// Would catch a key that names records of several partitions.
#[tokio::test]
async fn a_key_over_several_partitions_is_refused() {
    let world = with_partitions(4).await;
    let body: String = (0..40).map(|n| format!("{{\"id\":{n}}}\n")).collect();
    let request = Request::post(format!("{RECORDS}?key_field=/id"))
        .header("content-type", NDJSON)
        .header("idempotency-key", "one");
    assert_eq!(world.http(request, body).await.problem(), (422, "LF-IN0014".into()));
    assert!(world.channel("events").positions().values().all(|offset| offset.get() == 0));
    world.close().await;
}

/// Would catch a read that guesses, skips or goes past the end.
#[tokio::test]
async fn reading_is_exact_at_its_edges() {
    let world = World::plain().await;
    world.post(RECORDS, NDJSON, "1\n2\n3").await;
    let count = async |query: &str| {
        let answer = world.get(&format!("{RECORDS}?{query}")).await;
        assert_eq!(answer.status, 200, "{query} {answer:?}");
        std::str::from_utf8(&answer.body).unwrap().lines().count()
    };
    assert_eq!(count("from=1&limit=1").await, 1);
    assert_eq!(count("from=earliest").await, 3);
    assert_eq!(count("from=latest").await, 0);
    assert_eq!(count("from=3").await, 0);
    assert_eq!(count("partition=0&max_bytes=1KiB").await, 3);
    for (query, status, code) in [
        ("from=4", 416, "LF-IN0031"),
        ("from=x", 400, "LF-IN0035"),
        ("limit=0", 400, "LF-IN0035"),
        ("limit=10001", 400, "LF-IN0035"),
        ("wait=2m", 400, "LF-IN0035"),
        ("partition=1", 400, "LF-CH0006"),
        ("offset=1", 400, "LF-IN0035"),
    ] {
        assert_eq!(world.get(&format!("{RECORDS}?{query}")).await.problem(), (status, code.to_owned()), "{query}");
    }
    assert_eq!(with_partitions(2).await.get(RECORDS).await.problem(), (400, "LF-IN0033".into()));
    world.close().await;
}

/// Would catch a wait that does not end with the record it waits for, or does not end at all.
#[tokio::test]
async fn a_read_waits_for_a_record_or_its_time() {
    let world = World::plain().await;
    let started = Instant::now();
    let empty = world.get(&format!("{RECORDS}?from=latest&wait=100ms")).await;
    assert_eq!((empty.status, empty.body.len()), (200, 0));
    assert!(started.elapsed() >= Duration::from_millis(100));
    let path = format!("{RECORDS}?from=latest&wait=60s");
    let (waited, _) = tokio::join!(world.get(&path), async {
        // Whichever comes first, the reader sees the record.
        tokio::task::yield_now().await;
        world.post(RECORDS, NDJSON, "1").await
    });
    assert!(
        std::str::from_utf8(&waited.body).unwrap().ends_with("\"payload\":1}\n")
            || waited.headers["landfall-next-offset"] == "1"
    );
    world.close().await;
}

/// Reads server-sent events until `n` records have come: their ids and data.
async fn events(world: &World, last_id: Option<&str>, n: usize) -> Vec<(String, serde_json::Value)> {
    let stream = TcpStream::connect(world.address()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request = Request::get("/v1/channels/events/tail").header("host", "localhost");
    if let Some(id) = last_id {
        request = request.header("last-event-id", id);
    }
    let request = request.body(http_body_util::Empty::<Bytes>::new()).unwrap();
    let mut response = soon(sender.send_request(request)).await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    let mut found = Vec::new();
    while found.len() < n {
        let frame = soon(response.body_mut().frame()).await.expect("the tail goes on").unwrap();
        text.push_str(std::str::from_utf8(&frame.into_data().unwrap()).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            if field("event: ").as_deref() == Some("record") && found.len() < n {
                found.push((field("id: ").unwrap(), serde_json::from_str(&field("data: ").unwrap()).unwrap()));
            }
            text = rest.to_owned();
        }
    }
    connection.abort();
    found
}

/// Would catch an event that is lost or repeated over reconnects while records come in (S29).
#[tokio::test]
async fn a_tail_is_gapless_over_reconnects() {
    let world = World::plain().await;
    let publish = async {
        for batch in 0..30 {
            let body: String = (0..10).map(|n| format!("{}\n", batch * 10 + n)).collect();
            assert_eq!(world.post(RECORDS, NDJSON, body).await.status, 200);
        }
    };
    let read = async {
        let mut seen = Vec::new();
        let mut last: Option<String> = None;
        for _ in 0..3 {
            let page = events(&world, last.as_deref(), 100).await;
            last = page.last().map(|(id, _)| id.clone());
            seen.extend(page);
        }
        seen
    };
    let ((), seen) = tokio::join!(publish, read);
    for (n, (id, data)) in seen.iter().enumerate() {
        assert_eq!((id.as_str(), &data["payload"]), (n.to_string().as_str(), &n.into()));
    }
    assert_eq!(seen.len(), 300);
    world.close().await;
}

/// Would catch a report that lacks what scripts rely on.
#[tokio::test]
async fn health_readiness_and_status_tell_the_state() {
    let world = with_partitions(2).await;
    world.post(RECORDS, NDJSON, "1\n2\n3").await;
    assert_eq!(world.get("/healthz").await.json()["healthy"], true);
    let ready = world.get("/readyz").await;
    assert_eq!((ready.status, &ready.json()["ready"]), (200, &true.into()), "{ready:?}");
    let status = world.get("/v1/status").await.json();
    assert_eq!(status["v"], 1);
    assert!(status["rss_bytes"].as_u64().unwrap() > 1 << 20);
    let channel = &status["channels"][0];
    assert_eq!((&channel["name"], &channel["tail"], &channel["log_start"]), (&"events".into(), &3.into(), &0.into()));
    assert_eq!((&channel["durability"], &channel["health"]), (&"fsync".into(), &"ok".into()));
    assert_eq!(channel["partitions"].as_array().unwrap().len(), 2);
    assert_eq!(channel["partitions"][0]["state"], "ready");
    assert!(status["pipelines"].as_array().unwrap().is_empty());
    assert_eq!(world.get("/metrics").await.problem(), (501, "LF-IN0036".into()), "no recorder was given");
    world.close().await;
}

/// Would catch a small request that waits its turn behind large bodies which fill the budget and come slowly, or not at
/// all (I13).
#[tokio::test(flavor = "multi_thread")]
async fn a_small_request_does_not_wait_behind_slow_large_ones() {
    use tokio::io::AsyncWriteExt;
    const BODY: usize = 8 << 20;
    let limits = landfall_protocol::Limits {
        memory: landfall_types::ByteSize::mib(20),
        max_body_bytes: landfall_types::ByteSize::mib(8),
        ..landfall_protocol::Limits::default()
    };
    let options = ServerOptions { limits, ..ServerOptions::default() };
    let world = World::with(options, vec![("events", ChannelOptions::default())]).await;
    let mut slow = Vec::new();
    for _ in 0..6 {
        let mut stream = TcpStream::connect(world.address()).await.unwrap();
        let head =
            format!("POST {RECORDS} HTTP/1.1\r\nhost: x\r\ncontent-type: {NDJSON}\r\ncontent-length: {BODY}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        slow.push(tokio::spawn(async move {
            // All but the end of it; where the budget is out, the server reads no more and this does not end.
            let _ = tokio::time::timeout(Duration::from_secs(2), stream.write_all(&vec![b'1'; BODY - 1])).await;
            stream
        }));
    }
    let mut held = Vec::new();
    for stream in slow {
        held.push(stream.await.unwrap());
    }
    let started = Instant::now();
    let large = world.post(RECORDS, NDJSON, vec![b'1'; 100 << 10]);
    assert!(tokio::time::timeout(Duration::from_secs(1), large).await.is_err(), "the budget is not out");
    let small = soon(world.post(RECORDS, NDJSON, "1\n2\n")).await;
    assert_eq!(small.status, 200, "{small:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    drop(held);
}
