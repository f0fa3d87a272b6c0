//! Typed, bounded reading of one mapping of the configuration.
//!
//! Every read names its bounds; what is out of them, of the wrong type, or never asked for becomes a [`Finding`]
//! with its place. Reading goes on after a finding, so one run of `check` shows them all.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use landfall_types::{ByteSize, Code, parse_duration};

use super::finding::{Finding, codes};
use super::text::{Key, Mark, Node, Value, excerpt};

/// Where findings are gathered while the tree is read.
#[derive(Debug, Default)]
pub(crate) struct Findings(RefCell<Vec<Finding>>);

impl Findings {
    /// Adds one.
    pub(crate) fn push(&self, finding: Finding) {
        self.0.borrow_mut().push(finding);
    }

    /// All of them, in the order of the file where they have a place.
    pub(crate) fn into_sorted(self) -> Vec<Finding> {
        let mut findings = self.0.into_inner();
        findings.sort_by_key(|finding| finding.mark.map_or((u32::MAX, 0), |mark| (mark.line, mark.column)));
        findings
    }
}

/// One mapping while it is read.
pub(crate) struct Section<'a> {
    path: String,
    mark: Mark,
    entries: &'a [(Key, Node)],
    known: RefCell<Vec<&'static str>>,
    findings: &'a Findings,
}

impl<'a> Section<'a> {
    /// Reads `node` as a mapping; nothing is an empty one.
    pub(crate) fn of(path: impl Into<String>, node: &'a Node, findings: &'a Findings) -> Option<Self> {
        let path = path.into();
        let entries: &[(Key, Node)] = match &node.value {
            Value::Map(entries) => entries,
            Value::Null => &[],
            other => {
                let text = format!("`{path}` takes a mapping of keys, not {}", other.describe());
                findings.push(Finding::error(codes::WRONG_TYPE, Some(node.mark), text));
                return None;
            }
        };
        Some(Section { path, mark: node.mark, entries, known: RefCell::new(Vec::new()), findings })
    }

    /// Where it stands.
    pub(crate) fn mark(&self) -> Mark {
        self.mark
    }

