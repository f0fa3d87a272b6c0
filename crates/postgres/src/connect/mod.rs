//! Where the server is and as whom we come: one set of options for the replication connection and for every SQL
//! connection, so that what reaches one reaches all.
//!
//! Promises: the settings of P49 are in the start-up packet of every connection, behind the operator's own `options`,
//! so that values have one text form; the password is in no message, log line or `Debug`. It does not pool and does
//! not retry ([`Backoff`](crate::Backoff) does).

mod dial;
mod error;
mod tls;
mod url;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio_postgres::config::{ChannelBinding, Host, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs};

pub use dial::Stream;
pub use error::{ConnectError, STREAM_CODES, ServerError};
pub(crate) use error::{PROTOCOL, QUEUE_STOPPED, SILENT_PEER, STREAM_ENDED, cut, page_of};
pub use tls::{TlsMode, TlsOptions};

/// Settings that every connection pins (P49), whatever role and database have: the text of a value and the name that a
/// catalog query means must not depend on them, no timer of the server may end a copy, an idle snapshot or a wait (slots wait for
/// writers by a lock), and a publication has to be written. Where a lock is bounded, the statement says so.
pub const PINNED_SETTINGS: &[(&str, &str)] = &[
    ("DateStyle", "ISO"),
    ("IntervalStyle", "iso_8601"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("client_encoding", "UTF8"),
    ("lc_monetary", "C"),
    ("statement_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("row_security", "off"),
    ("lock_timeout", "0"),
    ("search_path", "public"),
    ("default_transaction_read_only", "off"),
    ("default_transaction_isolation", "read committed"),
];

/// What a replication connection pins besides: a role that is set for the log-in may own the tables, but only the one that logs
/// in may replicate.
pub(crate) const PINNED_FOR_REPLICATION: (&str, &str) = ("role", "none");

/// The first version with `transaction_timeout`, which would end a copy and the snapshot of a slot. Older ones refuse a log-in that
/// names it, so it is set behind that.
pub(crate) const HAS_TRANSACTION_TIMEOUT: u32 = 17;

/// What a connection to such a server runs first.
pub(crate) const NO_TRANSACTION_TIMEOUT: &str = "SET transaction_timeout = 0";

/// The encoding of a database that takes any bytes for text. Asked for UTF-8, its server ends a whole copy or stream at the
/// first text that is not; asked for the bytes as they are, each is its row's affair (`invalid_text`).
pub(crate) const UNCHECKED_ENCODING: &str = "SQL_ASCII";

/// What a connection to such a database runs first. The start-up packet cannot say it: only the answer to it tells the
/// database's encoding.
pub(crate) const TAKE_UNCHECKED: &str = "SET client_encoding = 'SQL_ASCII'";

/// How long one address may take until it has answered the log-in, unless the URL says otherwise.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// One place where the server may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A host and a port; with `address`, the name is for the certificate only and is not resolved.
    Tcp {
        /// The host's name or address.
        host: String,
        /// The address to go to instead of resolving the name.
        address: Option<IpAddr>,
        /// The port.
        port: u16,
    },
    /// A socket in a directory of this machine.
    Socket {
        /// The directory; the socket's name follows from the port.
        directory: PathBuf,
        /// The port in the socket's name.
        port: u16,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Endpoint::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Endpoint::Socket { directory, port } => write!(f, "{}/.s.PGSQL.{port}", directory.display()),
        }
    }
}

/// A password that shows itself nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Vec<u8>);

impl Password {
    /// Wraps it.
    pub fn new(password: impl AsRef<[u8]>) -> Self {
        Password(password.as_ref().to_vec())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// Everything that opening a connection needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Where the server may be, tried in this order; never empty.
    pub endpoints: Vec<Endpoint>,
    /// The role.
    pub user: String,
    /// Its password, if it has one.
    pub password: Option<Password>,
    /// The database.
    pub database: String,
    /// What `pg_stat_activity` shows.
    pub application_name: String,
    /// How long one endpoint may take until the log-in is done.
    pub connect_timeout: Duration,
    /// Encryption.
    pub tls: TlsOptions,
    /// The operator's own `options`, as in the URL.
    pub options: Option<String>,
    /// Settings of this connection besides the pinned ones, like `wal_sender_timeout`.
    pub settings: Vec<(String, String)>,
}

impl ConnectOptions {
    /// Reads a `postgres://` URL (or the `key=value` form). `password` goes before one in the URL; `tls` before its
    /// `sslmode`.
    pub fn parse(url: &str, password: Option<&str>, tls: Option<TlsOptions>) -> Result<Self, ConnectError> {
        let config: tokio_postgres::Config = url.parse().map_err(|source| match url::not_carried(url) {
            Some((option, hint)) => ConnectError::Unsupported { option, hint },
            None => ConnectError::Url { source },
        })?;
        refuse_unsupported(&config)?;
        let user = config.get_user().ok_or(ConnectError::Missing { what: "a user" })?.to_owned();
        let tls = match tls {
            Some(tls) => tls,
            None => TlsOptions { mode: mode_of(config.get_ssl_mode()), ca: None },
        };
        tls.check()?;
        Ok(ConnectOptions {
            endpoints: endpoints_of(&config)?,
            database: config.get_dbname().unwrap_or(&user).to_owned(),
            password: password.map(Password::new).or_else(|| config.get_password().map(Password::new)),
            application_name: config.get_application_name().unwrap_or("landfall").to_owned(),
            connect_timeout: config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT),
            options: config.get_options().map(str::to_owned),
            settings: Vec::new(),
            user,
            tls,
        })
    }

