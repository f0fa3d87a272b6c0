//! Channels: named sets of durable, totally ordered partitions.
//!
//! A publish ends in one of three outcomes (I3), decided by one owner per partition tail (I5) after the bytes are
//! as durable as the channel's class says (I1). Reading is by cursor; live and replay are one loop over one order
//! (I2). Queues are bounded in items and bytes and served first come first served (I6, I10).
//!
//! Here too: the channel as the engine sees it, as a source, as a sink and as a place for dead letters.
//! Segments, framing and recovery are `landfall-log`'s; the wire and HTTP are the server's.

mod adaptors;
mod channel;
mod channels;
mod error;
mod options;
mod outcome;
mod record;
mod status;
mod subscription;
mod ticket;

pub use adaptors::{ChannelDeadLetters, ChannelLane, ChannelSink, ChannelSinkOptions, ChannelSource};
pub use channel::{ChainId, Channel, PublishOptions};
pub use channels::{Channels, DrainReport, LeftOver};
pub use error::{OpenError, PublishError, ReadError};
pub use options::{
    Admission, ChannelOptions, Codec, KeyLimits, Limits, OptionError, ProcessOptions, QueueLimits, RecordFormat,
    Retention, RingLimits, SchemaPolicy, TurnLimits, Validate,
};
pub use outcome::{Committed, NotStored, PublishOutcome, Reference, Timings, Unresolved, UnresolvedCause};
pub use record::{Delivered, Header, Parent, Record, Trace};
pub use status::{ChannelStatus, ConsumerStatus, Health, PartitionStatus};
pub use subscription::{Start, SubscribeOptions, Subscription};
pub use ticket::Ticket;
