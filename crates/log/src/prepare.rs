//! Space ahead of the writer.

use std::convert::Infallible;
use std::io;

/// Housekeeping of one partition, for a thread of its own: spares, zero-filled space, freeing trimmed segments.
#[derive(Clone, Debug)]
pub struct Preparer {
    never: Infallible,
}

impl Preparer {
    /// Whether there is something to do; a memory-only look.
    pub fn is_due(&self) -> bool {
        match self.never {}
    }

    /// Makes missing spares, extends the prepared space by one step, cuts rolled segments at their end, frees
    /// trimmed ones. Blocks on I/O; safe beside the writer.
    pub fn prepare(&self) -> io::Result<()> {
        match self.never {}
    }
}
