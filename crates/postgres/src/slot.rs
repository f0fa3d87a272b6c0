//! The replication slot: its name, what the server says of it, its identity (P51), and making one (P52).

mod exported;
mod pending;

use std::time::Duration;

pub use exported::ExportedSlot;
pub use pending::has_pending_changes;
use serde::{Deserialize, Serialize};

use crate::catalog::BlockingTransaction;
use crate::sql::{self, SqlConnection, SqlError};
use crate::{ConnectError, Lsn};

/// Whose progress a stored position is: void under any other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SlotIdentity {
    /// The cluster.
    pub system_identifier: u64,
    /// The database.
    pub database_oid: u32,
    /// The slot.
    pub slot: String,
    /// Its output plugin.
    pub plugin: String,
    /// Its consistent point: two slots of one name and place differ in it.
    pub consistent_point: Lsn,
}

impl std::fmt::Display for SlotIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SlotIdentity { system_identifier, database_oid, slot, plugin, consistent_point } = self;
        write!(f, "{system_identifier}/{database_oid}/{slot}/{plugin}/{consistent_point}")
    }
}

/// The plugin that the decoder reads.
pub const PLUGIN: &str = "pgoutput";

/// The longest name of a slot.
pub const SLOT_NAME_MAX: usize = 63;

/// A name that is no slot's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no slot name: 1 to {SLOT_NAME_MAX} characters out of a-z, 0-9 and _; set `slot.name` (LF-PG0212)")]
pub struct SlotNameError {
    /// The name, cut.
    pub name: String,
}

