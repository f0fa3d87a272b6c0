use std::collections::BTreeSet;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Decimal128Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use landfall_engine::contract::{
    CommitId, Covered, PipelineId, PlanCx, SealedBatch, ShardId, ShardWriter, Sink, SinkError, SinkPlan, Written,
};
use landfall_types::{ByteSize, Epoch, Offset, PartitionId, Place, Timestamp};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;

use crate::ledger::{FOLDER, Step, StepHook};
use crate::{Compression, FilesOptions, FilesSink, Format};

const P: PartitionId = PartitionId(0);

fn cx() -> PlanCx {
    PlanCx { pipeline: PipelineId("orders".into()), source: "channel:0a".into(), online: true }
}

fn rows() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("n", DataType::Int64, false),
        Field::new("text", DataType::Utf8, true),
        Field::new("amount", DataType::Decimal128(20, 2), true),
        Field::new("at", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
        Field::new("__partition", DataType::UInt32, false),
        Field::new("__offset", DataType::UInt64, false),
    ]))
}

fn sealed(schema: &SchemaRef, partition: u32, epoch: u32, offsets: Range<u64>) -> SealedBatch {
    let numbers =
        || offsets.clone().map(|offset| i64::from(partition) * 1_000_000 + i64::try_from(offset).expect("small"));
    let columns = schema.fields().iter().map(|field| -> ArrayRef {
        match field.name().as_str() {
            "text" => Arc::new(StringArray::from_iter(numbers().map(|n| (n % 2 == 0).then(|| format!("\"ä\"\n{n}"))))),
            "amount" => Arc::new(
                Decimal128Array::from_iter_values(numbers().map(|n| 900_719_925_474_099_301 + i128::from(n)))
                    .with_precision_and_scale(20, 2)
                    .expect("fits"),
            ),
            "at" => Arc::new(TimestampMicrosecondArray::from_iter_values(numbers()).with_timezone("UTC")),
            _ => Arc::new(Int64Array::from_iter_values(numbers())),
        }
    });
    let batch = RecordBatch::try_new(schema.clone(), columns.collect()).expect("a batch");
    let cover = Covered {
        partition: PartitionId(partition),
        epoch: Epoch(epoch),
        range: Place::of(Offset(offsets.start))..Place::of(Offset(offsets.end)),
        rows: u32::try_from(batch.num_rows()).expect("small"),
    };
    let id = u128::from(partition) << 96 | u128::from(offsets.start) << 48 | u128::from(offsets.end);
    SealedBatch {
        id: CommitId(id),
        bytes: 0,
        parts: vec![batch],
        covers: vec![cover],
        oldest: Timestamp(0),
        note: None,
    }
}

struct Opened {
    sink: FilesSink,
    plan: SinkPlan,
    writer: Arc<dyn ShardWriter>,
}

async fn open(options: FilesOptions, hook: Option<StepHook>) -> Opened {
    let sink = FilesSink::with_hook(options, hook).expect("in bounds");
    let plan = sink.plan(&rows(), &cx()).await.expect("a plan");
    sink.open(&plan, &cx()).await.expect("opened");
    let writer = sink.writer(ShardId(0));
    Opened { sink, plan, writer }
}

impl Opened {
    async fn land(&self, partition: u32, epoch: u32, offsets: Range<u64>) {
        let written = self.writer.write(&sealed(&self.plan.schema, partition, epoch, offsets)).await.expect("taken");
        assert_eq!(written, Written::Accepted);
        self.writer.barrier().await.expect("settled");
    }

    async fn position(&self) -> Option<u64> {
        self.sink.committed_positions(&cx()).await.expect("positions").get(&P).map(|place| place.at)
    }
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).expect("the directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    names.filter(|name| name != FOLDER).collect()
}

fn unfinished(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory.join(FOLDER)).expect("the folder");
    entries.filter(|entry| entry.as_ref().expect("an entry").path().extension().is_some_and(|it| it == "part")).count()
}

