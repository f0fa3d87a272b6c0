//! `bytea` in its hex form and `uuid`, from their texts.

use super::Misfit;

/// A digit's value; 0xff for what is none.
const NIBBLES: [u8; 256] = {
    let mut table = [0xff; 256];
    let mut at = 0;
    while at < 16 {
        #[expect(clippy::indexing_slicing, reason = "a constant, evaluated by the compiler")]
        {
            table[b"0123456789abcdef"[at] as usize] = at as u8;
            table[b"0123456789ABCDEF"[at] as usize] = at as u8;
        }
        at += 1;
    }
    table
};

fn nibble(digit: u8) -> u8 {
    NIBBLES.get(usize::from(digit)).copied().unwrap_or(0xff)
}

fn byte(high: u8, low: u8) -> Option<u8> {
    let (high, low) = (nibble(high), nibble(low));
    // 0xff is the only value with high bits.
    ((high | low) & 0xf0 == 0).then_some(high << 4 | low)
}

/// Appends the bytes of `\x…`; on a misfit `into` may have grown.
pub(super) fn bytea(text: &[u8], into: &mut Vec<u8>) -> Result<(), Misfit> {
    let digits = text.strip_prefix(b"\\x").ok_or(Misfit::Bad)?;
    let (pairs, odd) = digits.as_chunks::<2>();
    if !odd.is_empty() {
        return Err(Misfit::Bad);
    }
    into.reserve(pairs.len());
    for [high, low] in pairs {
        into.push(byte(*high, *low).ok_or(Misfit::Bad)?);
    }
    Ok(())
}

/// The bytes of `8-4-4-4-12` hex digits.
pub(super) fn uuid(text: &[u8]) -> Result<[u8; 16], Misfit> {
    let mut value = [0; 16];
    let mut rest = text;
    for (at, place) in value.iter_mut().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            rest = rest.strip_prefix(b"-").ok_or(Misfit::Bad)?;
        }
        let ([high, low], after) = rest.split_first_chunk::<2>().ok_or(Misfit::Bad)?;
        *place = byte(*high, *low).ok_or(Misfit::Bad)?;
        rest = after;
    }
    if rest.is_empty() { Ok(value) } else { Err(Misfit::Bad) }
}
