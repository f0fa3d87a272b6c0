//! The writer of a shard: takes sealed batches into the group, and makes the group durable by one commit (E126–E130).
//!
//! `write` answers Accepted: the rows are in data files that nothing references yet. `barrier` completes the files and
//! commits. A sealed group whose commit failed is kept apart from what is written after it, so that a commit whose
//! answer was lost is recognised whole. Every call does its work in a task of its own: a caller that goes away leaves no
//! half-written group, and what it did not hear is told to the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures::future::BoxFuture;
use landfall_engine::contract::{
    BarrierError, CommitId, SealedBatch, Settled, ShardId, ShardWriter, SinkError, Written,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinError;

use crate::code;
use crate::commit::{CommitFailure, Committed, Ours};
use crate::group::{Group, Held, Sealed};
use crate::sink::{Opened, Shared};
use crate::turn::{Slot, Turn};

/// A group is committed early once it has this many files, this many times the target file size, or this many batches:
/// a commit is read into memory by every reader of the table.
const GROUP_FILES_MAX: usize = 1_000;
const GROUP_TARGETS_MAX: u64 = 16;
const GROUP_BATCHES_MAX: usize = 4_096;

/// What a shard holds between calls.
#[derive(Default)]
struct Shard {
    group: Group,
    sealed: Option<Sealed>,
    ours: Ours,
    /// A thread is in the group; still set at the next turn: it panicked.
    working: bool,
    /// Settled, and not told yet.
    settled: Settled,
    /// Lost, and not told yet.
    lost: Vec<CommitId>,
}

/// See the module.
pub(crate) struct DeltaWriter {
    shard: ShardId,
    shared: Arc<Shared>,
    slot: Arc<Slot<Shard>>,
    full: Arc<AtomicBool>,
    inside: Arc<AtomicBool>,
    held: Arc<Mutex<Held>>,
}

enum Failure {
    Lost(String),
    Commit(CommitFailure),
}

impl DeltaWriter {
    pub(crate) fn new(shard: ShardId, shared: Arc<Shared>) -> Self {
        let slot = Slot::new(Shard::default());
        let held = shared.track_held();
        DeltaWriter { shard, shared, slot, full: Arc::default(), inside: Arc::default(), held }
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> Held {
        *self.held.lock()
    }

    async fn accept(&self, batch: &SealedBatch) -> Result<Written, SinkError> {
        let opened = self.shared.opened()?;
        if self.shared.holds(&batch.covers) {
            return Ok(Written::AlreadyThere);
        }
        let mut turn = self.slot.take().await;
        let (id, rows) = (batch.id, batch.rows() as u64);
        let (covers, parts, note) = (batch.covers.clone(), batch.parts.clone(), batch.note);
        let (full, inside, held) = (self.full.clone(), self.inside.clone(), self.held.clone());
        let runtime = Handle::current();
        // Encoding takes long enough to hold up an I/O thread.
        let work = move || {
            turn.check();
            turn.working = true;
            let shard = &mut *turn;
            runtime.block_on(async {
                let shape = opened.shapes.of(note);
                if shard.group.take(&shape.files, id, rows, &covers).await {
                    shard.group.begins(note);
                    let most = opened.max_open_files();
                    let early = shard.group.append(&shape, &parts, most).await;
                    held.lock().closed_early += early;
                    opened.metrics.closed_early.increment(early as u64);
                }
            });
            shard.working = false;
            inside.store(shard.group.is_inside(), Ordering::Release);
            show(shard, &opened, &full, &held);
        };
        match encoding(work).await {
            Ok(()) => Ok(Written::Accepted),
            Err(error) => Err(SinkError::Later {
                code: code::GROUP_LOST,
                after: None,
                text: format!("the encoder of shard {} ended: {error}", self.shard.0),
            }),
        }
    }

    async fn settle(&self) -> Result<Settled, BarrierError> {
        let opened = self.shared.opened().map_err(|error| BarrierError { error, lost: Vec::new() })?;
        let mut turn = self.slot.take().await;
        let (shared, full, held) = (self.shared.clone(), self.full.clone(), self.held.clone());
        let task = tokio::spawn(async move {
            let outcome = turn.settle(&opened, &shared).await;
            show(&turn, &opened, &full, &held);
            (turn, outcome)
        });
        // The group went with the task, and nobody can say whether its commit is in: all of it is read again from the
        // positions that the table holds (I7).
        let (mut turn, outcome) = task.await.map_err(|error| BarrierError {
            error: SinkError::Unknown {
                code: code::GROUP_LOST,
                text: format!("the commit of shard {} ended: {error}", self.shard.0),
            },
            lost: Vec::new(),
        })?;
        match outcome {
            Ok(()) => {
                let mut settled = std::mem::take(&mut turn.settled);
                settled.positions = self.shared.known();
                Ok(settled)
            }
            Err(failure) => {
                let lost = std::mem::take(&mut turn.lost);
                let error = match failure {
                    Failure::Commit(failure) => failure.into_sink(),
                    Failure::Lost(text) => SinkError::Unknown { code: code::GROUP_LOST, text },
                };
                Err(BarrierError { error, lost })
            }
        }
    }
}

/// Threads of the blocking pool that encode at once, over all tables. Each waits for its files, which are written on
/// threads of the same pool: were all of them taken, as by a drain of as many tables, none would ever end.
static ENCODERS: Semaphore = Semaphore::const_new(64);

/// Does work that encodes and waits for files.
async fn encoding<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    // It is never closed, so there always is a permit in the end. The work keeps it: nobody may wait for its end.
    let permit = ENCODERS.acquire().await;
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work()
    })
    .await
}

