//! Reads one JSON value into a column by the rules of E100: exact or refused, never a silent change.

use super::column::{Cells, Column, Texts};
use super::number::{self, Misfit};
use super::rules::Rules;
use super::scan::{Failed, Number, Scanner, kind_of};
use super::time::{self, TimeFault};
use crate::code;
use crate::schema::TimestampForm;

impl Column {
    /// Reads the value at the cursor and appends it. On failure the caller cuts the column back.
    #[inline]
    pub(super) fn read(&mut self, scanner: &mut Scanner<'_>, rules: &mut Rules) -> Result<(), Failed> {
        let Some(first) = scanner.peek() else {
            return Err(scanner.fail(code::NOT_JSON, "the text ends, expected a value"));
        };
        if first == b'n' {
            scanner.literal("null")?;
            return self.read_absent(scanner, rules, false);
        }
        self.read_present(scanner, rules, first)?;
        self.validity.append_non_null();
        Ok(())
    }

    /// Appends what stands for a missing field or a null: the default, a null, or a refusal.
    pub(super) fn read_absent(
        &mut self,
        scanner: &mut Scanner<'_>,
        rules: &mut Rules,
        is_missing: bool,
    ) -> Result<(), Failed> {
        if let Some(default) = self.default.clone() {
            return self.read_default(&default, scanner, rules);
        }
        if self.not_null {
            let (code, text) = if is_missing {
                (code::FIELD_MISSING, "the field is missing and the column is NOT NULL")
            } else {
                (code::FIELD_NULL, "the field is null and the column is NOT NULL")
            };
            return Err(scanner.fail(code, text));
        }
        self.push_null();
        Ok(())
    }

    #[cold]
    fn read_default(&mut self, text: &str, scanner: &mut Scanner<'_>, rules: &mut Rules) -> Result<(), Failed> {
        let mut inner = Scanner::new(text.as_bytes());
        let first = inner.peek().unwrap_or(b' ');
        if first == b'n' && !self.not_null {
            self.push_null();
            return Ok(());
        }
        match self.read_present(&mut inner, rules, first) {
            Ok(()) => {
                self.validity.append_non_null();
                Ok(())
            }
            Err(Failed) => {
                let at = scanner.position();
                Err(scanner.fail_as(inner.take_fault(), at))
            }
        }
    }

