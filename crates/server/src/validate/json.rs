//! Whether bytes are one well-formed JSON text (RFC 8259), and where a value in them ends.
//!
//! One pass without recursion and without building anything; nesting is counted and bounded
//! ([`MAX_JSON_DEPTH`]), so no input can exhaust the stack (I14). It says where, never what: no payload byte
//! leaves in an error. Numbers are checked for form only, and `\u` escapes for their digits, not for pairs.

use landfall_protocol::MAX_JSON_DEPTH;

/// Why the bytes are not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum JsonError {
    #[error("not well-formed JSON at byte {0}")]
    Syntax(usize),
    #[error("JSON nested deeper than {MAX_JSON_DEPTH} at byte {0}")]
    TooDeep(usize),
    #[error("JSON that ends in the middle of a value")]
    Ends,
    #[error("not UTF-8 at byte {0}")]
    Utf8(usize),
}

/// Checks that `text` is exactly one JSON value, with white space around it allowed.
pub(crate) fn check(text: &[u8]) -> Result<(), JsonError> {
    if let Err(error) = std::str::from_utf8(text) {
        return Err(JsonError::Utf8(error.valid_up_to()));
    }
    let end = value_end(text, skip_space(text, 0))?;
    match skip_space(text, end) {
        at if at == text.len() => Ok(()),
        at => Err(JsonError::Syntax(at)),
    }
}

/// The elements of an array as ranges of `text`, at most `limit` of them and one more. `None`: not an array.
/// `text` has passed [`check`].
pub(crate) fn elements(text: &[u8], limit: usize) -> Result<Option<Vec<std::ops::Range<usize>>>, JsonError> {
    let mut at = skip_space(text, 0);
    if text.get(at) != Some(&b'[') {
        return Ok(None);
    }
    at = skip_space(text, at + 1);
    let mut found = Vec::new();
    if text.get(at) == Some(&b']') {
        return Ok(Some(found));
    }
    loop {
        let end = value_end(text, at)?;
        found.push(at..end);
        at = skip_space(text, end);
        if text.get(at) != Some(&b',') || found.len() > limit {
            return Ok(Some(found));
        }
        at = skip_space(text, at + 1);
    }
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\n' | b'\r') = text.get(at) {
        at += 1;
    }
    at
}

/// One bit per open bracket: set for an object.
struct Nesting {
    depth: usize,
    objects: u128,
}

impl Nesting {
    fn open(&mut self, object: bool, at: usize) -> Result<(), JsonError> {
        if self.depth == MAX_JSON_DEPTH {
            return Err(JsonError::TooDeep(at));
        }
        self.depth += 1;
        self.objects = self.objects << 1 | u128::from(object);
        Ok(())
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.objects >>= 1;
    }

    fn in_object(&self) -> bool {
        self.objects & 1 == 1
    }
}

const _: () = assert!(MAX_JSON_DEPTH <= u128::BITS as usize);

/// Where the value that begins at `at` ends.
fn value_end(text: &[u8], mut at: usize) -> Result<usize, JsonError> {
    let mut nesting = Nesting { depth: 0, objects: 0 };
    loop {
        // A value begins at `at`.
        match text.get(at) {
            None => return Err(JsonError::Ends),
            Some(b'{') => {
                nesting.open(true, at)?;
                at = skip_space(text, at + 1);
                if text.get(at) != Some(&b'}') {
                    at = member_name(text, at)?;
                    continue;
                }
                nesting.close();
                at += 1;
            }
            Some(b'[') => {
                nesting.open(false, at)?;
                at = skip_space(text, at + 1);
                if text.get(at) != Some(&b']') {
                    continue;
                }
                nesting.close();
                at += 1;
            }
            Some(b'"') => at = string_end(text, at)?,
            Some(b'-' | b'0'..=b'9') => at = number_end(text, at)?,
            Some(b't') => at = word_end(text, at, b"true")?,
            Some(b'f') => at = word_end(text, at, b"false")?,
            Some(b'n') => at = word_end(text, at, b"null")?,
            Some(_) => return Err(JsonError::Syntax(at)),
        }
        // A value has ended at `at`: close what it closes.
        loop {
            if nesting.depth == 0 {
                return Ok(at);
            }
            at = skip_space(text, at);
            match (text.get(at), nesting.in_object()) {
                (None, _) => return Err(JsonError::Ends),
                (Some(b','), true) => {
                    at = member_name(text, skip_space(text, at + 1))?;
                    break;
                }
                (Some(b','), false) => {
                    at = skip_space(text, at + 1);
                    break;
                }
                (Some(b'}'), true) | (Some(b']'), false) => {
                    nesting.close();
                    at += 1;
                }
                (Some(_), _) => return Err(JsonError::Syntax(at)),
            }
        }
    }
}

/// From a member's name to its value.
fn member_name(text: &[u8], at: usize) -> Result<usize, JsonError> {
    match text.get(at) {
        None => return Err(JsonError::Ends),
        Some(b'"') => {}
        Some(_) => return Err(JsonError::Syntax(at)),
    }
    let at = skip_space(text, string_end(text, at)?);
    match text.get(at) {
        None => Err(JsonError::Ends),
        Some(b':') => Ok(skip_space(text, at + 1)),
        Some(_) => Err(JsonError::Syntax(at)),
    }
}

