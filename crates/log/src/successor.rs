//! Putting a new segment in place: by a roll, an open, or a fence, always the same way (C36, C76, C80).
//!
//! Header, summary and units go into a spare; one sync; one rename to the segment's name; one directory sync. Before
//! the rename nothing has changed; after the directory sync the predecessor's bytes behind the named end are void.
//! Whatever fails before that, the spare is given up and the next attempt uses another, a higher segment number and
//! (for a fence) a higher epoch (C38).

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use landfall_types::{Epoch, Offset, TicketNumber, Timestamp};

use crate::catalog::Catalog;
use crate::format::{Front, HEADER_BYTES, Kind, SegmentHeader, UnitHead, padded};
use crate::prepare::Spare;
use crate::segment::{Segment, segment_name};
use crate::summarize::Summarizer;
use crate::unit::{Codec, Tag};
use crate::vfs::{Access, VfsFile};

/// What is gathered before it is written.
const FLUSH_BYTES: usize = 1 << 20;

/// A step failed; nothing of the attempt counts unless it is finished by another.
#[derive(Debug)]
pub(crate) struct SuccessionError {
    pub step: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
    /// Whether the rename may have taken effect.
    pub was_renamed: bool,
}

impl SuccessionError {
    pub(crate) fn is_no_space(&self) -> bool {
        is_no_space(&self.source)
    }
}

pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// One unit as it goes to a new place: the body's bytes are those of its first place.
#[derive(Debug)]
pub(crate) struct Copied<'a> {
    pub front: Front,
    pub tag: Tag,
    pub codec: Codec,
    pub records: u32,
    pub ticket: TicketNumber,
    pub origin_epoch: Epoch,
    pub append_time: Timestamp,
    /// The body in one or two parts.
    pub body: [&'a [u8]; 2],
    /// Of the whole body, without a seed.
    pub plain_crc: u32,
}

/// A segment being written into a spare.
#[derive(Debug)]
pub(crate) struct Draft {
    /// Held until the rename is over.
    spare: Spare,
    header: SegmentHeader,
    header_crc: u32,
    buffer: Vec<u8>,
    flushed: u64,
    chain: u32,
    next: Offset,
    data_units: u64,
    summarizer: Summarizer,
}

/// A segment in its place, ready to be appended to.
#[derive(Debug)]
pub(crate) struct Placed {
    pub segment: Arc<Segment>,
    pub file: Arc<dyn VfsFile>,
    pub end_byte: u64,
    /// The file's prepared length.
    pub prepared: u64,
    pub chain: u32,
    pub next: Offset,
    pub data_units: u64,
    pub summarizer: Summarizer,
}

impl Draft {
    pub(crate) fn begin(spare: Spare, header: SegmentHeader, summary_bytes_max: usize) -> Draft {
        let (bytes, header_crc) = header.encode();
        let summarizer = Summarizer::new(header.number, header.base, summary_bytes_max);
        Draft {
            spare,
            header_crc,
            buffer: bytes.to_vec(),
            flushed: 0,
            chain: header_crc,
            next: header.base,
            data_units: 0,
            header,
            summarizer,
        }
    }

    fn failed(&self, step: &'static str, source: io::Error) -> SuccessionError {
        SuccessionError { step, path: self.spare.path.clone(), source, was_renamed: false }
    }