    #[inline]
    fn read_present(&mut self, scanner: &mut Scanner<'_>, rules: &mut Rules, first: u8) -> Result<(), Failed> {
        let start = scanner.position();
        match &mut self.cells {
            Cells::BigInt(values) => {
                let number = number_at(scanner, rules, first, "bigint")?;
                values.push(integer(scanner, start, &number, "bigint")?);
            }
            Cells::String(texts) => read_text(texts, scanner, rules, first)?,
            Cells::Double(values) => {
                let number = number_at(scanner, rules, first, "double")?;
                match fast_float2::parse::<f64, _>(number.text) {
                    Ok(value) if value.is_finite() => values.push(value),
                    _ => return Err(overflow(scanner, start, &number, "double")),
                }
            }
            Cells::Decimal { values, precision, scale } => {
                let number = number_at(scanner, rules, first, "decimal")?;
                let value = number::scaled(&number, *precision, *scale, self.rounds);
                match value {
                    Ok(value) => values.push(value),
                    Err(misfit) => {
                        let (code, what) = match misfit {
                            Misfit::Scale => (code::EXCESS_SCALE, "has more places behind the point than"),
                            Misfit::Precision => (code::EXCESS_PRECISION, "has more digits before the point than"),
                        };
                        let text = format!("{} {what} decimal({precision},{scale})", number.excerpt());
                        return Err(scanner.fail_at(code, start, text));
                    }
                }
            }
            Cells::Boolean(values) => values.append(boolean(scanner, rules, first)?),
            Cells::Int(values) => {
                let number = number_at(scanner, rules, first, "int")?;
                let value = integer(scanner, start, &number, "int")?;
                values.push(i32::try_from(value).map_err(|_| out_of_range(scanner, start, &number, "int"))?);
            }
            Cells::SmallInt(values) => {
                let number = number_at(scanner, rules, first, "smallint")?;
                let value = integer(scanner, start, &number, "smallint")?;
                values.push(i16::try_from(value).map_err(|_| out_of_range(scanner, start, &number, "smallint"))?);
            }
            Cells::Float(values) => {
                let number = number_at(scanner, rules, first, "float")?;
                match fast_float2::parse::<f32, _>(number.text) {
                    Ok(value) if value.is_finite() => values.push(value),
                    _ => return Err(overflow(scanner, start, &number, "float")),
                }
            }
            Cells::Date(values) => {
                let date = with_text(scanner, rules, first, "date", time::date)?;
                let Some(days) = date else {
                    return Err(scanner.fail_at(code::BAD_TIMESTAMP, start, "the text is not a date like 2024-05-01"));
                };
                values.push(days);
            }
            Cells::Timestamp { values, form: TimestampForm::Text } => {
                let rounds = self.rounds;
                let read = with_text(scanner, rules, first, "timestamp", |text| time::timestamp(text, rounds))?;
                match read {
                    Ok(micros) => values.push(micros),
                    Err(fault) => {
                        let text = match fault {
                            TimeFault::Form => "the text is not an RFC 3339 timestamp like 2024-05-01T12:00:00Z",
                            TimeFault::NoZone => "the timestamp has no zone: end it with Z or an offset",
                            TimeFault::TooFine => "the timestamp has digits beyond the microsecond",
                        };
                        return Err(scanner.fail_at(code::BAD_TIMESTAMP, start, text));
                    }
                }
            }
            Cells::Timestamp { values, form } => {
                let form = *form;
                let number = number_at(scanner, rules, first, "an integer timestamp")?;
                values.push(counted(scanner, start, &number, form, self.rounds)?);
            }
            Cells::Json(texts) => {
                scanner.skip_value(true)?;
                texts.bytes.extend_from_slice(scanner.slice_from(start));
                close(texts, scanner)?;
            }
            Cells::Struct(object) => {
                if first != b'{' {
                    return Err(wrong_type(scanner, first, "struct"));
                }
                scanner.takes(b'{');
                // The fields' columns are as long as this one: each read appends to all of them.
                let len = self.validity.len();
                object.read(scanner, rules, len)?;
            }
            Cells::Array { ends, item } => {
                if first != b'[' {
                    return Err(wrong_type(scanner, first, "array"));
                }
                scanner.takes(b'[');
                scanner.enter()?;
                if !scanner.takes(b']') {
                    let mut index = 0;
                    loop {
                        if let Err(failed) = item.read(scanner, rules) {
                            scanner.inside_index(index);
                            return Err(failed);
                        }
                        index += 1;
                        if !scanner.more(b']')? {
                            break;
                        }
                    }
                }
                scanner.leave();
                ends.push(end(item.len(), scanner)?);
            }
            Cells::Map { ends, keys, value } => {
                if first != b'{' {
                    return Err(wrong_type(scanner, first, "map"));
                }
                scanner.takes(b'{');
                let before = keys.len();
                read_entries(keys, value, scanner, rules, &mut |_| true)?;
                if let Some(kept) = last_entries(keys, before) {
                    // A name stands twice. Entries in the middle cannot be cut out, so the object is read again
                    // without the earlier ones.
                    rules.counters.count_duplicate();
                    if rules.duplicates_are_errors {
                        return Err(scanner.fail_at(code::FIELD_TWICE, start, "a key of the map is there twice"));
                    }
                    let after = scanner.position();
                    let entries = ends.last().map_or(0, |end| *end as usize);
                    keys.cut(entries);
                    value.cut(entries);
                    scanner.return_to(start + 1);
                    read_entries(keys, value, scanner, rules, &mut |at| kept.get(at).copied().unwrap_or(true))?;
                    scanner.return_to(after);
                }
                ends.push(end(keys.len(), scanner)?);
            }
        }
        Ok(())
    }
}

