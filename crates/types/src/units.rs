//! Units with their text forms: sizes (`64MiB`), durations (`250ms`), timestamps, durability classes.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A number of bytes. Text: a whole number with `B`, `KiB`, `MiB`, `GiB` or `TiB`; a bare number is bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Microseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

/// What an acknowledgement is worth (I1). Carried in every ack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// After `fdatasync`.
    #[default]
    Fsync,
    /// After the write returned, with a sync each second: survives a crash of the process, not of the machine.
    Written,
    /// In memory only.
    Memory,
}

impl Durability {
    /// The word used in configuration, JSON and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Durability::Fsync => "fsync",
            Durability::Written => "written",
            Durability::Memory => "memory",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is not a size or a duration; says which forms are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct ParseUnitError {
    text: String,
    expected: &'static str,
}

impl ParseUnitError {
    fn new(text: &str, expected: &'static str) -> Self {
        ParseUnitError { text: text.chars().take(64).collect(), expected }
    }
}

const SIZE_FORM: &str = "a size: expected a whole number with B, KiB, MiB, GiB or TiB, like `64MiB`";
const DURATION_FORM: &str = "a duration: expected a whole number with us, ms, s, m, h or d, like `250ms`";

impl ByteSize {
    /// `n` KiB.
    pub const fn kib(n: u64) -> Self {
        ByteSize(n << 10)
    }
    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        ByteSize(n << 20)
    }
    /// `n` GiB.
    pub const fn gib(n: u64) -> Self {
        ByteSize(n << 30)
    }
    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
    /// The number of bytes as a length in memory, saturating.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

fn split_number<'a>(text: &'a str, form: &'static str) -> Result<(u64, &'a str), ParseUnitError> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number = number.parse().map_err(|_| ParseUnitError::new(text, form))?;
    Ok((number, unit.trim()))
}

impl FromStr for ByteSize {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let (number, unit) = split_number(text, SIZE_FORM)?;
        let factor: u64 = match unit {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "TiB" => 1 << 40,
            _ => return Err(ParseUnitError::new(text, SIZE_FORM)),
        };
        number.checked_mul(factor).map(ByteSize).ok_or_else(|| ParseUnitError::new(text, SIZE_FORM))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.iter().find(|(factor, _)| self.0 >= *factor && self.0.is_multiple_of(*factor)) {
            Some((factor, unit)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// Reads a duration like `250ms`, `10s`, `7d`. A bare number has no meaning and is refused.
pub fn parse_duration(text: &str) -> Result<Duration, ParseUnitError> {
    let (number, unit) = split_number(text, DURATION_FORM)?;
    let seconds = |factor: u64| number.checked_mul(factor).map(Duration::from_secs);
    let duration = match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3_600),
        "d" => seconds(86_400),
        _ => None,
    };
    duration.ok_or_else(|| ParseUnitError::new(text, DURATION_FORM))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a unit read as another, or an overflow that wraps (F-K1).
    #[test]
    fn sizes_and_durations_read_as_documented_or_are_refused() {
        assert_eq!("64MiB".parse(), Ok(ByteSize::mib(64)));
        assert_eq!("10".parse(), Ok(ByteSize(10)));
        for wrong in ["10mb", "-1", "1e18", "", "99999999999TiB", "MiB"] {
            assert!(wrong.parse::<ByteSize>().is_err(), "{wrong}");
        }
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["250", "-1s", "1.5s", "s", "99999999999999999999d", "9999999999999999999d"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    /// Would catch a printed size that reads back as another.
    #[test]
    fn a_printed_size_reads_back() {
        for size in [ByteSize(0), ByteSize(1_000), ByteSize::kib(64), ByteSize::gib(3), ByteSize(u64::MAX)] {
            assert_eq!(size.to_string().parse(), Ok(size));
        }
    }
}
