//! The short way through a record that is spelled as most are: fields in the order of the record before, no escapes, no
//! white space but one blank behind a comma or colon.
//!
//! It reads or it gives up; it never refuses. What it gives up is cut out of the columns and read again by the long way,
//! which alone decides what is wrong and says so. What it does read is exactly what the long way would have read. Where
//! it stands is passed by value, so that it lies in a register and not in memory: that is most of what makes it faster.
//! And whether the text is UTF-8 is asked only where a string is not ASCII, for nothing else in JSON can be.

use super::column::{Cells, Column};
use super::lanes;
use super::number;
use super::object::Object;
use super::scan::{Exact, Number};
use super::time;
use crate::schema::TimestampForm;

/// Levels that are read, and that are passed over: together less than what is allowed, so that none need be counted.
const READ_DEPTH_MAX: u32 = 32;
const DEPTH_MAX: u32 = 60;

/// Whether all columns are of kinds that are read here.
pub(super) fn can_read(object: &Object) -> bool {
    can_read_at(object, 1)
}

fn can_read_at(object: &Object, depth: u32) -> bool {
    depth <= READ_DEPTH_MAX
        && object.columns.iter().all(|column| match &column.cells {
            Cells::Boolean(_)
            | Cells::SmallInt(_)
            | Cells::Int(_)
            | Cells::BigInt(_)
            | Cells::Decimal { .. }
            | Cells::String(_)
            | Cells::Date(_)
            | Cells::Timestamp { form: TimestampForm::Text, .. } => true,
            Cells::Struct(inner) => can_read_at(inner, depth + 1),
            Cells::Double(_)
            | Cells::Float(_)
            | Cells::Timestamp { .. }
            | Cells::Json(_)
            | Cells::Array { .. }
            | Cells::Map { .. } => false,
        })
}

/// Reads a whole record as value number `len` of every column. False: it gave up, and the columns are to be cut back.
pub(super) fn record(object: &mut Object, text: &[u8], len: usize) -> bool {
    let is_white = |byte: &u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
    let mut beyond = Beyond(0);
    text.first() == Some(&b'{')
        && fields(object, text, 1, len, &mut beyond)
            .and_then(|end| text.get(end..))
            .is_some_and(|rest| rest.iter().all(is_white))
        && (beyond.0 == 0 || simdutf8::basic::from_utf8(text).is_ok())
}

/// Not zero once a byte was seen in or behind a string that is not ASCII.
struct Beyond(u32);

/// Reads the fields behind an opening brace; gives where the object ends.
fn fields(object: &mut Object, text: &[u8], mut at: usize, len: usize, beyond: &mut Beyond) -> Option<usize> {
    let (mut filled, mut step, mut hint) = (0, 0, 0);
    if byte(text, at)? == b'}' {
        at += 1;
    } else {
        loop {
            let place = match object.order.predicted(text.get(at..)?, &mut step) {
                Some((place, len)) => {
                    at += len;
                    place
                }
                None => {
                    let name = (at + 1)..quoted_end(text, at, beyond)?;
                    at = colon(text, name.end + 1)?;
                    object.look_up_name(text.get(name)?, hint, &mut step)
                }
            };
            at = past_blank(text, at);
            match place {
                Some(place) => {
                    let column = object.columns.get_mut(place)?;
                    // Named twice.
                    if column.len() != len {
                        return None;
                    }
                    at = value(column, text, at, len, beyond)?;
                    filled += 1;
                    hint = place + 1;
                }
                None => at = skip(text, at, beyond)?,
            }
            match byte(text, at)? {
                b',' => at = past_blank(text, at + 1),
                b'}' => {
                    at += 1;
                    break;
                }
                _ => return None,
            }
        }
    }
    if filled < object.columns.len() {
        for column in object.columns.iter_mut().filter(|column| column.len() == len) {
            absent(column)?;
        }
    }
    Some(at)
}

/// A null, where nothing else is to stand there.
fn absent(column: &mut Column) -> Option<()> {
    if column.not_null || column.default.is_some() {
        return None;
    }
    column.push_null();
    Some(())
}

/// Reads a value as number `len` of its column; gives where it ends.
#[inline]
fn value(column: &mut Column, text: &[u8], at: usize, len: usize, beyond: &mut Beyond) -> Option<usize> {
    let first = byte(text, at)?;
    if first == b'n' {
        absent(column)?;
        return literal(text, at, b"null");
    }
    let end = match &mut column.cells {
        Cells::String(texts) => {
            let end = quoted_end(text, at, beyond)?;
            texts.push_part(text, at + 1..end)?;
            end + 1
        }
        Cells::BigInt(values) => {
            let (number, end) = number(text, at)?;
            values.push(number::integer(&number).ok()?);
            end
        }
        Cells::Int(values) => {
            let (number, end) = number(text, at)?;
            values.push(i32::try_from(number::integer(&number).ok()?).ok()?);
            end
        }
        Cells::SmallInt(values) => {
            let (number, end) = number(text, at)?;
            values.push(i16::try_from(number::integer(&number).ok()?).ok()?);
            end
        }
        Cells::Decimal { values, precision, scale } => {
            let (number, end) = number(text, at)?;
            values.push(number::scaled(&number, *precision, *scale, column.rounds).ok()?);
            end
        }
        Cells::Timestamp { values, form: TimestampForm::Text } => {
            let end = quoted_end(text, at, beyond)?;
            values.push(time::timestamp(text.get(at + 1..end)?, column.rounds).ok()?);
            end + 1
        }
        Cells::Date(values) => {
            let end = quoted_end(text, at, beyond)?;
            values.push(time::date(text.get(at + 1..end)?)?);
            end + 1
        }
        Cells::Boolean(values) => {
            let is_true = first == b't';
            let end = literal(text, at, if is_true { b"true" } else { b"false" })?;
            values.append(is_true);
            end
        }
        Cells::Struct(object) if first == b'{' => fields(object, text, at + 1, len, beyond)?,
        _ => return None,
    };
    column.validity.append_non_null();
    Some(end)
}

