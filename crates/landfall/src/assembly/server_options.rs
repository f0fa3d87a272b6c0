//! `server` of the configuration as the server crate's options.

use landfall_protocol::Limits;
use landfall_server::{AutoCreate, ServerOptions};
use landfall_types::ByteSize;

use crate::config::ServerConfig;

/// The server's options. A budget that is not set stays below a sixteenth of the process's memory (E95).
pub(super) fn options(config: &ServerConfig, memory_limit: ByteSize) -> ServerOptions {
    ServerOptions {
        listen: config.listen,
        insecure: config.insecure,
        tables: config.tables.iter().map(|(table, channel, _)| (table.clone(), channel.clone())).collect(),
        auto_create: config
            .auto_create
            .iter()
            .map(|(matches, like, _)| AutoCreate { matches: matches.clone(), like: like.clone() })
            .collect(),
        limits: limits(config, memory_limit),
    }
}

fn limits(config: &ServerConfig, memory_limit: ByteSize) -> Limits {
    let default = Limits::default();
    let sixteenth = ByteSize(memory_limit.get() / 16);
    let call = config.max_call_bytes;
    let memory_least = ByteSize(call.get().saturating_mul(2));
    Limits {
        max_call_bytes: call,
        max_call_records: config.max_call_records.map_or(default.max_call_records, u64::from),
        open_timeout: config.open_timeout.unwrap_or(default.open_timeout),
        stream_deadline: config.stream_deadline.unwrap_or(default.stream_deadline),
        commit_wait: config.commit_wait.unwrap_or(default.commit_wait),
        stream_unacked_bytes: config.stream_unacked_bytes.unwrap_or(default.stream_unacked_bytes.max(call)),
        stream_unacked_calls: config.stream_unacked_calls.map_or(default.stream_unacked_calls, u64::from),
        memory: config.memory.unwrap_or(default.memory.min(sixteenth).max(memory_least)),
        max_streams: config.max_streams.map_or(default.max_streams, u64::from),
        max_streams_per_connection: config
            .max_streams_per_connection
            .map_or(default.max_streams_per_connection, u64::from),
        max_connections: config.max_connections.map_or(default.max_connections, u64::from),
        stream_window: config.stream_window.unwrap_or(default.stream_window),
        window_memory: config.window_memory.unwrap_or(default.window_memory.min(sixteenth).max(ByteSize::mib(16))),
        keepalive_interval: config.keepalive_interval.unwrap_or(default.keepalive_interval),
        keepalive_timeout: config.keepalive_timeout.unwrap_or(default.keepalive_timeout),
        drain_grace: config.drain_grace,
        max_stream_age: config.max_stream_age,
        max_auto_channels: config.max_auto_channels.unwrap_or(default.max_auto_channels),
        max_body_bytes: config.body_bytes.unwrap_or(default.max_body_bytes),
        max_decoded_body_bytes: config.decompressed_bytes.unwrap_or(default.max_decoded_body_bytes),
        max_keyed_records: config.max_keyed_records.unwrap_or(default.max_keyed_records),
        max_tails: config.max_tails.unwrap_or(default.max_tails),
    }
}
