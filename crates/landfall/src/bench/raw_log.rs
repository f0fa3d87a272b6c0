//! The limit that a publish is held against: one write and one `fdatasync` of the same bytes on a prepared file.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::fdatasync;

/// A zero-filled, synced file that is written from the start on, as a log on a prepared segment would be.
pub(super) struct RawLog {
    file: File,
    at: u64,
    bytes: u64,
}

impl RawLog {
    /// So many files in a directory, which take so many bytes together.
    pub(super) fn prepare_all(dir: &Path, count: u32, bytes: u64) -> std::io::Result<Vec<Self>> {
        (0..count).map(|at| Self::prepare(&dir.join(format!("raw.{at}")), bytes / u64::from(count))).collect()
    }

    fn prepare(path: &Path, bytes: u64) -> std::io::Result<Self> {
        let mut file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path)?;
        let zeros = vec![0; 1 << 20];
        let mut written = 0;
        while written < bytes {
            let step = (bytes - written).min(zeros.len() as u64);
            file.write_all(zeros.get(..step as usize).unwrap_or_default())?;
            written += step;
        }
        file.sync_all()?;
        file.seek(SeekFrom::Start(0))?;
        Ok(RawLog { file, at: 0, bytes })
    }

    /// One append: written at the end of what is there, on stable storage when it returns. Goes around at the end
    /// of the file, whose space stays prepared.
    pub(super) fn append(&mut self, bytes: &[u8]) -> std::io::Result<Duration> {
        if self.at + bytes.len() as u64 > self.bytes {
            self.at = 0;
        }
        let start = Instant::now();
        self.file.write_all_at(bytes, self.at)?;
        fdatasync(&self.file)?;
        let took = start.elapsed();
        self.at += bytes.len() as u64;
        Ok(took)
    }
}
