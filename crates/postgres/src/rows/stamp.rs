//! Where and when a change was committed, and its number among the changes of its transaction (P94).

use landfall_types::Timestamp;

use crate::decode::Begin;
use crate::version::{SEQ_MAX, SeqExhausted};
use crate::{Lsn, Xid};

/// What a row carries beside its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The commit LSN; for copied rows the snapshot's consistent point.
    pub commit_lsn: Lsn,
    /// The number in the transaction, from 1; 0 for copied rows. An update's is the first of its two.
    pub seq: u64,
    /// When it was committed; for copied rows the snapshot's time.
    pub commit_time: Timestamp,
    /// The transaction; `None` for copied rows.
    pub xid: Option<Xid>,
}

impl Stamp {
    /// Of every row copied under one snapshot (P95).
    pub fn snapshot(consistent_point: Lsn, time: Timestamp) -> Self {
        Stamp { commit_lsn: consistent_point, seq: 0, commit_time: time, xid: None }
    }
}

/// Numbers the row events of one transaction as they are received, those of skipped tables too: a replay gives every
/// change its number again.
#[derive(Clone, Copy, Debug)]
pub struct Sequencer {
    begin: Begin,
    last: u64,
}

impl Sequencer {
    /// For the transaction that starts.
    pub fn new(begin: Begin) -> Self {
        Sequencer { begin, last: 0 }
    }

    #[cfg(test)]
    pub(super) fn at(begin: Begin, last: u64) -> Self {
        Sequencer { begin, last }
    }

    /// The transaction.
    pub fn begin(&self) -> &Begin {
        &self.begin
    }

    /// The last number given; 0 before the first.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// For an insert, a delete, or one relation of a truncate.
    pub fn row(&mut self) -> Result<Stamp, SeqExhausted> {
        self.take(1)
    }

    /// For an update, which takes two numbers whether or not it changes the key (P71): the old key's delete has the
    /// first, the new image the second. So numbers do not depend on what a target's key is.
    pub fn update(&mut self) -> Result<Stamp, SeqExhausted> {
        self.take(2)
    }

    fn take(&mut self, count: u64) -> Result<Stamp, SeqExhausted> {
        let seq = self.last + 1;
        let last = self.last + count;
        if last > SEQ_MAX {
            return Err(SeqExhausted { commit_lsn: self.begin.commit_lsn });
        }
        self.last = last;
        let Begin { commit_lsn, commit_time, xid } = self.begin;
        Ok(Stamp { commit_lsn, seq, commit_time, xid: Some(xid) })
    }
}
