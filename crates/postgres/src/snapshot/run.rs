//! A copy under way: what is copied, what comes out of it, and the tasks behind it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use landfall_types::{Code, Coded, Kind, Retry};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::progress::{CopyMeter, CopyReport};
use super::ranges::{CopiedRanges, CopyRange, plan_ranges};
use super::worker::Worker;
use crate::catalog::TableFacts;
use crate::connect::page_of;
use crate::sql::{self, SqlError};
use crate::transport::COPY_READ_AHEAD;
use crate::{ConnectOptions, Lsn, RelationId, TableName, code};

/// How a copy runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    /// COPYs at once (`snapshot.connections`).
    pub connections: usize,
    /// Heap of a range (`snapshot.range`).
    pub range_bytes: u64,
    /// Rows are handed over in pieces of about this size.
    pub chunk_bytes: usize,
    /// The largest row (`max_message`).
    pub row_bytes_max: usize,
    /// The server's `block_size`.
    pub block_bytes: u32,
    /// Without a row for this long, a COPY's connection counts as lost.
    pub progress_timeout: Duration,
    /// How often a range may lose its connection without one new row in between.
    pub attempts: u32,
}

impl CopyOptions {
    /// What the connections hold at most while no row is larger than a chunk: for the sum that `check` prints.
    pub fn memory_max(&self) -> u64 {
        let each = self.chunk_bytes.saturating_mul(2).saturating_add(COPY_READ_AHEAD);
        self.connections.saturating_mul(each) as u64
    }
}

impl Default for CopyOptions {
    fn default() -> Self {
        CopyOptions {
            connections: 4,
            range_bytes: 64 << 20,
            chunk_bytes: 256 << 10,
            row_bytes_max: 64 << 20,
            block_bytes: 8_192,
            progress_timeout: Duration::from_secs(300),
            attempts: 5,
        }
    }
}

/// The snapshot that is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopySnapshot {
    /// For SET TRANSACTION SNAPSHOT.
    pub name: String,
    /// It holds exactly the commits before this.
    pub consistent_point: Lsn,
    /// When it was taken.
    pub taken_at: Instant,
}

/// A table to copy.
#[derive(Clone, Debug)]
pub struct CopyTable {
    /// The table, as read inside the snapshot: its columns and its row filter are what is copied.
    pub facts: TableFacts,
    /// What is done already and stays.
    pub done: CopiedRanges,
}

/// Whole rows of one range, in the text format of COPY, each with its line end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyChunk {
    /// Which range.
    pub range: CopyRange,
    /// How many rows.
    pub rows: u64,
    /// The rows.
    pub bytes: Bytes,
}

/// What comes out of a copy. Of one range: its chunks in the order of its rows, then its end. Ranges run side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyEvent {
    /// Rows.
    Rows(CopyChunk),
    /// All rows of a range were handed over.
    RangeDone {
        /// Which.
        range: CopyRange,
        /// How many it had.
        rows: u64,
    },
    /// All ranges of a table are done.
    TableDone {
        /// Which.
        table: RelationId,
    },
    /// The table cannot be copied, and no other connection would change that: nothing more comes of it, the others go on.
    Refused {
        /// Which.
        table: RelationId,
        /// For programs.
        code: Code,
        /// Why.
        text: String,
    },
    /// The table was rewritten, emptied or dropped after the snapshot was taken and before its copy had it: what came of
    /// it is void, nothing more comes, and a fresh snapshot is needed for it. May come more than once.
    Rewritten {
        /// Which.
        table: RelationId,
    },
}

/// Why a copy ended early. What was done stays done.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The snapshot is gone.
    #[error(
        "the snapshot {snapshot} of the copy is gone: {source}; unfinished tables are copied again from a fresh one (LF-PG0601)"
    )]
    Snapshot {
        /// Its name.
        snapshot: String,
        /// The server's refusal.
        source: SqlError,
    },
    /// A range failed, again and again where that may help.
    #[error("range {} of {} could not be copied: {source} (LF-PG0602)", range.number, sql::relation(table))]
    Range {
        /// The table.
        table: TableName,
        /// The range.
        range: CopyRange,
        /// The last failure.
        source: SqlError,
    },
    /// A row above the limit.
    #[error(
        "a row of {} has more than {limit} bytes as text, the most that `max_message` allows: raise it (LF-PG0604)",
        sql::relation(table)
    )]
    RowTooLarge {
        /// The table.
        table: TableName,
        /// The limit.
        limit: usize,
    },
    /// A range that was copied again had fewer rows.
    #[error("range {} of {} had {found} rows when it was copied again, and {issued} were handed over before: one snapshot cannot show that; the table's copy starts over (LF-PG0605)", range.number, sql::relation(table))]
    Unstable {
        /// The table.
        table: TableName,
        /// The range.
        range: CopyRange,
        /// Rows handed over before.
        issued: u64,
        /// Rows this time.
        found: u64,
    },
}

