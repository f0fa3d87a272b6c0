//! Uncertain appends and how they end (C36–C43, the area "uncertainty" of C18).

use std::io::ErrorKind;
use std::sync::Arc;

use landfall_log::{
    AbsentReason, Append, Evidence, Fault, Intent, LogOptions, Loss, MemoryVfs, Opened, Operation, PartitionLog,
    RefusedError, Settled, UncertainCause, Unit,
};
use landfall_types::{Durability, Offset};

use super::support::{append_to, assert_whole, dir, identity, open, options, segment_paths, unit, unit_bytes};

const LEN: usize = 300;

/// Appends three units at the tail under a fault; gives the evidence of what is then uncertain.
fn uncertain(opened: &mut Opened, vfs: &MemoryVfs, operation: Operation, fault: Fault) -> Evidence {
    // Spares are there, so that the fault meets the append itself.
    opened.preparer.prepare().expect("prepare");
    let tail = opened.writer.tail();
    let units: Vec<Unit> = (tail.0..tail.0 + 3).map(|n| unit(n, LEN)).collect();
    let evidence = opened.writer.evidence(units.clone());
    vfs.inject(operation, 0, 1, fault);
    match opened.writer.append(tail, &units) {
        Append::Uncertain(_) => evidence,
        other => panic!("expected an uncertain append: {other:?}"),
    }
}

const FAULTS: [(Operation, Fault); 5] = [
    (Operation::Write, Fault::Error(ErrorKind::Other)),
    (Operation::Write, Fault::Short),
    (Operation::Write, Fault::Torn(ErrorKind::StorageFull)),
    (Operation::Sync, Fault::Error(ErrorKind::Other)),
    (Operation::Sync, Fault::DoneThenError(ErrorKind::Other)),
];

/// Would catch a record that is kept twice, or that a power cut takes back after it was kept.
#[test]
fn a_kept_append_is_committed_once_at_its_offsets_whatever_failed() {
    for first in [true, false] {
        for (operation, fault) in FAULTS {
            let vfs = MemoryVfs::new();
            let mut opened = open(&vfs);
            // As the first of its segment, and behind others.
            append_to(&mut opened, if first { 0 } else { 5 }, LEN);
            let tail = opened.writer.tail().0;
            let evidence = uncertain(&mut opened, &vfs, operation, fault);
            let epoch = opened.writer.epoch();
            let settled = opened.writer.settle(&evidence, Intent::Keep);
            let Settled::Committed { end, epoch: fence } = settled else { panic!("{fault:?}: {settled:?}") };
            assert_eq!(end, Offset(tail + 3));
            assert!(fence > epoch);
            assert_whole(&opened, LEN);
            append_to(&mut opened, tail + 6, LEN);
            drop(opened);
            for loss in [Loss::Nothing, Loss::Unsynced, Loss::Random(tail)] {
                let found = vfs.power_cut(loss);
                for _ in 0..2 {
                    let opened = open(&found);
                    assert_eq!(opened.tail, Offset(tail + 6));
                    assert_whole(&opened, LEN);
                }
            }
        }
    }
}

/// The very bytes of three units behind five, as a write that nobody waits for any more would put them there.
fn landing(vfs: &MemoryVfs, tail: u64) -> Vec<u8> {
    let twin = MemoryVfs::new();
    let mut opened = open(&twin);
    append_to(&mut opened, tail, LEN);
    let units: Vec<Unit> = (tail..tail + 3).map(|n| unit(n, LEN)).collect();
    assert!(matches!(opened.writer.append(Offset(tail), &units), Append::Durable { .. }));
    let path = segment_paths(&twin).pop().expect("a segment");
    let (theirs, ours) = (twin.contents(&path).expect("file"), vfs.contents(&path).expect("file"));
    let end = 4_096 + tail as usize * unit_bytes(LEN);
    assert_eq!(theirs[..end], ours[..end], "twins write the same bytes");
    theirs[end..end + 3 * unit_bytes(LEN)].to_vec()
}

