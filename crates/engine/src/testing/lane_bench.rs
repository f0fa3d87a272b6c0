//! Polls a lane without a pipeline: throw-away rings stand behind it, and tell which batches were delivered.

use std::sync::Arc as StdArc;
use std::time::{Duration, Instant};

use landfall_types::{Epoch, PartitionId, Place};
use parking_lot::{Condvar, Mutex};

use crate::contract::{EngineError, LaneWaker, PollLimit, Polled, SourceError, SourceLane};
use crate::core::sync::Arc;
use crate::core::{Harvester, Waker, ring};
use crate::poll::{PollCx, PollSlot};
use crate::{FailCause, SourceBatch};

/// Stands in for a driver. The sinks of its rings are the chain and one sink, and a batch's own hold covers both.
#[derive(Debug)]
pub struct LaneBench {
    slots: Vec<PollSlot>,
    harvesters: Vec<Harvester>,
    waker: LaneWaker,
    woken: StdArc<(Mutex<bool>, Condvar)>,
}

impl LaneBench {
    /// A bench for these partitions, each from its place on.
    pub fn new(at: &[(PartitionId, Place)]) -> Self {
        let controller = Arc::new(Waker::new());
        let (slots, harvesters) = at
            .iter()
            .map(|(partition, place)| {
                let (issuer, harvester) =
                    ring(*partition, Epoch(1), *place, 1024, 1, controller.clone(), Instant::now());
                (PollSlot { issuer, is_open: true }, harvester)
            })
            .unzip();
        let woken = StdArc::new((Mutex::new(false), Condvar::new()));
        let flag = woken.clone();
        let waker = LaneWaker::new(move || {
            *flag.0.lock() = true;
            flag.1.notify_all();
        });
        LaneBench { slots, harvesters, waker, woken }
    }

    /// Polls once; every partition takes a batch. A broken lane contract comes back as the outer error.
    pub fn poll<L: SourceLane>(
        &mut self,
        lane: &mut L,
        limit: PollLimit,
    ) -> Result<Result<Polled, SourceError>, EngineError> {
        self.slots.iter_mut().for_each(|slot| slot.is_open = true);
        let mut cx = PollCx::new(&mut self.slots, &self.waker, Instant::now());
        let polled = lane.poll(&mut cx, limit);
        match cx.broken() {
            Some(error) => Err(error),
            None => Ok(polled),
        }
    }

    /// Waits until the lane has called its waker since the last wait; false if the time ran out.
    pub fn wait(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut woken = self.woken.0.lock();
        while !*woken {
            if self.woken.1.wait_until(&mut woken, deadline).timed_out() {
                return std::mem::take(&mut *woken);
            }
        }
        std::mem::take(&mut *woken)
    }

    /// Polls until there is a batch, the lane has finished (`None`) or the time runs out (an error).
    pub fn next<L: SourceLane>(
        &mut self,
        lane: &mut L,
        limit: PollLimit,
        timeout: Duration,
    ) -> Result<Option<SourceBatch>, String> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.poll(lane, limit).map_err(|error| error.to_string())? {
                Ok(Polled::Batch(batch)) => return Ok(Some(batch)),
                Ok(Polled::Finished) => return Ok(None),
                Ok(Polled::Empty) if self.wait(deadline.saturating_duration_since(Instant::now())) => {}
                Ok(Polled::Empty) => return Err("the lane promised a wake and gave none in time".to_owned()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Delivers a batch everywhere, as if all its rows were durable.
    pub fn deliver(batch: SourceBatch) {
        if let Some(ack) = batch.ack {
            ack.deliver();
        }
    }

    /// The end of the contiguous delivered prefix of a partition.
    pub fn watermark(&mut self, partition: PartitionId) -> Option<Place> {
        let harvester = self.harvesters.iter_mut().find(|harvester| harvester.partition() == partition)?;
        harvester.harvest(|_| {});
        Some(harvester.watermark(0).min(harvester.watermark(1)))
    }

    /// Why the head of a partition failed, if it did.
    pub fn failure(&mut self, partition: PartitionId) -> Option<FailCause> {
        let harvester = self.harvesters.iter_mut().find(|harvester| harvester.partition() == partition)?;
        harvester.harvest(|_| {});
        harvester.cause(1)
    }
}
