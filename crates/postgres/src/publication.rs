//! Publications: what one holds, and the statements that make it hold what a source needs (P53).
//!
//! Ours list their tables, send partitions through the root, and carry all four operations; never FOR ALL TABLES. A
//! table without a usable identity is never added: the source database's own UPDATEs on it would fail from then on.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::catalog::TableFacts;
use crate::sql::{self, SqlConnection, SqlError};
use crate::{RelationId, TableName};

/// A table of a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedTable {
    /// Its oid: of the root in root mode, else of each leaf.
    pub relation: RelationId,
    /// Its name.
    pub name: TableName,
    /// What is sent of it; `None` before version 15, which sends all but generated columns.
    pub columns: Option<Vec<String>>,
    /// Its row filter, as the server prints it.
    pub row_filter: Option<String>,
}

/// A publication as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicationFacts {
    /// Its name.
    pub name: String,
    /// FOR ALL TABLES.
    pub is_for_all_tables: bool,
    /// FOR TABLES IN SCHEMA, of at least one schema (15+).
    pub has_schemas: bool,
    /// Operations that it leaves out, in the server's words.
    pub missing_operations: Vec<&'static str>,
    /// Whether partitions are sent under their root's name.
    pub is_via_root: bool,
    /// Whether this role owns it and so may change it.
    pub is_own: bool,
    /// Its tables.
    pub tables: Vec<PublishedTable>,
}

/// What a publication lacks, and the statements that mend it, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublicationPlan {
    /// Run these, in one transaction.
    pub statements: Vec<String>,
    /// What each is for, in the same order.
    pub reasons: Vec<String>,
    /// Tables that must not be published, because their identity cannot name rows.
    pub refused: Vec<TableName>,
    /// It does not exist yet.
    pub is_missing: bool,
    /// Whether operations or the root mode have to be set.
    pub sets_mode: bool,
    /// Tables that it lacks.
    pub missing_tables: Vec<(RelationId, TableName)>,
}

impl PublicationPlan {
    /// Whether nothing is lacking.
    pub fn is_complete(&self) -> bool {
        self.statements.is_empty() && self.refused.is_empty()
    }
}

const PUBLICATION: &str = "
    SELECT p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot,
           pg_catalog.pg_has_role(p.pubowner, 'USAGE')
    FROM pg_catalog.pg_publication p WHERE p.pubname = $1";

const TABLES_14: &str = "
    SELECT c.oid, t.schemaname::text, t.tablename::text, NULL::text[], NULL::text
    FROM pg_catalog.pg_publication_tables t
    JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
    WHERE t.pubname = $1";

/// Before 18 the view lists generated columns, which are never sent.
const TABLES_15: &str = "
    SELECT c.oid, t.schemaname::text, t.tablename::text,
           ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attname = ANY (t.attnames) AND a.attgenerated = ''), t.rowfilter
    FROM pg_catalog.pg_publication_tables t
    JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
    WHERE t.pubname = $1";

const TABLES_18: &str = "
    SELECT c.oid, t.schemaname::text, t.tablename::text, t.attnames::text[], t.rowfilter
    FROM pg_catalog.pg_publication_tables t
    JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
    WHERE t.pubname = $1";

impl PublicationFacts {
    /// Reads one; `None` if there is none of that name. `major` is the server's version.
    pub async fn read(sql: &SqlConnection, major: u32, name: &str) -> Result<Option<Self>, SqlError> {
        let doing = "read the publication";
        let rows = sql.rows(doing, PUBLICATION, &[&name]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let yes = |at: usize| row.try_get::<_, bool>(at).map_err(|cause| sql.failed(doing, cause));
        let mut missing_operations = Vec::new();
        for (at, operation) in [(1, "insert"), (2, "update"), (3, "delete"), (4, "truncate")] {
            if !yes(at)? {
                missing_operations.push(operation);
            }
        }
        let has_schemas = major >= 15 && {
            let query = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_publication_namespace s
                         JOIN pg_catalog.pg_publication p ON p.oid = s.pnpubid WHERE p.pubname = $1)";
            sql.row(doing, query, &[&name]).await?.try_get(0).map_err(|cause| sql.failed(doing, cause))?
        };
        let mut facts = PublicationFacts {
            name: name.to_owned(),
            is_for_all_tables: yes(0)?,
            has_schemas,
            missing_operations,
            is_via_root: yes(5)?,
            is_own: yes(6)?,
            tables: Vec::new(),
        };
        let query = match major {
            ..15 => TABLES_14,
            15..18 => TABLES_15,
            _ => TABLES_18,
        };
        for row in sql.rows(doing, query, &[&name]).await? {
            let read = || -> Result<PublishedTable, tokio_postgres::Error> {
                Ok(PublishedTable {
                    relation: RelationId(row.try_get(0)?),
                    name: TableName {
                        schema: row.try_get::<_, &str>(1)?.into(),
                        table: row.try_get::<_, &str>(2)?.into(),
                    },
                    columns: row.try_get(3)?,
                    row_filter: row.try_get(4)?,
                })
            };
            facts.tables.push(read().map_err(|cause| sql.failed(doing, cause))?);
        }
        Ok(Some(facts))
    }
}

