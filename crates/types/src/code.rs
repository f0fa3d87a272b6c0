//! The shape of every error that leaves a crate: what happened ([`Code`]), what to do ([`Kind`]), and
//! whether the same call may be made again ([`Retry`]).

use std::fmt;

use serde::Serialize;

/// A stable error code, shown as `LF-CH0003`. A code is never reused for another meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code {
    area: &'static str,
    number: u16,
}

impl Code {
    /// A code of an area (`CH`, `IN`, `EN`, …).
    pub const fn new(area: &'static str, number: u16) -> Self {
        Code { area, number }
    }

    /// The area: two letters.
    pub const fn area(self) -> &'static str {
        self.area
    }

    /// The number inside the area.
    pub const fn number(self) -> u16 {
        self.number
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LF-{}{:04}", self.area, self.number)
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What the caller must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Change the request.
    Invalid,
    /// Decide: the request meets something that exists already.
    Conflict,
    /// Try again later and look at the health.
    Unavailable,
    /// The outcome is unknown: ask, or retry under the same key.
    Unresolved,
    /// Reopen, or go elsewhere.
    Closed,
    /// Call a human.
    Internal,
}

/// Whether the same call may be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Retry {
    /// The same input gets the same answer.
    Never,
    /// After a back-off.
    Later,
    /// At once.
    Now,
}

/// An error that crosses a crate's border.
pub trait Coded: std::error::Error {
    /// What happened.
    fn code(&self) -> Code;
    /// What to do.
    fn kind(&self) -> Kind;
    /// Whether to try again.
    fn retry(&self) -> Retry;
}

/// The page that `landfall explain` prints for a code. Each crate lists its own.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CodePage {
    /// The code.
    pub code: Code,
    /// Its name, as in `RecordTooLarge`.
    pub name: &'static str,
    /// What to do, as a class.
    pub kind: Kind,
    /// Whether to try again.
    pub retry: Retry,
    /// What it means: one or two sentences.
    pub meaning: &'static str,
    /// What to do next: one or more sentences.
    pub help: &'static str,
}
