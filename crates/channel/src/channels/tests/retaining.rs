use landfall_types::{ManualClock, Timestamp};

use super::*;

const BIG: usize = 200 << 10;

async fn fill(channel: &Channel, records: u64) {
    for _ in 0..records {
        committed(channel.publish(Record::new(vec![1u8; BIG]), PublishOptions::default()).await);
    }
}

/// Runs retention now instead of at the next tick, and waits for its turn.
async fn retain(channel: &Channel) {
    let partition = channel.partition(P0).unwrap();
    if let Some(committer) = partition.intake.errand(|errands| errands.retain = true) {
        partition.threads.commit.submit(committer);
    }
    // The publish is claimed after the errand.
    let outcome = channel.publish(record(0), PublishOptions::default()).await;
    assert!(!matches!(outcome, PublishOutcome::Unresolved(_)));
}

/// Catches retention by bytes that frees nothing, too much, or comes back after a restart (C85).
#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_segments_go_beyond_max_bytes_and_stay_gone() {
    let world = World::on_disk();
    let mut options = small_segments();
    options.retention.max_bytes = Some(ByteSize::mib(3));
    let (channels, channel) = world.open(options.clone());
    fill(&channel, 40).await;
    retain(&channel).await;
    let log_start = channel.log_start(P0).unwrap();
    assert!(log_start > Offset(20), "{log_start}");
    let kept = read_all(&channel, P0).await;
    assert_eq!(kept.first().map(|one| one.offset), Some(log_start));
    let trimmed = channel.read(P0, Offset(0), 1, 1).await.unwrap_err();
    assert!(matches!(trimmed, crate::ReadError::Trimmed { from: Offset(0), log_start: own, .. } if own == log_start));
    channels.close();
    for _ in 0..2 {
        let (channels, channel) = world.open(options.clone());
        assert!(channel.log_start(P0).unwrap() >= log_start);
        assert_eq!(channel.tail(P0), Some(Offset(41)));
        channels.close();
    }
}

/// Catches retention by age that looks at another time than the last append's (C85).
#[tokio::test(flavor = "multi_thread")]
async fn segments_past_max_age_go() {
    let clock = Arc::new(ManualClock::at(Timestamp(1_700_000_000_000_000)));
    let world = World { clock: Arc::clone(&clock) as Arc<dyn Clock>, ..World::in_memory() };
    let mut options = small_segments();
    options.retention.max_age = Some(Duration::from_secs(60));
    let (_channels, channel) = world.open(options);
    fill(&channel, 12).await;
    retain(&channel).await;
    assert_eq!(channel.log_start(P0), Some(Offset(0)));
    clock.advance(Duration::from_secs(61));
    fill(&channel, 12).await;
    retain(&channel).await;
    let log_start = channel.log_start(P0).unwrap();
    assert!(log_start > Offset(4) && log_start <= Offset(13), "{log_start}");
}

/// Catches retention that deletes what a pipeline still needs, and a full channel that deletes instead of refusing
/// (C86, I12).
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_holds_the_log_and_publishes_are_refused() {
    let world = World::in_memory();
    let mut options = small_segments();
    options.retention.max_bytes = Some(ByteSize::mib(2));
    options.retention.retain_consumers = true;
    options.retention.consumers = vec!["pipeline:orders".into()];
    let (_channels, channel) = world.open(options);
    fill(&channel, 25).await;
    retain(&channel).await;
    assert_eq!(channel.log_start(P0), Some(Offset(0)));
    let refused = not_stored(channel.publish(record(0), PublishOptions::default()).await);
    assert_eq!(refused.error.code(), ch(23));
    assert!(refused.error.to_string().contains("retained_for_consumers"), "{}", refused.error);
    let (told, mut tell) = tokio::sync::mpsc::unbounded_channel();
    channel
        .shared
        .floors
        .raise("pipeline:orders", vec![(P0, Offset(20))], move |result| told.send(result.is_ok()).unwrap());
    assert_eq!(tell.recv().await, Some(true));
    retain(&channel).await;
    // The gate is closed, so no publish waits for the turn: wait for what it does.
    let by = Instant::now() + Duration::from_secs(20);
    while channel.log_start(P0) == Some(Offset(0)) || !channel.partition(P0).unwrap().intake.is_open() {
        assert!(Instant::now() < by, "retention frees what the consumer has passed, and the gate opens");
        tokio::task::yield_now().await;
    }
    let log_start = channel.log_start(P0).unwrap();
    assert!(log_start > Offset(0) && log_start <= Offset(20), "{log_start}");
    committed(channel.publish(record(0), PublishOptions::default()).await);
    assert_eq!(channel.status().consumers[0].name, "pipeline:orders");
}