/// The lines of all files, in the order of names.
fn lines(directory: &Path) -> Vec<serde_json::Value> {
    let mut lines = Vec::new();
    for name in names(directory) {
        let file = std::fs::File::open(directory.join(&name)).expect("the file");
        let mut text = String::new();
        let read = match name.rsplit_once('.').expect("an extension").1 {
            "zst" => zstd::stream::read::Decoder::new(file).expect("zstd").read_to_string(&mut text),
            "gz" => flate2::read::GzDecoder::new(file).read_to_string(&mut text),
            _ => io::BufReader::new(file).read_to_string(&mut text),
        };
        read.expect("text");
        assert!(text.ends_with('\n'), "the last line is whole");
        lines.extend(text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON")));
    }
    lines
}

fn landed(directory: &Path) -> Vec<i64> {
    let mut numbers: Vec<i64> = lines(directory).iter().map(|line| line["n"].as_i64().expect("a number")).collect();
    numbers.sort_unstable();
    numbers
}

/// Catches values that change on their way into a line, and a file that is visible before the barrier.
#[tokio::test]
async fn ndjson_holds_every_value_exactly() {
    for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
        let root = TempDir::new().expect("a directory");
        let opened = open(FilesOptions { compression, ..FilesOptions::new(root.path()) }, None).await;
        opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..3)).await.expect("taken");
        assert!(names(root.path()).is_empty());
        let settled = opened.writer.barrier().await.expect("settled");
        assert_eq!((settled.batches, settled.rows), (1, 3));
        assert_eq!(settled.positions.get(&P).map(|place| place.at), Some(3));
        let lines = lines(root.path());
        assert_eq!((lines[0]["n"].as_i64(), lines[0]["text"].as_str()), (Some(0), Some("\"ä\"\n0")));
        assert_eq!(lines[2]["at"], "1970-01-01T00:00:00.000002Z");
        assert_eq!(lines[1].get("text"), Some(&serde_json::Value::Null), "a field that is NULL is there");
        assert_eq!(lines.len(), 3);
        assert_eq!(unfinished(root.path()), 0);
    }
}

