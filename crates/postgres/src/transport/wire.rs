//! Messages of the command phase: start-up, log-in, commands and their answers, each bounded.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::connect::{ConnectError, ServerError, Stream, cut};

/// The longest message before the stream begins; a timeline history of thousands of switches fits.
const MESSAGE_MAX: usize = 1 << 20;

/// A message of the server.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) tag: u8,
    pub(super) body: Bytes,
}

/// A connection's bytes as messages.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: Stream,
    pub(super) incoming: BytesMut,
    pub(super) outgoing: BytesMut,
}

impl Wire {
    pub(super) fn new(stream: Stream) -> Self {
        Wire { stream, incoming: BytesMut::with_capacity(8 << 10), outgoing: BytesMut::new() }
    }

    /// Sends what was put into `outgoing`.
    pub(super) async fn send(&mut self) -> Result<(), ConnectError> {
        while !self.outgoing.is_empty() {
            self.stream.write_buf(&mut self.outgoing).await.map_err(ConnectError::Lost)?;
        }
        self.stream.flush().await.map_err(ConnectError::Lost)
    }

    /// The next message. Cancel-safe.
    pub(super) async fn message(&mut self) -> Result<Message, ConnectError> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            let read = self.stream.read_buf(&mut self.incoming).await.map_err(ConnectError::Lost)?;
            if read == 0 {
                return Err(ConnectError::Lost(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn take(&mut self) -> Result<Option<Message>, ConnectError> {
        let header = self.incoming.first_chunk::<5>().copied();
        let Some([tag, a, b, c, d]) = header else {
            self.incoming.reserve(5);
            return Ok(None);
        };
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if !(4..=MESSAGE_MAX).contains(&len) {
            let what = format!("a message 0x{tag:02x} says it is {len} bytes long; 4 to {MESSAGE_MAX} may come here");
            return Err(ConnectError::Protocol { what });
        }
        if self.incoming.len() < len + 1 {
            self.incoming.reserve(len + 1 - self.incoming.len());
            return Ok(None);
        }
        let mut message = self.incoming.split_to(len + 1).freeze();
        Ok(Some(Message { tag, body: message.split_off(5) }))
    }
}

/// Reads an ErrorResponse: fields of one letter and a text each. What is cut off reads as far as it goes.
pub(crate) fn server_error(mut body: &[u8]) -> Box<ServerError> {
    let mut error = Box::new(ServerError {
        severity: "ERROR".to_owned(),
        sqlstate: "XX000".to_owned(),
        message: String::new(),
        detail: None,
        hint: None,
        routine: None,
    });
    while let Some((letter, rest)) = body.split_first() {
        let Some(end) = rest.iter().position(|byte| *byte == 0) else { break };
        let (text, after) = rest.split_at(end);
        let text = || cut(&String::from_utf8_lossy(text));
        match letter {
            // `V` is the severity that is not translated; it comes after `S`.
            b'S' | b'V' => error.severity = text(),
            b'C' => error.sqlstate = text(),
            b'M' => error.message = text(),
            b'D' => error.detail = Some(text()),
            b'H' => error.hint = Some(text()),
            b'R' => error.routine = Some(text()),
            _ => {}
        }
        body = after.get(1..).unwrap_or_default();
    }
    error
}

/// Reads a DataRow of text cells.
pub(super) fn cells(body: &Bytes) -> Result<Vec<Option<Bytes>>, ConnectError> {
    let broken = || ConnectError::Protocol { what: "a row whose cells do not add up".to_owned() };
    let count = body.first_chunk::<2>().map(|two| u16::from_be_bytes(*two)).ok_or_else(broken)?;
    let (mut at, mut row) = (2usize, Vec::new());
    for _ in 0..count {
        let four = body.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or_else(broken)?;
        let len = i32::from_be_bytes(*four);
        at += 4;
        if len == -1 {
            row.push(None);
            continue;
        }
        let end = usize::try_from(len).ok().and_then(|len| at.checked_add(len)).ok_or_else(broken)?;
        if end > body.len() {
            return Err(broken());
        }
        row.push(Some(body.slice(at..end)));
        at = end;
    }
    Ok(row)
}
