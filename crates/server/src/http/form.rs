//! The JSON forms of a record: as published in an envelope, and as read (G35, G39).

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{BufMut, Bytes, BytesMut};
use landfall_channel::{Delivered, Header, Record};
use landfall_types::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::validate::check_json;

/// One line of `application/vnd.landfall.records+json`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    payload_base64: Option<String>,
    key: Option<String>,
    key_base64: Option<String>,
    #[serde(default)]
    headers: Vec<EnvelopeHeader>,
    timestamp: Option<String>,
    idempotency_key: Option<String>,
}

/// A payload that is there, `null` included.
fn present<'de, D: serde::Deserializer<'de>>(payload: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(payload).map(Some)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvelopeHeader {
    name: String,
    value: Option<String>,
    value_base64: Option<String>,
}

/// Reads an envelope. The payload stays where it is, as sent.
pub(crate) fn read_envelope(line: &Bytes) -> Result<Record, String> {
    check_json(line).map_err(|error| error.to_string())?;
    // The library's own messages can quote what they read; a position cannot.
    let envelope: Envelope<'_> = serde_json::from_slice(line).map_err(|error| {
        format!("not an envelope at byte {}: expected payload | payload_base64, key | key_base64, headers, timestamp, idempotency_key", error.column())
    })?;
    let payload = match (envelope.payload, envelope.payload_base64) {
        (Some(raw), None) => line.slice_ref(raw.get().as_bytes()),
        (None, Some(text)) => base64("payload_base64", &text)?,
        _ => return Err("expected one of `payload` and `payload_base64`".to_owned()),
    };
    let key = one_of("key", envelope.key, envelope.key_base64)?;
    let mut headers = Vec::with_capacity(envelope.headers.len());
    for header in envelope.headers {
        let value = one_of("header value", header.value, header.value_base64)?;
        let value = value.ok_or("a header has neither `value` nor `value_base64`")?;
        headers.push(Header { name: header.name, value });
    }
    let event_time = envelope.timestamp.map(|text| read_time(&text)).transpose()?;
    let idempotency_key = envelope.idempotency_key.map(Bytes::from);
    Ok(Record { key, headers, event_time, idempotency_key, ..Record::new(payload) })
}

fn base64(what: &str, text: &str) -> Result<Bytes, String> {
    BASE64.decode(text).map(Bytes::from).map_err(|_| format!("`{what}` is not base64"))
}

fn one_of(what: &str, text: Option<String>, encoded: Option<String>) -> Result<Option<Bytes>, String> {
    match (text, encoded) {
        (Some(text), None) => Ok(Some(Bytes::from(text))),
        (None, Some(encoded)) => base64(what, &encoded).map(Some),
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(format!("{what}: expected text or base64, not both")),
    }
}

/// Reads an RFC 3339 time.
pub(crate) fn read_time(text: &str) -> Result<Timestamp, String> {
    let parsed: jiff::Timestamp = text.parse().map_err(|_| "a timestamp is not in the form of RFC 3339".to_owned())?;
    Ok(Timestamp(parsed.as_microsecond()))
}

/// A time in RFC 3339; the nearest one that the form can hold.
pub(crate) fn time_text(at: Timestamp) -> String {
    let time = jiff::Timestamp::from_microsecond(at.0);
    time.unwrap_or(if at.0 < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX }).to_string()
}

