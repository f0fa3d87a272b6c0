//! Reconnecting: what is sent again, when, and when it ends.

use std::time::Duration;

use landfall_client::{Client, IngestError, OnLoss, StreamBuilder, SubStreamState};
use tokio::time::Instant;
use tonic::Status;

use crate::peer::{Act, Gate, Peer, Script};
use crate::{eventually, multiplexed, single, stream};

/// A stream for tests that pause the clock and move it: nothing pings meanwhile, which a peer could not answer in time.
fn unpinged(peer: &Peer) -> StreamBuilder {
    let client = Client::builder(peer.url()).keepalive_interval(None).build().unwrap();
    client.stream("t").json().backoff_initial(Duration::from_millis(1)).backoff_max(Duration::from_millis(20))
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

/// Would catch a resend that skips, repeats or reorders, or that goes on counting wire offsets.
#[tokio::test]
async fn exactly_the_unacked_are_sent_again_from_wire_offset_zero() {
    let script = Script::never().at(0, Act::Ack(0)).at(5, Act::Fail(Status::unavailable("restart")));
    let peer = Peer::start(vec![script, Script::default()]).await;
    let stream = single(&peer).await;
    for n in 0..6 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    stream.flush().await.unwrap();
    assert_eq!(peer.records_of(0), numbers(0..6));
    assert_eq!(peer.records_of(1), numbers(1..6));
    let again: Vec<_> = peer.received().iter().filter(|frame| frame.rpc == 1).map(|frame| frame.wire_offset).collect();
    assert_eq!(again, [0, 1, 2, 3, 4]);
    assert_eq!(stream.snapshot().sub_streams[0].resent_records, 5, "resends are counted");
    stream.close().await.unwrap();
}

/// Would catch a lost record when the peer ends the stream, in whatever way, with many in flight.
#[tokio::test]
async fn every_kind_of_end_recovers() {
    let ends = [
        Act::Eof,
        Act::Fail(Status::unavailable("x")),
        Act::Fail(Status::internal("x")),
        Act::Fail(Status::cancelled("x")),
        Act::Fail(Status::resource_exhausted("x")),
        Act::AckWithoutOffset,
    ];
    let scripts = ends.into_iter().map(|end| Script::default().at(100, end)).chain([Script::default()]).collect();
    let peer = Peer::start(scripts).await;
    let stream = single(&peer).await;
    for n in 0..1_000 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    stream.flush().await.unwrap();
    stream.close().await.unwrap();
    assert_eq!(peer.rpcs(), 7);
    let mut first_seen = Vec::new();
    for record in peer.all_records() {
        if !first_seen.contains(&record) {
            first_seen.push(record);
        }
    }
    assert_eq!(first_seen, numbers(0..1_000));
}

/// A relay between client and peer that can be cut (both sides are closed) or frozen (nothing passes any more, and
/// nobody is told); the next connection goes to `to`.
struct Relay {
    address: std::net::SocketAddr,
    to: tokio::sync::watch::Sender<std::net::SocketAddr>,
    fate: tokio::sync::watch::Sender<Fate>,
    task: tokio::task::AbortHandle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Cut,
    Freeze,
}

impl Relay {
    async fn start(to: std::net::SocketAddr) -> Relay {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (to, target) = tokio::sync::watch::channel(to);
        let (fate, fates) = tokio::sync::watch::channel(Fate::Pass);
        let task = tokio::spawn(async move {
            let mut relays = tokio::task::JoinSet::new();
            loop {
                let Ok((mut near, _)) = listener.accept().await else { return };
                let (to, mut fates) = (*target.borrow(), fates.clone());
                fates.mark_unchanged();
                relays.spawn(async move {
                    let mut far = tokio::net::TcpStream::connect(to).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
                        changed = fates.changed() => changed.unwrap(),
                    }
                    if *fates.borrow() == Fate::Freeze {
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        Relay { address, to, fate, task: task.abort_handle() }
    }

    fn redirect(&self, to: std::net::SocketAddr, fate: Fate) {
        self.to.send_replace(to);
        self.fate.send_replace(fate);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn everything_arrives_at_the_next_peer(fate: Fate) {
    let peer = Peer::start(vec![Script::never()]).await;
    let relay = Relay::start(peer.address).await;
    let client = Client::builder(format!("http://{}", relay.address))
        .keepalive_interval(Some(Duration::from_secs(1)))
        .keepalive_timeout(Duration::from_secs(1));
    let stream = client.build().unwrap().stream("t").json().backoff_initial(Duration::from_millis(1));
    let stream = stream.coalesce_records(1).open().await.unwrap();
    for n in 0..50 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    peer.until("all frames", |peer| peer.received().len() == 50).await;
    let second = Peer::acking().await;
    relay.redirect(second.address, fate);
    tokio::time::timeout(Duration::from_secs(15), stream.flush()).await.expect("not found in time").unwrap();
    assert_eq!(second.all_records(), numbers(0..50));
    stream.close().await.unwrap();
}

/// Would catch a server that vanished, and records that are not sent to the one that follows.
#[tokio::test]
async fn a_dropped_connection_is_replaced() {
    everything_arrives_at_the_next_peer(Fate::Cut).await;
}

/// Would catch a peer that is gone without a word and is waited for: the ack deadline here is a minute.
#[tokio::test]
async fn half_open_peer_is_found() {
    everything_arrives_at_the_next_peer(Fate::Freeze).await;
}

/// Would catch a budget that every successful open refills: then a peer that opens and ends goes on for ever.
#[tokio::test]
async fn flapping_peer_exhausts_budget() {
    let peer = Peer::start(vec![Script::never().at(0, Act::Eof)]).await;
    let stream = unpinged(&peer).recovery_budget(Duration::from_millis(300)).open().await.unwrap();
    // Whatever the machine does meanwhile: only waits take time.
    tokio::time::pause();
    stream.ingest("1").await.unwrap();
    let began = Instant::now();
    let error = stream.flush().await.unwrap_err();
    let IngestError::Lost { attempts, .. } = error.first_cause() else { panic!("{error}") };
    assert!(began.elapsed() >= Duration::from_millis(250), "{:?}", began.elapsed());
    assert!(*attempts > 3 && peer.rpcs() < 200, "{attempts} attempts, {} RPCs", peer.rpcs());
}

/// Would catch a deadline that any message resets (F-I2 a), and one that runs while nothing is unacknowledged
/// (F-I2 b).
#[tokio::test]
async fn f_i2_deadline_belongs_to_the_oldest_send() {
    let chatty = Script { empty_each: Some(Duration::from_millis(100)), ..Script::never() };
    let peer = Peer::start(vec![chatty]).await;
    let open = unpinged(&peer).ack_timeout(Duration::from_millis(400)).recovery_budget(Duration::ZERO);
    let stream_a = open.open().await.unwrap();
    tokio::time::pause();
    stream_a.ingest("1").await.unwrap();
    let began = Instant::now();
    let error = stream_a.flush().await.unwrap_err();
    assert!(matches!(error.first_cause(), IngestError::AckTimeout { .. }), "{error}");
    // Half a second more for late acks.
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(400) && took < Duration::from_millis(1_500), "{took:?}");
    tokio::time::resume();

    let gate = Gate::new();
    let peer = Peer::start(vec![Script::default().at(0, Act::Wait(gate.clone()))]).await;
    let stream_b = unpinged(&peer).ack_timeout(Duration::from_secs(60)).open().await.unwrap();
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(50)).await;
    let id = stream_b.ingest("1").await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    tokio::time::resume();
    gate.open();
    stream_b.wait_for(id).await.unwrap();
    assert_eq!((peer.rpcs(), peer.all_records().len()), (1, 1), "it reconnected without need");
    stream_b.close().await.unwrap();
}

/// Would catch acks without progress that keep a dead stream alive.
#[tokio::test]
async fn repeated_ack_does_not_extend_deadline() {
    let mut script = Script::never().at(0, Act::Ack(0));
    for frame in 1..40 {
        script = script.at(frame, Act::Ack(0));
    }
    let peer = Peer::start(vec![script]).await;
    let stream =
        unpinged(&peer).coalesce_records(1).ack_timeout(Duration::from_millis(300)).recovery_budget(Duration::ZERO);
    let stream = stream.open().await.unwrap();
    let acked = stream.ingest("0").await.unwrap();
    stream.wait_for(acked).await.unwrap();
    tokio::time::pause();
    let began = Instant::now();
    let mut n = 0;
    while stream.terminal_error().is_none() {
        n += 1;
        let _ = stream.ingest(format!("{n}")).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(began.elapsed() < Duration::from_millis(1_500), "the repeated acks keep it alive");
    }
    assert!(
        matches!(*stream.terminal_error().unwrap(), IngestError::AckTimeout { oldest, .. } if oldest.offset() == 1)
    );
}

/// Would catch a deadline that a flood of messages keeps from being seen.
#[tokio::test]
async fn a_flood_of_messages_does_not_hide_the_deadline() {
    let mut script = Script { empty_each: Some(Duration::ZERO), ..Script::never() };
    for _ in 0..1_000 {
        script = script.at(0, Act::Ack(-1));
    }
    let peer = Peer::start(vec![script]).await;
    let open = stream(&peer).ack_timeout(Duration::from_millis(300)).recovery_budget(Duration::ZERO);
    let stream = open.open().await.unwrap();
    stream.ingest("1").await.unwrap();
    let error = stream.flush().await.unwrap_err();
    assert!(matches!(error.first_cause(), IngestError::AckTimeout { .. }), "{error}");
}

/// Would catch a record that still goes to a stream whose end was announced, or that goes to both (F-I8).
#[tokio::test]
async fn f_i8_sending_stops_with_the_signal() {
    let gate = Gate::new();
    let script = Script::never()
        .at(4, Act::CloseSignal(Some(Duration::from_secs(10))))
        .at(4, Act::Wait(gate.clone()))
        .at(4, Act::Ack(4));
    let peer = Peer::start(vec![script, Script::default()]).await;
    let stream = single(&peer).await;
    for n in 0..5 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    peer.until("five frames", |peer| peer.received().len() == 5).await;
    eventually("the pause", || stream.snapshot().sub_streams[0].state == SubStreamState::Paused).await;
    for n in 5..15 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    assert_eq!(peer.rpcs(), 1, "the next stream was opened before the old one was acknowledged");
    gate.open();
    stream.flush().await.unwrap();
    stream.close().await.unwrap();
    assert_eq!(peer.records_of(0), numbers(0..5));
    assert_eq!(peer.records_of(1), numbers(5..15));
    assert_eq!(stream.snapshot().sub_streams[0].resent_records, 0);
}

/// Would catch a record that leaks to the closing stream under load: once the signal was read nothing more may go
/// out, and what was not acknowledged goes to the next stream once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_leaks_no_record() {
    let signal = Act::CloseSignal(Some(Duration::from_secs(5)));
    let scripts = (0..20).map(|_| Script::default().at(50, signal.clone())).chain([Script::default()]).collect();
    let peer = Peer::start(scripts).await;
    // A narrow budget: what is submitted depends on acks, so there is always something after the signal.
    let open = stream(&peer).coalesce_records(1).max_in_flight_records(64).max_call_records(1);
    let stream = open.open().await.unwrap();
    for n in 0..3_000 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    stream.flush().await.unwrap();
    stream.close().await.unwrap();
    // The peer reads and acknowledges on after its signal, so nothing may have come twice.
    assert_eq!(peer.all_records(), numbers(0..3_000));
    assert_eq!(stream.snapshot().sub_streams[0].resent_records, 0);
    assert!(peer.rpcs() > 10, "{} RPCs: the signals were not seen", peer.rpcs());
    assert!(peer.received().iter().any(|frame| frame.after_signal), "nothing was in flight at any signal");
}

/// Would catch a signal without a time that is waited for, or that loses what was in flight.
#[tokio::test]
async fn a_signal_without_duration_ends_at_once() {
    let peer = Peer::start(vec![Script::never().at(2, Act::CloseSignal(None)), Script::default()]).await;
    let stream = single(&peer).await;
    for n in 0..6 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    stream.flush().await.unwrap();
    stream.close().await.unwrap();
    assert_eq!(peer.records_of(1), numbers(0..6), "all unacknowledged are sent again, in order");
    peer.until("half-close of the first", |peer| peer.was_half_closed(0)).await;
}

/// Would catch one sub-stream's trouble that ends the others.
#[tokio::test]
async fn retryable_end_poisons_nothing() {
    let flaky = Script::default().at(3, Act::Fail(Status::unavailable("x")));
    let peer = Peer::start(vec![flaky, Script::default()]).await;
    let stream = multiplexed(&peer, 3).await;
    for n in 0..300 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    stream.flush().await.unwrap();
    assert!(stream.terminal_error().is_none());
    stream.close().await.unwrap();
    assert_eq!(peer.rpcs(), 4);
    let mut records: Vec<u32> = peer.all_records().iter().map(|text| text.parse().unwrap()).collect();
    records.sort_unstable();
    records.dedup();
    assert_eq!(records.len(), 300);
}

/// Would catch a slow sub-stream that stalls the others, or takes their room.
#[tokio::test]
async fn slow_sub_stream_does_not_stall_others() {
    let gate = Gate::new();
    let peer = Peer::start(vec![Script::default().at(0, Act::Wait(gate.clone())), Script::default()]).await;
    let open = stream(&peer).max_in_flight_records(80).max_call_records(1).coalesce_records(1);
    let stream = open.multiplexed(4).open().await.unwrap();
    for n in 0..2_000 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    let stuck = stream.snapshot().sub_streams.iter().map(|sub_stream| sub_stream.unacked_calls).max().unwrap();
    assert!(stuck <= 50, "{stuck}: more than its floor and the common half");
    gate.open();
    stream.flush().await.unwrap();
    stream.close().await.unwrap();
    assert_eq!(peer.all_records().len(), 2_000);
}

/// Would catch a lost sub-stream that takes the handle down, or whose old records are never sent when it is back.
#[tokio::test]
async fn a_lost_sub_stream_is_replaced_and_its_records_arrive() {
    // The first RPC ends; whatever the client opens next fails until the last script, which serves.
    let mut scripts = vec![Script::never().at(0, Act::Eof), Script::default()];
    scripts.extend((0..30).map(|_| Script::refuse(Status::unavailable("away"))));
    scripts.push(Script::default());
    let peer = Peer::start(scripts).await;
    let open = stream(&peer).recovery_budget(Duration::from_millis(40)).coalesce_records(1);
    let stream = open.multiplexed(2).open().await.unwrap();
    let mut ids = Vec::new();
    for n in 0..4 {
        ids.push(stream.ingest(format!("{n}")).await.unwrap());
    }
    let is_lost = || stream.snapshot().sub_streams.iter().any(|sub_stream| sub_stream.state == SubStreamState::Lost);
    eventually("the loss", is_lost).await;
    let healthy = stream.ingest("100").await.unwrap();
    stream.wait_for(healthy).await.unwrap();
    for id in ids {
        stream.wait_for(id).await.unwrap();
    }
    assert!(stream.terminal_error().is_none());
    stream.close().await.unwrap();
}

/// Would catch `on_loss: poison` that is not heeded.
#[tokio::test]
async fn on_loss_poison_ends_the_handle() {
    let mut scripts = vec![Script::never().at(0, Act::Eof), Script::default()];
    scripts.push(Script::refuse(Status::unavailable("away")));
    let peer = Peer::start(scripts).await;
    let open = stream(&peer).recovery_budget(Duration::from_millis(40)).coalesce_records(1).multiplexed(2);
    let stream = open.on_loss(OnLoss::Poison).open().await.unwrap();
    for n in 0..4 {
        stream.ingest(format!("{n}")).await.unwrap();
    }
    let error = stream.close().await.unwrap_err();
    assert!(matches!(error.first_cause(), IngestError::Lost { .. }), "{error}");
}

/// Would catch a peer that stops reading and whose backlog leaves the bounded ledger.
#[tokio::test]
async fn stopped_reader_shows_as_queue() {
    let gate = Gate::new();
    let peer = Peer::start(vec![Script::default().at(0, Act::Wait(gate.clone()))]).await;
    let stream = stream(&peer).open().await.unwrap();
    let record = format!("\"{}\"", "x".repeat(10_000));
    for _ in 0..2_000 {
        stream.ingest(record.as_str()).await.unwrap();
    }
    peer.until("the first frame", |peer| !peer.received().is_empty()).await;
    let snapshot = stream.snapshot();
    assert!(snapshot.sub_streams[0].queued_records > 1_000, "{snapshot:?}");
    gate.open();
    stream.flush().await.unwrap();
    assert_eq!(stream.snapshot().sub_streams[0].queued_records, 0);
    stream.close().await.unwrap();
}
