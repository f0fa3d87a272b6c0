//! Growing columns that can be cut back: a row that is refused leaves no trace in any of them, however far inside an
//! array it failed.
//!
//! A column's length counts whole values. Cells may be ahead of it after a fault; [`Column::cut`] brings both back.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Decimal256Array, FixedSizeBinaryArray,
    Float32Array, Float64Array, Int16Array, Int32Array, Int64Array, ListArray, StringArray, Time64MicrosecondArray,
    TimestampMicrosecondArray, UInt32Array, UInt64Array,
};
use arrow_buffer::{BooleanBufferBuilder, Buffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer, i256};
use arrow_schema::{ArrowError, DataType, FieldRef, TimeUnit};

use super::array::{Element, Shape};
use super::policy::{InvalidText, NanPolicy, Policies, RangePolicy};
use super::{Misfit, array, bytes, number, time};
use crate::PgType;

/// Why a value is not in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The text is none of the type's.
    Bad,
    /// NaN, and no policy for it.
    NotANumber,
    /// Infinite, and no policy for it.
    Infinite,
    /// Past the column's range, and no policy for it.
    Beyond,
    /// Not UTF-8, and no policy for it.
    NotUtf8,
    /// More than one dimension.
    ManyDimensions,
    /// The column would pass 2 GiB, or 2^31 elements: not the value's fault.
    Full,
}

impl From<Misfit> for Fault {
    fn from(misfit: Misfit) -> Self {
        match misfit {
            Misfit::Bad => Fault::Bad,
            Misfit::NotANumber => Fault::NotANumber,
            Misfit::Infinite { .. } => Fault::Infinite,
            Misfit::Beyond { .. } => Fault::Beyond,
        }
    }
}

/// How often policies changed values (P111).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Values that became NULL.
    pub nulled: u64,
    /// Values that became the nearest one.
    pub clamped: u64,
    /// Texts with wrong bytes replaced.
    pub replaced: u64,
    /// Arrays whose lower bound was dropped.
    pub shifted: u64,
}

/// Where a column of texts ends: offsets have 31 bits. Tests are full sooner, so that they can be.
const TEXT_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { i32::MAX as usize };

/// Texts or bytes, one behind the other.
struct Texts {
    bytes: Vec<u8>,
    ends: Vec<i32>,
}

impl Texts {
    fn new() -> Self {
        Texts { bytes: Vec::new(), ends: vec![0] }
    }

    fn push(&mut self, text: &[u8]) -> Result<(), Fault> {
        self.bytes.extend_from_slice(text);
        self.close()
    }

    /// Ends a value whose bytes were appended.
    fn close(&mut self) -> Result<(), Fault> {
        if self.bytes.len() > TEXT_BYTES_MAX {
            return Err(Fault::Full);
        }
        self.ends.push(i32::try_from(self.bytes.len()).map_err(|_| Fault::Full)?);
        Ok(())
    }

    fn close_empty(&mut self) {
        self.ends.push(self.ends.last().copied().unwrap_or(0));
    }

    fn cut(&mut self, len: usize) {
        self.ends.truncate(len + 1);
        self.bytes.truncate(self.ends.last().map_or(0, |end| *end as usize));
    }

    fn finish(&mut self) -> (OffsetBuffer<i32>, Buffer) {
        let ends = taken(&mut self.ends);
        self.ends.push(0);
        (OffsetBuffer::new(ScalarBuffer::from(ends)), Buffer::from_vec(taken(&mut self.bytes)))
    }
}

/// Room that a column keeps from one batch to the next: a table that was busy once holds no more than this per column.
const ROOM_BYTES_MAX: usize = 64 << 10;

/// Takes the values out, leaving some of their room.
pub(crate) fn taken<T>(values: &mut Vec<T>) -> Vec<T> {
    let room = Vec::with_capacity(values.len().min(ROOM_BYTES_MAX / size_of::<T>().max(1)));
    std::mem::replace(values, room)
}

