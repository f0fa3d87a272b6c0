//! The stream of a replication connection as a [`Transport`], and its way back.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{BufMut, BytesMut};
use landfall_types::{Clock, SystemClock};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};

use super::frames::{FrameBuffer, server_time};
use super::gather::{Gathering, LowWater};
use super::{Announced, CloseCause, FeedbackHandle, Frame, StatusUpdate, Transport};
use crate::connect::Stream;

/// What may wait to be sent; more means that the peer does not read, and the newest status is all that counts.
const OUTGOING_MAX: usize = 4 << 10;

/// The reading side. Memory: the read-ahead, or one frame that was asked for.
#[derive(Debug)]
pub struct ReplicationTransport<R = ReadHalf<Stream>, W = WriteHalf<Stream>> {
    read: R,
    frames: FrameBuffer,
    gathering: Gathering,
    closed: Option<CloseCause>,
    feedback: Option<ReplicationFeedback<W>>,
    received: Arc<AtomicU64>,
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> ReplicationTransport<R, W> {
    /// Over both halves of a connection that is in copy mode, with what was read of it already.
    pub(crate) fn new(read: R, write: W, max_message: usize, already: &[u8]) -> Self {
        ReplicationTransport {
            read,
            frames: FrameBuffer::new(max_message, already),
            gathering: Gathering::new(None),
            closed: None,
            feedback: Some(ReplicationFeedback { write, outgoing: BytesMut::new() }),
            received: Arc::new(AtomicU64::new(already.len() as u64)),
        }
    }

    /// The same, woken by this mark while the stream is busy.
    pub(super) fn gathered_by(mut self, mark: Option<LowWater>) -> Self {
        self.gathering = Gathering::new(mark);
        self
    }

    /// One read; an end of the connection is noted.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut space = ReadBuf::new(self.frames.space());
        let read = Pin::new(&mut self.read).poll_read(cx, &mut space);
        let count = space.filled().len();
        if read.is_pending() {
            self.gathering.wait(cx);
        }
        let read = ready!(read);
        self.gathering.read(count);
        match read {
            Ok(()) if count > 0 => {
                self.frames.filled(count);
                self.received.fetch_add(count as u64, Ordering::Relaxed);
            }
            Ok(()) => self.closed = Some(CloseCause::lost(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => self.closed = Some(CloseCause::lost(error)),
        }
        Poll::Ready(())
    }

    fn poll_announced(&mut self, cx: &mut Context<'_>) -> Poll<Announced> {
        loop {
            if self.closed.is_some() {
                return Poll::Ready(Announced { bytes: 0, is_whole: true, is_end: true });
            }
            match self.frames.announced() {
                Err(cause) => self.closed = Some(cause),
                Ok(Some(announced)) if announced.is_whole || !self.frames.fits_read_ahead() => {
                    return Poll::Ready(announced);
                }
                // The rest may be in the socket: then the frame is whole, and no wait is announced that is none.
                Ok(Some(announced)) => {
                    if self.poll_fill(cx).is_pending() {
                        return Poll::Ready(announced);
                    }
                }
                Ok(None) => ready!(self.poll_fill(cx)),
            }
        }
    }

    fn poll_whole(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let announced = ready!(self.poll_announced(cx));
            if announced.is_whole {
                return Poll::Ready(());
            }
            self.frames.grow();
            ready!(self.poll_fill(cx));
        }
    }
}

impl<R, W> Transport for ReplicationTransport<R, W>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    type Feedback = ReplicationFeedback<W>;

    async fn announced(&mut self) -> Announced {
        poll_fn(|cx| self.poll_announced(cx)).await
    }

    async fn next(&mut self) -> Frame<'_> {
        poll_fn(|cx| self.poll_whole(cx)).await;
        if let Some(cause) = &self.closed {
            return Frame::Closed { cause: cause.clone() };
        }
        match self.frames.take() {
            Some(frame) => frame,
            None => Frame::Closed { cause: CloseCause::Violation("a frame that was there is gone".to_owned()) },
        }
    }

    fn feedback(&mut self) -> Option<Self::Feedback> {
        self.feedback.take()
    }

    fn received_bytes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.received)
    }
}

/// The writing side.
#[derive(Debug)]
pub struct ReplicationFeedback<W = WriteHalf<Stream>> {
    write: W,
    /// What is not sent yet, perhaps the rest of a message.
    outgoing: BytesMut,
}

impl<W: AsyncWrite + Unpin> ReplicationFeedback<W> {
    async fn drain(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            if self.write.write_buf(&mut self.outgoing).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        self.write.flush().await
    }
}

impl<W: AsyncWrite + Unpin + Send + 'static> FeedbackHandle for ReplicationFeedback<W> {
    async fn send(&mut self, status: StatusUpdate) -> io::Result<()> {
        if self.outgoing.len() < OUTGOING_MAX {
            self.outgoing.put_u8(b'd');
            self.outgoing.put_u32(4 + 34);
            self.outgoing.put_u8(b'r');
            self.outgoing.put_u64(status.write.0);
            self.outgoing.put_u64(status.flush.0);
            self.outgoing.put_u64(status.apply.0);
            self.outgoing.put_i64(server_time(SystemClock.now()));
            self.outgoing.put_u8(u8::from(status.wants_reply));
        }
        self.drain().await
    }

    async fn finish(&mut self) -> io::Result<()> {
        postgres_protocol::message::frontend::copy_done(&mut self.outgoing);
        postgres_protocol::message::frontend::terminate(&mut self.outgoing);
        self.drain().await?;
        self.write.shutdown().await
    }
}
