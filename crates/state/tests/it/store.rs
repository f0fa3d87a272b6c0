//! Transactions, snapshots, owner numbers, lost and damaged files.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use landfall_state::{Change, DataDirLock, StateError, StateLook, StateReader, StateStore};
use landfall_types::{Coded, SystemClock};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn lock(dir: &Path) -> DataDirLock {
    DataDirLock::acquire(dir, &SystemClock).expect("lock")
}

/// Would catch an answer that comes before the row is durable, or a prefix that takes its neighbours.
#[test]
fn what_was_answered_is_there_after_reopening() {
    let dir = tempfile::tempdir().expect("temp dir");
    let lock = lock(dir.path());
    let store = StateStore::open(&lock).expect("open");
    let handle = store.handle();
    block_on(handle.commit(
        vec![
            Change::put("cursors", "a/1", "one"),
            Change::put("cursors", "a/2", "two"),
            Change::put("cursors", "b/1", "three"),
            Change::put("other", "a/1", "four"),
        ],
        handle.owner(),
    ))
    .expect("commit");
    handle.commit_blocking(vec![Change::remove("cursors", "a/2")], handle.owner()).expect("remove");
    store.close();

    let store = StateStore::open(&lock).expect("reopen");
    let rows = store.handle().scan("cursors", b"a/").expect("scan");
    assert_eq!(rows, vec![(b"a/1".to_vec(), "one".into())]);
    assert_eq!(store.handle().read("cursors", b"b/1").expect("read"), Some("three".into()));
    assert_eq!(store.handle().read("cursors", b"a/2").expect("read"), None);
    assert_eq!(store.handle().read("no such table", b"x").expect("read"), None);
}

/// F-L13: a paused owner that wakes up must not move a position back.
#[test]
fn f_l13_an_older_owners_write_is_refused() {
    let store = StateStore::in_memory().expect("open");
    let paused = store.handle();
    paused.commit_blocking(vec![Change::put("watermarks", "p", "100")], paused.owner()).expect("100");
    let newer = paused.take_over().expect("take over");
    assert!(newer.owner() > paused.owner());
    newer.commit_blocking(vec![Change::put("watermarks", "p", "105")], newer.owner()).expect("105");
    let refusal = paused
        .commit_blocking(vec![Change::put("watermarks", "p", "100")], paused.owner())
        .expect_err("an older owner");
    assert!(matches!(refusal, StateError::StaleOwner { .. }), "{refusal}");
    assert_eq!(refusal.code().to_string(), "LF-CH0035");
    assert_eq!(newer.read("watermarks", b"p").expect("read"), Some("105".into()));
}

/// Would catch an owner number that is given out twice.
#[test]
fn every_start_takes_the_next_owner_number() {
    let dir = tempfile::tempdir().expect("temp dir");
    let lock = lock(dir.path());
    let mut last = 0;
    for _ in 0..3 {
        let store = StateStore::open(&lock).expect("open");
        assert!(store.handle().owner() > last);
        last = store.handle().owner();
    }
}

/// Would catch a lost state that is silently made anew, so that every consumer starts over (C68, E86).
#[test]
fn a_missing_state_beside_channels_is_an_error_not_a_fresh_start() {
    let dir = tempfile::tempdir().expect("temp dir");
    let lock = lock(dir.path());
    std::fs::create_dir_all(dir.path().join("channels/orders")).expect("channel");
    for length in [None, Some(0)] {
        if length.is_some() {
            std::fs::write(dir.path().join("state.redb"), b"").expect("empty file");
        }
        let refusal = StateStore::open(&lock).expect_err("lost");
        assert!(matches!(refusal, StateError::Missing { .. }), "{refusal}");
        assert_eq!(refusal.code().to_string(), "LF-CH0058");
    }
    StateStore::create_new(&lock).expect("by command").close();
    StateStore::open(&lock).expect("there again").close();
    assert!(matches!(StateStore::create_new(&lock), Err(StateError::Exists { .. })));
}

/// Would catch a panic, or a reset to empty, on a damaged file (I12, I14).
#[test]
fn a_damaged_state_is_refused_and_left_as_it_is() {
    let dir = tempfile::tempdir().expect("temp dir");
    let lock = lock(dir.path());
    let noise: Vec<u8> = (0..8_192u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(dir.path().join("state.redb"), &noise).expect("noise");
    assert!(matches!(StateStore::open(&lock), Err(StateError::Unreadable { .. })));
    assert_eq!(std::fs::read(dir.path().join("state.redb")).expect("file"), noise);
}

/// Would catch a request that is never answered: at the bound, behind a close, or after it.
#[test]
fn every_request_is_answered_with_its_own_outcome() {
    let dir = tempfile::tempdir().expect("temp dir");
    let lock = lock(dir.path());
    let store = StateStore::open(&lock).expect("open");
    let handle = store.handle();
    let (answers, answered) = channel();
    for n in 0..1_000u32 {
        let answers = answers.clone();
        let changes = vec![Change::put("rows", n.to_be_bytes().to_vec(), "x")];
        handle.commit_with(
            changes,
            handle.owner(),
            Box::new(move |result| answers.send((n, result.is_ok())).expect("receiver lives")),
        );
    }
    store.close();
    drop(answers);
    let outcomes: Vec<(u32, bool)> = answered.iter().collect();
    assert_eq!(outcomes.len(), 1_000);
    assert!(matches!(handle.scan("rows", b""), Err(StateError::Closed)));
    let stored = StateStore::open(&lock).expect("reopen").handle().scan("rows", b"").expect("scan").len();
    assert_eq!(outcomes.iter().filter(|(_, is_stored)| *is_stored).count(), stored);
    assert!(matches!(handle.commit_blocking(Vec::new(), handle.owner()), Err(StateError::Closed)));
}

/// Catches a look that leaves a trace, keeps the next owner out, or calls a running process's file damaged.
#[test]
fn a_look_reads_what_is_stored_and_changes_nothing() {
    let dir = tempfile::tempdir().expect("temp dir");
    assert!(matches!(StateReader::look(dir.path()).expect("nothing"), StateLook::Absent));
    let lock = lock(dir.path());
    let store = StateStore::open(&lock).expect("open");
    let owner = store.handle().owner();
    block_on(store.handle().commit(vec![Change::put("sources", "shop", "where it is")], owner)).expect("committed");
    assert!(matches!(StateReader::look(dir.path()).expect("busy"), StateLook::InUse));
    store.close();
    {
        let StateLook::Readable(reader) = StateReader::look(dir.path()).expect("closed in order") else {
            panic!("a file that was closed in order cannot be read")
        };
        assert_eq!(reader.read("sources", b"shop").expect("a row").as_deref(), Some(b"where it is".as_slice()));
        assert_eq!(reader.read("sources", b"other").expect("no row"), None);
        assert_eq!(reader.read("nothing", b"shop").expect("no table"), None);
    }
    assert_eq!(StateStore::open(&lock).expect("open again").handle().owner(), owner + 1, "a look took an owner number");
    let damaged = tempfile::tempdir().expect("temp dir");
    std::fs::write(damaged.path().join("state.redb"), b"not a database").expect("written");
    assert!(matches!(StateReader::look(damaged.path()), Err(StateError::Unreadable { .. })));
}
