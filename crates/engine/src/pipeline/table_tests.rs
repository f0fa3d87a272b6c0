//! Whole pipelines over tables: each table by itself, exactly once, in order; what one table suffers stays with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_schema::SchemaRef;
use landfall_state::StateStore;
use landfall_types::{ByteSize, Code, Place};
use tokio::runtime::Handle;

use super::{Pipeline, PipelineHandle, TableChainFactory, TableSinkFactory};
use crate::contract::{
    CopyMark, EngineError, PipelineId, PlanError, RowErrors, Sink, Stage, TableDecoder, TableSpec, Transform, Wanted,
};
use crate::sight::TableStatus;
use crate::testing::{MemoryLetters, MemoryTable, TableSource};
use crate::{
    Backoff, ChainParts, Ending, NullSink, OnError, OnErrors, PipelineOptions, PipelineState, RetryOptions,
    SinkOptions, codes,
};

const SOON: Duration = Duration::from_secs(20);

fn fast() -> Backoff {
    Backoff { initial: Duration::from_millis(2), max: Duration::from_millis(20), multiplier: 2.0, jitter: 0.2 }
}

fn options() -> PipelineOptions {
    PipelineOptions {
        checkpoint_interval: Duration::from_millis(100),
        idle_flush: Duration::from_millis(1),
        restart: fast(),
        poll_max_bytes: ByteSize::kib(16),
        low_ratio: 0.9,
        ..PipelineOptions::default()
    }
}

