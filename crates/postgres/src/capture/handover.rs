//! Between the tasks that make source batches and the lane that hands them to the engine: a queue per partition, one bound
//! of bytes over all (I6).
//!
//! Who makes batches waits for room and never blocks a thread; the lane takes what the engine would take now, table by
//! table in turn, so a table that cannot go on leaves the others their turns (I13). Locks guard memory only (I5).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use landfall_engine::contract::{LaneWaker, TableRows};
use landfall_types::{PartitionId, Place};
use parking_lot::Mutex;

/// A source batch that the engine has not taken yet.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) rows: TableRows,
    /// Where its range ends; it starts where the one before it ended.
    pub(crate) end: Place,
    pub(crate) bytes: usize,
}

#[derive(Default)]
struct Inside {
    queues: BTreeMap<PartitionId, VecDeque<Ready>>,
    /// Since when a partition's first batch waits for its turn.
    waits_since: BTreeMap<PartitionId, Instant>,
    bytes: usize,
    /// The partition whose turn was last.
    last: Option<PartitionId>,
    /// Streams that wait until the copy of their table is settled.
    behind: BTreeMap<PartitionId, PartitionId>,
    /// Those of them whose rows were dropped, to be read again.
    set_back: BTreeSet<PartitionId>,
    /// The stream that rows are taken of.
    stream: StreamNumber,
    lane: Option<LaneWaker>,
    /// Decoder and copies, of which several may wait for room.
    waiting: Vec<Waker>,
    is_finished: bool,
    generation: Generation,
    /// Partitions that were given up. Numbers are never used again, so there is one for each table that was copied anew.
    gone: BTreeSet<PartitionId>,
}

impl Inside {
    fn waits(&mut self, waker: &Waker) {
        if !self.waiting.iter().any(|known| known.will_wake(waker)) {
            self.waiting.push(waker.clone());
        }
    }

    /// Drops what waits of a partition; gives its bytes.
    fn drop_queue(&mut self, partition: PartitionId) -> usize {
        let dropped = self.queues.remove(&partition).unwrap_or_default();
        let dropped: usize = dropped.iter().map(|ready| ready.bytes).sum();
        self.bytes -= dropped;
        self.waits_since.remove(&partition);
        dropped
    }

    fn bytes_of(&self, partition: PartitionId) -> usize {
        self.queues.get(&partition).map_or(0, |queue| queue.iter().map(|ready| ready.bytes).sum())
    }
}

/// Which opening of the lane a batch was made for. A batch of an earlier one does not lead on from what a later one has
/// taken: handed over, it would hide the rows between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation(u64);

/// Which start of the stream rows were read by. What an earlier one still brings is read again by the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamNumber(u64);

/// See the module.
pub(crate) struct Handover {
    inside: Mutex<Inside>,
    bytes_max: usize,
}

impl std::fmt::Debug for Handover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handover").field("bytes", &self.inside.lock().bytes).finish_non_exhaustive()
    }
}

