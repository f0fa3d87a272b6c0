//! Real records through the public interface, compared with another JSON reader; the raw decoder; the codes.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, TimestampMicrosecondType, UInt64Type};
use arrow_array::{Array, ArrayRef, BinaryViewArray, RecordBatch};
use arrow_array::{TimestampMicrosecondArray, UInt32Array, UInt64Array, new_null_array};
use arrow_schema::DataType;
use landfall_engine::contract::{Decoded, Decoder, RowErrors, Wanted, payload_schema};
use landfall_sql::{CODES, JsonDecoder, JsonOptions, RawDecoder, RawForm, Schema, Sql, infer};
use serde_json::Value;

const WEBHOOKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/data/webhook-events.ndjson");

fn webhooks() -> Vec<Vec<u8>> {
    let text = std::fs::read(WEBHOOKS).expect("the example's data lies in the repository");
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
}

fn records(payloads: &[Vec<u8>]) -> RecordBatch {
    let rows = payloads.len();
    let payload: BinaryViewArray = payloads.iter().map(Some).collect();
    let headers = payload_schema().field(3).data_type().clone();
    let DataType::List(item) = &headers else { unreachable!("headers are a list") };
    let no_headers = arrow_array::ListArray::new(
        item.clone(),
        arrow_buffer::OffsetBuffer::new_zeroed(rows),
        new_null_array(item.data_type(), 0),
        None,
    );
    let columns: Vec<ArrayRef> = vec![
        Arc::new(payload),
        new_null_array(&DataType::BinaryView, rows),
        Arc::new(TimestampMicrosecondArray::from(vec![0; rows]).with_timezone("UTC")),
        Arc::new(no_headers),
        Arc::new(UInt32Array::from(vec![0; rows])),
        Arc::new(UInt64Array::from_iter_values(0..rows as u64)),
        new_null_array(&DataType::UInt32, rows),
    ];
    RecordBatch::try_new(payload_schema(), columns).expect("the columns are those of the payload schema")
}

fn decode(decoder: &mut dyn Decoder, records: &RecordBatch) -> (RecordBatch, RowErrors) {
    let mut bad = RowErrors::default();
    match decoder.decode(records, &mut bad).expect("no defect") {
        Decoded::Rows(rows) => (rows, bad),
        Decoded::NotReady(_) => panic!("nothing is fetched"),
    }
}

