//! The synchronous parts of the queue against a model that is too simple to be wrong (P36, P40): no task, no time; the
//! test plays pump and worker, one step at a time, in any order.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use super::channel::{Bundle, Shared};
use super::intake::Intake;
use super::sync::Arc;
use super::*;
use crate::{Lsn, Xid};

#[derive(Clone, Debug)]
enum Step {
    /// The pump lets a record in if there is room.
    Put {
        bytes: usize,
        aborted: usize,
    },
    Flush,
    /// The worker picks up a bundle, if it has none.
    Pop,
    /// The worker takes this many records of its bundle; the last one settles it.
    Take(usize),
    /// The worker gives up its bundle half-way, and itself.
    Fail,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0usize..3_000, 0usize..4).prop_map(|(bytes, aborted)| Step::Put { bytes, aborted }),
        1 => (20_000usize..60_000).prop_map(|bytes| Step::Put { bytes, aborted: 0 }),
        2 => Just(Step::Flush),
        4 => Just(Step::Pop),
        4 => (0usize..12).prop_map(Step::Take),
    ];
    (proptest::collection::vec(step, 1..300), any::<bool>()).prop_map(|(mut steps, fails)| {
        if fails {
            steps.push(Step::Fail);
        }
        steps
    })
}

/// What must be true of the queue, by counting.
#[derive(Default)]
struct Model {
    admitted: u64,
    processed: u64,
    dropped: u64,
    /// Numbers of the records that are in, oldest first, and their bytes.
    waiting: VecDeque<(u64, usize)>,
    /// Of the bundle at work: all, and how many of them were taken.
    at_work: usize,
    taken: usize,
    is_dead: bool,
}

