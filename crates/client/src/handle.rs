//! The handle of a stream: what a publisher calls.
//!
//! One code path serves a single stream and a multiplexed one. A call is encoded and checked first, then waits
//! for room (the only wait, bounded), then is admitted in its sub-stream's ordering section. From there on it is
//! in every flush and ends acknowledged, refused or unacknowledged with its id (I3). No method blocks a thread.

use std::sync::Arc;
use std::time::Instant as StdInstant;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::admission::StreamState;
use crate::call::{Encode, IntoCall, Limits, PreparedBatch};
use crate::capacity::{Place, Target};
use crate::error::{IngestError, PrepareError, Rejected};
use crate::id::{Ack, IdRange, MessageId};
use crate::room::{NoRoom, wait_for_room};
use crate::session::Command;
use crate::shared::{Room, Shared};
use crate::snapshot::{StreamSnapshot, SubStreamSnapshot, SubStreamState};
use crate::sub_stream::{FrontWait, Refused, SubStream};

/// The handle of a stream. Cloning it gives another handle to the same stream; dropping the last one without
/// [`close`](StreamHandle::close) stops the stream at once and counts what was not acknowledged.
#[derive(Clone, Debug)]
pub struct StreamHandle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    command: watch::Sender<Command>,
    running: watch::Receiver<usize>,
    tasks: Vec<AbortHandle>,
    closing: Mutex<Closing>,
}

#[derive(Debug, Default)]
struct Closing {
    deadline: Option<Instant>,
    began: Option<Instant>,
    result: Option<Result<(), IngestError>>,
}

/// A call that was not acknowledged when its stream ended.
#[derive(Clone, Debug)]
pub struct Unacked {
    /// The call's id.
    pub id: MessageId,
    /// The call, to be sent elsewhere.
    pub call: PreparedBatch,
    /// What may have become of it.
    pub outcome: UnackedOutcome,
}

/// What may have become of an unacknowledged call (I3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnackedOutcome {
    /// It was never handed to a transport, or the peer refused it for good: it is not stored.
    NotStored,
    /// It was sent and no answer came: it may be stored. Sending it again may store it twice.
    Unresolved,
}

/// How long a call may wait for room.
enum Patience {
    Option,
    Until(Instant),
}

/// Sessions that were told to end get this long before they are cut off.
const END_GRACE: std::time::Duration = std::time::Duration::from_secs(2);

impl StreamHandle {
    pub(crate) fn new(
        shared: Arc<Shared>,
        command: watch::Sender<Command>,
        running: watch::Receiver<usize>,
        tasks: Vec<AbortHandle>,
    ) -> Self {
        StreamHandle { inner: Arc::new(Inner { shared, command, running, tasks, closing: Mutex::default() }) }
    }

    fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    /// Encodes and checks one record, without submitting it.
    pub fn prepare<R: Encode>(&self, record: R) -> Result<PreparedBatch, PrepareError> {
        self.shared().limits.prepare(record)
    }

    /// Encodes and checks a batch, which is stored all or none. `None`: it has no record.
    pub fn prepare_batch<R: Encode>(
        &self,
        records: impl IntoIterator<Item = R>,
    ) -> Result<Option<PreparedBatch>, PrepareError> {
        self.shared().limits.prepare_batch(records)
    }

    /// Submits a call: returns once it is admitted, in order, under an id. It is not durable yet.
    ///
    /// Waits for room at most `capacity_wait`. Dropping the future before it is ready submits nothing.
    ///
    /// # Errors
    /// Those of preparing, of having no room in time, or of a stream that has ended; with the call.
    pub async fn ingest(&self, call: impl IntoCall) -> Result<MessageId, Rejected> {
        let call = call.into_call(&Limits(&self.shared().limits))?;
        self.admit(call, Target::Any, Patience::Option).await
    }

