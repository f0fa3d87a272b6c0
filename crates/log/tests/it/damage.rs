//! Damage: flipped bits, cut and missing files, foreign ones (C82–C84, F-L4, FX-1). What verifies is served, what does not
//! is named, and nothing but a torn tail is cut.

use std::path::Path;
use std::sync::Arc;

use landfall_log::{
    DiskVfs, Fault, LogOptions, Loss, MemoryVfs, OpenError, Opened, Operation, Page, PartitionLog, ReadError,
    StoppedCause, StrayReason, VisibleTail,
};
use landfall_types::{ChannelId, Coded, Offset};

use super::support::{
    WIDE, append_to, assert_whole, dir, identity, open, options, read_from, rows, segment_paths, try_open, unit_bytes,
};

const LEN: usize = 500;

/// Three segments or more; the last is active and not closed.
fn partition(records: u64) -> MemoryVfs {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, records, LEN);
    vfs
}

fn copy(vfs: &MemoryVfs) -> MemoryVfs {
    vfs.power_cut(Loss::Nothing)
}

fn flip(vfs: &MemoryVfs, path: &Path, bit: usize) {
    vfs.alter(path, |bytes| bytes[bit / 8] ^= 1 << (bit % 8)).expect("a file of that length");
}

/// Reads everything, stepping over what is damaged; gives the offsets that were lost. All rows that come back are right.
fn lost_offsets(opened: &Opened) -> Vec<u64> {
    let (mut lost, mut at) = (Vec::new(), opened.reader.log_start());
    let (tail, mut page) = (opened.writer.tail(), Page::default());
    while at < tail {
        match opened.reader.read(at, VisibleTail(tail), WIDE, &mut page) {
            Ok(()) => {
                for unit in &page.units {
                    assert_eq!(unit.first, at);
                    assert_eq!(unit.rows, rows(at.0, LEN), "offset {at}");
                    at = unit.end();
                }
                assert!(!page.units.is_empty());
            }
            Err(ReadError::Damaged { from, to }) => {
                assert_eq!(from, at);
                assert!(to > from);
                lost.extend(from.0..to.0);
                at = to;
            }
            Err(error) => panic!("{error}"),
        }
    }
    lost
}

/// Opens twice, and appends in between: the damage stays what it was, the rest is there, publishing goes on.
#[track_caller]
fn assert_degrades_to(vfs: &MemoryVfs, tail: u64, lost: &[u64]) {
    for _ in 0..2 {
        let opened = open(vfs);
        assert_eq!(opened.tail, Offset(tail));
        assert_eq!(lost_offsets(&opened), lost);
    }
    let mut opened = open(vfs);
    append_to(&mut opened, tail + 2, LEN);
    assert_eq!(lost_offsets(&opened), lost);
    drop(opened);
    let opened = open(vfs);
    assert_eq!(opened.tail, Offset(tail + 2));
    assert_eq!(lost_offsets(&opened), lost);
}

/// Would catch one flipped bit, anywhere in a unit below a mark, that costs more than its own unit, goes unnoticed, or
/// panics: in the active and in a closed segment.
#[test]
fn f_l4_a_flipped_bit_in_each_field_of_a_unit_costs_that_unit() {
    let whole = partition(250);
    let paths = segment_paths(&whole);
    assert!(paths.len() >= 3);
    // Per byte of the head and the first of the body and of the padding, one bit; the unit is the third of its file.
    for (place, path) in [(0usize, &paths[0]), (paths.len() - 1, &paths[paths.len() - 1])] {
        let base = base_of(path);
        let bytes = whole.contents(path).expect("file");
        let first = first_unit(&bytes, base);
        for byte in (0..56).chain([56, 56 + LEN - 1]) {
            let vfs = copy(&whole);
            flip(&vfs, path, (first + 2 * unit_bytes(LEN) + byte) * 8 + byte % 8);
            // Open scans the last segment alone; damage in a closed one is found by whoever reads it.
            assert_eq!(open(&copy(&vfs)).damaged.is_empty(), place == 0);
            assert_degrades_to(&vfs, 250, &[base + 2]);
        }
        // Padding carries nothing.
        let vfs = copy(&whole);
        flip(&vfs, path, (first + 3 * unit_bytes(LEN) - 1) * 8);
        assert_degrades_to(&vfs, 250, &[]);
    }
}

