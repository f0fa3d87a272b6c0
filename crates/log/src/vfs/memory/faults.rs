//! Faults and power cuts of the in-memory file system (C99).

use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{MemoryVfs, SECTOR, State, Verdict, not_found};

/// A kind of call that a fault can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Making a file.
    Create,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// `fdatasync`.
    Sync,
    /// Renaming.
    Rename,
    /// Hard-linking.
    Link,
    /// Unlinking.
    Remove,
    /// Syncing a directory.
    DirSync,
    /// Allocating or cutting.
    Allocate,
}

/// What happens to the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails and nothing happens. `StorageFull` stands for ENOSPC; anything else for EIO.
    Error(io::ErrorKind),
    /// A write takes half of its bytes and says so.
    Short,
    /// A write takes half of its bytes, then fails.
    Torn(io::ErrorKind),
    /// It is done in full, then reported as failed (`sync_then_error`).
    DoneThenError(io::ErrorKind),
    /// It is reported as done, and is not: a sync that marks clean what the device lost, a directory sync that forgets.
    Pretended,
}

/// What a power cut takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing: only the process ended.
    Nothing,
    /// Everything that no sync has confirmed.
    Unsynced,
    /// Each unsynced sector and each tail of the name changes by the toss of a coin.
    Random(u64),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    plan: Vec<Planned>,
    steps: u64,
    crash_at: Option<u64>,
    crashed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    operation: Operation,
    /// Calls to let pass first.
    after: u64,
    /// How many calls it then meets.
    times: u64,
    fault: Fault,
}

fn crashed() -> io::Error {
    io::Error::other("the machine is down")
}

impl Faults {
    pub(super) fn verdict(&mut self, operation: Operation, bytes: usize) -> Verdict {
        if self.crashed {
            return Verdict::Fail(crashed());
        }
        if operation != Operation::Read {
            self.steps += 1;
            if self.crash_at.is_some_and(|at| self.steps > at) {
                self.crashed = true;
                return match operation {
                    Operation::Write => Verdict::Short(bytes / 2, Some(crashed())),
                    _ => Verdict::Fail(crashed()),
                };
            }
        }
        let Some(planned) = self.plan.iter_mut().find(|planned| planned.operation == operation && planned.times > 0)
        else {
            return Verdict::Go;
        };
        if planned.after > 0 {
            planned.after -= 1;
            return Verdict::Go;
        }
        planned.times -= 1;
        match planned.fault {
            Fault::Error(kind) => Verdict::Fail(kind.into()),
            Fault::Short => Verdict::Short(bytes / 2, None),
            Fault::Torn(kind) => Verdict::Short(bytes / 2, Some(kind.into())),
            Fault::DoneThenError(kind) => Verdict::DoThenFail(kind.into()),
            Fault::Pretended => Verdict::Pretend,
        }
    }
}

/// A small generator; faults must replay by seed.
pub(super) struct Coin(u64);

impl Coin {
    pub(super) fn toss(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl MemoryVfs {
    /// Plans a fault: after `after` more calls of its kind, for `times` calls.
    pub fn inject(&self, operation: Operation, after: u64, times: u64, fault: Fault) {
        self.state.lock().faults.plan.push(Planned { operation, after, times, fault });
    }

    /// Takes back all planned faults.
    pub fn heal(&self) {
        self.state.lock().faults.plan.clear();
    }

    /// What `free_bytes` says from now on.
    pub fn set_free_bytes(&self, bytes: u64) {
        self.state.lock().free_bytes = Some(bytes);
    }

    /// How many calls that change something have been made.
    pub fn steps(&self) -> u64 {
        self.state.lock().faults.steps
    }

    /// The machine goes down in the call after `steps` more of them: a write is torn in half, and every later call fails.
    pub fn crash_after(&self, steps: u64) {
        let mut state = self.state.lock();
        state.faults.crash_at = Some(state.faults.steps + steps);
    }

    /// Whether [`MemoryVfs::crash_after`] has struck.
    pub fn is_down(&self) -> bool {
        self.state.lock().faults.crashed
    }

    /// The file system as it is found after the power comes back. This one goes on as it was.
    #[must_use]
    pub fn power_cut(&self, loss: Loss) -> MemoryVfs {
        let mut state = self.state.lock().clone();
        state.faults = Faults::default();
        match loss {
            Loss::Nothing => {}
            Loss::Unsynced => {
                state.names = state.durable_names.clone();
                for inode in state.inodes.values_mut() {
                    inode.lose(|_| true);
                }
            }
            Loss::Random(seed) => {
                let mut coin = Coin(seed);
                state.names = state.durable_names.clone();
                // A journal keeps the order of name changes: some prefix of them is there.
                let kept = coin.toss() as usize % (state.pending_names.len() + 1);
                for (path, inode) in state.pending_names.iter().take(kept) {
                    match inode {
                        Some(inode) => state.names.insert(path.clone(), *inode),
                        None => state.names.remove(path),
                    };
                }
                let mut numbers: Vec<u64> = state.inodes.keys().copied().collect();
                numbers.sort_unstable();
                for number in numbers {
                    if let Some(inode) = state.inodes.get_mut(&number) {
                        inode.lose(|_| coin.toss() & 1 == 0);
                    }
                }
            }
        }
        state.settle_names();
        MemoryVfs { state: Arc::new(Mutex::new(state)) }
    }

    /// Puts a file there, as an operator or a fault outside of the log would; durable at once.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.state.lock();
        state.next_inode += 1;
        let inode = state.next_inode;
        let file = super::Inode { bytes: bytes.to_vec(), durable_len: bytes.len(), ..Default::default() };
        state.inodes.insert(inode, file);
        state.names.insert(path.to_path_buf(), inode);
        state.durable_names.insert(path.to_path_buf(), inode);
    }

    /// Changes a file's bytes behind the log's back; durable at once.
    pub fn alter(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut state = self.state.lock();
        let number = state.names.get(path).copied().ok_or_else(|| not_found(path))?;
        let inode = state.inodes.get_mut(&number).ok_or_else(|| not_found(path))?;
        change(&mut inode.bytes);
        inode.sync();
        Ok(())
    }

    /// Removes a file behind the log's back; durable at once.
    pub fn delete(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.durable_names.remove(path);
        state.names.remove(path).map(|_| ()).ok_or_else(|| not_found(path))
    }
}

impl State {
    /// What is found is what there is.
    fn settle_names(&mut self) {
        self.durable_names = self.names.clone();
        self.pending_names.clear();
        for inode in self.inodes.values_mut() {
            inode.sync();
        }
    }
}

impl super::Inode {
    /// Takes back each unsynced sector that `is_lost` says. A file never shrinks below what was synced.
    fn lose(&mut self, mut is_lost: impl FnMut(usize) -> bool) {
        let replaced = std::mem::take(&mut self.replaced);
        let mut longest = self.durable_len;
        if self.bytes.len() < self.durable_len {
            self.bytes.resize(self.durable_len, 0);
        }
        for (sector, old) in replaced {
            let start = sector * SECTOR;
            if is_lost(sector) {
                let end = (start + SECTOR).min(self.bytes.len());
                if let Some(there) = self.bytes.get_mut(start..end) {
                    there.copy_from_slice(&old[..there.len()]);
                }
            } else {
                longest = longest.max((start + SECTOR).min(self.bytes.len()));
            }
        }
        self.bytes.truncate(longest);
    }
}
