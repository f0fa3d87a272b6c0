//! Rows as payloads and record keys of the channel sink: one JSON object per row, and a key that spells the same for the
//! same row in every process.
//!
//! Nothing is lost on the way: a NULL is there as null, a whole number with all its digits, and a number that JSON does not
//! have (NaN, the infinities) as the text that Postgres gives it in JSON, never as null.

use std::sync::Arc;

use arrow::json::StructMode;
use arrow::json::writer::{
    Encoder, EncoderFactory, EncoderOptions, LineDelimited, NullableEncoder, WriterBuilder, make_encoder,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Schema};
use bytes::Bytes;
use landfall_engine::contract::{columns, is_hidden};

/// The field of a change's object that names its table.
pub(super) const TABLE: &str = "_table";

/// Each row as one JSON object, hidden columns left out; a NULL is there as null. `table`: comes last, as [`TABLE`].
pub(super) fn objects(rows: &RecordBatch, table: Option<&str>) -> Result<Vec<Bytes>, String> {
    let (mut fields, mut arrays): (Vec<FieldRef>, Vec<ArrayRef>) = (Vec::new(), Vec::new());
    for (field, array) in rows.schema_ref().fields().iter().zip(rows.columns()) {
        if !is_hidden(field.name()) {
            fields.push(Arc::clone(field));
            arrays.push(Arc::clone(array));
        }
    }
    if let Some(table) = table {
        fields.push(Arc::new(Field::new(TABLE, DataType::Utf8, false)));
        arrays.push(Arc::new(StringArray::from_iter_values(std::iter::repeat_n(table, rows.num_rows()))));
    }
    lines(fields, arrays, rows.num_rows(), StructMode::ObjectOnly)
}

/// The key of each change of a table: a JSON list of the table's name and the values of its key, so that two tables never
/// share one. A truncate, and a change of a table without a key, has the name alone.
pub(super) fn change_keys(rows: &RecordBatch, table: &str, key: &[Arc<str>]) -> Result<Vec<Bytes>, String> {
    let name = serde_json::to_string(table).map_err(|error| error.to_string())?;
    let alone = Bytes::from(format!("[{name}]"));
    if key.is_empty() {
        return Ok(vec![alone; rows.num_rows()]);
    }
    let (mut fields, mut arrays): (Vec<FieldRef>, Vec<ArrayRef>) = (Vec::new(), Vec::new());
    for column in key {
        let (at, field) =
            rows.schema_ref().fields().find(column).ok_or_else(|| format!("the rows have no column {column}"))?;
        fields.push(Arc::clone(field));
        arrays.push(Arc::clone(rows.column(at)));
    }
    let ops = rows.column_by_name(columns::OP).ok_or_else(|| format!("the rows have no column {}", columns::OP))?;
    let ops = ops.as_string_opt::<i32>().ok_or_else(|| format!("{} is not text", columns::OP))?;
    let values = lines(fields, arrays, rows.num_rows(), StructMode::ListOnly)?;
    let spelled = values.iter().zip(ops).map(|(values, op)| match (op, values.strip_prefix(b"[")) {
        (Some("t"), _) | (_, None) => alone.clone(),
        (_, Some(values)) => Bytes::from([b"[", name.as_bytes(), b",", values].concat()),
    });
    Ok(spelled.collect())
}

fn lines(fields: Vec<FieldRef>, arrays: Vec<ArrayRef>, count: usize, form: StructMode) -> Result<Vec<Bytes>, String> {
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    let rows = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options);
    let rows = rows.map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    let builder = WriterBuilder::new().with_explicit_nulls(true).with_struct_mode(form);
    let mut writer = builder.with_encoder_factory(Arc::new(NoNumbers)).build::<_, LineDelimited>(&mut text);
    writer.write(&rows).and_then(|()| writer.finish()).map_err(|error| error.to_string())?;
    drop(writer);
    let text = Bytes::from(text);
    // A line end inside of a text is escaped, so each one ends a row.
    let mut lines = Vec::with_capacity(count);
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', &text) {
        lines.push(text.slice(start..end));
        start = end + 1;
    }
    if lines.len() == count { Ok(lines) } else { Err(format!("{count} rows made {} lines of JSON", lines.len())) }
}

