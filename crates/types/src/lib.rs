//! The words of Landfall as types: ids, units, clocks and error classes.
//!
//! Floor 0: every other crate imports this one and it imports none. It holds newtypes for the numbers that
//! must not be mixed up ([`Offset`], [`Place`], [`PartitionId`], [`Epoch`], [`ByteSize`], [`Timestamp`]), the
//! durability classes of I1, an injectable [`Clock`], and the shape of every error that leaves a crate: a
//! stable [`Code`], a prescriptive [`Kind`] and a [`Retry`]. It does no I/O.

mod causes;
mod clock;
mod code;
mod ids;
mod units;

pub use causes::{root_cause, with_causes};
pub use clock::{Clock, ManualClock, SystemClock};
pub use code::{Code, CodePage, Coded, Kind, Retry};
pub use ids::{ChannelId, Epoch, IdError, Offset, PartitionId, Place, SegmentNumber, TicketNumber};
pub use units::{ByteSize, Durability, ParseUnitError, Timestamp, parse_duration};
