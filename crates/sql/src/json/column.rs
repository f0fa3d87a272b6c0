//! Growing columns that can be cut back (E102): a refused row leaves no trace in any of them, however far inside it
//! failed. This module holds the cells; how a value is read into them is in `value`.
//!
//! A column's length counts whole values only. Cells may be ahead of it while a value is being read; [`Column::cut`]
//! brings both back.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int16Array, Int32Array,
    Int64Array, ListArray, MapArray, StringArray, StructArray, TimestampMicrosecondArray,
};
use arrow_buffer::{BooleanBufferBuilder, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, FieldRef};

use super::object::Object;
use crate::schema::{self, ColumnType, TimestampForm};

/// Values that are texts, one behind the other.
pub(super) struct Texts {
    pub(super) bytes: Vec<u8>,
    ends: Vec<i32>,
}

impl Texts {
    fn new() -> Self {
        Texts { bytes: Vec::new(), ends: vec![0] }
    }

    fn end(&self, len: usize) -> usize {
        self.ends.get(len).map_or(0, |end| *end as usize)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len() - 1
    }

    pub(super) fn get(&self, at: usize) -> &[u8] {
        self.bytes.get(self.end(at)..self.end(at + 1)).unwrap_or_default()
    }

    /// A value that is a part of a text; `None` where there is no such part, or the column would pass 2 GiB.
    #[inline]
    pub(super) fn push_part(&mut self, text: &[u8], part: std::ops::Range<usize>) -> Option<()> {
        let value = text.get(part.clone())?;
        match text.get(part.start..).and_then(|rest| rest.first_chunk::<16>()) {
            // A copy of a length that the compiler knows is two instructions, any other is a call.
            Some(chunk) if value.len() <= chunk.len() => {
                let len = self.bytes.len() + value.len();
                self.bytes.extend_from_slice(chunk);
                self.bytes.truncate(len);
            }
            _ => self.bytes.extend_from_slice(value),
        }
        self.close()
    }

    /// Ends a value whose bytes were appended; `None` where the column would pass 2 GiB.
    #[inline]
    pub(super) fn close(&mut self) -> Option<()> {
        self.ends.push(i32::try_from(self.bytes.len()).ok()?);
        Some(())
    }

    fn close_empty(&mut self) {
        self.ends.push(self.ends.last().copied().unwrap_or(0));
    }

    pub(super) fn cut(&mut self, len: usize) {
        self.ends.truncate(len + 1);
        self.bytes.truncate(self.end(len));
    }

    fn finish(&mut self) -> (OffsetBuffer<i32>, Buffer) {
        let (ends_room, bytes_room) = (Vec::with_capacity(self.ends.len()), Vec::with_capacity(self.bytes.len()));
        let ends = std::mem::replace(&mut self.ends, ends_room);
        self.ends.push(0);
        let bytes = std::mem::replace(&mut self.bytes, bytes_room);
        (OffsetBuffer::new(ScalarBuffer::from(ends)), Buffer::from_vec(bytes))
    }
}

/// The values of a column; a null holds a place with some value.
pub(super) enum Cells {
    Boolean(BooleanBufferBuilder),
    SmallInt(Vec<i16>),
    Int(Vec<i32>),
    BigInt(Vec<i64>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Decimal { values: Vec<i128>, precision: u8, scale: i8 },
    String(Texts),
    Json(Texts),
    Date(Vec<i32>),
    Timestamp { values: Vec<i64>, form: TimestampForm },
    Struct(Object),
    Array { ends: Vec<i32>, item: Box<Column> },
    Map { ends: Vec<i32>, keys: Texts, value: Box<Column> },
}

/// A column that grows by whole values.
pub(super) struct Column {
    pub(super) name: Box<str>,
    pub(super) cells: Cells,
    pub(super) validity: Validity,
    pub(super) not_null: bool,
    /// JSON text that stands in for a missing field or null.
    pub(super) default: Option<Arc<str>>,
    pub(super) rounds: bool,
    field: FieldRef,
}

/// Which values are there. Bits are kept from the first null on; most columns have none.
#[derive(Default)]
pub(super) struct Validity {
    len: usize,
    bits: Option<BooleanBufferBuilder>,
}

impl Validity {
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn append_non_null(&mut self) {
        if let Some(bits) = &mut self.bits {
            bits.append(true);
        }
        self.len += 1;
    }

