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

    fn bytes_of(&self, partition: PartitionId) -> usize {
        self.queues.get(&partition).map_or(0, |queue| queue.iter().map(|ready| ready.bytes).sum())
    }
}

/// Which opening of the lane a batch was made for. A batch of an earlier one does not lead on from what a later one has
/// taken: handed over, it would hide the rows between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation(u64);

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

    /// Adds a batch; one of an earlier generation is dropped, since its rows are read again, and so is one of a partition
    /// that was given up: nobody would ever take it, and its bytes be held.
    pub(crate) fn push(&self, generation: Generation, partition: PartitionId, ready: Ready) {
        let lane = {
            let mut inside = self.inside.lock();
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

    /// A partition is given up: drops what waits of it, and what still comes; what waited for its end may go on.
    pub(crate) fn forget(&self, partition: PartitionId) {
        let (waiting, lane) = {
            let mut inside = self.inside.lock();
            let held = inside.behind.len();
            inside.behind.retain(|stream, copy| *stream != partition && *copy != partition);
            let lane = if inside.behind.len() < held { inside.lane.clone() } else { None };
            inside.gone.insert(partition);
            let dropped: usize =
                inside.queues.remove(&partition).unwrap_or_default().iter().map(|ready| ready.bytes).sum();
            inside.bytes -= dropped;
            inside.waits_since.remove(&partition);
            (std::mem::take(&mut inside.waiting), lane)
        };
        waiting.into_iter().for_each(Waker::wake);
        if let Some(lane) = lane {
            lane.wake();
        }
    }

    /// A lane is opened anew: nothing of what waits is for it.
    pub(crate) fn restart(&self) {
        let waiting = {
            let mut inside = self.inside.lock();
            let waiting = std::mem::take(&mut inside.waiting);
            let generation = Generation(inside.generation.0 + 1);
            let gone = std::mem::take(&mut inside.gone);
            *inside = Inside { is_finished: inside.is_finished, generation, gone, ..Inside::default() };
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
                let dropped = inside.queues.remove(&stream).unwrap_or_default();
                inside.bytes -= dropped.iter().map(|ready| ready.bytes).sum::<usize>();
                inside.waits_since.remove(&stream);
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
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use arrow_array::RecordBatch;
    use arrow_schema::Schema;
    use landfall_engine::contract::TableNote;

    use super::*;

    fn ready(at: u64, bytes: usize) -> Ready {
        let rows = RecordBatch::new_empty(Arc::new(Schema::empty()));
        let rows = TableRows { rows, places: Arc::from([]), bad: Vec::new(), note: TableNote::default() };
        Ready { rows, end: Place { at, within: 0 }, bytes }
    }

    fn take(handover: &Handover, takes: impl Fn(u32) -> bool) -> Option<(u32, u64)> {
        let taken = handover.take(|| LaneWaker::new(|| {}), |partition| takes(partition.0))?;
        Some((taken.0.0, taken.1.end.at))
    }

    fn has_room(handover: &Handover) -> bool {
        handover.poll_room(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Catches a table that cannot take rows and stops its neighbours, rows out of order, and a table served twice while
    /// another waits (I13).
    #[test]
    fn tables_take_turns_and_one_that_waits_stops_no_other() {
        let handover = Handover::new(100);
        for at in 1..=3 {
            handover.push(Generation(0), PartitionId(1), ready(at, 1));
            handover.push(Generation(0), PartitionId(2), ready(at, 1));
        }
        assert_eq!(take(&handover, |_| true), Some((1, 1)));
        assert_eq!(take(&handover, |_| true), Some((2, 1)));
        assert_eq!(take(&handover, |partition| partition == 2), Some((2, 2)));
        assert_eq!(take(&handover, |_| true), Some((1, 2)));
        assert_eq!(take(&handover, |_| false), None);
    }

    /// Catches a bound that leaks with what is taken, forgotten or restarted (I6).
    #[test]
    fn room_comes_back_with_every_batch_that_leaves() {
        let handover = Handover::new(10);
        handover.push(Generation(0), PartitionId(1), ready(1, 6));
        assert!(has_room(&handover));
        handover.push(Generation(0), PartitionId(2), ready(1, 6));
        assert!(!has_room(&handover));
        handover.forget(PartitionId(1));
        assert!(has_room(&handover));
        handover.push(Generation(0), PartitionId(1), ready(2, 60));
        assert!(has_room(&handover), "nobody takes what comes behind its end");
        handover.push(Generation(0), PartitionId(2), ready(2, 6));
        assert!(!has_room(&handover));
        assert_eq!(take(&handover, |_| true), Some((2, 1)));
        assert!(has_room(&handover));
        handover.push(Generation(0), PartitionId(2), ready(3, 6));
        handover.restart();
        assert!(has_room(&handover));
        assert_eq!(take(&handover, |_| true), None);
    }

    /// Catches a streamed change that overtakes the copied row that it changes, where order is kept (P59); a hold that
    /// outlives its copy; and one that holds up a shutdown (I11).
    #[test]
    fn a_stream_waits_for_the_copy_of_its_own_table() {
        let handover = Handover::new(100);
        let now = handover.generation();
        handover.hold(now, PartitionId(2), PartitionId(1));
        for partition in [1, 2, 3] {
            handover.push(now, PartitionId(partition), ready(1, 1));
        }
        assert_eq!(take(&handover, |_| true), Some((1, 1)));
        assert_eq!(take(&handover, |_| true), Some((3, 1)), "another table's stream");
        assert_eq!(take(&handover, |_| true), None);
        handover.forget(PartitionId(1));
        assert_eq!(take(&handover, |_| true), Some((2, 1)));
        handover.hold(now, PartitionId(2), PartitionId(4));
        handover.push(now, PartitionId(2), ready(2, 1));
        handover.finish();
        assert!(handover.is_finished());
        handover.restart();
        handover.hold(now, PartitionId(2), PartitionId(4));
        handover.push(handover.generation(), PartitionId(2), ready(3, 1));
        assert_eq!(take(&handover, |_| true), Some((2, 3)), "held by an opening that is over");
    }

    /// Catches a copied table that is not taken and keeps the stream, or another copy, from its room, and one of two who
    /// wait that is never woken (I13).
    #[test]
    fn copies_leave_room_to_the_stream_and_to_each_other() {
        let handover = Handover::new(100);
        let copy_has_room = |partition| {
            let room = std::pin::pin!(handover.room_for_copy(PartitionId(partition)));
            room.poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        handover.push(Generation(0), PartitionId(1), ready(1, 25));
        assert!(!copy_has_room(1) && copy_has_room(2) && has_room(&handover));
        handover.push(Generation(0), PartitionId(2), ready(1, 25));
        assert!(!copy_has_room(3) && has_room(&handover));
        handover.push(Generation(0), PartitionId(9), ready(1, 50));
        let wakers = [(); 2].map(|()| Arc::new(Woken::default()));
        for waker in &wakers {
            let waker = Waker::from(Arc::clone(waker));
            assert!(handover.poll_room(&mut Context::from_waker(&waker)).is_pending());
        }
        assert!(take(&handover, |partition| partition == 9).is_some());
        assert!(wakers.iter().all(|waker| waker.0.load(Ordering::Relaxed)));
        assert!(take(&handover, |partition| partition == 1).is_some());
        assert!(copy_has_room(1));
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Catches a batch of the stream before, whose rows stand behind those that a lane opened anew has to read again: it
    /// would be taken first, and what lies between be left out as handed over (I7).
    #[test]
    fn a_batch_made_for_an_earlier_lane_never_reaches_a_later_one() {
        let handover = Handover::new(10);
        let before = handover.generation();
        handover.restart();
        handover.push(before, PartitionId(1), ready(9, 1));
        assert_eq!((take(&handover, |_| true), handover.waiting_of(PartitionId(1))), (None, None));
        handover.push(handover.generation(), PartitionId(1), ready(3, 1));
        assert_eq!(take(&handover, |_| true), Some((1, 3)));
    }
}
