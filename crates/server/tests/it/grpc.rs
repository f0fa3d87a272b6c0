//! `EphemeralStream` as a raw client of the wire sees it.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use landfall_channel::{
    Admission, ChannelOptions, Limits as ChannelLimits, PublishOptions, QueueLimits, Record, RecordFormat, Retention,
    Validate,
};
use landfall_protocol::Limits;
use landfall_protocol::wire::{
    CreateIngestStreamRequest, IngestRecordBatchRequest, IngestRecordRequest, ProtoEncodedRecordBatch, RecordType,
    RetireStreamRequest, ephemeral_stream_request::Payload, ephemeral_stream_response,
    ingest_record_batch_request::Batch, ingest_record_request::Record as Form,
};
use landfall_server::{AutoCreate, ServerOptions};
use landfall_types::{ByteSize, Durability, PartitionId};
use prost::Message;
use tokio::net::TcpStream;
use tonic::Code;

use crate::world::{RawStream, World, json_create, json_record, soon};

/// Would catch a handler that reads before it answers: the reference client writes nothing until it has headers.
#[tokio::test]
async fn headers_precede_first_request() {
    let world = World::plain().await;
    let stream = TcpStream::connect(world.address()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    // A body that stays open and never has a frame: HEADERS only.
    let body =
        http_body_util::StreamBody::new(futures::stream::pending::<Result<http_body::Frame<Bytes>, std::io::Error>>());
    let request = http::Request::post(format!("http://{}/databricks.zerobus.Zerobus/EphemeralStream", world.address()))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(BodyExt::boxed(body))
        .unwrap();
    // Long beside the 100 ms that it may take, short beside the time after which a silent call is ended.
    let response = tokio::time::timeout(Duration::from_secs(3), sender.send_request(request)).await.unwrap().unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/grpc");
    assert!(response.headers().contains_key("landfall-version"));
    assert_eq!(response.headers()["landfall-features"], "keys,slot");
}

/// Would catch an ack that leaves before the commit, a record out of order, or one lost at the half-close.
#[tokio::test]
async fn an_ack_covers_only_what_is_committed() {
    let world = World::plain().await;
    let channel = world.channel("events");
    let mut client = world.connect().await;
    let mut stream = RawStream::open(&mut client, "events").await;
    for n in 0..200 {
        stream.record(format!("{{\"n\":{n}}}"));
    }
    stream.batch((200..203).map(|n| format!("{{\"n\":{n}}}")));
    stream.half_close();
    let mut acks = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        let ephemeral_stream_response::Payload::IngestRecordResponse(ack) = message else { panic!("expected acks") };
        let ack = ack.durability_ack_up_to_offset.unwrap();
        // Frame 200 holds three records.
        let records = if ack == 200 { 203 } else { ack as u64 + 1 };
        assert!(channel.tail(PartitionId(0)).unwrap().get() >= records, "ack {ack} before its commit");
        acks.push(ack);
    }
    assert!(acks.windows(2).all(|pair| pair[0] < pair[1]), "{acks:?}");
    assert_eq!(acks.last(), Some(&200));
    let expected: Vec<_> = (0..203).map(|n| Bytes::from(format!("{{\"n\":{n}}}"))).collect();
    assert_eq!(world.payloads("events").await, expected);
    world.close().await;
}

/// Would catch a frame number that is taken although it is not the next one.
#[tokio::test]
async fn wire_offsets_count_from_zero_without_a_gap() {
    let world = World::plain().await;
    let mut client = world.connect().await;
    for (stored, wrong) in [None, Some(-1), Some(0), Some(2)].into_iter().enumerate() {
        let mut stream = RawStream::open(&mut client, "events").await;
        stream.record("1");
        stream.send(json_record(wrong, "2"));
        stream.send(json_record(Some(1), "3"));
        let (acked, code, refusal) = stream.refused().await;
        assert_eq!((acked, code, refusal.code.as_str()), (0, Code::InvalidArgument, "LF-IN0009"), "{wrong:?}");
        assert_eq!(refusal.wire_offset, Some(1));
        assert_eq!(world.payloads("events").await.len(), stored + 1);
    }
    world.close().await;
}

