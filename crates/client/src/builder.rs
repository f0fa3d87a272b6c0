//! From an endpoint to an open stream: the client and the builders, with every option.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use landfall_protocol::MAX_TABLE_NAME_BYTES;
use landfall_types::ByteSize;
use tokio::sync::watch;
use tonic::transport::Endpoint;

use crate::call::{CallLimits, RecordForm};
use crate::connector::{Connector, endpoint};
use crate::credentials::Credentials;
use crate::error::IngestError;
use crate::handle::StreamHandle;
use crate::options::{Compression, ConnectOptions, OnLoss, StreamOptions, invalid};
use crate::session::{Command, Session};
use crate::shared::Shared;

/// The most sub-streams of a multiplexed stream.
const MAX_SUB_STREAMS: u16 = 64;

/// Where to publish, and as whom. Cheap to clone; connects when a stream is opened.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
    address: Arc<str>,
    credentials: Credentials,
    connect: ConnectOptions,
}

/// Makes a [`Client`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientBuilder {
    address: String,
    credentials: Credentials,
    connect: ConnectOptions,
}

impl Client {
    /// A client of the server at `endpoint`, like `http://127.0.0.1:7420`.
    pub fn builder(endpoint: impl Into<String>) -> ClientBuilder {
        ClientBuilder { address: endpoint.into(), credentials: Credentials::none(), connect: ConnectOptions::default() }
    }

    /// A stream into a table (with Landfall: a channel). Choose the form of its records next.
    pub fn stream(&self, table: impl Into<String>) -> StreamBuilder {
        StreamBuilder { client: self.clone(), table: table.into(), form: None, options: StreamOptions::default() }
    }
}

impl ClientBuilder {
    /// What the client shows to be let in. None by default.
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = credentials;
        self
    }

    /// How long a connection may take to come up: 100 ms to 2 min, 10 s by default.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect.connect_timeout = timeout;
        self
    }

    /// The time between PINGs, idle or not; `None` turns them off. 1 s to 10 min, 20 s by default.
    pub fn keepalive_interval(mut self, interval: Option<Duration>) -> Self {
        self.connect.keepalive_interval = interval;
        self
    }

    /// A PING that is unanswered for so long ends the connection: 1 s to 10 min, 10 s by default.
    pub fn keepalive_timeout(mut self, timeout: Duration) -> Self {
        self.connect.keepalive_timeout = timeout;
        self
    }

    /// The name of the application, shown to the server behind the client's own.
    pub fn application(mut self, name: impl Into<String>) -> Self {
        self.connect.application = name.into();
        self
    }

    /// Checks the options. Nothing is connected yet.
    ///
    /// # Errors
    /// [`IngestError::InvalidOption`].
    pub fn build(self) -> Result<Client, IngestError> {
        self.connect.check()?;
        let endpoint = endpoint(&self.address, &self.connect)?;
        Ok(Client { endpoint, address: self.address.into(), credentials: self.credentials, connect: self.connect })
    }
}

/// Makes a stream.
#[derive(Clone)]
#[must_use]
pub struct StreamBuilder {
    client: Client,
    table: String,
    form: Option<RecordForm>,
    options: StreamOptions,
}

impl fmt::Debug for StreamBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamBuilder")
            .field("table", &self.table)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        $(
            $(#[$doc])*
            pub fn $name(mut self, value: $type) -> Self {
                self.options.$name = value;
                self
            }
        )*
    };
}

impl StreamBuilder {
    /// Records are JSON texts.
    pub fn json(mut self) -> Self {
        self.form = Some(RecordForm::Json);
        self
    }

    /// Records are protobuf messages of this encoded, self-contained `DescriptorProto`.
    pub fn proto(mut self, descriptor: impl Into<Bytes>) -> Self {
        self.form = Some(RecordForm::Proto { descriptor: descriptor.into() });
        self
    }

    /// Records are Avro data of this record schema, as JSON.
    pub fn avro(mut self, schema: impl Into<String>) -> Self {
        self.form = Some(RecordForm::Avro { schema: schema.into().into() });
        self
    }

    options! {
        /// Records admitted and not acknowledged, whole handle: 1 to 100 M, 1 M by default.
        max_in_flight_records: u64,
        /// Their payload bytes and 64 for each, whole handle: twice the largest call to 64 GiB, 64 MiB by default.
        max_in_flight_bytes: ByteSize,
        /// Payload bytes of one call: 1 KiB to 64 MiB, just under 10 MiB by default.
        max_call_bytes: ByteSize,
        /// Records of one call: 1 to 65,535, at most half of the record budget; 10,000 by default.
        max_call_records: u64,
        /// Longest wait for room: 0 to 1 h, 30 s by default.
        capacity_wait: Duration,
        /// Single records that may share a frame: 1 (off) to 10,000, 4,096 by default.
        coalesce_records: u64,
        /// Bytes of such a frame: up to `max_call_bytes`, 256 KiB by default.
        coalesce_bytes: ByteSize,
        /// How long a queued record waits for others to share its frame: 0 to 100 ms, 0 by default.
        coalesce_linger: Duration,
        /// Compression of messages, none by default.
        compression: Compression,
        /// How long one attempt to open may take: 100 ms to 5 min, 15 s by default.
        open_timeout: Duration,
        /// The age at which an unacknowledged frame ends the connection: 100 ms to 1 h, 60 s by default.
        ack_timeout: Duration,
        /// Default deadline of a flush: 0 to 24 h, 120 s by default.
        flush_timeout: Duration,
        /// Default deadline of a wait: 0 to 24 h, 120 s by default.
        wait_timeout: Duration,
        /// Default deadline of closing: 0 to 24 h, 60 s by default.
        close_timeout: Duration,
        /// Time without progress until a stream is lost: 0 (no recovery) to 24 h, 5 min by default.
        recovery_budget: Duration,
        /// First delay before reconnecting: 1 ms to 10 min, 100 ms by default; doubles, with full jitter.
        backoff_initial: Duration,
        /// Longest delay before reconnecting: up to 10 min, 10 s by default.
        backoff_max: Duration,
        /// Cap on the time that acks are awaited after a close signal: 0 to 1 h; the server's own by default.
        pause_max: Option<Duration>,
    }

