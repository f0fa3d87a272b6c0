//! The running parts of a configuration, and their bounded end (E74).

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use backon::{BackoffBuilder, ExponentialBuilder};
use futures::{FutureExt, StreamExt};
use landfall_channel::Channel;
use landfall_engine::{Ending, ExitReport, PipelineHandle};
use landfall_server::{Server, ServerHandle, ServerParts};
use landfall_types::{Clock, SystemClock};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::pipelines::{self, DecodeSchema};
use super::slot::{NotStarted, Slot};
use super::slot_tables::SlotTables;
use super::{Storage, inference, server_options};
use crate::config::{Config, Finding};
use crate::exit::Exit;
use crate::memory;
use crate::refusal::coded;

/// How long before the hard end the channels get for themselves.
const CHANNELS_SHARE_MAX: Duration = Duration::from_secs(2);
/// Between two tries to infer a schema, after a passing error.
const INFER_AGAIN_MIN: Duration = Duration::from_secs(1);
const INFER_AGAIN_MAX: Duration = Duration::from_secs(30);

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
        let slots: Arc<Vec<Slot>> = Arc::new(config.pipelines.iter().cloned().map(Slot::new).collect());
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
            let starter = self.starter(at, source, clock);
            if slot.config.capture().is_some() {
                // What stands against it stands on a server: the rest of this process is none the worse for it (I13).
                starter.start_or_fail(slot);
                continue;
            }
            starter.start(schema).map_err(shown)?;
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
            inflight_max: pipelines::inflight_max(&self.config, memory::limit(&self.config.process)),
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

    /// Waits until a pipeline has failed for good, those included that have not started yet.
    pub(crate) async fn any_failed(&self) -> String {
        let mut failures: futures::stream::FuturesUnordered<_> = self.pipelines.iter().map(Slot::failed).collect();
        match failures.next().await {
            Some(name) => name,
            // No pipeline, no failure.
            None => std::future::pending().await,
        }
    }

    /// The bounded end: ingest and pipelines stop reading and finish, channels drain, state and LOCK go last.
    pub(crate) async fn shutdown(self) -> ShutdownReport {
        let begun = Instant::now();
        let bound = self.config.process.drain_timeout;
        let deadline = begun + bound;
        let share = CHANNELS_SHARE_MAX.min(bound / 2);
        let grace = bound - share;
        for task in &self.waiting {
            task.abort();
        }
        // One that is past its last wait starts its pipeline all the same: only behind its end is the list below whole.
        let starters = futures::future::join_all(self.waiting);
        if tokio::time::timeout_at((begun + grace).into(), starters).await.is_err() {
            tracing::error!("a pipeline that is being started could not be stopped before the drain deadline");
        }
        let serving = self.server.drain(self.config.server.drain_grace.min(bound / 2), begun + grace);
        let handles: Vec<_> = self
            .pipelines
            .iter()
            .filter_map(|slot| Some((slot.handle()?, slot.config.drain_timeout.min(grace))))
            .collect();
        let ending = futures::future::join_all(
            handles.iter().map(|(handle, grace)| async move { handle.shutdown(*grace).await }),
        );
        let (served, mut pipelines) = tokio::join!(serving, ending);
        pipelines.extend(self.pipelines.iter().filter_map(Slot::report_without_start));
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

/// Everything that starting one pipeline takes, so that it can be done later.
struct Starter {
    slots: Arc<Vec<Slot>>,
    at: usize,
    channels: landfall_channel::Channels,
    state: landfall_state::StateHandle,
    clock: Arc<dyn Clock>,
    source: Arc<ConfigText>,
    runtime: Handle,
    inflight_max: landfall_types::ByteSize,
}

impl Starter {
    fn start(&self, schema: Option<landfall_sql::Schema>) -> Result<(), Finding> {
        let Some(slot) = self.slots.get(self.at) else { return Ok(()) };
        let around = pipelines::Surroundings {
            channels: &self.channels,
            clock: &self.clock,
            file: &self.source.text,
            inflight_max: self.inflight_max,
            runtime: self.runtime.clone(),
        };
        let built = pipelines::build(&slot.config, schema, &around, false)?;
        let orders = built.orders;
        let handle = built.pipeline.start(self.state.clone(), &self.runtime).map_err(
            |landfall_engine::StartError::Plan(error)| pipelines::plan_finding(&slot.config, error, &self.source.text),
        )?;
        slot.started(handle, orders);
        Ok(())
    }

    /// Starts a capture; what its server has against it is in its slot.
    fn start_or_fail(&self, slot: &Slot) {
        if let Err(finding) = self.start(None) {
            let cause = match &finding.help {
                Some(help) => format!("{}; {help}", finding.text),
                None => finding.text.clone(),
            };
            tracing::error!(pipeline = %slot.config.name, code = %finding.code, "cannot be started: {cause}");
            slot.fail(NotStarted { code: Some(finding.code), cause, is_passing: false });
        }
    }

    /// Waits for records, infers and pins the schema, starts. Errors that pass are tried again; any other is the end of
    /// this pipeline, and its slot says so.
    async fn infer_and_start(self) {
        let Some(slot) = self.slots.get(self.at) else { return };
        let mut delays = ExponentialBuilder::default()
            .with_min_delay(INFER_AGAIN_MIN)
            .with_max_delay(INFER_AGAIN_MAX)
            .with_jitter()
            .without_max_times()
            .build();
        loop {
            // A panic that ended this task alone would leave the slot waiting for ever.
            let why = match AssertUnwindSafe(self.attempt(slot)).catch_unwind().await {
                Ok(Ok(())) => return,
                Ok(Err(why)) => why,
                Err(_) => {
                    let cause = "inferring the schema panicked; the log has the place".to_owned();
                    NotStarted { code: None, cause, is_passing: false }
                }
            };
            let Some(delay) = delays.next().filter(|_| why.is_passing) else {
                tracing::error!(pipeline = %slot.config.name, "failed before its start: {}", why.cause);
                slot.fail(why);
                return;
            };
            tracing::warn!(pipeline = %slot.config.name, again_in = ?delay, "not started yet: {}", why.cause);
            slot.retrying(why);
            tokio::time::sleep(delay).await;
        }
    }

    async fn attempt(&self, slot: &Slot) -> Result<(), NotStarted> {
        // A try whose answer was lost may have pinned: what is pinned never changes by itself.
        let schema = match inference::pinned(&self.state, &slot.config)? {
            Some(schema) => schema,
            None => {
                let channel = slot.config.source_channel().and_then(|name| self.channels.get(name));
                let channel = channel.context("the source channel is not open")?;
                inference::infer_and_pin(&channel, &self.state, &slot.config).await?
            }
        };
        self.start(Some(schema)).map_err(|finding| NotStarted {
            code: Some(finding.code),
            cause: self.source.shown(&finding).trim_end().to_owned(),
            is_passing: false,
        })
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
    let sources = storage.channels.clone();
    let stale_after = config.process.stale_after;
    ServerParts {
        pipelines: Arc::new(move || status.iter().map(|slot| slot.status(&sources)).collect()),
        stale_threads: Arc::new(move || {
            beats
                .iter()
                .filter_map(|slot| slot.handle()?.oldest_beat())
                .filter(|(_, age)| *age > stale_after)
                .map(|(name, age)| format!("{name} ({} s)", age.as_secs()))
                .collect()
        }),
        pipelines_lack: Arc::new(move || {
            let mut lacking: Vec<_> =
                lacks.iter().filter_map(|slot| Some((slot.config.name.as_str(), slot.lack()?))).collect();
            lacking.sort();
            lacking.into_iter().map(|(name, why)| format!("pipeline {name}: {why}")).collect()
        }),
        tables: Arc::new(SlotTables::new(Arc::clone(slots), storage.channels.clone())),
        metrics,
        memory_limit: Some(limit),
        clock: Arc::clone(clock),
        ..ServerParts::new(storage.channels.clone())
    }
}