#[inline]
fn byte(text: &[u8], at: usize) -> Option<u8> {
    text.get(at).copied()
}

#[inline]
fn past_blank(text: &[u8], at: usize) -> usize {
    at + usize::from(byte(text, at) == Some(b' '))
}

#[inline]
fn literal(text: &[u8], at: usize, literal: &[u8]) -> Option<usize> {
    text.get(at..)?.starts_with(literal).then(|| at + literal.len())
}

#[inline]
fn colon(text: &[u8], at: usize) -> Option<usize> {
    (byte(text, at)? == b':').then_some(at + 1)
}

/// Where the closing quote is of a string without escapes that opens at `at`.
#[inline]
fn quoted_end(text: &[u8], at: usize, beyond: &mut Beyond) -> Option<usize> {
    if byte(text, at)? != b'"' {
        return None;
    }
    let mut at = at + 1;
    let mut rest = text.get(at..)?;
    while let Some(chunk) = rest.first_chunk::<16>() {
        let (special, not_ascii) = lanes::marks(chunk);
        beyond.0 |= not_ascii;
        if special != 0 {
            let ahead = special.trailing_zeros() as usize;
            return (byte(rest, ahead)? == b'"').then_some(at + ahead);
        }
        rest = rest.get(16..)?;
        at += 16;
    }
    let ahead = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
    beyond.0 |= u32::from(!rest.is_ascii());
    (byte(rest, ahead)? == b'"').then_some(at + ahead)
}

/// A number without exponent whose digits fit 64 bits, and where it ends.
#[inline]
fn number(text: &[u8], start: usize) -> Option<(Number<'_>, usize)> {
    let is_negative = byte(text, start)? == b'-';
    let first = start + usize::from(is_negative);
    let (mut units, mut end) = digits(text, first, 0);
    let (mut count, mut places) = (end - first, 0);
    if count == 0 || (count > 1 && byte(text, first) == Some(b'0')) {
        return None;
    }
    if byte(text, end) == Some(b'.') {
        let point = end + 1;
        (units, end) = digits(text, point, units);
        places = end - point;
        if places == 0 {
            return None;
        }
        count += places;
    }
    const DIGITS_MAX: usize = 19;
    if count > DIGITS_MAX || matches!(byte(text, end), Some(b'e' | b'E')) {
        return None;
    }
    let exact = Some(Exact { units, places: places as u32 });
    Some((Number { text: text.get(start..end)?, is_negative, exact }, end))
}

/// The digits from `at` on behind the number `before`, modulo 2^64, and where they end.
#[inline]
fn digits(text: &[u8], mut at: usize, before: u64) -> (u64, usize) {
    let mut number = before;
    let mut rest = text.get(at..).unwrap_or_default();
    while let Some(chunk) = rest.first_chunk::<8>() {
        let (digits, count, scale) = lanes::digits(chunk);
        number = number.wrapping_mul(scale).wrapping_add(digits);
        at += count;
        if count < 8 {
            return (number, at);
        }
        rest = rest.get(8..).unwrap_or_default();
    }
    let left = rest.iter().map(|byte| byte.wrapping_sub(b'0')).take_while(|digit| *digit < 10);
    left.fold((number, at), |(number, at), digit| (number.wrapping_mul(10).wrapping_add(u64::from(digit)), at + 1))
}

/// Passes over one value, checking as much of it as the long way does; gives where it ends.
fn skip(text: &[u8], mut at: usize, beyond: &mut Beyond) -> Option<usize> {
    let (mut depth, mut objects) = (0u32, 0u64);
    loop {
        match byte(text, at)? {
            b'"' => at = quoted_end(text, at, beyond)? + 1,
            open @ (b'{' | b'[') => {
                at += 1;
                let is_object = open == b'{';
                // Both closing brackets stand two behind their opening ones.
                if byte(text, at)? == open + 2 {
                    at += 1;
                } else {
                    depth += 1;
                    if depth > DEPTH_MAX {
                        return None;
                    }
                    objects = (objects << 1) | u64::from(is_object);
                    if is_object {
                        at = skip_name(text, at, beyond)?;
                    }
                    continue;
                }
            }
            b'-' | b'0'..=b'9' => {
                let rest = text.get(at..)?;
                let is_of_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                at += rest.iter().position(|byte| !is_of_number(byte))?;
            }
            b't' => at = literal(text, at, b"true")?,
            b'f' => at = literal(text, at, b"false")?,
            b'n' => at = literal(text, at, b"null")?,
            _ => return None,
        }
        loop {
            if depth == 0 {
                return Some(at);
            }
            let next = byte(text, at)?;
            at += 1;
            let is_object = objects & 1 == 1;
            if next == b',' {
                at = past_blank(text, at);
                if is_object {
                    at = skip_name(text, at, beyond)?;
                }
                break;
            }
            if next != if is_object { b'}' } else { b']' } {
                return None;
            }
            depth -= 1;
            objects >>= 1;
        }
    }
}

#[inline]
fn skip_name(text: &[u8], at: usize, beyond: &mut Beyond) -> Option<usize> {
    let end = quoted_end(text, at, beyond)?;
    Some(past_blank(text, colon(text, end + 1)?))
}
