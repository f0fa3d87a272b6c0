//! `landfall query`: SQL, read only, over the newest version of landed Delta tables.
//!
//! `landfall-delta` lists the files of that version, the engine's own Parquet scan reads exactly these. Memory is
//! bounded: a large sort or aggregate spills to disk.

mod landed;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use datafusion::arrow::csv::WriterBuilder as CsvWriterBuilder;
use datafusion::arrow::json::WriterBuilder as JsonWriterBuilder;
use datafusion::arrow::json::writer::LineDelimited;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::context::{SQLOptions, SessionConfig, SessionContext};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::SendableRecordBatchStream;
use futures::StreamExt;

use crate::cli::{QueryArgs, QueryFormat};
use crate::exit::Exit;

pub(crate) use landed::LandedTable;

const MEMORY_BYTES_MAX: usize = 1 << 30;
/// A table is held to be aligned; what is longer than this has its end said and left out.
const TABLE_ROWS_MAX: usize = 10_000;

/// Runs the query and prints its rows.
pub(crate) async fn run(args: &QueryArgs) -> anyhow::Result<Exit> {
    let tables = args.tables.iter().map(|text| named_path(text)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut rows = open(&args.sql, &tables).await?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    match args.output {
        QueryFormat::Table => {
            let mut batches: Vec<RecordBatch> = Vec::new();
            let mut held = 0;
            while let Some(batch) = rows.next().await.transpose()? {
                let room = TABLE_ROWS_MAX - held;
                held += batch.num_rows().min(room);
                batches.push(batch.slice(0, batch.num_rows().min(room)));
                if batch.num_rows() > room {
                    eprintln!("only the first {TABLE_ROWS_MAX} rows are shown; `-o json` and `-o csv` print all");
                    break;
                }
            }
            if batches.is_empty() {
                batches.push(RecordBatch::new_empty(rows.schema()));
            }
            writeln!(out, "{}", pretty_format_batches(&batches)?)?;
        }
        QueryFormat::Json => {
            let mut writer = JsonWriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut out);
            while let Some(batch) = rows.next().await.transpose()? {
                writer.write(&batch)?;
            }
            writer.finish()?;
        }
        QueryFormat::Csv => {
            let mut writer = CsvWriterBuilder::new().with_header(true).build(&mut out);
            let mut any = false;
            while let Some(batch) = rows.next().await.transpose()? {
                any = true;
                writer.write(&batch)?;
            }
            if !any {
                writer.write(&RecordBatch::new_empty(rows.schema()))?;
            }
        }
    }
    out.flush()?;
    Ok(Exit::Ok)
}

fn named_path(text: &str) -> anyhow::Result<(String, PathBuf)> {
    let (name, path) = text
        .split_once('=')
        .filter(|(name, path)| !name.is_empty() && !path.is_empty())
        .with_context(|| format!("--table takes NAME=PATH, like orders=./lake/orders, not `{text}`"))?;
    Ok((name.to_owned(), PathBuf::from(path)))
}

/// Plans a query that may read and do nothing else, and starts it.
pub(crate) async fn open(sql: &str, tables: &[(String, PathBuf)]) -> anyhow::Result<SendableRecordBatchStream> {
    let runtime = RuntimeEnvBuilder::new().with_memory_limit(MEMORY_BYTES_MAX, 1.0).build_arc()?;
    let config = SessionConfig::new().with_information_schema(true);
    let context = SessionContext::new_with_config_rt(config, runtime);
    for (name, path) in tables {
        let table = LandedTable::open(path).await.with_context(|| format!("table `{name}`"))?;
        context.register_table(name.as_str(), Arc::new(table))?;
    }
    let read_only = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    let frame = context.sql_with_options(sql, read_only).await.map_err(|error| {
        let known: Vec<&str> = tables.iter().map(|(name, _)| name.as_str()).collect();
        anyhow::anyhow!("{}; tables of this query: {}", error.strip_backtrace(), known.join(", "))
    })?;
    Ok(frame.execute_stream().await?)
}

/// The text of a small result, for the demo.
pub(crate) async fn shown(sql: &str, name: &str, path: &Path) -> anyhow::Result<String> {
    let mut rows = open(sql, &[(name.to_owned(), path.to_owned())]).await?;
    let mut batches = Vec::new();
    while let Some(batch) = rows.next().await.transpose()? {
        batches.push(batch);
    }
    Ok(pretty_format_batches(&batches)?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a query that could change something.
    #[tokio::test]
    async fn only_reading_statements_are_run() {
        for sql in ["CREATE TABLE t (a INT)", "COPY (SELECT 1) TO 'x.csv'", "SET a.b = 1", "INSERT INTO t VALUES (1)"] {
            assert!(open(sql, &[]).await.is_err(), "{sql}");
        }
        assert!(open("SELECT 1 AS one", &[]).await.is_ok());
    }

    /// Would catch a NAME=PATH that is split at another place.
    #[test]
    fn a_table_is_named_before_the_first_equals_sign() {
        assert_eq!(named_path("a=b=c").expect("a pair"), ("a".to_owned(), PathBuf::from("b=c")));
        assert!(named_path("./lake/orders").is_err() && named_path("=x").is_err() && named_path("x=").is_err());
    }
}
