//! One ingest stream from its first message to its status (G7, G15, G19–G22).
//!
//! One task reads, checks, hands over and acknowledges. It holds no lock while it waits (I5), reads on only when
//! the channel has taken what was read (I6), and has all its publishes on one chain, so that nothing of the stream
//! commits past a hole. An acknowledgement `k` leaves when every frame up to `k` is committed in the channel's
//! class (I1). What ends the stream ends it alone (I13), after what was taken has its outcome and its ack.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use landfall_channel::{ChainId, Channel, PublishOptions, PublishOutcome, Record, Ticket};
use landfall_protocol::wire::{EphemeralStreamRequest, ephemeral_stream_request::Payload};
use landfall_protocol::{IngestCode, Refusal};
use landfall_types::Durability;
use prost::Message;
use tokio::sync::watch;
use tonic::{Code, Status, Streaming};

use crate::core::{Core, Phase, draining};
use crate::memory::Account;
use crate::meters::{NotReading, Outcome};
use crate::refusal;
use crate::stream::create::{self, Asked, Opened};
use crate::stream::frame::{self, Call};
use crate::stream::outbox::Outbox;
use crate::stream::piece::{Piece, PieceQueue};
use crate::stream::recovery::{Recovery, had_no_room};

/// Serves a stream. Everything it says goes to `outbox`.
pub(crate) async fn run(
    core: Arc<Core>,
    asked: Asked,
    mut inbound: Streaming<EphemeralStreamRequest>,
    outbox: Arc<Outbox>,
    account: Arc<Account>,
) {
    core.meters.opening.increment(1.0);
    let opened = tokio::select! {
        biased;
        () = poll_fn(|cx| outbox.poll_abandoned(cx)) => None,
        opened = open(&core, &asked, &mut inbound, &account) => Some(opened),
        // A call without a create must not hold a drain.
        () = core.closing() => Some(Err(draining())),
    };
    core.meters.opening.decrement(1.0);
    let opened = match opened {
        Some(Ok(opened)) => opened,
        Some(Err(refusal)) => {
            core.meters.open_failed(&refusal.code);
            return outbox.end(Err(refusal.into()));
        }
        None => return,
    };
    tracing::debug!(
        stream_id = opened.entry.stream_id(),
        channel = opened.channel.name(),
        partition = opened.entry.partition().0,
        "ingest stream opened"
    );
    outbox.created(opened.entry.stream_id().to_owned());
    core.meters.open.increment(1.0);
    let mut session = Session::new(&core, opened, Arc::clone(&outbox), account);
    let end = session.serve(&mut inbound).await;
    core.meters.open.decrement(1.0);
    match end {
        Some(End::Complete) => outbox.end(Ok(())),
        Some(End::Refused(refusal)) => {
            tracing::debug!(stream_id = session.opened.entry.stream_id(), refusal = %refusal, "ingest stream ended");
            outbox.end(Err(refusal.into()));
        }
        None => {}
    }
}

/// Reads the create and opens the stream.
async fn open(
    core: &Core,
    asked: &Asked,
    inbound: &mut Streaming<EphemeralStreamRequest>,
    account: &Account,
) -> Result<Opened, Refusal> {
    let timeout = core.limits().open_timeout;
    let first = match tokio::time::timeout(timeout, inbound.message()).await {
        Ok(first) => first.map_err(|status| transport(&status))?,
        Err(_) => {
            let text = format!("no `create_stream` within `server.ingest.open_timeout` ({timeout:?})");
            return Err(Refusal::new(IngestCode::OpenTimeout, text));
        }
    };
    let expected = |text: &str| Refusal::new(IngestCode::CreateExpected, text);
    let Some(message) = first else { return Err(expected("the call was half-closed before a create")) };
    account.release(message.encoded_len());
    match message.payload {
        Some(Payload::CreateStream(create)) => create::open(core, asked, create).await,
        _ => Err(expected("the first message of a call must be `create_stream`")),
    }
}

