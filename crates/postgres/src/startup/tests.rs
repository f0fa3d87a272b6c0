//! P57 row by row.

use std::collections::BTreeMap;

use landfall_types::Coded;

use super::*;
use crate::fixtures::{SYSTEM, server, slot, table_name as name};
use crate::record::{TablePhase, TableRecord};
use crate::slot::SlotIdentity;

const C: Lsn = Lsn(1_000);
const THROUGH: Lsn = Lsn(5_000);

/// One start: what is configured, what the server shows, what is stored. Made good, then bent by each test.
struct Start {
    options: StartupOptions,
    server: ServerFacts,
    slot: Option<SlotFacts>,
    publication: PublicationPlan,
    switch_point: Option<Lsn>,
    record: Option<SourceRecord>,
}

fn start() -> Start {
    let row_options = OptionSet { publications: vec!["landfall_shop".into()], origin: None, messages: false };
    let mut record = SourceRecord::intent("landfall_shop".into(), SYSTEM, 16_384, 1, row_options.clone());
    record.slot = SlotRecord::Made(SlotIdentity {
        system_identifier: SYSTEM,
        database_oid: 16_384,
        slot: "landfall_shop".into(),
        plugin: PLUGIN.into(),
        consistent_point: C,
    });
    record.through = THROUGH;
    record.tables.push(TableRecord {
        relation: RelationId(20_000),
        name: name("orders"),
        target: "orders".into(),
        stream_partition: 0,
        phase: TablePhase::Streaming,
        shape: 1,
        copy: None,
        park: None,
        watched: None,
        notes: Vec::new(),
    });
    Start {
        options: StartupOptions {
            pipeline: "shop".into(),
            slot: "landfall_shop".into(),
            creates_slot: true,
            adopts_slot: false,
            copies: true,
            creates_publication: true,
            row_options,
        },
        server: ServerFacts { settings: BTreeMap::from([("max_slot_wal_keep_size".into(), "1".into())]), ..server() },
        slot: Some(slot()),
        publication: PublicationPlan::default(),
        switch_point: None,
        record: Some(record),
    }
}

impl Start {
    fn decide(&self) -> Decision {
        let facts = Facts {
            server: &self.server,
            slot: self.slot.as_ref(),
            publication: &self.publication,
            switch_point: self.switch_point,
        };
        decide(&self.options, &facts, self.record.as_ref())
    }

    fn slot(&mut self) -> &mut SlotFacts {
        self.slot.as_mut().unwrap()
    }

    fn intent(&mut self) {
        self.record =
            Some(SourceRecord::intent("landfall_shop".into(), SYSTEM, 16_384, 1, self.options.row_options.clone()));
    }

    /// Fails unless it is refused with this code and every text is in the message.
    #[track_caller]
    fn refused(&self, code: &str, texts: &[&str]) {
        let Decision::Refuse(problem) = self.decide() else { panic!("{:?}", self.decide()) };
        let message = problem.to_string();
        assert_eq!(problem.code().to_string(), code, "{message}");
        assert!(message.ends_with(&format!("({code})")), "{message}");
        for text in texts {
            assert!(message.contains(text), "`{text}` is not in: {message}");
        }
    }
}

fn resumes() -> Decision {
    Decision::Resume { through: THROUGH, raises_epoch: false, adds: Vec::new() }
}

/// Catches a start that distrusts the normal case: the slot is behind the checkpoint after every crash (P58).
#[test]
fn a_slot_behind_the_checkpoint_is_normal() {
    assert_eq!(start().decide(), resumes());
    let mut at_it = start();
    at_it.slot().confirmed_flush_lsn = Some(THROUGH);
    assert_eq!(at_it.decide(), resumes());
}

/// LF-PG0201. Catches a slot made anew over stored progress, which would jump to now.
#[test]
fn a_checkpoint_without_a_slot_is_refused() {
    let mut gone = start();
    gone.slot = None;
    gone.refused("LF-PG0201", &["`landfall_shop` is gone", "0/1388", "landfall tables CONFIG shop resync --all"]);
}

/// LF-PG0201 (F-P5). Catches progress of one slot that is used under another of the same name.
#[test]
fn progress_belongs_to_one_slot_identity() {
    let mut replaced = start();
    replaced.slot().confirmed_flush_lsn = Some(Lsn(C.0 - 1));
    replaced.refused("LF-PG0201", &["another slot of that name", "0/3E7", "0/3E8", "resync --all"]);
}

/// LF-PG0202. Catches a slot of somebody else that is read from, and so emptied for its owner.
#[test]
fn a_slot_that_nothing_is_stored_about_is_not_ours() {
    let mut foreign = start();
    foreign.record = None;
    foreign.refused(
        "LF-PG0202",
        &["SELECT pg_drop_replication_slot('landfall_shop');", "slot.adopt: true", "snapshot.mode: never"],
    );
    foreign.options.adopts_slot = true;
    foreign.refused("LF-PG0202", &[]);
    foreign.options.copies = false;
    assert_eq!(foreign.decide(), Decision::Adopt { at: Lsn(4_500) });
}

