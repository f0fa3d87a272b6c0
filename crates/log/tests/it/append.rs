//! Appending and reading without faults.

use std::sync::Arc;

use bytes::Bytes;
use landfall_log::{
    Append, Budget, Codec, DiskVfs, KeyWindow, Located, LogOptions, MemoryVfs, Page, PartitionLog, ReadError,
    RefusedError, SequenceBlock, Tag, Unit, UnitBody, VisibleTail,
};
use landfall_types::{ByteSize, Coded, Offset, TicketNumber, Timestamp};

use super::support::{
    WIDE, append_one, append_to, assert_whole, dir, durable, identity, open, options, read_from, rows, segment_paths,
    unit,
};

/// Would catch an offset that is skipped, given twice, or not counted from 0 (C18 order).
#[test]
fn offsets_are_dense_from_zero() {
    let mut opened = open(&MemoryVfs::new());
    assert_eq!((opened.log_start, opened.tail), (Offset(0), Offset(0)));
    for n in 0..50 {
        assert_eq!(durable(append_one(&mut opened, 100)), Offset(n + 1));
    }
    assert_whole(&opened, 100);
}

/// Would catch a batch that takes another number of offsets than it has records.
#[test]
fn unit_of_n_takes_n_offsets() {
    let mut opened = open(&MemoryVfs::new());
    let body = UnitBody::new(Tag::None, Codec::None, Bytes::from_static(b"five rows"), 5);
    let batch = Unit { body, ticket: TicketNumber(9), append_time: Timestamp(5) };
    assert_eq!(durable(opened.writer.append(Offset(0), &[batch, unit(5, 40)])), Offset(6));
    let units = read_from(&opened.reader, Offset(0), Offset(6)).expect("read");
    assert_eq!(units.iter().map(|unit| (unit.first.0, unit.records)).collect::<Vec<_>>(), [(0, 5), (5, 1)]);
    assert_eq!((units[0].ticket, units[0].append_time), (TicketNumber(9), Timestamp(5)));
}

/// Would catch a write at an offset the caller did not mean.
#[test]
fn wrong_expected_writes_nothing() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 3, 50);
    let before = vfs.contents(&segment_paths(&vfs)[0]).expect("file");
    for wrong in [0, 2, 4, u64::MAX] {
        let refused = opened.writer.append(Offset(wrong), &[unit(3, 50)]);
        assert!(matches!(refused, Append::Refused(RefusedError::WrongExpected { actual: Offset(3), .. })));
    }
    assert_eq!(vfs.contents(&segment_paths(&vfs)[0]).expect("file"), before);
}

/// Would catch a unit that is refused at its limit or let in above it, and one that has no record.
#[test]
fn unit_at_limit_and_one_above() {
    let mut opened = open(&MemoryVfs::new());
    let limit = opened.writer.limits().unit_bytes_max;
    durable(append_one(&mut opened, limit));
    let above = append_one(&mut opened, limit + 1);
    assert!(matches!(above, Append::Refused(RefusedError::TooLarge { what: "unit", .. })), "{above:?}");
    let empty = Unit { body: UnitBody::new(Tag::None, Codec::None, Bytes::new(), 0), ..unit(1, 10) };
    let refused = opened.writer.append(Offset(1), &[empty]);
    assert!(matches!(refused, Append::Refused(RefusedError::EmptyUnit)), "{refused:?}");
    assert_whole(&opened, limit);
}

/// Would catch a roll that loses, repeats or misplaces a record, and a reader that stops at a segment's end.
#[test]
fn reads_return_appends_in_order_over_many_segments_and_reopens() {
    let vfs = MemoryVfs::new();
    for round in 1..=4 {
        let mut opened = open(&vfs);
        append_to(&mut opened, round * 400, 300);
        assert_whole(&opened, 300);
        if round % 2 == 0 {
            opened.writer.close().expect("close");
        }
    }
    assert!(segment_paths(&vfs).len() > 8);
    assert_whole(&open(&vfs), 300);
}