/// Checks a configured name. It enters replication commands as it is, so nothing else may pass.
pub fn check_slot_name(name: &str) -> Result<(), SlotNameError> {
    let is_good = (1..=SLOT_NAME_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if is_good { Ok(()) } else { Err(SlotNameError { name: name.chars().take(80).collect() }) }
}

/// The name where none is configured: `landfall_<pipeline id>`, what a slot cannot hold made `_`, cut (P53). Two
/// pipelines may meet in one name; the assembly refuses that.
pub fn default_slot_name(pipeline: &str) -> String {
    let made = pipeline.chars().map(|of| if of.is_ascii_lowercase() || of.is_ascii_digit() { of } else { '_' });
    "landfall_".chars().chain(made).take(SLOT_NAME_MAX).collect()
}

/// A slot as the server shows it. Fields that a version does not have are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotFacts {
    /// Its name.
    pub name: String,
    /// Its plugin; none of a physical slot.
    pub plugin: Option<String>,
    /// Its database's oid.
    pub database_oid: Option<u32>,
    /// Its database's name.
    pub database: Option<String>,
    /// Whether it ends with its connection.
    pub is_temporary: bool,
    /// Whether prepared transactions are decoded at PREPARE.
    pub is_two_phase: bool,
    /// Who reads from it now.
    pub active_pid: Option<i32>,
    /// Where decoding would start.
    pub restart_lsn: Option<Lsn>,
    /// Below it nothing will be sent again.
    pub confirmed_flush_lsn: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved`, `lost`.
    pub wal_status: Option<String>,
    /// How much more may be written before it may be lost.
    pub safe_wal_bytes: Option<i64>,
    /// Why it is lost (17+; 16 knows one reason only).
    pub invalidation_reason: Option<String>,
    /// How long it has been idle, in seconds (17+).
    pub inactive_seconds: Option<u64>,
    /// Whether it is kept on standbys (17+).
    pub is_failover: bool,
    /// Whether this is a standby's copy of a primary's slot (17+).
    pub is_synced: bool,
    /// How old the oldest row version is that it holds in catalogs, in transactions.
    pub catalog_xmin_age: Option<u64>,
    /// The log that it holds, in bytes.
    pub held_bytes: Option<u64>,
}

impl SlotFacts {
    /// Reads one; `None` if there is none of that name. `major` is the server's version.
    pub async fn read(sql: &SqlConnection, major: u32, name: &str) -> Result<Option<Self>, SqlError> {
        let doing = "read the replication slot";
        let (reason, inactive, failover, synced) = match major {
            ..=15 => ("NULL::text", "NULL::int8", "false", "false"),
            16 => ("CASE WHEN s.conflicting THEN 'conflict with recovery' END", "NULL::int8", "false", "false"),
            _ => (
                "s.invalidation_reason",
                "greatest(0, extract(epoch FROM clock_timestamp() - s.inactive_since))::int8",
                "s.failover",
                "s.synced",
            ),
        };
        let query = format!(
            "SELECT s.slot_name::text, s.plugin::text, s.datoid, s.database::text, s.temporary, s.two_phase, s.active_pid,
                    s.restart_lsn::text, s.confirmed_flush_lsn::text, s.wal_status, s.safe_wal_size,
                    {reason}, {inactive}, {failover}, {synced}, pg_catalog.age(s.catalog_xmin)::int8,
                    pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery()
                      THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END, s.restart_lsn)::int8
             FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1"
        );
        let rows = sql.rows(doing, &query, &[&name]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let lsn = |at: usize| -> Result<Option<Lsn>, SqlError> {
            let text: Option<String> = row.try_get(at).map_err(|cause| sql.failed(doing, cause))?;
            let parsed = text.map(|text| text.parse::<Lsn>()).transpose();
            parsed.map_err(|error| SqlError::answer(sql.peer(), doing, error.to_string()))
        };
        let (restart_lsn, confirmed_flush_lsn) = (lsn(7)?, lsn(8)?);
        let count = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok());
        let read = || -> Result<SlotFacts, tokio_postgres::Error> {
            Ok(SlotFacts {
                name: row.try_get(0)?,
                plugin: row.try_get(1)?,
                database_oid: row.try_get(2)?,
                database: row.try_get(3)?,
                is_temporary: row.try_get(4)?,
                is_two_phase: row.try_get(5)?,
                active_pid: row.try_get(6)?,
                restart_lsn,
                confirmed_flush_lsn,
                wal_status: row.try_get(9)?,
                safe_wal_bytes: row.try_get(10)?,
                invalidation_reason: row.try_get(11)?,
                inactive_seconds: count(row.try_get(12)?),
                is_failover: row.try_get(13)?,
                is_synced: row.try_get(14)?,
                catalog_xmin_age: count(row.try_get(15)?),
                held_bytes: count(row.try_get(16)?),
            })
        };
        read().map(Some).map_err(|cause| sql.failed(doing, cause))
    }
}

/// Drops a slot that nobody reads from.
pub async fn drop_slot(sql: &SqlConnection, name: &str) -> Result<(), SqlError> {
    sql.run("drop the replication slot", &format!("SELECT pg_catalog.pg_drop_replication_slot({})", sql::literal(name)))
        .await
}

/// Why a slot was not made.
#[derive(Debug, thiserror::Error)]
pub enum SlotCreationError {
    /// Writers did not end in time.
    #[error(
        "slot `{slot}` could not be created within {after:?}: it waits for transactions that were open before it: {}; end them or raise `snapshot.slot_timeout`; this is tried again (LF-PG0213)",
        list(blocking)
    )]
    Timeout {
        /// The slot.
        slot: String,
        /// The bound.
        after: Duration,
        /// Who is waited for, oldest first.
        blocking: Vec<BlockingTransaction>,
    },
    /// The server or the connection failed.
    #[error(transparent)]
    Replication(#[from] ConnectError),
    /// The open transactions could not be read.
    #[error(transparent)]
    Sql(#[from] SqlError),
}

impl landfall_types::Coded for SlotCreationError {
    fn code(&self) -> landfall_types::Code {
        match self {
            SlotCreationError::Timeout { .. } => crate::code::SLOT_TIMEOUT,
            SlotCreationError::Replication(error) => error.code(),
            SlotCreationError::Sql(error) => error.code(),
        }
    }

    fn kind(&self) -> landfall_types::Kind {
        crate::connect::page_of(self.code()).map_or(landfall_types::Kind::Internal, |page| page.kind)
    }

    fn retry(&self) -> landfall_types::Retry {
        crate::connect::page_of(self.code()).map_or(landfall_types::Retry::Later, |page| page.retry)
    }
}

fn list(blocking: &[BlockingTransaction]) -> String {
    if blocking.is_empty() {
        return "none is visible to this role (GRANT pg_read_all_stats to see them)".to_owned();
    }
    blocking.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Makes a slot by `create`, a command on a replication connection of its own, within `timeout`; past it, names the
/// transactions that it waits for and ends the server's side, which does not notice by itself that nobody waits any
/// more: the server then removes the slot whose creation did not finish. A future that is dropped instead leaves the
/// server waiting, and a slot behind once it is done; on a first start that is the orphan of LF-PG0211.
pub async fn create_within<T>(
    slot: &str,
    timeout: Duration,
    sql: &SqlConnection,
    create: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, SlotCreationError> {
    /// How often a waiting creation says whom it waits for.
    const REPORT_EVERY: Duration = Duration::from_secs(10);
    let deadline = tokio::time::Instant::now() + timeout;
    let mut report = tokio::time::interval_at(tokio::time::Instant::now() + REPORT_EVERY, REPORT_EVERY);
    tokio::pin!(create);
    loop {
        tokio::select! {
            biased;
            created = &mut create => return Ok(created?),
            () = tokio::time::sleep_until(deadline) => {
                let blocking = BlockingTransaction::read(sql).await?;
                let query = "SELECT pg_catalog.pg_terminate_backend(active_pid) FROM pg_catalog.pg_replication_slots
                             WHERE slot_name = $1 AND active_pid IS NOT NULL";
                sql.rows("give up the slot's creation", query, &[&slot]).await?;
                return Err(SlotCreationError::Timeout { slot: slot.to_owned(), after: timeout, blocking });
            }
            _ = report.tick() => {
                let blocking = BlockingTransaction::read(sql).await?;
                tracing::info!(slot, waits_for = %list(&blocking), "the slot waits for open transactions");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Catches a name that ends a replication command and begins another.
    #[test]
    fn only_plain_names_reach_a_replication_command() {
        for name in ["a", "landfall_orders", &"x".repeat(63)] {
            assert_eq!(check_slot_name(name), Ok(()));
        }
        for name in ["", "A", "a-b", "a b", "a\" LOGICAL", "ü", &"x".repeat(64)] {
            assert!(check_slot_name(name).is_err(), "{name}");
        }
    }

    proptest! {
        /// Catches a default that the server refuses.
        #[test]
        fn every_pipeline_has_a_legal_default_name(pipeline in ".{0,80}") {
            prop_assert_eq!(check_slot_name(&default_slot_name(&pipeline)), Ok(()));
        }
    }
}