/// Reads the entries of a map, its opening brace being taken; those that `keep` refuses are passed over.
fn read_entries(
    keys: &mut Texts,
    value: &mut Column,
    scanner: &mut Scanner<'_>,
    rules: &mut Rules,
    keep: &mut dyn FnMut(usize) -> bool,
) -> Result<(), Failed> {
    scanner.enter()?;
    if !scanner.takes(b'}') {
        let mut at = 0;
        loop {
            let mut scratch = std::mem::take(&mut rules.key);
            let is_kept = keep(at);
            let read = scanner.key(&mut scratch).map(|key| {
                if is_kept {
                    keys.bytes.extend_from_slice(key);
                }
            });
            rules.key = scratch;
            read?;
            if is_kept {
                close(keys, scanner)?;
                if let Err(failed) = value.read(scanner, rules) {
                    let name = String::from_utf8_lossy(keys.get(keys.len() - 1)).into_owned();
                    scanner.inside_field(&name);
                    return Err(failed);
                }
            } else {
                scanner.skip_value(false)?;
            }
            at += 1;
            if !scanner.more(b'}')? {
                break;
            }
        }
    }
    scanner.leave();
    Ok(())
}

/// Where a key from `before` on stands twice: which entries are the last of their name.
fn last_entries(keys: &Texts, before: usize) -> Option<Vec<bool>> {
    /// Up to here, looking at each pair costs less than a hash table.
    const PAIRS_MAX: usize = 12;
    let len = keys.len() - before;
    let has_duplicates = if len <= PAIRS_MAX {
        (before..keys.len()).any(|at| (at + 1..keys.len()).any(|other| keys.get(at) == keys.get(other)))
    } else {
        let names: std::collections::HashSet<&[u8]> = (before..keys.len()).map(|at| keys.get(at)).collect();
        names.len() < len
    };
    has_duplicates.then(|| {
        let last: std::collections::HashMap<&[u8], usize> = (before..keys.len()).map(|at| (keys.get(at), at)).collect();
        (before..keys.len()).map(|at| last.get(keys.get(at)) == Some(&at)).collect()
    })
}

fn close(texts: &mut Texts, scanner: &mut Scanner<'_>) -> Result<(), Failed> {
    texts.close().ok_or_else(|| too_large(scanner))
}

fn end(len: usize, scanner: &mut Scanner<'_>) -> Result<i32, Failed> {
    i32::try_from(len).map_err(|_| too_large(scanner))
}

#[cold]
fn too_large(scanner: &mut Scanner<'_>) -> Failed {
    scanner.fail(code::BATCH_TOO_LARGE, "the column would pass 2 GiB in this batch")
}

#[cold]
fn wrong_type(scanner: &mut Scanner<'_>, first: u8, expected: &str) -> Failed {
    match first {
        b'"' | b'{' | b'[' | b't' | b'f' | b'-' | b'0'..=b'9' => {
            scanner.fail(code::WRONG_TYPE, format!("expected {expected}, found {}", kind_of(first)))
        }
        // Not the start of any value: say so instead.
        _ => match scanner.skip_value(true) {
            Err(failed) => failed,
            Ok(()) => scanner.fail(code::WRONG_TYPE, format!("expected {expected}")),
        },
    }
}

#[cold]
fn out_of_range(scanner: &mut Scanner<'_>, at: usize, number: &Number<'_>, kind: &str) -> Failed {
    scanner.fail_at(code::OUT_OF_RANGE, at, format!("{} is out of range for {kind}", number.excerpt()))
}

#[cold]
fn overflow(scanner: &mut Scanner<'_>, at: usize, number: &Number<'_>, kind: &str) -> Failed {
    scanner.fail_at(code::FLOAT_OVERFLOW, at, format!("{} is too large for {kind}", number.excerpt()))
}

fn integer(scanner: &mut Scanner<'_>, at: usize, number: &Number<'_>, kind: &str) -> Result<i64, Failed> {
    match number::integer(number) {
        Ok(value) => Ok(value),
        Err(Misfit::Precision) => Err(out_of_range(scanner, at, number, kind)),
        Err(Misfit::Scale) => Err(scanner.fail_at(
            code::NOT_AN_INTEGER,
            at,
            format!("{} is not an integer, as {kind} is", number.excerpt()),
        )),
    }
}

