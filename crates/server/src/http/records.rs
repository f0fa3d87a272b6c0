//! From a body to records, by its content type (G35). The whole body is read and checked before anything of it is
//! published.

use bytes::Bytes;
use http::{HeaderMap, header};
use landfall_channel::{Channel, Header, Record, RecordFormat, Validate};
use landfall_protocol::{IngestCode, Refusal};
use landfall_types::{Code, Kind, Retry};

use crate::core::draining;
use crate::http::form::{read_envelope, read_time};
use crate::http::query::Parameters;
use crate::http::{Problem, syntax};
use crate::refusal::malformed;
use crate::stream::{MAX_KEY_BYTES, RECORD_OVERHEAD, pointed_at};
use crate::validate::{ProtoSchema, Validator, json_elements};

/// How the records of a request are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Lines,
    JsonText,
    Envelopes,
    Raw,
}

/// The request's own wishes.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    key: Option<String>,
    idempotency: Option<String>,
}

impl Fields {
    pub(crate) fn of(parameters: &mut Parameters) -> Result<Self, Problem> {
        let mut pointer = |name: &str| match parameters.take(name) {
            Some(text) if !text.starts_with('/') => {
                Err(syntax(format!("`{name}`: expected a JSON pointer like `/order/id`")))
            }
            found => Ok(found),
        };
        Ok(Fields { key: pointer("key_field")?, idempotency: pointer("idempotency_field")? })
    }
}

/// The longest idempotency key (C10).
const MAX_IDEMPOTENCY_KEY_BYTES: usize = 256;
const LANDFALL_HEADER: &str = "landfall-header-";

/// Reads and checks all records of a body.
pub(crate) async fn parse(
    channel: &Channel,
    headers: &HeaderMap,
    fields: &Fields,
    body: Bytes,
) -> Result<Vec<Record>, Problem> {
    let content_type = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let shape = match media_type.as_str() {
        "application/x-ndjson" => Shape::Lines,
        "application/json" => Shape::JsonText,
        "application/vnd.landfall.records+json" => Shape::Envelopes,
        _ => Shape::Raw,
    };
    let format = channel.format();
    let schema = schema_id(headers)?;
    let validator = validator(channel, shape, format, schema).await?;
    let most = channel.options().limits.batch_records as usize * channel.partitions().max(1) as usize;
    let mut records = cut(shape, &body, most, headers)?;
    if records.len() > most {
        const BATCH_TOO_LARGE: Code = Code::new("CH", 2);
        let text = format!("more than {most} records in one request: send fewer at a time");
        return Err(Problem::coded(BATCH_TOO_LARGE, Kind::Invalid, Retry::Never, text).with_limit(most as u64));
    }
    let is_json = format == Some(RecordFormat::Json) || shape != Shape::Raw;
    let key_field = fields.key.as_deref().or(channel.options().key_field.as_deref()).filter(|_| is_json);
    for (index, record) in records.iter_mut().enumerate() {
        validator.check(&record.payload).map_err(|why| malformed(&why, index))?;
        if let (None, Some(pointer)) = (&record.key, key_field) {
            record.key = pointed_at(&record.payload, pointer);
        }
        if let Some(pointer) = &fields.idempotency {
            record.idempotency_key = pointed_at(&record.payload, pointer);
        }
        record.schema = schema;
        check_fields(channel, index, record)?;
    }
    if let Some(index) = records.iter().position(|record| record.idempotency_key.is_none())
        && (fields.idempotency.is_some() || records.iter().any(|record| record.idempotency_key.is_some()))
    {
        return Err(malformed("it has no idempotency key, and other records of the request have", index).into());
    }
    Ok(records)
}

fn schema_id(headers: &HeaderMap) -> Result<Option<u32>, Problem> {
    let Some(value) = headers.get("landfall-schema") else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| text.parse().ok());
    id.map(Some).ok_or_else(|| syntax("`Landfall-Schema`: expected the number of a schema"))
}

