//! The encoder of one Parquet file: column by column over many rows at once, by two threads where there is work for two.
//!
//! Column by column, since the dictionary of a column stays in the processor's cache while it is used. The second thread
//! is one of the runtime's blocking pool. It is asked for, never waited for: columns lie in a queue, and a thread that has
//! not begun when the first one is done gets nothing any more. So a pool that is full costs time, and cannot stand still,
//! not even one whose threads are all encoders.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;

use arrow_array::RecordBatch;
use arrow_schema::{FieldRef, SchemaRef};
use parking_lot::Mutex;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, ArrowWriterOptions, compute_leaves};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

/// From so many rows on, a second thread helps: below, waking it costs more than it takes over.
const HELP_ROWS_MIN: usize = 4_096;

/// See the module.
pub(crate) struct Encoder {
    file: SerializedFileWriter<Vec<u8>>,
    factory: ArrowRowGroupWriterFactory,
    schema: SchemaRef,
    /// The row group that is open; none are where none is.
    columns: Vec<Column>,
    rows: usize,
    rows_max: usize,
    has_help: bool,
}

/// A column of the schema in the open row group.
struct Column {
    at: usize,
    field: FieldRef,
    /// One where it is not nested.
    leaves: Vec<ArrowColumnWriter>,
}

impl Column {
    fn encode(&mut self, parts: &[RecordBatch]) -> Result<(), ParquetError> {
        for array in parts.iter().filter_map(|part| part.columns().get(self.at)) {
            let mut leaves = self.leaves.iter_mut();
            for leaf in compute_leaves(&self.field, array)? {
                let writer = leaves.next().ok_or_else(|| {
                    ParquetError::General(format!("column `{}` has more leaves than its type", self.field.name()))
                })?;
                writer.write(&leaf)?;
            }
        }
        Ok(())
    }
}

/// Columns that two threads take from.
struct Work {
    parts: Vec<RecordBatch>,
    waiting: Mutex<Vec<Column>>,
    done: Mutex<Vec<Column>>,
    /// Whether the second thread has begun, or may not begin any more: whoever sets it decides.
    is_decided: AtomicBool,
}

impl Work {
    fn run(&self) -> Result<(), ParquetError> {
        loop {
            let Some(mut column) = self.waiting.lock().pop() else { return Ok(()) };
            column.encode(&self.parts)?;
            self.done.lock().push(column);
        }
    }
}

impl Encoder {
    pub(crate) fn new(schema: SchemaRef, properties: WriterProperties) -> Result<Encoder, ParquetError> {
        let rows_max = properties.max_row_group_row_count().unwrap_or(usize::MAX);
        let options = ArrowWriterOptions::new()
            .with_properties(properties)
            // How our Arrow columns looked in memory is nobody's business: other files of the table differ.
            .with_skip_arrow_metadata(true);
        let writer = ArrowWriter::try_new_with_options(Vec::new(), schema.clone(), options)?;
        let (file, factory) = writer.into_serialized_writer()?;
        let has_help = available_parallelism().is_ok_and(|cores| cores.get() > 1);
        Ok(Encoder { file, factory, schema, columns: Vec::new(), rows: 0, rows_max, has_help })
    }

    /// Encodes rows. After an error the file cannot be completed.
    pub(crate) async fn write(&mut self, parts: Vec<RecordBatch>) -> Result<(), ParquetError> {
        let rows: usize = parts.iter().map(RecordBatch::num_rows).sum();
        if rows == 0 {
            return Ok(());
        }
        if self.rows.saturating_add(rows) > self.rows_max {
            self.end_row_group()?;
        }
        if self.columns.is_empty() {
            self.columns = self.begin_row_group()?;
        }
        self.rows += rows;
        if !self.has_help || rows < HELP_ROWS_MIN || self.columns.len() < 2 {
            return self.columns.iter_mut().try_for_each(|column| column.encode(&parts));
        }
        let waiting = Mutex::new(std::mem::take(&mut self.columns));
        let work = Arc::new(Work { parts, waiting, done: Mutex::default(), is_decided: AtomicBool::new(false) });
        let helper = tokio::task::spawn_blocking({
            // One that begins late must not keep the rows until then.
            let work = Arc::downgrade(&work);
            move || match work.upgrade().filter(|work| !work.is_decided.swap(true, Ordering::AcqRel)) {
                Some(work) => work.run(),
                None => Ok(()),
            }
        });
        let own = work.run();
        let helped = if work.is_decided.swap(true, Ordering::AcqRel) {
            helper
                .await
                .unwrap_or_else(|error| Err(ParquetError::General(format!("a column's encoder ended: {error}"))))
        } else {
            // Its end is not waited for: it comes only once the pool has a thread for it.
            helper.abort();
            Ok(())
        };
        own.and(helped)?;
        self.columns = std::mem::take(&mut work.done.lock());
        self.columns.sort_unstable_by_key(|column| column.at);
        Ok(())
    }

    fn begin_row_group(&self) -> Result<Vec<Column>, ParquetError> {
        let writers = self.factory.create_column_writers(self.file.flushed_row_groups().len())?;
        let fields = self.schema.fields().iter().enumerate();
        let mut columns: Vec<Column> =
            fields.map(|(at, field)| Column { at, field: field.clone(), leaves: Vec::new() }).collect();
        for (leaf, writer) in writers.into_iter().enumerate() {
            if let Some(column) = columns.get_mut(self.file.schema_descr().get_column_root_idx(leaf)) {
                column.leaves.push(writer);
            }
        }
        Ok(columns)
    }

