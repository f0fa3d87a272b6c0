//! Messages made for tests, byte by byte as the protocol's pages describe them.

use super::Cell;

fn name(into: &mut Vec<u8>, name: &str) {
    into.extend_from_slice(name.as_bytes());
    into.push(0);
}

fn tuple(into: &mut Vec<u8>, cells: &[Cell<'_>]) {
    into.extend_from_slice(&(cells.len() as u16).to_be_bytes());
    for cell in cells {
        match cell {
            Cell::Null => into.push(b'n'),
            Cell::Unchanged => into.push(b'u'),
            Cell::Text(text) => {
                into.push(b't');
                into.extend_from_slice(&(text.len() as u32).to_be_bytes());
                into.extend_from_slice(text);
            }
        }
    }
}

pub(crate) fn begin(commit_lsn: u64, time: i64, xid: u32) -> Vec<u8> {
    let mut message = vec![b'B'];
    message.extend_from_slice(&commit_lsn.to_be_bytes());
    message.extend_from_slice(&time.to_be_bytes());
    message.extend_from_slice(&xid.to_be_bytes());
    message
}

pub(crate) fn commit(commit_lsn: u64, end_lsn: u64, time: i64) -> Vec<u8> {
    let mut message = vec![b'C', 0];
    message.extend_from_slice(&commit_lsn.to_be_bytes());
    message.extend_from_slice(&end_lsn.to_be_bytes());
    message.extend_from_slice(&time.to_be_bytes());
    message
}

/// A Relation message with columns of (flags, name, type, modifier).
pub(crate) fn relation(id: u32, schema: &str, table: &str, identity: u8, columns: &[(u8, &str, u32, i32)]) -> Vec<u8> {
    let mut message = vec![b'R'];
    message.extend_from_slice(&id.to_be_bytes());
    name(&mut message, schema);
    name(&mut message, table);
    message.push(identity);
    message.extend_from_slice(&(columns.len() as u16).to_be_bytes());
    for (flags, column, type_oid, modifier) in columns {
        message.push(*flags);
        name(&mut message, column);
        message.extend_from_slice(&type_oid.to_be_bytes());
        message.extend_from_slice(&modifier.to_be_bytes());
    }
    message
}

pub(crate) fn insert(id: u32, new: &[Cell<'_>]) -> Vec<u8> {
    let mut message = vec![b'I'];
    message.extend_from_slice(&id.to_be_bytes());
    message.push(b'N');
    tuple(&mut message, new);
    message
}

pub(crate) fn update(id: u32, old: Option<(u8, &[Cell<'_>])>, new: &[Cell<'_>]) -> Vec<u8> {
    let mut message = vec![b'U'];
    message.extend_from_slice(&id.to_be_bytes());
    if let Some((mark, old)) = old {
        message.push(mark);
        tuple(&mut message, old);
    }
    message.push(b'N');
    tuple(&mut message, new);
    message
}

pub(crate) fn delete(id: u32, mark: u8, old: &[Cell<'_>]) -> Vec<u8> {
    let mut message = vec![b'D'];
    message.extend_from_slice(&id.to_be_bytes());
    message.push(mark);
    tuple(&mut message, old);
    message
}

pub(crate) fn truncate(flags: u8, relations: &[u32]) -> Vec<u8> {
    let mut message = vec![b'T'];
    message.extend_from_slice(&(relations.len() as u32).to_be_bytes());
    message.push(flags);
    for relation in relations {
        message.extend_from_slice(&relation.to_be_bytes());
    }
    message
}

pub(crate) fn origin(commit_lsn: u64, origin: &str) -> Vec<u8> {
    let mut message = vec![b'O'];
    message.extend_from_slice(&commit_lsn.to_be_bytes());
    name(&mut message, origin);
    message
}

pub(crate) fn type_name(oid: u32, schema: &str, type_name: &str) -> Vec<u8> {
    let mut message = vec![b'Y'];
    message.extend_from_slice(&oid.to_be_bytes());
    name(&mut message, schema);
    name(&mut message, type_name);
    message
}

pub(crate) fn note(flags: u8, lsn: u64, prefix: &str, content: &[u8]) -> Vec<u8> {
    let mut message = vec![b'M', flags];
    message.extend_from_slice(&lsn.to_be_bytes());
    name(&mut message, prefix);
    message.extend_from_slice(&(content.len() as u32).to_be_bytes());
    message.extend_from_slice(content);
    message
}

pub(crate) fn stream_abort(xid: u32, subxid: u32) -> Vec<u8> {
    let mut message = vec![b'A'];
    message.extend_from_slice(&xid.to_be_bytes());
    message.extend_from_slice(&subxid.to_be_bytes());
    message
}
