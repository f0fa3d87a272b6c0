//! A partition's queue: reservations, tickets in order, the gate, and the committer while it has nothing to do (C21).
//!
//! One short lock (I5). Bounded in items and bytes (I6): a reservation is taken before a ticket is queued and given back
//! when it is settled. Who waits for room is served in order, up to its own deadline, and gets its payload back (I10).

mod handover;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use landfall_types::PartitionId;
use metrics::{Counter, Gauge};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::budget::ProcessBudget;
use crate::committer::Committer;
use crate::error::PublishError;
use crate::options::{Admission, QueueLimits};
use crate::store::HEAD_BYTES;
use crate::threads::wake_all;

pub(crate) use handover::{HandedOver, Handover, Queued, QueuedUnit, Tried};

/// Whether publishes are taken.
#[derive(Clone, Debug, Default)]
pub(crate) enum Gate {
    #[default]
    Open,
    /// Closed for good, or until it is opened again: the answer is this.
    Closed(PublishError),
}

/// Things to do in a turn beside writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Errands {
    /// See what retention may free.
    pub(crate) retain: bool,
    /// Write a durable mark: the partition has been quiet.
    pub(crate) mark: bool,
    /// Class `written`: sync.
    pub(crate) sync: bool,
}

impl Errands {
    pub(crate) fn any(self) -> bool {
        self != Errands::default()
    }
}

#[derive(Debug)]
pub(crate) struct Intake {
    inside: Mutex<Inside>,
    partition: PartitionId,
    /// Length of the queue, for the committer's look without the lock (C26).
    queued: AtomicUsize,
    limits: QueueLimits,
    admission: Admission,
    process: ProcessBudget,
    counts: Counts,
    /// Told when nothing is queued or claimed any more.
    pub(crate) emptied: Notify,
}

#[derive(Default)]
struct Inside {
    /// Each with its number: how many were queued before it.
    tickets: VecDeque<(u64, QueuedUnit)>,
    handed_over: u64,
    /// Units are between the queue and the list of what is claimed.
    is_judging: bool,
    /// Not counted in the metrics yet.
    arrived: Arrived,
    /// Reserved: queued, claimed, or granted to someone who is about to queue.
    items: usize,
    bytes: usize,
    waiting: VecDeque<Arc<Room>>,
    gate: Gate,
    /// Since when an append is not settled.
    uncertain_since: Option<Instant>,
    parked: Option<Box<Committer>>,
    errands: Errands,
}

impl std::fmt::Debug for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside").field("items", &self.items).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Units that were queued.
#[derive(Debug, Default)]
struct Arrived {
    items: u64,
    bytes: u64,
}

/// Where they are counted: once a turn, since a counter that all publishers share costs each of them more than its lock.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) accepted: Counter,
    pub(crate) in_flight: Gauge,
    pub(crate) items: Counter,
    pub(crate) bytes: Counter,
}

impl Counts {
    fn add(&self, arrived: &mut Arrived) {
        let Arrived { items, bytes } = std::mem::take(arrived);
        if items > 0 {
            self.accepted.increment(items);
            self.in_flight.increment(items as f64);
            self.items.increment(items);
            self.bytes.increment(bytes);
        }
    }
}

/// What may still be claimed in a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnRoom {
    pub(crate) records: u32,
    pub(crate) bytes: usize,
    /// Nothing is claimed yet.
    pub(crate) is_untouched: bool,
}

/// What a look at the queue found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    /// How many were ever queued.
    pub(crate) handed_over: u64,
    pub(crate) is_waiting: bool,
}

/// Someone's place in the line for room.
#[derive(Debug)]
struct Room {
    items: usize,
    bytes: usize,
    grant: Mutex<(Granted, Option<Waker>)>,
}

#[derive(Clone, Debug)]
enum Granted {
    No,
    Yes,
    Refused(PublishError),
}

/// How long an append may be uncertain before new publishes are refused at once (C33).
const UNCERTAIN_GRACE: Duration = Duration::from_secs(2);

impl Intake {
    pub(crate) fn new(
        partition: PartitionId,
        limits: QueueLimits,
        admission: Admission,
        process: ProcessBudget,
        counts: Counts,
    ) -> Self {
        Intake {
            partition,
            inside: Mutex::default(),
            queued: AtomicUsize::new(0),
            limits,
            admission,
            process,
            counts,
            emptied: Notify::new(),
        }
    }

    /// The most bytes that one hand-over may cost.
    pub(crate) fn handover_bytes_max(&self) -> usize {
        self.limits.bytes.as_usize().min(self.process.total() / 2)
    }

    /// The most items that one hand-over may have.
    pub(crate) fn handover_items_max(&self) -> usize {
        self.limits.items as usize
    }