fn string_end(text: &[u8], quote: usize) -> Result<usize, JsonError> {
    let mut at = quote + 1;
    loop {
        match text.get(at) {
            None => return Err(JsonError::Ends),
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => match text.get(at + 1) {
                None => return Err(JsonError::Ends),
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => at += 2,
                Some(b'u') => {
                    for digit in at + 2..at + 6 {
                        match text.get(digit) {
                            None => return Err(JsonError::Ends),
                            Some(byte) if byte.is_ascii_hexdigit() => {}
                            Some(_) => return Err(JsonError::Syntax(digit)),
                        }
                    }
                    at += 6;
                }
                Some(_) => return Err(JsonError::Syntax(at + 1)),
            },
            Some(0..=0x1f) => return Err(JsonError::Syntax(at)),
            Some(_) => at += 1,
        }
    }
}

fn digits_end(text: &[u8], at: usize) -> Result<usize, JsonError> {
    let mut end = at;
    while text.get(end).is_some_and(u8::is_ascii_digit) {
        end += 1;
    }
    if end > at {
        Ok(end)
    } else if end == text.len() {
        Err(JsonError::Ends)
    } else {
        Err(JsonError::Syntax(end))
    }
}

fn number_end(text: &[u8], mut at: usize) -> Result<usize, JsonError> {
    if text.get(at) == Some(&b'-') {
        at += 1;
    }
    at = if text.get(at) == Some(&b'0') { at + 1 } else { digits_end(text, at)? };
    if text.get(at) == Some(&b'.') {
        at = digits_end(text, at + 1)?;
    }
    if let Some(b'e' | b'E') = text.get(at) {
        at += 1;
        if let Some(b'+' | b'-') = text.get(at) {
            at += 1;
        }
        at = digits_end(text, at)?;
    }
    Ok(at)
}

fn word_end(text: &[u8], at: usize, word: &[u8]) -> Result<usize, JsonError> {
    match text.get(at..at + word.len()) {
        Some(found) if found == word => Ok(at + word.len()),
        Some(_) => Err(JsonError::Syntax(at)),
        None => Err(JsonError::Ends),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Would catch a form that we take and the grammar does not, or the other way round.
    #[test]
    fn the_grammar_is_that_of_the_standard() {
        let good = [
            "1",
            "-0",
            "0.5e-10",
            "\"\"",
            "\"\\u00e9\\n\"",
            "null",
            " [ ] ",
            "{}",
            "[1,{\"a\":[true,false]},\"x\"]",
            "\t{\"a\" : 1 , \"b\":{}}\r\n",
        ];
        for text in good {
            assert_eq!(check(text.as_bytes()), Ok(()), "{text}");
        }
        let bad = [
            "",
            " ",
            "01",
            "+1",
            "1.",
            ".5",
            "1e",
            "-",
            "nul",
            "nulll",
            "'a'",
            "\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\u{1}\"",
            "[",
            "[1",
            "[1,]",
            "[,1]",
            "{",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "[1}",
            "{\"a\":1]",
            "1 2",
            "{} {}",
            "\u{feff}1",
        ];
        for text in bad {
            assert!(check(text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(check(b"\"\xff\""), Err(JsonError::Utf8(1)));
    }

    /// Would catch a stack that follows the input, or a bound that is off by one.
    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert_eq!(check(&nested(MAX_JSON_DEPTH)), Ok(()));
        assert_eq!(check(&nested(MAX_JSON_DEPTH + 1)), Err(JsonError::TooDeep(MAX_JSON_DEPTH)));
        assert_eq!(check(&vec![b'['; 1_000_001]), Err(JsonError::TooDeep(MAX_JSON_DEPTH)));
        let objects = [b"{\"a\":".repeat(1_000_001), b"1".to_vec()].concat();
        assert!(matches!(check(&objects), Err(JsonError::TooDeep(_))));
    }

    /// Would catch an element that loses or gains bytes.
    #[test]
    fn array_elements_are_cut_as_sent() {
        let text = br#" [ {"a": [1, 2]} ,"x,]", 3 ,[]] "#;
        let cut: Vec<_> = elements(text, 10).unwrap().unwrap().into_iter().map(|range| &text[range]).collect();
        assert_eq!(cut, [&br#"{"a": [1, 2]}"#[..], br#""x,]""#, b"3", b"[]"]);
        assert_eq!(elements(b"{}", 10), Ok(None));
        assert_eq!(elements(b"[]", 10), Ok(Some(vec![])));
        assert_eq!(elements(b"[1,2,3,4,5]", 2).unwrap().unwrap().len(), 3);
    }

    proptest! {
        /// Would catch any other difference from an independent parser.
        #[test]
        fn random_texts_are_judged_as_by_serde_json(text in r#"[\[\]{}:,"\\u0-9a-f.eE+\-tn rlsu]{0,24}"#) {
            // The scanner checks the form of escapes; serde_json also pairs surrogates, so leave those out.
            prop_assume!(!text.contains("\\ud"));
            let theirs = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
            prop_assert_eq!(check(text.as_bytes()).is_ok(), theirs, "{}", text);
        }

        /// Would catch a panic on any bytes.
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = check(&bytes);
            let _ = elements(&bytes, 5);
        }
    }
}
