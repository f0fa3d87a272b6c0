//! pgoutput messages of protocol 1, read in place (P65–P79).
//!
//! [`decode`] turns one log record's bytes into a [`Message`] that borrows them: lengths are checked, nothing is
//! indexed, nothing allocated, and no byte sequence panics (I14). A message that is not understood is an error that
//! names relation, position and what was expected; none is dropped for one column (F-P9).
//!
//! It keeps no state: which columns a relation has is [`crate::Relations`]' business, what values mean that of
//! `values`. Messages of streamed transactions (protocol 2) have their names here and are refused for now, except for
//! the stream-abort strays that a server sends on protocol 1 too (P79).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

mod cursor;
mod error;
mod relation;
mod tuple;

use landfall_types::Timestamp;

use crate::{Lsn, RelationId, Xid};

use cursor::Cursor;
pub use error::{DecodeError, Misread, OversizedMessage};
pub use relation::{RelationBody, RelationColumn, RelationColumns};
pub use tuple::{Cell, Cells, OldTuple, Tuple};

/// Columns that a table can have at most.
pub const COLUMNS_MAX: usize = 1_664;
/// Bytes of a name at most.
pub const NAME_BYTES_MAX: usize = 64;

/// 2000-01-01, from where the server counts, in µs since 1970.
const SERVER_EPOCH_MICROS: i64 = 946_684_800_000_000;

/// One message of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A committed transaction starts.
    Begin(Begin),
    /// It ends.
    Commit(Commit),
    /// Where the transaction was first made, if on another server.
    Origin {
        /// The commit's position there.
        commit_lsn: Lsn,
        /// The origin's name here.
        name: &'a str,
    },
    /// What a relation looks like from here on.
    Relation(RelationBody<'a>),
    /// A type's name, for types that users made. A domain shows its base type's.
    Type {
        /// The type's oid.
        oid: u32,
        /// Its schema.
        schema: &'a str,
        /// Its name.
        name: &'a str,
    },
    /// A row was inserted.
    Insert {
        /// Into this relation.
        relation: RelationId,
        /// The row.
        new: Tuple<'a>,
    },
    /// A row was updated.
    Update {
        /// In this relation.
        relation: RelationId,
        /// What the row was: there under identity FULL, where the identity's columns changed, or where one of them
        /// is stored out of line.
        old: Option<OldTuple<'a>>,
        /// The row.
        new: Tuple<'a>,
    },
    /// A row was deleted.
    Delete {
        /// From this relation.
        relation: RelationId,
        /// What is known of the row.
        old: OldTuple<'a>,
    },
    /// Relations were emptied by one statement.
    Truncate(Truncate<'a>),
    /// A note that was written into the log.
    Note(Note<'a>),
    /// A streamed transaction, or a part of it, was rolled back: on protocol 1 a stray, to be counted and ignored.
    StreamAbort {
        /// The transaction.
        xid: Xid,
        /// The part: the transaction itself, or one of its sub-transactions.
        subxid: Xid,
    },
}

impl Message<'_> {
    /// The message's kind, as metrics label it.
    pub fn kind(&self) -> &'static str {
        match self {
            Message::Begin(_) => "begin",
            Message::Commit(_) => "commit",
            Message::Origin { .. } => "origin",
            Message::Relation(_) => "relation",
            Message::Type { .. } => "type",
            Message::Insert { .. } => "insert",
            Message::Update { .. } => "update",
            Message::Delete { .. } => "delete",
            Message::Truncate(_) => "truncate",
            Message::Note(_) => "message",
            Message::StreamAbort { .. } => "stream_abort",
        }
    }
}

/// The start of a transaction (P66).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The start of its commit record: the commit LSN of all its changes.
    pub commit_lsn: Lsn,
    /// When it was committed, by the server's clock.
    pub commit_time: Timestamp,
    /// Its number.
    pub xid: Xid,
}

/// The end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The start of its commit record, as in [`Begin`].
    pub commit_lsn: Lsn,
    /// The byte after the commit record.
    pub end_lsn: Lsn,
    /// When it was committed, by the server's clock.
    pub commit_time: Timestamp,
}

/// Relations that one statement emptied (P73).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncate<'a> {
    relations: &'a [u8],
    /// Whether tables that refer to them were emptied as well.
    pub is_cascade: bool,
    /// Whether their sequences were set back.
    pub restarts_identity: bool,
}

impl<'a> Truncate<'a> {
    /// The relations, in the server's order.
    pub fn relations(&self) -> impl ExactSizeIterator<Item = RelationId> + 'a {
        let (oids, _) = self.relations.as_chunks::<4>();
        oids.iter().map(|oid| RelationId(u32::from_be_bytes(*oid)))
    }
}

/// What `pg_logical_emit_message` wrote (P76).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Note<'a> {
    /// Whether it belongs to the transaction around it. One that does not may stand anywhere and moves no progress.
    pub is_transactional: bool,
    /// Its own position.
    pub lsn: Lsn,
    /// Whose it is: `landfall.` is ours.
    pub prefix: &'a str,
    /// Its bytes.
    pub content: &'a [u8],
}

/// Shows no content: it may be anything.
impl std::fmt::Debug for Note<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Note({} at {}, {} bytes)", self.prefix, self.lsn, self.content.len())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TupleMark {
    New,
    Key,
    Old,
}

