//! What happens to values that Postgres has and Arrow, or the column, has not: `values:` in the configuration (P81).

use std::fmt;
use std::str::FromStr;

use landfall_types::{Code, Coded, Kind, Retry};

use crate::row_codes as codes;

/// What an infinite value, or one past the column's range, becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RangePolicy {
    /// Its row is refused.
    #[default]
    Error,
    /// NULL, counted; for columns of the key its row is refused.
    Null,
    /// The nearest value that the column can hold, counted.
    Clamp,
    /// The column is text from the start.
    Text,
}

/// What `NaN` in a `numeric` becomes. It has no nearest value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NanPolicy {
    /// Its row is refused.
    #[default]
    Error,
    /// NULL, counted; for columns of the key its row is refused.
    Null,
    /// The column is text from the start.
    Text,
}

/// What a text that is not UTF-8 becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum InvalidText {
    /// Its row is refused.
    #[default]
    Error,
    /// Wrong bytes become U+FFFD, counted.
    Replace,
    /// The column is bytes from the start.
    Binary,
}

/// What a `numeric` without modifier is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NumericUnbounded {
    /// Text, digit for digit.
    #[default]
    Text,
    /// A decimal; what does not fit goes the way of [`Policies::out_of_range`].
    Decimal {
        /// Digits, 1 to 76.
        precision: u8,
        /// Of them, behind the point.
        scale: i8,
    },
}

/// What an array of more than one dimension becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ArrayShape {
    /// Its row is refused.
    #[default]
    Error,
    /// The column is the array's text from the start.
    Text,
}

/// The policies of one column: its own, else its table's, else the source's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policies {
    /// `NaN` in a `numeric`.
    pub nan: NanPolicy,
    /// Infinite dates, timestamps and numbers.
    pub infinity: RangePolicy,
    /// Values past the column's range. `None`, the default, is an error, and text for `time`, whose 24:00:00 is legal.
    pub out_of_range: Option<RangePolicy>,
    /// Texts that are not UTF-8.
    pub invalid_text: InvalidText,
    /// `numeric` without modifier.
    pub numeric_unbounded: NumericUnbounded,
    /// Arrays of more than one dimension.
    pub array_shape: ArrayShape,
}

/// LF-PG0410: a word that is none of an option's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`values.{key}: {value}` is not offered: write one of {words}")]
pub struct PolicyError {
    key: &'static str,
    value: String,
    words: &'static str,
}

impl PolicyError {
    fn new(key: &'static str, value: &str, words: &'static str) -> Self {
        PolicyError { key, value: value.chars().take(64).collect(), words }
    }
}

impl Coded for PolicyError {
    fn code(&self) -> Code {
        codes::VALUE_OPTION
    }

    fn kind(&self) -> Kind {
        codes::kind_of(self.code())
    }

    fn retry(&self) -> Retry {
        codes::retry_of(self.code())
    }
}

macro_rules! words {
    ($policy:ident, $key:literal, $list:literal: $($word:literal = $value:path),*) => {
        impl FromStr for $policy {
            type Err = PolicyError;

            fn from_str(word: &str) -> Result<Self, PolicyError> {
                match word {
                    $($word => Ok($value),)*
                    _ => Err(PolicyError::new($key, word, $list)),
                }
            }
        }
    };
}

words!(RangePolicy, "infinity (or out_of_range)", "error, null, clamp, text":
    "error" = RangePolicy::Error, "null" = RangePolicy::Null, "clamp" = RangePolicy::Clamp, "text" = RangePolicy::Text);
words!(NanPolicy, "nan", "error, null, text":
    "error" = NanPolicy::Error, "null" = NanPolicy::Null, "text" = NanPolicy::Text);
words!(InvalidText, "invalid_text", "error, replace, binary":
    "error" = InvalidText::Error, "replace" = InvalidText::Replace, "binary" = InvalidText::Binary);
words!(ArrayShape, "array_shape", "error, text": "error" = ArrayShape::Error, "text" = ArrayShape::Text);

impl FromStr for NumericUnbounded {
    type Err = PolicyError;

    fn from_str(word: &str) -> Result<Self, PolicyError> {
        const WORDS: &str = "text, decimal(p,s) with 1 ≤ p ≤ 76 and 0 ≤ s ≤ p";
        let bad = || PolicyError::new("numeric_unbounded", word, WORDS);
        if word == "text" {
            return Ok(NumericUnbounded::Text);
        }
        let inner = word.strip_prefix("decimal(").and_then(|rest| rest.strip_suffix(')')).ok_or_else(bad)?;
        let (precision, scale) = inner.split_once(',').ok_or_else(bad)?;
        let precision: u8 = precision.trim().parse().map_err(|_| bad())?;
        let scale: i8 = scale.trim().parse().map_err(|_| bad())?;
        let fits = (1..=76).contains(&precision) && scale >= 0 && i16::from(scale) <= i16::from(precision);
        if fits { Ok(NumericUnbounded::Decimal { precision, scale }) } else { Err(bad()) }
    }
}

impl fmt::Display for NumericUnbounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NumericUnbounded::Text => f.write_str("text"),
            NumericUnbounded::Decimal { precision, scale } => write!(f, "decimal({precision},{scale})"),
        }
    }
}
