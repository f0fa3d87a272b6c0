use arrow_array::RecordBatch;
use arrow_schema::Schema;
use landfall_engine::contract::{TableNote, TableRows};

use super::super::handover::Ready;
use super::*;
use crate::record::CopyRecord;
use crate::{ConnectOptions, SlotIdentity, SlotRecord, TableName};

fn made(through: u64) -> SourceRecord {
    let mut record = SourceRecord::intent("landfall_shop".to_owned(), 7, 5, 1, Default::default());
    record.slot = SlotRecord::Made(SlotIdentity {
        system_identifier: 7,
        database_oid: 5,
        slot: "landfall_shop".to_owned(),
        plugin: "pgoutput".to_owned(),
        consistent_point: Lsn(10),
    });
    record.through = Lsn(through);
    record
}

/// Catches a checkpoint that falls behind what the server was told, after which the slot could never be resumed
/// (LF-PG0206).
#[test]
fn a_record_that_was_looked_at_before_a_commit_does_not_take_it_back() {
    let connect = ConnectOptions::parse("postgres://landfall@db/shop", None, None).expect("a url");
    let options = CaptureOptions::new("shop", connect, Vec::new());
    let shared = Shared::new(options, Some(made(20)), LaneWaker::new(|| {}));
    let looked_at = shared.record().expect("there is one");
    shared.progress.lock().issued(Vec::new(), Some(Lsn(30)));
    assert!(shared.record_for(&BTreeMap::new()).is_some());
    shared.is_stored(&BTreeMap::new());
    assert_eq!(shared.durable.get(), Lsn(30));
    shared.put_record(looked_at);
    assert_eq!(shared.record().map(|record| record.through), Some(Lsn(30)));
    // Another slot begins anew.
    let mut other = made(15);
    other.slot = SlotRecord::Intent { slot: "landfall_shop".to_owned(), system_identifier: 7, database_oid: 5 };
    shared.put_record(other);
    assert_eq!(shared.record().map(|record| record.through), Some(Lsn(15)));
}

/// Catches a slot that stands still for rows that wait behind a copy which nobody makes again: their table was parked
/// while it was copied, and then the copy failed (I7, P86).
#[test]
fn what_waits_for_the_copy_of_a_parked_table_goes_with_that_copy() {
    const STREAM: PartitionId = PartitionId(6);
    const COPY: PartitionId = PartitionId(7);
    let mut record = made(20);
    let table = |phase, stream, copy| TableRecord {
        relation: RelationId(stream),
        name: TableName { schema: "public".into(), table: "items".into() },
        target: "public.items".to_owned(),
        stream_partition: stream,
        phase,
        shape: 1,
        copy: Some(CopyRecord { partition: copy, consistent_point: Lsn(20), done: Default::default() }),
        park: None,
        watched: None,
        notes: Vec::new(),
    };
    record.tables = vec![table(TablePhase::Parked, STREAM.0, COPY.0), table(TablePhase::Copying, 8, 9)];
    let connect = ConnectOptions::parse("postgres://landfall@db/shop", None, None).expect("a url");
    let shared = Shared::new(CaptureOptions::new("shop", connect, Vec::new()), Some(record), LaneWaker::new(|| {}));
    let generation = shared.handover.generation();
    shared.announce(Vec::new(), vec![STREAM, COPY, PartitionId(8), PartitionId(9)]);
    for (stream, copy) in [(STREAM, COPY), (PartitionId(8), PartitionId(9))] {
        shared.handover.hold(generation, stream, copy);
    }
    let rows = RecordBatch::new_empty(Arc::new(Schema::empty()));
    let (note, places, key) = (TableNote::default(), Arc::from([]), Arc::from([]));
    let rows = TableRows { rows, places, bad: Vec::new(), note, key };
    let end = Place { at: 30, within: 0 };
    shared.progress.lock().issued(vec![(STREAM, end)], Some(Lsn(30)));
    shared.handover.push(generation, STREAM, Ready { rows, end, bytes: 1 });
    shared.copies_fail(&[COPY, PartitionId(9)]);
    assert_eq!(shared.progress.lock().through(), Lsn(30));
    assert!(shared.handover.waiting_of(STREAM).is_none() && !shared.handover.is_held(STREAM));
    assert!(shared.handover.is_held(PartitionId(8)), "that one is copied again");
}

/// Catches a slot that stands still for rows that were dropped with their table: they were open when it was set aside, and
/// said to be on their way after that (I7, P86).
#[test]
fn a_round_of_what_was_given_up_holds_nothing() {
    let connect = ConnectOptions::parse("postgres://landfall@db/shop", None, None).expect("a url");
    let options = CaptureOptions::new("shop", connect, Vec::new());
    let shared = Shared::new(options, Some(made(20)), LaneWaker::new(|| {}));
    let (gone, stays) = (PartitionId(6), PartitionId(8));
    shared.announce(Vec::new(), vec![gone, stays]);
    shared.retire(vec![gone]);
    let end = |at| Place { at, within: 0 };
    shared.issued(vec![(gone, end(30))], Some(Lsn(30)));
    assert_eq!(shared.progress.lock().through(), Lsn(30));
    shared.issued(vec![(gone, end(40)), (stays, end(40))], Some(Lsn(40)));
    assert_eq!(shared.progress.lock().through(), Lsn(30));
    shared.retire(vec![stays]);
    assert_eq!(shared.progress.lock().through(), Lsn(40));
}