fn sink_options() -> SinkOptions {
    SinkOptions {
        batch_rows: 970,
        batch_bytes: ByteSize::mib(1),
        batch_age: Duration::from_millis(1),
        chunk_target_bytes: ByteSize::kib(16),
        queue_max_chunks: 4,
        retry: RetryOptions { backoff: fast(), ..RetryOptions::default() },
        ..SinkOptions::default()
    }
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

/// What outlives a pipeline.
struct Bed {
    source: TableSource,
    tables: BTreeMap<String, MemoryTable>,
    letters: MemoryLetters,
    store: StateStore,
}

impl Bed {
    /// Tables with one stream each: table and partition have the same number, from 1.
    fn new(names: &[&str]) -> Self {
        let source = TableSource::new();
        for (name, number) in names.iter().zip(1u32..) {
            source.table(number, name, number, &["n"]);
        }
        let table = |name: &&str| ((*name).to_owned(), MemoryTable::new(Duration::from_millis(20)));
        Bed {
            source,
            tables: names.iter().map(table).collect(),
            letters: MemoryLetters::new(),
            store: StateStore::in_memory().expect("a store in memory"),
        }
    }

    fn table(&self, name: &str) -> &MemoryTable {
        &self.tables[name]
    }

    fn factory(&self) -> TableSinkFactory {
        let tables = self.tables.clone();
        Arc::new(move |spec: &TableSpec| match tables.get(spec.name.as_ref()) {
            Some(table) => Ok(Arc::new(table.clone()) as Arc<dyn Sink>),
            None => Err(PlanError::new(codes::PLAN, format!("no place for table `{}`", spec.name))),
        })
    }

    fn pipeline(&self, chain: TableChainFactory) -> Pipeline<TableSource> {
        Pipeline::of_tables(PipelineId("shop".to_owned()), self.source.clone(), chain)
            .table_sink("lake", self.factory(), sink_options())
            .dead_letters(Arc::new(self.letters.clone()))
            .options(options())
    }

    fn start(&self, pipeline: Pipeline<TableSource>) -> PipelineHandle {
        pipeline.start(self.store.handle(), &Handle::current()).expect("it starts")
    }

    fn run(&self) -> PipelineHandle {
        self.start(self.pipeline(identity()))
    }

    /// A transaction of one table with consecutive numbers; positions are ten times as far apart as rows.
    fn commit(&self, partition: u32, numbers: std::ops::Range<i64>) {
        let at = u64::try_from(numbers.start).expect("positive") * 10 + 10;
        let rows: Vec<Vec<i64>> = numbers.map(|n| vec![n]).collect();
        self.source.transaction(partition, 1, at, at + 5, &rows, 100);
    }
}

async fn until(handle: &PipelineHandle, what: impl Fn() -> bool) {
    let mut changes = handle.changes();
    let deadline = Instant::now() + SOON;
    while !what() {
        assert!(Instant::now() < deadline, "it did not come: {:#?}", handle.status());
        // Some things change without a change of the pipeline's own; the bound of a wait is short for them.
        let _ = tokio::time::timeout(Duration::from_millis(5), changes.changed()).await;
    }
}

fn status(handle: &PipelineHandle, table: &str) -> TableStatus {
    let found = handle.status().tables.into_iter().find(|known| known.name == table);
    found.unwrap_or_else(|| panic!("no table {table}: {:#?}", handle.status()))
}

fn state_of(handle: &PipelineHandle, table: &str) -> Option<PipelineState> {
    handle.status().tables.into_iter().find(|known| known.name == table).map(|known| known.state)
}

/// Why a table is not simply running; empty while it is.
fn cause_of(handle: &PipelineHandle, table: &str) -> String {
    let found = handle.status().tables.into_iter().find(|known| known.name == table);
    found.and_then(|known| known.why).map_or(String::new(), |why| why.cause)
}

/// Ends a pipeline in good order: the books balance, per pipeline and per table, and nothing is left.
async fn finished(handle: PipelineHandle) {
    let report = handle.shutdown(SOON).await;
    assert_eq!(report.ending, Ending::Settled, "{report:#?}");
    for (sink, balance) in &report.balance {
        assert!(balance.ok && balance.in_flight == 0, "sink {sink}: {balance:?}");
    }
    let status = handle.status();
    let mut rows = 0;
    for table in &status.tables {
        for (sink, balance) in &table.balance {
            assert!(balance.ok && balance.in_flight == 0, "table {} in {sink}: {balance:?}", table.name);
            rows += balance.rows_in;
        }
    }
    assert_eq!(rows, report.balance.values().map(|balance| balance.rows_in).sum::<u64>(), "tables add up");
}

fn numbers(range: std::ops::Range<i64>) -> Vec<i64> {
    range.collect()
}

/// Catches a table that is lost, doubled or reordered on the straight path, or a source that is never told.
#[tokio::test(flavor = "multi_thread")]
async fn every_table_lands_in_its_own_sink_in_order() {
    let bed = Bed::new(&["a", "b", "c"]);
    let handle = bed.run();
    for start in (0..3_000).step_by(300) {
        for partition in 1..=3 {
            bed.commit(partition, start..start + 300);
        }
    }
    assert!(handle.wait_until(&bed.source.ends(), SOON).await, "{:#?}", handle.status());
    until(&handle, || {
        (1..=3).all(|partition| bed.source.committed(partition) == bed.source.ends().values().next().copied())
    })
    .await;
    assert_eq!(bed.source.lanes(), 1, "one lane for all tables");
    finished(handle).await;
    for name in ["a", "b", "c"] {
        let rows = bed.table(name).rows();
        assert!(rows.iter().map(|row| row.place).is_sorted(), "order is kept");
        assert_eq!(bed.table(name).values("n"), numbers(0..3_000));
        assert_eq!(bed.table(name).doubles(), 0);
    }
}

/// Catches a full queue of one table that parks the lane, a hurry that never ends for the others, or a state that does
/// not name the table (F-M6, I13).
#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_table_leaves_the_others_running() {
    let bed = Bed::new(&["a", "b"]);
    bed.table("b").refuse_writes(true);
    let handle = bed.run();
    for start in (0..20_000).step_by(1_000) {
        bed.commit(2, start..start + 1_000);
    }
    until(&handle, || state_of(&handle, "b") == Some(PipelineState::Blocked)).await;
    for start in (0..5_000).step_by(500) {
        bed.commit(1, start..start + 500);
    }
    until(&handle, || bed.table("a").rows().len() == 5_000).await;
    let end = bed.source.ends()[&landfall_types::PartitionId(1)];
    until(&handle, || bed.source.committed(1) == Some(end)).await;
    assert_eq!(status(&handle, "a").state, PipelineState::Running);
    let blocked = status(&handle, "b");
    assert!(blocked.why.as_ref().is_some_and(|why| why.cause.contains("closed to writers")), "{blocked:?}");
    assert!(blocked.in_flight > 0 && blocked.lag > 0, "{blocked:?}");
    assert_eq!(handle.status().state, PipelineState::Blocked);
    assert!(bed.table("b").rows().is_empty());

    bed.table("b").refuse_writes(false);
    assert!(handle.wait_until(&bed.source.ends(), SOON).await, "{:#?}", handle.status());
    finished(handle).await;
    assert_eq!(bed.table("b").values("n"), numbers(0..20_000));
    assert_eq!((bed.table("a").doubles(), bed.table("b").doubles()), (0, 0));
}