    /// [`ingest`](Self::ingest) with a deadline of its own for the wait.
    pub async fn ingest_by(&self, call: impl IntoCall, deadline: StdInstant) -> Result<MessageId, Rejected> {
        let call = call.into_call(&Limits(&self.shared().limits))?;
        self.admit(call, Target::Any, Patience::Until(Instant::from_std(deadline))).await
    }

    /// [`ingest`](Self::ingest), always on the sub-stream that the key chooses: calls of one key keep their order.
    pub async fn ingest_keyed(&self, key: &[u8], call: impl IntoCall) -> Result<MessageId, Rejected> {
        let call = call.into_call(&Limits(&self.shared().limits))?;
        let sub_streams = self.shared().sub_streams.len() as u32;
        let index = u16::try_from(crc32c::crc32c(key) % sub_streams.max(1)).unwrap_or(0);
        self.admit(call, Target::One(index), Patience::Option).await
    }

    /// Submits records as one batch. `None`: there was no record.
    pub async fn ingest_batch<R: Encode>(
        &self,
        records: impl IntoIterator<Item = R>,
    ) -> Result<Option<MessageId>, Rejected> {
        match self.prepare_batch(records)? {
            Some(call) => self.admit(call, Target::Any, Patience::Option).await.map(Some),
            None if self.shared().admission.is_open() => Ok(None),
            None => Err(Rejected { error: self.shared().ended(), call: None }),
        }
    }

    /// Submits a call if there is room at once.
    ///
    /// # Errors
    /// As [`ingest`](Self::ingest), with [`IngestError::Full`] in place of a wait.
    pub fn try_ingest(&self, call: impl IntoCall) -> Result<MessageId, Rejected> {
        let shared = self.shared();
        let mut call = call.into_call(&Limits(&shared.limits))?;
        let load = call.load();
        loop {
            if !shared.admission.is_open() {
                return Err(Rejected { error: shared.ended(), call: Some(call) });
            }
            let granted = shared.capacity.lock().try_reserve(Target::Any, load);
            let Some(sub_stream) = granted else {
                let (in_flight, limits) = self.usage();
                return Err(Rejected { error: IngestError::Full { in_flight, limits }, call: Some(call) });
            };
            match self.enter(Room::new(shared, sub_stream, load), call, Target::Any) {
                Ok(id) => return Ok(id),
                Err(Refused::Barred(call)) => return Err(Rejected { error: shared.ended(), call: Some(call) }),
                // The capacity no longer chooses it: the next choice is another.
                Err(Refused::Lost(back)) => call = back,
            }
        }
    }

    /// [`ingest`](Self::ingest) and [`wait_for`](Self::wait_for) in one.
    ///
    /// # Errors
    /// Those of both. An error of the wait comes without the call: it stays in flight, or is returned by
    /// [`take_unacked`](Self::take_unacked).
    pub async fn publish(&self, call: impl IntoCall) -> Result<Ack, Rejected> {
        let id = self.ingest(call).await?;
        self.wait_for(id).await.map_err(|error| Rejected { error, call: None })
    }

    /// Waits until a call is committed, at most `wait_timeout`. Works after close too.
    pub async fn wait_for(&self, id: MessageId) -> Result<Ack, IngestError> {
        self.wait_for_by(id, (Instant::now() + self.shared().options.wait_timeout).into_std()).await
    }

    /// [`wait_for`](Self::wait_for) with a deadline of its own.
    pub async fn wait_for_by(&self, id: MessageId, deadline: StdInstant) -> Result<Ack, IngestError> {
        let began = Instant::now();
        let Some(sub_stream) = self.shared().sub_streams.get(usize::from(id.sub_stream())) else {
            return Err(IngestError::UnknownId { id });
        };
        if id.offset() >= sub_stream.section().ledger.next() {
            return Err(IngestError::UnknownId { id });
        }
        let wait = FrontWait::new(sub_stream, id.offset());
        match tokio::time::timeout_at(Instant::from_std(deadline), wait).await {
            Ok(true) => {
                let durability = sub_stream.section().durability.unwrap_or_default();
                Ok(Ack { id, durability })
            }
            Ok(false) => Err(self.shared().ended()),
            Err(_) => Err(IngestError::WaitTimeout { id, waited: began.elapsed() }),
        }
    }

