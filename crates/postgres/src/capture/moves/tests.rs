use super::*;
use crate::catalog::SightedColumn;
use crate::record::MemberRecord;

const ROOT: RelationId = RelationId(100);

fn name(text: &str) -> TableName {
    TableName { schema: "public".into(), table: text.into() }
}

fn member(oid: u32, parent: u32, file: u32, joined: u32) -> Member {
    let of = name(&format!("p{oid}"));
    Member { relation: RelationId(oid), name: of, parent: RelationId(parent), file, joined }
}

fn column(number: i16, text: &str, is_written: bool) -> SightedColumn {
    SightedColumn { number, name: text.into(), is_written }
}

/// A root with the partitions 101 and 102, the second with one of its own.
fn sighting() -> TableSighting {
    TableSighting {
        listed: Some(7),
        horizon: 50,
        columns: vec![column(1, "id", false), column(3, "note", false)],
        members: vec![member(101, 100, 201, 11), member(102, 100, 0, 12), member(103, 102, 203, 13)],
    }
}

fn stored() -> WatchedRecord {
    WatchedRecord::begin(&sighting(), crate::Lsn::ZERO)
}

fn moves(now: &TableSighting, answers: &Answers, is_told: bool) -> Vec<Move> {
    Changes::between(&stored(), now).moves(ROOT, answers, is_told)
}

fn born() -> Origin {
    Origin { is_born: true, is_empty: false, has_first_file: true }
}

/// Catches a stored look that does not hold what the next one is compared with.
#[test]
fn a_look_is_stored_whole_and_equals_itself() {
    let stored = stored();
    assert_eq!(stored.columns, [Some("id".into()), None, Some("note".into())]);
    assert_eq!(stored.members.first(), Some(&MemberRecord(RelationId(101), 201, 11)));
    assert!(Changes::between(&stored, &sighting()).is_empty());
}

/// Catches the partition of the next day that parks its table every night, and one that came with rows and does not
/// (F-P18).
#[test]
fn only_a_partition_that_was_made_as_one_has_nothing_untold() {
    let mut now = sighting();
    now.members.push(member(104, 100, 104, 20));
    let of = |origin: Origin| Answers { origins: [(RelationId(104), origin)].into(), ..Answers::default() };
    assert_eq!(moves(&now, &of(born()), false), []);
    assert_eq!(moves(&now, &of(Origin { is_born: false, is_empty: true, ..born() }), false), []);
    assert_eq!(moves(&now, &of(Origin { is_born: false, ..born() }), false), [Move::Attached(name("p104"))]);
    assert_eq!(moves(&now, &of(Origin { has_first_file: false, ..born() }), false), [Move::Rewritten(name("p104"))]);
    // Emptied by itself before the first look: what it had held is in the target.
    let emptied = Origin { has_first_file: false, is_empty: true, ..born() };
    assert_eq!(moves(&now, &of(emptied), false), [Move::Emptied(name("p104"))]);
    assert_eq!(moves(&now, &of(emptied), true), [], "with the whole table, as the stream said");
    assert_eq!(moves(&now, &of(Origin { is_born: false, ..emptied }), false), []);
    assert_eq!(moves(&now, &of(Origin { is_empty: true, ..born() }), false), []);
    // Nothing is known of it: the worse is taken.
    assert_eq!(moves(&now, &Answers::default(), false), [Move::Attached(name("p104"))]);
}

/// Catches a partition that is fine by itself and came below one that was attached with it.
#[test]
fn what_stands_below_an_attached_partition_came_with_it() {
    let mut now = sighting();
    now.members.extend([member(105, 100, 0, 20), member(106, 105, 106, 21)]);
    let of = |above: bool| {
        let above = Origin { is_born: above, ..born() };
        Answers { origins: [(RelationId(105), above), (RelationId(106), born())].into(), ..Answers::default() }
    };
    assert_eq!(moves(&now, &of(true), false), []);
    assert_eq!(moves(&now, &of(false), false), [Move::Attached(name("p106"))]);
    // Below one that was known before, only its own making counts.
    let mut now = sighting();
    now.members.push(member(107, 102, 107, 20));
    let answers = Answers { origins: [(RelationId(107), born())].into(), ..Answers::default() };
    assert_eq!(moves(&now, &answers, false), []);
}

/// Catches a partition that goes, or goes and comes back in between two looks, without a word.
#[test]
fn a_partition_that_left_is_missed_also_if_it_is_back() {
    let mut now = sighting();
    now.members.retain(|member| member.relation.0 != 101);
    let names = [(RelationId(101), name("p101"))].into();
    assert_eq!(moves(&now, &Answers::default(), false), [Move::Gone(RelationId(101), None)]);
    let answers = Answers { names, ..Answers::default() };
    assert_eq!(moves(&now, &answers, false), [Move::Gone(RelationId(101), Some(name("p101")))]);
    let mut now = sighting();
    now.members[0].joined = 99;
    assert_eq!(moves(&now, &Answers::default(), false), [Move::Rejoined(name("p101"))]);
    // One that holds no rows of its own takes none away; what stood below it does.
    let mut now = sighting();
    now.members.truncate(1);
    assert_eq!(moves(&now, &Answers::default(), false), [Move::Gone(RelationId(103), None)]);
}