fn base_of(path: &Path) -> u64 {
    path.file_stem().and_then(|stem| stem.to_str()).expect("name").parse().expect("offset")
}

/// Where the unit with the rows of record `n` stands.
fn byte_of(bytes: &[u8], n: u64) -> usize {
    let text = format!("record {n} ");
    bytes.windows(text.len()).position(|at| at == text.as_bytes()).expect("the record") - 56
}

/// Where the first data unit of a segment stands, by the format page: the header, perhaps a summary.
fn first_unit(bytes: &[u8], base: u64) -> usize {
    let mut at = 4_096;
    while bytes[at + 8] != 1 {
        let len = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four")) as usize;
        at += (56 + len).next_multiple_of(8);
    }
    assert_eq!(bytes[at + 16..at + 24], base.to_le_bytes());
    at
}

/// Would catch a flipped bit in the very last turn that is taken for anything but a torn tail, the one case that
/// cannot be told apart (C78), or that takes a record before it along.
#[test]
fn a_flipped_bit_in_the_unmarked_last_unit_is_a_torn_tail() {
    let whole = partition(30);
    let path = segment_paths(&whole).pop().expect("segment");
    let start = 4_096 + 29 * unit_bytes(LEN);
    for byte in (0..56).chain([56, 56 + LEN - 1]) {
        let vfs = copy(&whole);
        flip(&vfs, &path, (start + byte) * 8 + byte % 8);
        let opened = open(&vfs);
        assert!(opened.torn_bytes > 0);
        drop(opened);
        assert_degrades_to(&vfs, 29, &[]);
    }
}

/// Would catch a closing mark that protects nothing: the same bit behind a mark is damage, and its offset is not reused.
#[test]
fn a_flipped_bit_in_a_marked_last_unit_is_damage() {
    let vfs = partition(30);
    let mut opened = open(&vfs);
    append_to(&mut opened, 40, LEN);
    opened.writer.close().expect("close");
    let path = segment_paths(&vfs).pop().expect("segment");
    let bytes = vfs.contents(&path).expect("file");
    let base = base_of(&path);
    flip(&vfs, &path, (first_unit(&bytes, base) + (39 - base) as usize * unit_bytes(LEN) + 70) * 8);
    assert_degrades_to(&vfs, 40, &[39]);
}

/// Would catch a header that is lost with one of its copies, or a segment that is served under a wrong header.
#[test]
fn a_flipped_bit_in_a_header_is_borne_by_the_other_copy_or_refused() {
    let whole = partition(250);
    let paths = segment_paths(&whole);
    let (first, last) = (&paths[0], &paths[paths.len() - 1]);
    for byte in (0..96).chain([500, 2_044, 2_047]) {
        for path in [first, last] {
            for start in [0, 2_048] {
                let vfs = copy(&whole);
                flip(&vfs, path, (start + byte) * 8 + byte % 8);
                assert_degrades_to(&vfs, 250, &[]);
            }
        }
        // Both copies of the last: the tail is not known.
        let vfs = copy(&whole);
        flip(&vfs, last, byte * 8 + byte % 8);
        flip(&vfs, last, (2_048 + byte) * 8 + byte % 8);
        let stopped = try_open(&vfs).expect_err("the tail is not known");
        assert_eq!(stopped.code().to_string(), "LF-CH0074");
        let OpenError::Stopped { readable_end, reader, cause, .. } = stopped else { panic!("{stopped}") };
        assert!(matches!(cause, StoppedCause::HeaderDamaged { .. }));
        assert_eq!(read_from(&reader, Offset(0), readable_end).expect("what verifies").len() as u64, readable_end.0);
        assert!(readable_end > Offset(100));
        // Both copies of the first: its range is lost, the rest is served.
        let vfs = copy(&whole);
        flip(&vfs, first, byte * 8 + byte % 8);
        flip(&vfs, first, (2_048 + byte) * 8 + byte % 8);
        let second = base_of(&paths[1]);
        assert_degrades_to(&vfs, 250, &(0..second).collect::<Vec<_>>());
        let opened = open(&vfs);
        assert!(opened.strays.iter().any(|stray| stray.reason == StrayReason::HeaderDamaged));
        assert!(vfs.contents(first).is_ok(), "a damaged file is left alone");
    }
}

