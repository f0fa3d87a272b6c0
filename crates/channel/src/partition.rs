//! One partition: what its committer, publishers and readers share.
//!
//! The committer owns the tail (I5); everything here is memory behind short locks, or atomic. What a reader may see
//! is the visible tail alone.

mod damage;

use std::ops::Range;
use std::sync::Arc;

use landfall_types::{ChannelId, Clock, Code, Durability, Offset, PartitionId, with_causes};
use parking_lot::{Mutex, RwLock};

use crate::budget::ProcessBudget;
use crate::committer::{Claimed, Committer};
use crate::error::PublishError;
use crate::floors::Floors;
use crate::intake::{Gate, Intake};
use crate::keys::KeyTable;
use crate::known_tails::KnownTails;
use crate::metrics::PartitionMetrics;
use crate::options::ChannelOptions;
use crate::ring::TailRing;
use crate::status::{Health, PartitionStatus};
use crate::store::{OpenedStore, PartitionReader, PartitionStore, Upkeep};
use crate::tail::VisibleTail;
use crate::threads::{Threads, wake_all};

use self::damage::Damage;

/// Which partition, and what it shares with others.
pub(crate) struct PartitionParts {
    pub(crate) channel: Arc<str>,
    pub(crate) channel_id: ChannelId,
    pub(crate) id: PartitionId,
    pub(crate) options: Arc<ChannelOptions>,
    pub(crate) ring_bytes: usize,
    pub(crate) budget: ProcessBudget,
    pub(crate) threads: Arc<Threads>,
    pub(crate) floors: Arc<Floors>,
    pub(crate) known_tails: Arc<KnownTails>,
    pub(crate) clock: Arc<dyn Clock>,
}

pub(crate) struct Partition {
    pub(crate) channel: Arc<str>,
    pub(crate) channel_id: ChannelId,
    pub(crate) id: PartitionId,
    pub(crate) options: Arc<ChannelOptions>,
    pub(crate) intake: Intake,
    pub(crate) tail: VisibleTail,
    pub(crate) ring: TailRing,
    pub(crate) keys: Mutex<KeyTable>,
    /// What the committer has claimed and not settled: a drain that runs out of time answers it.
    pub(crate) claimed: Mutex<Vec<Claimed>>,
    pub(crate) store: Box<dyn PartitionStore>,
    /// None: the partition never opened.
    reader: RwLock<Option<Arc<dyn PartitionReader>>>,
    upkeep: RwLock<Option<Arc<dyn Upkeep>>>,
    condition: Mutex<Condition>,
    damage: Mutex<Damage>,
    pub(crate) metrics: PartitionMetrics,
    pub(crate) threads: Arc<Threads>,
    pub(crate) floors: Arc<Floors>,
    pub(crate) known_tails: Arc<KnownTails>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partition").field("channel", &self.channel).field("id", &self.id).finish_non_exhaustive()
    }
}

/// What the partition can do, and why not more.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) state: &'static str,
    pub(crate) health: Health,
    pub(crate) cause: Option<Arc<str>>,
}

impl Condition {
    pub(crate) const READY: Condition = Condition { state: "ready", health: Health::Ok, cause: None };
}