/// What the transport could not hand on as a message.
fn transport(status: &Status) -> Refusal {
    match status.code() {
        // The library's own bound, above ours; the size is not ours to tell.
        Code::OutOfRange | Code::ResourceExhausted => Refusal {
            grpc: Code::OutOfRange,
            ..Refusal::new(IngestCode::CallTooLarge, "a message above the transport's limit: split the call")
        },
        _ => Refusal::new(IngestCode::RecordForm, "a message that is not of the protocol, or cut short"),
    }
}

/// How a stream ends.
#[derive(Debug)]
enum End {
    Complete,
    Refused(Refusal),
}

/// A piece that the channel has taken. Its records are with the channel, which gives them back if it refuses.
#[derive(Debug)]
struct InFlight {
    ticket: Ticket,
    piece: Piece,
}

type Submitting = (Pin<Box<dyn Future<Output = Ticket> + Send>>, Piece);

struct Session<'a> {
    core: &'a Core,
    opened: Opened,
    outbox: Arc<Outbox>,
    account: Arc<Account>,
    phase: watch::Receiver<Phase>,
    chain: ChainId,
    /// The number that the next frame must have.
    next_frame: i64,
    /// The last frame acknowledged; -1: none.
    acked: i64,
    queued: PieceQueue,
    submitting: Option<Submitting>,
    in_flight: VecDeque<InFlight>,
    recovery: Option<Recovery>,
    /// How many pieces may be out at a time, once the channel had no room for as many as there were. Half of them
    /// after each shortage, one more with each commit: a refusal breaks the chain for all that are still queued,
    /// so asking for too much again and again would get nothing done.
    most_out: Option<usize>,
    unacked_bytes: usize,
    ending: Option<End>,
    /// When the close signal's time is over.
    close_at: Option<Instant>,
    /// When the stream gets its close signal for its age.
    age_at: Option<Instant>,
    not_reading: Option<(NotReading, Instant)>,
}

/// What happened next.
enum Event {
    Abandoned,
    Phase(Phase),
    Aged,
    Closed,
    Settled(PublishOutcome),
    Submitted(Ticket),
    Resume,
    Read(Result<Option<EphemeralStreamRequest>, Status>),
}

impl<'a> Session<'a> {
    fn new(core: &'a Core, opened: Opened, outbox: Arc<Outbox>, account: Arc<Account>) -> Self {
        let chain = opened.channel.new_chain();
        let mut phase = core.phase.subscribe();
        phase.mark_changed();
        Session {
            age_at: core.limits().max_stream_age.map(|age| Instant::now() + spread(age)),
            core,
            outbox,
            account,
            phase,
            chain,
            next_frame: 0,
            acked: -1,
            queued: PieceQueue::new(&opened.channel.options().limits),
            submitting: None,
            in_flight: VecDeque::new(),
            recovery: None,
            most_out: None,
            unacked_bytes: 0,
            ending: None,
            close_at: None,
            not_reading: None,
            opened,
        }
    }

    /// Runs the stream to its end; `None`: the client has gone.
    async fn serve(&mut self, inbound: &mut Streaming<EphemeralStreamRequest>) -> Option<End> {
        loop {
            self.submit_next();
            if self.is_settled()
                && let Some(end) = self.ending.take()
            {
                return Some(end);
            }
            self.note_reading();
            match self.next(inbound).await {
                Event::Abandoned => return None,
                Event::Phase(Phase::Serving) => {}
                Event::Phase(Phase::Closing { until, .. }) => self.close_signal(until, "drain"),
                Event::Phase(Phase::Ended) => return Some(End::Refused(draining())),
                Event::Aged => {
                    self.age_at = None;
                    self.close_signal(Instant::now() + self.core.limits().drain_grace, "age");
                }
                Event::Closed => {
                    self.close_at = None;
                    self.ending.get_or_insert_with(|| End::Refused(draining()));
                }
                Event::Submitted(ticket) => {
                    if let Some((_, mut piece)) = self.submitting.take() {
                        // From here on the channel's own budget holds the records.
                        self.account.release(std::mem::take(&mut piece.wire_bytes));
                        self.in_flight.push_back(InFlight { ticket, piece });
                    }
                }
                Event::Settled(outcome) => {
                    if let Err(refusal) = self.settle_ready(outcome) {
                        return Some(End::Refused(refusal));
                    }
                }
                Event::Resume => self.resume(),
                Event::Read(message) => self.read(message, inbound),
            }
            let open = self.next_frame - 1 - self.acked;
            self.opened.entry.progress(self.acked + 1, u64::try_from(open).unwrap_or(0));
        }
    }

