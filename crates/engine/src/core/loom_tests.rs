//! Every interleaving of the small concurrent ones, under loom.

use std::time::Instant;

use landfall_types::{Epoch, Offset, PartitionId, Place};
use loom::thread;

use super::sync::Arc;
use super::{FailCause, Harvester, Issuer, Wake, Waker, ring};
use crate::codes;
use crate::contract::SinkId;

fn fresh() -> (Issuer, Harvester, Arc<Waker>) {
    let waker = Arc::new(Waker::new());
    let (issuer, harvester) = ring(PartitionId(0), Epoch(1), Place::START, 2, 1, waker.clone(), Instant::now());
    (issuer, harvester, waker)
}

fn issue(issuer: &mut Issuer) -> super::Ack {
    let start = issuer.end();
    let end = Place::of(Offset(start.at + 1));
    issuer.issue(start..end, 1, 1, Instant::now()).expect("there is room")
}

/// Would catch an interleaving in which the producer sees an awake owner and the owner sleeps without the bit.
#[test]
fn a_wake_between_check_and_park_is_never_lost() {
    loom::model(|| {
        let waker = Arc::new(Waker::new());
        waker.own();
        let other = waker.clone();
        let producer = thread::spawn(move || other.wake(Wake::DATA));
        // Loom reports a deadlock where the wake is lost.
        while !waker.park(None).has(Wake::DATA) {}
        producer.join().expect("it only wakes");
    });
}

/// Would catch a last hold that sees an old head while the harvest sees an old count: nobody would come again.
#[test]
fn a_resolved_head_is_never_missed() {
    // The race is between the last hold of a slot and the harvest that moves its head onto that slot. So the slot before
    // it is resolved already, and one thread is enough; and three preemptions are, since each side has two steps in it
    // (count and head, head and count). All interleavings of two threads that deliver take hours.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut issuer, mut harvester, waker) = fresh();
        waker.own();
        let (first, second) = (issue(&mut issuer), issue(&mut issuer));
        first.deliver();
        let other = thread::spawn(move || second.deliver());
        // The controller's loop: harvest, then sleep until a head is resolved.
        loop {
            assert!(harvester.harvest(|_| {}).failed.is_empty());
            if harvester.watermark(1) == Place::of(Offset(2)) && harvester.watermark(0) == Place::of(Offset(2)) {
                break;
            }
            waker.park(None);
        }
        other.join().expect("it only delivers");
    });
}

/// Would catch a slot that counts as delivered although one of its holds failed.
#[test]
fn each_slot_resolves_once_with_the_worst_status() {
    loom::model(|| {
        let (mut issuer, mut harvester, _) = fresh();
        let ack = issue(&mut issuer);
        let share = ack.share(SinkId(1));
        let one = thread::spawn(move || share.fail(&FailCause::new(codes::ABANDONED, "a test")));
        ack.deliver();
        one.join().expect("it only fails");
        let harvest = harvester.harvest(|_| {});
        assert_eq!(harvest.failed, [1]);
        assert_eq!((harvester.watermark(0).at, harvester.watermark(1).at), (1, 0));
    });
}

/// Would catch a hold that is taken and given back beside the last one and resolves the slot twice.
#[test]
fn holds_cloned_and_dropped_concurrently_resolve_once() {
    loom::model(|| {
        let (mut issuer, mut harvester, _) = fresh();
        let ack = issue(&mut issuer);
        let share = ack.share(SinkId(1));
        let one = thread::spawn(move || {
            let again = share.again();
            share.deliver();
            again.deliver();
        });
        ack.deliver();
        one.join().expect("it only delivers");
        let mut passed = 0;
        harvester.harvest(|_| passed += 1);
        assert_eq!(passed, 2, "the chain's and the sink's, once each");
    });
}

/// Would catch a gate that stays shut: the issuer reads an old advance while the harvest reads an old flag.
#[test]
fn a_gate_read_only_over_estimates() {
    loom::model(|| {
        let (mut issuer, mut harvester, _) = fresh();
        issue(&mut issuer).deliver();
        issue(&mut issuer).deliver();
        let driver = thread::spawn(move || issuer.has_room(u64::MAX));
        let reopens = harvester.harvest(|_| {}).reopens;
        let has_room = driver.join().expect("it only reads");
        assert!(has_room || reopens, "the gate is shut and nobody would open it");
    });
}
