//! What a look into the catalog tells of a table against what is stored of it, as a function (P82–P84, F-P18): rows that
//! came or went without an event, rows that were written anew, columns that are called otherwise.
//!
//! A partition that was made as one, in one command, has no row that the stream did not bring; one that was attached is
//! taken in only while it is empty. What cannot be told apart counts as the worse of the two: a table is copied once too
//! often, never once too seldom.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use landfall_types::Code;

use super::table::Parked;
use crate::catalog::{Member, Origin, TableSighting};
use crate::record::{TableNote, WatchedRecord};
use crate::{RelationId, TableName, code, sql};

/// How a sighting differs from what is stored.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// The publication lists it by another row: it left and came back.
    pub(super) is_listed_anew: bool,
    /// Partitions that were none, on every level.
    pub(super) added: Vec<Member>,
    /// Partitions that were some before, left, and are some again.
    pub(super) rejoined: Vec<Member>,
    /// Relations whose rows are in another file.
    pub(super) refiled: Vec<Member>,
    /// Partitions with rows that are none any more.
    pub(super) gone: Vec<RelationId>,
    /// Columns by their name before and now.
    pub(super) renamed: Vec<(Arc<str>, Arc<str>)>,
    /// A new column whose value was written into the rows of before.
    pub(super) written: Option<Arc<str>>,
}

/// What was asked of the server to tell what the changes mean.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Of partitions that were added.
    pub(super) origins: BTreeMap<RelationId, Origin>,
    /// Of those in another file: whether a row of before the last look is in it.
    pub(super) has_older_rows: BTreeMap<RelationId, bool>,
    /// The names of those that are gone and still there as tables.
    pub(super) names: BTreeMap<RelationId, TableName>,
}

/// What happened to a table, as far as its target is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// It is not in the publication.
    Left,
    /// It was not in the publication for a while.
    CameBack,
    /// A partition came with rows.
    Attached(TableName),
    /// A partition was none for a while, in which anything was done to it.
    Rejoined(TableName),
    /// A partition went with its rows; its name if it is still a table.
    Gone(RelationId, Option<TableName>),
    /// A partition was emptied by itself, or its rows written anew by an ALTER TABLE.
    Emptied(TableName),
    /// Rows are in another file; most likely the same ones.
    Rewritten(TableName),
    /// A column came whose values no event brought.
    Written(Arc<str>),
    /// A column is called otherwise.
    Renamed(Arc<str>, Arc<str>),
}

impl Changes {
    pub(super) fn between(watched: &WatchedRecord, now: &TableSighting) -> Self {
        let mut changes = Changes { is_listed_anew: watched.listed != now.listed, ..Changes::default() };
        let known: BTreeMap<RelationId, (u32, u32)> =
            watched.members.iter().map(|member| (member.0, (member.1, member.2))).collect();
        for member in &now.members {
            match known.get(&member.relation) {
                None => changes.added.push(member.clone()),
                Some((_, joined)) if *joined != member.joined => changes.rejoined.push(member.clone()),
                Some((file, _)) if *file != member.file => changes.refiled.push(member.clone()),
                Some(_) => {}
            }
        }
        let here: BTreeSet<RelationId> = now.members.iter().map(|member| member.relation).collect();
        let gone = watched.members.iter().filter(|member| member.1 != 0 && !here.contains(&member.0));
        changes.gone = gone.map(|member| member.0).collect();
        for column in &now.columns {
            let at = usize::try_from(column.number).unwrap_or_default().checked_sub(1);
            match at.and_then(|at| watched.columns.get(at)) {
                Some(Some(name)) if *name != column.name => {
                    changes.renamed.push((Arc::clone(name), Arc::clone(&column.name)));
                }
                None if column.is_written => changes.written = Some(Arc::clone(&column.name)),
                _ => {}
            }
        }
        changes
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Changes::default()
    }

    /// What the changes mean. `is_truncate_told`: the stream said that the whole table was emptied, which gives every part
    /// of it another file.
    pub(super) fn moves(&self, relation: RelationId, answers: &Answers, is_truncate_told: bool) -> Vec<Move> {
        let mut moves = Vec::new();
        if self.is_listed_anew {
            moves.push(Move::CameBack);
        }
        let joined = self.added.iter().filter(|member| member.file != 0);
        moves.extend(joined.filter_map(|member| self.arrival(member, answers, is_truncate_told)));
        moves.extend(self.rejoined.iter().map(|member| Move::Rejoined(member.name.clone())));
        moves.extend(self.gone.iter().map(|gone| Move::Gone(*gone, answers.names.get(gone).cloned())));
        if let Some(column) = self.written.as_ref().filter(|_| !self.refiled.is_empty()) {
            moves.push(Move::Written(Arc::clone(column)));
        } else if !is_truncate_told {
            moves.extend(self.refiled.iter().map(|member| {
                // A table's own truncate is told: what gave it another file kept its rows.
                let keeps_rows = member.relation == relation
                    || answers.has_older_rows.get(&member.relation).copied().unwrap_or_default();
                let of = member.name.clone();
                if keeps_rows { Move::Rewritten(of) } else { Move::Emptied(of) }
            }));
        }
        moves.extend(self.renamed.iter().map(|(from, to)| Move::Renamed(Arc::clone(from), Arc::clone(to))));
        moves
    }

