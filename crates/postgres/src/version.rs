//! The version of a change in the world (P92–P96): what decides which of two rows of one key is the later.
//!
//! 128 bits, most significant first: epoch 16, commit LSN 64, `_seq` 48. Unique per change, so no tie is ever broken
//! by arrival; and by commit, since row locks make the writers of a key commit in the order in which they wrote. A
//! row's own LSN would not do: written before a snapshot and committed after it, it would lose to the copied old row.

use std::fmt;

use landfall_types::{Code, Coded, Kind, Retry};

use crate::Lsn;
use crate::row_codes as codes;

/// The last `_seq` that a version can hold: 2^48 − 1.
pub const SEQ_MAX: u64 = (1 << 48) - 1;

/// The version of one change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u128);

impl Version {
    /// The version of the change `seq` of the transaction committed at `commit_lsn`; `None` past [`SEQ_MAX`].
    pub fn new(epoch: u16, commit_lsn: Lsn, seq: u64) -> Option<Self> {
        let seq = (seq <= SEQ_MAX).then_some(u128::from(seq))?;
        Some(Version(u128::from(epoch) << 112 | u128::from(commit_lsn.0) << 48 | seq))
    }

    /// The version of rows copied under a snapshot: below every change committed from there on (P95).
    pub fn of_snapshot(epoch: u16, consistent_point: Lsn) -> Self {
        Version(u128::from(epoch) << 112 | u128::from(consistent_point.0) << 48)
    }

    /// As one number.
    pub const fn get(self) -> u128 {
        self.0
    }

    /// The epoch of the source.
    pub const fn epoch(self) -> u16 {
        (self.0 >> 112) as u16
    }

    /// The commit LSN, or a snapshot's consistent point.
    pub const fn commit_lsn(self) -> Lsn {
        Lsn((self.0 >> 48) as u64)
    }

    /// The number in its transaction; 0 for copied rows.
    pub const fn seq(self) -> u64 {
        self.0 as u64 & SEQ_MAX
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.epoch(), self.commit_lsn(), self.seq())
    }
}

/// LF-PG0310: a transaction's row events ran out of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the transaction committed at {commit_lsn} has more than {SEQ_MAX} row events")]
pub struct SeqExhausted {
    /// The transaction's commit LSN.
    pub commit_lsn: Lsn,
}

impl Coded for SeqExhausted {
    fn code(&self) -> Code {
        codes::TRANSACTION_TOO_LONG
    }

    fn kind(&self) -> Kind {
        codes::kind_of(self.code())
    }

    fn retry(&self) -> Retry {
        codes::retry_of(self.code())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Catches a field that reaches into its neighbour, and an order that is not the one of the three numbers.
        #[test]
        fn versions_order_as_epoch_then_commit_then_seq(
            one in (any::<u16>(), any::<u64>(), 0..=SEQ_MAX),
            other in (any::<u16>(), any::<u64>(), 0..=SEQ_MAX),
        ) {
            let version = |(epoch, lsn, seq)| Version::new(epoch, Lsn(lsn), seq).expect("in range");
            prop_assert_eq!(version(one).cmp(&version(other)), one.cmp(&other));
            let back = (version(one).epoch(), version(one).commit_lsn().0, version(one).seq());
            prop_assert_eq!(back, one);
        }
    }

    /// Catches a copied row that beats a change of the same commit LSN or later (P95).
    #[test]
    fn every_change_from_the_consistent_point_on_beats_the_snapshot() {
        let copied = Version::of_snapshot(3, Lsn(100));
        assert!(Version::new(3, Lsn(100), 1) > Some(copied));
        assert!(Version::new(3, Lsn(101), 1) > Some(copied));
        assert!(Version::new(4, Lsn(1), 1) > Some(copied), "a later epoch starts anew");
        assert!(Version::new(3, Lsn(99), SEQ_MAX) < Some(copied));
    }

    /// Catches a number that wraps into the commit LSN.
    #[test]
    fn a_seq_past_48_bits_is_refused() {
        assert_eq!(Version::new(1, Lsn(1), SEQ_MAX).map(Version::seq), Some(SEQ_MAX));
        assert_eq!(Version::new(1, Lsn(1), SEQ_MAX + 1), None);
    }
}