fn scalars<T: arrow_buffer::ArrowNativeType>(values: &mut Vec<T>) -> ScalarBuffer<T> {
    ScalarBuffer::from(taken(values))
}

/// The values of a column and how their texts are read; a null holds a place with some value.
enum Cells {
    Bool(BooleanBufferBuilder),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    UInt32(Vec<u32>),
    UInt64(Vec<u64>),
    /// 32 bits without sign, for a target that has none.
    OidAsInt64(Vec<i64>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    Decimal128 {
        values: Vec<i128>,
        precision: u8,
        scale: i8,
    },
    Decimal256 {
        values: Vec<i256>,
        precision: u8,
        scale: i8,
    },
    Text {
        texts: Texts,
        replaces: bool,
    },
    /// A text's bytes, UTF-8 or not.
    TextBytes(Texts),
    Bytea(Texts),
    Date(Vec<i32>),
    Timestamp {
        values: Vec<i64>,
        has_zone: bool,
    },
    Time(Vec<i64>),
    Uuid(Vec<[u8; 16]>),
    List {
        ends: Vec<i32>,
        item: Box<Column>,
        field: FieldRef,
        delimiter: u8,
        scratch: Vec<u8>,
    },
}

/// What becomes of values that do not fit.
#[derive(Clone, Copy)]
struct Misfits {
    nan: NanPolicy,
    infinity: RangePolicy,
    beyond: RangePolicy,
}

impl Misfits {
    /// The value in place of one that does not fit; `None` for NULL.
    fn settle<T>(self, misfit: Misfit, least: T, greatest: T, tally: &mut Tally) -> Result<Option<T>, Fault> {
        let (policy, is_negative) = match misfit {
            Misfit::Bad => return Err(Fault::Bad),
            Misfit::NotANumber if self.nan == NanPolicy::Null => (RangePolicy::Null, false),
            Misfit::NotANumber => return Err(Fault::NotANumber),
            Misfit::Infinite { is_negative } => (self.infinity, is_negative),
            Misfit::Beyond { is_negative } => (self.beyond, is_negative),
        };
        match policy {
            RangePolicy::Null => {
                tally.nulled += 1;
                Ok(None)
            }
            RangePolicy::Clamp => {
                tally.clamped += 1;
                Ok(Some(if is_negative { least } else { greatest }))
            }
            // Columns that are texts from the start have no misfits.
            RangePolicy::Error | RangePolicy::Text => Err(misfit.into()),
        }
    }
}

/// A column that grows by whole values.
pub(crate) struct Column {
    cells: Cells,
    validity: NullBufferBuilder,
    misfits: Misfits,
}

impl Column {
    /// An empty column of the type that [`super::arrow_type`] gave for `kind`. A column of the key takes no NULL in
    /// place of a value.
    pub(crate) fn new(kind: &PgType, data_type: &DataType, policies: &Policies, is_key: bool) -> Self {
        let range = |policy| if is_key && policy == RangePolicy::Null { RangePolicy::Error } else { policy };
        let misfits = Misfits {
            nan: if is_key && policies.nan == NanPolicy::Null { NanPolicy::Error } else { policies.nan },
            infinity: range(policies.infinity),
            beyond: range(policies.out_of_range.unwrap_or_default()),
        };
        let replaces = policies.invalid_text == InvalidText::Replace;
        let cells = match (data_type, kind) {
            (DataType::Boolean, _) => Cells::Bool(BooleanBufferBuilder::new(0)),
            (DataType::Int16, _) => Cells::Int16(Vec::new()),
            (DataType::Int32, _) => Cells::Int32(Vec::new()),
            (DataType::Int64, PgType::Oid) => Cells::OidAsInt64(Vec::new()),
            (DataType::Int64, _) => Cells::Int64(Vec::new()),
            (DataType::UInt32, _) => Cells::UInt32(Vec::new()),
            (DataType::UInt64, _) => Cells::UInt64(Vec::new()),
            (DataType::Float32, _) => Cells::Float32(Vec::new()),
            (DataType::Float64, _) => Cells::Float64(Vec::new()),
            (DataType::Decimal128(precision, scale), _) => {
                Cells::Decimal128 { values: Vec::new(), precision: *precision, scale: *scale }
            }
            (DataType::Decimal256(precision, scale), _) => {
                Cells::Decimal256 { values: Vec::new(), precision: *precision, scale: *scale }
            }
            (DataType::Binary, PgType::Bytea) => Cells::Bytea(Texts::new()),
            (DataType::Binary, _) => Cells::TextBytes(Texts::new()),
            (DataType::Date32, _) => Cells::Date(Vec::new()),
            (DataType::Timestamp(TimeUnit::Microsecond, zone), _) => {
                Cells::Timestamp { values: Vec::new(), has_zone: zone.is_some() }
            }
            (DataType::Time64(TimeUnit::Microsecond), _) => Cells::Time(Vec::new()),
            (DataType::FixedSizeBinary(16), _) => Cells::Uuid(Vec::new()),
            (DataType::List(field), PgType::Array { element, delimiter }) => Cells::List {
                ends: vec![0],
                item: Box::new(Column::new(element, field.data_type(), policies, is_key)),
                field: field.clone(),
                delimiter: u8::try_from(*delimiter).unwrap_or(b','),
                scratch: Vec::new(),
            },
            // Every other type is its text.
            _ => Cells::Text { texts: Texts::new(), replaces },
        };
        Column { cells, validity: NullBufferBuilder::new(0), misfits }
    }

