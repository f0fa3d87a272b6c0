//! What stands between a chain and a worker: segments of rows with their covers and holds, chunks of them, and the
//! bounded queue of a shard with its share of memory (I6).

mod queue;
mod segment;

#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub(crate) use queue::{Charge, Full, ShardQueue, ShareLimits, Urgency};
pub(crate) use segment::{Chunk, Segment, compacted, memory_of};
