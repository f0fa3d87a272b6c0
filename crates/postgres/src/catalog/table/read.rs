//! Reads the tables that patterns mean, in a bounded number of queries whatever their number.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio_postgres::Row;

use super::facts::{LeafFacts, NotCarried, SkippedRelation, TableFacts};
use super::key::{IndexRow, key_of};
use crate::catalog::TablePattern;
use crate::catalog::types::TypeCatalog;
use crate::publication::PublishedTable;
use crate::sql::{SqlConnection, SqlError};
use crate::{ColumnShape, Identity, PgType, RelationId, TableName, TableShape};

/// The most tables (with partitions: leaves) that one source carries.
pub const TABLES_MAX: usize = 20_000;

/// What patterns mean on this server now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchedTables {
    /// Tables that are carried, by name.
    pub tables: Vec<TableFacts>,
    /// What is meant and cannot be carried.
    pub skipped: Vec<SkippedRelation>,
    /// Patterns that mean nothing that is there, by their place in the list.
    pub unmatched: Vec<usize>,
    /// Patterns that mean something that is there and decide none of it, since one before them does each time.
    pub idle: Vec<usize>,
    /// There are more than [`TABLES_MAX`]: the rest was not read.
    pub is_cut: bool,
}

/// Catalog schemas are never meant, whatever a pattern says.
const RELATIONS: &str = r"
    SELECT c.oid, n.nspname::text, c.relname::text, c.relkind, c.relpersistence, c.relreplident,
           pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
           ARRAY(SELECT a.relid::pg_catalog.oid FROM pg_catalog.pg_partition_ancestors(c.oid) AS a(relid)
                 WHERE a.relid <> c.oid)
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
      AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
      AND EXISTS (SELECT 1 FROM unnest($1::text[], $2::text[]) AS p(of_schema, of_table)
                  WHERE n.nspname::text LIKE p.of_schema AND c.relname::text LIKE p.of_table)
    ORDER BY 2, 3
    LIMIT $3::int8";

const LEAVES: &str = r"
    SELECT root.oid, c.oid, n.nspname::text, c.relname::text, c.relkind, c.relreplident, c.relfilenode,
           coalesce(pg_catalog.pg_relation_size(CASE WHEN c.relkind = 'r' THEN c.oid END), 0),
           pg_catalog.row_security_active(c.oid), pg_catalog.has_table_privilege(c.oid, 'SELECT'),
           c.reltoastrelid <> 0
    FROM unnest($1::pg_catalog.oid[]) AS root(oid)
    CROSS JOIN LATERAL (
      SELECT t.relid::pg_catalog.oid AS oid FROM pg_catalog.pg_partition_tree(root.oid) t WHERE t.isleaf
      UNION SELECT root.oid) AS member
    JOIN pg_catalog.pg_class c ON c.oid = member.oid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    ORDER BY root.oid, 3, 4
    LIMIT $2::int8";

const COLUMNS: &str = r"
    SELECT a.attrelid, a.attnum, a.attname::text, a.atttypid, a.atttypmod, a.attnotnull,
           a.attgenerated <> '', a.attstorage <> 'p' AND a.attlen = -1
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = ANY($1) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attrelid, a.attnum";

/// Of a partition root, which stores nothing, it says nothing.
const FILLED: &str = r"
    SELECT a.attname::text
    FROM pg_catalog.pg_attribute a
    JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
    WHERE a.attrelid = $1 AND a.attname::text = ANY($2) AND NOT a.attisdropped AND c.relkind = 'r'
      AND (a.atthasdef OR a.attidentity <> '') AND a.attgenerated = '' AND NOT a.atthasmissing
    ORDER BY a.attnum";

const INDEXES: &str = r"
    SELECT i.indrelid, c.relname::text, i.indisprimary, i.indisreplident, i.indisunique, i.indimmediate,
           i.indisvalid, i.indpred IS NOT NULL OR i.indexprs IS NOT NULL,
           (pg_catalog.string_to_array(i.indkey::text, ' ')::int2[])[1:i.indnkeyatts]
    FROM pg_catalog.pg_index i
    JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = ANY($1) AND (i.indisunique OR i.indisreplident)
    ORDER BY i.indrelid, i.indexrelid";

struct Relation {
    oid: u32,
    name: TableName,
    kind: u8,
    persistence: u8,
    identity: Identity,
    may_use_schema: bool,
    ancestors: Vec<u32>,
}

