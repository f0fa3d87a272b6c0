//! Gathers the facts that the rules look at.

use landfall_types::{Code, Coded};

use super::{CheckOptions, Finding, PostgresCheck, nearest_tables};
use crate::catalog::{ServerFacts, TablePattern, read_tables};
use crate::publication::{PublicationFacts, PublicationPlan, plan_publication};
use crate::record::SourceRecord;
use crate::slot::SlotFacts;
use crate::sql::{SqlConnection, SqlError, name};
use crate::startup::switch_point;
use crate::transport::ReplicationConnection;
use crate::{ConnectError, ConnectOptions, Lsn, TableName, code};

impl PostgresCheck {
    /// Reads all facts; changes nothing. Fails only if SQL itself does: [`Finding::of_connection`] says that.
    pub async fn read(
        connect: &ConnectOptions,
        options: &CheckOptions,
        record: Option<&SourceRecord>,
    ) -> Result<Self, SqlError> {
        let sql = &SqlConnection::open(connect).await?;
        let server = ServerFacts::read(sql).await?;
        let publication = PublicationFacts::read(sql, server.major(), &options.publication).await?;
        let patterns: Vec<TablePattern> = options.tables.iter().map(|(pattern, _)| pattern.clone()).collect();
        let published = publication.as_ref().map(|facts| facts.tables.as_slice()).unwrap_or_default();
        let tables = read_tables(sql, &patterns, published).await?;
        let near = nearest_tables(sql, &patterns, &tables).await?;
        let plan = plan_publication(&options.publication, publication.as_ref(), &tables.tables);
        let slot = SlotFacts::read(sql, server.major(), &options.startup.slot).await?;
        let doing = "read what this role may do";
        let query = "SELECT pg_catalog.has_database_privilege(current_database(), 'CREATE')";
        let may_create = sql.row(doing, query, &[]).await?.try_get(0).map_err(|cause| sql.failed(doing, cause))?;
        let not_owned = not_owned(sql, &plan).await?;
        let left_behind = left_behind(sql, &options.startup.slot).await?;
        let physical_slots = physical_slots(sql).await?;
        let (replication_refused, switch_point) = match replication(connect, &server, record).await {
            Ok(switch_point) => (None, switch_point),
            Err(error) => (Some((error.code(), error.to_string())), None),
        };
        Ok(PostgresCheck {
            server,
            tables,
            publication,
            plan,
            slot,
            switch_point,
            may_create,
            not_owned,
            replication_refused,
            left_behind,
            near,
            physical_slots,
        })
    }
}

impl Finding {
    /// What is said where no SQL connection comes about.
    pub fn of_connection(error: &SqlError, connect: &ConnectOptions) -> Finding {
        let code: Code = error.code();
        let text = error.to_string();
        let finding = Finding::error(code, text.rsplit_once(" (LF-").map_or(text.as_str(), |(text, _)| text));
        let (user, database) = (name(&connect.user), &connect.database);
        match code {
            code::HBA => finding
                .fix(format!("host {database} {user} <this host's address>/32 scram-sha-256"))
                .help("a line for pg_hba.conf; then SELECT pg_reload_conf(); on the server"),
            code::PASSWORD => finding.fix(format!("ALTER ROLE {user} LOGIN PASSWORD '…';")),
            code::DATABASE => finding.help("correct the path of `url`; names are case-sensitive"),
            code::UNREACHABLE => {
                finding.help("check host and port of `url`, that the server runs, and `listen_addresses`")
            }
            _ => finding,
        }
    }
}

/// Only a table's owner may add it to a publication.
async fn not_owned(sql: &SqlConnection, plan: &PublicationPlan) -> Result<Vec<TableName>, SqlError> {
    let doing = "read who owns the tables";
    let oids: Vec<u32> = plan.missing_tables.iter().map(|(relation, _)| relation.0).collect();
    let query = "SELECT c.oid FROM pg_catalog.pg_class c
                 WHERE c.oid = ANY ($1) AND NOT pg_catalog.pg_has_role(c.relowner, 'USAGE')";
    let mut foreign = Vec::new();
    for row in sql.rows(doing, query, &[&oids]).await? {
        let oid: u32 = row.try_get(0).map_err(|cause| sql.failed(doing, cause))?;
        foreign
            .extend(plan.missing_tables.iter().find(|(relation, _)| relation.0 == oid).map(|(_, name)| name.clone()));
    }
    foreign.sort();
    Ok(foreign)
}

/// Whether a replication connection works, and where the server left the record's timeline if it has another now.
async fn replication(
    connect: &ConnectOptions,
    server: &ServerFacts,
    record: Option<&SourceRecord>,
) -> Result<Option<Lsn>, ConnectError> {
    let mut connection = ReplicationConnection::connect(connect).await?;
    connection.identify_system().await?;
    match record {
        Some(record) if record.timeline < server.timeline => {
            let history = connection.timeline_history(server.timeline).await?;
            Ok(switch_point(history.into_iter().map(|switch| (switch.timeline, switch.at)), record.timeline))
        }
        _ => Ok(None),
    }
}

async fn physical_slots(sql: &SqlConnection) -> Result<Vec<String>, SqlError> {
    let doing = "read the standbys' slots";
    let query = "SELECT s.slot_name::text FROM pg_catalog.pg_replication_slots s
                 WHERE s.slot_type = 'physical' AND NOT s.temporary ORDER BY 1 LIMIT 20";
    let rows = sql.rows(doing, query, &[]).await?;
    rows.iter().map(|row| row.try_get(0).map_err(|cause| sql.failed(doing, cause))).collect()
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
