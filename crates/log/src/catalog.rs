//! What the writer and the readers of a partition share: the segment list, the log start, the damaged ranges.
//!
//! The writer alone changes the list and the log start; readers add damage they meet. The log start is raised before
//! a segment leaves the list, so a reader that misses one finds out that it was trimmed (C87).

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use landfall_types::{Offset, SegmentNumber};
use parking_lot::{Mutex, RwLock};

use crate::format::{HEADER_BYTES, Kind, Summary};
use crate::scan::{self, Stop, Window, unit_at};
use crate::segment::Segment;
use crate::summarize::Summarizer;
use crate::vfs::{Vfs, VfsFile};

/// Closed segments whose files are kept open for readers.
const OPEN_FILES_MAX: usize = 32;
/// Damaged ranges that are remembered; more are found again by reading.
const DAMAGED_MAX: usize = 65_536;

#[derive(Debug)]
pub(crate) struct Catalog {
    pub vfs: Arc<dyn Vfs>,
    pub dir: PathBuf,
    log_start: AtomicU64,
    segments: RwLock<Vec<Arc<Segment>>>,
    damaged: RwLock<Vec<Range<Offset>>>,
    opened: Mutex<VecDeque<Weak<Segment>>>,
    summary_rebuilds: AtomicU64,
    pub stop: Stop,
}

/// Where an offset is to be looked for.
#[derive(Debug)]
pub(crate) enum Place {
    In(Arc<Segment>),
    /// No segment holds it; the next one begins at `to`.
    Gap {
        to: Offset,
    },
    /// Above all segments.
    Nowhere,
}

impl Catalog {
    pub(crate) fn new(vfs: Arc<dyn Vfs>, dir: PathBuf, stop: Stop) -> Catalog {
        Catalog {
            vfs,
            dir,
            log_start: AtomicU64::new(0),
            segments: RwLock::new(Vec::new()),
            damaged: RwLock::new(Vec::new()),
            opened: Mutex::new(VecDeque::new()),
            summary_rebuilds: AtomicU64::new(0),
            stop,
        }
    }

    pub(crate) fn log_start(&self) -> Offset {
        Offset(self.log_start.load(Ordering::Acquire))
    }

    pub(crate) fn raise_log_start(&self, to: Offset) {
        self.log_start.fetch_max(to.0, Ordering::AcqRel);
    }

    pub(crate) fn segments(&self) -> Vec<Arc<Segment>> {
        self.segments.read().clone()
    }

    pub(crate) fn set_segments(&self, segments: Vec<Arc<Segment>>) {
        *self.segments.write() = segments;
    }

    /// Adds the newest segment; one without records that it replaces goes.
    pub(crate) fn add_segment(&self, segment: Arc<Segment>) {
        let mut segments = self.segments.write();
        segments.retain(|there| there.path != segment.path);
        segments.push(segment);
    }

    /// Takes the segments below the log start out of the list, oldest first, leaving out damaged ones.
    pub(crate) fn take_below_log_start(&self) -> Vec<Arc<Segment>> {
        let log_start = self.log_start();
        let mut segments = self.segments.write();
        let below = segments.iter().take_while(|there| there.end() <= log_start && !there.is_active()).count();
        segments.drain(..below).collect()
    }

    pub(crate) fn find(&self, offset: Offset) -> Place {
        let segments = self.segments.read();
        let after = segments.partition_point(|there| there.base() <= offset);
        match after.checked_sub(1).and_then(|at| segments.get(at)) {
            Some(segment) if offset < segment.end() => Place::In(Arc::clone(segment)),
            _ => segments.get(after).map_or(Place::Nowhere, |next| Place::Gap { to: next.base() }),
        }
    }

