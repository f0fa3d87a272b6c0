//! `server`: the one listener for gRPC and HTTP, and the limits of ingest.

use std::net::SocketAddr;
use std::time::Duration;

use landfall_types::ByteSize;

use super::finding::codes;
use super::process::ProcessConfig;
use super::section::Section;
use super::text::{Mark, Value, excerpt};

/// `server`.
#[derive(Clone, Debug)]
pub(crate) struct ServerConfig {
    /// `listen`.
    pub(crate) listen: SocketAddr,
    /// Where `listen` stands, for errors of the bind.
    pub(crate) listen_mark: Mark,
    /// `insecure`: a listener beyond loopback is meant.
    pub(crate) insecure: bool,
    /// `ingest.tables`: table name to channel.
    pub(crate) tables: Vec<(String, String, Mark)>,
    /// `ingest.auto_create`: which tables make their channel, and whose settings it gets.
    pub(crate) auto_create: Vec<(String, String, Mark)>,
    /// `ingest.max_call_bytes`.
    pub(crate) max_call_bytes: ByteSize,
    /// `ingest.max_call_records`.
    pub(crate) max_call_records: Option<u32>,
    /// `ingest.open_timeout`.
    pub(crate) open_timeout: Option<Duration>,
    /// `ingest.stream_deadline`.
    pub(crate) stream_deadline: Option<Duration>,
    /// `ingest.commit_wait`.
    pub(crate) commit_wait: Option<Duration>,
    /// `ingest.stream_unacked_bytes`.
    pub(crate) stream_unacked_bytes: Option<ByteSize>,
    /// `ingest.stream_unacked_calls`.
    pub(crate) stream_unacked_calls: Option<u32>,
    /// `ingest.memory`.
    pub(crate) memory: Option<ByteSize>,
    /// `ingest.max_streams`.
    pub(crate) max_streams: Option<u32>,
    /// `ingest.max_streams_per_connection`.
    pub(crate) max_streams_per_connection: Option<u32>,
    /// `ingest.max_connections`.
    pub(crate) max_connections: Option<u32>,
    /// `ingest.stream_window`.
    pub(crate) stream_window: Option<ByteSize>,
    /// `ingest.window_memory`.
    pub(crate) window_memory: Option<ByteSize>,
    /// `ingest.keepalive_interval`.
    pub(crate) keepalive_interval: Option<Duration>,
    /// `ingest.keepalive_timeout`.
    pub(crate) keepalive_timeout: Option<Duration>,
    /// `ingest.drain_grace`.
    pub(crate) drain_grace: Duration,
    /// `ingest.max_stream_age`.
    pub(crate) max_stream_age: Option<Duration>,
    /// `ingest.max_auto_channels`.
    pub(crate) max_auto_channels: Option<u64>,
    /// `ingest.max_keyed_records`.
    pub(crate) max_keyed_records: Option<u64>,
    /// `ingest.max_tails`.
    pub(crate) max_tails: Option<u64>,
    /// `http.body_bytes`: as sent.
    pub(crate) body_bytes: Option<ByteSize>,
    /// `http.decompressed_bytes`.
    pub(crate) decompressed_bytes: Option<ByteSize>,
}

impl ServerConfig {
    /// The defaults under a drain timeout.
    pub(crate) fn with_drain_timeout(drain_timeout: Duration) -> Self {
        ServerConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 7420)),
            listen_mark: Mark::default(),
            insecure: false,
            tables: Vec::new(),
            auto_create: Vec::new(),
            max_call_bytes: ByteSize::mib(10),
            max_call_records: None,
            open_timeout: None,
            stream_deadline: None,
            commit_wait: None,
            stream_unacked_bytes: None,
            stream_unacked_calls: None,
            memory: None,
            max_streams: None,
            max_streams_per_connection: None,
            max_connections: None,
            stream_window: None,
            window_memory: None,
            keepalive_interval: None,
            keepalive_timeout: None,
            drain_grace: Duration::from_secs(10).min(drain_timeout / 2),
            max_stream_age: None,
            max_auto_channels: None,
            max_keyed_records: None,
            max_tails: None,
            body_bytes: None,
            decompressed_bytes: None,
        }
    }
}

