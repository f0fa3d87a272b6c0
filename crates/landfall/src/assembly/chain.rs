//! `decode` and `sql` of a pipeline as the chain that every driver makes for itself.
//!
//! Compiled once to find every mistake and to know what the query reads; each driver then gets parts of its own.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use landfall_engine::contract::{Decoded, Decoder, EngineError, PlanError, RowErrors, Wanted};
use landfall_engine::{ChainFactory, ChainParts, FilterFactory};
use landfall_sql::{
    ColumnOptions, ColumnText, Framing, JsonDecoder, JsonOptions, RawDecoder, RawForm, Round, Schema, Sql, Unknown,
};

use crate::config::{
    DecodeConfig, Finding, Framing as FramingConfig, JsonConfig, PipelineConfig, QueryText, UnknownFields,
    place_in_file,
};

/// A compiled chain: how to make its parts, and what `check` shows of it.
pub(crate) struct CompiledChain {
    /// Makes the parts.
    pub(crate) factory: ChainFactory,
    /// The steps of the query, for people.
    pub(crate) steps: Vec<String>,
    /// The columns that decoding offers, with their type text; empty for raw bytes.
    pub(crate) schema: Vec<(String, String)>,
    /// The conditions of the sinks, in their order.
    pub(crate) filters: Vec<Option<FilterFactory>>,
}

/// The declared schema.
pub(super) fn declared_schema(json: &JsonConfig) -> Result<Schema, Finding> {
    // One column at a time, so that a wrong type is shown where it stands.
    for column in &json.schema {
        Schema::declare([(column.name.clone(), column_text(column))])
            .map_err(|error| Finding::error(error.code, Some(column.mark), error.text))?;
    }
    Schema::declare(json.schema.iter().map(|column| (column.name.clone(), column_text(column))))
        .map_err(|error| Finding::error(error.code, Some(json.mark), error.text))
}

fn column_text(column: &crate::config::SchemaColumn) -> ColumnText {
    if column.default.is_none() && !column.round {
        return ColumnText::Bare(column.type_text.clone());
    }
    ColumnText::WithOptions(ColumnOptions {
        type_text: column.type_text.clone(),
        default: column.default.as_deref().and_then(|text| serde_json::from_str(text).ok()),
        round: column.round.then_some(Round::HalfEven),
    })
}

/// Compiles the chain of a pipeline. `schema`: of a JSON decoder, declared or inferred; `None` for raw bytes.
pub(super) fn compile(config: &PipelineConfig, schema: Option<Schema>, source: &str) -> Result<CompiledChain, Finding> {
    let json = match &config.decode {
        DecodeConfig::Json(json) => Some(json_options(json)),
        DecodeConfig::Raw => None,
    };
    let columns = schema.as_ref().map(Schema::column_texts).unwrap_or_default();
    let pipeline = config.id.clone();
    let make_decoder = move || -> Box<dyn Decoder> {
        match (&schema, json) {
            (Some(schema), Some(options)) => {
                Box::new(CountedJson::new(JsonDecoder::new(schema.clone(), options), &pipeline))
            }
            _ => Box::new(RawDecoder::new(RawForm::Binary)),
        }
    };
    let everything = Wanted { record_key: true, record_timestamp: true, record_headers: true, ..Wanted::default() };
    let input =
        make_decoder().plan(&everything).map_err(|error| Finding::error(error.code, Some(config.mark), error.text))?;
    let compiled = match &config.sql {
        Some(query) => {
            Some(Sql::default().compile(&query.text, &input).map_err(|error| query_finding(error, query, source))?)
        }
        None => None,
    };
    let steps = compiled.as_ref().map(landfall_sql::CompiledSql::steps).unwrap_or_default();
    let output = compiled.as_ref().map_or(input, landfall_sql::CompiledSql::output);
    let mut wanted = compiled.as_ref().map(landfall_sql::CompiledSql::wanted).unwrap_or_default();
    let mut filters = Vec::with_capacity(config.sinks.len());
    for sink in &config.sinks {
        let filter = sink.filter.as_ref().map(|condition| filter(condition, &output, source)).transpose()?;
        filters.push(filter.map(|(filter, reads)| {
            // Its columns are the query's; what it asks of the record itself, the decoder must bring along.
            wanted.record_key |= reads.record_key;
            wanted.record_timestamp |= reads.record_timestamp;
            wanted.record_headers |= reads.record_headers;
            filter
        }));
    }
    let factory: ChainFactory = Arc::new(move || {
        let transforms = compiled.iter().map(landfall_sql::CompiledSql::into_transform).collect();
        Ok(ChainParts { decoder: make_decoder(), transforms, wanted: wanted.clone() })
    });
    Ok(CompiledChain { factory, steps, schema: columns, filters })
}

/// A JSON decoder whose counts are metrics of its pipeline.
struct CountedJson {
    decoder: JsonDecoder,
    unknown: metrics::Counter,
    duplicates: metrics::Counter,
    /// Already told.
    told: (u64, u64),
}

impl CountedJson {
    fn new(decoder: JsonDecoder, pipeline: &str) -> Self {
        let unknown = metrics::counter!("landfall_unknown_fields_total", "pipeline" => pipeline.to_owned());
        let duplicates = metrics::counter!("landfall_duplicate_fields_total", "pipeline" => pipeline.to_owned());
        CountedJson { decoder, unknown, duplicates, told: (0, 0) }
    }
}

impl Decoder for CountedJson {
    fn plan(&mut self, wanted: &Wanted) -> Result<SchemaRef, PlanError> {
        self.decoder.plan(wanted)
    }

    fn decode(&mut self, records: &RecordBatch, bad: &mut RowErrors) -> Result<Decoded, EngineError> {
        let decoded = self.decoder.decode(records, bad);
        let counters = self.decoder.counters();
        let now = (counters.unknown(), counters.duplicates());
        self.unknown.increment(now.0 - self.told.0);
        self.duplicates.increment(now.1 - self.told.1);
        self.told = now;
        decoded
    }
}

/// A planner's error, shown at its place in the file.
pub(super) fn query_finding(error: PlanError, query: &QueryText, source: &str) -> Finding {
    let mark = place_in_file(source, query, error.span.as_ref());
    Finding::error(error.code, Some(mark), error.text)
}

/// A sink's `where` over the query's columns, and what it reads.
fn filter(query: &QueryText, columns: &SchemaRef, source: &str) -> Result<(FilterFactory, Wanted), Finding> {
    let compiled =
        Sql::default().compile_where(&query.text, columns).map_err(|error| query_finding(error, query, source))?;
    let reads = compiled.wanted();
    Ok((Arc::new(move || Ok(compiled.into_transform())), reads))
}

fn json_options(json: &JsonConfig) -> JsonOptions {
    JsonOptions {
        framing: match json.framing {
            FramingConfig::Single => Framing::Single,
            FramingConfig::Ndjson => Framing::Ndjson,
            FramingConfig::Array => Framing::Array,
        },
        unknown: match json.unknown {
            UnknownFields::Skip => Unknown::Ignore,
            UnknownFields::Count => Unknown::Count,
            UnknownFields::Error => Unknown::Error,
        },
        duplicates_are_errors: json.refuse_duplicates,
        coerce: json.coerce,
    }
}
