//! Power cuts and killed processes: at every call that changes something, at every byte of a torn unit, twice in a row.

use landfall_log::{Append, Evidence, Fault, Intent, Loss, MemoryVfs, Opened, Operation, RefusedError, Settled};
use landfall_types::Offset;

use super::support::{append_one, append_to, assert_whole, durable, open, segment_paths, try_open, unit, unit_bytes};

const LEN: usize = 700;

/// What a publisher was told.
#[derive(Default)]
struct Ledger {
    /// The end of what was acknowledged.
    acked: u64,
    log_start: u64,
}

/// A life of a partition: appends of one and of several units over some rolls, a trim, housekeeping, a mark, a close.
/// Ends at the first sign that the machine is down.
fn live(vfs: &MemoryVfs, ledger: &mut Ledger) -> Option<()> {
    let mut opened = try_open(vfs).ok()?;
    ledger.acked = ledger.acked.max(opened.tail.0);
    for round in 0..24u64 {
        let tail = opened.writer.tail().0;
        let units: Vec<_> = (tail..tail + 1 + round % 9).map(|n| unit(n, LEN)).collect();
        match opened.writer.append(Offset(tail), &units) {
            Append::Durable { end, .. } => ledger.acked = end.0,
            _ => return None,
        }
        if round % 5 == 4 {
            opened.preparer.prepare().ok()?;
        }
        if round == 16 {
            ledger.log_start = opened.writer.trim(Offset(70)).ok()?.0;
        }
        if round == 18 {
            opened.writer.mark().ok()?;
        }
    }
    opened.writer.close().ok()
}

/// Everything acknowledged is there, nothing torn is, and a second restart finds the same.
#[track_caller]
fn assert_survives(found: &MemoryVfs, ledger: &Ledger) -> Opened {
    let opened = open(found);
    assert!(opened.tail.0 >= ledger.acked, "tail {} below the acknowledged {}", opened.tail, ledger.acked);
    assert!(opened.log_start.0 >= ledger.log_start, "the log start went back");
    assert_eq!(opened.damaged, [], "a crash is no damage");
    assert_whole(&opened, LEN);
    let (tail, start, epoch) = (opened.tail, opened.log_start, opened.epoch);
    drop(opened);
    let again = open(found);
    assert_eq!((again.tail, again.log_start), (tail, start));
    assert_eq!(again.torn_bytes, 0, "a torn region was read again");
    assert!(again.epoch > epoch);
    assert_whole(&again, LEN);
    again
}

/// Would catch an order of write, sync, rename or directory sync that loses an acknowledged record somewhere (I1).
#[test]
fn every_acknowledged_record_survives_a_crash_at_every_step() {
    let whole = MemoryVfs::new();
    live(&whole, &mut Ledger::default()).expect("no crash, no error");
    for step in 0..whole.steps() {
        let vfs = MemoryVfs::new();
        vfs.crash_after(step);
        let mut ledger = Ledger::default();
        // A crash in the closing mark is no error: it costs recovery time only.
        let _ = live(&vfs, &mut ledger);
        assert!(vfs.is_down(), "step {step} was not reached");
        for loss in [Loss::Unsynced, Loss::Nothing, Loss::Random(step), Loss::Random(step + 1_000_000)] {
            let found = vfs.power_cut(loss);
            let mut opened = assert_survives(&found, &ledger);
            let tail = opened.writer.tail().0;
            append_to(&mut opened, tail + 3, LEN);
            drop(opened);
            assert_survives(&found, &Ledger { acked: tail + 3, ..ledger });
        }
    }
}

/// Would catch a recovery that itself cannot be interrupted: after adopting, after cutting, at every step.
#[test]
fn a_crash_at_every_step_of_recovery_loses_nothing() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 20, LEN);
    vfs.inject(Operation::Sync, 0, 1, Fault::Error(std::io::ErrorKind::Other));
    let units: Vec<_> = (20..25).map(|n| unit(n, LEN)).collect();
    assert!(matches!(opened.writer.append(Offset(20), &units), Append::Uncertain(_)));
    drop(opened);
    vfs.heal();
    // Whole units above the last mark, none of them acknowledged, in every mix of lost sectors.
    for seed in 0..12 {
        let torn = vfs.power_cut(if seed == 0 { Loss::Nothing } else { Loss::Random(seed) });
        let rehearsal = torn.power_cut(Loss::Nothing);
        drop(open(&rehearsal));
        for step in 0..rehearsal.steps() {
            let dying = torn.power_cut(Loss::Nothing);
            dying.crash_after(step);
            drop(try_open(&dying).expect_err("the machine is down"));
            for loss in [Loss::Unsynced, Loss::Nothing, Loss::Random(step)] {
                assert_survives(&dying.power_cut(loss), &Ledger { acked: 20, log_start: 0 });
            }
        }
    }
}

