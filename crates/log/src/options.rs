//! What a partition's log is told when it is opened.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use landfall_types::{ByteSize, ChannelId, Clock, Durability, Offset, PartitionId, SystemClock};

/// Whose log this is. Stands in every segment header and seeds every checksum, so bytes of another
/// partition never verify (C73).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogIdentity {
    /// The channel.
    pub channel: ChannelId,
    /// The partition.
    pub partition: PartitionId,
}

/// How space is prepared ahead of the committer (C75).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preparation {
    /// The size of a spare file, and the first step.
    pub step_min: ByteSize,
    /// Steps double up to this.
    pub step_max: ByteSize,
    /// Zero-fill while the mean append is below this; only allocate above.
    pub zero_below: ByteSize,
}

impl Default for Preparation {
    fn default() -> Self {
        Preparation { step_min: ByteSize::kib(256), step_max: ByteSize::mib(8), zero_below: ByteSize::kib(512) }
    }
}

/// How far back `open` reports key tags and producer sequences (C46, C79). Zero counts report none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyWindow {
    /// Units older than this are outside.
    pub max_age: Duration,
    /// At most so many key tags.
    pub keys: usize,
    /// At most so many producers.
    pub producers: usize,
}

impl KeyWindow {
    /// No window: `open` reports no tags and no sequences.
    pub const NONE: KeyWindow = KeyWindow { max_age: Duration::ZERO, keys: 0, producers: 0 };
}

/// How a partition's log is opened.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// A segment rolls before it would pass this. 1 MiB to 4 GiB in configuration; the log itself takes less,
    /// down to what one append needs.
    pub segment_bytes: ByteSize,
    /// `Fsync` or `Written`; a channel of class `memory` has no log.
    pub durability: Durability,
    /// Time stamps of headers and marks.
    pub clock: Arc<dyn Clock>,
    /// The largest body of one unit.
    pub unit_bytes_max: ByteSize,
    /// Space preparation.
    pub preparation: Preparation,
    /// What `open` reports of keys and sequences.
    pub key_window: KeyWindow,
    /// The highest offset below which all is known to have been durable, from an ack floor or from the tail of an
    /// earlier run: a durable mark (C78). An open whose tail lies below it stops.
    pub floor: Option<Offset>,
    /// Once true, a scan in progress ends with an error and changes nothing: a shutdown does not wait for it (I11).
    pub stop: Option<Arc<AtomicBool>>,
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions {
            segment_bytes: ByteSize::mib(64),
            durability: Durability::Fsync,
            clock: Arc::new(SystemClock),
            unit_bytes_max: ByteSize(crate::BODY_BYTES_MAX as u64),
            preparation: Preparation::default(),
            key_window: KeyWindow::NONE,
            floor: None,
            stop: None,
        }
    }
}

/// What a writer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// The largest encoded body of one unit.
    pub unit_bytes_max: usize,
    /// The largest append: heads, bodies and padding of all its units.
    pub append_bytes_max: usize,
}
