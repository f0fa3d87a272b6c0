//! The codes `LF-FI…`, their pages, and the error that becomes a plan error or a sink error.

use landfall_engine::contract::{PlanError, SinkError};
use landfall_types::{Code, CodePage, Coded, Kind, Retry};

pub(crate) const OPTION: Code = Code::new("FI", 1);
pub(crate) const TYPE: Code = Code::new("FI", 2);
pub(crate) const UNAVAILABLE: Code = Code::new("FI", 3);
pub(crate) const IN_USE: Code = Code::new("FI", 4);
pub(crate) const LEDGER: Code = Code::new("FI", 5);
pub(crate) const NAME_TAKEN: Code = Code::new("FI", 6);
pub(crate) const GROUP_LOST: Code = Code::new("FI", 7);
pub(crate) const SUPERSEDED: Code = Code::new("FI", 8);
pub(crate) const GONE: Code = Code::new("FI", 9);

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
        "FilesOption",
        Kind::Invalid,
        Retry::Never,
        "An option of the files sink is out of its bounds or does not go with another.",
        "The message names the option, its value and its bounds. Change the configuration.",
    ),
    page(
        TYPE,
        "FilesTypeUnsupported",
        Kind::Invalid,
        Retry::Never,
        "A column of the query has a type that the file format cannot hold.",
        "Cast the column in the query, or choose the other format.",
    ),
    page(
        UNAVAILABLE,
        "FilesUnavailable",
        Kind::Unavailable,
        Retry::Later,
        "Reading or writing the directory failed: a full disk, missing rights, or a missing mount.",
        "Mend what the message names. The same rows are tried again.",
    ),
    page(
        IN_USE,
        "FilesDirectoryInUse",
        Kind::Conflict,
        Retry::Later,
        "Another process writes into the directory under the same pipeline id.",
        "Stop the other process, or give this pipeline another id or directory.",
    ),
    page(
        LEDGER,
        "FilesLedgerUnreadable",
        Kind::Conflict,
        Retry::Later,
        "A file under `_landfall` cannot be understood, so it is not known which rows the directory holds. Nothing was changed.",
        "Restore it from a backup, or move the directory away to land all rows again.",
    ),
    page(
        NAME_TAKEN,
        "FilesNameTaken",
        Kind::Conflict,
        Retry::Later,
        "A file with the name of one that is to be published exists already and has other content. It is not overwritten.",
        "Move that file away; publication goes on by itself.",
    ),
    page(
        GROUP_LOST,
        "FilesGroupLost",
        Kind::Unavailable,
        Retry::Now,
        "A file that was not published yet could not be completed.",
        "Nothing: the rows are read and written again. Look at the cause if it repeats.",
    ),
    page(
        SUPERSEDED,
        "FilesPositionsMoved",
        Kind::Conflict,
        Retry::Now,
        "The directory's position of a partition is past the rows that came: they were published before.",
        "The partitions restart from the directory's positions, so no row is written twice.",
    ),
    page(
        GONE,
        "FilesDirectoryGone",
        Kind::Unavailable,
        Retry::Later,
        "The directory that the pipeline has published files in is gone. Rows wait; none is dropped.",
        "Put it back (an unmounted disk); it is used without a restart. To fill a new one from the start, give the pipeline a new `id`.",
    ),
];

/// What can go wrong with a directory.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// An option is out of bounds.
    #[error("{text}")]
    Option {
        /// Names option, value and bound.
        text: String,
    },
    /// A column's type has no place in the format.
    #[error("{text}")]
    Type {
        /// Names the format and the cause.
        text: String,
    },
    /// The file system failed.
    #[error("{doing}: {source}")]
    Unavailable {
        /// What was tried, on which path.
        doing: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another process has the directory.
    #[error(
        "another process writes into `{directory}` as pipeline `{pipeline}`: stop it, or use another id or directory"
    )]
    InUse {
        /// The directory.
        directory: String,
        /// The pipeline.
        pipeline: String,
    },
    /// A ledger cannot be understood.
    #[error("`{path}` cannot be understood: {cause}")]
    Ledger {
        /// Its path.
        path: String,
        /// What is wrong.
        cause: String,
    },
    /// No directory, and positions of one are stored.
    #[error(
        "the directory {id} is gone from `{path}`, and the pipeline has published files in it: put it back (is the disk \
         mounted?), or give the pipeline a new `id` to fill a new one from the start"
    )]
    Gone {
        /// Where it was.
        path: String,
        /// Its id.
        id: String,
    },
    /// A name is taken.
    #[error("`{path}` exists already with other content and is not overwritten: move it away")]
    NameTaken {
        /// The path.
        path: String,
    },
}

impl FilesError {
    pub(crate) fn unavailable(doing: impl Into<String>, source: std::io::Error) -> Self {
        FilesError::Unavailable { doing: doing.into(), source }
    }

    /// The same as a plan error.
    pub(crate) fn into_plan(self) -> PlanError {
        PlanError::new(self.code(), self.to_string())
    }

    /// The same as a sink error: the variant decides the class.
    pub(crate) fn into_sink(self) -> SinkError {
        let (code, text) = (self.code(), self.to_string());
        match self {
            FilesError::Unavailable { .. } => SinkError::Later { code, after: None, text },
            _ => SinkError::Destination { code, text },
        }
    }
}

impl Coded for FilesError {
    fn code(&self) -> Code {
        match self {
            FilesError::Option { .. } => OPTION,
            FilesError::Type { .. } => TYPE,
            FilesError::Unavailable { .. } => UNAVAILABLE,
            FilesError::InUse { .. } => IN_USE,
            FilesError::Ledger { .. } => LEDGER,
            FilesError::NameTaken { .. } => NAME_TAKEN,
            FilesError::Gone { .. } => GONE,
        }
    }

    fn kind(&self) -> Kind {
        CODES.iter().find(|page| page.code == self.code()).map_or(Kind::Internal, |page| page.kind)
    }

    fn retry(&self) -> Retry {
        CODES.iter().find(|page| page.code == self.code()).map_or(Retry::Never, |page| page.retry)
    }
}