struct Member {
    facts: LeafFacts,
    identity: Identity,
    is_partitioned: bool,
    has_toast: bool,
}

/// Reads what the patterns mean. With `published`, columns and row filters are those of a publication: what it does
/// not send is not a column of the table for us (P74).
pub async fn read_tables(
    sql: &SqlConnection,
    patterns: &[TablePattern],
    published: &[PublishedTable],
) -> Result<MatchedTables, SqlError> {
    let (relations, mut matched) = read_relations(sql, patterns).await?;
    let oids: Vec<u32> = relations.iter().map(|relation| relation.oid).collect();
    let mut members = read_members(sql, &oids, &mut matched).await?;
    let everyone: Vec<u32> =
        members.values().flatten().map(|member| member.facts.relation.0).collect::<HashSet<_>>().into_iter().collect();
    let indexes = read_indexes(sql, &everyone).await?;
    let mut columns = read_columns(sql, &oids).await?;
    let type_oids: HashSet<u32> = columns.values().flatten().map(|column| column.type_oid).collect();
    let types = TypeCatalog::read(sql, &type_oids.into_iter().collect::<Vec<_>>()).await?;
    for relation in relations {
        let own = members.remove(&relation.oid).unwrap_or_default();
        let columns = columns.remove(&relation.oid).unwrap_or_default();
        let published = published.iter().find(|table| table.relation.0 == relation.oid);
        // A table that was dropped between two of the queries is simply not there.
        if let Some(facts) = assemble(relation, own, columns, &indexes, &types, published) {
            matched.tables.push(facts);
        }
    }
    Ok(matched)
}

/// The names of the key under identity FULL, which no message says, in the table's order; empty where there is none.
pub(crate) async fn read_full_key(sql: &SqlConnection, relation: RelationId) -> Result<Vec<Arc<str>>, SqlError> {
    let columns = read_columns(sql, &[relation.0]).await?.remove(&relation.0).unwrap_or_default();
    let indexes = read_indexes(sql, &[relation.0]).await?.remove(&relation.0).unwrap_or_default();
    let not_null: Vec<i16> =
        columns.iter().filter(|column| column.shape.is_not_null).map(|column| column.shape.attnum).collect();
    let key = key_of(Identity::Full, &indexes, &not_null);
    let is_key = |column: &ColumnRow| key.columns.contains(&column.shape.attnum);
    Ok(columns.into_iter().filter(is_key).map(|column| column.shape.name).collect())
}

/// Which of these columns, just added, gave the rows that were there a value each: their default is no constant, so the
/// table was written anew, without a change. A constant is kept beside the table, and rows of before have it too.
pub(crate) async fn filled_columns(
    sql: &SqlConnection,
    relation: RelationId,
    names: &[Arc<str>],
) -> Result<Vec<Arc<str>>, SqlError> {
    let doing = "read the defaults of new columns";
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    let mut filled = Vec::new();
    for row in sql.rows(doing, FILLED, &[&relation.0, &names]).await? {
        filled.push(row.try_get::<_, &str>(0).map_err(|cause| sql.failed(doing, cause))?.into());
    }
    Ok(filled)
}

async fn read_relations(
    sql: &SqlConnection,
    patterns: &[TablePattern],
) -> Result<(Vec<Relation>, MatchedTables), SqlError> {
    let doing = "read the tables";
    let (schemas, tables): (Vec<String>, Vec<String>) = patterns.iter().map(TablePattern::like).unzip();
    let limit = TABLES_MAX as i64 + 1;
    let mut relations = Vec::new();
    let mut matched = MatchedTables::default();
    let mut hits = vec![false; patterns.len()];
    let mut decides = hits.clone();
    let rows = sql.rows(doing, RELATIONS, &[&schemas, &tables, &limit]).await?;
    matched.is_cut = rows.len() > TABLES_MAX;
    for row in rows.iter().take(TABLES_MAX) {
        let relation = read_relation(row).map_err(|cause| sql.failed(doing, cause))?;
        let mut is_decided = false;
        for ((hit, decides), pattern) in hits.iter_mut().zip(&mut decides).zip(patterns) {
            let is_hit = pattern.matches(&relation.name.schema, &relation.name.table);
            *hit |= is_hit;
            *decides |= is_hit && !is_decided;
            is_decided |= is_hit;
        }
        match not_carried(relation.kind, relation.persistence) {
            Some(why) => matched.skipped.push(SkippedRelation { name: relation.name, why }),
            None => relations.push(relation),
        }
    }
    matched.unmatched = hits.iter().enumerate().filter(|(_, hit)| !**hit).map(|(at, _)| at).collect();
    let idle = hits.iter().zip(&decides).enumerate().filter(|(_, (hit, decides))| **hit && !**decides);
    matched.idle = idle.map(|(at, _)| at).collect();
    // A partition is sent under its root's name: where a pattern means both, it means the root.
    let chosen: HashSet<u32> = relations.iter().map(|relation| relation.oid).collect();
    relations.retain(|relation| !relation.ancestors.iter().any(|ancestor| chosen.contains(ancestor)));
    Ok((relations, matched))
}