/// Would catch an abandoned record that comes back: from the page cache, or by a landing after the fence.
#[test]
fn a_fenced_tail_never_comes_back() {
    for first in [true, false] {
        for (operation, fault) in FAULTS {
            let vfs = MemoryVfs::new();
            let mut opened = open(&vfs);
            append_to(&mut opened, if first { 0 } else { 5 }, LEN);
            let tail = opened.writer.tail();
            let old = segment_paths(&vfs).pop().expect("a segment");
            let landed = landing(&vfs, tail.0);
            let evidence = uncertain(&mut opened, &vfs, operation, fault);
            let settled = opened.writer.settle(&evidence, Intent::Abandon);
            assert!(matches!(settled, Settled::Absent { why: AbsentReason::Abandoned }), "{settled:?}");
            assert_eq!(opened.writer.tail(), tail);
            drop(opened);
            // What was still on its way lands in the old file after the fence.
            if !first {
                let there = vfs.contents(&old).expect("the old file");
                let end = 4_096 + 5 * unit_bytes(LEN);
                assert!(there.len() >= end + landed.len());
                vfs.alter(&old, |there| there[end..end + landed.len()].copy_from_slice(&landed)).expect("landing");
            }
            for _ in 0..2 {
                let opened = open(&vfs);
                assert_eq!(opened.tail, tail);
                assert_eq!(opened.damaged, []);
                assert_whole(&opened, LEN);
            }
        }
    }
}

/// Would catch a writer that goes on with a descriptor whose write or sync has failed (C35).
#[test]
fn uncertain_writer_refuses_append() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    let evidence = uncertain(&mut opened, &vfs, Operation::Sync, Fault::Error(ErrorKind::Other));
    let before = vfs.steps();
    let refused = opened.writer.append(Offset(0), &evidence.units);
    assert!(matches!(refused, Append::Refused(RefusedError::Unsettled { .. })), "{refused:?}");
    opened.writer.mark().expect("nothing is done");
    opened.writer.sync().expect("nothing is done");
    assert!(opened.writer.trim(Offset(0)).is_err());
    assert_eq!(vfs.steps(), before, "the device was touched");
}

/// Would catch an answer that changes when it is asked for again, or evidence of another append that is accepted.
#[test]
fn settle_is_idempotent_and_takes_its_own_evidence_only() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 2, LEN);
    let evidence = uncertain(&mut opened, &vfs, Operation::Sync, Fault::Error(ErrorKind::Other));
    let wrong = Evidence { first: Offset(1), ..evidence.clone() };
    let mismatch = opened.writer.settle(&wrong, Intent::Keep);
    assert!(matches!(mismatch, Settled::Uncertain(UncertainCause::EvidenceMismatch { .. })), "{mismatch:?}");
    let first = opened.writer.settle(&evidence, Intent::Keep);
    let again = opened.writer.settle(&evidence, Intent::Abandon);
    let (Settled::Committed { end: a, epoch: b }, Settled::Committed { end: c, epoch: d }) = (&first, &again) else {
        panic!("{first:?} {again:?}");
    };
    assert_eq!((a, b), (c, d));
    assert_eq!(*a, Offset(5));
}