/// FX-1 c, d: zeroed ends, left-over preallocation, noise behind the end.
#[test]
fn f_l4_zeros_and_noise_behind_the_end_are_cut_and_counted() {
    let whole = partition(30);
    let path = segment_paths(&whole).pop().expect("segment");
    let end = 4_096 + 30 * unit_bytes(LEN);
    let noise = rows(99, 4_096);

    let vfs = copy(&whole);
    vfs.alter(&path, |bytes| bytes.extend_from_slice(&[0; 4_096])).expect("append");
    assert_eq!(open(&vfs).torn_bytes, 0);
    assert_degrades_to(&vfs, 30, &[]);

    for at_end in [true, false] {
        let vfs = copy(&whole);
        let put = |bytes: &mut Vec<u8>| {
            if at_end { bytes.extend_from_slice(&noise) } else { bytes.splice(end.., noise.clone()).for_each(drop) }
        };
        vfs.alter(&path, put).expect("append");
        assert!(open(&vfs).torn_bytes > 3_000);
        assert_degrades_to(&vfs, 30, &[]);
    }

    // The last 4 KiB of what was written: the units there are torn as far as no mark names them durable.
    let vfs = copy(&whole);
    vfs.alter(&path, |bytes| bytes[end - 4_096..end].fill(0)).expect("zero");
    let opened = open(&vfs);
    assert_eq!(opened.damaged, []);
    let tail = opened.tail.0;
    assert_eq!(tail, 30 - 8);
    drop(opened);
    assert_degrades_to(&vfs, tail, &[]);
}

/// FX-1 f: a missing file is damage of its range, whether the oldest or one in the middle.
#[test]
fn f_l4_a_missing_segment_is_damage_of_its_range() {
    let whole = partition(400);
    let paths = segment_paths(&whole);
    assert!(paths.len() >= 4);
    for missing in 0..paths.len() - 1 {
        let vfs = copy(&whole);
        vfs.delete(&paths[missing]).expect("delete");
        let lost: Vec<u64> = (base_of(&paths[missing])..base_of(&paths[missing + 1])).collect();
        let opened = open(&vfs);
        assert_eq!(opened.damaged, [Offset(lost[0])..Offset(lost[lost.len() - 1] + 1)]);
        drop(opened);
        assert_degrades_to(&vfs, 400, &lost);
    }
    // A closed one that is cut short loses what was behind the cut.
    let vfs = copy(&whole);
    vfs.alter(&paths[1], |bytes| bytes.truncate(bytes.len() / 2)).expect("cut");
    let opened = open(&vfs);
    let lost = lost_offsets(&opened);
    assert_eq!(lost.last(), Some(&(base_of(&paths[2]) - 1)));
    drop(opened);
    assert_degrades_to(&vfs, 400, &lost);
}