/// An integer that counts a unit since 1970, in microseconds.
fn counted(
    scanner: &mut Scanner<'_>,
    at: usize,
    number: &Number<'_>,
    form: TimestampForm,
    rounds: bool,
) -> Result<i64, Failed> {
    let value = integer(scanner, at, number, "an integer timestamp")?;
    let micros = match form {
        TimestampForm::Seconds => value.checked_mul(1_000_000),
        TimestampForm::Millis => value.checked_mul(1_000),
        TimestampForm::Micros | TimestampForm::Text => Some(value),
        TimestampForm::Nanos => {
            let (micros, rest) = (value.div_euclid(1_000), value.rem_euclid(1_000));
            if rest != 0 && !rounds {
                let text = format!("{} ns is finer than a microsecond", number.excerpt());
                return Err(scanner.fail_at(code::BAD_TIMESTAMP, at, text));
            }
            Some(micros + i64::from(rest > 500 || (rest == 500 && micros % 2 != 0)))
        }
    };
    micros.ok_or_else(|| out_of_range(scanner, at, number, "timestamp"))
}

/// The number at the cursor, or inside the text at the cursor where texts may stand for numbers.
#[inline]
fn number_at<'a>(scanner: &mut Scanner<'a>, rules: &Rules, first: u8, kind: &str) -> Result<Number<'a>, Failed> {
    if matches!(first, b'-' | b'0'..=b'9') {
        return scanner.number();
    }
    if first == b'"' && rules.coerce {
        let at = scanner.position();
        scanner.takes(b'"');
        // A number's text needs no escapes.
        if let Some(text) = scanner.plain_string() {
            let mut inner = Scanner::new(text);
            if let Ok(number) = inner.number()
                && number.text.len() == text.len()
            {
                return Ok(number);
            }
        }
        return Err(scanner.fail_at(
            code::WRONG_TYPE,
            at,
            format!("expected {kind}, found a text that is not a number"),
        ));
    }
    Err(wrong_type(scanner, first, kind))
}

fn boolean(scanner: &mut Scanner<'_>, rules: &Rules, first: u8) -> Result<bool, Failed> {
    match first {
        b't' => scanner.literal("true").map(|()| true),
        b'f' => scanner.literal("false").map(|()| false),
        b'"' if rules.coerce => {
            let at = scanner.position();
            scanner.takes(b'"');
            match scanner.plain_string() {
                Some(b"true") => Ok(true),
                Some(b"false") => Ok(false),
                _ => Err(scanner.fail_at(code::WRONG_TYPE, at, "expected boolean, found a text that is neither")),
            }
        }
        _ => Err(wrong_type(scanner, first, "boolean")),
    }
}

fn read_text(texts: &mut Texts, scanner: &mut Scanner<'_>, rules: &Rules, first: u8) -> Result<(), Failed> {
    if first == b'"' {
        scanner.takes(b'"');
        scanner.string_into(&mut texts.bytes)?;
    } else if rules.coerce && matches!(first, b'-' | b'0'..=b'9' | b't' | b'f') {
        let start = scanner.position();
        scanner.skip_value(true)?;
        texts.bytes.extend_from_slice(scanner.slice_from(start));
    } else {
        return Err(wrong_type(scanner, first, "string"));
    }
    close(texts, scanner)
}

/// Gives the content of the text at the cursor to `read`.
fn with_text<T>(
    scanner: &mut Scanner<'_>,
    rules: &mut Rules,
    first: u8,
    kind: &str,
    read: impl FnOnce(&[u8]) -> T,
) -> Result<T, Failed> {
    if first != b'"' {
        return Err(wrong_type(scanner, first, kind));
    }
    scanner.takes(b'"');
    if let Some(text) = scanner.plain_string() {
        return Ok(read(text));
    }
    rules.text.clear();
    scanner.string_into(&mut rules.text)?;
    Ok(read(&rules.text))
}
