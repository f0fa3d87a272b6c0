//! Pieces that the channel had no room for: kept in order, tried again on a new chain within the stream's deadline
//! (G20). The client sees only that reading has stopped.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use landfall_channel::PublishError;
use landfall_protocol::Refusal;
use landfall_types::Coded;

use crate::stream::piece::Piece;

/// The first and the longest delay before pieces are tried again.
const DELAY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Whether the channel had no room, and may have some soon (CH0020, CH0023, CH0030): for this publish, or for a
/// later one of its chain, which breaks the chain for all that are not written yet.
pub(super) fn had_no_room(error: &PublishError) -> bool {
    let code = match error {
        PublishError::ChainBroken { first } => *first,
        other => other.code(),
    };
    code.area() == "CH" && matches!(code.number(), 20 | 23 | 30)
}

/// What is set aside. Lives from the first refusal until something commits, so that the deadline and the delays
/// are those of one shortage.
#[derive(Debug)]
pub(super) struct Recovery {
    since: Instant,
    cause: Refusal,
    delay: Duration,
    aside: VecDeque<Piece>,
    resume: Option<Instant>,
}

impl Recovery {
    pub(super) fn new(now: Instant, cause: Refusal) -> Self {
        Recovery { since: now, cause, delay: DELAY.0, aside: VecDeque::new(), resume: None }
    }

    /// Keeps a piece, behind those kept before.
    ///
    /// # Errors
    /// The first cause, once the shortage has lasted for `deadline`.
    pub(super) fn set_aside(&mut self, piece: Piece, now: Instant, deadline: Duration) -> Result<(), Refusal> {
        self.aside.push_back(piece);
        if now.saturating_duration_since(self.since) >= deadline { Err(self.cause.clone()) } else { Ok(()) }
    }

    /// Every piece of the broken chain is back: the next attempt may come after the delay.
    pub(super) fn all_back(&mut self, now: Instant) {
        self.resume = Some(now + self.delay);
        self.delay = (self.delay * 2).min(DELAY.1);
    }

    /// Whether pieces are set aside now.
    pub(super) fn is_waiting(&self) -> bool {
        !self.aside.is_empty()
    }

    /// When to try again; `None`: pieces of the broken chain are still out.
    pub(super) fn resume(&self) -> Option<Instant> {
        self.resume
    }

    /// Gives the pieces back for the next attempt.
    pub(super) fn take(&mut self) -> VecDeque<Piece> {
        self.resume = None;
        std::mem::take(&mut self.aside)
    }
}

#[cfg(test)]
mod tests {
    use landfall_channel::{Limits, Record};
    use landfall_protocol::IngestCode;

    use super::*;
    use crate::stream::frame::Call;
    use crate::stream::piece::PieceQueue;

    fn pieces(n: i64) -> VecDeque<Piece> {
        let mut queue = PieceQueue::new(&Limits { batch_records: 1, ..Limits::default() });
        for frame in 0..n {
            queue.add(Call { records: vec![Record::new("1")], bytes: 1 }, frame, 1);
        }
        queue.drain()
    }

    /// Would catch an attempt without end, delays that do not grow, or pieces that change their order.
    #[test]
    fn a_shortage_has_one_deadline_and_growing_delays() {
        let start = Instant::now();
        let deadline = Duration::from_secs(30);
        let mut recovery = Recovery::new(start, Refusal::new(IngestCode::Overloaded, "first"));
        let mut delays = Vec::new();
        let mut waiting = pieces(3);
        for _ in 0..8 {
            for piece in waiting.drain(..) {
                recovery.set_aside(piece, start, deadline).unwrap();
            }
            assert!(recovery.is_waiting() && recovery.resume().is_none());
            recovery.all_back(start);
            delays.push(recovery.resume().unwrap() - start);
            waiting = recovery.take();
            assert_eq!(waiting.iter().map(|piece| piece.first_frame).collect::<Vec<_>>(), [0, 1, 2]);
            assert!(!recovery.is_waiting());
        }
        assert_eq!(delays[..3], [20, 40, 80].map(Duration::from_millis));
        assert_eq!(delays.last(), Some(&DELAY.1));
        let late = recovery.set_aside(waiting.remove(0).unwrap(), start + deadline, deadline).unwrap_err();
        assert_eq!(late.message, "first");
    }
}