    fn is_settled(&self) -> bool {
        !self.queued.has_closed() && self.submitting.is_none() && self.in_flight.is_empty() && !self.is_recovering()
    }

    fn is_recovering(&self) -> bool {
        self.recovery.as_ref().is_some_and(Recovery::is_waiting)
    }

    /// Why the next message is not read now; `None`: it is.
    fn why_not_reading(&self) -> Option<NotReading> {
        let limits = self.core.limits();
        let open = u64::try_from(self.next_frame - 1 - self.acked).unwrap_or(0);
        if self.is_recovering() {
            Some(NotReading::Retry)
        } else if self.submitting.is_some() || self.queued.has_closed() {
            Some(NotReading::Channel)
        } else if open >= limits.stream_unacked_calls
            || self.unacked_bytes as u64 >= limits.stream_unacked_bytes.get() && open > 0
        {
            Some(NotReading::Unacked)
        } else {
            None
        }
    }

    fn note_reading(&mut self) {
        let why = self.why_not_reading().filter(|_| self.ending.is_none());
        if let Some((before, since)) = self.not_reading
            && why != Some(before)
        {
            self.core.meters.not_reading(before, since);
            self.not_reading = None;
        }
        if let (Some(why), None) = (why, self.not_reading) {
            self.not_reading = Some((why, Instant::now()));
        }
    }

    #[expect(clippy::async_yields_async, reason = "what a submit yields is the ticket, to be awaited later")]
    async fn next(&mut self, inbound: &mut Streaming<EphemeralStreamRequest>) -> Event {
        let reads = self.ending.is_none() && self.why_not_reading().is_none();
        let resume = self.recovery.as_ref().and_then(Recovery::resume);
        let Session { outbox, phase, in_flight, submitting, close_at, age_at, .. } = self;
        tokio::select! {
            biased;
            () = poll_fn(|cx| outbox.poll_abandoned(cx)) => Event::Abandoned,
            _ = phase.changed() => Event::Phase(*phase.borrow_and_update()),
            outcome = async {
                match in_flight.front_mut() {
                    Some(front) => (&mut front.ticket).await,
                    None => std::future::pending().await,
                }
            } => Event::Settled(outcome),
            ticket = async {
                match submitting {
                    Some((submit, _)) => submit.await,
                    None => std::future::pending().await,
                }
            } => Event::Submitted(ticket),
            () = at(resume) => Event::Resume,
            () = at(*age_at) => Event::Aged,
            () = at(*close_at) => Event::Closed,
            message = inbound.message(), if reads => Event::Read(message),
        }
    }

    fn close_signal(&mut self, until: Instant, why: &'static str) {
        // At most once per stream; a drain may still shorten what an age has begun.
        if self.close_at.is_none() && self.ending.is_none() {
            self.age_at = None;
            self.outbox.close_signal(until.saturating_duration_since(Instant::now()));
            self.core.meters.close_signal(why);
            self.close_at = Some(until);
        } else if let Some(at) = &mut self.close_at {
            *at = until.min(*at);
        }
    }

