//! Rows into a file, NDJSON or Parquet, streamed: memory does not grow with the file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use arrow::json::LineDelimitedWriter;
use arrow::json::writer::{LineDelimited, WriterBuilder};
use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, Schema, SchemaRef};
use flate2::write::GzEncoder;
use parquet::arrow::ArrowWriter;
use parquet::basic::ZstdLevel;
use parquet::file::properties::WriterProperties;

use crate::code::FilesError;
use crate::options::{Compression, FilesOptions, Format};

/// A row group is closed when it holds this much memory.
const ROW_GROUP_BYTES: usize = 16 << 20;
const SLICE_ROWS: usize = 8192;
const BUFFER_BYTES: usize = 1 << 20;
const ZSTD_LEVEL: i32 = 3;

/// Memory that an open file may hold: two row groups, or what a compressor looks back on; and the buffer before the file.
pub(crate) fn memory_max(format: Format) -> u64 {
    const COMPRESSOR_BYTES: u64 = 8 << 20;
    let encoder = match format {
        Format::Parquet => 2 * ROW_GROUP_BYTES as u64,
        Format::Ndjson => COMPRESSOR_BYTES,
    };
    encoder + BUFFER_BYTES as u64
}

/// Bytes on their way into the file.
pub(crate) enum Stream {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
    Zstd(zstd::stream::write::Encoder<'static, BufWriter<File>>),
}

impl Stream {
    fn over(file: File, compression: Compression) -> io::Result<Stream> {
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(match compression {
            Compression::None => Stream::Plain(file),
            Compression::Gzip => Stream::Gzip(GzEncoder::new(file, flate2::Compression::default())),
            Compression::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(file, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                Stream::Zstd(encoder)
            }
        })
    }

    fn finish(self) -> io::Result<File> {
        let file = match self {
            Stream::Plain(file) => file,
            Stream::Gzip(encoder) => encoder.finish()?,
            Stream::Zstd(encoder) => encoder.finish()?,
        };
        file.into_inner().map_err(io::IntoInnerError::into_error)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(bytes),
            Stream::Gzip(stream) => stream.write(bytes),
            Stream::Zstd(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Gzip(stream) => stream.flush(),
            Stream::Zstd(stream) => stream.flush(),
        }
    }
}

/// An open file.
pub(crate) enum Encoder {
    Ndjson(Box<LineDelimitedWriter<Stream>>),
    Parquet(Box<ArrowWriter<BufWriter<File>>>),
}

fn lines<W: Write>(stream: W) -> arrow::json::Writer<W, LineDelimited> {
    // A field that is NULL is there as null: each line has the same fields.
    WriterBuilder::new().with_explicit_nulls(true).build::<W, LineDelimited>(stream)
}

fn properties(compression: Compression) -> WriterProperties {
    let compression = match compression {
        Compression::None | Compression::Gzip => parquet::basic::Compression::UNCOMPRESSED,
        Compression::Zstd => parquet::basic::Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL).unwrap_or_default()),
    };
    let created_by = concat!("landfall ", env!("CARGO_PKG_VERSION")).to_owned();
    WriterProperties::builder().set_compression(compression).set_created_by(created_by).build()
}

/// Refuses a schema that the format cannot hold, by encoding a row of it: the encoders look at some types no earlier.
pub(crate) fn check_schema(schema: &Schema, format: Format) -> Result<(), FilesError> {
    let row = one_row_of_nulls(schema);
    let outcome = match format {
        Format::Ndjson => lines(io::sink()).write(&row),
        Format::Parquet => ArrowWriter::try_new(io::sink(), row.schema(), Some(properties(Compression::None)))
            .and_then(|mut writer| writer.write(&row))
            .map_err(|error| ArrowError::ParquetError(error.to_string())),
    };
    let name = match format {
        Format::Ndjson => "ndjson",
        Format::Parquet => "parquet",
    };
    outcome.map_err(|error| FilesError::Type {
        text: format!("`format: {name}` cannot hold the query's columns: {error}; cast the column to STRING"),
    })
}

fn one_row_of_nulls(schema: &Schema) -> RecordBatch {
    let fields: Vec<_> = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
    let schema = Arc::new(Schema::new(fields));
    let columns = schema.fields().iter().map(|field| arrow_array::new_null_array(field.data_type(), 1)).collect();
    RecordBatch::try_new(schema.clone(), columns).unwrap_or_else(|_| RecordBatch::new_empty(schema))
}

impl Encoder {
    /// Starts a file.
    pub(crate) fn over(file: File, schema: &SchemaRef, options: &FilesOptions) -> io::Result<Encoder> {
        match options.format {
            Format::Ndjson => Ok(Encoder::Ndjson(Box::new(lines(Stream::over(file, options.compression)?)))),
            Format::Parquet => {
                let file = BufWriter::with_capacity(BUFFER_BYTES, file);
                let writer = ArrowWriter::try_new(file, schema.clone(), Some(properties(options.compression)));
                Ok(Encoder::Parquet(Box::new(writer.map_err(io::Error::other)?)))
            }
        }
    }

    /// Adds rows.
    pub(crate) fn append(&mut self, rows: &RecordBatch) -> io::Result<()> {
        match self {
            Encoder::Ndjson(writer) => writer.write(rows).map_err(io::Error::other),
            Encoder::Parquet(writer) => {
                let mut at = 0;
                while at < rows.num_rows() {
                    let slice = rows.slice(at, SLICE_ROWS.min(rows.num_rows() - at));
                    at += slice.num_rows();
                    writer.write(&slice).map_err(io::Error::other)?;
                    if writer.memory_size() >= ROW_GROUP_BYTES {
                        writer.flush().map_err(io::Error::other)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Ends the file; it is not synced yet.
    pub(crate) fn finish(self) -> io::Result<File> {
        match self {
            Encoder::Ndjson(mut writer) => {
                writer.finish().map_err(io::Error::other)?;
                writer.into_inner().finish()
            }
            Encoder::Parquet(writer) => {
                let file = writer.into_inner().map_err(io::Error::other)?;
                file.into_inner().map_err(io::IntoInnerError::into_error)
            }
        }
    }
}
