//! Our own replication connection: the commands that SQL cannot give, and the way into the stream (P2, P5, P6).
//!
//! A slot's exported snapshot lives as long as this connection stays idle after [`create_slot`]; that is why it is ours
//! (decision 11). A command that is abandoned half-way makes the connection useless, and it says so.
//!
//! [`create_slot`]: ReplicationConnection::create_slot

use bytes::Bytes;
use postgres_protocol::message::frontend;

use super::commands::{self, CreateSlot, ServerVersion, StreamOptions, TimelineSwitch};
use super::login::log_in;
use super::stream::ReplicationTransport;
use super::wire::{Wire, cells, server_error};
use crate::Lsn;
use crate::connect::{ConnectError, ConnectOptions, cut};

/// No answer of a command has more rows.
const ROWS_MAX: usize = 1_000;

/// What IDENTIFY_SYSTEM says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemIdentity {
    /// The cluster, by the number that its creation gave it.
    pub system_id: u64,
    /// The timeline that it writes or, on a standby, replays.
    pub timeline: u32,
    /// The end of its log.
    pub wal_end: Lsn,
    /// The database of this connection.
    pub database: Option<String>,
}

/// A slot that was just made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedSlot {
    /// Its name.
    pub name: String,
    /// The consistent point C: the snapshot holds exactly the commits before it, the stream the others.
    pub consistent_point: Lsn,
    /// The exported snapshot; good while the connection is idle.
    pub snapshot_name: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub struct ReplicationConnection {
    wire: Wire,
    version: ServerVersion,
    /// A command was sent and its answer is not all read.
    is_busy: bool,
}

type Row = Vec<Option<Bytes>>;

enum Answer {
    Rows(Vec<Row>),
    CopyBoth,
}

impl ReplicationConnection {
    /// Connects and logs in, at the first endpoint that lets us.
    pub async fn connect(options: &ConnectOptions) -> Result<Self, ConnectError> {
        options
            .first_that_opens(|endpoint| {
                Box::pin(async move {
                    let mut wire = Wire::new(options.dial(endpoint).await?);
                    let version = log_in(&mut wire, options).await?;
                    Ok(ReplicationConnection { wire, version, is_busy: false })
                })
            })
            .await
    }

    /// The server's version.
    pub fn version(&self) -> ServerVersion {
        self.version
    }

    /// Which cluster this is, and how far its log reaches.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, ConnectError> {
        let row = self.one_row("IDENTIFY_SYSTEM").await?;
        Ok(SystemIdentity {
            system_id: parse(&row, 0, "IDENTIFY_SYSTEM")?,
            timeline: parse(&row, 1, "IDENTIFY_SYSTEM")?,
            wal_end: parse(&row, 2, "IDENTIFY_SYSTEM")?,
            database: text(&row, 3).map(str::to_owned),
        })
    }

    /// The switches that led to a timeline, oldest first; the first timeline has none.
    pub async fn timeline_history(&mut self, timeline: u32) -> Result<Vec<TimelineSwitch>, ConnectError> {
        if timeline <= 1 {
            return Ok(Vec::new());
        }
        let row = self.one_row(&format!("TIMELINE_HISTORY {timeline}")).await?;
        let content = row.get(1).and_then(Option::as_ref).ok_or_else(|| answer("TIMELINE_HISTORY"))?;
        commands::timeline_history(&String::from_utf8_lossy(content))
    }

    /// A setting of this session. Its unit is the server's own, as in `1min`.
    pub async fn show(&mut self, setting: &'static str) -> Result<String, ConnectError> {
        let row = self.one_row(&format!("SHOW {setting}")).await?;
        Ok(text(&row, 0).ok_or_else(|| answer("SHOW"))?.to_owned())
    }

    /// Creates a slot for `pgoutput`. Waits for all open writers: the caller bounds it and, to give up, drops the
    /// connection. With an exported snapshot the connection must stay idle as long as that is needed.
    pub async fn create_slot(&mut self, slot: &CreateSlot) -> Result<CreatedSlot, ConnectError> {
        let command = commands::create_slot(self.version, slot)?;
        let row = self.one_row(&command).await?;
        Ok(CreatedSlot {
            name: text(&row, 0).ok_or_else(|| answer("CREATE_REPLICATION_SLOT"))?.to_owned(),
            consistent_point: parse(&row, 1, "CREATE_REPLICATION_SLOT")?,
            snapshot_name: text(&row, 2).map(str::to_owned),
        })
    }

    /// Drops a slot; with `waits` it waits until nobody reads from it.
    pub async fn drop_slot(&mut self, name: &str, waits: bool) -> Result<(), ConnectError> {
        let command = commands::drop_slot(name, waits)?;
        self.ask(&command).await.map(drop)
    }

    /// Begins to stream.
    pub async fn start(mut self, options: &StreamOptions) -> Result<ReplicationTransport, ConnectError> {
        let command = commands::start(self.version, options)?;
        match self.ask(&command).await? {
            Answer::CopyBoth => {
                let (read, write) = tokio::io::split(self.wire.stream);
                Ok(ReplicationTransport::new(read, write, options.max_message, &self.wire.incoming))
            }
            Answer::Rows(_) => Err(answer("START_REPLICATION")),
        }
    }

    async fn one_row(&mut self, command: &str) -> Result<Row, ConnectError> {
        match self.ask(command).await? {
            Answer::Rows(mut rows) if rows.len() == 1 => rows.pop().ok_or_else(|| answer(command)),
            _ => Err(answer(command)),
        }
    }

    async fn ask(&mut self, command: &str) -> Result<Answer, ConnectError> {
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
}

/// A command's first words: enough to know it, without names that it carries.
fn words(command: &str) -> String {
    cut(command.split_whitespace().next().unwrap_or_default())
}

fn answer(command: &str) -> ConnectError {
    ConnectError::Protocol {
        what: format!("the answer to {} has not the form that it has in Postgres", words(command)),
    }
}

fn text(row: &Row, at: usize) -> Option<&str> {
    std::str::from_utf8(row.get(at)?.as_ref()?).ok()
}

fn parse<T: std::str::FromStr>(row: &Row, at: usize, command: &str) -> Result<T, ConnectError> {
    text(row, at).and_then(|text| text.parse().ok()).ok_or_else(|| answer(command))
}
