//! Tables that came after the start (P59): found in the catalog, published under a lock, and written into the record as
//! waiting for their copy. What follows is the same as for a table that is ordered to be copied again.
//!
//! The lock is waited for beside the stream: a long transaction on a new table holds up that table alone.

use std::sync::Arc;

use super::shared::Shared;
use super::starts::fresh;
use super::task::LOCK_WITHIN;
use crate::TablePattern;
use crate::catalog::{ServerFacts, TableFacts, read_tables};
use crate::orders::OrderError;
use crate::publication::{PublicationFacts, add_table_locked, plan_publication};
use crate::record::{SlotRecord, TablePhase};

/// Takes in what `tables` chooses and the record does not know, of these names if any are given; gives the names.
/// `is_rehearsal`: they are only named.
pub(super) async fn take_in(
    shared: &Arc<Shared>,
    only: Option<&TablePattern>,
    is_rehearsal: bool,
) -> Result<Vec<String>, OrderError> {
    let options = &shared.options;
    let is_made = shared.with_record(|record| record.is_some_and(|one| matches!(one.slot, SlotRecord::Made(_))));
    if !is_made {
        return Err(OrderError::NothingStored);
    }
    let sql = options.sql().await.map_err(|error| not_asked(&error))?;
    let server = ServerFacts::read(&sql).await.map_err(|error| not_asked(&error))?;
    let published = PublicationFacts::read(&sql, server.major(), &options.publication).await;
    let Some(published) = published.map_err(|error| not_asked(&error))? else { return Ok(Vec::new()) };
    let found = read_tables(&sql, &options.patterns(), &published.tables).await.map_err(|error| not_asked(&error))?;
    let is_new =
        |facts: &&TableFacts| shared.with_record(|r| r.is_some_and(|r| r.table(facts.shape.relation).is_none()));
    let is_meant =
        |facts: &&TableFacts| only.is_none_or(|only| only.matches(&facts.shape.name.schema, &facts.shape.name.table));
    let new: Vec<&TableFacts> = found.tables.iter().filter(is_new).filter(is_meant).collect();
    if new.is_empty() || is_rehearsal {
        return Ok(new.iter().map(|facts| facts.shape.name.to_string()).collect());
    }
    let lacking = plan_publication(&options.publication, Some(&published), &found.tables).missing_tables;
    let mut taken = Vec::with_capacity(new.len());
    for facts in new {
        let name = &facts.shape.name;
        if lacking.iter().any(|(relation, _)| *relation == facts.shape.relation) {
            if !options.creates_publication {
                let text =
                    format!("{name} is not in publication `{}`, which is not ours to change", options.publication);
                if only.is_some() {
                    return Err(OrderError::NotAsked { text });
                }
                tracing::warn!(pipeline = %options.pipeline, table = %name, "a new table is not carried: {text}");
                continue;
            }
            match add_table_locked(&sql, &options.publication, name, LOCK_WITHIN).await {
                Ok(()) => tracing::info!(pipeline = %options.pipeline, table = %name, "table added to the publication"),
                Err(error) if only.is_some() => return Err(not_asked(&error)),
                // Its neighbours are taken in; it is looked for again.
                Err(error) => {
                    tracing::warn!(pipeline = %options.pipeline, table = %name, "a new table waits: {error}");
                    continue;
                }
            }
        }
        taken.push(facts);
    }
    if taken.is_empty() {
        return Ok(Vec::new());
    }
    let change = shared.change_record(|record| {
        for facts in &taken {
            if record.table(facts.shape.relation).is_none()
                && let Some(stream) = record.take_partition()
            {
                record.tables.push(fresh(facts, stream, TablePhase::Waiting, None));
            }
        }
    });
    shared.stored(change).await;
    shared.carry_out();
    Ok(taken.iter().map(|facts| facts.shape.name.to_string()).collect())
}

fn not_asked(error: &dyn std::error::Error) -> OrderError {
    OrderError::NotAsked { text: error.to_string() }
}