fn read_relation(row: &Row) -> Result<Relation, tokio_postgres::Error> {
    Ok(Relation {
        oid: row.try_get(0)?,
        name: name_of(row, 1)?,
        kind: row.try_get::<_, i8>(3)? as u8,
        persistence: row.try_get::<_, i8>(4)? as u8,
        identity: identity_of(row.try_get(5)?),
        may_use_schema: row.try_get(6)?,
        ancestors: row.try_get(7)?,
    })
}

fn not_carried(kind: u8, persistence: u8) -> Option<NotCarried> {
    match (kind, persistence) {
        (b'v', _) => Some(NotCarried::View),
        (b'm', _) => Some(NotCarried::MaterializedView),
        (b'f', _) => Some(NotCarried::ForeignTable),
        (b'S', _) => Some(NotCarried::Sequence),
        (_, b'u') => Some(NotCarried::Unlogged),
        (_, b't') => Some(NotCarried::Temporary),
        _ => None,
    }
}

/// Each table's members: its leaves, and itself where it is partitioned.
async fn read_members(
    sql: &SqlConnection,
    oids: &[u32],
    matched: &mut MatchedTables,
) -> Result<HashMap<u32, Vec<Member>>, SqlError> {
    let doing = "read the partitions";
    let limit = TABLES_MAX as i64 + 1;
    let rows = sql.rows(doing, LEAVES, &[&oids, &limit]).await?;
    matched.is_cut |= rows.len() > TABLES_MAX;
    let mut members: HashMap<u32, Vec<Member>> = HashMap::new();
    for row in &rows {
        let read = || -> Result<(u32, Member), tokio_postgres::Error> {
            let kind = row.try_get::<_, i8>(4)? as u8;
            let facts = LeafFacts {
                relation: RelationId(row.try_get(1)?),
                name: name_of(row, 2)?,
                has_usable_identity: false,
                file_node: row.try_get(6)?,
                heap_bytes: u64::try_from(row.try_get::<_, i64>(7)?).unwrap_or_default(),
                is_row_security_active: row.try_get(8)?,
                may_select: row.try_get(9)?,
                is_foreign: kind == b'f',
            };
            let has_toast = row.try_get(10)?;
            let identity = identity_of(row.try_get(5)?);
            Ok((row.try_get(0)?, Member { facts, identity, is_partitioned: kind == b'p', has_toast }))
        };
        let (root, member) = read().map_err(|cause| sql.failed(doing, cause))?;
        members.entry(root).or_default().push(member);
    }
    Ok(members)
}

struct ColumnRow {
    shape: ColumnShape,
    type_oid: u32,
}

async fn read_columns(sql: &SqlConnection, oids: &[u32]) -> Result<HashMap<u32, Vec<ColumnRow>>, SqlError> {
    let doing = "read the columns";
    let mut columns: HashMap<u32, Vec<ColumnRow>> = HashMap::new();
    for row in sql.rows(doing, COLUMNS, &[&oids]).await? {
        let read = || -> Result<(u32, ColumnRow), tokio_postgres::Error> {
            let type_oid = row.try_get(3)?;
            let shape = ColumnShape {
                attnum: row.try_get(1)?,
                name: row.try_get::<_, &str>(2)?.into(),
                type_oid,
                modifier: row.try_get(4)?,
                kind: PgType::Text,
                is_not_null: row.try_get(5)?,
                is_key: false,
                is_generated: row.try_get(6)?,
                is_toastable: row.try_get(7)?,
            };
            Ok((row.try_get(0)?, ColumnRow { shape, type_oid }))
        };
        let (relation, column) = read().map_err(|cause| sql.failed(doing, cause))?;
        columns.entry(relation).or_default().push(column);
    }
    Ok(columns)
}

