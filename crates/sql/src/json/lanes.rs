//! Eight and sixteen bytes of text at a time, in plain words: where a string ends, and digits as a number.
//!
//! Words are little-endian, so a text's first byte is the lowest one. Nothing here branches on what the bytes are.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;
const ZEROS: u64 = ONES * b'0' as u64;

/// How far it is to the first quote, backslash or control character of the chunk.
#[inline]
pub(super) fn special(chunk: &[u8; 16]) -> Option<usize> {
    let (special, _) = marks(chunk);
    (special != 0).then(|| special.trailing_zeros() as usize)
}

/// One bit a byte of the chunk: whether it is a quote, a backslash or a control character, and whether it is not ASCII.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn marks(chunk: &[u8; 16]) -> (u32, u32) {
    use std::arch::x86_64::{
        _mm_cmpeq_epi8, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8,
    };
    // Most of what a decoder does is to look for the end of a string: ten instructions a step instead of forty, which no
    // safe spelling of it becomes.
    let both = u128::from_le_bytes(*chunk);
    // SAFETY: every x86-64 has SSE2, which is all that these ask for; none of them touches memory.
    unsafe {
        let bytes = _mm_set_epi64x((both >> 64) as i64, both as i64);
        let quotes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'"' as i8));
        let backslashes = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'\\' as i8));
        let controls = _mm_cmpeq_epi8(bytes, _mm_min_epu8(bytes, _mm_set1_epi8(0x1f)));
        let special = _mm_movemask_epi8(_mm_or_si128(_mm_or_si128(quotes, backslashes), controls));
        (special as u32, _mm_movemask_epi8(bytes) as u32)
    }
}

/// The same in plain words.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) fn marks(chunk: &[u8; 16]) -> (u32, u32) {
    marks_of_words(chunk)
}

#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline]
fn marks_of_words(chunk: &[u8; 16]) -> (u32, u32) {
    let both = u128::from_le_bytes(*chunk);
    let (first, second) = (both as u64, (both >> 64) as u64);
    let joined = |mark: fn(u64) -> u64| bits(mark(first)) | (bits(mark(second)) << 8);
    (joined(specials), joined(|word| word & HIGHS))
}

/// The high bit of each byte that is a quote, a backslash or a control character.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline]
fn specials(word: u64) -> u64 {
    // A sum of two bytes below 128 never carries; the high bit of each says that the byte is another one.
    let differs = |from: u8| ((word ^ (ONES * u64::from(from))) & !HIGHS) + !HIGHS;
    let is_above = (word & !HIGHS) + ONES * (0x80 - 0x20);
    !((differs(b'"') & differs(b'\\') & is_above) | word) & HIGHS
}

/// The high bits of eight bytes side by side.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline]
fn bits(highs: u64) -> u32 {
    ((highs >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
}

/// The digits that the chunk begins with as a number, how many they are, and ten to the power of that.
#[inline]
pub(super) fn digits(chunk: &[u8; 8]) -> (u64, usize, u64) {
    const POWERS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
    let values = u64::from_le_bytes(*chunk) ^ ZEROS;
    // 10 and more reach the high bit; a carry may mark bytes after the first such one, never before it.
    let others = (values.wrapping_add(ONES * 0x76) | values) & HIGHS;
    let count = others.trailing_zeros() / 8;
    // Zeros in front, which are the lowest bytes: a shift by all 64 bits leaves them alone.
    let aligned = values.checked_shl(64 - 8 * count).unwrap_or(0);
    let scale = POWERS.get(count as usize).copied().unwrap_or(1);
    (eight(aligned), count as usize, scale)
}

/// The number of eight digits, each a byte of 0 to 9: first pairs, then fours, then all.
#[inline]
fn eight(values: u64) -> u64 {
    const PAIRS: u64 = 0x0000_00ff_0000_00ff;
    let pairs = values.wrapping_mul(10).wrapping_add(values >> 8);
    let high = (pairs & PAIRS).wrapping_mul(100 + (1_000_000 << 32));
    let low = ((pairs >> 16) & PAIRS).wrapping_mul(1 + (10_000 << 32));
    high.wrapping_add(low) >> 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Catches a mark that a borrow moved, at any place and beside any byte.
        #[test]
        fn the_first_special_byte_is_found(chunk in prop::array::uniform16(prop_oneof![
            any::<u8>(),
            Just(b'"'),
            Just(b'\\'),
            Just(0x1f),
            Just(0x20),
            0x20u8..0x7f,
            0x20u8..0x7f,
            0x20u8..0x7f,
            0x80u8..=0xff,
            0x80u8..=0xff,
        ])) {
            let expected = chunk.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20));
            prop_assert_eq!(special(&chunk), expected);
            let bits = |is: fn(&u8) -> bool| {
                chunk.iter().enumerate().fold(0u32, |bits, (at, byte)| bits | (u32::from(is(byte)) << at))
            };
            let both = (bits(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)), bits(|byte| !byte.is_ascii()));
            prop_assert_eq!((marks(&chunk), marks_of_words(&chunk)), (both, both));
        }

        /// Catches a digit that is lost, misplaced, or taken from behind something else.
        #[test]
        fn digits_in_front_are_a_number(chunk in prop::array::uniform8(prop_oneof![
            b'0'..=b'9',
            b'0'..=b'9',
            b'0'..=b'9',
            b'0'..=b'9',
            b'0'..=b'9',
            any::<u8>(),
            Just(b'/'),
            Just(b':'),
        ])) {
            let count = chunk.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let number = chunk[..count].iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
            prop_assert_eq!(digits(&chunk), (number, count, 10u64.pow(count as u32)));
        }
    }
}