/// Would catch a record past the visible tail that reaches a reader.
#[test]
fn read_stops_at_visible_tail() {
    let mut opened = open(&MemoryVfs::new());
    append_to(&mut opened, 10, 50);
    let mut page = Page::default();
    opened.reader.read(Offset(2), VisibleTail(Offset(7)), WIDE, &mut page).expect("read");
    assert_eq!(page.units.last().map(|unit| unit.end()), Some(Offset(7)));
    opened.reader.read(Offset(7), VisibleTail(Offset(7)), WIDE, &mut page).expect("at the tail");
    assert!(page.units.is_empty());
    let past = opened.reader.read(Offset(8), VisibleTail(Offset(7)), WIDE, &mut page).expect_err("past");
    assert!(matches!(past, ReadError::PastTail { .. }));
}

/// Would catch a budget that is passed, or one so small that a reader never moves.
#[test]
fn read_honours_budget_but_moves() {
    let mut opened = open(&MemoryVfs::new());
    append_to(&mut opened, 20, 1_000);
    let (tail, mut page) = (VisibleTail(Offset(20)), Page::default());
    let mut read = |records, bytes| {
        opened.reader.read(Offset(0), tail, Budget { records, bytes }, &mut page).expect("read");
        page.units.len()
    };
    assert_eq!(read(0, 0), 1);
    assert_eq!(read(4, 1 << 20), 4);
    assert_eq!(read(100, 3_500), 3);
    assert_eq!(read(100, 1 << 20), 20);
}

/// Would catch a cursor inside a batch that skips the batch or gets half of it.
#[test]
fn read_from_inside_a_unit() {
    let mut opened = open(&MemoryVfs::new());
    let body = UnitBody::new(Tag::None, Codec::None, Bytes::from_static(b"rows"), 10);
    let batch = Unit { body, ticket: TicketNumber(0), append_time: Timestamp(0) };
    durable(opened.writer.append(Offset(0), &[unit(0, 10), batch, unit(2, 10)]));
    let units = read_from(&opened.reader, Offset(7), Offset(12)).expect("read");
    assert_eq!(units.iter().map(|unit| unit.first.0).collect::<Vec<_>>(), [1, 11]);
}

/// Would catch a codec or a tag that does not come back as it went in.
#[test]
fn every_codec_and_tag_comes_back_as_it_went_in() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    let block = SequenceBlock { producer: [3; 16], sequence: 8, index: SequenceBlock::INDEX_MAX, last_in_call: true };
    let tags = [Tag::None, Tag::Key([9; 24]), Tag::Sequence(block)];
    let texts = [Bytes::from(vec![b'a'; 5_000]), rows(1, 5_000), Bytes::new()];
    let mut expected = Vec::new();
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        for tag in tags {
            for text in &texts {
                let body = UnitBody::new(tag, codec, text.clone(), 1);
                assert!(body.encoded_len() <= tag.encoded_len() + text.len());
                let tail = opened.writer.tail();
                let unit = Unit { body, ticket: TicketNumber(0), append_time: Timestamp(0) };
                durable(opened.writer.append(tail, &[unit]));
                expected.push((tag, text.clone()));
            }
        }
    }
    drop(opened);
    let opened = open(&vfs);
    let units = read_from(&opened.reader, Offset(0), opened.tail).expect("read");
    assert_eq!(units.into_iter().map(|unit| (unit.tag, unit.rows)).collect::<Vec<_>>(), expected);
}

/// Would catch a search by time that gives a later or an earlier record than the first not before it.
#[test]
fn at_time_is_first_not_below() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 900, 300);
    for reopened in [false, true] {
        let opened = if reopened { &open(&vfs) } else { &opened };
        let tail = VisibleTail(Offset(900));
        for n in [0u64, 1, 199, 200, 450, 899] {
            let at = Timestamp(1_000 + n as i64);
            assert_eq!(opened.reader.at_time(at, tail).expect("found"), Offset(n), "reopened: {reopened}");
        }
        assert_eq!(opened.reader.at_time(Timestamp(i64::MIN), tail).expect("found"), Offset(0));
        assert_eq!(opened.reader.at_time(Timestamp(9_999), tail).expect("none"), Offset(900));
    }
}

