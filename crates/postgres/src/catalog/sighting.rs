//! What the stream does not tell of a table (P82b, F-P18): which partitions it has and in which files, the numbers of its
//! columns, and by which row the publication lists it.
//!
//! A look is a few queries whatever the number of tables. Partitions are read from `pg_inherits`, which obeys a snapshot,
//! not by `pg_partition_tree`, which does not: a look inside a copy's snapshot shows what that copy is made of.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sql::{self, SqlConnection, SqlError};
use crate::{Lsn, RelationId, TableName};

/// A table as one look shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableSighting {
    /// The row by which the publication lists it; none where it takes tables in by itself.
    pub(crate) listed: Option<u32>,
    /// Transactions before it had ended when this was read.
    pub(crate) horizon: u32,
    /// Its columns, by number.
    pub(crate) columns: Vec<SightedColumn>,
    /// Itself if it holds rows, and each partition on every level.
    pub(crate) members: Vec<Member>,
}

/// A column as the catalog has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SightedColumn {
    pub(crate) number: i16,
    pub(crate) name: Arc<str>,
    /// Rows of before have values that were written into them: it has a default and no value that stands for absent ones.
    pub(crate) is_written: bool,
}

/// A relation of a table: itself, or a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) relation: RelationId,
    pub(crate) name: TableName,
    /// What it is a partition of; of the table itself, itself.
    pub(crate) parent: RelationId,
    /// The file of its rows; 0 where it has none, being partitioned itself.
    pub(crate) file: u32,
    /// The transaction by which it became a partition.
    pub(crate) joined: u32,
}

/// Where a new partition comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Made as a partition, in one command: all rows that it ever had came while it was one.
    pub(crate) is_born: bool,
    /// Its file holds nothing.
    pub(crate) is_empty: bool,
    /// It has the file that it was made with.
    pub(crate) has_first_file: bool,
}

const HORIZON: &str = "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::int8 % 4294967296";

const MEMBERS: &str = r"
    WITH RECURSIVE tree(root, oid, parent, joined) AS (
      SELECT r.oid, r.oid, r.oid, '0'::pg_catalog.xid FROM unnest($1::pg_catalog.oid[]) AS r(oid)
      UNION ALL
      SELECT t.root, i.inhrelid, i.inhparent, i.xmin
      FROM tree t
      JOIN pg_catalog.pg_class p ON p.oid = t.oid AND p.relkind = 'p'
      JOIN pg_catalog.pg_inherits i ON i.inhparent = p.oid AND NOT i.inhdetachpending)
    SELECT t.root, t.oid, t.parent, t.joined::text::int8, c.relfilenode, n.nspname::text, c.relname::text
    FROM tree t
    JOIN pg_catalog.pg_class c ON c.oid = t.oid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' OR t.oid <> t.root
    ORDER BY 1, 2";

/// The fast way to add a column keeps one value for all rows of before; where that is not there and a default is, the rows
/// were written anew. A rewrite of the table writes such a value into the rows as well.
const COLUMNS: &str = r"
    SELECT a.attrelid, a.attnum, a.attname::text,
           (a.atthasdef OR a.attidentity <> '') AND NOT a.atthasmissing AND a.attgenerated = ''
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = ANY($1) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY 1, 2";

const LISTED: &str = r"
    SELECT r.prrelid, r.oid
    FROM pg_catalog.pg_publication_rel r
    JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid
    WHERE p.pubname = $1 AND r.prrelid = ANY($2)";

/// A command writes all that it makes under its own number. CREATE … PARTITION OF writes the columns of the table and of
/// the system at once; ATTACH PARTITION writes the former again, as it does the row in `pg_class`, whose `xmin` therefore
/// tells nothing. A later change of one column leaves the others as they were.
const ORIGINS: &str = r"
    SELECT c.oid, coalesce(pg_catalog.pg_relation_size(CASE WHEN c.relkind = 'r' THEN c.oid END), 0) = 0,
           c.relfilenode = c.oid,
           EXISTS (SELECT FROM pg_catalog.pg_attribute s
                   JOIN pg_catalog.pg_attribute a ON a.attrelid = s.attrelid AND a.xmin = s.xmin AND a.cmin = s.cmin
                   WHERE s.attrelid = c.oid AND s.attnum = -1 AND s.xmin = i.xmin
                     AND a.attnum > 0 AND NOT a.attisdropped)
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
    WHERE c.oid = ANY($1)";