    /// Whole values.
    pub(crate) fn len(&self) -> usize {
        self.validity.len()
    }

    /// Appends the value of a text. After a fault the column must be cut.
    pub(crate) fn push_text(&mut self, text: &[u8], tally: &mut Tally) -> Result<(), Fault> {
        let misfits = self.misfits;
        macro_rules! settled {
            ($values:expr, $parsed:expr, $least:expr, $greatest:expr) => {
                match $parsed {
                    Ok(value) => $values.push(value),
                    Err(misfit) => match misfits.settle(misfit, $least, $greatest, tally)? {
                        Some(value) => $values.push(value),
                        None => {
                            self.push_null();
                            return Ok(());
                        }
                    },
                }
            };
        }
        // Digits past a decimal's scale are out of range too; their nearest value is the rounded one.
        let rounds = misfits.beyond == RangePolicy::Clamp;
        match &mut self.cells {
            Cells::Bool(values) => match text {
                b"t" => values.append(true),
                b"f" => values.append(false),
                _ => return Err(Fault::Bad),
            },
            Cells::Int16(values) => values.push(number::signed(text)?),
            Cells::Int32(values) => values.push(number::signed(text)?),
            Cells::Int64(values) => values.push(number::signed(text)?),
            Cells::UInt32(values) => values.push(number::unsigned(text)?),
            Cells::UInt64(values) => values.push(number::unsigned(text)?),
            Cells::OidAsInt64(values) => values.push(number::unsigned::<u32>(text)?.into()),
            Cells::Float32(values) => values.push(number::float(text)?),
            Cells::Float64(values) => values.push(number::float(text)?),
            Cells::Decimal128 { values, precision, scale } => {
                let greatest = number::max128(*precision);
                let parsed = number::decimal128(text, *precision, *scale, rounds).map(|(value, is_rounded)| {
                    tally.clamped += u64::from(is_rounded);
                    value
                });
                settled!(values, parsed, -greatest, greatest);
            }
            Cells::Decimal256 { values, precision, scale } => {
                let greatest = number::max256(*precision);
                let parsed = number::decimal256(text, *precision, *scale, rounds).map(|(value, is_rounded)| {
                    tally.clamped += u64::from(is_rounded);
                    value
                });
                settled!(values, parsed, greatest.wrapping_neg(), greatest);
            }
            Cells::Text { texts, replaces } => match simdutf8::basic::from_utf8(text) {
                Ok(_) => texts.push(text)?,
                Err(_) if *replaces => {
                    tally.replaced += 1;
                    texts.push(String::from_utf8_lossy(text).as_bytes())?;
                }
                Err(_) => return Err(Fault::NotUtf8),
            },
            Cells::TextBytes(texts) => texts.push(text)?,
            Cells::Bytea(texts) => {
                bytes::bytea(text, &mut texts.bytes)?;
                texts.close()?;
            }
            Cells::Date(values) => settled!(values, time::date(text), time::DATE_MIN, time::DATE_MAX),
            Cells::Timestamp { values, has_zone } => {
                settled!(values, time::timestamp(text, *has_zone), time::TIMESTAMP_MIN, i64::MAX);
            }
            Cells::Time(values) => settled!(values, time::time(text), 0, time::TIME_MAX),
            Cells::Uuid(values) => values.push(bytes::uuid(text)?),
            Cells::List { ends, item, delimiter, scratch, .. } => {
                let shape = array::elements(text, *delimiter, scratch, |element| match element {
                    Element::Null => {
                        item.push_null();
                        Ok(())
                    }
                    Element::Text(text) => item.push_text(text, tally),
                })?;
                match shape {
                    Shape::Nested => return Err(Fault::ManyDimensions),
                    Shape::List { is_shifted } => tally.shifted += u64::from(is_shifted),
                }
                ends.push(i32::try_from(item.len()).map_err(|_| Fault::Full)?);
            }
        }
        self.validity.append_non_null();
        Ok(())
    }

