//! A message as a line of text, every field of it; the form in which two readers of the protocol are compared.

use std::fmt::Write;

use landfall_postgres::{Cell, DecodeError, Identity, Lsn, Message, OldTuple, Tuple, decode};

/// 2000-01-01 in µs since 1970: the text counts as the wire does.
const SERVER_EPOCH_MICROS: i64 = 946_684_800_000_000;

/// Reads `LSN hex` as the recording has it.
pub(crate) fn parse_line(line: &str) -> anyhow::Result<(Lsn, Vec<u8>)> {
    let (lsn, hex) = line.split_once(' ').unwrap_or((line, ""));
    let digits = hex.as_bytes().chunks(2);
    let bytes =
        digits.map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?)).collect::<anyhow::Result<_>>()?;
    Ok((lsn.parse()?, bytes))
}

/// The message in words.
pub(crate) fn dump(lsn: Lsn, bytes: &[u8]) -> Result<String, DecodeError> {
    Ok(match decode(lsn, bytes)? {
        Message::Begin(begin) => {
            format!("begin {} {} {}", begin.commit_lsn.0, begin.commit_time.0 - SERVER_EPOCH_MICROS, begin.xid)
        }
        Message::Commit(commit) => format!(
            "commit {} {} {}",
            commit.commit_lsn.0,
            commit.end_lsn.0,
            commit.commit_time.0 - SERVER_EPOCH_MICROS
        ),
        Message::Origin { commit_lsn, name } => format!("origin {} {name}", commit_lsn.0),
        Message::Relation(body) => {
            let identity = match body.identity {
                Identity::Default => 'd',
                Identity::Index => 'i',
                Identity::Full => 'f',
                Identity::Nothing => 'n',
            };
            let mut line = format!("relation {} {} {} {identity}", body.id, body.schema, body.name);
            for column in body.columns() {
                let flag = u8::from(column.is_identity);
                let _ = write!(line, " | {flag} {} {} {}", column.name, column.type_oid, column.modifier);
            }
            line
        }
        Message::Type { oid, schema, name } => format!("type {oid} {schema} {name}"),
        Message::Insert { relation, new } => format!("insert {relation} new{}", cells(new)),
        Message::Update { relation, old, new } => {
            format!("update {relation}{} new{}", old.map(old_cells).unwrap_or_default(), cells(new))
        }
        Message::Delete { relation, old } => format!("delete {relation}{}", old_cells(old)),
        Message::Truncate(truncate) => {
            let flags = u8::from(truncate.is_cascade) | u8::from(truncate.restarts_identity) << 1;
            let mut line = format!("truncate {flags}");
            for relation in truncate.relations() {
                let _ = write!(line, " {relation}");
            }
            line
        }
        Message::Note(note) => {
            let flags = u8::from(note.is_transactional);
            format!("message {flags} {} {} {}", note.lsn.0, note.prefix, hex(note.content))
        }
        Message::StreamAbort { xid, subxid } => format!("stream abort {xid} {subxid}"),
    })
}

fn old_cells(old: OldTuple<'_>) -> String {
    let mark = if old.is_whole() { 'O' } else { 'K' };
    format!(" {mark}{}", cells(old.tuple()))
}

fn cells(tuple: Tuple<'_>) -> String {
    tuple.cells().fold(String::new(), |mut line, cell| {
        match cell {
            Cell::Null => line.push_str(" n"),
            Cell::Unchanged => line.push_str(" u"),
            Cell::Text(text) => {
                let _ = write!(line, " t:{}", hex(text));
            }
        }
        line
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