/// What has to be done so that `name` publishes `tables`. What it publishes beyond them is left alone: rows of tables
/// that nobody asked for are skipped by the decoder.
pub fn plan_publication(name: &str, now: Option<&PublicationFacts>, tables: &[TableFacts]) -> PublicationPlan {
    let mut plan = PublicationPlan { is_missing: now.is_none(), ..PublicationPlan::default() };
    let publication = sql::name(name);
    let has = |relation| now.is_some_and(|facts| facts.tables.iter().any(|table| table.relation == relation));
    let mut add = BTreeMap::new();
    for table in tables {
        // Without root mode the server lists the leaves in place of the root; mending the mode brings the root.
        let is_there = has(table.shape.relation)
            || (table.is_partitioned && !table.leaves.is_empty() && table.leaves.iter().all(|leaf| has(leaf.relation)));
        if !table.is_identified() {
            plan.refused.push(table.shape.name.clone());
        } else if !is_there {
            add.insert(table.shape.name.clone(), table.shape.relation);
        }
    }
    plan.missing_tables = add.iter().map(|(name, relation)| (*relation, name.clone())).collect();
    // Without ONLY the server adds every child of an inheritance parent, with or without an identity.
    let only = |table: &TableName| format!("ONLY {}", sql::relation(table));
    let list = add.keys().map(only).collect::<Vec<_>>().join(", ");
    let Some(now) = now else {
        // An empty publication is legal, and is what a source starts with whose tables are all refused.
        let tables = if list.is_empty() { String::new() } else { format!(" FOR TABLE {list}") };
        plan.statements.push(format!(
            "CREATE PUBLICATION {publication}{tables} WITH (publish = 'insert, update, delete, truncate', publish_via_partition_root = true);"
        ));
        plan.reasons.push(format!("publication `{name}` does not exist"));
        return plan;
    };
    plan.sets_mode = !now.missing_operations.is_empty() || !now.is_via_root;
    if !now.missing_operations.is_empty() {
        plan.statements
            .push(format!("ALTER PUBLICATION {publication} SET (publish = 'insert, update, delete, truncate');"));
        plan.reasons.push(format!("publication `{name}` leaves out {}", now.missing_operations.join(", ")));
    }
    if !now.is_via_root {
        plan.statements.push(format!("ALTER PUBLICATION {publication} SET (publish_via_partition_root = true);"));
        plan.reasons.push(format!("publication `{name}` sends partitions under their own names"));
    }
    if !list.is_empty() {
        plan.statements.push(format!("ALTER PUBLICATION {publication} ADD TABLE {list};"));
        let lacking = add.keys().map(sql::relation).collect::<Vec<_>>().join(", ");
        plan.reasons.push(format!("publication `{name}` lacks {lacking}"));
    }
    plan
}

/// Runs the statements of a plan in one transaction.
pub async fn apply_publication(sql: &SqlConnection, plan: &PublicationPlan) -> Result<(), SqlError> {
    if plan.statements.is_empty() {
        return Ok(());
    }
    // Statements of one message are one transaction, which a failure ends by itself.
    sql.run("make the publication complete", &plan.statements.join("\n")).await
}

/// Why a table was not added to a publication.
#[derive(Debug, thiserror::Error)]
pub enum AddTableError {
    /// Its lock was not given.
    #[error(
        "table {} was not locked within {after:?}: something writes to it in a long transaction; this is tried again, and `SELECT pid, query FROM pg_stat_activity` shows who writes (LF-PG0508)",
        sql::relation(table)
    )]
    Lock {
        /// The table.
        table: TableName,
        /// The bound.
        after: Duration,
    },
    /// Transactions that were open before did not end.
    #[error(
        "transactions that were open when {} was added did not end within {after:?}: what they wrote to it before is in neither copy nor stream; this is tried again (LF-PG0508)",
        sql::relation(table)
    )]
    Writers {
        /// The table.
        table: TableName,
        /// The bound.
        after: Duration,
    },
    /// The server refused, or the connection failed.
    #[error(transparent)]
    Sql(#[from] SqlError),
}

/// Adds a table to a running publication, so that no row is in neither copy nor stream (P59): the lock waits for
/// every transaction that has written to it, and the commit makes the change count for all that write after.
pub async fn add_table_locked(
    sql: &SqlConnection,
    publication: &str,
    table: &TableName,
    lock_timeout: Duration,
) -> Result<(), AddTableError> {
    let statements = format!(
        "SET LOCAL lock_timeout = {}; LOCK TABLE {table} IN SHARE MODE; ALTER PUBLICATION {} ADD TABLE ONLY {table};",
        lock_timeout.as_millis(),
        sql::name(publication),
        table = sql::relation(table),
    );
    match sql.run("add a table to the publication", &statements).await {
        Err(error) if error.sqlstate() == Some("55P03") => {
            Err(AddTableError::Lock { table: table.clone(), after: lock_timeout })
        }
        other => Ok(other?),
    }
}

/// The same without a lock: adds it, then waits until every transaction that was open then has ended.
pub async fn add_table_waiting(
    sql: &SqlConnection,
    publication: &str,
    table: &TableName,
    timeout: Duration,
) -> Result<(), AddTableError> {
    const LOOK_EVERY: Duration = Duration::from_millis(200);
    let doing = "wait for older transactions";
    let statement = format!("ALTER PUBLICATION {} ADD TABLE ONLY {};", sql::name(publication), sql::relation(table));
    sql.run("add a table to the publication", &statement).await?;
    let query = "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text";
    let row = sql.row(doing, query, &[]).await?;
    let first_after: String = row.try_get(0).map_err(|cause| sql.failed(doing, cause))?;
    let deadline = tokio::time::Instant::now() + timeout;
    let query = "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()) >= $1::text::pg_catalog.xid8";
    loop {
        let row = sql.row(doing, query, &[&first_after]).await?;
        if row.try_get(0).map_err(|cause| sql.failed(doing, cause))? {
            return Ok(());
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(AddTableError::Writers { table: table.clone(), after: timeout });
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests;
