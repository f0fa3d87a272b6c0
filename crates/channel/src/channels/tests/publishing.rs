use std::sync::atomic::AtomicUsize;

use super::*;
use crate::{Admission, Limits};

/// Catches an answer before the record can be read, offsets with gaps, and a loss over two restarts (I1, I2).
#[tokio::test(flavor = "multi_thread")]
async fn committed_records_are_read_at_once_and_after_two_restarts() {
    let world = World::on_disk();
    for round in 0..3u64 {
        let (channels, channel) = world.open(ChannelOptions::default());
        assert_eq!(channel.tail(P0), Some(Offset(round * 100)));
        for n in round * 100..(round + 1) * 100 {
            let at = committed(channel.publish(record(n), PublishOptions::default()).await);
            assert_eq!((at.first, at.count, at.class), (Offset(n), 1, Durability::Fsync));
            assert_eq!(channel.read(P0, at.first, 1, 1).await.unwrap()[0].record, record(n));
        }
        let all = read_all(&channel, P0).await;
        assert_eq!(all.len() as u64, (round + 1) * 100);
        assert_records(&all, 0);
        channels.close();
    }
}

/// Catches a batch that is cut, interleaved or given back incomplete (C4).
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_one_unit_at_consecutive_offsets() {
    let world = World::on_disk();
    let (_channels, channel) = world.open(ChannelOptions::default());
    let publishers = (0..8u64).map(|publisher| {
        let channel = channel.clone();
        tokio::spawn(async move {
            for n in 0..20u64 {
                let records: Vec<_> = (0..7).map(|_| record(publisher * 1_000 + n)).collect();
                let at = committed(channel.publish_batch(records.clone(), PublishOptions::default()).await);
                assert_eq!(at.count, 7);
                let read = channel.read(P0, at.first, 7, 1 << 20).await.unwrap();
                assert_eq!(read.into_iter().map(|one| one.record).collect::<Vec<_>>(), records);
            }
        })
    });
    for publisher in publishers.collect::<Vec<_>>() {
        publisher.await.unwrap();
    }
    assert_eq!(channel.tail(P0), Some(Offset(8 * 20 * 7)));
    let empty = committed(channel.publish_batch(Vec::new(), PublishOptions::default()).await);
    assert_eq!((empty.first, empty.count), (Offset(8 * 20 * 7), 0));
}

/// Catches a check that comes after a ticket exists, that fails a neighbour, or that keeps the payload (C8).
#[tokio::test(flavor = "multi_thread")]
async fn bad_records_are_not_stored_and_given_back() {
    let world = World::on_disk();
    let limits = Limits { record_bytes: ByteSize::kib(1), batch_records: 4, ..Limits::default() };
    let (_channels, channel) = world.open(ChannelOptions { limits, ..ChannelOptions::default() });
    let options = PublishOptions::default;
    let large = Record::new(vec![0u8; 2_000]);
    let refused = not_stored(channel.publish(large.clone(), options()).await);
    assert_eq!((refused.error.code(), refused.records), (ch(1), vec![large.clone()]));
    let refused = not_stored(channel.publish_batch(vec![record(0); 5], options()).await);
    assert_eq!((refused.error.code(), refused.records.len()), (ch(2), 5));
    let keyed = Record { idempotency_key: Some("k".into()), ..record(0) };
    let refused = not_stored(channel.publish_batch(vec![record(0), keyed], options()).await);
    assert_eq!(refused.error.code(), ch(3));
    let schema = Record { schema: Some(7), ..record(0) };
    assert_eq!(not_stored(channel.publish(schema, options()).await).error.code(), ch(4));
    let elsewhere = PublishOptions { partition: Some(PartitionId(9)), ..options() };
    assert_eq!(not_stored(channel.publish(record(0), elsewhere).await).error.code(), ch(6));
    let group = channel.publish_group(vec![record(0), large, record(1)], options()).await;
    assert_eq!(group.len(), 3);
    assert_eq!(group[0].committed().unwrap().first, Offset(0));
    assert!(matches!(&group[1], PublishOutcome::NotStored(not) if not.error.code() == ch(1) && not.records.len() == 1));
    assert_eq!(group[2].committed().unwrap().first, Offset(1));
    assert_eq!(channel.tail(P0), Some(Offset(2)));
}

