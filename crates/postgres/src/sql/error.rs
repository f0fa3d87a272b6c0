//! What can go wrong on an SQL connection, told apart by SQLSTATE and routine.

use std::error::Error as _;
use std::time::Duration;

use landfall_types::{Code, Coded, Kind, Retry};
use tokio_postgres::error::{DbError, SqlState};

use crate::connect::page_of;
use crate::{ConnectError, code};

/// An SQL connection's failure. Messages name the server, the work and the next step, never a password or a value.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// No connection came about.
    #[error(transparent)]
    Connect(Box<ConnectError>),
    /// The connection ended.
    #[error("{peer}: the connection was lost while it was to {doing}: {text} (LF-PG0107)")]
    Lost {
        /// Host, port, database.
        peer: String,
        /// The work.
        doing: &'static str,
        /// What ended it.
        text: String,
        /// The library's error.
        #[source]
        source: tokio_postgres::Error,
    },
    /// No answer in time.
    #[error(
        "{peer}: no answer within {after:?} when it was to {doing}; the query was cancelled; look for locks and load on the server (LF-PG0109)"
    )]
    Deadline {
        /// Host, port, database.
        peer: String,
        /// The work.
        doing: &'static str,
        /// The deadline.
        after: Duration,
    },
    /// Not allowed.
    #[error("{peer}: user `{user}` may not {doing}: {text}; `landfall check` prints the GRANT (LF-PG0110)")]
    Privilege {
        /// Host, port, database.
        peer: String,
        /// The user.
        user: String,
        /// The work.
        doing: &'static str,
        /// The server's words.
        text: String,
        /// The library's error.
        #[source]
        source: tokio_postgres::Error,
    },
    /// Refused by the server for another reason.
    #[error("{peer}: the server would not {doing}: {text} (SQLSTATE {state}) (LF-PG0111)")]
    Statement {
        /// Host, port, database.
        peer: String,
        /// The work.
        doing: &'static str,
        /// The server's words, with its detail and hint.
        text: String,
        /// The SQLSTATE.
        state: String,
        /// The library's error.
        #[source]
        source: tokio_postgres::Error,
    },
    /// An answer of another form than the catalog has.
    #[error("{peer}: the answer was not understood when it was to {doing}: {text} (LF-PG0112)")]
    Answer {
        /// Host, port, database.
        peer: String,
        /// The work.
        doing: &'static str,
        /// What was expected.
        text: String,
    },
}

impl SqlError {
    /// Why a statement failed.
    pub(super) fn running(peer: &str, user: &str, doing: &'static str, source: tokio_postgres::Error) -> Self {
        let peer = peer.to_owned();
        let Some(server) = source.as_db_error() else {
            let text = source.source().map_or_else(|| source.to_string(), ToString::to_string);
            // A value of another type than the query was written for is no network failure.
            return if source.is_closed() || is_io(&source) {
                SqlError::Lost { peer, doing, text, source }
            } else {
                SqlError::Answer { peer, doing, text }
            };
        };
        let text = words_of(server);
        let state = server.code();
        if is_passing(state) {
            SqlError::Lost { peer, doing, text, source }
        } else if *state == SqlState::INSUFFICIENT_PRIVILEGE {
            SqlError::Privilege { peer, user: user.to_owned(), doing, text, source }
        } else {
            SqlError::Statement { peer, doing, text, state: state.code().to_owned(), source }
        }
    }

    /// An answer that does not have the form of the catalog.
    pub(crate) fn answer(peer: &str, doing: &'static str, text: impl Into<String>) -> Self {
        SqlError::Answer { peer: peer.to_owned(), doing, text: text.into() }
    }

    /// Whether the server refuses what is asked for its rights, its names or its values, which a later try does not change.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            SqlError::Privilege { .. } => true,
            SqlError::Statement { state, .. } => state.starts_with("42") || state.starts_with("22"),
            _ => false,
        }
    }

    /// The SQLSTATE, where the server gave one.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            SqlError::Connect(error) => error.sqlstate(),
            SqlError::Lost { source, .. } | SqlError::Privilege { source, .. } | SqlError::Statement { source, .. } => {
                source.code().map(SqlState::code)
            }
            SqlError::Deadline { .. } | SqlError::Answer { .. } => None,
        }
    }

    /// Whether a new connection may do what this one could not.
    pub(crate) fn is_connection(&self) -> bool {
        match self {
            SqlError::Connect(error) => {
                matches!(error.code(), code::UNREACHABLE | code::NOT_NOW | code::CONNECTION_LOST)
            }
            SqlError::Lost { .. } | SqlError::Deadline { .. } => true,
            _ => false,
        }
    }
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    error.source().is_some_and(|cause| cause.is::<std::io::Error>())
}

/// States that end a connection or refuse one and pass by themselves: 57P01 to 57P05, 53300, class 08.
fn is_passing(state: &SqlState) -> bool {
    let code = state.code();
    code.starts_with("57P") || code.starts_with("08") || *state == SqlState::TOO_MANY_CONNECTIONS
}

fn words_of(error: &DbError) -> String {
    let mut text = error.message().to_owned();
    for more in [error.detail(), error.hint()].into_iter().flatten() {
        text.push_str("; ");
        text.push_str(more);
    }
    text
}

impl From<ConnectError> for SqlError {
    fn from(error: ConnectError) -> Self {
        SqlError::Connect(Box::new(error))
    }
}

impl Coded for SqlError {
    fn code(&self) -> Code {
        match self {
            SqlError::Connect(error) => error.code(),
            SqlError::Lost { .. } => code::CONNECTION_LOST,
            SqlError::Deadline { .. } => code::DEADLINE,
            SqlError::Privilege { .. } => code::PRIVILEGE,
            SqlError::Statement { .. } => code::STATEMENT,
            SqlError::Answer { .. } => code::ANSWER,
        }
    }

    fn kind(&self) -> Kind {
        page_of(self.code()).map_or(Kind::Internal, |page| page.kind)
    }

    fn retry(&self) -> Retry {
        page_of(self.code()).map_or(Retry::Never, |page| page.retry)
    }
}
