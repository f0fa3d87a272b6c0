//! Instants from numbers and texts.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, ArrayRef, PrimitiveArray, StringArray};
use datafusion_common::{Result, exec_err};
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;

use super::too_wide;

fn utc(array: PrimitiveArray<TimestampMicrosecondType>) -> ArrayRef {
    Arc::new(array.with_timezone("UTC"))
}

/// `epoch_ms(int)`: milliseconds since 1970.
pub(super) fn epoch_ms(args: &[ArrayRef], _: usize) -> Result<ArrayRef> {
    scaled(args, 1_000, "epoch_ms")
}

/// `epoch_us(int)`: microseconds since 1970.
pub(super) fn epoch_us(args: &[ArrayRef], _: usize) -> Result<ArrayRef> {
    scaled(args, 1, "epoch_us")
}

fn scaled(args: &[ArrayRef], factor: i64, function: &str) -> Result<ArrayRef> {
    let [value] = args else { return exec_err!("{function} takes one argument") };
    let micros = value.as_primitive::<Int64Type>().iter().map(|value| match value {
        Some(value) => value.checked_mul(factor).map(Some).ok_or_else(|| too_wide(function)),
        None => Ok(None),
    });
    Ok(utc(micros.collect::<Result<_>>()?))
}

/// `parse_timestamp(text, format…)`: the first of the formats (as of `strptime`) that takes the whole text; without
/// formats RFC 3339. A text without a zone is in UTC.
pub(super) fn parse(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let Some((texts, formats)) = args.split_first() else { return exec_err!("parse_timestamp takes a text") };
    let texts = texts.as_string::<i32>();
    let formats: Vec<&StringArray> = formats.iter().map(|format| format.as_string::<i32>()).collect();
    let micros = (0..rows).map(|row| {
        if texts.is_null(row) {
            return Ok(None);
        }
        let text = texts.value(row);
        let parsed = if formats.is_empty() {
            crate::json::rfc_3339(text)
        } else {
            let given = formats.iter().filter(|format| format.is_valid(row)).map(|format| format.value(row));
            given.into_iter().find_map(|format| by_format(format, text))
        };
        match parsed {
            Some(micros) => Ok(Some(micros)),
            None => exec_err!("parse_timestamp: the text has none of the given forms"),
        }
    });
    Ok(utc(micros.collect::<Result<_>>()?))
}

fn by_format(format: &str, text: &str) -> Option<i64> {
    let time = BrokenDownTime::parse(format, text).ok()?;
    if let Ok(instant) = time.to_timestamp() {
        return Some(instant.as_microsecond());
    }
    let civil = time.to_datetime().or_else(|_| time.to_date().map(|date| date.at(0, 0, 0, 0))).ok()?;
    Some(TimeZone::UTC.to_timestamp(civil).ok()?.as_microsecond())
}
