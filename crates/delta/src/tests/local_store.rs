//! The local store: nothing is told before it is on the disk (E133, T9).

use std::io;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use object_store::path::Path;
use object_store::{Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::local_store::{LocalStore, Step, StepHook};

type Steps = Arc<Mutex<Vec<(Step, PathBuf)>>>;

fn recorded(fail: Option<Step>) -> (LocalStore, Steps) {
    let steps = Steps::default();
    let seen = steps.clone();
    let hook: StepHook = Arc::new(move |step, path: &FsPath| {
        seen.lock().push((step, path.to_path_buf()));
        match fail {
            Some(failing) if failing == step => Err(io::Error::other("the disk is gone")),
            _ => Ok(()),
        }
    });
    (LocalStore::with_hook(hook), steps)
}

fn location(root: &TempDir, name: &str) -> Path {
    Path::from_absolute_path(root.path().join(name)).expect("a path")
}

/// The steps without the syncs of directories above `root`, which there are for names that an earlier process may have
/// given.
fn below(root: &TempDir, steps: &Steps) -> Vec<(Step, PathBuf)> {
    let steps = steps.lock();
    assert!(steps.iter().all(|(step, path)| path.starts_with(root.path()) || *step == Step::SyncDirectory));
    steps.iter().filter(|(_, path)| path.starts_with(root.path())).cloned().collect()
}

fn create() -> PutOptions {
    PutOptions::from(PutMode::Create)
}

fn files(root: &TempDir) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(root.path())
        .expect("the directory")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Catches an answer before file, name and new directories are synced, in this order: a power cut would take back a
/// commit that others have read.
#[tokio::test(flavor = "multi_thread")]
async fn a_synced_local_commit_survives_unsynced_loss() {
    let root = TempDir::new().expect("a directory");
    let (store, steps) = recorded(None);
    store.put_opts(&location(&root, "t/_delta_log/0.json"), "a".into(), create()).await.expect("put");
    let file = root.path().join("t/_delta_log/0.json");
    let expected = [
        (Step::SyncFile, file.clone()),
        (Step::Publish, file),
        (Step::SyncDirectory, root.path().join("t/_delta_log")),
        (Step::SyncDirectory, root.path().join("t")),
        (Step::SyncDirectory, root.path().to_path_buf()),
    ];
    assert_eq!(below(&root, &steps), expected);
    steps.lock().clear();
    store.put_opts(&location(&root, "t/_delta_log/1.json"), "b".into(), create()).await.expect("put");
    assert_eq!(steps.lock().len(), 3, "the directories have their names already");
}

/// Catches a directory that a killed process has made and not synced, and that a later put or read takes for durable
/// because it is there (I1).
#[tokio::test(flavor = "multi_thread")]
async fn directories_of_a_killed_run_are_synced_by_the_next_put_and_read() {
    let root = TempDir::new().expect("a directory");
    std::fs::create_dir_all(root.path().join("t/_delta_log")).expect("made by another");
    std::fs::create_dir_all(root.path().join("t/country=de")).expect("made by another");
    std::fs::write(root.path().join("t/_delta_log/0.json"), "a").expect("written by another");
    let up = |names: &[&str]| -> Vec<PathBuf> { names.iter().map(|name| root.path().join(name)).collect() };
    let synced = |steps: &Steps| -> Vec<PathBuf> {
        let steps = below(&root, steps);
        let syncs = steps.into_iter().filter(|(step, _)| *step == Step::SyncDirectory);
        syncs.map(|(_, path)| path).collect()
    };
    let (reads, steps) = recorded(None);
    reads.get(&location(&root, "t/_delta_log/0.json")).await.expect("there");
    assert_eq!(synced(&steps), up(&["t/_delta_log", "t", ""]));
    let (puts, steps) = recorded(None);
    puts.put_opts(&location(&root, "t/country=de/a.parquet"), "a".into(), create()).await.expect("put");
    assert_eq!(synced(&steps), up(&["t/country=de", "t", ""]));
    steps.lock().clear();
    // A directory of our own is a new name in one whose names were synced before.
    puts.put_opts(&location(&root, "t/country=fr/a.parquet"), "a".into(), create()).await.expect("put");
    assert_eq!(synced(&steps), up(&["t/country=fr", "t"]));
}

/// Catches a commit that another writer's is overwritten by.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_puts_of_one_name_exactly_one_wins() {
    let root = TempDir::new().expect("a directory");
    let store = LocalStore::new();
    let name = location(&root, "0.json");
    let put = |text: &'static str| {
        let (store, name) = (store.clone(), name.clone());
        tokio::spawn(async move { store.put_opts(&name, text.into(), create()).await.map(|_| text) })
    };
    let outcomes = futures::future::join_all([put("a"), put("b"), put("c"), put("d")]).await;
    let outcomes: Vec<_> = outcomes.into_iter().map(|outcome| outcome.expect("ends")).collect();
    let winners: Vec<&str> = outcomes.iter().filter_map(|outcome| outcome.as_ref().ok().copied()).collect();
    assert_eq!(winners.len(), 1);
    assert!(
        outcomes
            .iter()
            .filter_map(|outcome| outcome.as_ref().err())
            .all(|error| matches!(error, Error::AlreadyExists { .. }))
    );
    let bytes = store.get(&name).await.expect("there").bytes().await.expect("read");
    assert_eq!(bytes, winners[0].as_bytes());
    assert_eq!(files(&root), ["0.json"], "no temporary file is left");
}

