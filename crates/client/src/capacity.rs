//! The budget of records and bytes in flight, and the line of those who wait for room (I6, I10).
//!
//! Each sub-stream owns a floor of 1/(2N) of both measures; the other half is common. A call fits if what it
//! needs beyond its sub-stream's floor fits the common rest, in both measures, so stuck sub-streams cannot
//! take a healthy one's floor. Waiters stand in arrival order per target (any sub-stream, or one); a release
//! looks at the heads, oldest first, and a head that is short of common room bars everyone younger from it. A
//! newcomer passes nobody. A waiter is one entry from start to end.
//!
//! Synchronous, without a clock: the caller holds it in a short mutex, and wakes what it returns after
//! letting the mutex go. Nothing is sized to the limit.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

use crate::error::Load;

/// Where a call may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The lighter of two, or any that has room.
    Any,
    /// This one alone.
    One(u16),
}

/// How a sub-stream stands with new calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Sending.
    Open,
    /// Reconnecting: chosen last.
    Recovering,
    /// Given up for now: chosen never, except by name.
    Lost,
}

/// A place in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    target: Target,
    arrival: u64,
}

/// What a waiter sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Still in line.
    Pending,
    /// Room on this sub-stream is the waiter's; its place is gone.
    Granted(u16),
    /// The line is closed; its place is gone.
    Ended,
}

#[derive(Debug)]
struct Waiter {
    load: Load,
    waker: Waker,
}

/// The budget and the line.
#[derive(Debug)]
pub(crate) struct CapacityQueue {
    limits: Load,
    floor: Load,
    common: Load,
    common_used: Load,
    used: Vec<Load>,
    standing: Vec<Standing>,
    /// One line per sub-stream, and last the line of those who take any.
    lines: Vec<BTreeMap<u64, Waiter>>,
    granted: HashMap<u64, u16>,
    waiting: usize,
    arrivals: u64,
    turn: usize,
    random: u64,
    closed: bool,
}

impl CapacityQueue {
    /// A budget for `sub_streams` ≥ 1. `seed` varies the choice between two sub-streams.
    pub(crate) fn new(limits: Load, sub_streams: u16, seed: u64) -> Self {
        let n = u64::from(sub_streams.max(1));
        let floor = Load { records: limits.records / (2 * n), bytes: limits.bytes / (2 * n) };
        let common = Load { records: limits.records - floor.records * n, bytes: limits.bytes - floor.bytes * n };
        let n = usize::from(sub_streams.max(1));
        CapacityQueue {
            limits,
            floor,
            common,
            common_used: Load::default(),
            used: vec![Load::default(); n],
            standing: vec![Standing::Open; n],
            lines: (0..=n).map(|_| BTreeMap::new()).collect(),
            granted: HashMap::new(),
            waiting: 0,
            arrivals: 0,
            turn: 0,
            random: seed | 1,
            closed: false,
        }
    }

    /// The whole budget.
    pub(crate) fn limits(&self) -> Load {
        self.limits
    }

    /// What is taken of it.
    pub(crate) fn in_flight(&self) -> Load {
        self.used.iter().fold(Load::default(), |sum, used| Load {
            records: sum.records + used.records,
            bytes: sum.bytes + used.bytes,
        })
    }

    /// How many stand in line.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Takes room at once, or not at all: never past a waiter of the same target, nor past one that is short of
    /// common room.
    pub(crate) fn try_reserve(&mut self, target: Target, load: Load) -> Option<u16> {
        if self.closed || !self.lines[self.line_of(target)].is_empty() {
            return None;
        }
        let sub_stream = self.choose(target, load, self.waiting > 0)?;
        self.take(sub_stream, load);
        Some(sub_stream)
    }

    /// Stands in line; `None` if it is closed. A waiter that comes back keeps the place it had.
    /// It may be served at once, so the caller polls next.
    pub(crate) fn enter(
        &mut self,
        target: Target,
        load: Load,
        again: Option<Place>,
        waker: Waker,
        woken: &mut Vec<Waker>,
    ) -> Option<Place> {
        if self.closed {
            return None;
        }
        let arrival = again.map_or_else(
            || {
                self.arrivals += 1;
                self.arrivals
            },
            |place| place.arrival,
        );
        let line = self.line_of(target);
        self.lines[line].insert(arrival, Waiter { load, waker });
        self.waiting += 1;
        self.serve(woken);
        Some(Place { target, arrival })
    }

    /// What became of a waiter.
    pub(crate) fn poll(&mut self, place: Place, waker: &Waker) -> Wait {
        if let Some(sub_stream) = self.granted.remove(&place.arrival) {
            return Wait::Granted(sub_stream);
        }
        let line = self.line_of(place.target);
        match self.lines[line].get_mut(&place.arrival) {
            Some(waiter) => {
                waiter.waker.clone_from(waker);
                Wait::Pending
            }
            None => Wait::Ended,
        }
    }

    /// Leaves the line. A grant that came first is returned: it is the caller's to use or to release.
    pub(crate) fn leave(&mut self, place: Place, woken: &mut Vec<Waker>) -> Option<u16> {
        if let Some(sub_stream) = self.granted.remove(&place.arrival) {
            return Some(sub_stream);
        }
        let line = self.line_of(place.target);
        if self.lines[line].remove(&place.arrival).is_some() {
            self.waiting -= 1;
            // It may have been the head that barred the others.
            self.serve(woken);
        }
        None
    }

    /// Gives room back and serves the line.
    pub(crate) fn release(&mut self, sub_stream: u16, load: Load, woken: &mut Vec<Waker>) {
        let index = usize::from(sub_stream);
        let before = excess(self.used[index], self.floor);
        let used = &mut self.used[index];
        used.records = used.records.saturating_sub(load.records);
        used.bytes = used.bytes.saturating_sub(load.bytes);
        let after = excess(self.used[index], self.floor);
        self.common_used.records -= before.records - after.records;
        self.common_used.bytes -= before.bytes - after.bytes;
        self.serve(woken);
    }