    /// Appends a NULL.
    pub(crate) fn push_null(&mut self) {
        match &mut self.cells {
            Cells::Bool(values) => values.append(false),
            Cells::Int16(values) => values.push(0),
            Cells::Int32(values) | Cells::Date(values) => values.push(0),
            Cells::Int64(values)
            | Cells::OidAsInt64(values)
            | Cells::Timestamp { values, .. }
            | Cells::Time(values) => values.push(0),
            Cells::UInt32(values) => values.push(0),
            Cells::UInt64(values) => values.push(0),
            Cells::Float32(values) => values.push(0.0),
            Cells::Float64(values) => values.push(0.0),
            Cells::Decimal128 { values, .. } => values.push(0),
            Cells::Decimal256 { values, .. } => values.push(i256::ZERO),
            Cells::Text { texts, .. } | Cells::TextBytes(texts) | Cells::Bytea(texts) => texts.close_empty(),
            Cells::Uuid(values) => values.push([0; 16]),
            Cells::List { ends, .. } => ends.push(ends.last().copied().unwrap_or(0)),
        }
        self.validity.append_null();
    }

    /// Forgets all behind the first `len` values, unfinished ones too.
    pub(crate) fn cut(&mut self, len: usize) {
        self.validity.truncate(len);
        match &mut self.cells {
            Cells::Bool(values) => values.truncate(len),
            Cells::Int16(values) => values.truncate(len),
            Cells::Int32(values) | Cells::Date(values) => values.truncate(len),
            Cells::Int64(values)
            | Cells::OidAsInt64(values)
            | Cells::Timestamp { values, .. }
            | Cells::Time(values) => values.truncate(len),
            Cells::UInt32(values) => values.truncate(len),
            Cells::UInt64(values) => values.truncate(len),
            Cells::Float32(values) => values.truncate(len),
            Cells::Float64(values) => values.truncate(len),
            Cells::Decimal128 { values, .. } => values.truncate(len),
            Cells::Decimal256 { values, .. } => values.truncate(len),
            Cells::Text { texts, .. } | Cells::TextBytes(texts) | Cells::Bytea(texts) => texts.cut(len),
            Cells::Uuid(values) => values.truncate(len),
            Cells::List { ends, item, .. } => {
                ends.truncate(len + 1);
                item.cut(ends.last().map_or(0, |end| *end as usize));
            }
        }
    }

