//! Arrays from their texts: `{1,2}`, `[0:1]={7,8}`, `{"a,b",NULL}`; one dimension, element by element, without copying
//! what is not escaped.

use super::Misfit;

/// One element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element<'a> {
    /// NULL, unquoted.
    Null,
    /// Its text, unescaped.
    Text(&'a [u8]),
}

/// What an array turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Its elements were handed out. `is_shifted`: it does not count from 1, which a list cannot say.
    List {
        /// Whether a lower bound was dropped.
        is_shifted: bool,
    },
    /// It has more dimensions; elements may have been handed out.
    Nested,
}

/// Hands out the elements of a one-dimensional array in order. `scratch` holds an escaped element while it is handed
/// out.
pub(super) fn elements<E: From<Misfit>>(
    text: &[u8],
    delimiter: u8,
    scratch: &mut Vec<u8>,
    mut take: impl FnMut(Element<'_>) -> Result<(), E>,
) -> Result<Shape, E> {
    let bad = || E::from(Misfit::Bad);
    let (is_shifted, dimensions, body) = bounds(text)?;
    if dimensions > 1 {
        return Ok(Shape::Nested);
    }
    let shape = Shape::List { is_shifted };
    let mut rest = body.strip_prefix(b"{").ok_or_else(bad)?;
    if rest == b"}" {
        return Ok(shape);
    }
    loop {
        match rest {
            [b'{', ..] => return Ok(Shape::Nested),
            [b'"', quoted @ ..] => {
                let (element, after) = unquote(quoted, scratch)?;
                take(Element::Text(match element {
                    Quoted::Plain(text) => text,
                    Quoted::Unescaped => scratch,
                }))?;
                rest = after;
            }
            _ => {
                let end = rest.iter().position(|byte| *byte == delimiter || *byte == b'}').ok_or_else(bad)?;
                let (element, after) = rest.split_at_checked(end).ok_or_else(bad)?;
                // The server quotes what is empty, has quotes, braces, backslashes or blanks, or reads as NULL.
                if element.is_empty() || element.iter().any(|byte| matches!(byte, b'"' | b'\\' | b'{')) {
                    return Err(bad());
                }
                take(if element.eq_ignore_ascii_case(b"NULL") { Element::Null } else { Element::Text(element) })?;
                rest = after;
            }
        }
        match rest {
            b"}" => return Ok(shape),
            [next, after @ ..] if *next == delimiter => rest = after,
            _ => return Err(bad()),
        }
    }
}

/// Reads `[l:u]…=` before the braces: whether a bound is not 1, how many dimensions it names, and what follows.
fn bounds(text: &[u8]) -> Result<(bool, usize, &[u8]), Misfit> {
    let (mut rest, mut is_shifted, mut dimensions) = (text, false, 0);
    while let [b'[', after @ ..] = rest {
        let colon = after.iter().position(|byte| *byte == b':').ok_or(Misfit::Bad)?;
        let close = after.iter().position(|byte| *byte == b']').ok_or(Misfit::Bad)?;
        let lower = after.get(..colon).ok_or(Misfit::Bad)?;
        let upper = after.get(colon + 1..close).ok_or(Misfit::Bad)?;
        for bound in [lower, upper] {
            super::number::signed::<i32>(bound)?;
        }
        is_shifted |= lower != b"1";
        dimensions += 1;
        rest = after.get(close + 1..).ok_or(Misfit::Bad)?;
    }
    if dimensions > 0 {
        rest = rest.strip_prefix(b"=").ok_or(Misfit::Bad)?;
    }
    Ok((is_shifted, dimensions, rest))
}

/// A quoted element's text.
enum Quoted<'t> {
    /// As it stands.
    Plain(&'t [u8]),
    /// In the scratch.
    Unescaped,
}

/// The text of a quoted element, and what follows its closing quote.
fn unquote<'t>(quoted: &'t [u8], scratch: &mut Vec<u8>) -> Result<(Quoted<'t>, &'t [u8]), Misfit> {
    let plain = memchr::memchr2(b'"', b'\\', quoted).ok_or(Misfit::Bad)?;
    let (head, tail) = quoted.split_at_checked(plain).ok_or(Misfit::Bad)?;
    if let [b'"', after @ ..] = tail {
        return Ok((Quoted::Plain(head), after));
    }
    scratch.clear();
    scratch.extend_from_slice(head);
    let mut rest = tail;
    loop {
        match rest {
            [b'\\', escaped, after @ ..] => {
                scratch.push(*escaped);
                rest = after;
            }
            [b'"', after @ ..] => return Ok((Quoted::Unescaped, after)),
            [] | [b'\\'] => return Err(Misfit::Bad),
            _ => {
                let run = memchr::memchr2(b'"', b'\\', rest).ok_or(Misfit::Bad)?;
                let (run, after) = rest.split_at_checked(run).ok_or(Misfit::Bad)?;
                scratch.extend_from_slice(run);
                rest = after;
            }
        }
    }
}
