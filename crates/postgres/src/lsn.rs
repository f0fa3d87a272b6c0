//! Numbers of the server: log positions, relations, transactions.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A byte position in the server's write-ahead log. Printed and read as Postgres does: `16/B374D848`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Before every position.
    pub const ZERO: Lsn = Lsn(0);

    /// Bytes from `earlier` to here; 0 if it is not earlier.
    pub fn since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

/// A text that is no log position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no log position; one looks like 16/B374D848")]
pub struct ParseLsnError(pub String);

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseLsnError(text.chars().take(64).collect());
        let (high, low) = text.split_once('/').ok_or_else(bad)?;
        let half = |digits: &str| {
            let is_hex = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hex.then(|| u64::from_str_radix(digits, 16).ok()).flatten().ok_or_else(bad)
        };
        Ok(Lsn(half(high)? << 32 | half(low)?))
    }
}

/// A relation's oid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RelationId(pub u32);

impl fmt::Display for RelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A transaction's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Xid(pub u32);

impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a position that reads back as another one, and texts that only look like one.
    #[test]
    fn positions_are_read_as_they_are_printed() {
        for lsn in [Lsn(0), Lsn(0x16_b374_d848), Lsn(u64::MAX), Lsn(1 << 32)] {
            assert_eq!(lsn.to_string().parse(), Ok(lsn));
        }
        for text in ["", "/", "1", "1/", "/1", "1/123456789", "g/0", "+1/0", "1/0/0"] {
            assert!(text.parse::<Lsn>().is_err(), "{text}");
        }
    }
}
