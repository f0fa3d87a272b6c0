//! A connection that takes commands as texts, one at a time: both the replication connection and those that copy are
//! one.
//!
//! A command that is abandoned half-way makes the connection useless, and it says so.

use bytes::Bytes;
use postgres_protocol::message::frontend;

use super::commands::ServerVersion;
use super::login::{Purpose, Server, log_in};
use super::wire::{Wire, cells, server_error};
use crate::connect::{ConnectError, ConnectOptions, cut};

/// No answer of a command has more rows.
const ROWS_MAX: usize = 1_000;

/// A row's cells, as texts.
pub(super) type Row = Vec<Option<Bytes>>;

/// How a command was answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// With the rows of the last statement that has some.
    Rows(Vec<Row>),
    /// The connection streams, both ways.
    CopyBoth,
    /// The server sends the rows of a COPY.
    CopyOut,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) wire: Wire,
    server: Server,
    /// A command was sent and its answer is not all read.
    is_busy: bool,
}

impl Session {
    /// Connects and logs in, at the first endpoint that lets us.
    pub(super) async fn open(options: &ConnectOptions, purpose: Purpose) -> Result<Self, ConnectError> {
        options
            .first_that_opens(|endpoint| {
                Box::pin(async move {
                    let mut wire = Wire::new(options.dial(endpoint).await?);
                    let server = log_in(&mut wire, options, purpose).await?;
                    Ok(Session { wire, server, is_busy: false })
                })
            })
            .await
    }

    /// The server's version.
    pub(super) fn version(&self) -> ServerVersion {
        self.server.version
    }

    /// The server's process of this connection; 0 if it did not say.
    pub(super) fn pid(&self) -> i32 {
        self.server.pid
    }

    /// A command whose answer is one row.
    pub(super) async fn one_row(&mut self, command: &str) -> Result<Row, ConnectError> {
        match self.ask(command).await? {
            Answer::Rows(mut rows) if rows.len() == 1 => rows.pop().ok_or_else(|| answer(command)),
            _ => Err(answer(command)),
        }
    }

    /// Sends a command and reads its answer, up to where rows of a COPY begin.
    pub(super) async fn ask(&mut self, command: &str) -> Result<Answer, ConnectError> {
        if std::mem::replace(&mut self.is_busy, true) {
            return Err(ConnectError::Abandoned);
        }
        frontend::query(command, &mut self.wire.outgoing).map_err(|_| ConnectError::Nul { what: "a command" })?;
        self.wire.send().await?;
        let (mut rows, mut error) = (Vec::new(), None);
        loop {
            let message = self.wire.message().await?;
            match message.tag {
                b'D' if rows.len() < ROWS_MAX => rows.push(cells(&message.body)?),
                b'D' => return Err(answer(command)),
                b'E' => error = Some(server_error(&message.body)),
                // The columns' names, the tag of the command, an empty answer, notices, settings.
                b'T' | b'C' | b'I' | b'N' | b'S' | b'A' => {}
                b'W' => return Ok(Answer::CopyBoth),
                b'H' => return Ok(Answer::CopyOut),
                b'Z' => break,
                tag => {
                    let what = format!("a message 0x{tag:02x} in the answer to {}", words(command));
                    return Err(ConnectError::Protocol { what });
                }
            }
            // After a fatal error nothing follows, the end of the connection at most.
            if let Some(error) = error.take_if(|error| error.severity != "ERROR") {
                return Err(ConnectError::Refused { command: words(command), error });
            }
        }
        self.is_busy = false;
        match error {
            Some(error) => Err(ConnectError::Refused { command: words(command), error }),
            None => Ok(Answer::Rows(rows)),
        }
    }

    /// The rows of a COPY were read to their end: the next command may come.
    pub(super) fn free(&mut self) {
        self.is_busy = false;
    }
}

/// A command's first words: enough to know it, without names that it carries.
fn words(command: &str) -> String {
    cut(command.split_whitespace().next().unwrap_or_default())
}

/// An answer that has not the form that it has in Postgres.
pub(super) fn answer(command: &str) -> ConnectError {
    ConnectError::Protocol {
        what: format!("the answer to {} has not the form that it has in Postgres", words(command)),
    }
}
