//! Messages that are not understood: LF-PG03xx.

use std::fmt;

use landfall_types::{Code, Coded, Kind, Retry};

use super::cursor::Fault;
use crate::row_codes as codes;
use crate::{Lsn, RelationId};

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misread {
    /// LF-PG0304: its bytes are not those of its kind.
    Malformed {
        /// What was expected.
        expected: &'static str,
        /// At which byte of the message.
        at: usize,
    },
    /// LF-PG0305: its kind is none of protocol 1.
    UnknownKind(u8),
    /// LF-PG0306: a number in it is beyond what a server can mean.
    Limit {
        /// Of what.
        what: &'static str,
        /// As sent.
        value: u64,
        /// The most.
        limit: u64,
    },
    /// LF-PG0308: a value came in binary form.
    Binary,
}

/// A message that is not understood. One with a relation is that table's affair, one without the stream's (P89).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// The log record's position.
    pub lsn: Lsn,
    /// The relation, as far as the message was read.
    pub relation: Option<RelationId>,
    /// The message's first byte; `None` for an empty one.
    pub kind: Option<u8>,
    /// Its length.
    pub len: usize,
    /// What is wrong.
    pub misread: Misread,
}

impl DecodeError {
    pub(super) fn new(lsn: Lsn, relation: Option<RelationId>, bytes: &[u8], fault: Fault) -> Self {
        let kind = bytes.first().copied();
        let misread = match (fault, kind) {
            (Fault::Malformed { at: 0, .. }, Some(kind)) => Misread::UnknownKind(kind),
            (Fault::Malformed { expected, at }, _) => Misread::Malformed { expected, at },
            (Fault::Limit { what, value, limit }, _) => Misread::Limit { what, value, limit },
            (Fault::Binary, _) => Misread::Binary,
        };
        DecodeError { lsn, relation, kind, len: bytes.len(), misread }
    }
}

/// LF-PG0301: a message that was not read because of its size; only its first bytes are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OversizedMessage {
    /// The log record's position.
    pub lsn: Lsn,
    /// The relation, where the message's kind says it at once.
    pub relation: Option<RelationId>,
    /// The message's first byte.
    pub kind: Option<u8>,
    /// Its length.
    pub len: u64,
    /// The most that is read: `max_message`.
    pub limit: u64,
}

impl OversizedMessage {
    /// What the first bytes of a message of `len` bytes tell.
    pub fn new(lsn: Lsn, head: &[u8], len: u64, limit: u64) -> Self {
        let relation = match head {
            [b'I' | b'U' | b'D' | b'R', rest @ ..] => rest.first_chunk().map(|id| RelationId(u32::from_be_bytes(*id))),
            _ => None,
        };
        OversizedMessage { lsn, relation, kind: head.first().copied(), len, limit }
    }
}

impl fmt::Display for OversizedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_subject(f, self.kind, self.len, self.lsn, self.relation)?;
        write!(f, " is larger than `max_message`, which is {} bytes: raise it", self.limit)
    }
}

impl std::error::Error for OversizedMessage {}

impl Coded for OversizedMessage {
    fn code(&self) -> Code {
        codes::OVERSIZED
    }

    fn kind(&self) -> Kind {
        codes::kind_of(self.code())
    }

    fn retry(&self) -> Retry {
        codes::retry_of(self.code())
    }
}

/// Names a message: kind, size, place, relation.
fn write_subject(
    f: &mut fmt::Formatter<'_>,
    kind: Option<u8>,
    len: u64,
    lsn: Lsn,
    relation: Option<RelationId>,
) -> fmt::Result {
    match kind {
        Some(kind) if kind.is_ascii_alphabetic() => write!(f, "message `{}`", char::from(kind))?,
        Some(kind) => write!(f, "message 0x{kind:02x}")?,
        None => f.write_str("an empty message")?,
    }
    write!(f, " of {len} bytes at {lsn}")?;
    match relation {
        Some(relation) => write!(f, " for relation {relation}"),
        None => Ok(()),
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_subject(f, self.kind, self.len as u64, self.lsn, self.relation)?;
        match self.misread {
            Misread::Malformed { expected, at } => {
                write!(
                    f,
                    ": {expected} was expected at byte {at}; the server and this version do not agree on the protocol"
                )
            }
            Misread::UnknownKind(_) => f.write_str(": the kind is not one of protocol 1, which was asked for"),
            Misread::Limit { what, value, limit } => write!(f, ": {what} is {value}, at most {limit} is possible"),
            Misread::Binary => f.write_str(": a value is in binary form, text was asked for"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl Coded for DecodeError {
    fn code(&self) -> Code {
        match self.misread {
            Misread::Malformed { .. } => codes::MALFORMED,
            Misread::UnknownKind(_) => codes::UNKNOWN_KIND,
            Misread::Limit { .. } => codes::LIMIT,
            Misread::Binary => codes::BINARY,
        }
    }

    fn kind(&self) -> Kind {
        codes::kind_of(self.code())
    }

    fn retry(&self) -> Retry {
        codes::retry_of(self.code())
    }
}
