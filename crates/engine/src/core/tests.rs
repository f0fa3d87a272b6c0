//! The tracker against its model, and the rules of holds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use landfall_types::{Epoch, Offset, PartitionId, Place};
use proptest::prelude::*;

use super::{Ack, AckSet, Books, FailCause, Harvester, IssueError, Issuer, Wake, Waker, ring};
use crate::codes;
use crate::contract::SinkId;

const SLOTS: usize = 8;

fn fresh(sinks: usize) -> (Issuer, Harvester, Arc<Waker>) {
    let waker = Arc::new(Waker::new());
    let (issuer, harvester) = ring(PartitionId(0), Epoch(1), Place::START, SLOTS, sinks, waker.clone(), Instant::now());
    (issuer, harvester, waker)
}

fn place(at: u64) -> Place {
    Place::of(Offset(at))
}

fn issue(issuer: &mut Issuer, rows: u32) -> Ack {
    let start = issuer.end();
    let end = place(start.at + u64::from(rows));
    issuer.issue(start..end, rows, rows as usize * 10, Instant::now()).expect("there is room")
}

fn cause() -> FailCause {
    FailCause::new(codes::ABANDONED, "a test")
}

/// Would catch a watermark that passes an unresolved or failed head.
#[test]
fn a_failed_head_holds_back_everything_behind_it() {
    let (mut issuer, mut harvester, _) = fresh(1);
    let acks: Vec<Ack> = (0..4).map(|_| issue(&mut issuer, 10)).collect();
    let mut acks = acks.into_iter();
    acks.next().expect("first").deliver();
    let second = acks.next().expect("second");
    acks.for_each(Ack::deliver);
    assert!(harvester.harvest(|_| {}).has_moved);
    assert_eq!(harvester.watermark(1), place(10));
    second.fail(&cause());
    let harvest = harvester.harvest(|_| {});
    assert_eq!((harvest.has_moved, harvest.failed), (false, vec![0, 1]));
    assert_eq!((harvester.watermark(1), harvester.cause(1)), (place(10), Some(cause())));
    assert_eq!(harvester.unsettled(1), Some(place(10)..place(40)));
}

/// Would catch rows in front of one that always fails: given up with each restart, they would never land.
#[test]
fn what_was_handed_over_before_a_failure_is_settled_first() {
    let (mut issuer, mut harvester, _) = fresh(1);
    let first = issue(&mut issuer, 10);
    let handed_over = first.share(SinkId(1));
    first.deliver();
    issue(&mut issuer, 10).fail(&cause());
    assert!(harvester.harvest(|_| {}).failed.is_empty(), "the sink has not reached it");
    handed_over.deliver();
    assert_eq!(harvester.harvest(|_| {}).failed, [0, 1]);
    assert!(harvester.harvest(|_| {}).failed.is_empty(), "told once");
}

/// Would catch a set that forgets its holds, or delivers on drop.
#[test]
fn dropping_an_ack_set_fails_every_batch_in_it() {
    let (mut issuer, mut harvester, _) = fresh(1);
    let mut set = AckSet::new();
    for _ in 0..3 {
        let ack = issue(&mut issuer, 1);
        set.push(ack.share(SinkId(1)));
        ack.deliver();
    }
    assert_eq!(set.len(), 3);
    drop(set);
    assert_eq!(harvester.harvest(|_| {}).failed, [1]);
    assert_eq!((harvester.watermark(0), harvester.watermark(1)), (place(3), place(0)));
    assert_eq!(harvester.cause(1).map(|cause| cause.code), Some(codes::HOLD_DROPPED));
}

/// Would catch a ceiling that lets one batch too many through, or a gate that does not open again.
#[test]
fn the_pending_ceiling_is_hard() {
    let (mut issuer, mut harvester, _) = fresh(1);
    let acks: Vec<Ack> = (0..SLOTS).map(|_| issue(&mut issuer, 1)).collect();
    assert!(!issuer.has_room(u64::MAX));
    let refused = issuer.issue(place(8)..place(9), 1, 1, Instant::now());
    assert_eq!(refused.err(), Some(IssueError::Full));
    let mut acks = acks.into_iter();
    acks.next().expect("first").deliver();
    assert!(harvester.harvest(|_| {}).reopens, "the gated driver is woken");
    assert!(issuer.has_room(u64::MAX));
    acks.for_each(Ack::deliver);
    harvester.harvest(|_| {});
    // The second ceiling counts bytes, and may be passed by one batch.
    let ack = issue(&mut issuer, 100);
    assert!(!issuer.has_room(1000));
    ack.deliver();
    assert!(harvester.harvest(|_| {}).reopens);
    assert!(issuer.has_room(1000));
}

