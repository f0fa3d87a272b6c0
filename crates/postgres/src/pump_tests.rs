//! The pump with a scripted transport and paused time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;

use super::*;
use crate::log_record::{RecordSink, RecordSinkError};
use crate::queue::{QueueParts, QueueSettings, QueueView};
use crate::transport::scripted::{Owned, ScriptedTransport, Told, data};
use crate::transport::{ReplicationTransport, StatusUpdate};

#[derive(Debug, Default)]
struct Seen {
    /// What each was, and where it ended.
    records: Mutex<Vec<(RecordKind, u64)>>,
    is_blocked: AtomicBool,
    waker: Mutex<Option<Waker>>,
    fail: AtomicBool,
}

impl Seen {
    fn unblock(&self) {
        self.is_blocked.store(false, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
    }

    fn count(&self) -> usize {
        self.records.lock().len()
    }
}

struct Sees(Arc<Seen>);

impl RecordSink for Sees {
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RecordSinkError>> {
        *self.0.waker.lock() = Some(cx.waker().clone());
        if self.0.is_blocked.load(Ordering::SeqCst) { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn on_record(&mut self, record: &LogRecord<'_>) -> Result<(), RecordSinkError> {
        if self.0.fail.load(Ordering::SeqCst) {
            return Err("the spill is full".into());
        }
        self.0.records.lock().push((record.kind, record.end_lsn.0));
        Ok(())
    }
}

struct Rig {
    seen: Arc<Seen>,
    view: QueueView,
    durable: Arc<DurableLsn>,
    stop: watch::Sender<bool>,
    ended: JoinHandle<PumpEnd>,
}

fn rig<T: Transport>(transport: T, settings: QueueSettings, rules: FeedbackRules) -> Rig {
    let seen = Arc::new(Seen::default());
    let mut queue = QueueingSink::start(Box::new(Sees(seen.clone())), QueueParts::new(settings));
    let (view, durable) = (queue.view(), DurableLsn::new(Lsn(10)));
    let (stop, stopped) = watch::channel(false);
    let parts =
        PumpParts { from: Lsn(10), durable: durable.clone(), rules, meters: StreamMeters::new("test"), stop: stopped };
    let ended = tokio::spawn(async move {
        let ended = pump(transport, &mut queue, parts).await;
        // The queue lives on: what was taken is handed over.
        let _ = queue.close(Duration::from_secs(60)).await;
        ended
    });
    Rig { seen, view, durable, stop, ended }
}

fn scripted(settings: QueueSettings) -> (Rig, UnboundedSender<Owned>, Told) {
    let (transport, frames, told) = ScriptedTransport::new();
    (rig(transport, settings, FeedbackRules::default()), frames, told)
}

async fn until(what: &str, mut claim: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if claim() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("never: {what}");
}

/// Lets time pass in small steps, with everything else at work in between.
async fn pass(time: Duration) {
    for _ in 0..time.as_millis() / 50 {
        tokio::time::advance(Duration::from_millis(50)).await;
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
}

fn tiny() -> QueueSettings {
    QueueSettings { batch_records: 2, max_records: 4, ..QueueSettings::default() }
}

/// P10. Catches a keepalive that overtakes data, and a stream whose beginning the decoder is not told.
#[tokio::test(start_paused = true)]
async fn keepalives_travel_in_order() {
    let (rig, frames, _) = scripted(QueueSettings::default());
    for lsn in [20, 40, 60] {
        frames.send(Owned::Data(lsn, vec![lsn as u8])).unwrap();
        frames.send(Owned::KeepAlive(lsn + 10, false)).unwrap();
    }
    frames.send(Owned::Oversized(80, 99, b"head".to_vec())).unwrap();
    until("all are seen", || rig.seen.count() == 8).await;
    let seen = rig.seen.records.lock().clone();
    use RecordKind::{KeepAlive, Message, Oversized, StreamStart};
    assert_eq!(
        seen,
        [
            (StreamStart, 10),
            (Message, 20),
            (KeepAlive, 30),
            (Message, 40),
            (KeepAlive, 50),
            (Message, 60),
            (KeepAlive, 70),
            (Oversized { len: 99 }, 80)
        ]
    );
}

/// P16. Catches a commit that waits in the pump for the next one.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_read_ships_what_is_open() {
    let (rig, frames, _) = scripted(QueueSettings::default());
    frames.send(Owned::Data(20, b"C".to_vec())).unwrap();
    until("it is seen although no bundle is full", || rig.seen.count() == 2).await;
}

/// P42, P43. Catches a reply that waits for the interval, and one that says more than is durable.
#[tokio::test(start_paused = true)]
async fn a_wanted_reply_goes_out_at_once_with_the_durable_lsn() {
    let (rig, frames, told) = scripted(QueueSettings::default());
    until("the first feedback is out", || told.all().len() == 1).await;
    frames.send(Owned::Data(500, b"row".to_vec())).unwrap();
    frames.send(Owned::KeepAlive(600, true)).unwrap();
    until("the reply is out", || told.all().len() == 2).await;
    let flush = Lsn(10);
    assert_eq!(told.all()[1], StatusUpdate { write: Lsn(600), flush, apply: flush, wants_reply: false });
    rig.durable.advance(Lsn(500));
    pass(Duration::from_secs(1)).await;
    assert_eq!(told.all().last().map(|status| status.flush), Some(Lsn(500)));
    assert!(rig.durable.feedback_age().is_some());
}

/// P18. Catches a full queue that stops feedback, or a pump that does not come back.
#[tokio::test(start_paused = true)]
async fn a_parked_pump_starves_nobody() {
    let (rig, frames, told) = scripted(tiny());
    rig.seen.is_blocked.store(true, Ordering::SeqCst);
    for lsn in 20..120 {
        frames.send(Owned::Data(lsn, b"row".to_vec())).unwrap();
    }
    until("the queue is full", || rig.view.counts().held_records == 4).await;
    let before = told.all().len();
    pass(Duration::from_secs(35)).await;
    assert!(told.all().len() >= before + 3, "feedback stands still");
    rig.durable.advance(Lsn(15));
    pass(Duration::from_secs(1)).await;
    assert_eq!(told.all().last().map(|status| status.flush), Some(Lsn(15)), "what becomes durable is told");
    assert_eq!(rig.view.counts().held_records, 4);
    rig.seen.unblock();
    until("all are seen", || rig.seen.count() == 101).await;
}

/// P47, F-P16. Catches a sink that blocks in the middle of a transaction and costs the connection: the peer here, like
/// the server, hangs up if it hears nothing for `wal_sender_timeout`.
#[tokio::test(start_paused = true)]
async fn feedback_flows_while_a_sink_blocks_for_three_timeouts() {
    let timeout = Duration::from_secs(5);
    let (transport, frames, told) = ScriptedTransport::new();
    let rules = FeedbackRules::new(Duration::from_secs(10), Duration::from_secs(90), timeout);
    let rig = rig(transport, tiny(), rules);
    rig.seen.is_blocked.store(true, Ordering::SeqCst);
    for lsn in 20..120 {
        frames.send(Owned::Data(lsn, b"row".to_vec())).unwrap();
    }
    until("the queue is full", || rig.view.counts().held_records == 4).await;
    pass(timeout * 3).await;
    assert!(!rig.ended.is_finished());
    let times = told.times();
    assert!(times.windows(2).all(|two| two[1] - two[0] < timeout), "{times:?}");
    assert!(times.last().is_some_and(|last| last.elapsed() < timeout));
    rig.seen.unblock();
    until("all are seen, once", || rig.seen.count() == 101).await;
    assert_eq!(rig.view.counts().admitted, 101, "nothing was read again");
}

/// P48. Catches a frozen peer that is waited for without end.
#[tokio::test(start_paused = true)]
async fn a_stalled_stream_reconnects_by_deadline() {
    let (rig, frames, told) = scripted(QueueSettings::default());
    frames.send(Owned::Data(20, b"row".to_vec())).unwrap();
    until("it is seen", || rig.seen.count() == 2).await;
    let began = tokio::time::Instant::now();
    let ended = rig.ended.await.unwrap();
    let PumpEnd::Silent(silent) = ended else { panic!("{ended}") };
    assert!(silent >= Duration::from_secs(90), "{silent:?}");
    assert!(began.elapsed() < Duration::from_secs(115), "{:?}", began.elapsed());
    assert!(told.all().iter().any(|status| status.wants_reply), "it was not asked");
    assert_eq!(ended_code(&PumpEnd::Silent(silent)), "LF-PG0108");
}

fn ended_code(ended: &PumpEnd) -> String {
    assert!(ended.to_string().contains(&ended.code().to_string()) || matches!(ended, PumpEnd::Stopped));
    ended.code().to_string()
}

/// P48. Catches a blocked sink that looks like a dead peer to the whole of pump and feedback.
#[tokio::test(start_paused = true)]
async fn a_pump_that_waits_for_room_does_not_reconnect() {
    let (rig, frames, _) = scripted(tiny());
    rig.seen.is_blocked.store(true, Ordering::SeqCst);
    for lsn in 20..40 {
        frames.send(Owned::Data(lsn, b"row".to_vec())).unwrap();
    }
    until("the queue is full", || rig.view.counts().held_records == 4).await;
    pass(Duration::from_secs(300)).await;
    assert!(!rig.ended.is_finished());
}

/// P42. Catches a stop that does not tell the server what became durable last, or leaves what was read behind.
#[tokio::test(start_paused = true)]
async fn a_stop_hands_over_what_was_read_and_sends_a_last_feedback() {
    let (rig, frames, told) = scripted(QueueSettings::default());
    frames.send(Owned::Data(20, b"row".to_vec())).unwrap();
    until("it is seen", || rig.seen.count() == 2).await;
    rig.durable.advance(Lsn(20));
    rig.stop.send(true).unwrap();
    assert!(matches!(rig.ended.await.unwrap(), PumpEnd::Stopped));
    assert_eq!(told.all().last().map(|status| status.flush), Some(Lsn(20)));
    assert!(told.is_finished());
}

/// Catches a failed decoder behind which the stream goes on, or stands still until a silent peer says its next word, and a
/// cause that is lost on the way up.
#[tokio::test(start_paused = true)]
async fn a_failed_decoder_ends_the_pump_with_its_cause() {
    let (rig, frames, _) = scripted(QueueSettings::default());
    rig.seen.fail.store(true, Ordering::SeqCst);
    frames.send(Owned::Data(20, b"row".to_vec())).unwrap();
    until("it has failed", || !rig.view.worker_alive()).await;
    let ended = rig.ended.await.unwrap();
    drop(frames);
    assert!(ended.to_string().contains("the spill is full"), "{ended}");
    assert_eq!(ended_code(&ended), "LF-PG0119");
    assert!(!ended.may_reconnect());
}

/// Catches a closed stream that waits for room which a blocked sink never makes.
#[tokio::test(start_paused = true)]
async fn a_closed_stream_is_told_while_the_queue_is_full() {
    let (transport, frames, _) = ScriptedTransport::new();
    let seen = Arc::new(Seen::default());
    seen.is_blocked.store(true, Ordering::SeqCst);
    let mut queue = QueueingSink::start(Box::new(Sees(seen.clone())), QueueParts::new(tiny()));
    for lsn in 20..23 {
        frames.send(Owned::Data(lsn, b"row".to_vec())).unwrap();
    }
    drop(frames);
    let (_stop, stopped) = watch::channel(false);
    let parts = PumpParts {
        from: Lsn(10),
        durable: DurableLsn::new(Lsn(10)),
        rules: FeedbackRules::default(),
        meters: StreamMeters::new("test"),
        stop: stopped,
    };
    let ended = pump(transport, &mut queue, parts).await;
    assert_eq!(ended_code(&ended), "LF-PG0118");
    assert!(ended.may_reconnect());
    assert_eq!(queue.view().counts().held_records, 4, "what was taken is still there");
}

/// P11. Catches a pump over real framing that takes bytes out of the socket while the queue is full.
#[tokio::test(start_paused = true)]
async fn a_full_queue_leaves_the_bytes_in_the_socket() {
    let (ours, peer) = tokio::io::duplex(32 << 10);
    let (read, write) = tokio::io::split(ours);
    let transport = ReplicationTransport::new(read, write, 1 << 20, &[]);
    let rig = rig(transport, tiny(), FeedbackRules::default());
    rig.seen.is_blocked.store(true, Ordering::SeqCst);
    let sent = Arc::new(AtomicU64::new(0));
    let (count, (hear, mut say)) = (sent.clone(), tokio::io::split(peer));
    let writer = tokio::spawn(async move {
        let row = vec![7; 1_000];
        for lsn in 20..5_020u64 {
            tokio::io::AsyncWriteExt::write_all(&mut say, &data(lsn, &row)).await.unwrap();
            count.fetch_add(1_030, Ordering::SeqCst);
        }
        say
    });
    until("the queue is full", || rig.view.counts().held_records == 4).await;
    pass(Duration::from_secs(5)).await;
    let before = sent.load(Ordering::SeqCst);
    assert!(before < 400 << 10, "{before} bytes of 5 MB went out");
    rig.seen.unblock();
    until("all are seen", || rig.seen.count() == 5_001).await;
    drop((writer.await.unwrap(), hear));
}

/// P33. Catches records whose transaction is not told, and one that goes on after its end.
#[test]
fn records_carry_the_transaction_that_their_begin_names() {
    let mut begin = vec![b'B'; 21];
    begin[17..21].copy_from_slice(&77u32.to_be_bytes());
    let mut prepared = vec![b'b'; 30];
    prepared[25..29].copy_from_slice(&78u32.to_be_bytes());
    let mut piece = vec![b'S'; 6];
    piece[1..5].copy_from_slice(&79u32.to_be_bytes());
    let mut commit = vec![b'c'; 40];
    commit[1..5].copy_from_slice(&79u32.to_be_bytes());
    let mut open = OpenTransaction::default();
    let xids: Vec<u32> = [
        begin.as_slice(),
        b"I...",
        b"C...",
        b"M...",
        &prepared,
        b"U...",
        b"P...",
        b"R...",
        &piece,
        b"D...",
        b"E",
        b"R",
        &commit,
        b"",
        b"B",
        b"I",
    ]
    .iter()
    .map(|bytes| open.message(bytes, LogRecord::default()).xid.0)
    .collect();
    assert_eq!(xids, [77, 77, 77, 0, 78, 78, 78, 0, 79, 79, 79, 0, 79, 0, 0, 0]);
}
