use landfall_log::{Fault, Loss, Operation};
use landfall_types::Timestamp;

use super::slow_vfs::{PanicIn, Trouble};
use super::*;

impl World {
    /// The same machine after a power cut.
    fn after_power_cut(self, loss: Loss) -> World {
        let memory = self.vfs.as_ref().unwrap().memory.power_cut(loss);
        World { vfs: Some(Arc::new(SlowVfs::over(memory))), ..self }
    }

    fn memory(&self) -> &MemoryVfs {
        &self.vfs.as_ref().unwrap().memory
    }
}

/// Catches an acknowledgement before stable storage, and a record that comes back although it was answered NotStored, at
/// every step of the device at which the power can go (I1, I3, C100). Each cut is followed by two restarts.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_records_survive_a_power_cut_at_every_step() {
    for step in 0..60u64 {
        let loss = if step % 2 == 0 { Loss::Unsynced } else { Loss::Random(step) };
        let world = World::in_memory();
        let (channels, channel) = world.open(small_segments());
        committed(channel.publish(record(0), PublishOptions::default()).await);
        world.memory().crash_after(step);
        let mut tickets = Vec::new();
        for n in 1..40u64 {
            let records = if n % 5 == 0 { vec![record(n); 3] } else { vec![record(n)] };
            let options = PublishOptions { deadline: Some(Duration::from_millis(300)), ..PublishOptions::default() };
            tickets.push((n, records.len(), channel.submit_batch(records, options).await));
            if n % 3 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let mut acked = Vec::new();
        let mut refused = Vec::new();
        for (n, count, ticket) in tickets {
            match ticket.await {
                PublishOutcome::Committed(at) => acked.push((n, count, at.first)),
                PublishOutcome::NotStored(_) => refused.push(n),
                PublishOutcome::Unresolved(_) => {}
            }
        }
        let mut world = world.after_power_cut(loss);
        drop((channels, channel));
        let mut seen = None;
        for _ in 0..2 {
            let (channels, channel) = world.open(small_segments());
            let all = read_all(&channel, P0).await;
            for (n, count, first) in &acked {
                for index in 0..*count as u64 {
                    let at = first.0 as usize + index as usize;
                    assert_eq!(all.get(at).map(|one| &one.record), Some(&record(*n)), "step {step}, record {n}");
                }
            }
            for n in &refused {
                assert!(all.iter().all(|one| one.record != record(*n)), "step {step}: {n} was answered NotStored");
            }
            for n in (5..40u64).step_by(5) {
                let parts = all.iter().filter(|one| one.record == record(n)).count();
                assert!(parts == 0 || parts == 3, "step {step}: batch {n} has {parts} of 3 records");
            }
            if let Some(seen) = &seen {
                assert_eq!(&all, seen, "step {step}: a second restart sees the same");
            }
            seen = Some(all);
            channels.close();
            world = world.after_power_cut(Loss::Unsynced);
        }
    }
}

/// Catches an answer that does not wait for the settle, a later record that overtakes it, and a partition that stays shut
/// (C36, C39, C108).
#[tokio::test(flavor = "multi_thread")]
async fn uncertain_partition_recovers_by_itself_and_neighbours_do_not_notice() {
    for fault in [
        (Operation::Sync, Fault::Error(std::io::ErrorKind::Other)),
        (Operation::Sync, Fault::DoneThenError(std::io::ErrorKind::Other)),
        (Operation::Write, Fault::Short),
        (Operation::Write, Fault::Torn(std::io::ErrorKind::Other)),
    ] {
        let world = World::in_memory();
        let (channels, channel) = world.open(small_segments());
        let neighbour = channels.create("neighbour", small_segments()).unwrap();
        committed(channel.publish(record(0), PublishOptions::default()).await);
        committed(neighbour.publish(record(0), PublishOptions::default()).await);
        world.memory().inject(fault.0, 0, 1, fault.1);
        let tickets = futures::future::join_all((1..20).map(|n| channel.publish(record(n), PublishOptions::default())));
        let outcomes = tickets.await;
        for outcome in outcomes {
            committed(outcome);
        }
        committed(neighbour.publish(record(1), PublishOptions::default()).await);
        let all = read_all(&channel, P0).await;
        assert_eq!(all.len(), 20, "{fault:?}");
        let mut payloads: Vec<_> = all.iter().map(|one| one.record.payload.clone()).collect();
        payloads.sort();
        payloads.dedup();
        assert_eq!(payloads.len(), 20, "{fault:?}: each once");
        channels.close();
        let world = world.after_power_cut(Loss::Unsynced);
        for _ in 0..2 {
            let (channels, channel) = world.open(small_segments());
            assert_eq!(read_all(&channel, P0).await, all, "{fault:?}");
            channels.close();
        }
    }
}