impl Model {
    fn in_flight(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Records that count against the cap: the taken ones of the bundle at work count on.
    fn held(&self) -> u64 {
        self.in_flight() + self.taken as u64
    }
}

const MAX_RECORDS: u64 = 24;
const MAX_BYTES: u64 = 32 << 10;

fn check(shared: &Shared, model: &Model, largest_alone: u64) {
    let counts = shared.counters.read();
    assert_eq!((counts.admitted, counts.processed, counts.dropped), (model.admitted, model.processed, model.dropped));
    assert_eq!(counts.in_flight, model.in_flight());
    assert_eq!(counts.admitted, counts.processed + counts.dropped + counts.in_flight);
    assert_eq!(counts.held_records, model.held());
    assert!(counts.held_records <= MAX_RECORDS, "{counts:?}");
    let payload: usize = model.waiting.iter().map(|(_, bytes)| bytes).sum();
    assert!(counts.held_bytes >= payload as u64, "{counts:?} for {payload}");
    assert!(counts.held_bytes <= MAX_BYTES.max(largest_alone), "{counts:?}");
}

fn play(steps: Vec<Step>) {
    let bounds = QueueSettings {
        batch_records: 5,
        batch_bytes: 8 << 10,
        max_records: MAX_RECORDS,
        max_bytes: MAX_BYTES,
        ..QueueSettings::default()
    };
    let trace = Arc::new(TransactionTrace::off());
    let shared = Shared::new(Arc::new(SystemClock), trace, bounds.spare_cost_max());
    let mut intake = Intake::new(Arc::clone(&shared), bounds);
    let mut model = Model::default();
    let mut work: Option<Bundle> = None;
    // What a single record over the cap may take while it is alone.
    let mut largest_alone = 0;
    let cx = Context::from_waker(Waker::noop());
    for step in steps {
        match step {
            Step::Put { bytes, aborted } => {
                let need = Need { bytes, aborted };
                let before = model.held();
                match intake.poll_room(&cx, need) {
                    Poll::Ready(Ok(room)) => {
                        let number = model.admitted + 1;
                        let (bytes, aborted) = (vec![number as u8; bytes], vec![Xid(number as u32); aborted]);
                        let record = LogRecord {
                            lsn: Lsn(number),
                            end_lsn: Lsn(number),
                            bytes: &bytes,
                            aborted: &aborted,
                            ..LogRecord::default()
                        };
                        intake.admit(room, &record).expect("there is room");
                        model.admitted += 1;
                        model.waiting.push_back((number, bytes.len()));
                        if before == 0 {
                            largest_alone = shared.counters.read().held_bytes;
                        }
                    }
                    Poll::Ready(Err(error)) => assert!(model.is_dead, "{error}"),
                    Poll::Pending => assert!(before > 0, "an empty queue has no room for {need:?}"),
                }
            }
            Step::Flush => assert_eq!(intake.flush().is_err(), model.is_dead),
            Step::Pop if work.is_none() && !model.is_dead => {
                if let Poll::Ready(Some(bundle)) = shared.poll_pop(&cx) {
                    work = Some(bundle);
                    let view = work.as_mut().expect("it was just picked up").view();
                    (model.at_work, model.taken) = (view.remaining(), 0);
                    assert!((1..=5).contains(&model.at_work));
                }
            }
            Step::Take(count) => {
                if let Some(bundle) = &mut work {
                    let mut view = bundle.view();
                    for _ in 0..count.min(model.at_work - model.taken) {
                        let (number, bytes) = model.waiting.pop_front().expect("it is in flight");
                        let record = view.current().expect("it is there");
                        assert_eq!((record.lsn, record.bytes.len()), (Lsn(number), bytes));
                        assert!(record.bytes.iter().all(|byte| *byte == number as u8));
                        assert!(record.aborted.iter().all(|xid| *xid == Xid(number as u32)));
                        view.advance();
                        model.processed += 1;
                        model.taken += 1;
                    }
                    if model.taken == model.at_work {
                        assert!(view.current().is_none());
                        work = None;
                        (model.at_work, model.taken) = (0, 0);
                    }
                }
            }
            Step::Pop => {}
            Step::Fail => {
                assert!(shared.fail(QueueError::Ended));
                shared.worker_ends();
                work = None;
                shared.worker_closes();
                // What is open in the pump falls with its next call.
                assert!(intake.flush().is_err());
                model.dropped += model.in_flight();
                model.waiting.clear();
                (model.at_work, model.taken, model.is_dead) = (0, 0, true);
            }
        }
        check(&shared, &model, largest_alone);
    }
    // The end: the worker takes all that is left, in order.
    if !model.is_dead {
        intake.flush().expect("the worker lives");
        loop {
            if work.is_none() {
                let Poll::Ready(Some(bundle)) = shared.poll_pop(&cx) else { break };
                work = Some(bundle);
            }
            let mut view = work.as_mut().expect("a bundle is at work").view();
            while let Some(record) = view.current() {
                assert_eq!(Some(record.lsn.0), model.waiting.pop_front().map(|(number, _)| number));
                view.advance();
                model.processed += 1;
            }
            work = None;
        }
    }
    drop(intake);
    let counts = shared.counters.read();
    assert_eq!((counts.in_flight, counts.held_records, counts.held_bytes), (0, 0, 0), "{counts:?}");
    assert_eq!((counts.processed, counts.dropped), (model.processed, model.dropped));
    assert!(model.waiting.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// P40. Catches any order of steps after which counts, order or contents differ from the model's.
    #[test]
    fn queue_matches_its_model(steps in steps()) {
        play(steps);
    }

    /// P36. Catches a cap that is passed between two steps of a pump that never stops asking.
    #[test]
    fn caps_hold_at_every_step_of_a_model_run(
        sizes in proptest::collection::vec(0usize..4_000, 1..200),
        takes in 1usize..7,
    ) {
        let mut steps = Vec::new();
        for bytes in sizes {
            steps.extend([Step::Put { bytes, aborted: 0 }, Step::Put { bytes: 0, aborted: 0 }, Step::Pop]);
            steps.push(Step::Take(takes / 3));
        }
        play(steps);
    }
}
