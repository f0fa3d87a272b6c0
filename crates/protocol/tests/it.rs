//! Golden bytes of every message: what is written today is what every later version reads, and what the
//! unmodified clients of the public service send and expect. The files were encoded from the field tables, not
//! by this crate.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use landfall_protocol::wire::*;
use landfall_protocol::{IngestCode, Refusal};
use prost::Message;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/ingest"))
}

fn golden(name: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(folder().join(format!("{name}.hex"))).unwrap();
    let digits: String =
        text.lines().filter(|line| !line.starts_with('#')).flat_map(|line| line.trim().chars()).collect();
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Compares in both directions and remembers that the file is used.
fn check<M: Message + Default + PartialEq + std::fmt::Debug>(seen: &mut BTreeSet<String>, name: &str, message: M) {
    let bytes = golden(name);
    assert_eq!(message.encode_to_vec(), bytes, "{name}: written otherwise");
    assert_eq!(M::decode(bytes.as_slice()).unwrap(), message, "{name}: read otherwise");
    seen.insert(name.to_owned());
}

fn request(payload: ephemeral_stream_request::Payload) -> EphemeralStreamRequest {
    EphemeralStreamRequest { payload: Some(payload) }
}

fn response(payload: ephemeral_stream_response::Payload) -> EphemeralStreamResponse {
    EphemeralStreamResponse { payload: Some(payload) }
}

fn create_json() -> CreateIngestStreamRequest {
    CreateIngestStreamRequest {
        table_name: Some("storefront.events".into()),
        record_type: Some(RecordType::Json as i32),
        ..Default::default()
    }
}

fn record(offset: i64, record: ingest_record_request::Record, key: Option<&'static str>) -> IngestRecordRequest {
    IngestRecordRequest {
        offset_id: Some(offset),
        record: Some(record),
        record_key: key.map(|text| Bytes::from_static(text.as_bytes())),
    }
}

fn batch(offset: i64, batch: ingest_record_batch_request::Batch, keys: &[&'static str]) -> IngestRecordBatchRequest {
    let record_keys = keys.iter().map(|key| Bytes::from_static(key.as_bytes())).collect();
    IngestRecordBatchRequest { offset_id: Some(offset), batch: Some(batch), record_keys }
}

fn json_records(records: &[&'static str]) -> JsonRecordBatch {
    JsonRecordBatch { records: records.iter().map(|text| Bytes::from_static(text.as_bytes())).collect() }
}

fn ephemeral_requests(seen: &mut BTreeSet<String>) {
    use ephemeral_stream_request::Payload::{CreateStream, IngestRecord, IngestRecordBatch};
    use ingest_record_batch_request::Batch;
    use ingest_record_request::Record;
    check(seen, "create_json", request(CreateStream(create_json())));
    let proto = CreateIngestStreamRequest {
        table_name: Some("a.b.c".into()),
        descriptor_proto: Some(Bytes::from_static(b"\x0a\x01M")),
        record_type: Some(RecordType::Proto as i32),
        ..Default::default()
    };
    check(seen, "create_proto", request(CreateStream(proto)));
    let avro = CreateIngestStreamRequest {
        table_name: Some("t".into()),
        record_type: Some(RecordType::Avro as i32),
        avro_schema_json: Some(r#"{"type":"record","name":"R","fields":[]}"#.into()),
        ..Default::default()
    };
    check(seen, "create_avro", request(CreateStream(avro)));
    let text = |text: &'static str| Record::JsonRecord(Bytes::from_static(text.as_bytes()));
    check(seen, "ingest_json", request(IngestRecord(record(300, text("{\"é\":1}"), None))));
    let bytes = Record::ProtoEncodedRecord(Bytes::from_static(&[8, 0x96, 1]));
    check(seen, "ingest_proto", request(IngestRecord(record(0, bytes, None))));
    check(seen, "ingest_avro", request(IngestRecord(record(0, Record::AvroEncodedRecord(Bytes::new()), None))));
    check(seen, "ingest_keyed", request(IngestRecord(record(1, text("1"), Some("k")))));
    check(seen, "batch_json", request(IngestRecordBatch(batch(1, Batch::JsonBatch(json_records(&["1", "22"])), &[]))));
    let records = vec![Bytes::from_static(&[8, 1]), Bytes::new()];
    let proto = Batch::ProtoEncodedBatch(ProtoEncodedRecordBatch { records });
    check(seen, "batch_proto", request(IngestRecordBatch(batch(2, proto, &[]))));
    let avro = Batch::AvroBatch(AvroRecordBatch { records: vec![Bytes::from_static(&[2])] });
    check(seen, "batch_avro", request(IngestRecordBatch(batch(3, avro, &[]))));
    let keyed = batch(4, Batch::JsonBatch(json_records(&["1", "2"])), &["a", "b"]);
    check(seen, "batch_keyed", request(IngestRecordBatch(keyed)));
}

fn ephemeral_responses(seen: &mut BTreeSet<String>) {
    use ephemeral_stream_response::Payload::{
        CloseStreamSignal as Signal, CreateStreamResponse, IngestRecordResponse as Ack,
    };
    let created = CreateIngestStreamResponse {
        stream_id: Some("0190f0c8-0000-7000-8000-000000000001".into()),
        ..Default::default()
    };
    check(seen, "created", response(CreateStreamResponse(created)));
    let resumed = CreateIngestStreamResponse {
        stream_id: Some("s".into()),
        committed_seq: Some(41),
        producer_state: Some(ProducerState::Resumed as i32),
    };
    check(seen, "created_resumed", response(CreateStreamResponse(resumed)));
    let ack = IngestRecordResponse { durability_ack_up_to_offset: Some(300), durability: None };
    check(seen, "ack", response(Ack(ack)));
    let weak =
        IngestRecordResponse { durability_ack_up_to_offset: Some(0), durability: Some(Durability::Written as i32) };
    check(seen, "ack_written", response(Ack(weak)));
    let duration = Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 });
    check(seen, "close_signal", response(Signal(CloseStreamSignal { duration })));
}

fn persistent(seen: &mut BTreeSet<String>) {
    use persistent_stream_request::Payload as Request;
    use persistent_stream_response::Payload as Response;
    let request = |payload| PersistentStreamRequest { payload: Some(payload) };
    let response = |payload| PersistentStreamResponse { payload: Some(payload) };
    let create = CreatePersistentStreamRequest { create_stream: Some(create_json()) };
    check(seen, "persistent_create", request(Request::CreateStream(create)));
    let resume = ResumeIngestStreamRequest {
        record_type: Some(RecordType::Json as i32),
        identifier: Some(resume_ingest_stream_request::Identifier::StreamId("s".into())),
        ..Default::default()
    };
    check(seen, "persistent_resume", request(Request::ResumeStream(resume)));
    let text = ingest_record_request::Record::JsonRecord(Bytes::from_static(b"1"));
    check(seen, "persistent_ingest", request(Request::IngestRecord(record(7, text, None))));
    let one = ingest_record_batch_request::Batch::JsonBatch(json_records(&["1"]));
    check(seen, "persistent_batch", request(Request::IngestRecordBatch(batch(8, one, &[]))));
    let created = CreateIngestStreamResponse { stream_id: Some("s".into()), ..Default::default() };
    check(seen, "persistent_created", response(Response::CreateStreamResponse(created)));
    let resumed = ResumeIngestStreamResponse { last_committed_offset: Some(6) };
    check(seen, "persistent_resumed", response(Response::ResumeStreamResponse(resumed)));
    let ack = IngestRecordResponse { durability_ack_up_to_offset: Some(7), durability: None };
    check(seen, "persistent_ack", response(Response::IngestRecordResponse(ack)));
    let signal = CloseStreamSignal { duration: None };
    check(seen, "persistent_close_signal", response(Response::CloseStreamSignal(signal)));
    let retire = RetireStreamRequest {
        table_name: Some("t".into()),
        identifier: Some(retire_stream_request::Identifier::StreamId("s".into())),
    };
    check(seen, "retire", retire);
    check(seen, "retired", RetireStreamResponse {});
}

/// Would catch a field that changed its number, type or presence, in either direction, and a golden file that no
/// message answers for.
#[test]
fn every_message_keeps_its_bytes() {
    let mut seen = BTreeSet::new();
    ephemeral_requests(&mut seen);
    ephemeral_responses(&mut seen);
    persistent(&mut seen);
    let files: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".hex").map(str::to_owned))
        .filter(|name| !name.starts_with("status_"))
        .collect();
    assert_eq!(seen, files);
}

