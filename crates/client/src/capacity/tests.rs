use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use proptest::prelude::*;

use super::*;

fn load(records: u64) -> Load {
    Load { records, bytes: records * 100 }
}

fn queue(records: u64, sub_streams: u16) -> CapacityQueue {
    CapacityQueue::new(load(records), sub_streams, 7)
}

/// A single record of room, and bytes in plenty.
fn queue_of_one(sub_streams: u16) -> CapacityQueue {
    CapacityQueue::new(Load { records: 1, bytes: 1 << 20 }, sub_streams, 7)
}

fn idle() -> Waker {
    Waker::noop().clone()
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Would catch a line that serves the latest poll, or a newcomer that slips past it.
#[test]
fn capacity_is_first_come_first_served() {
    let mut queue = queue(2, 1);
    let mut woken = Vec::new();
    assert_eq!(queue.try_reserve(Target::Any, load(2)), Some(0));
    let places: Vec<_> =
        (0..15).map(|_| queue.enter(Target::Any, load(1), None, idle(), &mut Vec::new()).unwrap()).collect();
    for place in places.iter().rev() {
        assert_eq!(queue.poll(*place, &idle()), Wait::Pending);
    }
    queue.release(0, load(1), &mut woken);
    assert_eq!(woken.len(), 1);
    assert_eq!(queue.try_reserve(Target::Any, load(1)), None, "a newcomer passed the line");
    let seen: Vec<_> = places.iter().rev().map(|place| queue.poll(*place, &idle())).collect();
    assert_eq!(seen.iter().filter(|wait| **wait == Wait::Granted(0)).count(), 1);
    assert_eq!(seen.last(), Some(&Wait::Granted(0)), "the first to come was not the first served");
}

/// Would catch waiters that sleep through the end, or wake in another order than they came.
#[test]
fn poison_wakes_waiters_in_order() {
    let mut queue = queue_of_one(2);
    assert!(queue.try_reserve(Target::Any, load(1)).is_some());
    let counts: Vec<_> = (0..15).map(|_| Arc::new(Count(AtomicUsize::new(0)))).collect();
    let places: Vec<_> = counts
        .iter()
        .enumerate()
        .map(|(at, count)| {
            let target = if at % 3 == 0 { Target::One(1) } else { Target::Any };
            queue.enter(target, load(1), None, Waker::from(Arc::clone(count)), &mut Vec::new()).unwrap()
        })
        .collect();
    let mut woken = Vec::new();
    queue.close(&mut woken);
    assert_eq!(woken.len(), 15);
    for (waker, count) in woken.into_iter().zip(&counts) {
        waker.wake();
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "waiters woke out of order");
    }
    assert!(places.iter().all(|place| queue.poll(*place, &idle()) == Wait::Ended));
    assert_eq!(queue.enter(Target::Any, load(1), None, idle(), &mut Vec::new()), None);
}

/// Would catch a grant that is lost with a cancelled waiter, or a line that stays barred after it left.
#[test]
fn a_waiter_that_leaves_gives_its_turn_on() {
    let mut queue = queue(4, 1);
    let mut woken = Vec::new();
    assert_eq!(queue.try_reserve(Target::Any, load(3)), Some(0));
    let large = queue.enter(Target::Any, load(4), None, idle(), &mut Vec::new()).unwrap();
    let small = queue.enter(Target::Any, load(1), None, idle(), &mut Vec::new()).unwrap();
    assert_eq!(queue.poll(small, &idle()), Wait::Pending, "the younger passed the head");
    assert_eq!(queue.leave(large, &mut woken), None);
    assert_eq!(queue.poll(small, &idle()), Wait::Granted(0));
    let last = queue.enter(Target::Any, load(1), None, idle(), &mut Vec::new()).unwrap();
    queue.release(0, load(1), &mut woken);
    assert_eq!(queue.leave(last, &mut woken), Some(0), "a grant before the end of the wait was lost");
}

