//! The rules of E100 as a table, hostile payloads, and a random comparison with another JSON reader.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, BinaryViewArray, ListArray, RecordBatch, StringArray, StructArray, UInt32Array};
use arrow_array::{TimestampMicrosecondArray, UInt64Array};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::DataType;
use landfall_engine::contract::{Decoded, Decoder, RowErrors, Wanted, payload_schema};
use proptest::prelude::*;

use super::*;
use crate::schema::ColumnText;

/// Records of the payload schema with offsets from 100.
pub(crate) fn records<T: AsRef<[u8]>>(payloads: &[T]) -> RecordBatch {
    let rows = payloads.len();
    let payload: BinaryViewArray = payloads.iter().map(|payload| Some(payload.as_ref())).collect();
    let key: BinaryViewArray = (0..rows).map(|row| (row % 2 == 0).then(|| format!("k{row}").into_bytes())).collect();
    let timestamp = TimestampMicrosecondArray::from_iter_values((0..rows).map(|row| row as i64)).with_timezone("UTC");
    let DataType::List(item) = payload_schema().field(3).data_type().clone() else { unreachable!() };
    let DataType::Struct(fields) = item.data_type().clone() else { unreachable!() };
    let names: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|_| "kind")));
    let values: ArrayRef = Arc::new(arrow_array::BinaryArray::from_iter_values((0..rows).map(|row| format!("v{row}"))));
    let entries = StructArray::try_new_with_length(fields, vec![names, values], None, rows).unwrap();
    let ends = arrow_buffer::OffsetBuffer::from_lengths((0..rows).map(|_| 1));
    let headers = ListArray::try_new(item, ends, Arc::new(entries), None).unwrap();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(payload),
        Arc::new(key),
        Arc::new(timestamp),
        Arc::new(headers),
        Arc::new(UInt32Array::from(vec![7; rows])),
        Arc::new(UInt64Array::from_iter_values((0..rows as u64).map(|row| 100 + row))),
        Arc::new(UInt32Array::from(vec![None; rows])),
    ];
    RecordBatch::try_new(payload_schema(), columns).unwrap()
}

fn schema(columns: &[(&str, &str)]) -> Schema {
    Schema::declare(columns.iter().map(|(name, text)| ((*name).to_owned(), ColumnText::from(*text)))).unwrap()
}

fn all() -> Wanted {
    Wanted::default()
}

fn run<T: AsRef<[u8]>>(decoder: &mut JsonDecoder, payloads: &[T]) -> (RecordBatch, RowErrors) {
    let mut bad = RowErrors::default();
    match decoder.decode(&records(payloads), &mut bad).unwrap() {
        Decoded::Rows(rows) => (rows, bad),
        Decoded::NotReady(_) => panic!("JSON needs nothing fetched"),
    }
}

fn decode<T: AsRef<[u8]>>(
    schema: Schema,
    options: JsonOptions,
    wanted: &Wanted,
    payloads: &[T],
) -> (RecordBatch, RowErrors) {
    let mut decoder = JsonDecoder::new(schema, options);
    let planned = decoder.plan(wanted).unwrap();
    let (rows, bad) = run(&mut decoder, payloads);
    assert_eq!(rows.schema(), planned, "the planned schema is the schema of every batch");
    (rows, bad)
}

fn shown(column: &dyn Array, row: usize) -> String {
    let options = FormatOptions::default().with_null("NULL");
    ArrayFormatter::try_new(column, &options).unwrap().value(row).to_string()
}

/// One column, one payload: the value as text, or the code.
fn cell(column: ColumnText, options: JsonOptions, payload: &str) -> String {
    let schema = Schema::declare([("v".to_owned(), column)]).unwrap();
    let (rows, bad) = decode(schema, options, &all(), &[payload]);
    match bad.as_slice() {
        [] => {
            assert_eq!(rows.num_rows(), 1, "{payload}");
            shown(rows.column(0), 0)
        }
        [error] => {
            assert_eq!((rows.num_rows(), error.row), (0, 0), "a refused row leaves nothing behind: {payload}");
            error.code.to_string()
        }
        more => panic!("{payload}: one record was refused {} times", more.len()),
    }
}