/// Catches a put that answers Ok although a sync failed, or that leaves its temporary file.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_fails_the_put() {
    for step in [Step::SyncFile, Step::Publish, Step::SyncDirectory] {
        let root = TempDir::new().expect("a directory");
        let (store, _) = recorded(Some(step));
        let error = store.put_opts(&location(&root, "0.json"), "a".into(), create()).await.expect_err("failed");
        assert!(error.to_string().contains("the disk is gone"), "{error}");
        let left = if step == Step::SyncDirectory { vec!["0.json"] } else { vec![] };
        assert_eq!(files(&root), left, "{step:?}");
    }
}

/// Catches a commit that counts as landed although its name may not be on the disk: its own sync failed, or the process
/// that gave it the name ended before.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_is_synced_first() {
    let root = TempDir::new().expect("a directory");
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = broken.clone();
    let store = LocalStore::with_hook(Arc::new(move |step, _: &FsPath| {
        match step == Step::SyncDirectory && is_broken.load(Ordering::SeqCst) {
            true => Err(io::Error::other("the disk is gone")),
            false => Ok(()),
        }
    }));
    let name = location(&root, "0.json");
    store.put_opts(&name, "a".into(), create()).await.expect_err("its name is not synced");
    assert!(root.path().join("0.json").exists());
    store.get(&name).await.expect_err("not before it is synced");
    broken.store(false, Ordering::SeqCst);
    store.get(&name).await.expect("synced now");
    broken.store(true, Ordering::SeqCst);
    store.get(&name).await.expect("once is enough");

    let (another, steps) = recorded(None);
    another.get(&name).await.expect("there");
    another.get(&name).await.expect("there");
    assert_eq!(below(&root, &steps), [(Step::SyncDirectory, root.path().to_path_buf())]);
    let missing = another.get(&location(&root, "no/such.json")).await.expect_err("missing");
    assert!(matches!(missing, Error::NotFound { .. }), "{missing}");
}

/// Catches a data file with its parts in the order in which they ended, or visible before it is complete.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_is_placed_by_its_parts_and_visible_at_its_end() {
    let root = TempDir::new().expect("a directory");
    let (store, steps) = recorded(None);
    let name = location(&root, "part.parquet");
    let mut upload = store.put_multipart(&name).await.expect("begun");
    let parts: Vec<_> = [b"aaa".as_slice(), b"bb", b"c"]
        .into_iter()
        .map(|bytes| upload.put_part(PutPayload::from(bytes.to_vec())))
        .collect();
    for part in parts.into_iter().rev() {
        part.await.expect("written");
    }
    let listed = |store: LocalStore, root: Path| async move { store.list(Some(&root)).count().await };
    let directory = Path::from_absolute_path(root.path()).expect("a path");
    assert_eq!(listed(store.clone(), directory.clone()).await, 0);
    upload.complete().await.expect("complete");
    assert_eq!(store.get(&name).await.expect("there").bytes().await.expect("read"), "aaabbc");
    assert_eq!(
        below(&root, &steps).iter().map(|(step, _)| *step).collect::<Vec<_>>(),
        [Step::SyncFile, Step::Publish, Step::SyncDirectory]
    );

    let mut abandoned = store.put_multipart(&location(&root, "other.parquet")).await.expect("begun");
    abandoned.put_part("x".into()).await.expect("written");
    drop(abandoned);
    assert_eq!(files(&root), ["part.parquet"]);
}