/// Catches a decimal written as a floating-point number.
#[tokio::test]
async fn decimals_keep_their_digits() {
    let root = TempDir::new().expect("a directory");
    let options = FilesOptions { compression: Compression::None, ..FilesOptions::new(root.path()) };
    let opened = open(options, None).await;
    opened.land(0, 1, 0..1).await;
    let name = names(root.path()).pop_first().expect("a file");
    let text = std::fs::read_to_string(root.path().join(name)).expect("text");
    assert!(text.contains(r#""amount":9007199254740993.01"#), "{text}");
}

/// Catches a Parquet file that does not read back, or hidden columns where none were asked for.
#[tokio::test]
async fn parquet_reads_back() {
    for (hidden, columns) in [(false, 4), (true, 6)] {
        let root = TempDir::new().expect("a directory");
        let options = FilesOptions { format: Format::Parquet, hidden, ..FilesOptions::new(root.path()) };
        let sink = FilesSink::new(options.clone()).expect("in bounds");
        let plan = sink.plan(&rows(), &cx()).await.expect("a plan");
        assert_eq!(plan.schema.fields().len(), columns);
        if hidden {
            continue;
        }
        drop(sink);
        let opened = open(options, None).await;
        opened.land(0, 1, 0..20_000).await;
        let name = names(root.path()).pop_first().expect("a file");
        assert!(name.ends_with(".parquet"));
        let file = std::fs::File::open(root.path().join(name)).expect("the file");
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet").build().expect("a reader");
        let read: Vec<i64> = reader
            .flat_map(|batch| batch.expect("rows").column(0).as_primitive::<Int64Type>().values().to_vec())
            .collect();
        assert_eq!(read, (0..20_000).collect::<Vec<i64>>());
    }
}

/// Catches a restart that publishes rows again, or leaves some out.
#[tokio::test]
async fn a_restart_goes_on_where_the_directory_ends() {
    let root = TempDir::new().expect("a directory");
    for round in 0..4u64 {
        let opened = open(FilesOptions::new(root.path()), None).await;
        assert_eq!(opened.position().await, (round > 0).then_some(round * 5));
        let epoch = u32::try_from(round).expect("small");
        opened.land(0, epoch, round * 5..round * 5 + 5).await;
        // Taken and not settled when the process ends.
        opened.writer.write(&sealed(&opened.plan.schema, 0, epoch, round * 5 + 5..round * 5 + 9)).await.expect("taken");
    }
    assert_eq!(landed(root.path()), (0..20).collect::<Vec<i64>>());
    let opened = open(FilesOptions::new(root.path()), None).await;
    assert_eq!(unfinished(root.path()), 0, "what a dead process left is removed");
    let repeat = opened.writer.write(&sealed(&opened.plan.schema, 0, 9, 15..20)).await.expect("known");
    assert_eq!(repeat, Written::AlreadyThere);
    let other = PlanCx { source: "channel:0b".into(), ..cx() };
    assert!(
        opened.sink.committed_positions(&other).await.expect("positions").is_empty(),
        "another source inherits nothing"
    );
}

fn breaking(step: Step) -> (StepHook, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(false));
    let is_armed = armed.clone();
    let hook: StepHook = Arc::new(move |at| match at == step && is_armed.load(Ordering::SeqCst) {
        true => Err(io::Error::other("the process ends here")),
        false => Ok(()),
    });
    (hook, armed)
}

const STEPS: [Step; 4] = [Step::SyncFile, Step::ReplaceLedger, Step::Publish, Step::Tidy];

/// Catches a crash between any two steps that loses a file, publishes it twice or under another name (E123).
#[tokio::test]
async fn a_kill_at_each_step_leaves_the_files_of_an_undisturbed_run() {
    let undisturbed = TempDir::new().expect("a directory");
    let opened = open(FilesOptions::new(undisturbed.path()), None).await;
    for at in [0, 5, 10] {
        opened.land(0, 1, at..at + 5).await;
    }
    for step in STEPS {
        let root = TempDir::new().expect("a directory");
        let (hook, armed) = breaking(step);
        let opened = open(FilesOptions::new(root.path()), Some(hook)).await;
        opened.land(0, 1, 0..5).await;
        armed.store(true, Ordering::SeqCst);
        opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 5..10)).await.expect("taken");
        opened.writer.barrier().await.expect_err("killed");
        drop(opened);

        let opened = open(FilesOptions::new(root.path()), None).await;
        let from = opened.position().await.expect("a position");
        let is_committed = matches!(step, Step::Publish | Step::Tidy);
        assert_eq!(from, if is_committed { 10 } else { 5 }, "{step:?}");
        for at in (from..15).step_by(5) {
            opened.land(0, 2, at..at + 5).await;
        }
        assert_eq!(names(root.path()), names(undisturbed.path()), "{step:?}");
        assert_eq!(lines(root.path()), lines(undisturbed.path()), "{step:?}");
        assert_eq!(unfinished(root.path()), 0, "{step:?}");
    }
}

/// Catches an error that passes and takes the group with it, or publishes it twice.
#[tokio::test]
async fn a_failing_step_is_repeated_until_it_passes() {
    for step in [Step::ReplaceLedger, Step::Publish, Step::Tidy] {
        let root = TempDir::new().expect("a directory");
        let (hook, armed) = breaking(step);
        let opened = open(FilesOptions::new(root.path()), Some(hook)).await;
        armed.store(true, Ordering::SeqCst);
        opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..5)).await.expect("taken");
        for _ in 0..3 {
            let error = opened.writer.barrier().await.expect_err("fails");
            assert!(matches!(error.error, SinkError::Later { .. }) && error.lost.is_empty(), "{error:?}");
        }
        // Rows that come meanwhile are another file's.
        opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 5..7)).await.expect("taken");
        armed.store(false, Ordering::SeqCst);
        let settled = opened.writer.barrier().await.expect("settled");
        assert_eq!((settled.batches, settled.rows), (2, 7), "{step:?}");
        assert_eq!(names(root.path()).len(), 2);
        assert_eq!(landed(root.path()), (0..7).collect::<Vec<i64>>());
    }
}