/// Catches `expect` compared with the wrong offset, or stopping its neighbours (C13).
#[tokio::test(flavor = "multi_thread")]
async fn a_conditional_publish_conflicts_with_both_values() {
    let world = World::on_disk();
    let (_channels, channel) = world.open(ChannelOptions::default());
    let expecting = |offset| PublishOptions { expect: Some(Offset(offset)), ..PublishOptions::default() };
    committed(channel.publish(record(0), expecting(0)).await);
    let refused = not_stored(channel.publish(record(9), expecting(0)).await);
    assert!(
        matches!(refused.error, PublishError::OffsetConflict { expected: Offset(0), actual: Offset(1) }),
        "{:?}",
        refused.error
    );
    committed(channel.publish(record(1), expecting(1)).await);
    assert_records(&read_all(&channel, P0).await, 0);
}

/// Catches a stream that goes on after a record of it was refused (C6).
#[tokio::test(flavor = "multi_thread")]
async fn chain_leaves_no_hole() {
    let world = World::on_disk();
    let (_channels, channel) = world.open(ChannelOptions::default());
    let chain = channel.new_chain();
    let options = || PublishOptions { chain: Some(chain.clone()), ..PublishOptions::default() };
    let first = channel.submit_batch(vec![record(0)], options()).await;
    let wrong = channel.submit_batch(vec![record(9)], PublishOptions { expect: Some(Offset(77)), ..options() }).await;
    let later: Vec<_> = [channel.submit_batch(vec![record(9)], options()).await].into();
    committed(first.await);
    assert_eq!(not_stored(wrong.await).error.code(), ch(13));
    for ticket in later {
        assert_eq!(not_stored(ticket.await).error.code(), ch(14));
    }
    let refused = not_stored(channel.publish(record(9), options()).await);
    assert!(matches!(refused.error, PublishError::ChainBroken { first } if first == ch(13)), "{:?}", refused.error);
    let fresh = PublishOptions { chain: Some(channel.new_chain()), ..PublishOptions::default() };
    committed(channel.publish(record(1), fresh).await);
    assert_records(&read_all(&channel, P0).await, 0);
}

/// Catches a refusal at admission that takes along what its chain had queued before it: only what comes later would be
/// behind a hole (C6).
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_at_admission_leaves_what_was_queued_before_it() {
    let world = World::in_memory();
    let vfs = Arc::clone(world.vfs.as_ref().unwrap());
    let mut options = ChannelOptions { admission: crate::Admission::Reject, ..ChannelOptions::default() };
    options.queue.items = 64;
    let (_channels, channel) = world.open(options);
    settle_down(&vfs).await;
    vfs.set_sync_delay(Duration::from_millis(200));
    let chain = channel.new_chain();
    let options = || PublishOptions { chain: Some(chain.clone()), ..PublishOptions::default() };
    let mut queued = Vec::new();
    for n in 0..64 {
        queued.push(channel.submit_batch(vec![record(n)], options()).await);
    }
    let refused = channel.submit_batch(vec![record(64)], options()).await;
    let later = channel.submit_batch(vec![record(65)], options()).await;
    assert_eq!(not_stored(refused.await).error.code(), ch(20), "the queue is full");
    for (n, ticket) in queued.into_iter().enumerate() {
        assert_eq!(committed(ticket.await).first, Offset(n as u64));
    }
    assert_eq!(not_stored(later.await).error.code(), ch(14));
    // Of a group, too, what stands before the bad record gets in.
    let chain = channel.new_chain();
    let bad = Record { key: Some(vec![0u8; 70 << 10].into()), ..record(66) };
    let group = vec![record(64), bad, record(67)];
    let options = PublishOptions { chain: Some(chain), partition: Some(P0), ..PublishOptions::default() };
    let mut outcomes = channel.publish_group(group, options).await.into_iter();
    assert_eq!(committed(outcomes.next().unwrap()).first, Offset(64));
    assert_eq!(not_stored(outcomes.next().unwrap()).error.code(), ch(3));
    assert_eq!(not_stored(outcomes.next().unwrap()).error.code(), ch(14));
    assert_records(&read_all(&channel, P0).await, 0);
}

