//! One process per data directory.

use landfall_state::{DataDirLock, LockError};
use landfall_types::{Coded, SystemClock};

/// Would catch a second owner that gets in, or that writes before it is refused (C92).
#[test]
fn a_second_owner_is_refused_by_name_and_writes_nothing() {
    let dir = tempfile::tempdir().expect("temp dir");
    let lock = DataDirLock::acquire(dir.path(), &SystemClock).expect("first");
    let before = std::fs::read(dir.path().join("LOCK")).expect("contents");
    let refusal = DataDirLock::acquire(dir.path(), &SystemClock).expect_err("held");
    let LockError::Locked { ref pid, ref host, .. } = refusal else { panic!("{refusal}") };
    assert_eq!(*pid, std::process::id().to_string());
    assert_ne!(host, "unknown");
    assert_eq!(refusal.code().to_string(), "LF-CH0070");
    assert_eq!(std::fs::read(dir.path().join("LOCK")).expect("contents"), before);
    drop(lock);
    DataDirLock::acquire(dir.path(), &SystemClock).expect("free again");
}

/// Would catch an owner that goes on writing after its LOCK was removed or replaced (C93).
#[test]
fn a_removed_or_replaced_lock_is_no_longer_ours() {
    let dir = tempfile::tempdir().expect("temp dir");
    let first = DataDirLock::acquire(dir.path(), &SystemClock).expect("first");
    assert!(first.still_ours());
    std::fs::remove_file(dir.path().join("LOCK")).expect("remove");
    assert!(!first.still_ours());
    let second = DataDirLock::acquire(dir.path(), &SystemClock).expect("second");
    assert!(!first.still_ours());
    assert!(second.still_ours());
}
