//! Tables of a change source: places inside transactions, shapes that change, copies that are interrupted (E129, E132).

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, UInt32Array, UInt64Array,
};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, SchemaRef};
use landfall_engine::contract::{
    CommitId, CopyMark, Covered, PipelineId, SealedBatch, ShardId, ShardWriter, Sink, SinkError, SinkPlan,
    TableDecoder, TableNote, TableSpec, Wanted, columns,
};
use landfall_engine::testing::{MemoryLetters, TableSource, table_schema};
use landfall_engine::{
    Backoff, ChainParts, Ending, Pipeline, PipelineOptions, SinkOptions, TableChainFactory, TableSinkFactory,
};
use landfall_state::StateStore;
use landfall_types::{ByteSize, Epoch, PartitionId, Place, Timestamp};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tokio::runtime::Handle;

use super::harness::{cx, directory};
use crate::writer::DeltaWriter;
use crate::{DeltaOptions, DeltaSink, Evolve, table_files};

const P: PartitionId = PartitionId(1);

fn at(at: u64, within: u64) -> Place {
    Place { at, within }
}

fn options(path: &Path) -> DeltaOptions {
    DeltaOptions { evolve: Evolve::AddColumns, commit_every: Duration::from_millis(100), ..DeltaOptions::new(path) }
}

fn schema(names: &[&str]) -> SchemaRef {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    table_schema(&names)
}

struct Open {
    sink: DeltaSink,
    plan: SinkPlan,
    writer: DeltaWriter,
}

async fn open(path: &Path, names: &[&str]) -> Open {
    let sink = DeltaSink::new(options(path)).expect("in bounds");
    let plan = sink.plan(&schema(names), &cx()).await.expect("a plan");
    sink.open(&plan, &cx()).await.expect("opened");
    sink.committed_positions(&cx()).await.expect("positions");
    let writer = sink.delta_writer(ShardId(0));
    Open { sink, plan, writer }
}

/// What a batch is made of: rows are (commit position, number inside it, value); further columns hold twice the value.
struct Rows<'a> {
    op: &'a str,
    note: TableNote,
    rows: &'a [(u64, u64, i64)],
}

fn batch(plan: &SchemaRef, epoch: u32, range: std::ops::Range<Place>, rows: Rows<'_>) -> SealedBatch {
    let count = rows.rows.len();
    let arrays = plan.fields().iter().map(|field| -> ArrayRef {
        let numbers = |of: &dyn Fn(&(u64, u64, i64)) -> i64| -> ArrayRef {
            Arc::new(rows.rows.iter().map(|row| Some(of(row))).collect::<Int64Array>())
        };
        let array: ArrayRef = match field.name().as_str() {
            "n" => numbers(&|row| row.2),
            columns::OP => Arc::new(StringArray::from(vec![rows.op; count])),
            columns::COMMIT_LSN => Arc::new(UInt64Array::from_iter_values(rows.rows.iter().map(|row| row.0))),
            columns::SEQ => Arc::new(UInt64Array::from_iter_values(rows.rows.iter().map(|row| row.1))),
            columns::COMMIT_TS => Arc::new(TimestampMicrosecondArray::from(vec![0; count]).with_timezone("UTC")),
            columns::XID => Arc::new(UInt32Array::from(vec![7; count])),
            _ => numbers(&|row| row.2 * 2),
        };
        cast(&array, field.data_type()).expect("a cast")
    });
    let part = RecordBatch::try_new(plan.clone(), arrays.collect()).expect("a batch");
    let id = u128::from(range.start.at) << 96 | u128::from(range.start.within) << 64 | u128::from(range.end.within);
    SealedBatch {
        id: CommitId(id ^ u128::from(range.end.at) << 20),
        bytes: part.get_array_memory_size(),
        parts: vec![part],
        covers: vec![Covered { partition: P, epoch: Epoch(epoch), range, rows: u32::try_from(count).expect("small") }],
        oldest: Timestamp(0),
        note: Some(rows.note),
    }
}

