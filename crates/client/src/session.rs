//! The task of one sub-stream: reads acknowledgements, keeps the deadlines, reconnects, ends.
//!
//! It alone opens RPCs for its sub-stream. A retry-later end stays inside it; an end for good is pushed to the
//! handle at once, so that nobody has to touch the sub-stream to learn of it. After a close signal no frame
//! goes to the old RPC, and the next one is opened only when the old one is acknowledged or its time is over.

use std::sync::Arc;
use std::time::Duration;

use landfall_protocol::wire::{
    CloseStreamSignal, Durability, EphemeralStreamResponse, IngestRecordResponse, ephemeral_stream_response,
};
use landfall_types::{Coded, Retry};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code as Grpc, Status};

use crate::capacity::Standing;
use crate::connector::{Connector, Failure, OpenRpc};
use crate::error::IngestError;
use crate::id::{AckDurability, IdRange, MessageId};
use crate::ledger::AckEffect;
use crate::options::OnLoss;
use crate::recovery::{Recovery, RecoveryPolicy, Verdict};
use crate::shared::Shared;
use crate::sub_stream::{Flow, SubStream};

/// What the handle asks of its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Go on.
    Run,
    /// All is acknowledged: close our side, read to the end.
    Finish,
    /// End now.
    Stop,
}

/// How long acks are still read after our side of an RPC was closed.
const LATE_ACKS: Duration = Duration::from_millis(500);

/// How an open RPC ended.
enum Served {
    Failed(Failure),
    Finished,
}

/// Where an open RPC stands.
enum Phase {
    Running,
    /// After a close signal: reading acks until the time is over.
    Paused {
        until: Instant,
    },
    /// Our side is closed: reading late acks; then it ends with this.
    Draining {
        until: Instant,
        then: Box<Failure>,
    },
    /// The same, because the handle is being closed.
    Finishing {
        until: Instant,
    },
}

pub(crate) struct Session {
    shared: Arc<Shared>,
    connector: Arc<Connector>,
    index: u16,
    command: watch::Receiver<Command>,
    recovery: Recovery,
    channel: Option<Channel>,
    is_lost: bool,
}

impl Session {
    pub(crate) fn new(
        shared: Arc<Shared>,
        connector: Arc<Connector>,
        index: u16,
        command: watch::Receiver<Command>,
        channel: Option<Channel>,
    ) -> Self {
        let policy = RecoveryPolicy {
            budget: shared.options.recovery_budget,
            initial: shared.options.backoff_initial,
            max: shared.options.backoff_max,
            can_refresh: connector.credentials.can_refresh(),
        };
        let recovery = Recovery::new(policy);
        Session { shared, connector, index, command, recovery, channel, is_lost: false }
    }

    fn sub_stream(&self) -> &SubStream {
        self.shared.sub_stream(self.index)
    }

