//! Walking the units of a segment file, and finding the next one behind damage.
//!
//! A scan only moves forward (C84). It tells "does not verify" from "the device did not answer": only the first is
//! damage. Bodies come back as slices of the window's buffer, so reading copies nothing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use landfall_types::Offset;

use crate::format::{HEAD_BYTES, HEADER_BYTES, Kind, Seed, UnitHead};
use crate::spare::Spare;
use crate::vfs::VfsFile;

/// What one read of a scan fetches.
pub(crate) const SCAN_BYTES: usize = 1 << 20;
/// What a search looks at in one go.
const SEARCH_BYTES: usize = 64 << 10;
/// Units begin at multiples of this.
const ALIGNMENT: u64 = 8;

/// A moving view of a file.
#[derive(Debug)]
pub(crate) struct Window {
    file: Arc<dyn VfsFile>,
    /// Nothing at or past this is looked at.
    end: u64,
    chunk: usize,
    at: u64,
    buffer: Bytes,
    stop: Stop,
    spare: Option<Spare>,
}

/// Whether whoever waits for a scan has been told to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(pub Option<Arc<AtomicBool>>);

impl Stop {
    fn check(&self) -> io::Result<()> {
        match &self.0 {
            Some(stop) if stop.load(Ordering::Relaxed) => Err(io::Error::other("told to stop while scanning")),
            _ => Ok(()),
        }
    }
}

impl Window {
    pub(crate) fn new(file: Arc<dyn VfsFile>, end: u64, chunk: usize) -> Window {
        Window { file, end, chunk, at: 0, buffer: Bytes::new(), stop: Stop::default(), spare: None }
    }

    /// The same window, with buffers that come back.
    pub(crate) fn with_spare(self, spare: Option<Spare>) -> Window {
        Window { spare, ..self }
    }

    /// A window of a scan that may take long.
    pub(crate) fn scanning(file: Arc<dyn VfsFile>, end: u64, stop: &Stop) -> Window {
        Window { stop: stop.clone(), ..Window::new(file, end, SCAN_BYTES) }
    }

    /// The bytes `[at, at + len)`, or `None` where the file ends before.
    pub(crate) fn bytes(&mut self, at: u64, len: usize) -> io::Result<Option<Bytes>> {
        let Some(end) = at.checked_add(len as u64).filter(|end| *end <= self.end) else { return Ok(None) };
        if at < self.at || end > self.at + self.buffer.len() as u64 {
            self.stop.check()?;
            let want = (len.max(self.chunk) as u64).min(self.end - at) as usize;
            // The one before may be free to be read into.
            self.buffer = Bytes::new();
            let file = &self.file;
            let buffer = match &self.spare {
                Some(spare) => spare.filled(want, |buffer| file.read_at(buffer, at))?,
                None => {
                    let mut buffer = vec![0u8; want];
                    let got = file.read_at(&mut buffer, at)?;
                    buffer.truncate(got);
                    Bytes::from(buffer)
                }
            };
            self.at = at;
            self.buffer = buffer;
        }
        let start = (at - self.at) as usize;
        Ok((start + len <= self.buffer.len()).then(|| self.buffer.slice(start..start + len)))
    }

    /// How many bytes of `[from, to)` are not zero.
    pub(crate) fn non_zero(&mut self, from: u64, to: u64) -> io::Result<u64> {
        let (mut at, mut count) = (from, 0);
        while at < to.min(self.end) {
            let len = (to.min(self.end) - at).min(SCAN_BYTES as u64) as usize;
            let Some(bytes) = self.bytes(at, len)? else { break };
            count += bytes.iter().filter(|byte| **byte != 0).count() as u64;
            at += len as u64;
        }
        Ok(count)
    }
}

/// A unit that verifies.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub head: UnitHead,
    pub crc: u32,
    pub body: Bytes,
    pub at: u64,
}

impl Found {
    /// The byte after the unit.
    pub(crate) fn end_byte(&self) -> u64 {
        self.at + self.head.unit_bytes()
    }

    /// The offset after its last record.
    pub(crate) fn end(&self) -> Offset {
        self.head.end().unwrap_or(Offset::MAX)
    }
}

/// The unit at a byte, if one verifies there.
pub(crate) fn unit_at(window: &mut Window, at: u64, seed: Seed) -> io::Result<Option<Found>> {
    let Some(bytes) = window.bytes(at, HEAD_BYTES)? else { return Ok(None) };
    let Some((head, crc)) = UnitHead::read(seed, &bytes) else { return Ok(None) };
    let Some(unit) = window.bytes(at, HEAD_BYTES + head.body_len as usize)? else { return Ok(None) };
    let body = unit.slice(HEAD_BYTES..);
    Ok(head.verifies(seed, &body).then_some(Found { head, crc, body, at }))
}

