//! The queue with its task: a scripted inner sink, paused time. Nothing sleeps; what is waited for is looked at.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

use super::*;
use crate::log_record::{Boundary, RecordKind, RecordSinkError};
use crate::{Lsn, Xid};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Call {
    Record(u64),
    Advance(u64),
    Idle,
    Close,
}

#[derive(Debug, Default)]
struct Script {
    calls: Vec<Call>,
    /// Records that may still be taken; `None`: all.
    allowed: Option<u64>,
    waker: Option<Waker>,
    fail_at: Option<u64>,
    panic_at: Option<u64>,
    fail_on_close: bool,
    /// Run inside `on_record`, with the record's number.
    probe: Option<fn(&Control, u64)>,
    view: Option<QueueView>,
    seen: VecDeque<QueueCounts>,
}

/// The test's hand on the inner sink.
#[derive(Clone, Debug, Default)]
struct Control(Arc<Mutex<Script>>);

impl Control {
    fn gated() -> Self {
        let control = Control::default();
        control.0.lock().allowed = Some(0);
        control
    }

    fn allow(&self, records: u64) {
        let waker = {
            let mut script = self.0.lock();
            script.allowed = script.allowed.map(|allowed| allowed.saturating_add(records));
            script.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn calls(&self) -> Vec<Call> {
        self.0.lock().calls.clone()
    }

    fn records(&self) -> Vec<u64> {
        let only = |call: &Call| if let Call::Record(lsn) = call { Some(*lsn) } else { None };
        self.0.lock().calls.iter().filter_map(only).collect()
    }

    fn count(&self, call: &Call) -> usize {
        self.0.lock().calls.iter().filter(|other| *other == call).count()
    }
}

struct ScriptedSink(Control);

#[derive(Debug, thiserror::Error)]
#[error("the disk is full")]
struct DiskFull;

#[derive(Debug, thiserror::Error)]
#[error("record {0} cannot be spilled")]
struct NotSpilled(u64, #[source] DiskFull);

impl RecordSink for ScriptedSink {
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RecordSinkError>> {
        let mut script = self.0.0.lock();
        match &mut script.allowed {
            None => Poll::Ready(Ok(())),
            Some(0) => {
                script.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Some(allowed) => {
                *allowed -= 1;
                Poll::Ready(Ok(()))
            }
        }
    }

    fn on_record(&mut self, record: &LogRecord<'_>) -> Result<(), RecordSinkError> {
        let (probe, fail_at, panic_at) = {
            let script = self.0.0.lock();
            (script.probe, script.fail_at, script.panic_at)
        };
        if let Some(probe) = probe {
            probe(&self.0, record.lsn.0);
        }
        assert_ne!(panic_at, Some(record.lsn.0), "record {} is not what was expected", record.lsn.0);
        if fail_at == Some(record.lsn.0) {
            return Err(Box::new(NotSpilled(record.lsn.0, DiskFull)));
        }
        self.0.0.lock().calls.push(Call::Record(record.lsn.0));
        Ok(())
    }

    fn on_idle_advance(&mut self, lsn: Lsn) -> Result<(), RecordSinkError> {
        self.0.0.lock().calls.push(Call::Advance(lsn.0));
        Ok(())
    }

    fn on_idle(&mut self) -> Result<(), RecordSinkError> {
        self.0.0.lock().calls.push(Call::Idle);
        Ok(())
    }

    fn on_close(&mut self) -> Result<(), RecordSinkError> {
        let mut script = self.0.0.lock();
        script.calls.push(Call::Close);
        if script.fail_on_close { Err(Box::new(DiskFull)) } else { Ok(()) }
    }
}

fn settings(batch_records: usize) -> QueueSettings {
    QueueSettings { batch_records, ..QueueSettings::default() }
}

fn start(control: &Control, settings: QueueSettings) -> QueueingSink {
    let queue = QueueingSink::start(Box::new(ScriptedSink(control.clone())), QueueParts::new(settings));
    control.0.lock().view = Some(queue.view());
    queue
}

fn record(number: u64, bytes: &[u8]) -> LogRecord<'_> {
    LogRecord { lsn: Lsn(number), end_lsn: Lsn(number), bytes, ..LogRecord::default() }
}

async fn put(queue: &mut QueueingSink, number: u64, bytes: &[u8]) -> Result<(), QueueError> {
    let room = queue.room(Need::bytes(bytes.len())).await?;
    queue.on_record(room, &record(number, bytes))
}

/// Whether a room would have to be waited for.
async fn is_full(queue: &mut QueueingSink, bytes: usize) -> bool {
    futures::poll!(std::pin::pin!(queue.room(Need::bytes(bytes)))).is_pending()
}

/// Lets the runtime work until the claim holds.
async fn until(what: &str, mut claim: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if claim() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("never: {what}");
}

const DEADLINE: Duration = Duration::from_secs(5);

/// The default `idle_interval`, and the millisecond that the runtime's timer may come later.
const INTERVAL: Duration = Duration::from_millis(51);

/// P13. Catches a pump that does the decoder's work on its own task.
#[tokio::test(start_paused = true)]
async fn the_pump_never_runs_the_inner_sink() {
    let control = Control::default();
    let mut queue = start(&control, settings(4));
    // Nothing here yields to the worker's task, so whatever the sink sees now it is shown by the pump.
    for number in 1..=64 {
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(Ok(room)) = queue.poll_room(&mut cx, Need::bytes(3)) else { panic!("there is room") };
        queue.on_record(room, &record(number, b"abc")).unwrap();
    }
    queue.flush().unwrap();
    assert_eq!(control.calls(), Vec::<Call>::new());
    queue.close(DEADLINE).await.unwrap();
    assert_eq!(control.records(), (1..=64).collect::<Vec<_>>());
}

/// P14. Catches a field that is lost in the hop; the pattern below does not compile until a new one is compared.
#[tokio::test(start_paused = true)]
async fn every_log_record_field_survives_the_queue() {
    struct Keeps(Arc<Mutex<Vec<String>>>);
    impl RecordSink for Keeps {
        fn on_record(&mut self, record: &LogRecord<'_>) -> Result<(), RecordSinkError> {
            let LogRecord {
                lsn,
                end_lsn,
                xid,
                subxid,
                kind,
                sent_at,
                bytes,
                page_version,
                route,
                boundary,
                aborted,
                is_deferred,
            } = record;
            self.0.lock().push(format!(
                "{lsn:?} {end_lsn:?} {xid:?} {subxid:?} {kind:?} {sent_at:?} {bytes:?} {page_version:?} {route:?} \
                 {boundary:?} {aborted:?} {is_deferred:?}"
            ));
            Ok(())
        }
    }
    let kept = Arc::new(Mutex::new(Vec::new()));
    let mut queue = QueueingSink::start(Box::new(Keeps(kept.clone())), QueueParts::new(settings(3)));
    let first = LogRecord {
        lsn: Lsn(1),
        end_lsn: Lsn(2),
        xid: Xid(3),
        subxid: Xid(4),
        kind: RecordKind::Oversized { len: 5 },
        sent_at: Timestamp(6),
        bytes: b"seven",
        page_version: 8,
        route: 9,
        boundary: Some(Boundary::Commit(Timestamp(10))),
        aborted: &[Xid(11), Xid(12)],
        is_deferred: true,
    };
    let second = LogRecord { lsn: Lsn(20), aborted: &[Xid(21)], bytes: b"", ..LogRecord::default() };
    let third = LogRecord { lsn: Lsn(30), bytes: b"thirty", boundary: Some(Boundary::Abort), ..first };
    for record in [&first, &second, &third, &second] {
        let room = queue.room(Need::of(record)).await.unwrap();
        queue.on_record(room, record).unwrap();
    }
    queue.close(DEADLINE).await.unwrap();
    let expected = Arc::new(Mutex::new(Vec::new()));
    let mut direct = Keeps(expected.clone());
    for record in [&first, &second, &third, &second] {
        direct.on_record(record).unwrap();
    }
    assert_eq!(*kept.lock(), *expected.lock());
    assert!(kept.lock()[0].contains("Lsn(1) Lsn(2) Xid(3) Xid(4) Oversized { len: 5 }"), "{:?}", kept.lock()[0]);
}

/// P15. Catches a bundle that waits for more than either limit, and a limit of 0 that stops the queue.
#[tokio::test(start_paused = true)]
async fn a_bundle_ships_at_either_limit() {
    for (settings, bytes, per_bundle) in [
        (QueueSettings { batch_records: 3, ..QueueSettings::default() }, 10, 3),
        (QueueSettings { batch_bytes: 100, ..QueueSettings::default() }, 50, 2),
        (QueueSettings { batch_bytes: 100, ..QueueSettings::default() }, 500, 1),
        (QueueSettings { batch_records: 0, batch_bytes: 0, ..QueueSettings::default() }, 10, 1),
    ] {
        let control = Control::default();
        let mut queue = start(&control, settings);
        let bytes = vec![7; bytes];
        for number in 1..=per_bundle * 4 {
            put(&mut queue, number, &bytes).await.unwrap();
        }
        // No flush: the last bundle is as full as the others, so all are on their way.
        until("all are taken", || control.records().len() as u64 == per_bundle * 4).await;
        let advances = control.calls().iter().filter(|call| matches!(call, Call::Advance(_))).count();
        assert_eq!(advances, 4, "{settings:?}");
    }
}

/// P16. Catches a commit that is stranded in the pump while the source is quiet.
#[tokio::test(start_paused = true)]
async fn flush_ships_a_partial_bundle() {
    let control = Control::default();
    let mut queue = start(&control, settings(512));
    put(&mut queue, 1, b"commit").await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(control.records(), Vec::<u64>::new());
    queue.flush().unwrap();
    until("the record is taken", || control.records() == [1]).await;
    // An empty flush ships nothing.
    queue.flush().unwrap();
    queue.close(DEADLINE).await.unwrap();
    assert_eq!(control.count(&Call::Advance(1)), 1);
}

/// P17. Catches memory that grows while the sink stands: both caps, looked at after every step.
#[tokio::test(start_paused = true)]
async fn in_flight_never_exceeds_either_cap() {
    let control = Control::gated();
    let bounds = QueueSettings {
        batch_records: 8,
        batch_bytes: 1 << 10,
        max_records: 40,
        max_bytes: 16 << 10,
        ..QueueSettings::default()
    };
    let mut queue = start(&control, bounds);
    let view = queue.view();
    let mut number = 0;
    for round in 0..200u64 {
        let bytes = vec![1; (round as usize * 37) % 900];
        while !is_full(&mut queue, bytes.len()).await {
            number += 1;
            put(&mut queue, number, &bytes).await.unwrap();
            let counts = view.counts();
            assert!(counts.held_records <= 40 && counts.held_bytes <= 16 << 10, "{counts:?}");
        }
        let before = view.counts().processed;
        control.allow(1 + round % 7);
        until("some are taken", || view.counts().processed > before).await;
    }
    assert!(number > 200, "the caps let nothing through");
    control.allow(u64::MAX);
    let report = queue.close(DEADLINE).await.unwrap();
    assert_eq!((report.processed, report.through), (number, Lsn(number)));
}

/// P19. Catches a wait for pick-up that has the work of earlier bundles in it although nothing waited.
#[tokio::test(start_paused = true)]
async fn queued_time_excludes_work() {
    let control = Control::gated();
    let mut queue = start(&control, settings(1));
    let view = queue.view();
    put(&mut queue, 1, b"a").await.unwrap();
    // It is picked up at once, and its work takes 10 s.
    until("it waits for room downstream", || control.0.lock().waker.is_some()).await;
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(view.counts().queued_nanos, 0);
    // The second one waits for 3 s behind it.
    put(&mut queue, 2, b"b").await.unwrap();
    tokio::time::advance(Duration::from_secs(3)).await;
    control.allow(1);
    until("the second is picked up", || view.counts().queued_nanos > 0).await;
    assert_eq!(view.counts().queued_nanos, 3_000_000_000);
    tokio::time::advance(Duration::from_secs(9)).await;
    control.allow(1);
    queue.close(DEADLINE).await.unwrap();
    assert_eq!(view.counts().queued_nanos, 3_000_000_000);
}

/// P20. Catches a sum that counts idle time, or grows while nobody waits.
#[tokio::test(start_paused = true)]
async fn room_wait_counts_only_waiting() {
    let control = Control::gated();
    let mut queue = start(&control, QueueSettings { batch_records: 1, max_records: 2, ..QueueSettings::default() });
    let view = queue.view();
    put(&mut queue, 1, b"").await.unwrap();
    tokio::time::advance(Duration::from_secs(100)).await;
    put(&mut queue, 2, b"").await.unwrap();
    assert_eq!(view.counts().room_wait_nanos, 0, "nobody has waited");
    {
        let mut room = std::pin::pin!(queue.room(Need::bytes(0)));
        assert!(futures::poll!(room.as_mut()).is_pending());
        tokio::time::advance(Duration::from_secs(7)).await;
        control.allow(1);
        let _ = room.await.unwrap();
    }
    assert_eq!(view.counts().room_wait_nanos, 7_000_000_000);
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_eq!(view.counts().room_wait_nanos, 7_000_000_000);
}

/// P21. Catches work that does not count: a bundle that left the channel is still held.
#[tokio::test(start_paused = true)]
async fn in_flight_counts_buffer_channel_and_work() {
    let control = Control::gated();
    let mut queue = start(&control, settings(2));
    let view = queue.view();
    for number in 1..=5 {
        put(&mut queue, number, b"x").await.unwrap();
    }
    until("the first bundle is at work", || control.0.lock().waker.is_some()).await;
    // Two at work, two in the channel, one in the buffer.
    assert_eq!((view.counts().in_flight, view.counts().held_records), (5, 5));
    control.allow(1);
    until("one is taken", || view.counts().processed == 1).await;
    assert_eq!((view.counts().in_flight, view.counts().held_records), (4, 5), "a bundle is held until it is settled");
    control.allow(1);
    until("the bundle is settled", || view.counts().held_records == 3).await;
    assert!(view.counts().held_bytes > 0);
    control.allow(3);
    queue.close(DEADLINE).await.unwrap();
    assert_eq!((view.counts().in_flight, view.counts().held_records, view.counts().held_bytes), (0, 0, 0));
}

/// P22. Catches a drain that looks like a stall: `processed` must move while no bundle has ended.
#[tokio::test(start_paused = true)]
async fn processed_moves_while_draining() {
    let control = Control::gated();
    let mut queue = start(&control, settings(512));
    let view = queue.view();
    for number in 1..=100 {
        put(&mut queue, number, b"x").await.unwrap();
    }
    queue.flush().unwrap();
    for taken in 1..=99 {
        control.allow(1);
        until("one more is taken", || view.counts().processed == taken).await;
        assert_eq!(view.counts().held_records, 100);
    }
}

/// P23. Catches a reordering between bundles or inside one.
#[tokio::test(start_paused = true)]
async fn dispatch_keeps_order_across_bundles() {
    let control = Control::default();
    let mut queue = start(&control, settings(7));
    for number in 1..=1_000 {
        put(&mut queue, number, &vec![0; number as usize % 50]).await.unwrap();
        if number % 31 == 0 {
            queue.flush().unwrap();
            tokio::task::yield_now().await;
        }
    }
    queue.close(DEADLINE).await.unwrap();
    assert_eq!(control.records(), (1..=1_000).collect::<Vec<_>>());
}

/// P24. Catches a bundle without its advance, an advance before its records, and one that falls with a lower LSN.
#[tokio::test(start_paused = true)]
async fn idle_advance_follows_every_bundle() {
    let control = Control::default();
    let mut queue = start(&control, settings(2));
    // A transaction that began earlier may end later: LSNs of changes do not only rise.
    for lsn in [10, 50, 20, 30, 60] {
        put(&mut queue, lsn, b"x").await.unwrap();
    }
    queue.close(DEADLINE).await.unwrap();
    use Call::{Advance, Close, Record};
    let expected =
        [Record(10), Record(50), Advance(50), Record(20), Record(30), Advance(50), Record(60), Advance(60), Close];
    assert_eq!(control.calls(), expected);
}

/// P25. Catches time-based work that needs input to fire.
#[tokio::test(start_paused = true)]
async fn on_idle_fires_on_a_silent_channel() {
    let control = Control::default();
    let queue = start(&control, settings(2));
    // The worker starts its cadence with its first turn.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    for fired in 1..=5 {
        tokio::time::advance(INTERVAL).await;
        until("it fires", || control.count(&Call::Idle) == fired).await;
    }
    // While the sink waits for room downstream too.
    drop(queue);
    let control = Control::gated();
    let mut queue = start(&control, settings(1));
    put(&mut queue, 1, b"x").await.unwrap();
    until("it waits for room", || control.0.lock().waker.is_some()).await;
    tokio::time::advance(INTERVAL).await;
    until("it fires", || control.count(&Call::Idle) == 1).await;
    assert_eq!(control.records(), Vec::<u64>::new());
}

/// P26. Catches counters that never come back to rest behind a failure, and records that are handed over after it.
#[tokio::test(start_paused = true)]
async fn a_failure_settles_in_flight_to_zero() {
    let control = Control::default();
    control.0.lock().fail_at = Some(4);
    let mut queue = start(&control, settings(3));
    let view = queue.view();
    for number in 1..=10 {
        put(&mut queue, number, b"x").await.unwrap();
    }
    // The tenth is still open in the pump.
    until("the worker is gone", || !view.worker_alive() && view.counts().in_flight == 1).await;
    assert!(queue.flush().is_err());
    let counts = view.counts();
    assert_eq!((counts.admitted, counts.processed, counts.dropped, counts.in_flight), (10, 3, 7, 0));
    assert_eq!((counts.held_records, counts.held_bytes), (0, 0));
    assert_eq!(control.records(), [1, 2, 3]);
    assert_eq!(control.count(&Call::Close), 0);
}

/// P27. Catches a close before the error is stored: the woken pump would find "stopped" and no reason.
#[tokio::test(start_paused = true)]
async fn a_woken_pump_reads_the_root_cause() {
    for is_panic in [false, true] {
        let control = Control::gated();
        {
            let mut script = control.0.lock();
            (script.fail_at, script.panic_at) = if is_panic { (None, Some(1)) } else { (Some(1), None) };
        }
        let mut queue = start(&control, QueueSettings { batch_records: 1, max_records: 2, ..QueueSettings::default() });
        put(&mut queue, 1, b"x").await.unwrap();
        put(&mut queue, 2, b"x").await.unwrap();
        let mut room = std::pin::pin!(queue.room(Need::bytes(1)));
        assert!(futures::poll!(room.as_mut()).is_pending());
        control.allow(1);
        let error = room.await.unwrap_err();
        match error {
            QueueError::Sink(_) => assert!(!is_panic),
            QueueError::Panicked { .. } => assert!(is_panic),
            other => panic!("{other:?}"),
        }
    }
}

/// P28. Catches a call that goes on as if nothing had happened.
#[tokio::test(start_paused = true)]
async fn the_error_surfaces_on_record_flush_and_close() {
    for way in 0..3 {
        let control = Control::default();
        control.0.lock().fail_at = Some(1);
        let mut queue = start(&control, settings(1));
        let view = queue.view();
        let room = queue.room(Need::bytes(1)).await.unwrap();
        let later = queue.room(Need::bytes(1)).await.unwrap();
        queue.on_record(room, &record(1, b"x")).unwrap();
        until("it has failed", || !view.worker_alive()).await;
        let text = match way {
            0 => queue.on_record(later, &record(2, b"x")).unwrap_err().to_string(),
            1 => queue.flush().unwrap_err().to_string(),
            _ => queue.close(DEADLINE).await.unwrap_err().to_string(),
        };
        assert!(text.contains("record 1 cannot be spilled"), "{text}");
    }
}

/// P29. Catches a dead worker that looks alive to a pump that holds a record and ships nothing.
#[tokio::test(start_paused = true)]
async fn worker_alive_turns_false_after_error_and_after_panic() {
    for (fail_at, panic_at) in [(Some(1), None), (None, Some(1))] {
        let control = Control::default();
        (control.0.lock().fail_at, control.0.lock().panic_at) = (fail_at, panic_at);
        let mut queue = start(&control, settings(1));
        assert!(queue.worker_alive());
        put(&mut queue, 1, b"x").await.unwrap();
        until("it is dead", || !queue.worker_alive()).await;
    }
    let control = Control::default();
    let queue = start(&control, settings(1));
    let view = queue.view();
    queue.close(DEADLINE).await.unwrap();
    assert!(!view.worker_alive(), "a close ends it too");
}

/// P30. Catches a tail that is left open at the end, and an `on_close` whose failure nobody hears of.
#[tokio::test(start_paused = true)]
async fn close_runs_on_close_once_and_reports_its_error() {
    let control = Control::default();
    let mut queue = start(&control, settings(512));
    put(&mut queue, 1, b"x").await.unwrap();
    queue.close(DEADLINE).await.unwrap();
    assert_eq!(control.count(&Call::Close), 1);
    assert_eq!(control.calls().last(), Some(&Call::Close));

    let control = Control::default();
    control.0.lock().fail_on_close = true;
    let queue = start(&control, settings(512));
    let view = queue.view();
    let error = queue.close(DEADLINE).await.unwrap_err();
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert!(view.failure().is_some());
    assert_eq!(control.count(&Call::Close), 1);
}

/// P31. Catches a close that waits for room that only the close itself would make.
#[tokio::test(start_paused = true)]
async fn close_drains_through_a_small_capacity() {
    let control = Control::gated();
    let mut queue = start(&control, QueueSettings { batch_records: 3, max_records: 3, ..QueueSettings::default() });
    for number in 1..=2 {
        put(&mut queue, number, b"x").await.unwrap();
    }
    control.allow(2);
    let report = queue.close(DEADLINE).await.unwrap();
    assert_eq!(report, CloseReport { processed: 2, through: Lsn(2) });
    assert_eq!(control.records(), [1, 2]);
}

/// P31. Catches a shutdown that hangs on a sink that waits for ever, or ends without naming what was left.
#[tokio::test(start_paused = true)]
async fn close_is_bounded() {
    let control = Control::gated();
    let mut queue = start(&control, settings(2));
    let view = queue.view();
    for number in 1..=5 {
        put(&mut queue, number, b"x").await.unwrap();
    }
    control.allow(1);
    let began = tokio::time::Instant::now();
    let error = queue.close(Duration::from_secs(3)).await.unwrap_err();
    assert_eq!(began.elapsed(), Duration::from_secs(3));
    let CloseError::Deadline { records, processed_through, through, .. } = error else { panic!("{error}") };
    assert_eq!((records, processed_through, through), (4, Lsn(1), Lsn(5)));
    until("what is left is dropped", || view.counts().in_flight == 0).await;
    assert_eq!((view.counts().processed, view.counts().dropped), (1, 4));
    assert_eq!(control.count(&Call::Close), 0);
}

/// P32. Catches a task that lives on without its pump, and counters that it leaves behind.
#[tokio::test(start_paused = true)]
async fn drop_aborts_the_queue_worker() {
    let control = Control::gated();
    let mut queue = start(&control, settings(2));
    let view = queue.view();
    for number in 1..=5 {
        put(&mut queue, number, b"x").await.unwrap();
    }
    until("a bundle is at work", || control.0.lock().waker.is_some()).await;
    drop(queue);
    until("the worker is gone", || !view.worker_alive() && view.counts().in_flight == 0).await;
    assert_eq!(view.counts().dropped, 5);
    assert_eq!((view.counts().held_records, view.counts().held_bytes), (0, 0));
    // The sink is gone with the task: the test holds the last hand on its script.
    until("the sink is dropped", || Arc::strong_count(&control.0) == 1).await;
    assert_eq!(control.count(&Call::Close), 0);
}

/// A sink in the middle of a record, which an abort does not reach.
struct Busy {
    has_begun: tokio::sync::mpsc::UnboundedSender<()>,
    goes_on: std::sync::mpsc::Receiver<()>,
    done: Arc<AtomicU64>,
}

impl RecordSink for Busy {
    fn on_record(&mut self, _record: &LogRecord<'_>) -> Result<(), RecordSinkError> {
        let _ = self.has_begun.send(());
        let _ = self.goes_on.recv();
        self.done.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// P32, I7. Catches a decoder that still cuts rounds when the next start has forgotten those before: what they held back
/// would be passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_abandoned_is_at_work_no_more() {
    let (has_begun, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let (go_on, goes_on) = std::sync::mpsc::channel();
    let done = Arc::new(AtomicU64::new(0));
    let sink = Busy { has_begun, goes_on, done: Arc::clone(&done) };
    let mut queue = QueueingSink::start(Box::new(sink), QueueParts::new(settings(1)));
    let view = queue.view();
    for number in 1..=3 {
        put(&mut queue, number, b"x").await.unwrap();
    }
    begun.recv().await.expect("a record is at work");
    let mut abandoned = std::pin::pin!(queue.abandon());
    assert!(futures::poll!(abandoned.as_mut()).is_pending(), "its record is at work");
    // The first record goes on, and whatever the abort lets come behind it.
    drop(go_on);
    abandoned.await;
    let at_the_end = done.load(Ordering::SeqCst);
    assert!(at_the_end >= 1 && !view.worker_alive());
    let counts = view.counts();
    assert_eq!((counts.in_flight, counts.processed + counts.dropped), (0, 3));
    assert_eq!(counts.processed, at_the_end);
}

/// A clock that counts who looks.
#[derive(Debug, Default)]
struct CountingClock(AtomicU64);

impl Clock for CountingClock {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    fn instant(&self) -> Instant {
        self.0.fetch_add(1, Ordering::Relaxed);
        RuntimeClock.instant()
    }
}

/// Counts spans by name.
#[derive(Clone, Default)]
struct SpanCounter(Arc<Mutex<Vec<&'static str>>>);

impl tracing::Subscriber for SpanCounter {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        let mut names = self.0.lock();
        names.push(span.metadata().name());
        tracing::span::Id::from_u64(names.len() as u64)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

async fn traced_run(trace: TransactionTrace) -> (u64, Vec<&'static str>, Arc<TransactionTrace>) {
    let (clock, spans, trace) = (Arc::new(CountingClock::default()), SpanCounter::default(), Arc::new(trace));
    let _default = tracing::subscriber::set_default(spans.clone());
    let parts = QueueParts { clock: clock.clone(), trace: trace.clone(), ..QueueParts::new(settings(100)) };
    let mut queue = QueueingSink::start(Box::new(ScriptedSink(Control::default())), parts);
    for number in 1..=1_000u64 {
        let room = queue.room(Need::bytes(1)).await.unwrap();
        let xid = Xid(u32::try_from(number / 100).unwrap() + 1);
        queue.on_record(room, &LogRecord { xid, ..record(number, b"x") }).unwrap();
    }
    queue.close(DEADLINE).await.unwrap();
    let names: Vec<&'static str> =
        spans.0.lock().iter().copied().filter(|name| ["queue", "bundle", "record"].contains(name)).collect();
    (clock.0.load(Ordering::Relaxed), names, trace)
}

/// P33. Catches a price per record for a trace that nobody asked for.
#[tokio::test(start_paused = true)]
async fn no_span_and_no_clock_read_per_record_when_off() {
    let (looks, spans, _) = traced_run(TransactionTrace::off()).await;
    assert_eq!(spans, Vec::<&str>::new());
    // Ten bundles: one look at ship, pick-up and end of each, and a few at the beginning.
    assert!(looks <= 10 * 3 + 5, "{looks} looks for 1,000 records in 10 bundles");
}

/// P33. Catches a trace that is on and shows nothing, or shows records of transactions that are not sampled.
#[tokio::test(start_paused = true)]
async fn spans_come_for_sampled_transactions_only() {
    let (_, spans, trace) = traced_run(TransactionTrace::one_in(1)).await;
    let count = |name: &str| spans.iter().filter(|span| **span == name).count();
    assert_eq!((count("queue"), count("bundle"), count("record")), (10, 10, 1_000));
    // Its first 99 records lie in one bundle.
    assert_eq!(trace.open(Xid(1)), Some(TracedTransaction { shipped: 1, popped: 1 }));
    trace.note_ended(Xid(1));
    assert_eq!(trace.open(Xid(1)), None);

    let sampled = TransactionTrace::one_in(4);
    let of_sampled: usize = (1..=1_000u32).filter(|number| sampled.is_sampled(Xid(number / 100 + 1))).count();
    let (_, spans, _) = traced_run(TransactionTrace::one_in(4)).await;
    assert!(of_sampled > 0 && of_sampled < 1_000, "{of_sampled}");
    assert_eq!(spans.iter().filter(|span| **span == "record").count(), of_sampled);
}

/// P33. Catches a registry that grows with every transaction whose end nobody tells.
#[test]
fn the_trace_registry_is_bounded() {
    let trace = TransactionTrace::one_in(1);
    trace.note_shipped((1..=5_000).map(Xid));
    assert_eq!((1..=5_000).filter(|xid| trace.open(Xid(*xid)).is_some()).count(), 1_024);
}

/// P34. Catches a counter that drifts under two threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_are_exact_at_rest() {
    let control = Control::default();
    let mut queue = start(&control, QueueSettings { batch_records: 16, max_records: 64, ..QueueSettings::default() });
    let view = queue.view();
    for number in 1..=50_000u64 {
        put(&mut queue, number, &[0; 100]).await.unwrap();
        let counts = view.counts();
        assert_eq!(counts.admitted, counts.processed + counts.dropped + counts.in_flight, "{counts:?}");
    }
    queue.close(Duration::from_secs(60)).await.unwrap();
    let counts = view.counts();
    assert_eq!((counts.admitted, counts.processed, counts.dropped), (50_000, 50_000, 0));
    assert_eq!((counts.in_flight, counts.held_records, counts.held_bytes), (0, 0, 0));
}

/// P35. Catches a bound in records alone: wide ones would fill the memory long before it.
#[tokio::test(start_paused = true)]
async fn wide_records_hit_the_byte_cap_first() {
    let control = Control::gated();
    let bounds = QueueSettings { batch_bytes: 16 << 10, max_bytes: 1 << 20, ..QueueSettings::default() };
    let mut queue = start(&control, bounds);
    let view = queue.view();
    let page = vec![9; 8 << 10];
    let mut number = 0;
    while !is_full(&mut queue, page.len()).await {
        number += 1;
        put(&mut queue, number, &page).await.unwrap();
    }
    let counts = view.counts();
    assert!(counts.held_records < 131_072 && counts.held_bytes <= 1 << 20, "{counts:?}");
    assert!(counts.held_bytes > (1 << 20) * 3 / 4, "most of the cap is used: {counts:?}");
}

/// P11. Catches a record larger than the cap that waits for ever, or enters beside others.
#[tokio::test(start_paused = true)]
async fn a_record_larger_than_the_cap_enters_alone() {
    let control = Control::gated();
    let bounds = QueueSettings { batch_bytes: 4 << 10, max_bytes: 64 << 10, ..QueueSettings::default() };
    let mut queue = start(&control, bounds);
    let view = queue.view();
    put(&mut queue, 1, b"small").await.unwrap();
    let huge = vec![3; 1 << 20];
    assert!(is_full(&mut queue, huge.len()).await, "it enters beside another");
    control.allow(1);
    put(&mut queue, 2, &huge).await.unwrap();
    assert_eq!(view.counts().held_records, 1);
    assert!(is_full(&mut queue, 1).await, "another enters beside it");
    control.allow(2);
    put(&mut queue, 3, b"small").await.unwrap();
    assert!(view.counts().held_bytes <= 64 << 10, "its memory went with it");
    queue.close(DEADLINE).await.unwrap();
    assert_eq!(control.records(), [1, 2, 3]);
}

/// P12. Catches an arena that is made anew for each bundle, and one that keeps a large message's memory.
#[tokio::test(start_paused = true)]
async fn arenas_are_used_again() {
    let control = Control::default();
    let mut queue = start(&control, settings(4));
    for number in 1..=400 {
        put(&mut queue, number, &[1; 200]).await.unwrap();
        if number % 4 == 0 {
            let view = queue.view();
            until("the bundle is settled", || view.counts().held_records == 0).await;
        }
    }
    let spare = queue.intake.shared.take_spare().expect("one is kept");
    assert!(queue.intake.shared.take_spare().is_none(), "one bundle at a time needs one arena");
    assert!(spare.cost() >= 800);
    let bytes = vec![2; 4 << 20];
    put(&mut queue, 401, &bytes).await.unwrap();
    queue.flush().unwrap();
    let view = queue.view();
    until("it is settled", || view.counts().held_records == 0).await;
    assert!(queue.intake.shared.take_spare().is_none(), "a large message's memory stays");
}

/// P37. Catches a cadence that starts anew with each bundle: a trickle would put it off for ever.
#[tokio::test(start_paused = true)]
async fn a_trickle_does_not_starve_on_idle() {
    let control = Control::default();
    let mut queue = start(&control, settings(1));
    let view = queue.view();
    for number in 1..=100 {
        // Every 20 ms a record, always before 50 ms of silence are full.
        tokio::time::advance(Duration::from_millis(20)).await;
        put(&mut queue, number, b"x").await.unwrap();
        until("it is taken", || view.counts().processed == number).await;
    }
    let fired = control.count(&Call::Idle);
    assert!((30..=41).contains(&fired), "{fired} calls in 2 s");
}

/// P38. Catches an error that its first reader takes away, and a root cause that is flattened.
#[tokio::test(start_paused = true)]
async fn the_first_error_is_sticky() {
    let control = Control::default();
    control.0.lock().fail_at = Some(1);
    let mut queue = start(&control, settings(1));
    let view = queue.view();
    put(&mut queue, 1, b"x").await.unwrap();
    until("it has failed", || !view.worker_alive()).await;
    for _ in 0..3 {
        let error = queue.room(Need::bytes(1)).await.unwrap_err();
        assert!(error.to_string().contains("record 1 cannot be spilled"), "{error}");
        assert!(queue.flush().unwrap_err().cause().unwrap().is::<NotSpilled>());
    }
    let CloseError::Failed(error) = queue.close(DEADLINE).await.unwrap_err() else { panic!("no failure") };
    let cause = error.cause().unwrap();
    assert!(std::error::Error::source(cause).unwrap().is::<DiskFull>(), "the chain is lost");
}

/// P39. Catches a panic whose text is lost when a tail is shipped to the dead worker.
#[tokio::test(start_paused = true)]
async fn panic_text_survives_close_with_a_tail() {
    let control = Control::default();
    control.0.lock().panic_at = Some(2);
    let mut queue = start(&control, settings(2));
    let view = queue.view();
    for number in 1..=3 {
        put(&mut queue, number, b"x").await.unwrap();
    }
    until("it has panicked", || !view.worker_alive()).await;
    let error = queue.close(DEADLINE).await.unwrap_err().to_string();
    assert!(error.contains("record 2 is not what was expected"), "{error}");
    assert!(error.contains("queue/tests.rs:"), "{error}");
    let counts = view.counts();
    assert_eq!((counts.admitted, counts.processed, counts.dropped, counts.in_flight), (3, 1, 2, 0));
}

/// P41. Catches a bundle that counts as one thing while it is half done.
#[tokio::test(start_paused = true)]
async fn a_half_processed_bundle_balances() {
    let control = Control::default();
    control.0.lock().probe = Some(|control, _| {
        let mut script = control.0.lock();
        let counts = script.view.as_ref().expect("it was started").counts();
        script.seen.push_back(counts);
    });
    control.0.lock().fail_at = Some(6);
    let mut queue = start(&control, settings(8));
    let view = queue.view();
    for number in 1..=8 {
        put(&mut queue, number, b"x").await.unwrap();
    }
    until("it has failed", || !view.worker_alive() && view.counts().in_flight == 0).await;
    let seen: Vec<QueueCounts> = control.0.lock().seen.iter().copied().collect();
    for (before, counts) in seen.iter().enumerate() {
        // The record at work is in flight until it has been taken.
        assert_eq!((counts.processed, counts.dropped, counts.in_flight), (before as u64, 0, 8 - before as u64));
    }
    assert_eq!(seen.len(), 6);
    assert_eq!((view.counts().processed, view.counts().dropped), (5, 3));
}

/// Catches a record that enters on the strength of a room that was asked for less.
#[tokio::test(start_paused = true)]
async fn a_record_larger_than_its_room_is_refused() {
    let mut queue = start(&Control::default(), settings(8));
    let room = queue.room(Need::bytes(3)).await.unwrap();
    let error = queue.on_record(room, &record(1, b"four")).unwrap_err();
    assert!(matches!(error, QueueError::Room { bytes: 4, room: 3 }), "{error}");
    assert_eq!(queue.view().counts().admitted, 0);
}

/// Catches a bound that the configuration does not hold, and defaults that do not pass their own check.
#[test]
fn settings_out_of_bounds_are_refused_by_name() {
    let good = QueueSettings::default();
    good.check().unwrap();
    assert!(good.memory_max() < 128 << 20, "{}", good.memory_max());
    for (bad, key) in [
        (QueueSettings { batch_records: 0, ..good }, "batch_records"),
        (QueueSettings { batch_records: 65_537, ..good }, "batch_records"),
        (QueueSettings { batch_bytes: 1, ..good }, "batch_bytes"),
        (QueueSettings { max_records: 1_023, ..good }, "max_records"),
        (QueueSettings { max_bytes: 9 << 30, ..good }, "max_bytes"),
        (QueueSettings { max_bytes: 1 << 20, ..good }, "max_bytes"),
        (QueueSettings { idle_interval: Duration::ZERO, ..good }, "idle_interval"),
    ] {
        let error = bad.check().unwrap_err();
        assert_eq!(error.key, key);
        assert!(error.to_string().contains("LF-PG0116"), "{error}");
    }
}