/// Every JSON kind into every type: catches a cell that changes silently, and a type added without its row (F-C4).
#[test]
fn f_c4_each_cell_of_the_type_matrix_is_exact_or_a_typed_row_error() {
    const WRONG: &str = "LF-DC0015";
    let inputs = [
        "true",
        "7",
        "5.5",
        "5.0",
        "1e3",
        "\"7\"",
        "\"x\"",
        "[]",
        "{}",
        "\"2024-05-01\"",
        "\"2024-05-01T10:00:00+02:00\"",
    ];
    let rows: &[(&str, [&str; 11])] = &[
        ("boolean", ["true", WRONG, WRONG, WRONG, WRONG, WRONG, WRONG, WRONG, WRONG, WRONG, WRONG]),
        ("smallint", [WRONG, "7", "LF-DC0011", "5", "1000", WRONG, WRONG, WRONG, WRONG, WRONG, WRONG]),
        ("int", [WRONG, "7", "LF-DC0011", "5", "1000", WRONG, WRONG, WRONG, WRONG, WRONG, WRONG]),
        ("bigint", [WRONG, "7", "LF-DC0011", "5", "1000", WRONG, WRONG, WRONG, WRONG, WRONG, WRONG]),
        ("float", [WRONG, "7.0", "5.5", "5.0", "1000.0", WRONG, WRONG, WRONG, WRONG, WRONG, WRONG]),
        ("double", [WRONG, "7.0", "5.5", "5.0", "1000.0", WRONG, WRONG, WRONG, WRONG, WRONG, WRONG]),
        ("decimal(12,2)", [WRONG, "7.00", "5.50", "5.00", "1000.00", WRONG, WRONG, WRONG, WRONG, WRONG, WRONG]),
        (
            "string",
            [WRONG, WRONG, WRONG, WRONG, WRONG, "7", "x", WRONG, WRONG, "2024-05-01", "2024-05-01T10:00:00+02:00"],
        ),
        (
            "json",
            [
                "true",
                "7",
                "5.5",
                "5.0",
                "1e3",
                "\"7\"",
                "\"x\"",
                "[]",
                "{}",
                "\"2024-05-01\"",
                "\"2024-05-01T10:00:00+02:00\"",
            ],
        ),
        (
            "date",
            [WRONG, WRONG, WRONG, WRONG, WRONG, "LF-DC0016", "LF-DC0016", WRONG, WRONG, "2024-05-01", "LF-DC0016"],
        ),
        (
            "timestamp",
            [
                WRONG,
                WRONG,
                WRONG,
                WRONG,
                WRONG,
                "LF-DC0016",
                "LF-DC0016",
                WRONG,
                WRONG,
                "LF-DC0016",
                "2024-05-01T08:00:00Z",
            ],
        ),
        (
            "timestamp(ms)",
            [
                WRONG,
                "1970-01-01T00:00:00.007Z",
                "LF-DC0011",
                "1970-01-01T00:00:00.005Z",
                "1970-01-01T00:00:01Z",
                WRONG,
                WRONG,
                WRONG,
                WRONG,
                WRONG,
                WRONG,
            ],
        ),
        ("struct<a: int>", [WRONG, WRONG, WRONG, WRONG, WRONG, WRONG, WRONG, WRONG, "{a: NULL}", WRONG, WRONG]),
        ("array<int>", [WRONG, WRONG, WRONG, WRONG, WRONG, WRONG, WRONG, "[]", WRONG, WRONG, WRONG]),
        ("map<string, int>", [WRONG, WRONG, WRONG, WRONG, WRONG, WRONG, WRONG, WRONG, "{}", WRONG, WRONG]),
    ];
    for (kind, expected) in rows {
        for (input, expected) in inputs.iter().zip(expected) {
            let got = cell((*kind).into(), JsonOptions::default(), &format!(r#"{{"v":{input}}}"#));
            assert_eq!(got, *expected, "{input} into {kind}");
        }
        // A type that is added to the parser has to be added above.
        assert_eq!(cell((*kind).into(), JsonOptions::default(), r#"{"v":null}"#), "NULL");
        assert_eq!(cell((*kind).into(), JsonOptions::default(), "{}"), "NULL");
        assert_eq!(
            cell(format!("{kind} not null").as_str().into(), JsonOptions::default(), r#"{"v":null}"#),
            "LF-DC0007"
        );
        assert_eq!(cell(format!("{kind} not null").as_str().into(), JsonOptions::default(), "{}"), "LF-DC0006");
    }
}

/// The first lines of the table of E100: catches a broken payload that lands, or gets another's code.
#[test]
fn each_broken_payload_has_its_code() {
    let deep = |levels: usize| format!(r#"{{"x":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
    let cases = [
        ("", "LF-DC0001"),
        ("   ", "LF-DC0001"),
        ("nul", "LF-DC0001"),
        ("{", "LF-DC0001"),
        (r#"{"v":1"#, "LF-DC0001"),
        (r#"{"v":1,}"#, "LF-DC0001"),
        (r#"{"v" 1}"#, "LF-DC0001"),
        (r#"{v:1}"#, "LF-DC0001"),
        (r#"{"v":01}"#, "LF-DC0001"),
        (r#"{"v":+1}"#, "LF-DC0001"),
        (r#"{"v":1.}"#, "LF-DC0001"),
        (r#"{"v":.5}"#, "LF-DC0001"),
        (r#"{"v":1e}"#, "LF-DC0001"),
        (r#"{"v":-}"#, "LF-DC0001"),
        (r#"{"v":NaN}"#, "LF-DC0001"),
        (r#"{"v":1}}"#, "LF-DC0004"),
        (r#"{"v":1} {"v":2}"#, "LF-DC0004"),
        (
            r#"{"x":"a
b"}"#,
            "LF-DC0001",
        ),
        (r#"{"x":"\q"}"#, "LF-DC0001"),
        (r#"{"x":"\ud800"}"#, "LF-DC0001"),
        (r#"{"x":"\udc00"}"#, "LF-DC0001"),
        (r#"{"x":"\ud800\u0041"}"#, "LF-DC0001"),
        (r#"{"x":"\u12"}"#, "LF-DC0001"),
        (r#"{"x":[1,]}"#, "LF-DC0001"),
        (r#"{"x":tru}"#, "LF-DC0001"),
        ("[]", "LF-DC0002"),
        ("7", "LF-DC0002"),
        ("\"text\"", "LF-DC0002"),
        ("null", "LF-DC0002"),
        ("[1", "LF-DC0001"),
    ];
    for (payload, code) in cases {
        assert_eq!(cell("bigint".into(), JsonOptions::default(), payload), code, "{payload}");
    }
    assert_eq!(cell("bigint".into(), JsonOptions::default(), &deep(127)), "NULL");
    assert_eq!(cell("bigint".into(), JsonOptions::default(), &deep(128)), "LF-DC0005");
    assert_eq!(cell("bigint".into(), JsonOptions::default(), &deep(1_000_000)), "LF-DC0005");
    let (rows, bad) = decode(schema(&[("v", "string")]), JsonOptions::default(), &all(), &[&b"{\"v\":\"a\xff\"}"[..]]);
    assert_eq!((rows.num_rows(), bad.as_slice()[0].code.to_string()), (0, "LF-DC0003".to_owned()));
    assert!(bad.as_slice()[0].text.contains("byte 7"), "{}", bad.as_slice()[0].text);
}

/// Catches a number that changes on its way: ranges, exponents, scale, precision, rounding.
#[test]
fn numbers_are_exact_or_refused() {
    let rounded = |kind: &str| {
        ColumnText::WithOptions(crate::ColumnOptions {
            type_text: kind.to_owned(),
            default: None,
            round: Some(crate::Round::HalfEven),
        })
    };
    let cases: &[(ColumnText, &str, &str)] = &[
        ("smallint".into(), "32767", "32767"),
        ("smallint".into(), "32768", "LF-DC0010"),
        ("int".into(), "-2147483648", "-2147483648"),
        ("int".into(), "2147483648", "LF-DC0010"),
        ("bigint".into(), "9223372036854775807", "9223372036854775807"),
        ("bigint".into(), "-9223372036854775808", "-9223372036854775808"),
        ("bigint".into(), "9223372036854775808", "LF-DC0010"),
        ("bigint".into(), "-9223372036854775809", "LF-DC0010"),
        ("bigint".into(), "9223372036854775807.0", "9223372036854775807"),
        ("bigint".into(), "92233720368547758070e-1", "9223372036854775807"),
        ("bigint".into(), "0.5e1", "5"),
        ("bigint".into(), "-0", "0"),
        ("bigint".into(), "0e999999999999999999999", "0"),
        ("bigint".into(), "1e999999999999999999999", "LF-DC0010"),
        ("bigint".into(), "1e-999999999999999999999", "LF-DC0011"),
        ("decimal(28,18)".into(), "100.0", "100.000000000000000000"),
        ("decimal(12,2)".into(), "0.1e2", "10.00"),
        ("decimal(12,2)".into(), "1234567890.12", "1234567890.12"),
        ("decimal(12,2)".into(), "12345678901.12", "LF-DC0013"),
        ("decimal(12,2)".into(), "1.005", "LF-DC0012"),
        ("decimal(12,2)".into(), "1.0050000", "LF-DC0012"),
        ("decimal(12,2)".into(), "-1.500", "-1.50"),
        ("decimal(38,0)".into(), "99999999999999999999999999999999999999", "99999999999999999999999999999999999999"),
        ("decimal(38,0)".into(), "100000000000000000000000000000000000000", "LF-DC0013"),
        (rounded("decimal(12,2)"), "1.005", "1.00"),
        (rounded("decimal(12,2)"), "1.015", "1.02"),
        (rounded("decimal(12,2)"), "1.0050001", "1.01"),
        (rounded("decimal(12,2)"), "-1.015", "-1.02"),
        (rounded("decimal(12,2)"), "0.005", "0.00"),
        (rounded("decimal(12,2)"), "0.006", "0.01"),
        (rounded("decimal(12,2)"), "0.0004", "0.00"),
        (rounded("decimal(3,2)"), "9.995", "LF-DC0013"),
        (rounded("decimal(3,2)"), "9.985", "9.98"),
        ("double".into(), "0.1", "0.1"),
        ("double".into(), "1e400", "LF-DC0014"),
        ("double".into(), "-1e400", "LF-DC0014"),
        ("double".into(), "1e-400", "0.0"),
        ("double".into(), "1.7976931348623157e308", "1.7976931348623157e308"),
        ("float".into(), "3.5e38", "LF-DC0014"),
        ("timestamp(s)".into(), "1714550400", "2024-05-01T08:00:00Z"),
        ("timestamp(s)".into(), "9223372036854775807", "LF-DC0010"),
        ("timestamp(us)".into(), "-1", "1969-12-31T23:59:59.999999Z"),
        ("timestamp(ns)".into(), "1000", "1970-01-01T00:00:00.000001Z"),
        ("timestamp(ns)".into(), "1001", "LF-DC0016"),
        (rounded("timestamp(ns)"), "1501", "1970-01-01T00:00:00.000002Z"),
    ];
    for (column, input, expected) in cases {
        let got = cell(column.clone(), JsonOptions::default(), &format!(r#"{{"v":{input}}}"#));
        assert_eq!(got, *expected, "{input} into {column:?}");
    }
}

/// Catches a timestamp that lands as another instant, or a form that is guessed.
#[test]
fn timestamps_are_rfc_3339_with_zone_and_microseconds() {
    let cases = [
        ("2024-02-29T23:59:59.123456Z", "2024-02-29T23:59:59.123456Z"),
        ("2024-02-29t23:59:59z", "2024-02-29T23:59:59Z"),
        ("2024-02-29 23:59:59Z", "2024-02-29T23:59:59Z"),
        ("2021-08-19T12:16:32.000-04:00", "2021-08-19T16:16:32Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
        ("1900-02-28T00:00:00Z", "1900-02-28T00:00:00Z"),
        ("2024-05-01T10:00:00.1234560Z", "2024-05-01T10:00:00.123456Z"),
        ("2023-02-29T00:00:00Z", "LF-DC0016"),
        ("1900-02-29T00:00:00Z", "LF-DC0016"),
        ("2024-13-01T00:00:00Z", "LF-DC0016"),
        ("2024-00-01T00:00:00Z", "LF-DC0016"),
        ("2024-05-01T24:00:00Z", "LF-DC0016"),
        ("2024-05-01T10:60:00Z", "LF-DC0016"),
        ("2024-05-01T10:00:60Z", "LF-DC0016"),
        ("2024-05-01T10:00:00", "LF-DC0016"),
        ("2024-05-01T10:00:00.Z", "LF-DC0016"),
        ("2024-05-01T10:00:00.1234567Z", "LF-DC0016"),
        ("2024-05-01T10:00:00+0200", "LF-DC0016"),
        ("2024-05-01T10:00:00+24:00", "LF-DC0016"),
        ("2024-05-01", "LF-DC0016"),
        ("1714550400", "LF-DC0016"),
        ("", "LF-DC0016"),
    ];
    for (input, expected) in cases {
        let got = cell("timestamp".into(), JsonOptions::default(), &format!(r#"{{"v":"{input}"}}"#));
        assert_eq!(got, expected, "{input}");
    }
}

/// Catches a date algorithm that is off by a day anywhere in four centuries.
#[test]
fn every_day_of_four_centuries_follows_the_one_before() {
    let mut expected = super::time::date(b"1600-01-01").unwrap();
    for year in 1600..2000 {
        for month in 1..=12 {
            for day in 1..=31 {
                if let Some(days) = super::time::date(format!("{year:04}-{month:02}-{day:02}").as_bytes()) {
                    assert_eq!(days, expected, "{year}-{month}-{day}");
                    expected += 1;
                }
            }
        }
    }
    assert_eq!(super::time::date(b"1970-01-01"), Some(0));
    assert_eq!(expected, super::time::date(b"2000-01-01").unwrap());
}

/// Catches an option that does nothing, or one that does more than it says.
#[test]
fn coerce_takes_what_parses_in_full_and_nothing_else() {
    let coerce = JsonOptions { coerce: true, ..JsonOptions::default() };
    let cases = [
        ("bigint", r#""7""#, "7"),
        ("bigint", r#""7 ""#, "LF-DC0015"),
        ("bigint", r#"" 7""#, "LF-DC0015"),
        ("bigint", r#""7x""#, "LF-DC0015"),
        ("bigint", r#""""#, "LF-DC0015"),
        ("bigint", "true", "LF-DC0015"),
        ("double", r#""1.5""#, "1.5"),
        ("double", r#""NaN""#, "LF-DC0015"),
        ("decimal(12,2)", r#""1.50""#, "1.50"),
        ("decimal(12,2)", r#""1.505""#, "LF-DC0012"),
        ("boolean", r#""true""#, "true"),
        ("boolean", r#""TRUE""#, "LF-DC0015"),
        ("boolean", "1", "LF-DC0015"),
        ("string", "7.50", "7.50"),
        ("string", "true", "true"),
        ("string", "[1]", "LF-DC0015"),
        ("timestamp(s)", r#""0""#, "1970-01-01T00:00:00Z"),
    ];
    for (kind, input, expected) in cases {
        assert_eq!(cell(kind.into(), coerce, &format!(r#"{{"v":{input}}}"#)), expected, "{input} into {kind}");
    }
}

/// Catches a refused row that shifts its neighbours, or that leaves a piece of itself in a nested column.
#[test]
fn a_bad_row_leaves_no_trace_in_any_column() {
    let schema = schema(&[
        ("id", "bigint not null"),
        ("tags", "array<string>"),
        ("items", "array<struct<sku: string, price: decimal(8,2)>>"),
        ("more", "map<string, array<int>>"),
        ("last", "string"),
    ]);
    let good = |id: usize| {
        format!(
            r#"{{"id":{id},"tags":["a{id}","b"],"items":[{{"sku":"s","price":{id}.25}}],"more":{{"k":[1,{id}]}},"last":"l{id}"}}"#
        )
    };
    let broken = [
        r#"{"tags":["x","y"],"items":[{"sku":"z","price":1}],"more":{"k":[9]},"last":"q"}"#.to_owned(),
        r#"{"id":1,"tags":["x",5]}"#.to_owned(),
        r#"{"id":1,"items":[{"sku":"s","price":1},{"sku":"t","price":"no"}]}"#.to_owned(),
        r#"{"id":1,"more":{"a":[1,2],"b":[3,"no"]}}"#.to_owned(),
        r#"{"id":1,"last":"cut"#.to_owned(),
    ];
    let mut payloads = Vec::new();
    for (at, broken) in broken.iter().enumerate() {
        payloads.push(good(at));
        payloads.push(broken.clone());
    }
    let only_good: Vec<String> = payloads.iter().step_by(2).cloned().collect();
    let mut decoder = JsonDecoder::new(schema.clone(), JsonOptions::default());
    decoder.plan(&all()).unwrap();
    let (rows, bad) = run(&mut decoder, &payloads);
    let (expected, none) = decode(schema, JsonOptions::default(), &all(), &only_good);
    assert!(none.is_empty());
    for column in 0..5 {
        assert_eq!(rows.column(column), expected.column(column));
    }
    let offsets: Vec<u64> = rows.column_by_name("__offset").unwrap().as_primitive::<UInt64Type>().values().to_vec();
    assert_eq!(offsets, [100, 102, 104, 106, 108]);
    let refused: Vec<u32> = bad.as_slice().iter().map(|error| error.row).collect();
    assert_eq!(refused, [1, 3, 5, 7, 9]);
    let texts: Vec<&str> = bad.as_slice().iter().map(|error| error.text.as_str()).collect();
    assert!(texts[0].starts_with("`id` at byte"), "{}", texts[0]);
    assert!(texts[1].starts_with("`tags[1]` at byte 20:"), "{}", texts[1]);
    assert!(texts[2].starts_with("`items[1].price` at byte"), "{}", texts[2]);
    assert!(texts[3].starts_with("`more.b[1]` at byte"), "{}", texts[3]);
    // The same decoder goes on as if nothing had been.
    let (again, none) = run(&mut decoder, &only_good);
    assert!(none.is_empty());
    assert_eq!(again.column(2), expected.column(2));
}

/// Catches a duplicate that adds a row to one column, or keeps the first.
#[test]
fn the_last_of_two_fields_wins_and_is_counted() {
    let schema = schema(&[("a", "array<bigint>"), ("m", "map<string, bigint>"), ("s", "struct<x: string>")]);
    let payload = r#"{"a":[1,2],"m":{"k":1,"l":2,"k":3},"s":{"x":"1","x":"2"},"a":[3],"other":1,"other":2}"#;
    let mut decoder = JsonDecoder::new(schema.clone(), JsonOptions::default());
    let counters = decoder.counters();
    decoder.plan(&all()).unwrap();
    let (rows, bad) = run(&mut decoder, &[payload]);
    assert!(bad.is_empty(), "{bad:?}");
    assert_eq!(shown(rows.column(0), 0), "[3]");
    assert_eq!(shown(rows.column(1), 0), "{l: 2, k: 3}");
    assert_eq!(shown(rows.column(2), 0), "{x: 2}");
    assert_eq!(counters.duplicates(), 3);
    let strict = JsonOptions { duplicates_are_errors: true, ..JsonOptions::default() };
    let (_, bad) = decode(schema, strict, &all(), &[payload]);
    assert_eq!(bad.as_slice()[0].code.to_string(), "LF-DC0009");
}

/// Catches a map with many keys that goes another way than a small one.
#[test]
fn a_large_map_keeps_the_last_of_two_keys_too() {
    let entries: Vec<String> = (0..100).map(|at| format!(r#""k{}":{at}"#, at % 50)).collect();
    let payload = format!(r#"{{"v":{{{}}}}}"#, entries.join(","));
    let expected: Vec<String> = (50..100).map(|at| format!("k{}: {at}", at % 50)).collect();
    let got = cell("map<string, int>".into(), JsonOptions::default(), &payload);
    assert_eq!(got, format!("{{{}}}", expected.join(", ")));
}

/// Catches a declared field that is called unknown because the query does not read it.
#[test]
fn unknown_fields_are_what_no_schema_declares() {
    let schema = schema(&[("a", "bigint"), ("b", "struct<x: bigint, y: bigint>")]);
    let narrow = Wanted { paths: Some(vec![vec!["b".to_owned(), "x".to_owned()]]), ..Wanted::default() };
    let declared = r#"{"a":1,"b":{"x":1,"y":2}}"#;
    let strict = JsonOptions { unknown: Unknown::Error, ..JsonOptions::default() };
    assert!(decode(schema.clone(), strict, &narrow, &[declared]).1.is_empty());
    for payload in [r#"{"a":1,"c":1}"#, r#"{"b":{"x":1,"z":1}}"#] {
        let (_, bad) = decode(schema.clone(), strict, &narrow, &[payload]);
        assert_eq!(bad.as_slice()[0].code.to_string(), "LF-DC0008", "{payload}");
    }
    let mut counting = JsonDecoder::new(schema, JsonOptions { unknown: Unknown::Count, ..JsonOptions::default() });
    let counters = counting.counters();
    counting.plan(&narrow).unwrap();
    let (_, bad) = run(&mut counting, &[r#"{"c":1,"d":{"e":1}}"#, declared]);
    assert!(bad.is_empty());
    assert_eq!(counters.unknown(), 2);
}

/// Catches a default that is not read by the rules of records, and one that is only found wrong at run time.
#[test]
fn a_default_stands_in_for_a_missing_field_and_for_null() {
    let column = |kind: &str, default: serde_json::Value| {
        ColumnText::WithOptions(crate::ColumnOptions {
            type_text: kind.to_owned(),
            default: Some(default),
            round: None,
        })
    };
    for payload in ["{}", r#"{"v":null}"#] {
        let got = cell(column("decimal(8,2) not null", serde_json::json!(1.5)), JsonOptions::default(), payload);
        assert_eq!(got, "1.50");
        assert_eq!(cell(column("array<int>", serde_json::json!([1, 2])), JsonOptions::default(), payload), "[1, 2]");
    }
    for (kind, default) in [("bigint", serde_json::json!("x")), ("bigint not null", serde_json::json!(null))] {
        let error = Schema::declare([("v".to_owned(), column(kind, default))]).unwrap_err();
        assert_eq!(error.code.to_string(), "LF-DC0031");
    }
}

/// Catches a record of several rows that lands in part, or whose rows lose their origin.
#[test]
fn a_record_of_several_rows_lands_whole_or_not_at_all() {
    let schema = schema(&[("v", "bigint")]);
    let lines = JsonOptions { framing: Framing::Ndjson, ..JsonOptions::default() };
    let payloads = ["{\"v\":1}\n\n{\"v\":2}\r\n", "{\"v\":3}\n{\"v\":\"no\"}\n", "", "{\"v\":4}"];
    let (rows, bad) = decode(schema.clone(), lines, &all(), &payloads);
    assert_eq!(rows.column(0).as_primitive::<Int64Type>().values(), &[1, 2, 4]);
    assert_eq!(rows.column_by_name("__offset").unwrap().as_primitive::<UInt64Type>().values(), &[100, 100, 103]);
    assert_eq!(bad.as_slice().iter().map(|error| error.row).collect::<Vec<_>>(), [1]);
    assert!(bad.as_slice()[0].text.contains("byte 13"), "{}", bad.as_slice()[0].text);
    let arrays = JsonOptions { framing: Framing::Array, ..JsonOptions::default() };
    let payloads = [r#"[{"v":1},{"v":2}]"#, "[]", r#"[{"v":3},7]"#, r#"{"v":4}"#, r#"[{"v":5}] x"#, r#"[{"v":6},]"#];
    let (rows, bad) = decode(schema, arrays, &all(), &payloads);
    assert_eq!(rows.column(0).as_primitive::<Int64Type>().values(), &[1, 2]);
    let codes: Vec<(u32, String)> = bad.as_slice().iter().map(|error| (error.row, error.code.to_string())).collect();
    let expected = [(2, "LF-DC0002"), (3, "LF-DC0002"), (4, "LF-DC0004"), (5, "LF-DC0001")];
    assert_eq!(codes, expected.map(|(row, code)| (row, code.to_owned())));
}

/// Catches a decoder that builds what nobody reads, or loses a hidden column.
#[test]
fn only_wanted_paths_are_built_and_hidden_columns_ride_along() {
    let schema =
        schema(&[("a", "bigint"), ("c", "struct<id: bigint, in: struct<x: string, y: string>>"), ("d", "double")]);
    let wanted = Wanted {
        paths: Some(vec![vec!["c".into(), "in".into(), "y".into()], vec!["d".into()]]),
        record_key: true,
        record_timestamp: true,
        record_headers: true,
    };
    // A wrong type in a field that is not wanted is passed over.
    let payload = r#"{"a":"not a number","c":{"id":[1],"in":{"x":5,"y":"yes"}},"d":1}"#;
    let (rows, bad) = decode(schema, JsonOptions::default(), &wanted, &[payload]);
    assert!(bad.is_empty(), "{bad:?}");
    let names: Vec<String> = rows.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["c", "d", "__partition", "__offset", "__key", "__timestamp", "__headers"]);
    assert_eq!(shown(rows.column(0), 0), "{in: {y: yes}}");
}

/// Catches an escape that is lost or doubled, in texts, names and raw JSON.
#[test]
fn escapes_are_undone_in_texts_and_names_and_kept_in_raw_json() {
    let payload = r#"{"\u0076":"a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00 é😀"}"#;
    assert_eq!(cell("string".into(), JsonOptions::default(), payload), "a\"\\/\u{8}\u{c}\n\r\t\u{e9}\u{1f600} é😀");
    assert_eq!(
        cell("json".into(), JsonOptions::default(), r#"{"v": {"a" : "\n", "b":[1.0, 2e5]} }"#),
        r#"{"a" : "\n", "b":[1.0, 2e5]}"#
    );
}

/// Every cut of a record and every flipped byte: catches a panic and a half-read row (I14).
#[test]
fn no_cut_and_no_flipped_byte_panics() {
    let schema = schema(&[
        ("id", "bigint"),
        ("amount", "decimal(12,2)"),
        ("at", "timestamp"),
        ("c", "struct<n: string, m: map<string, double>>"),
        ("items", "array<struct<sku: string, q: int>>"),
        ("raw", "json"),
    ]);
    let payload = r#"{"id":12,"amount":1.25,"at":"2024-05-01T10:00:00Z","c":{"n":"\u00e9\ud83d\ude00","m":{"a":1e5}},"items":[{"sku":"s","q":1}],"raw":{"x":[true,null]}}"#;
    let bytes = payload.as_bytes();
    let mut decoder = JsonDecoder::new(schema, JsonOptions::default());
    decoder.plan(&all()).unwrap();
    let cuts: Vec<&[u8]> = (0..bytes.len()).map(|end| &bytes[..end]).collect();
    let (rows, bad) = run(&mut decoder, &cuts);
    assert_eq!((rows.num_rows(), bad.len()), (0, bytes.len()), "no cut record is a record");
    let flips: Vec<Vec<u8>> = (0..bytes.len())
        .flat_map(|at| (0..8).map(move |bit| (at, bit)))
        .map(|(at, bit)| {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << bit;
            flipped
        })
        .collect();
    let (rows, bad) = run(&mut decoder, &flips);
    assert_eq!(rows.num_rows() + bad.len(), flips.len());
    let parses = |text: &Vec<u8>| serde_json::from_slice::<serde_json::Value>(text).is_ok();
    for (row, flipped) in flips.iter().enumerate() {
        let is_bad = bad.as_slice().iter().any(|error| error.row as usize == row);
        assert!(is_bad || parses(flipped), "landed, but is not JSON: {}", String::from_utf8_lossy(flipped));
    }
}

fn json_text() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        any::<f64>().prop_filter("finite", |value| value.is_finite()).prop_map(Into::into),
        ".{0,12}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::btree_map(prop_oneof!["[a-d]", ".{0,4}"], inner, 0..6)
                .prop_map(|entries| serde_json::Value::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Any value at all beside another reader: catches a value that lands as something else.
    #[test]
    fn random_values_land_as_another_reader_sees_them(value in json_text()) {
        let payload = serde_json::json!({ "v": value.clone() }).to_string();
        prop_assert_eq!(
            cell("json".into(), JsonOptions::default(), &payload),
            if value.is_null() { "NULL".to_owned() } else { value.to_string() }
        );
        let expected = match &value {
            serde_json::Value::Null => "NULL".to_owned(),
            serde_json::Value::String(text) => text.clone(),
            _ => "LF-DC0015".to_owned(),
        };
        prop_assert_eq!(cell("string".into(), JsonOptions::default(), &payload), expected);
        if let Some(integer) = value.as_i64() {
            prop_assert_eq!(cell("bigint".into(), JsonOptions::default(), &payload), integer.to_string());
        }
        if let Some(number) = value.as_f64() {
            let got: f64 = cell("double".into(), JsonOptions::default(), &payload).parse().unwrap();
            prop_assert_eq!(got, number);
        }
    }

    /// Any bytes: catches a panic, and a decoder that takes what is not JSON.
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let schema = schema(&[("v", "struct<a: array<double>>"), ("w", "map<string, json>")]);
        let (rows, bad) = decode(schema, JsonOptions::default(), &all(), &[bytes]);
        prop_assert_eq!(rows.num_rows() + bad.len(), 1);
    }

    /// Pieces of JSON in any order: reaches deeper into the reader than bytes do.
    #[test]
    fn random_pieces_of_json_never_panic(
        pieces in prop::collection::vec(
            prop::sample::select(vec!["{", "}", "[", "]", ":", ",", "\"v\"", "\"a\"", "1", "-", "e9", "null", "\"\\u", "d800\"", " "]),
            0..40,
        )
    ) {
        let schema = schema(&[("v", "struct<a: array<double>>"), ("a", "map<string, bigint>")]);
        let payload = pieces.concat();
        let (rows, bad) = decode(schema, JsonOptions::default(), &all(), &[&payload]);
        prop_assert_eq!(rows.num_rows() + bad.len(), 1);
        if rows.num_rows() == 1 {
            prop_assert!(serde_json::from_str::<serde_json::Value>(&payload).is_ok());
        }
    }
}