/// Catches a destination that is down when the pipeline starts and holds up tables that are well, and one that stays
/// away after it has come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_cannot_be_opened_joins_once_it_can() {
    let bed = Bed::new(&["a", "b"]);
    bed.table("b").missing(true);
    let handle = bed.run();
    bed.commit(1, 0..500);
    bed.commit(2, 0..500);
    until(&handle, || bed.table("a").rows().len() == 500).await;
    until(&handle, || state_of(&handle, "b") == Some(PipelineState::Blocked)).await;
    let waits = status(&handle, "b");
    assert!(waits.why.is_some_and(|why| why.cause.contains("does not exist") && why.at.contains("lake")));
    bed.table("b").missing(false);
    assert!(handle.wait_until(&bed.source.ends(), SOON).await, "{:#?}", handle.status());
    assert_eq!(bed.source.lanes(), 1, "it joins the open lane");
    finished(handle).await;
    assert_eq!(bed.table("b").values("n"), numbers(0..500));
}

/// Catches a table that never opened and is called settled at the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_never_opened_is_named_at_the_end() {
    let bed = Bed::new(&["a", "b"]);
    bed.table("b").missing(true);
    let handle = bed.run();
    bed.commit(1, 0..50);
    until(&handle, || bed.table("a").rows().len() == 50 && state_of(&handle, "b") == Some(PipelineState::Blocked))
        .await;
    let report = handle.shutdown(SOON).await;
    assert_eq!(report.ending, Ending::Unfinished, "{report:#?}");
    assert!(report.unfinished.iter().all(|range| range.partition == 2 && range.cause.contains("table `b`")));
    assert_eq!(report.unfinished.len(), 1);
}

/// Fails for whole batches of one table.
struct Broken;

impl Transform for Broken {
    fn plan(&self, input: &SchemaRef) -> Result<SchemaRef, PlanError> {
        Ok(input.clone())
    }

    fn apply(&mut self, _rows: RecordBatch, _bad: &mut RowErrors) -> Result<RecordBatch, EngineError> {
        Err(EngineError { code: codes::STAGE_FAILED, text: "a defect of this table's chain".to_owned() })
    }
}

