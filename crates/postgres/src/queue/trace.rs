//! Where a sampled transaction spends its time on the way through the queue (P33).
//!
//! Sampling goes by a hash of the transaction's number, so every part that asks decides alike. Off, it costs one branch
//! per bundle: no span, no clock, no look at a record.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tracing::Span;

use super::channel::Parcel;
use super::sync::Mutex;
use crate::Xid;
use crate::log_record::LogRecord;

/// The most transactions that the registry holds.
const OPEN_MAX: usize = 1_024;

/// The registry of sampled transactions.
#[derive(Debug)]
pub struct TransactionTrace {
    one_in: u32,
    open: Mutex<HashMap<Xid, TracedTransaction>>,
}

/// How far a sampled transaction has come, in bundles that hold something of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracedTransaction {
    /// Shipped by the pump.
    pub shipped: u64,
    /// Picked up by the queue worker.
    pub popped: u64,
}

impl TransactionTrace {
    /// Nothing is sampled.
    pub fn off() -> Self {
        Self::one_in(0)
    }

    /// One of so many transactions is sampled; 0: none.
    pub fn one_in(one_in: u32) -> Self {
        TransactionTrace { one_in, open: Mutex::new(HashMap::new()) }
    }

    /// Whether anything is sampled.
    pub fn is_on(&self) -> bool {
        self.one_in > 0
    }

    /// Whether this transaction is.
    pub fn is_sampled(&self, xid: Xid) -> bool {
        self.is_on() && xid.0 != 0 && is_one_in(xid, self.one_in)
    }

    /// How far it has come, if it is sampled and open.
    pub fn open(&self, xid: Xid) -> Option<TracedTransaction> {
        self.open.lock().get(&xid).copied()
    }

    /// It has ended: the decoder has seen its commit or its abort.
    pub fn note_ended(&self, xid: Xid) {
        if self.is_sampled(xid) {
            self.open.lock().remove(&xid);
        }
    }

    /// A bundle with records of these transactions leaves the pump.
    pub(super) fn note_shipped(&self, xids: impl Iterator<Item = Xid>) {
        let mut open = self.open.lock();
        for xid in runs(xids).filter(|xid| self.is_sampled(*xid)) {
            if open.len() < OPEN_MAX || open.contains_key(&xid) {
                open.entry(xid).or_default().shipped += 1;
            }
        }
    }

    /// The same at its pick-up; gives the spans if a record is sampled.
    pub(super) fn picked_up(&self, parcel: &Parcel, queued: Duration) -> Option<BundleTrace> {
        let mut is_traced = false;
        {
            let mut open = self.open.lock();
            for xid in runs(parcel.arena.xids()).filter(|xid| self.is_sampled(*xid)) {
                is_traced = true;
                if let Some(transaction) = open.get_mut(&xid) {
                    transaction.popped += 1;
                }
            }
        }
        is_traced.then(|| BundleTrace::open(parcel, queued, self.one_in))
    }
}

/// Neighbours of one transaction count once.
fn runs(xids: impl Iterator<Item = Xid>) -> impl Iterator<Item = Xid> {
    let mut last = None;
    xids.filter(move |xid| last.replace(*xid) != Some(*xid))
}

/// Transactions are numbered in a row: without mixing, one in two would be every write of one of two clients.
fn is_one_in(xid: Xid, one_in: u32) -> bool {
    let mixed = u64::from(xid.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mixed % u64::from(one_in.max(1)) == 0
}

/// The spans of one bundle at work.
#[derive(Debug)]
pub(super) struct BundleTrace {
    bundle: Span,
    one_in: u32,
}

impl BundleTrace {
    fn open(parcel: &Parcel, queued: Duration, one_in: u32) -> Self {
        let fill = parcel.opened_at.map_or(Duration::ZERO, |at| since(at, parcel.shipped_at));
        let queue = tracing::info_span!("queue", fill_ms = millis(fill), queued_ms = millis(queued));
        let bundle = tracing::info_span!(parent: &queue, "bundle", records = parcel.arena.len());
        BundleTrace { bundle, one_in }
    }

    /// The span of a record; disabled unless its transaction is sampled.
    pub(super) fn record(&self, record: &LogRecord<'_>) -> Span {
        if record.xid.0 == 0 || !is_one_in(record.xid, self.one_in) {
            return Span::none();
        }
        tracing::info_span!(parent: &self.bundle, "record", lsn = %record.lsn, xid = record.xid.0, kind = record.kind.label())
    }
}

fn since(from: Instant, to: Instant) -> Duration {
    to.saturating_duration_since(from)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