/// Would catch a reference that resolves to a record of somebody else (C52).
#[test]
fn locate_tells_own_unit_from_a_stranger() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 5, 50);
    let (epoch, tail) = (opened.epoch, VisibleTail(Offset(5)));
    drop(opened);
    let opened = open(&vfs);
    assert!(opened.epoch > epoch);
    let locate = |first, epoch, ticket| opened.reader.locate(Offset(first), epoch, TicketNumber(ticket), tail);
    assert_eq!(locate(3, epoch, 3).expect("read"), Located::There { first: Offset(3), records: 1 });
    assert_eq!(locate(3, epoch, 4).expect("read"), Located::NotThere);
    assert_eq!(locate(3, opened.epoch, 3).expect("read"), Located::NotThere);
    assert_eq!(locate(5, epoch, 5).expect("read"), Located::NotThere);
    assert_eq!(opened.reader.origin_epoch(Offset(4), tail).expect("read"), epoch);
}

/// Would catch a key or a producer of the window that an open forgets, and a window that claims more than it has.
#[test]
fn open_reports_the_keys_and_sequences_of_the_window() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    for n in 0..600u64 {
        let mut tag = [0u8; 24];
        tag[..8].copy_from_slice(&n.to_le_bytes());
        let block = SequenceBlock { producer: [(n % 3) as u8; 16], sequence: n, index: 0, last_in_call: true };
        let tag = if n % 2 == 0 { Tag::Key(tag) } else { Tag::Sequence(block) };
        let body = UnitBody::new(tag, Codec::None, rows(n, 300), 1);
        durable(opened.writer.append(Offset(n), &[Unit { body, ..unit(n, 0) }]));
    }
    drop(opened);
    assert!(segment_paths(&vfs).len() > 3);
    let reopen = |keys| {
        let key_window = KeyWindow { max_age: std::time::Duration::MAX, keys, producers: 10 };
        let options = LogOptions { key_window, ..options() };
        PartitionLog::open(Arc::new(vfs.clone()), dir(), identity(), options).expect("open")
    };
    let all = reopen(1_000);
    assert_eq!(all.tags.len(), 300);
    assert_eq!(all.window_start, Offset(0));
    assert_eq!(all.summary_rebuilds, 0);
    let mut last: Vec<u64> = all.sequences.iter().map(|last| last.block.sequence).collect();
    last.sort_unstable();
    assert_eq!(last, [595, 597, 599]);
    drop(all);
    let some = reopen(40);
    assert_eq!(some.tags.len(), 40);
    assert_eq!(some.tags[0].first, some.window_start);
    assert_eq!(some.tags[39].first, Offset(598));
}

/// Would catch code that works only in memory: names, handles, preallocation, directory syncs.
#[test]
fn the_same_holds_on_disk_beside_housekeeping() {
    let temp = tempfile::tempdir().expect("temp dir");
    let dir = temp.path().join("channels/orders/0");
    let options = || LogOptions { segment_bytes: ByteSize::mib(1), ..LogOptions::default() };
    for round in 1..=3u64 {
        let mut opened =
            PartitionLog::open(Arc::new(DiskVfs), &dir, identity(), options()).expect("the log opens on disk");
        let preparer = opened.preparer.clone();
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let housekeeping = std::thread::spawn(move || {
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                preparer.prepare().expect("prepare");
                std::thread::yield_now();
            }
        });
        append_to(&mut opened, round * 300, 5_000);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        housekeeping.join().expect("housekeeping");
        assert_whole(&opened, 5_000);
        opened.writer.trim(Offset(round * 100)).expect("trim");
        opened.preparer.prepare().expect("free");
        assert_whole(&opened, 5_000);
    }
    assert!(dir.join("spare.0").exists());
}

/// Would catch an append of nothing that counts the zeros behind it as bytes that were not written, and so ends uncertain.
#[test]
fn an_append_of_nothing_is_durable_where_it_stands() {
    let mut opened = open(&MemoryVfs::new());
    append_to(&mut opened, 3, 50);
    assert_eq!(durable(opened.writer.append(Offset(3), &[])), Offset(3));
    append_to(&mut opened, 5, 50);
    assert_whole(&opened, 50);
}

/// Would catch the zeros behind an append, which fill its last page, growing a segment past its bound or covering a unit.
#[test]
fn what_fills_the_last_page_of_an_append_stays_in_its_bounds() {
    let vfs = MemoryVfs::new();
    let segment_bytes = 10_000;
    let mut opened = PartitionLog::open(
        Arc::new(vfs.clone()),
        dir(),
        identity(),
        LogOptions { segment_bytes: ByteSize(segment_bytes), ..options() },
    )
    .expect("open");
    for _ in 0..200 {
        durable(append_one(&mut opened, 333));
        for path in segment_paths(&vfs) {
            let len = vfs.contents(&path).expect("file").len() as u64;
            assert!(
                len <= segment_bytes.max(options().preparation.step_min.get()),
                "{} has {len} bytes",
                path.display()
            );
        }
    }
    assert_whole(&opened, 333);
}