/// Looks at tables, in the snapshot of the connection if it has one. Those that are not there are left out.
pub(crate) async fn read_sightings(
    sql: &SqlConnection,
    publication: &str,
    relations: &[RelationId],
) -> Result<BTreeMap<RelationId, TableSighting>, SqlError> {
    let doing = "look at the tables";
    let oids: Vec<u32> = relations.iter().map(|relation| relation.0).collect();
    // Before anything else: a row from before it is older than every file that is seen below.
    let row = sql.row(doing, HORIZON, &[]).await?;
    let horizon = transaction(&row, 0).map_err(|cause| sql.failed(doing, cause))?;
    let mut sightings: BTreeMap<RelationId, TableSighting> = BTreeMap::new();
    for row in sql.rows(doing, COLUMNS, &[&oids]).await? {
        let read = || -> Result<(u32, SightedColumn), tokio_postgres::Error> {
            let column = SightedColumn {
                number: row.try_get(1)?,
                name: row.try_get::<_, &str>(2)?.into(),
                is_written: row.try_get(3)?,
            };
            Ok((row.try_get(0)?, column))
        };
        let (relation, column) = read().map_err(|cause| sql.failed(doing, cause))?;
        let new = || TableSighting { horizon, ..TableSighting::default() };
        sightings.entry(RelationId(relation)).or_insert_with(new).columns.push(column);
    }
    for row in sql.rows(doing, MEMBERS, &[&oids]).await? {
        let read = || -> Result<(u32, Member), tokio_postgres::Error> {
            let member = Member {
                relation: RelationId(row.try_get(1)?),
                parent: RelationId(row.try_get(2)?),
                joined: transaction(&row, 3)?,
                file: row.try_get(4)?,
                name: TableName { schema: row.try_get::<_, &str>(5)?.into(), table: row.try_get::<_, &str>(6)?.into() },
            };
            Ok((row.try_get(0)?, member))
        };
        let (root, member) = read().map_err(|cause| sql.failed(doing, cause))?;
        if let Some(sighting) = sightings.get_mut(&RelationId(root)) {
            sighting.members.push(member);
        }
    }
    for row in sql.rows(doing, LISTED, &[&publication, &oids]).await? {
        let read = || -> Result<(u32, u32), tokio_postgres::Error> { Ok((row.try_get(0)?, row.try_get(1)?)) };
        let (relation, listed) = read().map_err(|cause| sql.failed(doing, cause))?;
        if let Some(sighting) = sightings.get_mut(&RelationId(relation)) {
            sighting.listed = Some(listed);
        }
    }
    Ok(sightings)
}

/// Where partitions come from.
pub(crate) async fn read_origins(
    sql: &SqlConnection,
    members: &[RelationId],
) -> Result<BTreeMap<RelationId, Origin>, SqlError> {
    let doing = "look at new partitions";
    let oids: Vec<u32> = members.iter().map(|member| member.0).collect();
    let mut origins = BTreeMap::new();
    for row in sql.rows(doing, ORIGINS, &[&oids]).await? {
        let read = || -> Result<(u32, Origin), tokio_postgres::Error> {
            let (is_empty, has_first_file) = (row.try_get(1)?, row.try_get(2)?);
            Ok((row.try_get(0)?, Origin { is_born: row.try_get(3)?, is_empty, has_first_file }))
        };
        let (member, origin) = read().map_err(|cause| sql.failed(doing, cause))?;
        origins.insert(RelationId(member), origin);
    }
    Ok(origins)
}

/// Whether a relation holds a row that was written before `horizon`. A file that is younger than such a row was made from
/// the one before; one that was emptied has none.
pub(crate) async fn holds_rows_of_before(
    sql: &SqlConnection,
    member: &TableName,
    horizon: u32,
) -> Result<bool, SqlError> {
    let doing = "look for older rows";
    let query = format!(
        "SELECT EXISTS (SELECT FROM ONLY {} WHERE pg_catalog.age(xmin) > pg_catalog.age($1::text::pg_catalog.xid))",
        sql::relation(member)
    );
    let row = sql.row(doing, &query, &[&horizon.to_string()]).await?;
    row.try_get(0).map_err(|cause| sql.failed(doing, cause))
}

/// The names that relations have now, of those that are there.
pub(crate) async fn names_of(
    sql: &SqlConnection,
    relations: &[RelationId],
) -> Result<BTreeMap<RelationId, TableName>, SqlError> {
    let doing = "read the names of partitions";
    let oids: Vec<u32> = relations.iter().map(|relation| relation.0).collect();
    let query = "SELECT c.oid, n.nspname::text, c.relname::text FROM pg_catalog.pg_class c
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY($1)";
    let mut names = BTreeMap::new();
    for row in sql.rows(doing, query, &[&oids]).await? {
        let read = || -> Result<(u32, TableName), tokio_postgres::Error> {
            let (schema, table) = (row.try_get::<_, &str>(1)?.into(), row.try_get::<_, &str>(2)?.into());
            Ok((row.try_get(0)?, TableName { schema, table }))
        };
        let (relation, name) = read().map_err(|cause| sql.failed(doing, cause))?;
        names.insert(RelationId(relation), name);
    }
    Ok(names)
}

/// The end of the log: whatever a catalog read before this shows is below it.
pub(crate) async fn log_end(sql: &SqlConnection) -> Result<Lsn, SqlError> {
    let doing = "read the end of the log";
    let query =
        "SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN coalesce(pg_catalog.pg_last_wal_replay_lsn(), '0/0')
                         ELSE pg_catalog.pg_current_wal_lsn() END)::text";
    let row = sql.row(doing, query, &[]).await?;
    let text: String = row.try_get(0).map_err(|cause| sql.failed(doing, cause))?;
    text.parse().map_err(|_| SqlError::answer(sql.peer(), doing, "a log position of another form".to_owned()))
}

/// The server's major version.
pub(crate) async fn major(sql: &SqlConnection) -> Result<u32, SqlError> {
    let doing = "read the server's version";
    let row = sql.row(doing, "SELECT current_setting('server_version_num')::int4 / 10000", &[]).await?;
    let major: i32 = row.try_get(0).map_err(|cause| sql.failed(doing, cause))?;
    u32::try_from(major).map_err(|_| SqlError::answer(sql.peer(), doing, "a negative version".to_owned()))
}

/// A transaction's number, of 32 bits, as the query casts it.
fn transaction(row: &tokio_postgres::Row, at: usize) -> Result<u32, tokio_postgres::Error> {
    Ok(u32::try_from(row.try_get::<_, i64>(at)?).unwrap_or_default())
}