/// Catches a thread that goes to a partition whose device hangs and leaves a busy neighbour standing in the run queue, where
/// no publish wakes anybody (C29, I13).
#[tokio::test(flavor = "multi_thread")]
async fn a_settle_that_hangs_leaves_a_busy_neighbour_running() {
    let world = World::in_memory();
    let vfs = Arc::clone(world.vfs.as_ref().unwrap());
    let (channels, channel) = world.open(small_segments());
    let neighbour = channels.create("neighbour", small_segments()).unwrap();
    publishing::settle_down(&vfs).await;
    let patience = Instant::now() + Duration::from_secs(20);
    vfs.set_trouble(Some((NAME, Trouble::Fails)));
    let ticket = channel.submit_batch(vec![record(0)], PublishOptions::default()).await;
    while channel.status().partitions[0].state != "uncertain" {
        assert!(Instant::now() < patience, "no append failed");
        tokio::task::yield_now().await;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let publishers: Vec<_> = (0..8u64)
        .map(|n| {
            let (neighbour, is_over) = (neighbour.clone(), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut count = 0u64;
                while !is_over.load(Ordering::SeqCst) {
                    committed(neighbour.publish(record(n), PublishOptions::default()).await);
                    count += 1;
                }
                count
            })
        })
        .collect();
    vfs.set_trouble(Some((NAME, Trouble::Hangs)));
    while vfs.hanging() == 0 {
        assert!(Instant::now() < patience, "no settle met the hanging device");
        tokio::task::yield_now().await;
    }
    let one = neighbour.publish(record(9), PublishOptions::default());
    committed(tokio::time::timeout(Duration::from_secs(10), one).await.expect("the neighbour goes on"));
    is_over.store(true, Ordering::SeqCst);
    for publisher in publishers {
        assert!(publisher.await.unwrap() > 0);
    }
    vfs.set_trouble(None);
    committed(ticket.await);
    channels.close();
}

