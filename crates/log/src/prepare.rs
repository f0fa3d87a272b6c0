//! Space ahead of the writer: spares, zero-filled bytes, and the freeing of what nobody needs (C42, C75, C76).
//!
//! A sync of bytes that are allocated and zero-filled changes no metadata, which is what makes a lone append as fast as
//! the device. A housekeeping thread does this beside the writer; one flag, held only in memory, says who is at it, so the
//! two never fill the same bytes. Where the writer meets unprepared space it waits for that thread or extends by
//! itself, and counts it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::options::Preparation;
use crate::segment::Segment;
use crate::vfs::{Access, Vfs, VfsFile, zeros};

/// So many spares are kept: one for a roll, one for a fence.
pub(crate) const SPARES: usize = 2;

/// An allocated, zero-filled, synced file, and the hold on its name: until it is dropped, nobody makes another spare
/// under that name, which a rename in progress would take instead.
#[derive(Debug)]
pub(crate) struct Spare {
    pub path: PathBuf,
    pub file: Arc<dyn VfsFile>,
    pub bytes: u64,
    space: Arc<Space>,
    slot: usize,
}

impl Drop for Spare {
    fn drop(&mut self) {
        if let Some(is_taken) = self.space.inside.lock().taken.get_mut(self.slot) {
            *is_taken = false;
        }
    }
}

#[derive(Debug)]
struct Ready {
    slot: usize,
    file: Arc<dyn VfsFile>,
}

/// Work that can wait.
#[derive(Debug)]
pub(crate) enum Chore {
    /// Unlink a segment that was trimmed, or a superseded file.
    Free(PathBuf),
    /// Cut a rolled segment at its end; only zeros follow.
    Cut(Arc<Segment>),
}

#[derive(Debug)]
pub(crate) struct Space {
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    preparation: Preparation,
    segment_bytes: u64,
    /// Where the writer stands; for deciding how far ahead to be.
    position: AtomicU64,
    /// Smoothed bytes of an append.
    mean_append: AtomicU64,
    inside: Mutex<Inside>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Inside {
    active: Option<Ahead>,
    ready: Vec<Ready>,
    taken: [bool; SPARES],
    chores: Vec<Chore>,
    /// Somebody is preparing; the list above changes by them alone, except that the writer takes spares.
    is_busy: bool,
    step: u64,
}

/// The active file. A handle, not a path: a fence may put another file under the same name, and zeros must never reach
/// that one.
#[derive(Clone, Debug)]
struct Ahead {
    file: Arc<dyn VfsFile>,
    prepared: u64,
}

/// How far the active file is prepared, and whether the writer had to see to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared {
    pub end: u64,
    pub was_inline: bool,
}

/// The right to prepare; given back on drop, also by a panic.
struct Turn<'a>(&'a Space);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.inside.lock().is_busy = false;
        self.0.freed.notify_all();
    }
}

impl Space {
    pub(crate) fn new(vfs: Arc<dyn Vfs>, dir: PathBuf, preparation: Preparation, segment_bytes: u64) -> Space {
        let inside = Inside { step: preparation.step_min.get(), ..Inside::default() };
        Space {
            vfs,
            dir,
            preparation,
            segment_bytes,
            position: AtomicU64::new(0),
            mean_append: AtomicU64::new(0),
            inside: Mutex::new(inside),
            freed: Condvar::new(),
        }
    }

    /// The writer has moved to a new segment. `file` is a handle of its own: an error of a sync here must neither be
    /// taken from the writer's handle nor hidden from it.
    pub(crate) fn set_active(&self, file: Arc<dyn VfsFile>, position: u64, prepared: u64) {
        self.position.store(position, Ordering::Relaxed);
        let mut inside = self.inside.lock();
        inside.active = Some(Ahead { file, prepared });
        inside.step = self.preparation.step_min.get();
    }

    /// The writer appended up to `position`.
    pub(crate) fn advance(&self, position: u64, appended: u64) {
        self.position.store(position, Ordering::Relaxed);
        let mean = self.mean_append.load(Ordering::Relaxed);
        self.mean_append.store(mean - mean / 8 + appended / 8, Ordering::Relaxed);
    }

