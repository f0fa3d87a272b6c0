//! What `check` asks a captured database (P64): the connector's own rules, beside what is stored of the pipeline.
//!
//! Reads only, on the server and in the data directory. Where the directory cannot be read now, what depends on it is
//! left out, and the check says so.

use std::path::Path;
use std::sync::Arc;

use landfall_engine::SourceRecordPlace;
use landfall_engine::contract::PipelineId;
use landfall_postgres::{
    CaptureOptions, CheckOptions, Finding, Level, OptionSet, PostgresCheck, RowPlan, SourceRecord, StartupOptions,
    TableChoice, TableFacts, TableRules, ToastPolicy,
};
use landfall_state::{StateLook, StateReader};
use landfall_types::{Code, Coded};

use super::capture::query_of;
use super::table_query::lost_columns;
use crate::config::{TableConfig, codes};

/// What was found of one pipeline's server.
#[derive(Debug, Default)]
pub(crate) struct ServerCheck {
    /// Every line, errors first.
    pub(crate) findings: Vec<Finding>,
    /// What could not be looked at, and why.
    pub(crate) left_out: Option<String>,
}

impl ServerCheck {
    /// Whether something stands in the way of a start.
    pub(crate) fn has_errors(&self) -> bool {
        self.findings.iter().any(|finding| finding.level == Level::Error)
    }
}

/// The identity that a capture's stored positions are kept under.
pub(crate) fn source_identity(slot: &str) -> String {
    landfall_postgres::identity_of(slot).to_string()
}

/// What is stored of a source.
enum Stored {
    Nothing,
    Record(Box<SourceRecord>),
    /// It cannot be read now.
    Closed(&'static str),
    /// It is there and makes no sense.
    Damaged(Finding),
}

/// Asks.
pub(super) async fn ask(options: &CaptureOptions, tables: &[TableConfig], data_dir: &Path) -> ServerCheck {
    let stored = stored(options, data_dir);
    let record = match &stored {
        Stored::Record(record) => Some(record.as_ref()),
        Stored::Nothing | Stored::Closed(_) | Stored::Damaged(_) => None,
    };
    let of_rules = check_options(options);
    let mut findings = match PostgresCheck::read(&options.connect, &of_rules, record).await {
        Ok(mut facts) => {
            if matches!(stored, Stored::Closed(_) | Stored::Damaged(_)) {
                // Without the record nobody can say whose the slot is.
                facts.slot = None;
            }
            let mut findings = facts.findings(&of_rules, record);
            findings.extend(facts.tables.tables.iter().filter_map(|table| lost_key(table, options, tables)));
            findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
            findings
        }
        Err(error) => vec![Finding::of_connection(&error, &options.connect)],
    };
    let mut left_out = None;
    match stored {
        Stored::Damaged(finding) => findings.insert(0, finding),
        Stored::Closed(why) => {
            findings.retain(|finding| !finding.text.starts_with(&format!("slot `{}` will be created", options.slot)));
            left_out = Some(format!("pipeline {}: the slot against the stored position ({why})", options.pipeline));
        }
        Stored::Nothing | Stored::Record(_) => {}
    }
    ServerCheck { findings, left_out }
}

/// A query that takes away what its table's rows are known by: the changes land, and no current state follows from them
/// (`docs/current-state.md`).
fn lost_key(table: &TableFacts, options: &CaptureOptions, tables: &[TableConfig]) -> Option<Finding> {
    let name = &table.shape.name;
    let query = query_of(tables, &name.to_string())?;
    let choice = options.tables.iter().find(|choice| choice.pattern.matches(&name.schema, &name.table))?;
    // A table or a query that does not fit is said by the plan.
    let plan = RowPlan::new(Arc::new(table.shape.clone()), choice.rows.clone()).ok()?;
    let key = table.shape.key().filter_map(|at| table.shape.columns.get(at)).map(|column| &*column.name);
    let lost = lost_columns(query, plan.schema(), key).ok()?;
    let columns = match lost.as_slice() {
        [] => return None,
        columns => columns.join(", "),
    };
    Some(Finding {
        level: Level::Warn,
        code: Some(codes::CONTRADICTION),
        text: format!(
            "the `sql` of {name} does not hand on columns of its key ({columns}): no current state can be told from what lands"
        ),
        fix: None,
        help: Some(format!("select {columns} under its own name, unless only the history of changes is wanted")),
    })
}

/// What the rules are asked with: a Delta table holds the history of changes, so rows are only ever added to it.
fn check_options(options: &CaptureOptions) -> CheckOptions {
    let rules = |choice: &TableChoice| TableRules {
        toast: ToastPolicy::RequireFull,
        is_append: true,
        key: Vec::new(),
        columns: choice.rows.columns.keys().cloned().collect(),
    };
    CheckOptions {
        startup: StartupOptions {
            pipeline: options.pipeline.clone(),
            slot: options.slot.clone(),
            creates_slot: options.creates_slot,
            adopts_slot: options.adopts_slot,
            copies: options.copies,
            creates_publication: options.creates_publication,
            row_options: OptionSet {
                publications: vec![options.publication.clone()],
                origin: options.origin.clone(),
                messages: false,
            },
        },
        publication: options.publication.clone(),
        tables: options.tables.iter().map(|choice| (choice.pattern.clone(), rules(choice))).collect(),
        application_name: options.connect.application_name.clone(),
    }
}

fn stored(options: &CaptureOptions, data_dir: &Path) -> Stored {
    let damaged = |code: Code, text: String| {
        let text = text.strip_suffix(&format!(" ({code})")).map_or(text.clone(), str::to_owned);
        Stored::Damaged(Finding { level: Level::Error, code: Some(code), text, fix: None, help: None })
    };
    let reader = match StateReader::look(data_dir) {
        Ok(StateLook::Absent) => return Stored::Nothing,
        Ok(StateLook::InUse) => return Stored::Closed("a process runs on the data directory; its /v1/status shows it"),
        Ok(StateLook::NeedsRecovery) => {
            return Stored::Closed("the last process was killed; the next start recovers it");
        }
        Ok(StateLook::Readable(reader)) => reader,
        Err(error) => return damaged(error.code(), error.to_string()),
    };
    let place = SourceRecordPlace::of(&PipelineId(options.pipeline.clone()), &source_identity(&options.slot));
    match reader.read(place.table, &place.key) {
        Ok(None) => Stored::Nothing,
        Ok(Some(bytes)) => match SourceRecord::decode(&bytes) {
            Ok(record) => Stored::Record(Box::new(record)),
            Err(error) => damaged(error.code(), error.to_string()),
        },
        Err(error) => damaged(error.code(), error.to_string()),
    }
}
