//! Units on their way into the queue, and what a look at it gave.

use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_log::UnitBody;
use landfall_types::Offset;

use crate::budget::ProcessBudget;
use crate::chain::Link;
use crate::committer::Committer;
use crate::error::PublishError;
use crate::keys::{KeyName, Sequences};
use crate::ticket::TicketCell;

/// What a queued unit costs beside its bytes.
const UNIT_OVERHEAD_BYTES: usize = 256;

/// A unit in the queue, ready to be written.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) cell: TicketCell,
    pub(crate) body: UnitBody,
    pub(crate) chain: Option<Link>,
    pub(crate) expect: Option<Offset>,
    pub(crate) key: Option<(KeyName, u64)>,
    pub(crate) sequences: Option<Sequences>,
    pub(crate) admitted: Instant,
    pub(crate) expires: Instant,
    pub(crate) deadline: Duration,
    /// What it was admitted with; the body may lose records that were stored before.
    pub(crate) bytes: usize,
}

/// Shared by who waits for the answer and who gives it.
pub(crate) type QueuedUnit = Arc<Queued>;

impl Queued {
    /// What it takes of the queue.
    pub(crate) fn cost(&self) -> usize {
        self.bytes + UNIT_OVERHEAD_BYTES
    }

    /// What it takes of the process's budget: a unit above the whole of it goes alone.
    pub(crate) fn permits(&self, total: usize) -> usize {
        self.cost().min(total)
    }
}

/// Units that are handed over together: one reservation, adjacent in the queue.
#[derive(Debug)]
pub(crate) enum Handover {
    One(QueuedUnit),
    Many(Vec<QueuedUnit>),
}

impl Handover {
    pub(crate) fn items(&self) -> usize {
        match self {
            Handover::One(_) => 1,
            Handover::Many(units) => units.len(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Handover::One(unit) => unit.cost(),
            Handover::Many(units) => units.iter().map(|unit| unit.cost()).sum(),
        }
    }

    pub(super) fn permits(&self, process: &ProcessBudget) -> usize {
        match self {
            Handover::One(unit) => unit.permits(process.total()),
            Handover::Many(units) => units.iter().map(|unit| unit.permits(process.total())).sum(),
        }
    }
}

/// What came of a hand-over. `Ok`: the units are queued, and the committer, if it was parked, must be run. `Err`: none is.
pub(crate) type HandedOver = Result<Option<Box<Committer>>, (PublishError, Handover)>;

/// What a look at the queue gave.
#[derive(Debug)]
pub(crate) enum Tried {
    /// Queued; a parked committer has to run now.
    Queued(Option<Box<Committer>>),
    Refused(PublishError, Handover),
    /// Room in the partition, not in the process.
    NoBytes(Handover),
    NoRoom(Handover),
}
