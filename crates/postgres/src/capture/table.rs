//! A captured table while it is followed: its shape and how its rows are made (P85).

use std::sync::Arc;

use landfall_engine::contract::TableSpec;
use landfall_types::{Code, Coded, PartitionId};

use super::options::CaptureOptions;
use super::source::spec;
use crate::catalog::TableFacts;
use crate::record::{TablePhase, TableRecord};
use crate::rows::{RowOptions, RowPlan};
use crate::{RelationId, code};

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
    /// Since when its rows stay in the log, until its copy is settled.
    pub(crate) set_back: Option<std::time::Instant>,
}

/// Why a table is set aside.
#[derive(Clone, Debug)]
pub(crate) struct Parked {
    pub(crate) code: Code,
    pub(crate) reason: String,
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
            set_back: None,
        })
    }

    /// As the engine is told of it.
    pub(crate) fn spec(&self) -> TableSpec {
        spec(self.relation, &self.target, self.shape, &self.plan)
    }
}
