//! The source's side: its tables in one exported snapshot at S, read by the copy's own parsers (P105, P106).
//!
//! A temporary slot gives S and the snapshot, and goes with its connection. No lock is taken, no writer waits. Rows that
//! the table's policies refuse are counted: they are dead letters, not rows of the target.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use arrow_array::RecordBatch;
use futures::StreamExt;
use futures::stream::BoxStream;
use landfall_postgres::{
    CaptureOptions, ConnectOptions, CopiedRanges, CopyChunk, CopyEvent, CopyLines, CopyOptions, CopySnapshot,
    CopyTable, ExportedSlot, Lsn, PublicationFacts, Refused, RowPlan, ServerFacts, SqlConnection, Stamp, TableFacts,
    TableRows, count_rows, read_tables, start_copy,
};
use landfall_types::{Offset, PartitionId, Timestamp};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::compare::Side;

/// A batch is cut at either.
const BATCH_ROWS: usize = 8_192;
const BATCH_BYTES: usize = 8 << 20;

/// The source at S. Dropping it ends the snapshot.
pub(crate) struct SourceSnapshot {
    slot: ExportedSlot,
    sql: SqlConnection,
    connect: ConnectOptions,
    copy: CopyOptions,
    tables: Vec<TableFacts>,
}

impl SourceSnapshot {
    /// Takes a snapshot and reads in it which tables there are.
    pub(crate) async fn take(options: &CaptureOptions) -> anyhow::Result<Self> {
        let connect = options.connect.clone();
        let sql = SqlConnection::open(&connect).await?;
        let server = ServerFacts::read(&sql).await?;
        let name = format!("landfall_verify_{}", uuid::Uuid::new_v4().simple());
        let slot = ExportedSlot::temporary(&connect, &sql, &name, options.slot_timeout).await?;
        let sql = SqlConnection::open(&connect).await?;
        sql.enter_snapshot(&slot.snapshot().name).await?;
        let publication = PublicationFacts::read(&sql, server.version / 10_000, &options.publication).await?;
        let publication = publication.with_context(|| {
            format!("there is no publication `{}`: has the pipeline been started once?", options.publication)
        })?;
        let patterns: Vec<_> = options.tables.iter().map(|choice| choice.pattern.clone()).collect();
        let matched = read_tables(&sql, &patterns, &publication.tables).await?;
        let block = server.settings.get("block_size").and_then(|text| text.parse().ok());
        let copy = CopyOptions { block_bytes: block.unwrap_or(8_192), ..options.copy.clone() };
        Ok(SourceSnapshot { slot, sql, connect, copy, tables: matched.tables })
    }

    /// S: commits before it are in the snapshot, no other.
    pub(crate) fn position(&self) -> Lsn {
        self.slot.consistent_point()
    }

    /// The tables in it.
    pub(crate) fn tables(&self) -> &[TableFacts] {
        &self.tables
    }

    /// How many rows a table has in it, by SQL.
    pub(crate) async fn count(&self, table: &TableFacts) -> anyhow::Result<u64> {
        Ok(count_rows(&self.sql, table).await?)
    }

    /// A table's rows in it.
    pub(crate) fn table(&self, facts: &TableFacts, plan: Arc<RowPlan>) -> SourceTable {
        SourceTable {
            connect: self.connect.clone(),
            copy: self.copy.clone(),
            snapshot: self.slot.snapshot(),
            facts: facts.clone(),
            plan,
            refused: Arc::default(),
        }
    }
}

/// One table at S.
pub(crate) struct SourceTable {
    connect: ConnectOptions,
    copy: CopyOptions,
    snapshot: CopySnapshot,
    facts: TableFacts,
    plan: Arc<RowPlan>,
    refused: Arc<AtomicU64>,
}

impl SourceTable {
    /// Rows that its policies refused at the last read.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Side for SourceTable {
    async fn read(&self) -> anyhow::Result<BoxStream<'_, anyhow::Result<RecordBatch>>> {
        self.refused.store(0, Ordering::Relaxed);
        let (send, mut batches) = mpsc::channel(2);
        let table = CopyTable { facts: self.facts.clone(), done: CopiedRanges::default() };
        let mut run = start_copy(self.copy.clone(), self.connect.clone(), self.snapshot.clone(), vec![table]);
        let mut reader = RowReader {
            rows: TableRows::new(self.plan.clone()),
            // The stamp is in columns that are not compared.
            stamp: Stamp::snapshot(self.snapshot.consistent_point, Timestamp(0)),
            row_bytes_max: self.copy.row_bytes_max,
            refused: self.refused.clone(),
        };
        let task = tokio::spawn(async move {
            let reading = async {
                while let Some(event) = run.next().await {
                    let CopyEvent::Rows(chunk) = event? else { continue };
                    reader.take(chunk, &send).await?;
                }
                reader.hand_over(&send).await
            };
            if let Err(error) = reading.await {
                // Nobody listens any more: the comparison was given up.
                let _ = send.send(Err(error)).await;
            }
        });
        let task = AbortOnDrop(task);
        let rows = futures::stream::poll_fn(move |cx| {
            let _ends_with_this = &task;
            batches.poll_recv(cx)
        });
        Ok(rows.boxed())
    }
}

/// Makes batches of copied text.
struct RowReader {
    rows: TableRows,
    stamp: Stamp,
    row_bytes_max: usize,
    refused: Arc<AtomicU64>,
}

type Batches = mpsc::Sender<anyhow::Result<RecordBatch>>;

impl RowReader {
    /// Takes whole rows in.
    async fn take(&mut self, chunk: CopyChunk, send: &Batches) -> anyhow::Result<()> {
        let mut lines = CopyLines::new(self.row_bytes_max);
        lines.feed(chunk.bytes);
        while let Some(line) = lines.next_line()? {
            let mut taken = self.rows.copied(self.stamp, &line);
            if matches!(taken, Err(Refused::Full)) {
                self.hand_over(send).await?;
                taken = self.rows.copied(self.stamp, &line);
            }
            match taken {
                Ok(()) => {}
                Err(Refused::Row(_)) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(Refused::Table(error)) => return Err(error.into()),
                Err(Refused::Full) => {
                    anyhow::bail!("a row of {} is larger than a column holds", self.rows.plan().shape().name)
                }
            }
            if self.rows.rows() >= BATCH_ROWS || self.rows.bytes() >= BATCH_BYTES {
                self.hand_over(send).await?;
            }
        }
        lines.finish()?;
        Ok(())
    }

    async fn hand_over(&mut self, send: &Batches) -> anyhow::Result<()> {
        if self.rows.rows() > 0 {
            let batch = self.rows.finish(PartitionId(0), Offset(0))?;
            send.send(Ok(batch)).await.map_err(|_| anyhow::anyhow!("the comparison was given up"))?;
        }
        Ok(())
    }
}

/// Ends a read that nobody takes from any more, with its connections.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
