//! Checks of one key against another: names that must exist, limits that must fit each other.

use std::path::Path;

use landfall_types::{ByteSize, Durability};

use super::finding::{Finding, codes};
use super::section::{Findings, nearest};
use super::sinks::{SinkConfig, SinkKind};
use super::{ChannelConfig, Config, FromConfig, Mark, PipelineConfig, TABLE_PLACE};

mod capture;
mod places;

pub(super) fn check(config: &Config, findings: &Findings) {
    listener(config, findings);
    places::check(config, findings);
    for channel in &config.channels {
        channel_limits(channel, findings);
    }
    for (table, channel, mark) in &config.server.tables {
        channel_exists(config, channel, *mark, &format!("server.ingest.tables.{table}"), findings);
    }
    for (_, like, mark) in &config.server.auto_create {
        channel_exists(config, like, *mark, "server.ingest.auto_create", findings);
    }
    for (at, pipeline) in config.pipelines.iter().enumerate() {
        pipeline_references(config, pipeline, findings);
        if let Some(twin) = config.pipelines.iter().take(at).find(|other| other.id == pipeline.id) {
            let text = format!("pipelines `{}` and `{}` share the id `{}`", twin.name, pipeline.name, pipeline.id);
            findings.push(
                Finding::error(codes::CONTRADICTION, Some(pipeline.mark), text)
                    .help("an id is part of every stored position: give each pipeline its own"),
            );
        }
    }
}

fn listener(config: &Config, findings: &Findings) {
    let server = &config.server;
    if server.listen.ip().is_loopback() {
        return;
    }
    if server.insecure {
        let text = format!("`server.listen` {} is reachable from elsewhere without tokens or TLS", server.listen);
        findings.push(
            Finding::warning(codes::CONTRADICTION, Some(server.listen_mark), text)
                .help("`server.insecure: true` allows it"),
        );
    } else {
        let text = format!("`server.listen` {} lies beyond loopback, without tokens and TLS", server.listen);
        findings.push(
            Finding::error(codes::CONTRADICTION, Some(server.listen_mark), text)
                .help("listen on 127.0.0.1, or say `server.insecure: true` where the network itself is guarded"),
        );
    }
}

fn channel_limits(channel: &ChannelConfig, findings: &Findings) {
    let record = channel.record_bytes.unwrap_or(ByteSize::mib(10));
    let batch = channel.batch_bytes.unwrap_or(ByteSize::mib(16));
    let queue = channel.queue_bytes.unwrap_or(ByteSize::mib(32));
    let turn = channel.turn_bytes.unwrap_or(ByteSize::mib(4));
    let segment = channel.segment_bytes.unwrap_or(ByteSize::mib(64));
    let contradiction = |text: String, help: String| {
        findings.push(Finding::error(codes::CONTRADICTION, Some(channel.mark), text).help(help));
    };
    let name = &channel.name;
    if batch < record {
        contradiction(
            format!(
                "`channels.{name}`: a batch of {batch} (`limits.batch_bytes`) cannot hold a record of {record} (`limits.record_bytes`)"
            ),
            format!("set `limits.batch_bytes` to at least {record}"),
        );
    }
    if queue < batch {
        contradiction(
            format!(
                "`channels.{name}`: a queue of {queue} (`queue.bytes`) cannot hold a batch of {batch} (`limits.batch_bytes`)"
            ),
            format!("set `queue.bytes` to at least {batch}"),
        );
    }
    let least = ByteSize(turn.get().saturating_mul(2)).max(ByteSize(batch.get().saturating_add(64 << 10)));
    if segment < least {
        contradiction(
            format!(
                "`channels.{name}`: a segment of {segment} (`segment_bytes`) is below {least}, two turns or a batch with its frame"
            ),
            format!("set `segment_bytes` to at least {least}"),
        );
    }
    if channel.durability == Some(Durability::Memory) && channel.retention.max_bytes.is_none() {
        contradiction(
            format!(
                "`channels.{name}`: the class `memory` keeps records in memory only and has no `retention.max_bytes`"
            ),
            "add `retention: { max_bytes: 64MiB }`".to_owned(),
        );
    }
}

fn channel_exists(config: &Config, name: &str, mark: Mark, key: &str, findings: &Findings) {
    if config.channels.iter().any(|channel| channel.name == name) {
        return;
    }
    let names: Vec<&str> = config.channels.iter().map(|channel| channel.name.as_str()).collect();
    let text = format!("`{key}` names the channel `{name}`, which `channels` does not define");
    let help = match nearest(name, &names) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("add it: `channels: {{ {name}: {{}} }}`"),
    };
    findings.push(Finding::error(codes::UNDEFINED, Some(mark), text).help(help));
}