    /// Bytes that its values hold; as vectors grow, up to twice that is allocated.
    pub(crate) fn bytes(&self) -> usize {
        let values = match &self.cells {
            Cells::Bool(values) => values.len() / 8,
            Cells::Int16(values) => size_of_val(&**values),
            Cells::Int32(values) | Cells::Date(values) => size_of_val(&**values),
            Cells::Int64(values)
            | Cells::OidAsInt64(values)
            | Cells::Timestamp { values, .. }
            | Cells::Time(values) => size_of_val(&**values),
            Cells::UInt32(values) => size_of_val(&**values),
            Cells::UInt64(values) => size_of_val(&**values),
            Cells::Float32(values) => size_of_val(&**values),
            Cells::Float64(values) => size_of_val(&**values),
            Cells::Decimal128 { values, .. } => size_of_val(&**values),
            Cells::Decimal256 { values, .. } => size_of_val(&**values),
            Cells::Text { texts, .. } | Cells::TextBytes(texts) | Cells::Bytea(texts) => {
                texts.bytes.len() + size_of_val(&*texts.ends)
            }
            Cells::Uuid(values) => size_of_val(&**values),
            Cells::List { ends, item, scratch, .. } => size_of_val(&**ends) + item.bytes() + scratch.capacity(),
        };
        values + self.len() / 8
    }

    /// Hands out what was appended and starts anew.
    pub(crate) fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        let nulls = self.validity.finish();
        Ok(match &mut self.cells {
            Cells::Bool(values) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            Cells::Int16(values) => Arc::new(Int16Array::try_new(scalars(values), nulls)?),
            Cells::Int32(values) => Arc::new(Int32Array::try_new(scalars(values), nulls)?),
            Cells::Int64(values) | Cells::OidAsInt64(values) => Arc::new(Int64Array::try_new(scalars(values), nulls)?),
            Cells::UInt32(values) => Arc::new(UInt32Array::try_new(scalars(values), nulls)?),
            Cells::UInt64(values) => Arc::new(UInt64Array::try_new(scalars(values), nulls)?),
            Cells::Float32(values) => Arc::new(Float32Array::try_new(scalars(values), nulls)?),
            Cells::Float64(values) => Arc::new(Float64Array::try_new(scalars(values), nulls)?),
            Cells::Decimal128 { values, precision, scale } => {
                let array = Decimal128Array::try_new(scalars(values), nulls)?;
                Arc::new(array.with_precision_and_scale(*precision, *scale)?)
            }
            Cells::Decimal256 { values, precision, scale } => {
                let array = Decimal256Array::try_new(scalars(values), nulls)?;
                Arc::new(array.with_precision_and_scale(*precision, *scale)?)
            }
            Cells::Text { texts, .. } => {
                let (ends, bytes) = texts.finish();
                Arc::new(StringArray::try_new(ends, bytes, nulls)?)
            }
            Cells::TextBytes(texts) | Cells::Bytea(texts) => {
                let (ends, bytes) = texts.finish();
                Arc::new(BinaryArray::try_new(ends, bytes, nulls)?)
            }
            Cells::Date(values) => Arc::new(Date32Array::try_new(scalars(values), nulls)?),
            Cells::Timestamp { values, has_zone } => {
                let array = TimestampMicrosecondArray::try_new(scalars(values), nulls)?;
                Arc::new(if *has_zone { array.with_timezone("UTC") } else { array })
            }
            Cells::Time(values) => Arc::new(Time64MicrosecondArray::try_new(scalars(values), nulls)?),
            Cells::Uuid(values) => {
                let bytes = taken(values).into_flattened();
                Arc::new(FixedSizeBinaryArray::try_new(16, Buffer::from_vec(bytes), nulls)?)
            }
            Cells::List { ends, item, field, scratch, .. } => {
                scratch.clear();
                scratch.shrink_to(ROOM_BYTES_MAX);
                let offsets = OffsetBuffer::new(scalars(ends));
                ends.push(0);
                Arc::new(ListArray::try_new(field.clone(), offsets, item.finish()?, nulls)?)
            }
        })
    }
}
