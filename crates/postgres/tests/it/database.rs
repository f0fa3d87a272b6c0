//! A database of a real server, and connections to it.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use landfall_postgres::{ConnectOptions, SqlConnection};
use landfall_testkit::{Postgres, PostgresInstall};

/// How long a test waits for a server to show something.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A cluster with one database `shop`.
pub(crate) struct Shop {
    pub(crate) server: Postgres,
    pub(crate) options: ConnectOptions,
}

impl Shop {
    pub(crate) fn start(install: &PostgresInstall, settings: &[(&str, &str)]) -> Result<Self> {
        let server = Postgres::start_with(install, settings)?;
        let options = ConnectOptions::parse(&server.create_database("shop")?, None, None)?;
        Ok(Shop { server, options })
    }

    pub(crate) fn psql(&self, sql: &str) -> Result<String> {
        self.server.psql("shop", sql)
    }

    pub(crate) async fn sql(&self) -> Result<SqlConnection> {
        Ok(SqlConnection::open(&self.options).await?)
    }

    /// Asks until the answer is `expected`.
    pub(crate) fn wait_for(&self, sql: &str, expected: &str) -> Result<()> {
        let until = Instant::now() + DEADLINE;
        loop {
            let answer = self.psql(sql)?;
            if answer == expected {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("`{sql}` still says `{answer}`, not `{expected}`");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