/// Writes a record as one JSON object without a line break.
pub(crate) fn write_record(out: &mut BytesMut, delivered: &Delivered) {
    let record = &delivered.record;
    let head = format!(r#"{{"partition":{},"offset":{},"timestamp":"#, delivered.partition, delivered.offset);
    out.put_slice(head.as_bytes());
    put_text(out, &time_text(record.event_time.unwrap_or(delivered.append_time)));
    if let Some(key) = &record.key {
        put_member(out, "key", key);
    }
    if !record.headers.is_empty() {
        out.put_slice(br#","headers":["#);
        for (at, header) in record.headers.iter().enumerate() {
            out.put_slice(if at == 0 { br#"{"name":"#.as_slice() } else { br#",{"name":"#.as_slice() });
            put_text(out, &header.name);
            put_member(out, "value", &header.value);
            out.put_u8(b'}');
        }
        out.put_u8(b']');
    }
    // Byte for byte, and one line each: JSON with a line break inside would end the line.
    if !record.payload.iter().any(|byte| matches!(byte, b'\n' | b'\r')) && check_json(&record.payload).is_ok() {
        out.put_slice(br#","payload":"#);
        out.put_slice(&record.payload);
    } else {
        out.put_slice(br#","payload_base64":"#);
        put_base64(out, &record.payload);
    }
    out.put_u8(b'}');
}

/// `,"name":"text"`, or `,"name_base64":"…"` for bytes that are not text.
fn put_member(out: &mut BytesMut, name: &str, value: &[u8]) {
    out.put_slice(b",\"");
    out.put_slice(name.as_bytes());
    match std::str::from_utf8(value) {
        Ok(text) => {
            out.put_slice(b"\":");
            put_text(out, text);
        }
        Err(_) => {
            out.put_slice(b"_base64\":");
            put_base64(out, value);
        }
    }
}

fn put_text(out: &mut BytesMut, text: &str) {
    out.put_slice(serde_json::Value::from(text).to_string().as_bytes());
}

fn put_base64(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u8(b'"');
    out.put_slice(BASE64.encode(bytes).as_bytes());
    out.put_u8(b'"');
}

#[cfg(test)]
mod tests {
    use landfall_types::{Offset, PartitionId};

    use super::*;

    fn written(record: Record) -> String {
        let mut out = BytesMut::new();
        let delivered =
            Delivered { partition: PartitionId(1), offset: Offset(7), append_time: Timestamp(1_500_000), record };
        write_record(&mut out, &delivered);
        String::from_utf8(out.to_vec()).unwrap()
    }

    /// Would catch payload bytes that change between publish and read, or an object over two lines.
    #[test]
    fn a_record_is_written_as_it_was_published() {
        let line = Bytes::from_static(
            br#"{"payload": {"a": 1.10, "a":2} ,"key":"k\u00e9","headers":[{"name":"h","value":"v"},{"name":"b","value_base64":"/w=="}],"timestamp":"2024-05-06T07:08:09.123456Z"}"#,
        );
        let record = read_envelope(&line).unwrap();
        assert_eq!(record.payload, &br#"{"a": 1.10, "a":2}"#[..]);
        let text = written(record);
        assert_eq!(
            text,
            r#"{"partition":1,"offset":7,"timestamp":"2024-05-06T07:08:09.123456Z","key":"ké","headers":[{"name":"h","value":"v"},{"name":"b","value_base64":"/w=="}],"payload":{"a": 1.10, "a":2}}"#
        );
        assert_eq!(
            written(Record { key: Some(Bytes::from_static(&[0xff])), ..Record::new("{\n}") }),
            r#"{"partition":1,"offset":7,"timestamp":"1970-01-01T00:00:01.5Z","key_base64":"/w==","payload_base64":"ewp9"}"#
        );
    }

    /// Would catch an envelope that is guessed at.
    #[test]
    fn an_envelope_is_exact() {
        for bad in [
            r#"{}"#,
            r#"{"payload":1,"payload_base64":"MQ=="}"#,
            r#"{"payload":1,"other":2}"#,
            r#"{"payload_base64":"*"}"#,
            r#"{"payload":1,"key":"a","key_base64":"YQ=="}"#,
            r#"{"payload":1,"headers":[{"name":"x"}]}"#,
            r#"{"payload":1,"timestamp":"yesterday"}"#,
            r#"{"payload":1"#,
            r#"[1]"#,
        ] {
            let error = read_envelope(&Bytes::from_static(bad.as_bytes())).expect_err(bad);
            assert!(!error.contains("yesterday") && !error.contains("other`"), "no payload in {error}");
        }
        assert_eq!(read_envelope(&Bytes::from_static(br#"{"payload":null}"#)).unwrap().payload, &b"null"[..]);
    }
}
