//! The plan of a configuration: what `check` prints, and what `run` makes sure of before it touches the disk.
//!
//! Channels of the same names and partitions stand in memory while a plan is made, so that planning takes the very path of
//! a start and leaves nothing behind. The real data directory is read for what would refuse the start, and never
//! written. What its records hold (damage) is found by `run`, which serves in spite of it.

use std::sync::Arc;

use landfall_channel::Channels;
use landfall_engine::{MemoryTerm, PipelinePlan};
use landfall_state::StateStore;
use landfall_types::{ByteSize, Clock, Coded, SystemClock, with_causes};
use serde::Serialize;

use super::capture_check::{self, ServerCheck};
use super::pipelines::{self, DecodeSchema, Surroundings};
use super::{capture, channel_options, directory, server_options};
use crate::config::{Config, Finding, Mark, PipelineConfig, PostgresConfig, codes};
use crate::memory;
use crate::refusal::coded;

/// How a plan is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Whether peers and the machine may be asked.
    pub(crate) online: bool,
}

/// What a configuration would do.
#[derive(Debug, Default)]
pub(crate) struct CheckPlan {
    /// What is wrong, or worth knowing.
    pub(crate) findings: Vec<Finding>,
    /// Per pipeline, what it would do.
    pub(crate) pipelines: Vec<PlannedPipeline>,
    /// The worst case of all buffers.
    pub(crate) memory: MemoryPlan,
    /// Checks that were left out, and why.
    pub(crate) left_out: Vec<String>,
}

/// One pipeline's plan.
#[derive(Debug)]
pub(crate) struct PlannedPipeline {
    /// Its name.
    pub(crate) name: String,
    /// The engine's plan; `None` where the schema is only known once records are there.
    pub(crate) plan: Option<PipelinePlan>,
    /// The steps of its query.
    pub(crate) steps: Vec<String>,
    /// What its decoder offers.
    pub(crate) schema: Vec<(String, String)>,
    /// Of a captured database, what its server says.
    pub(crate) server: Option<ServerCheck>,
    /// Of a captured database, where it stands in the file.
    pub(crate) mark: Option<Mark>,
}

/// The worst case of all buffers (E95).
#[derive(Debug, Default, Serialize)]
pub(crate) struct MemoryPlan {
    /// What each is for.
    pub(crate) terms: Vec<MemoryTerm>,
    /// Their sum.
    pub(crate) total: u64,
    /// What the process may use.
    pub(crate) limit: u64,
}

/// Plans a configuration. `source` is the file's text, for places in queries.
pub(crate) async fn plan(config: &Config, source: &str, options: Options) -> anyhow::Result<CheckPlan> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let limit = memory::limit(&config.process);
    let mut plan = CheckPlan::default();
    if options.online {
        listener(config, &mut plan);
    } else {
        plan.left_out.push("whether the listener's port is free".to_owned());
    }
    plan.findings.extend(data_directory(config));
    let state = StateStore::in_memory()?;
    let channels = stand_ins(config, limit, &state, &clock)?;
    for pipeline in &config.pipelines {
        if options.online {
            let unusable: Vec<Finding> = unusable_sinks(pipeline).collect();
            if !unusable.is_empty() {
                plan.findings.extend(unusable);
                continue;
            }
        }
        if let Some(capture) = pipeline.capture().filter(|_| !options.online) {
            plan.left_out.push(format!("the server of pipeline {}, {}", pipeline.name, endpoints(capture)));
        }
        let around = Surroundings {
            channels: &channels,
            clock: &clock,
            file: source,
            inflight_max: pipelines::inflight_max(config, limit),
            runtime: tokio::runtime::Handle::current(),
        };
        match plan_one(config, pipeline, &around, options).await {
            Ok(planned) => {
                plan.left_out.extend(planned.server.iter().filter_map(|server| server.left_out.clone()));
                plan.pipelines.push(planned);
            }
            Err(finding) => plan.findings.push(finding),
        }
    }
    channels.close();
    state.close();
    plan.memory = memory_plan(config, limit, &plan.pipelines);
    if plan.memory.total > limit.get() {
        let text = format!(
            "all buffers together may take {} B, more than the {limit} of `process.memory.limit`",
            plan.memory.total
        );
        let finding = Finding::error(codes::MEMORY, None, text);
        plan.findings.push(finding.help("lower the largest terms that `landfall check` prints, or raise the limit"));
    }
    Ok(plan)
}

/// The configured channels, made small: a plan needs their names, partitions and classes, never their room.
fn stand_ins(config: &Config, limit: ByteSize, state: &StateStore, clock: &Arc<dyn Clock>) -> anyhow::Result<Channels> {
    let mut channels = channel_options::all(config);
    for (name, options) in &mut channels {
        options.clone().validated().map_err(|error| anyhow::anyhow!("channel `{name}`: {error}"))?;
        let small = ByteSize::kib(64);
        options.limits.record_bytes = small;
        options.limits.batch_bytes = small;
        options.turn.bytes = small;
        options.queue.bytes = ByteSize::mib(1);
        options.segment_bytes = ByteSize::mib(1);
        options.ring.bytes = small;
    }
    let process = channel_options::process(&config.process, limit);
    Channels::stand_ins(channels, process, state.handle(), Arc::clone(clock)).map_err(coded)
}