/// Catches a publish that is answered NotStored although its record is in the log, when its future is dropped or runs out
/// of time at any moment (C22, C25, C108).
#[tokio::test(flavor = "multi_thread")]
async fn cancel_at_every_await_never_reports_not_stored_for_a_stored_record() {
    let world = World::in_memory();
    let vfs = Arc::clone(world.vfs.as_ref().unwrap());
    let (_channels, channel) = world.open(small_segments());
    vfs.set_sync_delay(Duration::from_millis(3));
    let mut publishers = Vec::new();
    for n in 0..400u64 {
        let channel = channel.clone();
        publishers.push(tokio::spawn(async move {
            // Deadlines around the time that a turn takes; every third is dropped instead.
            let deadline = Duration::from_micros(10_000 + 37 * n);
            let options = PublishOptions { deadline: Some(deadline), ..PublishOptions::default() };
            let publish = channel.publish(record(n), options);
            if n % 3 == 0 {
                return tokio::time::timeout(Duration::from_micros(29 * n), publish).await.ok();
            }
            Some(publish.await)
        }));
        if n % 8 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let mut outcomes = Vec::new();
    for publisher in publishers {
        outcomes.push(publisher.await.unwrap());
    }
    // What was claimed goes on alone; a last publish ends behind it.
    committed(channel.publish(record(400), PublishOptions::default()).await);
    let all = read_all(&channel, P0).await;
    let stored = |n: u64| all.iter().filter(|one| one.record == record(n)).count();
    for (n, outcome) in outcomes.into_iter().enumerate() {
        let n = n as u64;
        match outcome {
            Some(PublishOutcome::Committed(at)) => assert_eq!(all[at.first.0 as usize].record, record(n)),
            Some(PublishOutcome::NotStored(not)) => {
                assert_eq!((stored(n), not.error.code()), (0, ch(21)), "record {n}");
                assert_eq!(not.records, vec![record(n)], "the payload comes back");
            }
            Some(PublishOutcome::Unresolved(_)) | None => assert!(stored(n) <= 1),
        }
    }
}

/// Catches a device that is full and loses or repeats records, or that stays refused once there is room (C34).
#[tokio::test(flavor = "multi_thread")]
async fn a_full_device_refuses_and_reopens_by_itself() {
    let world = World::in_memory();
    let (_channels, channel) = world.open(small_segments());
    let big = || Record::new(vec![9u8; 200 << 10]);
    committed(channel.publish(record(0), PublishOptions::default()).await);
    // What is allocated can still be written, as on a real device.
    for operation in [Operation::Allocate, Operation::Create] {
        world.memory().inject(operation, 0, u64::MAX, Fault::Error(std::io::ErrorKind::StorageFull));
    }
    let mut stored = 1;
    let refused = loop {
        match channel.publish(big(), PublishOptions::default()).await {
            PublishOutcome::Committed(_) => stored += 1,
            PublishOutcome::NotStored(not) => break not,
            PublishOutcome::Unresolved(unresolved) => panic!("{unresolved:?}"),
        }
        assert!(stored < 100, "a full device takes no end of records");
    };
    assert_eq!(refused.error.code(), ch(30), "{}", refused.error);
    assert_eq!(channel.status().health, crate::Health::Full);
    world.memory().heal();
    let by = Instant::now() + Duration::from_secs(20);
    loop {
        match channel.publish(record(1), PublishOptions::default()).await {
            PublishOutcome::Committed(at) => {
                assert_eq!(at.first, Offset(stored));
                break;
            }
            _ => assert!(Instant::now() < by, "the partition reopens"),
        }
    }
    assert_eq!(channel.status().health, crate::Health::Ok);
}

/// Catches a panic that takes the pool or the partition with it, and a claimed publish that is answered otherwise than the
/// log says, or never (C31).
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_panics_is_recovered_and_its_tickets_are_answered() {
    for when in [PanicIn::BeforeSync, PanicIn::AfterSync] {
        let world = World::in_memory();
        let vfs = Arc::clone(world.vfs.as_ref().unwrap());
        let (channels, channel) = world.open(small_segments());
        committed(channel.publish(record(0), PublishOptions::default()).await);
        publishing::settle_down(&vfs).await;
        vfs.panic_in_sync(when);
        let outcomes = (1..10).map(|n| channel.publish(record(n), PublishOptions::default()));
        let outcomes = futures::future::join_all(outcomes).await;
        committed(channel.publish(record(10), PublishOptions::default()).await);
        let all = read_all(&channel, P0).await;
        for (outcome, n) in outcomes.into_iter().zip(1u64..) {
            let stored = all.iter().filter(|one| one.record == record(n)).count();
            match outcome {
                PublishOutcome::Committed(at) => assert_eq!(all[at.first.0 as usize].record, record(n), "{when:?}"),
                PublishOutcome::NotStored(_) => assert_eq!(stored, 0, "{when:?}: {n}"),
                PublishOutcome::Unresolved(unresolved) => panic!("{when:?}: {unresolved:?}"),
            }
        }
        channels.close();
        let (_channels, channel) = world.open(small_segments());
        assert_eq!(read_all(&channel, P0).await, all);
    }
}

/// Once armed it panics at the next look from a commit thread: a turn looks at the time before it writes anything.
#[derive(Debug, Default)]
struct TrippingClock {
    is_armed: AtomicBool,
}

impl Clock for TrippingClock {
    fn now(&self) -> Timestamp {
        let is_turn = std::thread::current().name().is_some_and(|name| name.starts_with("commit-"));
        assert!(!(is_turn && self.is_armed.swap(false, Ordering::SeqCst)), "injected before anything is written");
        SystemClock.now()
    }

    fn instant(&self) -> Instant {
        SystemClock.instant()
    }
}

/// Catches publishes that a turn took from the queue before it panicked and that are left to their deadlines, and room
/// that never comes back (C31, I6).
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_panics_before_it_writes_answers_what_it_took_and_gives_the_room_back() {
    let clock = Arc::new(TrippingClock::default());
    let world = World { clock: Arc::clone(&clock) as Arc<dyn Clock>, ..World::in_memory() };
    let (channels, channel) = world.open(small_segments());
    let patience = Instant::now() + Duration::from_secs(20);
    let (mut stored, mut refused, mut next) = (Vec::new(), 0, 0u64);
    // Housekeeping's errands may meet the panic instead of the publishes.
    while refused == 0 {
        assert!(Instant::now() < patience, "no turn with publishes panicked");
        clock.is_armed.store(true, Ordering::SeqCst);
        let outcomes = (next..next + 10).map(|n| channel.publish(record(n), PublishOptions::default()));
        for (outcome, n) in futures::future::join_all(outcomes).await.into_iter().zip(next..) {
            match outcome {
                PublishOutcome::Committed(at) => stored.push((at.first, n)),
                other => {
                    assert_eq!(not_stored(other).error.code(), ch(31));
                    refused += 1;
                }
            }
        }
        next += 10;
    }
    clock.is_armed.store(false, Ordering::SeqCst);
    stored.push((committed(channel.publish(record(next), PublishOptions::default()).await).first, next));
    stored.sort();
    let all = read_all(&channel, P0).await;
    assert_eq!(all.len(), stored.len());
    for (one, (offset, n)) in all.iter().zip(stored) {
        assert_eq!((one.offset, &one.record), (offset, &record(n)));
    }
    while channels.shared.queued_bytes() > 0 {
        assert!(Instant::now() < patience, "{} bytes are still taken", channels.shared.queued_bytes());
        tokio::task::yield_now().await;
    }
}

/// Catches a recovery that panics, too, and leaves publishes to their deadlines and their room taken for good (C31, I6).
#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_that_panics_answers_what_was_claimed_and_gives_the_room_back() {
    let world = World::in_memory();
    let vfs = Arc::clone(world.vfs.as_ref().unwrap());
    let (channels, channel) = world.open(small_segments());
    committed(channel.publish(record(0), PublishOptions::default()).await);
    publishing::settle_down(&vfs).await;
    vfs.panic_in_syncs(PanicIn::AfterSync, 2);
    let patience = Instant::now() + Duration::from_secs(8);
    let options = || PublishOptions { deadline: Some(Duration::from_secs(60)), ..PublishOptions::default() };
    let outcomes = futures::future::join_all((1..10).map(|n| channel.publish(record(n), options()))).await;
    assert!(Instant::now() < patience, "answered at once and not by the deadline");
    let unresolved = outcomes.iter().filter(|outcome| matches!(outcome, PublishOutcome::Unresolved(_))).count();
    assert!(unresolved > 0, "what was claimed may be in the log: {outcomes:?}");
    for outcome in outcomes.into_iter().filter(|outcome| !matches!(outcome, PublishOutcome::Unresolved(_))) {
        assert_eq!(not_stored(outcome).error.code(), ch(33));
    }
    let status = channel.status();
    assert_eq!(status.health, crate::Health::Stopped);
    assert!(status.partitions[0].cause.as_ref().unwrap().contains("recovery panicked"), "{status:?}");
    assert_eq!(channels.shared.queued_bytes(), 0);
}

