//! The current state over tables made by hand, against a model that applies changes one after the other.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use datafusion::datasource::MemTable;
use datafusion::execution::context::SessionContext;
use futures::TryStreamExt;

use super::CurrentState;
use crate::query::{self, QueriedTable};

/// One change row: `_op`, key of two columns, value, `_commit_lsn`, `_seq`.
type Change = (char, Option<(i64, &'static str)>, Option<i64>, i64, i64);

fn batch(changes: &[Change]) -> RecordBatch {
    let schema = Schema::new(vec![
        Field::new("shop", DataType::Int64, true),
        Field::new("Line No", DataType::Utf8, true),
        Field::new("amount", DataType::Int64, true),
        Field::new("_op", DataType::Utf8, false),
        Field::new("_commit_lsn", DataType::Int64, false),
        Field::new("_seq", DataType::Int64, false),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter(changes.iter().map(|change| change.1.map(|key| key.0)))),
        Arc::new(StringArray::from_iter(changes.iter().map(|change| change.1.map(|key| key.1)))),
        Arc::new(Int64Array::from_iter(changes.iter().map(|change| change.2))),
        Arc::new(StringArray::from_iter_values(changes.iter().map(|change| change.0.to_string()))),
        Arc::new(Int64Array::from_iter_values(changes.iter().map(|change| change.3))),
        Arc::new(Int64Array::from_iter_values(changes.iter().map(|change| change.4))),
    ];
    RecordBatch::try_new(Arc::new(schema), columns).expect("columns of one length")
}

type State = BTreeMap<(i64, String), Option<i64>>;

/// The state that the SQL gives. `files`: what each scan partition holds.
async fn state_of(files: &[Vec<Change>], below: Option<u64>) -> State {
    let batches: Vec<RecordBatch> = files.iter().map(|file| batch(file)).collect();
    let schema = batch(&[]).schema();
    let context = SessionContext::new();
    let table = MemTable::try_new(schema.clone(), batches.into_iter().map(|one| vec![one]).collect());
    context.register_table("changes", Arc::new(table.expect("a table"))).expect("registered");
    let view = CurrentState { key: vec!["shop".to_owned(), "Line No".to_owned()], below };
    let sql = view.sql("items", "changes", &schema).expect("a query");
    rows_of(context.sql(&sql).await.expect("planned").collect().await.expect("run"))
}

fn rows_of(batches: Vec<RecordBatch>) -> State {
    let mut state = State::new();
    for batch in batches {
        let shop = batch.column(0).as_any().downcast_ref::<Int64Array>().expect("bigint");
        let line = arrow::compute::cast(batch.column(1), &DataType::Utf8).expect("text");
        let line = line.as_any().downcast_ref::<StringArray>().expect("text").clone();
        let amount = batch.column(2).as_any().downcast_ref::<Int64Array>().expect("bigint");
        for at in 0..batch.num_rows() {
            let value = (!arrow_array::Array::is_null(amount, at)).then(|| amount.value(at));
            let before = state.insert((shop.value(at), line.value(at).to_owned()), value);
            assert!(before.is_none(), "a key is there twice: {:?}", (shop.value(at), line.value(at)));
        }
    }
    state
}

fn expected(rows: &[(i64, &str, i64)]) -> State {
    rows.iter().map(|(shop, line, amount)| ((*shop, (*line).to_owned()), Some(*amount))).collect()
}

const A: Option<(i64, &str)> = Some((1, "a"));
const B: Option<(i64, &str)> = Some((1, "b"));
const C: Option<(i64, &str)> = Some((2, "a"));

/// Catches a view that takes an older change for the newest, one that keeps deleted rows, and one that takes half of a
/// key for the key.
#[tokio::test]
async fn the_last_change_of_a_key_decides() {
    let changes = vec![
        ('s', A, Some(1), 100, 0),
        ('s', B, Some(2), 100, 0),
        ('s', C, Some(3), 100, 0),
        ('u', A, Some(10), 110, 2),
        ('u', A, Some(11), 110, 4),
        ('d', B, None, 120, 1),
        ('i', B, Some(22), 130, 1),
        ('d', C, None, 130, 2),
    ];
    assert_eq!(state_of(&[changes], None).await, expected(&[(1, "a", 11), (1, "b", 22)]));
}

/// Catches a key change that leaves the old key behind, or takes its delete for one of the new key.
#[tokio::test]
async fn a_changed_key_is_one_row_under_its_new_key() {
    let changes = vec![('s', A, Some(1), 100, 0), ('d', A, None, 110, 1), ('i', B, Some(1), 110, 2)];
    assert_eq!(state_of(&[changes], None).await, expected(&[(1, "b", 1)]));
    // Two rows swap their keys in one transaction, by way of a third.
    let swap = vec![
        ('s', A, Some(1), 100, 0),
        ('s', B, Some(2), 100, 0),
        ('d', A, None, 110, 1),
        ('i', C, Some(1), 110, 2),
        ('d', B, None, 110, 3),
        ('i', A, Some(2), 110, 4),
        ('d', C, None, 110, 5),
        ('i', B, Some(1), 110, 6),
    ];
    assert_eq!(state_of(&[swap], None).await, expected(&[(1, "a", 2), (1, "b", 1)]));
}

/// Catches a truncate that empties nothing, one that takes rows with it that the same transaction inserted afterwards,
/// and one whose row without key becomes a row.
#[tokio::test]
async fn a_truncate_empties_what_is_before_it() {
    let changes = vec![
        ('s', A, Some(1), 100, 0),
        ('i', B, Some(2), 110, 1),
        ('t', None, None, 110, 2),
        ('i', B, Some(3), 110, 3),
        ('i', C, Some(4), 120, 1),
    ];
    assert_eq!(state_of(std::slice::from_ref(&changes), None).await, expected(&[(1, "b", 3), (2, "a", 4)]));
    let emptied = [changes, vec![('t', None, None, 130, 1)]].concat();
    assert_eq!(state_of(&[emptied], None).await, State::new());
}

/// Catches rows that were deleted at the source while the table was not followed, and come back from before the copy.
#[tokio::test]
async fn a_second_copy_replaces_everything_before_it() {
    let changes = vec![
        ('s', A, Some(1), 100, 0),
        ('u', A, Some(2), 110, 2),
        ('s', B, Some(5), 200, 0),
        // A commit at the point of the copy is not in its snapshot.
        ('u', B, Some(6), 200, 2),
        ('i', C, Some(7), 210, 1),
    ];
    assert_eq!(state_of(&[changes], None).await, expected(&[(1, "b", 6), (2, "a", 7)]));
}

/// Catches a state that depends on which file is read first, and one at a position that counts the commit there.
#[tokio::test]
async fn a_state_at_a_position_does_not_depend_on_files() {
    let mut changes = [
        ('s', A, Some(1), 100, 0),
        ('s', B, Some(2), 100, 0),
        ('u', A, Some(3), 110, 2),
        ('t', None, None, 120, 1),
        ('i', C, Some(4), 120, 2),
        ('s', A, Some(9), 200, 0),
        ('d', A, None, 210, 1),
    ];
    let states = [
        (100, State::new()),
        (101, expected(&[(1, "a", 1), (1, "b", 2)])),
        (110, expected(&[(1, "a", 1), (1, "b", 2)])),
        (120, expected(&[(1, "a", 3), (1, "b", 2)])),
        (200, expected(&[(2, "a", 4)])),
        (201, expected(&[(1, "a", 9)])),
        (1_000, State::new()),
    ];
    for turn in 0..changes.len() {
        changes.rotate_left(1);
        let files: Vec<Vec<Change>> = changes.chunks(1 + turn % 3).map(<[Change]>::to_vec).collect();
        for (below, state) in &states {
            assert_eq!(state_of(&files, Some(*below)).await, *state, "below {below}, turn {turn}");
        }
    }
}

/// Catches a view that differs from changes applied one after the other.
#[tokio::test]
async fn the_state_is_that_of_changes_applied_in_order() {
    const KEYS: [(i64, &str); 4] = [(1, "a"), (1, "b"), (2, "a"), (2, "b")];
    for seed in 0..40_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let (mut changes, mut model) = (Vec::new(), State::new());
        let (mut lsn, mut seq) = (100, 0);
        for value in 0..60 {
            if next(3) == 0 {
                (lsn, seq) = (lsn + 1 + next(5) as i64, 0);
            }
            seq += 1;
            let key = KEYS[next(4) as usize];
            let own = (key.0, key.1.to_owned());
            match next(12) {
                0 => {
                    changes.push(('t', None, None, lsn, seq));
                    model.clear();
                }
                1..4 => {
                    changes.push(('d', Some(key), None, lsn, seq));
                    model.remove(&own);
                }
                4 => {
                    // A copy: what there is then, at a place of its own.
                    (lsn, seq) = (lsn + 1, 0);
                    let keep: Vec<_> = KEYS.iter().filter(|_| next(2) == 0).collect();
                    if keep.is_empty() {
                        continue;
                    }
                    model.clear();
                    for key in keep {
                        changes.push(('s', Some(*key), Some(value), lsn, 0));
                        model.insert((key.0, key.1.to_owned()), Some(value));
                    }
                }
                _ => {
                    changes.push(('u', Some(key), Some(value), lsn, seq));
                    model.insert(own, Some(value));
                }
            }
        }
        for at in (1..changes.len()).rev() {
            changes.swap(at, next(at as u64 + 1) as usize);
        }
        let files: Vec<Vec<Change>> = changes.chunks(7).map(<[Change]>::to_vec).collect();
        assert_eq!(state_of(&files, None).await, model, "seed {seed}");
    }
}

/// Catches a key that is not a column and is found out by the engine's own words, or not at all.
#[test]
fn a_wrong_key_is_refused_by_name() {
    let schema = batch(&[]).schema();
    let view = |key: &[&str]| CurrentState { key: key.iter().map(|one| (*one).to_owned()).collect(), below: None };
    let wrong = view(&["shop", "line"]).sql("items", "c", &schema).expect_err("refused").to_string();
    assert!(wrong.contains("`items` has no column `line`") && wrong.contains("Line No"), "{wrong}");
    assert!(view(&[]).sql("items", "c", &schema).expect_err("refused").to_string().contains("--current items=id"));
    let plain = Schema::new(vec![Field::new("id", DataType::Int64, true)]);
    assert!(view(&["id"]).sql("items", "c", &plain).expect_err("refused").to_string().contains("no column `_op`"));
}

/// Catches a documented view that is not what the command runs.
#[tokio::test]
async fn the_documented_view_gives_the_same_state() {
    let page = include_str!("../../../../../docs/current-state.md");
    let sql = page.split("```sql").nth(1).and_then(|rest| rest.split("```").next()).expect("a query in the page");
    let query = sql.split_once("AS\n").map_or(sql, |(head, body)| {
        assert!(head.contains("CREATE VIEW orders"), "{head}");
        body
    });
    let changes = vec![
        ('s', A, Some(1), 100, 0),
        ('s', B, Some(2), 100, 0),
        ('t', None, None, 110, 1),
        ('i', C, Some(3), 110, 2),
        ('s', A, Some(4), 120, 0),
        ('u', A, Some(5), 130, 2),
        ('d', B, None, 140, 1),
    ];
    let context = SessionContext::new();
    let table = MemTable::try_new(batch(&[]).schema(), vec![vec![batch(&changes)]]).expect("a table");
    context.register_table("orders_changes", Arc::new(table)).expect("registered");
    let query =
        query.replace("order_id, line", "shop, \"Line No\"").replace("c.order_id, c.line", "c.shop, c.\"Line No\"");
    let query = query.trim().trim_end_matches(';');
    let found = rows_of(context.sql(query).await.expect("planned").collect().await.expect("run"));
    assert_eq!(found, state_of(&[changes], None).await);
}

/// Catches `--current` that does not reach the landed table, or hides its change rows.
#[tokio::test]
async fn a_landed_table_is_seen_both_ways() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("items");
    land(&path, &[('s', A, Some(1), 100, 0), ('s', B, Some(2), 100, 0), ('d', B, None, 110, 1)]);
    let table = QueriedTable {
        name: "items".to_owned(),
        path,
        current: Some(CurrentState { key: vec!["shop".to_owned(), "Line No".to_owned()], below: None }),
    };
    let count = async |sql: &str| -> i64 {
        let rows = query::open(sql, std::slice::from_ref(&table)).await.expect("planned");
        let batches: Vec<RecordBatch> = rows.try_collect().await.expect("run");
        let column = batches[0].column(0).as_any().downcast_ref::<Int64Array>().expect("a count");
        column.value(0)
    };
    assert_eq!(count("SELECT count(*) FROM items").await, 1);
    assert_eq!(count("SELECT sum(amount) FROM items").await, 1);
    assert_eq!(count("SELECT count(*) FROM items_changes").await, 3);
}

