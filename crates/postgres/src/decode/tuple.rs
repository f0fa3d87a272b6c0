//! Rows as messages carry them: marks and texts, read in place (P68).

use super::cursor::{Cursor, Fault};
use super::{COLUMNS_MAX, TupleMark};

/// One value of a row as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell<'a> {
    /// NULL.
    Null,
    /// The value's text form. Not checked to be UTF-8: a SQL_ASCII database may send anything.
    Text(&'a [u8]),
    /// Stored out of line and not touched by the update: the message does not carry it (P70).
    Unchanged,
}

/// The values of one row, in the relation's column order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    count: u16,
    bytes: &'a [u8],
}

impl<'a> Tuple<'a> {
    /// Reads a tuple's marks to find its end; the values are read when they are asked for.
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<Self, Fault> {
        let count = cursor.u16("a column count")?;
        if usize::from(count) > COLUMNS_MAX {
            return Err(Fault::Limit { what: "a column count", value: count.into(), limit: COLUMNS_MAX as u64 });
        }
        let start = *cursor;
        for _ in 0..count {
            read_cell(cursor)?;
        }
        let len = cursor.at() - start.at();
        let bytes = start.rest().get(..len).ok_or(start.fault("a tuple"))?;
        Ok(Tuple { count, bytes })
    }

    /// How many values it has.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether it is a row without columns.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Its values. Allocates nothing.
    pub fn cells(&self) -> Cells<'a> {
        Cells { left: self.count, cursor: Cursor::new(self.bytes) }
    }
}

/// Shows no values: they do not belong into logs.
impl std::fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tuple({} columns, {} bytes)", self.count, self.bytes.len())
    }
}

/// The values of a [`Tuple`].
#[derive(Clone, Debug)]
pub struct Cells<'a> {
    left: u16,
    cursor: Cursor<'a>,
}

impl<'a> Iterator for Cells<'a> {
    type Item = Cell<'a>;

    fn next(&mut self) -> Option<Cell<'a>> {
        self.left = self.left.checked_sub(1)?;
        // The marks were checked when the tuple was read.
        read_cell(&mut self.cursor).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Cells<'_> {}

#[inline]
fn read_cell<'a>(cursor: &mut Cursor<'a>) -> Result<Cell<'a>, Fault> {
    let fault = cursor.fault("a value's mark: n, u or t");
    match cursor.u8("a value's mark")? {
        b't' => {
            let len = cursor.u32("a value's length")?;
            cursor.take(len as usize, "a value's bytes").map(Cell::Text)
        }
        b'n' => Ok(Cell::Null),
        b'u' => Ok(Cell::Unchanged),
        b'b' => Err(Fault::Binary),
        _ => Err(fault),
    }
}

/// The row before a change, as far as the server sends it (P69).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldTuple<'a> {
    /// `K`: the identity's columns; the others are null whatever they were.
    Key(Tuple<'a>),
    /// `O`: the whole row.
    Whole(Tuple<'a>),
}

impl<'a> OldTuple<'a> {
    /// Its values, known or not.
    pub fn tuple(&self) -> Tuple<'a> {
        match self {
            OldTuple::Key(tuple) | OldTuple::Whole(tuple) => *tuple,
        }
    }

    /// Whether columns outside the identity are known.
    pub fn is_whole(&self) -> bool {
        matches!(self, OldTuple::Whole(_))
    }
}

/// Reads the tuple behind its mark, where there is one of the wanted kinds.
pub(super) fn read_marked<'a>(cursor: &mut Cursor<'a>) -> Result<(TupleMark, Tuple<'a>), Fault> {
    let fault = cursor.fault("a tuple's mark: N, K or O");
    let mark = match cursor.u8("a tuple's mark")? {
        b'N' => TupleMark::New,
        b'K' => TupleMark::Key,
        b'O' => TupleMark::Old,
        _ => return Err(fault),
    };
    Ok((mark, Tuple::read(cursor)?))
}
