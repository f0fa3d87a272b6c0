//! Our own replication connection: the commands that SQL cannot give, and the way into the stream (P2, P5, P6).
//!
//! A slot's exported snapshot lives as long as this connection stays idle after [`create_slot`]; that is why it is ours
//! (decision 11). A command that is abandoned half-way makes the connection useless, and it says so.
//!
//! [`create_slot`]: ReplicationConnection::create_slot

use super::commands::{self, CreateSlot, ServerVersion, StreamOptions, TimelineSwitch};
use super::gather::LowWater;
use super::login::Purpose;
use super::session::{Answer, Row, Session, answer};
use super::stream::ReplicationTransport;
use crate::Lsn;
use crate::connect::{ConnectError, ConnectOptions, Stream};

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
    session: Session,
}

impl ReplicationConnection {
    /// Connects and logs in, at the first endpoint that lets us.
    pub async fn connect(options: &ConnectOptions) -> Result<Self, ConnectError> {
        Ok(ReplicationConnection { session: Session::open(options, Purpose::Replication).await? })
    }

    /// The server's version.
    pub fn version(&self) -> ServerVersion {
        self.session.version()
    }

    /// Which cluster this is, and how far its log reaches.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, ConnectError> {
        let row = self.session.one_row("IDENTIFY_SYSTEM").await?;
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
        let row = self.session.one_row(&format!("TIMELINE_HISTORY {timeline}")).await?;
        let content = row.get(1).and_then(Option::as_ref).ok_or_else(|| answer("TIMELINE_HISTORY"))?;
        commands::timeline_history(&String::from_utf8_lossy(content))
    }

    /// A setting of this session. Its unit is the server's own, as in `1min`.
    pub async fn show(&mut self, setting: &'static str) -> Result<String, ConnectError> {
        let row = self.session.one_row(&format!("SHOW {setting}")).await?;
        Ok(text(&row, 0).ok_or_else(|| answer("SHOW"))?.to_owned())
    }

    /// Creates a slot for `pgoutput`. Waits for all open writers: the caller bounds it and, to give up, drops the
    /// connection. With an exported snapshot the connection must stay idle as long as that is needed.
    pub async fn create_slot(&mut self, slot: &CreateSlot) -> Result<CreatedSlot, ConnectError> {
        let command = commands::create_slot(self.session.version(), slot)?;
        let row = self.session.one_row(&command).await?;
        Ok(CreatedSlot {
            name: text(&row, 0).ok_or_else(|| answer("CREATE_REPLICATION_SLOT"))?.to_owned(),
            consistent_point: parse(&row, 1, "CREATE_REPLICATION_SLOT")?,
            snapshot_name: text(&row, 2).map(str::to_owned),
        })
    }

    /// Drops a slot; with `waits` it waits until nobody reads from it.
    pub async fn drop_slot(&mut self, name: &str, waits: bool) -> Result<(), ConnectError> {
        let command = commands::drop_slot(name, waits)?;
        self.session.ask(&command).await.map(drop)
    }

    /// Begins to stream.
    pub async fn start(mut self, options: &StreamOptions) -> Result<ReplicationTransport, ConnectError> {
        let command = commands::start(self.session.version(), options)?;
        match self.session.ask(&command).await? {
            Answer::CopyBoth => {
                let mark = match &self.session.wire.stream {
                    Stream::Tcp(stream) => LowWater::of(stream),
                    Stream::Tls(stream) => LowWater::of(stream.get_ref().0),
                    Stream::Socket(_) => None,
                };
                let (read, write) = tokio::io::split(self.session.wire.stream);
                let already = &self.session.wire.incoming;
                Ok(ReplicationTransport::new(read, write, options.max_message, already).gathered_by(mark))
            }
            Answer::Rows(_) | Answer::CopyOut => Err(answer("START_REPLICATION")),
        }
    }
}

fn text(row: &Row, at: usize) -> Option<&str> {
    std::str::from_utf8(row.get(at)?.as_ref()?).ok()
}

fn parse<T: std::str::FromStr>(row: &Row, at: usize, command: &str) -> Result<T, ConnectError> {
    text(row, at).and_then(|text| text.parse().ok()).ok_or_else(|| answer(command))
}
