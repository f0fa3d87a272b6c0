//! Bodies that carry an account of memory in, or a place among the streams out.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::memory::Account;

/// A request's body, of which each frame is charged before it is handed on (G19). While the budget is out the
/// transport is not read, and its window tells the peer to stop.
pub(crate) struct ChargedBody {
    inner: Incoming,
    account: Arc<Account>,
    /// Read from the transport, not charged yet: at most one frame.
    waiting: Option<Frame<Bytes>>,
}

impl ChargedBody {
    pub(crate) fn new(inner: Incoming, account: Arc<Account>) -> Self {
        ChargedBody { inner, account, waiting: None }
    }
}

impl Body for ChargedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.waiting.is_none() {
            match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Ok(frame)) => self.waiting = Some(frame),
                other => return Poll::Ready(other),
            }
        }
        if let Some(bytes) = self.waiting.as_ref().and_then(Frame::data_ref).map(Bytes::len)
            && bytes > 0
        {
            ready!(self.account.poll_charge(bytes, cx));
        }
        Poll::Ready(self.waiting.take().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A response's body that holds something until it has been sent or given up.
pub(crate) struct HoldingBody<T> {
    inner: axum::body::Body,
    _held: T,
}

impl<T> HoldingBody<T> {
    pub(crate) fn new(inner: axum::body::Body, held: T) -> Self {
        HoldingBody { inner, _held: held }
    }
}

impl<T: Unpin> Body for HoldingBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
