//! Rows of one table, as the engine takes them: the table's columns and what each change is (P91, P94).
//!
//! [`RowPlan`] is a shape's schema; [`TableRows`] appends changes and copied lines to it and gives record batches. A
//! row that cannot be carried is not in the batch, whole, and comes back as a [`RowError`] for its dead letter (P89);
//! its neighbours stay. An unchanged large value is filled from the old row, or its row is refused: nothing is ever
//! written in its place (P70).
//!
//! It does not decide when a batch is cut, and knows no transaction beyond the [`Stamp`] of each change.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

mod error;
mod plan;
mod stamp;
mod table_rows;

pub use error::{ColumnCount, Refused, RowError};
pub use plan::{RowOptions, RowPlan, RowPlanError, meta_columns, table_schema};
pub use stamp::{Sequencer, Stamp};
pub use table_rows::TableRows;

/// What happened to a row, as `_op` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Copied under the snapshot.
    Snapshot,
    /// Inserted, also as the second half of a key change.
    Insert,
    /// Updated: the row as it is now.
    Update,
    /// Deleted: the key, and under identity FULL the whole row.
    Delete,
    /// The table was emptied: no column has a value.
    Truncate,
}

impl Op {
    /// The letter in `_op`.
    pub const fn letter(self) -> char {
        self.byte() as char
    }

    const fn byte(self) -> u8 {
        match self {
            Op::Snapshot => b's',
            Op::Insert => b'i',
            Op::Update => b'u',
            Op::Delete => b'd',
            Op::Truncate => b't',
        }
    }
}

#[cfg(test)]
mod tests;