/// Publishes how the shard stands, for `wants_barrier` and the status.
fn show(shard: &Shard, opened: &Opened, full: &AtomicBool, held: &Mutex<Held>) {
    let mut held = held.lock();
    *held = shard.group.held(held.closed_early);
    let target = opened.committer.options.target_file_size.0;
    let is_full = shard.group.lost().is_some()
        || held.closed_files >= GROUP_FILES_MAX
        || held.closed_bytes >= target.saturating_mul(GROUP_TARGETS_MAX)
        || shard.group.batches().len() >= GROUP_BATCHES_MAX;
    full.store(is_full, Ordering::Release);
}

impl Shard {
    fn check(&mut self) {
        if std::mem::take(&mut self.working) {
            self.group.lose_now("the encoder panicked");
        }
    }

    async fn settle(&mut self, opened: &Arc<Opened>, shared: &Shared) -> Result<(), Failure> {
        self.check();
        loop {
            if let Some(sealed) = self.sealed.take() {
                self.commit(sealed, opened, shared).await?;
            }
            if self.group.is_empty() {
                return Ok(());
            }
            let group = std::mem::take(&mut self.group);
            let files = opened.shapes.first().files.clone();
            let (ids, runtime) = (group.batches().to_vec(), Handle::current());
            let sealed = encoding(move || runtime.block_on(group.seal(&files))).await;
            let why = match sealed {
                Ok(Ok(sealed)) => {
                    self.sealed = Some(sealed);
                    continue;
                }
                Ok(Err(why)) => why,
                Err(error) => error.to_string(),
            };
            self.lost.extend(ids);
            return Err(Failure::Lost(format!("the group's data files are not complete: {why}")));
        }
    }