/// Would catch evidence that is lost when the fence fails too, or a number that is used twice (C38).
#[test]
fn failed_settle_loses_no_evidence() {
    let steps = [
        (Operation::Write, Fault::Error(ErrorKind::Other)),
        (Operation::Sync, Fault::Error(ErrorKind::Other)),
        (Operation::Rename, Fault::Error(ErrorKind::Other)),
        (Operation::DirSync, Fault::Error(ErrorKind::Other)),
        (Operation::DirSync, Fault::DoneThenError(ErrorKind::Other)),
    ];
    for intent in [Intent::Keep, Intent::Abandon] {
        for (operation, fault) in steps {
            for crash in [false, true] {
                let vfs = MemoryVfs::new();
                let mut opened = open(&vfs);
                append_to(&mut opened, 2, LEN);
                let evidence = uncertain(&mut opened, &vfs, Operation::Sync, Fault::Error(ErrorKind::Other));
                vfs.inject(operation, 0, 1, fault);
                let failed = opened.writer.settle(&evidence, intent);
                assert!(matches!(failed, Settled::Uncertain(_)), "{failed:?}");
                if crash {
                    drop(opened);
                    for loss in [Loss::Nothing, Loss::Unsynced, Loss::Random(1), Loss::Random(2)] {
                        let found = vfs.power_cut(loss);
                        let opened = open(&found);
                        assert!(opened.tail == Offset(2) || opened.tail == Offset(5), "{}", opened.tail);
                        assert_whole(&opened, LEN);
                        let tail = opened.tail;
                        drop(opened);
                        assert_eq!(open(&found).tail, tail);
                    }
                    continue;
                }
                let settled = opened.writer.settle(&evidence, intent);
                let tail = match settled {
                    Settled::Committed { end, .. } if intent == Intent::Keep => end,
                    Settled::Absent { .. } if intent == Intent::Abandon => Offset(2),
                    other => panic!("{other:?}"),
                };
                assert_eq!(opened.writer.tail(), tail);
                assert!(opened.writer.epoch().0 >= evidence.epoch.0 + 2, "the failed attempt's epoch is used up");
                append_to(&mut opened, tail.0 + 2, LEN);
                drop(opened);
                for loss in [Loss::Nothing, Loss::Unsynced] {
                    let opened = open(&vfs.power_cut(loss));
                    assert_eq!(opened.tail, Offset(tail.0 + 2));
                    assert_whole(&opened, LEN);
                }
            }
        }
    }
}

/// Would catch a roll whose failure is taken for a refusal although its rename may be on the device (C25).
#[test]
fn a_failed_roll_is_settled_like_a_failed_write() {
    for (operation, fault) in [
        (Operation::Rename, Fault::Error(ErrorKind::Other)),
        (Operation::DirSync, Fault::Error(ErrorKind::Other)),
        (Operation::DirSync, Fault::DoneThenError(ErrorKind::Other)),
        (Operation::DirSync, Fault::Pretended),
    ] {
        let vfs = MemoryVfs::new();
        let mut opened = open(&vfs);
        vfs.inject(operation, 0, 1, fault);
        let mut tail = Offset(0);
        let mut settled = 0;
        while tail < Offset(400) {
            let units = [unit(tail.0, LEN)];
            let evidence = opened.writer.evidence(units.to_vec());
            tail = match opened.writer.append(tail, &units) {
                Append::Durable { end, .. } => end,
                Append::Refused(refused) => panic!("{refused}"),
                Append::Uncertain(_) => match opened.writer.settle(&evidence, Intent::Keep) {
                    Settled::Committed { end, .. } => {
                        settled += 1;
                        end
                    }
                    other => panic!("{other:?}"),
                },
            };
        }
        assert_eq!(settled, if fault == Fault::Pretended { 0 } else { 1 });
        assert_whole(&opened, LEN);
        drop(opened);
        assert_whole(&open(&vfs.power_cut(Loss::Nothing)), LEN);
        if fault != Fault::Pretended {
            let opened = open(&vfs.power_cut(Loss::Unsynced));
            assert_eq!(opened.tail, Offset(400));
            assert_whole(&opened, LEN);
        }
    }
}

/// Would catch a kept append that a later flaw turns into a torn tail, so that its offsets are given out again.
#[test]
fn damage_in_a_kept_append_is_damage_not_a_torn_tail() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 2, LEN);
    let evidence = uncertain(&mut opened, &vfs, Operation::Sync, Fault::Error(ErrorKind::Other));
    assert!(matches!(opened.writer.settle(&evidence, Intent::Keep), Settled::Committed { .. }));
    drop(opened);
    let path = segment_paths(&vfs).pop().expect("the fence's segment");
    let bytes = vfs.contents(&path).expect("file");
    let kept = bytes.windows(9).position(|at| at == b"record 4 ").expect("the last kept record");
    vfs.alter(&path, |bytes| bytes[kept] ^= 1).expect("file");
    for _ in 0..2 {
        let opened = open(&vfs);
        assert_eq!(opened.tail, Offset(5));
        let mut page = landfall_log::Page::default();
        let read = opened.reader.read(Offset(4), landfall_log::VisibleTail(Offset(5)), super::support::WIDE, &mut page);
        assert!(matches!(read, Err(landfall_log::ReadError::Damaged { from: Offset(4), to: Offset(5) })));
    }
}

