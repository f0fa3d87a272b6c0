//! What can go wrong on an SQL connection, told apart by SQLSTATE and routine.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use landfall_types::{Code, Coded, Kind, Retry};
use tokio_postgres::error::SqlState;

use crate::connect::{ServerError, page_of};
use crate::{ConnectError, code};

/// What is behind a failure: the library's error or, on a connection of our own, the server's or the socket's.
#[derive(Debug, thiserror::Error)]
pub enum SqlCause {
    /// The library's.
    #[error(transparent)]
    Library(#[from] tokio_postgres::Error),
    /// The server's.
    #[error(transparent)]
    Server(#[from] Box<ServerError>),
    /// The socket's.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

impl SqlCause {
    fn sqlstate(&self) -> Option<&str> {
        match self {
            SqlCause::Library(error) => error.code().map(SqlState::code),
            SqlCause::Server(error) => Some(&error.sqlstate),
            SqlCause::Socket(_) => None,
        }
    }
}

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
        /// What is behind it.
        #[source]
        source: SqlCause,
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
        /// What is behind it.
        #[source]
        source: SqlCause,
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
        /// What is behind it.
        #[source]
        source: SqlCause,
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
                SqlError::Lost { peer, doing, text, source: source.into() }
            } else {
                SqlError::Answer { peer, doing, text }
            };
        };
        let text = words_of(server.message(), server.detail(), server.hint());
        let state = server.code().code().to_owned();
        SqlError::refused(peer, user, doing, (state, text), source.into())
    }

    /// The same on a connection of our own.
    pub(crate) fn on_our_wire(peer: &str, user: &str, doing: &'static str, error: ConnectError) -> Self {
        let peer = peer.to_owned();
        match error {
            ConnectError::Refused { error, .. } => {
                let text = words_of(&error.message, error.detail.as_deref(), error.hint.as_deref());
                SqlError::refused(peer, user, doing, (error.sqlstate.clone(), text), error.into())
            }
            ConnectError::Lost(error) => SqlError::Lost { peer, doing, text: error.to_string(), source: error.into() },
            other => SqlError::Answer { peer, doing, text: other.to_string() },
        }
    }

    /// By the server, with its state and its words.
    fn refused(
        peer: String,
        user: &str,
        doing: &'static str,
        (state, text): (String, String),
        source: SqlCause,
    ) -> Self {
        if is_passing(&state) {
            SqlError::Lost { peer, doing, text, source }
        } else if state == SqlState::INSUFFICIENT_PRIVILEGE.code() {
            SqlError::Privilege { peer, user: user.to_owned(), doing, text, source }
        } else {
            SqlError::Statement { peer, doing, text, state, source }
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
                source.sqlstate()
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
fn is_passing(state: &str) -> bool {
    state.starts_with("57P") || state.starts_with("08") || state == SqlState::TOO_MANY_CONNECTIONS.code()
}

fn words_of(message: &str, detail: Option<&str>, hint: Option<&str>) -> String {
    let mut text = message.to_owned();
    for more in [detail, hint].into_iter().flatten() {
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
