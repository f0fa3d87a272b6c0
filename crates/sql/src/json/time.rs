//! Dates and RFC 3339 timestamps to days and microseconds since 1970, by the proleptic Gregorian calendar.

/// Why a text is not a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeFault {
    /// Another form.
    Form,
    /// No zone: which instant it means is not known.
    NoZone,
    /// Digits beyond the microsecond, and no rounding asked for.
    TooFine,
}

fn number(digits: Option<&[u8]>) -> Option<u32> {
    digits?.iter().try_fold(0u32, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + u32::from(byte - b'0')))
}

/// Days since 1970-01-01 of `YYYY-MM-DD`.
pub(super) fn date(text: &[u8]) -> Option<i32> {
    if text.len() != 10 || text.get(4) != Some(&b'-') || text.get(7) != Some(&b'-') {
        return None;
    }
    days(number(text.get(0..4))?, number(text.get(5..7))?, number(text.get(8..10))?)
}

/// Days since 1970-01-01 of a day that there is.
#[inline]
fn days(year: u32, month: u32, day: u32) -> Option<i32> {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_of_month = match month {
        2 => 28 + u32::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if day == 0 || day > days_of_month || year == 0 {
        return None;
    }
    // Days are counted from the first of March, so that the leap day is a year's last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    const DAYS_TO_1970: i32 = 719_468;
    Some(days as i32 - DAYS_TO_1970)
}

/// Microseconds since 1970 of an RFC 3339 timestamp with zone.
#[inline]
pub(super) fn timestamp(text: &[u8], rounds: bool) -> Result<i64, TimeFault> {
    match in_utc(text) {
        Some(micros) => Ok(micros),
        None => timestamp_by_parts(text, rounds),
    }
}

/// The spelling that most writers use: `2026-01-31T12:00:00Z`, with three or six places of a second or none.
#[inline]
fn in_utc(text: &[u8]) -> Option<i64> {
    const FORM: u128 = u128::from_le_bytes(*b"0000-00-00T00:00");
    const SIGNS: u128 = u128::from_le_bytes(*b"\0\0\0\0\xff\0\0\xff\0\0\xff\0\0\xff\0\0");
    let (head, rest) = text.split_first_chunk::<16>()?;
    // Zero where a sign is as it must be, 0 to 9 where a digit is.
    let values = u128::from_le_bytes(*head) ^ FORM;
    // Ten and more reach the high bit; a carry comes only from a byte whose own high bit is set.
    let others = (values | values.wrapping_add(u128::from_le_bytes([0x76; 16]))) & u128::from_le_bytes([0x80; 16]);
    if others != 0 || values & SIGNS != 0 {
        return None;
    }
    let [y1, y2, y3, y4, _, m1, m2, _, d1, d2, _, h1, h2, _, n1, n2] = values.to_le_bytes();
    let two = |tens: u8, ones: u8| u32::from(tens) * 10 + u32::from(ones);
    let digit = |byte: u8| Some(u32::from(byte.wrapping_sub(b'0'))).filter(|digit| *digit < 10);
    let [b':', s1, s2, rest @ ..] = rest else { return None };
    let (hour, minute, second) = (two(h1, h2), two(n1, n2), digit(*s1)? * 10 + digit(*s2)?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let micros = match rest {
        b"Z" => 0,
        [b'.', f1, f2, f3, b'Z'] => digit(*f1)? * 100_000 + digit(*f2)? * 10_000 + digit(*f3)? * 1_000,
        [b'.', f1, f2, f3, f4, f5, f6, b'Z'] => {
            let millis = digit(*f1)? * 100 + digit(*f2)? * 10 + digit(*f3)?;
            millis * 1_000 + digit(*f4)? * 100 + digit(*f5)? * 10 + digit(*f6)?
        }
        _ => return None,
    };
    let days = days(two(y1, y2) * 100 + two(y3, y4), two(m1, m2), two(d1, d2))?;
    let seconds = i64::from(days) * 86_400 + i64::from(hour * 3_600 + minute * 60 + second);
    Some(seconds * 1_000_000 + i64::from(micros))
}

fn timestamp_by_parts(text: &[u8], rounds: bool) -> Result<i64, TimeFault> {
    let days = text.get(0..10).and_then(date).ok_or(TimeFault::Form)?;
    if !matches!(text.get(10), Some(b'T' | b't' | b' ')) {
        return Err(TimeFault::Form);
    }
    let two = |at: usize, below: u32| {
        number(text.get(at..at + 2)).filter(|value| *value < below).map(i64::from).ok_or(TimeFault::Form)
    };
    let (hour, minute, second) = (two(11, 24)?, two(14, 60)?, two(17, 60)?);
    if text.get(13) != Some(&b':') || text.get(16) != Some(&b':') {
        return Err(TimeFault::Form);
    }
    let mut rest = text.get(19..).unwrap_or_default();
    let mut micros = 0i64;
    if let [b'.', digits @ ..] = rest {
        let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (fraction, after) = digits.split_at(length);
        if fraction.is_empty() {
            return Err(TimeFault::Form);
        }
        rest = after;
        for place in 0..6 {
            micros = micros * 10 + fraction.get(place).map_or(0, |byte| i64::from(byte - b'0'));
        }
        let beyond = fraction.get(6..).unwrap_or_default();
        if beyond.iter().any(|byte| *byte != b'0') {
            if !rounds {
                return Err(TimeFault::TooFine);
            }
            let is_tie = beyond.first() == Some(&b'5') && beyond.iter().skip(1).all(|byte| *byte == b'0');
            micros += i64::from(if is_tie { micros % 2 == 1 } else { beyond.first() >= Some(&b'5') });
        }
    }
    let offset_seconds = match rest {
        b"Z" | b"z" => 0,
        b"" => return Err(TimeFault::NoZone),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let hours = number(Some(&[*h1, *h2])).filter(|hours| *hours < 24).ok_or(TimeFault::Form)?;
            let minutes = number(Some(&[*m1, *m2])).filter(|minutes| *minutes < 60).ok_or(TimeFault::Form)?;
            let seconds = i64::from(hours * 3600 + minutes * 60);
            if *sign == b'-' { -seconds } else { seconds }
        }
        _ => return Err(TimeFault::Form),
    };
    let seconds = i64::from(days) * 86_400 + hour * 3_600 + minute * 60 + second - offset_seconds;
    // Years have four digits, so this is far inside an i64.
    Ok(seconds * 1_000_000 + micros)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Catches a short cut that reads another instant, or takes what is not a timestamp.
        #[test]
        fn the_short_cut_gives_what_the_parts_give(
            text in "[0-2][0-9]{3}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{1,7})?[Zz0]?",
            at in 0usize..30,
            byte in prop::option::of(any::<u8>()),
        ) {
            let mut text = text.into_bytes();
            if let (Some(byte), Some(place)) = (byte, text.get_mut(at)) {
                *place = byte;
            }
            if let Some(micros) = in_utc(&text) {
                prop_assert_eq!(timestamp_by_parts(&text, false), Ok(micros));
            }
        }
    }
}