    /// Length of the queue.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Goes on from the first look: queues the units, after waiting for room in line if need be.
    pub(crate) async fn wait_to_hand_over(&self, tried: Tried, by: Instant, deadline: Duration) -> HandedOver {
        let units = match tried {
            Tried::Queued(committer) => return Ok(committer),
            Tried::Refused(error, units) => return Err((error, units)),
            Tried::NoBytes(units) if self.admission == Admission::Reject => {
                let what = format!("process.channels.queued_bytes: {}", self.process.total());
                return Err((PublishError::QueueFull { partition: self.partition, what }, units));
            }
            Tried::NoRoom(units) if self.admission == Admission::Reject => {
                let what = format!("queue: {} units or {}", self.limits.items, self.limits.bytes);
                return Err((PublishError::QueueFull { partition: self.partition, what }, units));
            }
            Tried::NoBytes(units) | Tried::NoRoom(units) => {
                if let Err(error) = self.wait_for_room(&units, by, deadline).await {
                    return Err((error, units));
                }
                units
            }
        };
        // From here on room in the partition is ours; the guard gives it back if this future is dropped.
        let mut room = RoomGuard { intake: self, items: units.items(), bytes: units.bytes() };
        let permits = units.permits(&self.process);
        if !self.process.take_by(permits, by.into()).await {
            return Err((PublishError::DeadlineBeforeClaim { deadline }, units));
        }
        let mut inside = self.inside.lock();
        if let Err(error) = inside.check_gate(self) {
            drop(inside);
            self.process.give_back(permits);
            return Err((error, units));
        }
        (room.items, room.bytes) = (0, 0);
        Ok(self.push(&mut inside, units))
    }

    /// Queues the units if there is room now and nobody is in line before them.
    pub(crate) fn try_hand_over(&self, units: Handover) -> Tried {
        let (items, bytes) = (units.items(), units.bytes());
        let mut inside = self.inside.lock();
        if let Err(error) = inside.check_gate(self) {
            return Tried::Refused(error, units);
        }
        if !inside.waiting.is_empty() || !self.fits(&inside, items, bytes) {
            return Tried::NoRoom(units);
        }
        if !self.process.try_take(units.permits(&self.process)) {
            return Tried::NoBytes(units);
        }
        inside.items += items;
        inside.bytes += bytes;
        Tried::Queued(self.push(&mut inside, units))
    }

    fn fits(&self, inside: &Inside, items: usize, bytes: usize) -> bool {
        inside.items == 0
            || (inside.items + items <= self.limits.items as usize
                && inside.bytes + bytes <= self.limits.bytes.as_usize())
    }

    /// The reservation is there; cancelled tickets are left out and their room comes back with the next claim.
    fn push(&self, inside: &mut Inside, units: Handover) -> Option<Box<Committer>> {
        match units {
            Handover::One(unit) => inside.queue(unit),
            Handover::Many(units) => units.into_iter().for_each(|unit| inside.queue(unit)),
        }
        self.queued.store(inside.tickets.len(), Ordering::Relaxed);
        inside.parked.take()
    }

    async fn wait_for_room(&self, units: &Handover, by: Instant, deadline: Duration) -> Result<(), PublishError> {
        let grant = Mutex::new((Granted::No, None));
        let room = Arc::new(Room { items: units.items(), bytes: units.bytes(), grant });
        {
            let mut inside = self.inside.lock();
            inside.check_gate(self)?;
            inside.waiting.push_back(Arc::clone(&room));
        }
        // Room may have come back between the look and the place in line.
        self.grant();
        let mut place = PlaceInLine { intake: self, room: &room, is_over: false };
        let granted = poll_fn(|cx| {
            let mut grant = room.grant.lock();
            match &grant.0 {
                Granted::No => {
                    grant.1 = Some(cx.waker().clone());
                    Poll::Pending
                }
                other => Poll::Ready(other.clone()),
            }
        });
        match tokio::time::timeout_at(by.into(), granted).await {
            Ok(Granted::Refused(error)) => {
                place.is_over = true;
                Err(error)
            }
            Ok(_) => {
                place.is_over = true;
                Ok(())
            }
            Err(_) => Err(PublishError::DeadlineBeforeClaim { deadline }),
        }
    }

    /// Serves the line, as far as there is room.
    fn grant(&self) {
        let mut wake = Vec::new();
        let mut inside = self.inside.lock();
        while let Some(room) = inside.waiting.front() {
            if !self.fits(&inside, room.items, room.bytes) {
                break;
            }
            let Some(room) = inside.waiting.pop_front() else { break };
            inside.items += room.items;
            inside.bytes += room.bytes;
            let mut grant = room.grant.lock();
            grant.0 = Granted::Yes;
            wake.extend(grant.1.take());
        }
        drop(inside);
        wake_all(&mut wake);
    }

