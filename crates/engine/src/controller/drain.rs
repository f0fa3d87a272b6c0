//! Bounded shutdown (E74, I11): stop reading → drivers hand over what they have → workers seal, write and settle →
//! harvest, persist, commit → end. Each step has its deadline; what did not finish is named and left uncommitted.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{Controller, RunEnd};
use crate::codes;
use crate::contract::Source;
use crate::core::{FailCause, Wake};
use crate::driver::Command;
use crate::exit::UnfinishedRange;
use crate::shard::Urgency;
use crate::sight::PipelineState;

#[derive(Debug)]
enum Step {
    /// Drivers hand over; waits for their arrivals.
    Drivers { barrier: u64, waiting: BTreeSet<usize>, deadline: Instant },
    /// Workers settle; waits for their ends.
    Workers { deadline: Instant },
    /// The last harvest and commit.
    Commit,
}

/// A shutdown in progress.
#[derive(Debug)]
pub(super) struct Drain {
    step: Step,
    deadline: Instant,
    workers_by: Instant,
}

impl Drain {
    pub(super) fn next_deadline(&self, now: Instant) -> Instant {
        match &self.step {
            Step::Drivers { deadline, .. } | Step::Workers { deadline } => *deadline,
            Step::Commit => now,
        }
    }
}

