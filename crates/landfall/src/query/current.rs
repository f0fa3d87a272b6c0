//! The current state of a table of change rows: what the source's table held below a position (`docs/current-state.md`).
//!
//! One SQL text says it, for `landfall query --current`, for `landfall verify` and for any other reader of the table. A
//! copy replaces everything before it, a truncate empties what is before it, and of what is left the last change of
//! each key decides, in the order of commits (P92). Nothing depends on the order of files or rows.

use arrow_schema::Schema;
use landfall_types::{Code, Coded, Kind, Retry};

use crate::config::codes;

/// Columns that say what a change is; a table without them is no table of change rows.
const CHANGE_COLUMNS: &[&str] = &["_op", "_commit_lsn", "_seq"];

/// How a table is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CurrentState {
    /// The columns of its key.
    pub(crate) key: Vec<String>,
    /// Only commits below this position count; all if unset.
    pub(crate) below: Option<u64>,
}

/// A table that has no current state.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CurrentStateError {
    /// It has no change rows.
    #[error(
        "table `{table}` has no column `{column}`: only tables that a change source fills have a current state ({})",
        codes::ARGUMENT
    )]
    NotOfChanges {
        /// The table.
        table: String,
        /// What it lacks.
        column: &'static str,
    },
    /// Its key is not one of its columns.
    #[error("table `{table}` has no column `{column}` to be its key; its columns: {columns} ({})", codes::ARGUMENT)]
    KeyNotThere {
        /// The table.
        table: String,
        /// What was asked for.
        column: String,
        /// What there is.
        columns: String,
    },
    /// A key of nothing.
    #[error(
        "the current state of table `{table}` needs the columns of its key: `--current {table}=id` ({})",
        codes::ARGUMENT
    )]
    KeyMissing {
        /// The table.
        table: String,
    },
}

impl Coded for CurrentStateError {
    fn code(&self) -> Code {
        codes::ARGUMENT
    }

    fn kind(&self) -> Kind {
        Kind::Invalid
    }

    fn retry(&self) -> Retry {
        Retry::Never
    }
}

impl CurrentState {
    /// The query that gives it, over the change rows of the table named `changes`.
    pub(crate) fn sql(&self, table: &str, changes: &str, schema: &Schema) -> Result<String, CurrentStateError> {
        if self.key.is_empty() {
            return Err(CurrentStateError::KeyMissing { table: table.to_owned() });
        }
        if let Some(column) = CHANGE_COLUMNS.iter().find(|column| schema.index_of(column).is_err()) {
            return Err(CurrentStateError::NotOfChanges { table: table.to_owned(), column });
        }
        if let Some(column) = self.key.iter().find(|column| schema.index_of(column).is_err()) {
            let columns = schema.fields().iter().map(|field| field.name().as_str()).take(64).collect::<Vec<_>>();
            return Err(CurrentStateError::KeyNotThere {
                table: table.to_owned(),
                column: column.clone(),
                columns: columns.join(", "),
            });
        }
        let changes = quoted(changes);
        let key = self.key.iter().map(|column| format!("c.{}", quoted(column))).collect::<Vec<_>>().join(", ");
        let columns = schema.fields().iter().map(|field| quoted(field.name())).collect::<Vec<_>>().join(", ");
        // A position is far below the largest bigint: it counts bytes of log.
        let below = |alias: &str| self.below.map_or(String::new(), |lsn| format!(" AND {alias}_commit_lsn < {lsn}"));
        let (below, below_c) = (below(""), below("c."));
        Ok(format!(
            "WITH copied AS (
               SELECT coalesce(max(_commit_lsn), 0) AS lsn FROM {changes} WHERE _op = 's'{below}
             ), emptied AS (
               SELECT _commit_lsn AS lsn, _seq AS seq FROM {changes} WHERE _op = 't'{below}
               ORDER BY _commit_lsn DESC, _seq DESC LIMIT 1
             ), ranked AS (
               SELECT c.*, row_number() OVER (PARTITION BY {key} ORDER BY c._commit_lsn DESC, c._seq DESC) AS __newest
               FROM {changes} c CROSS JOIN copied LEFT JOIN emptied ON true
               WHERE c._op <> 't'{below_c} AND c._commit_lsn >= copied.lsn
                 AND (emptied.lsn IS NULL OR c._commit_lsn > emptied.lsn
                      OR (c._commit_lsn = emptied.lsn AND c._seq > emptied.seq))
             )
             SELECT {columns} FROM ranked WHERE __newest = 1 AND _op <> 'd'"
        ))
    }
}

/// A name as it is, whatever is in it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests;