/// Polls what another thread does, with a deadline.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let by = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < by, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Catches a reserve that the first publishes after a start do not know, one that refuses publishes while the partition
/// calls itself healthy, and one that does not end with its cause (C10, C98).
#[tokio::test(flavor = "multi_thread")]
async fn a_met_disk_reserve_refuses_from_the_first_publish_shows_as_full_and_heals() {
    let world = World::in_memory();
    let vfs: Arc<dyn Vfs> = Arc::clone(world.vfs.as_ref().unwrap()) as Arc<dyn Vfs>;
    let memory = world.vfs.as_ref().unwrap().memory.clone();
    let reserve = DiskReserve { dir: world.dir.path().into(), bytes: ByteSize::mib(64), vfs: Arc::clone(&vfs) };
    memory.set_free_bytes(1 << 20);
    let configs = vec![(NAME.into(), small_segments())];
    let (process, state) = (ProcessOptions::default(), world.state.handle());
    let channels =
        Channels::open_on(vfs, Some(reserve), world.dir.path(), configs, process, state, Arc::clone(&world.clock));
    let channels = channels.unwrap();
    let channel = channels.get(NAME).unwrap();
    let refused = not_stored(channel.publish(record(0), PublishOptions::default()).await);
    assert_eq!(refused.error.code(), ch(23), "{}", refused.error);
    for _ in 0..2 {
        let status = channel.status();
        assert_eq!((status.health, status.partitions[0].state), (crate::Health::Full, "fenced"));
        let cause = status.partitions[0].cause.clone().unwrap();
        assert!(cause.contains("disk_reserve") && cause.contains("64MiB"), "{cause}");
        memory.set_free_bytes(1 << 40);
        until("the gate opens with room", || channel.status().health == crate::Health::Ok).await;
        assert_eq!(channel.status().partitions[0].cause, None);
        committed(channel.publish(record(0), PublishOptions::default()).await);
        memory.set_free_bytes(1 << 20);
        until("the reserve is met again", || channel.status().health != crate::Health::Ok).await;
    }
}

/// Catches damage that a reader meets in a sealed segment while health says ok, and a later settle or refusal that makes
/// it forgotten (C98, I12).
#[tokio::test(flavor = "multi_thread")]
async fn damage_that_a_reader_meets_degrades_health_and_no_settle_forgets_it() {
    let world = World::in_memory();
    let (_channels, channel) = world.open(small_segments());
    fill(&channel, 40).await;
    assert_eq!(channel.status().health, crate::Health::Ok);
    let memory = &world.vfs.as_ref().unwrap().memory;
    let dir = world.dir.path().join("channels").join(NAME).join("0");
    let mut segments: Vec<_> = memory.list(&dir).unwrap().into_iter().map(|entry| dir.join(&entry.name)).collect();
    segments.sort();
    memory.alter(&segments[0], |bytes| bytes[300 << 10] ^= 0x40).unwrap();
    let mut from = Offset(0);
    let error = loop {
        match channel.read(P0, from, 1_000, 4 << 20).await {
            Err(error) => break error,
            Ok(page) => from.0 += page.len() as u64,
        }
        assert!(from < Offset(20), "the damage was passed over");
    };
    assert_eq!(error.code(), ch(51), "{error}");
    let status = channel.status();
    assert_eq!((status.health, status.partitions[0].state), (crate::Health::Degraded, "ready"));
    assert!(status.partitions[0].cause.as_ref().unwrap().contains("LF-CH0051"), "{status:?}");
    memory.inject(landfall_log::Operation::Sync, 0, 1, landfall_log::Fault::Error(std::io::ErrorKind::Other));
    committed(channel.publish(record(0), PublishOptions::default()).await);
    assert_eq!(channel.status().health, crate::Health::Degraded, "an append that was settled heals no damage");
}

/// The newest segment of the only partition.
fn newest_segment(world: &World) -> std::path::PathBuf {
    let dir = world.dir.path().join("channels").join(NAME).join("0");
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|it| it == "seg")).max().unwrap()
}

/// Catches a log that goes on behind a segment that was taken away, and gives acknowledged offsets to other records
/// (C78, C83, I12), whether it was closed, had gone quiet, or a consumer's floor stood there.
#[tokio::test(flavor = "multi_thread")]
async fn a_newest_segment_that_is_gone_stops_the_partition_until_it_is_back() {
    for is_killed in [false, true] {
        let world = World::on_disk();
        let (channels, channel) = world.open(small_segments());
        fill(&channel, 12).await;
        let known = || KnownTails::open(channel.id(), Some(world.state.handle())).unwrap().of(P0);
        if is_killed {
            until("the tail of a quiet partition is kept", || known() == Some(Offset(12))).await;
            // Its files stay as they are; the next open fences it as after a crash.
            std::mem::forget(channels);
        } else {
            channels.close();
            assert_eq!(known(), Some(Offset(12)));
        }
        let path = newest_segment(&world);
        let aside = path.with_extension("aside");
        std::fs::rename(&path, &aside).unwrap();
        for _ in 0..2 {
            let (channels, channel) = world.open(small_segments());
            let status = channel.status();
            assert_eq!((status.health, status.partitions[0].state), (crate::Health::Stopped, "stopped"));
            let cause = status.partitions[0].cause.clone().unwrap();
            assert!(cause.contains("12") && cause.contains("newest segment is missing"), "{cause}");
            assert_eq!(not_stored(channel.publish(record(0), PublishOptions::default()).await).error.code(), ch(33));
            assert_eq!(channel.read(P0, Offset(0), 1, 1).await.unwrap().len(), 1, "what is there is read");
            channels.close();
        }
        std::fs::rename(&aside, &path).unwrap();
        let (_channels, channel) = world.open(small_segments());
        assert_eq!((channel.tail(P0), channel.status().health), (Some(Offset(12)), crate::Health::Ok));
    }
}
