//! One partition of a run: its epoch, its ring's harvest side, its positions, and where it stands when it restarts.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use landfall_types::{Epoch, PartitionId, Place};

use super::Oldest;
use crate::contract::{LaneId, TableId};
use crate::core::{FailCause, Harvester};
use crate::shard::ShardQueue;

/// Where a partition stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// Its lane is with a driver.
    Running,
    /// Its lane is leaving its driver; waits for the arrival.
    Leaving { barrier: u64 },
    /// Its rows are being cleared out of the shards: settled, or given up at the deadline.
    Quiescing { waiting: Vec<(u64, Arc<ShardQueue>)>, deadline: Instant, is_aborted: bool },
    /// The sinks are being asked what they hold.
    Reading { number: u64 },
    /// It starts again at this moment.
    Waiting { until: Instant, is_known: bool },
    /// It is being given up to its source: what is in flight is settled first.
    Revoking,
    /// It was given up to its source, or has ended.
    Gone,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) partition: PartitionId,
    /// The table it is of, for a change source.
    pub(super) table: Option<TableId>,
    pub(super) epoch: Epoch,
    pub(super) phase: Phase,
    pub(super) driver: usize,
    pub(super) lane: LaneId,
    /// None while it restarts.
    pub(super) harvester: Option<Harvester>,
    /// Per sink (0: the chain) the end of what is settled. Never goes back.
    pub(super) watermarks: Vec<Place>,
    /// Per sink, what is durable in the state file.
    pub(super) persisted: Vec<Option<Place>>,
    /// Per sink, the place below which it has everything.
    pub(super) skip: Vec<Place>,
    pub(super) attempts: u32,
    pub(super) cause: Option<FailCause>,
    pub(super) is_blocked: bool,
    /// The range of the last panic, and how often it was met.
    pub(super) panicked: Option<(Range<Place>, u32)>,
    /// What was issued and not settled when it restarted.
    pub(super) left: Option<Range<Place>>,
}

impl Part {
    /// The end of what every sink has, and of what the chain has set aside.
    pub(super) fn watermark(&self) -> Place {
        self.watermarks.iter().copied().min().unwrap_or(Place::START)
    }

    /// Whether nothing that was issued waits.
    pub(super) fn is_settled(&self) -> bool {
        self.harvester.as_ref().is_none_or(Harvester::is_settled)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    pub(super) fn timer(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Quiescing { deadline, is_aborted: false, .. } => Some(*deadline),
            Phase::Waiting { until, .. } => Some(*until),
            _ => None,
        }
    }

    pub(super) fn oldest(&self, sink: usize, now: Instant) -> Option<Oldest> {
        let (range, age) = self.harvester.as_ref()?.oldest(sink, now)?;
        Some(Oldest { partition: self.partition, sink, range, age })
    }
}
