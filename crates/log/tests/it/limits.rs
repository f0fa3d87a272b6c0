//! Numbers at the end of their range (F-L6): no wrap, no reuse, and the first impossible one says so.

use landfall_log::{
    Append, Fault, Intent, Loss, MemoryVfs, OpenError, Operation, RefusedError, Settled, UncertainCause,
};
use landfall_types::{Coded, Epoch, Offset};

use super::support::{append_one, append_to, assert_whole, dir, durable, open, segment_paths, try_open, unit};

const LEN: usize = 300;

/// A partition whose only segment has the given numbers and no record, as the format page lays them out.
fn partition(epoch: u32, number: u64, base: u64) -> MemoryVfs {
    let vfs = MemoryVfs::new();
    drop(open(&vfs));
    let mut bytes = vfs.contents(&segment_paths(&vfs)[0]).expect("a fresh segment");
    for start in [0, 2_048] {
        let mut put = |at: usize, field: &[u8]| bytes[start + at..start + at + field.len()].copy_from_slice(field);
        put(12, &epoch.to_le_bytes());
        put(40, &number.to_le_bytes());
        put(48, &base.to_le_bytes());
        // Some trimmed segment came before.
        put(56, &1u64.to_le_bytes());
        put(64, &4_096u64.to_le_bytes());
        put(80, &base.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[start..start + 2_044]);
        bytes[start + 2_044..start + 2_048].copy_from_slice(&crc.to_le_bytes());
    }
    let vfs = MemoryVfs::new();
    vfs.put(&dir().join(format!("{base:020}.seg")), &bytes);
    vfs
}

/// Would catch an offset that wraps to 0, or one that is given twice, at the true end of the range.
#[test]
fn f_l6_offsets_end_without_a_wrap() {
    // The limit itself is never assigned: it stands for "none" in the format.
    let base = u64::MAX - 11;
    let vfs = partition(5, 9, base);
    let mut opened = open(&vfs);
    assert_eq!(opened.tail, Offset(base));
    for n in 0..10 {
        assert_eq!(durable(append_one(&mut opened, LEN)), Offset(base + n + 1));
    }
    for _ in 10..20 {
        let Append::Refused(refused) = append_one(&mut opened, LEN) else { panic!("an impossible offset") };
        assert!(matches!(refused, RefusedError::NumbersExhausted { number: "offset", .. }), "{refused}");
        assert_eq!(refused.code().to_string(), "LF-CH0036");
    }
    assert_whole(&opened, LEN);
    opened.writer.close().expect("close");
    for _ in 0..2 {
        let mut opened = open(&vfs.power_cut(Loss::Unsynced));
        assert_eq!(opened.tail, Offset(u64::MAX - 1));
        assert!(matches!(append_one(&mut opened, LEN), Append::Refused(RefusedError::NumbersExhausted { .. })));
        assert_whole(&opened, LEN);
    }
}

/// Would catch an epoch that wraps, so that an older owner would seem newer.
#[test]
fn f_l6_epochs_end_without_a_wrap() {
    let vfs = partition(u32::MAX - 2, 9, 0);
    let mut opened = open(&vfs);
    assert_eq!(opened.epoch, Epoch(u32::MAX - 1));
    append_to(&mut opened, 5, LEN);
    opened.preparer.prepare().expect("prepare");
    let units = [unit(5, LEN)];
    let evidence = opened.writer.evidence(units.to_vec());
    vfs.inject(Operation::Sync, 0, 1, Fault::Error(std::io::ErrorKind::Other));
    assert!(matches!(opened.writer.append(Offset(5), &units), Append::Uncertain(_)));
    let settled = opened.writer.settle(&evidence, Intent::Keep);
    assert!(
        matches!(settled, Settled::Uncertain(UncertainCause::NumbersExhausted { number: "epoch", .. })),
        "{settled:?}"
    );
    drop(opened);
    let refused = try_open(&vfs).expect_err("no epoch is left");
    assert!(matches!(refused, OpenError::NumbersExhausted { number: "epoch", .. }), "{refused}");
    assert_eq!(refused.code().to_string(), "LF-CH0036");
}

/// Would catch a segment number that is used twice, so that two files share their checksums' seed.
#[test]
fn f_l6_segment_numbers_end_without_a_wrap() {
    let vfs = partition(5, u64::MAX - 2, 0);
    let mut opened = open(&vfs);
    let refused = loop {
        match append_one(&mut opened, LEN) {
            Append::Durable { .. } => {}
            Append::Refused(refused) => break refused,
            Append::Uncertain(cause) => panic!("{cause}"),
        }
    };
    assert!(matches!(refused, RefusedError::NumbersExhausted { number: "segment number", .. }), "{refused}");
    assert!(opened.writer.tail() > Offset(100));
    assert_whole(&opened, LEN);
    drop(opened);
    let refused = try_open(&vfs).expect_err("no number is left");
    assert!(matches!(refused, OpenError::NumbersExhausted { number: "segment number", .. }), "{refused}");
}
