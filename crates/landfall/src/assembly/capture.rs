//! A pipeline over a captured database: the source with its options, a chain and a destination for each table.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use landfall_delta::{DeltaOptions, DeltaSink};
use landfall_engine::contract::{PipelineId, PlanError, Sink, TableDecoder, TableId, TableSpec, Transform, Wanted};
use landfall_engine::{ChainParts, MemoryTerm, Pipeline, TableChainFactory, TableSinkFactory};
use landfall_postgres::{CaptureOptions, Orders, PostgresSource, RowOptions, TableChoice, Target};
use landfall_types::ByteSize;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::sinks;
use super::table_query::TableQuery;
use crate::config::{Finding, PipelineConfig, PostgresConfig, SinkKind, TABLE_PLACE, TableConfig, codes};

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
    options.schema_poll = config.schema_poll.unwrap_or(options.schema_poll);
    options.is_offline = is_offline;
    options
}

/// Every sink that takes captured rows is a Delta table, so values take the forms that it can hold.
fn choices(tables: &[TableConfig]) -> Vec<TableChoice> {
    let choice = |table: &TableConfig| TableChoice {
        pattern: table.pattern.clone(),
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
    let copies = options.copy.connections.saturating_mul(options.copy.chunk_bytes.saturating_mul(2)) as u64;
    vec![
        term("capture: queue of log records", options.queue.memory_max()),
        term("capture: the message being read", options.max_message as u64),
        term("capture: rows made and not taken", options.ready_bytes as u64),
        term("capture: copies", copies),
    ]
}

/// Puts the pipeline together but for what every pipeline has.
pub(super) fn build(
    config: &PipelineConfig,
    capture: &PostgresConfig,
    inflight_max: ByteSize,
    is_offline: bool,
    runtime: &Handle,
) -> Result<(Pipeline<PostgresSource>, Orders), Finding> {
    let source = PostgresSource::new(options(&config.id, capture, is_offline), runtime.clone());
    let orders = source.orders();
    let mut pipeline = Pipeline::of_tables(PipelineId(config.id.clone()), source, chains(capture))
        .max_inflight_bytes(config.max_inflight_bytes.unwrap_or(inflight_max));
    for sink in &config.sinks {
        let SinkKind::Delta(delta) = &sink.kind else {
            // The check of the file has refused it already.
            let text = format!("sink `{}` takes no captured rows", sink.name);
            return Err(Finding::error(codes::NOT_YET, Some(sink.mark), text));
        };
        let mut of_tables = sinks::delta_options(delta);
        if delta.add_columns.is_none() {
            // A table that gets a column is the ordinary case here, not somebody's mistake.
            of_tables.evolve = landfall_delta::Evolve::AddColumns;
        }
        pipeline = pipeline.table_sink(&sink.name, destinations(of_tables), sinks::options(sink, config));
    }
    Ok((pipeline, orders))
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

/// Each table's own place in a Delta sink.
fn destinations(options: DeltaOptions) -> TableSinkFactory {
    let taken: Mutex<BTreeMap<PathBuf, TableId>> = Mutex::default();
    Arc::new(move |spec: &TableSpec| {
        let path = place_of(&options.path, &spec.name);
        let owner = *taken.lock().entry(path.clone()).or_insert(spec.id);
        if owner != spec.id {
            let text = format!(
                "`{}` is the place of another table already: table {} needs a `path` with `{TABLE_PLACE}`, or a pipeline \
                 of its own",
                path.display(),
                spec.name
            );
            return Err(PlanError::new(codes::CONTRADICTION, text));
        }
        let sink = DeltaSink::new(DeltaOptions { path, ..options.clone() })?;
        Ok(Arc::new(sink) as Arc<dyn Sink>)
    })
}

/// The path with the table's name put in. A name is whatever its owner called it: one that is no plain word is spelled so
/// that it stays one part of the path, and two names never meet in one place.
pub(crate) fn place_of(template: &Path, table: &str) -> PathBuf {
    let mut word = String::with_capacity(table.len());
    for byte in table.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.') {
            word.push(char::from(byte));
        } else {
            word.push_str(&format!("~{byte:02x}"));
        }
    }
    // A table has a schema, so the word is neither empty nor made of points alone but for the oddest names.
    if word.bytes().all(|byte| byte == b'.') {
        word = word.replace('.', "~2e");
    }
    PathBuf::from(template.to_string_lossy().replace(TABLE_PLACE, &word))
}

#[cfg(test)]
mod tests {
    use arrow_schema::Schema;

    use super::*;

    fn spec(id: u32, name: &str) -> TableSpec {
        TableSpec { id: TableId(id), name: name.into(), schema: Arc::new(Schema::empty()), shape: 1 }
    }

    /// Catches a table whose name leads out of the lake, or into another table's place.
    #[test]
    fn a_table_s_name_stays_one_part_of_the_path() {
        let at = |name: &str| place_of(Path::new("lake/{table}/rows"), name);
        assert_eq!(at("public.orders"), Path::new("lake/public.orders/rows"));
        assert_eq!(at("public.../../etc"), Path::new("lake/public...~2f..~2fetc/rows"));
        assert_eq!(at("..."), Path::new("lake/~2e~2e~2e/rows"));
        let names = ["public.a b", "public.a~20b", "public.a%20b", "public.ä", "public.A", "public.a"];
        let places: std::collections::BTreeSet<_> = names.iter().map(|name| at(name)).collect();
        assert_eq!(places.len(), names.len(), "{places:?}");
    }

    /// Catches two tables whose rows would be mixed in one place; a table that comes back finds its own.
    #[test]
    fn one_place_is_one_table_s() {
        let dir = tempfile::tempdir().expect("a directory");
        let make = destinations(DeltaOptions::new(dir.path().join("orders")));
        make(&spec(1, "public.orders")).expect("the first table");
        make(&spec(1, "public.orders")).expect("the same again");
        let Err(error) = make(&spec(2, "public.lines")) else { panic!("two tables in one place") };
        assert!(error.text.contains("{table}"), "{}", error.text);
        let make = destinations(DeltaOptions::new(dir.path().join("{table}")));
        make(&spec(1, "a.b.c")).expect("schema `a.b`");
        assert!(make(&spec(2, "a.b.c")).is_err(), "schema `a`, table `b.c`");
    }
}
