//! Lines of `COPY … TO STDOUT` in text format: the cells that the stream would give (P81, F-P7).
//!
//! Chunks may end anywhere, inside an escape too. A line is read in place where it lies in one chunk and has nothing
//! escaped; lines are bounded, and so are their columns (I14).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use landfall_types::{Code, Coded, Kind, Retry};

use crate::decode::{COLUMNS_MAX, Cell};
use crate::row_codes as codes;

/// Cuts chunks into lines, and lines into cells.
#[derive(Debug)]
pub struct CopyLines {
    line_bytes_max: usize,
    chunk: Bytes,
    /// Bytes of the chunk that were handed out.
    at: usize,
    /// The start of a line whose end was not in its chunk.
    partial: Vec<u8>,
    /// Whether `partial` is the line handed out last.
    is_handed_out: bool,
    cells: Vec<Span>,
    /// Unescaped values of the line handed out last.
    unescaped: Vec<u8>,
    lines: u64,
}

#[derive(Clone, Copy, Debug)]
enum Span {
    Null,
    Line { start: usize, end: usize },
    Unescaped { start: usize, end: usize },
}

/// LF-PG0309: a copy's text is not what it should be. The copy of its range is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyLineError {
    /// A line does not end.
    #[error("line {line} of the copy has more than {limit} bytes: raise `max_message`")]
    TooLong {
        /// Its number in this copy, from 1.
        line: u64,
        /// The most.
        limit: usize,
    },
    /// More columns than a table can have.
    #[error("line {line} of the copy has more than {COLUMNS_MAX} columns")]
    TooManyColumns {
        /// Its number in this copy, from 1.
        line: u64,
    },
    /// The copy ended inside a line.
    #[error("the copy ended inside line {line}, after {len} of its bytes")]
    CutShort {
        /// Its number in this copy, from 1.
        line: u64,
        /// What came of it.
        len: usize,
    },
}

impl Coded for CopyLineError {
    fn code(&self) -> Code {
        codes::COPY_LINE
    }

    fn kind(&self) -> Kind {
        codes::kind_of(self.code())
    }

    fn retry(&self) -> Retry {
        codes::retry_of(self.code())
    }
}

impl CopyLines {
    /// For one copy, with lines of at most `line_bytes_max` bytes.
    pub fn new(line_bytes_max: usize) -> Self {
        CopyLines {
            line_bytes_max,
            chunk: Bytes::new(),
            at: 0,
            partial: Vec::new(),
            is_handed_out: false,
            cells: Vec::new(),
            unescaped: Vec::new(),
            lines: 0,
        }
    }

    /// Takes the next chunk. Lines of the one before that were not asked for yet come first.
    pub fn feed(&mut self, chunk: Bytes) {
        let rest = self.chunk.get(self.at..).unwrap_or_default();
        self.chunk = if rest.is_empty() { chunk } else { [rest, &chunk].concat().into() };
        self.at = 0;
    }

    /// The next whole line, or `None` until more is fed.
    pub fn next_line(&mut self) -> Result<Option<CopyLine<'_>>, CopyLineError> {
        if std::mem::take(&mut self.is_handed_out) {
            self.partial.clear();
        }
        let start = self.at;
        let rest = self.chunk.get(start..).unwrap_or_default();
        let end = memchr::memchr(b'\n', rest);
        if self.partial.len() + end.unwrap_or(rest.len()) > self.line_bytes_max {
            return Err(CopyLineError::TooLong { line: self.lines + 1, limit: self.line_bytes_max });
        }
        let Some(len) = end else {
            self.partial.extend_from_slice(rest);
            self.chunk.clear();
            self.at = 0;
            return Ok(None);
        };
        let line = self.chunk.get(start..start + len).unwrap_or_default();
        self.at += line.len() + 1;
        self.lines += 1;
        let line = if self.partial.is_empty() {
            line
        } else {
            self.partial.extend_from_slice(line);
            self.is_handed_out = true;
            &self.partial
        };
        if !split(line, &mut self.cells, &mut self.unescaped) {
            return Err(CopyLineError::TooManyColumns { line: self.lines });
        }
        Ok(Some(CopyLine { number: self.lines, line, unescaped: &self.unescaped, cells: &self.cells }))
    }

    /// Says that no chunk follows: the last line must have ended.
    pub fn finish(self) -> Result<u64, CopyLineError> {
        let open = if self.is_handed_out { 0 } else { self.partial.len() };
        match open + self.chunk.len() - self.at {
            0 => Ok(self.lines),
            len => Err(CopyLineError::CutShort { line: self.lines + 1, len }),
        }
    }
}