/// Catches a truncate of the whole table, which is told, taken for one of each part of it; and the other way round.
#[test]
fn another_file_is_a_truncate_a_rewrite_or_was_told() {
    let mut now = sighting();
    now.members[0].file = 999;
    let kept = Answers { has_older_rows: [(RelationId(101), true)].into(), ..Answers::default() };
    let lost = Answers { has_older_rows: [(RelationId(101), false)].into(), ..Answers::default() };
    assert_eq!(moves(&now, &kept, false), [Move::Rewritten(name("p101"))]);
    assert_eq!(moves(&now, &lost, false), [Move::Emptied(name("p101"))]);
    assert_eq!(moves(&now, &lost, true), []);
    now.columns.push(column(4, "dice", true));
    assert_eq!(moves(&now, &lost, true), [Move::Written("dice".into())]);
    // Of a table without partitions, a truncate is always told.
    let plain = TableSighting { members: vec![member(100, 100, 200, 0)], ..sighting() };
    let stored = WatchedRecord::begin(&plain, crate::Lsn::ZERO);
    let rewritten = TableSighting { members: vec![member(100, 100, 300, 0)], ..plain };
    let changes = Changes::between(&stored, &rewritten);
    assert_eq!(changes.moves(ROOT, &Answers::default(), false), [Move::Rewritten(name("p100"))]);
    assert_eq!(changes.moves(ROOT, &Answers::default(), true), []);
}

/// Catches a default that stands for absent values, for which nothing was written, taken for one that was.
#[test]
fn a_new_column_counts_as_written_only_with_new_files() {
    let mut now = sighting();
    now.columns.push(column(4, "five", true));
    assert_eq!(moves(&now, &Answers::default(), false), []);
    now.columns.pop();
    now.columns.push(column(4, "five", false));
    now.members[0].file = 999;
    assert_eq!(moves(&now, &Answers::default(), false), [Move::Emptied(name("p101"))]);
}

/// Catches a rename taken for a column that goes and another that comes (P82).
#[test]
fn a_rename_is_told_by_the_columns_number() {
    let mut now = sighting();
    now.columns[1].name = "comment".into();
    now.columns.push(column(4, "note", false));
    assert_eq!(moves(&now, &Answers::default(), false), [Move::Renamed("note".into(), "comment".into())]);
}

/// Catches a table that goes on although its target lacks rows, and one that is set aside for what loses nothing (P84).
#[test]
fn what_a_state_lacks_needs_a_copy_and_the_rest_is_noted() {
    let table = name("orders");
    let key = ["id".into()];
    let policy = |keeps_dropped, only_notes| Policy {
        pipeline: "shop",
        table: &table,
        publication: "landfall_shop",
        mends_publication: false,
        key: &key,
        keeps_dropped,
        only_notes,
    };
    let parks = |one: Move, keeps, notes| {
        let judged = judge(&[one], &policy(keeps, notes));
        assert_eq!(judged.parked.is_none(), judged.notes.len() == 1, "{judged:?}");
        judged.parked.map(|parked| (parked.code.to_string(), parked.reason))
    };
    let leaf = || name("p1");
    // For a state; where dropped partitions are accepted; for a log of events.
    let table_of_moves: [(Move, [bool; 3]); 9] = [
        (Move::Left, [true, true, true]),
        (Move::CameBack, [true, true, true]),
        (Move::Attached(leaf()), [true, true, false]),
        (Move::Rejoined(leaf()), [true, true, false]),
        (Move::Gone(RelationId(1), None), [true, false, false]),
        (Move::Emptied(leaf()), [true, false, false]),
        (Move::Rewritten(leaf()), [false, false, false]),
        (Move::Written("c".into()), [true, true, false]),
        (Move::Renamed("note".into(), "n".into()), [false, false, false]),
    ];
    for (one, expected) in table_of_moves {
        let found = [(false, false), (true, false), (false, true)]
            .map(|(keeps, notes)| parks(one.clone(), keeps, notes).is_some());
        assert_eq!(found, expected, "{one:?}");
    }
    assert!(parks(Move::Renamed("id".into(), "number".into()), false, false).is_some(), "a column of the key");
    let (code, reason) = parks(Move::Left, false, false).expect("it parks");
    assert_eq!(code, "LF-PG0210");
    assert!(reason.contains("ALTER PUBLICATION landfall_shop ADD TABLE ONLY public.orders;"), "{reason}");
    let many: Vec<Move> = (0..5).map(|oid| Move::Gone(RelationId(oid), None)).collect();
    let reason = judge(&many, &policy(false, false)).parked.expect("it parks").reason;
    assert!(reason.contains("and 2 more") && reason.contains("dropped_partitions: keep"), "{reason}");
}
