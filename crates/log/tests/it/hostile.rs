//! Bytes that no log has written: no panic, no allocation without bound, no record invented (I14, C104).

use std::path::Path;

use landfall_log::{Loss, MemoryVfs, OpenError, Page, ReadError, VisibleTail};
use landfall_types::Offset;

use super::support::{WIDE, append_to, dir, open, segment_paths, try_open};

const LEN: usize = 120;

struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound.max(1)
    }
}

/// Opens and reads all there is, by whatever answers come; then opens again.
fn exercise(vfs: &MemoryVfs) {
    for _ in 0..2 {
        match try_open(vfs) {
            Ok(opened) => {
                let (mut at, mut page) = (opened.log_start, Page::default());
                while at < opened.tail {
                    at = match opened.reader.read(at, VisibleTail(opened.tail), WIDE, &mut page) {
                        Ok(()) => page.units.last().expect("a read below the tail moves").end(),
                        Err(ReadError::Damaged { to, .. }) => to,
                        Err(error) => panic!("{error}"),
                    };
                }
                assert_eq!(at, opened.tail);
                for time in [i64::MIN, 0, i64::MAX] {
                    opened
                        .reader
                        .at_time(landfall_types::Timestamp(time), VisibleTail(opened.tail))
                        .expect("some offset");
                }
            }
            Err(OpenError::Failed { step, source, .. }) => panic!("{step}: {source}"),
            Err(_) => {}
        }
    }
}

/// Would catch a panic or a blind allocation on noise as a segment, under every name that gets it read.
#[test]
fn noise_as_a_segment_is_refused_or_passed_by() {
    let mut noise = Noise(0x1234_5678_9abc_def1);
    for round in 0..300 {
        let vfs = MemoryVfs::new();
        let len = [1, 55, 56, 2_047, 2_048, 4_095, 4_096, 4_097, 10_000][round % 9];
        let bytes: Vec<u8> = (0..len).map(|_| noise.next() as u8).collect();
        vfs.put(&dir().join(format!("{:020}.seg", noise.below(3) * 7)), &bytes);
        if round % 2 == 0 {
            vfs.put(Path::new("/data/channels/orders/0/spare.0"), &bytes);
        }
        exercise(&vfs);
    }
}

/// Would catch the same on files that are almost right: flipped, moved, cut and doubled pieces of real segments.
#[test]
fn mutated_segments_never_panic_and_never_invent_a_record() {
    let whole = MemoryVfs::new();
    let mut opened = open(&whole);
    append_to(&mut opened, 700, LEN);
    drop(opened);
    let paths = segment_paths(&whole);
    assert!(paths.len() >= 2);
    for seed in 1..400u64 {
        let mut noise = Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let vfs = whole.power_cut(Loss::Nothing);
        for _ in 0..1 + noise.below(4) {
            let path = &paths[noise.below(paths.len())];
            vfs.alter(path, |bytes| {
                let len = bytes.len();
                let reach = if noise.next() & 1 == 0 { 8_192 } else { len };
                let at = noise.below(reach).min(len.saturating_sub(1));
                let span = (1 + noise.below(600)).min(len - at);
                match noise.below(5) {
                    0 if len > 0 => bytes[at] ^= 1 << noise.below(8),
                    1 => bytes[at..at + span].fill(noise.next() as u8),
                    2 => {
                        let from = noise.below(len - span + 1);
                        bytes.copy_within(from..from + span, at);
                    }
                    3 => bytes.truncate(at),
                    _ => {
                        let piece = bytes[at..at + span].to_vec();
                        bytes.splice(at..at, piece);
                    }
                }
            })
            .expect("a file");
        }
        exercise(&vfs);
    }
}

/// Would catch hostile numbers in a header whose checksum is right.
#[test]
fn headers_with_hostile_numbers_are_refused_or_borne() {
    let whole = MemoryVfs::new();
    let mut opened = open(&whole);
    append_to(&mut opened, 20, LEN);
    drop(opened);
    let path = segment_paths(&whole).pop().expect("segment");
    for (at, len) in [(12, 4), (40, 8), (48, 8), (56, 8), (64, 8), (72, 4), (76, 4), (80, 8), (88, 8)] {
        for value in [0u64, 1, u64::MAX, u64::MAX - 1, 1 << 63, 1 << 32] {
            let vfs = whole.power_cut(Loss::Nothing);
            vfs.alter(&path, |bytes| {
                for start in [0, 2_048] {
                    bytes[start + at..start + at + len].copy_from_slice(&value.to_le_bytes()[..len]);
                    let crc = crc32c::crc32c(&bytes[start..start + 2_044]);
                    bytes[start + 2_044..start + 2_048].copy_from_slice(&crc.to_le_bytes());
                }
            })
            .expect("a file");
            match try_open(&vfs) {
                Ok(opened) => assert!(opened.tail <= Offset::MAX),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
    }
}
