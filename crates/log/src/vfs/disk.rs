//! The machine's file system.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use super::{Access, DirEntry, Vfs, VfsFile, write_zeros};

/// Files on disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskVfs;

#[derive(Debug)]
struct DiskFile(File);

impl Vfs for DiskVfs {
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(access != Access::Read).create_new(access == Access::Create);
        let file = options.open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Arc::new(DiskFile(file)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            // Gone between the two calls: housekeeping of a running process may free files under a reader.
            let Ok(found) = entry.metadata() else { continue };
            let name = PathBuf::from(entry.file_name());
            entries.push(DirEntry { name, len: found.len(), is_file: found.is_file() });
        }
        Ok(entries)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            self.create_dir_all(parent)?;
        }
        match std::fs::create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        self.sync_dir(parent.unwrap_or(Path::new(".")))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let found = rustix::fs::statvfs(dir)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

/// What direct writes are aligned to: no device's block is larger.
const DIRECT_BLOCK: u64 = 4_096;

impl DiskFile {
    /// Through a handle of its own on the same file, whatever name that has by now.
    fn zero_direct(&self, at: u64, len: u64) -> io::Result<()> {
        let flags = OFlags::DIRECT.bits().cast_signed();
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let direct = DiskFile(OpenOptions::new().write(true).custom_flags(flags).open(path)?);
        write_zeros(len, |part, done| direct.write_at(&[IoSlice::new(part)], at + done))
    }
}

impl VfsFile for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match FileExt::read_at(&self.0, rest, at.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, from: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        loop {
            match rustix::io::pwritev(&self.0, from, at) {
                Err(Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        loop {
            match rustix::fs::fdatasync(&self.0) {
                Err(Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), at, len) {
            // File systems without the call: the next write allocates, and reports a full disk itself.
            Err(Errno::OPNOTSUPP) => {
                let end = at.saturating_add(len);
                if self.len()? < end { self.0.set_len(end) } else { Ok(()) }
            }
            result => Ok(result?),
        }
    }

    /// Past the page cache: a sync writes every dirty page of a file, whoever made it so, and an append would wait for
    /// megabytes of zeros.
    fn zero(&self, at: u64, len: u64) -> io::Result<()> {
        let buffered = |from: u64, to: u64| {
            write_zeros(to.saturating_sub(from), |part, done| self.write_at(&[IoSlice::new(part)], from + done))
        };
        let end = at.saturating_add(len);
        let (from, to) = (at.next_multiple_of(DIRECT_BLOCK), end - end % DIRECT_BLOCK);
        if from >= to {
            return buffered(at, end);
        }
        buffered(at, from)?;
        if self.zero_direct(from, to - from).is_err() {
            // File systems without direct writes; and a device's own error comes again.
            buffered(from, to)?;
        }
        buffered(to, end)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch zeros that stop short, go past their end or miss a part that is no whole block, also where the same bytes
    /// lie in the page cache.
    #[test]
    fn zeros_cover_what_they_are_told_to_and_nothing_else() {
        let dir = tempfile::tempdir().expect("temp dir");
        let file = DiskVfs.open(&dir.path().join("file"), Access::Create).expect("file");
        let len = 3 << 20;
        for (at, end) in [(0, len), (1, 4_095), (4_000, 4_200), (5_000, 2_000_001), (4_096, 8_192), (7, 7)] {
            assert_eq!(file.write_at(&[IoSlice::new(&vec![0xA5; len])], 0).expect("write"), len);
            file.zero(at as u64, (end - at) as u64).expect("zero");
            file.sync_data().expect("sync");
            let mut found = vec![1; len];
            assert_eq!(file.read_at(&mut found, 0).expect("read"), len);
            let wrong = found.iter().enumerate().find(|(n, byte)| (**byte == 0) != (at..end).contains(n));
            assert_eq!(wrong, None, "{at}..{end}");
        }
        assert_eq!(file.len().expect("length"), len as u64);
    }
}
