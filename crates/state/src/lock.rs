//! LOCK: one process owns a data directory (C90, C92, C93).
//!
//! The lock is the kernel's `flock` on the file, so it goes with the process however that ends. The contents only tell
//! a second process whom it met. It holds I5 across processes. It does not watch the file: owners ask
//! [`DataDirLock::still_ours`] before they write.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use landfall_types::Clock;
use rustix::fs::{FlockOperation, flock};

use crate::error::LockError;

/// A holder's line is short; anything longer is not ours.
const CONTENTS_BYTES_MAX: u64 = 1024;

/// The exclusive hold on a data directory. Released on drop, or by the kernel when the process ends.
#[derive(Debug)]
pub struct DataDirLock {
    data_dir: PathBuf,
    path: PathBuf,
    file: File,
}

impl DataDirLock {
    /// Takes LOCK, before anything else in the directory is read or written. Makes the directory if there is none.
    pub fn acquire(data_dir: &Path, clock: &dyn Clock) -> Result<DataDirLock, LockError> {
        let path = data_dir.join("LOCK");
        let failed = |step, path: &Path| {
            let path = path.to_path_buf();
            move |source: io::Error| LockError::Failed { step, path, source }
        };
        std::fs::create_dir_all(data_dir).map_err(failed("creating the data directory", data_dir))?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(failed("opening", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(locked(path, &file)),
            Err(errno) => return Err(failed("locking", &path)(errno.into())),
        }
        let lock = DataDirLock { data_dir: data_dir.to_path_buf(), path, file };
        // Between opening and locking, the file may have been replaced: a lock on a removed file excludes nobody.
        if !lock.still_ours() {
            return Err(locked(lock.path.clone(), &lock.file));
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let line = format!("{}\n{host}\n{}\n", std::process::id(), clock.now().0);
        let written = lock.file.set_len(0).and_then(|()| lock.file.write_all_at(line.as_bytes(), 0));
        written.map_err(failed("writing", &lock.path))?;
        Ok(lock)
    }

    /// The directory that is held.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Whether the file at the path is still the one that is locked. Once it is not, another process may own the
    /// directory, and this one must not write any more (C93).
    pub fn still_ours(&self) -> bool {
        match (self.file.metadata(), std::fs::metadata(&self.path)) {
            (Ok(held), Ok(there)) => held.dev() == there.dev() && held.ino() == there.ino(),
            _ => false,
        }
    }
}

/// Whom we met, as far as the file tells.
fn locked(path: PathBuf, file: &File) -> LockError {
    let mut text = String::new();
    // What cannot be read is named as unknown: the refusal itself does not depend on it.
    let _ = file.take(CONTENTS_BYTES_MAX).read_to_string(&mut text);
    let mut lines = text.lines();
    let mut next = || match lines.next().map(str::trim) {
        Some(word) if !word.is_empty() => word.chars().filter(|c| !c.is_control()).collect(),
        _ => "unknown".to_owned(),
    };
    LockError::Locked { path, pid: next(), host: next() }
}