    /// Closes the row group, if one is open; its bytes are there to be taken.
    pub(crate) fn end_row_group(&mut self) -> Result<(), ParquetError> {
        self.rows = 0;
        if self.columns.is_empty() {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for column in self.columns.drain(..) {
            for leaf in column.leaves {
                leaf.close()?.append_to_row_group(&mut group)?;
            }
        }
        group.close()?;
        Ok(())
    }

    /// Closes the row group and the file; the rest of its bytes is there to be taken.
    pub(crate) fn finish(&mut self) -> Result<ParquetMetaData, ParquetError> {
        self.end_row_group()?;
        self.file.finish()
    }

    /// What was encoded and not taken yet.
    pub(crate) fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(self.file.inner_mut())
    }

    /// Bytes of the row groups that are closed, and of the footer.
    pub(crate) fn bytes_written(&self) -> usize {
        self.file.bytes_written()
    }

    /// What the open row group holds, in memory.
    pub(crate) fn memory(&self) -> usize {
        self.leaves().map(ArrowColumnWriter::memory_size).sum()
    }

    /// About what the open row group will take in the file.
    pub(crate) fn in_progress(&self) -> usize {
        self.leaves().map(ArrowColumnWriter::get_estimated_total_bytes).sum()
    }

    fn leaves(&self) -> impl Iterator<Item = &ArrowColumnWriter> {
        self.columns.iter().flat_map(|column| &column.leaves)
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int32Type;
    use arrow_array::{Array, ArrayRef, Int64Array, ListArray, StringArray, StructArray};
    use bytes::Bytes;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    /// Plain, nullable, repeated and nested columns; row n is a function of n.
    fn rows(numbers: std::ops::Range<i64>) -> RecordBatch {
        let ids = Int64Array::from_iter_values(numbers.clone());
        let names: StringArray = numbers.clone().map(|n| (n % 3 != 0).then(|| format!("name {}", n % 100))).collect();
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(
            numbers.clone().map(|n| (n % 5 != 0).then(|| (0..n % 4).map(|item| Some(item as i32)))),
        );
        let inner = StructArray::try_from(vec![
            ("id", Arc::new(ids.clone()) as ArrayRef),
            ("name", Arc::new(names.clone()) as ArrayRef),
        ]);
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(ids)),
            ("name", Arc::new(names)),
            ("list", Arc::new(lists)),
            ("inner", Arc::new(inner.expect("columns of one length"))),
        ];
        RecordBatch::try_from_iter(columns).expect("columns of one length")
    }

    /// Catches a column that is encoded twice, not at all, or under another one's name, whoever encodes it; and parts or
    /// row groups that change places.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_two_threads_encode_is_what_was_given() {
        let all = rows(0..60_000);
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(25_000)).build();
        let mut encoder = Encoder::new(all.schema(), properties).expect("the schema fits");
        for has_help in [true, false, true] {
            let (at, step) = (encoder.file.flushed_row_groups().len() * 20_000, 10_000);
            encoder.has_help = has_help;
            encoder.write(vec![all.slice(at, 10), all.slice(at + 10, step - 10)]).await.expect("encoded");
            encoder.write(vec![all.slice(at + step, step)]).await.expect("encoded");
            assert!(encoder.memory() >= encoder.in_progress() && encoder.in_progress() > 0);
            encoder.end_row_group().expect("closed");
        }
        let metadata = encoder.finish().expect("complete");
        assert_eq!((metadata.num_row_groups(), metadata.file_metadata().num_rows()), (3, 60_000));
        let bytes = encoder.take_bytes();
        assert_eq!(bytes.len(), encoder.bytes_written());
        let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes)).expect("a file");
        let mut at = 0;
        for read in reader.with_batch_size(4_096).build().expect("readable") {
            let read = read.expect("rows");
            let expected = all.slice(at, read.num_rows());
            for (column, other) in read.columns().iter().zip(expected.columns()) {
                assert_eq!(column.to_data(), other.to_data());
            }
            at += read.num_rows();
        }
        assert_eq!(at, 60_000);
    }

    /// Catches an encoder that waits for a thread of a pool whose threads all wait like it.
    #[test]
    fn a_pool_without_a_free_thread_does_not_stop_an_encoder() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(1)
            .enable_time()
            .build()
            .expect("a runtime");
        let all = rows(0..20_000);
        let mut encoder = Encoder::new(all.schema(), WriterProperties::builder().build()).expect("the schema fits");
        encoder.has_help = true;
        let handle = runtime.handle().clone();
        let encoded = runtime.block_on(async {
            let encoding = tokio::task::spawn_blocking(move || {
                handle.block_on(encoder.write(vec![all])).expect("encoded");
                encoder.finish().expect("complete").file_metadata().num_rows()
            });
            tokio::time::timeout(std::time::Duration::from_secs(20), encoding).await
        });
        runtime.shutdown_background();
        assert_eq!(encoded.expect("it goes on").expect("no panic"), 20_000);
    }

    /// Catches a row group that grows past its limit.
    #[tokio::test]
    async fn a_row_group_ends_before_it_has_too_many_rows() {
        let all = rows(0..100);
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(40)).build();
        let mut encoder = Encoder::new(all.schema(), properties).expect("the schema fits");
        for at in (0..100).step_by(10) {
            encoder.write(vec![all.slice(at, 10)]).await.expect("encoded");
        }
        let metadata = encoder.finish().expect("complete");
        let counts: Vec<i64> = metadata.row_groups().iter().map(|group| group.num_rows()).collect();
        assert_eq!(counts, [40, 40, 20]);
    }
}