fn streamed(rows: &[(u64, u64, i64)], shape: u32) -> Rows<'_> {
    Rows { op: "i", note: TableNote { shape, copy: CopyMark::None }, rows }
}

/// One column of the newest version, with NULL, by file.
async fn by_file(path: &Path, column: &str) -> Vec<Vec<Option<i64>>> {
    let listing = table_files(path).await.expect("a table");
    let mut files = Vec::new();
    for file in &listing.files {
        let reader = std::fs::File::open(&file.path).expect("the file");
        let mut values = Vec::new();
        for rows in ParquetRecordBatchReaderBuilder::try_new(reader).expect("Parquet").build().expect("a reader") {
            let rows = rows.expect("rows");
            match rows.column_by_name(column) {
                Some(found) => values.extend(found.as_primitive::<Int64Type>().iter()),
                None => values.extend(vec![None; rows.num_rows()]),
            }
        }
        files.push(values);
    }
    files.sort();
    files
}

async fn landed(path: &Path, column: &str) -> Vec<Option<i64>> {
    let mut all: Vec<Option<i64>> = by_file(path, column).await.into_iter().flatten().collect();
    all.sort_unstable();
    all
}

fn some(range: std::ops::Range<i64>) -> Vec<Option<i64>> {
    range.map(Some).collect()
}

