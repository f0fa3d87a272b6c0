//! The calls that one sub-stream has admitted and the peer has not acknowledged, and their frames on the wire.
//!
//! One ring: its front is the oldest unacknowledged call, its stream offsets are dense, and the calls that
//! are on the wire of the present RPC are a prefix of it. A *frame* is one message: a batch, or consecutive
//! single-record calls joined. Wire offsets count frames from 0 on every RPC; the frame table maps them back.
//!
//! An ack works on what it acknowledges and on nothing else. A call leaves only by an ack or by being taken
//! back, so none is lost or sent in another order (I3). Synchronous; time is an argument.

use std::collections::VecDeque;
use std::time::Instant;

use crate::call::PreparedBatch;
use crate::error::Load;
use crate::id::MessageId;

/// How far single records may be joined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coalesce {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

/// One message to send.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) wire_offset: i64,
    pub(crate) calls: Vec<PreparedBatch>,
}

/// Calls on the wire in one message of the present RPC.
#[derive(Debug)]
struct SentFrame {
    first: u64,
    calls: u64,
    handed_at: Instant,
}

/// What an ack did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AckEffect {
    /// Not above the last one.
    Ignored,
    /// Above what was handed to the transport: nothing was applied.
    Violation {
        /// The highest wire offset that was handed over; `None`: none was.
        highest: Option<i64>,
    },
    /// The front moved; the room of so much is free again.
    Moved {
        /// What was acknowledged.
        freed: Load,
    },
}

/// Running counts since the stream was opened, in records unless they say otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) admitted: Load,
    pub(crate) acked: Load,
    pub(crate) taken_back: Load,
    pub(crate) dropped: Load,
    pub(crate) resent_records: u64,
    pub(crate) frames: u64,
    pub(crate) ignored_acks: u64,
}

impl Totals {
    /// Records that are admitted and have met no end.
    pub(crate) fn in_flight_records(&self) -> u64 {
        self.admitted.records - self.acked.records - self.taken_back.records - self.dropped.records
    }
}

/// A call that was taken back.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) offset: u64,
    pub(crate) call: PreparedBatch,
    /// Whether any RPC may have stored it.
    pub(crate) may_be_stored: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    calls: VecDeque<PreparedBatch>,
    /// Stream offset of `calls[0]`.
    front: u64,
    /// Next stream offset.
    next: u64,
    /// First stream offset that this RPC has not been handed.
    unsent: u64,
    frames: VecDeque<SentFrame>,
    /// Wire offset of `frames[0]`.
    first_wire: u64,
    /// Stream offsets below it were handed to some RPC.
    handed: u64,
    /// Stream offsets below it were handed to an RPC before this one.
    handed_before: u64,
    /// From here on this RPC stored nothing: the peer refused this call by name.
    refused_from: Option<u64>,
    queued: Load,
    totals: Totals,
}

impl Ledger {
    /// Admits a call under the next stream offset; `None`, with the call, when the numbers are used up.
    pub(crate) fn push(&mut self, call: PreparedBatch) -> Result<u64, PreparedBatch> {
        if self.next >= MessageId::MAX_OFFSET {
            return Err(call);
        }
        let load = call.load();
        add(&mut self.totals.admitted, load);
        add(&mut self.queued, load);
        self.calls.push_back(call);
        self.next += 1;
        Ok(self.next - 1)
    }

    /// The oldest unacknowledged stream offset, or the next one if there is none.
    pub(crate) fn front(&self) -> u64 {
        self.front
    }

    /// The next stream offset.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Calls that are neither acknowledged nor taken back.
    pub(crate) fn unacked(&self) -> u64 {
        self.calls.len() as u64
    }

    /// Whether this RPC has frames that are not acknowledged.
    pub(crate) fn has_frames_in_flight(&self) -> bool {
        !self.frames.is_empty()
    }

    /// What is admitted and not yet handed to this RPC.
    pub(crate) fn queued(&self) -> Load {
        self.queued
    }