    /// Notes lost offsets; overlapping ranges become one.
    pub(crate) fn add_damage(&self, range: Range<Offset>) {
        if range.is_empty() {
            return;
        }
        let mut damaged = self.damaged.write();
        let from = damaged.partition_point(|there| there.end < range.start);
        let to = damaged.partition_point(|there| there.start <= range.end);
        let merged = damaged.get(from..to).unwrap_or_default().iter();
        let merged = merged.fold(range, |all, there| all.start.min(there.start)..all.end.max(there.end));
        if to > from || damaged.len() < DAMAGED_MAX {
            damaged.splice(from..to, [merged]);
        }
    }

    pub(crate) fn damaged(&self) -> Vec<Range<Offset>> {
        self.damaged.read().clone()
    }

    /// The damaged range that holds an offset.
    pub(crate) fn damage_at(&self, offset: Offset) -> Option<Range<Offset>> {
        let damaged = self.damaged.read();
        let at = damaged.partition_point(|there| there.end <= offset);
        damaged.get(at).filter(|there| there.contains(&offset)).cloned()
    }

    /// A segment's file; the oldest of too many open ones is closed.
    pub(crate) fn file(&self, segment: &Arc<Segment>) -> io::Result<Arc<dyn VfsFile>> {
        let (file, is_new) = segment.file(self.vfs.as_ref())?;
        if is_new {
            self.keep_open(segment);
        }
        Ok(file)
    }

    /// Counts a segment among the open files.
    pub(crate) fn keep_open(&self, segment: &Arc<Segment>) {
        let surplus = {
            let mut opened = self.opened.lock();
            opened.push_back(Arc::downgrade(segment));
            if opened.len() > OPEN_FILES_MAX { opened.pop_front() } else { None }
        };
        if let Some(segment) = surplus.and_then(|segment| segment.upgrade()) {
            segment.drop_file();
        }
    }

    /// Loads a closed segment's index from the summary in its successor, or by scanning it (C77).
    pub(crate) fn load_index(&self, segment: &Arc<Segment>) -> io::Result<()> {
        if segment.has_index() {
            return Ok(());
        }
        let summary = match self.stored_summary(segment.number())? {
            Some(summary) => summary,
            None => self.rebuild_summary(segment)?,
        };
        if summary.last_append_time.0 != i64::MIN {
            segment.set_last_append_time(summary.last_append_time);
        }
        segment.set_index(summary.index);
        Ok(())
    }

    /// The summary of a segment, if its successor begins with a good one.
    pub(crate) fn stored_summary(&self, number: SegmentNumber) -> io::Result<Option<Summary>> {
        let segments = self.segments();
        let is_successor = |there: &&Arc<Segment>| there.header.predecessor.is_some_and(|it| it.number == number);
        let Some(successor) = segments.iter().find(is_successor) else { return Ok(None) };
        let file = self.file(successor)?;
        let end = file.len()?;
        let found = unit_at(&mut Window::new(file, end, 64 << 10), HEADER_BYTES as u64, successor.seed)?;
        let summary = found.filter(|found| found.head.kind == Kind::Summary);
        Ok(summary.and_then(|found| Summary::decode(&found.body)).filter(|summary| summary.number == number))
    }

    /// Scans a closed segment for what its summary would say.
    pub(crate) fn rebuild_summary(&self, segment: &Arc<Segment>) -> io::Result<Summary> {
        let file = self.file(segment)?;
        let survey =
            scan::survey(&file, segment.seed, segment.header_crc, segment.base(), segment.end_byte(), &self.stop)?;
        let mut summarizer = Summarizer::new(segment.number(), segment.base(), usize::MAX);
        for run in &survey.runs {
            scan::visit(&file, segment.seed, run, &self.stop, |found| {
                summarizer.add(&found);
                Ok(())
            })?;
        }
        self.summary_rebuilds.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(segment = %segment.path.display(), "a segment's summary was missing or bad and was rebuilt by a scan");
        Ok(summarizer.summary(segment.end()))
    }

    pub(crate) fn summary_rebuilds(&self) -> u64 {
        self.summary_rebuilds.load(Ordering::Relaxed)
    }
}
