use super::*;
use crate::{OnGap, RingLimits};

async fn take(subscription: &mut crate::Subscription, count: usize) -> Vec<Delivered> {
    let mut all = Vec::new();
    while all.len() < count {
        let page = tokio::time::timeout(Duration::from_secs(20), subscription.next()).await;
        all.extend(page.expect("a page within 20 s").expect("not over").unwrap());
    }
    all
}

/// Catches live delivery that differs from replay in any byte or order (I2, C109).
#[tokio::test(flavor = "multi_thread")]
async fn live_equals_replay_byte_for_byte() {
    let world = World::on_disk();
    let options = ChannelOptions { ring: RingLimits { records: 16, ..RingLimits::default() }, ..small_segments() };
    let (channels, channel) = world.open(options.clone());
    let mut live = channel.subscribe(P0, Start::Earliest, SubscribeOptions::default()).unwrap();
    let follow = tokio::spawn(async move { take(&mut live, 3_000).await });
    let publishers: Vec<_> = (0..10u64)
        .map(|publisher| {
            let channel = channel.clone();
            tokio::spawn(async move {
                for n in 0..100u64 {
                    let one = Record {
                        key: Some(format!("key {publisher}").into()),
                        headers: vec![crate::Header { name: "n".into(), value: n.to_string().into() }],
                        event_time: Some(landfall_types::Timestamp(n as i64)),
                        ..Record::new(vec![publisher as u8; 700])
                    };
                    let batch = vec![one, record(n), record(n + 1)];
                    committed(channel.publish_batch(batch, PublishOptions::default()).await);
                }
            })
        })
        .collect();
    for publisher in publishers {
        publisher.await.unwrap();
    }
    let live = follow.await.unwrap();
    let replay = read_all(&channel, P0).await;
    assert_eq!(live, replay);
    channels.close();
    let (_channels, channel) = world.open(options);
    assert_eq!(live, read_all(&channel, P0).await);
}

/// Catches a start that is off by one, and a start past the tail that waits instead of being refused (C58).
#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_start_where_they_say() {
    let world = World::on_disk();
    let (_channels, channel) = world.open(ChannelOptions::default());
    for n in 0..10 {
        committed(channel.publish(record(n), PublishOptions::default()).await);
    }
    let subscribe = |start| channel.subscribe(P0, start, SubscribeOptions::default());
    assert_records(&take(&mut subscribe(Start::Earliest).unwrap(), 10).await, 0);
    assert_records(&take(&mut subscribe(Start::Offset(Offset(7))).unwrap(), 3).await, 7);
    let mut latest = subscribe(Start::Latest).unwrap();
    let mut at_tail = subscribe(Start::Offset(Offset(10))).unwrap();
    let refused = subscribe(Start::Offset(Offset(11))).unwrap_err();
    assert!(matches!(refused, crate::ReadError::PastTail { offset: Offset(11), tail: Offset(10), .. }));
    let fourth = read_from(&channel, P0, Offset(3)).await[0].append_time;
    let by_time = take(&mut subscribe(Start::Time(fourth)).unwrap(), 1).await;
    assert!(by_time[0].offset <= Offset(3) && by_time[0].append_time >= fourth);
    committed(channel.publish(record(10), PublishOptions::default()).await);
    assert_records(&take(&mut latest, 1).await, 10);
    assert_records(&take(&mut at_tail, 1).await, 10);
    assert_eq!(latest.cursor(), Offset(11));
}

/// Catches a page above its credit, and a batch above it that is never delivered (C59).
#[tokio::test(flavor = "multi_thread")]
async fn a_page_keeps_to_its_credit() {
    let world = World::on_disk();
    let (_channels, channel) = world.open(ChannelOptions::default());
    let batch: Vec<_> = (0..100).map(record).collect();
    committed(channel.publish_batch(batch, PublishOptions::default()).await);
    committed(channel.publish(Record::new(vec![7u8; 1 << 20]), PublishOptions::default()).await);
    let options = SubscribeOptions { records: 30, bytes: 64 << 10, ..SubscribeOptions::default() };
    let mut subscription = channel.subscribe(P0, Start::Earliest, options).unwrap();
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 101 {
        sizes.push(subscription.next().await.unwrap().unwrap().len());
    }
    assert_eq!(sizes, [30, 30, 30, 10, 1]);
}

/// Catches a subscriber that loses its place, or sees a gap or a repeat, when the process restarts under it at any step
/// (I2, C108).
#[tokio::test(flavor = "multi_thread")]
async fn subscriber_restart_at_every_step_sees_gapless_prefix() {
    let world = World::on_disk();
    let mut cursor = Offset::ZERO;
    let mut next = 0u64;
    for step in 0..12u64 {
        let (channels, channel) = world.open(small_segments());
        let mut subscription = channel.subscribe(P0, Start::Offset(cursor), SubscribeOptions::default()).unwrap();
        for _ in 0..step {
            committed(channel.publish(record(next), PublishOptions::default()).await);
            next += 1;
        }
        if step % 3 != 0 {
            let page = take(&mut subscription, 1).await;
            assert_records(&page, cursor.0);
            cursor = subscription.cursor();
        }
        let waiting = tokio::spawn(async move {
            let mut pages = 0;
            while let Some(page) = subscription.next().await {
                page.unwrap();
                pages += 1;
            }
            pages
        });
        channels.close();
        waiting.await.unwrap();
    }
    let (_channels, channel) = world.open(small_segments());
    assert_records(&read_all(&channel, P0).await, 0);
    assert_eq!(channel.tail(P0), Some(Offset(next)));
}

/// Catches a reader that is moved silently past what retention took (C60).
#[tokio::test(flavor = "multi_thread")]
async fn trimmed_ranges_are_named_and_end_a_subscription_unless_told() {
    let world = World::in_memory();
    let mut options = small_segments();
    options.retention.max_bytes = Some(ByteSize::mib(2));
    options.ring.records = 1;
    let (_channels, channel) = world.open(options);
    let read = |on_gap| {
        let options = SubscribeOptions { on_gap, ..SubscribeOptions::default() };
        channel.subscribe(P0, Start::Offset(Offset(0)), options).unwrap()
    };
    committed(channel.publish(record(0), PublishOptions::default()).await);
    let (mut ends, mut goes_on) = (read(OnGap::End), read(OnGap::Continue));
    let by = Instant::now() + Duration::from_secs(30);
    while channel.log_start(P0) == Some(Offset(0)) {
        assert!(Instant::now() < by, "retention frees something");
        committed(channel.publish(Record::new(vec![0u8; 200 << 10]), PublishOptions::default()).await);
    }
    let log_start = channel.log_start(P0).unwrap();
    let error = ends.next().await.unwrap().unwrap_err();
    assert!(matches!(error, crate::ReadError::Trimmed { from: Offset(0), .. }), "{error}");
    assert!(ends.next().await.is_none());
    assert!(goes_on.next().await.unwrap().is_err());
    assert!(goes_on.next().await.unwrap().unwrap()[0].offset >= log_start);
}

/// Catches subscriptions that are not counted or not given back (C10).
#[tokio::test(flavor = "multi_thread")]
async fn too_many_subscriptions_are_refused_and_places_come_back() {
    let open = Arc::new(AtomicU32::new(0));
    let first = crate::subscription::SubscriptionPlace::take(&open, 1).unwrap();
    let refused = crate::subscription::SubscriptionPlace::take(&open, 1).unwrap_err();
    assert_eq!(refused.code(), ch(57));
    drop(first);
    assert!(crate::subscription::SubscriptionPlace::take(&open, 1).is_ok());
}
