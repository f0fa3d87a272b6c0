//! The plan of a pipeline: what `check` prints, made by the path of `start` without side effects (E6, E95).

use std::sync::Arc;

use arrow_schema::SchemaRef;
use serde::Serialize;

use super::{Parts, Pipeline, TableParts};
use crate::chain::{ChainFactory, Stages};
use crate::contract::{PipelineId, PlanCx, PlanError, Sink, Source, SourcePlan, SourceProfile, TableSpec, is_hidden};

/// A column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ColumnPlan {
    /// Its name.
    pub name: String,
    /// Its Arrow type.
    pub data_type: String,
    /// Whether it may be null.
    pub nullable: bool,
}

/// A term of the memory bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryTerm {
    /// What it is for.
    pub what: String,
    /// Its bytes.
    pub bytes: u64,
}

/// The path to one sink.
#[derive(Clone, Debug, Serialize)]
pub struct SinkPath {
    /// Its name.
    pub name: String,
    /// "exactly once" or "at least once".
    pub guarantee: &'static str,
    /// Why, in one sentence.
    pub why: String,
    /// The columns that reach it.
    pub columns: Vec<ColumnPlan>,
    /// What will be created, what is missing.
    pub notes: Vec<String>,
}

/// A table of a change source.
#[derive(Clone, Debug, Serialize)]
pub struct TablePath {
    /// Its name.
    pub name: String,
    /// What comes out of its chain, without the hidden columns.
    pub columns: Vec<ColumnPlan>,
    /// Its destinations.
    pub sinks: Vec<SinkPath>,
}

/// What a pipeline would do.
#[derive(Clone, Debug, Serialize)]
pub struct PipelinePlan {
    /// The pipeline.
    pub id: PipelineId,
    /// The source's kind.
    pub source: &'static str,
    /// The source's identity.
    pub identity: String,
    /// Its partitions as known now.
    pub partitions: usize,
    /// Driver threads.
    pub threads: usize,
    /// The source's own notes.
    pub notes: Vec<String>,
    /// The query's columns, without the hidden ones.
    pub columns: Vec<ColumnPlan>,
    /// Its sinks.
    pub sinks: Vec<SinkPath>,
    /// Of a change source, the tables as known now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TablePath>,
    /// The terms of the worst case (E95).
    pub memory: Vec<MemoryTerm>,
    /// Their sum.
    pub memory_bytes: u64,
}

fn columns(schema: &arrow_schema::SchemaRef) -> Vec<ColumnPlan> {
    schema
        .fields()
        .iter()
        .filter(|field| !is_hidden(field.name()))
        .map(|field| ColumnPlan {
            name: field.name().clone(),
            data_type: field.data_type().to_string(),
            nullable: field.is_nullable(),
        })
        .collect()
}

async fn path(name: &str, sink: &Arc<dyn Sink>, rows: &SchemaRef, cx: &PlanCx) -> Result<SinkPath, PlanError> {
    let plan = sink.plan(rows, cx).await?;
    crate::chain::Conform::plan(rows, &plan.schema, name)?;
    let guarantee = sink.guarantee();
    Ok(SinkPath {
        name: name.to_owned(),
        guarantee: guarantee.as_str(),
        why: guarantee.why(),
        columns: columns(&plan.schema),
        notes: plan.notes,
    })
}

impl<S: Source + 'static> Pipeline<S> {
    /// Every check of `start`, and what would be done. `online`: peers may be asked.
    pub fn plan(&self, online: bool) -> impl Future<Output = Result<PipelinePlan, PlanError>> + Send + '_ {
        // The source is asked before the first await: it belongs to one thread at a time.
        let source = self.source.plan().map(|plan| (self.source.profile(), plan));
        let parts = &self.parts;
        async move {
            let (profile, source) = source?;
            parts.plan(profile, source, online).await
        }
    }
}

impl Parts {
    async fn plan(&self, profile: SourceProfile, source: SourcePlan, online: bool) -> Result<PipelinePlan, PlanError> {
        let schemas = self.check()?;
        let cx = PlanCx { pipeline: self.id.clone(), source: profile.identity.clone(), online };
        let mut sinks = Vec::with_capacity(self.sinks.len());
        for (part, rows) in self.sinks.iter().zip(&schemas.sinks) {
            sinks.push(path(&part.name, &part.sink, rows, &cx).await?);
        }
        let mut tables = Vec::with_capacity(source.tables.len());
        for spec in &source.tables {
            tables.push(self.table(spec, &cx).await?);
        }
        let partitions = source.partitions.len();
        let threads = self.threads(partitions);
        let memory = self.memory(partitions, tables.len(), threads);
        Ok(PipelinePlan {
            id: self.id.clone(),
            source: profile.kind,
            identity: profile.identity,
            partitions,
            threads,
            notes: source.notes,
            columns: columns(&schemas.query),
            sinks,
            tables,
            memory_bytes: memory.iter().map(|term| term.bytes).sum(),
            memory,
        })
    }

    async fn table(&self, spec: &TableSpec, cx: &PlanCx) -> Result<TablePath, PlanError> {
        let parts = self.tables.as_ref().ok_or_else(|| {
            let text = format!("the source has tables, but pipeline `{}` has a chain for records", self.id);
            PlanError::new(crate::codes::PLAN, text)
        })?;
        let (make, of_chain) = (parts.chain.clone(), spec.clone());
        let factory: ChainFactory = Arc::new(move || make(&of_chain));
        let filters = parts.sinks.iter().map(|part| part.options.filter.clone());
        let schemas = Stages::plan(&factory, filters)?.schemas();
        let mut sinks = Vec::with_capacity(parts.sinks.len());
        for (part, rows) in parts.sinks.iter().zip(&schemas.sinks) {
            let sink = (part.factory)(spec)?;
            sinks.push(path(&part.name, &sink, rows, cx).await?);
        }
        Ok(TablePath { name: spec.name.to_string(), columns: columns(&schemas.query), sinks })
    }

    fn memory(&self, partitions: usize, tables: usize, threads: usize) -> Vec<MemoryTerm> {
        const LETTERS_BYTES: u64 = 16 << 20;
        let (partitions_u64, threads) = (partitions as u64, threads as u64);
        let mut terms = Vec::new();
        let mut term = |what: String, bytes: u64| terms.push(MemoryTerm { what, bytes });
        for part in &self.sinks {
            let shards = u64::from(part.options.shards);
            let share = part.options.share_bytes(&self.options);
            term(format!("sink {}: queue and batches", part.name), shards * share);
            term(format!("sink {}: writer", part.name), shards * part.sink.writer_bytes());
            let chunks = threads * shards * 2 * part.options.chunk_target_bytes.get();
            term(format!("sink {}: chunks that grow", part.name), chunks);
        }
        let poll = self.options.poll_max_bytes.get();
        if let Some(parts) = &self.tables {
            let parts = TableParts { known: tables, ..parts.clone() }.shrunk(self);
            for part in &parts.sinks {
                let share = part.options.share_bytes(&self.options) * tables as u64;
                term(format!("sink {}: queues and batches of {tables} tables", part.name), share);
            }
        }
        let lanes = partitions_u64 * poll * (1 + u64::from(self.options.decode_growth));
        term("lanes: polled batches, decoded".to_owned(), lanes);
        term("dead letters on their way".to_owned(), LETTERS_BYTES);
        let slots = self.ring_slots(partitions) as u64;
        term("rings".to_owned(), partitions_u64 * slots * (96 + (self.sink_names().count() as u64 + 1) * 32));
        terms
    }
}