/// Catches a thread that died with a group and is told as settled, a shard that it leaves stuck, and rows that are lost or
/// land twice for it, at each step of a commit.
#[tokio::test]
async fn a_thread_that_died_has_lost_its_group_and_its_rows_land_once() {
    for step in STEPS {
        let root = TempDir::new().expect("a directory");
        let armed = Arc::new(AtomicBool::new(false));
        let is_armed = armed.clone();
        let hook: StepHook = Arc::new(move |at| {
            assert!(!(at == step && is_armed.swap(false, Ordering::SeqCst)), "scripted: the thread dies");
            Ok(())
        });
        let opened = open(FilesOptions::new(root.path()), Some(hook)).await;
        let write = |epoch, offsets| {
            let (writer, batch) = (opened.writer.clone(), sealed(&opened.plan.schema, 0, epoch, offsets));
            async move { writer.write(&batch).await.expect("taken") }
        };
        opened.land(0, 1, 0..5).await;
        write(1, 5..8).await;
        // The step of another file may be the first to meet the hook only from here on.
        armed.store(true, Ordering::SeqCst);
        for _ in 0..2 {
            let error = opened.writer.barrier().await.expect_err("the thread is dead");
            assert!(
                matches!(&error.error, SinkError::Unknown { code, .. } if *code == crate::code::GROUP_LOST),
                "{step:?}: {error:?}"
            );
            assert!(error.lost.is_empty() && opened.writer.wants_barrier(), "{step:?}");
            assert_eq!(write(1, 8..10).await, Written::Accepted, "{step:?}: taken, so that the barrier is asked for");
        }
        assert!(!armed.load(Ordering::SeqCst), "{step:?}: the hook was met");
        opened.writer.reset().await;
        assert!(!opened.writer.wants_barrier(), "{step:?}");
        let from = opened.position().await.expect("a position");
        let is_committed = matches!(step, Step::Publish | Step::Tidy);
        assert_eq!(from, if is_committed { 8 } else { 5 }, "{step:?}");
        for offsets in [5..8, 8..10] {
            let expected = if offsets.end <= from { Written::AlreadyThere } else { Written::Accepted };
            assert_eq!(write(2, offsets).await, expected, "{step:?}");
        }
        let settled = opened.writer.barrier().await.expect("settled");
        assert_eq!(settled.positions.get(&P).map(|place| place.at), Some(10), "{step:?}");
        assert_eq!(landed(root.path()), (0..10).collect::<Vec<i64>>(), "{step:?}");
    }
}

/// Catches a reset that forgets a file whose commit is in, or writes rows of a given-up group.
#[tokio::test]
async fn a_reset_forgets_what_is_not_committed_and_nothing_else() {
    let root = TempDir::new().expect("a directory");
    let (hook, armed) = breaking(Step::Publish);
    let opened = open(FilesOptions::new(root.path()), Some(hook)).await;
    armed.store(true, Ordering::SeqCst);
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..5)).await.expect("taken");
    opened.writer.barrier().await.expect_err("has no name yet");
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 5..8)).await.expect("taken");
    opened.writer.reset().await;
    armed.store(false, Ordering::SeqCst);
    assert_eq!(opened.position().await, Some(5));
    opened.land(0, 2, 5..6).await;
    assert_eq!(landed(root.path()), (0..6).collect::<Vec<i64>>());
    assert_eq!(unfinished(root.path()), 0);
}

