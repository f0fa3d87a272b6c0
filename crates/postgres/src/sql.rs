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
use tokio_postgres::{Client, Row};

use crate::ConnectOptions;
use crate::connect::{HAS_TRANSACTION_TIMEOUT, NO_TRANSACTION_TIMEOUT, TAKE_UNCHECKED, UNCHECKED_ENCODING};
use crate::transport::ServerVersion;

pub use error::{SqlCause, SqlError};
pub(crate) use quote::{literal, name, quoted, relation};

/// How long an ordinary query may take.
pub const QUERY_DEADLINE: Duration = Duration::from_secs(60);

/// A connection for SQL. Dropping it closes it.
pub struct SqlConnection {
    client: Client,
    driver: JoinHandle<()>,
    options: ConnectOptions,
    /// The server's process, for a cancel by another connection.
    pid: i32,
    /// `host:port/database`, for messages.
    peer: String,
    deadline: Duration,
}

impl SqlConnection {
    /// Connects, each address within the connect timeout of `options`.
    pub async fn open(options: &ConnectOptions) -> Result<Self, SqlError> {
        Self::open_within(options, QUERY_DEADLINE).await
    }

    /// The same with another deadline per query, from the first one on.
    pub async fn open_within(options: &ConnectOptions, deadline: Duration) -> Result<Self, SqlError> {
        let (client, connection) = options.connect_sql().await?;
        let is_unchecked = connection.parameter("server_encoding") == Some(UNCHECKED_ENCODING);
        let version = connection.parameter("server_version").and_then(ServerVersion::parse);
        let has_transaction_timeout = version.is_some_and(|version| version.0 >= HAS_TRANSACTION_TIMEOUT);
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an SQL connection ended");
            }
        });
        let host = options.endpoints.first().map(ToString::to_string).unwrap_or_default();
        let peer = format!("{host}/{}", options.database);
        let mut opened = SqlConnection { client, driver, options: options.clone(), pid: 0, peer, deadline };
        let doing = "ask for the connection's process";
        let row = opened.row(doing, "SELECT pg_catalog.pg_backend_pid()", &[]).await?;
        opened.pid = row.try_get(0).map_err(|cause| opened.failed(doing, cause))?;
        if is_unchecked {
            opened.run("take text as it is", TAKE_UNCHECKED).await?;
        }
        if has_transaction_timeout {
            opened.run("lift the bound of transactions", NO_TRANSACTION_TIMEOUT).await?;
        }
        Ok(opened)
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

    /// The server's process of this connection.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it has ended.
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// The rows of a query. `doing` names the work in messages, as in "read the tables". Cancel-safe: dropping the
    /// future cancels the query on the server and closes this connection.
    pub async fn rows(
        &self,
        doing: &'static str,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, SqlError> {
        self.bounded(doing, self.client.query(sql, params)).await
    }

    /// The one row of a query.
    pub async fn row(&self, doing: &'static str, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Row, SqlError> {
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

    /// From here on this connection sees an exported snapshot and nothing else, as COPY workers and the catalog reads
    /// of a copy do: what a table had then is what its rows have.
    pub async fn enter_snapshot(&self, snapshot: &str) -> Result<(), SqlError> {
        self.run("use the copy's snapshot", &see_snapshot(snapshot)).await
    }

    /// An error of the library.
    pub(crate) fn failed(&self, doing: &'static str, cause: tokio_postgres::Error) -> SqlError {
        SqlError::running(&self.peer, &self.options.user, doing, cause)
    }

    async fn bounded<T>(
        &self,
        doing: &'static str,
        query: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, SqlError> {
        let mut cancel = CancelOnDrop { connection: Some(self) };
        match tokio::time::timeout(self.deadline, query).await {
            Ok(answer) => {
                cancel.connection = None;
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
        f.debug_struct("SqlConnection")
            .field("peer", &self.peer)
            .field("user", &self.options.user)
            .finish_non_exhaustive()
    }
}

/// Cancels on the server what nobody waits for any more.
struct CancelOnDrop<'a> {
    connection: Option<&'a SqlConnection>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        // A connection that has ended has nothing to cancel, and its process number may be another's by now.
        if connection.is_closed() || connection.pid == 0 {
            return;
        }
        // A later query of this connection must not be hit by the cancel.
        connection.driver.abort();
        cancel_on_server(connection.options.clone(), connection.pid);
    }
}

/// Cancels what a process of the server does, by a connection of its own, beside the caller.
pub(crate) fn cancel_on_server(options: ConnectOptions, pid: i32) {
    // Outside a runtime the process is ending, and the closed connection ends the query.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        if let Ok((client, driver)) = options.connect_sql().await {
            let driver = tokio::spawn(driver);
            let statement = format!("SELECT pg_catalog.pg_cancel_backend({pid})");
            let cancelled = client.batch_execute(&statement);
            if tokio::time::timeout(Duration::from_secs(10), cancelled).await.is_err() {
                tracing::debug!(pid, "the server did not answer a cancel request");
            }
            driver.abort();
        }
    });
}

/// Statements after which a connection sees an exported snapshot and nothing else.
pub(crate) fn see_snapshot(snapshot: &str) -> String {
    format!(
        "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET TRANSACTION SNAPSHOT {}",
        literal(snapshot)
    )
}
