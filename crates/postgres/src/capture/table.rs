//! A captured table while it is followed: its shape, how its rows are made, and what a Relation message changes (P82–P85).

use std::sync::Arc;

use landfall_engine::contract::TableSpec;
use landfall_types::{Code, Coded, PartitionId};

use super::options::CaptureOptions;
use super::source::spec;
use crate::catalog::TableFacts;
use crate::record::{TablePhase, TableRecord};
use crate::relations::{Relation, ShapeDiff, StreamColumn};
use crate::rows::{RowOptions, RowPlan};
use crate::values::{Target, arrow_type};
use crate::{ColumnShape, Identity, PgType, RelationId, TableShape, code};

/// One table of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    pub(crate) relation: RelationId,
    pub(crate) target: Arc<str>,
    pub(crate) stream: PartitionId,
    pub(crate) shape: u32,
    pub(crate) plan: Arc<RowPlan>,
    pub(crate) options: RowOptions,
    /// Commits below it are in the copy.
    pub(crate) begins: crate::Lsn,
    /// The copy that it is made of at the moment.
    pub(crate) copying: Option<PartitionId>,
    /// Its rows pass by.
    pub(crate) is_parked: bool,
}

/// Why a table is set aside.
#[derive(Clone, Debug)]
pub(crate) struct Parked {
    pub(crate) code: Code,
    pub(crate) reason: String,
}

/// What a Relation message asks for.
#[derive(Debug)]
pub(crate) enum Follow {
    /// Rows go on as they are.
    AsIs,
    /// New columns, whose types are to be looked up first.
    Ask(Vec<(u32, i32)>),
    /// It cannot be carried on.
    Park(Parked),
}

impl Captured {
    /// As the catalog shows it now.
    pub(crate) fn new(record: &TableRecord, facts: &TableFacts, options: &CaptureOptions) -> Result<Self, Parked> {
        if let Some((reason, fix)) = facts.deferrable_key_problem() {
            let reason = format!("{reason}: `{fix}`, then resync it");
            return Err(Parked { code: code::DEFERRABLE_KEY, reason });
        }
        let name = &facts.shape.name;
        let rows = options.rows_of(&name.schema, &name.table).cloned().unwrap_or_default();
        let plan = RowPlan::new(Arc::new(facts.shape.clone()), rows.clone())
            .map_err(|error| Parked { code: error.code(), reason: error.to_string() })?;
        Ok(Captured {
            relation: record.relation,
            target: record.target.as_str().into(),
            stream: PartitionId(record.stream_partition),
            shape: record.shape,
            plan: Arc::new(plan),
            options: rows,
            begins: record.copy.as_ref().map_or(crate::Lsn::ZERO, |copy| copy.consistent_point),
            copying: record
                .copy
                .as_ref()
                .filter(|_| record.phase == TablePhase::Copying)
                .map(|copy| PartitionId(copy.partition)),
            is_parked: record.phase == TablePhase::Parked,
        })
    }

    /// As the engine is told of it.
    pub(crate) fn spec(&self) -> TableSpec {
        spec(self.relation, &self.target, self.shape, &self.plan)
    }

    /// What becomes of the table as a Relation message describes it.
    pub(crate) fn follow(&self, now: &Relation) -> Follow {
        let shape = self.plan.shape();
        let diff = ShapeDiff::between(shape, now);
        let park = |reason: String| Follow::Park(Parked { code: code::NEEDS_RESYNC, reason });
        if let Some((_, Identity::Nothing)) = diff.identity {
            return park("its replica identity is NOTHING now: updates and deletes do not say which row".to_owned());
        }
        if let Some(rekeyed) = diff.rekeyed.first() {
            let what = if rekeyed.is_identity { "joined" } else { "left" };
            return park(format!("column `{}` {what} the key", rekeyed.name));
        }
        let is_key = |name: &str| shape.columns.iter().any(|column| column.is_key && *column.name == *name);
        if let Some(name) = diff.dropped.iter().find(|name| is_key(name)) {
            return park(format!("column `{name}` of the key was dropped or renamed"));
        }
        if diff.keeps_rows() {
            return Follow::AsIs;
        }
        let retyped = diff.retyped.iter().map(|retyped| retyped.now);
        let added = diff.added.iter().map(|column| (column.type_oid, column.modifier));
        Follow::Ask(retyped.chain(added).collect())
    }

    /// The table in its new shape, once the types are known. `kinds`: as [`Follow::Ask`] asked for them.
    pub(crate) fn reshaped(
        &self,
        now: &Relation,
        kinds: &[(u32, i32, PgType)],
        shape: u32,
    ) -> Result<Captured, Parked> {
        let known = self.plan.shape();
        let kind_of = |column: &StreamColumn| {
            let is_it =
                |(oid, modifier, _): &&(u32, i32, PgType)| (*oid, *modifier) == (column.type_oid, column.modifier);
            kinds.iter().find(is_it).map(|(.., kind)| kind.clone())
        };
        let mut columns = Vec::with_capacity(now.columns.len());
        for column in &now.columns {
            let before = known.columns.iter().find(|known| known.name == column.name);
            let is_same =
                before.is_some_and(|known| (known.type_oid, known.modifier) == (column.type_oid, column.modifier));
            let (Some(before), true) = (before, is_same) else {
                let kind = kind_of(column).unwrap_or_else(|| PgType::Other(format!("type {}", column.type_oid).into()));
                if let Some(before) = before {
                    self.check_retyped(before, &kind)?;
                }
                columns.push(ColumnShape {
                    name: column.name.clone(),
                    attnum: before.map_or(0, |before| before.attnum),
                    type_oid: column.type_oid,
                    modifier: column.modifier,
                    kind,
                    is_not_null: before.is_some_and(|before| before.is_not_null),
                    is_key: before.is_some_and(|before| before.is_key),
                    is_generated: false,
                    is_toastable: true,
                });
                continue;
            };
            columns.push(before.clone());
        }
        let shape_now =
            TableShape { relation: known.relation, name: now.name.clone(), identity: now.identity, columns };
        let plan = RowPlan::new(Arc::new(shape_now), self.options.clone())
            .map_err(|error| Parked { code: error.code(), reason: error.to_string() })?;
        Ok(Captured { shape, plan: Arc::new(plan), ..self.clone() })
    }

    /// A change of type sends no rows, so what is in the target is as it was: only where old and new values have one form
    /// there may the table go on (P83).
    fn check_retyped(&self, before: &ColumnShape, now: &PgType) -> Result<(), Parked> {
        let policies = self.options.columns.get(&before.name).unwrap_or(&self.options.policies);
        let form = |kind: &PgType, target: Target| arrow_type(kind, policies, target);
        let (was, is) = (form(&before.kind, self.options.target), form(now, self.options.target));
        let keeps_bytes = was == is && matches!((&before.kind, now), (PgType::Text, PgType::Text))
            || before.kind == *now
            || matches!((&before.kind, now), (PgType::Numeric(Some((low, one))), PgType::Numeric(Some((high, other)))) if one == other && low <= high && was == is);
        if keeps_bytes {
            return Ok(());
        }
        let reason = format!(
            "column `{}` has another type now, whose rewrite of the table sends no rows: it was {:?} and is {:?}",
            before.name, before.kind, now
        );
        Err(Parked { code: code::NEEDS_RESYNC, reason })
    }
}
