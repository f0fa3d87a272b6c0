//! What a stream still has to tell its client: at most one create response, one acknowledgement, one close signal,
//! and then its status (G15).
//!
//! An acknowledgement that was not written yet is replaced by a newer one, so a slow reader costs one slot and
//! nothing grows (I6). Whatever the order of arrival, the order of departure is create, acknowledgement, signal,
//! status. Plain and synchronous; it wakes by `Waker`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use landfall_protocol::wire::{
    CloseStreamSignal, CreateIngestStreamResponse, EphemeralStreamResponse, IngestRecordResponse,
    ephemeral_stream_response::Payload,
};
use landfall_types::Durability;
use parking_lot::Mutex;
use tonic::Status;

/// The place between a stream's task and its response.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    created: Option<String>,
    ack: Option<(i64, Durability)>,
    signal: Option<Duration>,
    end: Option<Result<(), Status>>,
    ended: bool,
    /// The response is gone: nobody will read what is put here.
    abandoned: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Outbox {
    pub(crate) fn new() -> (Arc<Outbox>, Responses) {
        let outbox = Arc::new(Outbox::default());
        (Arc::clone(&outbox), Responses { outbox })
    }

    fn put(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }

    /// The stream is open under this id.
    pub(crate) fn created(&self, stream_id: String) {
        self.put(|state| state.created = Some(stream_id));
    }

    /// All frames up to `offset` are committed. Replaces one that was not sent yet.
    pub(crate) fn ack(&self, offset: i64, class: Durability) {
        self.put(|state| {
            debug_assert!(state.ack.is_none_or(|(before, _)| before < offset), "acks only rise");
            state.ack = Some((offset, class));
        });
    }

    /// The stream will end after `duration`.
    pub(crate) fn close_signal(&self, duration: Duration) {
        self.put(|state| state.signal = Some(duration));
    }

    /// The stream has ended. Only the first end counts.
    pub(crate) fn end(&self, end: Result<(), Status>) {
        self.put(|state| {
            if !state.ended {
                state.ended = true;
                state.end = Some(end);
            }
        });
    }

    /// Resolves when the client has gone.
    pub(crate) fn poll_abandoned(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.abandoned {
            return Poll::Ready(());
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The response of a stream.
#[derive(Debug)]
pub(crate) struct Responses {
    outbox: Arc<Outbox>,
}

fn response(payload: Payload) -> Option<Result<EphemeralStreamResponse, Status>> {
    Some(Ok(EphemeralStreamResponse { payload: Some(payload) }))
}

/// The class on the wire: absent for the strongest (I1, G6).
fn durability(class: Durability) -> Option<i32> {
    use landfall_protocol::wire::Durability as Wire;
    match class {
        Durability::Fsync => None,
        Durability::Written => Some(Wire::Written as i32),
        Durability::Memory => Some(Wire::Memory as i32),
    }
}

impl futures::Stream for Responses {
    type Item = Result<EphemeralStreamResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.outbox.state.lock();
        if let Some(stream_id) = state.created.take() {
            let created = CreateIngestStreamResponse { stream_id: Some(stream_id), ..Default::default() };
            return Poll::Ready(response(Payload::CreateStreamResponse(created)));
        }
        if let Some((offset, class)) = state.ack.take() {
            let ack = IngestRecordResponse { durability_ack_up_to_offset: Some(offset), durability: durability(class) };
            return Poll::Ready(response(Payload::IngestRecordResponse(ack)));
        }
        if let Some(duration) = state.signal.take() {
            let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
            let duration = prost_types::Duration { seconds, nanos: duration.subsec_nanos().cast_signed() };
            return Poll::Ready(response(Payload::CloseStreamSignal(CloseStreamSignal { duration: Some(duration) })));
        }
        match state.end.take() {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(status)) => Poll::Ready(Some(Err(status))),
            None if state.ended => Poll::Ready(None),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Responses {
    fn drop(&mut self) {
        let mut state = self.outbox.state.lock();
        state.abandoned = true;
        if let Some(writer) = state.writer.take() {
            writer.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt};

    use super::*;

    /// Would catch acks that pile up behind a slow reader, and a status that overtakes the last ack.
    #[test]
    fn an_unsent_ack_is_replaced_and_goes_before_the_status() {
        let (outbox, mut responses) = Outbox::new();
        outbox.end(Err(Status::unavailable("later")));
        outbox.close_signal(Duration::from_millis(1_500));
        outbox.ack(3, Durability::Fsync);
        outbox.ack(9, Durability::Memory);
        outbox.created("id".into());
        let mut next = || responses.next().now_or_never().expect("something is there");
        let payload = |item: Option<Result<EphemeralStreamResponse, Status>>| item.unwrap().unwrap().payload.unwrap();
        assert!(matches!(payload(next()), Payload::CreateStreamResponse(created) if created.stream_id() == "id"));
        let Payload::IngestRecordResponse(ack) = payload(next()) else { panic!("expected the ack") };
        assert_eq!((ack.durability_ack_up_to_offset, ack.durability), (Some(9), Some(3)));
        let Payload::CloseStreamSignal(signal) = payload(next()) else { panic!("expected the signal") };
        assert_eq!(signal.duration, Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }));
        assert_eq!(next().unwrap().unwrap_err().code(), tonic::Code::Unavailable);
        assert!(next().is_none());
    }

    /// Would catch a task that goes on for a client that has gone.
    #[test]
    fn a_dropped_response_is_noticed() {
        let (outbox, responses) = Outbox::new();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(outbox.poll_abandoned(&mut cx).is_pending());
        drop(responses);
        assert!(outbox.poll_abandoned(&mut cx).is_ready());
    }
}
