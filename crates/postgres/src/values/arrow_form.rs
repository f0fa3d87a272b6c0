//! Which Arrow type a column of Postgres has, by its policies and by what the target can hold (P81).

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use arrow_schema::{DataType, Field, TimeUnit};

use super::policy::{ArrayShape, InvalidText, NanPolicy, NumericUnbounded, Policies, RangePolicy};
use crate::PgType;

/// What the target can hold. Where it cannot hold a column's Arrow type, the column takes the nearest form that keeps
/// every value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Target {
    /// Every Arrow type of the table in `docs/postgres-types.md`.
    #[default]
    Arrow,
    /// A Delta table: no unsigned integers, no decimals beyond 38 digits, no time of day, no 16-byte binary.
    Delta,
}

/// Digits that the two decimal types hold.
const DECIMAL128_DIGITS: u16 = 38;
const DECIMAL256_DIGITS: u16 = 76;

/// The Arrow type of values of `kind`.
pub fn arrow_type(kind: &PgType, policies: &Policies, target: Target) -> DataType {
    let is_delta = target == Target::Delta;
    let infinity_is_text = policies.infinity == RangePolicy::Text;
    let range_is_text = policies.out_of_range == Some(RangePolicy::Text);
    match kind {
        PgType::Bool => DataType::Boolean,
        PgType::Int2 => DataType::Int16,
        PgType::Int4 => DataType::Int32,
        PgType::Int8 => DataType::Int64,
        PgType::Oid if is_delta => DataType::Int64,
        PgType::Oid => DataType::UInt32,
        PgType::Xid8 if is_delta => DataType::Decimal128(20, 0),
        PgType::Xid8 => DataType::UInt64,
        PgType::Float4 => DataType::Float32,
        PgType::Float8 => DataType::Float64,
        PgType::Numeric(_) if policies.nan == NanPolicy::Text => DataType::Utf8,
        PgType::Numeric(Some((precision, scale))) => match decimal_of(*precision, *scale) {
            Some((precision, scale)) => decimal_type(precision, scale, target),
            None => unbounded(policies, target),
        },
        PgType::Numeric(None) => unbounded(policies, target),
        PgType::Date | PgType::Timestamp | PgType::TimestampTz if infinity_is_text || range_is_text => DataType::Utf8,
        PgType::Date => DataType::Date32,
        PgType::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
        PgType::TimestampTz => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        // 24:00:00 is legal there and not in Arrow: only who says what becomes of it gets a time.
        PgType::Time if is_delta || range_is_text || policies.out_of_range.is_none() => DataType::Utf8,
        PgType::Time => DataType::Time64(TimeUnit::Microsecond),
        PgType::Bytea => DataType::Binary,
        PgType::Uuid if is_delta => DataType::Utf8,
        PgType::Uuid => DataType::FixedSizeBinary(16),
        // Their texts are ASCII whatever the database's encoding.
        PgType::Money | PgType::TimeTz | PgType::Interval => DataType::Utf8,
        PgType::Text | PgType::Char | PgType::Json | PgType::Jsonb | PgType::Enum | PgType::Other(_) => {
            text_type(policies)
        }
        PgType::Array { .. } if policies.array_shape == ArrayShape::Text => text_type(policies),
        PgType::Array { element, .. } => {
            DataType::List(Arc::new(Field::new("item", arrow_type(element, policies, target), true)))
        }
    }
}

fn text_type(policies: &Policies) -> DataType {
    match policies.invalid_text {
        InvalidText::Binary => DataType::Binary,
        InvalidText::Error | InvalidText::Replace => DataType::Utf8,
    }
}

fn unbounded(policies: &Policies, target: Target) -> DataType {
    let NumericUnbounded::Decimal { precision, scale } = policies.numeric_unbounded else { return DataType::Utf8 };
    if policies.infinity == RangePolicy::Text || policies.out_of_range == Some(RangePolicy::Text) {
        return DataType::Utf8;
    }
    decimal_type(precision, scale, target)
}

fn decimal_type(precision: u8, scale: i8, target: Target) -> DataType {
    if u16::from(precision) <= DECIMAL128_DIGITS {
        DataType::Decimal128(precision, scale)
    } else if target == Target::Delta {
        DataType::Utf8
    } else {
        DataType::Decimal256(precision, scale)
    }
}

/// The decimal that holds every `numeric(precision, scale)`: a negative scale rounds whole digits away, one above the
/// precision fixes zeros behind the point. `None` where it has more digits than any decimal.
fn decimal_of(precision: u16, scale: i16) -> Option<(u8, i8)> {
    let (precision, scale) = (i32::from(precision), i32::from(scale));
    let (precision, scale) = match scale {
        ..0 => (precision - scale, 0),
        _ if scale > precision => (scale, scale),
        _ => (precision, scale),
    };
    if !(1..=i32::from(DECIMAL256_DIGITS)).contains(&precision) {
        return None;
    }
    Some((u8::try_from(precision).ok()?, i8::try_from(scale).ok()?))
}

/// Whether the column is JSON text.
fn is_json(kind: &PgType, data_type: &DataType) -> bool {
    matches!(kind, PgType::Json | PgType::Jsonb) && *data_type == DataType::Utf8
}

/// Whether the column is a UUID in its 16 bytes.
fn is_uuid(kind: &PgType, data_type: &DataType) -> bool {
    matches!(kind, PgType::Uuid) && *data_type == DataType::FixedSizeBinary(16)
}

/// The field of a column, with the extension name of a UUID or of JSON.
pub(crate) fn arrow_field(name: &str, kind: &PgType, data_type: DataType, is_nullable: bool) -> Field {
    let extension = if is_json(kind, &data_type) {
        HashMap::from([
            (EXTENSION_TYPE_NAME_KEY.to_owned(), "arrow.json".to_owned()),
            (EXTENSION_TYPE_METADATA_KEY.to_owned(), String::new()),
        ])
    } else if is_uuid(kind, &data_type) {
        HashMap::from([(EXTENSION_TYPE_NAME_KEY.to_owned(), "arrow.uuid".to_owned())])
    } else {
        HashMap::new()
    };
    Field::new(name, data_type, is_nullable).with_metadata(extension)
}