/// How the records are checked: by what the channel takes and what the content type says.
async fn validator(
    channel: &Channel,
    shape: Shape,
    format: Option<RecordFormat>,
    schema: Option<u32>,
) -> Result<Validator, Problem> {
    let wrong = |what: &str| {
        let text = format!("channel {} takes {what}", channel.name());
        Err(Problem::from(Refusal::new(IngestCode::RecordType, text)))
    };
    let checked = match (format, shape) {
        (Some(RecordFormat::Proto | RecordFormat::Avro), Shape::Lines | Shape::JsonText | Shape::Envelopes) => {
            return wrong("binary records: send one as the body, with `Landfall-Schema: ID`");
        }
        (Some(format @ (RecordFormat::Proto | RecordFormat::Avro)), Shape::Raw) => {
            let Some(id) = schema else { return wrong("binary records, and they need `Landfall-Schema: ID`") };
            let owned = channel.clone();
            let found = tokio::task::spawn_blocking(move || owned.schema(id)).await.map_err(|_| draining())?;
            let Some((found, bytes)) = found.filter(|(found, _)| *found == format) else {
                const UNKNOWN_SCHEMA: Code = Code::new("CH", 4);
                let text = format!("channel {} has no {} schema {id}", channel.name(), format.as_str());
                return Err(Problem::coded(UNKNOWN_SCHEMA, Kind::Invalid, Retry::Never, text));
            };
            match found {
                RecordFormat::Proto => ProtoSchema::parse(&bytes)
                    .map(|schema| Validator::Proto(schema.into()))
                    .map_err(|error| Problem::from(Refusal::new(IngestCode::SchemaInvalid, error.to_string())))?,
                _ => return wrong("Avro records, which this version does not check yet"),
            }
        }
        (Some(RecordFormat::Json), _) | (_, Shape::Lines | Shape::JsonText) => Validator::Json,
        // An envelope's `payload` is JSON by its form, and `payload_base64` is there for what is not.
        (None | Some(RecordFormat::Any), Shape::Raw | Shape::Envelopes) => Validator::Off,
    };
    Ok(if channel.options().validate == Validate::Off { Validator::Off } else { checked })
}

/// Cuts a body into records; at most `most` of them and one more.
fn cut(shape: Shape, body: &Bytes, most: usize, headers: &HeaderMap) -> Result<Vec<Record>, Problem> {
    match shape {
        Shape::Lines => Ok(lines(body).take(most + 1).map(Record::new).collect()),
        Shape::Envelopes => lines(body)
            .take(most + 1)
            .enumerate()
            .map(|(index, line)| read_envelope(&line).map_err(|why| malformed(&why, index).into()))
            .collect(),
        Shape::JsonText => match crate::validate::check_json(body) {
            Ok(()) => match json_elements(body, most) {
                Ok(Some(ranges)) => Ok(ranges.into_iter().map(|range| Record::new(body.slice(range))).collect()),
                // One value that is no array.
                Ok(None) | Err(_) => Ok(vec![Record::new(body.clone())]),
            },
            // A channel that takes anything takes this as one record; any other refuses it when it is checked.
            Err(_) => Ok(vec![Record::new(body.clone())]),
        },
        Shape::Raw => raw(body.clone(), headers).map(|record| vec![record]),
    }
}

/// The lines that are not blank, without their ends.
fn lines(body: &Bytes) -> impl Iterator<Item = Bytes> + '_ {
    body.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        (!line.trim_ascii().is_empty()).then(|| body.slice_ref(line))
    })
}

