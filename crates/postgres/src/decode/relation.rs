//! The Relation message's body: a relation's name, identity and columns at this point of the stream (P67, P74).

use super::cursor::{Cursor, Fault};
use super::{COLUMNS_MAX, NAME_BYTES_MAX, schema_or_catalog};
use crate::{Identity, RelationId};

/// A relation's shape as the stream tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelationBody<'a> {
    /// Its oid.
    pub id: RelationId,
    /// Its schema.
    pub schema: &'a str,
    /// Its name.
    pub name: &'a str,
    /// How rows are named.
    pub identity: Identity,
    count: u16,
    bytes: &'a [u8],
}

/// A column as a Relation message shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelationColumn<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether it belongs to the identity. Under FULL all do.
    pub is_identity: bool,
    /// Its type's oid.
    pub type_oid: u32,
    /// Its type's modifier; -1 for none.
    pub modifier: i32,
}

impl<'a> RelationBody<'a> {
    pub(super) fn read(id: RelationId, cursor: &mut Cursor<'a>) -> Result<Self, Fault> {
        let schema = schema_or_catalog(cursor.name("a schema's name", NAME_BYTES_MAX)?);
        let name = cursor.name("a relation's name", NAME_BYTES_MAX)?;
        let identity_at = cursor.fault("an identity: d, i, f or n");
        let identity = match cursor.u8("an identity")? {
            b'd' => Identity::Default,
            b'i' => Identity::Index,
            b'f' => Identity::Full,
            b'n' => Identity::Nothing,
            _ => return Err(identity_at),
        };
        let count = cursor.u16("a column count")?;
        if usize::from(count) > COLUMNS_MAX {
            return Err(Fault::Limit { what: "a column count", value: count.into(), limit: COLUMNS_MAX as u64 });
        }
        let start = *cursor;
        for _ in 0..count {
            read_column(cursor)?;
        }
        let len = cursor.at() - start.at();
        let bytes = start.rest().get(..len).ok_or(start.fault("columns"))?;
        Ok(RelationBody { id, schema, name, identity, count, bytes })
    }

    /// Its columns, in the order of every tuple. Allocates nothing.
    pub fn columns(&self) -> RelationColumns<'a> {
        RelationColumns { left: self.count, cursor: Cursor::new(self.bytes) }
    }
}

/// The columns of a [`RelationBody`].
#[derive(Clone, Debug)]
pub struct RelationColumns<'a> {
    left: u16,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for RelationColumns<'a> {
    type Item = RelationColumn<'a>;

    fn next(&mut self) -> Option<RelationColumn<'a>> {
        self.left = self.left.checked_sub(1)?;
        // Checked when the message was read.
        read_column(&mut self.cursor).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for RelationColumns<'_> {}

fn read_column<'a>(cursor: &mut Cursor<'a>) -> Result<RelationColumn<'a>, Fault> {
    Ok(RelationColumn {
        is_identity: cursor.u8("a column's flags")? & 1 != 0,
        name: cursor.name("a column's name", NAME_BYTES_MAX)?,
        type_oid: cursor.u32("a column's type")?,
        modifier: cursor.i32("a column's type modifier")?,
    })
}
