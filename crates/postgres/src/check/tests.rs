//! The table of P64, rule by rule.

use super::*;
use crate::catalog::{BlockingTransaction, KeyOrigin, NotCarried, SkippedRelation, TableFacts};
use crate::fixtures::{column, leaf, server, slot, table, table_name};
use crate::publication::{PublishedTable, plan_publication};
use crate::record::{OptionSet, SlotRecord};
use crate::slot::SlotIdentity;
use crate::{ColumnShape, Identity, RelationId, Xid};

fn options() -> CheckOptions {
    CheckOptions {
        startup: StartupOptions {
            pipeline: "shop".into(),
            slot: "landfall_shop".into(),
            creates_slot: true,
            adopts_slot: false,
            copies: true,
            creates_publication: true,
            row_options: OptionSet { publications: vec!["landfall_shop".into()], origin: None, messages: false },
        },
        publication: "landfall_shop".into(),
        tables: vec![("public.*".parse().unwrap(), TableRules::default())],
        application_name: "landfall".into(),
    }
}

fn publication(tables: &[TableFacts]) -> PublicationFacts {
    let published = |table: &TableFacts| PublishedTable {
        relation: table.shape.relation,
        name: table.shape.name.clone(),
        columns: None,
        row_filter: None,
    };
    PublicationFacts {
        name: "landfall_shop".into(),
        is_for_all_tables: false,
        has_schemas: false,
        missing_operations: Vec::new(),
        is_via_root: true,
        is_own: true,
        tables: tables.iter().map(published).collect(),
    }
}

fn record() -> SourceRecord {
    let options = options().startup;
    let mut record = SourceRecord::intent(options.slot.clone(), 1, 1, 1, options.row_options);
    let server = server();
    record.slot = SlotRecord::Made(SlotIdentity {
        system_identifier: server.system_identifier,
        database_oid: server.database_oid,
        slot: options.slot,
        plugin: "pgoutput".into(),
        consistent_point: Lsn(1_000),
    });
    record.through = Lsn(5_000);
    record
}

fn of_tables(tables: Vec<TableFacts>) -> PostgresCheck {
    let publication = publication(&tables);
    PostgresCheck {
        server: server(),
        plan: plan_publication("landfall_shop", Some(&publication), &tables),
        tables: MatchedTables { tables, ..MatchedTables::default() },
        publication: Some(publication),
        slot: Some(slot()),
        switch_point: None,
        may_create: true,
        not_owned: Vec::new(),
        replication_refused: None,
        left_behind: Vec::new(),
        near: Default::default(),
        physical_slots: Vec::new(),
    }
}

/// The one finding with this code; fails if there is none or more.
#[track_caller]
fn the(check: &PostgresCheck, options: &CheckOptions, code: &str) -> Finding {
    let findings = check.findings(options, Some(&record()));
    let of_code = |finding: &&Finding| finding.code.is_some_and(|own| own.to_string() == code);
    let found: Vec<&Finding> = findings.iter().filter(of_code).collect();
    assert_eq!(found.len(), 1, "{code} in {findings:#?}");
    found[0].clone()
}

#[track_caller]
fn fixed_by(check: &PostgresCheck, code: &str, level: Level, fix: &str) {
    let finding = the(check, &options(), code);
    assert_eq!((finding.level, finding.fix.as_deref()), (level, Some(fix)), "{finding}");
}

fn with_setting(name: &str, value: &str) -> PostgresCheck {
    let mut check = of_tables(vec![table(1, "orders")]);
    check.server.settings.insert(name.into(), value.into());
    check
}

/// Catches rules that complain of a set-up where all is well, which teaches people to look away.
#[test]
fn a_good_set_up_has_nothing_to_mend() {
    let check = of_tables(vec![table(1, "orders"), table(2, "lines")]);
    for finding in check.findings(&options(), Some(&record())) {
        assert!(finding.level <= Level::Info && finding.code.is_none(), "{finding}");
    }
}

