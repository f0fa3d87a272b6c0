//! Holds on source batches. A hold that is dropped FAILS its batch for its sink; only `deliver` delivers.

use std::sync::Arc as StdArc;

use landfall_types::{Code, Epoch, PartitionId};

use super::ring::{Books, Shared};
use super::sync::Arc;
use crate::codes;
use crate::contract::SinkId;

/// Why a batch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailCause {
    /// For programs.
    pub code: Code,
    /// For people.
    pub text: StdArc<str>,
}

impl FailCause {
    /// A cause.
    pub fn new(code: Code, text: impl Into<StdArc<str>>) -> Self {
        FailCause { code, text: text.into() }
    }

    fn dropped() -> Self {
        FailCause::new(codes::HOLD_DROPPED, "a hold was given up before its rows were settled")
    }
}

impl std::fmt::Display for FailCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.text, self.code)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// The driver's own: on the chain and every sink.
    Whole,
    /// One sink's, or 0 for the chain.
    One(u8),
}

/// A hold on one source batch, for one sink or (the driver's own) for all. Dropping it FAILS the batch there.
#[must_use = "dropping a hold fails its batch"]
#[derive(Debug)]
pub struct Ack {
    ring: Arc<Shared>,
    sequence: u64,
    scope: Scope,
    is_resolved: bool,
}

impl Ack {
    pub(super) fn whole(ring: Arc<Shared>, sequence: u64) -> Self {
        Ack { ring, sequence, scope: Scope::Whole, is_resolved: false }
    }

    /// One more hold, for a sink (or [`SinkId`] 0, the chain).
    pub fn share(&self, sink: SinkId) -> Ack {
        debug_assert!(self.scope == Scope::Whole || self.scope == Scope::One(sink.0));
        self.ring.hold(self.sequence, usize::from(sink.0));
        Ack { ring: self.ring.clone(), sequence: self.sequence, scope: Scope::One(sink.0), is_resolved: false }
    }

    /// One more hold for the same sink.
    pub(crate) fn again(&self) -> Ack {
        match self.scope {
            Scope::One(sink) => self.share(SinkId(sink)),
            // The driver's own hold is one of a kind; a second one is never asked for.
            Scope::Whole => self.share(SinkId(0)),
        }
    }

    /// The rows are durable in the sink, dead-lettered, or were none.
    pub fn deliver(mut self) {
        self.resolve(None);
    }

    /// The rows are not in the sink and must be read again.
    pub fn fail(mut self, cause: &FailCause) {
        self.resolve(Some(cause));
    }

    /// Enters numbers into the slot's books for one sink.
    pub(crate) fn book_for(&self, sink: SinkId, entry: Books) {
        self.ring.book(self.sequence, usize::from(sink.0), entry);
    }

    /// Enters numbers into the books of this hold's sink.
    pub(crate) fn book(&self, entry: Books) {
        if let Scope::One(sink) = self.scope {
            self.ring.book(self.sequence, usize::from(sink), entry);
        }
    }

    /// The partition of the batch.
    pub fn partition(&self) -> PartitionId {
        self.ring.partition()
    }

    /// The epoch of the batch.
    pub fn epoch(&self) -> Epoch {
        self.ring.epoch()
    }

    /// Whether the batch's epoch has ended, or will because an earlier batch failed: its rows will be read again.
    pub(crate) fn is_stale(&self) -> bool {
        let is_behind = match self.scope {
            Scope::One(sink) => self.ring.is_behind_a_failed(self.sequence, usize::from(sink)),
            Scope::Whole => false,
        };
        is_behind || self.ring.is_closed()
    }

    fn resolve(&mut self, failed: Option<&FailCause>) {
        if std::mem::replace(&mut self.is_resolved, true) {
            return;
        }
        match self.scope {
            Scope::One(sink) => self.ring.resolve(self.sequence, usize::from(sink), failed),
            Scope::Whole => {
                for sink in 0..self.ring.sinks() {
                    self.ring.resolve(self.sequence, sink, failed);
                }
            }
        }
    }
}

impl Drop for Ack {
    fn drop(&mut self) {
        if !self.is_resolved {
            self.resolve(Some(&FailCause::dropped()));
        }
    }
}

/// Holds on many batches. Dropping it fails them all.
#[must_use = "dropping a set of holds fails every batch in it"]
#[derive(Debug, Default)]
pub struct AckSet {
    acks: Vec<Ack>,
}

impl AckSet {
    /// An empty set.
    pub fn new() -> Self {
        AckSet::default()
    }

    /// Takes a hold in.
    pub fn push(&mut self, ack: Ack) {
        self.acks.push(ack);
    }

    /// Takes all holds of another set in.
    pub fn merge(&mut self, mut other: AckSet) {
        self.acks.append(&mut other.acks);
    }

    /// How many holds there are.
    pub fn len(&self) -> usize {
        self.acks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.acks.is_empty()
    }

    /// All rows are settled.
    pub fn deliver(self) {
        self.acks.into_iter().for_each(Ack::deliver);
    }

    /// All rows must be read again.
    pub fn fail(self, cause: &FailCause) {
        self.acks.into_iter().for_each(|ack| ack.fail(cause));
    }
}
