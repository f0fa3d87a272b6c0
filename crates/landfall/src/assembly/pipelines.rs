//! One pipeline from its configuration, not started: source, chain, sinks, dead letters.

use std::sync::Arc;

use landfall_channel::{ChannelDeadLetters, ChannelSource, Channels, Start};
use landfall_engine::Pipeline;
use landfall_engine::contract::PipelineId;
use landfall_sql::Schema;
use landfall_types::{Clock, Offset};

use super::chain::{self, CompiledChain};
use super::sinks;
use crate::config::{DecodeConfig, Finding, PipelineConfig, StartAt, codes};

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
    pub(super) pipeline: Pipeline<ChannelSource>,
    /// Its chain, for `check`.
    pub(super) chain: CompiledChain,
}

/// Puts a pipeline together. `schema`: of a JSON decoder.
pub(super) fn build(
    config: &PipelineConfig,
    schema: Option<Schema>,
    channels: &Channels,
    clock: Arc<dyn Clock>,
    file: &str,
) -> Result<Built, Finding> {
    let at_pipeline = |code, text: String| Finding::error(code, Some(config.mark), text);
    let open = |name: &str| {
        channels.get(name).ok_or_else(|| at_pipeline(codes::UNDEFINED, format!("the channel `{name}` is not open")))
    };
    let chain = chain::compile(config, schema, file)?;
    let start = match config.start {
        StartAt::Earliest => Start::Earliest,
        StartAt::Latest => Start::Latest,
        StartAt::Offset(offset) => Start::Offset(Offset(offset)),
        StartAt::Time(time) => Start::Time(time),
    };
    let id = PipelineId(config.id.clone());
    let source = ChannelSource::new(open(&config.channel)?, start, id.clone());
    let letters = ChannelDeadLetters::new(open(&config.dead_letter_channel())?);
    let mut pipeline = Pipeline::new(id, source, Arc::clone(&chain.factory))
        .named(config.name.clone())
        .options(sinks::pipeline_options(config))
        .dead_letters(Arc::new(letters))
        .clock(clock);
    for (sink, filter) in config.sinks.iter().zip(&chain.filters) {
        let mut options = sinks::options(sink, config);
        options.filter.clone_from(filter);
        let built =
            sinks::build(sink, channels).map_err(|error| Finding::error(error.code, Some(sink.mark), error.text))?;
        pipeline = pipeline.sink(&sink.name, built, options);
    }
    Ok(Built { pipeline, chain })
}

/// A plan's refusal at the place that it speaks of.
pub(super) fn plan_finding(
    config: &PipelineConfig,
    error: landfall_engine::contract::PlanError,
    file: &str,
) -> Finding {
    if let (Some(_), Some(query)) = (&error.span, &config.sql) {
        return chain::query_finding(error, query, file);
    }
    let mark = match config.sinks.as_slice() {
        [only] => only.mark,
        _ => config.mark,
    };
    Finding::error(error.code, Some(mark), error.text)
}