/// Catches a defect of one table's chain that ends the pipeline, and a source's bad row that stops its table (P89).
#[tokio::test(flavor = "multi_thread")]
async fn one_bad_table_leaves_the_others_streaming() {
    let bed = Bed::new(&["a", "b", "c"]);
    let chain: TableChainFactory = Arc::new(|spec: &TableSpec| {
        let broken = (spec.name.as_ref() == "b").then(|| Box::new(Broken) as Box<dyn Transform>);
        Ok(ChainParts {
            decoder: Box::new(TableDecoder::new(spec.schema.clone())),
            transforms: broken.into_iter().collect(),
            wanted: Wanted::default(),
        })
    });
    let handle = bed.start(bed.pipeline(chain));
    bed.commit(2, 0..10);
    bed.commit(3, 0..100);
    bed.source.bad_row(3, 5_000, 5_005, "x");
    bed.commit(3, 1_000..1_100);
    until(&handle, || cause_of(&handle, "b").contains("this table's chain")).await;
    bed.commit(1, 0..1_000);
    until(&handle, || bed.table("a").rows().len() == 1_000 && bed.table("c").rows().len() == 200).await;
    until(&handle, || status(&handle, "c").rows == 201).await;
    let third = status(&handle, "c");
    let balance = third.balance["lake"];
    assert_eq!((balance.dead_lettered, balance.delivered, balance.ok), (1, 200, true));
    let letters = bed.letters.letters();
    let [letter] = letters.as_slice() else { panic!("one letter: {letters:?}") };
    assert_eq!(
        (letter.stage, letter.code, letter.record.payload.as_ref()),
        (Stage::Decode, Code::new("PG", 401), &br#"{"n":"x"}"#[..])
    );
    assert_eq!((letter.record.offset.0, letter.record.within), (5_000, 1), "its place names it");
    assert!(bed.table("b").rows().is_empty());
    let report = handle.shutdown(Duration::from_secs(2)).await;
    assert_eq!(report.ending, Ending::Unfinished, "{report:#?}");
    assert!(report.unfinished.iter().all(|range| range.partition == 2));
    assert!(report.balance.values().all(|balance| balance.ok), "{report:#?}");
}

/// Catches rows of a new shape that reach a sink which was not told, a shape that stops its neighbours while it is
/// planned or refused, and columns that are mixed up.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_shape_reaches_the_sink_before_its_first_row() {
    let bed = Bed::new(&["a", "b"]);
    bed.source.shape(1, 2, &["n", "extra"]);
    let handle = bed.run();
    bed.commit(1, 0..300);
    bed.table("a").refuse_shapes(true);
    let wide: Vec<Vec<i64>> = (300..600).map(|n| vec![n, n * 2]).collect();
    bed.source.transaction(1, 2, 50_000, 50_005, &wide, 50);
    until(&handle, || cause_of(&handle, "a").contains("needs a re-sync")).await;
    bed.commit(2, 0..1_000);
    until(&handle, || bed.table("b").rows().len() == 1_000).await;
    // What came before the shape lands meanwhile.
    until(&handle, || bed.table("a").values("n") == numbers(0..300)).await;
    assert_eq!(status(&handle, "b").state, PipelineState::Running);

    bed.table("a").refuse_shapes(false);
    assert!(handle.wait_until(&bed.source.ends(), SOON).await, "{:#?}", handle.status());
    assert_eq!(status(&handle, "a").shape, 2);
    finished(handle).await;
    let refused = bed.source.refused();
    assert!(matches!(refused.as_slice(), [(1, Some(why)), (1, None)] if why.contains("re-sync")), "{refused:?}");
    let seen = bed.table("a").seen();
    assert!(seen.iter().all(|batch| batch.was_told), "{seen:#?}");
    assert_eq!(bed.table("a").values("n"), numbers(0..600));
    assert_eq!(bed.table("a").values("extra"), (300..600).map(|n| n * 2).collect::<Vec<_>>());
}

/// Catches a shape with another key whose rows are told apart by the key of before (P84).
#[tokio::test(flavor = "multi_thread")]
async fn a_shape_brings_its_own_key() {
    let bed = Bed::new(&["a"]);
    bed.source.shape(1, 2, &["m", "n"]);
    let handle = bed.run();
    bed.commit(1, 0..10);
    bed.source.transaction(1, 2, 50_000, 50_005, &[vec![1, 10], vec![2, 11]], 50);
    bed.source.transaction(1, 1, 60_000, 60_005, &[vec![12]], 50);
    assert!(handle.wait_until(&bed.source.ends(), SOON).await, "{:#?}", handle.status());
    finished(handle).await;
    assert_eq!(bed.table("a").key_of(2), Some(vec!["m".to_owned()]));
    assert_eq!(bed.table("a").values("n"), numbers(0..13));
}