/// Would catch a segment that retention takes for older, larger or emptier than it is (C85), also after a restart.
#[test]
fn segments_report_what_retention_goes_by() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 600, 300);
    for reopened in [false, true] {
        let opened = if reopened { &open(&vfs) } else { &opened };
        let segments = opened.writer.segments();
        let mut base = Offset(0);
        for segment in &segments {
            assert_eq!(segment.base, base);
            base = segment.end;
            let last = segment.end.0.checked_sub(1).map(|last| Timestamp(1_000 + last as i64));
            if segment.end > segment.base {
                assert_eq!(segment.last_append_time, last);
            }
            assert!(segment.bytes >= 4_096 && segment.bytes <= 64 << 10);
        }
        assert_eq!(base, Offset(600));
        assert_eq!(segments.iter().filter(|segment| segment.is_active).count(), 1);
    }
}

/// Would catch a recovery that cannot be interrupted (F-L4: SIGTERM while it runs).
#[test]
fn f_l4_an_open_that_is_told_to_stop_ends_and_changes_nothing() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 50, 300);
    drop(opened);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let stopping = LogOptions { stop: Some(Arc::clone(&stop)), ..options() };
    let before = vfs.contents(&segment_paths(&vfs)[0]).expect("file");
    let ended =
        PartitionLog::open(Arc::new(vfs.clone()), dir(), identity(), stopping.clone()).expect_err("told to stop");
    assert_eq!(ended.code().to_string(), "LF-CH0076");
    assert_eq!(vfs.contents(&segment_paths(&vfs)[0]).expect("file"), before);
    stop.store(false, std::sync::atomic::Ordering::Relaxed);
    let opened = PartitionLog::open(Arc::new(vfs.clone()), dir(), identity(), stopping).expect("the log opens");
    assert_eq!(opened.tail, Offset(50));
}

/// Would catch an error without its code, or a code without its page.
#[test]
fn every_code_has_a_page() {
    let error = ReadError::Trimmed { from: Offset(1), log_start: Offset(2) };
    assert_eq!(error.code().to_string(), "LF-CH0050");
    assert!(landfall_log::CODES.iter().any(|page| page.code == error.code() && page.kind == error.kind()));
}

/// Would catch rows that are shared from the wrong place of what was written, or from another append, and rows that are shared
/// though they were written as something else or not from the buffer.
#[test]
fn shared_rows_are_the_units_own() {
    let mut opened = open(&MemoryVfs::new());
    let large = 20_000;
    let lens = [10, large, 0, 333, 4_096, 4_097, 1];
    for turn in [7, 1, 3] {
        let first = opened.writer.tail().0;
        let mut units: Vec<Unit> = (first..).zip(&lens[..turn]).map(|(n, len)| unit(n, *len)).collect();
        units[0].body = UnitBody::new(Tag::Key([7; 24]), Codec::None, rows(first, lens[0]), 1);
        if turn > 3 {
            units[3].body = UnitBody::new(Tag::None, Codec::Lz4, Bytes::from(vec![5; 333]), 1);
        }
        let own: Vec<Bytes> = units.iter().map(|unit| unit.body.rows().clone()).collect();
        durable(opened.writer.append(Offset(first), &units));
        opened.writer.share(&mut units);
        let (mut low, mut high, mut shared) = (usize::MAX, 0, 0);
        for (unit, own) in units.iter().zip(&own) {
            assert_eq!(unit.body.rows(), own);
            if unit.body.rows().as_ptr() != own.as_ptr() {
                let at = unit.body.rows().as_ptr() as usize;
                (low, high, shared) = (low.min(at), high.max(at + own.len()), shared + 1);
            }
        }
        assert_eq!(shared, if turn == 7 { 3 } else { turn.min(2) - turn / 3 }, "of a turn of {turn}");
        assert!(high - low < 10_000, "{} bytes apart", high - low);
        // Once more: there is nothing to share any more.
        opened.writer.share(&mut units);
        assert!(units.iter().zip(&own).all(|(unit, own)| unit.body.rows() == own));
    }
}
