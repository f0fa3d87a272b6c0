//! One COPY connection at work: takes ranges off the queue, issues each row once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use landfall_types::Coded;
use tokio::sync::mpsc;

use super::ranges::CopyRange;
use super::run::{CopyChunk, CopyError, CopyEvent, Shared, TableWork};
use crate::sql::{self, SqlError};
use crate::transport::{CopyConnection, CopyFault, CopyPiece};
use crate::{RelationId, TableName};

/// What a chunk may have beyond its size: the row that fills it, where it is no large one.
const CHUNK_SPARE: usize = 8 << 10;
const COPYING: &str = "copy a range";

/// Between two attempts to connect; doubled up to the last.
const BACK_OFF: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_millis(1_500),
    Duration::from_secs(5),
    Duration::from_secs(15),
];

pub(super) struct Worker {
    shared: Arc<Shared>,
    events: mpsc::Sender<Result<CopyEvent, CopyError>>,
}

/// Why a range is not done.
enum Stop {
    /// Nobody takes rows any more.
    Unwanted,
    /// The table's file is not the one that the snapshot saw.
    Rewritten,
    /// Try it again on another connection.
    Lost(SqlError),
    Failed(CopyError),
}

/// How far a range is, over all attempts.
struct Issued {
    range: CopyRange,
    rows: u64,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, events: mpsc::Sender<Result<CopyEvent, CopyError>>) -> Self {
        Worker { shared, events }
    }

    /// Until the queue is empty, a range fails, or nobody listens.
    pub(super) async fn run(self) {
        let mut connection = None;
        loop {
            let Some(range) = self.shared.queue.lock().pop_front() else { return };
            let Some(table) = self.shared.tables.get(&range.table) else { continue };
            match self.copy(&mut connection, table, range).await {
                Ok(rows) => {
                    self.shared.meter.lock().finished(Instant::now(), &range);
                    tracing::info!(table = %table.name, range = range.number, rows, "copied a range");
                    if self.events.send(Ok(CopyEvent::RangeDone { range, rows })).await.is_err() {
                        return;
                    }
                    // Counted down behind the send: whoever comes to zero sends behind all ends of ranges.
                    let is_last = {
                        let mut left = table.left.lock();
                        *left = left.saturating_sub(1);
                        *left == 0
                    };
                    if is_last && self.events.send(Ok(CopyEvent::TableDone { table: range.table })).await.is_err() {
                        return;
                    }
                }
                Err(Stop::Unwanted) => return,
                Err(Stop::Rewritten) => {
                    // The others go on: only this table is copied again.
                    self.shared.queue.lock().retain(|waiting| waiting.table != range.table);
                    if self.events.send(Ok(CopyEvent::Rewritten { table: range.table })).await.is_err() {
                        return;
                    }
                }
                Err(Stop::Failed(error)) if error.is_of_its_table() => {
                    self.shared.queue.lock().retain(|waiting| waiting.table != range.table);
                    let (code, text) = (error.code(), error.to_string());
                    let refused = CopyEvent::Refused { table: range.table, code, text };
                    if self.events.send(Ok(refused)).await.is_err() {
                        return;
                    }
                }
                Err(Stop::Failed(error)) => {
                    self.fail(error).await;
                    return;
                }
                Err(Stop::Lost(source)) => {
                    self.fail(CopyError::Range { table: table.name.clone(), range, source }).await;
                    return;
                }
            }
        }
    }

    /// Nothing else is begun after a failure.
    async fn fail(&self, error: CopyError) {
        self.shared.queue.lock().clear();
        let _ = self.events.send(Err(error)).await;
    }

    /// A range to its end, over as many connections as it takes.
    async fn copy(
        &self,
        connection: &mut Option<CopyConnection>,
        table: &TableWork,
        range: CopyRange,
    ) -> Result<u64, Stop> {
        let mut issued = Issued { range, rows: 0 };
        let mut failures = 0_u32;
        loop {
            let before = issued.rows;
            match self.attempt(connection, table, &mut issued).await {
                Ok(()) => return Ok(issued.rows),
                Err(Stop::Lost(error)) => {
                    *connection = None;
                    failures = if issued.rows > before { 1 } else { failures.saturating_add(1) };
                    if failures >= self.shared.options.attempts {
                        return Err(Stop::Lost(error));
                    }
                    let at = usize::try_from(failures).unwrap_or(usize::MAX).saturating_sub(1);
                    let wait = BACK_OFF.get(at).copied().unwrap_or(Duration::from_secs(15));
                    tracing::warn!(table = %table.name, range = range.number, rows = issued.rows, %error, ?wait,
                        "a COPY connection was lost; the range goes on after the rows it has issued");
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = self.events.closed() => return Err(Stop::Unwanted),
                    }
                }
                Err(stop) => {
                    *connection = None;
                    return Err(stop);
                }
            }
        }
    }

    async fn attempt(
        &self,
        connection: &mut Option<CopyConnection>,
        table: &TableWork,
        issued: &mut Issued,
    ) -> Result<(), Stop> {
        let open = match connection {
            Some(open) if !open.is_closed() => open,
            _ => connection.insert(self.connect().await?),
        };
        let range = issued.range;
        let Some(leaf) = table.leaves.get(&range.leaf) else { return Ok(()) };
        let statement = statement(leaf, table, &range);
        let failed = |source: SqlError| {
            if source.is_connection() {
                Stop::Lost(source)
            } else {
                Stop::Failed(CopyError::Range { table: table.name.clone(), range, source })
            }
        };
        if !is_as_seen(open, range.leaf, leaf).await.map_err(failed)? {
            return Err(Stop::Rewritten);
        }
        open.copy_out(COPYING, &statement).await.map_err(failed)?;
        let options = &self.shared.options;
        let too_large =
            || Stop::Failed(CopyError::RowTooLarge { table: table.name.clone(), limit: options.row_bytes_max });
        let chunk_room = options.chunk_bytes.saturating_add(CHUNK_SPARE);
        let mut chunk = BytesMut::with_capacity(chunk_room);
        let mut held = 0_u64;
        let mut seen = 0_u64;
        loop {
            let piece = match open.next(options.row_bytes_max) {
                Ok(Some(CopyPiece::Text(piece))) => piece,
                Ok(Some(CopyPiece::End)) => break,
                Ok(None) => {
                    // One clock per read, not per row.
                    match tokio::time::timeout(options.progress_timeout, open.fill()).await {
                        Ok(Ok(())) => continue,
                        Ok(Err(fault)) => return Err(stop(open, fault, too_large, failed)),
                        Err(_) => return Err(Stop::Lost(open.silent(COPYING, options.progress_timeout))),
                    }
                }
                Err(fault) => return Err(stop(open, fault, too_large, failed)),
            };
            let (fresh, rows_in) = behind(piece, issued.rows.saturating_sub(seen));
            seen = seen.saturating_add(rows_in);
            held = held.saturating_add(fresh.1);
            chunk.extend_from_slice(fresh.0);
            // Only at a row's end: a message of the server is a row, but nothing promises it.
            if chunk.len() >= options.chunk_bytes && chunk.ends_with(b"\n") {
                self.issue(issued, std::mem::take(&mut held), chunk.split().freeze()).await?;
                chunk.reserve(chunk_room);
            } else if chunk.len() > options.row_bytes_max.saturating_add(options.chunk_bytes) {
                return Err(too_large());
            }
        }
        if seen < issued.rows {
            return Err(Stop::Failed(CopyError::Unstable {
                table: table.name.clone(),
                range,
                issued: issued.rows,
                found: seen,
            }));
        }
        if !chunk.is_empty() {
            self.issue(issued, held, chunk.freeze()).await?;
        }
        Ok(())
    }

    /// Hands rows over; they count as issued once they are in the channel.
    async fn issue(&self, issued: &mut Issued, rows: u64, bytes: Bytes) -> Result<(), Stop> {
        let text_bytes = bytes.len() as u64;
        let chunk = CopyChunk { range: issued.range, rows, bytes };
        self.events.send(Ok(CopyEvent::Rows(chunk))).await.map_err(|_| Stop::Unwanted)?;
        issued.rows = issued.rows.saturating_add(rows);
        self.shared.meter.lock().issued(Instant::now(), &issued.range, rows, text_bytes);
        Ok(())
    }

    /// A connection that sees the snapshot and nothing else.
    async fn connect(&self) -> Result<CopyConnection, Stop> {
        let snapshot = &self.shared.snapshot.name;
        let lost = |source: SqlError| match source {
            source if source.is_connection() => Stop::Lost(source),
            source => Stop::Failed(CopyError::Snapshot { snapshot: snapshot.clone(), source }),
        };
        // A log-in that is refused now may be let in later; the attempts bound it.
        let mut open = CopyConnection::open(&self.shared.connect).await.map_err(Stop::Lost)?;
        open.run("use the copy's snapshot", &sql::see_snapshot(snapshot)).await.map_err(lost)?;
        Ok(open)
    }
}