    /// Waits until every call that has an id now is committed, at most `flush_timeout`.
    ///
    /// # Errors
    /// The first cause if the stream has failed (healthy sub-streams are awaited all the same), else
    /// [`IngestError::FlushTimeout`], after which the stream goes on.
    pub async fn flush(&self) -> Result<(), IngestError> {
        self.flush_by((Instant::now() + self.shared().options.flush_timeout).into_std()).await
    }

    /// [`flush`](Self::flush) with a deadline of its own.
    pub async fn flush_by(&self, deadline: StdInstant) -> Result<(), IngestError> {
        let began = Instant::now();
        let targets: Vec<u64> =
            self.shared().sub_streams.iter().map(|sub_stream| sub_stream.section().ledger.next()).collect();
        let (mut ended, mut late) = (false, false);
        for (sub_stream, target) in self.shared().sub_streams.iter().zip(targets) {
            match front_reached(sub_stream, target, Instant::from_std(deadline)).await {
                Reached::Yes => {}
                Reached::Stopped => ended = true,
                Reached::Late => late = true,
            }
        }
        match (ended, late) {
            (true, _) => Err(self.shared().ended()),
            // The cause may be another sub-stream's, with nothing of its own in flight.
            (false, true) if self.shared().admission.cause().is_some() => Err(self.shared().ended()),
            (false, true) => {
                let oldest = self.oldest().unwrap_or(MessageId::new(0, 0));
                Err(IngestError::FlushTimeout { waited: began.elapsed(), unacked: self.shared().unacked(), oldest })
            }
            (false, false) => match self.shared().admission.cause() {
                Some(_) => Err(self.shared().ended()),
                None => Ok(()),
            },
        }
    }

    /// Takes no more calls, flushes, and ends the stream, within `close_timeout`. May be called again after
    /// its future was dropped: it goes on, with the same deadline. Once it has ended, it always answers the same.
    ///
    /// # Errors
    /// The first cause if the stream has failed; [`IngestError::CloseTimeout`] if calls are left over. Either
    /// way the stream is closed and [`take_unacked`](Self::take_unacked) has the rest.
    pub async fn close(&self) -> Result<(), IngestError> {
        self.close_by((Instant::now() + self.shared().options.close_timeout).into_std()).await
    }

    /// [`close`](Self::close) with a deadline of its own, which the first call sets.
    pub async fn close_by(&self, deadline: StdInstant) -> Result<(), IngestError> {
        let shared = self.shared();
        let (began, deadline) = {
            let mut closing = self.inner.closing.lock();
            if let Some(result) = &closing.result {
                return result.clone();
            }
            let began = *closing.began.get_or_insert_with(Instant::now);
            (began, *closing.deadline.get_or_insert(Instant::from_std(deadline)))
        };
        if shared.admission.begin_close() {
            shared.sub_streams.iter().for_each(SubStream::barrier);
            shared.close_capacity();
        }
        // After the barrier these are final.
        let mut late = false;
        for sub_stream in shared.sub_streams.iter() {
            let target = sub_stream.section().ledger.next();
            late |= front_reached(sub_stream, target, deadline).await == Reached::Late;
        }
        let mut running = self.inner.running.clone();
        if !late {
            self.inner.command.send_replace(Command::Finish);
            let _ = tokio::time::timeout(END_GRACE, running.wait_for(|running| *running == 0)).await;
        }
        self.inner.command.send_replace(Command::Stop);
        self.inner.tasks.iter().for_each(AbortHandle::abort);
        let _ = tokio::time::timeout(END_GRACE, running.wait_for(|running| *running == 0)).await;
        shared.sub_streams.iter().for_each(SubStream::stop);
        shared.admission.finish_close();
        let result = match (shared.admission.cause(), shared.unacked()) {
            (Some(_), _) => Err(shared.ended()),
            (None, 0) => Ok(()),
            (None, unacked) => Err(IngestError::CloseTimeout { waited: began.elapsed(), unacked }),
        };
        self.inner.closing.lock().result.get_or_insert(result).clone()
    }

