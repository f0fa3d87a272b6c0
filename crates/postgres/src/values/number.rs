//! Numbers from their texts, exactly: decimals never pass through a double.

use arrow_buffer::i256;

use super::Misfit;

fn digit(byte: u8) -> Option<u8> {
    let value = byte.wrapping_sub(b'0');
    (value < 10).then_some(value)
}

/// The magnitude of at most 19 digits and the sign.
fn magnitude(text: &[u8]) -> Result<(bool, u64), Misfit> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > 20 {
        return Err(Misfit::Bad);
    }
    let mut value: u64 = 0;
    for byte in digits {
        let digit = digit(*byte).ok_or(Misfit::Bad)?;
        value = value.checked_mul(10).and_then(|value| value.checked_add(digit.into())).ok_or(Misfit::Bad)?;
    }
    Ok((is_negative, value))
}

/// An integer with sign.
pub(super) fn signed<T: TryFrom<i64>>(text: &[u8]) -> Result<T, Misfit> {
    let (is_negative, magnitude) = magnitude(text)?;
    let value = if is_negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() };
    value.and_then(|value| T::try_from(value).ok()).ok_or(Misfit::Bad)
}

/// An integer without sign.
pub(super) fn unsigned<T: TryFrom<u64>>(text: &[u8]) -> Result<T, Misfit> {
    match magnitude(text)? {
        (false, value) => T::try_from(value).map_err(|_| Misfit::Bad),
        (true, _) => Err(Misfit::Bad),
    }
}

/// A floating-point number: the nearest one, so the shortest text that tells it apart gives it back. `-0` keeps its
/// sign.
pub(super) fn float<T>(text: &[u8]) -> Result<T, Misfit>
where
    T: fast_float2::FastFloat + Copy + Into<f64>,
{
    let value: T = fast_float2::parse(text).map_err(|_| Misfit::Bad)?;
    let is_finite = value.into().is_finite();
    let has_digit = text.iter().any(u8::is_ascii_digit);
    // `1e999` is no text of a float: the server refuses it, so it is no way to write Infinity.
    if is_finite == has_digit { Ok(value) } else { Err(Misfit::Bad) }
}

/// The signs, digits and point of a `numeric`'s text.
struct Digits<'a> {
    is_negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
}

impl<'a> Digits<'a> {
    fn of(text: &'a [u8]) -> Result<Self, Misfit> {
        match text {
            b"NaN" => return Err(Misfit::NotANumber),
            b"Infinity" => return Err(Misfit::Infinite { is_negative: false }),
            b"-Infinity" => return Err(Misfit::Infinite { is_negative: true }),
            _ => {}
        }
        let (is_negative, unsigned) = match text {
            [b'-', unsigned @ ..] => (true, unsigned),
            unsigned => (false, unsigned),
        };
        let (whole, fraction) = match memchr::memchr(b'.', unsigned) {
            Some(at) => (unsigned.get(..at).unwrap_or_default(), unsigned.get(at + 1..).unwrap_or_default()),
            None => (unsigned, <&[u8]>::default()),
        };
        let is_number = whole.iter().chain(fraction).all(u8::is_ascii_digit);
        let has_digits = !whole.is_empty() || !fraction.is_empty();
        // Zeros in front say nothing; without them the length is the magnitude.
        let zeros = whole.iter().take_while(|byte| **byte == b'0').count();
        let whole = whole.get(zeros..).unwrap_or_default();
        if is_number && has_digits { Ok(Digits { is_negative, whole, fraction }) } else { Err(Misfit::Bad) }
    }

    /// The digits of the value times 10^`scale`, without a point; and the digits behind them that are cut off.
    fn scaled(&self, scale: usize) -> (impl Iterator<Item = u8> + 'a, &'a [u8]) {
        let (kept, cut) = self.fraction.split_at(scale.min(self.fraction.len()));
        let padding = std::iter::repeat_n(b'0', scale - kept.len());
        (self.whole.iter().chain(kept).copied().chain(padding).map(|byte| byte.wrapping_sub(b'0')), cut)
    }

    /// Whether the digits cut off round the value away from zero, as the server rounds; `None` where they are zeros.
    fn rounding(cut: &[u8]) -> Option<bool> {
        cut.iter().any(|byte| *byte != b'0').then(|| cut.first().is_some_and(|byte| *byte >= b'5'))
    }
}

/// A decimal's integer, and whether digits were rounded away to get it.
pub(super) type Scaled<T> = (T, bool);

/// The value times 10^`scale` in at most `precision` (≤ 38) digits. Digits past the scale are rounded if `rounds`, else
/// they are a misfit.
pub(super) fn decimal128(text: &[u8], precision: u8, scale: i8, rounds: bool) -> Result<Scaled<i128>, Misfit> {
    let digits = Digits::of(text)?;
    let beyond = Misfit::Beyond { is_negative: digits.is_negative };
    let scale = usize::try_from(scale).map_err(|_| Misfit::Bad)?;
    if digits.whole.len() + scale > usize::from(precision) {
        return Err(beyond);
    }
    let (kept, cut) = digits.scaled(scale);
    let mut value = kept.fold(0i128, |value, digit| value * 10 + i128::from(digit));
    let rounding = Digits::rounding(cut);
    if rounding.is_some() && !rounds {
        return Err(beyond);
    }
    if rounding == Some(true) {
        value += 1;
        if value > max128(precision) {
            return Err(beyond);
        }
    }
    Ok((if digits.is_negative { -value } else { value }, rounding.is_some()))
}

/// The same in at most 76 digits.
pub(super) fn decimal256(text: &[u8], precision: u8, scale: i8, rounds: bool) -> Result<Scaled<i256>, Misfit> {
    let digits = Digits::of(text)?;
    let beyond = Misfit::Beyond { is_negative: digits.is_negative };
    let scale = usize::try_from(scale).map_err(|_| Misfit::Bad)?;
    if digits.whole.len() + scale > usize::from(precision) {
        return Err(beyond);
    }
    let (kept, cut) = digits.scaled(scale);
    // Digits are gathered in a machine's number before they reach the wide one.
    const GATHERED: u32 = 18;
    let mut value = i256::ZERO;
    let (mut part, mut count) = (0i128, 0u32);
    let flush = |value: i256, part: i128, count: u32| {
        i256::from_i128(10i128.pow(count)).checked_mul(value).and_then(|value| value.checked_add(i256::from_i128(part)))
    };
    for digit in kept {
        part = part * 10 + i128::from(digit);
        count += 1;
        if count == GATHERED {
            value = flush(value, part, count).ok_or(beyond)?;
            (part, count) = (0, 0);
        }
    }
    value = flush(value, part, count).ok_or(beyond)?;
    let rounding = Digits::rounding(cut);
    if rounding.is_some() && !rounds {
        return Err(beyond);
    }
    if rounding == Some(true) {
        value = value.checked_add(i256::ONE).filter(|value| *value <= max256(precision)).ok_or(beyond)?;
    }
    Ok((if digits.is_negative { value.wrapping_neg() } else { value }, rounding.is_some()))
}

/// The largest integer of a decimal128.
pub(super) fn max128(precision: u8) -> i128 {
    10i128.checked_pow(precision.into()).map_or(i128::MAX, |end| end - 1)
}

/// The largest integer of a decimal256.
pub(super) fn max256(precision: u8) -> i256 {
    i256::from_i128(10).checked_pow(precision.into()).map_or(i256::MAX, |end| end.wrapping_sub(i256::ONE))
}