/// Writes a Delta table of one version with one data file.
fn land(path: &Path, changes: &[Change]) {
    std::fs::create_dir_all(path.join("_delta_log")).expect("made");
    let rows = batch(changes);
    let file = std::fs::File::create(path.join("part-0.parquet")).expect("made");
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, rows.schema(), None).expect("a writer");
    writer.write(&rows).expect("written");
    writer.close().expect("closed");
    let size = std::fs::metadata(path.join("part-0.parquet")).expect("there").len();
    let type_of = |field: &Field| if *field.data_type() == DataType::Int64 { "long" } else { "string" };
    let fields: Vec<serde_json::Value> = rows
        .schema()
        .fields()
        .iter()
        .map(
            |field| serde_json::json!({"name": field.name(), "type": type_of(field), "nullable": true, "metadata": {}}),
        )
        .collect();
    let schema = serde_json::json!({"type": "struct", "fields": fields}).to_string();
    let log = [
        serde_json::json!({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}),
        serde_json::json!({"metaData": {"id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9", "format": {"provider": "parquet", "options": {}},
            "schemaString": schema, "partitionColumns": [], "configuration": {}, "createdTime": 0}}),
        serde_json::json!({"add": {"path": "part-0.parquet", "partitionValues": {}, "size": size, "modificationTime": 0,
            "dataChange": true}}),
    ];
    let text: String = log.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(path.join("_delta_log/00000000000000000000.json"), text).expect("written");
}
