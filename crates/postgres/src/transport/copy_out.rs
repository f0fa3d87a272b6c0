//! A connection that copies: commands and COPY … TO STDOUT on the wire of our own (P54).
//!
//! Rows are read many at a time and handed out where they lie, without a message, a channel or a clock for each. The
//! settings are those of every connection (P49). A statement that is given up is cancelled on the server too; to give up a
//! COPY, drop the connection: the server finds that out with its next write.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};

use super::copy_frames::{CopyFault, CopyFrames, CopyPiece};
use super::login::Purpose;
use super::session::{Answer, Session, answer};
use crate::connect::{ConnectError, ConnectOptions, ServerError};
use crate::sql::{QUERY_DEADLINE, SqlError, cancel_on_server};

/// See the module.
#[derive(Debug)]
pub(crate) struct CopyConnection {
    session: Session,
    frames: CopyFrames,
    options: Arc<ConnectOptions>,
    /// `host:port/database`, for messages.
    peer: String,
    is_closed: bool,
}

impl CopyConnection {
    /// Connects, each address within the connect timeout of `options`.
    pub(crate) async fn open(options: &ConnectOptions) -> Result<Self, SqlError> {
        let session = Session::open(options, Purpose::Sql).await?;
        let host = options.endpoints.first().map(ToString::to_string).unwrap_or_default();
        let peer = format!("{host}/{}", options.database);
        let options = Arc::new(options.clone());
        Ok(CopyConnection { session, frames: CopyFrames::default(), options, peer, is_closed: false })
    }

    /// Whether it can take no more commands.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Runs statements in one message; gives the first cell of the one row that they answer with, if they do.
    pub(crate) async fn run(&mut self, doing: &'static str, sql: &str) -> Result<Option<Bytes>, SqlError> {
        match self.ask(doing, sql).await? {
            Answer::Rows(mut rows) => Ok(rows.pop().and_then(|row| row.into_iter().next().flatten())),
            Answer::CopyBoth | Answer::CopyOut => Err(self.failed(doing, answer(sql))),
        }
    }

    /// Starts a COPY … TO STDOUT; what follows has no deadline here, the reader keeps its own.
    pub(crate) async fn copy_out(&mut self, doing: &'static str, sql: &str) -> Result<(), SqlError> {
        match self.ask(doing, sql).await? {
            Answer::CopyOut => {
                let incoming = &mut self.session.wire.incoming;
                self.frames.take_in(incoming);
                incoming.clear();
                Ok(())
            }
            Answer::Rows(_) | Answer::CopyBoth => Err(self.failed(doing, answer(sql))),
        }
    }

    /// The next rows that are here, or `None` until [`fill`](CopyConnection::fill) has read more.
    pub(crate) fn next(&mut self, row_bytes_max: usize) -> Result<Option<CopyPiece<'_>>, CopyFault> {
        let next = self.frames.next(row_bytes_max);
        match &next {
            Ok(Some(CopyPiece::End)) => self.session.free(),
            Ok(_) => {}
            Err(_) => self.is_closed = true,
        }
        next
    }

    /// One read. Cancel-safe.
    pub(crate) async fn fill(&mut self) -> Result<(), CopyFault> {
        let (stream, frames) = (&mut self.session.wire.stream, &mut self.frames);
        let read = poll_fn(|cx| {
            let mut space = ReadBuf::new(frames.space());
            let read = ready!(Pin::new(&mut *stream).poll_read(cx, &mut space));
            let count = space.filled().len();
            frames.filled(count);
            Poll::Ready(read.map(|()| count))
        });
        let read = match read.await {
            Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            read => read,
        };
        read.map(drop).map_err(|error| {
            self.is_closed = true;
            CopyFault::Connection(ConnectError::Lost(error))
        })
    }

    /// Why a command, or the rows of a COPY, did not come.
    pub(crate) fn failed(&self, doing: &'static str, error: ConnectError) -> SqlError {
        SqlError::on_our_wire(&self.peer, &self.options.user, doing, error)
    }

    /// The same of an error that the server sent in the middle of the rows.
    pub(crate) fn refused(&self, doing: &'static str, error: Box<ServerError>) -> SqlError {
        self.failed(doing, ConnectError::Refused { command: "COPY".to_owned(), error })
    }

    /// A COPY that says nothing any more.
    pub(crate) fn silent(&self, doing: &'static str, after: Duration) -> SqlError {
        SqlError::Deadline { peer: self.peer.clone(), doing, after }
    }

    async fn ask(&mut self, doing: &'static str, sql: &str) -> Result<Answer, SqlError> {
        let mut cancel = CancelOnDrop { options: Some(Arc::clone(&self.options)), pid: self.session.pid() };
        let answered = tokio::time::timeout(QUERY_DEADLINE, self.session.ask(sql)).await;
        if answered.is_ok() {
            cancel.options = None;
        }
        // After a refusal of the server the transaction is over, and with it the snapshot.
        self.is_closed |= !matches!(answered, Ok(Ok(_)));
        match answered {
            Ok(answered) => answered.map_err(|error| self.failed(doing, error)),
            Err(_) => Err(self.silent(doing, QUERY_DEADLINE)),
        }
    }
}

/// Cancels on the server what nobody waits for any more. What was given up leaves its connection busy for good, so no
/// later statement is hit.
struct CancelOnDrop {
    options: Option<Arc<ConnectOptions>>,
    pid: i32,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(options) = self.options.take().filter(|_| self.pid != 0) {
            cancel_on_server(ConnectOptions::clone(&options), self.pid);
        }
    }
}
