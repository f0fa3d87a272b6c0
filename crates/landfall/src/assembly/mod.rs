//! From a configuration to running parts: the one build path of `run`, `check`, `demo` and the benches.
//!
//! Nothing is started before everything was planned: a query that does not compile or a table that does not fit is
//! found before the first file is made (I14). Parts know nothing of each other but by handles; this is the only
//! place that knows them all.

pub(crate) mod capture;
mod capture_check;
mod chain;
mod channel_options;
mod directory;
mod inference;
mod pipelines;
mod plan;
mod running;
mod server_options;
mod sinks;
mod slot;
mod slot_tables;
mod storage;
mod table_query;
pub(crate) mod table_sinks;

use landfall_types::CodePage;

pub(crate) use capture_check::source_identity;
pub(crate) use plan::{CheckPlan, MemoryPlan, Options as PlanOptions, plan};
pub(crate) use running::{ConfigText, Running, ShutdownReport};
pub(crate) use storage::Storage;

/// How the chain of a pipeline with a declared schema is made, for benches that compute what would land.
pub(crate) fn chain_of(
    pipeline: &crate::config::PipelineConfig,
    source: &str,
) -> Result<landfall_engine::ChainFactory, crate::config::Finding> {
    let schema = match pipelines::schema_of(pipeline)? {
        pipelines::DecodeSchema::Declared(schema) => Some(schema),
        pipelines::DecodeSchema::None | pipelines::DecodeSchema::Inferred => None,
    };
    Ok(chain::compile(pipeline, schema, source)?.factory)
}

/// The code pages of every crate in this binary.
pub(crate) fn code_pages() -> Vec<&'static [CodePage]> {
    vec![
        crate::config::CODES,
        landfall_state::CODES,
        landfall_log::CODES,
        landfall_channel::CODES,
        landfall_protocol::CODES,
        landfall_client::CODES,
        landfall_server::CODES,
        landfall_engine::CODES,
        landfall_sql::CODES,
        landfall_delta::CODES,
        landfall_files::CODES,
        landfall_postgres::CODES,
        landfall_postgres::STREAM_CODES,
        landfall_postgres::ROW_CODES,
    ]
}