    /// When the oldest unacknowledged frame of this RPC was handed over, and its first call.
    pub(crate) fn oldest_frame(&self) -> Option<(u64, Instant)> {
        self.frames.front().map(|frame| (frame.first, frame.handed_at))
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// Whether the next frame would be full, or a batch: nothing to wait for.
    pub(crate) fn next_frame_is_full(&self, limits: Coalesce) -> bool {
        let mut joined = Load::default();
        for call in self.unsent_calls() {
            if !call.is_single() {
                return true;
            }
            joined.records += 1;
            joined.bytes += call.payload_bytes();
            if joined.records >= limits.records || joined.bytes >= limits.bytes {
                return true;
            }
        }
        false
    }

    /// Hands over the next frame: a batch, or as many consecutive single records as the limits allow.
    pub(crate) fn next_frame(&mut self, limits: Coalesce, now: Instant) -> Option<Frame> {
        let mut calls = Vec::new();
        let mut bytes = 0;
        let mut load = Load::default();
        for call in self.unsent_calls() {
            if !calls.is_empty() {
                let fits = call.is_single()
                    && (calls.len() as u64) < limits.records
                    && bytes + call.payload_bytes() <= limits.bytes;
                if !fits {
                    break;
                }
            }
            let single = call.is_single();
            bytes += call.payload_bytes();
            add(&mut load, call.load());
            calls.push(call.clone());
            if !single {
                break;
            }
        }
        if calls.is_empty() {
            return None;
        }
        let count = calls.len() as u64;
        let first = self.unsent;
        let again = self.handed.saturating_sub(first).min(count);
        self.totals.resent_records += calls.iter().take(again as usize).map(PreparedBatch::record_count).sum::<u64>();
        self.totals.frames += 1;
        sub(&mut self.queued, load);
        let wire_offset = i64::try_from(self.first_wire + self.frames.len() as u64).ok()?;
        self.frames.push_back(SentFrame { first, calls: count, handed_at: now });
        self.unsent += count;
        self.handed = self.handed.max(self.unsent);
        Some(Frame { wire_offset, calls })
    }

    /// Applies a cumulative ack of this RPC.
    pub(crate) fn ack(&mut self, wire_offset: i64) -> AckEffect {
        let sent = self.first_wire + self.frames.len() as u64;
        let Some(acked) = u64::try_from(wire_offset).ok().and_then(|offset| offset.checked_add(1)) else {
            self.totals.ignored_acks += 1;
            return AckEffect::Ignored;
        };
        if acked > sent {
            return AckEffect::Violation {
                highest: sent.checked_sub(1).and_then(|highest| i64::try_from(highest).ok()),
            };
        }
        if acked <= self.first_wire {
            self.totals.ignored_acks += 1;
            return AckEffect::Ignored;
        }
        let mut freed = Load::default();
        while self.first_wire < acked
            && let Some(frame) = self.frames.pop_front()
        {
            self.first_wire += 1;
            for call in self.calls.drain(..frame.calls as usize) {
                add(&mut freed, call.load());
            }
            self.front += frame.calls;
        }
        add(&mut self.totals.acked, freed);
        self.give_memory_back();
        AckEffect::Moved { freed }
    }

    /// A new RPC: everything unacknowledged is to be sent again, in order, from wire offset 0.
    pub(crate) fn restart(&mut self) {
        self.frames.clear();
        self.first_wire = 0;
        self.unsent = self.front;
        self.handed_before = self.handed;
        self.refused_from = None;
        self.queued = self.calls.iter().fold(Load::default(), |mut sum, call| {
            add(&mut sum, call.load());
            sum
        });
    }

    /// The calls of one frame of this RPC, for a refusal that names it.
    pub(crate) fn calls_of_frame(&self, wire_offset: i64) -> Option<(u64, u64)> {
        let at = u64::try_from(wire_offset).ok()?.checked_sub(self.first_wire)?;
        let frame = self.frames.get(usize::try_from(at).ok()?)?;
        Some((frame.first, frame.first + frame.calls - 1))
    }

    /// The calls that this RPC was handed and has not acknowledged.
    pub(crate) fn sent_calls(&self) -> Option<(u64, u64)> {
        (self.unsent > self.front && !self.frames.is_empty()).then(|| (self.front, self.unsent - 1))
    }

    /// The peer says that nothing from here on was stored by this RPC.
    pub(crate) fn refused_from(&mut self, offset: u64) {
        self.refused_from = Some(offset);
    }

    /// Takes all unacknowledged calls out. Their ids stay given out.
    pub(crate) fn take_back(&mut self) -> Vec<Returned> {
        let returned = self.take_all();
        for call in &returned {
            add(&mut self.totals.taken_back, call.call.load());
        }
        returned
    }

    /// Counts all unacknowledged calls as dropped with the handle.
    pub(crate) fn drop_all(&mut self) -> u64 {
        let dropped = self.take_all();
        for call in &dropped {
            add(&mut self.totals.dropped, call.call.load());
        }
        dropped.len() as u64
    }

    fn take_all(&mut self) -> Vec<Returned> {
        let (front, handed, before) = (self.front, self.handed, self.handed_before);
        let refused = self.refused_from.unwrap_or(u64::MAX);
        self.frames.clear();
        self.unsent = self.next;
        self.queued = Load::default();
        let calls = std::mem::take(&mut self.calls);
        calls
            .into_iter()
            .zip(front..)
            .map(|(call, offset)| {
                // Definite only where no RPC was handed it, or the only one that was has refused it.
                let may_be_stored = offset < handed && (offset < before || offset < refused);
                Returned { offset, call, may_be_stored }
            })
            .collect()
    }

    fn unsent_calls(&self) -> impl Iterator<Item = &PreparedBatch> {
        self.calls.range(((self.unsent - self.front) as usize).min(self.calls.len())..)
    }

    /// A ring that grew in a burst does not keep its size.
    fn give_memory_back(&mut self) {
        if self.calls.capacity() > 4_096 && self.calls.len() < self.calls.capacity() / 8 {
            self.calls.shrink_to(self.calls.len() * 2);
        }
        if self.frames.capacity() > 4_096 && self.frames.len() < self.frames.capacity() / 8 {
            self.frames.shrink_to(self.frames.len() * 2);
        }
    }
}

fn add(sum: &mut Load, load: Load) {
    sum.records += load.records;
    sum.bytes += load.bytes;
}

fn sub(sum: &mut Load, load: Load) {
    sum.records = sum.records.saturating_sub(load.records);
    sum.bytes = sum.bytes.saturating_sub(load.bytes);
}

#[cfg(test)]
mod tests;
