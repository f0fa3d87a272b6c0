//! What the server is configured with and what it is given to serve.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use landfall_channel::Channels;
use landfall_protocol::Limits;
use landfall_types::{ByteSize, Clock, SystemClock};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::tables::{NoPipelines, PipelineTables};

/// How the server listens and ingests: section `server` of the configuration.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where gRPC and HTTP are served. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Listen beyond loopback although there are no tokens and no TLS (G33).
    pub insecure: bool,
    /// Names of tables that stand for channels of another name (G10).
    pub tables: BTreeMap<String, String>,
    /// Which tables make their channel on first use; the first rule that matches counts (G10).
    pub auto_create: Vec<AutoCreate>,
    /// Every bound of ingest (G82).
    pub limits: Limits,
}

/// A rule that makes channels for tables nobody has declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutoCreate {
    /// Which table names: `*` is any run of characters, `?` one.
    pub matches: String,
    /// The channel whose settings the new one gets.
    pub like: String,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 7420)),
            insecure: false,
            tables: BTreeMap::new(),
            auto_create: Vec::new(),
            limits: Limits::default(),
        }
    }
}

/// A report that somebody else makes when it is asked for.
pub type Report<T> = Arc<dyn Fn() -> T + Send + Sync>;

/// What the server serves. Channels and pipelines come as handles; it builds neither.
#[derive(Clone)]
pub struct ServerParts {
    /// The channels.
    pub channels: Channels,
    /// Each pipeline's own status, for `/v1/status`.
    pub pipelines: Report<Vec<serde_json::Value>>,
    /// The tables of pipelines that have some, for `/v1/pipelines/{pipeline}/tables`.
    pub tables: Arc<dyn PipelineTables>,
    /// The threads whose heartbeat is stale; empty: the process is healthy.
    pub stale_threads: Report<Vec<String>>,
    /// What the pipelines of a process without channels still lack until they are ready.
    pub pipelines_lack: Report<Vec<String>>,
    /// Renders the metrics; `None`: none are recorded.
    pub metrics: Option<PrometheusHandle>,
    /// The configured bound of the process's memory, for `/v1/status`.
    pub memory_limit: Option<ByteSize>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

impl ServerParts {
    /// Channels alone: no pipelines, no metrics, the machine's clock.
    pub fn new(channels: Channels) -> Self {
        ServerParts {
            channels,
            pipelines: Arc::new(Vec::new),
            tables: Arc::new(NoPipelines),
            stale_threads: Arc::new(Vec::new),
            pipelines_lack: Arc::new(Vec::new),
            metrics: None,
            memory_limit: None,
            clock: Arc::new(SystemClock),
        }
    }
}

impl fmt::Debug for ServerParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerParts").field("channels", &self.channels).finish_non_exhaustive()
    }
}