    fn submit_next(&mut self) {
        let is_full = self.most_out.is_some_and(|most| self.in_flight.len() >= most);
        if self.submitting.is_some() || self.is_recovering() || is_full {
            return;
        }
        let Some(mut piece) = self.queued.pop() else { return };
        let records = std::mem::take(&mut piece.records);
        let submit = submit(
            self.opened.channel.clone(),
            records,
            PublishOptions {
                partition: Some(self.opened.entry.partition()),
                chain: Some(self.chain.clone()),
                deadline: Some(self.core.limits().stream_deadline),
                ..PublishOptions::default()
            },
        );
        self.submitting = Some((Box::pin(submit), piece));
    }

    /// Takes the outcome of the oldest piece, and of those after it that have theirs already, so that a commit of
    /// many makes one ack.
    fn settle_ready(&mut self, outcome: PublishOutcome) -> Result<(), Refusal> {
        let mut ack: Option<(i64, Durability, Instant)> = None;
        let mut next = Some(outcome);
        let mut settled = Ok(());
        while let Some(outcome) = next.take() {
            let Some(InFlight { piece, .. }) = self.in_flight.pop_front() else { break };
            match self.settle(outcome, piece) {
                Ok(Some((frame, class, received))) => {
                    let oldest = ack.map_or(received, |(_, _, before)| before.min(received));
                    ack = Some((frame, class, oldest));
                }
                Ok(None) => {}
                Err(refusal) => {
                    settled = Err(refusal);
                    break;
                }
            }
            next = self.in_flight.front_mut().and_then(|front| (&mut front.ticket).now_or_never());
        }
        if let Some((frame, class, received)) = ack {
            self.acked = frame;
            self.outbox.ack(frame, class);
            self.core.meters.acked(received.elapsed());
        }
        settled
    }

    fn settle(
        &mut self,
        outcome: PublishOutcome,
        mut piece: Piece,
    ) -> Result<Option<(i64, Durability, Instant)>, Refusal> {
        let meters = &self.core.meters;
        match outcome {
            PublishOutcome::Committed(committed) => {
                meters.in_flight.decrement(piece.count as f64);
                meters.unacked_bytes.decrement(piece.bytes as f64);
                let outcome = if committed.duplicate { Outcome::Duplicate } else { Outcome::Committed };
                meters.records(outcome, piece.count);
                self.unacked_bytes = self.unacked_bytes.saturating_sub(piece.bytes);
                self.recovery = None;
                self.most_out = self.most_out.map(|most| most.saturating_add(1));
                Ok(piece.completes.map(|frame| (frame, committed.class, piece.received)))
            }
            PublishOutcome::NotStored(not_stored) => {
                let cause = refusal::of(&not_stored.error).at_frame(piece.first_frame);
                piece.records = not_stored.records;
                if !had_no_room(&not_stored.error) || piece.records.is_empty() {
                    self.give_up(piece, Outcome::NotStored);
                    return Err(cause);
                }
                self.redo(piece, cause)
            }
            PublishOutcome::Unresolved(unresolved) => {
                let refusal = refusal::of(&unresolved.cause)
                    .at_frame(piece.first_frame)
                    .with_reference(unresolved.reference.to_string());
                self.give_up(piece, Outcome::Unresolved);
                Err(refusal)
            }
        }
    }

    /// Sets a piece aside until the channel has room.
    fn redo(&mut self, piece: Piece, cause: Refusal) -> Result<Option<(i64, Durability, Instant)>, Refusal> {
        let now = Instant::now();
        let all_back = self.in_flight.is_empty() && self.submitting.is_none();
        if !self.is_recovering() {
            self.most_out = Some(self.in_flight.len().div_ceil(2).max(1));
        }
        let recovery = self.recovery.get_or_insert_with(|| Recovery::new(now, cause));
        recovery.set_aside(piece, now, self.core.limits().stream_deadline)?;
        if all_back {
            recovery.all_back(now);
        }
        Ok(None)
    }

    /// Tries again what was set aside, before anything that was read later.
    fn resume(&mut self) {
        self.chain = self.opened.channel.new_chain();
        if let Some(recovery) = &mut self.recovery {
            self.queued.put_back(recovery.take());
        }
    }

