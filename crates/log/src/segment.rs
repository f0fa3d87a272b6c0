//! One segment file as readers and the writer share it.
//!
//! The header never changes; the end is set once, when the segment is closed. Locks guard memory only (I5).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use landfall_types::{Offset, SegmentNumber, Timestamp};
use parking_lot::Mutex;

use crate::format::{IndexEntry, Seed, SegmentHeader};
use crate::vfs::{Access, Vfs, VfsFile};

/// A segment of the chain.
#[derive(Debug)]
pub(crate) struct Segment {
    pub path: PathBuf,
    pub header: SegmentHeader,
    pub header_crc: u32,
    pub seed: Seed,
    end: AtomicU64,
    end_byte: AtomicU64,
    last_append_time: AtomicI64,
    is_damaged: AtomicBool,
    /// The sparse index, ascending; `None` until it is known.
    index: Mutex<Option<Vec<IndexEntry>>>,
    file: Mutex<Option<Arc<dyn VfsFile>>>,
}

/// The name of the segment that begins at an offset.
pub(crate) fn segment_name(base: Offset) -> String {
    format!("{:020}.seg", base.0)
}

/// The offset in a segment's name.
pub(crate) fn base_of_name(name: &Path) -> Option<Offset> {
    let digits = name.to_str()?.strip_suffix(".seg")?;
    let is_canonical = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_canonical.then(|| digits.parse().ok().map(Offset)).flatten()
}

const OPEN: u64 = u64::MAX;

impl Segment {
    pub(crate) fn new(path: PathBuf, header: SegmentHeader, header_crc: u32) -> Segment {
        let seed = header.seed();
        Segment {
            path,
            header,
            header_crc,
            seed,
            end: AtomicU64::new(OPEN),
            end_byte: AtomicU64::new(OPEN),
            last_append_time: AtomicI64::new(i64::MIN),
            is_damaged: AtomicBool::new(false),
            index: Mutex::new(None),
            file: Mutex::new(None),
        }
    }

    pub(crate) fn number(&self) -> SegmentNumber {
        self.header.number
    }

    pub(crate) fn base(&self) -> Offset {
        self.header.base
    }

    /// The offset after the last record; [`Offset::MAX`] while it is active.
    pub(crate) fn end(&self) -> Offset {
        Offset(self.end.load(Ordering::Acquire))
    }

    /// The byte from which on it is void; `u64::MAX` while it is active.
    pub(crate) fn end_byte(&self) -> u64 {
        self.end_byte.load(Ordering::Acquire)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.end_byte() == OPEN
    }

    pub(crate) fn close_at(&self, end: Offset, end_byte: u64) {
        self.end.store(end.0, Ordering::Release);
        self.end_byte.store(end_byte, Ordering::Release);
    }

    pub(crate) fn last_append_time(&self) -> Option<Timestamp> {
        let time = self.last_append_time.load(Ordering::Relaxed);
        (time != i64::MIN).then_some(Timestamp(time))
    }

    pub(crate) fn set_last_append_time(&self, time: Timestamp) {
        self.last_append_time.store(time.0, Ordering::Relaxed);
    }

    pub(crate) fn is_damaged(&self) -> bool {
        self.is_damaged.load(Ordering::Relaxed)
    }

    pub(crate) fn set_damaged(&self) {
        self.is_damaged.store(true, Ordering::Relaxed);
    }

    /// Gives it an index, unless it has one.
    pub(crate) fn set_index(&self, index: Vec<IndexEntry>) {
        self.index.lock().get_or_insert(index);
    }

    pub(crate) fn has_index(&self) -> bool {
        self.index.lock().is_some()
    }

    /// Adds where a unit stands, in order of offsets.
    pub(crate) fn add_to_index(&self, entry: IndexEntry) {
        if let Some(index) = self.index.lock().as_mut() {
            let at = index.partition_point(|there| there.offset < entry.offset);
            if index.get(at).is_none_or(|there| there.offset != entry.offset) {
                index.insert(at, entry);
            }
        }
    }

    /// The last indexed unit that `is_before` holds for; entries are ordered so that it holds for a prefix.
    pub(crate) fn look_up(&self, is_before: impl Fn(&IndexEntry) -> bool) -> Option<IndexEntry> {
        let index = self.index.lock();
        let index = index.as_ref()?;
        let after = index.partition_point(is_before);
        index.get(after.checked_sub(1)?).copied()
    }

    /// The append time of its first unit, if its index is known and not empty.
    pub(crate) fn first_append_time(&self) -> Option<Timestamp> {
        self.index.lock().as_ref()?.first().map(|entry| entry.append_time)
    }

    /// The open file, opened if need be. Whether it was opened now tells the caller to count it.
    pub(crate) fn file(&self, vfs: &dyn Vfs) -> io::Result<(Arc<dyn VfsFile>, bool)> {
        if let Some(file) = self.file.lock().clone() {
            return Ok((file, false));
        }
        // Two readers may both open it; the second's handle is dropped.
        let opened = vfs.open(&self.path, Access::Read)?;
        Ok((Arc::clone(self.file.lock().get_or_insert(opened)), true))
    }

    pub(crate) fn set_file(&self, file: Arc<dyn VfsFile>) {
        *self.file.lock() = Some(file);
    }

    pub(crate) fn drop_file(&self) {
        self.file.lock().take();
    }
}