impl Handover {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Handover { inside: Mutex::default(), bytes_max }
    }

    /// Ready when something may be pushed. One batch may pass the bound.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inside = self.inside.lock();
        if inside.bytes < self.bytes_max {
            return Poll::Ready(());
        }
        inside.waits(cx.waker());
        Poll::Pending
    }

    /// Room for a batch of a copy. All copies together leave half of it to the stream, and one table whose rows are not
    /// taken leaves room to the others that are copied (I13).
    pub(crate) async fn room_for_copy(&self, partition: PartitionId) {
        std::future::poll_fn(|cx| {
            let mut inside = self.inside.lock();
            if inside.bytes < self.bytes_max / 2 && inside.bytes_of(partition) < self.bytes_max / 4 {
                return Poll::Ready(());
            }
            inside.waits(cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// For whom batches are made from now on.
    pub(crate) fn generation(&self) -> Generation {
        self.inside.lock().generation
    }

    /// Nothing of `stream` is taken before `copy` is forgotten: for destinations that keep the order in which rows come
    /// (P59). Of an earlier generation, it does nothing.
    pub(crate) fn hold(&self, generation: Generation, stream: PartitionId, copy: PartitionId) {
        let mut inside = self.inside.lock();
        if generation == inside.generation {
            inside.behind.insert(stream, copy);
        }
    }

    /// Whether a stream waits for the copy of its table.
    pub(crate) fn is_held(&self, stream: PartitionId) -> bool {
        self.inside.lock().behind.contains_key(&stream)
    }

    /// Whether rows of a stream were dropped, and are read again once its copy is settled.
    pub(crate) fn is_set_back(&self, stream: PartitionId) -> bool {
        self.inside.lock().set_back.contains(&stream)
    }

    /// A stream starts, at a place below everything that is not settled: what waits for a copy comes again with it.
    pub(crate) fn begin_stream(&self) -> StreamNumber {
        let (number, waiting) = {
            let mut inside = self.inside.lock();
            inside.stream = StreamNumber(inside.stream.0 + 1);
            inside.set_back.clear();
            for held in inside.behind.keys().copied().collect::<Vec<_>>() {
                inside.drop_queue(held);
            }
            (inside.stream, std::mem::take(&mut inside.waiting))
        };
        waiting.into_iter().for_each(Waker::wake);
        number
    }

    /// Where streams that wait for their copies hold so many bytes together: drops those of the one that holds most, and gives
    /// them. Once its copy is forgotten, the stream has to start again.
    pub(crate) fn set_back_past(&self, most: usize) -> Option<(PartitionId, usize)> {
        let (longest, waiting) = {
            let mut inside = self.inside.lock();
            if inside.behind.is_empty() {
                return None;
            }
            let held = inside.behind.keys().map(|stream| (*stream, inside.bytes_of(*stream)));
            let (longest, all) = held.fold((None, 0), |(longest, all), one: (PartitionId, usize)| {
                let longest = longest.filter(|(_, bytes)| *bytes >= one.1).or(Some(one));
                (longest, all + one.1)
            });
            let longest = longest.filter(|_| all >= most.max(1))?;
            inside.drop_queue(longest.0);
            inside.set_back.insert(longest.0);
            (longest, std::mem::take(&mut inside.waiting))
        };
        waiting.into_iter().for_each(Waker::wake);
        Some(longest)
    }

    /// The same as [`Self::push`], of a stream: one of an earlier start is dropped.
    pub(crate) fn push_streamed(
        &self,
        number: StreamNumber,
        generation: Generation,
        partition: PartitionId,
        ready: Ready,
    ) {
        self.add(Some(number), generation, partition, ready);
    }

    /// Adds a batch; one of an earlier generation is dropped, since its rows are read again, and so is one of a partition
    /// that was given up: nobody would ever take it, and its bytes be held.
    pub(crate) fn push(&self, generation: Generation, partition: PartitionId, ready: Ready) {
        self.add(None, generation, partition, ready);
    }

    fn add(&self, number: Option<StreamNumber>, generation: Generation, partition: PartitionId, ready: Ready) {
        let lane = {
            let mut inside = self.inside.lock();
            if number.is_some_and(|number| number != inside.stream) {
                return;
            }
            if generation != inside.generation || inside.gone.contains(&partition) {
                return;
            }
            inside.bytes += ready.bytes;
            inside.waits_since.entry(partition).or_insert_with(Instant::now);
            inside.queues.entry(partition).or_default().push_back(ready);
            inside.lane.clone()
        };
        if let Some(lane) = lane {
            lane.wake();
        }
    }

    /// The next batch of a partition that `takes`, in turn.
    pub(crate) fn take(
        &self,
        waker: impl FnOnce() -> LaneWaker,
        takes: impl Fn(PartitionId) -> bool,
    ) -> Option<(PartitionId, Ready)> {
        let (taken, waiting) = {
            let mut inside = self.inside.lock();
            if inside.lane.is_none() {
                inside.lane = Some(waker());
            }
            let last = inside.last;
            let is_wanted = |(partition, queue): &(&PartitionId, &VecDeque<Ready>)| {
                !queue.is_empty() && !inside.behind.contains_key(partition) && takes(**partition)
            };
            let behind = inside.queues.iter().filter(|(partition, _)| last.is_none_or(|last| **partition > last));
            let found = behind.clone().find(is_wanted).or_else(|| inside.queues.iter().find(is_wanted));
            let partition = *found?.0;
            let ready = inside.queues.get_mut(&partition)?.pop_front()?;
            inside.bytes -= ready.bytes;
            inside.last = Some(partition);
            match inside.queues.get(&partition).is_some_and(|queue| !queue.is_empty()) {
                true => inside.waits_since.insert(partition, Instant::now()),
                false => inside.waits_since.remove(&partition),
            };
            let waiting = if inside.bytes < self.bytes_max { std::mem::take(&mut inside.waiting) } else { Vec::new() };
            ((partition, ready), waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
        Some(taken)
    }

    /// Bytes that wait for a partition's turn, and since when the first of them does; none of an empty queue.
    pub(crate) fn waiting_of(&self, partition: PartitionId) -> Option<(usize, Instant)> {
        let inside = self.inside.lock();
        let since = *inside.waits_since.get(&partition)?;
        Some((inside.bytes_of(partition), since))
    }

    /// Has who waits for room look again at what else it waits for.
    pub(crate) fn nudge(&self) {
        let waiting = std::mem::take(&mut self.inside.lock().waiting);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The bound.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// A partition is given up: drops what waits of it, and what still comes; what waited for its end may go on. True: rows
    /// of that were dropped, and the stream has to start again with them.
    #[must_use]
    pub(crate) fn forget(&self, partition: PartitionId) -> bool {
        let (waiting, lane, is_read_again) = {
            let mut inside = self.inside.lock();
            let Inside { behind, set_back, .. } = &mut *inside;
            set_back.remove(&partition);
            let held = behind.len();
            let mut is_read_again = false;
            behind.retain(|stream, copy| {
                is_read_again |= *copy == partition && set_back.remove(stream);
                *stream != partition && *copy != partition
            });
            let lane = if behind.len() < held { inside.lane.clone() } else { None };
            inside.gone.insert(partition);
            inside.drop_queue(partition);
            (std::mem::take(&mut inside.waiting), lane, is_read_again)
        };
        waiting.into_iter().for_each(Waker::wake);
        if let Some(lane) = lane {
            lane.wake();
        }
        is_read_again
    }

    /// A lane is opened anew: nothing of what waits is for it.
    pub(crate) fn restart(&self) {
        let waiting = {
            let mut inside = self.inside.lock();
            let waiting = std::mem::take(&mut inside.waiting);
            let generation = Generation(inside.generation.0 + 1);
            let gone = std::mem::take(&mut inside.gone);
            let Inside { is_finished, stream, .. } = *inside;
            *inside = Inside { is_finished, generation, gone, stream, ..Inside::default() };
            waiting
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// No more rows come. What waits for the end of a copy is dropped: whether that comes is not for a shutdown to wait
    /// for, and it is read again by the next start (I11).
    pub(crate) fn finish(&self) {
        let lane = {
            let mut inside = self.inside.lock();
            inside.is_finished = true;
            for stream in std::mem::take(&mut inside.behind).into_keys() {
                inside.drop_queue(stream);
            }
            inside.lane.clone()
        };
        if let Some(lane) = lane {
            lane.wake();
        }
    }

    /// Whether no more rows come and none waits.
    pub(crate) fn is_finished(&self) -> bool {
        let inside = self.inside.lock();
        inside.is_finished && inside.queues.values().all(VecDeque::is_empty)
    }
}

#[cfg(test)]
mod tests;
