//! What every connection, stream and request of one server shares.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use landfall_channel::{Channel, ChannelOptions};
use landfall_protocol::{IngestCode, Limits, MAX_TABLE_NAME_BYTES, Refusal};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::admission::Admission;
use crate::glob;
use crate::memory::IngestMemory;
use crate::meters::Meters;
use crate::options::{ServerOptions, ServerParts};
use crate::refusal;
use crate::streams::Streams;

/// Where the server stands in its life (G23).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Takes records.
    Serving,
    /// Takes no new calls; open streams are read until `until`.
    Closing { until: Instant, grace: Duration },
    /// Open streams that are still there end as they are.
    Ended,
}

/// The shared parts.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) options: ServerOptions,
    pub(crate) parts: ServerParts,
    pub(crate) admission: Arc<Admission>,
    pub(crate) memory: Arc<IngestMemory>,
    /// A part of the same budget that only small requests draw on, so that they do not stand in line behind large ones
    /// that come slowly (I13).
    pub(crate) small_bodies: Arc<IngestMemory>,
    pub(crate) streams: Arc<Streams>,
    pub(crate) meters: Meters,
    pub(crate) phase: watch::Sender<Phase>,
    /// How many tails are open.
    pub(crate) tails: AtomicU64,
    /// One new schema at a time is compared and offered, so that two cannot contradict each other unseen.
    pub(crate) schema_offers: Semaphore,
    /// How many channels were made by rule.
    auto_created: Mutex<u64>,
}

/// What clients are told to wait before they come back to a server that drains or is full.
pub(crate) const COME_BACK_AFTER: Duration = Duration::from_secs(1);

impl Core {
    pub(crate) fn new(options: ServerOptions, parts: ServerParts) -> Arc<Self> {
        const SMALL_PART: u64 = 16;
        let memory = options.limits.memory.get();
        let small = memory / SMALL_PART;
        Arc::new(Core {
            admission: Admission::new(&options.limits),
            memory: IngestMemory::new(memory - small),
            small_bodies: IngestMemory::new(small),
            streams: Arc::default(),
            meters: Meters::new(),
            phase: watch::Sender::new(Phase::Serving),
            tails: AtomicU64::new(0),
            schema_offers: Semaphore::new(1),
            auto_created: Mutex::new(0),
            options,
            parts,
        })
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.options.limits
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Why nothing new is taken, once that is so.
    pub(crate) fn refuse_when_draining(&self) -> Result<(), Refusal> {
        match self.phase() {
            Phase::Serving => Ok(()),
            Phase::Closing { .. } | Phase::Ended => Err(draining()),
        }
    }

    /// Resolves when nothing new is taken any more.
    pub(crate) async fn closing(&self) {
        let mut phase = self.phase.subscribe();
        // An error would mean that the sender is gone, and it is a field of `self`.
        let _ = phase.wait_for(|phase| *phase != Phase::Serving).await;
    }

    /// The channel of a table (G10). A name that is not mapped or known may make its channel by rule.
    pub(crate) async fn channel_of_table(&self, table: &str) -> Result<Channel, Refusal> {
        let unknown = |why: &str| {
            Refusal::new(
                IngestCode::TableNotFound,
                format!("no channel goes by the table name `{}`{why}", shown(table)),
            )
        };
        if table.is_empty() || table.len() > MAX_TABLE_NAME_BYTES {
            return Err(unknown(": a table name has 1 to 255 bytes"));
        }
        if is_of_a_pipeline(table) {
            return Err(unknown(": dead letters are written by their pipeline alone"));
        }
        let channels = &self.parts.channels;
        if let Some(name) = self.options.tables.get(table) {
            return channels.get(name).ok_or_else(|| {
                unknown(&format!(": `server.ingest.tables` maps it to `{name}`, which is not a channel"))
            });
        }
        if let Some(channel) = channels.get(table) {
            return Ok(channel);
        }
        let Some(rule) = self.options.auto_create.iter().find(|rule| glob::matches(&rule.matches, table)) else {
            return Err(unknown(": declare it under `channels`, or map it under `server.ingest.tables`"));
        };
        let Some(like) = channels.get(&rule.like) else {
            return Err(unknown(&format!(": its rule takes the settings of `{}`, which is not a channel", rule.like)));
        };
        self.create_channel(table, like.options().clone()).await
    }

    async fn create_channel(&self, name: &str, options: ChannelOptions) -> Result<Channel, Refusal> {
        let limit = self.limits().max_auto_channels;
        {
            let mut created = self.auto_created.lock();
            if *created >= limit {
                return Err(Refusal::new(
                    IngestCode::TableNotFound,
                    format!(
                        "no channel `{}`, and `server.ingest.max_auto_channels` ({limit}) have been made",
                        shown(name)
                    ),
                ));
            }
            *created += 1;
        }
        let (channels, owned) = (self.parts.channels.clone(), name.to_owned());
        // The format is the new channel's own affair: its first stream fixes it.
        let options = ChannelOptions { format: None, ..options };
        let made = tokio::task::spawn_blocking(move || channels.create(&owned, options)).await;
        match made {
            Ok(Ok(channel)) => {
                tracing::info!(channel = name, "channel made for a new table by server.ingest.auto_create");
                Ok(channel)
            }
            Ok(Err(error)) => {
                *self.auto_created.lock() -= 1;
                Err(match refusal::of(&error) {
                    // A name that cannot be a channel's is a table that does not exist.
                    refusal if refusal.retry() == landfall_types::Retry::Never => {
                        Refusal::new(IngestCode::TableNotFound, refusal.message)
                    }
                    refusal => refusal,
                })
            }
            Err(_) => {
                *self.auto_created.lock() -= 1;
                Err(draining())
            }
        }
    }
}

/// A refusal while the server shuts down.
pub(crate) fn draining() -> Refusal {
    Refusal::new(IngestCode::Draining, "the server is shutting down: come back later, or go to another address")
        .retry_after(COME_BACK_AFTER)
}

/// A name from outside, shortened and without control characters, for a message.
pub(crate) fn shown(name: &str) -> String {
    let cut: String = name.chars().take(MAX_TABLE_NAME_BYTES).collect();
    cut.escape_debug().to_string()
}

/// Whether only a pipeline may write to the channel: a forged letter would be published again like a real one.
pub(crate) fn is_of_a_pipeline(name: &str) -> bool {
    name.starts_with("_dead_letters.")
}