fn raw(payload: Bytes, headers: &HeaderMap) -> Result<Record, Problem> {
    let mut record = Record::new(payload);
    if let Some(key) = headers.get("landfall-key") {
        record.key = Some(Bytes::copy_from_slice(key.as_bytes()));
    }
    if let Some(time) = headers.get("landfall-timestamp") {
        let time = time.to_str().map_err(|_| "not text".to_owned()).and_then(read_time);
        record.event_time = Some(time.map_err(|why| syntax(format!("`Landfall-Timestamp`: {why}")))?);
    }
    for (name, value) in headers {
        if let Some(name) = name.as_str().strip_prefix(LANDFALL_HEADER).filter(|name| !name.is_empty()) {
            record.headers.push(Header { name: name.into(), value: Bytes::copy_from_slice(value.as_bytes()) });
        }
    }
    Ok(record)
}

/// The channel checks these too; here they are found before a part of the request is published.
fn check_fields(channel: &Channel, index: usize, record: &Record) -> Result<(), Problem> {
    let limits = &channel.options().limits;
    let header_bytes: usize = record.headers.iter().map(|header| header.name.len() + header.value.len()).sum();
    let key_bytes = record.key.as_ref().map_or(0, Bytes::len);
    let idempotency_bytes = record.idempotency_key.as_ref().map_or(0, Bytes::len);
    let encoded = record.payload.len()
        + key_bytes
        + idempotency_bytes
        + header_bytes
        + 8 * record.headers.len()
        + RECORD_OVERHEAD;
    let at = u32::try_from(index).unwrap_or(u32::MAX);
    let refuse = |code: u16, text: String, limit: u64| {
        let problem = Problem::coded(Code::new("CH", code), Kind::Invalid, Retry::Never, text).with_limit(limit);
        Err(problem.at_record(at))
    };
    let record_limit = limits.record_bytes.as_usize();
    if encoded > record_limit {
        let text = format!(
            "record {index} has {encoded} bytes with its key, headers and overhead, the limit is {record_limit}"
        );
        return refuse(1, text, record_limit as u64);
    }
    let bounds = [
        ("key", key_bytes, MAX_KEY_BYTES),
        ("idempotency key", idempotency_bytes, MAX_IDEMPOTENCY_KEY_BYTES),
        ("number of headers", record.headers.len(), limits.headers as usize),
        ("bytes of headers", header_bytes, limits.header_bytes.as_usize()),
    ];
    for (what, value, limit) in bounds {
        if value > limit {
            return refuse(3, format!("record {index}: its {what} is {value}, the limit is {limit}"), limit as u64);
        }
    }
    if record.idempotency_key.as_ref().is_some_and(Bytes::is_empty) {
        return refuse(3, format!("record {index}: its idempotency key is empty"), 0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a record that loses or gains bytes, or a blank line that becomes one.
    #[test]
    fn lines_are_cut_byte_for_byte() {
        let body = Bytes::from_static(b"{\"a\": 1 }\r\n\n  \n [2]\n\xff\n3");
        let found: Vec<_> = lines(&body).collect();
        assert_eq!(found, [&b"{\"a\": 1 }"[..], b" [2]", b"\xff", b"3"]);
    }

    /// Would catch headers of the request that get lost on the record.
    #[test]
    fn a_raw_record_takes_its_fields_from_headers() {
        let mut headers = HeaderMap::new();
        headers.insert("landfall-key", "k".parse().unwrap());
        headers.insert("landfall-timestamp", "2024-01-01T00:00:00Z".parse().unwrap());
        headers.append("landfall-header-trace", "a".parse().unwrap());
        headers.append("landfall-header-trace", "b".parse().unwrap());
        let record = raw(Bytes::from_static(b"x"), &headers).unwrap();
        assert_eq!(record.key.as_deref(), Some(&b"k"[..]));
        assert_eq!(record.event_time, Some(landfall_types::Timestamp(1_704_067_200_000_000)));
        assert_eq!(record.headers.iter().map(|header| &header.value[..]).collect::<Vec<_>>(), [b"a", b"b"]);
        headers.insert("landfall-timestamp", "never".parse().unwrap());
        assert!(raw(Bytes::new(), &headers).is_err());
    }
}
