//! Files in memory, with the device's side of the story.
//!
//! For each file it keeps what an unsynced write has replaced, per 512-byte sector, and for each directory which
//! entries no sync has confirmed. A power cut takes any of that back.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Access, DirEntry, Vfs, VfsFile};

mod faults;
pub use faults::{Fault, Loss, Operation};

const SECTOR: usize = 512;

/// A file system in memory. Clones are the same file system.
#[derive(Clone, Debug, Default)]
pub struct MemoryVfs {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Debug, Default)]
struct State {
    inodes: HashMap<u64, Inode>,
    next_inode: u64,
    /// What a process sees.
    names: BTreeMap<PathBuf, u64>,
    /// What a power cut leaves.
    durable_names: BTreeMap<PathBuf, u64>,
    /// Name changes that no directory sync has confirmed, in order: the name and what it then meant.
    pending_names: Vec<(PathBuf, Option<u64>)>,
    faults: faults::Faults,
    /// None: no end of it.
    free_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    bytes: Vec<u8>,
    /// The durable content of each sector that was written since the last sync.
    replaced: BTreeMap<usize, Vec<u8>>,
    durable_len: usize,
}

/// What the fault plan says of a call.
enum Verdict {
    Go,
    Fail(io::Error),
    /// Only so many bytes; then the error, if there is one.
    Short(usize, Option<io::Error>),
    /// Do it, then say it failed.
    DoThenFail(io::Error),
    /// Say it was done, and do not make it durable.
    Pretend,
}

impl MemoryVfs {
    /// An empty file system that keeps synced and unsynced bytes apart.
    pub fn new() -> Self {
        Self::default()
    }

    /// The whole of a file.
    pub fn contents(&self, path: &Path) -> io::Result<Vec<u8>> {
        let state = self.state.lock();
        Ok(state.inode(path)?.bytes.clone())
    }
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no file {}", path.display()))
}

impl State {
    fn verdict(&mut self, operation: Operation, bytes: usize) -> Verdict {
        self.faults.verdict(operation, bytes)
    }

    /// For calls that cannot be done in part.
    fn check(&mut self, operation: Operation) -> io::Result<()> {
        match self.verdict(operation, 0) {
            Verdict::Fail(error) => Err(error),
            _ => Ok(()),
        }
    }

    fn inode(&self, path: &Path) -> io::Result<&Inode> {
        let number = self.names.get(path).ok_or_else(|| not_found(path))?;
        self.inodes.get(number).ok_or_else(|| not_found(path))
    }

    fn name(&mut self, path: &Path, inode: Option<u64>) {
        match inode {
            Some(inode) => self.names.insert(path.to_path_buf(), inode),
            None => self.names.remove(path),
        };
        self.pending_names.push((path.to_path_buf(), inode));
    }

    fn confirm_names(&mut self, dir: &Path) {
        let pending = std::mem::take(&mut self.pending_names);
        for (path, inode) in pending {
            if path.parent() == Some(dir) {
                match inode {
                    Some(inode) => self.durable_names.insert(path, inode),
                    None => self.durable_names.remove(&path),
                };
            } else {
                self.pending_names.push((path, inode));
            }
        }
    }
}

impl Inode {
    fn before_write(&mut self, at: usize, len: usize) {
        if len == 0 {
            return;
        }
        for sector in at / SECTOR..=(at + len - 1) / SECTOR {
            let start = sector * SECTOR;
            let end = (start + SECTOR).min(self.bytes.len());
            let bytes = &self.bytes;
            self.replaced.entry(sector).or_insert_with(|| {
                let mut old = bytes.get(start..end).map(<[u8]>::to_vec).unwrap_or_default();
                old.resize(SECTOR, 0);
                old
            });
        }
    }

    fn write(&mut self, from: &[u8], at: usize) {
        self.before_write(at, from.len());
        if self.bytes.len() < at + from.len() {
            self.bytes.resize(at + from.len(), 0);
        }
        self.bytes[at..at + from.len()].copy_from_slice(from);
    }

    fn sync(&mut self) {
        self.replaced.clear();
        self.durable_len = self.bytes.len();
    }

    fn set_len(&mut self, len: usize) {
        if len < self.bytes.len() {
            self.before_write(len, self.bytes.len() - len);
        }
        self.bytes.resize(len, 0);
    }
}