    pub(super) fn append_null(&mut self) {
        let len = self.len;
        let bits = self.bits.get_or_insert_with(|| {
            let mut bits = BooleanBufferBuilder::new(len.max(ROWS_GUESS));
            bits.append_n(len, true);
            bits
        });
        bits.append(false);
        self.len += 1;
    }

    fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.len = len;
            if let Some(bits) = &mut self.bits {
                bits.truncate(len);
            }
        }
    }

    fn finish(&mut self) -> Option<NullBuffer> {
        self.len = 0;
        let nulls = NullBuffer::new(self.bits.take()?.finish());
        // The nulls may have been cut off again.
        (nulls.null_count() > 0).then_some(nulls)
    }
}

/// Rows that a fresh builder makes room for.
const ROWS_GUESS: usize = 1024;

impl Column {
    /// A column of the fields that are wanted of it.
    pub(super) fn new(column: &schema::Column) -> Self {
        let mut new = Self::item(&column.name, &column.kind, column.not_null);
        new.default = column.default.as_deref().map(Arc::from);
        new.rounds = column.round.is_some();
        new
    }

    fn item(name: &str, kind: &ColumnType, not_null: bool) -> Self {
        let cells = match kind {
            ColumnType::Boolean => Cells::Boolean(BooleanBufferBuilder::new(ROWS_GUESS)),
            ColumnType::SmallInt => Cells::SmallInt(Vec::new()),
            ColumnType::Int => Cells::Int(Vec::new()),
            ColumnType::BigInt => Cells::BigInt(Vec::new()),
            ColumnType::Float => Cells::Float(Vec::new()),
            ColumnType::Double => Cells::Double(Vec::new()),
            ColumnType::Decimal { precision, scale } => {
                Cells::Decimal { values: Vec::new(), precision: *precision, scale: *scale }
            }
            ColumnType::String => Cells::String(Texts::new()),
            ColumnType::Json => Cells::Json(Texts::new()),
            ColumnType::Date => Cells::Date(Vec::new()),
            ColumnType::Timestamp(form) => Cells::Timestamp { values: Vec::new(), form: *form },
            ColumnType::Struct(columns) => Cells::Struct(Object::new(columns)),
            ColumnType::Array(item) => {
                Cells::Array { ends: vec![0], item: Box::new(Column::item("item", &item.kind, item.not_null)) }
            }
            ColumnType::Map(item) => Cells::Map {
                ends: vec![0],
                keys: Texts::new(),
                value: Box::new(Column::item("value", &item.kind, item.not_null)),
            },
        };
        Column {
            name: name.into(),
            cells,
            validity: Validity::default(),
            not_null,
            default: None,
            rounds: false,
            field: Arc::new(Field::new(name, kind.arrow(), !not_null)),
        }
    }

    pub(super) fn field(&self) -> &FieldRef {
        &self.field
    }