/// Catches a numbered record that is stored twice, where its first answer was lost with the turn that stored it (C53, I4).
#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_that_was_lost_with_its_turn_is_known_to_its_repeat() {
    let world = World::in_memory();
    let vfs = Arc::clone(world.vfs.as_ref().unwrap());
    let (_channels, channel) = world.open(small_segments());
    committed(channel.publish(record(0), PublishOptions::default()).await);
    publishing::settle_down(&vfs).await;
    let numbered = || PublishOptions {
        partition: Some(P0),
        sequences: Some(crate::Sequences { producer: [7; 16], numbers: vec![(5, 0)].into() }),
        ..PublishOptions::default()
    };
    vfs.set_sync_delay(Duration::from_millis(200));
    vfs.panic_in_sync(PanicIn::AfterSync);
    let ticket = channel.submit_batch(vec![record(1)], numbered()).await;
    let partition = channel.partition(P0).unwrap();
    let patience = Instant::now() + Duration::from_secs(20);
    while partition.claimed.lock().is_empty() {
        assert!(Instant::now() < patience, "it is not claimed");
        tokio::task::yield_now().await;
    }
    // A drain that ran out of time has answered it while its turn was in the device.
    give_up(partition);
    assert!(matches!(ticket.await, PublishOutcome::Unresolved(_)));
    vfs.set_sync_delay(Duration::ZERO);
    assert_eq!(committed(channel.publish(record(2), PublishOptions::default()).await).first, Offset(2));
    let repeat = committed(channel.publish(record(1), numbered()).await);
    assert!(repeat.duplicate, "{repeat:?}");
    assert_records(&read_all(&channel, P0).await, 0);
    assert_eq!(channel.tail(P0), Some(Offset(3)));
}

