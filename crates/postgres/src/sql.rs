//! SQL connections: catalog reads, DDL, COPY. Separate from the replication connection and from each other (P18).
//!
//! Each connection has the settings of P49, so text means the same on every server; each query has a deadline, and a
//! query that is given up, by its deadline or because its future is dropped, is cancelled on the server too. Errors
//! are told apart by SQLSTATE and by the server's routine, never by its text, which is in the server's language (I3).

mod error;
mod quote;

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{CancelToken, Client, Config, CopyOutStream, NoTls, Row};

pub use error::SqlError;
pub(crate) use quote::{literal, name, quoted, relation};

/// The application's name in `pg_stat_activity`; a source's own name follows it.
pub(crate) const APPLICATION: &str = "landfall";

/// Start-up options that make values mean the same everywhere (P49).
pub(crate) const PINNED: &[(&str, &str)] = &[
    ("DateStyle", "ISO"),
    ("IntervalStyle", "iso_8601"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("lc_monetary", "C"),
    ("statement_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("row_security", "off"),
];

/// How long an ordinary query may take.
pub const QUERY_DEADLINE: Duration = Duration::from_secs(60);

/// A connection for SQL. Dropping it closes it.
pub struct SqlConnection {
    client: Client,
    driver: JoinHandle<()>,
    /// `host:port/database`, for messages.
    peer: String,
    user: String,
    deadline: Duration,
}

impl SqlConnection {
    /// Connects; bounded by the connect timeout of `config`, 10 s without one.
    pub async fn open(config: &Config) -> Result<Self, SqlError> {
        let mut config = config.clone();
        let pinned: Vec<String> = PINNED.iter().map(|(name, value)| format!("-c {name}={value}")).collect();
        // Last wins: ours stand behind the user's.
        let options = config.get_options().map(|own| format!("{own} ")).unwrap_or_default() + &pinned.join(" ");
        config.options(options);
        if config.get_application_name().is_none() {
            config.application_name(APPLICATION);
        }
        let within = config.get_connect_timeout().copied().unwrap_or(Duration::from_secs(10));
        config.connect_timeout(within);
        let peer = peer_of(&config);
        let user = config.get_user().unwrap_or_default().to_owned();
        // One address may take `within`, and a name may have several; a server that accepts and says nothing has no
        // timeout of its own in the library.
        let connected = tokio::time::timeout(within.saturating_mul(2), config.connect(NoTls)).await;
        let (client, connection) = match connected {
            Ok(Ok(connected)) => connected,
            Ok(Err(cause)) => return Err(SqlError::connecting(&peer, &user, &config, cause)),
            Err(_) => return Err(SqlError::silent(&peer, within.saturating_mul(2))),
        };
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an SQL connection ended");
            }
        });
        Ok(SqlConnection { client, driver, peer, user, deadline: QUERY_DEADLINE })
    }

    /// The same with another deadline per query.
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// `host:port/database`.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Whether it has ended.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// The rows of a query. `doing` names the work in messages, as in "read the tables". Cancel-safe: dropping the
    /// future cancels the query on the server.
    pub async fn rows(
        &self,
        doing: &'static str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, SqlError> {
        self.bounded(doing, self.client.query(sql, params)).await
    }

    /// The one row of a query.
    pub async fn row(
        &self,
        doing: &'static str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, SqlError> {
        let mut rows = self.rows(doing, sql, params).await?;
        match (rows.pop(), rows.is_empty()) {
            (Some(row), true) => Ok(row),
            (_, _) => Err(SqlError::answer(&self.peer, doing, "one row was expected")),
        }
    }

    /// Runs statements that give no rows, in one message: they are one transaction unless they say otherwise.
    pub async fn run(&self, doing: &'static str, sql: &str) -> Result<(), SqlError> {
        self.bounded(doing, self.client.batch_execute(sql)).await
    }

    /// Starts a COPY … TO STDOUT; what follows has no deadline here, the reader keeps its own. To give it up, drop
    /// the connection.
    pub(crate) async fn copy_out(&self, doing: &'static str, sql: &str) -> Result<CopyOutStream, SqlError> {
        self.bounded(doing, self.client.copy_out(sql)).await
    }

    /// An error that came out of a running COPY.
    pub(crate) fn failed(&self, doing: &'static str, cause: tokio_postgres::Error) -> SqlError {
        SqlError::running(&self.peer, &self.user, doing, cause)
    }

    async fn bounded<T>(
        &self,
        doing: &'static str,
        query: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, SqlError> {
        let mut cancel = CancelOnDrop { token: Some(self.client.cancel_token()) };
        match tokio::time::timeout(self.deadline, query).await {
            Ok(answer) => {
                cancel.token = None;
                answer.map_err(|cause| self.failed(doing, cause))
            }
            Err(_) => Err(SqlError::Deadline { peer: self.peer.clone(), doing, after: self.deadline }),
        }
    }
}

impl Drop for SqlConnection {
    fn drop(&mut self) {
        // The library would first wait for what is under way, a whole COPY for one.
        self.driver.abort();
    }
}

impl std::fmt::Debug for SqlConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlConnection").field("peer", &self.peer).field("user", &self.user).finish_non_exhaustive()
    }
}

/// Cancels on the server what nobody waits for any more.
struct CancelOnDrop {
    token: Option<CancelToken>,
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(token) = self.token.take() else { return };
        // Outside a runtime the process is ending, and the closed connection ends the query.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = tokio::time::timeout(Duration::from_secs(10), token.cancel_query(NoTls)).await;
            });
        }
    }
}

/// Where a configuration leads, without user and password.
fn peer_of(config: &Config) -> String {
    use tokio_postgres::config::Host;
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(path)) => path.display().to_string(),
        None => config.get_hostaddrs().first().map_or_else(|| "localhost".to_owned(), ToString::to_string),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("{host}:{port}/{database}")
}
