//! From a message to records: form, sizes, keys, and whether each record decodes (G11, G14, G16, G17).

use bytes::Bytes;
use landfall_channel::{Record, RecordFormat};
use landfall_protocol::wire::{
    IngestRecordBatchRequest, IngestRecordRequest, ephemeral_stream_request::Payload,
    ingest_record_batch_request::Batch, ingest_record_request,
};
use landfall_protocol::{IngestCode, Limits, Refusal};

use crate::refusal;
use crate::stream::create::Opened;
use crate::validate::Validator;

/// What a record takes beside its payload and key when it is encoded, generously.
pub(crate) const RECORD_OVERHEAD: usize = 64;

/// Bytes of a record once encoded, at most.
pub(crate) fn encoded_len(record: &Record) -> usize {
    let headers: usize = record.headers.iter().map(|header| header.name.len() + header.value.len() + 8).sum();
    let bytes = |field: &Option<Bytes>| field.as_ref().map_or(0, Bytes::len);
    record.payload.len() + bytes(&record.key) + bytes(&record.idempotency_key) + headers + RECORD_OVERHEAD
}

/// A call that passed every check.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) records: Vec<Record>,
    /// Payload bytes.
    pub(crate) bytes: usize,
}

/// Checks a message that must be the frame `expected`, and takes its records.
pub(crate) fn read(payload: Option<Payload>, expected: i64, opened: &Opened, limits: &Limits) -> Result<Call, Refusal> {
    let (offset, payloads, keys) = match payload {
        Some(Payload::IngestRecord(request)) => one(request, opened.format),
        Some(Payload::IngestRecordBatch(request)) => several(request, opened.format),
        Some(Payload::CreateStream(_)) => {
            Err(Refusal::new(IngestCode::CreateExpected, "a second create on one stream: open another one"))
        }
        None => Err(Refusal::new(IngestCode::RecordForm, "a message without a payload that this server knows")),
    }
    .map_err(|refusal| refusal.at_frame(expected))?;
    if offset != Some(expected) {
        let found = offset.map_or("none".to_owned(), |offset| offset.to_string());
        let text = format!("`offset_id` is {found}, the next frame of this call is {expected}");
        return Err(Refusal::new(IngestCode::OffsetNotNext, text).at_frame(expected));
    }
    records(payloads, keys, opened, limits).map_err(|refusal| refusal.at_frame(expected))
}

type Parts = (Option<i64>, Vec<Bytes>, Vec<Bytes>);

fn other_form(format: RecordFormat) -> Refusal {
    let text = format!("the stream was created for {} records and the call holds none of them", format.as_str());
    Refusal::new(IngestCode::RecordForm, text)
}

fn one(request: IngestRecordRequest, format: RecordFormat) -> Result<Parts, Refusal> {
    use ingest_record_request::Record as Form;
    let payload = match (request.record, format) {
        (Some(Form::JsonRecord(payload)), RecordFormat::Json) => payload,
        (Some(Form::ProtoEncodedRecord(payload)), RecordFormat::Proto) => payload,
        _ => return Err(other_form(format)),
    };
    Ok((request.offset_id, vec![payload], request.record_key.into_iter().collect()))
}

fn several(request: IngestRecordBatchRequest, format: RecordFormat) -> Result<Parts, Refusal> {
    let payloads = match (request.batch, format) {
        (Some(Batch::JsonBatch(batch)), RecordFormat::Json) => batch.records,
        (Some(Batch::ProtoEncodedBatch(batch)), RecordFormat::Proto) => batch.records,
        _ => return Err(other_form(format)),
    };
    if payloads.is_empty() {
        return Err(Refusal::new(IngestCode::RecordForm, "an empty batch"));
    }
    if !request.record_keys.is_empty() && request.record_keys.len() != payloads.len() {
        let text = format!(
            "{} records and {} `record_keys`: give none, or one for each",
            payloads.len(),
            request.record_keys.len()
        );
        return Err(Refusal::new(IngestCode::RecordForm, text));
    }
    Ok((request.offset_id, payloads, request.record_keys))
}

fn records(payloads: Vec<Bytes>, keys: Vec<Bytes>, opened: &Opened, limits: &Limits) -> Result<Call, Refusal> {
    let bytes: usize = payloads.iter().map(Bytes::len).sum();
    let too_large = |what: &str, value: u64, limit: u64| {
        let text = format!("the call has {value} {what}, `server.ingest.max_call_{what}` is {limit}: split it");
        Refusal::new(IngestCode::CallTooLarge, text)
    };
    if bytes as u64 > limits.max_call_bytes.get() {
        return Err(too_large("bytes", bytes as u64, limits.max_call_bytes.get()));
    }
    if payloads.len() as u64 > limits.max_call_records {
        return Err(too_large("records", payloads.len() as u64, limits.max_call_records));
    }
    let options = opened.channel.options();
    let record_limit = options.limits.record_bytes.as_usize();
    let key_field = options.key_field.as_deref().filter(|_| opened.format == RecordFormat::Json);
    let mut keys = keys.into_iter();
    let mut records = Vec::with_capacity(payloads.len());
    for (index, payload) in payloads.into_iter().enumerate() {
        let key = keys.next();
        let encoded = payload.len() + key.as_ref().map_or(0, Bytes::len) + RECORD_OVERHEAD;
        if encoded > record_limit {
            let text = format!(
                "record {index} has {encoded} bytes with its key and overhead, the limit of channel {} is {record_limit} (`limits.record_bytes`)",
                opened.channel.name()
            );
            return Err(
                Refusal::new(IngestCode::CallTooLarge, text).at_record(u32::try_from(index).unwrap_or(u32::MAX))
            );
        }
        if key.as_ref().is_some_and(|key| key.len() > MAX_KEY_BYTES) {
            let text = format!("record {index}: its key is longer than {MAX_KEY_BYTES} bytes");
            return Err(Refusal::new(IngestCode::RecordForm, text).at_record(u32::try_from(index).unwrap_or(u32::MAX)));
        }
        check(&payload, index, opened)?;
        let key = match key {
            Some(key) => Some(key),
            None => {
                key_field.and_then(|pointer| pointed_at(&payload, pointer)).filter(|key| key.len() <= MAX_KEY_BYTES)
            }
        };
        records.push(Record { key, schema: opened.schema, ..Record::new(payload) });
    }
    Ok(Call { records, bytes })
}

/// The longest record key (C10).
pub(crate) const MAX_KEY_BYTES: usize = 64 << 10;

fn check(payload: &[u8], index: usize, opened: &Opened) -> Result<(), Refusal> {
    match &opened.validator {
        // On the wire JSON records are text, whatever the channel takes.
        Validator::Off if opened.format == RecordFormat::Json => match std::str::from_utf8(payload) {
            Ok(_) => Ok(()),
            Err(error) => Err(refusal::malformed(&format!("not UTF-8 at byte {}", error.valid_up_to()), index)),
        },
        validator => validator.check(payload).map_err(|why| refusal::malformed(&why, index)),
    }
}

/// What a JSON pointer finds: a text's characters, else the value as JSON. Nothing found, or null: no key.
pub(crate) fn pointed_at(payload: &[u8], pointer: &str) -> Option<Bytes> {
    let value: serde_json::Value = serde_json::from_slice(payload).ok()?;
    match value.pointer(pointer)? {
        serde_json::Value::Null => None,
        serde_json::Value::String(text) => Some(Bytes::copy_from_slice(text.as_bytes())),
        other => Some(Bytes::from(other.to_string())),
    }
}
