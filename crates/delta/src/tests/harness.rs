//! A pipeline's end: seals batches as the engine does, and reads tables back from their files.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Decimal128Array, Int64Array, RecordBatch, StringArray};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use landfall_engine::contract::{CommitId, Covered, PipelineId, PlanCx, SealedBatch, ShardId, Sink, SinkPlan};
use landfall_types::{Epoch, Offset, PartitionId, Place, SystemClock, Timestamp};
use object_store::ObjectStore;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;

use crate::writer::DeltaWriter;
use crate::{DeltaOptions, DeltaSink, table_files};

pub(super) fn cx() -> PlanCx {
    PlanCx { pipeline: PipelineId("orders".into()), source: "channel:0a".into(), online: true }
}

/// The query's columns, hidden ones included.
pub(super) fn rows() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("n", DataType::Int64, false),
        Field::new("country", DataType::Utf8, true),
        Field::new("amount", DataType::Decimal128(20, 2), true),
        Field::new("__partition", DataType::UInt32, false),
        Field::new("__offset", DataType::UInt64, false),
    ]))
}

/// A directory that is gone afterwards, and the table's path in it.
pub(super) struct Place0 {
    pub(super) root: TempDir,
    pub(super) path: PathBuf,
}

pub(super) fn directory() -> Place0 {
    let root = TempDir::new().expect("a directory");
    let path = root.path().join("lake").join("orders");
    Place0 { root, path }
}

pub(super) struct Opened {
    pub(super) sink: DeltaSink,
    pub(super) plan: SinkPlan,
    pub(super) writer: DeltaWriter,
}

pub(super) async fn open(options: DeltaOptions) -> Opened {
    opened(DeltaSink::new(options).expect("options in bounds")).await
}

pub(super) async fn open_over(options: DeltaOptions, store: Arc<dyn ObjectStore>) -> Opened {
    opened(DeltaSink::over(options, store, Arc::new(SystemClock)).expect("options in bounds")).await
}

async fn opened(sink: DeltaSink) -> Opened {
    let plan = sink.plan(&rows(), &cx()).await.expect("a plan");
    sink.open(&plan, &cx()).await.expect("opened");
    sink.committed_positions(&cx()).await.expect("positions");
    let writer = sink.delta_writer(ShardId(0));
    Opened { sink, plan, writer }
}

/// The number that stands for a record: no two records of a test have the same.
pub(super) fn number(partition: u32, offset: u64) -> i64 {
    i64::from(partition) * 1_000_000 + i64::try_from(offset).expect("small")
}

pub(super) const COUNTRIES: [&str; 3] = ["de", "fr", "jp"];

/// A sealed batch of the records `offsets` of a partition, one row each.
pub(super) fn sealed(schema: &SchemaRef, partition: u32, epoch: u32, offsets: Range<u64>) -> SealedBatch {
    let batch = batch(schema, partition, offsets.clone());
    let cover = Covered {
        partition: PartitionId(partition),
        epoch: Epoch(epoch),
        range: Place::of(Offset(offsets.start))..Place::of(Offset(offsets.end)),
        rows: u32::try_from(batch.num_rows()).expect("small"),
    };
    let id = u128::from(partition) << 96 | u128::from(offsets.start) << 48 | u128::from(offsets.end);
    SealedBatch {
        id: CommitId(id),
        bytes: batch.get_array_memory_size(),
        parts: vec![batch],
        covers: vec![cover],
        oldest: Timestamp(0),
        note: None,
    }
}

/// Several batches as one, as a worker seals rows of several partitions.
pub(super) fn together(batches: Vec<SealedBatch>) -> SealedBatch {
    let id = batches.iter().fold(7, |id: u128, batch| id.rotate_left(5) ^ batch.id.0);
    let mut whole =
        SealedBatch { id: CommitId(id), parts: vec![], covers: vec![], bytes: 0, oldest: Timestamp(0), note: None };
    for batch in batches {
        whole.parts.extend(batch.parts);
        whole.covers.extend(batch.covers);
        whole.bytes += batch.bytes;
    }
    whole
}

pub(super) fn batch(schema: &SchemaRef, partition: u32, offsets: Range<u64>) -> RecordBatch {
    let columns = schema.fields().iter().map(|field| -> ArrayRef {
        let numbers = || offsets.clone().map(|offset| number(partition, offset));
        let array: ArrayRef = match field.name().as_str() {
            "country" => Arc::new(StringArray::from_iter_values(
                offsets.clone().map(|offset| COUNTRIES[usize::try_from(offset % 3).expect("below 3")]),
            )),
            "amount" => Arc::new(
                Decimal128Array::from_iter_values(numbers().map(|n| i128::from(n) * 7))
                    .with_precision_and_scale(20, 2)
                    .expect("fits"),
            ),
            "__partition" => Arc::new(Int64Array::from_iter_values(numbers().map(|_| i64::from(partition)))),
            "__offset" => {
                Arc::new(Int64Array::from_iter_values(offsets.clone().map(|o| i64::try_from(o).expect("small"))))
            }
            _ => Arc::new(Int64Array::from_iter_values(numbers())),
        };
        cast(&array, field.data_type()).expect("a cast")
    });
    RecordBatch::try_new(schema.clone(), columns.collect()).expect("a batch")
}

/// All `n` of the table's newest version, ascending, with the country that file and log say.
pub(super) async fn landed(path: &Path) -> Vec<i64> {
    let listing = table_files(path).await.expect("a table");
    let mut numbers = Vec::new();
    for file in &listing.files {
        assert_eq!(std::fs::metadata(&file.path).expect("the file").len(), file.size, "size in the log");
        let reader = std::fs::File::open(&file.path).expect("the file");
        for batch in ParquetRecordBatchReaderBuilder::try_new(reader).expect("Parquet").build().expect("a reader") {
            let batch = batch.expect("rows");
            let n = batch.column_by_name("n").expect("a column").as_primitive::<Int64Type>().clone();
            if let [Some(country)] = file.partition_values.as_slice() {
                for n in n.values() {
                    assert_eq!(country, COUNTRIES[usize::try_from(n % 1_000_000 % 3).expect("below 3")]);
                }
                assert!(batch.column_by_name("country").is_none(), "a partition column is in no file");
            }
            assert_eq!(n.null_count(), 0);
            numbers.extend(n.values().iter().copied());
        }
    }
    numbers.sort_unstable();
    numbers
}

/// What should have landed.
pub(super) fn numbers(ranges: &[(u32, Range<u64>)]) -> Vec<i64> {
    let mut all: Vec<i64> = ranges
        .iter()
        .flat_map(|(partition, offsets)| offsets.clone().map(|offset| number(*partition, offset)))
        .collect();
    all.sort_unstable();
    all
}