/// LF-PG0203 (F-P19). Catches a busy slot that ends the pipeline: it goes on by itself.
#[test]
fn a_busy_slot_is_waited_for() {
    let mut busy = start();
    busy.slot().active_pid = Some(77);
    let Decision::Wait(problem) = busy.decide() else { panic!("{:?}", busy.decide()) };
    assert_eq!(problem.code().to_string(), "LF-PG0203");
    assert!(problem.to_string().contains("busy (pid 77)"), "{problem}");
    // What cannot get well is said at once, whoever has the slot.
    busy.slot().wal_status = Some("lost".into());
    busy.refused("LF-PG0204", &[]);
}

/// LF-PG0204 (F-P3). Catches a lost slot that is retried for ever, and a message without the setting behind it.
#[test]
fn an_invalidated_slot_is_not_retried() {
    for (reason, setting) in [
        (None, "`max_slot_wal_keep_size` is 1 MB"),
        (Some("wal_removed"), "`max_slot_wal_keep_size` is 1 MB"),
        (Some("rows_removed"), "`hot_standby_feedback`"),
        (Some("wal_level_insufficient"), "`wal_level`"),
        (Some("idle_timeout"), "`idle_replication_slot_timeout`"),
        (Some("something new"), "something new"),
    ] {
        let mut lost = start();
        lost.slot().wal_status = Some("lost".into());
        lost.slot().invalidation_reason = reason.map(str::to_owned);
        lost.refused("LF-PG0204", &[setting, "SELECT pg_drop_replication_slot('landfall_shop');", "resync --all"]);
    }
    let mut no_restart = start();
    no_restart.slot().restart_lsn = None;
    no_restart.refused("LF-PG0204", &[]);
    let mut by_reason_only = start();
    by_reason_only.slot().invalidation_reason = Some("idle_timeout".into());
    by_reason_only.refused("LF-PG0204", &[]);
}

/// LF-PG0205. Catches a slot whose output the decoder would misread.
#[test]
fn a_slot_of_another_kind_is_refused_with_both_values() {
    type Bend = fn(&mut SlotFacts);
    let bend: [(Bend, &[&str]); 5] = [
        (|slot| slot.plugin = Some("wal2json".into()), &["plugin wal2json", "pgoutput is needed"]),
        (|slot| slot.plugin = None, &["kind physical", "logical"]),
        (
            |slot| {
                slot.database_oid = Some(5);
                slot.database = Some("postgres".into());
            },
            &["database postgres", "shop is needed"],
        ),
        (|slot| slot.is_two_phase = true, &["two_phase true"]),
        (|slot| slot.is_temporary = true, &["temporary true"]),
    ];
    for (bend, texts) in bend {
        let mut differs = start();
        bend(differs.slot());
        differs.refused("LF-PG0205", texts);
    }
    let mut renamed = start();
    renamed.options.slot = "other".into();
    renamed.refused("LF-PG0205", &["under slot `landfall_shop`", "now `other`", "drop-slot"]);
}

/// LF-PG0206. Catches the silent gap: asked for an older position the server starts at its own without a word.
#[test]
fn a_slot_advanced_behind_our_back_is_a_gap() {
    let mut ahead = start();
    ahead.slot().confirmed_flush_lsn = Some(Lsn(THROUGH.0 + 123));
    ahead.refused("LF-PG0206", &["123 bytes past what is stored (0/1388)", "resync --all"]);
}

/// LF-PG0207 (F-U3). Catches positions of one cluster or database used in another.
#[test]
fn another_system_or_database_is_refused_with_both_identities() {
    let mut other = start();
    other.server.system_identifier = 42;
    other.refused("LF-PG0207", &["7530184932114511873", "system 42", "new epoch"]);
    let mut other = start();
    other.server.database_oid = 99;
    other.refused("LF-PG0207", &["oid 16384", "oid 99"]);
    // It comes before all that would be said about the other server's slot.
    other.slot = None;
    other.refused("LF-PG0207", &[]);
}

/// LF-PG0208. Catches commits that landed and that the promoted server never had.
#[test]
fn a_checkpoint_past_the_switch_point_is_refused() {
    let mut promoted = start();
    promoted.server.timeline = 2;
    promoted.refused("LF-PG0208", &["timeline 1 to 2", "does not tell"]);
    promoted.switch_point = Some(Lsn(THROUGH.0 - 1));
    promoted.refused("LF-PG0208", &["at 0/1387", "up to 0/1388", "new epoch"]);
    promoted.switch_point = Some(THROUGH);
    assert_eq!(promoted.decide(), resumes());
}

