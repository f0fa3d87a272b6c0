use super::*;
use crate::snapshot::CopiedRange;

fn example() -> SourceRecord {
    let table = |oid, name: &str, phase| TableRecord {
        relation: RelationId(oid),
        name: TableName { schema: "public".into(), table: name.into() },
        target: name.to_owned(),
        stream_partition: oid - 16_384,
        phase,
        shape: 1,
        copy: None,
        park: None,
        watched: None,
        notes: Vec::new(),
    };
    let mut copied = CopiedRanges::default();
    copied.insert(CopiedRange { leaf: RelationId(16_385), from_block: 0, to_block: Some(8_192), rows: 70_001 });
    copied.insert(CopiedRange { leaf: RelationId(16_385), from_block: 16_384, to_block: None, rows: 3 });
    let copy = CopyRecord { partition: 7, consistent_point: Lsn(0x1_4d00_0028), done: copied };
    let park = ParkNote {
        at: Lsn(0x1_5000_0000),
        passed: Lsn(0x1_5000_0100),
        code: "LF-PG0501".to_owned(),
        reason: "column `price` was rewritten".to_owned(),
    };
    SourceRecord {
        v: RECORD_VERSION,
        slot: SlotRecord::Made(SlotIdentity {
            system_identifier: 7_530_184_932_114_511_873,
            database_oid: 16_384,
            slot: "landfall_shop".to_owned(),
            plugin: "pgoutput".to_owned(),
            consistent_point: Lsn(0x1_4d00_0028),
        }),
        options: OptionSet { publications: vec!["landfall_shop".to_owned()], origin: None, messages: true },
        epoch: 2,
        through: Lsn(0x1_5000_0158),
        last_commit: Lsn(0x1_5000_0128),
        timeline: 1,
        next_partition: 8,
        tables: vec![
            table(16_384, "orders", TablePhase::Streaming),
            TableRecord { copy: Some(copy), ..table(16_385, "lines", TablePhase::Copying) },
            TableRecord { park: Some(park), ..table(16_386, "prices", TablePhase::Parked) },
        ],
    }
}

/// What version 2 added.
fn watched_example() -> SourceRecord {
    let mut record = example();
    record.tables[0].watched = Some(WatchedRecord {
        listed: Some(16_390),
        horizon: 742,
        truncated: Lsn(0x1_5000_0100),
        explained: Lsn::ZERO,
        columns: vec![Some("id".into()), None, Some("note".into())],
        members: vec![MemberRecord(RelationId(16_400), 0, 730), MemberRecord(RelationId(16_401), 16_420, 731)],
    });
    record.tables[0]
        .notes
        .push(TableNote { code: "LF-PG0521".to_owned(), text: "column `comment` is called `note` now".to_owned() });
    record
}

/// Catches a change of the stored form: every later version must read these files, and this one writes the second.
#[test]
fn the_golden_record_stays_readable() {
    let first = include_bytes!("../../../../docs/formats/golden/postgres-source-v1.json");
    assert_eq!(SourceRecord::decode(first.trim_ascii_end()).unwrap(), example());
    let second = include_bytes!("../../../../docs/formats/golden/postgres-source-v2.json");
    let second = second.trim_ascii_end();
    let record = SourceRecord::decode(second).unwrap();
    assert_eq!(record, watched_example());
    assert_eq!(std::str::from_utf8(&record.encode()), std::str::from_utf8(second));
}

/// Catches notes that grow with every look, in a record that is stored with every commit.
#[test]
fn notes_are_bounded_and_never_stand_twice() {
    let mut table = example().tables.remove(0);
    let note = |number: usize| TableNote { code: "LF-PG0521".to_owned(), text: number.to_string() };
    assert!((0..NOTES_MAX + 3).all(|number| table.note(note(number))));
    assert!(!table.note(note(5)));
    let texts: Vec<&str> = table.notes.iter().map(|note| note.text.as_str()).collect();
    assert_eq!(texts, ["3", "4", "6", "7", "8", "9", "10", "5"]);
}

/// Catches a record of a later version that is taken for a damaged one, or worse, for this one.
#[test]
fn another_version_is_refused_by_its_number() {
    let error = SourceRecord::decode(br#"{"v":3,"anything":{}}"#).unwrap_err();
    assert!(matches!(error, RecordError::Version { found: 3 }), "{error}");
    for damaged in [&b""[..], b"{}", b"[]", br#"{"v":1}"#, b"\xff"] {
        assert!(matches!(SourceRecord::decode(damaged), Err(RecordError::Damaged { .. })));
    }
    let mut unknown = example().encode().to_vec();
    unknown.truncate(unknown.len() - 1);
    unknown.extend_from_slice(br#","more":1}"#);
    assert!(
        matches!(SourceRecord::decode(&unknown), Err(RecordError::Damaged { .. })),
        "a field of nobody was dropped"
    );
}

/// Catches a table that is copied again under a number whose positions a destination holds: its rows would be taken for
/// ones that are there (I9).
#[test]
fn a_table_copied_again_shares_no_partition_with_its_past() {
    let mut record = example();
    let before = record.clone();
    assert!(record.copy_again(RelationId(16_386)));
    let table = record.table(RelationId(16_386)).unwrap();
    assert_eq!((table.phase, &table.copy, &table.park), (TablePhase::Waiting, &None, &None));
    assert_eq!(table.stream_partition, before.next_partition);
    assert_eq!(record.next_partition, before.next_partition + 1);
    assert_eq!(
        (record.through, &record.slot, &record.tables[..2]),
        (before.through, &before.slot, &before.tables[..2])
    );
    record.next_partition = u32::MAX;
    assert!(!record.copy_again(RelationId(16_386)), "a number was given twice");
}

/// Catches an operator's new beginning that takes a slot for ours on another server, or numbers from 0 again.
#[test]
fn starting_over_keeps_numbers_going() {
    let mut record = example();
    assert!(record.start_over());
    let SlotRecord::Intent { slot, system_identifier, database_oid } = &record.slot else {
        panic!("{:?}", record.slot)
    };
    assert_eq!(
        (slot.as_str(), *system_identifier, *database_oid),
        ("landfall_shop", 7_530_184_932_114_511_873, 16_384)
    );
    assert_eq!((record.epoch, record.through, record.next_partition), (3, Lsn::ZERO, 11));
    assert!(record.tables.iter().all(|table| table.phase == TablePhase::Waiting && table.copy.is_none()));
    let partitions: Vec<u32> = record.tables.iter().map(|table| table.stream_partition).collect();
    assert_eq!(partitions, [8, 9, 10]);
    record.epoch = u16::MAX;
    assert!(!record.start_over(), "an epoch was given twice");
}

/// Catches a truncate of the whole table that a look has put down to one before it, and a later look takes for one of a
/// partition alone.
#[test]
fn a_truncate_in_the_middle_of_a_look_is_left_to_the_next() {
    let mut watched = WatchedRecord { truncated: Lsn(20), explained: Lsn(10), ..WatchedRecord::default() };
    assert!(watched.is_truncated_within(Lsn(15), Lsn(20)));
    assert!(!watched.is_truncated_within(Lsn(20), Lsn(30)), "the look has seen it");
    assert!(!watched.is_truncated_within(Lsn(10), Lsn(19)), "it came behind the look, and empties what that saw");
    watched.explained = Lsn(20);
    assert!(!watched.is_truncated_within(Lsn(15), Lsn(20)), "a look has judged it");
}
