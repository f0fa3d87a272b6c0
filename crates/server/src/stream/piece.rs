//! What a stream publishes at a time: whole calls that share a unit, or a part of one call (G20).

use std::collections::VecDeque;
use std::time::Instant;

use landfall_channel::{Limits, Record};

use crate::stream::frame::{Call, encoded_len};

/// Frames that are there already share a unit up to these: enough to spread the cost of a unit thin, small enough
/// that the first of them does not wait long for the last.
const SHARED_RECORDS: usize = 4_096;
const SHARED_BYTES: usize = 1 << 20;

/// Records that become one unit.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) records: Vec<Record>,
    /// Payload bytes.
    pub(super) bytes: usize,
    /// Bytes of its records once encoded, at most.
    encoded: usize,
    /// How many records it has, also while the channel has them.
    pub(super) count: u64,
    /// Bytes on the wire, of the ingest budget.
    pub(super) wire_bytes: usize,
    pub(super) first_frame: i64,
    /// The last frame that is whole once this is committed; `None`: more of its only frame follows.
    pub(super) completes: Option<i64>,
    pub(super) received: Instant,
}

impl Piece {
    fn new(records: Vec<Record>, frame: i64, completes: bool, wire_bytes: usize) -> Self {
        Piece {
            bytes: records.iter().map(|record| record.payload.len()).sum(),
            encoded: records.iter().map(encoded_len).sum(),
            count: records.len() as u64,
            records,
            wire_bytes,
            first_frame: frame,
            completes: completes.then_some(frame),
            received: Instant::now(),
        }
    }
}

/// The pieces that the channel has not been asked to take yet, in order. The last one is open for more calls until
/// it is closed.
#[derive(Debug)]
pub(super) struct PieceQueue {
    closed: VecDeque<Piece>,
    open: Option<Piece>,
    /// Records and bytes of a unit.
    batch: (usize, usize),
}

impl PieceQueue {
    pub(super) fn new(limits: &Limits) -> Self {
        PieceQueue {
            closed: VecDeque::new(),
            open: None,
            batch: (limits.batch_records as usize, limits.batch_bytes.as_usize()),
        }
    }

    /// Adds a call: to the open piece if it fits, else to the next one; a call above the limits of a unit is split
    /// in order.
    pub(super) fn add(&mut self, call: Call, frame: i64, wire_bytes: usize) {
        let (most_records, most_bytes) = (self.batch.0.min(SHARED_RECORDS), self.batch.1.min(SHARED_BYTES));
        let (count, bytes) = (call.records.len(), call.records.iter().map(encoded_len).sum::<usize>());
        if let Some(piece) = &mut self.open {
            if piece.records.len() + count <= most_records && piece.encoded + bytes <= most_bytes {
                piece.bytes += call.bytes;
                piece.encoded += bytes;
                piece.count += count as u64;
                piece.wire_bytes += wire_bytes;
                piece.completes = Some(frame);
                piece.records.extend(call.records);
                return;
            }
            self.close();
        }
        let mut runs = split(call.records, self.batch);
        let last = runs.pop();
        let is_whole = runs.is_empty();
        self.closed.extend(runs.into_iter().map(|records| Piece::new(records, frame, false, 0)));
        // The ingest budget is given back with the last part: until then the message's buffer is held.
        self.open = last.map(|records| Piece::new(records, frame, true, wire_bytes));
        if !is_whole {
            self.close();
        }
    }

    /// Nothing more is added to the open piece.
    pub(super) fn close(&mut self) {
        self.closed.extend(self.open.take());
    }

    /// Whether any piece is closed.
    pub(super) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<Piece> {
        self.closed.pop_front()
    }

    /// Puts pieces back before all others, in their order.
    pub(super) fn put_back(&mut self, pieces: VecDeque<Piece>) {
        for piece in pieces.into_iter().rev() {
            self.closed.push_front(piece);
        }
    }

    pub(super) fn drain(&mut self) -> VecDeque<Piece> {
        self.close();
        std::mem::take(&mut self.closed)
    }
}

/// Cuts records into runs within the limits of a unit, in order.
fn split(records: Vec<Record>, (most_records, most_bytes): (usize, usize)) -> Vec<Vec<Record>> {
    let mut runs: Vec<Vec<Record>> = Vec::with_capacity(1);
    let mut bytes = 0;
    for record in records {
        let length = encoded_len(&record);
        match runs.last_mut() {
            Some(run) if run.len() < most_records && bytes + length <= most_bytes => {
                run.push(record);
                bytes += length;
            }
            _ => {
                runs.push(vec![record]);
                bytes = length;
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use landfall_types::ByteSize;

    use super::*;

    fn call(sizes: &[usize]) -> Call {
        let records: Vec<_> = sizes.iter().map(|size| Record::new(vec![b'1'; *size])).collect();
        Call { records, bytes: sizes.iter().sum() }
    }

    fn queue(batch_records: u32, batch_bytes: u64) -> PieceQueue {
        PieceQueue::new(&Limits { batch_records, batch_bytes: ByteSize(batch_bytes), ..Limits::default() })
    }

    /// Would catch a run above a limit, a lost or reordered record, or an empty run.
    #[test]
    fn a_call_is_split_in_order_within_the_limits() {
        let records: Vec<_> = (0..10u8).map(|n| Record::new(vec![n; 100])).collect();
        let runs = split(records.clone(), (4, 10_000));
        assert_eq!(runs.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2]);
        assert_eq!(runs.concat(), records);
        let runs = split(records.clone(), (100, 400));
        assert_eq!(runs.iter().map(Vec::len).collect::<Vec<_>>(), [2; 5]);
        assert_eq!(split(records, (100, 10)).len(), 10, "one record always fits: its own limit is checked before");
        assert!(split(vec![], (1, 1)).is_empty());
    }

    /// Would catch a call that is torn apart by sharing, or a frame that counts as whole too early.
    #[test]
    fn calls_share_a_unit_and_stay_whole() {
        let mut queue = queue(5, 1 << 20);
        queue.add(call(&[1]), 0, 10);
        queue.add(call(&[1, 1, 1]), 1, 10);
        assert!(!queue.has_closed(), "there is room for more");
        queue.add(call(&[1, 1]), 2, 10);
        queue.add(call(&[1; 12]), 3, 10);
        queue.add(call(&[1]), 4, 10);
        let pieces: Vec<_> = queue.drain().into_iter().collect();
        let found: Vec<_> = pieces.iter().map(|piece| (piece.first_frame, piece.completes, piece.count)).collect();
        assert_eq!(
            found,
            [(0, Some(1), 4), (2, Some(2), 2), (3, None, 5), (3, None, 5), (3, Some(3), 2), (4, Some(4), 1)]
        );
        assert_eq!(pieces.iter().map(|piece| piece.wire_bytes).sum::<usize>(), 50);
        assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<usize>(), 19);
    }

    /// Would catch pieces that come back behind newer ones.
    #[test]
    fn pieces_put_back_come_first_in_their_order() {
        let mut queue = queue(1, 1 << 20);
        for frame in 0..4 {
            queue.add(call(&[1]), frame, 1);
        }
        queue.close();
        let back: VecDeque<_> = [queue.pop().unwrap(), queue.pop().unwrap()].into();
        queue.put_back(back);
        assert_eq!(queue.drain().iter().map(|piece| piece.first_frame).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }
}