/// Would catch a bad record that takes good ones before it along, lets later ones in, or harms a sibling (S15).
#[tokio::test]
async fn a_malformed_record_ends_its_stream_alone() {
    let world = World::plain().await;
    let mut client = world.connect().await;
    let mut sibling = RawStream::open(&mut client, "events").await;
    let mut stream = RawStream::open(&mut client, "events").await;
    for frame in 0..7 {
        if frame == 3 {
            stream.batch(["{\"ok\":1}", "{\"cut\":"]);
        } else {
            stream.record(format!("{{\"frame\":{frame}}}"));
        }
    }
    let (acked, code, refusal) = stream.refused().await;
    assert_eq!((acked, code, refusal.code.as_str()), (2, Code::InvalidArgument, "LF-IN0011"));
    assert_eq!((refusal.wire_offset, refusal.record_index), (Some(3), Some(1)));
    assert!(!refusal.message.contains("cut"), "no payload in a status: {}", refusal.message);
    sibling.record("\"sibling\"");
    sibling.acked(0).await;
    let stored = world.payloads("events").await;
    assert_eq!(stored, ["{\"frame\":0}", "{\"frame\":1}", "{\"frame\":2}", "\"sibling\""]);
    sibling.half_close();
    assert!(sibling.end().await.1.is_none());
    world.close().await;
}

/// Would catch a limit that is off by one, or told without its details (S16).
#[tokio::test]
async fn a_call_above_a_limit_is_invalid_with_details() {
    let limits = Limits { max_call_bytes: ByteSize::kib(1), max_call_records: 3, ..Limits::default() };
    let small = ChannelOptions {
        limits: ChannelLimits { record_bytes: ByteSize::kib(1), ..ChannelLimits::default() },
        ..ChannelOptions::default()
    };
    let options = ServerOptions { limits, ..ServerOptions::default() };
    let world = World::with(options, vec![("events", ChannelOptions::default()), ("small", small)]).await;
    let mut client = world.connect().await;
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let mut stream = RawStream::open(&mut client, "events").await;
    stream.record(text(1_024));
    stream.batch([text(512), text(256), text(256)]);
    stream.acked(1).await;
    stream.record(text(1_025));
    let (_, code, refusal) = stream.refused().await;
    assert_eq!((code, refusal.code.as_str(), refusal.wire_offset), (Code::InvalidArgument, "LF-IN0012", Some(2)));
    assert!(refusal.message.contains("1025") && refusal.message.contains("1024"), "{}", refusal.message);

    let mut stream = RawStream::open(&mut client, "events").await;
    stream.batch(["1", "2", "3", "4"]);
    assert_eq!(stream.refused().await.2.code, "LF-IN0012");

    let mut stream = RawStream::open(&mut client, "small").await;
    stream.batch([text(10), text(1_000)]);
    let (_, code, refusal) = stream.refused().await;
    assert_eq!((code, refusal.code.as_str(), refusal.record_index), (Code::InvalidArgument, "LF-IN0012", Some(1)));

    // Above the transport's own bound, which lies far above a call's.
    let mut stream = RawStream::open(&mut client, "events").await;
    stream.record(vec![b'1'; 200_000]);
    let (_, code, refusal) = stream.refused().await;
    assert_eq!((code, refusal.code.as_str()), (Code::OutOfRange, "LF-IN0012"));
    assert_eq!(world.payloads("events").await.len(), 4);
    world.close().await;
}

/// Would catch a call that is stored in part when it is cut into several units, or acknowledged before its end.
#[tokio::test]
async fn a_call_above_the_batch_limit_is_split_and_acked_once() {
    let options = ChannelOptions {
        limits: ChannelLimits { batch_records: 10, ..ChannelLimits::default() },
        ..ChannelOptions::default()
    };
    let world = World::with(ServerOptions::default(), vec![("events", options)]).await;
    let mut client = world.connect().await;
    let mut stream = RawStream::open(&mut client, "events").await;
    stream.batch((0..95).map(|n| n.to_string()));
    stream.record("95");
    stream.acked(1).await;
    let expected: Vec<_> = (0..96).map(|n| Bytes::from(n.to_string())).collect();
    assert_eq!(world.payloads("events").await, expected);
}