/// Whether two paths, taken from the working directory, name one place; links are not followed.
fn same_place(a: &Path, b: &Path) -> bool {
    places::whole(a) == places::whole(b)
}

fn pipeline_references(config: &Config, pipeline: &PipelineConfig, findings: &Findings) {
    if let FromConfig::Channel(from) = &pipeline.from {
        let key = format!("pipelines.{}.from.channel", pipeline.name);
        channel_exists(config, &from.name, from.mark, &key, findings);
        let source = config.channels.iter().find(|channel| channel.name == from.name);
        if source.is_some_and(|channel| channel.durability == Some(Durability::Memory)) {
            let text = format!("pipeline `{}` reads the channel `{}` of class `memory`", pipeline.name, from.name);
            findings.push(
                Finding::error(codes::CONTRADICTION, Some(from.mark), text)
                    .help("a restart would lose what was not landed yet: use `durability: fsync` or `written`"),
            );
        }
    }
    if let Some(dead_letters) = &pipeline.dead_letters
        && let Some(channel) = config.channels.iter().find(|channel| channel.name == *dead_letters)
        && channel.durability.is_some_and(|class| class != Durability::Fsync)
    {
        let text = format!(
            "pipeline `{}` sets records aside in `{dead_letters}`, which is not of class `fsync`",
            pipeline.name
        );
        findings.push(Finding::error(codes::CONTRADICTION, Some(channel.mark), text).help("use `durability: fsync`"));
    }
    capture::check(config, pipeline, findings);
    for (at, sink) in pipeline.sinks.iter().enumerate() {
        match &sink.kind {
            SinkKind::Channel(to) => {
                let key = format!("pipelines.{}.to.{}", pipeline.name, sink.name);
                if pipeline.capture().is_none() || !to.name.contains(TABLE_PLACE) {
                    channel_exists(config, &to.name, sink.mark, &key, findings);
                }
                if pipeline.source_channel() == Some(to.name.as_str()) {
                    let text = format!("pipeline `{}` writes into `{}`, the channel it reads", pipeline.name, to.name);
                    findings.push(
                        Finding::error(codes::CONTRADICTION, Some(sink.mark), text)
                            .help("it would read its own output for ever: name another channel"),
                    );
                }
            }
            SinkKind::Delta(delta) => {
                let is_same = |other: &&SinkConfig| match &other.kind {
                    SinkKind::Delta(other) => same_place(&other.path, &delta.path),
                    SinkKind::Files(_) | SinkKind::Channel(_) => false,
                };
                if let Some(twin) = pipeline.sinks.iter().take(at).find(is_same) {
                    let text = format!(
                        "the sinks `{}` and `{}` of pipeline `{}` write to the same Delta table, {}",
                        twin.name,
                        sink.name,
                        pipeline.name,
                        delta.path.display()
                    );
                    findings.push(Finding::error(codes::CONTRADICTION, Some(sink.mark), text).help(
                        "a table keeps one position per pipeline, so rows of one of the two would be taken for stored: \
                         give each its own path, or make a second pipeline",
                    ));
                }
                if delta.commit_every.is_some_and(|every| every >= pipeline.stalled_after) {
                    let text = format!(
                        "pipeline `{}`: `commit_every` is not below `stalled_after` ({})",
                        pipeline.name,
                        super::spell(pipeline.stalled_after)
                    );
                    findings.push(
                        Finding::error(codes::CONTRADICTION, Some(sink.mark), text)
                            .help("a healthy pipeline would count as stalled between two commits"),
                    );
                }
            }
            SinkKind::Files(_) => {}
        }
    }
    if pipeline.batch_bytes.is_some_and(|batch| {
        let pending = u64::from(pipeline.max_pending_batches).saturating_mul(pipeline.poll_max_bytes.get());
        pending < batch.get()
    }) {
        let text = format!(
            "pipeline `{}`: `checkpoint.max_pending_batches` × `poll.max_bytes` is below `batch.bytes`, so a batch never fills",
            pipeline.name
        );
        findings
            .push(Finding::error(codes::CONTRADICTION, Some(pipeline.mark), text).help("raise one of the first two"));
    }
}
