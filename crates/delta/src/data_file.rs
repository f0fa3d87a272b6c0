//! One open Parquet file of a group: encodes row groups, hands them to the store in parts, ends as an `Add` (E126).
//!
//! Memory is bounded whatever comes in: rows are encoded some thousand at a time, a row group is closed once it holds
//! `row_group_bytes`, and at most two parts are in flight while encoding waits for the third (F-M5). The file is on
//! stable storage when [`DataFile::close`] answers. It is in the table only once a commit names it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use deltalake_core::kernel::Add;
use landfall_types::Clock;
use object_store::ObjectStore;
use object_store::buffered::BufWriter;
use object_store::path::Path;
use parquet::basic::ZstdLevel;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use tokio::io::AsyncWriteExt;

use crate::encoder::Encoder;
use crate::options::{Compression, DeltaOptions, UPLOAD_PART_BYTES};
use crate::partition::PartitionValue;
use crate::rising;
use crate::shape::Shape;
use crate::statistics;

/// At most this many rows, or about this much memory, are encoded between two looks at a row group's size. The more there
/// are, the longer the encoder stays with one column.
const SLICE_ROWS: usize = 32_768;
const SLICE_BYTES: usize = 4 << 20;

/// How data files are written; the same for all of a group.
#[derive(Clone)]
pub(crate) struct DataFiles {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) schema: SchemaRef,
    pub(crate) partition_names: Vec<String>,
    pub(crate) properties: WriterProperties,
    pub(crate) row_group_bytes: usize,
    pub(crate) target_bytes: usize,
    pub(crate) indexed_columns: usize,
}

/// The Parquet settings that follow from the options.
pub(crate) fn properties(options: &DeltaOptions) -> Result<WriterProperties, ParquetError> {
    let compression = match options.compression {
        Compression::Zstd(level) => parquet::basic::Compression::ZSTD(ZstdLevel::try_new(level)?),
        Compression::Snappy => parquet::basic::Compression::SNAPPY,
        Compression::None => parquet::basic::Compression::UNCOMPRESSED,
    };
    let created_by = concat!("landfall ", env!("CARGO_PKG_VERSION")).to_owned();
    Ok(WriterProperties::builder().set_compression(compression).set_created_by(created_by).build())
}

/// The store's side of the encoder: pieces of one part each, since the buffer waits before a put, not within it.
struct Parts {
    buffer: BufWriter,
}

impl Parts {
    async fn write(&mut self, mut bytes: Bytes) -> Result<(), ParquetError> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(UPLOAD_PART_BYTES));
            self.buffer.put(piece).await.map_err(|error| ParquetError::External(Box::new(error)))?;
        }
        Ok(())
    }

    async fn complete(&mut self) -> Result<(), ParquetError> {
        self.buffer.shutdown().await.map_err(|error| ParquetError::External(Box::new(error)))
    }
}

/// See the module.
pub(crate) struct DataFile {
    pub(crate) shape: Arc<Shape>,
    /// Of copied rows, not of streamed ones.
    pub(crate) is_copied: bool,
    pub(crate) value: PartitionValue,
    path: String,
    /// None before the first rows: they say how their columns are encoded.
    encoder: Option<Encoder>,
    parts: Parts,
    /// Taken and not encoded yet.
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    pending_bytes: usize,
}

impl DataFile {
    /// Opens a file for a partition value. Nothing is stored before the first part is full.
    pub(crate) fn open(shape: &Arc<Shape>, is_copied: bool, value: PartitionValue) -> Result<DataFile, ParquetError> {
        let files = &shape.files;
        // The name carries no value: values may hold any character, and readers take them from the log.
        let path = format!("part-{}.parquet", uuid::Uuid::now_v7());
        let buffer = BufWriter::with_capacity(files.store.clone(), Path::from(path.as_str()), UPLOAD_PART_BYTES)
            .with_max_concurrency(2);
        Ok(DataFile {
            shape: shape.clone(),
            is_copied,
            value,
            path,
            encoder: None,
            parts: Parts { buffer },
            pending: Vec::new(),
            pending_rows: 0,
            pending_bytes: 0,
        })
    }

    /// Takes rows, and encodes what was taken once there is enough of it.
    pub(crate) async fn append(&mut self, rows: &RecordBatch) -> Result<(), ParquetError> {
        let total = rows.num_rows();
        let row_bytes = (rows.get_array_memory_size() / total.max(1)).max(1);
        let step = (SLICE_BYTES / row_bytes).clamp(1, SLICE_ROWS);
        let mut at = 0;
        while at < total {
            let slice = rows.slice(at, step.min(total - at));
            at += slice.num_rows();
            self.pending_rows += slice.num_rows();
            self.pending_bytes = self.pending_bytes.saturating_add(slice.num_rows().saturating_mul(row_bytes));
            self.pending.push(slice);
            if self.pending_rows >= SLICE_ROWS || self.pending_bytes >= SLICE_BYTES {
                self.encode().await?;
            }
        }
        Ok(())
    }

    /// Encodes all that was taken; a row group that is full goes to the store.
    pub(crate) async fn encode(&mut self) -> Result<(), ParquetError> {
        (self.pending_rows, self.pending_bytes) = (0, 0);
        let pending = std::mem::take(&mut self.pending);
        let files = &self.shape.files;
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => {
                let properties = rising::properties(&files.properties, &files.schema, &pending);
                none.insert(Encoder::new(files.schema.clone(), properties)?)
            }
        };
        encoder.write(pending).await?;
        if encoder.memory() >= files.row_group_bytes {
            encoder.end_row_group()?;
        }
        self.parts.write(Bytes::from(encoder.take_bytes())).await
    }

    /// Bytes that are encoded, of which the last row group is an estimate.
    pub(crate) fn size(&self) -> usize {
        self.encoder.as_ref().map_or(0, |encoder| encoder.bytes_written() + encoder.in_progress())
    }

    /// Memory held for encoding.
    pub(crate) fn memory(&self) -> usize {
        self.encoder.as_ref().map_or(0, Encoder::memory)
    }

    /// Completes the file: it is on stable storage when this answers.
    pub(crate) async fn close(mut self) -> Result<Add, ParquetError> {
        self.encode().await?;
        let encoder =
            self.encoder.as_mut().ok_or_else(|| ParquetError::General("a data file has no encoder".into()))?;
        let metadata = encoder.finish()?;
        self.parts.write(Bytes::from(encoder.take_bytes())).await?;
        self.parts.complete().await?;
        let files = &self.shape.files;
        let size = i64::try_from(encoder.bytes_written())
            .map_err(|_| ParquetError::General("a data file is over 2^63 bytes".into()))?;
        let partition_values: HashMap<String, Option<String>> =
            files.partition_names.iter().cloned().zip(self.value).collect();
        Ok(Add {
            path: self.path,
            partition_values,
            size,
            modification_time: files.clock.now().0 / 1_000,
            data_change: true,
            stats: Some(statistics::of_file(&files.schema, &metadata, files.indexed_columns)),
            ..Add::default()
        })
    }

    /// Lets go of the file before it is complete; parts that were stored are removed where the store can.
    pub(crate) async fn abort(mut self) {
        let buffer = &mut self.parts.buffer;
        if let Err(error) = buffer.abort().await {
            tracing::debug!(path = %self.path, %error, "an unfinished data file was left behind");
        }
    }
}
