//! The codes `LF-DT…`, their pages, and the one error of this crate that becomes a plan error or a sink error.
//!
//! Every error knows who has to act: the class of [`DeltaError::into_sink`] follows from the variant, never from
//! a text (E117, I3).

use std::time::Duration;

use landfall_engine::contract::{PlanError, SinkError};
use landfall_types::{Code, CodePage, Coded, Kind, Retry};

pub(crate) const OPTION: Code = Code::new("DT", 1);
pub(crate) const TYPE: Code = Code::new("DT", 2);
pub(crate) const NAME: Code = Code::new("DT", 3);
pub(crate) const FEATURE: Code = Code::new("DT", 4);
pub(crate) const SCHEMA: Code = Code::new("DT", 5);
pub(crate) const MISSING: Code = Code::new("DT", 6);
pub(crate) const UNAVAILABLE: Code = Code::new("DT", 7);
pub(crate) const SUPERSEDED: Code = Code::new("DT", 8);
pub(crate) const GROUP_LOST: Code = Code::new("DT", 9);
pub(crate) const CONFLICTS: Code = Code::new("DT", 10);
pub(crate) const UNREADABLE: Code = Code::new("DT", 11);
pub(crate) const REPLACED: Code = Code::new("DT", 12);
pub(crate) const PLACE: Code = Code::new("DT", 13);
pub(crate) const RETENTION: Code = Code::new("DT", 14);
pub(crate) const HOUSEKEEPING: Code = Code::new("DT", 15);
pub(crate) const NOT_LISTABLE: Code = Code::new("DT", 16);

/// Codes that say that a table's columns have no place in its destination: waiting mends nothing, only a person does.
pub const SHAPE_REFUSALS: [Code; 3] = [TYPE, NAME, SCHEMA];

const fn page(
    code: Code,
    name: &'static str,
    kind: Kind,
    retry: Retry,
    meaning: &'static str,
    help: &'static str,
) -> CodePage {
    CodePage { code, name, kind, retry, meaning, help }
}

