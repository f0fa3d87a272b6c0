//! What `check` says of a Postgres source (P64): each line a finding with the exact statement that mends it.
//!
//! The rules are functions of facts; [`PostgresCheck::read`] gathers the facts over an SQL connection and a
//! replication connection, and reads only. A finding names the thing, the value and the fix; nothing is changed on the server.

mod choices;
mod read;
mod server;
mod tables;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use landfall_types::Code;

pub(crate) use choices::{Choice, nearest_tables, unused};

use crate::catalog::{MatchedTables, ServerFacts, TablePattern};
use crate::publication::{PublicationFacts, PublicationPlan};
use crate::record::SourceRecord;
use crate::slot::SlotFacts;
use crate::startup::StartupOptions;
use crate::{Lsn, TableName};

/// How much a finding weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// To know.
    Info,
    /// It works and may hurt later.
    Warn,
    /// It does not work.
    Error,
}

/// One line of `check`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// How much it weighs.
    pub level: Level,
    /// Its code; none where all is well.
    pub code: Option<Code>,
    /// What is found, with the value.
    pub text: String,
    /// The statements that mend it.
    pub fix: Option<String>,
    /// What to do where no statement helps, or besides it.
    pub help: Option<String>,
}

impl Finding {
    pub(crate) fn ok(text: impl Into<String>) -> Self {
        Finding { level: Level::Ok, code: None, text: text.into(), fix: None, help: None }
    }

    pub(crate) fn info(text: impl Into<String>) -> Self {
        Finding { level: Level::Info, code: None, text: text.into(), fix: None, help: None }
    }

    pub(crate) fn warn(code: Code, text: impl Into<String>) -> Self {
        Finding { level: Level::Warn, code: Some(code), text: text.into(), fix: None, help: None }
    }

    pub(crate) fn error(code: Code, text: impl Into<String>) -> Self {
        Finding { level: Level::Error, code: Some(code), text: text.into(), fix: None, help: None }
    }

    pub(crate) fn fix(mut self, sql: impl Into<String>) -> Self {
        self.fix = Some(sql.into());
        self
    }

    pub(crate) fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        };
        write!(f, "{level}: {}", self.text)?;
        if let Some(code) = self.code {
            write!(f, " ({code})")?;
        }
        for more in [&self.fix, &self.help].into_iter().flatten() {
            write!(f, "\n    {more}")?;
        }
        Ok(())
    }
}

/// How large values that an update leaves out are met (`toast`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ToastPolicy {
    /// Each table with such columns needs identity FULL.
    #[default]
    RequireFull,
    /// The target reads its old row.
    Merge,
}

/// What a table's configuration asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableRules {
    /// `toast`.
    pub toast: ToastPolicy,
    /// `mode: append`: rows are added, never replaced.
    pub is_append: bool,
    /// `key`: columns that name a row where the table does not say.
    pub key: Vec<Arc<str>>,
    /// `columns`: those with policies of their own.
    pub columns: Vec<Arc<str>>,
}

/// What the rules look at besides the server.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// As for the start.
    pub startup: StartupOptions,
    /// The publication's name.
    pub publication: String,
    /// `tables`: what is meant, and how it is to be carried. The first pattern that matches a table rules it.
    pub tables: Vec<(TablePattern, TableRules)>,
    /// What `application_name` the connections have.
    pub application_name: String,
}

/// All facts that the rules look at.
#[derive(Clone, Debug)]
pub struct PostgresCheck {
    /// The server.
    pub server: ServerFacts,
    /// What the patterns mean.
    pub tables: MatchedTables,
    /// The publication as it is.
    pub publication: Option<PublicationFacts>,
    /// What it lacks.
    pub plan: PublicationPlan,
    /// The configured slot.
    pub slot: Option<SlotFacts>,
    /// Where the server left the record's timeline, if it has another now.
    pub switch_point: Option<Lsn>,
    /// Whether this role may make a publication in this database.
    pub may_create: bool,
    /// Tables that the publication lacks and that this role does not own, so that it may not add them.
    pub not_owned: Vec<TableName>,
    /// Why a replication connection does not come about, with its code; none where it does.
    pub replication_refused: Option<(Code, String)>,
    /// Slots of this database that look like ours and are not the configured one, with the log that they hold.
    pub left_behind: Vec<(String, Option<u64>)>,
    /// The tables with names like those that patterns mean and that are not there, by the pattern's place.
    pub near: BTreeMap<usize, TableName>,
    /// Physical slots, by which standbys follow this server.
    pub physical_slots: Vec<String>,
}

impl PostgresCheck {
    /// All findings, errors first, then in the order of the list.
    pub fn findings(&self, options: &CheckOptions, record: Option<&SourceRecord>) -> Vec<Finding> {
        let mut findings = Vec::new();
        server::rules(self, options, &mut findings);
        tables::rules(self, options, record, &mut findings);
        server::slot_rules(self, options, record, &mut findings);
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        findings
    }
}