/// Would catch a unit of which a part is served, or whole ones before it that are lost (F-L4, FX-1 a).
#[test]
fn f_l4_a_cut_at_every_byte_of_the_last_unit_keeps_all_before_it() {
    for closed in [false, true] {
        let vfs = MemoryVfs::new();
        let mut opened = open(&vfs);
        append_to(&mut opened, 6, LEN);
        if closed {
            opened.writer.close().expect("close");
        } else {
            drop(opened);
        }
        let path = segment_paths(&vfs).pop().expect("a segment");
        // After a close, a mark of 56 bytes stands behind the last unit.
        let end = 4_096 + 6 * unit_bytes(LEN) + if closed { 56 } else { 0 };
        for cut in end - unit_bytes(LEN)..end {
            let found = vfs.power_cut(Loss::Nothing);
            found.alter(&path, |bytes| bytes.truncate(cut)).expect("cut");
            let is_whole = cut >= 4_096 + 6 * unit_bytes(LEN) - (unit_bytes(LEN) - 56 - LEN);
            let tail = if is_whole { 6 } else { 5 };
            let opened = assert_survives(&found, &Ledger { acked: tail, log_start: 0 });
            assert_eq!(opened.writer.tail(), Offset(tail), "cut at {cut}, closed: {closed}");
        }
    }
}

/// F-L8: half a batch behind N whole records, then one more record: it gets offset N, and nothing cut comes back.
#[test]
fn f_l8_a_record_after_a_torn_batch_takes_its_offset_for_good() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 9, LEN);
    vfs.inject(Operation::Write, 0, 1, Fault::Torn(std::io::ErrorKind::Other));
    let batch: Vec<_> = (9..15).map(|n| unit(n + 1_000, LEN)).collect();
    assert!(matches!(opened.writer.append(Offset(9), &batch[..1]), Append::Uncertain(_)));
    drop(opened);
    let mut opened = open(&vfs);
    assert_eq!(opened.tail, Offset(9));
    assert!(opened.torn_bytes > 0);
    append_to(&mut opened, 10, LEN);
    drop(opened);
    for _ in 0..2 {
        let opened = open(&vfs);
        assert_eq!((opened.tail, opened.torn_bytes), (Offset(10), 0));
        assert_whole(&opened, LEN);
    }
}

/// F-L9: crashes at random with sectors lost at random; and its variant, a sync that fails.
#[test]
fn f_l9_every_committed_record_is_there_at_its_offset_after_200_tears() {
    for seed in 0..200u64 {
        let vfs = MemoryVfs::new();
        let mut opened = open(&vfs);
        let mut acked = 0;
        vfs.inject(Operation::Sync, seed % 40, 1, Fault::Error(std::io::ErrorKind::Other));
        for _ in 0..30 {
            let tail = opened.writer.tail();
            let units: Vec<_> = (tail.0..tail.0 + 1 + seed % 4).map(|n| unit(n, LEN)).collect();
            let evidence: Evidence = opened.writer.evidence(units.clone());
            match opened.writer.append(tail, &units) {
                Append::Durable { end, .. } => acked = end.0,
                // The fault met a spare file being made: no byte of the append was written, so it is tried again.
                Append::Refused(refused) => assert!(matches!(refused, RefusedError::Unprepared { .. }), "{refused}"),
                Append::Uncertain(_) if seed % 3 == 0 => break,
                Append::Uncertain(_) => match opened.writer.settle(&evidence, Intent::Keep) {
                    Settled::Committed { end, .. } => acked = end.0,
                    other => panic!("{other:?}"),
                },
            }
        }
        drop(opened);
        assert_survives(&vfs.power_cut(Loss::Random(seed)), &Ledger { acked, log_start: 0 });
    }
}

/// Would catch an unsynced tail that is adopted in place, so that a power cut after recovery takes it back (C80).
#[test]
fn an_adopted_tail_is_durable_once_the_log_is_open() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 4, LEN);
    let origin = opened.epoch;
    vfs.inject(Operation::Sync, 0, u64::MAX, Fault::Error(std::io::ErrorKind::Other));
    assert!(matches!(append_one(&mut opened, LEN), Append::Uncertain(_)));
    drop(opened);
    // The process dies; the page cache lives on.
    vfs.heal();
    let opened = open(&vfs);
    assert_eq!((opened.tail, opened.adopted_units), (Offset(5), 1));
    drop(opened);
    let found = vfs.power_cut(Loss::Unsynced);
    let opened = assert_survives(&found, &Ledger { acked: 5, log_start: 0 });
    let tail = landfall_log::VisibleTail(Offset(5));
    assert_eq!(opened.reader.origin_epoch(Offset(4), tail).expect("read"), origin);
}

/// Would catch restarts that pile up files, or that use up anything but an epoch (C81).
#[test]
fn restarts_without_records_leave_one_segment() {
    let vfs = MemoryVfs::new();
    let mut opened = open(&vfs);
    append_to(&mut opened, 3, LEN);
    opened.writer.close().expect("close");
    for _ in 0..20 {
        open(&vfs).writer.close().expect("close");
    }
    assert_eq!(segment_paths(&vfs).len(), 2);
    let mut opened = assert_survives(&vfs, &Ledger { acked: 3, log_start: 0 });
    assert_eq!(durable(append_one(&mut opened, LEN)), Offset(4));
}