/// Catches rows of a partition that was read anew, and a group that is lost without saying so.
#[tokio::test]
async fn a_lost_group_names_all_its_batches() {
    let root = TempDir::new().expect("a directory");
    let (hook, armed) = breaking(Step::SyncFile);
    let opened = open(FilesOptions::new(root.path()), Some(hook)).await;
    let batches = [sealed(&opened.plan.schema, 0, 1, 0..5), sealed(&opened.plan.schema, 1, 1, 0..5)];
    armed.store(true, Ordering::SeqCst);
    for batch in &batches {
        opened.writer.write(batch).await.expect("taken");
    }
    let error = opened.writer.barrier().await.expect_err("the sync failed");
    assert!(matches!(error.error, SinkError::Unknown { .. }), "{error:?}");
    assert_eq!(error.lost, batches.each_ref().map(|batch| batch.id));
    armed.store(false, Ordering::SeqCst);
    opened.writer.write(&sealed(&opened.plan.schema, 0, 2, 0..5)).await.expect("taken");
    opened.writer.write(&sealed(&opened.plan.schema, 0, 3, 0..5)).await.expect("the same id is the same batch");
    opened.writer.write(&sealed(&opened.plan.schema, 0, 3, 0..7)).await.expect("read anew");
    assert!(opened.writer.wants_barrier());
    assert_eq!(opened.writer.barrier().await.expect_err("lost").lost.len(), 2);
    assert!(names(root.path()).is_empty());
}

/// Catches rows published a second time after a position that an engine did not ask for.
#[tokio::test]
async fn rows_below_the_position_are_not_published_again() {
    let root = TempDir::new().expect("a directory");
    let opened = open(FilesOptions::new(root.path()), None).await;
    opened.land(0, 1, 0..5).await;
    opened.writer.write(&sealed(&opened.plan.schema, 0, 2, 3..8)).await.expect("taken");
    let error = opened.writer.barrier().await.expect_err("partly there");
    assert!(matches!(error.error, SinkError::Superseded { .. }), "{error:?}");
    assert_eq!(landed(root.path()), (0..5).collect::<Vec<i64>>());
}

/// Catches a second process that writes beside the first.
#[tokio::test]
async fn a_second_process_is_refused_and_named() {
    let root = TempDir::new().expect("a directory");
    let first = open(FilesOptions::new(root.path()), None).await;
    let second = FilesSink::new(FilesOptions::new(root.path())).expect("in bounds");
    let plan = second.plan(&rows(), &cx()).await.expect("a plan");
    let error = second.open(&plan, &cx()).await.expect_err("in use");
    assert!(matches!(&error, SinkError::Destination { text, .. } if text.contains("orders")), "{error}");
    let other = PlanCx { pipeline: PipelineId("orders.2".into()), ..cx() };
    let identity = second.open(&plan, &other).await.expect("another pipeline");
    assert_eq!(first.sink.open(&first.plan, &cx()).await.expect("opening again"), identity);
    drop(first);
    let third = FilesSink::new(FilesOptions::new(root.path())).expect("in bounds");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while third.open(&plan, &cx()).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the lock goes with its sink");
        tokio::task::yield_now().await;
    }
}

