//! A YAML document as a tree in which every key and value keeps its place, with `${VAR}` substituted.
//!
//! Reading and judging are apart: this module only knows YAML; what a key means is asked of [`super::section`].
//! Carries I14: the file is bounded, nesting is bounded by the parser's budget, and no text can panic it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::finding::{Finding, codes};

/// The largest configuration file that is read.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;

/// A place in the file, both counted from 1; and the bytes it spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The line, from 1; 0 where the place is not known.
    pub(crate) line: u32,
    /// The column in characters, from 1.
    pub(crate) column: u32,
    /// How many characters to underline on that line.
    pub(crate) width: u32,
}

impl Mark {
    fn of(location: &Location) -> Self {
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Mark {
            line: narrow(location.line()),
            column: narrow(location.column()),
            width: narrow(location.span().len()).max(1),
        }
    }
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Where it starts.
    pub(crate) mark: Mark,
    /// What it is.
    pub(crate) value: Value,
}

/// What a YAML node holds.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// `~`, `null` or nothing.
    Null,
    /// `true`, `false`.
    Bool(bool),
    /// A whole number.
    Integer(i128),
    /// A number with a fraction or exponent.
    Float(f64),
    /// Text; `substituted` where a variable was put in, so that `${PORT}` may stand for a number.
    Text { text: String, substituted: bool },
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order of the file.
    Map(Vec<(Key, Node)>),
}

/// A mapping's key.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    /// Its text.
    pub(crate) name: String,
    /// Where it stands.
    pub(crate) mark: Mark,
}

impl Value {
    /// What it is, in words for a message.
    pub(crate) fn describe(&self) -> String {
        match self {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("`{value}`"),
            Value::Integer(value) => format!("the number {value}"),
            Value::Float(value) => format!("the number {value}"),
            Value::Text { text, .. } if text.trim().is_empty() => "an empty text".to_owned(),
            Value::Text { text, .. } => format!("the text `{}`", excerpt(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// The beginning of a text, for a message.
pub(crate) fn excerpt(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 40;
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok(i128::try_from(value).map_or(Value::Float(f64::MAX), Value::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text { text: text.to_owned(), substituted: false })
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Value>>()? {
            list.push(Node::from(item));
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            let mark = Mark::of(&key.referenced);
            let node = entries.next_value::<Spanned<Value>>()?;
            map.push((Key { name: key.value, mark }, Node::from(node)));
        }
        Ok(Value::Map(map))
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        Node { mark: Mark::of(&spanned.referenced), value: spanned.value }
    }
}

/// Reads a document and puts in the variables that `variable` knows.
pub(crate) fn parse(source: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Node, Vec<Finding>> {
    if source.trim().is_empty() {
        return Ok(Node { mark: Mark::default(), value: Value::Map(Vec::new()) });
    }
    // YAML 1.2: `off`, `on`, `yes` and `no` are words, and some of our choices are called so.
    let options = serde_saphyr::options! { strict_booleans: true };
    let mut root: Node = match serde_saphyr::from_str_with_options::<Spanned<Value>>(source, options) {
        Ok(spanned) => Node::from(spanned),
        Err(error) => {
            let mark = error.location().map(|location| Mark::of(&location));
            // The library's own snippet would repeat the lines that the finding shows.
            let text = error.without_snippet().to_string();
            let text = text.lines().next().unwrap_or("not YAML").to_owned();
            return Err(vec![Finding::error(codes::NOT_YAML, mark, format!("not readable as YAML: {text}"))]);
        }
    };
    let mut findings = Vec::new();
    substitute(&mut root, variable, &mut findings);
    if findings.is_empty() { Ok(root) } else { Err(findings) }
}

fn substitute(node: &mut Node, variable: &dyn Fn(&str) -> Option<String>, findings: &mut Vec<Finding>) {
    let mark = node.mark;
    match &mut node.value {
        Value::Text { text, substituted } if text.contains("${") => match expand(text, variable) {
            Ok(expanded) => {
                *substituted = true;
                *text = expanded;
            }
            Err(why) => findings.push(why.into_finding(mark)),
        },
        Value::List(items) => items.iter_mut().for_each(|item| substitute(item, variable, findings)),
        Value::Map(entries) => entries.iter_mut().for_each(|(_, value)| substitute(value, variable, findings)),
        _ => {}
    }
}

enum ExpandError {
    Unset(String),
    Form,
    TooLong,
}

impl ExpandError {
    fn into_finding(self, mark: Mark) -> Finding {
        match self {
            ExpandError::Unset(name) => {
                Finding::error(codes::VARIABLE, Some(mark), format!("the environment variable `{name}` is not set"))
                    .help(format!("set it, or write `${{{name}:-default}}`"))
            }
            ExpandError::Form => Finding::error(codes::VARIABLE, Some(mark), "`${` without a name and a closing `}`")
                .help("write `${NAME}` or `${NAME:-default}`, or `$${` for a literal `${`"),
            ExpandError::TooLong => Finding::error(
                codes::VARIABLE,
                Some(mark),
                format!("the text grows beyond {FILE_BYTES_MAX} B once its variables are put in"),
            ),
        }
    }
}

/// `${NAME}`, `${NAME:-default}`; `$${` is a literal `${`. A value put in is not expanded again.
fn expand(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, ExpandError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        let inside = from.strip_prefix("${").unwrap_or(from);
        if let Some(kept) = before.strip_suffix('$') {
            out.push_str(kept);
            out.push_str("${");
            rest = inside;
            continue;
        }
        out.push_str(before);
        let (reference, after) = inside.split_once('}').ok_or(ExpandError::Form)?;
        let (name, default) = match reference.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (reference, None),
        };
        let well_formed = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !well_formed {
            return Err(ExpandError::Form);
        }
        // As in a shell, `:-` also stands for a variable that is set to nothing.
        let value = variable(name).filter(|value| default.is_none() || !value.is_empty());
        match value.as_deref().or(default) {
            Some(value) => out.push_str(value),
            None => return Err(ExpandError::Unset(name.to_owned())),
        }
        if out.len() as u64 > FILE_BYTES_MAX {
            return Err(ExpandError::TooLong);
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}
