//! What the stream has said about relations, and how that differs from a table's known shape (P67, P82a).
//!
//! The cache takes in every Relation message, also of tables that are skipped (F-P15), and replaces what it had whole.
//! A change for a relation that is not in it is an error of that table, never a dropped row. [`ShapeDiff`] only says
//! what differs: what to do about it is the schema policy's business, and a message alone never decides a rename.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use landfall_types::{Code, Coded, Kind, Retry};

use crate::decode::{RelationBody, RelationColumn};
use crate::row_codes as codes;
use crate::{Identity, Lsn, RelationId, TableName, TableShape};

/// Relations, and types, that one connection may describe: far beyond real databases, short of a flood (I14).
pub const RELATIONS_MAX: usize = 100_000;

/// A relation as its last Relation message described it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Its oid.
    pub id: RelationId,
    /// Its name.
    pub name: TableName,
    /// How its rows are named.
    pub identity: Identity,
    /// Its columns, in the order of every tuple.
    pub columns: Vec<StreamColumn>,
}

/// A column of a [`Relation`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamColumn {
    /// Its name.
    pub name: Arc<str>,
    /// Whether it belongs to the identity. Under FULL all do.
    pub is_identity: bool,
    /// Its type's oid.
    pub type_oid: u32,
    /// Its type's modifier; -1 for none.
    pub modifier: i32,
}

impl StreamColumn {
    fn matches(&self, column: &RelationColumn<'_>) -> bool {
        (&*self.name, self.is_identity, self.type_oid, self.modifier)
            == (column.name, column.is_identity, column.type_oid, column.modifier)
    }
}

impl Relation {
    fn of(body: &RelationBody<'_>) -> Self {
        Relation {
            id: body.id,
            name: TableName { schema: body.schema.into(), table: body.name.into() },
            identity: body.identity,
            columns: body
                .columns()
                .map(|column| StreamColumn {
                    name: column.name.into(),
                    is_identity: column.is_identity,
                    type_oid: column.type_oid,
                    modifier: column.modifier,
                })
                .collect(),
        }
    }

    fn is(&self, body: &RelationBody<'_>) -> bool {
        (&*self.name.schema, &*self.name.table, self.identity) == (body.schema, body.name, body.identity)
            && self.columns.len() == body.columns().len()
            && self.columns.iter().zip(body.columns()).all(|(known, column)| known.matches(&column))
    }
}

/// What a Relation message brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A relation that this connection had not described.
    New,
    /// What was known already: the server repeats itself after it forgot what it sent.
    Same,
    /// Another shape than before.
    Changed,
}

/// The relations and types that one connection has described.
#[derive(Debug, Default)]
pub struct Relations {
    relations: HashMap<RelationId, Arc<Relation>>,
    types: HashMap<u32, TableName>,
}

impl Relations {
    /// A cache for a new connection, which describes everything anew.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in a Relation message, whether or not its table is followed.
    pub fn take(&mut self, lsn: Lsn, body: &RelationBody<'_>) -> Result<Taken, RelationError> {
        let count = self.relations.len();
        match self.relations.entry(body.id) {
            Entry::Occupied(known) if known.get().is(body) => Ok(Taken::Same),
            Entry::Occupied(mut known) => {
                known.insert(Arc::new(Relation::of(body)));
                Ok(Taken::Changed)
            }
            Entry::Vacant(_) if count >= RELATIONS_MAX => Err(RelationError::TooMany { relation: body.id, lsn }),
            Entry::Vacant(place) => {
                place.insert(Arc::new(Relation::of(body)));
                Ok(Taken::New)
            }
        }
    }

    /// Keeps a type's name. A domain shows its base type's, so types are told from the catalog, not from here.
    pub fn take_type(&mut self, oid: u32, schema: &str, name: &str) {
        if self.types.len() < RELATIONS_MAX || self.types.contains_key(&oid) {
            self.types.insert(oid, TableName { schema: schema.into(), table: name.into() });
        }
    }

    /// The name a Type message gave, for texts.
    pub fn type_name(&self, oid: u32) -> Option<&TableName> {
        self.types.get(&oid)
    }

    /// The relation of a change at `lsn`.
    pub fn get(&self, lsn: Lsn, relation: RelationId) -> Result<&Arc<Relation>, RelationError> {
        self.relations.get(&relation).ok_or(RelationError::Unknown { relation, lsn })
    }

    /// How many relations are known.
    pub fn len(&self) -> usize {
        self.relations.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.relations.is_empty()
    }
}

