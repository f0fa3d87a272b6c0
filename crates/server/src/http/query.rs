//! Parameters of a URL: each known, each once, each bounded.

use std::ops::RangeInclusive;
use std::time::Duration;

use landfall_types::{ByteSize, PartitionId, parse_duration};

use crate::core::shown;
use crate::http::{Problem, syntax};

/// The parameters of one request, taken one by one. What is left at the end was not known.
#[derive(Debug)]
pub(crate) struct Parameters(Vec<(String, String)>);

impl Parameters {
    pub(crate) fn of(query: Option<&str>) -> Result<Self, Problem> {
        let mut found: Vec<(String, String)> = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (Some(name), Some(value)) = (decoded(name), decoded(value)) else {
                return Err(syntax("the query is not well formed: expected name=value with %XX escapes of UTF-8"));
            };
            if found.iter().any(|(before, _)| *before == name) {
                return Err(syntax(format!("parameter `{}` is given twice", shown(&name))));
            }
            found.push((name, value));
        }
        Ok(Parameters(found))
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(found, _)| found == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// A whole number within bounds.
    pub(crate) fn number(&mut self, name: &str, bounds: RangeInclusive<u64>) -> Result<Option<u64>, Problem> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let number = text.parse::<u64>().ok().filter(|number| bounds.contains(number));
        number.map(Some).ok_or_else(|| {
            syntax(format!(
                "`{name}={}`: expected a whole number from {} to {}",
                shown(&text),
                bounds.start(),
                bounds.end()
            ))
        })
    }

    /// A number of bytes within bounds, with or without a unit.
    pub(crate) fn size(&mut self, name: &str, bounds: RangeInclusive<u64>) -> Result<Option<u64>, Problem> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let size = text.parse::<ByteSize>().ok().map(ByteSize::get).filter(|size| bounds.contains(size));
        size.map(Some).ok_or_else(|| {
            let (low, high) = (ByteSize(*bounds.start()), ByteSize(*bounds.end()));
            syntax(format!("`{name}={}`: expected a size from {low} to {high}", shown(&text)))
        })
    }

    /// A duration like `5s`, at most `most`.
    pub(crate) fn duration(&mut self, name: &str, most: Duration) -> Result<Option<Duration>, Problem> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let duration = if text == "0" { Some(Duration::ZERO) } else { parse_duration(&text).ok() };
        duration.filter(|duration| *duration <= most).map(Some).ok_or_else(|| {
            syntax(format!("`{name}={}`: expected a duration like `5s`, at most {most:?}", shown(&text)))
        })
    }

    pub(crate) fn partition(&mut self) -> Result<Option<PartitionId>, Problem> {
        let number = self.number("partition", 0..=u64::from(u32::MAX - 1))?;
        Ok(number.and_then(|number| u32::try_from(number).ok()).map(PartitionId))
    }

    /// Every parameter was known.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(syntax(format!("parameter `{}` is not known here", shown(name)))),
        }
    }
}

/// Undoes `%XX` and `+`. `None`: not an escape, or not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let (high, low) = (rest.next()?, rest.next()?);
                let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                digit(high)? << 4 | digit(low)?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a parameter that is dropped without a word, or a bound that is off by one.
    #[test]
    fn parameters_are_known_bounded_and_given_once() {
        let mut good = Parameters::of(Some("limit=10&wait=2s&name=a%20b%c3%a9+c&max_bytes=1KiB&partition=3")).unwrap();
        assert_eq!(good.number("limit", 1..=10).unwrap(), Some(10));
        assert_eq!(good.duration("wait", Duration::from_secs(2)).unwrap(), Some(Duration::from_secs(2)));
        assert_eq!(good.take("name").as_deref(), Some("a bé c"));
        assert_eq!(good.size("max_bytes", 1..=1024).unwrap(), Some(1024));
        assert_eq!(good.partition().unwrap(), Some(PartitionId(3)));
        assert_eq!(good.number("absent", 0..=1).unwrap(), None);
        good.finish().unwrap();
        for bad in ["a=1&a=2", "a=%zz", "a=%f", "a=%ff"] {
            assert!(Parameters::of(Some(bad)).is_err(), "{bad}");
        }
        let parse = |query| Parameters::of(Some(query)).unwrap();
        assert!(parse("limit=11").number("limit", 1..=10).is_err());
        assert!(parse("limit=-1").number("limit", 0..=10).is_err());
        assert!(parse("wait=5").duration("wait", Duration::MAX).is_err());
        assert!(parse("x=1").finish().is_err());
    }
}