/// Catches a server setting that stops or hurts capture and is not said, or said without the statement that mends it.
#[test]
fn each_setting_is_named_with_its_statement() {
    fixed_by(
        &with_setting("wal_level", "replica"),
        "LF-PG0114",
        Level::Error,
        "ALTER SYSTEM SET wal_level = 'logical';",
    );
    fixed_by(
        &with_setting("max_replication_slots", "1"),
        "LF-PG0114",
        Level::Error,
        "ALTER SYSTEM SET max_replication_slots = 4;",
    );
    fixed_by(&with_setting("max_wal_senders", "0"), "LF-PG0114", Level::Error, "ALTER SYSTEM SET max_wal_senders = 3;");
    fixed_by(
        &with_setting("max_slot_wal_keep_size", "-1"),
        "LF-PG0115",
        Level::Warn,
        "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB';",
    );
    fixed_by(
        &with_setting("idle_replication_slot_timeout", "60"),
        "LF-PG0115",
        Level::Warn,
        "ALTER SYSTEM SET idle_replication_slot_timeout = 0;",
    );
    fixed_by(
        &with_setting("wal_sender_timeout", "0"),
        "LF-PG0115",
        Level::Warn,
        "ALTER SYSTEM SET wal_sender_timeout = '60s';",
    );
    fixed_by(
        &with_setting("wal_sender_timeout", "2999"),
        "LF-PG0115",
        Level::Warn,
        "ALTER SYSTEM SET wal_sender_timeout = '60s';",
    );
    let finding = the(&with_setting("synchronous_standby_names", "*"), &options(), "LF-PG0114");
    assert_eq!(finding.level, Level::Error);
    let mut close = with_setting("max_slot_wal_keep_size", "10");
    close.slot.as_mut().unwrap().held_bytes = Some(6 << 20);
    fixed_by(&close, "LF-PG0115", Level::Warn, "ALTER SYSTEM SET max_slot_wal_keep_size = '1024MB';");
}

/// Catches versions that are taken for supported, and a standby that is taken for a primary.
#[test]
fn versions_and_standbys_are_judged() {
    for (version, is_error) in [(130_015, true), (140_000, false), (180_004, false), (190_000, true)] {
        let mut check = of_tables(vec![]);
        check.server.version = version;
        let findings = check.findings(&options(), Some(&record()));
        assert_eq!(findings.iter().any(|finding| finding.level == Level::Error), is_error, "{version}: {findings:#?}");
    }
    let mut check = of_tables(vec![]);
    check.server.is_standby = true;
    assert_eq!(the(&check, &options(), "LF-PG0113").level, Level::Error);
}

/// Catches a missing right that is found only when the copy fails, and a GRANT on the root that opens no leaf.
#[test]
fn each_missing_right_has_its_grant() {
    let mut check = of_tables(vec![]);
    check.server.may_replicate = false;
    fixed_by(&check, "LF-PG0110", Level::Error, "ALTER ROLE landfall REPLICATION;");
    check.server.may_replicate = true;
    check.replication_refused = Some((crate::code::NOT_NOW, "all senders are in use (LF-PG0106)".into()));
    assert_eq!(
        the(&check, &options(), "LF-PG0106").text,
        "a replication connection does not come about: all senders are in use"
    );
    let mut root = TableFacts { is_partitioned: true, may_use_schema: false, ..table(1, "Events") };
    root.leaves = vec![leaf(2, "events_1"), crate::catalog::LeafFacts { may_select: false, ..leaf(3, "events_2") }];
    fixed_by(
        &of_tables(vec![root]),
        "LF-PG0110",
        Level::Error,
        "GRANT USAGE ON SCHEMA public TO landfall; GRANT SELECT ON public.events_2 TO landfall;",
    );
    let secured = TableFacts { is_row_security_active: true, ..table(1, "orders") };
    fixed_by(&of_tables(vec![secured]), "LF-PG0603", Level::Error, "ALTER ROLE landfall BYPASSRLS;");
}