/// Catches a settle or a closing mark that is written into a directory that is another's by now (C93).
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_lost_the_lock_neither_settles_nor_marks() {
    let world = World::in_memory();
    let vfs = Arc::clone(world.vfs.as_ref().unwrap());
    let (channels, channel) = world.open(small_segments());
    let is_ours = Arc::new(AtomicBool::new(true));
    let answer = Arc::clone(&is_ours);
    channels.watch_owner(move || answer.load(Ordering::SeqCst));
    committed(channel.publish(record(0), PublishOptions::default()).await);
    publishing::settle_down(&vfs).await;
    world.memory().inject(Operation::Sync, 0, u64::MAX, Fault::Error(std::io::ErrorKind::Other));
    let options = PublishOptions { deadline: Some(Duration::from_secs(60)), ..PublishOptions::default() };
    let ticket = channel.submit_batch(vec![record(1)], options).await;
    let patience = Instant::now() + Duration::from_secs(20);
    while channel.status().health != crate::Health::Uncertain {
        assert!(Instant::now() < patience, "the append is not uncertain");
        tokio::task::yield_now().await;
    }
    is_ours.store(false, Ordering::SeqCst);
    assert!(matches!(ticket.await, PublishOutcome::Unresolved(_)), "the new owner knows what became of it");
    // Healed only now: a settle that had looked at LOCK before may have been at work until then.
    world.memory().heal();
    assert!(Instant::now() < patience, "answered at once and not by the deadline");
    let steps = world.memory().steps();
    assert_eq!(not_stored(channel.publish(record(2), PublishOptions::default()).await).error.code(), ch(35));
    assert_eq!(channels.shared.queued_bytes(), 0);
    channels.close();
    assert_eq!(world.memory().steps(), steps, "nothing is written any more");
}

/// Catches a process that goes on writing after it has lost LOCK (C93), or whose committer finds no rest then.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_lost_the_lock_stops_before_writing() {
    let world = World::in_memory();
    let (channels, channel) = world.open(small_segments());
    let is_ours = Arc::new(AtomicBool::new(true));
    let answer = Arc::clone(&is_ours);
    channels.watch_owner(move || answer.load(Ordering::SeqCst));
    committed(channel.publish(record(0), PublishOptions::default()).await);
    is_ours.store(false, Ordering::SeqCst);
    let refused = not_stored(channel.publish(record(1), PublishOptions::default()).await);
    assert_eq!(refused.error.code(), ch(35));
    assert_eq!(not_stored(channel.publish(record(1), PublishOptions::default()).await).error.code(), ch(35));
    assert_records(&read_all(&channel, P0).await, 0);
    assert_eq!(channel.tail(P0), Some(Offset(1)));
    let partition = channel.partition(P0).unwrap();
    if let Some(committer) = partition.intake.errand(|errands| errands.retain = true) {
        partition.threads.commit.submit(committer);
    }
    let patience = Instant::now() + Duration::from_secs(20);
    let committer = loop {
        if let Some(committer) = partition.intake.unpark() {
            break committer;
        }
        assert!(Instant::now() < patience, "the committer is not parked");
        tokio::task::yield_now().await;
    };
    partition.intake.park_always(committer);
}