    /// Takes a message, and those that are there already, as pieces.
    fn read(
        &mut self,
        mut message: Result<Option<EphemeralStreamRequest>, Status>,
        inbound: &mut Streaming<EphemeralStreamRequest>,
    ) {
        loop {
            match message {
                Ok(Some(request)) => {
                    let wire_bytes = request.encoded_len() + FRAME_HEAD_BYTES;
                    match frame::read(request.payload, self.next_frame, &self.opened, self.core.limits()) {
                        Ok(call) => {
                            self.received(&call);
                            self.queued.add(call, self.next_frame, wire_bytes);
                            self.next_frame += 1;
                        }
                        Err(refusal) => {
                            self.core.meters.received.increment(1);
                            self.core.meters.records(Outcome::Refused, 1);
                            self.ending = Some(End::Refused(refusal));
                            break;
                        }
                    }
                }
                Ok(None) => {
                    // After a close signal a client has to come back, however it left.
                    let signalled = self.close_at.is_some();
                    self.ending = Some(if signalled { End::Refused(draining()) } else { End::Complete });
                    break;
                }
                Err(status) => {
                    self.ending = Some(End::Refused(transport(&status).at_frame(self.next_frame)));
                    break;
                }
            }
            // Full: it is on its way, and so is what would not fit.
            if self.queued.has_closed() || self.why_not_reading().is_some() {
                break;
            }
            match inbound.message().now_or_never() {
                Some(next) => message = next,
                None => break,
            }
        }
        self.queued.close();
    }

    fn received(&mut self, call: &Call) {
        let meters = &self.core.meters;
        meters.received.increment(call.records.len() as u64);
        meters.bytes.increment(call.bytes as u64);
        meters.in_flight.increment(call.records.len() as f64);
        meters.unacked_bytes.increment(call.bytes as f64);
        self.unacked_bytes += call.bytes;
    }

    fn give_up(&self, piece: Piece, outcome: Outcome) {
        let meters = &self.core.meters;
        meters.in_flight.decrement(piece.count as f64);
        meters.unacked_bytes.decrement(piece.bytes as f64);
        meters.records(outcome, piece.count);
    }
}

impl Drop for Session<'_> {
    /// What is left when a stream ends early: handed over, so its outcome is not known here, or never published.
    fn drop(&mut self) {
        let handed_over = self.in_flight.drain(..).map(|in_flight| in_flight.piece).collect::<Vec<_>>();
        let submitting = self.submitting.take().map(|(_, piece)| piece);
        for piece in handed_over {
            self.give_up(piece, Outcome::Unresolved);
        }
        let redo = self.recovery.take().map(|mut recovery| recovery.take()).unwrap_or_default();
        let queued = self.queued.drain();
        for piece in submitting.into_iter().chain(redo).chain(queued) {
            self.give_up(piece, Outcome::NotStored);
        }
        if let Some((why, since)) = self.not_reading {
            self.core.meters.not_reading(why, since);
        }
    }
}

/// Length and flag in front of a message.
const FRAME_HEAD_BYTES: usize = 5;

async fn submit(channel: Channel, records: Vec<Record>, options: PublishOptions) -> Ticket {
    channel.submit_batch(records, options).await
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

/// ± 10 %, so that streams opened together do not come back together.
fn spread(age: Duration) -> Duration {
    let dice = uuid::Uuid::new_v4().as_u128() % 2_001;
    age.mul_f64(0.9 + dice as f64 / 10_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch an age that does not spread, or leaves ± 10 %.
    #[test]
    fn ages_are_spread() {
        let ages: Vec<_> = (0..100).map(|_| spread(Duration::from_secs(100))).collect();
        assert!(ages.iter().all(|age| (90..=110).contains(&age.as_secs())));
        assert!(ages.iter().any(|age| *age != ages[0]));
    }
}