impl<S: Source> Controller<'_, S> {
    /// Begins a shutdown that ends by `deadline`, `grace` after it was asked for.
    pub(super) fn start_drain(&mut self, deadline: Instant, grace: Duration, now: Instant) {
        self.cx.shared.set_state(PipelineState::Draining, None);
        self.source.stop_reading();
        let total = deadline.saturating_duration_since(now).min(grace.max(Duration::from_millis(1)));
        let drivers_by = now + total.mul_f64(0.4);
        let reserve = Duration::from_secs(2).min(total / 2);
        let workers_by = deadline.checked_sub(reserve).unwrap_or(deadline).max(drivers_by);
        let barrier = self.number();
        let mut waiting = BTreeSet::new();
        for (driver, seat) in self.cx.drivers.iter().enumerate().filter(|(_, seat)| !seat.has_ended) {
            waiting.insert(driver);
            seat.commands.post(Command::Drain { deadline: drivers_by, barrier });
        }
        self.drain =
            Some(Drain { step: Step::Drivers { barrier, waiting, deadline: drivers_by }, deadline, workers_by });
    }

    pub(super) fn drain_arrived(&mut self, driver: usize, barrier: u64) {
        if let Some(Drain { step: Step::Drivers { barrier: asked, waiting, .. }, .. }) = &mut self.drain
            && *asked == barrier
        {
            waiting.remove(&driver);
        }
    }

    pub(super) fn step_drain(&mut self, now: Instant) {
        // A driver has its own deadline; one that does not arrive soon after it is stuck in user code.
        const LATE: Duration = Duration::from_millis(500);
        let workers_ended = self.all_workers_ended();
        let letters_ended = self.letters_ended;
        let queues: Vec<_> = match &self.drain {
            Some(_) => self.every_sink().flat_map(|(_, _, sink)| sink.queues.iter().cloned()).collect(),
            None => Vec::new(),
        };
        let Some(drain) = &mut self.drain else {
            self.end_of_bounded_source(now);
            return;
        };
        match &drain.step {
            Step::Drivers { waiting, deadline, .. } => {
                let is_late = now >= (*deadline + LATE).min(drain.workers_by.max(*deadline));
                if waiting.is_empty() || is_late {
                    for driver in waiting {
                        tracing::error!(
                            code = %codes::DRAIN_DEADLINE, pipeline = %self.cx.pipeline, driver,
                            "a driver did not hand over in time and is left behind"
                        );
                        self.cx.drivers[*driver].commands.waker().wake(Wake::STOP);
                    }
                    let left = drain.workers_by.saturating_duration_since(now);
                    let by = tokio::time::Instant::now() + left;
                    queues.iter().for_each(|queue| queue.urge(Urgency::Drain(by)));
                    if let Some(letters) = &self.cx.letters {
                        letters.close();
                    }
                    drain.step = Step::Workers { deadline: drain.workers_by };
                }
            }
            Step::Workers { deadline } => {
                let is_over = now >= *deadline + LATE;
                if (workers_ended && (letters_ended || now >= *deadline)) || is_over {
                    drain.step = Step::Commit;
                    self.waker.wake(Wake::CONTROL);
                }
            }
            Step::Commit => {}
        }
    }

    /// A bounded source that has nothing left drains by itself once everything is settled (E76).
    fn end_of_bounded_source(&mut self, now: Instant) {
        let waits = self.waiting_partitions().next().is_some();
        if !self.is_drained || waits || !self.parts.values().all(|part| part.is_running() || part.harvester.is_some()) {
            return;
        }
        let grace = Duration::from_secs(25);
        self.start_drain(now + grace, grace, now);
    }

    /// The end of a drain, once its last step is reached.
    pub(super) fn drain_end(&mut self, now: Instant) -> Option<RunEnd> {
        let drain = self.drain.as_ref()?;
        if !matches!(drain.step, Step::Commit) {
            return None;
        }
        let deadline = drain.deadline.max(now + Duration::from_millis(100));
        self.harvest();
        let is_committed = self.commit_last(deadline);
        let unfinished = self.unfinished();
        let cause = match (is_committed, self.commit.cause.clone()) {
            (true, _) => None,
            (false, Some(cause)) => Some(cause),
            (false, None) => Some(FailCause::new(codes::DRAIN_DEADLINE, "the last commit did not end in time")),
        };
        for range in &unfinished {
            tracing::error!(
                code = %codes::DRAIN_DEADLINE, pipeline = %self.cx.pipeline, partition = range.partition,
                sink = range.sink.as_deref().unwrap_or("dead letters"), from = range.from, to = range.to,
                "left unsettled at shutdown, and uncommitted: {}", range.cause
            );
        }
        Some(RunEnd::Drained { unfinished, cause })
    }

    fn unfinished(&self) -> Vec<UnfinishedRange> {
        let mut ranges = Vec::new();
        for part in self.parts.values() {
            for sink in 0..part.watermarks.len() {
                let name = sink.checked_sub(1).map(|sink| self.cx.heads[sink].name.to_string());
                let (range, cause) = match &part.harvester {
                    Some(harvester) => {
                        let Some(range) = harvester.unsettled(sink) else { continue };
                        (range, harvester.cause(sink))
                    }
                    None => {
                        let Some(left) = part.left.clone().filter(|left| part.watermarks[sink] < left.end) else {
                            continue;
                        };
                        (part.watermarks[sink].max(left.start)..left.end, part.cause.clone())
                    }
                };
                let blocked = sink
                    .checked_sub(1)
                    .and_then(|sink| self.sinks_of(part.table).get(sink))
                    .and_then(|sink| sink.views.iter().find_map(|view| view.failure_text()));
                ranges.push(UnfinishedRange {
                    partition: part.partition.0,
                    sink: name,
                    from: range.start.at,
                    to: range.end.at,
                    cause: blocked
                        .or_else(|| cause.map(|cause| cause.to_string()))
                        .unwrap_or_else(|| "the drain's deadline passed".to_owned()),
                });
            }
        }
        // Of a table that could not be opened nothing was read, and nothing is settled. One that was about to open lost
        // nothing by the end.
        ranges.extend(self.waiting_partitions().filter_map(|(partition, table, cause)| {
            Some(UnfinishedRange {
                partition: partition.0,
                sink: self.cx.heads.first().map(|head| head.name.to_string()),
                from: 0,
                to: 0,
                cause: format!("table `{}` could not be opened: {}", table.name, cause?),
            })
        }));
        ranges
    }
}
