//! The in-memory file system with syncs that take time and are counted, and with a part of it in trouble.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use landfall_log::{Access, DirEntry, MemoryVfs, Vfs, VfsFile};
use parking_lot::{Condvar, Mutex};

#[derive(Debug)]
pub(super) struct SlowVfs {
    pub(super) memory: MemoryVfs,
    device: Arc<Device>,
}

#[derive(Debug, Default)]
struct Device {
    sync_micros: AtomicU64,
    syncs: AtomicU64,
    panics: AtomicU64,
    panics_left: AtomicU64,
    trouble: Mutex<Option<(&'static str, Trouble)>>,
    changed: Condvar,
    hanging: AtomicU64,
}

/// What becomes of syncs under a directory, of commit threads alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Fails,
    /// Until the trouble changes.
    Hangs,
}

impl Device {
    fn meet_trouble(&self, path: &Path) -> io::Result<()> {
        if !std::thread::current().name().is_some_and(|name| name.starts_with("commit-")) {
            return Ok(());
        }
        let mut trouble = self.trouble.lock();
        let own = |now: &Option<(&str, Trouble)>| {
            now.filter(|(part, _)| path.iter().any(|own| own == *part)).map(|(_, trouble)| trouble)
        };
        if own(&trouble) == Some(Trouble::Hangs) {
            self.hanging.fetch_add(1, Ordering::SeqCst);
            while own(&trouble) == Some(Trouble::Hangs) {
                self.changed.wait(&mut trouble);
            }
            self.hanging.fetch_sub(1, Ordering::SeqCst);
        }
        if own(&trouble) == Some(Trouble::Fails) { Err(io::Error::other("injected")) } else { Ok(()) }
    }
}

impl SlowVfs {
    pub(super) fn over(memory: MemoryVfs) -> SlowVfs {
        SlowVfs { memory, device: Arc::default() }
    }

    /// Each sync of a file takes this long from now on.
    pub(super) fn set_sync_delay(&self, delay: Duration) {
        self.device.sync_micros.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    /// The next sync panics.
    pub(super) fn panic_in_sync(&self, when: PanicIn) {
        self.panic_in_syncs(when, 1);
    }

    /// The next syncs panic.
    pub(super) fn panic_in_syncs(&self, when: PanicIn, times: u64) {
        self.device.panics.store(when as u64, Ordering::Relaxed);
        self.device.panics_left.store(times, Ordering::Release);
    }

    /// Commit threads' syncs of files under a directory of this name fail or hang from now on; `None`: no more.
    pub(super) fn set_trouble(&self, trouble: Option<(&'static str, Trouble)>) {
        *self.device.trouble.lock() = trouble;
        self.device.changed.notify_all();
    }

    /// Syncs that hang now.
    pub(super) fn hanging(&self) -> u64 {
        self.device.hanging.load(Ordering::SeqCst)
    }

    /// Syncs of files so far, housekeeping's included.
    pub(super) fn syncs(&self) -> u64 {
        self.device.syncs.load(Ordering::Relaxed)
    }
}

impl Vfs for SlowVfs {
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>> {
        let file = self.memory.open(path, access)?;
        Ok(Arc::new(SlowFile { file, path: path.into(), device: Arc::clone(&self.device) }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.memory.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.memory.create_dir_all(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.memory.rename(from, to)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.memory.hard_link(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.memory.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.memory.sync_dir(dir)
    }
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.memory.free_bytes(dir)
    }
}

/// Where the next sync panics, once.
#[derive(Clone, Copy, Debug)]
pub(super) enum PanicIn {
    BeforeSync = 1,
    AfterSync = 2,
}

#[derive(Debug)]
struct SlowFile {
    file: Arc<dyn VfsFile>,
    path: PathBuf,
    device: Arc<Device>,
}

impl VfsFile for SlowFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(into, at)
    }
    fn write_at(&self, from: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        self.file.write_at(from, at)
    }
    fn sync_data(&self) -> io::Result<()> {
        // The delay is the device's, not a wait for something.
        std::thread::sleep(Duration::from_micros(self.device.sync_micros.load(Ordering::Relaxed)));
        self.device.syncs.fetch_add(1, Ordering::Relaxed);
        self.device.meet_trouble(&self.path)?;
        let left = &self.device.panics_left;
        let is_due = left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1)).is_ok();
        let panics = if is_due { self.device.panics.load(Ordering::Relaxed) } else { 0 };
        assert!(panics != PanicIn::BeforeSync as u64, "injected before a sync");
        let synced = self.file.sync_data();
        assert!(panics != PanicIn::AfterSync as u64, "injected after a sync");
        synced
    }
    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        self.file.allocate(at, len)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}
