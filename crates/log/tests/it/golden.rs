//! Golden segments: bytes in `docs/formats/golden/segment` that this and every later version reads (C89).
//!
//! `LANDFALL_WRITE_GOLDEN=1 cargo test -p landfall-log --test it golden` writes the directories that are not there yet. It
//! never touches one that is: what was written once must stay readable.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use landfall_log::{
    Append, Codec, Fault, Intent, KeyWindow, LogOptions, Loss, MemoryVfs, Opened, Operation, PartitionLog,
    SequenceBlock, Settled, Tag, Unit, UnitBody, Vfs,
};
use landfall_types::{ByteSize, Epoch, Offset, TicketNumber, Timestamp};

use super::support::{append_to, dir, identity, open, options, read_from, rows, segment_paths, unit, unit_bytes};

const LEN: usize = 200;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/golden/segment")
}

fn small(vfs: &MemoryVfs) -> Opened {
    let key_window = KeyWindow { max_age: std::time::Duration::MAX, keys: 1_000, producers: 1_000 };
    let options = LogOptions { segment_bytes: ByteSize::kib(16), key_window, ..options() };
    PartitionLog::open(Arc::new(vfs.clone()), dir(), identity(), options).expect("the log opens")
}

fn block(n: u64) -> SequenceBlock {
    SequenceBlock { producer: [0xab; 16], sequence: n, index: 3, last_in_call: true }
}

/// One unit of each codec and tag, by offset.
fn kind(n: u64) -> Unit {
    let tag = match n % 3 {
        0 => Tag::None,
        1 => Tag::Key([n as u8; 24]),
        _ => Tag::Sequence(block(n)),
    };
    let codec = [Codec::None, Codec::Lz4, Codec::Zstd][n as usize / 3 % 3];
    let text = Bytes::from(format!("golden record {n} ").repeat(20));
    Unit { body: UnitBody::new(tag, codec, text, 1), ticket: TicketNumber(n + 7), append_time: Timestamp(n as i64) }
}

/// Every kind of unit, over rolls with summaries; a trim; an append that was fenced and kept; a closing mark.
fn write_kinds(vfs: &MemoryVfs) {
    let mut opened = small(vfs);
    for n in 0..120u64 {
        let tail = Offset(n);
        opened.preparer.prepare().expect("prepare");
        let evidence = opened.writer.evidence(vec![kind(n)]);
        if n == 100 {
            vfs.inject(Operation::Sync, 0, 1, Fault::Error(ErrorKind::Other));
        }
        match opened.writer.append(tail, &[kind(n)]) {
            Append::Durable { .. } => {}
            Append::Uncertain(_) if n == 100 => {
                let settled = opened.writer.settle(&evidence, Intent::Keep);
                assert!(matches!(settled, Settled::Committed { .. }), "{settled:?}");
            }
            other => panic!("{other:?}"),
        }
        if n == 110 {
            assert!(opened.writer.trim(Offset(60)).expect("trim") > Offset(0));
            opened.preparer.prepare().expect("free");
        }
    }
    opened.writer.close().expect("close");
}

/// Five whole records and half of a sixth.
fn write_torn(vfs: &MemoryVfs) {
    let mut opened = open(vfs);
    append_to(&mut opened, 5, LEN);
    vfs.inject(Operation::Write, 0, 1, Fault::Torn(ErrorKind::Other));
    assert!(matches!(opened.writer.append(Offset(5), &[unit(5, LEN)]), Append::Uncertain(_)));
}

/// Five records in a file that holds, behind them, the units of another segment of the same partition.
fn write_recycled(vfs: &MemoryVfs) {
    let other = MemoryVfs::new();
    drop(open(&other));
    let mut opened = open(&other);
    append_to(&mut opened, 12, LEN);
    let stale = other.contents(&segment_paths(&other)[0]).expect("file");
    let mut opened = open(vfs);
    append_to(&mut opened, 5, LEN);
    let end = 4_096 + 5 * unit_bytes(LEN);
    vfs.alter(&segment_paths(vfs)[0], |bytes| {
        bytes.truncate(end);
        bytes.extend_from_slice(&stale[end..4_096 + 12 * unit_bytes(LEN)]);
    })
    .expect("file");
}

fn write_missing() {
    for (name, write) in
        [("v1-kinds", write_kinds as fn(&MemoryVfs)), ("v1-torn", write_torn), ("v1-recycled", write_recycled)]
    {
        let target = root().join(name);
        if target.exists() {
            continue;
        }
        let vfs = MemoryVfs::new();
        write(&vfs);
        std::fs::create_dir_all(&target).expect("golden directory");
        for path in segment_paths(&vfs) {
            let name = path.file_name().expect("name");
            std::fs::write(target.join(name), vfs.contents(&path).expect("file")).expect("golden file");
        }
    }
}

fn load(name: &str) -> MemoryVfs {
    let vfs = MemoryVfs::new();
    let source = root().join(name);
    for entry in std::fs::read_dir(&source).expect("golden directory") {
        let path = entry.expect("entry").path();
        vfs.put(&dir().join(path.file_name().expect("name")), &std::fs::read(&path).expect("golden file"));
    }
    assert!(!vfs.list(dir()).expect("list").is_empty(), "{} is empty", source.display());
    vfs
}

/// Would catch a change of the format that makes what earlier versions wrote unreadable, or readable as something else.
#[test]
fn golden_segments_open() {
    if std::env::var_os("LANDFALL_WRITE_GOLDEN").is_some() {
        write_missing();
    }
    let vfs = load("v1-kinds");
    for round in 0..2 {
        let opened = small(&vfs);
        assert_eq!((opened.tail, opened.torn_bytes, opened.summary_rebuilds), (Offset(120), 0, 0), "round {round}");
        assert_eq!((opened.damaged.len(), opened.strays.len()), (0, 0));
        assert!(opened.log_start > Offset(20) && opened.log_start <= Offset(60));
        let units = read_from(&opened.reader, opened.log_start, opened.tail).expect("read");
        assert_eq!(units.len() as u64, 120 - opened.log_start.0);
        for stored in units {
            let written = kind(stored.first.0);
            assert_eq!((stored.tag, &stored.rows), (*written.body.tag(), written.body.rows()));
            assert_eq!((stored.ticket, stored.append_time), (written.ticket, written.append_time));
            assert_eq!(stored.origin_epoch, Epoch(if stored.first > Offset(100) { 2 } else { 1 }));
        }
        let keyed = (opened.log_start.0..120).filter(|n| n % 3 == 1).count();
        assert_eq!(opened.tags.len(), keyed, "the summaries' tags");
        assert_eq!(opened.sequences.iter().map(|last| last.block).collect::<Vec<_>>(), [block(119)]);
    }
    for name in ["v1-torn", "v1-recycled"] {
        let vfs = load(name);
        let opened = open(&vfs);
        assert_eq!(opened.tail, Offset(5), "{name}");
        assert!(opened.torn_bytes > 0, "{name}");
        drop(opened);
        let opened = open(&vfs.power_cut(Loss::Unsynced));
        assert_eq!((opened.tail, opened.torn_bytes), (Offset(5), 0), "{name}");
        for stored in read_from(&opened.reader, Offset(0), opened.tail).expect("read") {
            assert_eq!(stored.rows, rows(stored.first.0, LEN));
        }
    }
}
