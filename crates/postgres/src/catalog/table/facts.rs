//! What is known of a table.

use std::sync::Arc;

use crate::sql::{name, relation};
use crate::{RelationId, TableName, TableShape};

/// A table that a source carries: a plain table, or a partitioned one with all its leaves (root mode).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFacts {
    /// Its shape, with what the publication sends if one was given to the read.
    pub shape: TableShape,
    /// Where its key comes from.
    pub key: KeyOrigin,
    /// Whether its own identity can name the rows that updates and deletes are about. Of a partitioned table each
    /// leaf has its own ([`LeafFacts::has_usable_identity`]), and those count.
    pub has_usable_identity: bool,
    /// The constraint of its key, if that is checked at commit only, so that one transaction may hold a key twice (P72).
    pub deferrable_key: Option<Arc<str>>,
    /// Whether it is partitioned.
    pub is_partitioned: bool,
    /// Where its rows are: itself, or the leaves of its partitions.
    pub leaves: Vec<LeafFacts>,
    /// Whether row security would hide rows of it from this role.
    pub is_row_security_active: bool,
    /// Whether this role may use the schema.
    pub may_use_schema: bool,
    /// Whether this role may read it.
    pub may_select: bool,
    /// The row filter of the publication, as the server prints it (15+).
    pub row_filter: Option<String>,
    /// The columns whose types have no exact form of their own and are carried as text.
    pub text_columns: Vec<Arc<str>>,
}

/// A relation that holds rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafFacts {
    /// Its oid.
    pub relation: RelationId,
    /// Its name.
    pub name: TableName,
    /// Whether its identity can name rows.
    pub has_usable_identity: bool,
    /// Bytes of its heap, without TOAST and indexes.
    pub heap_bytes: u64,
    /// Its file; another number after a rewrite.
    pub file_node: u32,
    /// Whether row security would hide rows of it from this role.
    pub is_row_security_active: bool,
    /// Whether this role may read it by its own name, as the copy does.
    pub may_select: bool,
    /// Whether it is no ordinary table (a foreign table as a partition): its rows are in no log.
    pub is_foreign: bool,
}

/// Where a table's key comes from (P69).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyOrigin {
    /// The primary key.
    PrimaryKey,
    /// The index that is the table's replica identity.
    IdentityIndex(Arc<str>),
    /// A unique index over NOT NULL columns, of a table with identity FULL.
    UniqueIndex(Arc<str>),
    /// There is none: rows that are equal cannot be told apart.
    None,
}

/// Why a relation that a pattern means is not carried (P8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCarried {
    /// A view.
    View,
    /// A materialized view.
    MaterializedView,
    /// A foreign table.
    ForeignTable,
    /// A sequence.
    Sequence,
    /// An unlogged table: nothing of it is in the log.
    Unlogged,
    /// A temporary table.
    Temporary,
}

impl std::fmt::Display for NotCarried {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NotCarried::View => "a view",
            NotCarried::MaterializedView => "a materialized view",
            NotCarried::ForeignTable => "a foreign table",
            NotCarried::Sequence => "a sequence",
            NotCarried::Unlogged => "an unlogged table",
            NotCarried::Temporary => "a temporary table",
        })
    }
}

/// A relation that a pattern means and that is not carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedRelation {
    /// Its name.
    pub name: TableName,
    /// Why.
    pub why: NotCarried,
}

impl TableFacts {
    /// Whether updates and deletes of every row in it say which row they are about.
    pub fn is_identified(&self) -> bool {
        if self.is_partitioned {
            self.leaves.iter().all(|leaf| leaf.has_usable_identity)
        } else {
            self.has_usable_identity
        }
    }

    /// Why its key does not tell what lives, and the statement that mends it; none where it does (P72).
    ///
    /// Swapping the keys 1 and 2 in one transaction is delete(1) insert(2) delete(2) insert(1), and by the last change of
    /// each key the row 2 would be gone.
    pub fn deferrable_key_problem(&self) -> Option<(String, String)> {
        let constraint = self.deferrable_key.as_ref()?;
        let of = relation(&self.shape.name);
        let columns: Vec<String> =
            self.shape.columns.iter().filter(|column| column.is_key).map(|column| name(&column.name)).collect();
        let (constraint, columns) = (name(constraint), columns.join(", "));
        let reason = format!(
            "the key of {of}, {constraint} ({columns}), is DEFERRABLE: one transaction may hold it twice for a while, and \
             the last change of a key does not tell then what lives"
        );
        Some((reason, format!("ALTER TABLE {of} DROP CONSTRAINT {constraint}, ADD PRIMARY KEY ({columns});")))
    }

    /// Heap bytes of all leaves.
    pub fn heap_bytes(&self) -> u64 {
        self.leaves.iter().map(|leaf| leaf.heap_bytes).sum()
    }
}
