use arrow_array::{BooleanArray, Date32Array, Decimal128Array, Int64Array, StringArray, TimestampMicrosecondArray};
use arrow_schema::{Field, Schema};

use super::*;

fn layout(fields: Vec<Field>, partition: Vec<usize>) -> Layout {
    let data = (0..fields.len()).filter(|at| !partition.contains(at)).collect();
    Layout { schema: Arc::new(Schema::new(fields)), partition, data, added: Vec::new() }
}

/// Catches rows that change their order, their partition, or get lost in the split.
#[test]
fn each_row_goes_to_its_value_in_order() {
    let layout =
        layout(vec![Field::new("n", DataType::Int64, false), Field::new("country", DataType::Utf8, true)], vec![1]);
    let batch = RecordBatch::try_new(
        layout.schema.clone(),
        vec![
            Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5, 6])),
            Arc::new(StringArray::from(vec![Some("de"), Some("fr"), Some("de"), None, Some(""), Some("fr")])),
        ],
    )
    .expect("a batch");
    let split = split(&batch, &layout, &layout.data_schema()).expect("a split");
    let rows: Vec<(Option<&str>, Vec<i64>)> = split
        .iter()
        .map(|(value, rows)| {
            let numbers = rows.column(0).as_primitive::<arrow_array::types::Int64Type>();
            (value[0].as_deref(), numbers.values().to_vec())
        })
        .collect();
    assert_eq!(rows, [(Some("de"), vec![1, 3]), (Some("fr"), vec![2, 6]), (None, vec![4, 5])]);
}

/// Catches a value that another reader would read as something else.
#[test]
fn values_are_written_as_the_delta_protocol_says() {
    let micros = 1_700_000_000_123_456;
    let fields = vec![
        Field::new("n", DataType::Int64, false),
        Field::new("d", DataType::Date32, true),
        Field::new("t", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
        Field::new("b", DataType::Boolean, true),
        Field::new("p", DataType::Decimal128(30, 2), true),
    ];
    let layout = layout(fields, vec![1, 2, 3, 4]);
    let decimals = Decimal128Array::from(vec![1_234_567_890_123_456_789_012]).with_precision_and_scale(30, 2);
    let batch = RecordBatch::try_new(
        layout.schema.clone(),
        vec![
            Arc::new(Int64Array::from(vec![1])),
            Arc::new(Date32Array::from(vec![19_676])),
            Arc::new(TimestampMicrosecondArray::from(vec![micros]).with_timezone("UTC")),
            Arc::new(BooleanArray::from(vec![true])),
            Arc::new(decimals.expect("fits")),
        ],
    )
    .expect("a batch");
    let split = split(&batch, &layout, &layout.data_schema()).expect("a split");
    let texts: Vec<&str> = split[0].0.iter().map(|text| text.as_deref().expect("not NULL")).collect();
    assert_eq!(texts, ["2023-11-15", "2023-11-14 22:13:20.123456", "true", "12345678901234567890.12"]);
}