/// The cells of a column as bytes: text and binary as they are, whole numbers in decimal digits.
pub(super) fn cells(column: &ArrayRef) -> Result<Vec<Option<Bytes>>, String> {
    fn all<'a>(cells: impl Iterator<Item = Option<&'a [u8]>>) -> Vec<Option<Bytes>> {
        cells.map(|cell| cell.map(Bytes::copy_from_slice)).collect()
    }
    fn digits<T: ArrowPrimitiveType>(column: &ArrayRef) -> Vec<Option<Bytes>>
    where
        T::Native: std::fmt::Display,
    {
        let digits = |number: T::Native| Bytes::from(number.to_string());
        column.as_primitive::<T>().iter().map(|cell| cell.map(digits)).collect()
    }
    Ok(match column.data_type() {
        DataType::Utf8 => all(column.as_string::<i32>().iter().map(|cell| cell.map(str::as_bytes))),
        DataType::LargeUtf8 => all(column.as_string::<i64>().iter().map(|cell| cell.map(str::as_bytes))),
        DataType::Utf8View => all(column.as_string_view().iter().map(|cell| cell.map(str::as_bytes))),
        DataType::Binary => all(column.as_binary::<i32>().iter()),
        DataType::LargeBinary => all(column.as_binary::<i64>().iter()),
        DataType::BinaryView => all(column.as_binary_view().iter()),
        DataType::Int8 => digits::<Int8Type>(column),
        DataType::Int16 => digits::<Int16Type>(column),
        DataType::Int32 => digits::<Int32Type>(column),
        DataType::Int64 => digits::<Int64Type>(column),
        DataType::UInt8 => digits::<UInt8Type>(column),
        DataType::UInt16 => digits::<UInt16Type>(column),
        DataType::UInt32 => digits::<UInt32Type>(column),
        DataType::UInt64 => digits::<UInt64Type>(column),
        other => return Err(format!("a column of {other} is neither text, binary nor a whole number")),
    })
}

/// Encodes NaN and the infinities as texts; every other value as the writer does.
#[derive(Debug)]
struct NoNumbers;

impl EncoderFactory for NoNumbers {
    fn make_default_encoder<'a>(
        &self,
        field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let words: Vec<Option<&'static str>> = match array.data_type() {
            DataType::Float32 => {
                array.as_primitive::<Float32Type>().values().iter().map(|value| word_of(f64::from(*value))).collect()
            }
            DataType::Float64 => {
                array.as_primitive::<Float64Type>().values().iter().map(|value| word_of(*value)).collect()
            }
            _ => return Ok(None),
        };
        if words.iter().all(Option::is_none) {
            return Ok(None);
        }
        let numbers = make_encoder(field, array, &PLAIN)?;
        Ok(Some(NullableEncoder::new(Box::new(Words { words, numbers }), array.nulls().cloned())))
    }
}

/// Without a factory, so that what it makes is the writer's own.
static PLAIN: std::sync::LazyLock<EncoderOptions> = std::sync::LazyLock::new(EncoderOptions::default);

fn word_of(value: f64) -> Option<&'static str> {
    match value {
        value if value.is_nan() => Some("\"NaN\""),
        f64::INFINITY => Some("\"Infinity\""),
        f64::NEG_INFINITY => Some("\"-Infinity\""),
        _ => None,
    }
}

struct Words<'a> {
    words: Vec<Option<&'static str>>,
    numbers: NullableEncoder<'a>,
}

impl Encoder for Words<'_> {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        match self.words.get(row).copied().flatten() {
            Some(word) => out.extend_from_slice(word.as_bytes()),
            None => self.numbers.encode(row, out),
        }
    }
}
