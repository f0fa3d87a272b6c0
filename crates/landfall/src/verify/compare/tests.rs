//! Comparison of sides that are held in memory.

use arrow_array::{ArrayRef, Int32Array, Int64Array, StringArray};
use arrow_schema::{DataType, Field, Schema};

use super::*;

struct Held(Vec<RecordBatch>);

impl Side for Held {
    async fn read(&self) -> anyhow::Result<BoxStream<'_, anyhow::Result<RecordBatch>>> {
        Ok(futures::stream::iter(self.0.iter().cloned().map(Ok)).boxed())
    }
}

type Row = (i64, &'static str, Option<i64>);

fn side(rows: &[Row]) -> Held {
    let schema = Arc::new(Schema::new(vec![
        Field::new("shop", DataType::Int64, true),
        Field::new("line", DataType::Utf8, true),
        Field::new("amount", DataType::Int64, true),
    ]));
    let piece = |rows: &[Row]| {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.1))),
            Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.2))),
        ];
        RecordBatch::try_new(schema.clone(), columns).expect("columns of one length")
    };
    Held(rows.chunks(100).map(piece).collect())
}

fn compared(side: &Held) -> Compared {
    Compared { schema: side.0[0].schema(), key: vec![0, 1] }
}

fn rows() -> Vec<Row> {
    (0..5_000).map(|at| (at / 2, if at % 2 == 0 { "a" } else { "b" }, (at % 7 != 0).then_some(at))).collect()
}

async fn found(source: &[Row], target: &[Row]) -> Found {
    let (source, target) = (side(source), side(target));
    compare(&source, &target, &compared(&source), (5, 6)).await.expect("compared")
}

fn kinds(found: &Found) -> Vec<(Kind, Vec<&str>)> {
    found.rows.iter().map(|row| (row.kind, row.columns.iter().map(String::as_str).collect())).collect()
}

/// Catches a comparison that takes order for a difference.
#[tokio::test]
async fn equal_rows_in_another_order_are_equal() {
    let mut turned = rows();
    turned.reverse();
    let found = found(&rows(), &turned).await;
    assert!(found.is_equal() && found.rows.is_empty());
    assert_eq!((found.source_rows, found.target_rows), (5_000, 5_000));
}

/// Catches a cell that was changed and is not found, or is found in another column or row.
#[tokio::test]
async fn one_changed_cell_is_one_different_row() {
    let mut changed = rows();
    changed[1_234].2 = Some(-1);
    let found = found(&rows(), &changed).await;
    assert!(!found.is_equal());
    assert_eq!((found.missing, found.extra, found.different), (0, 0, 1));
    assert_eq!(kinds(&found), [(Kind::Different, vec!["amount"])]);
    let value = |batch: &Option<RecordBatch>| {
        let batch = batch.as_ref().expect("a row");
        arrow::util::display::array_value_to_string(batch.column(2), 0).expect("text")
    };
    assert_eq!((value(&found.rows[0].source), value(&found.rows[0].target)), ("1234".to_owned(), "-1".to_owned()));
}

/// Catches NULL taken for a value, rows that are missing or extra and cancel each other out, and a changed key taken for
/// a changed row.
#[tokio::test]
async fn missing_extra_and_different_rows_are_told_apart() {
    let mut other = rows();
    other[7].2 = Some(0);
    other[100] = (9_999, "a", Some(100));
    other.remove(200);
    let found = found(&rows(), &other).await;
    assert_eq!((found.missing, found.extra, found.different), (2, 1, 1));
    let expected =
        [(Kind::Missing, vec![]), (Kind::Missing, vec![]), (Kind::Extra, vec![]), (Kind::Different, vec!["amount"])];
    assert_eq!(kinds(&found), expected);
}

/// Catches memory that grows with the number of unequal rows, and numbers that are cut with the rows that are shown.
#[tokio::test]
async fn many_unequal_rows_are_counted_and_some_are_shown() {
    let changed: Vec<Row> = rows().into_iter().map(|row| (row.0, row.1, Some(-7))).collect();
    let found = found(&rows(), &changed).await;
    assert_eq!((found.different, found.rows.len()), (5_000, ROWS_SHOWN_MAX));
    assert_eq!(found.narrowed_buckets, found.unequal_buckets);
    assert!(found.rows.iter().all(|row| row.source.is_some() && row.columns == ["amount"]));
}

/// Catches an empty side.
#[tokio::test]
async fn an_empty_side_lacks_every_row() {
    let (source, target) = (side(&rows()), Held(Vec::new()));
    let found = compare(&source, &target, &compared(&source), (1, 1)).await.expect("compared");
    assert_eq!((found.missing, found.target_rows, found.rows.len()), (5_000, 0, ROWS_SHOWN_MAX));
}

/// Catches a narrower type at the source that counts as another value, and a column that the target has not got yet and
/// that counts as equal though the source has values in it.
#[tokio::test]
async fn types_are_the_targets_and_an_absent_column_is_null() {
    let narrow = Schema::new(vec![Field::new("id", DataType::Int32, true), Field::new("more", DataType::Utf8, true)]);
    let narrow = |more: [Option<&str>; 2]| {
        let columns: Vec<ArrayRef> =
            vec![Arc::new(Int32Array::from(vec![1, 2])), Arc::new(StringArray::from(more.to_vec()))];
        Held(vec![RecordBatch::try_new(Arc::new(narrow.clone()), columns).expect("two columns")])
    };
    let wide = Schema::new(vec![Field::new("id", DataType::Int64, true)]);
    let wide = RecordBatch::try_new(Arc::new(wide), vec![Arc::new(Int64Array::from(vec![2, 1]))]).expect("a column");
    let schema = Schema::new(vec![Field::new("id", DataType::Int64, true), Field::new("more", DataType::Utf8, true)]);
    let compared = Compared { schema: Arc::new(schema), key: vec![0] };
    let wide = Held(vec![wide]);
    let same = compare(&narrow([None, None]), &wide, &compared, (1, 2)).await.expect("compared");
    assert!(same.is_equal());
    let other = compare(&narrow([None, Some("x")]), &wide, &compared, (1, 2)).await.expect("compared");
    assert_eq!((other.different, kinds(&other)), (1, vec![(Kind::Different, vec!["more"])]));
}

/// Catches a group that holds more than it may, one that never ends, and a bucket that is left out between two.
#[test]
fn groups_are_bounded_and_cover_every_bucket() {
    let buckets = [(1, HELD_ROWS_MAX - 1), (2, 1), (3, 1), (4, HELD_ROWS_MAX * 2), (5, 1)];
    let (mut left, mut sizes) = (buckets.as_slice(), Vec::new());
    while !left.is_empty() {
        let (group, rest) = first_group(left);
        sizes.push(group.len());
        left = rest;
    }
    assert_eq!(sizes, [2, 1, 1, 1]);
}