impl Partition {
    /// Opens it. One that fails is Stopped: it answers so, and its neighbours serve (C91, I13).
    pub(crate) fn open(parts: PartitionParts, store: Box<dyn PartitionStore>) -> Arc<Partition> {
        let opened = store.open();
        let (tail, keys) = match &opened {
            Ok(opened) => {
                let keys = KeyTable::rebuilt(parts.options.keys, opened.window_start, &opened.tags, &opened.sequences);
                (opened.tail, keys)
            }
            Err(landfall_log::OpenError::Stopped { readable_end, .. }) => {
                (*readable_end, KeyTable::rebuilt(parts.options.keys, *readable_end, &[], &[]))
            }
            Err(_) => (Offset::ZERO, KeyTable::rebuilt(parts.options.keys, Offset::ZERO, &[], &[])),
        };
        let options = &parts.options;
        let metrics = PartitionMetrics::new(&parts.channel, parts.id);
        let partition = Arc::new(Partition {
            intake: Intake::new(parts.id, options.queue, options.admission, parts.budget, metrics.arrivals()),
            tail: VisibleTail::at(tail),
            ring: TailRing::new(options.ring.records, parts.ring_bytes),
            keys: Mutex::new(keys),
            claimed: Mutex::default(),
            store,
            reader: RwLock::new(None),
            upkeep: RwLock::new(None),
            condition: Mutex::new(Condition::READY),
            damage: Mutex::default(),
            metrics,
            channel: parts.channel,
            channel_id: parts.channel_id,
            id: parts.id,
            options: parts.options,
            threads: parts.threads,
            floors: parts.floors,
            known_tails: parts.known_tails,
            clock: parts.clock,
        });
        match opened {
            Ok(opened) => {
                partition.report_opened(&opened);
                let committer = Box::new(partition.adopt(opened));
                if let Some(committer) = partition.intake.park(committer) {
                    partition.threads.commit.submit(committer);
                }
            }
            Err(error) => {
                let cause: Arc<str> = with_causes(&error).into();
                tracing::error!(channel = %partition.channel, partition = %partition.id, code = %landfall_types::Coded::code(&error), cause = %cause, "partition stopped");
                if let landfall_log::OpenError::Stopped { reader, .. } = error {
                    *partition.reader.write() = Some(Arc::new(*reader));
                }
                partition.stop(cause);
            }
        }
        partition
    }

    fn report_opened(&self, opened: &OpenedStore) {
        let (channel, partition) = (&self.channel, self.id);
        let epoch = opened.writer.epoch();
        // A log in memory begins with this process: there is nothing to tell of it.
        if opened.writer.class() != Durability::Memory {
            tracing::info!(%channel, %partition, tail = %opened.tail, %epoch, "partition opened");
        }
        if opened.torn_bytes > 0 || opened.adopted_units > 0 {
            let (torn, adopted) = (opened.torn_bytes, opened.adopted_units);
            tracing::warn!(%channel, %partition, tail = %opened.tail, torn_bytes = torn, adopted_units = adopted, "the last run left an unfinished tail; it was settled");
            self.metrics.opened("landfall_torn_bytes_total", torn);
            self.metrics.opened("landfall_adopted_units_total", adopted);
        }
        for range in &opened.damaged {
            self.note_damage(range.clone());
        }
        for stray in &opened.strays {
            tracing::warn!(%channel, %partition, file = %stray, "not part of the log; left alone");
            self.metrics.opened("landfall_stray_files_total", 1);
        }
    }

    /// Records are damaged: told once for each range, by whoever meets it first (C82, C97, I12).
    pub(crate) fn note_damage(&self, range: Range<Offset>) {
        if !self.damage.lock().note(range.clone()) {
            return;
        }
        let (channel, partition) = (&self.channel, self.id);
        tracing::error!(%channel, %partition, from = %range.start, to = %range.end, code = "LF-CH0051", "records are damaged; readers are told, nothing is deleted");
        self.metrics.opened("landfall_damaged_offsets", range.end.since(range.start));
    }

    /// Takes a store that was just opened into use, at start or after a panic.
    pub(crate) fn adopt(self: &Arc<Self>, opened: OpenedStore) -> Committer {
        *self.reader.write() = Some(Arc::from(opened.reader));
        *self.upkeep.write() = Some(Arc::from(opened.upkeep));
        self.metrics.tail_offset.set(opened.tail.0 as f64);
        self.metrics.log_start_offset.set(self.log_start().0 as f64);
        Committer::new(Arc::clone(self), opened.writer, opened.tail, opened.last_append_time)
    }

    pub(crate) fn reader(&self) -> Option<Arc<dyn PartitionReader>> {
        self.reader.read().clone()
    }

    pub(crate) fn upkeep(&self) -> Option<Arc<dyn Upkeep>> {
        self.upkeep.read().clone()
    }

    pub(crate) fn log_start(&self) -> Offset {
        self.reader().map_or(Offset::ZERO, |reader| reader.log_start())
    }

    pub(crate) fn class(&self) -> Durability {
        self.options.durability
    }

