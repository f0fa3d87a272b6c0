//! A running capture: the engine's source over one slot (P1).
//!
//! Tasks connect, copy and decode; the lane and the controller take what they made without waiting. The record that is
//! stored with the watermarks is the only thing that survives, and what it does not hold the server is not told (I7).

mod arrivals;
mod catalog_watch;
mod copies;
mod copy;
mod decoder;
mod handover;
mod lane;
mod moves;
mod options;
mod orders;
mod progress;
mod report;
mod reshape;
mod rounds;
mod shared;
mod source;
mod starts;
mod stream;
mod table;
mod task;

pub use lane::PostgresLane;
pub use options::{CaptureOptions, TableChoice, identity_of};
pub use orders::Orders;
pub use source::PostgresSource;
