//! The running parts of a configuration, and their bounded end (E74).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use landfall_channel::Channel;
use landfall_engine::{Ending, ExitReport, PipelineHandle};
use landfall_server::{Server, ServerHandle, ServerParts};
use landfall_types::{Clock, SystemClock};
use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::pipelines::{self, DecodeSchema};
use super::{Storage, inference, server_options};
use crate::config::{Config, Finding, PipelineConfig};
use crate::exit::Exit;
use crate::memory;
use crate::refusal::coded;

/// How long before the hard end the channels get for themselves.
const CHANNELS_SHARE_MAX: Duration = Duration::from_secs(2);

/// Server, channels and pipelines, running.
pub(crate) struct Running {
    config: Arc<Config>,
    storage: Storage,
    server: ServerHandle,
    pipelines: Arc<Vec<Slot>>,
    waiting: Vec<JoinHandle<()>>,
}

/// A configuration file's name and text, to show where a finding stands.
#[derive(Clone, Debug)]
pub(crate) struct ConfigText {
    /// Its name as shown.
    pub(crate) file: String,
    /// Its text.
    pub(crate) text: String,
}

impl ConfigText {
    fn shown(&self, finding: &Finding) -> String {
        finding.render(&self.file, &self.text)
    }
}

/// A pipeline's place: running, or waiting for records to infer its schema from.
struct Slot {
    config: PipelineConfig,
    state: Mutex<SlotState>,
}

enum SlotState {
    Waiting(String),
    Started(PipelineHandle),
}

/// How everything ended.
#[derive(Debug, Serialize)]
pub(crate) struct ShutdownReport {
    /// Per pipeline.
    pub(crate) pipelines: Vec<ExitReport>,
    /// Streams whose last calls were not acknowledged.
    pub(crate) streams_left: usize,
    /// Publishes that a channel could not finish.
    pub(crate) publishes_left: usize,
    /// How long it took.
    pub(crate) seconds: f64,
}

impl ShutdownReport {
    /// The exit code that follows (E75).
    pub(crate) fn exit(&self) -> Exit {
        if self.pipelines.iter().any(|report| report.ending == Ending::Failed) {
            return Exit::Failed;
        }
        let settled = self.pipelines.iter().all(|report| report.ending == Ending::Settled);
        if settled && self.streams_left == 0 && self.publishes_left == 0 { Exit::Ok } else { Exit::Unfinished }
    }
}