/// Catches a place inside a transaction that the table forgets, also over a checkpoint of the log, and one that outlives
/// the transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_position_inside_a_transaction_is_read_back() {
    let place = directory();
    let inside: [std::ops::Range<Place>; 3] = [at(0, 0)..at(70, 3), at(70, 3)..at(70, 5), at(70, 5)..at(99, 0)];
    for (round, range) in inside.into_iter().enumerate() {
        let opened = open(&place.path, &["n"]).await;
        let known = opened.sink.committed_positions(&cx()).await.expect("positions").get(&P).copied();
        assert_eq!(known, (round > 0).then_some(range.start), "round {round}");
        let rows: Vec<(u64, u64, i64)> =
            (0..2).map(|n| (70, 1 + 2 * round as u64 + n, (2 * round as u64 + n) as i64)).collect();
        let rows = batch(&opened.plan.schema, round as u32, range.clone(), streamed(&rows, 1));
        opened.writer.write(&rows).await.expect("taken");
        assert_eq!(opened.writer.is_inside_transaction(), range.end.within > 0);
        let settled = opened.writer.barrier().await.expect("settled");
        assert_eq!(settled.positions.get(&P).copied(), Some(range.end));
    }
    let commit = std::fs::read_to_string(place.path.join("_delta_log/00000000000000000001.json")).expect("the commit");
    assert!(commit.contains(r#""appId":"landfall:orders:channel:0a:1","version":70"#), "{commit}");
    assert!(commit.contains(r#""appId":"landfall:orders:channel:0a:1:70","version":3"#), "{commit}");
    let opened = open(&place.path, &["n"]).await;
    assert_eq!(opened.sink.committed_positions(&cx()).await.expect("positions").get(&P).copied(), Some(at(99, 0)));
    assert_eq!(landed(&place.path, "n").await, some(0..6));
}

/// Catches rows inside a transaction that are written twice because only its commit position was compared.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_writer_inside_a_transaction_is_found_out() {
    let place = directory();
    let late = open(&place.path, &["n"]).await;
    let first = open(&place.path, &["n"]).await;
    let rows: Vec<(u64, u64, i64)> = (1..=4).map(|within| (70, within, within as i64)).collect();
    let of = |open: &Open, range: std::ops::Range<Place>, rows: &[(u64, u64, i64)]| {
        batch(&open.plan.schema, 1, range, streamed(rows, 1))
    };
    first.writer.write(&of(&first, at(0, 0)..at(70, 5), &rows)).await.expect("taken");
    first.writer.barrier().await.expect("settled");
    late.writer.write(&of(&late, at(0, 0)..at(70, 7), &rows)).await.expect("taken");
    let error = late.writer.barrier().await.expect_err("another writer is ahead").error;
    assert!(matches!(&error, SinkError::Superseded { text, .. } if text.contains("70/5")), "{error}");
    assert_eq!(landed(&place.path, "n").await, some(1..5));
}

/// Catches a column that enters the table before its rows or without them, rows of an earlier shape that no longer fit,
/// and files that mix two shapes.
#[tokio::test(flavor = "multi_thread")]
async fn a_shapes_columns_enter_the_table_with_its_first_rows() {
    let place = directory();
    let opened = open(&place.path, &["n"]).await;
    let (one, wide) = (opened.plan.schema.clone(), schema(&["n", "extra"]));
    let plan = opened.sink.plan(&wide, &cx()).await.expect("a plan");
    opened.sink.reshape(2, &plan, &cx()).await.expect("told");
    let fields = || async { table_files(&place.path).await.expect("a table").schema.fields().len() };
    let before = fields().await;
    let rows = |from: i64| -> Vec<(u64, u64, i64)> {
        (from..from + 3).map(|n| (10 + n as u64 / 3 * 10, 1 + n as u64 % 3, n)).collect()
    };
    let steps = [(one.clone(), 1, at(0, 0)..at(15, 0), 0), (plan.schema.clone(), 2, at(15, 0)..at(25, 0), 3)];
    for (schema, shape, range, from) in steps {
        opened.writer.write(&batch(&schema, 1, range, streamed(&rows(from), shape))).await.expect("taken");
        assert_eq!(fields().await, before, "nothing before the commit");
    }
    let settled = opened.writer.barrier().await.expect("settled");
    assert_eq!((settled.version, fields().await), (Some(1), before + 1), "one commit for both");
    // A replay brings the first shape once more.
    opened.writer.write(&batch(&one, 1, at(25, 0)..at(35, 0), streamed(&rows(6), 1))).await.expect("taken");
    opened.writer.barrier().await.expect("settled");
    assert_eq!(landed(&place.path, "n").await, some(0..9));
    let extra = by_file(&place.path, "extra").await;
    assert_eq!(extra.iter().filter(|file| file.iter().all(Option::is_none)).count(), 2, "{extra:?}");
    assert_eq!(landed(&place.path, "extra").await.into_iter().flatten().collect::<Vec<_>>(), [6, 8, 10]);
}

/// Catches a type that is changed under the table's files, or a refusal that names no way out.
#[tokio::test(flavor = "multi_thread")]
async fn a_type_that_grows_is_refused_with_a_way_out() {
    let place = directory();
    let opened = open(&place.path, &["n"]).await;
    let grown: Vec<Field> = opened
        .plan
        .schema
        .fields()
        .iter()
        .map(|field| match field.name().as_str() {
            "n" => Field::new("n", DataType::Decimal128(20, 0), false),
            _ => field.as_ref().clone(),
        })
        .collect();
    let rows: SchemaRef = Arc::new(arrow_schema::Schema::new(grown));
    let text = opened.sink.plan(&rows, &cx()).await.expect_err("does not fit").to_string();
    assert!(text.contains("`n`") && text.contains("re-sync"), "{text}");
    let narrow: Vec<Field> = opened
        .plan
        .schema
        .fields()
        .iter()
        .map(|field| match field.name().as_str() {
            "n" => Field::new("n", DataType::Int32, false),
            _ => field.as_ref().clone(),
        })
        .collect();
    let rows: SchemaRef = Arc::new(arrow_schema::Schema::new(narrow));
    let plan = opened.sink.plan(&rows, &cx()).await.expect("the table is wider: rows are cast");
    opened.sink.reshape(2, &plan, &cx()).await.expect("told");
    assert_eq!(plan.schema.field(0).data_type(), &DataType::Int64);
}

/// Catches rows of an interrupted copy that stay beside those of the new one, rows of the stream that go with them, and
/// files that mix the two (E129, P56).
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_begins_anew_removes_what_an_interrupted_one_left() {
    let place = directory();
    let opened = open(&place.path, &["n"]).await;
    let plan = opened.plan.schema.clone();
    let copied =
        |copy: CopyMark, rows: &'static [(u64, u64, i64)]| Rows { op: "s", note: TableNote { shape: 1, copy }, rows };
    let first = [(50, 0, 1), (50, 0, 2), (50, 0, 3)];
    let note = TableNote { shape: 1, copy: CopyMark::Begins(at(50, 0)) };
    let begun = batch(&plan, 1, at(0, 0)..at(49, 4), Rows { op: "s", note, rows: &first });
    opened.writer.write(&begun).await.expect("taken");
    let stream = batch(&plan, 1, at(49, 4)..at(60, 0), streamed(&[(55, 1, 100), (55, 2, 101)], 1));
    opened.writer.write(&stream).await.expect("taken");
    opened.writer.barrier().await.expect("settled");
    assert_eq!(by_file(&place.path, "n").await, [some(1..4), some(100..102)], "copied and streamed rows apart");

    // The copy is interrupted; another one begins, under a partition of its own.
    let mut again =
        batch(&plan, 1, at(0, 0)..at(79, 3), copied(CopyMark::Begins(at(80, 0)), &[(80, 0, 1), (80, 0, 2)]));
    again.covers[0].partition = PartitionId(2);
    opened.writer.write(&again).await.expect("taken");
    opened.writer.barrier().await.expect("settled");
    assert_eq!(by_file(&place.path, "n").await, [some(1..3), some(100..102)], "in the commit of the first new rows");
    let mut rest = batch(&plan, 1, at(79, 3)..at(80, 0), copied(CopyMark::Ends(at(80, 0)), &[(80, 0, 3)]));
    rest.covers[0].partition = PartitionId(2);
    opened.writer.write(&rest).await.expect("taken");
    opened.writer.barrier().await.expect("settled");
    assert_eq!(landed(&place.path, "n").await, [some(1..4), some(100..102)].concat());
}

fn identity() -> TableChainFactory {
    Arc::new(|spec: &TableSpec| {
        Ok(ChainParts {
            decoder: Box::new(TableDecoder::new(spec.schema.clone())),
            transforms: Vec::new(),
            wanted: Wanted::default(),
        })
    })
}

/// A lake with a directory per table.
fn lake(root: &Path) -> TableSinkFactory {
    let root = root.to_owned();
    Arc::new(move |spec: &TableSpec| {
        let sink = DeltaSink::new(options(&root.join(spec.name.as_ref())))?;
        Ok(Arc::new(sink) as Arc<dyn Sink>)
    })
}

struct Bed {
    source: TableSource,
    letters: MemoryLetters,
    store: StateStore,
    root: tempfile::TempDir,
}

impl Bed {
    fn start(&self) -> landfall_engine::PipelineHandle {
        let backoff =
            Backoff { initial: Duration::from_millis(2), max: Duration::from_millis(50), multiplier: 2.0, jitter: 0.2 };
        let pipeline = PipelineOptions {
            checkpoint_interval: Duration::from_millis(100),
            idle_flush: Duration::from_millis(1),
            restart: backoff,
            poll_max_bytes: ByteSize::kib(16),
            ..PipelineOptions::default()
        };
        let sink = SinkOptions {
            batch_rows: 2_000,
            batch_bytes: ByteSize::mib(1),
            batch_age: Duration::from_millis(5),
            chunk_target_bytes: ByteSize::kib(16),
            ..SinkOptions::default()
        };
        Pipeline::of_tables(PipelineId("shop".to_owned()), self.source.clone(), identity())
            .table_sink("lake", lake(self.root.path()), sink)
            .dead_letters(Arc::new(self.letters.clone()))
            .options(pipeline)
            .start(self.store.handle(), &Handle::current())
            .expect("it starts")
    }
}

/// Catches rows of a large transaction that are lost or doubled when the pipeline dies inside it: groups were committed
/// before its end, offsets begin anew, and its rows share one commit position (E129, P91, P101).
#[tokio::test(flavor = "multi_thread")]
async fn kill_inside_a_large_transaction_lands_each_row_once() {
    const ROUNDS: u64 = 5;
    const ROWS: u64 = 6_000;
    let bed = Bed {
        source: TableSource::new(),
        letters: MemoryLetters::new(),
        store: StateStore::in_memory().expect("a store in memory"),
        root: tempfile::TempDir::new().expect("a directory"),
    };
    bed.source.table(1, "orders", 1, &["n"]);
    bed.source.table(2, "people", 2, &["n"]);
    let path = bed.root.path().join("orders");
    let rows = |range: std::ops::Range<u64>| -> Vec<Vec<i64>> {
        range.map(|n| vec![i64::try_from(n).expect("small")]).collect()
    };
    for round in 0..ROUNDS {
        let before = position(&path).await;
        bed.source.part_of_transaction(1, 700, 1 + round * ROWS, &rows(round * ROWS..(round + 1) * ROWS), 150);
        let handle = bed.start();
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut changes = handle.changes();
        while position(&path).await <= before {
            assert!(Instant::now() < deadline, "no commit came: {:#?}", handle.status());
            // A commit of the table changes nothing of the pipeline's own until it is harvested.
            let _ = tokio::time::timeout(Duration::from_millis(5), changes.changed()).await;
        }
        // The end of the process, as far as the table can tell: nothing is flushed, committed or told.
        handle.abort();
        assert_eq!(handle.ended().await.ending, Ending::Aborted);
        let held = position(&path).await.expect("a position");
        assert!(held.at == 700 && held.within > 0, "the transaction is not over: {held}");
    }
    let sum = i64::try_from(ROUNDS * ROWS).expect("small");
    bed.source.transaction(1, 1, 1_000, 1_100, &rows(ROUNDS * ROWS..ROUNDS * ROWS + 10), 5);
    bed.source.transaction(2, 1, 1_000, 1_100, &rows(0..10), 5);
    let handle = bed.start();
    assert!(handle.wait_until(&bed.source.ends(), Duration::from_secs(60)).await, "{:#?}", handle.status());
    let report = handle.shutdown(Duration::from_secs(20)).await;
    assert_eq!(report.ending, Ending::Settled, "{report:#?}");
    assert!(report.balance.values().all(|balance| balance.ok && balance.in_flight == 0), "{report:#?}");
    assert!(handle.status().tables.iter().all(|table| table.balance.values().all(|balance| balance.ok)));
    assert_eq!(landed(&path, "n").await, some(0..sum + 10));
    assert_eq!(landed(&bed.root.path().join("people"), "n").await, some(0..10));
}

async fn position(path: &Path) -> Option<Place> {
    let cx = landfall_engine::contract::PlanCx {
        pipeline: PipelineId("shop".to_owned()),
        source: "tables-1".to_owned(),
        online: true,
    };
    let sink = DeltaSink::new(options(path)).expect("in bounds");
    sink.committed_positions(&cx).await.expect("positions").get(&P).copied()
}

/// Catches a shape that comes through a running pipeline and leaves rows behind, or a table whose columns cannot follow
/// that holds up another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_grows_a_column_keeps_streaming() {
    let bed = Bed {
        source: TableSource::new(),
        letters: MemoryLetters::new(),
        store: StateStore::in_memory().expect("a store in memory"),
        root: tempfile::TempDir::new().expect("a directory"),
    };
    bed.source.table(1, "orders", 1, &["n"]);
    bed.source.shape(1, 2, &["n", "total"]);
    let handle = bed.start();
    bed.source.transaction(1, 1, 10, 15, &[vec![1], vec![2]], 10);
    bed.source.transaction(1, 2, 20, 25, &[vec![3, 30], vec![4, 40]], 10);
    assert!(handle.wait_until(&bed.source.ends(), Duration::from_secs(30)).await, "{:#?}", handle.status());
    let report = handle.shutdown(Duration::from_secs(20)).await;
    assert_eq!(report.ending, Ending::Settled, "{report:#?}");
    let path = bed.root.path().join("orders");
    assert_eq!(landed(&path, "n").await, some(1..5));
    assert_eq!(landed(&path, "total").await, [None, None, Some(30), Some(40)]);
}
