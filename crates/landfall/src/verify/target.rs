//! The target's side: the current state of a landed Delta table below S, by the documented view (`docs/current-state.md`).
//!
//! The table's change rows say what it was at any position, so a pipeline that has run past S is compared as exactly as
//! one that stands there (P107 is not needed for such targets). Sorting spills to disk; memory is the query engine's.

use std::path::{Path, PathBuf};

use anyhow::Context;
use arrow_array::{Int64Array, RecordBatch};
use arrow_schema::SchemaRef;
use datafusion::catalog::TableProvider;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use landfall_postgres::Lsn;

use super::compare::Side;
use crate::query::{self, CurrentState, LandedTable, QueriedTable, quoted};

/// A landed table below S.
pub(crate) struct TargetTable {
    table: QueriedTable,
    schema: SchemaRef,
    columns: Vec<String>,
}

impl TargetTable {
    /// Opens the table at `path`, whose key is made of these columns.
    pub(crate) async fn open(path: &Path, key: Vec<String>, below: Lsn) -> anyhow::Result<Self> {
        let schema = LandedTable::open(path).await?.schema();
        let current = CurrentState { key, below: Some(below.0) };
        let table = QueriedTable { name: "target".to_owned(), path: PathBuf::from(path), current: Some(current) };
        Ok(TargetTable { table, schema, columns: Vec::new() })
    }

    /// All its columns.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Reads these columns only.
    pub(crate) fn with_columns(self, columns: Vec<String>) -> Self {
        TargetTable { columns, ..self }
    }

    /// How many rows it has, by SQL.
    pub(crate) async fn count(&self) -> anyhow::Result<u64> {
        let rows = query::open("SELECT count(*) AS n FROM target", std::slice::from_ref(&self.table)).await?;
        let batches: Vec<RecordBatch> = rows.try_collect().await?;
        let count = batches.iter().find_map(|batch| {
            let column = batch.column(0).as_any().downcast_ref::<Int64Array>()?;
            (batch.num_rows() == 1).then(|| column.value(0))
        });
        count.and_then(|count| u64::try_from(count).ok()).context("a count gave no number")
    }
}

impl Side for TargetTable {
    async fn read(&self) -> anyhow::Result<BoxStream<'_, anyhow::Result<RecordBatch>>> {
        let columns = self.columns.iter().map(|column| quoted(column)).collect::<Vec<_>>().join(", ");
        let rows = query::open(&format!("SELECT {columns} FROM target"), std::slice::from_ref(&self.table)).await?;
        Ok(rows.map_err(anyhow::Error::from).boxed())
    }
}
