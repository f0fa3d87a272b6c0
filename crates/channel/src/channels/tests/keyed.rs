use super::*;
use crate::{Sequences, keys};

fn keyed(key: &str, n: u64) -> Record {
    Record { idempotency_key: Some(key.to_owned().into()), ..record(n) }
}

/// Catches a second record under one key: at once, in flight, after a restart, and after two (I4, C47).
#[tokio::test(flavor = "multi_thread")]
async fn one_key_one_record_over_restarts() {
    let world = World::on_disk();
    for round in 0..3u64 {
        let (channels, channel) = world.open(small_segments());
        let same = (0..20).map(|_| channel.publish(keyed("order-7", 0), PublishOptions::default()));
        let outcomes = futures::future::join_all(same).await;
        let all: Vec<_> = outcomes.into_iter().map(committed).collect();
        assert!(all.iter().all(|at| at.first == Offset(0) && at.count == 1), "{all:?}");
        let originals = all.iter().filter(|at| !at.duplicate).count();
        assert_eq!(originals, usize::from(round == 0));
        let refused = not_stored(channel.publish(keyed("order-7", 1), PublishOptions::default()).await);
        assert_eq!((refused.error.code(), refused.records), (ch(10), vec![keyed("order-7", 1)]));
        assert_eq!(channel.tail(P0), Some(Offset(1)));
        channels.close();
    }
}

/// Catches a keyed batch whose repeat is stored or answered with another extent (C4).
#[tokio::test(flavor = "multi_thread")]
async fn a_keyed_batch_is_stored_once() {
    let world = World::on_disk();
    let (_channels, channel) = world.open(ChannelOptions::default());
    let batch = || vec![keyed("batch-1", 0), record(1), record(2)];
    let first = committed(channel.publish_batch(batch(), PublishOptions::default()).await);
    let again = committed(channel.publish_batch(batch(), PublishOptions::default()).await);
    assert_eq!((again.first, again.count, again.duplicate), (first.first, 3, true));
    assert_records(&read_all(&channel, P0).await.into_iter().skip(1).collect::<Vec<_>>(), 1);
}

/// Catches a key that stays taken, and a joined publisher that hangs, when the first one gives up in the queue (C22).
#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_key_is_free_again() {
    let world = World::in_memory();
    let vfs = Arc::clone(world.vfs.as_ref().unwrap());
    let (_channels, channel) = world.open(ChannelOptions::default());
    vfs.set_sync_delay(Duration::from_millis(200));
    // One is under way, so the next one stays queued until it is dropped.
    let under_way = channel.submit_batch(vec![record(0)], PublishOptions::default()).await;
    while channel.partition(P0).unwrap().intake.queued() > 0 {
        tokio::task::yield_now().await;
    }
    let queued = channel.submit_batch(vec![keyed("k", 1)], PublishOptions::default()).await;
    let joined = channel.submit_batch(vec![keyed("k", 1)], PublishOptions::default()).await;
    drop(queued);
    assert_eq!(committed(under_way.await).first, Offset(0));
    let joined = committed(joined.await);
    assert_eq!((joined.first, joined.duplicate), (Offset(1), true));
    let again = committed(channel.publish(keyed("k", 1), PublishOptions::default()).await);
    assert_eq!((again.first, again.duplicate), (Offset(1), true));
    let alone = channel.submit_batch(vec![keyed("other", 1)], PublishOptions::default()).await;
    drop(alone);
    let retry = committed(channel.publish(keyed("other", 1), PublishOptions::default()).await);
    assert!(!retry.duplicate || retry.first == Offset(2), "{retry:?}");
    assert_eq!(channel.tail(P0), Some(Offset(3)));
}

/// Catches a key identity of 64 bits: with one seed and one half in common the other half must still tell keys apart
/// (C109).
#[test]
fn key_hash_collision_needs_128_bits() {
    let mut table = keys::KeyTable::rebuilt(Default::default(), Offset::ZERO, &[], &[]);
    let (mut one, mut other) = ([7u8; 16], [7u8; 16]);
    (one[0], other[15]) = (1, 1);
    let unit = crate::intake::tests::unit(1);
    let now = landfall_types::Timestamp(0);
    assert!(matches!(table.enter(one, 5, &unit, now), keys::Gate::Vacant));
    assert!(matches!(table.enter(other, 5, &unit, now), keys::Gate::Vacant));
}

/// Catches a resend that is stored twice: whole, cut elsewhere, overlapping, and after a restart (C53, C109).
#[tokio::test(flavor = "multi_thread")]
async fn resent_sequence_is_stored_once() {
    let world = World::on_disk();
    let numbered = |range: std::ops::Range<u64>| {
        let numbers = range.clone().map(|n| (n, 0)).collect();
        let sequences = Some(Sequences { producer: [9; 16], numbers });
        let options = PublishOptions { partition: Some(P0), sequences, ..PublishOptions::default() };
        (range.map(record).collect::<Vec<_>>(), options)
    };
    for round in 0..2 {
        let (channels, channel) = world.open(small_segments());
        for range in [0..10, 0..10, 3..7, 5..15, 14..20] {
            let (records, options) = numbered(range.clone());
            let outcomes = channel.publish_group(records, options).await;
            assert_eq!(outcomes.len() as u64, range.end - range.start);
            for (n, outcome) in range.zip(outcomes) {
                let at = committed(outcome);
                assert!(at.first == Offset(n) || (at.duplicate && at.first == Offset::MAX), "{n}: {at:?}");
                assert!(round == 0 || at.duplicate);
            }
        }
        assert_records(&read_all(&channel, P0).await, 0);
        assert_eq!(channel.tail(P0), Some(Offset(20)));
        channels.close();
    }
}