    fn at(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    /// Adds a data unit behind what is there.
    pub(crate) fn push(&mut self, unit: &Copied<'_>) -> Result<(), SuccessionError> {
        let body_len: usize = unit.body.iter().map(|part| part.len()).sum();
        let head = UnitHead {
            body_len: u32::try_from(body_len).unwrap_or(u32::MAX),
            kind: Kind::Data,
            codec: unit.codec,
            front: unit.front,
            records: unit.records,
            first: self.next,
            ticket: unit.ticket,
            origin_epoch: unit.origin_epoch,
            back: self.back(),
            chain: self.chain,
            body_crc: unit.plain_crc ^ self.header.seed().0,
            append_time: unit.append_time,
        };
        self.summarizer.add_data(self.at(), self.next, unit.records, unit.append_time, &unit.tag);
        self.data_units += 1;
        self.next = head.end().unwrap_or(Offset::MAX);
        self.put(&head, &unit.body)
    }

    /// Adds a control unit.
    pub(crate) fn push_control(&mut self, kind: Kind, body: &[u8], at: Timestamp) -> Result<(), SuccessionError> {
        // A mark says that all before it is durable: it is only read where the rename, which follows the sync, is.
        let back = if kind == Kind::Mark { 0 } else { self.back() };
        let head = control_head(kind, body, self.next, self.header.epoch, back, self.chain, &self.header, at);
        self.put(&head, &[body])
    }

    /// Until the rename only the header counts.
    fn back(&self) -> u32 {
        u32::try_from(self.at() - HEADER_BYTES as u64).unwrap_or(u32::MAX)
    }

    fn put(&mut self, head: &UnitHead, body: &[&[u8]]) -> Result<(), SuccessionError> {
        self.chain = head.put(self.header.seed(), &mut self.buffer);
        for part in body {
            self.buffer.extend_from_slice(part);
        }
        self.buffer.resize(padded(self.buffer.len()), 0);
        if self.buffer.len() >= FLUSH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), SuccessionError> {
        let given = self.buffer.len();
        match self.spare.file.write_at(&[IoSlice::new(&self.buffer)], self.flushed) {
            Ok(written) if written == given => {
                self.flushed += given as u64;
                self.buffer.clear();
                Ok(())
            }
            Ok(_) => Err(self.failed("write", io::ErrorKind::WriteZero.into())),
            Err(error) => Err(self.failed("write", error)),
        }
    }

    /// Writes the rest, syncs, renames, syncs the directory. `keep_old` links a file that stands in the way under another
    /// name first (C43).
    pub(crate) fn place(mut self, catalog: &Catalog, keep_old: bool) -> Result<Placed, SuccessionError> {
        self.flush()?;
        self.spare.file.sync_data().map_err(|error| self.failed("sync", error))?;
        let path = catalog.dir.join(segment_name(self.header.base));
        if keep_old {
            let kept = catalog.dir.join(format!("{:020}.{}.torn", self.header.base.0, self.header.number.0));
            match catalog.vfs.hard_link(&path, &kept) {
                Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => {
                    return Err(self.failed("link", error));
                }
                _ => {}
            }
        }
        let was_renamed = |step, path: &Path, source| {
            let path = path.to_path_buf();
            SuccessionError { step, path, source, was_renamed: true }
        };
        catalog.vfs.rename(&self.spare.path, &path).map_err(|error| was_renamed("rename", &path, error))?;
        catalog.vfs.sync_dir(&catalog.dir).map_err(|error| was_renamed("directory sync", &catalog.dir, error))?;
        let segment = Arc::new(Segment::new(path, self.header, self.header_crc));
        segment.set_index(self.summarizer.index().to_vec());
        if let Some(time) = self.summarizer.last_append_time() {
            segment.set_last_append_time(time);
        }
        // Readers get a handle of their own kind: read-only where the file system offers it.
        let file = catalog.vfs.open(&segment.path, Access::Read).unwrap_or_else(|_| Arc::clone(&self.spare.file));
        segment.set_file(file);
        Ok(Placed {
            segment,
            file: Arc::clone(&self.spare.file),
            end_byte: self.flushed,
            prepared: self.spare.bytes.max(self.flushed),
            chain: self.chain,
            next: self.next,
            data_units: self.data_units,
            summarizer: self.summarizer,
        })
    }
}

/// The head of a control unit.
#[expect(clippy::too_many_arguments, reason = "the fields of one head, named where it is called")]
pub(crate) fn control_head(
    kind: Kind,
    body: &[u8],
    next: Offset,
    epoch: Epoch,
    back: u32,
    chain: u32,
    header: &SegmentHeader,
    append_time: Timestamp,
) -> UnitHead {
    UnitHead {
        body_len: u32::try_from(body.len()).unwrap_or(u32::MAX),
        kind,
        codec: Codec::None,
        front: Front::None,
        records: 0,
        first: next,
        ticket: TicketNumber::ZERO,
        origin_epoch: epoch,
        back,
        chain,
        body_crc: crc32c::crc32c(body) ^ header.seed().0,
        append_time,
    }
}
