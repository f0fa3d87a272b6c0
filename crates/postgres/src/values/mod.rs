//! Values: a cell's text to an Arrow value, the same for copied rows and streamed ones (P81, F-P7).
//!
//! Text goes straight into growing columns; nothing is allocated per cell. Every value is exact or takes the way that
//! a [`Policies`] entry names; without one its row is refused, with its neighbours untouched (I13). No text panics or
//! asks for more room than it has bytes, times a small factor (I14).
//!
//! A type that is not known is its text (F-P9). Which Arrow type a column gets is [`arrow_type`]'s answer; what a
//! target cannot hold becomes the nearest exact form that it can ([`Target`]).

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

mod array;
mod arrow_form;
mod bytes;
mod column;
mod number;
mod policy;
mod time;

pub(crate) use arrow_form::arrow_field;
pub use arrow_form::{Target, arrow_type};
pub use column::Tally;
pub(crate) use column::{Column, Fault, taken};
pub use policy::{ArrayShape, InvalidText, NanPolicy, NumericUnbounded, Policies, PolicyError, RangePolicy};

/// Why a text gives no value of its type; what follows is the policies' business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// It is no text of the type.
    Bad,
    /// Not a number, where the column holds numbers only.
    NotANumber,
    /// Without end.
    Infinite {
        /// Towards the past, or below zero.
        is_negative: bool,
    },
    /// A value of the type, past what the column can hold.
    Beyond {
        /// Below the least.
        is_negative: bool,
    },
}

#[cfg(test)]
mod tests;