    /// Tells how a sub-stream stands.
    pub(crate) fn set_standing(&mut self, sub_stream: u16, standing: Standing, woken: &mut Vec<Waker>) {
        self.standing[usize::from(sub_stream)] = standing;
        self.serve(woken);
    }

    /// Whether no sub-stream takes new calls.
    pub(crate) fn all_lost(&self) -> bool {
        self.standing.iter().all(|standing| *standing == Standing::Lost)
    }

    /// How a sub-stream stands.
    pub(crate) fn standing(&self, sub_stream: u16) -> Standing {
        self.standing[usize::from(sub_stream)]
    }

    /// Ends the line: every waiter wakes, oldest first, and sees [`Wait::Ended`].
    pub(crate) fn close(&mut self, woken: &mut Vec<Waker>) {
        self.closed = true;
        self.waiting = 0;
        let mut all = BTreeMap::new();
        for line in &mut self.lines {
            all.append(line);
        }
        woken.extend(all.into_values().map(|waiter| waiter.waker));
    }

    /// Bytes in flight of one sub-stream.
    #[cfg(test)]
    pub(crate) fn used(&self, sub_stream: u16) -> Load {
        self.used[usize::from(sub_stream)]
    }

    fn line_of(&self, target: Target) -> usize {
        match target {
            Target::One(sub_stream) => usize::from(sub_stream),
            Target::Any => self.used.len(),
        }
    }

    fn serve(&mut self, woken: &mut Vec<Waker>) {
        while self.waiting > 0 && !self.closed {
            let mut heads: Vec<(u64, usize, Load)> = self
                .lines
                .iter()
                .enumerate()
                .filter_map(|(line, waiters)| {
                    waiters.first_key_value().map(|(arrival, waiter)| (*arrival, line, waiter.load))
                })
                .collect();
            heads.sort_unstable_by_key(|(arrival, ..)| *arrival);
            let mut barred = false;
            let mut found = None;
            for (arrival, line, load) in heads {
                let target = match u16::try_from(line) {
                    Ok(line) if usize::from(line) < self.used.len() => Target::One(line),
                    _ => Target::Any,
                };
                if let Some(sub_stream) = self.choose(target, load, barred) {
                    found = Some((arrival, line, load, sub_stream));
                    break;
                }
                // A head that does not fit is short of common room: its floor is its own.
                barred = true;
            }
            let Some((arrival, line, load, sub_stream)) = found else { return };
            self.take(sub_stream, load);
            if let Some(waiter) = self.lines[line].remove(&arrival) {
                self.waiting -= 1;
                self.granted.insert(arrival, sub_stream);
                woken.push(waiter.waker);
            }
        }
    }

    fn choose(&mut self, target: Target, load: Load, barred: bool) -> Option<u16> {
        let n = self.used.len();
        let chosen = match target {
            Target::One(sub_stream) => Some(usize::from(sub_stream)).filter(|at| self.fits(*at, load, barred)),
            Target::Any if n == 1 => Some(0).filter(|at| self.fits(*at, load, barred)),
            Target::Any => {
                // One of the two is the next in turn, so equal loads rotate; the other is random.
                let turn = (0..n).map(|step| (self.turn + step) % n).find(|at| self.standing[*at] == Standing::Open);
                let other = self.next_random() as usize % n;
                let lighter = turn.map(|turn| {
                    let open = self.standing[other] == Standing::Open;
                    if open && self.used[other].bytes < self.used[turn].bytes { other } else { turn }
                });
                let first = lighter.filter(|at| self.fits(*at, load, barred));
                first
                    .or_else(|| self.any_that_fits(Standing::Open, load, barred))
                    .or_else(|| self.any_that_fits(Standing::Recovering, load, barred))
            }
        }?;
        if target == Target::Any {
            self.turn = (chosen + 1) % n;
        }
        u16::try_from(chosen).ok()
    }

    fn any_that_fits(&self, standing: Standing, load: Load, barred: bool) -> Option<usize> {
        let n = self.used.len();
        (0..n)
            .map(|step| (self.turn + step) % n)
            .find(|at| self.standing[*at] == standing && self.fits(*at, load, barred))
    }

    fn fits(&self, at: usize, load: Load, barred: bool) -> bool {
        let need = self.common_need(at, load);
        if barred {
            need == Load::default()
        } else {
            self.common_used.records + need.records <= self.common.records
                && self.common_used.bytes + need.bytes <= self.common.bytes
        }
    }

    /// How much more of the common half the sub-stream would hold.
    fn common_need(&self, at: usize, load: Load) -> Load {
        let used = self.used[at];
        let now = excess(used, self.floor);
        let then = excess(Load { records: used.records + load.records, bytes: used.bytes + load.bytes }, self.floor);
        Load { records: then.records - now.records, bytes: then.bytes - now.bytes }
    }

    fn take(&mut self, sub_stream: u16, load: Load) {
        let at = usize::from(sub_stream);
        let need = self.common_need(at, load);
        self.common_used.records += need.records;
        self.common_used.bytes += need.bytes;
        self.used[at].records += load.records;
        self.used[at].bytes += load.bytes;
    }

    fn next_random(&mut self) -> u64 {
        // xorshift64: the choice between two queues needs spread, not secrecy.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

fn excess(used: Load, floor: Load) -> Load {
    Load { records: used.records.saturating_sub(floor.records), bytes: used.bytes.saturating_sub(floor.bytes) }
}

#[cfg(test)]
mod tests;