/// Catches a promotion that costs a copy of everything although the server could have kept the slot, and a slot that is kept
/// but runs ahead of the standbys.
#[test]
fn a_standby_that_does_not_get_the_slot_is_said() {
    let mut check = of_tables(vec![table(1, "orders")]);
    check.physical_slots = vec!["standby_1".into(), "standby_2".into()];
    let with_fix = |check: &PostgresCheck, fix: &str| {
        let findings = check.findings(&options(), Some(&record()));
        findings.iter().any(|finding| finding.level == Level::Warn && finding.fix.as_deref() == Some(fix))
    };
    assert!(with_fix(&check, "ALTER_REPLICATION_SLOT landfall_shop (FAILOVER true);"));
    check.slot.as_mut().unwrap().is_failover = true;
    let waits = "ALTER SYSTEM SET synchronized_standby_slots = 'standby_1, standby_2';";
    assert!(with_fix(&check, waits));
    check.server.settings.insert("synchronized_standby_slots".into(), "standby_1, standby_2".into());
    assert!(check.findings(&options(), Some(&record())).iter().all(|finding| finding.level < Level::Warn));
    check.server.version = 160_004;
    check.slot.as_mut().unwrap().is_failover = false;
    assert!(
        check.findings(&options(), Some(&record())).iter().all(|finding| finding.level < Level::Warn),
        "16 has none"
    );
}

/// Catches a table of which a current state would lose rows, carried without a word (P72).
#[test]
fn a_deferrable_key_is_refused_even_where_rows_are_only_added() {
    let mut swapped = TableFacts { deferrable_key: Some("Swap_key".into()), ..table(1, "swap") };
    swapped.shape.identity = Identity::Full;
    let mut append = options();
    append.tables[0].1.is_append = true;
    for options in [options(), append] {
        let finding = the(&of_tables(vec![swapped.clone()]), &options, "LF-PG0510");
        assert_eq!(finding.level, Level::Error);
        let fix = "ALTER TABLE public.swap DROP CONSTRAINT \"Swap_key\", ADD PRIMARY KEY (id);";
        assert_eq!(finding.fix.as_deref(), Some(fix));
    }
}

/// Catches a table whose UPDATEs would fail once it is published, and one whose equal rows cannot be told apart.
#[test]
fn each_table_and_leaf_needs_an_identity_and_a_key() {
    let nothing = TableFacts { key: KeyOrigin::None, has_usable_identity: false, ..table(1, "log") };
    fixed_by(&of_tables(vec![nothing]), "LF-PG0505", Level::Error, "ALTER TABLE public.log REPLICA IDENTITY FULL;");
    let mut root = TableFacts { is_partitioned: true, ..table(1, "events") };
    root.leaves =
        vec![leaf(2, "events_1"), crate::catalog::LeafFacts { has_usable_identity: false, ..leaf(3, "events_2") }];
    fixed_by(&of_tables(vec![root]), "LF-PG0505", Level::Error, "ALTER TABLE public.events_2 REPLICA IDENTITY FULL;");
    let mut full = TableFacts { key: KeyOrigin::None, ..table(1, "log") };
    full.shape.identity = Identity::Full;
    fixed_by(&of_tables(vec![full.clone()]), "LF-PG0505", Level::Error, "ALTER TABLE public.log ADD PRIMARY KEY (…);");
    for rules in [
        TableRules { is_append: true, ..TableRules::default() },
        TableRules { key: vec!["id".into()], ..TableRules::default() },
    ] {
        let mut options = options();
        options.tables[0].1 = rules;
        let findings = of_tables(vec![full.clone()]).findings(&options, Some(&record()));
        assert!(findings.iter().all(|finding| finding.level < Level::Warn), "{findings:#?}");
    }
    let mut options = options();
    options.tables[0].1.key = vec!["nope".into()];
    assert!(the(&of_tables(vec![full]), &options, "LF-PG0505").text.contains("`nope`"));
}