    /// Gives room back. `process_bytes`: how much of it was taken from the process's budget too.
    pub(crate) fn release(&self, items: usize, bytes: usize, process_bytes: usize) {
        let (is_awaited, is_empty) = {
            let mut inside = self.inside.lock();
            inside.items = inside.items.saturating_sub(items);
            inside.bytes = inside.bytes.saturating_sub(bytes);
            (!inside.waiting.is_empty(), inside.items == 0)
        };
        self.process.give_back(process_bytes);
        if is_awaited {
            self.grant();
        }
        if is_empty {
            self.emptied.notify_waiters();
        }
    }

    /// Whether anything is queued, claimed or about to be queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.inside.lock().items == 0
    }

    /// Takes the errands.
    pub(crate) fn take_errands(&self) -> Errands {
        std::mem::take(&mut self.inside.lock().errands)
    }

    /// Takes units in order while the turn has room, the first one in any case. True: one is left for which it has none.
    pub(crate) fn claim(&self, room: &mut TurnRoom, into: &mut Vec<(u64, QueuedUnit)>) -> bool {
        let mut inside = self.inside.lock();
        self.counts.add(&mut inside.arrived);
        let mut is_full = false;
        while let Some((_, next)) = inside.tickets.front() {
            let (records, bytes) = (next.body.records(), next.body.encoded_len() + HEAD_BYTES);
            is_full = !room.is_untouched && (records > room.records || bytes > room.bytes);
            if is_full {
                break;
            }
            room.records = room.records.saturating_sub(records);
            room.bytes = room.bytes.saturating_sub(bytes);
            room.is_untouched = false;
            into.extend(inside.tickets.pop_front());
        }
        inside.is_judging = !into.is_empty();
        self.queued.store(inside.tickets.len(), Ordering::Relaxed);
        is_full
    }

    /// Puts units back that were claimed last, given from the last one on.
    pub(crate) fn put_back(&self, units: impl Iterator<Item = (u64, QueuedUnit)>) {
        let mut inside = self.inside.lock();
        units.for_each(|unit| inside.tickets.push_front(unit));
        self.queued.store(inside.tickets.len(), Ordering::Relaxed);
    }

    /// What was claimed is in the list of the claimed, or answered.
    pub(crate) fn judged(&self) {
        self.inside.lock().is_judging = false;
    }

    /// Tells the tickets with these numbers that they have waited for long. `None`: some are between queue and claim, and
    /// nobody is told.
    pub(crate) fn tell(&self, numbers: Range<u64>, wake: &mut Vec<Waker>) -> Option<Queue> {
        let mut inside = self.inside.lock();
        self.counts.add(&mut inside.arrived);
        if inside.is_judging {
            return None;
        }
        let from = inside.tickets.partition_point(|(number, _)| *number < numbers.start);
        let told = inside.tickets.range(from..).take_while(|(number, _)| *number < numbers.end);
        told.for_each(|(_, unit)| unit.cell.tell(wake));
        Some(Queue { handed_over: inside.handed_over, is_waiting: !inside.tickets.is_empty() })
    }

    /// Takes a cancelled ticket out; true if it was still queued, and its room is given back.
    pub(crate) fn remove(&self, unit: &QueuedUnit) -> bool {
        let removed = {
            let mut inside = self.inside.lock();
            let at = inside.tickets.iter().position(|(_, queued)| Arc::ptr_eq(queued, unit));
            let removed = at.and_then(|at| inside.tickets.remove(at)).map(|(_, unit)| unit);
            self.counts.add(&mut inside.arrived);
            self.queued.store(inside.tickets.len(), Ordering::Relaxed);
            removed
        };
        if let Some(queued) = &removed {
            self.release(1, queued.cost(), queued.permits(self.process.total()));
        }
        removed.is_some()
    }

    /// Everything that is queued, for a drain that has run out of time.
    pub(crate) fn take_all(&self) -> Vec<QueuedUnit> {
        let mut inside = self.inside.lock();
        self.queued.store(0, Ordering::Relaxed);
        self.counts.add(&mut inside.arrived);
        inside.tickets.drain(..).map(|(_, unit)| unit).collect()
    }

    /// Leaves the committer here until there is work; gives it back if there is some already.
    pub(crate) fn park(&self, committer: Box<Committer>) -> Option<Box<Committer>> {
        let mut inside = self.inside.lock();
        if inside.tickets.is_empty() && !inside.errands.any() {
            inside.parked = Some(committer);
            return None;
        }
        Some(committer)
    }

    /// Leaves the committer here whatever waits, for who closes the partition.
    pub(crate) fn park_always(&self, committer: Box<Committer>) {
        self.inside.lock().parked = Some(committer);
    }

    /// Takes the committer out for good.
    pub(crate) fn unpark(&self) -> Option<Box<Committer>> {
        self.inside.lock().parked.take()
    }

    /// Adds errands for the next turn; gives the committer if it was parked.
    pub(crate) fn errand(&self, add: impl FnOnce(&mut Errands)) -> Option<Box<Committer>> {
        let mut inside = self.inside.lock();
        add(&mut inside.errands);
        inside.parked.take()
    }

    /// Forgets the errands, for a partition that does none any more.
    pub(crate) fn drop_errands(&self) {
        self.inside.lock().errands = Errands::default();
    }

    /// Opens or closes the gate. Who waits for room at a closed gate is answered at once.
    pub(crate) fn set_gate(&self, gate: Gate) {
        self.change_gate(gate, |_| true);
    }

    /// The same if the gate is as `when` wants it; look and change are one step.
    fn change_gate(&self, gate: Gate, when: impl Fn(&Gate) -> bool) {
        let mut wake = Vec::new();
        {
            let mut inside = self.inside.lock();
            if !when(&inside.gate) {
                return;
            }
            if let Gate::Closed(error) = &gate {
                for room in std::mem::take(&mut inside.waiting) {
                    let mut grant = room.grant.lock();
                    grant.0 = Granted::Refused(error.clone());
                    wake.extend(grant.1.take());
                }
            }
            inside.gate = gate;
        }
        wake_all(&mut wake);
    }

    /// Closes an open gate; one that is closed already keeps its answer.
    pub(crate) fn close_if_open_with(&self, gate: Gate) {
        self.change_gate(gate, |own| matches!(own, Gate::Open));
    }

    pub(crate) fn close_if_open(&self, error: PublishError) {
        self.close_if_open_with(Gate::Closed(error));
    }

    /// Bytes of the process's budget in use.
    pub(crate) fn process_used(&self) -> usize {
        self.process.used()
    }

    pub(crate) fn process_total(&self) -> usize {
        self.process.total()
    }

    /// Opens a gate that `is_own` closed; another's closing stays.
    pub(crate) fn reopen_gate(&self, is_own: impl Fn(&PublishError) -> bool) {
        let mut inside = self.inside.lock();
        if matches!(&inside.gate, Gate::Closed(error) if is_own(error)) {
            inside.gate = Gate::Open;
        }
    }

    /// Why capacity has closed the gate, if it has.
    pub(crate) fn at_capacity(&self) -> Option<String> {
        match &self.inside.lock().gate {
            Gate::Closed(PublishError::AtCapacity { reason, .. }) => Some(reason.clone()),
            _ => None,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.inside.lock().gate, Gate::Open)
    }

    /// An append is not settled since, or is settled.
    pub(crate) fn set_uncertain(&self, since: Option<Instant>) {
        self.inside.lock().uncertain_since = since;
    }
}

