//! The start-up list (P57): from what the server shows and what is stored to what is done, as a pure function.
//!
//! Each refusal is loud, final for the pipeline, and says the steps. There is no silent jump to another position and no
//! retry of what cannot get well by itself (I7): the one thing that is waited for is a slot in use.

mod problem;

#[cfg(test)]
mod tests;

pub use problem::StartupProblem;

use crate::catalog::ServerFacts;
use crate::publication::PublicationPlan;
use crate::record::{OptionSet, SlotRecord, SourceRecord, TablePhase, TableRecord};
use crate::slot::{PLUGIN, SlotFacts};
use crate::{Lsn, RelationId, TableName};

/// What was configured, as far as the start depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupOptions {
    /// The pipeline's id, for messages.
    pub pipeline: String,
    /// `slot.name`.
    pub slot: String,
    /// `slot.create`.
    pub creates_slot: bool,
    /// `slot.adopt`.
    pub adopts_slot: bool,
    /// `snapshot.mode: initial`; else `never`.
    pub copies: bool,
    /// `publication.create`.
    pub creates_publication: bool,
    /// What changes rows.
    pub row_options: OptionSet,
}

/// What the server shows at the start.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// The server.
    pub server: &'a ServerFacts,
    /// The configured slot.
    pub slot: Option<&'a SlotFacts>,
    /// What the publication lacks.
    pub publication: &'a PublicationPlan,
    /// Where the server left the record's timeline, by its TIMELINE_HISTORY; only asked for if the timelines differ.
    pub switch_point: Option<Lsn>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Intent, publication, slot, identity, copy, stream (P52).
    FirstStart {
        /// A slot of an earlier attempt that crashed is dropped first (LF-PG0211).
        drops_orphan: bool,
    },
    /// Take over a slot that something else made, from where it stands, without a copy.
    Adopt {
        /// Where it stands.
        at: Lsn,
    },
    /// Go on from the checkpoint. The server's timeline is stored with the next record: after a promotion it is a newer
    /// one than the record has, and the next promotion is judged by it.
    Resume {
        /// Where reading starts; inclusive (P58).
        through: Lsn,
        /// The option set changed: the epoch is raised by one, durably, before the first row (P93).
        raises_epoch: bool,
        /// Tables that are new in the configuration and are to be added (P59).
        adds: Vec<TableName>,
    },
    /// Another connection has the slot: back-off, then decide anew (F-P19).
    Wait(StartupProblem),
    /// Final, until something is changed.
    Refuse(StartupProblem),
}

/// Decides.
pub fn decide(options: &StartupOptions, facts: &Facts<'_>, record: Option<&SourceRecord>) -> Decision {
    let decided = match record.map(|record| (record, &record.slot)) {
        Some((record, SlotRecord::Made(_))) => resume(options, facts, record),
        Some((_, SlotRecord::Intent { slot, system_identifier, database_oid })) => {
            let is_here =
                *system_identifier == facts.server.system_identifier && *database_oid == facts.server.database_oid;
            start_again(options, facts, slot, is_here)
        }
        None => start(options, facts),
    };
    match decided {
        Ok(decision) => decision,
        Err(problem) if problem.is_passing() => Decision::Wait(problem),
        Err(problem) => Decision::Refuse(problem),
    }
}

/// Nothing is stored.
fn start(options: &StartupOptions, facts: &Facts<'_>) -> Result<Decision, StartupProblem> {
    let Some(slot) = facts.slot else { return first_start(options, facts, false) };
    if !options.adopts_slot || options.copies {
        let database = slot.database.clone().unwrap_or_else(|| "none".to_owned());
        return Err(StartupProblem::SlotForeign { slot: slot.name.clone(), database });
    }
    let at = usable(slot, options, facts)?;
    publication_is_complete(options, facts, None)?;
    Ok(Decision::Adopt { at })
}

/// An intent is stored: a first start crashed.
fn start_again(
    options: &StartupOptions,
    facts: &Facts<'_>,
    intended: &str,
    is_here: bool,
) -> Result<Decision, StartupProblem> {
    if !is_here {
        // The intent is about another server; here nothing is ours.
        return start(options, facts);
    }
    if intended != options.slot {
        return Err(StartupProblem::SlotRenamed { stored: intended.to_owned(), configured: options.slot.clone() });
    }
    match facts.slot {
        None => first_start(options, facts, false),
        Some(slot) => match slot.active_pid {
            Some(pid) => Err(StartupProblem::SlotBusy { slot: slot.name.clone(), pid }),
            None => first_start(options, facts, true),
        },
    }
}

fn first_start(options: &StartupOptions, facts: &Facts<'_>, drops_orphan: bool) -> Result<Decision, StartupProblem> {
    if !options.creates_slot {
        return Err(StartupProblem::SlotMissing { slot: options.slot.clone() });
    }
    if !options.creates_publication {
        publication_is_complete(options, facts, None)?;
    }
    Ok(Decision::FirstStart { drops_orphan })
}

