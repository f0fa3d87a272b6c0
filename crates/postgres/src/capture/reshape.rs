//! What becomes of a table as a Relation message describes it (P82–P84): its rows go on as they are, in another shape, or it
//! is parked.
//!
//! A message sends no rows, so what is in a destination is as it was. Whether the table may go on all the same is the
//! destinations' to say ([`TableAbilities`]): a lake holds the rows of before by their type and key, in a channel each record
//! is whole by itself. What goes on there is noted, for whoever reads behind it. A message is *then* and the catalog is *now*,
//! so the catalog is asked only for what no message says.

use std::sync::Arc;

use landfall_engine::contract::TableAbilities;
use landfall_types::Coded;

use super::table::{Captured, Parked};
use crate::catalog::{filled_columns, read_full_key, resolve_types};
use crate::relations::{Relation, ShapeDiff, StreamColumn};
use crate::rows::RowPlan;
use crate::sql::{SqlConnection, SqlError};
use crate::values::{Target, arrow_type};
use crate::{ColumnShape, ConnectOptions, Identity, PgType, RelationId, TableShape, code};

/// What a Relation message asks for.
#[derive(Debug)]
pub(crate) enum Follow {
    /// Rows go on as they are.
    AsIs,
    /// Another shape, for which this is to be looked up first.
    Reshape(Unknown),
    /// It cannot be carried on.
    Park(Parked),
}

/// What no message says.
#[derive(Debug, Default)]
pub(crate) struct Unknown {
    /// What these types are, by oid and modifier.
    types: Vec<(u32, i32)>,
    /// Whether rows that were there have a value in these new columns, which no change brought.
    filled: Vec<Arc<str>>,
    /// The key under identity FULL.
    key: bool,
}

/// What the catalog says of it.
#[derive(Debug, Default)]
pub(crate) struct Found {
    types: Vec<(u32, i32, PgType)>,
    filled: Vec<Arc<str>>,
    key: Option<Vec<Arc<str>>>,
}

/// A table in its new shape.
#[derive(Debug)]
pub(crate) struct Reshaped {
    pub(crate) table: Captured,
    /// What a reader of the changes has to know, if anything.
    pub(crate) notes: Vec<String>,
}

impl Unknown {
    pub(crate) fn is_nothing(&self) -> bool {
        self.types.is_empty() && self.filled.is_empty() && !self.key
    }

    /// Asks the catalog as it is now.
    pub(crate) async fn look_up(self, connect: &ConnectOptions, relation: RelationId) -> Result<Found, SqlError> {
        let sql = SqlConnection::open(connect).await?;
        let mut found = Found { types: resolve_types(&sql, &self.types).await?, ..Found::default() };
        if !self.filled.is_empty() {
            found.filled = filled_columns(&sql, relation, &self.filled).await?;
        }
        if self.key {
            found.key = Some(read_full_key(&sql, relation).await?);
        }
        Ok(found)
    }
}

/// Whether the message itself says which columns are the key.
fn is_flagged(identity: Identity) -> bool {
    matches!(identity, Identity::Default | Identity::Index)
}

/// Why rows of before cannot be found by the key of now, if they cannot.
fn rekeyed(shape: &TableShape, diff: &ShapeDiff, now: &Relation) -> Option<String> {
    if let Some((_, Identity::Nothing)) = diff.identity {
        return Some("its replica identity is NOTHING now: updates and deletes do not say which row".to_owned());
    }
    let joined = diff.added.iter().find(|column| is_flagged(now.identity) && column.is_identity);
    let changed = diff.rekeyed.first().map(|rekeyed| (&rekeyed.name, rekeyed.is_identity));
    if let Some((name, is_identity)) = changed.or(joined.map(|column| (&column.name, true))) {
        let what = if is_identity { "joined" } else { "left" };
        return Some(format!("column `{name}` {what} the key"));
    }
    let dropped = diff.dropped.iter().find(|name| shape.key_names().any(|key| key == *name))?;
    Some(format!("column `{dropped}` of the key was dropped or renamed"))
}

impl Captured {
    /// What becomes of the table as a Relation message describes it.
    pub(crate) fn follow(&self, now: &Relation, abilities: TableAbilities) -> Follow {
        let shape = self.plan.shape();
        let diff = ShapeDiff::between(shape, now);
        let rekeyed = rekeyed(shape, &diff, now);
        if !abilities.takes_new_keys
            && let Some(reason) = rekeyed
        {
            return Follow::Park(Parked { code: code::NEEDS_RESYNC, reason });
        }
        // What a change carries depends on the identity, so where that is noted it is a part of the shape.
        let is_another = abilities.takes_new_keys && (rekeyed.is_some() || diff.identity.is_some());
        if diff.keeps_rows() && !is_another {
            return Follow::AsIs;
        }
        let retyped = diff.retyped.iter().map(|retyped| retyped.now);
        let added = diff.added.iter().map(|column| (column.type_oid, column.modifier));
        let types = retyped.chain(added).collect();
        let filled =
            diff.added.iter().filter(|_| abilities.takes_new_types).map(|column| column.name.clone()).collect();
        let key = abilities.takes_new_keys && now.identity == Identity::Full;
        Follow::Reshape(Unknown { types, filled, key })
    }