/// Why the rows of a COPY end early.
fn stop(
    open: &CopyConnection,
    fault: CopyFault,
    too_large: impl FnOnce() -> Stop,
    failed: impl FnOnce(SqlError) -> Stop,
) -> Stop {
    match fault {
        CopyFault::TooLong { .. } => too_large(),
        CopyFault::Server(error) => failed(open.refused(COPYING, error)),
        CopyFault::Connection(error) => failed(open.failed(COPYING, error)),
    }
}

/// Locks a relation against every change of its file, and tells whether that is still the one that the snapshot saw. A
/// rewrite (most ALTER TABLE, TRUNCATE, DROP) that committed after the snapshot leaves a file in which the snapshot sees
/// nothing, or what is not of its time: the copy would be empty without an error. The catalog says by the snapshot which
/// file it was, and `pg_relation_filenode` which it is.
async fn is_as_seen(open: &mut CopyConnection, leaf: RelationId, name: &TableName) -> Result<bool, SqlError> {
    let relation = sql::relation(name);
    // In one message: the second statement runs when the lock is held.
    let statements = format!(
        "LOCK TABLE ONLY {relation} IN ACCESS SHARE MODE;
         SELECT pg_catalog.count(*) FROM pg_catalog.pg_class c
         WHERE c.oid = '{leaf}'::pg_catalog.oid AND c.oid = pg_catalog.to_regclass({})
           AND c.relfilenode = pg_catalog.pg_relation_filenode(c.oid)",
        sql::literal(&relation),
        leaf = leaf.0,
    );
    match open.run("look whether a table was rewritten", &statements).await {
        // It was dropped, or is called otherwise.
        Err(error) if matches!(error.sqlstate(), Some("42P01" | "3F000")) => Ok(false),
        same => Ok(same?.is_some_and(|same| *same == *b"1")),
    }
}