/// Catches a foreign file that is overwritten, and damage that is taken for "nothing landed yet" (I12).
#[tokio::test]
async fn foreign_files_and_damage_stop_the_sink() {
    let root = TempDir::new().expect("a directory");
    let opened = open(FilesOptions::new(root.path()), None).await;
    opened.land(0, 1, 0..5).await;
    let batch = sealed(&opened.plan.schema, 0, 1, 5..9);
    let taken = root.path().join(format!("orders-0-p0-5-{}.ndjson.zst", batch.id));
    std::fs::write(&taken, "not ours").expect("written");
    opened.writer.write(&batch).await.expect("taken");
    let error = opened.writer.barrier().await.expect_err("the name is taken").error;
    assert!(matches!(&error, SinkError::Destination { text, .. } if text.contains("move it away")), "{error}");
    assert_eq!(std::fs::read(&taken).expect("there"), b"not ours");
    std::fs::remove_file(&taken).expect("moved away");
    opened.writer.barrier().await.expect("goes on");
    assert_eq!(landed(root.path()), (0..9).collect::<Vec<i64>>());
    drop(opened);

    for damage in ["", "{}", "{\"format\":9}", "[1,2", "\0\0"] {
        std::fs::write(root.path().join(FOLDER).join("orders.0.json"), damage).expect("written");
        let sink = FilesSink::new(FilesOptions::new(root.path())).expect("in bounds");
        let error = sink.committed_positions(&cx()).await.expect_err("damaged");
        assert!(matches!(&error, SinkError::Destination { text, .. } if text.contains("orders.0.json")), "{error}");
    }
}

/// Catches a file that grows past its size.
#[tokio::test]
async fn a_full_file_wants_its_barrier() {
    let root = TempDir::new().expect("a directory");
    let options = FilesOptions {
        roll_max_bytes: ByteSize::kib(64),
        compression: Compression::None,
        ..FilesOptions::new(root.path())
    };
    let opened = open(options, None).await;
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..10)).await.expect("taken");
    assert!(!opened.writer.wants_barrier());
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 10..50_000)).await.expect("taken");
    assert!(opened.writer.wants_barrier());
    opened.writer.barrier().await.expect("settled");
    assert!(!opened.writer.wants_barrier());
}

/// Catches an option or type that fails only once rows come.
#[tokio::test]
async fn what_cannot_be_written_is_refused_by_the_plan() {
    let path = || FilesOptions::new("out");
    let cases = [
        ("path", FilesOptions::new("")),
        ("roll.max_bytes", FilesOptions { roll_max_bytes: ByteSize(1), ..path() }),
        ("roll.every", FilesOptions { roll_every: Duration::ZERO, ..path() }),
        ("gzip", FilesOptions { format: Format::Parquet, compression: Compression::Gzip, ..path() }),
        ("prefix", FilesOptions { prefix: Some("../x".into()), ..path() }),
    ];
    for (name, options) in cases {
        let error = FilesSink::new(options).map(|_| ()).expect_err("refused").to_string();
        assert!(error.contains(name), "{error}");
    }
    let fields = vec![Field::new("f", DataType::Interval(arrow_schema::IntervalUnit::MonthDayNano), true)];
    let sink = FilesSink::new(FilesOptions { format: Format::Parquet, compression: Compression::None, ..path() });
    let plan = sink.expect("in bounds").plan(&Arc::new(Schema::new(fields)), &cx()).await;
    assert_eq!(plan.expect_err("no such type in Parquet").code, crate::code::TYPE);
}

/// Would catch a directory made in place of one that holds rows (a disk that is not mounted), which then stands in the way
/// when the other is back (E125).
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_gone_is_not_made_anew() {
    let root = tempfile::tempdir().expect("a directory");
    let place = root.path().join("out");
    let opened = open(FilesOptions::new(&place), None).await;
    let identity = opened.sink.open(&opened.plan, &cx()).await.expect("open");
    drop(opened);
    std::fs::rename(&place, root.path().join("elsewhere")).expect("moved");
    let sink = FilesSink::new(FilesOptions::new(&place)).expect("in bounds");
    let plan = sink.plan(&rows(), &cx()).await.expect("a plan");
    let error = sink.open_again(&plan, &cx(), &identity).await.expect_err("gone");
    assert!(matches!(error, SinkError::Destination { code: crate::code::GONE, .. }), "{error}");
    assert!(!place.exists(), "nothing is made in its place");
    std::fs::rename(root.path().join("elsewhere"), &place).expect("moved back");
    assert_eq!(sink.open_again(&plan, &cx(), &identity).await.expect("it is back"), identity);
}