/// Would catch rows that are issued under an epoch that has ended, or a late hold that moves something.
#[test]
fn a_stale_epoch_cannot_issue() {
    let (mut issuer, mut harvester, _) = fresh(1);
    let ack = issue(&mut issuer, 5);
    harvester.close();
    assert_eq!(issuer.issue(place(5)..place(6), 1, 1, Instant::now()).err(), Some(IssueError::Closed));
    assert!(ack.is_stale());
    drop(ack);
    assert_eq!(harvester.stale(), 2, "a hold for the chain and one for the sink");
    assert_eq!(harvester.cause(1), None);
    harvester.harvest(|_| {});
    assert_eq!(harvester.watermark(1), place(0));
}

/// Would catch a range that goes back, or a gap that leaves a hole in the covers.
#[test]
fn ranges_chain_and_a_gap_is_taken_in() {
    let (mut issuer, mut harvester, _) = fresh(1);
    issue(&mut issuer, 5).deliver();
    let back = issuer.issue(place(4)..place(9), 5, 1, Instant::now());
    assert!(matches!(back.err(), Some(IssueError::DoesNotChain { end, .. }) if end == place(5)));
    issuer.issue(place(20)..place(25), 5, 1, Instant::now()).expect("a gap is no error").deliver();
    let mut ranges = Vec::new();
    harvester.harvest(|slot| {
        if slot.sink == 1 {
            ranges.push(slot.range);
        }
    });
    assert_eq!(ranges, [place(0)..place(5), place(5)..place(25)]);
}

/// Would catch a head that is resolved without a wake of the controller.
#[test]
fn resolving_the_head_wakes_and_another_slot_does_not() {
    let (mut issuer, _harvester, waker) = fresh(1);
    let (first, second) = (issue(&mut issuer, 1), issue(&mut issuer, 1));
    second.deliver();
    assert_eq!(waker.take(), Wake::NONE);
    first.deliver();
    assert!(waker.take().has(Wake::RESOLVED));
}

/// Would catch an age that only shows once something failed.
#[test]
fn a_hung_sink_shows_a_growing_age() {
    let (mut issuer, harvester, _) = fresh(1);
    let began = Instant::now();
    let ack = issue(&mut issuer, 1);
    let age = |after: u64| harvester.oldest(1, began + Duration::from_secs(after)).map(|(_, age)| age.as_secs());
    assert!(age(100) >= Some(99) && age(200) >= Some(199));
    ack.deliver();
}

/// Would catch books that are not reset with their slot, or entered under another sink.
#[test]
fn books_belong_to_one_slot_and_one_sink() {
    let (mut issuer, mut harvester, _) = fresh(2);
    for round in 0..3 * SLOTS as u32 {
        let ack = issue(&mut issuer, 10);
        ack.book_for(SinkId(1), Books { filtered: 3, made: round, settled: round, ..Books::default() });
        ack.book_for(SinkId(2), Books { dead: 1, ..Books::default() });
        ack.deliver();
        let mut seen = Vec::new();
        harvester.harvest(|slot| {
            assert!(slot.balances());
            seen.push((slot.sink, slot.books.filtered, slot.books.dead, slot.books.made));
        });
        assert_eq!(seen, [(0, 0, 0, 0), (1, 3, 0, round), (2, 0, 1, 0)]);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Issue,
    Share { batch: usize, sink: usize },
    Resolve { hold: usize, is_delivered: bool },
    Harvest,
    NewEpoch,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Issue),
        3 => (any::<usize>(), 0usize..3).prop_map(|(batch, sink)| Step::Share { batch, sink }),
        8 => (any::<usize>(), prop::bool::weighted(0.97))
            .prop_map(|(hold, is_delivered)| Step::Resolve { hold, is_delivered }),
        3 => Just(Step::Harvest),
        1 => Just(Step::NewEpoch),
    ];
    prop::collection::vec(step, 1..200)
}