/// What stands behind the first `skip` rows of a piece: the bytes with their rows, and how many rows the piece has.
fn behind(piece: &[u8], skip: u64) -> ((&[u8], u64), u64) {
    let ends = memchr::memchr_iter(b'\n', piece).count() as u64;
    if skip == 0 {
        return ((piece, ends), ends);
    }
    if skip >= ends {
        // A row without its end so far is one of those to skip only if more than `ends` are.
        let from = if skip > ends { piece.len() } else { last_end(piece) };
        return ((piece.get(from..).unwrap_or_default(), 0), ends);
    }
    let nth = usize::try_from(skip - 1).unwrap_or(usize::MAX);
    let from = memchr::memchr_iter(b'\n', piece).nth(nth).map_or(piece.len(), |end| end + 1);
    ((piece.get(from..).unwrap_or_default(), ends - skip), ends)
}

fn last_end(piece: &[u8]) -> usize {
    memchr::memrchr(b'\n', piece).map_or(0, |end| end + 1)
}

fn statement(leaf: &TableName, table: &TableWork, range: &CopyRange) -> String {
    let columns: Vec<String> = table.columns.iter().map(|column| sql::quoted(column)).collect();
    let mut statement = format!(
        "COPY (SELECT {} FROM ONLY {} WHERE ctid >= '({},0)'::pg_catalog.tid",
        columns.join(", "),
        sql::relation(leaf),
        range.from_block
    );
    if let Some(end) = range.to_block {
        statement.push_str(&format!(" AND ctid < '({end},0)'::pg_catalog.tid"));
    }
    if let Some(filter) = &table.row_filter {
        statement.push_str(&format!(" AND ({filter})"));
    }
    statement.push_str(") TO STDOUT");
    statement
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Catches rows issued twice or left out when a range is copied again, wherever the pieces are cut.
        #[test]
        fn a_range_goes_on_after_exactly_the_rows_it_issued(
            lines in proptest::collection::vec("[a-c]{0,5}", 0..20),
            cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..6),
            issued in any::<proptest::sample::Index>(),
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let issued = issued.index(lines.len() + 1);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let (mut seen, mut rows, mut out) = (0_u64, 0_u64, Vec::new());
            for pair in cuts.windows(2) {
                let piece = &text.as_bytes()[pair[0]..pair[1]];
                let ((fresh, fresh_rows), ends) = behind(piece, (issued as u64).saturating_sub(seen));
                seen += ends;
                rows += fresh_rows;
                out.extend_from_slice(fresh);
            }
            let expected: String = lines.iter().skip(issued).map(|line| format!("{line}\n")).collect();
            prop_assert_eq!(String::from_utf8(out).unwrap(), expected);
            prop_assert_eq!(rows, (lines.len() - issued) as u64);
        }
    }
}
