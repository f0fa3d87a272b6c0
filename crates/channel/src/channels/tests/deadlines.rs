//! Who waits is answered by their deadline, and by nobody's mistake later.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll, Wake, Waker};

use super::slow_vfs::Trouble;
use super::*;
use crate::error::ch;

const PATIENCE: Duration = Duration::from_secs(20);

fn by(deadline: Duration) -> PublishOptions {
    PublishOptions { deadline: Some(deadline), ..PublishOptions::default() }
}

fn code(outcome: PublishOutcome) -> Code {
    match outcome {
        PublishOutcome::Committed(at) => panic!("committed: {at:?}"),
        PublishOutcome::NotStored(not) => not.error.code(),
        PublishOutcome::Unresolved(unresolved) => unresolved.cause.code(),
    }
}

/// Waits until a turn hangs in the device.
fn until_it_hangs(world: &World) {
    let patience = Instant::now() + PATIENCE;
    while world.vfs.as_ref().unwrap().hanging() == 0 {
        assert!(Instant::now() < patience, "no turn hangs");
        std::thread::yield_now();
    }
}

/// Catches a ticket that is told of its deadline by nobody, or too early: in a turn that hangs, in the queue behind it,
/// with its own timer or with none, and looked at only once the deadline has passed.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_is_kept_wherever_a_ticket_waits() {
    let world = World::in_memory();
    let (_channels, channel) = world.open(small_segments());
    // The spare that every append asks for is there now.
    committed(channel.publish(record(0), PublishOptions::default()).await);
    world.vfs.as_ref().unwrap().set_trouble(Some(("0", Trouble::Hangs)));
    let deadlines = [30, 200, 400].map(Duration::from_millis);
    let publish = |deadline: Duration| {
        let channel = channel.clone();
        tokio::spawn(async move {
            let start = Instant::now();
            let outcome = channel.publish(record(0), by(deadline)).await;
            (code(outcome), start.elapsed(), deadline)
        })
    };
    let claimed = publish(deadlines[2]);
    until_it_hangs(&world);
    let start = Instant::now();
    let unpolled = channel.submit_batch(vec![record(1)], by(deadlines[1])).await;
    let queued: Vec<_> = (0..30).map(|n| publish(deadlines[n % 3])).collect();
    for ended in futures::future::join_all(queued).await {
        let (code, took, deadline) = ended.unwrap();
        assert_eq!(code, ch(21));
        assert!(took >= deadline && took < deadline + PATIENCE, "{took:?} for {deadline:?}");
    }
    let (ended, took, deadline) = claimed.await.unwrap();
    assert_eq!(ended, ch(40));
    assert!(took >= deadline && took < deadline + PATIENCE, "{took:?} for {deadline:?}");
    assert!(start.elapsed() > deadlines[1]);
    assert_eq!(code(unpolled.await), ch(21));
    world.vfs.as_ref().unwrap().set_trouble(None);
}

/// Catches publishers on a runtime of their own that wait for ever once the one has ended that the channels were opened on.
#[test]
fn who_waits_on_another_runtime_is_answered_too() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (own, other) = (runtime(), runtime());
    let world = World::in_memory();
    let (_channels, channel) = own.block_on(async { world.open(small_segments()) });
    committed(other.block_on(channel.publish(record(0), PublishOptions::default())));
    world.vfs.as_ref().unwrap().set_trouble(Some(("0", Trouble::Hangs)));
    let publish = |deadline| {
        let channel = channel.clone();
        other.spawn(async move { code(channel.publish(record(0), by(deadline)).await) })
    };
    let claimed = publish(Duration::from_millis(500));
    until_it_hangs(&world);
    let queued = publish(Duration::from_millis(500));
    own.shutdown_background();
    let after = publish(Duration::from_millis(500));
    other.block_on(async {
        let ended = tokio::time::timeout(PATIENCE, futures::future::join_all([claimed, queued, after]));
        let codes: Vec<_> = ended.await.expect("answered").into_iter().map(Result::unwrap).collect();
        assert_eq!(codes, [ch(40), ch(21), ch(21)]);
    });
    world.vfs.as_ref().unwrap().set_trouble(None);
}