async fn read_indexes(sql: &SqlConnection, oids: &[u32]) -> Result<HashMap<u32, Vec<IndexRow>>, SqlError> {
    let doing = "read the keys";
    let mut indexes: HashMap<u32, Vec<IndexRow>> = HashMap::new();
    for row in sql.rows(doing, INDEXES, &[&oids]).await? {
        let read = || -> Result<(u32, IndexRow), tokio_postgres::Error> {
            let index = IndexRow {
                name: row.try_get::<_, &str>(1)?.into(),
                is_primary: row.try_get(2)?,
                is_identity: row.try_get(3)?,
                is_unique: row.try_get(4)?,
                is_immediate: row.try_get(5)?,
                is_valid: row.try_get(6)?,
                is_partial: row.try_get(7)?,
                columns: row.try_get(8)?,
            };
            Ok((row.try_get(0)?, index))
        };
        let (relation, index) = read().map_err(|cause| sql.failed(doing, cause))?;
        indexes.entry(relation).or_default().push(index);
    }
    Ok(indexes)
}

fn assemble(
    relation: Relation,
    members: Vec<Member>,
    columns: Vec<ColumnRow>,
    indexes: &HashMap<u32, Vec<IndexRow>>,
    types: &TypeCatalog,
    published: Option<&PublishedTable>,
) -> Option<TableFacts> {
    let not_null: Vec<i16> =
        columns.iter().filter(|column| column.shape.is_not_null).map(|column| column.shape.attnum).collect();
    let indexes_of = |oid: u32| indexes.get(&oid).map(Vec::as_slice).unwrap_or_default();
    let key = key_of(relation.identity, indexes_of(relation.oid), &not_null);
    let own = members.iter().find(|member| member.facts.relation.0 == relation.oid)?;
    let is_row_security_active = own.facts.is_row_security_active;
    let may_select = own.facts.may_select;
    let is_partitioned = relation.kind == b'p';
    let leaves: Vec<Member> = members.into_iter().filter(|member| !member.is_partitioned).collect();
    let has_toast = leaves.iter().any(|leaf| leaf.has_toast);
    // A leaf's columns have numbers of their own, and FULL needs none: only usability is asked of it.
    let leaves = leaves
        .into_iter()
        .map(|leaf| LeafFacts {
            has_usable_identity: !leaf.facts.is_foreign
                && key_of(leaf.identity, indexes_of(leaf.facts.relation.0), &[]).has_usable_identity,
            ..leaf.facts
        })
        .collect();
    let is_sent = |column: &ColumnShape| match published.and_then(|table| table.columns.as_ref()) {
        Some(sent) => sent.iter().any(|name| **name == *column.name),
        None => !column.is_generated,
    };
    let columns: Vec<ColumnShape> = columns
        .into_iter()
        .map(|column| ColumnShape {
            kind: types.resolve(column.type_oid, column.shape.modifier),
            is_key: key.columns.contains(&column.shape.attnum),
            is_toastable: column.shape.is_toastable && has_toast,
            ..column.shape
        })
        .filter(is_sent)
        .collect();
    let text_columns = columns.iter().filter(|column| is_other(&column.kind)).map(|column| Arc::clone(&column.name));
    Some(TableFacts {
        text_columns: text_columns.collect(),
        key: key.origin,
        has_usable_identity: key.has_usable_identity,
        deferrable_key: key.deferrable,
        is_partitioned,
        leaves,
        is_row_security_active,
        may_use_schema: relation.may_use_schema,
        may_select,
        row_filter: published.and_then(|table| table.row_filter.clone()),
        shape: TableShape {
            relation: RelationId(relation.oid),
            name: relation.name,
            identity: relation.identity,
            columns,
        },
    })
}

fn is_other(kind: &PgType) -> bool {
    match kind {
        PgType::Other(_) => true,
        PgType::Array { element, .. } => is_other(element),
        _ => false,
    }
}

fn name_of(row: &Row, at: usize) -> Result<TableName, tokio_postgres::Error> {
    Ok(TableName { schema: row.try_get::<_, &str>(at)?.into(), table: row.try_get::<_, &str>(at + 1)?.into() })
}

fn identity_of(letter: i8) -> Identity {
    match letter as u8 {
        b'd' => Identity::Default,
        b'i' => Identity::Index,
        b'f' => Identity::Full,
        _ => Identity::Nothing,
    }
}
