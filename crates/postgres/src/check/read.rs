//! Gathers the facts that the rules look at.

use super::{CheckOptions, PostgresCheck};
use crate::Lsn;
use crate::catalog::{ServerFacts, TablePattern, read_tables};
use crate::publication::{PublicationFacts, plan_publication};
use crate::slot::SlotFacts;
use crate::sql::{SqlConnection, SqlError};

impl PostgresCheck {
    /// Reads all facts over one connection; changes nothing. `switch_point` is asked for by the caller, who has a
    /// replication connection, if the record's timeline is another one.
    pub async fn read(
        sql: &SqlConnection,
        options: &CheckOptions,
        switch_point: Option<Lsn>,
    ) -> Result<Self, SqlError> {
        let server = ServerFacts::read(sql).await?;
        let publication = PublicationFacts::read(sql, server.major(), &options.publication).await?;
        let patterns: Vec<TablePattern> = options.tables.iter().map(|(pattern, _)| pattern.clone()).collect();
        let published = publication.as_ref().map(|facts| facts.tables.as_slice()).unwrap_or_default();
        let tables = read_tables(sql, &patterns, published).await?;
        let plan = plan_publication(&options.publication, publication.as_ref(), &tables.tables);
        let slot = SlotFacts::read(sql, server.major(), &options.startup.slot).await?;
        let doing = "read what this role may do";
        let query = "SELECT pg_catalog.has_database_privilege(current_database(), 'CREATE')";
        let may_create = sql.row(doing, query, &[]).await?.try_get(0).map_err(|cause| sql.failed(doing, cause))?;
        let left_behind = left_behind(sql, &options.startup.slot).await?;
        Ok(PostgresCheck { server, tables, publication, plan, slot, switch_point, may_create, left_behind })
    }
}

/// Idle slots of this database with a name that Landfall gives.
async fn left_behind(sql: &SqlConnection, own: &str) -> Result<Vec<(String, Option<u64>)>, SqlError> {
    let doing = "read the other slots";
    let query = r"
        SELECT s.slot_name::text,
               pg_catalog.pg_wal_lsn_diff(CASE WHEN pg_catalog.pg_is_in_recovery()
                 THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END, s.restart_lsn)::int8
        FROM pg_catalog.pg_replication_slots s
        WHERE s.database = current_database() AND s.slot_name LIKE 'landfall\_%' AND s.slot_name <> $1
          AND s.active_pid IS NULL
        ORDER BY 1 LIMIT 20";
    let mut slots = Vec::new();
    for row in sql.rows(doing, query, &[&own]).await? {
        let read =
            || -> Result<(String, Option<i64>), tokio_postgres::Error> { Ok((row.try_get(0)?, row.try_get(1)?)) };
        let (slot, held) = read().map_err(|cause| sql.failed(doing, cause))?;
        slots.push((slot, held.and_then(|held| u64::try_from(held).ok())));
    }
    Ok(slots)
}