    pub(crate) fn add_chores(&self, chores: impl IntoIterator<Item = Chore>) {
        self.inside.lock().chores.extend(chores);
    }

    pub(crate) fn spares(&self) -> usize {
        self.inside.lock().ready.len()
    }

    pub(crate) fn take_spare(self: &Arc<Self>) -> Option<Spare> {
        let mut inside = self.inside.lock();
        let Ready { slot, file } = inside.ready.pop()?;
        if let Some(is_taken) = inside.taken.get_mut(slot) {
            *is_taken = true;
        }
        let bytes = self.preparation.step_min.get();
        Some(Spare { path: self.dir.join(spare_name(slot)), file, bytes, space: Arc::clone(self), slot })
    }

    /// Takes a spare; makes one here if there is none.
    pub(crate) fn take_or_make_spare(self: &Arc<Self>) -> io::Result<Spare> {
        self.ensure_spares(1)?;
        self.take_spare().ok_or_else(|| io::Error::other("every spare is in use"))
    }

    pub(crate) fn ensure_spares(&self, wanted: usize) -> io::Result<()> {
        if self.spares() >= wanted {
            return Ok(());
        }
        let _turn = self.turn();
        self.make_spares(wanted)
    }

    /// Makes sure that `end` bytes of the active file are allocated.
    pub(crate) fn ensure_prepared(&self, file: &dyn VfsFile, end: u64) -> io::Result<Prepared> {
        let prepared = || self.inside.lock().active.as_ref().map_or(0, |ahead| ahead.prepared);
        let here = prepared();
        if end <= here {
            return Ok(Prepared { end: here, was_inline: false });
        }
        let _turn = self.turn();
        // Perhaps by whoever had the turn before.
        let here = prepared();
        if end <= here {
            return Ok(Prepared { end: here, was_inline: true });
        }
        file.allocate(here, end - here)?;
        if let Some(ahead) = self.inside.lock().active.as_mut() {
            ahead.prepared = end;
        }
        Ok(Prepared { end, was_inline: true })
    }