impl Running {
    /// Starts everything of a configuration that was planned without an error. Needs a multi-thread runtime.
    pub(crate) async fn start(
        config: Config,
        text: ConfigText,
        metrics: Option<PrometheusHandle>,
    ) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let limit = memory::limit(&config.process);
        let config = Arc::new(config);
        let source = Arc::new(text);
        let opening = (Arc::clone(&config), Arc::clone(&clock));
        // Recovery reads and syncs files: not on the runtime's threads.
        let storage = tokio::task::spawn_blocking(move || Storage::open(&opening.0, limit, opening.1)).await??;
        let slots: Arc<Vec<Slot>> = Arc::new(
            config
                .pipelines
                .iter()
                .map(|pipeline| Slot {
                    config: pipeline.clone(),
                    state: Mutex::new(SlotState::Waiting("waiting for records to infer the schema from".to_owned())),
                })
                .collect(),
        );
        // The port first: without it nothing else should begin to work.
        let parts = server_parts(&storage, &slots, metrics, limit, &clock, &config);
        let server = match Server::bind(server_options::options(&config.server, limit), parts).await {
            Ok(server) => server,
            Err(error) => {
                tokio::task::spawn_blocking(move || storage.close()).await?;
                return Err(coded(error));
            }
        };
        let mut running = Running { config, storage, server: server.start(), pipelines: slots, waiting: Vec::new() };
        if let Err(error) = running.start_pipelines(&source, &clock) {
            // What has started is stopped within the drain bound before the error is told (E77).
            let _report = running.shutdown().await;
            return Err(error);
        }
        Ok(running)
    }

    fn start_pipelines(&mut self, source: &Arc<ConfigText>, clock: &Arc<dyn Clock>) -> anyhow::Result<()> {
        for at in 0..self.pipelines.len() {
            let Some(slot) = self.pipelines.get(at) else { continue };
            let shown = |finding: Finding| anyhow::anyhow!(source.shown(&finding));
            let schema = match pipelines::schema_of(&slot.config).map_err(shown)? {
                DecodeSchema::None => None,
                DecodeSchema::Declared(schema) => Some(schema),
                DecodeSchema::Inferred => match inference::pinned(&self.storage.state(), &slot.config)? {
                    Some(schema) => Some(schema),
                    None => {
                        let starter = self.starter(at, source, clock);
                        self.waiting.push(tokio::spawn(starter.infer_and_start()));
                        continue;
                    }
                },
            };
            self.starter(at, source, clock).start(schema).map_err(shown)?;
        }
        Ok(())
    }

    fn starter(&self, at: usize, source: &Arc<ConfigText>, clock: &Arc<dyn Clock>) -> Starter {
        Starter {
            slots: Arc::clone(&self.pipelines),
            at,
            channels: self.storage.channels.clone(),
            state: self.storage.state(),
            clock: Arc::clone(clock),
            source: Arc::clone(source),
            runtime: Handle::current(),
        }
    }

    /// Where the server listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// A channel by name.
    pub(crate) fn channel(&self, name: &str) -> Option<Channel> {
        self.storage.channels.get(name)
    }

    /// A started pipeline by name.
    pub(crate) fn pipeline(&self, name: &str) -> Option<PipelineHandle> {
        self.pipelines.iter().find(|slot| slot.config.name == name).and_then(Slot::handle)
    }

    /// Waits until a pipeline has failed for good.
    pub(crate) async fn any_failed(&self) -> String {
        let mut ends = tokio::task::JoinSet::new();
        for slot in self.pipelines.iter() {
            if let Some(handle) = slot.handle() {
                let name = slot.config.name.clone();
                ends.spawn(async move { (name, handle.ended().await) });
            }
        }
        while let Some(ended) = ends.join_next().await {
            if let Ok((name, report)) = ended
                && report.ending == Ending::Failed
            {
                return name;
            }
        }
        std::future::pending().await
    }

    /// The bounded end: ingest and pipelines stop reading and finish, channels drain, state and LOCK go last.
    pub(crate) async fn shutdown(self) -> ShutdownReport {
        let begun = Instant::now();
        let bound = self.config.process.drain_timeout;
        let deadline = begun + bound;
        let share = CHANNELS_SHARE_MAX.min(bound / 2);
        for task in &self.waiting {
            task.abort();
        }
        let grace = bound - share;
        let serving = self.server.drain(self.config.server.drain_grace.min(bound / 2), begun + grace);
        let handles: Vec<_> = self
            .pipelines
            .iter()
            .filter_map(|slot| Some((slot.handle()?, slot.config.drain_timeout.min(grace))))
            .collect();
        let ending = futures::future::join_all(
            handles.iter().map(|(handle, grace)| async move { handle.shutdown(*grace).await }),
        );
        let (served, pipelines) = tokio::join!(serving, ending);
        let drained = self.storage.channels.drain(deadline).await;
        let storage = self.storage;
        // Closing waits for threads that are in the device; the runtime's own threads go on meanwhile.
        let closing = tokio::task::spawn_blocking(move || storage.close());
        let last = deadline.max(Instant::now() + Duration::from_millis(500));
        if tokio::time::timeout_at(last.into(), closing).await.is_err() {
            tracing::error!("the data directory could not be closed before the drain deadline");
        }
        ShutdownReport {
            pipelines,
            streams_left: served.left.len(),
            publishes_left: drained.left.iter().map(|left| left.queued + left.claimed).sum(),
            seconds: begun.elapsed().as_secs_f64(),
        }
    }
}

impl Slot {
    fn handle(&self) -> Option<PipelineHandle> {
        match &*self.state.lock() {
            SlotState::Started(handle) => Some(handle.clone()),
            SlotState::Waiting(_) => None,
        }
    }

