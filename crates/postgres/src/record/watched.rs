//! What is stored of the catalog's side of a table, by which the next look tells what no event of the stream told (P82b).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::catalog::TableSighting;
use crate::{Lsn, RelationId};

/// A table as a look into the catalog showed it, once the stream had come as far as that look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchedRecord {
    /// The oid of the row by which the publication lists it; none where that takes tables in by itself.
    pub listed: Option<u32>,
    /// Transactions before it had ended: rows of theirs are older than the files below.
    pub horizon: u32,
    /// The last commit by which the stream said that the table was emptied.
    pub truncated: Lsn,
    /// Up to here, files that changed were put down to such commits.
    pub explained: Lsn,
    /// The names of its columns, by number from 1; none of one that was dropped.
    pub columns: Vec<Option<Arc<str>>>,
    /// Itself if it holds rows, and each partition on every level.
    pub members: Vec<MemberRecord>,
}

/// A relation of a table: its oid, its file (0 where it is partitioned itself), and the transaction that made it a
/// partition. A list of three numbers, since a table may have thousands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord(pub RelationId, pub u32, pub u32);

/// What a look found that needs nobody at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableNote {
    /// The code, as in `LF-PG0521`.
    pub code: String,
    /// What was found and what to do, for people.
    pub text: String,
}

impl WatchedRecord {
    /// Begins with a look. `told`: truncates up to here are in it.
    pub(crate) fn begin(sighting: &TableSighting, told: Lsn) -> Self {
        let mut watched = WatchedRecord { truncated: told, explained: told, ..WatchedRecord::default() };
        watched.take(sighting);
        watched
    }

    /// Goes on from a later look.
    pub(crate) fn take(&mut self, sighting: &TableSighting) {
        self.listed = sighting.listed;
        self.horizon = sighting.horizon;
        self.columns.clear();
        for column in &sighting.columns {
            let at = usize::try_from(column.number).unwrap_or_default().saturating_sub(1);
            if self.columns.len() <= at {
                self.columns.resize(at + 1, None);
            }
            if let Some(place) = self.columns.get_mut(at) {
                *place = Some(Arc::clone(&column.name));
            }
        }
        let members = sighting.members.iter();
        self.members = members.map(|member| MemberRecord(member.relation, member.file, member.joined)).collect();
    }

    /// Whether the stream told of a truncate that no change of files was put down to yet.
    pub(crate) fn is_truncate_open(&self) -> bool {
        self.truncated > self.explained
    }

    /// Whether the last truncate that the stream told of came while a look was made, between these ends of the log: the
    /// files that it saw may be of before or after.
    pub(crate) fn is_truncated_within(&self, begin: Lsn, end: Lsn) -> bool {
        self.is_truncate_open() && begin < self.truncated && self.truncated <= end
    }
}