/// The pages of this crate's codes, for `landfall explain`.
pub const CODES: &[CodePage] = &[
    page(
        OPTION,
        "DeltaOptionOutOfBounds",
        Kind::Invalid,
        Retry::Never,
        "An option of the Delta sink is out of its bounds, or a table property is one that Landfall does not set.",
        "The message names the option, its value and its bounds. Change the configuration.",
    ),
    page(
        TYPE,
        "DeltaTypeUnsupported",
        Kind::Invalid,
        Retry::Never,
        "A column of the query has a type that a Delta table cannot hold without changing values.",
        "Cast the column in the query as the message shows.",
    ),
    page(
        NAME,
        "DeltaColumnName",
        Kind::Invalid,
        Retry::Never,
        "A column's name has a character that Delta forbids, or differs from another only by case.",
        "Give the column the alias that the message shows.",
    ),
    page(
        FEATURE,
        "DeltaFeatureUnsupported",
        Kind::Conflict,
        Retry::Later,
        "The table uses a protocol version or a table feature that asks something of every writer which this one does not do.",
        "Write to another table, or drop the feature from the table. Nothing was written.",
    ),
    page(
        SCHEMA,
        "DeltaSchemaMismatch",
        Kind::Conflict,
        Retry::Later,
        "The query and the existing table do not fit each other. Nothing is skipped: the sink waits for a table or a query that fits.",
        "The message lists each difference with the ALTER TABLE or the SQL that solves it.",
    ),
    page(
        MISSING,
        "DeltaTableMissing",
        Kind::Unavailable,
        Retry::Later,
        "There is no table at the path and `create` is off, or one that the pipeline has landed rows in is gone. Rows wait; none is dropped.",
        "Create the table, set `create: true`, or put back what is gone (an unmounted disk). A table that appears is used without a restart. To fill a new one from the start, give the pipeline a new `id`.",
    ),
    page(
        UNAVAILABLE,
        "DeltaStoreUnavailable",
        Kind::Unavailable,
        Retry::Later,
        "Reading or writing the table's files failed: a full disk, missing rights, or a store that does not answer.",
        "Mend what the message names. The same rows are tried again; a commit that got in is recognised by its position.",
    ),
    page(
        SUPERSEDED,
        "DeltaAnotherWriter",
        Kind::Conflict,
        Retry::Now,
        "The table's position of a partition is not the one this writer left: another process writes under the same pipeline id, or the partition was read anew.",
        "The partitions restart from the table's positions, so no row is written twice. Make sure that only one process runs a pipeline id against a table.",
    ),
    page(
        GROUP_LOST,
        "DeltaGroupLost",
        Kind::Unavailable,
        Retry::Now,
        "Data files of a group that was not committed yet could not be completed. None of them is in the table.",
        "Nothing: the rows are read and written again from the last committed positions. Look at the cause if it repeats.",
    ),
    page(
        CONFLICTS,
        "DeltaCommitConflicts",
        Kind::Unavailable,
        Retry::Later,
        "Other writers took the next version of the table `commit_retries` times in a row.",
        "It is tried again. Commit less often on either side (`commit_every`), or raise `commit_retries`.",
    ),
    page(
        UNREADABLE,
        "DeltaTableUnreadable",
        Kind::Conflict,
        Retry::Later,
        "The table's log cannot be read: a broken commit or checkpoint, or a form that is not understood.",
        "Read the table with another tool to see whether its log is damaged. Nothing was written or deleted.",
    ),
    page(
        REPLACED,
        "DeltaTableReplaced",
        Kind::Conflict,
        Retry::Later,
        "The table at the path is not the one that the pipeline was opened with: its id differs.",
        "Restart the pipeline to judge the new table. Positions are never carried over to another table.",
    ),
    page(
        PLACE,
        "DeltaPlaceUnsupported",
        Kind::Internal,
        Retry::Never,
        "A source position cannot be kept as a transaction version of a Delta table.",
        "Only record sources (channel, Kafka) can be landed by this version of the sink.",
    ),
    page(
        RETENTION,
        "DeltaTransactionRetention",
        Kind::Conflict,
        Retry::Later,
        "`delta.setTransactionRetentionDuration` of the table is below 30 days: positions would be forgotten and rows written twice.",
        "Unset the property or raise it: ALTER TABLE … UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration').",
    ),
    page(
        HOUSEKEEPING,
        "DeltaHousekeepingFailed",
        Kind::Unavailable,
        Retry::Later,
        "Writing a checkpoint of the table's log failed. Commits are not touched by it; reading the table gets slower.",
        "Look at the cause if it repeats; the next checkpoint is tried after `checkpoint_every` commits.",
    ),
    page(
        NOT_LISTABLE,
        "DeltaFilesNotListable",
        Kind::Invalid,
        Retry::Never,
        "The table has deletion vectors or mapped columns, so its data files alone do not say which rows it holds.",
        "Query the table with a tool that applies them.",
    ),
];

/// What can go wrong with a table.
#[derive(Debug, thiserror::Error)]
pub enum DeltaError {
    /// An option is out of bounds.
    #[error("{text}")]
    Option {
        /// Names option, value and bound.
        text: String,
    },
    /// A column's type has no place in a Delta table.
    #[error("{text}")]
    Type {
        /// Names the column and the cast.
        text: String,
    },
    /// A column's name is not allowed.
    #[error("{text}")]
    Name {
        /// Names the column and the alias.
        text: String,
    },
    /// The table asks more of a writer than this one does.
    #[error("{text}")]
    Feature {
        /// Names the feature or version.
        text: String,
    },
    /// Query and table do not fit.
    #[error("{text}")]
    Schema {
        /// The differences with what solves them.
        text: String,
    },
    /// No table, and it is not to be created.
    #[error("there is no Delta table at `{path}` and `create` is false: create it, or set `create: true`")]
    Missing {
        /// Where it was looked for.
        path: String,
    },
    /// No table, and positions of one are stored.
    #[error(
        "the Delta table {id} is gone from `{path}`, and the pipeline has landed rows in it: put it back (is the disk \
         mounted?), or give the pipeline a new `id` to fill a new table from the start"
    )]
    Gone {
        /// Where it was.
        path: String,
        /// Its id.
        id: String,
    },
    /// The store failed.
    #[error("{doing}: {cause}")]
    Unavailable {
        /// What was tried.
        doing: String,
        /// The store's words.
        cause: String,
    },
    /// The log cannot be understood.
    #[error("{doing}: {cause}")]
    Unreadable {
        /// What was read.
        doing: String,
        /// What is wrong with it.
        cause: String,
    },
    /// Another table lies at the path.
    #[error(
        "the table at `{path}` has id {found}, the pipeline was opened with {expected}: restart the pipeline to use it"
    )]
    Replaced {
        /// The path.
        path: String,
        /// The id at open.
        expected: String,
        /// The id now.
        found: String,
    },
    /// A place that is no transaction version.
    #[error("{text}")]
    Place {
        /// Names partition and place.
        text: String,
    },
    /// Positions would be forgotten too soon.
    #[error("{text}")]
    Retention {
        /// Names the property and its value.
        text: String,
    },
    /// The version was taken by others again and again.
    #[error("other writers took the next version of `{path}` {tries} times in a row (`commit_retries` is {tries})")]
    Conflicts {
        /// The path.
        path: String,
        /// How often.
        tries: u32,
    },
    /// The data files do not tell the rows.
    #[error("{text}")]
    NotListable {
        /// Why.
        text: String,
    },
}