/// Would catch each way in which a stream can begin wrongly and be taken, or be refused under a status that the
/// reference client retries without end.
#[tokio::test]
async fn a_create_is_checked_before_a_stream_is_open() {
    let limits = Limits { open_timeout: Duration::from_millis(200), ..Limits::default() };
    let json = ChannelOptions { format: Some(RecordFormat::Json), ..ChannelOptions::default() };
    let options = ServerOptions { limits, ..ServerOptions::default() };
    let world = World::with(options, vec![("events", ChannelOptions::default()), ("json", json)]).await;
    let mut client = world.connect().await;
    let of_type = |record_type: Option<i32>| CreateIngestStreamRequest { record_type, ..json_create("events") };
    let proto = |descriptor: &[u8]| CreateIngestStreamRequest {
        table_name: Some("json".into()),
        descriptor_proto: Some(Bytes::copy_from_slice(descriptor)),
        ..Default::default()
    };
    let refused = [
        (json_create("nowhere"), Code::NotFound, "LF-IN0003"),
        (json_create(""), Code::NotFound, "LF-IN0003"),
        (json_create(&"x".repeat(300)), Code::NotFound, "LF-IN0003"),
        (json_create("EVENTS"), Code::NotFound, "LF-IN0003"),
        (of_type(None), Code::InvalidArgument, "LF-IN0006"),
        (of_type(Some(0)), Code::InvalidArgument, "LF-IN0006"),
        (of_type(Some(3)), Code::InvalidArgument, "LF-IN0006"),
        (of_type(Some(4)), Code::InvalidArgument, "LF-IN0006"),
        (of_type(Some(1)), Code::InvalidArgument, "LF-IN0007"),
        (proto(b"\xff\xff"), Code::InvalidArgument, "LF-IN0007"),
        (proto(&order_descriptor().encode_to_vec()), Code::InvalidArgument, "LF-IN0006"),
    ];
    for (create, code, ours) in refused {
        let mut stream = RawStream::call(&mut client).await.unwrap();
        stream.create(create.clone());
        let (_, found, refusal) = stream.refused().await;
        assert_eq!((found, refusal.code.as_str()), (code, ours), "{create:?}");
    }
    assert_eq!(world.channel("events").format(), None, "a create that fails fixes nothing");

    let mut stream = RawStream::call(&mut client).await.unwrap();
    stream.record("1");
    assert_eq!(stream.refused().await.2.code, "LF-IN0004");

    let mut stream = RawStream::call(&mut client).await.unwrap();
    stream.half_close();
    let (_, code, refusal) = stream.refused().await;
    assert_eq!((code, refusal.code.as_str()), (Code::InvalidArgument, "LF-IN0004"));

    let mut stream = RawStream::open(&mut client, "events").await;
    stream.create(json_create("events"));
    assert_eq!(stream.refused().await.2.code, "LF-IN0004");

    let mut stream = RawStream::call(&mut client).await.unwrap();
    let (_, code, refusal) = stream.refused().await;
    assert_eq!((code, refusal.code.as_str()), (Code::DeadlineExceeded, "LF-IN0018"), "silence");

    let header = [("x-databricks-zerobus-table-name", "other")];
    let mut stream = RawStream::call_with(&mut client, &header).await.unwrap();
    stream.create(json_create("events"));
    assert_eq!(stream.refused().await.2.code, "LF-IN0005");
    world.close().await;
}