    /// Its path, as in `channels.storefront.events`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Where findings go.
    pub(crate) fn findings(&self) -> &'a Findings {
        self.findings
    }

    /// All entries, for mappings whose keys are names.
    pub(crate) fn entries(&self) -> &'a [(Key, Node)] {
        self.entries
    }

    fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value of a key, which is known from now on. An explicit null counts as absent.
    pub(crate) fn get(&self, key: &'static str) -> Option<&'a Node> {
        self.known.borrow_mut().push(key);
        let found = self.entries.iter().find(|(entry, _)| entry.name == key).map(|(_, node)| node);
        found.filter(|node| !matches!(node.value, Value::Null))
    }

    /// Where a key's value stands, or the section without it.
    pub(crate) fn mark_of(&self, key: &str) -> Mark {
        self.entries.iter().find(|(entry, _)| entry.name == key).map_or(self.mark, |(_, node)| node.mark)
    }

    fn wrong(&self, key: &str, node: &Node, expected: &str) {
        let text = format!("`{}` takes {expected}, not {}", self.at(key), node.value.describe());
        self.findings.push(Finding::error(codes::WRONG_TYPE, Some(node.mark), text));
    }

    fn out_of_bounds(
        &self,
        key: &str,
        node: &Node,
        value: impl Display,
        low: impl Display,
        high: impl Display,
        unit: &str,
    ) {
        let space = if unit.is_empty() { "" } else { " " };
        let text = format!("`{}` is {value}{space}{unit}; it must lie between {low} and {high}", self.at(key));
        self.findings.push(Finding::error(codes::OUT_OF_BOUNDS, Some(node.mark), text));
    }

    /// A whole number within bounds.
    pub(crate) fn count(&self, key: &'static str, bounds: RangeInclusive<u64>, unit: &str) -> Option<u64> {
        let node = self.get(key)?;
        let number = match &node.value {
            Value::Integer(number) => *number,
            Value::Text { text, substituted: true } => match text.trim().parse() {
                Ok(number) => number,
                Err(_) => {
                    self.wrong(key, node, "a whole number");
                    return None;
                }
            },
            Value::Text { text, .. } if text.trim().parse::<i128>().is_ok() => {
                self.wrong(key, node, "a whole number without quotes");
                return None;
            }
            Value::Float(number) if number.fract() == 0.0 && number.abs() < 1e30 => *number as i128,
            _ => {
                self.wrong(key, node, "a whole number");
                return None;
            }
        };
        match u64::try_from(number).ok().filter(|number| bounds.contains(number)) {
            Some(number) => Some(number),
            None => {
                self.out_of_bounds(key, node, number, bounds.start(), bounds.end(), unit);
                None
            }
        }
    }

    /// [`Self::count`] narrowed; the bounds must fit.
    pub(crate) fn count32(&self, key: &'static str, bounds: RangeInclusive<u32>, unit: &str) -> Option<u32> {
        let wide = u64::from(*bounds.start())..=u64::from(*bounds.end());
        self.count(key, wide, unit).and_then(|number| u32::try_from(number).ok())
    }

    /// [`Self::count`] as a length in memory.
    pub(crate) fn length(&self, key: &'static str, bounds: RangeInclusive<usize>, unit: &str) -> Option<usize> {
        let wide = *bounds.start() as u64..=*bounds.end() as u64;
        self.count(key, wide, unit).and_then(|number| usize::try_from(number).ok())
    }

    /// A number with a fraction, within bounds.
    pub(crate) fn fraction(&self, key: &'static str, bounds: RangeInclusive<f64>) -> Option<f64> {
        let node = self.get(key)?;
        let number = match &node.value {
            Value::Integer(number) => *number as f64,
            Value::Float(number) => *number,
            Value::Text { text, substituted: true } => text.trim().parse().unwrap_or(f64::NAN),
            _ => {
                self.wrong(key, node, "a number");
                return None;
            }
        };
        if bounds.contains(&number) {
            return Some(number);
        }
        self.out_of_bounds(key, node, number, bounds.start(), bounds.end(), "");
        None
    }

    /// A size like `64MiB`, within bounds.
    pub(crate) fn size(&self, key: &'static str, bounds: RangeInclusive<ByteSize>) -> Option<ByteSize> {
        let node = self.get(key)?;
        let size = match &node.value {
            Value::Integer(number) => u64::try_from(*number).ok().map(ByteSize),
            Value::Text { text, .. } => text.parse().ok(),
            _ => None,
        };
        let Some(size) = size else {
            self.wrong(key, node, "a size: a whole number with B, KiB, MiB, GiB or TiB, like `64MiB`");
            return None;
        };
        if bounds.contains(&size) {
            return Some(size);
        }
        self.out_of_bounds(key, node, size, bounds.start(), bounds.end(), "");
        None
    }

    /// A duration like `250ms`, within bounds.
    pub(crate) fn duration(&self, key: &'static str, bounds: RangeInclusive<Duration>) -> Option<Duration> {
        let node = self.get(key)?;
        let duration = match &node.value {
            Value::Text { text, .. } => parse_duration(text).ok(),
            _ => None,
        };
        let Some(duration) = duration else {
            self.wrong(key, node, "a duration: a whole number with us, ms, s, m, h or d, like `250ms`");
            return None;
        };
        if bounds.contains(&duration) {
            return Some(duration);
        }
        self.out_of_bounds(key, node, spell(duration), spell(*bounds.start()), spell(*bounds.end()), "");
        None
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&self, key: &'static str) -> Option<bool> {
        let node = self.get(key)?;
        match &node.value {
            Value::Bool(value) => Some(*value),
            Value::Text { text, substituted: true } if text == "true" => Some(true),
            Value::Text { text, substituted: true } if text == "false" => Some(false),
            _ => {
                self.wrong(key, node, "`true` or `false`");
                None
            }
        }
    }

    /// Text with something in it.
    pub(crate) fn text(&self, key: &'static str) -> Option<&'a str> {
        let node = self.get(key)?;
        match &node.value {
            Value::Text { text, .. } if !text.trim().is_empty() => Some(text),
            _ => {
                self.wrong(key, node, "a text with something in it");
                None
            }
        }
    }

    /// A word of an option that has a word `null`, which YAML reads as nothing: only nothing at all is absent.
    pub(crate) fn word(&self, key: &'static str) -> Option<&'a str> {
        const NULL: &str = "null";
        self.known.borrow_mut().push(key);
        let node = self.entries.iter().find(|(entry, _)| entry.name == key).map(|(_, node)| node)?;
        match &node.value {
            Value::Text { text, .. } if !text.trim().is_empty() => Some(text),
            Value::Null if node.mark.width as usize == NULL.len() => Some(NULL),
            _ => {
                self.wrong(key, node, "a word");
                None
            }
        }
    }

    /// One of a few words.
    pub(crate) fn choice<T: Copy>(&self, key: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        let node = self.get(key)?;
        let Value::Text { text, .. } = &node.value else {
            // YAML reads `off` as text and `false` as a boolean; only words stand in these lists.
            self.wrong(key, node, &one_of(words));
            return None;
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| word == text) {
            return Some(*value);
        }
        let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let text = format!("`{}` takes {}, not `{}`", self.at(key), one_of(words), excerpt(text));
        let mut finding = Finding::error(codes::WRONG_TYPE, Some(node.mark), text);
        if let Value::Text { text, .. } = &node.value
            && let Some(near) = nearest(text, &names)
        {
            finding = finding.help(format!("did you mean `{near}`?"));
        }
        self.findings.push(finding);
        None
    }

    /// A list of texts.
    pub(crate) fn texts(&self, key: &'static str) -> Option<Vec<(String, Mark)>> {
        let node = self.get(key)?;
        let Value::List(items) = &node.value else {
            self.wrong(key, node, "a list of texts");
            return None;
        };
        let mut texts = Vec::with_capacity(items.len());
        for item in items {
            match &item.value {
                Value::Text { text, .. } => texts.push((text.clone(), item.mark)),
                _ => self.wrong(key, item, "texts only"),
            }
        }
        Some(texts)
    }

    /// A mapping below this one; absent is none.
    pub(crate) fn section(&self, key: &'static str) -> Option<Section<'a>> {
        let node = self.get(key)?;
        Section::of(self.at(key), node, self.findings)
    }

    /// A list of mappings.
    pub(crate) fn sections(&self, key: &'static str) -> Option<Vec<Section<'a>>> {
        let node = self.get(key)?;
        let Value::List(items) = &node.value else {
            self.wrong(key, node, "a list of mappings");
            return None;
        };
        let path = |at: usize| format!("{}[{at}]", self.at(key));
        Some(items.iter().enumerate().filter_map(|(at, item)| Section::of(path(at), item, self.findings)).collect())
    }

    /// Says that a required key is missing, unless it has a value that was refused.
    pub(crate) fn missing(&self, key: &str, example: &str) {
        let is_there = |node: &Node| !matches!(node.value, Value::Null | Value::List(_) | Value::Map(_));
        if self.entries.iter().any(|(entry, node)| entry.name == key && is_there(node)) {
            return;
        }
        let text = format!("`{}` is missing", self.at(key));
        self.findings
            .push(Finding::error(codes::MISSING, Some(self.mark), text).help(format!("add `{key}: {example}`")));
    }

    /// Refuses a key of a feature that this version does not have.
    pub(crate) fn not_yet(&self, key: &'static str, instead: &str) {
        if self.get(key).is_some() {
            let text = format!("`{}` is not served by this version", self.at(key));
            self.findings.push(Finding::error(codes::NOT_YET, Some(self.mark_of(key)), text).help(instead));
        }
    }

    /// An error at a key's value.
    pub(crate) fn error(&self, code: Code, key: &str, text: impl Into<String>) {
        self.findings.push(Finding::error(code, Some(self.mark_of(key)), text));
    }

    /// Every key must have been asked for: the rest is unknown.
    pub(crate) fn finish(self) {
        let known = self.known.borrow();
        for (key, _) in self.entries {
            if known.contains(&key.name.as_str()) {
                continue;
            }
            let place = if self.path.is_empty() { "at the top".to_owned() } else { format!("in `{}`", self.path) };
            let text = format!("unknown key `{}` {place}", excerpt(&key.name));
            let mut names = known.clone();
            names.sort_unstable();
            names.dedup();
            let help = match nearest(&key.name, &names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known keys here: {}", names.join(", ")),
            };
            self.findings.push(Finding::error(codes::UNKNOWN_KEY, Some(key.mark), text).help(help));
        }
    }
}

fn one_of<T>(words: &[(&'static str, T)]) -> String {
    let names: Vec<String> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
    match names.as_slice() {
        [one] => one.clone(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
        [] => "nothing".to_owned(),
    }
}

/// The known word nearest to what was written, if any is near enough to be meant.
pub(crate) fn nearest<'w>(written: &str, words: &[&'w str]) -> Option<&'w str> {
    // A name of any length can come from outside; the distance of long ones means nothing.
    if written.len() > 64 {
        return None;
    }
    let best = words.iter().map(|word| (strsim::damerau_levenshtein(written, word), *word)).min()?;
    (best.0 <= written.chars().count().max(3) / 3 + 1).then_some(best.1)
}

/// A duration in the form that the configuration takes.
pub(crate) fn spell(duration: Duration) -> String {
    let micros = duration.as_micros();
    let units = [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms")];
    match units.iter().find(|(factor, _)| micros >= *factor && micros.is_multiple_of(*factor)) {
        Some((factor, unit)) => format!("{}{unit}", micros / factor),
        None if micros == 0 => "0s".to_owned(),
        None => format!("{micros}us"),
    }
}