/// Whether a cell holds what the other reader saw; fields that the schema leaves out are not looked at.
fn agrees(column: &dyn Array, row: usize, seen: &Value) -> bool {
    if column.is_null(row) {
        return seen.is_null();
    }
    match column.data_type() {
        DataType::Boolean => seen.as_bool() == Some(column.as_boolean().value(row)),
        DataType::Int64 => seen.as_i64() == Some(column.as_primitive::<Int64Type>().value(row)),
        DataType::Float64 => seen.as_f64() == Some(column.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => {
            let text = column.as_string::<i32>().value(row);
            seen.as_str() == Some(text) || serde_json::from_str::<Value>(text).is_ok_and(|value| value == *seen)
        }
        DataType::Struct(fields) => {
            let inner = column.as_struct();
            seen.is_object()
                && fields
                    .iter()
                    .zip(inner.columns())
                    .all(|(field, column)| agrees(column, row, seen.get(field.name()).unwrap_or(&Value::Null)))
        }
        DataType::List(_) => {
            let items = column.as_list::<i32>().value(row);
            let seen = seen.as_array().expect("an array was declared");
            items.len() == seen.len() && seen.iter().enumerate().all(|(at, seen)| agrees(&items, at, seen))
        }
        other => panic!("nothing infers {other}"),
    }
}

/// All of the real input, every inferred column: catches a value that changes on its way through the decoder.
#[test]
fn every_webhook_event_decodes_and_agrees_with_another_reader() {
    let lines = webhooks();
    assert!(lines.len() > 100, "{} lines", lines.len());
    let schema = infer(lines.iter().map(Vec::as_slice)).expect("there are objects");
    assert_eq!(Schema::from_json(&schema.to_json()).expect("it was just written"), schema);
    let mut decoder = JsonDecoder::new(schema, JsonOptions::default());
    decoder.plan(&Wanted::default()).expect("all columns");
    let (rows, bad) = decode(&mut decoder, &records(&lines));
    assert!(bad.is_empty(), "{:?}", bad.as_slice().first());
    assert_eq!(rows.num_rows(), lines.len());
    for (row, line) in lines.iter().enumerate() {
        let seen: Value = serde_json::from_slice(line).expect("the file is NDJSON");
        for (field, column) in rows.schema().fields().iter().zip(rows.columns()) {
            if !field.name().starts_with("__") {
                let seen = seen.get(field.name()).unwrap_or(&Value::Null);
                assert!(agrees(column, row, seen), "line {}, column {}", row + 1, field.name());
            }
        }
    }
}

/// A dozen typed columns by SQL from the same input: catches a path, a cast or a function that goes astray.
#[test]
fn a_query_over_the_webhook_events_agrees_with_another_reader() {
    let lines = webhooks();
    let schema = infer(lines.iter().map(Vec::as_slice)).expect("there are objects");
    let query = "SELECT event, action, payload.repository.id AS repository_id, payload.repository.full_name,
                        payload.repository.private, payload.sender.login, payload.sender.id AS sender_id,
                        CAST(payload.repository.updated_at AS TIMESTAMP WITH TIME ZONE) AS updated_at,
                        coalesce(payload.repository.language, 'none') AS language,
                        url_host(payload.repository.html_url) AS host, record_offset() AS line, row_id() AS id
                 FROM input WHERE payload.repository.id IS NOT NULL";
    let compiled = Sql::default().compile(query, &schema.arrow()).expect("the query fits the inferred schema");
    let mut decoder = JsonDecoder::new(schema, JsonOptions::default());
    decoder.plan(&compiled.wanted()).expect("the paths are there");
    let (decoded, bad) = decode(&mut decoder, &records(&lines));
    assert!(bad.is_empty());
    let mut bad = RowErrors::default();
    let rows = compiled.into_transform().apply(decoded, &mut bad).expect("no defect");
    assert!(bad.is_empty(), "{:?}", bad.as_slice().first());
    let seen: Vec<(u64, Value)> = lines
        .iter()
        .enumerate()
        .map(|(at, line)| (at as u64, serde_json::from_slice(line).expect("the file is NDJSON")))
        .filter(|(_, event): &(u64, Value)| event.pointer("/payload/repository/id").is_some_and(|id| !id.is_null()))
        .collect();
    assert_eq!(rows.num_rows(), seen.len());
    let column = |name: &str| rows.column_by_name(name).expect("it was selected");
    let paths = [
        ("event", "/event"),
        ("action", "/action"),
        ("repository_id", "/payload/repository/id"),
        ("full_name", "/payload/repository/full_name"),
        ("private", "/payload/repository/private"),
        ("login", "/payload/sender/login"),
        ("sender_id", "/payload/sender/id"),
    ];
    for (row, (line, event)) in seen.iter().enumerate() {
        for (name, path) in paths {
            assert!(agrees(column(name), row, event.pointer(path).unwrap_or(&Value::Null)), "line {line}, {name}");
        }
        assert_eq!(column("line").as_primitive::<Int64Type>().value(row), *line as i64);
        assert_eq!(column("__offset").as_primitive::<UInt64Type>().value(row), *line);
        assert_eq!(column("id").as_string::<i32>().value(row), format!("0-{line}"));
        let language = event.pointer("/payload/repository/language").and_then(Value::as_str).unwrap_or("none");
        assert_eq!(column("language").as_string::<i32>().value(row), language);
        let updated = column("updated_at");
        match event.pointer("/payload/repository/updated_at").and_then(Value::as_str) {
            Some(text) => {
                let instant: jiff::Timestamp = text.parse().expect("the file has RFC 3339 here");
                let micros = updated.as_primitive::<TimestampMicrosecondType>().value(row);
                assert_eq!(micros, instant.as_microsecond(), "line {line}");
            }
            None => assert!(updated.is_null(row)),
        }
    }
}

/// Catches a raw payload that is copied wrong, or bytes that land as text.
#[test]
fn a_raw_payload_is_one_column_and_text_only_where_it_is_utf_8() {
    let payloads = vec![b"plain".to_vec(), vec![0xff, 0], "größe".as_bytes().to_vec(), Vec::new()];
    let records = records(&payloads);
    let mut binary = RawDecoder::new(RawForm::Binary);
    let planned = binary.plan(&Wanted::default()).expect("everything");
    let (rows, bad) = decode(&mut binary, &records);
    assert!(bad.is_empty());
    assert_eq!(rows.schema(), planned);
    let column = rows.column(0).as_binary_view();
    assert_eq!(column.iter().map(|value| value.map(<[u8]>::to_vec)).collect::<Option<Vec<_>>>(), Some(payloads));
    let mut text = RawDecoder::new(RawForm::Text);
    text.plan(&Wanted::default()).expect("everything");
    let (rows, bad) = decode(&mut text, &records);
    assert_eq!(rows.column(0).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["plain", "größe", ""]);
    assert_eq!(
        rows.column_by_name("__offset").map(|column| column.as_primitive::<UInt64Type>().values().to_vec()),
        Some(vec![0, 2, 3])
    );
    assert_eq!(
        bad.as_slice().iter().map(|error| (error.row, error.code.to_string())).collect::<Vec<_>>(),
        [(1, "LF-DC0018".to_owned())]
    );
    let compiled = Sql::default()
        .compile(
            "SELECT json_get_text(payload, 'a') AS a FROM input",
            &text.plan(&Wanted::default()).expect("everything"),
        )
        .expect("a raw text can be taken apart");
    text.plan(&compiled.wanted()).expect("it wants the payload");
    let nothing = Wanted { paths: Some(Vec::new()), ..Wanted::default() };
    assert_eq!(text.plan(&nothing).expect("hidden columns alone").fields().len(), 2);
    assert!(text.plan(&Wanted { paths: Some(vec![vec!["x".to_owned()]]), ..Wanted::default() }).is_err());
}

/// Catches a number that is given out twice, and a page without words.
#[test]
fn each_code_has_one_page_with_words() {
    for (at, page) in CODES.iter().enumerate() {
        assert!(CODES.iter().skip(at + 1).all(|other| other.code != page.code), "{} is there twice", page.code);
        assert!(page.meaning.ends_with('.') && page.help.len() > 10, "{}", page.code);
    }
}
