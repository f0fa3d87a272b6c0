//! Why a source does not start, and what to do about it: LF-PG0201 to 0210, each with its steps.

use landfall_types::{Code, Coded, Kind, Retry};

use crate::connect::page_of;
use crate::{Lsn, TableName, code, sql};

/// Why a source does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartupProblem {
    /// Progress without a slot.
    #[error(
        "slot `{slot}` is gone, and progress up to {through} is stored: changes since then may be gone from the log. Nothing was read. To copy the tables again: `landfall tables CONFIG {pipeline} resync --all` (LF-PG0201)"
    )]
    SlotGone {
        /// The pipeline.
        pipeline: String,
        /// The slot.
        slot: String,
        /// The checkpoint.
        through: Lsn,
    },
    /// Another slot under the name.
    #[error(
        "slot `{slot}` stands at {confirmed}, before {consistent_point} where ours was made: it is another slot of that name, and ours is gone. To copy the tables again: `landfall tables CONFIG {pipeline} resync --all` (LF-PG0201)"
    )]
    SlotReplaced {
        /// The pipeline.
        pipeline: String,
        /// The slot.
        slot: String,
        /// Where it stands.
        confirmed: Lsn,
        /// Where ours began.
        consistent_point: Lsn,
    },
    /// A slot without progress.
    #[error(
        "slot `{slot}` exists, for database `{database}`, and nothing is stored about it, so it is not ours. Another one for this pipeline: `slot: {{ name: … }}`. If nothing else uses it: `SELECT pg_drop_replication_slot('{slot}');`. To go on from where it stands, without a copy: `slot.adopt: true` with `snapshot.mode: never` (LF-PG0202)"
    )]
    SlotForeign {
        /// The slot.
        slot: String,
        /// Whose changes it holds: slots of all databases of a server share their names.
        database: String,
    },
    /// Somebody reads from it.
    #[error(
        "slot `{slot}` is busy (pid {pid}): another connection reads from it. This goes on by itself when it ends; `SELECT pg_terminate_backend({pid});` ends it (LF-PG0203)"
    )]
    SlotBusy {
        /// The slot.
        slot: String,
        /// Who.
        pid: i32,
    },
    /// The server gave up its log.
    #[error("slot `{slot}` is lost: {}. It cannot be read any more. Raise or turn off that setting, then `SELECT pg_drop_replication_slot('{slot}');` and `landfall tables CONFIG {pipeline} resync --all` (LF-PG0204)", lost_by(reason.as_deref(), kept))]
    SlotLost {
        /// The pipeline.
        pipeline: String,
        /// The slot.
        slot: String,
        /// The server's reason, from version 17 on.
        reason: Option<String>,
        /// `max_slot_wal_keep_size`, in MB.
        kept: String,
    },
    /// A slot of another kind.
    #[error(
        "slot `{slot}` has {what} {found}, and {expected} is needed: it is not ours. Choose another `slot.name`, or, if nothing else uses it, `SELECT pg_drop_replication_slot('{slot}');` (LF-PG0205)"
    )]
    SlotDiffers {
        /// The slot.
        slot: String,
        /// Which property.
        what: &'static str,
        /// What is needed.
        expected: String,
        /// What is there.
        found: String,
    },
    /// `slot.name` was changed.
    #[error(
        "progress is stored under slot `{stored}`, and `slot.name` is now `{configured}`: set it back, or drop the old one with `landfall tables CONFIG PIPELINE drop-slot` before you use another name (LF-PG0205)"
    )]
    SlotRenamed {
        /// The stored name.
        stored: String,
        /// The configured one.
        configured: String,
    },
    /// The slot has passed the checkpoint.
    #[error("slot `{slot}` stands at {confirmed}, {} bytes past what is stored ({through}): something else read from it or moved it, or it was made anew. The changes between would be missing without a word. To copy the tables again: `landfall tables CONFIG {pipeline} resync --all` (LF-PG0206)", confirmed.since(*through))]
    SlotAhead {
        /// The pipeline.
        pipeline: String,
        /// The slot.
        slot: String,
        /// Where it stands.
        confirmed: Lsn,
        /// The checkpoint.
        through: Lsn,
    },
    /// Another cluster or database.
    #[error("progress is stored for system {}, database oid {}; the address leads to system {}, database oid {}. If the address is wrong, correct `url`. If the database moved, `landfall tables CONFIG {pipeline} resync --all` copies it again under a new epoch (LF-PG0207)", stored.0, stored.1, found.0, found.1)]
    OtherSystem {
        /// The pipeline.
        pipeline: String,
        /// System identifier and database oid of the record.
        stored: (u64, u32),
        /// Those of the server.
        found: (u64, u32),
    },
    /// We saw commits that the new primary never had.
    #[error("the server went from timeline {} to {} at {}, and commits up to {through} have landed: those in between never reached this server. `landfall tables CONFIG {pipeline} resync --all` copies the tables again under a new epoch (LF-PG0208)", timelines.0, timelines.1, switch_point.map_or_else(|| "a point that its history does not tell".to_owned(), |point| point.to_string()))]
    PastSwitch {
        /// The pipeline.
        pipeline: String,
        /// The checkpoint.
        through: Lsn,
        /// Of the record and of the server.
        timelines: (u32, u32),
        /// Where the server left the record's timeline.
        switch_point: Option<Lsn>,
    },
    /// The server is older than the checkpoint.
    #[error("the server's log ends at {wal_end} on timeline {}, before the stored {through} on timeline {}: it was restored from an older state. `landfall tables CONFIG {pipeline} resync --all` copies the tables again under a new epoch (LF-PG0209)", timelines.1, timelines.0)]
    ServerBehind {
        /// The pipeline.
        pipeline: String,
        /// The checkpoint.
        through: Lsn,
        /// The end of the server's log.
        wal_end: Lsn,
        /// Of the record and of the server.
        timelines: (u32, u32),
    },
    /// The publication lacks something.
    #[error("{}. Run: {}{} (LF-PG0210)", reasons.join("; "), statements.join(" "), resync(pipeline, lost))]
    PublicationIncomplete {
        /// The pipeline.
        pipeline: String,
        /// What it lacks.
        reasons: Vec<String>,
        /// What mends it.
        statements: Vec<String>,
        /// Tables that were carried and are not published now: what they had since is gone.
        lost: Vec<TableName>,
    },
    /// The publication was dropped. One that is made again is not found by the decoding of what was written before it.
    #[error(
        "{reason}: it was dropped, and what was written since cannot be read by this slot, for which a new one is not there yet. `landfall tables CONFIG {pipeline} resync --all` starts over with a new slot and copies the tables again{} (LF-PG0210)",
        by_hand(statements)
    )]
    PublicationGone {
        /// The pipeline.
        pipeline: String,
        /// Names it.
        reason: String,
        /// What makes it again, where the source may not.
        statements: Vec<String>,
    },
    /// No slot, and none is to be made.
    #[error(
        "slot `{slot}` does not exist and `slot.create` is false: make it with `SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput');` and set `slot.adopt: true` with `snapshot.mode: never`, or set `slot.create: true` (LF-PG0215)"
    )]
    SlotMissing {
        /// The slot.
        slot: String,
    },
}