/// Catches a watch that goes on looking while nothing waits, and one that does not come back.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_looks_while_nothing_waits() {
    let world = World::in_memory();
    let (channels, channel) = world.open(small_segments());
    for n in 0..3 {
        committed(channel.publish(record(n), PublishOptions::default()).await);
        assert!(channels.shared.threads.deadlines.is_armed());
        let patience = Instant::now() + PATIENCE;
        while channels.shared.threads.deadlines.is_armed() {
            assert!(Instant::now() < patience, "it looks although nothing waits");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[derive(Default)]
struct Panics(AtomicUsize);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("a waker of somebody else");
    }
}

/// Catches a publisher's waker that takes its neighbours' answers along, or the committer.
#[tokio::test(flavor = "multi_thread")]
async fn a_waker_that_panics_costs_nobody_their_answer() {
    let world = World::in_memory();
    let (_channels, channel) = world.open(small_segments());
    let panics = Arc::new(Panics::default());
    let waker = Waker::from(Arc::clone(&panics));
    for neighbours in [1, 40] {
        world.vfs.as_ref().unwrap().set_trouble(Some(("0", Trouble::Hangs)));
        let mut bad = pin!(channel.publish(record(0), by(Duration::from_secs(60))));
        assert!(bad.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let good: Vec<_> = (0..neighbours)
            .map(|n| {
                let channel = channel.clone();
                tokio::spawn(async move { channel.publish(record(n), by(Duration::from_secs(60))).await })
            })
            .collect();
        until_it_hangs(&world);
        let before = panics.0.load(Ordering::SeqCst);
        world.vfs.as_ref().unwrap().set_trouble(None);
        let answered = tokio::time::timeout(PATIENCE, futures::future::join_all(good)).await.expect("answered");
        answered.into_iter().for_each(|outcome| {
            committed(outcome.unwrap());
        });
        assert_eq!(panics.0.load(Ordering::SeqCst), before + 1);
        let ended = bad.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(ended, Poll::Ready(PublishOutcome::Committed(_))));
    }
}

/// Catches a waker of somebody who waits for room that takes along the answers of a turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_waker_of_who_waits_for_room_that_panics_costs_nobody_their_answer() {
    let world = World::in_memory();
    let mut options = small_segments();
    options.queue.items = 64;
    let (channels, channel) = world.open(options);
    committed(channel.publish(record(0), PublishOptions::default()).await);
    world.vfs.as_ref().unwrap().set_trouble(Some(("0", Trouble::Hangs)));
    let mut tickets = vec![channel.submit_batch(vec![record(0)], by(Duration::from_secs(60))).await];
    until_it_hangs(&world);
    for n in 1..64 {
        tickets.push(channel.submit_batch(vec![record(n)], by(Duration::from_secs(60))).await);
    }
    let panics = Arc::new(Panics::default());
    let waker = Waker::from(Arc::clone(&panics));
    // Twenty units, so that their room comes back in the middle of a turn's answers.
    let keyed = |n: u64| Record { idempotency_key: Some(format!("key {n}").into()), ..record(n) };
    let options = PublishOptions { partition: Some(P0), ..by(Duration::from_secs(60)) };
    let mut bad = Box::pin(channel.publish_group((0..20).map(keyed).collect(), options));
    assert!(bad.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    world.vfs.as_ref().unwrap().set_trouble(None);
    let answered = tokio::time::timeout(PATIENCE, futures::future::join_all(tickets)).await.expect("answered");
    for outcome in answered {
        committed(outcome);
    }
    assert_eq!(panics.0.load(Ordering::SeqCst), 1);
    drop(bad);
    let patience = Instant::now() + PATIENCE;
    while channels.shared.queued_bytes() > 0 {
        assert!(Instant::now() < patience, "room is not given back");
        tokio::task::yield_now().await;
    }
}
