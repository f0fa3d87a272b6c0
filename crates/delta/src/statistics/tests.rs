use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, Date32Array, Decimal128Array, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
    StructArray, TimestampMicrosecondArray,
};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use serde_json::value::RawValue;

use super::*;

fn written(batches: &[RecordBatch]) -> (Arc<Schema>, ParquetMetaData) {
    let schema = batches[0].schema();
    let properties = WriterProperties::builder().build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties)).expect("a writer");
    for batch in batches {
        writer.write(batch).expect("written");
        writer.flush().expect("a row group each");
    }
    (schema, writer.close().expect("closed"))
}

fn stats(batches: &[RecordBatch], indexed: usize) -> serde_json::Value {
    let (schema, metadata) = written(batches);
    serde_json::from_str(&of_file(&schema, &metadata, indexed)).expect("JSON")
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .expect("a batch")
}

/// Catches the library's lossy decimals (T8): above 2^53 a floating-point bound would hide rows from a reader.
#[test]
fn decimal_bounds_have_exact_digits() {
    for (precision, unscaled, text) in [
        (38, 12_345_678_901_234_567_890_123_456_789_i128, "123456789012345678901234567.89"),
        (18, 900_719_925_474_099_301, "9007199254740993.01"),
        (9, -5, "-0.05"),
    ] {
        let values = Decimal128Array::from(vec![Some(unscaled), None]).with_precision_and_scale(precision, 2);
        let (schema, metadata) = written(&[batch(vec![("d", Arc::new(values.expect("fits")) as ArrayRef)])]);
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Raw {
            min_values: std::collections::BTreeMap<String, Box<RawValue>>,
        }
        let raw: Raw = serde_json::from_str(&of_file(&schema, &metadata, 32)).expect("JSON");
        assert_eq!(raw.min_values["d"].get(), text);
    }
}

/// Catches a bound taken from one row group alone, and NULLs counted once.
#[test]
fn bounds_cover_all_row_groups() {
    let numbers = |values: Vec<Option<i64>>| batch(vec![("n", Arc::new(Int64Array::from(values)) as ArrayRef)]);
    let stats = stats(&[numbers(vec![Some(5), None]), numbers(vec![Some(-3), Some(9)]), numbers(vec![None, None])], 32);
    assert_eq!(
        stats,
        serde_json::json!({"numRecords": 6, "minValues": {"n": -3}, "maxValues": {"n": 9}, "nullCount": {"n": 3}})
    );
}

/// Catches bounds that would make a reader skip rows: NaN above the upper bound, a cut text below it, bytes as text.
#[test]
fn bounds_that_cannot_be_exact_are_left_out_or_wider() {
    let long = "z".repeat(100);
    let stats = stats(
        &[batch(vec![
            ("f", Arc::new(Float64Array::from(vec![1.5, f64::NAN])) as ArrayRef),
            ("s", Arc::new(StringArray::from(vec!["ä", long.as_str()]))),
            ("b", Arc::new(BinaryArray::from_vec(vec![b"a", b"b"]))),
        ])],
        32,
    );
    assert_eq!(stats["minValues"]["f"], 1.5);
    assert!(stats["maxValues"].get("f").is_none());
    assert!(stats["maxValues"].get("b").is_none());
    let (min, max) = (stats["minValues"]["s"].as_str().expect("text"), stats["maxValues"]["s"].as_str().expect("text"));
    assert!(min <= long.as_str() && max >= "ä", "{min} {max}");
    assert_eq!(stats["nullCount"], serde_json::json!({"f": 0, "s": 0, "b": 0}));
}

/// Catches nested leaves written flat, or a list's element counts taken for the list's.
#[test]
fn nested_leaves_are_nested_and_lists_are_left_out() {
    let inner = Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef;
    let nested = StructArray::from(vec![(Arc::new(Field::new("x", DataType::Int64, true)), inner)]);
    let list = ListArray::from_iter_primitive::<arrow_array::types::Int64Type, _, _>(vec![Some(vec![Some(1)]), None]);
    let stats = stats(
        &[batch(vec![
            ("s", Arc::new(nested) as ArrayRef),
            ("l", Arc::new(list)),
            ("d", Arc::new(Date32Array::from(vec![19_676, 0]))),
            ("t", Arc::new(TimestampMicrosecondArray::from(vec![1_000_001, 0]).with_timezone("UTC"))),
        ])],
        32,
    );
    assert_eq!(
        stats["maxValues"],
        serde_json::json!({"s": {"x": 2}, "d": "2023-11-15", "t": "1970-01-01T00:00:01.000001Z"})
    );
    assert_eq!(stats["nullCount"], serde_json::json!({"s": {"x": 0}, "d": 0, "t": 0}));
}

/// Catches positions without statistics in a wide table: the default stops at the 32nd column.
#[test]
fn position_columns_have_statistics_wherever_they_stand() {
    let number = || Arc::new(Int64Array::from(vec![7])) as ArrayRef;
    let names: Vec<String> = (0..40).map(|at| format!("c{at}")).collect();
    let mut columns: Vec<(&str, ArrayRef)> = names.iter().map(|name| (name.as_str(), number())).collect();
    columns.push(("__offset", number()));
    let stats = stats(&[batch(columns)], INDEXED_COLUMNS);
    assert_eq!(stats["minValues"]["__offset"], 7);
    assert_eq!(stats["minValues"]["c31"], 7);
    assert!(stats["minValues"].get("c32").is_none());
}

/// Catches a far date written in a form that no reader takes.
#[test]
fn dates_beyond_four_digits_of_year_have_no_bound() {
    let stats = stats(&[batch(vec![("d", Arc::new(Date32Array::from(vec![4_000_000, 0])) as ArrayRef)])], 32);
    assert_eq!(stats["minValues"]["d"], "1970-01-01");
    assert!(stats["maxValues"].get("d").is_none());
}