/// Would catch turns that ignore a sub-stream, and a choice that ignores load.
#[test]
fn equal_load_rotates() {
    let mut queue = queue(1_000, 4);
    let picks: Vec<_> = (0..8).map(|_| queue.try_reserve(Target::Any, load(1)).unwrap()).collect();
    assert_eq!(picks[..4], [0, 1, 2, 3]);
    let mut second = picks[4..].to_vec();
    second.sort_unstable();
    assert_eq!(second, [0, 1, 2, 3]);
    queue.take(2, load(100));
    let later: Vec<_> = (0..300).map(|_| queue.try_reserve(Target::Any, load(1)).unwrap()).collect();
    let heavy = later.iter().filter(|pick| **pick == 2).count();
    assert!(heavy < 75, "the loaded one got {heavy} of 300");
}

/// Would catch a full sub-stream that is waited for although another has room.
#[test]
fn full_sub_stream_is_bypassed() {
    let mut queue = queue(80, 4);
    queue.take(0, load(50)); // its floor of 10 and all of the common 40
    for _ in 0..30 {
        let pick = queue.try_reserve(Target::Any, load(1)).unwrap();
        assert_ne!(pick, 0);
    }
    assert_eq!(queue.try_reserve(Target::Any, load(1)), None);
}

/// Would catch stuck sub-streams that take a healthy one's floor, or idle shares that nobody can use.
#[test]
fn floor_survives_stuck_siblings() {
    let mut queue = queue(80, 4);
    let mut stuck = 0;
    while queue.try_reserve(Target::One(0), load(1)).is_some() {
        stuck += 1;
    }
    assert_eq!(stuck, 50, "its own floor and the whole common half");
    for healthy in 1..4 {
        for _ in 0..10 {
            assert_eq!(queue.try_reserve(Target::One(healthy), load(1)), Some(healthy));
        }
        assert_eq!(queue.try_reserve(Target::One(healthy), load(1)), None);
    }
}

/// Would catch a sticky call that moves to another sub-stream.
#[test]
fn sticky_waits_for_its_own() {
    let mut queue = queue(8, 2);
    let mut woken = Vec::new();
    queue.take(1, load(6));
    let mine = queue.enter(Target::One(1), load(1), None, idle(), &mut Vec::new()).unwrap();
    assert_eq!(queue.try_reserve(Target::Any, load(1)), Some(0));
    queue.release(0, load(1), &mut woken);
    assert_eq!(queue.poll(mine, &idle()), Wait::Pending);
    queue.release(1, load(1), &mut woken);
    assert_eq!(queue.poll(mine, &idle()), Wait::Granted(1));
}

/// Would catch a line that waits for one sub-stream while another drains.
#[test]
fn all_full_takes_first_to_drain() {
    let mut queue = queue(8, 2);
    let mut woken = Vec::new();
    queue.take(0, load(6));
    queue.take(1, load(2));
    let place = queue.enter(Target::Any, load(1), None, idle(), &mut Vec::new()).unwrap();
    queue.release(1, load(1), &mut woken);
    assert_eq!(queue.poll(place, &idle()), Wait::Granted(1));
}

/// Would catch a lost sub-stream that still gets new calls.
#[test]
fn a_lost_sub_stream_is_chosen_by_name_only() {
    let mut queue = queue(100, 2);
    let mut woken = Vec::new();
    queue.set_standing(0, Standing::Lost, &mut woken);
    assert!((0..10).all(|_| queue.try_reserve(Target::Any, load(1)) == Some(1)));
    assert_eq!(queue.try_reserve(Target::One(0), load(1)), Some(0));
    queue.set_standing(1, Standing::Recovering, &mut woken);
    assert_eq!(queue.try_reserve(Target::Any, load(1)), Some(1), "one in recovery is better than none");
    queue.set_standing(0, Standing::Open, &mut woken);
    assert!((0..10).all(|_| queue.try_reserve(Target::Any, load(1)) == Some(0)));
}