/// Catches large values that would silently turn into NULL or an old value in the target (F-P1).
#[test]
fn large_values_without_full_identity_are_refused_or_warned_of() {
    let mut doc = table(1, "doc");
    doc.shape.columns[1] = ColumnShape { is_toastable: true, ..column(2, "body") };
    let check = of_tables(vec![doc.clone()]);
    fixed_by(&check, "LF-PG0506", Level::Error, "ALTER TABLE public.doc REPLICA IDENTITY FULL;");
    let mut merge = options();
    merge.tables[0].1.toast = ToastPolicy::Merge;
    assert_eq!(the(&check, &merge, "LF-PG0506").level, Level::Warn);
    doc.shape.identity = Identity::Full;
    assert!(
        of_tables(vec![doc])
            .findings(&options(), None)
            .iter()
            .all(|finding| finding.code.is_none_or(|code| code.to_string() != "LF-PG0506"))
    );
}

/// Catches a publication that lacks something, said as an error where the source mends it, or as nothing where not.
#[test]
fn the_publication_is_mended_or_its_statement_printed() {
    let mut check = of_tables(vec![table(1, "orders")]);
    check.publication.as_mut().unwrap().tables.clear();
    check.plan = plan_publication("landfall_shop", check.publication.as_ref(), &check.tables.tables);
    let findings = check.findings(&options(), Some(&record()));
    let mended = findings.iter().find(|finding| finding.fix.is_some()).unwrap();
    assert_eq!(
        (mended.level, mended.fix.as_deref()),
        (Level::Info, Some("ALTER PUBLICATION landfall_shop ADD TABLE ONLY public.orders;"))
    );
    check.publication.as_mut().unwrap().is_own = false;
    assert_eq!(the(&check, &options(), "LF-PG0210").level, Level::Error);
    check.publication.as_mut().unwrap().is_own = true;
    check.not_owned = vec![check.tables.tables[0].shape.name.clone()];
    let not_ours = the(&check, &options(), "LF-PG0210");
    assert!(not_ours.level == Level::Error && not_ours.help.unwrap().contains("public.orders"));
    check.not_owned.clear();
    // A table that was carried is not taken in again in silence: what was written to it meanwhile is lost to the slot.
    let mut carried = record();
    carried.tables.push(crate::TableRecord {
        relation: check.tables.tables[0].shape.relation,
        name: check.tables.tables[0].shape.name.clone(),
        target: "public.orders".into(),
        stream_partition: 1,
        phase: crate::TablePhase::Streaming,
        shape: 1,
        copy: None,
        park: None,
        watched: None,
        notes: Vec::new(),
    });
    let findings = check.findings(&options(), Some(&carried));
    let refused = findings.iter().find(|finding| finding.fix.is_some()).unwrap();
    assert!(refused.level == Level::Error && refused.help.as_ref().unwrap().contains("resync public.orders"));
    let mut by_hand = options();
    by_hand.startup.creates_publication = false;
    assert_eq!(
        the(&check, &by_hand, "LF-PG0210").fix.as_deref(),
        Some("ALTER PUBLICATION landfall_shop ADD TABLE ONLY public.orders;")
    );
    let mut leaves_out = publication(&check.tables.tables);
    leaves_out.missing_operations = vec!["truncate"];
    check.plan = plan_publication("landfall_shop", Some(&leaves_out), &check.tables.tables);
    check.publication = Some(leaves_out);
    assert_eq!(the(&check, &options(), "LF-PG0210").level, Level::Error);
}

