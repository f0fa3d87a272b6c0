//! A pipeline over a captured database: the source with its options, a chain and a destination for each table.

use std::sync::Arc;

use landfall_channel::{ChannelSink, Channels};
use landfall_delta::DeltaSink;
use landfall_engine::contract::{PipelineId, PlanError, TableAbilities, TableDecoder, TableSpec, Transform, Wanted};
use landfall_engine::{ChainParts, MemoryTerm, Pipeline, TableChainFactory};
use landfall_postgres::{CaptureOptions, Orders, PostgresSource, RowOptions, TableChoice, Target};
use landfall_types::ByteSize;
use tokio::runtime::Handle;

use super::table_query::TableQuery;
use super::{sinks, table_sinks};
use crate::config::{Finding, PipelineConfig, PostgresConfig, SinkKind, TableConfig, codes};

/// What a capture is made with. `is_offline`: the server is not asked while it is planned.
pub(crate) fn options(pipeline: &str, config: &PostgresConfig, is_offline: bool) -> CaptureOptions {
    let bytes = |size: ByteSize| usize::try_from(size.get()).unwrap_or(usize::MAX);
    let mut options = CaptureOptions::new(pipeline, config.connect.clone(), choices(&config.tables));
    options.slot = config.slot_name(pipeline);
    options.publication = config.publication.clone().unwrap_or_else(|| options.slot.clone());
    options.creates_slot = config.creates_slot;
    options.adopts_slot = config.adopts_slot;
    options.creates_publication = config.creates_publication;
    options.origin.clone_from(&config.origin);
    options.copies = config.copies;
    options.queue = config.queue;
    options.max_message = config.max_message.map_or(options.max_message, bytes);
    options.copy.row_bytes_max = options.max_message;
    options.copy.connections = config.copy_connections.unwrap_or(options.copy.connections);
    options.copy.range_bytes = config.copy_range.map_or(options.copy.range_bytes, |size| size.get());
    options.slot_timeout = config.slot_timeout.unwrap_or(options.slot_timeout);
    options.feedback_interval = config.feedback_interval.unwrap_or(options.feedback_interval);
    options.liveness_timeout = config.liveness_timeout.unwrap_or(options.liveness_timeout);
    options.linger = config.linger.unwrap_or(options.linger);
    options.shape_refusals = landfall_delta::SHAPE_REFUSALS.to_vec();
    // Two tables of which one has the other's place.
    options.shape_refusals.push(codes::CONTRADICTION);
    options.schema_poll = config.schema_poll.unwrap_or(options.schema_poll);
    options.is_offline = is_offline;
    options
}

/// Captured rows end in Delta tables, at once or by way of a channel, so values take the forms that those can hold.
fn choices(tables: &[TableConfig]) -> Vec<TableChoice> {
    let choice = |table: &TableConfig| TableChoice {
        pattern: table.pattern.clone(),
        keeps_dropped: table.keeps_dropped,
        rows: RowOptions {
            target: Target::Delta,
            policies: table.values,
            columns: table.columns.clone(),
            ..RowOptions::default()
        },
    };
    tables.iter().map(choice).collect()
}

/// The worst case of what a capture holds before the engine has it (E95).
pub(super) fn memory(options: &CaptureOptions) -> Vec<MemoryTerm> {
    let term = |what: &str, bytes: u64| MemoryTerm { what: what.to_owned(), bytes };
    vec![
        term("capture: queue of log records", options.queue.memory_max()),
        term("capture: the message being read", options.max_message as u64),
        term("capture: rows made and not taken", options.ready_bytes as u64),
        term("capture: copies", options.copy.memory_max()),
    ]
}

/// Puts the pipeline together but for what every pipeline has.
pub(super) fn build(
    config: &PipelineConfig,
    capture: &PostgresConfig,
    channels: &Channels,
    inflight_max: ByteSize,
    is_offline: bool,
    runtime: &Handle,
) -> Result<(Pipeline<PostgresSource>, Orders), Finding> {
    let mut options = options(&config.id, capture, is_offline);
    options.abilities = config.sinks.iter().fold(TableAbilities::ALL, |all, sink| all.and(abilities(&sink.kind)));
    // What no event tells is missing from a state; a channel holds none.
    options.only_events = config.sinks.iter().all(|sink| matches!(sink.kind, SinkKind::Channel(_)));
    let source = PostgresSource::new(options, runtime.clone());
    let orders = source.orders();
    let mut pipeline = Pipeline::of_tables(PipelineId(config.id.clone()), source, chains(capture))
        .max_inflight_bytes(config.max_inflight_bytes.unwrap_or(inflight_max));
    for sink in &config.sinks {
        let factory = match &sink.kind {
            SinkKind::Delta(delta) => {
                let mut of_tables = sinks::delta_options(delta);
                if delta.add_columns.is_none() {
                    // A table that gets a column is the ordinary case here, not somebody's mistake.
                    of_tables.evolve = landfall_delta::Evolve::AddColumns;
                }
                table_sinks::lakes(of_tables)
            }
            SinkKind::Channel(to) => table_sinks::changes(sink, to, channels)?,
            SinkKind::Files(_) => {
                // The check of the file has refused it already.
                let text = format!("sink `{}` takes no captured rows", sink.name);
                return Err(Finding::error(codes::NOT_YET, Some(sink.mark), text));
            }
        };
        pipeline = pipeline.table_sink(&sink.name, factory, sinks::options(sink, config));
    }
    Ok((pipeline, orders))
}

/// What a destination can carry on with when a table is another one from some change on.
fn abilities(kind: &SinkKind) -> TableAbilities {
    match kind {
        SinkKind::Channel(_) => ChannelSink::ABILITIES,
        SinkKind::Delta(_) => DeltaSink::ABILITIES,
        // Takes no captured rows.
        SinkKind::Files(_) => TableAbilities::ALL,
    }
}

/// Each table's own query, or none.
fn chains(capture: &PostgresConfig) -> TableChainFactory {
    let tables = capture.tables.clone();
    Arc::new(move |spec: &TableSpec| {
        let mut transforms: Vec<Box<dyn Transform>> = Vec::new();
        if let Some(query) = query_of(&tables, &spec.name) {
            let compiled = TableQuery::compile(query, &spec.schema).map_err(|error| PlanError {
                text: format!("the query of table {}: {}", spec.name, error.text),
                ..error
            })?;
            transforms.push(Box::new(compiled));
        }
        let decoder = Box::new(TableDecoder::new(spec.schema.clone()));
        Ok(ChainParts { decoder, transforms, wanted: Wanted::default() })
    })
}

/// The query of the first pattern that matches. A table is known by `schema.table` here, and either may hold a point.
pub(crate) fn query_of<'a>(tables: &'a [TableConfig], name: &str) -> Option<&'a str> {
    let is_meant = |table: &&TableConfig| {
        name.match_indices('.').any(|(at, _)| {
            let (schema, rest) = name.split_at(at);
            table.pattern.matches(schema, rest.strip_prefix('.').unwrap_or_default())
        })
    };
    tables.iter().find(is_meant)?.sql.as_ref().map(|query| query.text.as_str())
}