    pub(crate) fn condition(&self) -> Condition {
        self.condition.lock().clone()
    }

    /// The condition as it is shown (C98): a partition that could write is full while capacity has closed its gate, and
    /// degraded while records of it are known to be damaged. Read off gate and log, so it ends with its cause.
    pub(crate) fn standing(&self) -> Condition {
        let condition = self.condition();
        if condition.state != Condition::READY.state {
            return condition;
        }
        if let Some(reason) = self.intake.at_capacity() {
            return Condition { state: "fenced", health: Health::Full, cause: Some(reason.into()) };
        }
        let log_start = self.log_start();
        match self.damage.lock().left(log_start) {
            0 => condition,
            ranges => {
                let cause = format!("{ranges} damaged range(s): reading them is answered LF-CH0051 with their offsets");
                Condition { health: Health::Degraded, cause: Some(cause.into()), ..condition }
            }
        }
    }

    pub(crate) fn set_condition(&self, condition: Condition) {
        *self.condition.lock() = condition;
    }

    /// Nothing is taken any more until it is repaired; reading goes on (C33).
    pub(crate) fn stop(&self, cause: Arc<str>) {
        let closed = PublishError::PartitionStopped { partition: self.id, cause: Arc::clone(&cause) };
        self.stop_with(cause, closed);
    }

    /// The same with another answer for publishers.
    pub(crate) fn stop_with(&self, cause: Arc<str>, closed: PublishError) {
        self.set_condition(Condition { state: "stopped", health: Health::Stopped, cause: Some(cause) });
        self.intake.set_gate(Gate::Closed(closed.clone()));
        for queued in self.intake.take_all() {
            self.refuse(queued, closed.clone());
        }
    }

    /// Answers a queued unit NotStored and gives its room back.
    pub(crate) fn refuse(&self, queued: crate::intake::QueuedUnit, error: PublishError) {
        use crate::ticket::Settlement;
        if let Some((name, _)) = &queued.key {
            self.keys.lock().release(name, &queued);
        }
        if let Some(chain) = &queued.chain {
            chain.break_by(landfall_types::Coded::code(&error));
        }
        self.metrics.not_stored(landfall_types::Coded::code(&error), 1);
        self.metrics.in_flight.decrement(1.0);
        let mut wake = Vec::new();
        queued.cell.settle(Settlement::NotStored(error), &mut wake);
        self.intake.release(1, queued.cost(), queued.permits(self.intake.process_total()));
        wake_all(&mut wake);
    }

    /// A ticket was cancelled by its last holder: it leaves the queue, and its key is free.
    pub(crate) fn forget_cancelled(&self, unit: &crate::intake::QueuedUnit, code: Code) {
        if let Some((name, _)) = &unit.key {
            self.keys.lock().release(name, unit);
        }
        if self.intake.remove(unit) {
            self.count_cancelled(code);
        }
    }

    /// Somebody waits here who relies on being told when it takes long. Where nobody tells, since the runtime that watched has
    /// ended, all are told at once.
    pub(crate) fn watch(&self) {
        if !self.threads.deadlines.arm() {
            self.tell_all();
        }
    }

    /// Everybody who waits looks after their deadline themselves from now on.
    pub(crate) fn tell_all(&self) {
        let mut wake = Vec::new();
        while self.intake.tell(0..u64::MAX, &mut wake).is_none() {
            std::thread::yield_now();
        }
        self.claimed.lock().iter().for_each(|claimed| claimed.queued.cell.tell(&mut wake));
        wake_all(&mut wake);
    }

    pub(crate) fn count_cancelled(&self, code: Code) {
        self.metrics.in_flight.decrement(1.0);
        if code.number() == 22 {
            self.metrics.cancelled.increment(1);
        } else {
            self.metrics.not_stored(code, 1);
        }
    }

    pub(crate) fn status(&self) -> PartitionStatus {
        let condition = self.standing();
        PartitionStatus {
            partition: self.id,
            tail: self.tail.get(),
            log_start: self.log_start(),
            state: condition.state,
            cause: condition.cause.map(|cause| cause.to_string()),
        }
    }
}