/// What would refuse a start in the data directory as it is now.
fn data_directory(config: &Config) -> Vec<Finding> {
    let at = Some(config.data_dir_mark);
    let dir = &config.data_dir;
    if let Some(why) = directory::obstacle(dir) {
        let text = format!("the data directory `{}` cannot be used: {why}", dir.display());
        return vec![
            Finding::error(codes::DIRECTORY, at, text).help("give another `data_dir`, or make this one usable"),
        ];
    }
    if let Err(error) = StateStore::preview(dir) {
        return vec![Finding::error(error.code(), at, error.to_string())];
    }
    let against = Channels::preview(dir, &channel_options::all(config));
    let finding = |(name, error): (Option<String>, landfall_channel::OpenError)| {
        let channel = name.and_then(|name| config.channels.iter().find(|channel| channel.name == name));
        Finding::error(error.code(), channel.map(|channel| channel.mark).or(at), with_causes(&error))
    };
    against.into_iter().map(finding).collect()
}

/// Destinations in whose place nothing can be written. A start does not refuse for them: the pipeline waits, and ingest
/// goes on.
fn unusable_sinks(pipeline: &PipelineConfig) -> impl Iterator<Item = Finding> {
    pipeline.sinks.iter().filter_map(|sink| {
        let path = directory::of_sink(&sink.kind)?;
        let why = directory::obstacle(path)?;
        let text =
            format!("sink {} of pipeline {}: `{}` cannot be used: {why}", sink.name, pipeline.name, path.display());
        let help = "the pipeline would wait until this is mended; give another path, or make this one usable";
        Some(Finding::error(codes::DIRECTORY, Some(sink.mark), text).help(help))
    })
}

fn listener(config: &Config, plan: &mut CheckPlan) {
    let address = config.server.listen;
    if let Err(source) = std::net::TcpListener::bind(address) {
        let error = landfall_server::ServerError::Listen { address, source };
        plan.findings.push(Finding::error(error.code(), Some(config.server.listen_mark), error.to_string()));
    }
}

fn endpoints(capture: &PostgresConfig) -> String {
    capture.connect.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

async fn plan_one(
    whole: &Config,
    config: &PipelineConfig,
    around: &Surroundings<'_>,
    options: Options,
) -> Result<PlannedPipeline, Finding> {
    let nothing = |server| PlannedPipeline {
        name: config.name.clone(),
        plan: None,
        steps: Vec::new(),
        schema: Vec::new(),
        server,
        mark: config.capture().map(|capture| capture.mark),
    };
    let schema = match pipelines::schema_of(config)? {
        DecodeSchema::None => None,
        DecodeSchema::Declared(schema) => Some(schema),
        DecodeSchema::Inferred => return Ok(nothing(None)),
    };
    let server = match config.capture().filter(|_| options.online) {
        Some(capture) => {
            let asked = capture::options(&config.id, capture, true);
            Some(capture_check::ask(&asked, &capture.tables, &whole.data_dir).await)
        }
        None => None,
    };
    // A server that refuses has said why already; what does not depend on it is planned all the same.
    let is_offline = !options.online || server.as_ref().is_some_and(ServerCheck::has_errors);
    let built = pipelines::build(config, schema, around, is_offline)?;
    let plan = built.pipeline.plan(options.online).await;
    let plan = plan.map_err(|error| pipelines::plan_finding(config, error, around.file))?;
    Ok(PlannedPipeline { plan: Some(plan), steps: built.steps, schema: built.schema, ..nothing(server) })
}

fn memory_plan(config: &Config, limit: ByteSize, pipelines: &[PlannedPipeline]) -> MemoryPlan {
    let channels = channel_options::process(&config.process, limit);
    let ingest = server_options::options(&config.server, limit).limits;
    let mut terms = Vec::new();
    let mut term = |what: &str, bytes: u64| terms.push(MemoryTerm { what: what.to_owned(), bytes });
    term("channels: records queued and claimed", channels.queued_bytes.get());
    term("channels: newest records kept for readers", channels.ring_bytes.get());
    term("channels: credit of subscriptions", channels.subscription_bytes.get());
    term("ingest: calls not yet handed over", ingest.memory.get());
    term("ingest: windows of open streams", ingest.window_memory.get());
    for pipeline in &config.pipelines {
        let Some(capture) = pipeline.capture() else { continue };
        for held in capture::memory(&capture::options(&pipeline.id, capture, true)) {
            term(&format!("pipeline {}: {}", pipeline.name, held.what), held.bytes);
        }
    }
    for pipeline in pipelines {
        for planned in pipeline.plan.iter().flat_map(|plan| &plan.memory) {
            term(&format!("pipeline {}: {}", pipeline.name, planned.what), planned.bytes);
        }
    }
    let total = terms.iter().map(|term| term.bytes).sum();
    MemoryPlan { terms, total, limit: limit.get() }
}