/// FX-1 g, h, i and the rest of C84: files outside the chain are named, counted and left alone.
#[test]
fn f_l4_foreign_files_are_named_and_left_alone() {
    let whole = partition(250);
    let paths = segment_paths(&whole);
    let segment = whole.contents(&paths[1]).expect("file");
    let other = {
        let vfs = MemoryVfs::new();
        let identity = landfall_log::LogIdentity { channel: ChannelId([8; 16]), ..identity() };
        drop(PartitionLog::open(Arc::new(vfs.clone()), dir(), identity, options()).expect("open"));
        vfs.contents(&segment_paths(&vfs)[0]).expect("file")
    };
    let strays: [(&str, &[u8], StrayReason); 6] = [
        ("00000000000000000100.seg", b"", StrayReason::Empty),
        ("00000000000000000013.seg", &segment, StrayReason::Misnamed),
        ("00000000000000000101.seg", &other, StrayReason::OtherPartition),
        ("notes.txt", b"hello", StrayReason::ForeignName),
        ("12.seg", &segment, StrayReason::ForeignName),
        ("00000000000000000000.3.torn", b"x", StrayReason::Torn),
    ];
    let vfs = copy(&whole);
    for (name, bytes, reason) in &strays {
        let alone = copy(&whole);
        alone.put(&dir().join(name), bytes);
        vfs.put(&dir().join(name), bytes);
        let opened = open(&alone);
        assert_eq!(opened.strays.len(), 1, "{name}");
        assert_eq!((opened.strays[0].name.as_path(), opened.strays[0].reason), (Path::new(name), *reason));
        assert_whole(&opened, LEN);
    }
    assert_degrades_to(&vfs, 250, &[]);
    for (name, bytes, _) in &strays {
        assert_eq!(vfs.contents(&dir().join(name)).expect("still there"), *bytes, "{name}");
    }
}

/// Would catch a partition of another channel that is taken over (C94), or a later format that is guessed at (C89).
#[test]
fn another_identity_and_a_later_format_are_refused_without_a_change() {
    let vfs = partition(5);
    let path = segment_paths(&vfs).pop().expect("segment");
    let before = vfs.contents(&path).expect("file");
    let stranger = landfall_log::LogIdentity { channel: ChannelId([8; 16]), ..identity() };
    let refused = PartitionLog::open(Arc::new(vfs.clone()), dir(), stranger, options()).expect_err("another channel");
    assert_eq!(refused.code().to_string(), "LF-CH0072");
    assert_eq!(vfs.contents(&path).expect("file"), before);

    vfs.alter(&path, |bytes| {
        for start in [0, 2_048] {
            bytes[start + 8] = 2;
            let crc = crc32c_of(&bytes[start..start + 2_044]);
            bytes[start + 2_044..start + 2_048].copy_from_slice(&crc.to_le_bytes());
        }
    })
    .expect("a later version");
    let refused = try_open(&vfs).expect_err("a later format");
    assert_eq!(refused.code().to_string(), "LF-CH0071");
}

/// CRC-32C, bit by bit: an implementation of its own, so that the format does not rest on the library's.
fn crc32c_of(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (!(crc & 1)).wrapping_add(1)))
    })
}

/// Would catch an ack floor that is passed by in silence, so that acknowledged offsets are given out again (C78, CH0075).
#[test]
fn a_floor_past_the_tail_stops_the_partition() {
    let vfs = partition(10);
    let with_floor = |floor| {
        let options = LogOptions { floor: Some(Offset(floor)), ..options() };
        PartitionLog::open(Arc::new(vfs.clone()), dir(), identity(), options)
    };
    drop(with_floor(10).expect("at the tail"));
    let stopped = with_floor(11).expect_err("past the tail");
    assert_eq!(stopped.code().to_string(), "LF-CH0075");
    let OpenError::Stopped { reader, readable_end: Offset(10), .. } = stopped else { panic!("{stopped}") };
    assert_eq!(read_from(&reader, Offset(0), Offset(10)).expect("readable").len(), 10);
}

