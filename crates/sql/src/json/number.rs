//! Exact numbers from their text: integers and decimals never pass through a double (E100).

use super::scan::Number;

/// Why a number does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// Digits behind the last kept place.
    Scale,
    /// More digits before it than the type holds.
    Precision,
}

/// The value times 10^`scale`, in at most `precision` (≤ 38) digits; excess places are rounded half to even, or a
/// misfit.
pub(super) fn scaled(number: &Number<'_>, precision: u8, scale: i8, rounds: bool) -> Result<i128, Misfit> {
    let unsigned = number.text.strip_prefix(b"-").unwrap_or(number.text);
    let (mantissa, exponent) = match unsigned.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => {
            let (mantissa, exponent) = unsigned.split_at(at);
            (mantissa, exponent_of(exponent.get(1..).unwrap_or_default()))
        }
        None => (unsigned, 0),
    };
    let (whole, fraction) = match mantissa.iter().position(|byte| *byte == b'.') {
        Some(at) => (mantissa.get(..at).unwrap_or_default(), mantissa.get(at + 1..).unwrap_or_default()),
        None => (mantissa, <&[u8]>::default()),
    };
    // The significant digits: without zeros at either end.
    let all = whole.len() + fraction.len();
    let digit = |at: usize| {
        let byte = if at < whole.len() { whole.get(at) } else { fraction.get(at - whole.len()) };
        byte.map_or(0, |byte| byte - b'0')
    };
    let Some(first) = (0..all).find(|at| digit(*at) != 0) else { return Ok(0) };
    let last = (first..all).rev().find(|at| digit(*at) != 0).unwrap_or(first);
    let significant = (last - first + 1) as i64;
    // Of the scaled value, this many digits stand before the point; below zero: it starts with zeros behind it.
    let kept = whole.len() as i64 - first as i64 + exponent + i64::from(scale);
    if kept > i64::from(precision) {
        return Err(Misfit::Precision);
    }
    let mut value: i128 = 0;
    for place in 0..kept.max(0) {
        let at = first + place as usize;
        value = value * 10 + i128::from(if at <= last { digit(at) } else { 0 });
    }
    if kept < significant {
        if !rounds {
            return Err(Misfit::Scale);
        }
        if kept >= 0 {
            let next = digit(first + kept as usize);
            let is_tie = next == 5 && kept + 1 == significant;
            value += i128::from(next > 5 || (next == 5 && (!is_tie || value % 2 == 1)));
            if value >= 10i128.pow(u32::from(precision.min(38))) {
                return Err(Misfit::Precision);
            }
        }
    }
    Ok(if number.is_negative { -value } else { value })
}

/// An exponent, cut to a range in which every payload's digits stay far outside every type.
fn exponent_of(text: &[u8]) -> i64 {
    const CUT: i64 = 1 << 40;
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] => (1, digits),
        digits => (1, digits),
    };
    sign * digits.iter().fold(0i64, |sum, byte| (sum * 10 + i64::from(byte - b'0')).min(CUT))
}

/// The number as an integer: `1e3` and `5.0` are integers, `5.5` is not.
pub(super) fn integer(number: &Number<'_>) -> Result<i64, Misfit> {
    if let Some(magnitude) = number.magnitude {
        let value =
            if number.is_negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() };
        return value.ok_or(Misfit::Precision);
    }
    scaled(number, 19, 0, false).and_then(|value| i64::try_from(value).map_err(|_| Misfit::Precision))
}
