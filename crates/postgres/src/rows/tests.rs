//! Changes and copied lines become rows, whole or not at all.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, TimestampMicrosecondType, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use bytes::Bytes;
use landfall_types::{Coded, Offset, PartitionId, Timestamp};
use proptest::prelude::*;

use super::*;
use crate::copy::CopyLines;
use crate::decode::{Begin, Cell, Message, decode, sample};
use crate::values::{NanPolicy, Policies};
use crate::version::SEQ_MAX;
use crate::{ColumnShape, Identity, Lsn, PgType, RelationId, TableName, TableShape, Xid};

const NULL: Cell<'static> = Cell::Null;
const UNCHANGED: Cell<'static> = Cell::Unchanged;

fn text(text: &str) -> Cell<'_> {
    Cell::Text(text.as_bytes())
}

fn shape(columns: &[(&str, PgType, bool)]) -> TableShape {
    TableShape {
        relation: RelationId(16_384),
        name: TableName { schema: "public".into(), table: "doc".into() },
        identity: Identity::Default,
        columns: columns
            .iter()
            .enumerate()
            .map(|(at, (name, kind, is_key))| ColumnShape {
                name: (*name).into(),
                attnum: at as i16 + 1,
                type_oid: 0,
                modifier: -1,
                kind: kind.clone(),
                is_not_null: *is_key,
                is_key: *is_key,
                is_generated: false,
                is_toastable: true,
            })
            .collect(),
    }
}

/// The table of FX-2.
fn doc() -> TableShape {
    shape(&[("id", PgType::Int4, true), ("title", PgType::Text, false), ("body", PgType::Text, false)])
}

fn rows_of(shape: TableShape, options: RowOptions) -> TableRows {
    TableRows::new(Arc::new(RowPlan::new(Arc::new(shape), options).expect("a plan")))
}

fn docs() -> TableRows {
    rows_of(doc(), RowOptions::default())
}

fn stamp(seq: u64) -> Stamp {
    Stamp { commit_lsn: Lsn(0x100), seq, commit_time: Timestamp(5), xid: Some(Xid(7)) }
}

/// Applies a message that was read from bytes, as the stream's are.
fn apply(rows: &mut TableRows, seq: u64, message: &[u8]) -> Result<(), Refused> {
    match decode(Lsn(1), message).expect("a message") {
        Message::Insert { new, .. } => rows.insert(stamp(seq), new),
        Message::Update { old, new, .. } => rows.update(stamp(seq), old, new),
        Message::Delete { old, .. } => rows.delete(stamp(seq), old),
        other => panic!("a row event, not {other:?}"),
    }
}

fn finish(rows: &mut TableRows) -> RecordBatch {
    rows.finish(PartitionId(3), Offset(10)).expect("a batch")
}

/// (op, seq, id, title, body) of each row.
type Shown = (String, u64, Option<i32>, Option<String>, Option<String>);

fn shown(batch: &RecordBatch) -> Vec<Shown> {
    let ops = batch.column(3).as_string::<i32>();
    let seqs = batch.column(5).as_primitive::<UInt64Type>();
    let ids = batch.column(0).as_primitive::<Int32Type>();
    let string = |column: usize, row: usize| {
        let column = batch.column(column).as_string::<i32>();
        column.is_valid(row).then(|| column.value(row).to_owned())
    };
    (0..batch.num_rows())
        .map(|row| {
            let id = ids.is_valid(row).then(|| ids.value(row));
            (ops.value(row).to_owned(), seqs.value(row), id, string(1, row), string(2, row))
        })
        .collect()
}

fn row(op: &str, seq: u64, id: i32, title: Option<&str>, body: Option<&str>) -> Shown {
    (op.to_owned(), seq, Some(id), title.map(str::to_owned), body.map(str::to_owned))
}

fn row_error(refused: Result<(), Refused>) -> RowError {
    match refused {
        Err(Refused::Row(error)) => *error,
        other => panic!("a row error, not {other:?}"),
    }
}