/// Would catch a segment in thousands of pieces that takes memory without bound, or whose tail is guessed at (C83, I14).
#[test]
fn a_segment_in_shreds_stops_the_partition() {
    let vfs = MemoryVfs::new();
    let options = || LogOptions { segment_bytes: landfall_types::ByteSize::mib(1), ..options() };
    let open = || PartitionLog::open(Arc::new(vfs.clone()), dir(), identity(), options());
    let mut opened = open().expect("the log opens");
    for batch in 0..100 {
        let units: Vec<_> = (batch * 100..(batch + 1) * 100).map(|n| super::support::unit(n, 0)).collect();
        super::support::durable(opened.writer.append(Offset(batch * 100), &units));
    }
    drop(opened);
    let path = segment_paths(&vfs).pop().expect("segment");
    vfs.alter(&path, |bytes| (0..5_000).for_each(|n| bytes[4_096 + n * 112 + 20] ^= 1)).expect("file");
    let stopped = open().expect_err("the tail is not known");
    assert_eq!(stopped.code().to_string(), "LF-CH0073");
}

/// Would catch a unit of another history that is taken for the next one because it stands at the right place (C73).
#[test]
fn a_ghost_unit_behind_the_end_is_not_stepped_on_to() {
    let twin = |second: u64| {
        let vfs = partition(5);
        let mut opened = open(&vfs);
        opened.preparer.prepare().expect("spares");
        vfs.inject(Operation::Sync, 0, u64::MAX, Fault::Error(std::io::ErrorKind::Other));
        let units = [super::support::unit(second, LEN), super::support::unit(6, LEN)];
        assert!(matches!(opened.writer.append(Offset(5), &units), landfall_log::Append::Uncertain(_)));
        let vfs = copy(&vfs);
        let path = segment_paths(&vfs).pop().expect("segment");
        let bytes = vfs.contents(&path).expect("file");
        let last = byte_of(&bytes, second);
        (vfs, path, bytes[last..last + 2 * unit_bytes(LEN)].to_vec(), last)
    };
    let (vfs, path, ours, at) = twin(5);
    let (_, _, theirs, there) = twin(1_005);
    assert_eq!(at, there);
    assert_ne!(ours[..unit_bytes(LEN)], theirs[..unit_bytes(LEN)]);
    // Their second unit verifies, at its offset, behind our first: only the chain tells.
    vfs.alter(&path, |bytes| {
        bytes[at + unit_bytes(LEN)..at + 2 * unit_bytes(LEN)].copy_from_slice(&theirs[unit_bytes(LEN)..])
    })
    .expect("file");
    let opened = open(&vfs);
    assert_eq!(opened.tail, Offset(6));
    assert!(opened.torn_bytes > 0);
    drop(opened);
    assert_degrades_to(&vfs, 6, &[]);
}

/// Would catch an acknowledged offset that is given out again because everything between the break and the mark is gone.
#[test]
fn an_offset_below_the_mark_is_never_given_out_again() {
    let vfs = partition(9);
    let mut opened = open(&vfs);
    append_to(&mut opened, 12, LEN);
    let turn: Vec<_> = (12..15).map(|n| super::support::unit(n, LEN)).collect();
    super::support::durable(opened.writer.append(Offset(12), &turn));
    drop(opened);
    let path = segment_paths(&vfs).pop().expect("segment");
    let bytes = vfs.contents(&path).expect("file");
    // The last unit before the last turn, and the first of that turn; the next one names where the turn began.
    flip(&vfs, &path, (byte_of(&bytes, 11) + 60) * 8);
    flip(&vfs, &path, (byte_of(&bytes, 12) + 60) * 8);
    let opened = open(&vfs);
    assert_eq!((opened.tail, &opened.damaged[..]), (Offset(13), &[Offset(11)..Offset(13)][..]));
    drop(opened);
    assert_degrades_to(&vfs, 13, &[11, 12]);
}