/// Catches a name with a typo that is taken for a pattern whose tables come later, and relations that are not carried
/// passed over in silence (P8).
#[test]
fn what_is_meant_and_not_there_is_said() {
    let mut options = options();
    options.tables.push(("public.ordres".parse().unwrap(), TableRules::default()));
    options.tables.push(("public.v".parse().unwrap(), TableRules::default()));
    let mut check = of_tables(vec![table(1, "orders")]);
    check.tables.unmatched = vec![1];
    check.tables.skipped = vec![
        SkippedRelation { name: table_name("v"), why: NotCarried::View },
        SkippedRelation { name: table_name("u"), why: NotCarried::Unlogged },
    ];
    assert!(the(&check, &options, "LF-PG0503").text.contains("public.ordres"));
    assert_eq!(the(&check, &options, "LF-PG0504").text, "public.v is a view and is not carried");
    let findings = check.findings(&options, Some(&record()));
    assert!(
        findings
            .iter()
            .any(|finding| finding.level == Level::Info && finding.text.contains("public.u is an unlogged table"))
    );
}

/// Catches a first start that hangs on somebody's open transaction without a word, and slots left behind.
#[test]
fn what_will_delay_the_slot_is_named() {
    let mut check = of_tables(vec![table(1, "orders")]);
    check.slot = None;
    check.server.blocking = vec![BlockingTransaction {
        pid: 77,
        xid: Xid(5),
        age_seconds: 600,
        user: "app".into(),
        application: String::new(),
    }];
    check.left_behind = vec![("landfall_old".into(), Some(7 << 20))];
    let findings = check.findings(&options(), None);
    let fixes: Vec<&str> = findings.iter().filter_map(|finding| finding.fix.as_deref()).collect();
    assert_eq!(fixes, ["SELECT pg_terminate_backend(77);", "SELECT pg_drop_replication_slot('landfall_old');"]);
    assert!(findings.iter().any(|finding| finding.text.contains("holds 7 MB")));
}

/// Catches a start-up refusal that `check` does not say beforehand.
#[test]
fn the_start_up_list_is_part_of_check() {
    let mut check = of_tables(vec![table(1, "orders")]);
    check.slot.as_mut().unwrap().confirmed_flush_lsn = Some(Lsn(6_000));
    let finding = the(&check, &options(), "LF-PG0206");
    assert_eq!(finding.level, Level::Error);
    assert!(!finding.text.contains("LF-PG"), "the code is a field of its own: {finding}");
    assert_eq!(RelationId(1), check.tables.tables[0].shape.relation);
}

/// Catches a typo in `tables` or `columns` whose policies count for nothing without a word.
#[test]
fn what_decides_nothing_is_said_with_what_was_meant() {
    let mut options = options();
    options.tables.push(("public.orders".parse().unwrap(), TableRules::default()));
    options.tables.push(("public.ordres".parse().unwrap(), TableRules::default()));
    options.tables[0].1.columns = vec!["id".into(), "iD".into()];
    let mut check = of_tables(vec![table(1, "orders")]);
    assert_eq!(check.tables.tables[0].shape.columns[0].name, "id".into(), "of the fixture");
    check.tables.unmatched = vec![2];
    check.tables.idle = vec![1];
    check.near = [(2, table_name("orders"))].into();
    let missing = the(&check, &options, "LF-PG0503");
    assert_eq!(missing.help.as_deref(), Some("did you mean `public.orders`?"));
    let findings = check.findings(&options, Some(&record()));
    let unused: Vec<&Finding> =
        findings.iter().filter(|finding| finding.code.is_some_and(|code| code.to_string() == "LF-PG0522")).collect();
    assert_eq!(unused.len(), 2, "{findings:?}");
    assert!(unused.iter().all(|finding| finding.level == Level::Warn));
    let has = |text: &str| unused.iter().any(|finding| finding.to_string().contains(text));
    assert!(has("`iD`, which no table") && has("did you mean `id`?"), "{unused:?}");
    assert!(has("`public.orders` decides no table") && has("put it before `public.*`"), "{unused:?}");
}
