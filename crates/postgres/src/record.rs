//! The source's own stored record (P99): whose progress it is, how far it has come, and where each table stands.
//!
//! Written with the watermarks in one transaction; its form is `docs/formats/postgres-source.md` with a golden file.
//! Nothing is guessed from a record that cannot be read (I12): another version or a damaged one is an error that names
//! what to do. Through which place rows are durable is the engine's to know, and is not repeated here.

mod watched;

use bytes::Bytes;
use landfall_types::{Code, Coded, Kind, Retry};
use serde::{Deserialize, Serialize};

use crate::snapshot::CopiedRanges;
use crate::{Lsn, RelationId, SlotIdentity, TableName, code};

pub use watched::{MemberRecord, TableNote, WatchedRecord};

/// The version of the form that is written. Those before it are read too.
pub const RECORD_VERSION: u32 = 2;

/// The oldest version that is read. It knows nothing of `watched` and `notes`.
const RECORD_VERSION_MIN: u32 = 1;

/// Notes of one table that are kept.
const NOTES_MAX: usize = 8;

/// The largest record that is read: some 20,000 tables with their ranges.
pub const RECORD_BYTES_MAX: usize = 64 << 20;

/// What a source stores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceRecord {
    /// The version of this form.
    v: u32,
    /// The slot, or that one is about to be made.
    pub slot: SlotRecord,
    /// What changes which rows are sent, or how they are counted (P51).
    pub options: OptionSet,
    /// The epoch of versions (P93), from 1.
    pub epoch: u16,
    /// Below it everything is settled; always an end LSN (P98).
    pub through: Lsn,
    /// The last commit that was delivered.
    pub last_commit: Lsn,
    /// The server's timeline when this was written.
    pub timeline: u32,
    /// The next partition number that no stream or copy has had.
    pub next_partition: u32,
    /// Where each table stands.
    pub tables: Vec<TableRecord>,
}

/// The slot of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SlotRecord {
    /// Stored before the slot is made (P52): a slot of this name found later is our own orphan.
    Intent {
        /// Its name.
        slot: String,
        /// The cluster.
        system_identifier: u64,
        /// The database.
        database_oid: u32,
    },
    /// Stored once it is made.
    Made(SlotIdentity),
}

/// Options that change rows or their numbers: another set raises the epoch, durably, before the first row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptionSet {
    /// The publications, in the order in which they are asked for.
    pub publications: Vec<String>,
    /// `origin`, where set.
    pub origin: Option<String>,
    /// Whether messages are asked for.
    pub messages: bool,
}

/// Where a table stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableRecord {
    /// Its oid.
    pub relation: RelationId,
    /// Its name when this was written.
    pub name: TableName,
    /// What it is called in targets, which a rename does not change.
    pub target: String,
    /// The engine partition of its stream.
    pub stream_partition: u32,
    /// Its phase.
    pub phase: TablePhase,
    /// Its shape's number.
    pub shape: u32,
    /// Its copy, from the first range to the last row's ack.
    pub copy: Option<CopyRecord>,
    /// Why it is parked; set before the first of its rows passes by (P87).
    pub park: Option<ParkNote>,
    /// What the catalog showed of it last; none before the first look.
    #[serde(default)]
    pub watched: Option<WatchedRecord>,
    /// What was found of it since its copy, by looks and in the stream, the newest last.
    #[serde(default)]
    pub notes: Vec<TableNote>,
}

impl TableRecord {
    /// Keeps a note; one that stands there already moves to the end. True: it is new.
    pub fn note(&mut self, note: TableNote) -> bool {
        let before = self.notes.len();
        self.notes.retain(|known| *known != note);
        let is_new = self.notes.len() == before;
        self.notes.push(note);
        let over = self.notes.len().saturating_sub(NOTES_MAX);
        self.notes.drain(..over);
        is_new
    }
}

/// The phase of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TablePhase {
    /// Its copy has not begun.
    Waiting,
    /// It is being copied.
    Copying,
    /// Copied; its stream is behind the copy's end.
    CatchingUp,
    /// It follows the stream.
    Streaming,
    /// Set aside.
    Parked,
    /// Not carried any more.
    Removed,
}

impl std::fmt::Display for TablePhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TablePhase::Waiting => "waiting",
            TablePhase::Copying => "copying",
            TablePhase::CatchingUp => "catching_up",
            TablePhase::Streaming => "streaming",
            TablePhase::Parked => "parked",
            TablePhase::Removed => "removed",
        })
    }
}

/// A copy under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyRecord {
    /// The engine partition of this copy; an interrupted one is followed by another.
    pub partition: u32,
    /// The point of its snapshot: it holds exactly the commits before.
    pub consistent_point: Lsn,
    /// Ranges whose rows were all issued and acked.
    pub done: CopiedRanges,
}

/// Why a table is parked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParkNote {
    /// The commit from which its rows pass by.
    pub at: Lsn,
    /// The last commit of it that passed by; a copy must be at or past it (P87).
    pub passed: Lsn,
    /// The code, as in `LF-PG0501`.
    pub code: String,
    /// What happened, for people.
    pub reason: String,
}

