use landfall_channel::{PublishOptions, PublishOutcome, Record};
use landfall_types::{Code, Coded, SystemClock};

use super::*;

fn config(data_dir: &Path) -> Config {
    let quoted = serde_json::to_string(data_dir).expect("a path that is text");
    let source = format!("data_dir: {quoted}\nchannels: {{ a: {{ partitions: 1 }} }}\n");
    let (config, findings) = crate::config::read(&source, &|_| None);
    config.unwrap_or_else(|| panic!("{findings:?}"))
}

async fn opened(config: &Config) -> Storage {
    let config = config.clone();
    let open = move || Storage::open(&config, ByteSize::gib(1), Arc::new(SystemClock));
    tokio::task::spawn_blocking(open).await.expect("no panic").expect("it opens")
}

async fn closed(storage: Storage) {
    tokio::task::spawn_blocking(move || storage.close()).await.expect("no panic");
}

async fn published(storage: &Storage) -> PublishOutcome {
    let channel = storage.channels.get("a").expect("the channel is open");
    channel.publish(Record::new("1"), PublishOptions::default()).await
}

/// Would catch a process that goes on writing after its LOCK was replaced by another's (C93, I5).
#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_lock_was_replaced_stores_nothing_more() {
    let dir = tempfile::tempdir().expect("a directory");
    let storage = opened(&config(dir.path())).await;
    assert!(published(&storage).await.committed().is_some());
    let lock = dir.path().join("LOCK");
    std::fs::remove_file(&lock).expect("LOCK is removed");
    std::fs::write(&lock, "").expect("another's LOCK");
    match published(&storage).await {
        PublishOutcome::NotStored(refused) => assert_eq!(refused.error.code(), Code::new("CH", 35)),
        other => panic!("a record of a process without LOCK: {other:?}"),
    }
    closed(storage).await;
}

/// Would catch a LOCK that is kept by a clone of the channels, so that the next start finds the directory taken.
#[tokio::test(flavor = "multi_thread")]
async fn closing_gives_lock_back_though_a_clone_of_the_channels_lives_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = config(dir.path());
    let storage = opened(&config).await;
    let kept = storage.channels.clone();
    closed(storage).await;
    let next = opened(&config).await;
    assert!(published(&next).await.committed().is_some());
    drop(kept);
    closed(next).await;
}