    /// The pipeline's part of `/v1/status`, with the channels that `tail` and `publish` ask for.
    fn status(&self) -> serde_json::Value {
        let mut status = match &*self.state.lock() {
            SlotState::Started(handle) => serde_json::to_value(handle.status()).unwrap_or_default(),
            SlotState::Waiting(why) => serde_json::json!({
                "name": self.config.name, "id": self.config.id, "state": "starting", "why": {"cause": why}, "sinks": [],
            }),
        };
        if let Some(fields) = status.as_object_mut() {
            fields.insert("source_channel".to_owned(), self.config.channel.clone().into());
            fields.insert("dead_letter_channel".to_owned(), self.config.dead_letter_channel().into());
        }
        status
    }
}

/// Everything that starting one pipeline takes, so that it can be done later.
struct Starter {
    slots: Arc<Vec<Slot>>,
    at: usize,
    channels: landfall_channel::Channels,
    state: landfall_state::StateHandle,
    clock: Arc<dyn Clock>,
    source: Arc<ConfigText>,
    runtime: Handle,
}

impl Starter {
    fn start(&self, schema: Option<landfall_sql::Schema>) -> Result<(), Finding> {
        let Some(slot) = self.slots.get(self.at) else { return Ok(()) };
        let built = pipelines::build(&slot.config, schema, &self.channels, Arc::clone(&self.clock), &self.source.text)?;
        let handle = built.pipeline.start(self.state.clone(), &self.runtime).map_err(
            |landfall_engine::StartError::Plan(error)| pipelines::plan_finding(&slot.config, error, &self.source.text),
        )?;
        *slot.state.lock() = SlotState::Started(handle);
        Ok(())
    }

    /// Waits for records, infers and pins the schema, starts.
    async fn infer_and_start(self) {
        let Some(slot) = self.slots.get(self.at) else { return };
        let result = async {
            let channel = self.channels.get(&slot.config.channel).context("the source channel is not open")?;
            let schema = inference::infer_and_pin(&channel, &self.state, &slot.config).await?;
            self.start(Some(schema)).map_err(|finding| anyhow::anyhow!(self.source.shown(&finding)))
        };
        if let Err(error) = result.await {
            tracing::error!(pipeline = %slot.config.name, "not started: {error:#}");
            *slot.state.lock() = SlotState::Waiting(format!("{error:#}"));
        }
    }
}

fn server_parts(
    storage: &Storage,
    slots: &Arc<Vec<Slot>>,
    metrics: Option<PrometheusHandle>,
    limit: landfall_types::ByteSize,
    clock: &Arc<dyn Clock>,
    config: &Config,
) -> ServerParts {
    let (status, beats, lacks) = (Arc::clone(slots), Arc::clone(slots), Arc::clone(slots));
    let stale_after = config.process.stale_after;
    ServerParts {
        pipelines: Arc::new(move || status.iter().map(Slot::status).collect()),
        stale_threads: Arc::new(move || {
            beats
                .iter()
                .filter_map(|slot| slot.handle()?.oldest_beat())
                .filter(|(_, age)| *age > stale_after)
                .map(|(name, age)| format!("{name} ({} s)", age.as_secs()))
                .collect()
        }),
        pipelines_lack: Arc::new(move || {
            let mut lacking = BTreeMap::new();
            for slot in lacks.iter() {
                match &*slot.state.lock() {
                    SlotState::Waiting(why) => {
                        lacking.insert(slot.config.name.clone(), why.clone());
                    }
                    SlotState::Started(handle) => {
                        use landfall_engine::PipelineState::{Failed, Starting, Stopped};
                        let state = handle.state();
                        if matches!(state, Starting | Failed | Stopped) {
                            lacking.insert(slot.config.name.clone(), format!("{state:?}").to_lowercase());
                        }
                    }
                }
            }
            lacking.into_iter().map(|(name, why)| format!("pipeline {name}: {why}")).collect()
        }),
        metrics,
        memory_limit: Some(limit),
        clock: Arc::clone(clock),
        ..ServerParts::new(storage.channels.clone())
    }
}