/// Would catch a waiter that loses its place when its sub-stream was lost under it.
#[test]
fn a_waiter_that_comes_back_keeps_its_place() {
    let mut queue = queue_of_one(2);
    let mut woken = Vec::new();
    assert!(queue.try_reserve(Target::Any, load(1)).is_some());
    let first = queue.enter(Target::Any, load(1), None, idle(), &mut Vec::new()).unwrap();
    let second = queue.enter(Target::Any, load(1), None, idle(), &mut Vec::new()).unwrap();
    let holder = if queue.used(0).records == 1 { 0 } else { 1 };
    queue.release(holder, load(1), &mut woken);
    let Wait::Granted(sub_stream) = queue.poll(first, &idle()) else { panic!("not served") };
    let again = queue.enter(Target::Any, load(1), Some(first), idle(), &mut Vec::new()).unwrap();
    queue.release(sub_stream, load(1), &mut woken);
    assert!(matches!(queue.poll(again, &idle()), Wait::Granted(_)));
    assert_eq!(queue.poll(second, &idle()), Wait::Pending);
}

#[derive(Clone, Debug)]
enum Step {
    Reserve { target: Option<u16>, records: u64 },
    Release,
    Leave(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (proptest::option::of(0u16..3), 1u64..8).prop_map(|(target, records)| Step::Reserve { target, records }),
        3 => Just(Step::Release),
        1 => any::<usize>().prop_map(Step::Leave),
    ]
}

proptest! {
    /// Would catch an over-grant, a common half that drifts from what is used, and a line that stands still
    /// although its oldest head fits.
    #[test]
    fn the_budget_holds_and_the_oldest_head_never_fits_while_waiting(steps in proptest::collection::vec(step(), 1..200)) {
        let mut queue = queue(24, 3);
        let mut held: Vec<(u16, Load)> = Vec::new();
        let mut waiting: Vec<(Place, Load)> = Vec::new();
        let mut woken = Vec::new();
        for step in steps {
            match step {
                Step::Reserve { target, records } => {
                    let target = target.map_or(Target::Any, Target::One);
                    match queue.try_reserve(target, load(records)) {
                        Some(sub_stream) => held.push((sub_stream, load(records))),
                        None => {
                            let place = queue.enter(target, load(records), None, idle(), &mut Vec::new()).unwrap();
                            waiting.push((place, load(records)));
                        }
                    }
                }
                Step::Release => {
                    if let Some((sub_stream, load)) = held.pop() {
                        queue.release(sub_stream, load, &mut woken);
                    }
                }
                Step::Leave(at) => {
                    if !waiting.is_empty() {
                        let (place, load) = waiting.swap_remove(at % waiting.len());
                        if let Some(sub_stream) = queue.leave(place, &mut woken) {
                            held.push((sub_stream, load));
                        }
                    }
                }
            }
            waiting.retain(|(place, load)| match queue.poll(*place, &idle()) {
                Wait::Pending => true,
                Wait::Granted(sub_stream) => {
                    held.push((sub_stream, *load));
                    false
                }
                Wait::Ended => panic!("the line was never closed"),
            });
            let sum = held.iter().fold(Load::default(), |sum, (_, load)| Load {
                records: sum.records + load.records,
                bytes: sum.bytes + load.bytes,
            });
            prop_assert_eq!(queue.in_flight(), sum);
            prop_assert!(sum.records <= 24 && sum.bytes <= 2_400);
            prop_assert_eq!(queue.waiting(), waiting.len());
            let common: u64 = queue.used.iter().map(|used| excess(*used, queue.floor).records).sum();
            prop_assert_eq!(common, queue.common_used.records);
            if let Some((place, load)) = waiting.iter().min_by_key(|(place, _)| place.arrival).copied() {
                prop_assert_eq!(queue.choose(place.target, load, false), None);
            }
        }
    }
}
