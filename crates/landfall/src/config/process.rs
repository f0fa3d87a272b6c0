//! `process`: what the whole process may use, whatever the parts ask for.

use std::time::Duration;

use landfall_types::ByteSize;

use super::section::Section;

/// `process`.
#[derive(Clone, Debug)]
pub(crate) struct ProcessConfig {
    /// `memory.limit`; unset: 75 % of the machine's or cgroup's.
    pub(crate) memory_limit: Option<ByteSize>,
    /// `io_threads`: tokio's workers.
    pub(crate) io_threads: usize,
    /// `drain_timeout`: the bound of a shutdown (I11).
    pub(crate) drain_timeout: Duration,
    /// `health.stale_after`.
    pub(crate) stale_after: Duration,
    /// `channels.queued_bytes`.
    pub(crate) queued_bytes: Option<ByteSize>,
    /// `channels.ring_bytes`.
    pub(crate) ring_bytes: Option<ByteSize>,
    /// `channels.subscriptions`.
    pub(crate) subscriptions: Option<u32>,
    /// `channels.subscription_bytes`.
    pub(crate) subscription_bytes: Option<ByteSize>,
    /// `channels.commit_threads`.
    pub(crate) commit_threads: Option<usize>,
    /// `channels.read_threads`.
    pub(crate) read_threads: Option<usize>,
    /// `channels.disk_reserve`.
    pub(crate) disk_reserve: Option<ByteSize>,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        ProcessConfig {
            memory_limit: None,
            io_threads: 2,
            drain_timeout: Duration::from_secs(25),
            stale_after: Duration::from_secs(30),
            queued_bytes: None,
            ring_bytes: None,
            subscriptions: None,
            subscription_bytes: None,
            commit_threads: None,
            read_threads: None,
            disk_reserve: None,
        }
    }
}

pub(super) fn read(top: &Section<'_>) -> ProcessConfig {
    let mut config = ProcessConfig::default();
    let Some(section) = top.section("process") else { return config };
    if let Some(memory) = section.section("memory") {
        config.memory_limit = memory.size("limit", ByteSize::mib(128)..=ByteSize::gib(4096));
        memory.finish();
    }
    if let Some(threads) = section.length("io_threads", 1..=64, "threads") {
        config.io_threads = threads;
    }
    section.not_yet("encode_threads", "remove it: encoding uses the blocking pool, bounded by each sink");
    if let Some(health) = section.section("health") {
        if let Some(after) = health.duration("stale_after", Duration::from_secs(1)..=Duration::from_secs(3600)) {
            config.stale_after = after;
        }
        health.finish();
    }
    if let Some(timeout) = section.duration("drain_timeout", Duration::from_secs(1)..=Duration::from_secs(600)) {
        config.drain_timeout = timeout;
    }
    if let Some(channels) = section.section("channels") {
        config.queued_bytes = channels.size("queued_bytes", ByteSize::mib(16)..=ByteSize::gib(64));
        config.ring_bytes = channels.size("ring_bytes", ByteSize::mib(1)..=ByteSize::gib(16));
        config.subscriptions = channels.count32("subscriptions", 1..=65_536, "subscriptions");
        config.subscription_bytes = channels.size("subscription_bytes", ByteSize::kib(64)..=ByteSize::gib(16));
        config.commit_threads = channels.length("commit_threads", 1..=256, "threads");
        config.read_threads = channels.length("read_threads", 1..=64, "threads");
        config.disk_reserve = channels.size("disk_reserve", ByteSize::mib(64)..=ByteSize::gib(1024));
        channels.finish();
    }
    section.finish();
    config
}