    /// Takes out what was never acknowledged, ascending per sub-stream; a second call finds nothing. On a failed
    /// stream this also stops the sub-streams that were still healthy.
    ///
    /// # Errors
    /// [`IngestError::InvalidState`] while the stream is open or closing.
    pub fn take_unacked(&self) -> Result<Vec<Unacked>, IngestError> {
        let shared = self.shared();
        let state = self.state();
        if !matches!(state, StreamState::Closed | StreamState::Failed) {
            return Err(IngestError::InvalidState {
                operation: "take_unacked",
                needs: "a stream that is closed or has failed",
                state: state.as_str(),
            });
        }
        self.inner.command.send_replace(Command::Stop);
        let mut unacked = Vec::new();
        for sub_stream in shared.sub_streams.iter() {
            sub_stream.stop();
            let returned = sub_stream.section().ledger.take_back();
            for call in &returned {
                shared.release(sub_stream.index, call.call.load());
            }
            shared.report(sub_stream.index);
            unacked.extend(returned.into_iter().map(|call| Unacked {
                id: MessageId::new(sub_stream.index, call.offset),
                outcome: if call.may_be_stored { UnackedOutcome::Unresolved } else { UnackedOutcome::NotStored },
                call: call.call,
            }));
        }
        Ok(unacked)
    }

    /// What the stream takes and why not.
    pub fn state(&self) -> StreamState {
        self.shared().admission.state()
    }

    /// The first cause of a stream that has failed.
    pub fn terminal_error(&self) -> Option<Arc<IngestError>> {
        self.shared().admission.cause().map(|cause| Arc::clone(&cause.error))
    }

    /// Counts and states of this moment; each sub-stream is looked at by itself.
    pub fn snapshot(&self) -> StreamSnapshot {
        let shared = self.shared();
        let now = Instant::now();
        let standings: Vec<_> = {
            let capacity = shared.capacity.lock();
            shared.sub_streams.iter().map(|sub_stream| capacity.standing(sub_stream.index)).collect()
        };
        let sub_streams = shared.sub_streams.iter().zip(standings);
        let sub_streams = sub_streams
            .map(|(sub_stream, standing)| {
                let section = sub_stream.section();
                let totals = section.ledger.totals();
                SubStreamSnapshot {
                    sub_stream: sub_stream.index,
                    state: SubStreamState::of(section.stopped, section.flow, standing),
                    next_offset: section.ledger.next(),
                    acked_below: section.ledger.front(),
                    unacked_calls: section.ledger.unacked(),
                    admitted_records: totals.admitted.records,
                    acked_records: totals.acked.records,
                    taken_back_records: totals.taken_back.records,
                    in_flight_records: totals.in_flight_records(),
                    queued_records: section.ledger.queued().records,
                    resent_records: totals.resent_records,
                    frames: totals.frames,
                    ignored_acks: totals.ignored_acks,
                    reconnects: section.reconnects,
                    oldest_unacked_age: section
                        .ledger
                        .oldest_frame()
                        .map(|(_, handed)| now.saturating_duration_since(Instant::from_std(handed))),
                    durability: section.durability,
                }
            })
            .collect();
        let capacity = shared.capacity.lock();
        StreamSnapshot {
            state: shared.admission.state(),
            in_flight: capacity.in_flight(),
            limits: capacity.limits(),
            capacity_waiters: capacity.waiting(),
            sub_streams,
        }
    }