/// Would catch a failed attempt whose bytes get into the log by way of the spare that it has used (C38).
#[test]
fn a_spare_that_was_written_to_is_made_anew() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 2, LEN);
    let evidence = uncertain(&mut opened, &vfs, Operation::Write, Fault::Error(ErrorKind::Other));
    vfs.inject(Operation::Rename, 0, 2, Fault::Error(ErrorKind::Other));
    for _ in 0..2 {
        assert!(matches!(opened.writer.settle(&evidence, Intent::Keep), Settled::Uncertain(_)));
    }
    drop(opened);
    let is_clean =
        |slot: u8| vfs.contents(&dir().join(format!("spare.{slot}"))).expect("spare").iter().all(|it| *it == 0);
    assert!(!is_clean(0) && !is_clean(1));
    for _ in 0..2 {
        let opened = open(&vfs);
        assert_eq!((opened.tail, opened.torn_bytes), (Offset(2), 0));
        opened.preparer.prepare().expect("spares");
        assert!(is_clean(0) && is_clean(1));
    }
}

/// Would catch a full disk that is answered as uncertain without need, or an append that half happens (F5, C42).
#[test]
fn no_room_is_refused_before_a_byte_is_written_and_reopens_by_itself() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 1, LEN);
    opened.preparer.prepare().expect("spares");
    for operation in [Operation::Allocate, Operation::Create] {
        vfs.inject(operation, 0, u64::MAX, Fault::Error(ErrorKind::StorageFull));
    }
    let mut tail = opened.writer.tail();
    let refused = loop {
        match opened.writer.append(tail, &[unit(tail.0, LEN)]) {
            Append::Durable { end, .. } => tail = end,
            Append::Refused(refused) => break refused,
            Append::Uncertain(cause) => panic!("{cause}"),
        }
    };
    assert!(matches!(refused, RefusedError::NoSpace { .. }), "{refused}");
    assert_whole(&opened, LEN);
    vfs.heal();
    append_to(&mut opened, tail.0 + 100, LEN);
    assert_whole(&opened, LEN);
}

/// Would catch a Keep without room that stays uncertain for ever although its header fits into the spare (C37).
#[test]
fn keep_without_room_ends_absent() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 2, LEN);
    opened.preparer.prepare().expect("spares");
    let evidence = uncertain(&mut opened, &vfs, Operation::Sync, Fault::Error(ErrorKind::Other));
    vfs.inject(Operation::Write, 0, 1, Fault::Error(ErrorKind::StorageFull));
    let settled = opened.writer.settle(&evidence, Intent::Keep);
    assert!(matches!(settled, Settled::Absent { why: AbsentReason::NoSpace }), "{settled:?}");
    append_to(&mut opened, 4, LEN);
    drop(opened);
    let opened = open(&vfs.power_cut(Loss::Unsynced));
    assert_eq!(opened.tail, Offset(4));
    assert_whole(&opened, LEN);
}

/// Would catch a `written` channel whose exposed records vanish because their later sync failed (C41).
#[test]
fn class_written_keeps_what_it_has_exposed_when_the_sync_fails() {
    for intent in [Intent::Keep, Intent::Abandon] {
        let vfs = MemoryVfs::new();
        let written = LogOptions { durability: Durability::Written, ..options() };
        let mut opened = PartitionLog::open(Arc::new(vfs.clone()), dir(), identity(), written).expect("the log opens");
        assert_eq!(opened.writer.class(), Durability::Written);
        append_to(&mut opened, 5, LEN);
        opened.writer.sync().expect("sync");
        append_to(&mut opened, 9, LEN);
        let evidence = opened.writer.evidence(Vec::new());
        vfs.inject(Operation::Sync, 0, 1, Fault::Error(ErrorKind::Other));
        opened.writer.sync().expect_err("the sync fails");
        let settled = opened.writer.settle(&evidence, intent);
        assert!(!matches!(settled, Settled::Uncertain(_)), "{settled:?}");
        assert_eq!(opened.writer.tail(), Offset(9));
        assert_whole(&opened, LEN);
        drop(opened);
        let opened = open(&vfs.power_cut(Loss::Unsynced));
        assert_eq!(opened.tail, Offset(9));
        assert_whole(&opened, LEN);
    }
}