/// Would catch a call that is taken in a form that its stream was not created for.
#[tokio::test]
async fn a_call_keeps_the_form_of_its_stream() {
    let world = World::plain().await;
    let mut client = world.connect().await;
    let single = |record| Payload::IngestRecord(IngestRecordRequest { offset_id: Some(0), record, record_key: None });
    let several = |batch, record_keys| {
        Payload::IngestRecordBatch(IngestRecordBatchRequest { offset_id: Some(0), batch, record_keys })
    };
    let json = |records: &[&str]| {
        let records = records.iter().map(|record| Bytes::from((*record).to_owned())).collect();
        Some(Batch::JsonBatch(landfall_protocol::wire::JsonRecordBatch { records }))
    };
    let wrong = [
        single(None),
        single(Some(Form::ProtoEncodedRecord(Bytes::new()))),
        several(None, vec![]),
        several(json(&[]), vec![]),
        several(json(&["1", "2"]), vec![Bytes::from_static(b"one key for two")]),
        several(Some(Batch::ProtoEncodedBatch(ProtoEncodedRecordBatch::default())), vec![]),
    ];
    for payload in wrong {
        let mut stream = RawStream::open(&mut client, "events").await;
        stream.send(payload.clone());
        let (_, code, refusal) = stream.refused().await;
        assert_eq!((code, refusal.code.as_str()), (Code::InvalidArgument, "LF-IN0010"), "{payload:?}");
    }
    let mut stream = RawStream::open(&mut client, "events").await;
    stream.send(several(json(&["1", "2"]), vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")]));
    stream.take_offset();
    stream.acked(0).await;
    let keys: Vec<_> = world.stored("events", 0).await.into_iter().map(|one| one.record.key.unwrap()).collect();
    assert_eq!(keys, [&b"a"[..], b"b"]);
    world.close().await;
}

fn order_descriptor() -> prost_types::DescriptorProto {
    use prost_types::field_descriptor_proto::{Label, Type};
    let field = |name: &str, number, kind: Type| prost_types::FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        label: Some(Label::Optional as i32),
        r#type: Some(kind as i32),
        ..Default::default()
    };
    prost_types::DescriptorProto {
        name: Some("Order".into()),
        field: vec![field("id", 1, Type::Int64), field("name", 2, Type::String)],
        ..Default::default()
    }
}

/// Would catch protobuf records that are stored without their schema, unchecked, or beside JSON ones (S22).
#[tokio::test]
async fn protobuf_records_are_checked_by_their_descriptor() {
    let world = World::plain().await;
    let mut client = world.connect().await;
    let descriptor = order_descriptor().encode_to_vec();
    let record = |offset, bytes: &'static [u8]| {
        Payload::IngestRecord(IngestRecordRequest {
            offset_id: Some(offset),
            record: Some(Form::ProtoEncodedRecord(Bytes::from_static(bytes))),
            record_key: None,
        })
    };
    let mut stream = RawStream::call(&mut client).await.unwrap();
    stream.create(proto_create(&order_descriptor()));
    stream.expect_created().await;
    stream.send(record(0, b"\x08\x2a\x12\x02hi"));
    stream.send(record(1, b""));
    stream.take_offset();
    stream.take_offset();
    stream.acked(1).await;
    stream.send(record(2, b"\x12\x02\xff\xff"));
    assert_eq!(stream.refused().await.2.code, "LF-IN0011");
    let stored = world.stored("events", 0).await;
    assert_eq!(stored.iter().map(|one| &one.record.payload[..]).collect::<Vec<_>>(), [&b"\x08\x2a\x12\x02hi"[..], b""]);
    let schema = stored[0].record.schema.expect("the schema's id");
    assert_eq!(world.channel("events").schema(schema), Some((RecordFormat::Proto, descriptor.into())));

    let mut stream = RawStream::call(&mut client).await.unwrap();
    stream.create(json_create("events"));
    let (_, code, refusal) = stream.refused().await;
    assert_eq!((code, refusal.code.as_str()), (Code::InvalidArgument, "LF-IN0006"));

    // The same number with a type that old readers would misread; then a field more, which they skip.
    let mut other = order_descriptor();
    other.field[1].r#type = Some(prost_types::field_descriptor_proto::Type::Double as i32);
    let mut stream = RawStream::call(&mut client).await.unwrap();
    stream.create(proto_create(&other));
    let (_, code, refusal) = stream.refused().await;
    assert_eq!((code, refusal.code.as_str()), (Code::InvalidArgument, "LF-IN0008"));
    assert!(refusal.message.contains("name (2)"), "{}", refusal.message);
    let mut more = order_descriptor();
    more.field.push(prost_types::FieldDescriptorProto {
        name: Some("more".into()),
        number: Some(3),
        ..more.field[0].clone()
    });
    for _ in 0..2 {
        let mut stream = RawStream::call(&mut client).await.unwrap();
        stream.create(proto_create(&more));
        stream.expect_created().await;
    }
    assert_eq!(world.channel("events").schema(schema + 2), None, "the same bytes get the same id");
    world.close().await;
}

fn proto_create(descriptor: &prost_types::DescriptorProto) -> CreateIngestStreamRequest {
    CreateIngestStreamRequest {
        table_name: Some("events".into()),
        record_type: Some(RecordType::Proto as i32),
        descriptor_proto: Some(descriptor.encode_to_vec().into()),
        ..Default::default()
    }
}

/// Would catch a channel that takes anything and still refuses, and text that is not text.
#[tokio::test]
async fn a_channel_without_validation_takes_broken_records() {
    let options = ChannelOptions { validate: Validate::Off, ..ChannelOptions::default() };
    let world = World::with(ServerOptions::default(), vec![("events", options)]).await;
    let mut client = world.connect().await;
    let mut stream = RawStream::open(&mut client, "events").await;
    stream.record("{\"cut\":");
    stream.acked(0).await;
    stream.record(Bytes::from_static(b"\xff"));
    assert_eq!(stream.refused().await.2.code, "LF-IN0011");
    assert_eq!(world.payloads("events").await, ["{\"cut\":"]);
    world.close().await;
}

