//! Opening, appending, reading back.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use landfall_log::{
    Append, Budget, Codec, LogIdentity, LogOptions, LogReader, MemoryVfs, OpenError, Opened, Page, PartitionLog,
    Preparation, ReadError, StoredUnit, Tag, Unit, UnitBody, VisibleTail,
};
use landfall_types::{ByteSize, ChannelId, ManualClock, Offset, PartitionId, TicketNumber, Timestamp};

pub(crate) const DIR: &str = "/data/channels/orders/0";

pub(crate) fn dir() -> &'static Path {
    Path::new(DIR)
}

pub(crate) fn identity() -> LogIdentity {
    LogIdentity { channel: ChannelId([7; 16]), partition: PartitionId(3) }
}

/// Small segments and steps, so that tests roll often and crash loops stay quick.
pub(crate) fn options() -> LogOptions {
    LogOptions {
        segment_bytes: ByteSize::kib(64),
        clock: Arc::new(ManualClock::at(Timestamp(1_700_000_000_000_000))),
        preparation: Preparation {
            step_min: ByteSize::kib(8),
            step_max: ByteSize::kib(16),
            zero_below: ByteSize::kib(64),
        },
        ..LogOptions::default()
    }
}

pub(crate) fn try_open(vfs: &MemoryVfs) -> Result<Opened, OpenError> {
    PartitionLog::open(Arc::new(vfs.clone()), dir(), identity(), options())
}

pub(crate) fn open(vfs: &MemoryVfs) -> Opened {
    try_open(vfs).expect("the log opens")
}

/// The rows of record `n`: distinct, of varying length.
pub(crate) fn rows(n: u64, len: usize) -> Bytes {
    let mut bytes: Vec<u8> = format!("record {n} ").into_bytes();
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    Bytes::from(bytes)
}

pub(crate) fn unit(n: u64, len: usize) -> Unit {
    Unit {
        body: UnitBody::new(Tag::None, Codec::None, rows(n, len), 1),
        ticket: TicketNumber(n),
        append_time: Timestamp(1_000 + n as i64),
    }
}

/// Appends one unit of one record whose rows are `rows(tail, len)`.
pub(crate) fn append_one(opened: &mut Opened, len: usize) -> Append {
    let tail = opened.writer.tail();
    opened.writer.append(tail, &[unit(tail.0, len)])
}

#[track_caller]
pub(crate) fn durable(append: Append) -> Offset {
    match append {
        Append::Durable { end, .. } => end,
        other => panic!("expected a durable append: {other:?}"),
    }
}

/// Appends until the tail is `to`, one record an append.
#[track_caller]
pub(crate) fn append_to(opened: &mut Opened, to: u64, len: usize) {
    while opened.writer.tail() < Offset(to) {
        durable(append_one(opened, len));
    }
}

pub(crate) const WIDE: Budget = Budget { records: u32::MAX, bytes: 1 << 30 };

/// Everything from an offset to the tail, page by page.
pub(crate) fn read_from(reader: &LogReader, from: Offset, tail: Offset) -> Result<Vec<StoredUnit>, ReadError> {
    let (mut units, mut at, mut page) = (Vec::new(), from, Page::default());
    while at < tail {
        reader.read(at, VisibleTail(tail), Budget { records: 100, bytes: 32 << 10 }, &mut page)?;
        let last = page.units.last().expect("a read below the tail moves");
        at = last.end();
        units.append(&mut page.units);
    }
    Ok(units)
}

/// Asserts that all of `[log start, tail)` is there with the rows that `append_one` wrote.
#[track_caller]
pub(crate) fn assert_whole(opened: &Opened, len: usize) {
    let from = opened.reader.log_start();
    let units = read_from(&opened.reader, from, opened.writer.tail()).expect("all is readable");
    let mut next = from;
    for unit in units {
        assert_eq!(unit.first, next);
        assert_eq!(unit.rows, rows(next.0, len), "offset {next}");
        next = unit.end();
    }
    assert_eq!(next, opened.writer.tail());
}

/// The segment files, ascending.
pub(crate) fn segment_paths(vfs: &MemoryVfs) -> Vec<PathBuf> {
    use landfall_log::Vfs;
    let mut names: Vec<PathBuf> = vfs.list(dir()).expect("list").into_iter().map(|entry| entry.name).collect();
    names.retain(|name| name.extension().is_some_and(|it| it == "seg"));
    names.sort();
    names.into_iter().map(|name| dir().join(name)).collect()
}

/// The bytes of the last unit of a file that ends in `records` of `len` bytes: where it begins and ends.
pub(crate) fn unit_bytes(len: usize) -> usize {
    (56 + len).next_multiple_of(8)
}