    async fn commit(&mut self, sealed: Sealed, opened: &Opened, shared: &Shared) -> Result<(), Failure> {
        let (batches, rows) = (sealed.taken.batches.len() as u64, sealed.taken.rows);
        let mut version = None;
        // Rows that were all filtered leave nothing to commit; the engine's watermark passes them, and the next group's
        // start says that they were seen.
        // A copy that begins may have files to remove, even if it brought no row.
        if !sealed.adds.is_empty() || sealed.taken.begins.is_some() {
            let started = Instant::now();
            match opened.committer.commit(&sealed, &self.ours).await {
                Ok(committed) => {
                    opened.metrics.committed(&committed, &sealed.adds, started.elapsed());
                    self.left(&sealed, &committed);
                    shared.committed(&committed, rows);
                    if !committed.already_there {
                        opened.housekeeping.after_commit(committed.version);
                    }
                    version = Some(committed.version);
                }
                Err(CommitFailure::Kept(error)) => {
                    opened.metrics.kept.increment(1);
                    self.sealed = Some(sealed);
                    return Err(Failure::Commit(CommitFailure::Kept(error)));
                }
                Err(failure) => {
                    opened.metrics.superseded.increment(1);
                    if let CommitFailure::Superseded { text, .. } = &failure {
                        tracing::error!(code = %code::SUPERSEDED, pipeline = %opened.committer.pipeline, "{text}");
                    }
                    // What was written after it continues a range that is not in the table.
                    let group = std::mem::take(&mut self.group);
                    self.lost.extend(sealed.taken.batches);
                    self.lost.extend(group.batches());
                    return Err(Failure::Commit(failure));
                }
            }
        }
        self.settled.batches += batches;
        self.settled.rows += rows;
        self.settled.version = version.or(self.settled.version);
        Ok(())
    }

    fn left(&mut self, sealed: &Sealed, committed: &Committed) {
        for (partition, span) in &sealed.taken.spans {
            if let Some(at) = committed.positions.get(partition) {
                self.ours.insert(*partition, (span.epoch, *at));
            }
        }
    }
}

impl ShardWriter for DeltaWriter {
    fn write<'a>(&'a self, batch: &'a SealedBatch) -> BoxFuture<'a, Result<Written, SinkError>> {
        Box::pin(self.accept(batch))
    }

    fn barrier<'a>(&'a self) -> BoxFuture<'a, Result<Settled, BarrierError>> {
        Box::pin(self.settle())
    }

    fn was_committed<'a>(&'a self, _: &'a CommitId) -> BoxFuture<'a, Result<Option<bool>, SinkError>> {
        // Positions tell, ids do not: a commit names only its first batch.
        Box::pin(async { Ok(None) })
    }

    fn probe<'a>(&'a self) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(self.shared.probe())
    }

    fn is_inside_transaction(&self) -> bool {
        self.inside.load(Ordering::Acquire)
    }

    fn wants_barrier(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    fn reset<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut turn: Turn<Shard> = self.slot.take().await;
            let mut group = std::mem::take(&mut turn.group);
            // A sink that is not open has taken nothing.
            if let Ok(opened) = self.shared.opened() {
                group.lose(&opened.shapes.first().files, "the engine started its partitions anew".into()).await;
            }
            *turn = Shard::default();
            self.full.store(false, Ordering::Release);
            self.inside.store(false, Ordering::Release);
            let mut held = self.held.lock();
            *held = Held { closed_early: held.closed_early, ..Held::default() };
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Catches encoders that take every thread of the pool and wait for ever for the files that others of its threads would
    /// write, as when hundreds of tables are flushed at once (I11).
    #[test]
    fn encoders_leave_threads_to_what_they_wait_for() {
        let threads = ENCODERS.available_permits() + 1;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().max_blocking_threads(threads).enable_time().build().unwrap();
        let outcome = runtime.block_on(async {
            let all = (0..4 * threads).map(|_| {
                let here = Handle::current();
                tokio::spawn(encoding(move || here.block_on(tokio::task::spawn_blocking(|| ())).is_ok()))
            });
            tokio::time::timeout(Duration::from_secs(30), futures::future::join_all(all)).await
        });
        runtime.shutdown_background();
        let ended = outcome.expect("all of them end");
        assert!(ended.into_iter().all(|one| matches!(one, Ok(Ok(true)))));
    }
}
