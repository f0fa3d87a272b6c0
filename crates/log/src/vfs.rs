//! All file access of the log goes through [`Vfs`], so that faults and power cuts can be tested (C99).
//!
//! [`DiskVfs`] is the machine's file system. With the feature `testing` there is one in memory that tells
//! synced from unsynced bytes, cuts the power and injects faults.

mod disk;
#[cfg(any(test, feature = "testing"))]
mod memory;

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

pub use disk::DiskVfs;
#[cfg(any(test, feature = "testing"))]
pub use memory::{Fault, Loss, MemoryVfs, Operation};

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name inside the directory.
    pub name: std::path::PathBuf,
    /// The file's length in bytes.
    pub len: u64,
    /// A regular file; not a directory, a link or anything else.
    pub is_file: bool,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading an existing file.
    Read,
    /// For reading and writing an existing file.
    Write,
    /// For reading and writing a file that must not exist yet.
    Create,
}

/// A file system as far as the log needs one.
pub trait Vfs: Debug + Send + Sync + 'static {
    /// Opens a file. Never follows into a directory.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>>;
    /// Everything in a directory, in no order. Links are not followed.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// Makes a directory and its parents, durably.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;
    /// Renames within one directory, over an existing file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file a second name, which must not exist.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a name.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the directory's entries durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Free bytes of the device under a directory, for a user without privileges.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
}

/// An open file. Positioned calls only, so that handles can be shared.
#[expect(clippy::len_without_is_empty, reason = "a fallible length, not a collection's")]
pub trait VfsFile: Debug + Send + Sync + 'static {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Reads up to `into.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize>;
    /// One gathered write. Fewer bytes than given is a short write, which the log never continues.
    fn write_at(&self, from: &[IoSlice<'_>], at: u64) -> io::Result<usize>;
    /// Makes the bytes, and what is needed to find them, durable.
    fn sync_data(&self) -> io::Result<()>;
    /// Allocates `[at, at + len)` and grows the file to cover it; bytes there read as zero.
    fn allocate(&self, at: u64, len: u64) -> io::Result<()>;
    /// Cuts or grows the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
}
