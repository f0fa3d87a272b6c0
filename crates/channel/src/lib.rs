//! Channels: named sets of durable, totally ordered partitions.
//!
//! A publish ends in one of three outcomes (I3), decided by one owner per partition tail (I5) after the bytes are
//! as durable as the channel's class says (I1). Reading is by cursor; live and replay are one loop over one order
//! (I2). Queues are bounded in items and bytes and served first come first served (I6, I10).
//!
//! Here too: the channel as the engine sees it, as a source, as a sink and as a place for dead letters.
//! Segments, framing and recovery are `landfall-log`'s; the wire and HTTP are the server's.

mod adaptors;
mod budget;
mod chain;
mod channel;
mod channels;
mod codes;
mod committer;
mod envelope;
mod error;
mod floors;
mod identity;
mod intake;
mod keys;
mod known_tails;
mod metrics;
mod options;
mod outcome;
mod partition;
mod record;
mod ring;
mod schemas;
mod status;
mod store;
mod subscription;
mod tail;
mod threads;
mod ticket;

pub use adaptors::{
    ChangesOf, ChannelDeadLetters, ChannelLane, ChannelSink, ChannelSinkOptions, ChannelSource, ChannelWriter,
};
pub use chain::ChainId;
pub use channel::{Channel, PublishOptions};
pub use channels::{Channels, DrainReport, LeftOver};
pub use codes::CODES;
pub use error::{OpenError, PublishError, ReadError};
pub use keys::Sequences;
pub use options::{
    Admission, ChannelOptions, Codec, KeyLimits, Limits, OptionError, ProcessOptions, QueueLimits, RecordFormat,
    Retention, RingLimits, SchemaPolicy, TurnLimits, Validate,
};
pub use outcome::{Committed, NotStored, PublishOutcome, Reference, Timings, Unresolved, UnresolvedCause};
pub use record::{Delivered, Header, Parent, Record, Trace};
pub use schemas::SchemaError;
pub use status::{ChannelStatus, ConsumerStatus, Health, PartitionStatus};
pub use subscription::{OnGap, Start, SubscribeOptions, Subscription};
pub use ticket::Ticket;