/// Would catch a weaker class that is passed off as the strongest (I1).
#[tokio::test]
async fn a_weaker_class_rides_in_the_ack() {
    let memory = ChannelOptions {
        durability: Durability::Memory,
        retention: Retention { max_bytes: Some(ByteSize::mib(64)), ..Retention::default() },
        ..ChannelOptions::default()
    };
    let written = ChannelOptions { durability: Durability::Written, ..ChannelOptions::default() };
    let channels = vec![("memory", memory), ("written", written), ("fsync", ChannelOptions::default())];
    let world = World::with(ServerOptions::default(), channels).await;
    let mut client = world.connect().await;
    for (table, class) in [("memory", Some(3)), ("written", Some(2)), ("fsync", None)] {
        let mut stream = RawStream::open(&mut client, table).await;
        stream.record("1");
        let Some(ephemeral_stream_response::Payload::IngestRecordResponse(ack)) = stream.message().await.unwrap()
        else {
            panic!("expected an ack");
        };
        assert_eq!(ack.durability, class, "{table}");
    }
    world.close().await;
}

/// Would catch a table that leads to the wrong channel, or makes one that nobody allowed (G10).
#[tokio::test]
async fn tables_lead_to_channels_by_map_name_and_rule() {
    let like = ChannelOptions { partitions: 3, validate: Validate::Off, ..ChannelOptions::default() };
    let options = ServerOptions {
        tables: [("main.shop.orders".to_owned(), "events".to_owned()), ("main.lost".to_owned(), "gone".to_owned())]
            .into(),
        auto_create: vec![AutoCreate { matches: "tenant_*".into(), like: "template".into() }],
        limits: Limits { max_auto_channels: 1, ..Limits::default() },
        ..ServerOptions::default()
    };
    let world = World::with(options, vec![("events", ChannelOptions::default()), ("template", like)]).await;
    let mut client = world.connect().await;
    let mut stream = RawStream::open(&mut client, "main.shop.orders").await;
    stream.record("1");
    stream.acked(0).await;
    assert_eq!(world.payloads("events").await, ["1"]);
    RawStream::open(&mut client, "tenant_a").await;
    let made = world.channel("tenant_a");
    assert_eq!(
        (made.partitions(), made.options().validate, made.format()),
        (3, Validate::Off, Some(RecordFormat::Json))
    );
    for table in ["main.lost", "tenant_b", "other", "tenant_/../x"] {
        let mut stream = RawStream::call(&mut client).await.unwrap();
        stream.create(json_create(table));
        let (_, code, refusal) = stream.refused().await;
        assert_eq!((code, refusal.code.as_str()), (Code::NotFound, "LF-IN0003"), "{table}");
    }
    world.close().await;
}

/// Would catch streams that pile up on one partition, or a slot that is not kept.
#[tokio::test]
async fn streams_spread_over_partitions_and_slots_bind_them() {
    let options = ChannelOptions { partitions: 3, ..ChannelOptions::default() };
    let world = World::with(ServerOptions::default(), vec![("events", options)]).await;
    let mut client = world.connect().await;
    let mut streams = Vec::new();
    for n in 0..3 {
        let mut stream = RawStream::open(&mut client, "events").await;
        stream.record(n.to_string());
        stream.acked(0).await;
        streams.push(stream);
    }
    for partition in 0..3 {
        assert_eq!(world.stored("events", partition).await.len(), 1, "one stream each");
    }
    for _ in 0..2 {
        let mut stream = RawStream::call_with(&mut client, &[("landfall-slot", "4/6")]).await.unwrap();
        stream.create(json_create("events"));
        stream.expect_created().await;
        stream.record("\"slot\"");
        stream.acked(0).await;
        streams.push(stream);
    }
    assert_eq!(world.stored("events", 1).await.len(), 3);
}

