//! Trim: the durable log start comes before anything is freed (C87, F-L5).

use std::io::ErrorKind;

use landfall_log::{Fault, Intent, Loss, MemoryVfs, Operation, Page, ReadError, Settled, VisibleTail};
use landfall_types::Offset;

use super::support::{WIDE, append_to, assert_whole, dir, open, segment_paths};

const LEN: usize = 1_000;

/// Would catch a trim above the request, of part of a segment, or of the active one.
#[test]
fn trim_never_above_request() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 300, LEN);
    for before in [0u64, 1, 58, 59, 120, 299, 300, u64::MAX] {
        let start = opened.writer.trim(Offset(before)).expect("trim");
        assert!(start <= Offset(before));
        assert!(opened.writer.segments().iter().any(|segment| segment.base == start && segment.base < Offset(300)));
        assert_eq!(opened.reader.log_start(), start);
        assert_whole(&opened, LEN);
    }
    let mut page = Page::default();
    let trimmed = opened.reader.read(Offset(0), VisibleTail(Offset(300)), WIDE, &mut page).expect_err("gone");
    assert!(matches!(trimmed, ReadError::Trimmed { log_start, .. } if log_start == opened.reader.log_start()));
}

/// F-L5: a crash between "log start durable", "unlink" and "directory synced", at every step, with every loss.
#[test]
fn f_l5_crash_between_mark_and_free_starts_normally_at_each_point() {
    let rehearse = |crash: Option<u64>| {
        let vfs = MemoryVfs::new();
        let mut opened = open(&vfs);
        append_to(&mut opened, 300, LEN);
        opened.preparer.prepare().expect("prepare");
        let before = vfs.steps();
        if let Some(step) = crash {
            vfs.crash_after(step);
        }
        let trimmed = opened.writer.trim(Offset(200)).ok();
        // Freeing may be what the crash meets.
        let _ = opened.preparer.prepare();
        (vfs.steps() - before, vfs, trimmed)
    };
    let (steps, vfs, whole) = rehearse(None);
    let start = whole.expect("trimmed");
    assert!(start > Offset(100));
    let bytes_after: u64 = open(&vfs).writer.segments().iter().map(|segment| segment.bytes).sum();
    for step in 0..steps {
        let (_, vfs, trimmed) = rehearse(Some(step));
        for loss in [Loss::Unsynced, Loss::Nothing, Loss::Random(step)] {
            let found = vfs.power_cut(loss);
            for round in 0..2 {
                let opened = open(&found);
                assert_eq!(opened.damaged, [], "step {step} {loss:?}");
                assert!(opened.log_start == Offset(0) || opened.log_start == start);
                if trimmed.is_some() {
                    assert_eq!(opened.log_start, start, "a shown log start went back");
                }
                assert_eq!(opened.tail, Offset(300));
                assert_whole(&opened, LEN);
                opened.preparer.prepare().expect("left-overs are freed");
                // Counts come from the files, so nothing can underflow.
                let bytes: u64 = opened.writer.segments().iter().map(|segment| segment.bytes).sum();
                assert!(opened.log_start == Offset(0) || bytes <= bytes_after + (1 << 16), "round {round}: {bytes}");
            }
            let names = segment_paths(&found);
            let log_start = open(&found).log_start;
            let oldest = dir().join(format!("{:020}.seg", log_start.0));
            assert!(names.iter().all(|path| *path >= oldest), "left-overs stay for ever");
        }
    }
}

/// Would catch an empty log that starts over at 0, or forgets its start (C18 trim).
#[test]
fn tail_survives_trim_of_everything() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 200, LEN);
    opened.writer.close().expect("close");
    let mut opened = open(&vfs);
    assert_eq!(opened.writer.trim(Offset(200)).expect("trim"), Offset(200));
    opened.preparer.prepare().expect("free");
    drop(opened);
    for _ in 0..2 {
        let opened = open(&vfs);
        assert_eq!((opened.log_start, opened.tail), (Offset(200), Offset(200)));
        assert_eq!(opened.damaged, []);
    }
    assert_eq!(segment_paths(&vfs).len(), 1);
    let mut opened = open(&vfs);
    append_to(&mut opened, 205, LEN);
    assert_whole(&opened, LEN);
}

/// Would catch a log start that is shown although the device has not confirmed it.
#[test]
fn trim_marks_before_it_frees() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 200, LEN);
    let evidence = opened.writer.evidence(Vec::new());
    vfs.inject(Operation::Sync, 0, 1, Fault::Error(ErrorKind::Other));
    let failed = opened.writer.trim(Offset(150)).expect_err("the sync fails");
    assert!(matches!(failed, landfall_log::TrimError::Uncertain(_)), "{failed}");
    assert_eq!(opened.reader.log_start(), Offset(0));
    assert_whole(&opened, LEN);
    assert!(matches!(opened.writer.settle(&evidence, Intent::Keep), Settled::Committed { end: Offset(200), .. }));
    assert!(opened.writer.trim(Offset(150)).expect("again") > Offset(0));
    append_to(&mut opened, 210, LEN);
    assert_whole(&opened, LEN);
}

/// Would catch a trim that is forgotten because the active segment had no room for its unit.
#[test]
fn a_trim_that_does_not_fit_into_the_segment_is_durable_all_the_same() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 150, LEN);
    // Fill the active segment to less than a trim unit from its end.
    let active = opened.writer.segments().pop().expect("active");
    let room = (64 << 10) - active.bytes as usize - 56;
    let tail = opened.writer.tail();
    super::support::durable(opened.writer.append(tail, &[super::support::unit(tail.0, room / 8 * 8 - 8)]));
    let segments = opened.writer.segments().len();
    let start = opened.writer.trim(Offset(120)).expect("trim");
    assert!(start > Offset(0));
    assert!(opened.writer.segments().last().expect("active").base == Offset(151), "it rolled: {segments}");
    drop(opened);
    let opened = open(&vfs.power_cut(Loss::Unsynced));
    assert_eq!((opened.log_start, opened.tail), (start, Offset(151)));
    assert_eq!(opened.damaged, []);
}

/// Would catch a reader that is stuck or silently jumps when retention passes it.
#[test]
fn a_reader_that_is_passed_by_a_trim_is_told() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 200, LEN);
    let mut page = Page::default();
    let tail = VisibleTail(Offset(200));
    opened.reader.read(Offset(0), tail, landfall_log::Budget { records: 5, bytes: 1 << 20 }, &mut page).expect("read");
    opened.writer.trim(Offset(150)).expect("trim");
    opened.preparer.prepare().expect("free");
    let passed = opened.reader.read(Offset(5), tail, WIDE, &mut page).expect_err("passed");
    assert!(matches!(passed, ReadError::Trimmed { from: Offset(5), .. }), "{passed}");
}