    /// Opens the first RPC, trying again as recovery does. `others_failed` ends the trying.
    pub(crate) async fn open(&mut self, mut others_failed: watch::Receiver<bool>) -> Result<OpenRpc, IngestError> {
        loop {
            let failure = match self.attempt().await {
                Ok(rpc) => return Ok(rpc),
                Err(failure) => failure,
            };
            let verdict = self.recovery.after(failure.ending, Instant::now().into_std(), rand::random());
            let delay = match verdict {
                Verdict::Final => return Err(failure.error),
                Verdict::Lost { attempts, without_progress } => {
                    return Err(self.lost_error(attempts, without_progress, failure.error));
                }
                Verdict::Retry { delay } => delay,
            };
            self.log_attempt(&failure.error, delay);
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                _ = others_failed.wait_for(|failed| *failed) => return Err(failure.error),
            }
        }
    }

    /// Runs until the handle closes or the sub-stream ends for good.
    pub(crate) async fn run(mut self, mut rpc: OpenRpc) {
        let mut stop = self.command.clone();
        // Stopping must not wait for an attempt in flight.
        tokio::select! {
            biased;
            _ = stop.wait_for(|command| *command == Command::Stop) => {}
            () = async {
                loop {
                    let opened = Instant::now();
                    let failure = match self.serve(&mut rpc).await {
                        Served::Finished => return,
                        Served::Failed(failure) => failure,
                    };
                    self.shared.report(self.index);
                    let idle = self.sub_stream().section().ledger.unacked() == 0;
                    if idle && opened.elapsed() >= self.shared.options.backoff_max {
                        // Nothing to acknowledge, so no progress was possible; having stayed open is as good.
                        self.recovery.progress();
                    }
                    drop(rpc);
                    match self.recover(failure).await {
                        Some(next) => rpc = next,
                        None => return,
                    }
                }
            } => {}
        }
        self.shared.report(self.index);
    }

    async fn attempt(&mut self) -> Result<OpenRpc, Failure> {
        // A second attempt goes over a new connection: the old one may be what is wrong.
        let channel = self.channel.take().filter(|_| self.recovery.attempts() < 2);
        let rpc = self.connector.open(&self.shared, self.index, channel).await?;
        self.channel = Some(rpc.channel.clone());
        self.sub_stream().set_flow(Flow::Sending);
        Ok(rpc)
    }

    /// Reads one open RPC to its end.
    async fn serve(&mut self, rpc: &mut OpenRpc) -> Served {
        let mut phase = Phase::Running;
        let ack_timeout = self.shared.options.ack_timeout;
        // With nothing on the wire the timer is set for the earliest moment at which a frame handed over from
        // now on could be due; it then looks again. So no frame has to set it.
        let mut deadline = Instant::now() + ack_timeout;
        let mut woken = Vec::new();
        loop {
            let until = match &phase {
                Phase::Running => deadline,
                Phase::Paused { until } | Phase::Draining { until, .. } | Phase::Finishing { until } => *until,
            };
            // Unbiased: a peer that floods us with messages must not keep the deadline from being seen.
            let message = tokio::select! {
                message = rpc.responses.message() => message,
                () = tokio::time::sleep_until(until) => {
                    match phase {
                        Phase::Running => match self.ack_overdue() {
                            Err(next) => deadline = next,
                            Ok(failure) => phase = self.drain(failure),
                        },
                        Phase::Paused { .. } => phase = self.drain(self.planned_end()),
                        Phase::Draining { then, .. } => return Served::Failed(*then),
                        Phase::Finishing { .. } => return Served::Finished,
                    }
                    continue;
                }
                Ok(()) = self.command.changed() => {
                    if *self.command.borrow() == Command::Finish && !matches!(phase, Phase::Finishing { .. }) {
                        self.sub_stream().set_flow(Flow::HalfClosing);
                        phase = Phase::Finishing { until: Instant::now() + LATE_ACKS };
                    }
                    continue;
                }
            };
            match message {
                Ok(Some(message)) => match self.take(message, rpc.is_landfall, &mut woken) {
                    Taken::Nothing => {}
                    Taken::Progress => {
                        self.recovery.progress();
                        let oldest = self.sub_stream().section().ledger.oldest_frame();
                        let since = oldest.map_or_else(Instant::now, |(_, handed)| Instant::from_std(handed));
                        deadline = since + ack_timeout;
                        if oldest.is_none() && matches!(phase, Phase::Paused { .. }) {
                            phase = self.drain(self.planned_end());
                        }
                    }
                    Taken::CloseSignal(duration) => {
                        if matches!(phase, Phase::Running) {
                            phase = self.pause(duration);
                        }
                    }
                    Taken::Broken(failure) => return Served::Failed(failure),
                },
                Ok(None) | Err(_) => {
                    let status = message.err().unwrap_or_else(|| Status::new(Grpc::Ok, "the peer ended the stream"));
                    return match phase {
                        Phase::Finishing { .. } => Served::Finished,
                        Phase::Draining { then, .. } => Served::Failed(*then),
                        Phase::Paused { .. } => {
                            let mut failure = self.ended(&status);
                            failure.ending.planned = failure.ending.retry != Retry::Never;
                            Served::Failed(failure)
                        }
                        Phase::Running => Served::Failed(self.ended(&status)),
                    };
                }
            }
        }
    }

    fn take(
        &mut self,
        message: EphemeralStreamResponse,
        is_landfall: bool,
        woken: &mut Vec<std::task::Waker>,
    ) -> Taken {
        use ephemeral_stream_response::Payload;
        match message.payload {
            Some(Payload::IngestRecordResponse(ack)) => self.take_ack(&ack, is_landfall, woken),
            Some(Payload::CloseStreamSignal(CloseStreamSignal { duration })) => {
                let duration = duration.and_then(|duration| Duration::try_from(duration).ok()).unwrap_or_default();
                Taken::CloseSignal(duration)
            }
            // A second answer to the create, or a message of a later version: nothing of ours depends on it.
            Some(Payload::CreateStreamResponse(_)) | None => Taken::Nothing,
        }
    }

    fn take_ack(&mut self, ack: &IngestRecordResponse, is_landfall: bool, woken: &mut Vec<std::task::Waker>) -> Taken {
        let Some(wire_offset) = ack.durability_ack_up_to_offset else {
            let detail = "the peer sent an acknowledgement without an offset".into();
            return Taken::Broken(Failure::later(IngestError::ConnectionLost { sub_stream: self.index, detail }));
        };
        let durability = match ack.durability.map(Durability::try_from) {
            None if is_landfall => AckDurability::Fsync,
            Some(Ok(Durability::Fsync)) => AckDurability::Fsync,
            Some(Ok(Durability::Written)) => AckDurability::Written,
            Some(Ok(Durability::Memory)) => AckDurability::Memory,
            None | Some(Err(_)) => AckDurability::Unspecified,
        };
        match self.sub_stream().ack(wire_offset, durability, woken) {
            AckEffect::Ignored => Taken::Nothing,
            AckEffect::Violation { highest } => {
                let highest = highest.map_or("nothing".to_owned(), |highest| format!("frames up to {highest}"));
                let what = format!("it acknowledged frame {wire_offset}, and {highest} was sent").into();
                Taken::Broken(Failure::never(IngestError::ProtocolViolation { sub_stream: self.index, what }))
            }
            AckEffect::Moved { freed } => {
                self.shared.release(self.index, freed);
                woken.drain(..).for_each(std::task::Waker::wake);
                self.shared.report(self.index);
                Taken::Progress
            }
        }
    }

    /// The oldest frame is overdue, or when it may be.
    fn ack_overdue(&self) -> Result<Failure, Instant> {
        let ack_timeout = self.shared.options.ack_timeout;
        let now = Instant::now();
        let Some((first, handed)) = self.sub_stream().section().ledger.oldest_frame() else {
            return Err(now + ack_timeout);
        };
        let due = Instant::from_std(handed) + ack_timeout;
        if due > now {
            return Err(due);
        }
        let oldest = MessageId::new(self.index, first);
        Ok(Failure::later(IngestError::AckTimeout { oldest, age: now - Instant::from_std(handed) }))
    }

    /// Sending stops with the signal; acks of what was sent are read for a while.
    fn pause(&self, duration: Duration) -> Phase {
        self.sub_stream().set_flow(Flow::Paused);
        let pause = self.shared.options.pause_max.map_or(duration, |max| max.min(duration));
        if pause.is_zero() || !self.sub_stream().section().ledger.has_frames_in_flight() {
            return self.drain(self.planned_end());
        }
        tracing::debug!(sub_stream = self.index, ?pause, "the peer announced the end of the stream");
        Phase::Paused { until: Instant::now() + pause.min(Duration::from_secs(86_400)) }
    }

    fn drain(&self, then: Failure) -> Phase {
        self.sub_stream().set_flow(Flow::HalfClosing);
        Phase::Draining { until: Instant::now() + LATE_ACKS, then: Box::new(then) }
    }

    fn planned_end(&self) -> Failure {
        let detail = "the peer announced the end of the stream".into();
        let mut failure = Failure::later(IngestError::ConnectionLost { sub_stream: self.index, detail });
        failure.ending.planned = true;
        failure.connection = false;
        failure
    }

    /// The peer ended the RPC. A definite refusal is told with the calls that it is about.
    fn ended(&self, status: &Status) -> Failure {
        let mut failure = Failure::status(status, self.index);
        let IngestError::Status { refusal, .. } = &failure.error else { return failure };
        let by_content = matches!(refusal.grpc, Grpc::InvalidArgument | Grpc::OutOfRange);
        if failure.ending.retry != Retry::Never || !by_content {
            return failure;
        }
        let mut section = self.sub_stream().section();
        let named = refusal.wire_offset.and_then(|offset| section.ledger.calls_of_frame(offset));
        if let Some((first, _)) = named {
            section.ledger.refused_from(first);
        }
        if let Some((first, last)) = named.or_else(|| section.ledger.sent_calls()) {
            let ids = IdRange { first: MessageId::new(self.index, first), last: MessageId::new(self.index, last) };
            let record_index = if named.is_some() { refusal.record_index } else { None };
            failure.error = IngestError::Refused { ids, record_index, refusal: Arc::clone(refusal) };
        }
        failure
    }

    /// Tries until an RPC is open, the peer's answer is final, or the handle stops.
    async fn recover(&mut self, mut failure: Failure) -> Option<OpenRpc> {
        self.shared.set_standing(self.index, if self.is_lost { Standing::Lost } else { Standing::Recovering });
        loop {
            if failure.connection {
                self.channel = None;
            }
            let verdict = self.recovery.after(failure.ending, Instant::now().into_std(), rand::random());
            let delay = match verdict {
                Verdict::Final => {
                    self.fail(failure.error);
                    return None;
                }
                Verdict::Retry { delay } => delay,
                Verdict::Lost { attempts, without_progress } => {
                    if !self.is_lost {
                        self.is_lost = true;
                        let all = self.shared.lose(self.index);
                        if all || self.shared.options.on_loss == OnLoss::Poison {
                            let error = self.lost_error(attempts, without_progress, failure.error);
                            self.fail(error);
                            return None;
                        }
                        tracing::warn!(sub_stream = self.index, attempts, ?without_progress, cause = %failure.error,
                            "sub-stream lost: it gets no new calls until it is open again");
                    }
                    self.recovery.lost_pace(rand::random())
                }
            };
            self.log_attempt(&failure.error, delay);
            self.shared.meters.reconnect(self.index, &failure.error);
            self.sub_stream().section().reconnects += 1;
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                // The handle closes and everything is acknowledged: nothing to reconnect for.
                _ = self.command.wait_for(|command| *command != Command::Run) => return None,
            }
            match self.attempt().await {
                Ok(rpc) => {
                    self.is_lost = false;
                    self.shared.found(self.index);
                    return Some(rpc);
                }
                Err(next) => failure = next,
            }
        }
    }

    fn lost_error(&self, attempts: u32, without_progress: Duration, cause: IngestError) -> IngestError {
        if self.shared.options.recovery_budget.is_zero() {
            return cause;
        }
        IngestError::Lost { attempts, without_progress, cause: Arc::new(cause) }
    }

    fn fail(&self, error: IngestError) {
        tracing::error!(table = %self.shared.table, sub_stream = self.index, code = %error.code(), %error,
            "the stream has ended for good");
        self.shared.fail(error, self.index);
    }

    fn log_attempt(&self, cause: &IngestError, delay: Duration) {
        let section = self.sub_stream().section();
        let (first, unacked) = (section.ledger.front(), section.ledger.unacked());
        drop(section);
        tracing::warn!(table = %self.shared.table, sub_stream = self.index, attempt = self.recovery.attempts(), ?delay,
            first_to_resend = first, calls_to_resend = unacked, protected = false, code = %cause.code(), %cause,
            "reconnecting");
    }
}

/// What a message was.
enum Taken {
    Nothing,
    Progress,
    CloseSignal(Duration),
    Broken(Failure),
}
