//! Every interleaving of pump and queue worker around the shared part, under loom.

use std::task::{Context, Poll, Wake, Waker};

use landfall_types::SystemClock;
use loom::sync::Notify;
use loom::thread;

use super::channel::Shared;
use super::intake::Intake;
use super::sync::Arc;
use super::{Need, QueueError, QueueSettings, TransactionTrace};
use crate::Lsn;
use crate::log_record::LogRecord;

/// A waker that remembers a wake until it is waited for. Parking the thread would not do: a late wake would end the
/// thread's next wait, whatever that is for.
struct Notifies(Notify);

impl Wake for Notifies {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.notify();
    }
}

/// Polls until ready; loom reports a deadlock where a wake is lost.
fn block<T>(mut poll: impl FnMut(&Context<'_>) -> Poll<T>) -> T {
    let notifies = std::sync::Arc::new(Notifies(Notify::new()));
    let waker = Waker::from(std::sync::Arc::clone(&notifies));
    let cx = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = poll(&cx) {
            return value;
        }
        notifies.0.wait();
    }
}

fn bounds() -> QueueSettings {
    QueueSettings { batch_records: 1, max_records: 1, ..QueueSettings::default() }
}

fn fresh() -> (Arc<Shared>, Intake) {
    let trace = Arc::new(TransactionTrace::off());
    let shared = Shared::new(Arc::new(SystemClock), trace, bounds().spare_cost_max());
    let intake = Intake::new(Arc::clone(&shared), bounds());
    (shared, intake)
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    // All interleavings with up to three preemptions, which is where such faults lie.
    model.preemption_bound = Some(3);
    model.check(check);
}

fn put(intake: &mut Intake, number: u64) -> Result<(), QueueError> {
    let room = block(|cx| intake.poll_room(cx, Need::bytes(1)))?;
    intake.admit(room, &LogRecord { lsn: Lsn(number), end_lsn: Lsn(number), bytes: b"x", ..LogRecord::default() })
}

/// Catches a wake that is lost in either direction: bundle to worker, room to pump, end to worker. The cap is one
/// record, so the pump waits for each.
#[test]
fn no_wake_is_lost_between_pump_and_worker() {
    model(|| {
        let (shared, mut intake) = fresh();
        let worker = thread::spawn(move || {
            let mut seen = 0;
            while let Some(mut bundle) = block(|cx| shared.poll_pop(cx)) {
                let mut view = bundle.view();
                while let Some(record) = view.current() {
                    seen += 1;
                    assert_eq!(record.lsn, Lsn(seen));
                    view.advance();
                }
            }
            seen
        });
        put(&mut intake, 1).expect("the worker lives");
        put(&mut intake, 2).expect("the worker lives");
        intake.shared.pump_ends();
        assert_eq!(worker.join().expect("it only takes"), 2);
        let counts = intake.shared.counters.read();
        assert_eq!((counts.processed, counts.held_records, counts.in_flight), (2, 0, 0));
    });
}

/// P27. Catches an order of storing and closing in which a woken pump finds no cause, and records that nobody settles.
#[test]
fn a_pump_that_waits_for_room_always_finds_the_failure() {
    model(|| {
        let (shared, mut intake) = fresh();
        let worker = thread::spawn(move || {
            let work = block(|cx| shared.poll_pop(cx));
            assert!(shared.fail(QueueError::Room { bytes: 7, room: 7 }));
            shared.worker_ends();
            drop(work);
            shared.worker_closes();
        });
        let mut ended = put(&mut intake, 1);
        for number in 2..=3 {
            ended = ended.and_then(|()| put(&mut intake, number));
        }
        // The third can only enter once the first two are settled, which is after the failure is stored.
        assert!(matches!(ended, Err(QueueError::Room { bytes: 7, .. })), "{ended:?}");
        worker.join().expect("it only fails");
        assert!(intake.flush().is_err());
        let counts = intake.shared.counters.read();
        assert_eq!((counts.in_flight, counts.held_records, counts.held_bytes), (0, 0, 0));
        assert_eq!(counts.processed + counts.dropped, counts.admitted);
    });
}
