//! `decode` and `sql` of a pipeline as the chain that every driver makes for itself.
//!
//! Compiled once to find every mistake and to know what the query reads; each driver then gets parts of its own.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use landfall_engine::contract::{Decoder, PlanError, Wanted};
use landfall_engine::{ChainFactory, ChainParts, FilterFactory};
use landfall_sql::{
    ColumnOptions, ColumnText, Framing, JsonDecoder, JsonOptions, RawDecoder, RawForm, Round, Schema, Sql, Unknown,
};

use crate::config::{
    DecodeConfig, Finding, Framing as FramingConfig, JsonConfig, PipelineConfig, QueryText, place_in_file,
};

/// A compiled chain: how to make its parts, and what `check` shows of it.
pub(crate) struct CompiledChain {
    /// Makes the parts.
    pub(crate) factory: ChainFactory,
    /// The steps of the query, for people.
    pub(crate) steps: Vec<String>,
    /// The query's columns, or the decoder's where there is no query.
    pub(crate) output: SchemaRef,
    /// The columns that decoding offers, with their type text; empty for raw bytes.
    pub(crate) schema: Vec<(String, String)>,
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
    let make_decoder = move || -> Box<dyn Decoder> {
        match (&schema, json) {
            (Some(schema), Some(options)) => Box::new(JsonDecoder::new(schema.clone(), options)),
            _ => Box::new(RawDecoder::new(RawForm::Binary)),
        }
    };
    let everything = Wanted { record_key: true, record_timestamp: true, record_headers: true, ..Wanted::default() };
    let input =
        make_decoder().plan(&everything).map_err(|error| Finding::error(error.code, Some(config.mark), error.text))?;
    let Some(query) = &config.sql else {
        let factory: ChainFactory = Arc::new(move || {
            Ok(ChainParts { decoder: make_decoder(), transforms: Vec::new(), wanted: Wanted::default() })
        });
        return Ok(CompiledChain { factory, steps: Vec::new(), output: input, schema: columns });
    };
    let compiled = Sql::default().compile(&query.text, &input).map_err(|error| query_finding(error, query, source))?;
    let (steps, output) = (compiled.steps(), compiled.output());
    let factory: ChainFactory = Arc::new(move || {
        let transform = compiled.into_transform();
        Ok(ChainParts { decoder: make_decoder(), transforms: vec![transform], wanted: compiled.wanted() })
    });
    Ok(CompiledChain { factory, steps, output, schema: columns })
}

/// A planner's error, shown at its place in the file.
pub(super) fn query_finding(error: PlanError, query: &QueryText, source: &str) -> Finding {
    let mark = place_in_file(source, query, error.span.as_ref());
    Finding::error(error.code, Some(mark), error.text)
}

/// A sink's `where` over the query's columns.
pub(super) fn filter(query: &QueryText, columns: &SchemaRef, source: &str) -> Result<FilterFactory, Finding> {
    let compiled =
        Sql::default().compile_where(&query.text, columns).map_err(|error| query_finding(error, query, source))?;
    Ok(Arc::new(move || Ok(compiled.into_transform())))
}

fn json_options(json: &JsonConfig) -> JsonOptions {
    JsonOptions {
        framing: match json.framing {
            FramingConfig::Single => Framing::Single,
            FramingConfig::Ndjson => Framing::Ndjson,
            FramingConfig::Array => Framing::Array,
        },
        unknown: if json.refuse_unknown { Unknown::Error } else { Unknown::Ignore },
        duplicates_are_errors: json.refuse_duplicates,
        coerce: json.coerce,
    }
}