/// The model: a list of batches with a count of holds and a status per sink; the watermark is the end of the prefix
/// that is delivered.
#[derive(Default)]
struct Model {
    batches: Vec<[(u32, bool); 3]>,
}

impl Model {
    fn watermark(&self, sink: usize) -> u64 {
        self.batches.iter().take_while(|holds| holds[sink] == (0, false)).count() as u64
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Would catch any order of resolves, failures and ends of epochs in which a watermark is wrong, or a hold of an
    /// ended epoch moves something.
    #[test]
    fn the_tracker_matches_its_model(steps in steps()) {
        let (mut issuer, mut harvester, _) = fresh(2);
        let mut model = Model::default();
        let mut epoch = 0u32;
        // (epoch, batch, sink or whole, hold)
        let mut holds: Vec<(u32, usize, Option<usize>, Ack)> = Vec::new();
        for step in steps {
            match step {
                Step::Issue => {
                    if issuer.has_room(u64::MAX) {
                        holds.push((epoch, model.batches.len(), None, issue(&mut issuer, 1)));
                        model.batches.push([(1, false); 3]);
                    }
                }
                Step::Share { batch, sink } => {
                    let open: Vec<usize> = (0..holds.len()).filter(|at| holds[*at].2.is_none()).collect();
                    if let Some(at) = open.get(batch % open.len().max(1)) {
                        let (of, number, _, whole) = &holds[*at];
                        let ack = whole.share(SinkId(sink as u8));
                        if *of == epoch {
                            model.batches[*number][sink].0 += 1;
                        }
                        let entry = (*of, *number, Some(sink), ack);
                        holds.push(entry);
                    }
                }
                Step::Resolve { hold, is_delivered } => {
                    if holds.is_empty() {
                        continue;
                    }
                    let (of, number, sink, ack) = holds.swap_remove(hold % holds.len());
                    if of == epoch {
                        for at in 0..3 {
                            if sink.is_none_or(|sink| sink == at) {
                                model.batches[number][at].0 -= 1;
                                model.batches[number][at].1 |= !is_delivered;
                            }
                        }
                    }
                    if is_delivered { ack.deliver() } else { drop(ack) }
                }
                Step::Harvest => {
                    harvester.harvest(|_| {});
                    for sink in 0..3 {
                        prop_assert_eq!(harvester.watermark(sink).at, model.watermark(sink));
                    }
                }
                Step::NewEpoch => {
                    harvester.close();
                    (issuer, harvester, _) = fresh(2);
                    model = Model::default();
                    epoch += 1;
                }
            }
        }
        harvester.harvest(|_| {});
        let least = (0..3).map(|sink| model.watermark(sink)).min().unwrap_or(0);
        prop_assert_eq!(harvester.pending().0, model.batches.len() as u64 - least);
    }
}

/// Would catch holds of ended epochs that are counted in a new one, over many epochs.
#[test]
fn epoch_churn_never_leaks_a_stale_ack() {
    let mut late = Vec::new();
    for _ in 0..50 {
        let (mut issuer, mut harvester, _) = fresh(1);
        late.push(issue(&mut issuer, 1));
        issue(&mut issuer, 1).deliver();
        late.drain(..late.len() - 1).for_each(Ack::deliver);
        harvester.harvest(|_| {});
        assert_eq!(harvester.watermark(1), place(0), "the head of this epoch is still held");
        harvester.close();
    }
}

/// Would catch a waker that loses a wake that comes between the look and the sleep, or sleeps on one that came before.
#[test]
fn a_wake_before_the_sleep_is_kept() {
    let waker = Arc::new(Waker::new());
    waker.own();
    waker.wake(Wake::DATA);
    waker.wake(Wake::ROOM);
    let why = waker.park(Some(Duration::from_secs(60)));
    assert!(why.has(Wake::DATA) && why.has(Wake::ROOM));
    let other = waker.clone();
    let thread = std::thread::spawn(move || other.wake(Wake::FLUSH));
    let mut why = Wake::NONE;
    while why == Wake::NONE {
        why = waker.park(Some(Duration::from_secs(60)));
    }
    assert!(why.has(Wake::FLUSH));
    thread.join().expect("it only wakes");
}