    async fn admit(&self, mut call: PreparedBatch, target: Target, patience: Patience) -> Result<MessageId, Rejected> {
        // A publisher that never has to wait would otherwise never let the others on its thread run.
        tokio::task::consume_budget().await;
        let shared = self.shared();
        let load = call.load();
        let granted = shared.capacity.lock().try_reserve(target, load);
        if let Some(sub_stream) = granted {
            match self.enter(Room::new(shared, sub_stream, load), call, target) {
                Ok(id) => return Ok(id),
                Err(Refused::Barred(call)) => return Err(Rejected { error: shared.ended(), call: Some(call) }),
                Err(Refused::Lost(back)) => call = back,
            }
        }
        let began = Instant::now();
        let deadline = match patience {
            Patience::Option => began + shared.options.capacity_wait,
            Patience::Until(deadline) => deadline,
        };
        let mut place: Option<Place> = None;
        loop {
            match wait_for_room(shared, target, load, deadline, &mut place).await {
                Ok(room) => {
                    shared.meters.capacity_wait.record(began.elapsed().as_secs_f64());
                    match self.enter(room, call, target) {
                        Ok(id) => return Ok(id),
                        Err(Refused::Barred(call)) => return Err(Rejected { error: shared.ended(), call: Some(call) }),
                        Err(Refused::Lost(back)) => call = back,
                    }
                }
                Err(NoRoom::Ended) => return Err(Rejected { error: shared.ended(), call: Some(call) }),
                Err(NoRoom::Timeout) => {
                    shared.meters.capacity_timeouts.increment(1);
                    let (in_flight, limits) = self.usage();
                    let error = IngestError::CapacityTimeout { waited: began.elapsed(), in_flight, limits };
                    return Err(Rejected { error, call: Some(call) });
                }
            }
        }
    }

    fn enter(&self, room: Room<'_>, call: PreparedBatch, target: Target) -> Result<MessageId, Refused> {
        let shared = self.shared();
        let sub_stream = room.sub_stream;
        let by_name = matches!(target, Target::One(_));
        let offset = shared.sub_stream(sub_stream).admit(&shared.admission, call, by_name)?;
        room.keep();
        Ok(MessageId::new(sub_stream, offset))
    }

    fn usage(&self) -> (crate::error::Load, crate::error::Load) {
        let capacity = self.shared().capacity.lock();
        (capacity.in_flight(), capacity.limits())
    }

    /// The call that was sent first of those that are not acknowledged.
    fn oldest(&self) -> Option<MessageId> {
        let sub_streams = self.shared().sub_streams.iter();
        sub_streams
            .filter_map(|sub_stream| {
                let section = sub_stream.section();
                let ledger = &section.ledger;
                let handed = ledger.oldest_frame().map(|(_, handed)| handed);
                (ledger.unacked() > 0)
                    .then(|| (handed.is_none(), handed, MessageId::new(sub_stream.index, ledger.front())))
            })
            .min_by_key(|(queued, handed, _)| (*queued, *handed))
            .map(|(.., id)| id)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    Yes,
    Stopped,
    Late,
}

async fn front_reached(sub_stream: &SubStream, target: u64, deadline: Instant) -> Reached {
    let Some(last) = target.checked_sub(1) else { return Reached::Yes };
    match tokio::time::timeout_at(deadline, FrontWait::new(sub_stream, last)).await {
        Ok(true) => Reached::Yes,
        Ok(false) => Reached::Stopped,
        Err(_) => Reached::Late,
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        for sub_stream in self.shared.sub_streams.iter() {
            sub_stream.stop();
            let (first, calls) = {
                let mut section = sub_stream.section();
                (section.ledger.front(), section.ledger.drop_all())
            };
            self.shared.report(sub_stream.index);
            if calls > 0 {
                let ids = IdRange {
                    first: MessageId::new(sub_stream.index, first),
                    last: MessageId::new(sub_stream.index, first + calls - 1),
                };
                tracing::warn!(table = %self.shared.table, %ids, calls,
                    "the stream was dropped with calls that were not acknowledged; close it first and take them back");
            }
        }
    }
}