    /// Waits until nobody prepares, then holds the right to.
    fn turn(&self) -> Turn<'_> {
        let mut inside = self.inside.lock();
        while inside.is_busy {
            self.freed.wait(&mut inside);
        }
        inside.is_busy = true;
        Turn(self)
    }

    fn try_turn(&self) -> Option<Turn<'_>> {
        let mut inside = self.inside.lock();
        if inside.is_busy {
            return None;
        }
        inside.is_busy = true;
        Some(Turn(self))
    }

    pub(crate) fn is_due(&self) -> bool {
        let inside = self.inside.lock();
        let is_short = inside.active.as_ref().is_some_and(|ahead| self.is_short(ahead, inside.step));
        !inside.chores.is_empty() || inside.ready.len() < SPARES || is_short
    }

    fn is_short(&self, ahead: &Ahead, step: u64) -> bool {
        let room = ahead.prepared.saturating_sub(self.position.load(Ordering::Relaxed));
        ahead.prepared < self.segment_bytes && room < step
    }

    pub(crate) fn prepare(&self) -> io::Result<()> {
        // Whoever is at it does the same.
        let Some(_turn) = self.try_turn() else { return Ok(()) };
        // Freeing comes first: it may be what the rest needs.
        let freed = self.do_chores();
        let spared = self.make_spares(SPARES);
        let extended = self.extend();
        freed.and(spared).and(extended)
    }

    fn do_chores(&self) -> io::Result<()> {
        let chores = std::mem::take(&mut self.inside.lock().chores);
        let mut has_freed = false;
        let mut outcome = Ok(());
        for chore in chores {
            let done = match &chore {
                Chore::Free(path) => match self.vfs.remove(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => {
                        has_freed = true;
                        Ok(())
                    }
                },
                Chore::Cut(segment) => self.cut(segment),
            };
            if let Err(error) = done {
                outcome = Err(error);
                self.inside.lock().chores.push(chore);
            }
        }
        if has_freed { outcome.and(self.vfs.sync_dir(&self.dir)) } else { outcome }
    }

    fn cut(&self, segment: &Segment) -> io::Result<()> {
        match self.vfs.open(&segment.path, Access::Write) {
            Ok(file) if file.len()? > segment.end_byte() => file.set_len(segment.end_byte()),
            Ok(_) => Ok(()),
            // Trimmed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn make_spares(&self, wanted: usize) -> io::Result<()> {
        for slot in 0..SPARES {
            {
                let inside = self.inside.lock();
                if inside.ready.len() >= wanted {
                    return Ok(());
                }
                let is_taken = inside.taken.get(slot).copied().unwrap_or(true);
                if is_taken || inside.ready.iter().any(|ready| ready.slot == slot) {
                    continue;
                }
            }
            let file = self.make_spare(&self.dir.join(spare_name(slot)))?;
            self.inside.lock().ready.push(Ready { slot, file });
        }
        Ok(())
    }

    fn make_spare(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let bytes = self.preparation.step_min.get();
        match self.vfs.open(path, Access::Write) {
            // Left by an earlier run: good only if no attempt has written to it.
            Ok(file) if is_clean(file.as_ref(), bytes)? => return Ok(file),
            Ok(_) => self.vfs.remove(path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let file = self.vfs.open(path, Access::Create)?;
        fill(file.as_ref(), 0, bytes)?;
        file.sync_data()?;
        Ok(file)
    }

    fn extend(&self) -> io::Result<()> {
        let (ahead, step) = {
            let inside = self.inside.lock();
            match inside.active.clone() {
                Some(ahead) if self.is_short(&ahead, inside.step) => (ahead, inside.step),
                _ => return Ok(()),
            }
        };
        let to = (ahead.prepared + step).min(self.segment_bytes);
        let file = &ahead.file;
        if self.mean_append.load(Ordering::Relaxed) < self.preparation.zero_below.get() {
            fill(file.as_ref(), ahead.prepared, to - ahead.prepared)?;
        } else {
            // Zeros would double the bytes written.
            file.allocate(ahead.prepared, to - ahead.prepared)?;
        }
        file.sync_data()?;
        let mut inside = self.inside.lock();
        inside.step = (step * 2).min(self.preparation.step_max.get());
        match inside.active.as_mut() {
            Some(active) if Arc::ptr_eq(&active.file, &ahead.file) => active.prepared = active.prepared.max(to),
            _ => {}
        }
        Ok(())
    }
}

pub(crate) fn spare_name(slot: usize) -> String {
    format!("spare.{slot}")
}

fn fill(file: &dyn VfsFile, at: u64, bytes: u64) -> io::Result<()> {
    file.allocate(at, bytes)?;
    file.zero(at, bytes)
}

fn is_clean(file: &dyn VfsFile, bytes: u64) -> io::Result<bool> {
    if file.len()? != bytes {
        return Ok(false);
    }
    let mut buffer = vec![0u8; 64 << 10];
    let mut at = 0;
    while at < bytes {
        let got = file.read_at(&mut buffer, at)?;
        if got == 0 || buffer[..got] != *zeros(got) {
            return Ok(false);
        }
        at += got as u64;
    }
    // An earlier process may have ended before its sync.
    file.sync_data()?;
    Ok(true)
}

/// Housekeeping of one partition, for a thread of its own: spares, zero-filled space, freeing trimmed segments.
#[derive(Clone, Debug)]
pub struct Preparer {
    pub(crate) space: Arc<Space>,
}

impl Preparer {
    /// Whether there is something to do; a memory-only look.
    pub fn is_due(&self) -> bool {
        self.space.is_due()
    }

    /// Makes missing spares, extends the prepared space by one step, cuts rolled segments at their end, frees
    /// trimmed ones. Blocks on I/O; safe beside the writer. What failed is tried again by the next call.
    pub fn prepare(&self) -> io::Result<()> {
        self.space.prepare()
    }
}