    /// Whole values.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.validity.len()
    }

    /// Forgets all behind the first `len` values, unfinished ones too.
    pub(super) fn cut(&mut self, len: usize) {
        self.validity.truncate(len);
        match &mut self.cells {
            Cells::Boolean(values) => values.truncate(len),
            Cells::SmallInt(values) => values.truncate(len),
            Cells::Int(values) | Cells::Date(values) => values.truncate(len),
            Cells::BigInt(values) | Cells::Timestamp { values, .. } => values.truncate(len),
            Cells::Float(values) => values.truncate(len),
            Cells::Double(values) => values.truncate(len),
            Cells::Decimal { values, .. } => values.truncate(len),
            Cells::String(texts) | Cells::Json(texts) => texts.cut(len),
            Cells::Struct(object) => object.cut(len),
            Cells::Array { ends, item } => {
                ends.truncate(len + 1);
                item.cut(ends.last().map_or(0, |end| *end as usize));
            }
            Cells::Map { ends, keys, value } => {
                ends.truncate(len + 1);
                let entries = ends.last().map_or(0, |end| *end as usize);
                keys.cut(entries);
                value.cut(entries);
            }
        }
    }

    /// Appends a null, whatever the column declares: inside a null struct every field is one.
    pub(super) fn push_null(&mut self) {
        match &mut self.cells {
            Cells::Boolean(values) => values.append(false),
            Cells::SmallInt(values) => values.push(0),
            Cells::Int(values) | Cells::Date(values) => values.push(0),
            Cells::BigInt(values) | Cells::Timestamp { values, .. } => values.push(0),
            Cells::Float(values) => values.push(0.0),
            Cells::Double(values) => values.push(0.0),
            Cells::Decimal { values, .. } => values.push(0),
            Cells::String(texts) | Cells::Json(texts) => texts.close_empty(),
            Cells::Struct(object) => object.push_null(),
            Cells::Array { ends, .. } | Cells::Map { ends, .. } => ends.push(ends.last().copied().unwrap_or(0)),
        }
        self.validity.append_null();
    }

    /// Hands out what was appended and starts anew, with room for as much.
    pub(super) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        fn take<T>(values: &mut Vec<T>) -> ScalarBuffer<T>
        where
            T: arrow_buffer::ArrowNativeType,
        {
            let room = Vec::with_capacity(values.len());
            ScalarBuffer::from(std::mem::replace(values, room))
        }
        fn take_ends(ends: &mut Vec<i32>) -> OffsetBuffer<i32> {
            let taken = take(ends);
            ends.push(0);
            OffsetBuffer::new(taken)
        }
        let len = self.len();
        let nulls = self.validity.finish();
        Ok(match &mut self.cells {
            Cells::Boolean(values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            Cells::SmallInt(values) => Arc::new(Int16Array::try_new(take(values), nulls)?),
            Cells::Int(values) => Arc::new(Int32Array::try_new(take(values), nulls)?),
            Cells::BigInt(values) => Arc::new(Int64Array::try_new(take(values), nulls)?),
            Cells::Float(values) => Arc::new(Float32Array::try_new(take(values), nulls)?),
            Cells::Double(values) => Arc::new(Float64Array::try_new(take(values), nulls)?),
            Cells::Date(values) => Arc::new(Date32Array::try_new(take(values), nulls)?),
            Cells::Timestamp { values, .. } => {
                Arc::new(TimestampMicrosecondArray::try_new(take(values), nulls)?.with_timezone("UTC"))
            }
            Cells::Decimal { values, precision, scale } => {
                Arc::new(Decimal128Array::try_new(take(values), nulls)?.with_precision_and_scale(*precision, *scale)?)
            }
            Cells::String(texts) | Cells::Json(texts) => {
                let (ends, bytes) = texts.finish();
                Arc::new(StringArray::try_new(ends, bytes, nulls)?)
            }
            Cells::Struct(object) => {
                let children = object.finish()?;
                Arc::new(StructArray::try_new_with_length(object.fields(), children, nulls, len)?)
            }
            Cells::Array { ends, item } => {
                let field = item.field().clone();
                Arc::new(ListArray::try_new(field, take_ends(ends), item.finish()?, nulls)?)
            }
            Cells::Map { ends, keys, value } => {
                let (key_ends, key_bytes) = keys.finish();
                let keys: ArrayRef = Arc::new(StringArray::try_new(key_ends, key_bytes, None)?);
                let DataType::Map(entries_field, _) = self.field.data_type() else {
                    return Err(ArrowError::SchemaError("a map column has another type".to_owned()));
                };
                let DataType::Struct(fields) = entries_field.data_type() else {
                    return Err(ArrowError::SchemaError("a map column has no entries".to_owned()));
                };
                let entries = StructArray::try_new(fields.clone(), vec![keys, value.finish()?], None)?;
                Arc::new(MapArray::try_new(entries_field.clone(), take_ends(ends), entries, nulls, false)?)
            }
        })
    }
}