impl Inside {
    fn queue(&mut self, unit: QueuedUnit) {
        unit.cell.queue();
        self.arrived.items += 1;
        self.arrived.bytes += unit.bytes as u64;
        self.tickets.push_back((self.handed_over, unit));
        self.handed_over += 1;
    }

    fn check_gate(&self, intake: &Intake) -> Result<(), PublishError> {
        if let Gate::Closed(error) = &self.gate {
            return Err(error.clone());
        }
        // A partition that cannot go on must not take the process's budget from its neighbours (I13).
        let is_scarce = || intake.process.used() > intake.process.total() / 2;
        match self.uncertain_since.map(|since| since.elapsed()) {
            Some(since) if since > UNCERTAIN_GRACE || is_scarce() => {
                Err(PublishError::PartitionUncertain { partition: intake.partition, since })
            }
            _ => Ok(()),
        }
    }
}

struct RoomGuard<'a> {
    intake: &'a Intake,
    items: usize,
    bytes: usize,
}

impl Drop for RoomGuard<'_> {
    fn drop(&mut self) {
        if self.items > 0 {
            self.intake.release(self.items, self.bytes, 0);
        }
    }
}

struct PlaceInLine<'a> {
    intake: &'a Intake,
    room: &'a Arc<Room>,
    is_over: bool,
}

impl Drop for PlaceInLine<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let was_waiting = {
            let mut inside = self.intake.inside.lock();
            let before = inside.waiting.len();
            inside.waiting.retain(|room| !Arc::ptr_eq(room, self.room));
            inside.waiting.len() < before
        };
        if was_waiting {
            // Who stood behind may fit where this one did not.
            self.intake.grant();
        } else if matches!(self.room.grant.lock().0, Granted::Yes) {
            self.intake.release(self.room.items, self.room.bytes, 0);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