/// Catches chunks or sealed batches that join rows of two shapes, and a later shape that overtakes an earlier one.
#[tokio::test(flavor = "multi_thread")]
async fn no_sealed_batch_joins_two_shapes() {
    let bed = Bed::new(&["a"]);
    for shape in 2..=12 {
        let names: Vec<String> =
            (0..shape).map(|column| if column == 0 { "n".into() } else { format!("c{column}") }).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        bed.source.shape(1, shape, &names);
    }
    let handle = bed.run();
    let mut rows = 0i64;
    for round in 0..60u32 {
        // Small and large transactions, up and down the shapes, as a replay over several changes would bring them.
        let shape = 1 + (round * 5) % 12;
        let count = if round % 7 == 0 { 700 } else { 3 };
        let values: Vec<Vec<i64>> =
            (rows..rows + count).map(|n| (0..i64::from(shape)).map(|column| n + column).collect()).collect();
        rows += count;
        let at = u64::from(round) * 100_000 + 10;
        bed.source.transaction(1, shape, at, at + 5, &values, 90);
    }
    assert!(handle.wait_until(&bed.source.ends(), SOON).await, "{:#?}", handle.status());
    finished(handle).await;
    let table = bed.table("a");
    for batch in table.seen() {
        let note = batch.note.expect("every batch has a note");
        let own = batch.columns.iter().filter(|name| *name == "n" || name.starts_with('c')).count();
        assert!(batch.rows == 0 || own == note.shape as usize, "{batch:?}");
        assert!(batch.was_told, "{batch:?}");
    }
    assert_eq!(table.values("n"), numbers(0..rows));
    assert!(table.rows().iter().map(|row| row.place).is_sorted(), "no shape overtakes another");
}

/// Catches a copy that needs a new lane, a mark that its sink never sees, and a retired partition that stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_partition_joins_and_retires_while_the_lane_is_open() {
    let bed = Bed::new(&["a", "b"]);
    let handle = bed.run();
    bed.commit(1, 0..100);
    until(&handle, || bed.table("a").rows().len() == 100).await;
    bed.source.add_partition(7, 1);
    let copied: Vec<Vec<i64>> = (10_000..10_500).map(|n| vec![n]).collect();
    bed.source.copy(7, 9_000, &copied, 60);
    bed.commit(1, 100..200);
    assert!(handle.wait_until(&bed.source.ends(), SOON).await, "{:#?}", handle.status());
    assert_eq!(status(&handle, "a").partitions, [1, 7]);
    bed.source.retire(7);
    until(&handle, || status(&handle, "a").partitions == [1]).await;
    bed.commit(1, 200..300);
    bed.commit(2, 0..50);
    until(&handle, || bed.table("a").rows().len() == 800 && bed.table("b").rows().len() == 50).await;
    assert_eq!(bed.source.lanes(), 1);
    finished(handle).await;
    let marks: Vec<CopyMark> = bed.table("a").seen().iter().filter_map(|batch| Some(batch.note?.copy)).collect();
    let place = Place { at: 9_000, within: 0 };
    assert_eq!(marks.iter().filter(|mark| **mark == CopyMark::Begins(place)).count(), 1, "{marks:?}");
    assert_eq!(marks.iter().filter(|mark| **mark == CopyMark::Ends(place)).count(), 1, "{marks:?}");
    assert_eq!(bed.table("a").positions()[&landfall_types::PartitionId(7)], place);
    assert_eq!(bed.table("a").doubles(), 0);
}