impl CopyError {
    /// Whether it is about one table's rows or rights, so that the other tables can be copied all the same.
    pub(super) fn is_of_its_table(&self) -> bool {
        match self {
            CopyError::RowTooLarge { .. } => true,
            CopyError::Range { source, .. } => source.is_refusal(),
            CopyError::Snapshot { .. } | CopyError::Unstable { .. } => false,
        }
    }
}

impl Coded for CopyError {
    fn code(&self) -> Code {
        match self {
            CopyError::Snapshot { .. } => code::SNAPSHOT_LOST,
            CopyError::Range { .. } => code::COPY_FAILED,
            CopyError::RowTooLarge { .. } => code::ROW_TOO_LARGE,
            CopyError::Unstable { .. } => code::COPY_UNSTABLE,
        }
    }

    fn kind(&self) -> Kind {
        page_of(self.code()).map_or(Kind::Internal, |page| page.kind)
    }

    fn retry(&self) -> Retry {
        page_of(self.code()).map_or(Retry::Later, |page| page.retry)
    }
}

/// A copy under way. Dropping it ends its tasks and their connections.
#[derive(Debug)]
pub struct CopyRun {
    events: mpsc::Receiver<Result<CopyEvent, CopyError>>,
    meter: Arc<Mutex<CopyMeter>>,
    has_failed: bool,
    /// Ends the workers when the run is dropped.
    _workers: JoinSet<()>,
}

/// What the workers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: CopyOptions,
    pub(super) connect: ConnectOptions,
    pub(super) snapshot: CopySnapshot,
    /// By root.
    pub(super) tables: HashMap<RelationId, TableWork>,
    pub(super) queue: Mutex<VecDeque<CopyRange>>,
    pub(super) meter: Arc<Mutex<CopyMeter>>,
}

/// A table's part of the work.
#[derive(Debug)]
pub(super) struct TableWork {
    pub(super) name: TableName,
    /// What each leaf is called.
    pub(super) leaves: HashMap<RelationId, TableName>,
    pub(super) columns: Vec<String>,
    pub(super) row_filter: Option<String>,
    /// Ranges that are not done yet.
    pub(super) left: Mutex<usize>,
}

/// Starts copying, table after table. Call inside a tokio runtime.
pub fn start_copy(
    options: CopyOptions,
    connect: ConnectOptions,
    snapshot: CopySnapshot,
    tables: Vec<CopyTable>,
) -> CopyRun {
    let mut queue = VecDeque::new();
    let mut work = HashMap::new();
    let mut finished = Vec::new();
    let mut done_bytes = 0_u64;
    for CopyTable { facts, done } in tables {
        let ranges = plan_ranges(&facts, options.block_bytes, options.range_bytes, &done);
        let left_bytes: u64 = ranges.iter().map(|range| range.heap_bytes).sum();
        done_bytes = done_bytes.saturating_add(facts.heap_bytes().saturating_sub(left_bytes));
        let relation = facts.shape.relation;
        if ranges.is_empty() {
            finished.push(relation);
        }
        let table = TableWork {
            name: facts.shape.name.clone(),
            leaves: facts.leaves.iter().map(|leaf| (leaf.relation, leaf.name.clone())).collect(),
            columns: facts.shape.columns.iter().map(|column| column.name.to_string()).collect(),
            row_filter: facts.row_filter,
            left: Mutex::new(ranges.len()),
        };
        work.insert(relation, table);
        queue.extend(ranges);
    }
    let meter = CopyMeter::new(snapshot.taken_at, queue.make_contiguous(), done_bytes);
    let meter = Arc::new(Mutex::new(meter));
    // Room for one chunk of each worker beside the one that it fills: a slow consumer stops the workers (I6).
    let connections = options.connections.clamp(1, 64).min(queue.len().max(1));
    let (send, events) = mpsc::channel(connections.max(2));
    let shared = Arc::new(Shared {
        options,
        connect,
        snapshot,
        tables: work,
        queue: Mutex::new(queue),
        meter: Arc::clone(&meter),
    });
    let mut workers = JoinSet::new();
    // Tables with nothing left to copy end as well, before any other.
    let first = send.clone();
    for number in 0..connections {
        let worker = Worker::new(Arc::clone(&shared), send.clone());
        let finished = if number == 0 { std::mem::take(&mut finished) } else { Vec::new() };
        let first = first.clone();
        workers.spawn(async move {
            for table in finished {
                if first.send(Ok(CopyEvent::TableDone { table })).await.is_err() {
                    return;
                }
            }
            drop(first);
            worker.run().await;
        });
    }
    CopyRun { events, meter, has_failed: false, _workers: workers }
}

impl CopyRun {
    /// The next event; `None` after the last. After an error nothing follows. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<CopyEvent, CopyError>> {
        if self.has_failed {
            return None;
        }
        let event = self.events.recv().await;
        self.has_failed = matches!(event, Some(Err(_)));
        event
    }

    /// How far it is.
    pub fn report(&self) -> CopyReport {
        self.meter.lock().report(Instant::now())
    }
}
