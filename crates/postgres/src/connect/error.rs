//! What can go wrong before and on a connection, and the codes of the replication connection and the queue behind it.
//!
//! Connection codes that SQL has too are those of [`crate::code`]; the pages of the others are here.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use landfall_types::{Code, CodePage, Coded, Kind, Retry, with_causes};

use super::{Endpoint, tls};
use crate::code;

pub(crate) const SILENT_PEER: Code = Code::new("PG", 108);
pub(crate) const OPTIONS: Code = Code::new("PG", 116);
pub(crate) const PROTOCOL: Code = Code::new("PG", 117);
pub(crate) const STREAM_ENDED: Code = Code::new("PG", 118);
pub(crate) const QUEUE_STOPPED: Code = Code::new("PG", 119);

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

/// The pages of the codes of the replication connection and its queue, for `landfall explain`.
pub const STREAM_CODES: &[CodePage] = &[
    page(
        SILENT_PEER,
        "PostgresSilentPeer",
        Kind::Unavailable,
        Retry::Later,
        "The server sent nothing while we were reading, not even the reply that we asked for.",
        "Landfall connects again by itself. Look for a frozen server or a middlebox that drops idle connections; \
         `liveness_timeout` sets how long is waited.",
    ),
    page(
        OPTIONS,
        "PostgresConnectOptions",
        Kind::Invalid,
        Retry::Never,
        "The URL, the TLS options or a name given for Postgres cannot be used.",
        "The message names the option and what it may be. Change the configuration.",
    ),
    page(
        PROTOCOL,
        "PostgresProtocol",
        Kind::Unavailable,
        Retry::Later,
        "Something came that is not of the Postgres protocol, or is larger than it allows.",
        "Check that the address is that of a Postgres server and that no proxy changes the bytes. Landfall connects \
         again by itself.",
    ),
    page(
        STREAM_ENDED,
        "PostgresStreamEnded",
        Kind::Unavailable,
        Retry::Later,
        "The server ended the stream: it is shutting down, or something ended its sender.",
        "Landfall connects again by itself and reads on from what it confirmed. The message carries the server's text \
         if it gave one.",
    ),
    page(
        QUEUE_STOPPED,
        "ChangeQueueStopped",
        Kind::Internal,
        Retry::Later,
        "The task that decodes log records failed or panicked. What it had not confirmed is read again.",
        "The message carries the first cause. If it comes again, report it with the log around it.",
    ),
];

/// An error that the server sent. Texts are cut, so that a peer cannot fill our log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{severity} {sqlstate}: {message}{}{}", detail.as_deref().map(|text| format!("; {text}")).unwrap_or_default(), hint.as_deref().map(|text| format!("; hint: {text}")).unwrap_or_default())]
pub struct ServerError {
    /// ERROR, FATAL or PANIC.
    pub severity: String,
    /// The five characters of SQLSTATE.
    pub sqlstate: String,
    /// The text.
    pub message: String,
    /// More of it.
    pub detail: Option<String>,
    /// The server's own advice.
    pub hint: Option<String>,
    /// The function of the server that said it.
    pub routine: Option<String>,
}

impl ServerError {
    /// Whether it passes by itself: the server is starting, stopping, failing over or full.
    pub fn is_passing(&self) -> bool {
        self.sqlstate.starts_with("57P") || self.sqlstate.starts_with("08") || self.sqlstate == "53300"
    }

    /// What to do about a refused log-in, where the server's words do not say it.
    fn log_in_step(&self) -> &'static str {
        match self.sqlstate.as_str() {
            "28P01" => "; check `password`, and restart a process that was started with an older one: it keeps that",
            _ => "",
        }
    }

    /// What a refused log-in is about, by state and routine.
    pub(crate) fn log_in_code(&self) -> Code {
        match self.sqlstate.as_str() {
            // One state stands for a missing role and for a missing line of pg_hba.conf.
            "28000" if self.routine.as_deref() == Some("ClientAuthentication") => code::HBA,
            "28000" | "28P01" => code::PASSWORD,
            "3D000" => code::DATABASE,
            "42501" => code::PRIVILEGE,
            _ if self.is_passing() => code::NOT_NOW,
            _ => code::STATEMENT,
        }
    }
}

