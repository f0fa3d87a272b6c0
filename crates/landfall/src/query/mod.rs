//! `landfall query`: SQL, read only, over the newest version of landed Delta tables.
//!
//! `landfall-delta` lists the files of that version, the engine's own Parquet scan reads exactly these. Memory is
//! bounded: a large sort or aggregate spills to disk. A table of change rows is shown as they are, or by its current
//! state.

mod current;
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
use datafusion::catalog::TableProvider;
use datafusion::common::TableReference;
use datafusion::execution::context::{SQLOptions, SessionConfig, SessionContext};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::SendableRecordBatchStream;
use futures::StreamExt;

use crate::cli::{QueryArgs, QueryFormat};
use crate::exit::Exit;

pub(crate) use current::{CurrentState, quoted};
pub(crate) use landed::LandedTable;

const MEMORY_BYTES_MAX: usize = 1 << 30;
/// A table is held to be aligned; what is longer than this has its end said and left out.
const TABLE_ROWS_MAX: usize = 10_000;

/// Runs the query and prints its rows.
pub(crate) async fn run(args: &QueryArgs) -> anyhow::Result<Exit> {
    let tables = tables_of(args)?;
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

/// A table that a query may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueriedTable {
    /// Its name in the query.
    pub(crate) name: String,
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// Shown by its current state; its change rows are `NAME_changes` then.
    pub(crate) current: Option<CurrentState>,
}

impl QueriedTable {
    /// A table as it lies there.
    pub(crate) fn landed(name: &str, path: &Path) -> Self {
        QueriedTable { name: name.to_owned(), path: path.to_owned(), current: None }
    }

    /// What its change rows are called where it is shown by its current state.
    fn changes_name(&self) -> String {
        format!("{}_changes", self.name)
    }
}

/// The tables of a command line.
fn tables_of(args: &QueryArgs) -> anyhow::Result<Vec<QueriedTable>> {
    let mut tables = args
        .tables
        .iter()
        .map(|text| {
            let (name, path) = pair(text, "--table takes NAME=PATH, like orders=./lake/orders")?;
            Ok(QueriedTable::landed(name, Path::new(path)))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    for text in &args.current {
        let (name, key) = pair(text, "--current takes NAME=KEY,KEY, like orders=order_id,line")?;
        let table = tables.iter_mut().find(|table| table.name == name);
        let table = table.with_context(|| format!("--current {text}: no --table is named `{name}`"))?;
        let key = key.split(',').map(|column| column.trim().to_owned()).collect::<Vec<_>>();
        anyhow::ensure!(key.iter().all(|column| !column.is_empty()), "--current {text}: a column of the key is empty");
        anyhow::ensure!(table.current.is_none(), "--current names `{name}` twice");
        table.current = Some(CurrentState { key, below: None });
    }
    let mut names: Vec<String> = tables.iter().map(|table| table.name.clone()).collect();
    names.extend(tables.iter().filter(|table| table.current.is_some()).map(QueriedTable::changes_name));
    names.sort_unstable();
    if let Some([twice, _]) = names.array_windows::<2>().find(|[one, other]| one == other) {
        anyhow::bail!("two tables of this query are called `{twice}`: give one of them another name");
    }
    Ok(tables)
}

fn pair<'t>(text: &'t str, form: &str) -> anyhow::Result<(&'t str, &'t str)> {
    text.split_once('=')
        .filter(|(name, value)| !name.is_empty() && !value.is_empty())
        .with_context(|| format!("{form}, not `{text}`"))
}

/// Plans a query that may read and do nothing else, and starts it.
pub(crate) async fn open(sql: &str, tables: &[QueriedTable]) -> anyhow::Result<SendableRecordBatchStream> {
    let runtime = RuntimeEnvBuilder::new().with_memory_limit(MEMORY_BYTES_MAX, 1.0).build_arc()?;
    let config = SessionConfig::new().with_information_schema(true);
    let context = SessionContext::new_with_config_rt(config, runtime);
    for table in tables {
        let of_table = || format!("table `{}`", table.name);
        let landed = Arc::new(LandedTable::open(&table.path).await.with_context(of_table)?);
        let name = TableReference::bare(table.name.as_str());
        let Some(current) = &table.current else {
            context.register_table(name, landed)?;
            continue;
        };
        let changes = table.changes_name();
        let view = current.sql(&table.name, &changes, &landed.schema())?;
        context.register_table(TableReference::bare(changes), landed)?;
        let view = context.sql(&view).await.with_context(of_table)?.into_view();
        context.register_table(name, view)?;
    }
    let read_only = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    let frame = context.sql_with_options(sql, read_only).await.map_err(|error| {
        let known: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        anyhow::anyhow!("{}; tables of this query: {}", error.strip_backtrace(), known.join(", "))
    })?;
    Ok(frame.execute_stream().await?)
}

/// The text of a small result, for the demo.
pub(crate) async fn shown(sql: &str, name: &str, path: &Path) -> anyhow::Result<String> {
    shown_over(sql, &[QueriedTable::landed(name, path)]).await
}

/// The same over several tables.
pub(crate) async fn shown_over(sql: &str, tables: &[QueriedTable]) -> anyhow::Result<String> {
    let mut rows = open(sql, tables).await?;
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
        assert_eq!(pair("a=b=c", "form").expect("a pair"), ("a", "b=c"));
        for wrong in ["./lake/orders", "=x", "x="] {
            assert!(pair(wrong, "form").is_err(), "{wrong}");
        }
    }

    fn args(tables: &[&str], current: &[&str]) -> QueryArgs {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        QueryArgs {
            sql: "SELECT 1".to_owned(),
            tables: owned(tables),
            current: owned(current),
            output: QueryFormat::Table,
        }
    }

    /// Would catch a current state of a table that is not there, of no key, or whose change rows take another's name.
    #[test]
    fn a_current_state_is_of_a_named_table_and_its_key() {
        let tables = tables_of(&args(&["orders=./o"], &["orders=order_id, line"])).expect("tables");
        let key = vec!["order_id".to_owned(), "line".to_owned()];
        assert_eq!(tables[0].current, Some(CurrentState { key, below: None }));
        for (tables, current) in [
            (vec!["orders=./o"], vec!["items=id"]),
            (vec!["orders=./o"], vec!["orders=id,,line"]),
            (vec!["orders=./o"], vec!["orders=id", "orders=id"]),
            (vec!["orders=./o", "orders_changes=./p"], vec!["orders=id"]),
            (vec!["orders=./o", "orders=./p"], vec![]),
        ] {
            assert!(tables_of(&args(&tables, &current)).is_err(), "{tables:?} {current:?}");
        }
    }
}