/// Catches a keyed record that goes elsewhere on a retry, and an unkeyed one that stays on one partition (C12).
#[tokio::test(flavor = "multi_thread")]
async fn routes_are_fixed_by_the_format() {
    let world = World::on_disk();
    let (_channels, channel) = world.open(ChannelOptions { partitions: 4, ..ChannelOptions::default() });
    assert_eq!(channel.partition_for(Some(b"order-1")), PartitionId(crc32c::crc32c(b"order-1") % 4));
    let keyed = |key: &'static str| Record { key: Some(key.into()), ..record(0) };
    for key in ["a", "b", "c", "d", "e"] {
        let at = committed(channel.publish(keyed(key), PublishOptions::default()).await);
        assert_eq!(at.partition, channel.partition_for(Some(key.as_bytes())));
    }
    let mut used = std::collections::BTreeSet::new();
    for _ in 0..1_000 {
        used.insert(channel.partition_for(None));
    }
    assert_eq!(used.len(), 4);
    assert_eq!(channel.positions().values().map(|offset| offset.0).sum::<u64>(), 5);
}

/// Catches a reject that is taken for an ack, and a waiter that poisons or overtakes (C61, I10).
#[tokio::test(flavor = "multi_thread")]
async fn capacity_reject_is_not_stored() {
    let world = World::in_memory();
    let vfs = Arc::clone(world.vfs.as_ref().unwrap());
    vfs.set_sync_delay(Duration::from_millis(20));
    let queue = crate::QueueLimits { items: 64, ..crate::QueueLimits::default() };
    let options = ChannelOptions { admission: Admission::Reject, queue, ..ChannelOptions::default() };
    let (channels, channel) = world.open(options);
    let rejected = Arc::new(AtomicUsize::new(0));
    let publishers: Vec<_> = (0..300u64)
        .map(|_| {
            let (channel, rejected) = (channel.clone(), Arc::clone(&rejected));
            tokio::spawn(async move {
                match channel.publish(record(0), PublishOptions::default()).await {
                    PublishOutcome::Committed(at) => assert_eq!(at.count, 1),
                    PublishOutcome::NotStored(not) => {
                        assert_eq!((not.error.code(), not.records), (ch(20), vec![record(0)]));
                        rejected.fetch_add(1, Ordering::Relaxed);
                    }
                    PublishOutcome::Unresolved(unresolved) => panic!("{unresolved:?}"),
                }
            })
        })
        .collect();
    for publisher in publishers {
        publisher.await.unwrap();
    }
    let rejected = rejected.load(Ordering::Relaxed);
    assert!(rejected > 0);
    assert_eq!(channel.tail(P0), Some(Offset(300 - rejected as u64)));
    assert_eq!(channels.shared.queued_bytes(), 0);
}

/// Catches a queue that grows past its bound, a waiter that is forgotten, and room that is not given back (I6, I10).
#[tokio::test(flavor = "multi_thread")]
async fn publishers_wait_for_room_and_all_get_in() {
    let world = World::in_memory();
    let queue = crate::QueueLimits { items: 64, ..crate::QueueLimits::default() };
    let (channels, channel) = world.open(ChannelOptions { queue, ..ChannelOptions::default() });
    let publishers: Vec<_> = (0..500u64)
        .map(|_| {
            let channel = channel.clone();
            tokio::spawn(async move {
                for _ in 0..4 {
                    committed(channel.publish(record(0), PublishOptions::default()).await);
                }
            })
        })
        .collect();
    for publisher in publishers {
        publisher.await.unwrap();
    }
    assert_eq!(channel.tail(P0), Some(Offset(2_000)));
    assert_eq!(channels.shared.queued_bytes(), 0);
}