/// Finds the cells of a line; `false` where it has too many.
fn split(line: &[u8], cells: &mut Vec<Span>, unescaped: &mut Vec<u8>) -> bool {
    cells.clear();
    unescaped.clear();
    let mut start = 0;
    while cells.len() < COLUMNS_MAX {
        let rest = line.get(start..).unwrap_or_default();
        let (len, span) = match memchr::memchr2(b'\t', b'\\', rest).and_then(|at| Some((at, *rest.get(at)?))) {
            None => (rest.len(), Span::Line { start, end: line.len() }),
            Some((at, b'\t')) => (at, Span::Line { start, end: start + at }),
            Some(_) => {
                // A tab inside a value is escaped, so the next one ends it.
                let len = memchr::memchr(b'\t', rest).unwrap_or(rest.len());
                let raw = rest.get(..len).unwrap_or_default();
                (len, if raw == b"\\N" { Span::Null } else { unescape(raw, unescaped) })
            }
        };
        cells.push(span);
        if len == rest.len() {
            return true;
        }
        start += len + 1;
    }
    false
}

/// Appends a value without its escapes.
fn unescape(mut raw: &[u8], into: &mut Vec<u8>) -> Span {
    let start = into.len();
    while let Some(at) = memchr::memchr(b'\\', raw) {
        let (plain, escape) = raw.split_at_checked(at).unwrap_or((raw, &[]));
        into.extend_from_slice(plain);
        let (byte, rest) = match escape {
            [_, b'b', rest @ ..] => (0x08, rest),
            [_, b'f', rest @ ..] => (0x0c, rest),
            [_, b'n', rest @ ..] => (b'\n', rest),
            [_, b'r', rest @ ..] => (b'\r', rest),
            [_, b't', rest @ ..] => (b'\t', rest),
            [_, b'v', rest @ ..] => (0x0b, rest),
            [_, b'0'..=b'7', ..] => number(escape.get(1..).unwrap_or_default(), 8, 3),
            [_, b'x', digit, ..] if digit.is_ascii_hexdigit() => number(escape.get(2..).unwrap_or_default(), 16, 2),
            [_, byte, rest @ ..] => (*byte, rest),
            // A backslash at the very end stands for itself.
            _ => (b'\\', <&[u8]>::default()),
        };
        into.push(byte);
        raw = rest;
    }
    into.extend_from_slice(raw);
    Span::Unescaped { start, end: into.len() }
}

/// A byte of up to `most` digits; what is beyond a byte is cut off, as the server does.
fn number(digits: &[u8], radix: u32, most: usize) -> (u8, &[u8]) {
    let value_of = |byte: &u8| char::from(*byte).to_digit(radix);
    let count = digits.iter().take(most).take_while(|byte| value_of(byte).is_some()).count();
    let (taken, rest) = digits.split_at_checked(count).unwrap_or((digits, &[]));
    let value = taken.iter().filter_map(value_of).fold(0u32, |value, digit| value * radix + digit);
    (value as u8, rest)
}

/// One row as it was copied.
pub struct CopyLine<'a> {
    number: u64,
    line: &'a [u8],
    unescaped: &'a [u8],
    cells: &'a [Span],
}

impl CopyLine<'_> {
    /// Its number in the copy, from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How many cells it has. The line of a table without columns looks like one with a single empty text.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Never: a line has a cell at least.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Its cells, in the order in which they were asked for.
    pub fn cells(&self) -> impl Iterator<Item = Cell<'_>> + Clone {
        self.cells.iter().map(move |span| match *span {
            Span::Null => Cell::Null,
            Span::Line { start, end } => Cell::Text(self.line.get(start..end).unwrap_or_default()),
            Span::Unescaped { start, end } => Cell::Text(self.unescaped.get(start..end).unwrap_or_default()),
        })
    }
}

#[cfg(test)]
mod tests;
