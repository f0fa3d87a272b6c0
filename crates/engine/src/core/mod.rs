//! The checkpoint core: rings of slots, the holds on them, the harvest of contiguous prefixes, and the waker.
//!
//! Synchronous and without I/O. It carries I7 (a watermark is the end of the contiguous resolved prefix), I8 (each
//! slot keeps its books) and half of I6 (pending batches are bounded by the ring). It knows no source and no sink.

mod ack;
mod mailbox;
mod ring;
pub(crate) mod sync;
mod waker;

#[cfg(all(test, feature = "loom"))]
mod loom_tests;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use ack::{Ack, AckSet, FailCause};
pub(crate) use mailbox::Mailbox;
pub(crate) use ring::{Books, Counted, Harvester, IssueError, Issuer, ring};
pub(crate) use waker::{Wake, Waker};
