//! The hand-over alone: turns, bounds, and streams that wait for their copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use landfall_engine::contract::TableNote;

use super::*;

fn ready(at: u64, bytes: usize) -> Ready {
    let rows = RecordBatch::new_empty(Arc::new(Schema::empty()));
    let (places, key) = (Arc::from([]), Arc::from([]));
    let rows = TableRows { rows, places, bad: Vec::new(), note: TableNote::default(), key };
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
    assert!(!handover.forget(PartitionId(1)));
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
    assert!(!handover.forget(PartitionId(1)));
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

/// Catches rows of a stream that are lost when too many wait for its copy, and a wait that takes its room from all (P90).
#[test]
fn a_stream_that_waits_too_long_for_its_copy_is_read_again() {
    let handover = Handover::new(100);
    let now = handover.generation();
    let number = handover.begin_stream();
    handover.hold(now, PartitionId(2), PartitionId(1));
    handover.hold(now, PartitionId(4), PartitionId(3));
    for (partition, bytes) in [(2, 10), (4, 12), (5, 60)] {
        handover.push_streamed(number, now, PartitionId(partition), ready(1, bytes));
    }
    assert_eq!(handover.set_back_past(25), None);
    handover.push_streamed(number, now, PartitionId(2), ready(2, 5));
    assert_eq!(handover.set_back_past(25), Some((PartitionId(2), 15)), "the longest");
    assert_eq!(handover.set_back_past(25), None);
    assert_eq!(take(&handover, |_| true), Some((5, 1)));
    assert!(!handover.forget(PartitionId(3)), "nothing of its stream was dropped");
    assert_eq!(take(&handover, |_| true), Some((4, 1)));
    assert!(handover.forget(PartitionId(1)), "the stream starts again");
    let again = handover.begin_stream();
    handover.push_streamed(number, now, PartitionId(2), ready(9, 1));
    assert_eq!(take(&handover, |_| true), None, "read by the stream before, and not behind what was dropped");
    handover.push_streamed(again, now, PartitionId(2), ready(1, 1));
    assert_eq!(take(&handover, |_| true), Some((2, 1)));
}

/// Catches what waits for a copy and is there twice once the stream has started again, and memory that grows with each start.
#[test]
fn a_start_of_the_stream_brings_what_is_held_again() {
    let handover = Handover::new(100);
    let now = handover.generation();
    handover.hold(now, PartitionId(2), PartitionId(1));
    for _ in 0..20 {
        let number = handover.begin_stream();
        handover.push_streamed(number, now, PartitionId(2), ready(1, 10));
        assert!(has_room(&handover));
    }
    assert!(!handover.forget(PartitionId(1)));
    assert_eq!(take(&handover, |_| true), Some((2, 1)));
    assert_eq!(take(&handover, |_| true), None);
}
