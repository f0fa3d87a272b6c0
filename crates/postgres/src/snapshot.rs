//! The copy of tables as they were at one point of the log (P54 to P56): ranges, workers, progress.
//!
//! Promises: every row of the snapshot once, however often a COPY connection is lost; memory bounded by the channel to
//! the consumer, which holds the workers back when it is slow (I6). It does not parse rows and does not know sinks; who
//! consumes decides what an acked row is.

mod count;
mod interrupted;
mod progress;
mod ranges;
mod run;
mod worker;

pub use count::count_rows;
pub use interrupted::{CopyResume, TargetKind, resume_copy};
pub use progress::{CopyMeter, CopyReport};
pub use ranges::{CopiedRange, CopiedRanges, CopyRange, plan_ranges};
pub use run::{CopyChunk, CopyError, CopyEvent, CopyOptions, CopyRun, CopySnapshot, CopyTable, start_copy};