/// Why a connection did not come about, or a command on it did not work.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL does not parse. It is not repeated: it may hold a password.
    #[error(
        "the Postgres url cannot be read ({}); it looks like postgres://user@host:5432/database (LF-PG0116)",
        chain(source)
    )]
    Url {
        /// What the parser says.
        source: tokio_postgres::Error,
    },
    /// The URL leaves out what has no default.
    #[error("the Postgres url names no {}; it looks like postgres://user@host:5432/database (LF-PG0116)", what.trim_start_matches("a "))]
    Missing {
        /// What is missing.
        what: &'static str,
    },
    /// Lists of different lengths.
    #[error(
        "the Postgres url has {hosts} hosts and {others} {what}; give one for each, or one port for all (LF-PG0116)"
    )]
    Counts {
        /// Which list.
        what: &'static str,
        /// How many hosts.
        hosts: usize,
        /// How many of the others.
        others: usize,
    },
    /// An option that is not carried.
    #[error("`{option}` is not carried for Postgres; {hint} (LF-PG0116)")]
    Unsupported {
        /// The option.
        option: &'static str,
        /// What to do instead.
        hint: &'static str,
    },
    /// A name that a command cannot carry.
    #[error("`{name}` is no slot name; use 1 to 63 of a-z, 0-9 and _ (LF-PG0116)")]
    SlotName {
        /// The name, cut.
        name: String,
    },
    /// A text with a NUL byte, which ends texts on the wire.
    #[error("{what} has a NUL byte in it (LF-PG0116)")]
    Nul {
        /// Which one.
        what: &'static str,
    },
    /// The file of certificates.
    #[error("tls.ca {} cannot be used: {reason} (LF-PG0116)", file.display())]
    CaFile {
        /// The file.
        file: PathBuf,
        /// Why.
        reason: String,
    },
    /// The machine trusts nobody.
    #[error("tls.mode is verify_full and this machine has no trusted certificates; name a file in tls.ca (LF-PG0116)")]
    NoRoots,
    /// A host name that no certificate could carry.
    #[error("`{host}` is no name that a certificate could be for (LF-PG0116)")]
    ServerName {
        /// The host.
        host: String,
    },
    /// The TLS library does not take the configuration.
    #[error("TLS could not be set up (LF-PG0105)")]
    TlsSetup {
        /// The library's error.
        source: rustls::Error,
    },
    /// The server has no TLS.
    #[error("{endpoint} does not do TLS; turn `ssl` on there, or set tls.mode to disable (LF-PG0105)")]
    TlsRefused {
        /// Where.
        endpoint: String,
    },
    /// The handshake failed.
    #[error("the TLS handshake with {endpoint} failed: {source}{} (LF-PG0105)", tls::next_step(source))]
    Handshake {
        /// Where.
        endpoint: String,
        /// Why.
        source: io::Error,
    },
    /// No connection, or it broke before the log-in was done.
    #[error("{endpoint} cannot be reached: {source} (LF-PG0101)")]
    Unreachable {
        /// Where.
        endpoint: String,
        /// Why.
        source: io::Error,
    },
    /// It took too long.
    #[error(
        "{endpoint} did not let us in within {after:?}; raise connect_timeout in the url if that is not enough (LF-PG0101)"
    )]
    Timeout {
        /// Where.
        endpoint: String,
        /// The bound.
        after: Duration,
    },
    /// The other side does not speak the protocol.
    #[error("{endpoint} answered byte 0x{answer:02x} where Postgres says S or N; is it a Postgres server? (LF-PG0117)")]
    NotPostgres {
        /// Where.
        endpoint: String,
        /// What came.
        answer: u8,
    },
    /// Something that is not of the protocol.
    #[error("{what} (LF-PG0117)")]
    Protocol {
        /// What came, and what may come.
        what: String,
    },
    /// The server asks for a log-in that is not carried.
    #[error(
        "the server asks for {method}, which is not carried; give the role a password or a scram-sha-256 line in pg_hba.conf (LF-PG0102)"
    )]
    LogInMethod {
        /// The method.
        method: String,
    },
    /// The server asks for a password and none is configured.
    #[error("the server asks for a password and none is configured; set `password` (LF-PG0102)")]
    NoPassword,
    /// The password exchange does not add up, or the server could not prove that it knows the password.
    #[error("the password exchange failed: {source} (LF-PG0102)")]
    Scram {
        /// Why.
        source: io::Error,
    },
    /// The server refused the log-in.
    #[error("the server did not let us in: {0}{step} ({code})", step = .0.log_in_step(), code = .0.log_in_code())]
    LogIn(#[source] Box<ServerError>),
    /// The SQL client failed.
    #[error("{endpoint}: {} (LF-PG0101)", chain(source))]
    Sql {
        /// Where.
        endpoint: String,
        /// The client's error.
        source: tokio_postgres::Error,
    },
    /// The server answered a command with an error.
    #[error("{command} was refused: {error} (LF-PG0111)")]
    Refused {
        /// The command's first words.
        command: String,
        /// The server's error.
        #[source]
        error: Box<ServerError>,
    },
    /// The connection broke.
    #[error("the connection broke: {0} (LF-PG0107)")]
    Lost(#[source] io::Error),
    /// A command was abandoned half-way; its answer would be taken for that of the next one.
    #[error("an earlier command on this connection was abandoned; open another one (LF-PG0107)")]
    Abandoned,
}

impl ConnectError {
    pub(super) fn sql(endpoint: &Endpoint, source: tokio_postgres::Error) -> Self {
        if let Some(error) = source.as_db_error() {
            return ConnectError::LogIn(Box::new(ServerError {
                severity: cut(error.severity()),
                sqlstate: cut(error.code().code()),
                message: cut(error.message()),
                detail: error.detail().map(cut),
                hint: error.hint().map(cut),
                routine: error.routine().map(cut),
            }));
        }
        ConnectError::Sql { endpoint: endpoint.to_string(), source }
    }

    /// The server's SQLSTATE, where the server answered.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            ConnectError::LogIn(error) | ConnectError::Refused { error, .. } => Some(&error.sqlstate),
            _ => None,
        }
    }
}

