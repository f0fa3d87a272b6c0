use super::*;
use crate::record::{CopyRecord, SlotRecord};
use crate::snapshot::CopiedRanges;
use crate::{Lsn, SlotIdentity, TableName};

fn record() -> SourceRecord {
    let mut record = SourceRecord::intent("landfall_shop".to_owned(), 7, 5, 1, Default::default());
    record.made(SlotIdentity {
        system_identifier: 7,
        database_oid: 5,
        slot: "landfall_shop".to_owned(),
        plugin: "pgoutput".to_owned(),
        consistent_point: Lsn(10),
    });
    (record.through, record.next_partition) = (Lsn(50), 100);
    for (at, (name, phase)) in
        [("orders", TablePhase::Streaming), ("lines", TablePhase::Copying), ("old", TablePhase::Removed)]
            .into_iter()
            .enumerate()
    {
        let at = u32::try_from(at).expect("small");
        record.tables.push(TableRecord {
            relation: RelationId(20_000 + at),
            name: TableName { schema: "public".into(), table: name.into() },
            target: name.to_owned(),
            stream_partition: 10 + 2 * at,
            phase,
            shape: 1,
            copy: Some(CopyRecord { partition: 11 + 2 * at, consistent_point: Lsn(10), done: CopiedRanges::default() }),
            park: None,
            watched: None,
            notes: Vec::new(),
        });
    }
    record
}

fn order(command: OrderCommand, table: &str) -> Order {
    Order::named(command, table).expect("a name")
}

fn phase(record: &SourceRecord, name: &str) -> TablePhase {
    record.tables.iter().find(|table| &*table.name.table == name).expect("it is there").phase
}

/// Catches an order that leaves rows of before on their way: they would hold the slot, or land behind the new copy.
#[test]
fn what_an_order_ends_is_given_up_and_its_neighbours_keep_their_place() {
    let mut parked = record();
    let done = order(OrderCommand::Park, "public.lines").apply(&mut parked, true).expect("carried out");
    assert_eq!((done.tables, done.given_up), (vec!["public.lines".to_owned()], vec![12, 13]));
    assert_eq!((phase(&parked, "lines"), phase(&parked, "orders")), (TablePhase::Parked, TablePhase::Streaming));
    let park = parked.tables[1].park.clone().expect("a note");
    assert_eq!((park.at, park.passed, parked.tables[1].copy.clone()), (Lsn(50), Lsn(50), None));
    assert_eq!(parked.tables[0], record().tables[0]);
    let again = order(OrderCommand::Park, "public.lines").apply(&mut parked, true).expect("nothing to do");
    assert!(again.tables.is_empty() && again.given_up.is_empty());

    let mut resumed = parked;
    let done = order(OrderCommand::Resume, "public.*").apply(&mut resumed, true).expect("carried out");
    assert_eq!(done.tables, ["public.lines"], "only what is parked");
    assert_eq!((phase(&resumed, "lines"), resumed.tables[1].stream_partition), (TablePhase::Waiting, 100));
}

/// Catches an order that is half carried out, and one that says so little that nobody can give a better one.
#[test]
fn an_order_that_cannot_be_carried_out_changes_nothing() {
    let mut kept = record();
    let text = order(OrderCommand::Park, "public.nothing").apply(&mut kept, true).unwrap_err().to_string();
    assert!(text.contains("public.nothing") && text.contains("public.orders, public.lines"), "{text}");
    assert!(!text.contains("public.old"), "one that was removed is not carried: {text}");
    assert!(Order::named(OrderCommand::Park, "no schema").is_err());
    let never = order(OrderCommand::Resync, "public.orders").apply(&mut kept, false).unwrap_err();
    assert_eq!((never.code().to_string().as_str(), never.kind()), ("LF-PG0703", Kind::Conflict));
    kept.next_partition = u32::MAX - 1;
    let before = kept.clone();
    let spent = order(OrderCommand::Resync, "public.*").apply(&mut kept, true).unwrap_err();
    assert_eq!(spent.code().to_string(), "LF-PG0704");
    assert_eq!(kept, before, "the first of two tables had a number");
}

/// Catches a table that cannot be taken out for good, or not taken in again.
#[test]
fn a_removed_table_comes_back_by_add_alone() {
    let mut kept = record();
    order(OrderCommand::Resync, "public.old").apply(&mut kept, true).expect_err("it is not carried");
    let done = order(OrderCommand::Add, "public.*").apply(&mut kept, true).expect("carried out");
    assert_eq!((done.tables, phase(&kept, "old")), (vec!["public.old".to_owned()], TablePhase::Waiting));
    order(OrderCommand::Remove, "public.orders").apply(&mut kept, true).expect("carried out");
    assert_eq!(phase(&kept, "orders"), TablePhase::Removed);
}

/// Catches a new beginning that forgets partitions whose rows are on their way, or keeps the slot.
#[test]
fn all_tables_again_is_a_new_beginning() {
    let mut again = record();
    let all = Order { command: OrderCommand::Resync, tables: OrderedTables::All };
    let done = all.apply(&mut again, true).expect("carried out");
    assert!(done.starts_over && matches!(again.slot, SlotRecord::Intent { .. }));
    assert_eq!((done.given_up, again.epoch), (vec![10, 11, 12, 13, 14, 15], 2));
}

/// Catches a note that only a copy of a large table puts away, so that nobody looks at notes any more; and a copy that is
/// made for it.
#[test]
fn a_note_is_put_away_without_a_copy() {
    let mut noted = record();
    let note = crate::TableNote { code: "LF-PG0520".to_owned(), text: "written anew".to_owned() };
    noted.tables[0].note(note);
    let done = order(OrderCommand::Resume, "public.*").apply(&mut noted, true).expect("carried out");
    assert_eq!((done.tables, done.given_up), (vec!["public.orders".to_owned()], Vec::new()));
    assert_eq!(noted, record());
    // Nothing is copied for it, so it needs no leave to copy.
    noted.tables[0].note(crate::TableNote { code: "LF-PG0520".to_owned(), text: "again".to_owned() });
    order(OrderCommand::Resume, "public.orders").apply(&mut noted, false).expect("carried out");
    assert_eq!(noted, record());
    noted.tables[0].note(crate::TableNote { code: "LF-PG0521".to_owned(), text: "renamed".to_owned() });
    let _ = order(OrderCommand::Resync, "public.orders").apply(&mut noted, true).expect("carried out");
    assert!(noted.tables[0].notes.is_empty() && noted.tables[0].phase == TablePhase::Waiting);
}
