use landfall_protocol::wire::RecordType;
use proptest::prelude::*;

use super::*;
use crate::call::CallLimits;

const LIMITS: CallLimits = CallLimits { record_type: RecordType::Json, max_bytes: 1_000, max_records: 100 };
const JOIN: Coalesce = Coalesce { records: 4, bytes: 100 };
const ALONE: Coalesce = Coalesce { records: 1, bytes: 100 };

fn single(n: u64) -> PreparedBatch {
    LIMITS.prepare(n.to_string()).unwrap()
}

fn batch(records: std::ops::Range<u64>) -> PreparedBatch {
    LIMITS.prepare_batch(records.map(|n| n.to_string())).unwrap().unwrap()
}

fn frame_sizes(ledger: &mut Ledger, limits: Coalesce) -> Vec<usize> {
    std::iter::from_fn(|| ledger.next_frame(limits, Instant::now()).map(|frame| frame.calls.len())).collect()
}

/// Would catch joined frames above a limit, a batch that is joined, or a record that is skipped.
#[test]
fn queued_singles_share_a_frame() {
    let mut ledger = Ledger::default();
    for n in 0..6 {
        ledger.push(single(n)).unwrap();
    }
    ledger.push(batch(6..9)).unwrap();
    ledger.push(single(9)).unwrap();
    assert_eq!(frame_sizes(&mut ledger, JOIN), [4, 2, 1, 1]);
    assert_eq!(ledger.queued(), Load::default());
    let mut bytes = Ledger::default();
    for _ in 0..3 {
        bytes.push(LIMITS.prepare("x".repeat(60)).unwrap()).unwrap();
    }
    assert_eq!(frame_sizes(&mut bytes, JOIN), [1, 1, 1]);
}

/// Would catch an ack that is believed although nothing was sent that far.
#[test]
fn over_ack_changes_nothing_in_the_ledger() {
    let mut ledger = Ledger::default();
    assert_eq!(ledger.ack(0), AckEffect::Violation { highest: None });
    for n in 0..5 {
        ledger.push(single(n)).unwrap();
    }
    ledger.next_frame(ALONE, Instant::now()).unwrap();
    ledger.next_frame(ALONE, Instant::now()).unwrap();
    assert_eq!(ledger.ack(2), AckEffect::Violation { highest: Some(1) });
    assert_eq!((ledger.front(), ledger.unacked()), (0, 5));
    assert_eq!(ledger.ack(i64::MAX), AckEffect::Violation { highest: Some(1) });
}

/// Would catch a low, repeated or negative ack that moves or kills anything.
#[test]
fn a_low_ack_is_counted_and_ignored() {
    let mut ledger = Ledger::default();
    for n in 0..3 {
        ledger.push(single(n)).unwrap();
    }
    frame_sizes(&mut ledger, ALONE);
    assert_eq!(ledger.ack(1), AckEffect::Moved { freed: Load { records: 2, bytes: 130 } });
    for low in [1, 0, -1, i64::MIN] {
        assert_eq!(ledger.ack(low), AckEffect::Ignored);
    }
    assert_eq!((ledger.front(), ledger.totals().ignored_acks), (2, 4));
}

/// Would catch an outcome that claims too much: a call that an earlier RPC may have stored is never called
/// not stored because a later RPC refused it.
#[test]
fn a_refusal_is_definite_only_for_what_no_other_rpc_saw() {
    let mut ledger = Ledger::default();
    for n in 0..6 {
        ledger.push(single(n)).unwrap();
    }
    ledger.next_frame(ALONE, Instant::now()).unwrap();
    ledger.next_frame(ALONE, Instant::now()).unwrap();
    ledger.restart();
    for _ in 0..5 {
        ledger.next_frame(ALONE, Instant::now()).unwrap();
    }
    assert_eq!(ledger.ack(0), AckEffect::Moved { freed: Load { records: 1, bytes: 65 } });
    assert_eq!(ledger.calls_of_frame(3), Some((3, 3)));
    assert_eq!(ledger.calls_of_frame(0), None, "an acknowledged frame is over");
    ledger.refused_from(3);
    let stored: Vec<_> = ledger.take_back().into_iter().map(|call| (call.offset, call.may_be_stored)).collect();
    assert_eq!(stored, [(1, true), (2, true), (3, false), (4, false), (5, false)]);
    assert!(ledger.take_back().is_empty(), "taken back twice");
}

