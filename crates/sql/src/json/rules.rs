//! The options of JSON decoding (E100), what is counted beside the rows, and scratch space that outlives a record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What happens to a field that the schema does not declare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// Passed over.
    #[default]
    Ignore,
    /// Passed over and counted.
    Count,
    /// The record is a row error.
    Error,
}

/// How a payload is cut into rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// One object per record.
    #[default]
    Single,
    /// One object per line; empty lines are passed over.
    Ndjson,
    /// One array of objects per record.
    Array,
}

/// The options of a JSON decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JsonOptions {
    /// Rows of a record.
    pub framing: Framing,
    /// Fields that are not declared.
    pub unknown: Unknown,
    /// Two fields of one name are a row error; otherwise the last one wins and is counted.
    pub duplicates_are_errors: bool,
    /// A text that parses in full may stand for a number or boolean, and those for a text.
    pub coerce: bool,
}

/// What a decoder counted; may be read while it works.
#[derive(Debug, Default)]
pub struct DecodeCounters {
    duplicates: AtomicU64,
    unknown: AtomicU64,
}

impl DecodeCounters {
    /// Fields that were named twice in an object, of wanted ones.
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Fields that are not declared; counted only if [`Unknown`] says so.
    pub fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    pub(super) fn count_duplicate(&self) {
        self.duplicates.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_unknown(&self) {
        self.unknown.fetch_add(1, Ordering::Relaxed);
    }
}

/// The options as the readers see them.
pub(super) struct Rules {
    pub(super) unknown: Unknown,
    pub(super) duplicates_are_errors: bool,
    pub(super) coerce: bool,
    pub(super) counters: Arc<DecodeCounters>,
    /// A field's name that has escapes.
    pub(super) key: Vec<u8>,
    /// A text that has escapes and is not kept as one.
    pub(super) text: Vec<u8>,
}

impl Rules {
    pub(super) fn new(options: &JsonOptions, counters: Arc<DecodeCounters>) -> Self {
        Rules {
            unknown: options.unknown,
            duplicates_are_errors: options.duplicates_are_errors,
            coerce: options.coerce,
            counters,
            key: Vec::new(),
            text: Vec::new(),
        }
    }
}