impl DeltaError {
    pub(crate) fn unavailable(doing: impl Into<String>, cause: impl std::fmt::Display) -> Self {
        DeltaError::Unavailable { doing: doing.into(), cause: in_one_line(cause) }
    }

    pub(crate) fn unreadable(doing: impl Into<String>, cause: impl std::fmt::Display) -> Self {
        DeltaError::Unreadable { doing: doing.into(), cause: in_one_line(cause) }
    }

    /// The same as a plan error.
    pub(crate) fn into_plan(self) -> PlanError {
        PlanError::new(self.code(), self.to_string())
    }

    /// The same as a sink error: the variant decides the class.
    pub(crate) fn into_sink(self) -> SinkError {
        let (code, text) = (self.code(), self.to_string());
        match self {
            DeltaError::Unavailable { .. } => SinkError::Later { code, after: None, text },
            DeltaError::Conflicts { .. } => SinkError::Later { code, after: Some(Duration::from_secs(1)), text },
            _ => SinkError::Destination { code, text },
        }
    }
}

/// The library's words as one line: some of its errors bring a backtrace along, which is for its developers and not for
/// a status or a log line.
fn in_one_line(cause: impl std::fmt::Display) -> String {
    const CHARS_MAX: usize = 1_024;
    let is_frame = |line: &&str| {
        let number = line.split_once(':').map_or("", |(number, _)| number);
        let is_numbered = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_numbered || line.to_ascii_lowercase().trim_end_matches(':').ends_with("backtrace")
    };
    let text = cause.to_string();
    let words = text.lines().map(str::trim).take_while(|line| !is_frame(line)).filter(|line| !line.is_empty());
    words.collect::<Vec<_>>().join(" ").chars().take(CHARS_MAX).collect()
}

impl Coded for DeltaError {
    fn code(&self) -> Code {
        match self {
            DeltaError::Option { .. } => OPTION,
            DeltaError::Type { .. } => TYPE,
            DeltaError::Name { .. } => NAME,
            DeltaError::Feature { .. } => FEATURE,
            DeltaError::Schema { .. } => SCHEMA,
            DeltaError::Missing { .. } | DeltaError::Gone { .. } => MISSING,
            DeltaError::Unavailable { .. } => UNAVAILABLE,
            DeltaError::Unreadable { .. } => UNREADABLE,
            DeltaError::Replaced { .. } => REPLACED,
            DeltaError::Place { .. } => PLACE,
            DeltaError::Retention { .. } => RETENTION,
            DeltaError::Conflicts { .. } => CONFLICTS,
            DeltaError::NotListable { .. } => NOT_LISTABLE,
        }
    }

    fn kind(&self) -> Kind {
        CODES.iter().find(|page| page.code == self.code()).map_or(Kind::Internal, |page| page.kind)
    }

    fn retry(&self) -> Retry {
        CODES.iter().find(|page| page.code == self.code()).map_or(Retry::Never, |page| page.retry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a cause that fills a status with the frames of a library's backtrace, or loses the words before them.
    #[test]
    fn a_cause_is_one_line_without_a_backtrace() {
        let said =
            "Invalid log:\n  line 3 is no JSON\n\n   0: kernel::error\n             at /src/error.rs:12\n   1: main\n";
        let error = DeltaError::unreadable("reading the log of `t`", said);
        assert_eq!(error.to_string(), "reading the log of `t`: Invalid log: line 3 is no JSON");
        for marker in ["Backtrace:", "stack backtrace:", "disabled backtrace"] {
            let error = DeltaError::unavailable("writing", format!("no room\n{marker}\n   0: x"));
            assert_eq!(error.to_string(), "writing: no room");
        }
        assert_eq!(DeltaError::unavailable("a", "x".repeat(5_000)).to_string().len(), 3 + 1_024);
    }
}
