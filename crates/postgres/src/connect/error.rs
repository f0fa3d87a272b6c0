//! The codes `LF-PG01xx` of connections, their pages, and what can go wrong before and on one.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use landfall_types::{Code, CodePage, Coded, Kind, Retry};

use super::Endpoint;

pub(crate) const CODE_OPTIONS: Code = Code::new("PG", 101);
pub(crate) const CODE_UNREACHABLE: Code = Code::new("PG", 102);
pub(crate) const CODE_TLS: Code = Code::new("PG", 103);
pub(crate) const CODE_LOGIN: Code = Code::new("PG", 104);
pub(crate) const CODE_REFUSED: Code = Code::new("PG", 105);
pub(crate) const CODE_PROTOCOL: Code = Code::new("PG", 106);
pub(crate) const CODE_LOST: Code = Code::new("PG", 107);
pub(crate) const CODE_SILENT_PEER: Code = Code::new("PG", 108);
pub(crate) const CODE_ENDED: Code = Code::new("PG", 109);
pub(crate) const CODE_QUEUE: Code = Code::new("PG", 110);

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

/// The pages of the connection's codes, for `landfall explain`.
pub const CONNECTION_CODES: &[CodePage] = &[
    page(
        CODE_OPTIONS,
        "PostgresConnectOptions",
        Kind::Invalid,
        Retry::Never,
        "The URL, the TLS options or a name given for Postgres cannot be used.",
        "The message names the option and what it may be. Change the configuration.",
    ),
    page(
        CODE_UNREACHABLE,
        "PostgresUnreachable",
        Kind::Unavailable,
        Retry::Later,
        "No connection to the server came about in time.",
        "Check host, port and firewall; Landfall goes on trying, with a growing delay.",
    ),
    page(
        CODE_TLS,
        "PostgresTls",
        Kind::Conflict,
        Retry::Later,
        "The connection could not be encrypted as asked: the server has no TLS, or its certificate did not pass.",
        "Compare tls.mode and tls.ca with the server's ssl settings and its certificate.",
    ),
    page(
        CODE_LOGIN,
        "PostgresLogIn",
        Kind::Conflict,
        Retry::Later,
        "The server did not let the role in, or asks for a kind of log-in that is not carried (GSSAPI, SSPI).",
        "Check user, password and the matching line of pg_hba.conf; a replication connection needs its own line \
         (`replication` as database) and a role with REPLICATION.",
    ),
    page(
        CODE_REFUSED,
        "PostgresCommandRefused",
        Kind::Conflict,
        Retry::Later,
        "The server answered a command of the replication connection with an error.",
        "The message carries the server's own text and SQLSTATE. Slots have pages of their own: LF-PG0201 to LF-PG0211.",
    ),
    page(
        CODE_PROTOCOL,
        "PostgresProtocol",
        Kind::Unavailable,
        Retry::Later,
        "Something came that is not of the Postgres protocol, or is larger than it allows.",
        "Check that the address is that of a Postgres server and that no proxy changes the bytes. Landfall connects again.",
    ),
    page(
        CODE_LOST,
        "PostgresConnectionLost",
        Kind::Unavailable,
        Retry::Later,
        "The connection broke. Nothing is lost: the stream goes on from what was confirmed.",
        "Landfall connects again by itself; look at the server's log if it keeps happening.",
    ),
    page(
        CODE_SILENT_PEER,
        "PostgresSilentPeer",
        Kind::Unavailable,
        Retry::Later,
        "The server sent nothing while we were reading, not even the reply that we asked for.",
        "Landfall connects again by itself. Look for a frozen server or a middlebox that drops idle connections; \
         `liveness_timeout` sets how long is waited.",
    ),
    page(
        CODE_ENDED,
        "PostgresStreamEnded",
        Kind::Unavailable,
        Retry::Later,
        "The server ended the stream: it is shutting down, or the slot was taken away.",
        "Landfall connects again by itself. The message carries the server's text if it gave one.",
    ),
    page(
        CODE_QUEUE,
        "ChangeQueueStopped",
        Kind::Internal,
        Retry::Later,
        "The task that decodes log records failed or panicked. What it had not confirmed is read again.",
        "The message carries the first cause. Report it with the log around it if it comes again.",
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
}

/// Why a connection did not come about, or a command on it did not work.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL does not parse. It is not repeated: it may hold a password.
    #[error("{CODE_OPTIONS}: the Postgres url cannot be read ({}); it looks like postgres://user@host:5432/database", chain(source))]
    Url {
        /// What the parser says.
        source: tokio_postgres::Error,
    },
    /// The URL leaves out what has no default.
    #[error("{CODE_OPTIONS}: the Postgres url names no {}; it looks like postgres://user@host:5432/database", what.trim_start_matches("a "))]
    Missing {
        /// What is missing.
        what: &'static str,
    },
    /// Lists of different lengths.
    #[error("{CODE_OPTIONS}: the Postgres url has {hosts} hosts and {others} {what}; give one for each, or one port for all")]
    Counts {
        /// Which list.
        what: &'static str,
        /// How many hosts.
        hosts: usize,
        /// How many of the others.
        others: usize,
    },
    /// An option that is not carried.
    #[error("{CODE_OPTIONS}: `{option}` is not carried for Postgres; {hint}")]
    Unsupported {
        /// The option.
        option: &'static str,
        /// What to do instead.
        hint: &'static str,
    },
    /// A name that a command cannot carry.
    #[error("{CODE_OPTIONS}: `{name}` is no slot name; use 1 to 63 of a-z, 0-9 and _")]
    SlotName {
        /// The name, cut.
        name: String,
    },
    /// A text with a NUL byte, which ends texts on the wire.
    #[error("{CODE_OPTIONS}: {what} has a NUL byte in it")]
    Nul {
        /// Which one.
        what: &'static str,
    },
    /// The file of certificates.
    #[error("{CODE_OPTIONS}: tls.ca {} cannot be used: {reason}", file.display())]
    CaFile {
        /// The file.
        file: PathBuf,
        /// Why.
        reason: String,
    },
    /// The machine trusts nobody.
    #[error("{CODE_OPTIONS}: tls.mode is verify_full and this machine has no trusted certificates; name a file in tls.ca")]
    NoRoots,
    /// A host name that no certificate could carry.
    #[error("{CODE_OPTIONS}: `{host}` is no name that a certificate could be for")]
    ServerName {
        /// The host.
        host: String,
    },
    /// The TLS library does not take the configuration.
    #[error("{CODE_TLS}: TLS could not be set up")]
    TlsSetup {
        /// The library's error.
        source: rustls::Error,
    },
    /// The server has no TLS.
    #[error("{CODE_TLS}: {endpoint} does not do TLS; turn `ssl` on there, or set tls.mode to disable")]
    TlsRefused {
        /// Where.
        endpoint: String,
    },
    /// The handshake failed.
    #[error("{CODE_TLS}: the TLS handshake with {endpoint} failed: {source}")]
    Handshake {
        /// Where.
        endpoint: String,
        /// Why.
        source: io::Error,
    },
    /// No connection, or it broke before the log-in was done.
    #[error("{CODE_UNREACHABLE}: {endpoint} cannot be reached: {source}")]
    Unreachable {
        /// Where.
        endpoint: String,
        /// Why.
        source: io::Error,
    },
    /// It took too long.
    #[error("{CODE_UNREACHABLE}: {endpoint} did not let us in within {after:?}; raise connect_timeout in the url if that is not enough")]
    Timeout {
        /// Where.
        endpoint: String,
        /// The bound.
        after: Duration,
    },
    /// The other side does not speak the protocol.
    #[error("{CODE_PROTOCOL}: {endpoint} answered byte 0x{answer:02x} where Postgres says S or N; is it a Postgres server?")]
    NotPostgres {
        /// Where.
        endpoint: String,
        /// What came.
        answer: u8,
    },
    /// Something that is not of the protocol.
    #[error("{CODE_PROTOCOL}: {what}")]
    Protocol {
        /// What came, and what may come.
        what: String,
    },
    /// The server asks for a log-in that is not carried.
    #[error("{CODE_LOGIN}: the server asks for {method}, which is not carried; give the role a password or a scram-sha-256 line in pg_hba.conf")]
    LogInMethod {
        /// The method.
        method: String,
    },
    /// The server asks for a password and none is configured.
    #[error("{CODE_LOGIN}: the server asks for a password and none is configured; set `password`")]
    NoPassword,
    /// The password exchange does not add up, or the server could not prove that it knows the password.
    #[error("{CODE_LOGIN}: the password exchange failed: {source}")]
    Scram {
        /// Why.
        source: io::Error,
    },
    /// The server refused the log-in.
    #[error("{CODE_LOGIN}: the server did not let us in: {0}")]
    LogIn(#[source] ServerError),
    /// The SQL client failed.
    #[error("{CODE_UNREACHABLE}: {endpoint}: {}", chain(source))]
    Sql {
        /// Where.
        endpoint: String,
        /// The client's error.
        source: tokio_postgres::Error,
    },
    /// The server answered a command with an error.
    #[error("{CODE_REFUSED}: {command} was refused: {error}")]
    Refused {
        /// The command's first words.
        command: String,
        /// The server's error.
        #[source]
        error: ServerError,
    },
    /// The connection broke.
    #[error("{CODE_LOST}: the connection broke: {0}")]
    Lost(#[source] io::Error),
    /// A command was abandoned half-way; its answer would be taken for that of the next one.
    #[error("{CODE_LOST}: an earlier command on this connection was abandoned; open another one")]
    Abandoned,
}

impl ConnectError {
    pub(super) fn sql(endpoint: &Endpoint, source: tokio_postgres::Error) -> Self {
        if let Some(error) = source.as_db_error() {
            return ConnectError::LogIn(ServerError {
                severity: cut(error.severity()),
                sqlstate: cut(error.code().code()),
                message: cut(error.message()),
                detail: error.detail().map(cut),
                hint: error.hint().map(cut),
            });
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
            | E::ServerName { .. } => CODE_OPTIONS,
            E::TlsSetup { .. } | E::TlsRefused { .. } | E::Handshake { .. } => CODE_TLS,
            E::Unreachable { .. } | E::Timeout { .. } | E::Sql { .. } => CODE_UNREACHABLE,
            E::NotPostgres { .. } | E::Protocol { .. } => CODE_PROTOCOL,
            E::LogInMethod { .. } | E::NoPassword | E::Scram { .. } | E::LogIn(_) => CODE_LOGIN,
            E::Refused { .. } => CODE_REFUSED,
            E::Lost(_) | E::Abandoned => CODE_LOST,
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
    CONNECTION_CODES.iter().find(|page| page.code == code)
}

/// At most this many characters of a text that a peer sent.
const TEXT_MAX: usize = 1_000;

pub(crate) fn cut(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    cut(&text)
}