/// Would catch "trimmed", "damaged" and "the device does not answer" told as one another, or as empty (C14).
#[test]
fn trimmed_damaged_unreadable_differ() {
    let vfs = partition(250);
    let mut opened = open(&vfs);
    let start = opened.writer.trim(Offset(150)).expect("trim");
    opened.preparer.prepare().expect("free");
    let path = segment_paths(&vfs).into_iter().next().expect("segment");
    let bytes = vfs.contents(&path).expect("file");
    flip(&vfs, &path, (first_unit(&bytes, start.0) + unit_bytes(LEN) + 60) * 8);
    let mut page = Page::default();
    let mut read = |from: Offset| opened.reader.read(from, VisibleTail(Offset(250)), WIDE, &mut page);
    assert!(matches!(read(Offset(start.0 - 1)), Err(ReadError::Trimmed { .. })));
    assert!(matches!(read(Offset(start.0 + 1)), Err(ReadError::Damaged { .. })));
    vfs.inject(Operation::Read, 0, 1, Fault::Error(std::io::ErrorKind::Other));
    let failed = read(Offset(start.0 + 5)).expect_err("the device does not answer");
    assert_eq!(failed.code().to_string(), "LF-CH0059");
    read(Offset(start.0 + 5)).expect("it answers again");
    // What holds damage is not freed.
    assert_eq!(opened.writer.trim(Offset(250)).expect("trim"), start);
}

/// A copy of the partition on the machine's own file system.
fn on_disk(vfs: &MemoryVfs) -> tempfile::TempDir {
    let disk = tempfile::tempdir().expect("a directory");
    for path in segment_paths(vfs) {
        let name = path.file_name().expect("a name");
        std::fs::write(disk.path().join(name), vfs.contents(&path).expect("file")).expect("written");
    }
    disk
}

fn open_on_disk(dir: &Path) -> Result<Opened, OpenError> {
    PartitionLog::open(Arc::new(DiskVfs), dir, identity(), options())
}

/// Would catch directories and links that are passed over in silence (C84).
#[test]
fn what_is_no_file_is_named_and_left_alone() {
    let disk = on_disk(&partition(250));
    std::fs::create_dir_all(disk.path().join("old/00000000000000000000")).expect("made");
    std::fs::create_dir(disk.path().join("00000000000000000013.seg")).expect("made");
    std::os::unix::fs::symlink("nowhere", disk.path().join("link")).expect("made");
    let opened = open_on_disk(disk.path()).expect("it opens");
    let strays: Vec<_> = opened.strays.iter().map(|stray| (stray.name.to_str().expect("text"), stray.reason)).collect();
    assert_eq!(
        strays,
        [
            ("link", StrayReason::NotAFile),
            ("old", StrayReason::NotAFile),
            ("00000000000000000013.seg", StrayReason::NotAFile)
        ]
    );
    assert_whole(&opened, LEN);
    assert!(disk.path().join("old/00000000000000000000").is_dir());
}

/// Would catch a directory or a link in the place of the newest segment that is passed over, so that acknowledged offsets
/// are given out again (C83, I12).
#[test]
fn a_directory_in_place_of_the_newest_segment_stops_the_partition() {
    let whole = partition(250);
    let newest = segment_paths(&whole).pop().expect("a segment");
    let name = newest.file_name().expect("a name");
    for is_link in [false, true] {
        let disk = on_disk(&whole);
        let (path, aside) = (disk.path().join(name), disk.path().join("aside"));
        std::fs::rename(&path, &aside).expect("moved");
        match is_link {
            true => std::os::unix::fs::symlink(&aside, &path).expect("made"),
            false => std::fs::create_dir(&path).expect("made"),
        }
        for _ in 0..2 {
            let error = open_on_disk(disk.path()).expect_err("the tail is not known");
            assert_eq!(error.code().to_string(), "LF-CH0073");
            let OpenError::Stopped { cause: StoppedCause::NotAFile { path: named }, readable_end, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!(named, &path);
            assert!(*readable_end > Offset(0) && *readable_end < Offset(250), "{readable_end}");
        }
        match is_link {
            true => std::fs::remove_file(&path).expect("removed"),
            false => std::fs::remove_dir(&path).expect("removed"),
        }
        std::fs::rename(&aside, &path).expect("moved back");
        assert_whole(&open_on_disk(disk.path()).expect("it opens"), LEN);
    }
}