/// A relation that cannot be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RelationError {
    /// LF-PG0302: parks the table.
    #[error("a change at {lsn} names relation {relation}, which no Relation message described on this connection")]
    Unknown {
        /// The relation.
        relation: RelationId,
        /// The change's position.
        lsn: Lsn,
    },
    /// LF-PG0306.
    #[error("relation {relation} at {lsn} would be number {} of those described, at most {RELATIONS_MAX} are kept", RELATIONS_MAX + 1)]
    TooMany {
        /// The relation.
        relation: RelationId,
        /// The message's position.
        lsn: Lsn,
    },
}

impl Coded for RelationError {
    fn code(&self) -> Code {
        match self {
            RelationError::Unknown { .. } => codes::UNKNOWN_RELATION,
            RelationError::TooMany { .. } => codes::LIMIT,
        }
    }

    fn kind(&self) -> Kind {
        codes::kind_of(self.code())
    }

    fn retry(&self) -> Retry {
        codes::retry_of(self.code())
    }
}

/// How a relation of the stream differs from a table's known shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShapeDiff {
    /// The table's name now, if it is another.
    pub renamed_table: Option<TableName>,
    /// Identity before and now, if it is another.
    pub identity: Option<(Identity, Identity)>,
    /// Columns that the shape does not have, by name.
    pub added: Vec<StreamColumn>,
    /// Columns that the stream no longer sends.
    pub dropped: Vec<Arc<str>>,
    /// Pairs out of `dropped` and `added` that stand at one place with one type: perhaps renamed. Only the catalog's
    /// attnums tell; a message alone never does (P82).
    pub maybe_renamed: Vec<(Arc<str>, Arc<str>)>,
    /// Columns whose type or modifier is another.
    pub retyped: Vec<Retyped>,
    /// Columns that joined or left the identity, under DEFAULT and INDEX.
    pub rekeyed: Vec<Rekeyed>,
    /// Whether the columns that both have come in another order.
    pub is_reordered: bool,
}

/// A column of another type than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retyped {
    /// Its name.
    pub name: Arc<str>,
    /// Type oid and modifier before.
    pub before: (u32, i32),
    /// Type oid and modifier now.
    pub now: (u32, i32),
}

/// A column that joined or left the identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rekeyed {
    /// Its name.
    pub name: Arc<str>,
    /// Whether it belongs to the identity now.
    pub is_identity: bool,
}

impl ShapeDiff {
    /// What of `now` differs from `shape`.
    pub fn between(shape: &TableShape, now: &Relation) -> Self {
        let mut diff = ShapeDiff::default();
        if shape.name != now.name {
            diff.renamed_table = Some(now.name.clone());
        }
        if shape.identity != now.identity {
            diff.identity = Some((shape.identity, now.identity));
        }
        // Tables have up to 1,664 columns, and shapes are compared once per message: no map per lookup.
        let places: HashMap<&str, usize> =
            shape.columns.iter().enumerate().map(|(at, column)| (&*column.name, at)).collect();
        let sent: HashMap<&str, usize> =
            now.columns.iter().enumerate().map(|(at, column)| (&*column.name, at)).collect();
        let identity_is_flagged = matches!(now.identity, Identity::Default | Identity::Index);
        let mut last_place = None;
        for column in &now.columns {
            let Some(known) = places.get(&*column.name).and_then(|at| Some((*at, shape.columns.get(*at)?))) else {
                diff.added.push(column.clone());
                continue;
            };
            let (place, known) = known;
            if last_place.is_some_and(|last| last > place) {
                diff.is_reordered = true;
            }
            last_place = Some(place);
            let (before, is) = ((known.type_oid, known.modifier), (column.type_oid, column.modifier));
            if before != is {
                diff.retyped.push(Retyped { name: column.name.clone(), before, now: is });
            }
            if identity_is_flagged && known.is_key != column.is_identity {
                diff.rekeyed.push(Rekeyed { name: column.name.clone(), is_identity: column.is_identity });
            }
        }
        for (place, known) in shape.columns.iter().enumerate() {
            if sent.contains_key(&*known.name) {
                continue;
            }
            diff.dropped.push(known.name.clone());
            let stands_here = now.columns.get(place).filter(|column| {
                !places.contains_key(&*column.name)
                    && (column.type_oid, column.modifier) == (known.type_oid, known.modifier)
            });
            if let Some(column) = stands_here {
                diff.maybe_renamed.push((known.name.clone(), column.name.clone()));
            }
        }
        diff
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == ShapeDiff::default()
    }

    /// Whether rows of the stream still fit the shape's builders: same columns, same types, same order.
    pub fn keeps_rows(&self) -> bool {
        self.added.is_empty() && self.dropped.is_empty() && self.retyped.is_empty() && !self.is_reordered
    }

    /// Whether rows are named in another way, so that what is in a target cannot be found any more.
    pub fn changes_key(&self) -> bool {
        self.identity.is_some() || !self.rekeyed.is_empty()
    }
}

#[cfg(test)]
mod tests;