#[derive(Debug)]
struct MemoryFile {
    state: Arc<Mutex<State>>,
    inode: u64,
}

fn as_index(at: u64) -> io::Result<usize> {
    usize::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

impl MemoryFile {
    fn with<T>(
        &self,
        operation: Operation,
        bytes: usize,
        act: impl FnOnce(&mut Inode, Verdict) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.state.lock();
        let verdict = match state.verdict(operation, bytes) {
            Verdict::Fail(error) => return Err(error),
            verdict => verdict,
        };
        let inode = state.inodes.get_mut(&self.inode).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        act(inode, verdict)
    }
}

impl Vfs for MemoryVfs {
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>> {
        let mut state = self.state.lock();
        let inode = match (state.names.get(path).copied(), access) {
            (Some(_), Access::Create) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Some(inode), _) => inode,
            (None, Access::Create) => {
                state.check(Operation::Create)?;
                state.next_inode += 1;
                let inode = state.next_inode;
                state.inodes.insert(inode, Inode::default());
                state.name(path, Some(inode));
                inode
            }
            (None, _) => return Err(not_found(path)),
        };
        Ok(Arc::new(MemoryFile { state: Arc::clone(&self.state), inode }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let state = self.state.lock();
        let inside = state.names.iter().filter(|(path, _)| path.parent() == Some(dir));
        let entries = inside.filter_map(|(path, inode)| {
            let name = PathBuf::from(path.file_name()?);
            Some(DirEntry { name, len: state.inodes.get(inode)?.bytes.len() as u64, is_file: true })
        });
        Ok(entries.collect())
    }

    fn create_dir_all(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.check(Operation::Rename)?;
        let inode = state.names.get(from).copied().ok_or_else(|| not_found(from))?;
        // One journal entry on a real file system: a cut between the two halves would show the file twice, which the log
        // must bear anyway (hard links).
        state.name(to, Some(inode));
        state.name(from, None);
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.check(Operation::Link)?;
        let inode = state.names.get(from).copied().ok_or_else(|| not_found(from))?;
        if state.names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.name(to, Some(inode));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.check(Operation::Remove)?;
        if !state.names.contains_key(path) {
            return Err(not_found(path));
        }
        state.name(path, None);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        match state.verdict(Operation::DirSync, 0) {
            Verdict::Go => state.confirm_names(dir),
            Verdict::Fail(error) => return Err(error),
            Verdict::DoThenFail(error) => {
                state.confirm_names(dir);
                return Err(error);
            }
            Verdict::Pretend | Verdict::Short(..) => {}
        }
        Ok(())
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(self.state.lock().free_bytes.unwrap_or(u64::MAX))
    }
}

impl VfsFile for MemoryFile {
    fn len(&self) -> io::Result<u64> {
        let state = self.state.lock();
        let inode = state.inodes.get(&self.inode).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(inode.bytes.len() as u64)
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let at = as_index(at)?;
        self.with(Operation::Read, into.len(), |inode, _| {
            let there = inode.bytes.get(at..).unwrap_or_default();
            let len = there.len().min(into.len());
            into[..len].copy_from_slice(&there[..len]);
            Ok(len)
        })
    }

    fn write_at(&self, from: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        let total: usize = from.iter().map(|part| part.len()).sum();
        let start = as_index(at)?;
        self.with(Operation::Write, total, |inode, verdict| {
            let (take, error) = match verdict {
                Verdict::Short(take, error) => (take.min(total), error),
                _ => (total, None),
            };
            let mut done = 0;
            for part in from {
                let part = &part[..part.len().min(take - done)];
                inode.write(part, start + done);
                done += part.len();
            }
            match error {
                Some(error) => Err(error),
                None => Ok(take),
            }
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(Operation::Sync, 0, |inode, verdict| match verdict {
            Verdict::DoThenFail(error) => {
                inode.sync();
                Err(error)
            }
            Verdict::Pretend => Ok(()),
            _ => {
                inode.sync();
                Ok(())
            }
        })
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        let end = as_index(at.saturating_add(len))?;
        self.with(Operation::Allocate, 0, |inode, _| {
            if inode.bytes.len() < end {
                inode.set_len(end);
            }
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = as_index(len)?;
        self.with(Operation::Allocate, 0, |inode, _| {
            inode.set_len(len);
            Ok(())
        })
    }
}
