//! The origin epoch of the record before each position, beside a pipeline's watermarks (C63, C69).
//!
//! A position is an offset of one history. Where the log was restored from a copy, or lost its unsynced tail, the same
//! offset may name another record; the epoch that appended the record before it tells. The source's own record, kept
//! in one transaction with the watermarks: version 1 (u8), then per partition u32 number, u64 offset, u32 epoch, all
//! little-endian.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use landfall_types::{Epoch, Offset, PartitionId};
use parking_lot::Mutex;

const VERSION: u8 = 1;
const ENTRY_BYTES: usize = 4 + 8 + 4;

/// Which epoch appended what, as far as lanes have read.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    /// Per partition: from this offset on, this epoch; ascending.
    read: Mutex<BTreeMap<PartitionId, Vec<(Offset, Epoch)>>>,
}

/// An offset, and the epoch of the record before it.
pub(super) type Known = BTreeMap<PartitionId, (Offset, Epoch)>;

impl Epochs {
    /// A lane starts anew; what an earlier one has read is read again.
    pub(super) fn restart(&self, partition: PartitionId) {
        self.read.lock().remove(&partition);
    }

    /// A lane has read records of this epoch from `first` on.
    pub(super) fn note(&self, partition: PartitionId, first: Offset, epoch: Epoch) {
        let mut read = self.read.lock();
        let runs = read.entry(partition).or_default();
        if runs.last().is_none_or(|(_, last)| *last != epoch) {
            runs.push((first, epoch));
        }
    }

    /// The epoch of the record before `below`; forgets what lies below that.
    pub(super) fn before(&self, partition: PartitionId, below: Offset) -> Option<Epoch> {
        let last = Offset(below.0.checked_sub(1)?);
        let mut read = self.read.lock();
        let runs = read.get_mut(&partition)?;
        let at = runs.partition_point(|(first, _)| *first <= last).checked_sub(1)?;
        runs.drain(..at);
        runs.first().map(|(_, epoch)| *epoch)
    }
}

pub(super) fn encode(known: &Known) -> Bytes {
    let mut bytes = BytesMut::with_capacity(1 + known.len() * ENTRY_BYTES);
    bytes.put_u8(VERSION);
    for (partition, (offset, epoch)) in known {
        bytes.put_u32_le(partition.0);
        bytes.put_u64_le(offset.0);
        bytes.put_u32_le(epoch.0);
    }
    bytes.freeze()
}

/// `None`: not a record that this version wrote.
pub(super) fn decode(bytes: &[u8]) -> Option<Known> {
    let (version, entries) = bytes.split_first()?;
    let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
    if *version != VERSION || !rest.is_empty() {
        return None;
    }
    let read = |entry: &[u8; ENTRY_BYTES]| {
        let (partition, rest) = entry.split_first_chunk::<4>()?;
        let (offset, rest) = rest.split_first_chunk::<8>()?;
        let epoch = rest.first_chunk::<4>()?;
        let place = (Offset(u64::from_le_bytes(*offset)), Epoch(u32::from_le_bytes(*epoch)));
        Some((PartitionId(u32::from_le_bytes(*partition)), place))
    };
    entries.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a record that does not read back, and hostile bytes that panic.
    #[test]
    fn the_source_record_reads_back_or_is_refused() {
        let known = Known::from([(PartitionId(0), (Offset(7), Epoch(2))), (PartitionId(5), (Offset(1), Epoch(9)))]);
        assert_eq!(decode(&encode(&known)), Some(known));
        assert_eq!(decode(&[1]), Some(Known::new()));
        for hostile in [&[][..], &[2], &[1, 0], &[0; 17], &[1; 18]] {
            assert_eq!(decode(hostile), None);
        }
    }

    /// Catches the epoch of the record at a position taken for that of the one before it.
    #[test]
    fn the_epoch_is_that_of_the_record_before() {
        let epochs = Epochs::default();
        let p = PartitionId(0);
        for (first, epoch) in [(10, 1), (20, 1), (30, 2), (40, 4)] {
            epochs.note(p, Offset(first), Epoch(epoch));
        }
        assert_eq!(epochs.before(p, Offset(10)), None);
        assert_eq!(epochs.before(p, Offset(30)), Some(Epoch(1)));
        assert_eq!(epochs.before(p, Offset(31)), Some(Epoch(2)));
        assert_eq!(epochs.before(p, Offset(99)), Some(Epoch(4)));
        epochs.restart(p);
        assert_eq!(epochs.before(p, Offset(99)), None);
    }
}