/// Would catch a method that hangs or answers as if it were there.
#[tokio::test]
async fn methods_that_are_not_offered_say_so() {
    let world = World::plain().await;
    let mut client = world.connect().await;
    let status = soon(client.retire_stream(RetireStreamRequest::default())).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    let requests = futures::stream::pending::<landfall_protocol::wire::PersistentStreamRequest>();
    let status = soon(client.persistent_stream(requests)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(landfall_protocol::Refusal::from_status(&status).code, "LF-IN0036");
    world.close().await;
}

/// Would catch compressed calls that do not decode, or a bomb that is inflated beyond the transport's bound.
#[tokio::test]
async fn compressed_calls_are_taken_within_the_limits() {
    use tonic::codec::CompressionEncoding;
    let world = World::plain().await;
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Zstd] {
        let mut client = world.connect().await.send_compressed(encoding);
        let mut stream = RawStream::open(&mut client, "events").await;
        stream.record(format!("\"{}\"", "z".repeat(100_000)));
        stream.acked(0).await;
        // 64 MiB of spaces pack to a few KiB.
        stream.record(vec![b' '; 64 << 20]);
        let (_, code, refusal) = stream.refused().await;
        assert_eq!((code, refusal.code.as_str()), (Code::OutOfRange, "LF-IN0012"), "{encoding:?}");
    }
    assert_eq!(world.payloads("events").await.len(), 2);
    world.close().await;
}

/// Would catch a stream that reads on while its fill of calls is not acknowledged.
#[tokio::test]
async fn a_stream_is_served_in_order_under_tight_limits() {
    let limits = Limits { stream_unacked_calls: 1, stream_unacked_bytes: ByteSize::kib(64), ..Limits::default() };
    let world =
        World::with(ServerOptions { limits, ..ServerOptions::default() }, vec![("events", ChannelOptions::default())])
            .await;
    let mut client = world.connect().await;
    let mut stream = RawStream::open(&mut client, "events").await;
    for n in 0..50 {
        stream.record(n.to_string());
    }
    stream.acked(49).await;
    let expected: Vec<_> = (0..50).map(|n| Bytes::from(n.to_string())).collect();
    assert_eq!(world.payloads("events").await, expected);
}

/// Would catch a full queue that ends a stream, or calls that come back out of order or twice after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_waited_out_in_order() {
    let options = ChannelOptions {
        admission: Admission::Reject,
        limits: ChannelLimits { batch_records: 1, ..ChannelLimits::default() },
        queue: QueueLimits { items: 64, ..QueueLimits::default() },
        ..ChannelOptions::default()
    };
    let world = World::with(ServerOptions::default(), vec![("events", options)]).await;
    let channel = world.channel("events");
    let mut client = world.connect().await;
    let mut stream = RawStream::open(&mut client, "events").await;
    for n in 0..500 {
        stream.record(n.to_string());
    }
    // Publishers beside the stream, so that the queue is full for some of its calls.
    let crowd = tokio::spawn(async move {
        let publish = |_| channel.publish(Record::new("\"crowd\""), PublishOptions::default());
        let mut refused = 0;
        for _ in 0..5 {
            let outcomes = futures::future::join_all((0..100).map(publish)).await;
            refused += outcomes.iter().filter(|outcome| outcome.committed().is_none()).count();
        }
        refused
    });
    stream.acked(499).await;
    assert!(soon(crowd).await.unwrap() > 0, "the queue was never full, so this shows nothing");
    let stored: Vec<_> = world.payloads("events").await.into_iter().filter(|one| one != "\"crowd\"").collect();
    let expected: Vec<_> = (0..500).map(|n| Bytes::from(n.to_string())).collect();
    assert!(stored == expected, "{} stored", stored.len());
    world.close().await;
}

/// Would catch a byte of real input (nested, long, escaped, non-ASCII) that changes on its way through the wire.
#[tokio::test(flavor = "multi_thread")]
async fn real_events_are_stored_byte_for_byte() {
    const EVENTS: &str = include_str!("../../../../examples/data/webhook-events.ndjson");
    let world = World::plain().await;
    let mut client = world.connect().await;
    let mut stream = RawStream::open(&mut client, "events").await;
    let lines: Vec<&str> = EVENTS.lines().collect();
    assert!(lines.len() > 300);
    let (singles, batch) = lines.split_at(lines.len() / 2);
    for line in singles {
        stream.record(line.to_owned());
    }
    stream.batch(batch.iter().map(|line| (*line).to_owned()));
    stream.acked(i64::try_from(singles.len()).unwrap()).await;
    assert!(world.payloads("events").await == lines, "an event changed");
    let read = world.get("/v1/channels/events/records?limit=10000&max_bytes=16MiB").await;
    let objects: Vec<&str> = std::str::from_utf8(&read.body).unwrap().lines().collect();
    assert_eq!(objects.len(), lines.len());
    for (object, line) in objects.iter().zip(&lines) {
        assert!(object.ends_with(&format!(",\"payload\":{line}}}")), "an event changed when it was read");
    }
    world.close().await;
}