pub(super) fn read(top: &Section<'_>, process: &ProcessConfig) -> ServerConfig {
    let mut config = ServerConfig::with_drain_timeout(process.drain_timeout);
    let Some(section) = top.section("server") else { return config };
    if let Some(listen) = section.text("listen") {
        config.listen_mark = section.mark_of("listen");
        match listen.parse() {
            Ok(address) => config.listen = address,
            Err(_) => section.error(
                codes::WRONG_TYPE,
                "listen",
                format!("`server.listen` takes an address and a port like `127.0.0.1:7420`, not `{}`", excerpt(listen)),
            ),
        }
    }
    config.insecure = section.boolean("insecure").unwrap_or(false);
    section.not_yet("auth", "tokens come with the ingest release; until then keep the listener on loopback");
    section.not_yet("tls", "TLS comes with the ingest release; until then put a proxy before it");
    if let Some(ingest) = section.section("ingest") {
        read_ingest(&ingest, &mut config, process);
        ingest.finish();
    }
    if let Some(http) = section.section("http") {
        config.body_bytes = http.size("body_bytes", ByteSize::kib(1)..=ByteSize::gib(1));
        config.decompressed_bytes = http.size("decompressed_bytes", ByteSize::kib(1)..=ByteSize::gib(4));
        http.finish();
    }
    section.finish();
    config
}

fn read_ingest(ingest: &Section<'_>, config: &mut ServerConfig, process: &ProcessConfig) {
    let seconds = Duration::from_secs;
    if let Some(size) = ingest.size("max_call_bytes", ByteSize::kib(1)..=ByteSize::mib(64)) {
        config.max_call_bytes = size;
    }
    config.max_call_records = ingest.count32("max_call_records", 1..=1_000_000, "records");
    config.open_timeout = ingest.duration("open_timeout", Duration::from_millis(100)..=seconds(60));
    config.stream_deadline = ingest.duration("stream_deadline", seconds(1)..=seconds(300));
    config.commit_wait = ingest.duration("commit_wait", seconds(1)..=seconds(300));
    config.stream_unacked_bytes = ingest.size("stream_unacked_bytes", ByteSize::kib(64)..=ByteSize::gib(1));
    config.stream_unacked_calls = ingest.count32("stream_unacked_calls", 1..=1_000_000, "calls");
    let least = ByteSize(config.max_call_bytes.get().saturating_mul(2));
    config.memory = ingest.size("memory", least..=ByteSize::gib(64));
    config.max_streams = ingest.count32("max_streams", 1..=1_000_000, "streams");
    config.max_streams_per_connection = ingest.count32("max_streams_per_connection", 1..=32_766, "streams");
    config.max_connections = ingest.count32("max_connections", 1..=1_000_000, "connections");
    config.stream_window = ingest.size("stream_window", ByteSize::kib(64)..=ByteSize::mib(16));
    config.window_memory = ingest.size("window_memory", ByteSize::mib(16)..=ByteSize::gib(64));
    config.keepalive_interval = ingest.duration("keepalive_interval", seconds(1)..=seconds(600));
    config.keepalive_timeout = ingest.duration("keepalive_timeout", seconds(1)..=seconds(600));
    if let Some(grace) = ingest.duration("drain_grace", Duration::ZERO..=process.drain_timeout / 2) {
        config.drain_grace = grace;
    }
    config.max_stream_age = ingest.duration("max_stream_age", seconds(60)..=seconds(7 * 86_400));
    config.max_auto_channels = ingest.count("max_auto_channels", 0..=10_000, "channels");
    config.max_keyed_records = ingest.count("max_keyed_records", 1..=10_000, "records");
    config.max_tails = ingest.count("max_tails", 0..=65_536, "tails");
    for rule in ingest.sections("auto_create").unwrap_or_default() {
        match (rule.text("match"), rule.text("like")) {
            (Some(matches), Some(like)) => {
                config.auto_create.push((matches.to_owned(), like.to_owned(), rule.mark_of("like")));
            }
            (None, _) => rule.missing("match", "\"main.app.*\""),
            (_, None) => rule.missing("like", "CHANNEL"),
        }
        rule.finish();
    }
    if let Some(tables) = ingest.section("tables") {
        for (key, node) in tables.entries() {
            match &node.value {
                Value::Text { text, .. } => config.tables.push((key.name.clone(), text.clone(), node.mark)),
                other => tables.findings().push(super::Finding::error(
                    codes::WRONG_TYPE,
                    Some(node.mark),
                    format!("`server.ingest.tables` maps a table to a channel's name, not to {}", other.describe()),
                )),
            }
        }
    }
}
