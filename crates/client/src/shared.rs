//! What the handle, the sessions and the request streams of one stream share.
//!
//! Holds the pure cores behind their mutexes and the few transitions that touch several of them: giving room
//! back, failing (store the cause, set the state, barrier, wake), losing a sub-stream. Locks are taken one at a
//! time and never over an await (I5).

use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

use crate::admission::{Admission, FirstCause};
use crate::call::CallLimits;
use crate::capacity::{CapacityQueue, Standing};
use crate::error::{IngestError, Load};
use crate::ledger::Coalesce;
use crate::meters::Meters;
use crate::options::StreamOptions;
use crate::sub_stream::{SubStream, SubStreams};

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) table: Arc<str>,
    pub(crate) options: StreamOptions,
    pub(crate) limits: CallLimits,
    pub(crate) admission: Admission,
    pub(crate) capacity: Mutex<CapacityQueue>,
    pub(crate) sub_streams: SubStreams,
    pub(crate) meters: Meters,
}

impl Shared {
    pub(crate) fn new(table: Arc<str>, options: StreamOptions, limits: CallLimits, sub_streams: u16) -> Self {
        let budget = Load { records: options.max_in_flight_records, bytes: options.max_in_flight_bytes.get() };
        Shared {
            meters: Meters::new(&table, sub_streams),
            table,
            limits,
            admission: Admission::default(),
            capacity: Mutex::new(CapacityQueue::new(budget, sub_streams, rand::random())),
            sub_streams: (0..sub_streams).map(SubStream::new).collect(),
            options,
        }
    }

    pub(crate) fn is_multiplexed(&self) -> bool {
        self.sub_streams.len() > 1
    }

    pub(crate) fn sub_stream(&self, index: u16) -> &SubStream {
        &self.sub_streams[usize::from(index)]
    }

    pub(crate) fn coalesce(&self) -> Coalesce {
        Coalesce { records: self.options.coalesce_records, bytes: self.options.coalesce_bytes.get() }
    }

    /// Gives room back and wakes whom it serves.
    pub(crate) fn release(&self, sub_stream: u16, load: Load) {
        let mut woken = Vec::new();
        self.capacity.lock().release(sub_stream, load, &mut woken);
        woken.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn set_standing(&self, sub_stream: u16, standing: Standing) {
        let mut woken = Vec::new();
        self.capacity.lock().set_standing(sub_stream, standing, &mut woken);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Marks a sub-stream as lost. True if no other is left.
    pub(crate) fn lose(&self, sub_stream: u16) -> bool {
        self.sub_stream(sub_stream).section().lost = true;
        let mut woken = Vec::new();
        let all = {
            let mut capacity = self.capacity.lock();
            capacity.set_standing(sub_stream, Standing::Lost, &mut woken);
            capacity.all_lost()
        };
        woken.into_iter().for_each(Waker::wake);
        all
    }

    /// A sub-stream is open again.
    pub(crate) fn found(&self, sub_stream: u16) {
        self.sub_stream(sub_stream).section().lost = false;
        self.set_standing(sub_stream, Standing::Open);
    }

    /// Ends the stream for good. The order matters: the cause, the state, the barrier, the waiters. What was
    /// admitted before the barrier is final, and everybody woken sees the first cause.
    pub(crate) fn fail(&self, error: IngestError, sub_stream: u16) {
        let error = Arc::new(error);
        if self.admission.fail(FirstCause { error: Arc::clone(&error), sub_stream }) {
            self.meters.failed(&error);
        }
        self.sub_streams.iter().for_each(SubStream::barrier);
        self.close_capacity();
        self.sub_stream(sub_stream).stop();
    }

    pub(crate) fn close_capacity(&self) {
        let mut woken = Vec::new();
        self.capacity.lock().close(&mut woken);
        woken.into_iter().for_each(Waker::wake);
    }

    /// The error of calls on a stream that has ended: its first cause, or that it is closed.
    pub(crate) fn ended(&self) -> IngestError {
        match self.admission.cause() {
            None => IngestError::Closed,
            Some(cause) if self.is_multiplexed() => {
                IngestError::Poisoned { cause: Arc::clone(&cause.error), sub_stream: cause.sub_stream }
            }
            Some(cause) => IngestError::Failed { cause: Arc::clone(&cause.error) },
        }
    }

    /// Brings the counters of a sub-stream up to date.
    pub(crate) fn report(&self, sub_stream: u16) {
        let (totals, queued) = {
            let section = self.sub_stream(sub_stream).section();
            (section.ledger.totals(), section.ledger.queued())
        };
        self.meters.report(sub_stream, totals, queued.records);
    }

    /// Calls that are neither acknowledged nor taken back.
    pub(crate) fn unacked(&self) -> u64 {
        self.sub_streams.iter().map(|sub_stream| sub_stream.section().ledger.unacked()).sum()
    }
}

/// Room that a call holds before it has an offset; given back on drop.
#[derive(Debug)]
#[must_use = "dropping it gives the room back"]
pub(crate) struct Room<'a> {
    shared: &'a Shared,
    pub(crate) sub_stream: u16,
    load: Load,
}

impl<'a> Room<'a> {
    pub(crate) fn new(shared: &'a Shared, sub_stream: u16, load: Load) -> Self {
        Room { shared, sub_stream, load }
    }

    /// The room belongs to an admitted call from now on; its ack gives it back.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.shared.release(self.sub_stream, self.load);
    }
}