/// The first unit at or after a byte that verifies and does not lie below `from`.
pub(crate) fn next_unit(window: &mut Window, at: u64, seed: Seed, from: Offset) -> io::Result<Option<Found>> {
    let mut at = at.next_multiple_of(ALIGNMENT);
    loop {
        // Smaller than the window, so that many searches in a row do not fetch the same bytes again.
        let len = (window.end.saturating_sub(at)).min(SEARCH_BYTES as u64) as usize;
        if len < HEAD_BYTES {
            return Ok(None);
        }
        let Some(bytes) = window.bytes(at, len)? else { return Ok(None) };
        let mut inside = 0;
        while inside + HEAD_BYTES <= len {
            let is_candidate = bytes.get(inside + 8).is_some_and(|kind| (1..=4).contains(kind));
            if is_candidate && UnitHead::read(seed, &bytes[inside..]).is_some_and(|(head, _)| head.first >= from) {
                let found = unit_at(window, at + inside as u64, seed)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
            inside += ALIGNMENT as usize;
        }
        at += inside as u64;
    }
}

/// An unbroken run of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub start_byte: u64,
    pub end_byte: u64,
    pub first: Offset,
    pub end: Offset,
    /// The head CRC of its last unit.
    pub chain: u32,
}

/// All that verifies in a segment.
#[derive(Clone, Debug)]
pub(crate) struct Survey {
    /// Ascending in bytes and in offsets. The first begins at the header, and may be empty.
    pub runs: Vec<Run>,
    /// The highest durable end that a unit names (C78).
    pub mark: u64,
    pub file_bytes: u64,
    /// Whether it was read to its end. A segment in more pieces than [`RUNS_MAX`] is not, so its tail is not known.
    pub is_complete: bool,
}

/// More pieces than this are not surveyed; it bounds the memory that a hostile file can take.
const RUNS_MAX: usize = 4_096;

/// Verifies a whole segment up to `end`.
pub(crate) fn survey(
    file: &Arc<dyn VfsFile>,
    seed: Seed,
    header_crc: u32,
    base: Offset,
    end: u64,
    stop: &Stop,
) -> io::Result<Survey> {
    let file_bytes = file.len()?.min(end);
    let mut window = Window::scanning(Arc::clone(file), file_bytes, stop);
    let start = HEADER_BYTES as u64;
    let mut run = Run { start_byte: start, end_byte: start, first: base, end: base, chain: header_crc };
    let mut survey = Survey { runs: Vec::new(), mark: start, file_bytes, is_complete: true };
    loop {
        let found = unit_at(&mut window, run.end_byte, seed)?;
        match found.filter(|found| found.head.first == run.end && found.head.chain == run.chain) {
            Some(found) => {
                survey.mark = survey.mark.max(found.at.saturating_sub(u64::from(found.head.back)));
                run = Run { end_byte: found.end_byte(), end: found.end(), chain: found.crc, ..run };
            }
            None => {
                let (from, search) = (run.end, run.end_byte + ALIGNMENT);
                survey.runs.push(run);
                if survey.runs.len() >= RUNS_MAX {
                    survey.is_complete = false;
                    return Ok(survey);
                }
                let Some(found) = next_unit(&mut window, search, seed, from)? else { return Ok(survey) };
                survey.mark = survey.mark.max(found.at.saturating_sub(u64::from(found.head.back)));
                run = Run {
                    start_byte: found.at,
                    end_byte: found.end_byte(),
                    first: found.head.first,
                    end: found.end(),
                    chain: found.crc,
                };
            }
        }
    }
}

/// Visits the units of a run again, in order.
pub(crate) fn visit(
    file: &Arc<dyn VfsFile>,
    seed: Seed,
    run: &Run,
    stop: &Stop,
    mut each: impl FnMut(Found) -> io::Result<()>,
) -> io::Result<()> {
    let mut window = Window::scanning(Arc::clone(file), run.end_byte, stop);
    let mut at = run.start_byte;
    while at < run.end_byte {
        let Some(found) = unit_at(&mut window, at, seed)? else {
            // It verified a moment ago: the device gives other bytes now.
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a unit that verified reads differently now"));
        };
        at = found.end_byte();
        each(found)?;
    }
    Ok(())
}

impl Found {
    /// The log start that a trim unit makes.
    pub(crate) fn trim(&self) -> Option<Offset> {
        let start = <[u8; 8]>::try_from(self.body.as_ref()).ok()?;
        (self.head.kind == Kind::Trim).then_some(Offset(u64::from_le_bytes(start)))
    }
}
