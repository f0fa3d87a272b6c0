//! What stands in a partition's directory, and which of it is the log (C79, C84).
//!
//! The chain goes from the newest segment back by the numbers in the headers. A file outside of it is named and left
//! alone: neither a foreign, empty or misnamed file nor a missing one is a reason to touch its neighbours (I12).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use landfall_types::{Epoch, Offset, SegmentNumber};

use crate::error::OpenError;
use crate::format::{FORMAT_VERSION, HEADER_BYTES, HeaderRead};
use crate::options::LogIdentity;
use crate::outcome::{Stray, StrayReason};
use crate::segment::{Segment, base_of_name};
use crate::vfs::{Access, Vfs};

/// A segment file with a good header of this partition.
#[derive(Debug)]
pub(crate) struct Member {
    pub segment: Arc<Segment>,
    pub bytes: u64,
}

/// Something in the place of a segment. Where it stands behind the chain, acknowledged records may be missing.
#[derive(Debug)]
pub(crate) struct Unreadable {
    /// By its name.
    pub base: Offset,
    pub path: PathBuf,
    /// Else a directory, a link or the like stands there; of a file both header copies are bad.
    pub is_file: bool,
}

/// A directory, sorted out.
#[derive(Debug)]
pub(crate) struct Directory {
    /// The chain, oldest first; gaps between neighbours are missing files.
    pub chain: Vec<Member>,
    pub strays: Vec<Stray>,
    /// What is named like a segment and cannot be read as one.
    pub unreadable: Vec<Unreadable>,
    /// The highest numbers seen anywhere, chain or not: none of them is used again.
    pub highest_number: Option<SegmentNumber>,
    pub highest_epoch: Epoch,
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Failed { step, path: path.to_path_buf(), source }
}

/// Reads all headers and builds the chain.
pub(crate) fn read_directory(vfs: &dyn Vfs, dir: &Path, identity: LogIdentity) -> Result<Directory, OpenError> {
    let mut found = Directory {
        chain: Vec::new(),
        strays: Vec::new(),
        unreadable: Vec::new(),
        highest_number: None,
        highest_epoch: Epoch::ZERO,
    };
    let mut members = Vec::new();
    let mut other = None;
    let mut entries = vfs.list(dir).map_err(failed("listing the directory", dir))?;
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    for entry in entries {
        let mut stray = |reason| found.strays.push(Stray { name: entry.name.clone(), reason });
        let Some(base) = base_of_name(&entry.name) else {
            let name = entry.name.to_string_lossy();
            if !entry.is_file {
                stray(StrayReason::NotAFile);
            } else if name.ends_with(".torn") {
                stray(StrayReason::Torn);
            } else if !name.starts_with("spare.") {
                stray(StrayReason::ForeignName);
            }
            continue;
        };
        if !entry.is_file {
            found.unreadable.push(Unreadable { base, path: dir.join(&entry.name), is_file: false });
            continue;
        }
        if entry.len == 0 {
            stray(StrayReason::Empty);
            continue;
        }
        let path = dir.join(&entry.name);
        let file = vfs.open(&path, Access::Read).map_err(failed("opening", &path))?;
        let mut bytes = vec![0u8; HEADER_BYTES];
        let got = file.read_at(&mut bytes, 0).map_err(failed("reading the header of", &path))?;
        match crate::format::SegmentHeader::read(&bytes[..got]) {
            HeaderRead::TooNew(version) => {
                return Err(OpenError::FormatTooNew { path, version, supported: FORMAT_VERSION });
            }
            HeaderRead::Damaged => found.unreadable.push(Unreadable { base, path, is_file: true }),
            HeaderRead::Good { header, .. } if header.identity != identity => {
                stray(StrayReason::OtherPartition);
                other.get_or_insert((path, header.identity));
            }
            HeaderRead::Good { header, crc } => {
                found.highest_number = found.highest_number.max(Some(header.number));
                found.highest_epoch = found.highest_epoch.max(header.epoch);
                if header.base != base {
                    stray(StrayReason::Misnamed);
                    continue;
                }
                members.push(Member { segment: Arc::new(Segment::new(path, header, crc)), bytes: entry.len });
            }
        }
    }
    if let (true, Some((path, theirs))) = (members.is_empty(), other) {
        return Err(OpenError::IdentityMismatch {
            path,
            found_channel: theirs.channel,
            found_partition: theirs.partition,
            expected: identity,
        });
    }
    link(members, &mut found);
    Ok(found)
}

/// Follows the headers back from the newest segment.
fn link(mut members: Vec<Member>, found: &mut Directory) {
    // Numbers and base offsets grow together, so the newest has the highest of both; a file that only has one of them
    // does not belong.
    members.sort_by_key(|member| (member.segment.base(), member.segment.number()));
    let mut newest_first = Vec::new();
    for member in members.into_iter().rev() {
        let is_linked = match newest_first.last() {
            // A segment without a predecessor is the first of its log; anything else says which it follows.
            None => member.segment.header.predecessor.is_some() || member.segment.base() == Offset::ZERO,
            Some(next) => follows(next, &member),
        };
        if is_linked {
            newest_first.push(member);
        } else {
            let name = member.segment.path.file_name().map(PathBuf::from).unwrap_or_default();
            found.strays.push(Stray { name, reason: StrayReason::OutsideTheChain });
        }
    }
    newest_first.reverse();
    found.chain = newest_first;
}

/// Whether `next` may stand behind `member` in the chain, perhaps with missing files between them.
fn follows(next: &Member, member: &Member) -> bool {
    let Some(predecessor) = next.segment.header.predecessor else { return false };
    let (header, before) = (&next.segment.header, &member.segment.header);
    before.number <= predecessor.number
        && before.base < header.base
        && before.epoch <= header.epoch
        && (before.predecessor.is_some() || before.base == Offset::ZERO)
}