    /// Opens it as a single stream.
    ///
    /// Tries again, within `recovery_budget`, what another attempt may mend. A dropped future leaves nothing.
    ///
    /// # Errors
    /// An option out of its bounds, the peer's refusal, or why no attempt succeeded.
    pub async fn open(self) -> Result<IngestStream, IngestError> {
        self.open_sub_streams(1).await.map(IngestStream)
    }

    /// Goes on to a multiplexed stream of `sub_streams` independent streams: 1 to 64.
    pub fn multiplexed(self, sub_streams: u16) -> MultiplexedBuilder {
        MultiplexedBuilder { stream: self, sub_streams }
    }

    async fn open_sub_streams(self, sub_streams: u16) -> Result<StreamHandle, IngestError> {
        let Some(form) = self.form else {
            return Err(invalid("record form", "none", "choose `json()`, `proto(descriptor)` or `avro(schema)`"));
        };
        if self.table.is_empty() || self.table.len() > MAX_TABLE_NAME_BYTES {
            let shown: String = self.table.chars().take(64).collect();
            return Err(invalid("table", &shown, &format!("expected 1 to {MAX_TABLE_NAME_BYTES} bytes")));
        }
        if !(1..=MAX_SUB_STREAMS).contains(&sub_streams) {
            let bound = format!("expected 1 to {MAX_SUB_STREAMS}");
            return Err(invalid("sub_streams", &sub_streams.to_string(), &bound));
        }
        self.options.check()?;
        let limits = CallLimits {
            record_type: form.record_type(),
            max_bytes: self.options.max_call_bytes.get(),
            max_records: self.options.max_call_records,
        };
        let own_connections = self.options.connection_per_sub_stream;
        let shared = Arc::new(Shared::new(self.table.into(), self.options, limits, sub_streams));
        let connector = Arc::new(Connector {
            endpoint: self.client.endpoint,
            address: self.client.address,
            credentials: self.client.credentials,
            form,
            connect_timeout: self.client.connect.connect_timeout,
        });
        let common = if own_connections { None } else { connector.connect().await.ok() };
        let (command, commands) = watch::channel(Command::Run);
        let (give_up, given_up) = watch::channel(false);
        let opening = (0..sub_streams).map(|index| {
            let mut session =
                Session::new(Arc::clone(&shared), Arc::clone(&connector), index, commands.clone(), common.clone());
            let (give_up, given_up) = (&give_up, given_up.clone());
            async move {
                let opened = session.open(given_up).await;
                if opened.is_err() {
                    give_up.send_replace(true);
                }
                opened.map(|rpc| (session, rpc))
            }
        });
        // All together and all or none: the error of the lowest index, and the opened ones end as they drop.
        let opened = futures::future::join_all(opening).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let (running, ended) = watch::channel(opened.len());
        let running = Arc::new(running);
        let tasks = opened.into_iter().map(|(session, rpc)| {
            let running = Running(Arc::clone(&running));
            let task = tokio::spawn(async move {
                // Owned by the task, so that it counts down even when the task is cut off.
                let _running = running;
                session.run(rpc).await;
            });
            task.abort_handle()
        });
        let tasks = tasks.collect();
        Ok(StreamHandle::new(shared, command, ended, tasks))
    }
}

struct Running(Arc<watch::Sender<usize>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

/// Makes a multiplexed stream.
#[derive(Clone, Debug)]
#[must_use]
pub struct MultiplexedBuilder {
    stream: StreamBuilder,
    sub_streams: u16,
}

impl MultiplexedBuilder {
    /// What happens when a sub-stream is lost; it is replaced by default.
    pub fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.stream.options.on_loss = on_loss;
        self
    }

    /// Whether each sub-stream has a TCP connection of its own, so that none waits behind another. It has by
    /// default.
    pub fn connection_per_sub_stream(mut self, own: bool) -> Self {
        self.stream.options.connection_per_sub_stream = own;
        self
    }

    /// Opens all sub-streams together, all or none. As [`StreamBuilder::open`].
    ///
    /// # Errors
    /// That of the sub-stream with the lowest index.
    pub async fn open(self) -> Result<MultiplexedStream, IngestError> {
        self.stream.open_sub_streams(self.sub_streams).await.map(MultiplexedStream)
    }
}

/// An acknowledged stream of records: order of submission is order in the channel. All its methods are those of
/// [`StreamHandle`].
#[derive(Clone, Debug)]
pub struct IngestStream(StreamHandle);

/// Several acknowledged streams behind one handle: order is kept per sub-stream. All its methods are those of
/// [`StreamHandle`].
#[derive(Clone, Debug)]
pub struct MultiplexedStream(StreamHandle);

impl Deref for IngestStream {
    type Target = StreamHandle;

    fn deref(&self) -> &StreamHandle {
        &self.0
    }
}

impl Deref for MultiplexedStream {
    type Target = StreamHandle;

    fn deref(&self) -> &StreamHandle {
        &self.0
    }
}