/// Would catch work that grows with what is in flight: acking one of a million must not touch the others.
/// Counted in time with a wide margin: a scan of the ring for each ack would take hours.
#[test]
fn ack_work_is_linear_in_acked() {
    let mut ledger = Ledger::default();
    const CALLS: u64 = 300_000;
    for n in 0..CALLS {
        ledger.push(single(n % 10)).unwrap();
    }
    let began = Instant::now();
    for _ in 0..CALLS {
        ledger.next_frame(ALONE, began).unwrap();
    }
    for wire in 0..CALLS {
        assert!(matches!(ledger.ack(wire as i64), AckEffect::Moved { .. }));
    }
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
    assert!(ledger.calls.capacity() <= 8_192, "the ring kept its memory: {}", ledger.calls.capacity());
}

/// Would catch a ring that is sized to the budget when it is made.
#[test]
fn queues_are_not_presized() {
    let ledger = Ledger::default();
    assert_eq!((ledger.calls.capacity(), ledger.frames.capacity()), (0, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Single,
    Batch(u64),
    Send,
    Ack(u64),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Single),
        1 => (1u64..5).prop_map(Step::Batch),
        4 => Just(Step::Send),
        3 => (0u64..6).prop_map(Step::Ack),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    /// Against a model that keeps every call in a list: would catch a lost, repeated or reordered call on an
    /// RPC, a wire offset that does not start at 0 or skips, an ack that frees something else than it names, and
    /// sums that drift.
    #[test]
    fn what_is_sent_is_the_unacked_in_order(steps in proptest::collection::vec(step(), 1..150)) {
        let mut ledger = Ledger::default();
        let mut all: Vec<PreparedBatch> = Vec::new();
        let mut acked = 0usize;
        let mut on_wire: Vec<usize> = Vec::new(); // calls up to and with each frame of this RPC
        let mut records = 0;
        for step in steps {
            match step {
                Step::Single | Step::Batch(_) => {
                    let call = match step { Step::Batch(n) => batch(records..records + n), _ => single(records) };
                    records += call.record_count();
                    all.push(call.clone());
                    prop_assert_eq!(ledger.push(call).unwrap(), all.len() as u64 - 1);
                }
                Step::Send => {
                    let at = on_wire.last().copied().unwrap_or(acked);
                    match ledger.next_frame(JOIN, Instant::now()) {
                        None => prop_assert_eq!(at, all.len()),
                        Some(frame) => {
                            prop_assert_eq!(frame.wire_offset, on_wire.len() as i64);
                            prop_assert_eq!(&frame.calls[..], &all[at..at + frame.calls.len()]);
                            prop_assert!(frame.calls.len() == 1 || frame.calls.iter().all(PreparedBatch::is_single));
                            on_wire.push(at + frame.calls.len());
                        }
                    }
                }
                Step::Ack(k) => {
                    let k = k as usize;
                    let before = acked;
                    match ledger.ack(k as i64) {
                        AckEffect::Violation { .. } => prop_assert!(k >= on_wire.len()),
                        AckEffect::Ignored => prop_assert!(on_wire[k] <= acked),
                        AckEffect::Moved { freed } => {
                            acked = on_wire[k];
                            prop_assert!(acked > before);
                            let sum: u64 = all[before..acked].iter().map(PreparedBatch::record_count).sum();
                            prop_assert_eq!(freed.records, sum);
                        }
                    }
                }
                Step::Restart => {
                    ledger.restart();
                    on_wire.clear();
                }
            }
            prop_assert_eq!((ledger.front(), ledger.next()), (acked as u64, all.len() as u64));
            let sent = on_wire.last().copied().unwrap_or(acked);
            let queued: u64 = all[sent.max(acked)..].iter().map(PreparedBatch::record_count).sum();
            prop_assert_eq!(ledger.queued().records, queued);
            let totals = ledger.totals();
            let in_flight: u64 = all[acked..].iter().map(PreparedBatch::record_count).sum();
            prop_assert_eq!(totals.admitted.records, totals.acked.records + in_flight);
        }
    }
}