    /// What a new partition with a file brought besides what the stream did.
    fn arrival(&self, member: &Member, answers: &Answers, is_truncate_told: bool) -> Option<Move> {
        let origin = answers.origins.get(&member.relation).copied().unwrap_or_default();
        let is_born = |relation: RelationId| answers.origins.get(&relation).is_some_and(|origin| origin.is_born);
        let parent_of = |relation: RelationId| self.added.iter().find(|one| one.relation == relation);
        // Each level that is new has to have been made as a partition: one that was attached brought all below it.
        let mut above = Some(member);
        while let Some(one) = above {
            if !is_born(one.relation) {
                return (!origin.is_empty).then(|| Move::Attached(member.name.clone()));
            }
            above = parent_of(one.parent).filter(|parent| parent.relation != one.relation);
        }
        // What it held before it got another file, the stream has brought.
        let is_as_made = origin.has_first_file || is_truncate_told;
        let of = || member.name.clone();
        (!is_as_made).then(|| if origin.is_empty { Move::Emptied(of()) } else { Move::Rewritten(of()) })
    }
}

/// What moves are judged by.
#[derive(Debug)]
pub(super) struct Policy<'a> {
    pub(super) pipeline: &'a str,
    pub(super) table: &'a TableName,
    pub(super) publication: &'a str,
    /// Whether the source puts the table back into the publication by itself.
    pub(super) mends_publication: bool,
    /// The columns of its key.
    pub(super) key: &'a [Arc<str>],
    /// `dropped_partitions: keep`.
    pub(super) keeps_dropped: bool,
    /// Its destinations hold events and no state: a row that came or went without one is a fact to know, no fault.
    pub(super) only_notes: bool,
}

/// What is done about a table.
#[derive(Debug, Default)]
pub(super) struct Judgement {
    /// Why it is set aside.
    pub(super) parked: Option<Parked>,
    /// What is only to be known.
    pub(super) notes: Vec<TableNote>,
}

/// Judges what happened.
pub(super) fn judge(moves: &[Move], policy: &Policy<'_>) -> Judgement {
    const SAID_MAX: usize = 3;
    let mut judgement = Judgement::default();
    let mut lost: Vec<String> = Vec::new();
    for one in moves {
        let needs_copy = match one {
            Move::Left | Move::CameBack => true,
            Move::Attached(_) | Move::Rejoined(_) | Move::Written(_) => !policy.only_notes,
            Move::Gone(..) | Move::Emptied(_) => !policy.only_notes && !policy.keeps_dropped,
            Move::Renamed(from, to) => !policy.only_notes && policy.key.iter().any(|name| name == from || name == to),
            Move::Rewritten(_) => false,
        };
        if needs_copy {
            lost.push(text_of(one, policy));
            continue;
        }
        let code = if matches!(one, Move::Rewritten(_)) { code::SUSPECT } else { code::NOTED };
        judgement.notes.push(TableNote { code: code.to_string(), text: text_of(one, policy) });
    }
    if lost.is_empty() {
        return judgement;
    }
    let is_publication = moves.iter().any(|one| matches!(one, Move::Left | Move::CameBack));
    let more = lost.len().saturating_sub(SAID_MAX);
    lost.truncate(SAID_MAX);
    let mut reason = format!("needs re-sync: {}", lost.join("; "));
    if more > 0 {
        reason.push_str(&format!("; and {more} more of such changes"));
    }
    let code: Code = if is_publication { code::PUBLICATION } else { code::NEEDS_RESYNC };
    judgement.parked = Some(Parked { code, reason });
    judgement
}

/// What is said of a table that is not in the publication.
pub(super) fn left_text(table: &TableName, publication: &str, mends_publication: bool) -> String {
    let of = sql::relation(table);
    let back = if mends_publication {
        "a resync puts it back and copies it".to_owned()
    } else {
        format!("put it back with `ALTER PUBLICATION {} ADD TABLE ONLY {of};`, then resync it", sql::name(publication))
    };
    format!("it left publication `{publication}`, and what is written to it since is in no stream: {back}")
}

fn text_of(one: &Move, policy: &Policy<'_>) -> String {
    let kept = "; `dropped_partitions: keep` under the table accepts that";
    match one {
        Move::Left => left_text(policy.table, policy.publication, policy.mends_publication),
        Move::CameBack => format!(
            "it was not in publication `{}` as it is now all the time, and what was written to it meanwhile is in no stream",
            policy.publication
        ),
        Move::Attached(leaf) => format!("partition {leaf} was attached with rows that no event brought"),
        Move::Rejoined(leaf) => {
            format!("partition {leaf} was detached for a while, and no event says what became of its rows")
        }
        Move::Gone(_, Some(leaf)) => {
            format!("partition {leaf} was detached, and no event took its rows away{}", choice(policy, kept))
        }
        Move::Gone(oid, None) => {
            format!("a partition (oid {oid}) was dropped, and no event took its rows away{}", choice(policy, kept))
        }
        Move::Emptied(leaf) => format!(
            "partition {leaf} was emptied by itself, or written anew by an ALTER TABLE, without an event{}",
            choice(policy, kept)
        ),
        Move::Rewritten(of) => format!(
            "{of} was written anew (VACUUM FULL, CLUSTER, or an ALTER TABLE that may have changed values): `landfall verify CONFIG {}` tells whether it still equals the target",
            policy.pipeline
        ),
        Move::Written(column) => {
            format!("column `{column}` came with a value for each row of before, which no event brought")
        }
        Move::Renamed(from, to) => format!(
            "column `{from}` is called `{to}` now: rows of before have their values under `{from}` until the table is copied again"
        ),
    }
}

/// A way out is named where the table is set aside for it.
fn choice<'t>(policy: &Policy<'_>, text: &'t str) -> &'t str {
    if policy.keeps_dropped || policy.only_notes { "" } else { text }
}

#[cfg(test)]
mod tests;
