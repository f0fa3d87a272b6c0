//! A value inside a JSON text by its path, without reading more of the text than its syntax.

use super::scan::{Failed, Scanner};

/// What is handed out for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueForm {
    /// Its JSON text.
    Json,
    /// A string's content, another value's JSON text, nothing for null.
    Text,
}

#[derive(Debug)]
enum Step {
    Field(String),
    Index(usize),
}

/// A path like `$.items[0].price` or `items[0].price`; names with dots or brackets as `["a.b"]`.
#[derive(Debug)]
pub(crate) struct JsonPath {
    steps: Vec<Step>,
}

const STEPS_MAX: usize = 128;

impl JsonPath {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{}` is not a path like items[0].price", text.chars().take(60).collect::<String>());
        let mut rest = text.strip_prefix('$').unwrap_or(text);
        let mut steps = Vec::new();
        let mut is_first = !text.starts_with('$');
        while !rest.is_empty() {
            if steps.len() >= STEPS_MAX {
                return Err(format!("a path has at most {STEPS_MAX} steps"));
            }
            if let Some(inner) = rest.strip_prefix('[') {
                if let Some(quoted) = inner.strip_prefix('"') {
                    let (name, after) = quoted.split_once("\"]").ok_or_else(wrong)?;
                    steps.push(Step::Field(name.to_owned()));
                    rest = after;
                } else {
                    let (index, after) = inner.split_once(']').ok_or_else(wrong)?;
                    steps.push(Step::Index(index.parse().map_err(|_| wrong())?));
                    rest = after;
                }
            } else {
                let name = if is_first { rest } else { rest.strip_prefix('.').ok_or_else(wrong)? };
                let end = name.find(['.', '[']).unwrap_or(name.len());
                let (name, after) = name.split_at(end);
                if name.is_empty() {
                    return Err(wrong());
                }
                steps.push(Step::Field(name.to_owned()));
                rest = after;
            }
            is_first = false;
        }
        Ok(JsonPath { steps })
    }

    /// Appends the value to `out`; false where there is none. The whole text is checked. Of two fields with one name
    /// the last one counts, as in decoding.
    pub(crate) fn find(&self, text: &[u8], form: ValueForm, out: &mut Vec<u8>) -> Result<bool, String> {
        let mut scanner = Scanner::new(text);
        let mut scratch = Vec::new();
        let found = step(&mut scanner, &self.steps, &mut scratch).and_then(|found| {
            if scanner.is_at_end() {
                Ok(found)
            } else {
                Err(scanner.fail(crate::code::TRAILING_BYTES, "something follows the JSON value"))
            }
        });
        let value = match found {
            Ok(Some(value)) => value,
            Ok(None) => return Ok(false),
            Err(Failed) => return Err(scanner.take_fault().message(0)),
        };
        match (form, value.first()) {
            (ValueForm::Text, Some(b'n')) => Ok(false),
            (ValueForm::Text, Some(b'"')) => {
                let mut inner = Scanner::new(value);
                inner.takes(b'"');
                // Its syntax was checked above.
                Ok(inner.string_into(out).is_ok())
            }
            _ => {
                out.extend_from_slice(value);
                Ok(true)
            }
        }
    }
}

/// The text of the value that the steps lead to from the value at the cursor, which is passed over.
fn step<'a>(scanner: &mut Scanner<'a>, steps: &[Step], scratch: &mut Vec<u8>) -> Result<Option<&'a [u8]>, Failed> {
    let first = scanner.peek();
    let start = scanner.position();
    let mut found = None;
    match (steps.split_first(), first) {
        (None, _) => {
            scanner.skip_value(true)?;
            found = Some(scanner.slice_from(start));
        }
        (Some((Step::Field(name), rest)), Some(b'{')) => {
            scanner.takes(b'{');
            scanner.enter()?;
            if !scanner.takes(b'}') {
                loop {
                    let is_named = scanner.key(scratch)? == name.as_bytes();
                    if is_named {
                        found = step(scanner, rest, scratch)?;
                    } else {
                        scanner.skip_value(true)?;
                    }
                    if !scanner.more(b'}')? {
                        break;
                    }
                }
            }
            scanner.leave();
        }
        (Some((Step::Index(wanted), rest)), Some(b'[')) => {
            scanner.takes(b'[');
            scanner.enter()?;
            if !scanner.takes(b']') {
                let mut index = 0;
                loop {
                    if index == *wanted {
                        found = step(scanner, rest, scratch)?;
                    } else {
                        scanner.skip_value(true)?;
                    }
                    index += 1;
                    if !scanner.more(b']')? {
                        break;
                    }
                }
            }
            scanner.leave();
        }
        (Some(_), _) => scanner.skip_value(true)?,
    }
    Ok(found)
}