/// Catches a sync per record, and publishers that split into alternating turns (C26, C105).
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_publishers_share_syncs_and_a_lone_one_takes_one() {
    let world = World::in_memory();
    let vfs = Arc::clone(world.vfs.as_ref().unwrap());
    let (_channels, channel) = world.open(ChannelOptions::default());
    let syncs = |vfs: &SlowVfs| vfs.syncs();
    committed(channel.publish(record(0), PublishOptions::default()).await);
    settle_down(&vfs).await;
    let before = syncs(&vfs);
    for _ in 0..30 {
        committed(channel.publish(record(0), PublishOptions::default()).await);
    }
    // Housekeeping's own, for space and for a mark of a quiet second, come on top.
    let taken = syncs(&vfs) - before;
    assert!((30..=34).contains(&taken), "{taken} syncs for 30 lone publishes");
    vfs.set_sync_delay(Duration::from_millis(4));
    settle_down(&vfs).await;
    let before = syncs(&vfs);
    let publishers: Vec<_> = (0..64u64)
        .map(|_| {
            let channel = channel.clone();
            tokio::spawn(async move {
                for _ in 0..100 {
                    committed(channel.publish(record(0), PublishOptions::default()).await);
                }
            })
        })
        .collect();
    for publisher in publishers {
        publisher.await.unwrap();
    }
    let taken = syncs(&vfs) - before;
    assert!(taken <= 150, "{taken} syncs for 64 publishers × 100 rounds");
}

/// Waits until housekeeping has prepared what it wants to prepare.
pub(super) async fn settle_down(vfs: &SlowVfs) {
    let by = Instant::now() + Duration::from_secs(10);
    let mut seen = vfs.syncs();
    let mut since = Instant::now();
    while since.elapsed() < Duration::from_millis(50) {
        assert!(Instant::now() < by, "housekeeping does not come to rest");
        tokio::task::yield_now().await;
        let now = vfs.syncs();
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
    }
}

/// Catches a drain that loses a queued publish, that takes a new one, or that waits for ever (C32).
#[tokio::test(flavor = "multi_thread")]
async fn a_drain_answers_everything_and_takes_nothing_new() {
    let world = World::in_memory();
    world.vfs.as_ref().unwrap().set_sync_delay(Duration::from_millis(5));
    let (channels, channel) = world.open(ChannelOptions::default());
    let mut tickets = Vec::new();
    for n in 0..50 {
        tickets.push(channel.submit_batch(vec![record(n)], PublishOptions::default()).await);
    }
    let report = channels.drain(Instant::now() + Duration::from_secs(10)).await;
    assert!(report.left.is_empty(), "{report:?}");
    assert_eq!(not_stored(channel.publish(record(50), PublishOptions::default()).await).error.code(), ch(34));
    for (n, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(committed(ticket.await).first, Offset(n as u64));
    }
    assert!(matches!(channels.create("late", ChannelOptions::default()), Err(OpenError::Draining)));
    channels.clone().close();
    channels.close();
}

/// Catches class `memory` that writes files or that claims more than it gives (C11).
#[tokio::test(flavor = "multi_thread")]
async fn class_memory_says_so_and_leaves_no_files() {
    let world = World::on_disk();
    let mut options = ChannelOptions { durability: Durability::Memory, ..small_segments() };
    assert!(options.clone().validated().is_err(), "memory needs max_bytes");
    options.retention.max_bytes = Some(ByteSize::mib(4));
    let (_channels, channel) = world.open(options);
    for n in 0..10 {
        assert_eq!(committed(channel.publish(record(n), PublishOptions::default()).await).class, Durability::Memory);
    }
    assert_records(&read_all(&channel, P0).await, 0);
    assert_eq!(std::fs::read_dir(world.dir.path().join("channels")).unwrap().count(), 0);
}

