//! One pipeline from its configuration, not started: source, chain, sinks, dead letters.

use std::sync::Arc;

use landfall_channel::{Channel, ChannelDeadLetters, ChannelSource, Channels, Start};
use landfall_engine::contract::{PipelineId, PlanError, Source};
use landfall_engine::{Pipeline, PipelineHandle, PipelinePlan, StartError};
use landfall_postgres::{Orders, PostgresSource};
use landfall_sql::Schema;
use landfall_state::StateHandle;
use landfall_types::{ByteSize, Clock, Offset};
use tokio::runtime::Handle;

use super::{capture, chain, sinks};
use crate::config::{Config, DecodeConfig, Finding, FromConfig, PipelineConfig, StartAt, codes};

/// The schema that a pipeline decodes by.
pub(super) enum DecodeSchema {
    /// Raw bytes: none.
    None,
    /// Declared in the file.
    Declared(Schema),
    /// To be inferred from records, or read back where it was pinned.
    Inferred,
}

/// What the configuration says of the schema.
pub(super) fn schema_of(config: &PipelineConfig) -> Result<DecodeSchema, Finding> {
    match &config.decode {
        DecodeConfig::Raw => Ok(DecodeSchema::None),
        DecodeConfig::Json(json) if json.infer.is_some() => Ok(DecodeSchema::Inferred),
        DecodeConfig::Json(json) => chain::declared_schema(json).map(DecodeSchema::Declared),
    }
}

/// A pipeline that is ready to be planned or started.
pub(super) struct Built {
    /// The pipeline.
    pub(super) pipeline: AnyPipeline,
    /// Gives orders to its tables, where it has some.
    pub(super) orders: Option<Orders>,
    /// The steps of its query, for `check`; tables have their own.
    pub(super) steps: Vec<String>,
    /// What its decoder offers, for `check`.
    pub(super) schema: Vec<(String, String)>,
}

/// A pipeline over either kind of source.
#[expect(clippy::large_enum_variant, reason = "one of each pipeline, moved twice")]
pub(super) enum AnyPipeline {
    /// Over the records of a channel.
    Records(Pipeline<ChannelSource>),
    /// Over the tables of a database.
    Tables(Pipeline<PostgresSource>),
}

impl AnyPipeline {
    /// What it would do. A database is asked on this very call, which may take as long as its server does.
    pub(super) async fn plan(&self, online: bool) -> Result<PipelinePlan, PlanError> {
        match self {
            AnyPipeline::Records(pipeline) => pipeline.plan(online).await,
            AnyPipeline::Tables(pipeline) => tokio::task::block_in_place(|| pipeline.plan(online)).await,
        }
    }

    /// Starts it. Needs a multi-thread runtime.
    pub(super) fn start(self, state: StateHandle, runtime: &Handle) -> Result<PipelineHandle, StartError> {
        match self {
            AnyPipeline::Records(pipeline) => pipeline.start(state, runtime),
            AnyPipeline::Tables(pipeline) => tokio::task::block_in_place(|| pipeline.start(state, runtime)),
        }
    }
}

/// What a pipeline is put together with besides its own configuration.
pub(super) struct Surroundings<'a> {
    /// Open channels, or what stands for them while a plan is made.
    pub(super) channels: &'a Channels,
    /// The clock.
    pub(super) clock: &'a Arc<dyn Clock>,
    /// The file's text, for places in queries.
    pub(super) file: &'a str,
    /// What the queues and batches of one capture may hold, unless it says otherwise.
    pub(super) inflight_max: ByteSize,
    /// Where a source's tasks run.
    pub(super) runtime: Handle,
}

/// A quarter of the process's memory, divided among its captures: how many tables one has is the database's to say.
pub(super) fn inflight_max(config: &Config, limit: ByteSize) -> ByteSize {
    let captures = config.pipelines.iter().filter(|pipeline| pipeline.capture().is_some()).count().max(1);
    ByteSize((limit.get() / 4 / captures as u64).max(1 << 20))
}

/// Puts a pipeline together. `schema`: of a JSON decoder. `is_offline`: a database is not asked while it is planned.
pub(super) fn build(
    config: &PipelineConfig,
    schema: Option<Schema>,
    around: &Surroundings<'_>,
    is_offline: bool,
) -> Result<Built, Finding> {
    let letters = ChannelDeadLetters::new(open_channel(config, around, &config.dead_letter_channel())?);
    let from = match &config.from {
        FromConfig::Channel(from) => from,
        FromConfig::Postgres(from) => {
            let (pipeline, orders) =
                capture::build(config, from, around.channels, around.inflight_max, is_offline, &around.runtime)?;
            let pipeline = AnyPipeline::Tables(finished(pipeline, config, letters, around));
            return Ok(Built { pipeline, orders: Some(orders), steps: Vec::new(), schema: Vec::new() });
        }
    };
    let chain = chain::compile(config, schema, around.file)?;
    let start = match from.start {
        StartAt::Earliest => Start::Earliest,
        StartAt::Latest => Start::Latest,
        StartAt::Offset(offset) => Start::Offset(Offset(offset)),
        StartAt::Time(time) => Start::Time(time),
    };
    let id = PipelineId(config.id.clone());
    let source = ChannelSource::new(open_channel(config, around, &from.name)?, start, id.clone());
    let mut pipeline = Pipeline::new(id, source, Arc::clone(&chain.factory));
    for (sink, filter) in config.sinks.iter().zip(&chain.filters) {
        let mut options = sinks::options(sink, config);
        options.filter.clone_from(filter);
        let built = sinks::build(sink, around.channels)
            .map_err(|error| Finding::error(error.code, Some(sink.mark), error.text))?;
        pipeline = pipeline.sink(&sink.name, built, options);
    }
    let pipeline = AnyPipeline::Records(finished(pipeline, config, letters, around));
    Ok(Built { pipeline, orders: None, steps: chain.steps, schema: chain.schema })
}

fn open_channel(config: &PipelineConfig, around: &Surroundings<'_>, name: &str) -> Result<Channel, Finding> {
    around
        .channels
        .get(name)
        .ok_or_else(|| Finding::error(codes::UNDEFINED, Some(config.mark), format!("the channel `{name}` is not open")))
}

/// What every pipeline has, whatever its source.
fn finished<S: Source + 'static>(
    pipeline: Pipeline<S>,
    config: &PipelineConfig,
    letters: ChannelDeadLetters,
    around: &Surroundings<'_>,
) -> Pipeline<S> {
    pipeline
        .named(config.name.clone())
        .options(sinks::pipeline_options(config))
        .dead_letters(Arc::new(letters))
        .clock(Arc::clone(around.clock))
}

/// A plan's refusal at the place that it speaks of.
pub(super) fn plan_finding(config: &PipelineConfig, error: PlanError, file: &str) -> Finding {
    let mut of_tables =
        config.capture().into_iter().flat_map(|capture| &capture.tables).filter_map(|of| of.sql.as_ref());
    // One query of several tables is named in the text.
    let query = config.sql.as_ref().or(of_tables.next()).filter(|_| of_tables.next().is_none());
    if let (Some(_), Some(query)) = (&error.span, query) {
        return chain::query_finding(error, query, file);
    }
    let mark = match config.sinks.as_slice() {
        [only] => only.mark,
        _ => config.mark,
    };
    Finding::error(error.code, Some(mark), error.text)
}