impl Coded for ConnectError {
    fn code(&self) -> Code {
        use ConnectError as E;
        match self {
            E::Url { .. }
            | E::Missing { .. }
            | E::Counts { .. }
            | E::Unsupported { .. }
            | E::SlotName { .. }
            | E::Nul { .. }
            | E::CaFile { .. }
            | E::NoRoots
            | E::ServerName { .. } => OPTIONS,
            E::TlsSetup { .. } | E::TlsRefused { .. } | E::Handshake { .. } => code::TLS,
            E::Unreachable { .. } | E::Timeout { .. } | E::Sql { .. } => code::UNREACHABLE,
            E::NotPostgres { .. } | E::Protocol { .. } => PROTOCOL,
            E::LogInMethod { .. } | E::NoPassword | E::Scram { .. } => code::PASSWORD,
            E::LogIn(error) => error.log_in_code(),
            E::Refused { .. } => code::STATEMENT,
            E::Lost(_) | E::Abandoned => code::CONNECTION_LOST,
        }
    }

    fn kind(&self) -> Kind {
        page_of(self.code()).map_or(Kind::Internal, |page| page.kind)
    }

    fn retry(&self) -> Retry {
        page_of(self.code()).map_or(Retry::Later, |page| page.retry)
    }
}

pub(crate) fn page_of(code: Code) -> Option<&'static CodePage> {
    STREAM_CODES.iter().chain(code::CODES).find(|page| page.code == code)
}

/// At most this many characters of a text that a peer sent.
const TEXT_MAX: usize = 1_000;

pub(crate) fn cut(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// An error with its causes, for messages of libraries that keep them apart.
fn chain(error: &dyn std::error::Error) -> String {
    cut(&with_causes(error))
}