/// Catches a partition count that changes under the records, names that differ in case only, and an identity that is
/// made anew over records (C94).
#[tokio::test(flavor = "multi_thread")]
async fn identities_are_kept_and_conflicts_refused() {
    let world = World::on_disk();
    let (channels, channel) = world.open(ChannelOptions::default());
    let id = channel.id();
    committed(channel.publish(record(0), PublishOptions::default()).await);
    assert!(matches!(channels.create("ORDERS", ChannelOptions::default()), Err(OpenError::NameTaken { .. })));
    assert!(matches!(channels.create("a/b", ChannelOptions::default()), Err(OpenError::Option { .. })));
    let letters = channels.create("_dead_letters.orders", ChannelOptions::default()).unwrap();
    committed(letters.publish(record(0), PublishOptions::default()).await);
    channels.close();
    std::fs::create_dir(world.dir.path().join("channels/notes")).unwrap();
    std::fs::write(world.dir.path().join("channels/README"), "mine").unwrap();
    let two = ChannelOptions { partitions: 2, ..ChannelOptions::default() };
    let refused = world.open_with(vec![(NAME.into(), two)]);
    assert!(matches!(refused, Err(OpenError::PartitionsChanged { stored: 1, configured: 2, .. })));
    let channels = world.open_with(Vec::new()).unwrap();
    assert_eq!(channels.list().iter().map(Channel::name).collect::<Vec<_>>(), ["_dead_letters.orders", NAME]);
    assert_eq!(channels.get(NAME).unwrap().id(), id);
    assert_records(&read_all(&channels.get(NAME).unwrap(), P0).await, 0);
    channels.close();
    std::fs::remove_file(world.dir.path().join("channels/orders/channel.yaml")).unwrap();
    assert!(matches!(world.open_with(Vec::new()), Err(OpenError::IdentityLost { .. })));
    assert!(world.dir.path().join("channels/README").exists() && world.dir.path().join("channels/notes").exists());
}

/// Catches a repeat that is told that it is stored before its first copy is, which stands in the same turn (I1, C53).
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_in_the_turn_of_its_first_copy_is_answered_after_it() {
    let world = World::in_memory();
    let (_channels, channel) = world.open(small_segments());
    committed(channel.publish(record(0), PublishOptions::default()).await);
    world.vfs.as_ref().unwrap().set_sync_delay(Duration::from_millis(100));
    let under_way = channel.submit_batch(vec![record(1)], PublishOptions::default()).await;
    let patience = Instant::now() + Duration::from_secs(20);
    while channel.partition(P0).unwrap().claimed.lock().is_empty() {
        assert!(Instant::now() < patience, "nothing is claimed");
        tokio::task::yield_now().await;
    }
    // What is queued now is one turn.
    let numbered = |numbers: &[(u64, u64)]| PublishOptions {
        partition: Some(P0),
        sequences: Some(crate::Sequences { producer: [7; 16], numbers: numbers.into() }),
        ..PublishOptions::default()
    };
    let first = channel.submit_batch(vec![record(2)], numbered(&[(5, 0)])).await;
    let again = channel.submit_batch(vec![record(2)], numbered(&[(5, 0)])).await;
    let longer = channel.submit_batch(vec![record(2), record(3)], numbered(&[(5, 0), (5, 1)])).await;
    let other = channel.submit_batch(vec![record(4)], PublishOptions::default()).await;
    assert!(committed(again.await).duplicate);
    assert!(channel.tail(P0).unwrap() >= Offset(3), "its first copy is not in the log yet");
    assert!(!committed(first.await).duplicate);
    assert_eq!(committed(under_way.await).first, Offset(1));
    assert_eq!(committed(longer.await).first, Offset(3));
    assert_eq!(committed(other.await).first, Offset(4));
    assert_records(&read_all(&channel, P0).await, 0);
}

/// Catches a link to a channel that is opened as one more channel: two writers of one log, which take each other's offsets.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_name_of_a_channels_directory_is_no_channel() {
    let world = World::on_disk();
    let dir = world.dir.path().join("channels");
    let elsewhere = tempfile::tempdir().unwrap();
    for n in 0..4 {
        let (channels, channel) = world.open(small_segments());
        let names: Vec<String> = channels.list().iter().map(|channel| channel.name().to_owned()).collect();
        assert_eq!(names, [NAME], "start {n}");
        committed(channel.publish(record(n), PublishOptions::default()).await);
        assert_records(&read_all(&channel, P0).await, 0);
        drop(channel);
        channels.close();
        match n {
            0 => std::os::unix::fs::symlink(NAME, dir.join("alias")).unwrap(),
            // It lives on another disk, under its name and another one, which comes later in the alphabet.
            1 => {
                std::fs::remove_file(dir.join("alias")).unwrap();
                std::fs::rename(dir.join(NAME), elsewhere.path().join("moved")).unwrap();
                std::os::unix::fs::symlink(elsewhere.path().join("moved"), dir.join(NAME)).unwrap();
                std::os::unix::fs::symlink(elsewhere.path().join("moved"), dir.join("second")).unwrap();
            }
            _ => {}
        }
    }
}