/// Reads the message of the log record at `lsn`.
pub fn decode(lsn: Lsn, bytes: &[u8]) -> Result<Message<'_>, DecodeError> {
    let mut relation = None;
    read(bytes, &mut relation).map_err(|fault| DecodeError::new(lsn, relation, bytes, fault))
}

fn read<'a>(bytes: &'a [u8], relation: &mut Option<RelationId>) -> Result<Message<'a>, cursor::Fault> {
    let mut cursor = Cursor::new(bytes);
    let kind = cursor.u8("a message's kind")?;
    let mut relation_of = |cursor: &mut Cursor<'a>| -> Result<RelationId, cursor::Fault> {
        let id = RelationId(cursor.u32("a relation id")?);
        *relation = Some(id);
        Ok(id)
    };
    let message = match kind {
        b'I' => {
            let relation = relation_of(&mut cursor)?;
            let mark_at = cursor.fault("a new tuple");
            match tuple::read_marked(&mut cursor)? {
                (TupleMark::New, new) => Message::Insert { relation, new },
                _ => return Err(mark_at),
            }
        }
        b'U' => {
            let relation = relation_of(&mut cursor)?;
            let (mark, first) = tuple::read_marked(&mut cursor)?;
            let old = match mark {
                TupleMark::New => None,
                TupleMark::Key => Some(OldTuple::Key(first)),
                TupleMark::Old => Some(OldTuple::Whole(first)),
            };
            let new = if old.is_none() {
                first
            } else {
                let mark_at = cursor.fault("a new tuple");
                match tuple::read_marked(&mut cursor)? {
                    (TupleMark::New, new) => new,
                    _ => return Err(mark_at),
                }
            };
            Message::Update { relation, old, new }
        }
        b'D' => {
            let relation = relation_of(&mut cursor)?;
            let mark_at = cursor.fault("an old tuple");
            let old = match tuple::read_marked(&mut cursor)? {
                (TupleMark::Key, old) => OldTuple::Key(old),
                (TupleMark::Old, old) => OldTuple::Whole(old),
                (TupleMark::New, _) => return Err(mark_at),
            };
            Message::Delete { relation, old }
        }
        b'B' => Message::Begin(Begin {
            commit_lsn: Lsn(cursor.u64("the commit LSN")?),
            commit_time: time(cursor.i64("the commit time")?),
            xid: Xid(cursor.u32("the transaction's number")?),
        }),
        b'C' => {
            // No flag is defined; the server sends 0.
            flags(&mut cursor, 0, "flags of 0")?;
            Message::Commit(Commit {
                commit_lsn: Lsn(cursor.u64("the commit LSN")?),
                end_lsn: Lsn(cursor.u64("the end LSN")?),
                commit_time: time(cursor.i64("the commit time")?),
            })
        }
        b'O' => Message::Origin {
            commit_lsn: Lsn(cursor.u64("the origin's commit LSN")?),
            name: cursor.text("the origin's name")?,
        },
        b'R' => {
            let id = relation_of(&mut cursor)?;
            Message::Relation(RelationBody::read(id, &mut cursor)?)
        }
        b'Y' => Message::Type {
            oid: cursor.u32("a type's oid")?,
            schema: schema_or_catalog(cursor.name("a type's schema", NAME_BYTES_MAX)?),
            name: cursor.name("a type's name", NAME_BYTES_MAX)?,
        },
        b'T' => {
            let count = cursor.u32("a relation count")?;
            let flags = flags(&mut cursor, 3, "flags of 0 to 3")?;
            let len = (count as usize).checked_mul(4).ok_or(cursor.fault("as many relation ids as counted"))?;
            let relations = cursor.take(len, "as many relation ids as counted")?;
            Message::Truncate(Truncate { relations, is_cascade: flags & 1 != 0, restarts_identity: flags & 2 != 0 })
        }
        b'M' => {
            let flags = flags(&mut cursor, 1, "flags of 0 or 1")?;
            let lsn = Lsn(cursor.u64("the message's LSN")?);
            let prefix = cursor.text("the message's prefix")?;
            let len = cursor.u32("the message's length")?;
            let content = cursor.take(len as usize, "as many bytes as counted")?;
            Message::Note(Note { is_transactional: flags & 1 != 0, lsn, prefix, content })
        }
        b'A' => Message::StreamAbort {
            xid: Xid(cursor.u32("the transaction's number")?),
            subxid: Xid(cursor.u32("the sub-transaction's number")?),
        },
        _ => return Err(Cursor::new(bytes).fault("a message kind of protocol 1")),
    };
    cursor.end()?;
    Ok(message)
}

/// Flags, of which none is unknown: one that is could change what the message means.
fn flags(cursor: &mut Cursor<'_>, known: u8, expected: &'static str) -> Result<u8, cursor::Fault> {
    let fault = cursor.fault(expected);
    let flags = cursor.u8("flags")?;
    if flags & !known == 0 { Ok(flags) } else { Err(fault) }
}

/// The server sends an empty schema for its own catalog's.
fn schema_or_catalog(schema: &str) -> &str {
    if schema.is_empty() { "pg_catalog" } else { schema }
}

/// µs since 2000 to µs since 1970. No clock is near the ends, so a number there stays at the end.
fn time(since_2000: i64) -> Timestamp {
    Timestamp(since_2000.saturating_add(SERVER_EPOCH_MICROS))
}

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
