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
    /// Writes zeros over allocated bytes. Nothing is durable before a sync; a sync of another handle need not wait for them.
    fn zero(&self, at: u64, len: u64) -> io::Result<()> {
        write_zeros(len, |part, done| self.write_at(&[IoSlice::new(part)], at + done))
    }
    /// Cuts or grows the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
}

/// Zeros of one call, at an address that direct writes take.
#[repr(align(4096))]
struct Zeros([u8; 1 << 20]);
static ZEROS: Zeros = Zeros([0; 1 << 20]);

/// Zeros for the rest of a page.
pub(crate) fn zeros(len: usize) -> &'static [u8] {
    ZEROS.0.get(..len).unwrap_or(&ZEROS.0)
}

/// Gives `len` zeros to `write`, piece by piece, with how many came before.
fn write_zeros(len: u64, mut write: impl FnMut(&[u8], u64) -> io::Result<usize>) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match write(zeros((len - done).min(ZEROS.0.len() as u64) as usize), done)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => done += written as u64,
        }
    }
    Ok(())
}
