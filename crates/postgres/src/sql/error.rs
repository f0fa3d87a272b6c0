//! What can go wrong on an SQL connection, told apart by SQLSTATE and routine.

use std::error::Error as _;
use std::time::Duration;

use landfall_types::{Code, Coded, Kind, Retry};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::{DbError, SqlState};

use crate::code;

/// An SQL connection's failure. Messages name the server, the work and the next step, never a password or a value.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    /// No connection.
    #[error("{peer}: no connection: {cause}; check host and port of `url`, and that the server runs and listens there (LF-PG0101)")]
    Unreachable {
        /// Host, port, database.
        peer: String,
        /// The system's words.
        cause: String,
        /// The library's error, where one came.
        #[source]
        source: Option<tokio_postgres::Error>,
    },
    /// User or password.
    #[error("{peer}: the server refused user `{user}`: {text}; check `password`, and that the role exists and has LOGIN (LF-PG0102)")]
    Login {
        /// Host, port, database.
        peer: String,
        /// The user.
        user: String,
        /// The server's or the library's words.
        text: String,
        /// The library's error.
        #[source]
        source: tokio_postgres::Error,
    },
    /// `pg_hba.conf`.
    #[error("{peer}: {text}; add `host {database} {user} <address>/32 scram-sha-256` to pg_hba.conf and run `SELECT pg_reload_conf();` (LF-PG0103)")]
    Hba {
        /// Host, port, database.
        peer: String,
        /// The user.
        user: String,
        /// The database.
        database: String,
        /// The server's words, which name the address that it sees.
        text: String,
        /// The library's error.
        #[source]
        source: tokio_postgres::Error,
    },
    /// No such database.
    #[error("{peer}: there is no database of that name; correct the path of `url` (LF-PG0104)")]
    Database {
        /// Host, port, database.
        peer: String,
        /// The library's error.
        #[source]
        source: tokio_postgres::Error,
    },
    /// TLS.
    #[error("{peer}: {text} (LF-PG0105)")]
    Tls {
        /// Host, port, database.
        peer: String,
        /// Who wants what, and the setting.
        text: String,
        /// The library's error.
        #[source]
        source: tokio_postgres::Error,
    },
    /// Starting, stopping, full.
    #[error("{peer}: {text}; this is tried again (LF-PG0106)")]
    NotNow {
        /// Host, port, database.
        peer: String,
        /// The server's words.
        text: String,
        /// The library's error.
        #[source]
        source: tokio_postgres::Error,
    },
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
    #[error("{peer}: no answer within {after:?} when it was to {doing}; the query was cancelled; look for locks and load on the server (LF-PG0109)")]
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
    /// Why a connection could not be made.
    pub(super) fn connecting(peer: &str, user: &str, config: &Config, source: tokio_postgres::Error) -> Self {
        let peer = peer.to_owned();
        let Some(server) = source.as_db_error() else {
            return Self::without_server(peer, user, config, source);
        };
        let text = words_of(server);
        match server.code() {
            // One SQLSTATE stands for a missing role and for a missing pg_hba line; the routine tells which.
            state
                if *state == SqlState::INVALID_AUTHORIZATION_SPECIFICATION
                    && server.routine() == Some("ClientAuthentication") =>
            {
                let database = config.get_dbname().unwrap_or(user).to_owned();
                SqlError::Hba { peer, user: user.to_owned(), database, text, source }
            }
            state
                if *state == SqlState::INVALID_PASSWORD
                    || *state == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
            {
                SqlError::Login { peer, user: user.to_owned(), text, source }
            }
            state if *state == SqlState::INVALID_CATALOG_NAME => SqlError::Database { peer, source },
            state if is_passing(state) => SqlError::NotNow { peer, text, source },
            _ => Self::running(&peer, user, "connect", source),
        }
    }

    /// A failure before the server said anything in its own words.
    fn without_server(peer: String, user: &str, config: &Config, source: tokio_postgres::Error) -> Self {
        let mut cause = source.source();
        let mut deepest = source.to_string();
        while let Some(inner) = cause {
            if inner.downcast_ref::<std::io::Error>().is_some() {
                return SqlError::Unreachable { peer, cause: inner.to_string(), source: Some(source) };
            }
            deepest = inner.to_string();
            cause = inner.source();
        }
        if matches!(config.get_ssl_mode(), SslMode::Require) {
            let text = format!("`tls` asks for an encrypted connection: {deepest}; set `ssl = on` on the server, or change `tls.mode`");
            return SqlError::Tls { peer, text, source };
        }
        if config.get_password().is_none() {
            let text = format!("{deepest} (no `password` is configured)");
            return SqlError::Login { peer, user: user.to_owned(), text, source };
        }
        SqlError::Unreachable { peer, cause: deepest, source: Some(source) }
    }

    /// A server that takes the connection and then says nothing.
    pub(super) fn silent(peer: &str, within: Duration) -> Self {
        let cause = format!("it did not answer within {within:?}");
        SqlError::Unreachable { peer: peer.to_owned(), cause, source: None }
    }

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

    /// The SQLSTATE, where the server gave one.
    pub(crate) fn state(&self) -> Option<&SqlState> {
        match self {
            SqlError::Unreachable { source, .. } => source.as_ref()?.code(),
            SqlError::Login { source, .. }
            | SqlError::Hba { source, .. }
            | SqlError::Database { source, .. }
            | SqlError::Tls { source, .. }
            | SqlError::NotNow { source, .. }
            | SqlError::Lost { source, .. }
            | SqlError::Privilege { source, .. }
            | SqlError::Statement { source, .. } => source.code(),
            SqlError::Deadline { .. } | SqlError::Answer { .. } => None,
        }
    }

    /// Whether a new connection may do what this one could not.
    pub(crate) fn is_connection(&self) -> bool {
        matches!(
            self,
            SqlError::Unreachable { .. } | SqlError::NotNow { .. } | SqlError::Lost { .. } | SqlError::Deadline { .. }
        )
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

impl Coded for SqlError {
    fn code(&self) -> Code {
        match self {
            SqlError::Unreachable { .. } => code::UNREACHABLE,
            SqlError::Login { .. } => code::PASSWORD,
            SqlError::Hba { .. } => code::HBA,
            SqlError::Database { .. } => code::DATABASE,
            SqlError::Tls { .. } => code::TLS,
            SqlError::NotNow { .. } => code::NOT_NOW,
            SqlError::Lost { .. } => code::CONNECTION_LOST,
            SqlError::Deadline { .. } => code::DEADLINE,
            SqlError::Privilege { .. } => code::PRIVILEGE,
            SqlError::Statement { .. } => code::STATEMENT,
            SqlError::Answer { .. } => code::ANSWER,
        }
    }

    fn kind(&self) -> Kind {
        code::page_of(self.code()).map_or(Kind::Internal, |page| page.kind)
    }

    fn retry(&self) -> Retry {
        code::page_of(self.code()).map_or(Retry::Never, |page| page.retry)
    }
}