fn received(error: &RowError) -> &str {
    std::str::from_utf8(&error.received).expect("JSON is UTF-8")
}

/// Catches a column that is missing, misnamed, of another type, or NULL where it never is (P91).
#[test]
fn a_batch_has_the_tables_columns_and_then_what_each_change_is() {
    let mut rows = docs();
    apply(&mut rows, 1, &sample::insert(1, &[text("1"), text("a"), NULL])).expect("taken");
    let mut lines = CopyLines::new(100);
    lines.feed(Bytes::from_static(b"2\tb\t\\N\n"));
    let line = lines.next_line().expect("a line").expect("whole");
    rows.copied(Stamp::snapshot(Lsn(0x90), Timestamp(4)), &line).expect("taken");
    let batch = finish(&mut rows);
    let schema = batch.schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(
        names,
        ["id", "title", "body", "_op", "_commit_lsn", "_seq", "_commit_ts", "_xid", "__partition", "__offset"]
    );
    assert_eq!(shown(&batch), [row("i", 1, 1, Some("a"), None), row("s", 0, 2, Some("b"), None)]);
    assert_eq!(batch.column(4).as_primitive::<UInt64Type>().values(), &[0x100, 0x90]);
    assert_eq!(batch.column(6).as_primitive::<TimestampMicrosecondType>().values(), &[5, 4]);
    let xids = batch.column(7).as_primitive::<UInt32Type>();
    assert_eq!((xids.value(0), xids.is_null(1)), (7, true));
    assert_eq!(batch.column(8).as_primitive::<UInt32Type>().values(), &[3, 3]);
    assert_eq!(batch.column(9).as_primitive::<UInt64Type>().values(), &[10, 11]);
    assert_eq!(rows.rows(), 0, "starts anew");
}

/// Catches a key that a sink may think nullable, and a truncate that has no place for its row.
#[test]
fn keys_are_nullable_only_where_a_truncate_is_a_row() {
    let mut rows = docs();
    rows.truncate(stamp(4));
    let batch = finish(&mut rows);
    assert!(batch.schema().field(0).is_nullable());
    assert_eq!(shown(&batch), [("t".to_owned(), 4, None, None, None)]);
    let mut rows = rows_of(doc(), RowOptions { truncate_rows: false, ..RowOptions::default() });
    rows.truncate(stamp(4));
    assert_eq!(rows.rows(), 0);
    assert!(!rows.plan().schema().field(0).is_nullable() && rows.plan().schema().field(1).is_nullable());
}

/// Catches a large value that an update did not touch and that becomes NULL, a default or a placeholder (F-P1, FX-2).
#[test]
fn unchanged_toast_under_default_full_index_and_key_change() {
    let mut rows = docs();
    let whole = [text("1"), text("a"), text("xxx")];
    // FULL: the old row has it.
    let full = sample::update(1, Some((b'O', &whole)), &[text("1"), text("b"), UNCHANGED]);
    apply(&mut rows, 1, &full).expect("filled");
    // FULL with a key change: both rows have it.
    let moved = sample::update(1, Some((b'O', &whole)), &[text("101"), text("b"), UNCHANGED]);
    apply(&mut rows, 3, &moved).expect("filled");
    // A true NULL stays one.
    let nulled = sample::update(1, Some((b'O', &whole)), &[text("1"), text("b"), NULL]);
    apply(&mut rows, 5, &nulled).expect("taken");
    assert_eq!(
        shown(&finish(&mut rows)),
        [
            row("u", 2, 1, Some("b"), Some("xxx")),
            row("d", 3, 1, Some("a"), Some("xxx")),
            row("i", 4, 101, Some("b"), Some("xxx")),
            row("u", 6, 1, Some("b"), None),
        ]
    );

    // DEFAULT and INDEX: nothing tells it, with or without a key change. Of the key change the old row's end is there.
    let key = [text("1"), NULL, NULL];
    for (update, gone) in [
        (sample::update(1, None, &[text("1"), text("b"), UNCHANGED]), 0),
        (sample::update(1, Some((b'K', &key)), &[text("101"), text("b"), UNCHANGED]), 1),
    ] {
        let error = row_error(apply(&mut rows, 7, &update));
        assert_eq!(error.code.to_string(), "LF-PG0307");
        assert_eq!((&*error.column, error.stamp.seq), ("body", 8));
        assert!(!received(&error).contains("body"), "what was not received is not in {}", received(&error));
        assert_eq!(rows.rows(), gone);
    }
    assert_eq!(shown(&finish(&mut rows)), [row("d", 7, 1, None, None)]);
    // An old row that itself leaves the value out tells nothing.
    let odd = sample::update(1, Some((b'O', &[text("1"), text("a"), UNCHANGED])), &[text("1"), text("b"), UNCHANGED]);
    assert_eq!(row_error(apply(&mut rows, 9, &odd)).code.to_string(), "LF-PG0307");
}