/// A record that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Written by another version.
    #[error(
        "the stored record of the source has version {found}, this Landfall reads {RECORD_VERSION_MIN} to {RECORD_VERSION}: run the version that wrote it, or `landfall tables CONFIG PIPELINE resync --all` (LF-PG0214)"
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// Not of the form.
    #[error(
        "the stored record of the source ({bytes} bytes) is damaged: {source}; `landfall tables CONFIG PIPELINE resync --all` starts from a new copy (LF-PG0214)"
    )]
    Damaged {
        /// Its size.
        bytes: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// Larger than any.
    #[error(
        "the stored record of the source has {bytes} bytes, {RECORD_BYTES_MAX} is the most: it is damaged; `landfall tables CONFIG PIPELINE resync --all` starts from a new copy (LF-PG0214)"
    )]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
}

impl Coded for RecordError {
    fn code(&self) -> Code {
        code::RECORD
    }

    fn kind(&self) -> Kind {
        Kind::Internal
    }

    fn retry(&self) -> Retry {
        Retry::Never
    }
}

impl SourceRecord {
    /// The first record of a source: a slot is about to be made.
    pub fn intent(slot: String, system_identifier: u64, database_oid: u32, timeline: u32, options: OptionSet) -> Self {
        SourceRecord {
            v: RECORD_VERSION,
            slot: SlotRecord::Intent { slot, system_identifier, database_oid },
            options,
            epoch: 1,
            through: Lsn::ZERO,
            last_commit: Lsn::ZERO,
            timeline,
            next_partition: 0,
            tables: Vec::new(),
        }
    }

    /// The slot was made: progress begins at its point.
    pub fn made(&mut self, identity: SlotIdentity) {
        self.through = identity.consistent_point;
        self.last_commit = Lsn::ZERO;
        self.slot = SlotRecord::Made(identity);
    }

    /// The bytes to store.
    pub fn encode(&self) -> Bytes {
        // Numbers, texts and lists only: nothing in it can fail to be written.
        serde_json::to_vec(self).map(Bytes::from).unwrap_or_default()
    }

    /// Reads stored bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        #[derive(Deserialize)]
        struct Head {
            v: u32,
        }
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(RecordError::TooLarge { bytes: bytes.len() });
        }
        let damaged = |source| RecordError::Damaged { bytes: bytes.len(), source };
        // The version first: a later form may have fields that this one does not know.
        let head: Head = serde_json::from_slice(bytes).map_err(damaged)?;
        if !(RECORD_VERSION_MIN..=RECORD_VERSION).contains(&head.v) {
            return Err(RecordError::Version { found: head.v });
        }
        let read: Self = serde_json::from_slice(bytes).map_err(damaged)?;
        Ok(SourceRecord { v: RECORD_VERSION, ..read })
    }

    /// The identity, once the slot is made.
    pub fn identity(&self) -> Option<&SlotIdentity> {
        match &self.slot {
            SlotRecord::Made(identity) => Some(identity),
            SlotRecord::Intent { .. } => None,
        }
    }

    /// A table is to be copied again at the next start, whatever it was doing: its stream and its copy get partitions of
    /// their own, so that no position of before is taken for one of theirs. False: there is no partition number left.
    #[must_use]
    pub fn copy_again(&mut self, relation: RelationId) -> bool {
        let Some(partition) = self.take_partition() else { return false };
        if let Some(table) = self.table_mut(relation) {
            table.stream_partition = partition;
            table.phase = TablePhase::Waiting;
            table.copy = None;
            table.park = None;
            table.watched = None;
            table.notes.clear();
        }
        true
    }

    /// Everything is to begin again with a new slot, as after a first start that crashed: the slot of this name, if there
    /// still is one, is dropped and made anew, and every table is copied. Partition numbers and the epoch go on from here.
    /// False: there is no partition number or no epoch left.
    #[must_use]
    pub fn start_over(&mut self) -> bool {
        let Some(epoch) = self.epoch.checked_add(1) else { return false };
        if let SlotRecord::Made(identity) = &self.slot {
            let SlotIdentity { system_identifier, database_oid, slot, .. } = identity.clone();
            self.slot = SlotRecord::Intent { slot, system_identifier, database_oid };
        }
        self.epoch = epoch;
        self.through = Lsn::ZERO;
        self.last_commit = Lsn::ZERO;
        let relations: Vec<RelationId> = self.tables.iter().map(|table| table.relation).collect();
        relations.into_iter().all(|relation| self.copy_again(relation))
    }

    /// A table's record by its oid.
    pub fn table(&self, relation: RelationId) -> Option<&TableRecord> {
        self.tables.iter().find(|table| table.relation == relation)
    }

    /// The same, to change it.
    pub fn table_mut(&mut self, relation: RelationId) -> Option<&mut TableRecord> {
        self.tables.iter_mut().find(|table| table.relation == relation)
    }

    /// A partition number that no stream or copy has had; `None` when there is none left.
    pub fn take_partition(&mut self) -> Option<u32> {
        let taken = self.next_partition;
        self.next_partition = taken.checked_add(1)?;
        Some(taken)
    }
}

#[cfg(test)]
mod tests;
