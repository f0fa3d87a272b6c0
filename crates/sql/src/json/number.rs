//! Exact numbers from their text: integers and decimals never pass through a double (E100).

use super::scan::{Exact, Number};

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
#[inline]
pub(super) fn scaled(number: &Number<'_>, precision: u8, scale: i8, rounds: bool) -> Result<i128, Misfit> {
    if let Some(exact) = number.exact
        && let Some(value) = raised(exact, scale)
    {
        let limit = POWERS.get(usize::from(precision)).copied().unwrap_or(u128::MAX);
        let value = i128::try_from(value).ok().filter(|_| value < limit).ok_or(Misfit::Precision)?;
        return Ok(if number.is_negative { -value } else { value });
    }
    scaled_by_digits(number, precision, scale, rounds)
}

/// 10^0 to 10^38.
#[allow(clippy::indexing_slicing, reason = "the compiler itself evaluates it")]
const POWERS: [u128; 39] = {
    let mut powers = [1u128; 39];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = powers[at - 1] * 10;
        at += 1;
    }
    powers
};

/// Times 10^`scale`, where that needs no digit to be dropped and both factors fit 64 bits.
#[inline]
fn raised(exact: Exact, scale: i8) -> Option<u128> {
    let power = u32::try_from(scale).ok()?.checked_sub(exact.places)?;
    const POWER_MAX: u32 = 19;
    if power > POWER_MAX {
        return None;
    }
    Some(u128::from(exact.units) * POWERS.get(power as usize)?)
}

/// Digit by digit: any exponent, any length, and digits that are dropped.
fn scaled_by_digits(number: &Number<'_>, precision: u8, scale: i8, rounds: bool) -> Result<i128, Misfit> {
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
#[inline]
pub(super) fn integer(number: &Number<'_>) -> Result<i64, Misfit> {
    if let Some(Exact { units: magnitude, places: 0 }) = number.exact {
        let value =
            if number.is_negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() };
        return value.ok_or(Misfit::Precision);
    }
    scaled(number, 19, 0, false).and_then(|value| i64::try_from(value).map_err(|_| Misfit::Precision))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json::scan::Scanner;

    proptest! {
        /// Catches a short cut that takes, refuses or scales a number otherwise than its digits say.
        #[test]
        fn the_short_cut_gives_what_the_digits_give(
            text in "-?(0|[1-9][0-9]{0,21})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?",
            precision in 1u8..=38,
            scale in -3i8..=38,
            rounds in any::<bool>(),
            behind in ",[0-9 ]{0,20}",
        ) {
            let whole = format!("{text}{behind}");
            let mut scanner = Scanner::new(whole.as_bytes());
            let number = scanner.number().expect("it is a number");
            prop_assert_eq!(number.text, text.as_bytes());
            prop_assert_eq!(
                scaled(&number, precision, scale, rounds),
                scaled_by_digits(&number, precision, scale, rounds),
            );
            if let Some(Exact { units, places }) = number.exact {
                let digits: String = text.chars().filter(char::is_ascii_digit).collect();
                prop_assert_eq!(Ok(units), digits.parse::<u64>());
                prop_assert_eq!(places as usize, text.split_once('.').map_or(0, |(_, fraction)| fraction.len()));
            }
        }
    }
}