/// Catches a table that comes later and is never read.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_added_joins_the_open_lane() {
    let mut bed = Bed::new(&["a"]);
    bed.tables.insert("later".to_owned(), MemoryTable::new(Duration::from_millis(20)));
    let handle = bed.run();
    bed.commit(1, 0..10);
    until(&handle, || bed.table("a").rows().len() == 10).await;
    bed.source.add_table(9, "later", 9, &["n"]);
    bed.commit(9, 0..1_000);
    assert!(handle.wait_until(&bed.source.ends(), SOON).await, "{:#?}", handle.status());
    assert_eq!(bed.source.lanes(), 1);
    finished(handle).await;
    assert_eq!(bed.table("later").values("n"), numbers(0..1_000));
}

/// Catches a failed table that is not read again, or whose neighbours get rows twice when the lane is opened anew (E12).
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_table_reopens_the_lane_and_the_others_skip_by_position() {
    let bed = Bed::new(&["a", "b"]);
    let handle = bed.run();
    bed.commit(1, 0..100);
    bed.commit(2, 0..100);
    until(&handle, || bed.source.joined().len() == 2 && bed.table("b").rows().len() == 100).await;
    bed.source.forget_below(2, Place { at: u64::MAX, within: 0 });
    bed.table("b").lose_groups(1);
    for start in (100..2_000).step_by(100) {
        bed.commit(1, start..start + 100);
        bed.commit(2, start..start + 100);
    }
    assert!(handle.wait_until(&bed.source.ends(), SOON).await, "{:#?}", handle.status());
    assert!(bed.source.lanes() >= 2, "the lane could not serve the place and was opened anew");
    finished(handle).await;
    for name in ["a", "b"] {
        assert_eq!(bed.table(name).values("n"), numbers(0..2_000), "table {name}");
        assert_eq!(bed.table(name).doubles(), 0, "table {name}");
    }
}

/// Catches a place inside a transaction that a restart forgets, or an offset that is taken for a place: offsets begin
/// anew with every epoch (P91, P101).
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_inside_a_transaction_goes_on_inside_it() {
    let bed = Bed::new(&["a"]);
    let rows: Vec<Vec<i64>> = (0..9_000).map(|n| vec![n]).collect();
    bed.source.transaction(1, 1, 77, 99, &rows[..4_000], 100);
    let mut held = 0;
    for round in 0..4 {
        let handle = bed.run();
        until(&handle, || bed.table("a").rows().len() > held || bed.table("a").rows().len() >= 4_000).await;
        handle.abort();
        assert_eq!(handle.ended().await.ending, Ending::Aborted, "round {round}");
        held = bed.table("a").rows().len();
    }
    let handle = bed.run();
    assert!(handle.wait_until(&bed.source.ends(), SOON).await, "{:#?}", handle.status());
    finished(handle).await;
    assert_eq!(bed.table("a").values("n"), numbers(0..4_000));
    assert_eq!(bed.table("a").doubles(), 0);
}

/// Catches `on_error: fail` on one table that stops another.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_fails_its_table_stops_no_other() {
    let bed = Bed::new(&["a", "b"]);
    let fail = PipelineOptions { on_error: OnErrors::all(OnError::Fail), ..options() };
    let handle = bed.start(bed.pipeline(identity()).options(fail));
    bed.commit(2, 0..100);
    bed.source.bad_row(2, 5_000, 5_005, "x");
    bed.commit(1, 0..100);
    until(&handle, || bed.table("a").rows().len() == 100 && bed.table("b").rows().len() == 100).await;
    until(&handle, || state_of(&handle, "b") == Some(PipelineState::Blocked)).await;
    bed.commit(1, 100..200);
    until(&handle, || bed.table("a").rows().len() == 200).await;
    assert_eq!(status(&handle, "a").state, PipelineState::Running);
    let report = handle.shutdown(Duration::from_secs(2)).await;
    assert!(report.balance.values().all(|balance| balance.ok), "{report:#?}");
    assert_eq!((bed.table("a").doubles(), bed.table("b").doubles()), (0, 0));
}

