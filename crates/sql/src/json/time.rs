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
    let (year, month, day) = (number(text.get(0..4))?, number(text.get(5..7))?, number(text.get(8..10))?);
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
pub(super) fn timestamp(text: &[u8], rounds: bool) -> Result<i64, TimeFault> {
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