    /// The same with one more setting of the connection; a later one of the same name wins.
    #[must_use]
    pub fn with_setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// The `options` of the start-up packet: the operator's, ours, then the pinned ones, which therefore win.
    pub fn startup_options(&self) -> String {
        let mut text = self.options.clone().unwrap_or_default();
        let own = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.chain(PINNED_SETTINGS.iter().copied()) {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str("-c ");
            push_escaped(&mut text, name);
            text.push('=');
            push_escaped(&mut text, value);
        }
        text
    }

    /// Opens an SQL connection. The second part must be polled (spawned) for the first one to work; it ends when the
    /// client is dropped.
    pub async fn connect_sql(&self) -> Result<(tokio_postgres::Client, SqlDriver), ConnectError> {
        let mut config = tokio_postgres::Config::new();
        config.user(&self.user).dbname(&self.database).application_name(&self.application_name);
        config.options(self.startup_options()).ssl_mode(SslMode::Disable);
        if let Some(password) = &self.password {
            config.password(password.bytes());
        }
        let config = &config;
        self.first_that_opens(|endpoint| {
            Box::pin(async move {
                let stream = dial::open(endpoint, self).await?;
                let opened = config.connect_raw(stream, tokio_postgres::NoTls).await;
                opened.map_err(|source| ConnectError::sql(endpoint, source))
            })
        })
        .await
    }

    /// The bytes of a connection to this endpoint, up to the start-up packet. The caller bounds the time.
    pub(crate) async fn dial(&self, endpoint: &Endpoint) -> Result<Stream, ConnectError> {
        dial::open(endpoint, self).await
    }

    /// Tries each endpoint within the timeout; gives the last failure where all fail. The futures are boxed because
    /// the compiler cannot show that the one of an async closure is Send, and sources connect on tasks of their own.
    pub(crate) async fn first_that_opens<'a, T>(
        &'a self,
        mut open: impl FnMut(&'a Endpoint) -> BoxFuture<'a, Result<T, ConnectError>>,
    ) -> Result<T, ConnectError> {
        let mut last = ConnectError::Missing { what: "a host" };
        for endpoint in &self.endpoints {
            match tokio::time::timeout(self.connect_timeout, open(endpoint)).await {
                Ok(Ok(opened)) => return Ok(opened),
                Ok(Err(error)) => last = error,
                Err(_) => last = ConnectError::Timeout { endpoint: endpoint.to_string(), after: self.connect_timeout },
            }
        }
        Err(last)
    }
}

/// What moves an SQL connection's bytes: spawn it.
pub type SqlDriver = tokio_postgres::Connection<Stream, tokio_postgres::tls::NoTlsStream>;

fn mode_of(mode: SslMode) -> TlsMode {
    match mode {
        SslMode::Disable => TlsMode::Disable,
        SslMode::Require => TlsMode::Require,
        _ => TlsMode::Prefer,
    }
}

fn refuse_unsupported(config: &tokio_postgres::Config) -> Result<(), ConnectError> {
    let refused = |option, hint| Err(ConnectError::Unsupported { option, hint });
    if config.get_target_session_attrs() != TargetSessionAttrs::Any {
        return refused("target_session_attrs", "name the one server that the slot is on");
    }
    if config.get_load_balance_hosts() != LoadBalanceHosts::Disable {
        return refused("load_balance_hosts", "a slot is on one server: list its addresses in order");
    }
    if config.get_ssl_negotiation() != SslNegotiation::Postgres {
        return refused("sslnegotiation", "leave it out: TLS is asked for in the protocol");
    }
    if config.get_channel_binding() == ChannelBinding::Require {
        return refused("channel_binding", "leave it out and set tls.mode to verify_full");
    }
    Ok(())
}

/// One port for all, or one for each.
fn endpoints_of(config: &tokio_postgres::Config) -> Result<Vec<Endpoint>, ConnectError> {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let count = hosts.len().max(addresses.len());
    if count == 0 {
        return Err(ConnectError::Missing { what: "a host" });
    }
    if !hosts.is_empty() && !addresses.is_empty() && hosts.len() != addresses.len() {
        return Err(ConnectError::Counts { what: "addresses", hosts: hosts.len(), others: addresses.len() });
    }
    if ports.len() > 1 && ports.len() != count {
        return Err(ConnectError::Counts { what: "ports", hosts: count, others: ports.len() });
    }
    let endpoint = |at: usize| {
        let port = ports.get(at).or_else(|| ports.first()).copied().unwrap_or(5432);
        let address = addresses.get(at).copied();
        match hosts.get(at) {
            Some(Host::Tcp(host)) => Endpoint::Tcp { host: host.clone(), address, port },
            Some(Host::Unix(directory)) => Endpoint::Socket { directory: directory.clone(), port },
            None => {
                Endpoint::Tcp { host: address.map(|address| address.to_string()).unwrap_or_default(), address, port }
            }
        }
    };
    Ok((0..count).map(endpoint).collect())
}

/// The server splits `options` at white space; a backslash keeps a character.
fn push_escaped(text: &mut String, value: &str) {
    for character in value.chars() {
        if character == '\\' || character.is_whitespace() {
            text.push('\\');
        }
        text.push(character);
    }
}