impl StartupProblem {
    /// Whether it passes by itself.
    pub fn is_passing(&self) -> bool {
        matches!(self, StartupProblem::SlotBusy { .. })
    }
}

fn lost_by(reason: Option<&str>, kept: &str) -> String {
    let (what, setting) = match reason {
        None | Some("wal_removed") => {
            return format!("its log was removed (`max_slot_wal_keep_size` is {kept} MB)");
        }
        Some("rows_removed") => ("catalog rows that it needs were removed", "hot_standby_feedback"),
        Some("wal_level_insufficient") => ("the log was not written for decoding", "wal_level"),
        Some("idle_timeout") => ("it was idle for too long", "idle_replication_slot_timeout"),
        Some(other) => return format!("the server says `{other}`"),
    };
    format!("{what} (`{setting}`)")
}

fn by_hand(statements: &[String]) -> String {
    if statements.is_empty() { String::new() } else { format!(", after: {}", statements.join(" ")) }
}

fn resync(pipeline: &str, lost: &[TableName]) -> String {
    let steps: Vec<String> = lost
        .iter()
        .map(|table| format!("`landfall tables CONFIG {pipeline} resync {}`", sql::relation(table)))
        .collect();
    if steps.is_empty() {
        String::new()
    } else {
        format!(" Then {}, for what was not published is gone", steps.join(", "))
    }
}

impl Coded for StartupProblem {
    fn code(&self) -> Code {
        match self {
            StartupProblem::SlotGone { .. } | StartupProblem::SlotReplaced { .. } => code::SLOT_GONE,
            StartupProblem::SlotForeign { .. } => code::SLOT_FOREIGN,
            StartupProblem::SlotBusy { .. } => code::SLOT_BUSY,
            StartupProblem::SlotLost { .. } => code::SLOT_LOST,
            StartupProblem::SlotDiffers { .. } | StartupProblem::SlotRenamed { .. } => code::SLOT_DIFFERS,
            StartupProblem::SlotAhead { .. } => code::SLOT_AHEAD,
            StartupProblem::OtherSystem { .. } => code::OTHER_SYSTEM,
            StartupProblem::PastSwitch { .. } => code::PAST_SWITCH,
            StartupProblem::ServerBehind { .. } => code::SERVER_BEHIND,
            StartupProblem::PublicationIncomplete { .. } | StartupProblem::PublicationGone { .. } => code::PUBLICATION,
            StartupProblem::SlotMissing { .. } => code::SLOT_MISSING,
        }
    }

    fn kind(&self) -> Kind {
        page_of(self.code()).map_or(Kind::Conflict, |page| page.kind)
    }

    fn retry(&self) -> Retry {
        page_of(self.code()).map_or(Retry::Never, |page| page.retry)
    }
}