/// Catches a row that lands under a key that was guessed (P70).
#[test]
fn an_unchanged_key_comes_from_the_old_tuple_or_the_row_is_refused() {
    let shape = shape(&[("id", PgType::Text, true), ("title", PgType::Text, false)]);
    let mut rows = rows_of(shape, RowOptions::default());
    let old = [text("k"), NULL];
    apply(&mut rows, 1, &sample::update(1, Some((b'K', &old)), &[UNCHANGED, text("b")])).expect("filled");
    let error = row_error(apply(&mut rows, 3, &sample::update(1, None, &[UNCHANGED, text("c")])));
    assert_eq!((error.code.to_string(), &*error.column), ("LF-PG0307".to_owned(), "id"));
    assert_eq!(received(&error), r#"{"title":"c"}"#);
    let batch = finish(&mut rows);
    assert_eq!(batch.num_rows(), 1);
    assert_eq!(batch.column(0).as_string::<i32>().value(0), "k");
    assert_eq!(batch.column(2).as_string::<i32>().value(0), "u", "the key did not change");
}

/// Catches a key change that leaves the old row, and one that is seen where the server only repeats the key (P71).
#[test]
fn a_key_change_deletes_the_old_row_and_inserts_the_new_one() {
    let mut rows = docs();
    let key = |id| [text(id), NULL, NULL];
    let new = [text("2"), text("a"), text("x")];
    apply(&mut rows, 1, &sample::update(1, Some((b'K', &key("1"))), &new)).expect("taken");
    apply(&mut rows, 3, &sample::update(1, Some((b'K', &key("2"))), &new)).expect("taken");
    apply(&mut rows, 5, &sample::update(1, None, &new)).expect("taken");
    assert_eq!(
        shown(&finish(&mut rows)),
        [
            row("d", 1, 1, None, None),
            row("i", 2, 2, Some("a"), Some("x")),
            row("u", 4, 2, Some("a"), Some("x")),
            row("u", 6, 2, Some("a"), Some("x")),
        ]
    );
}

/// Catches a delete that is refused because its message has only the key (F-P10).
#[test]
fn f_p10_a_delete_carries_its_key_and_nulls() {
    let mut rows = docs();
    apply(&mut rows, 1, &sample::delete(1, b'K', &[text("1"), NULL, NULL])).expect("taken");
    apply(&mut rows, 2, &sample::delete(1, b'O', &[text("2"), text("a"), text("x")])).expect("taken");
    assert_eq!(shown(&finish(&mut rows)), [row("d", 1, 1, None, None), row("d", 2, 2, Some("a"), Some("x"))]);
    let error = row_error(apply(&mut rows, 3, &sample::delete(1, b'K', &[NULL, NULL, NULL])));
    assert_eq!(error.code.to_string(), "LF-PG0407");
    assert_eq!(received(&error), r#"{"id":null}"#, "columns outside the key were not received");
}

/// Catches a row that stays in the destination for ever because a value that was refused when it came is in the old row of
/// its delete, or in either row of its key change.
#[test]
fn a_row_with_a_refused_value_still_goes() {
    let shape = shape(&[("id", PgType::Int4, true), ("n", PgType::Numeric(Some((10, 2))), false)]);
    let mut rows = rows_of(shape, RowOptions::default());
    let old = |id, n| [text(id), text(n)];
    apply(&mut rows, 1, &sample::delete(1, b'O', &old("1", "NaN"))).expect("a delete needs its key alone");
    let update = sample::update(1, Some((b'O', &old("2", "NaN"))), &old("3", "1.00"));
    apply(&mut rows, 2, &update).expect("what the old row held does not matter");
    let update = sample::update(1, Some((b'O', &old("4", "1.00"))), &old("5", "NaN"));
    let error = row_error(apply(&mut rows, 4, &update));
    assert_eq!((&*error.column, error.op, error.stamp.seq), ("n", Op::Insert, 5));
    assert_eq!(rows.take_tally().nulled, 2);
    let batch = finish(&mut rows);
    let ids = batch.column(0).as_primitive::<arrow_array::types::Int32Type>().values().to_vec();
    let ops = batch.column_by_name("_op").expect("a column").as_string::<i32>().iter().flatten().collect::<String>();
    assert_eq!((ids, ops.as_str()), (vec![1, 2, 3, 4], "ddid"));
}

/// Catches a bad value that costs its neighbours, or its own bytes (P89, I13).
#[test]
fn a_refused_row_leaves_its_neighbours_and_comes_back_as_received() {
    let shape = shape(&[("id", PgType::Int4, true), ("title", PgType::Text, false), ("body", PgType::Date, false)]);
    let mut rows = rows_of(shape, RowOptions::default());
    for (seq, body) in [(1, "2000-01-01"), (2, "infinity"), (3, "2000-01-02")] {
        let insert = sample::insert(1, &[text("4"), text("it's \"so\"\n"), text(body)]);
        let result = apply(&mut rows, seq, &insert);
        if seq == 2 {
            let error = row_error(result);
            assert_eq!(error.code.to_string(), "LF-PG0403");
            assert_eq!(error.code(), error.code);
            assert_eq!((&*error.table.table, &*error.column, error.op), ("doc", "body", Op::Insert));
            assert_eq!((error.stamp.commit_lsn, error.stamp.seq), (Lsn(0x100), 2));
            assert_eq!(received(&error), r#"{"id":"4","title":"it's \"so\"\n","body":"infinity"}"#);
            assert_eq!(
                error.to_string(),
                "column `body` of public.doc, change 2 of the commit at 0/100: an infinite value, which the column \
                 cannot hold; see `values.infinity`"
            );
        } else {
            result.expect("taken");
        }
    }
    let batch = finish(&mut rows);
    assert_eq!((batch.num_rows(), batch.column(5).as_primitive::<UInt64Type>().values().to_vec()), (2, vec![1, 3]));
}

/// Catches bytes that are lost on their way into a dead letter.
#[test]
fn a_text_that_is_not_utf8_is_in_the_dead_letter_as_hex() {
    let mut rows = docs();
    let insert = sample::insert(1, &[text("1"), Cell::Text(b"a\xff"), NULL]);
    let error = row_error(apply(&mut rows, 1, &insert));
    assert_eq!(error.code.to_string(), "LF-PG0405");
    assert_eq!(received(&error), r#"{"id":"1","title":{"hex":"61ff"},"body":null}"#);
}

/// Catches a value of a row that was refused in the counts of policies.
#[test]
fn policies_are_counted_for_rows_that_are_there() {
    let shape =
        shape(&[("id", PgType::Int4, true), ("n", PgType::Numeric(Some((5, 2))), false), ("m", PgType::Int4, false)]);
    let policies = Policies { nan: NanPolicy::Null, ..Policies::default() };
    let mut rows = rows_of(shape, RowOptions { policies, ..RowOptions::default() });
    apply(&mut rows, 1, &sample::insert(1, &[text("1"), text("NaN"), NULL])).expect("taken");
    row_error(apply(&mut rows, 2, &sample::insert(1, &[text("1"), text("NaN"), text("x")])));
    assert_eq!(rows.take_tally().nulled, 1);
    assert_eq!(rows.take_tally().nulled, 0);
}

/// Catches a column's own policy that is not its own.
#[test]
fn a_columns_policies_stand_for_the_tables() {
    let shape = shape(&[("a", PgType::Numeric(Some((5, 2))), false), ("b", PgType::Numeric(Some((5, 2))), false)]);
    let own = Policies { nan: NanPolicy::Null, ..Policies::default() };
    let options = RowOptions { columns: [("a".into(), own)].into(), ..RowOptions::default() };
    let mut rows = rows_of(shape, options);
    apply(&mut rows, 1, &sample::insert(1, &[text("NaN"), text("1.00")])).expect("taken");
    assert_eq!(&*row_error(apply(&mut rows, 2, &sample::insert(1, &[text("NaN"), text("NaN")]))).column, "b");
}

/// Catches a row that is spread over another table's columns (P68).
#[test]
fn a_row_with_another_number_of_columns_is_the_tables_error() {
    let mut rows = docs();
    for message in [
        sample::insert(1, &[text("1")]),
        sample::update(1, None, &[text("1"), NULL, NULL, NULL]),
        sample::update(1, Some((b'K', &[text("1")])), &[text("1"), NULL, NULL]),
        sample::delete(1, b'K', &[]),
    ] {
        match apply(&mut rows, 1, &message) {
            Err(Refused::Table(error)) => {
                assert_eq!(error.code().to_string(), "LF-PG0303");
                assert!(error.to_string().contains("public.doc (relation 16384) at 0/100"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    let mut lines = CopyLines::new(100);
    lines.feed(Bytes::from_static(b"1\n"));
    let line = lines.next_line().expect("a line").expect("whole");
    assert!(matches!(rows.copied(stamp(0), &line), Err(Refused::Table(_))));
    assert_eq!(rows.rows(), 0);
}

/// Catches rows of a table without columns that are lost, copied or streamed.
#[test]
fn a_table_without_columns_has_rows() {
    let mut rows = rows_of(shape(&[]), RowOptions::default());
    let mut lines = CopyLines::new(100);
    lines.feed(Bytes::from_static(b"\n"));
    let line = lines.next_line().expect("a line").expect("whole");
    rows.copied(stamp(0), &line).expect("taken");
    apply(&mut rows, 1, &sample::insert(1, &[])).expect("taken");
    assert_eq!(finish(&mut rows).num_rows(), 2);
}

/// Catches a user's column under a name that ours would overwrite.
#[test]
fn names_that_are_taken_are_refused() {
    for name in ["_op", "_commit_lsn", "_seq", "_commit_ts", "_xid", "_unchanged", "_before", "__anything"] {
        let shape = Arc::new(shape(&[(name, PgType::Int4, false)]));
        let error = RowPlan::new(shape, RowOptions::default()).expect_err(name);
        assert_eq!(error.code().to_string(), "LF-PG0409");
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(RowPlan::new(Arc::new(shape(&[("_version", PgType::Int4, false)])), RowOptions::default()).is_ok());
}

/// Catches a batch that passes the size of its offsets, and a full one that costs a row.
#[test]
fn a_full_builder_gives_the_row_back() {
    let mut rows = docs();
    let body = "x".repeat(400_000);
    let insert = sample::insert(1, &[text("1"), NULL, text(&body)]);
    let mut taken = 0;
    while apply(&mut rows, 1, &insert).is_ok() {
        taken += 1;
    }
    assert!(matches!(apply(&mut rows, 1, &insert), Err(Refused::Full)));
    assert_eq!((rows.rows(), taken), (2, 2));
    assert!(rows.bytes() > 800_000 && rows.bytes() < 900_000);
    assert_eq!(finish(&mut rows).num_rows(), 2);
    apply(&mut rows, 1, &insert).expect("room again");
    let huge = "x".repeat(3 << 20);
    let insert = sample::insert(1, &[text("1"), NULL, text(&huge)]);
    finish(&mut rows);
    row_error(apply(&mut rows, 1, &insert));
}

/// Catches a builder that goes on holding the room of its largest batch: a process has one per table (I6).
#[test]
fn a_finished_builder_is_empty() {
    let mut rows = docs();
    let body = "x".repeat(900_000);
    apply(&mut rows, 1, &sample::insert(1, &[text("1"), NULL, text(&body)])).expect("taken");
    assert!(rows.bytes() > 900_000);
    finish(&mut rows);
    assert!(rows.bytes() < 100, "{} bytes", rows.bytes());
    let mut values = vec![0u64; 1_000_000];
    assert_eq!(crate::values::taken(&mut values).len(), 1_000_000);
    assert!(values.capacity() <= 16_384, "room for {}", values.capacity());
}

/// Catches a number that is given twice, skipped, or that depends on what a target's key is (P94).
#[test]
fn numbers_count_row_events_from_1_and_an_update_takes_two() {
    let begin = Begin { commit_lsn: Lsn(9), commit_time: Timestamp(1), xid: Xid(3) };
    let mut numbers = Sequencer::new(begin);
    let seqs = [numbers.row(), numbers.update(), numbers.row(), numbers.update()].map(|stamp| stamp.expect("room").seq);
    assert_eq!((seqs, numbers.last()), ([1, 2, 4, 5], 6));
    let stamp = numbers.row().expect("room");
    assert_eq!((stamp.commit_lsn, stamp.commit_time, stamp.xid), (Lsn(9), Timestamp(1), Some(Xid(3))));
}

proptest! {
    /// Catches a row that a refused one took with it, or left behind: the batch is that of the good rows alone.
    #[test]
    fn refused_rows_leave_no_trace(
        events in proptest::collection::vec((0u8..5, any::<bool>(), any::<bool>(), "[a-z]{0,3}"), 0..20),
    ) {
        let (mut mixed, mut good) = (docs(), docs());
        for (at, (kind, is_bad, moves_key, title)) in events.iter().enumerate() {
            let id = if *is_bad { "bad" } else { "1" };
            let (old_id, new_id) = if *moves_key { ("2", id) } else { (id, id) };
            let new = [text(new_id), text(title), NULL];
            let message = match kind {
                0 => sample::insert(1, &new),
                1 => sample::update(1, None, &new),
                2 => sample::update(1, Some((b'K', &[text(old_id), NULL, NULL])), &new),
                3 => sample::update(1, Some((b'O', &[text(old_id), text("o"), text("x")])), &[text(new_id), text(title), UNCHANGED]),
                _ => sample::delete(1, b'O', &new),
            };
            let result = apply(&mut mixed, at as u64 * 2 + 1, &message);
            prop_assert_eq!(result.is_err(), *is_bad);
            // Of a key change the old row goes, whatever becomes of the new one.
            let old = match kind {
                2 => sample::delete(1, b'K', &[text(old_id), NULL, NULL]),
                _ => sample::delete(1, b'O', &[text(old_id), text("o"), text("x")]),
            };
            match result {
                Ok(()) => apply(&mut good, at as u64 * 2 + 1, &message).expect("taken before"),
                Err(_) if *moves_key && matches!(kind, 2 | 3) => {
                    apply(&mut good, at as u64 * 2 + 1, &old).expect("its key is a good one");
                }
                Err(_) => {}
            }
        }
        prop_assert_eq!(finish(&mut mixed), finish(&mut good));
    }
}

/// Catches numbers that run into the commit LSN of the version.
#[test]
fn a_transaction_ends_at_the_last_number() {
    let begin = Begin { commit_lsn: Lsn(9), commit_time: Timestamp(1), xid: Xid(3) };
    let mut numbers = Sequencer::at(begin, SEQ_MAX - 1);
    assert_eq!(numbers.update().expect_err("two are too many").code().to_string(), "LF-PG0310");
    assert_eq!(numbers.row().expect("the last one").seq, SEQ_MAX);
    assert!(numbers.row().is_err());
}