/// Panics over some values.
struct Touchy;

impl Transform for Touchy {
    fn plan(&self, input: &SchemaRef) -> Result<SchemaRef, PlanError> {
        Ok(input.clone())
    }

    fn apply(&mut self, rows: RecordBatch, _bad: &mut RowErrors) -> Result<RecordBatch, EngineError> {
        let values = rows.column(0).as_primitive::<Int64Type>();
        assert!(values.values().iter().all(|value| value % 100 != 42), "a value that panics");
        Ok(rows)
    }
}

/// Catches a row that panics its table's chain and takes its batch, its table or the lane along (E61, I13).
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_panics_a_tables_chain_ends_as_a_dead_letter() {
    let bed = Bed::new(&["a", "b"]);
    let chain: TableChainFactory = Arc::new(|spec: &TableSpec| {
        let touchy = (spec.name.as_ref() == "a").then(|| Box::new(Touchy) as Box<dyn Transform>);
        Ok(ChainParts {
            decoder: Box::new(TableDecoder::new(spec.schema.clone())),
            transforms: touchy.into_iter().collect(),
            wanted: Wanted::default(),
        })
    });
    let handle = bed.start(bed.pipeline(chain));
    bed.commit(1, 0..300);
    bed.commit(2, 0..300);
    assert!(handle.wait_until(&bed.source.ends(), SOON).await, "{:#?}", handle.status());
    let balance = status(&handle, "a").balance["lake"];
    assert_eq!((balance.dead_lettered, balance.delivered, balance.returned), (3, 297, 0));
    finished(handle).await;
    assert_eq!(bed.table("a").values("n"), (0..300).filter(|n| n % 100 != 42).collect::<Vec<_>>());
    assert_eq!(bed.table("b").values("n"), numbers(0..300));
    let letters = bed.letters.letters();
    assert!(letters.iter().all(|letter| letter.code == codes::PANIC && letter.text.contains("a value that panics")));
    let first = String::from_utf8(letters[0].record.payload.to_vec()).expect("JSON");
    assert!(first.contains(r#""n":"42""#) && first.contains(r#""_op":"i""#) && !first.contains("__"), "{first}");
}

/// Catches a plan of tables that leaves one out, or memory that grows with tables past what was allowed (E94).
#[tokio::test(flavor = "multi_thread")]
async fn many_tables_share_what_one_would_have() {
    let names: Vec<String> = (0..40).map(|number| format!("t{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let bed = Bed::new(&names);
    let pipeline = || {
        let wide = SinkOptions { batch_bytes: ByteSize::mib(8), ..sink_options() };
        let null: TableSinkFactory = Arc::new(|_: &TableSpec| Ok(Arc::new(NullSink::new()) as Arc<dyn Sink>));
        Pipeline::of_tables(PipelineId("shop".to_owned()), bed.source.clone(), identity())
            .table_sink("null", null, wide)
            .dead_letters(Arc::new(bed.letters.clone()))
            .options(options())
    };
    let free = pipeline().plan(true).await.expect("a plan");
    let bound = pipeline().max_inflight_bytes(ByteSize::mib(128)).plan(true).await.expect("a plan");
    assert_eq!((free.tables.len(), bound.tables.len()), (40, 40));
    let queues = |plan: &crate::PipelinePlan| plan.memory[0].bytes;
    assert!(queues(&free) > (600 << 20) && queues(&bound) <= (160 << 20), "{:?} {:?}", free.memory[0], bound.memory[0]);
    let handle = bed.start(pipeline().max_inflight_bytes(ByteSize::mib(128)));
    (1..=40).for_each(|partition| bed.commit(partition, 0..100));
    assert!(handle.wait_until(&bed.source.ends(), SOON).await, "{:#?}", handle.status());
    finished(handle).await;
}