/// Progress is stored. The order is from what makes the rest meaningless to what is mended by one statement.
fn resume(options: &StartupOptions, facts: &Facts<'_>, record: &SourceRecord) -> Result<Decision, StartupProblem> {
    let Some(identity) = record.identity() else { return start(options, facts) };
    let server = facts.server;
    let through = record.through;
    let pipeline = || options.pipeline.clone();
    if identity.system_identifier != server.system_identifier || identity.database_oid != server.database_oid {
        return Err(StartupProblem::OtherSystem {
            pipeline: pipeline(),
            stored: (identity.system_identifier, identity.database_oid),
            found: (server.system_identifier, server.database_oid),
        });
    }
    if identity.slot != options.slot {
        return Err(StartupProblem::SlotRenamed { stored: identity.slot.clone(), configured: options.slot.clone() });
    }
    if server.timeline > record.timeline && facts.switch_point.is_none_or(|point| through > point) {
        return Err(StartupProblem::PastSwitch {
            pipeline: pipeline(),
            through,
            timelines: (record.timeline, server.timeline),
            switch_point: facts.switch_point,
        });
    }
    // A standby's replay may be behind for a while; a primary's log never is.
    if server.timeline < record.timeline || (server.wal_end < through && !server.is_standby) {
        return Err(StartupProblem::ServerBehind {
            pipeline: pipeline(),
            through,
            wal_end: server.wal_end,
            timelines: (record.timeline, server.timeline),
        });
    }
    let Some(slot) = facts.slot else {
        return Err(StartupProblem::SlotGone { pipeline: pipeline(), slot: options.slot.clone(), through });
    };
    let confirmed = usable(slot, options, facts)?;
    if confirmed > through {
        return Err(StartupProblem::SlotAhead { pipeline: pipeline(), slot: slot.name.clone(), confirmed, through });
    }
    // A slot never confirms less than the point it was made at: this is another one of the same name.
    if confirmed < identity.consistent_point {
        return Err(StartupProblem::SlotReplaced {
            pipeline: pipeline(),
            slot: slot.name.clone(),
            confirmed,
            consistent_point: identity.consistent_point,
        });
    }
    publication_is_complete(options, facts, Some(record))?;
    let is_new = |relation: &RelationId| record.table(*relation).is_none_or(never_copied);
    let may_add = |relation: &RelationId| options.creates_publication && is_new(relation);
    let missing = facts.publication.missing_tables.iter();
    let adds = missing.filter(|(relation, _)| may_add(relation)).map(|(_, name)| name.clone());
    Ok(Decision::Resume { through, raises_epoch: record.options != options.row_options, adds: adds.collect() })
}

/// Nothing of the table is anywhere that a change could be missing from: what is not published of it may be.
fn never_copied(table: &TableRecord) -> bool {
    table.phase == TablePhase::Waiting && table.copy.is_none()
}

/// Where a slot stands, if this source can read from it.
fn usable(slot: &SlotFacts, options: &StartupOptions, facts: &Facts<'_>) -> Result<Lsn, StartupProblem> {
    let differs = |what, expected: &str, found: &str| {
        Err(StartupProblem::SlotDiffers {
            slot: slot.name.clone(),
            what,
            expected: expected.to_owned(),
            found: found.to_owned(),
        })
    };
    match slot.plugin.as_deref() {
        Some(PLUGIN) => {}
        Some(other) => return differs("plugin", PLUGIN, other),
        None => return differs("kind", "logical", "physical"),
    }
    if slot.database_oid != Some(facts.server.database_oid) {
        return differs("database", &facts.server.database, slot.database.as_deref().unwrap_or("none"));
    }
    if slot.is_two_phase {
        return differs("two_phase", "false", "true");
    }
    if slot.is_temporary {
        return differs("temporary", "false", "true");
    }
    let is_lost = slot.wal_status.as_deref() == Some("lost") || slot.invalidation_reason.is_some();
    let confirmed = slot.confirmed_flush_lsn.filter(|_| slot.restart_lsn.is_some());
    let (Some(confirmed), false) = (confirmed, is_lost) else {
        return Err(StartupProblem::SlotLost {
            pipeline: options.pipeline.clone(),
            slot: slot.name.clone(),
            reason: slot.invalidation_reason.clone(),
            kept: facts.server.setting("max_slot_wal_keep_size").unwrap_or("-1").to_owned(),
        });
    };
    if let Some(pid) = slot.active_pid {
        return Err(StartupProblem::SlotBusy { slot: slot.name.clone(), pid });
    }
    Ok(confirmed)
}

/// The publication must be there in its mode. A table that it lacks is that table's affair (I13): one that was carried is
/// parked, a new one is added or left.
fn publication_is_complete(
    options: &StartupOptions,
    facts: &Facts<'_>,
    record: Option<&SourceRecord>,
) -> Result<(), StartupProblem> {
    let plan = facts.publication;
    let was_carried = |relation: &RelationId| match record {
        Some(record) => {
            record.table(*relation).is_some_and(|table| !never_copied(table) && table.phase != TablePhase::Removed)
        }
        None => true,
    };
    let lost: Vec<TableName> = plan
        .missing_tables
        .iter()
        .filter(|(relation, _)| was_carried(relation))
        .map(|(_, name)| name.clone())
        .collect();
    // Another mode is somebody's change to what every table gets.
    let is_complete = record.is_some() && !plan.is_missing && !plan.sets_mode;
    if plan.statements.is_empty() || is_complete {
        return Ok(());
    }
    if let (Some(_), true, Some(reason)) = (record, plan.is_missing, plan.reasons.first()) {
        return Err(StartupProblem::PublicationGone {
            pipeline: options.pipeline.clone(),
            reason: reason.clone(),
            statements: if options.creates_publication { Vec::new() } else { plan.statements.clone() },
        });
    }
    Err(StartupProblem::PublicationIncomplete {
        pipeline: options.pipeline.clone(),
        reasons: plan.reasons.clone(),
        statements: plan.statements.clone(),
        lost: if record.is_some() { lost } else { Vec::new() },
    })
}

/// Where a server left timeline `from`, out of its history: timelines with the position at which each ended.
pub fn switch_point(history: impl IntoIterator<Item = (u32, Lsn)>, from: u32) -> Option<Lsn> {
    history.into_iter().find(|(timeline, _)| *timeline == from).map(|(_, at)| at)
}