    /// The table in its new shape, once what [`Follow::Reshape`] asked for is found.
    pub(crate) fn reshaped(
        &self,
        now: &Relation,
        found: &Found,
        shape: u32,
        abilities: TableAbilities,
    ) -> Result<Reshaped, Parked> {
        let known = self.plan.shape();
        let mut notes = Vec::new();
        let is_key = |column: &StreamColumn, before: Option<&ColumnShape>| match (now.identity, &found.key) {
            (Identity::Default | Identity::Index, _) => column.is_identity,
            (Identity::Full, Some(key)) => key.contains(&column.name),
            (Identity::Full, None) => before.is_some_and(|before| before.is_key),
            (Identity::Nothing, _) => false,
        };
        let mut columns = Vec::with_capacity(now.columns.len());
        for column in &now.columns {
            let before = known.columns.iter().find(|known| known.name == column.name);
            let is_same =
                before.is_some_and(|known| (known.type_oid, known.modifier) == (column.type_oid, column.modifier));
            let is_key = is_key(column, before);
            let (Some(before), true) = (before, is_same) else {
                let kind = found.kind_of(column);
                if let Some(before) = before
                    && let Some(what) = self.retyped(before, &kind)
                {
                    if !abilities.takes_new_types {
                        return Err(Parked { code: code::NEEDS_RESYNC, reason: what });
                    }
                    notes.push(what);
                }
                columns.push(ColumnShape {
                    name: column.name.clone(),
                    attnum: before.map_or(0, |before| before.attnum),
                    type_oid: column.type_oid,
                    modifier: column.modifier,
                    kind,
                    is_not_null: before.is_some_and(|before| before.is_not_null),
                    is_key,
                    is_generated: false,
                    is_toastable: true,
                });
                continue;
            };
            columns.push(ColumnShape { is_key, ..before.clone() });
        }
        let shape_now =
            TableShape { relation: known.relation, name: now.name.clone(), identity: now.identity, columns };
        let plan = RowPlan::new(Arc::new(shape_now), self.options.clone())
            .map_err(|error| Parked { code: error.code(), reason: error.to_string() })?;
        notes.extend(found.filled.iter().map(|name| {
            format!("column `{name}` came with a value for each row that was there, which no change brings")
        }));
        if abilities.takes_new_keys {
            notes.extend(key_notes(&self.plan, &plan));
        }
        Ok(Reshaped { table: Captured { shape, plan: Arc::new(plan), ..self.clone() }, notes })
    }

    /// A change of type sends no rows, so what is in the target is as it was: only where old and new values have one form
    /// there is it none (P83).
    fn retyped(&self, before: &ColumnShape, now: &PgType) -> Option<String> {
        let policies = self.options.columns.get(&before.name).unwrap_or(&self.options.policies);
        let form = |kind: &PgType, target: Target| arrow_type(kind, policies, target);
        let (was, is) = (form(&before.kind, self.options.target), form(now, self.options.target));
        let keeps_bytes = was == is && matches!((&before.kind, now), (PgType::Text, PgType::Text))
            || before.kind == *now
            || matches!((&before.kind, now), (PgType::Numeric(Some((low, one))), PgType::Numeric(Some((high, other)))) if one == other && low <= high && was == is);
        (!keeps_bytes).then(|| {
            format!(
                "column `{}` has another type now, whose rewrite of the table sends no rows: it was {:?} and is {:?}",
                before.name, before.kind, now
            )
        })
    }
}

impl Found {
    fn kind_of(&self, column: &StreamColumn) -> PgType {
        let is_it = |(oid, modifier, _): &&(u32, i32, PgType)| (*oid, *modifier) == (column.type_oid, column.modifier);
        let kind = self.types.iter().find(is_it).map(|(.., kind)| kind.clone());
        kind.unwrap_or_else(|| PgType::Other(format!("type {}", column.type_oid).into()))
    }
}

/// How rows are told apart from here on, where that is in another way.
fn key_notes(before: &RowPlan, now: &RowPlan) -> Vec<String> {
    let mut notes = Vec::new();
    if before.key() != now.key() {
        let (was, is) = (names(before.key()), names(now.key()));
        notes.push(format!(
            "its rows are told apart by {is} from here on, before by {was}: their records have other keys"
        ));
    }
    let (was, is) = (before.shape().identity, now.shape().identity);
    let names_no_row = is == Identity::Nothing || (is_flagged(is) && now.key().is_empty());
    if names_no_row && (was != is || before.key() != now.key()) {
        notes.push(
            "it has no replica identity: as long as it is published, the server refuses its UPDATE and DELETE"
                .to_owned(),
        );
    } else if was != is {
        notes.push(format!("its replica identity is {} now, it was {}", word(is), word(was)));
    }
    notes
}

fn names(key: &[Arc<str>]) -> String {
    match key {
        [] => "nothing".to_owned(),
        key => key.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
    }
}

fn word(identity: Identity) -> &'static str {
    match identity {
        Identity::Default => "DEFAULT",
        Identity::Index => "an index",
        Identity::Full => "FULL",
        Identity::Nothing => "NOTHING",
    }
}

#[cfg(test)]
mod tests;