/// LF-PG0209. Catches a server restored from an older state, whose future log would take the place of landed rows.
#[test]
fn a_server_behind_the_checkpoint_is_refused() {
    let mut restored = start();
    restored.server.wal_end = Lsn(THROUGH.0 - 1);
    restored.refused("LF-PG0209", &["ends at 0/1387", "stored 0/1388", "restored"]);
    restored.server.is_standby = true;
    assert_eq!(restored.decide(), resumes(), "a standby's replay may be behind for a while");
    let mut older_timeline = start();
    older_timeline.record.as_mut().unwrap().timeline = 3;
    older_timeline.refused("LF-PG0209", &["timeline 1", "timeline 3"]);
}

/// LF-PG0210. Catches one table outside of the publication that stops every other (I13): one that was carried is parked by
/// the start, a new one is added, or left where the publication is not ours. A publication that is gone, or in another
/// mode, is every table's affair.
#[test]
fn a_table_that_the_publication_lacks_stops_no_other() {
    let mut unpublished = start();
    let plan = PublicationPlan {
        statements: vec!["ALTER PUBLICATION landfall_shop ADD TABLE public.orders;".into()],
        reasons: vec!["publication `landfall_shop` lacks public.orders".into()],
        missing_tables: vec![(RelationId(20_000), name("orders"))],
        ..PublicationPlan::default()
    };
    unpublished.publication = plan.clone();
    assert_eq!(unpublished.decide(), resumes());
    // One that was dropped is no matter of a statement: the slot does not find its successor in what is older.
    unpublished.publication.is_missing = true;
    unpublished.refused("LF-PG0210", &["was dropped", "resync --all"]);
    unpublished.publication.is_missing = false;
    // A table that was never carried is added by the source itself, or by the operator if it may not.
    unpublished.publication.missing_tables = vec![(RelationId(30_000), name("orders"))];
    let adds = vec![name("orders")];
    assert_eq!(unpublished.decide(), Decision::Resume { through: THROUGH, raises_epoch: false, adds });
    unpublished.options.creates_publication = false;
    assert_eq!(unpublished.decide(), resumes());
    // Another mode than ours is somebody's decision, not to be turned back in silence.
    unpublished.options.creates_publication = true;
    unpublished.publication = PublicationPlan { sets_mode: true, missing_tables: Vec::new(), ..plan };
    unpublished.refused("LF-PG0210", &[]);
}

/// LF-PG0211 (P52). Catches a first start that crashed and can never start again, or that streams from a slot whose
/// snapshot is gone.
#[test]
fn an_orphan_of_a_crashed_first_start_is_replaced() {
    let mut crashed = start();
    crashed.intent();
    assert_eq!(crashed.decide(), Decision::FirstStart { drops_orphan: true });
    crashed.slot().active_pid = Some(5);
    assert!(matches!(crashed.decide(), Decision::Wait(StartupProblem::SlotBusy { pid: 5, .. })));
    crashed.slot = None;
    assert_eq!(crashed.decide(), Decision::FirstStart { drops_orphan: false });
    // An intent about another server says nothing about a slot on this one.
    let mut elsewhere = start();
    elsewhere.intent();
    elsewhere.server.system_identifier = 42;
    elsewhere.refused("LF-PG0202", &[]);
    let mut renamed = start();
    renamed.intent();
    renamed.options.slot = "other".into();
    renamed.refused("LF-PG0205", &[]);
}

/// Catches a slot or publication made although the configuration says not to.
#[test]
fn nothing_is_made_that_may_not_be_made() {
    let mut first = start();
    first.record = None;
    first.slot = None;
    assert_eq!(first.decide(), Decision::FirstStart { drops_orphan: false });
    first.options.creates_slot = false;
    first.refused("LF-PG0215", &["slot.create"]);
    first.options.creates_slot = true;
    first.options.creates_publication = false;
    first.publication.statements = vec!["CREATE PUBLICATION p;".into()];
    first.publication.reasons = vec!["publication `p` does not exist".into()];
    first.refused("LF-PG0210", &["CREATE PUBLICATION p;"]);
}

/// Catches another numbering of a transaction's rows under the same epoch (P93).
#[test]
fn another_option_set_raises_the_epoch() {
    let mut other = start();
    other.options.row_options.messages = true;
    assert_eq!(other.decide(), Decision::Resume { through: THROUGH, raises_epoch: true, adds: Vec::new() });
}

/// Catches the newest switch taken for ours after two promotions.
#[test]
fn the_switch_point_is_that_of_our_timeline() {
    let history = [(1, Lsn(100)), (2, Lsn(200))];
    assert_eq!(switch_point(history, 1), Some(Lsn(100)));
    assert_eq!(switch_point(history, 2), Some(Lsn(200)));
    assert_eq!(switch_point(history, 3), None);
}