/// Would catch status details that another client cannot read.
#[test]
fn status_details_keep_their_bytes() {
    let malformed = Refusal::new(IngestCode::RecordMalformed, "record 2 is not JSON").at_frame(3).at_record(2);
    assert_eq!(malformed.to_status().details(), golden("status_details"));
    let draining = Refusal::new(IngestCode::Draining, "stopping").retry_after(Duration::from_secs(2));
    assert_eq!(draining.to_status().details(), golden("status_retry"));
}

/// Would catch a field of a later version that makes this one fail: both sides skip what they do not know.
#[test]
fn unknown_fields_are_skipped() {
    let mut bytes = golden("ack");
    bytes.extend([0xfa, 0x3f, 1, 7]); // field 1023, one byte
    let ack = EphemeralStreamResponse::decode(bytes.as_slice()).unwrap();
    assert!(matches!(ack.payload, Some(ephemeral_stream_response::Payload::IngestRecordResponse(_))));
    let later = EphemeralStreamResponse::decode([0x4a, 0].as_slice()).unwrap(); // payload number 9
    assert_eq!(later.payload, None);
}

/// Would catch a decoder that panics, or reads past the end, on any cut of a message.
#[test]
fn a_cut_message_is_an_error_or_a_shorter_message() {
    for name in ["create_proto", "batch_keyed", "close_signal", "persistent_resume"] {
        let bytes = golden(name);
        for cut in 0..bytes.len() {
            let _ = EphemeralStreamRequest::decode(&bytes[..cut]);
            let _ = EphemeralStreamResponse::decode(&bytes[..cut]);
            let _ = PersistentStreamRequest::decode(&bytes[..cut]);
        }
        assert!(EphemeralStreamRequest::decode(&bytes[..bytes.len() - 1]).is_err(), "{name}");
    }
}
