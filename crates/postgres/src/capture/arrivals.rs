//! Tables that came after the start (P59): found in the catalog, published under a lock, and written into the record as
//! waiting for their copy. What follows is the same as for a table that is ordered to be copied again.
//!
//! The lock is waited for beside the stream: a long transaction on a new table holds up that table alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::shared::{LeftOut, Shared};
use super::starts::fresh;
use super::task::LOCK_WITHIN;
use crate::catalog::{ServerFacts, TableFacts, read_tables};
use crate::orders::OrderError;
use crate::publication::{PublicationFacts, add_table_locked, plan_publication};
use crate::record::{SlotRecord, TablePhase};
use crate::{RelationId, TablePattern, sql};

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
    let connection = options.sql().await.map_err(|error| not_asked(&error))?;
    let server = ServerFacts::read(&connection).await.map_err(|error| not_asked(&error))?;
    let published = PublicationFacts::read(&connection, server.major(), &options.publication).await;
    let Some(published) = published.map_err(|error| not_asked(&error))? else { return Ok(Vec::new()) };
    let found =
        read_tables(&connection, &options.patterns(), &published.tables).await.map_err(|error| not_asked(&error))?;
    let is_new =
        |facts: &&TableFacts| shared.with_record(|r| r.is_some_and(|r| r.table(facts.shape.relation).is_none()));
    let is_meant =
        |facts: &&TableFacts| only.is_none_or(|only| only.matches(&facts.shape.name.schema, &facts.shape.name.table));
    let new: Vec<&TableFacts> = found.tables.iter().filter(is_new).filter(is_meant).collect();
    if new.is_empty() && only.is_none() {
        shared.left_out.lock().clear();
    }
    if new.is_empty() || is_rehearsal {
        return Ok(new.iter().map(|facts| facts.shape.name.to_string()).collect());
    }
    let lacking = plan_publication(&options.publication, Some(&published), &found.tables).missing_tables;
    let mut taken = Vec::with_capacity(new.len());
    let mut left_out = BTreeMap::new();
    for facts in new {
        let name = &facts.shape.name;
        if lacking.iter().any(|(relation, _)| *relation == facts.shape.relation) {
            if !options.creates_publication {
                let text = format!(
                    "{name} is not in publication `{0}`, which is not ours to change: ALTER PUBLICATION {1} ADD TABLE ONLY {2};",
                    options.publication,
                    sql::name(&options.publication),
                    sql::relation(name)
                );
                if only.is_some() {
                    return Err(OrderError::NotAsked { text });
                }
                left_out.insert(facts.shape.relation, LeftOut { name: name.clone(), cause: text });
                continue;
            }
            match add_table_locked(&connection, &options.publication, name, LOCK_WITHIN).await {
                Ok(()) => tracing::info!(pipeline = %options.pipeline, table = %name, "table added to the publication"),
                Err(error) if only.is_some() => return Err(not_asked(&error)),
                // Its neighbours are taken in; it is looked for again.
                Err(error) => {
                    let cause = error.to_string();
                    left_out.insert(facts.shape.relation, LeftOut { name: name.clone(), cause });
                    continue;
                }
            }
        }
        taken.push(facts);
    }
    if only.is_none() {
        say_left_out(shared, left_out);
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

/// Each is told of once, until another thing keeps it; the list of tables has it all the while.
fn say_left_out(shared: &Shared, now: BTreeMap<RelationId, LeftOut>) {
    let mut known = shared.left_out.lock();
    for new in news(&known, &now) {
        tracing::warn!(pipeline = %shared.options.pipeline, table = %new.name,
            "a new table is not followed, and is looked for again: {}", new.cause);
    }
    *known = now;
}

fn news<'a>(
    known: &BTreeMap<RelationId, LeftOut>,
    now: &'a BTreeMap<RelationId, LeftOut>,
) -> impl Iterator<Item = &'a LeftOut> {
    now.iter().filter(|(relation, left_out)| known.get(*relation) != Some(*left_out)).map(|(_, left_out)| left_out)
}

fn not_asked(error: &dyn std::error::Error) -> OrderError {
    OrderError::NotAsked { text: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableName;

    /// Catches a log that says the same at each look, and one that keeps to itself that another thing is in the way now.
    #[test]
    fn what_keeps_a_table_out_is_news_once() {
        let left_out = |id: u32, cause: &str| {
            let name = TableName { schema: "public".into(), table: format!("t{id}").into() };
            (RelationId(id), LeftOut { name, cause: cause.to_owned() })
        };
        let causes = |known: &BTreeMap<_, _>, now: &BTreeMap<_, _>| {
            news(known, now).map(|left_out| left_out.cause.clone()).collect::<Vec<_>>()
        };
        let first = BTreeMap::from([left_out(1, "a lock"), left_out(2, "a right")]);
        assert_eq!(causes(&BTreeMap::new(), &first), ["a lock", "a right"]);
        assert!(causes(&first, &first).is_empty());
        let second = BTreeMap::from([left_out(1, "a right"), left_out(2, "a right")]);
        assert_eq!(causes(&first, &second), ["a right"]);
    }
}
