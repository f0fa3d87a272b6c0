//! The engine's side of a shard: hands commands to its thread and waits for the answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::RecordBatch;
use futures::future::BoxFuture;
use landfall_engine::contract::{
    BarrierError, CommitId, Covered, SealedBatch, Settled, ShardId, ShardWriter, SinkError, Written,
};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::code;
use crate::shard::{Fill, Shard};
use crate::sink::Shared;

enum Command {
    Write { id: CommitId, parts: Vec<RecordBatch>, covers: Vec<Covered>, done: oneshot::Sender<()> },
    Barrier { done: oneshot::Sender<Result<Settled, BarrierError>> },
    Reset { done: oneshot::Sender<()> },
}

/// See the module.
pub(crate) struct FilesWriter {
    id: ShardId,
    shared: Arc<Shared>,
    commands: Mutex<Option<mpsc::Sender<Command>>>,
    wants_barrier: Arc<AtomicBool>,
    fill: Arc<Mutex<Fill>>,
    /// The thread has died with a group of which nobody can say what is published. Until the reset, batches are taken
    /// and not written, so that the barrier can say that all of it is lost (I7).
    is_lost: AtomicBool,
}

impl FilesWriter {
    pub(crate) fn new(id: ShardId, shared: Arc<Shared>) -> Self {
        let fill = shared.track_fill();
        FilesWriter {
            id,
            shared,
            commands: Mutex::new(None),
            wants_barrier: Arc::default(),
            fill,
            is_lost: AtomicBool::new(false),
        }
    }

    /// The thread's inbox; the thread is started with the first command, when the sink is open.
    fn commands(&self) -> Result<mpsc::Sender<Command>, SinkError> {
        let mut commands = self.commands.lock();
        match commands.take() {
            Some(sender) if !sender.is_closed() => return Ok(commands.insert(sender).clone()),
            Some(_) => self.lose(),
            None => {}
        }
        let cx = self.shared.shard_cx(self.id)?;
        // Calls come one at a time, and a cancelled one may still be on its way.
        let (sender, inbox) = mpsc::channel(4);
        let (wants_barrier, fill) = (self.wants_barrier.clone(), self.fill.clone());
        std::thread::Builder::new()
            .name(format!("files.{}", self.id.0))
            .spawn(move || serve(Shard::new(cx), inbox, &wants_barrier, &fill))
            .map_err(|error| self.gone(&format!("its thread could not be started: {error}")))?;
        *commands = Some(sender.clone());
        Ok(sender)
    }

    fn gone(&self, why: &str) -> SinkError {
        let text = format!("shard {} does not answer: {why}", self.id.0);
        SinkError::Later { code: code::UNAVAILABLE, after: None, text }
    }

    fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
        self.wants_barrier.store(true, Ordering::Release);
    }

    /// The next command starts another thread in the place of one that is dead, or still on its way there: its inbox may
    /// take a command that nobody answers.
    fn replace_lost(&self) {
        if self.is_lost.swap(false, Ordering::AcqRel) {
            *self.commands.lock() = None;
            self.wants_barrier.store(false, Ordering::Release);
        }
    }

    fn lost(&self) -> BarrierError {
        let text = format!("the thread of shard {} died with a group; its rows are read again", self.id.0);
        BarrierError { error: SinkError::Unknown { code: code::GROUP_LOST, text }, lost: Vec::new() }
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, SinkError> {
        let (done, answer) = oneshot::channel();
        let ended = || {
            self.lose();
            self.gone("its thread has ended")
        };
        self.commands()?.send(command(done)).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())
    }
}

fn serve(mut shard: Shard, mut inbox: mpsc::Receiver<Command>, wants_barrier: &AtomicBool, fill: &Mutex<Fill>) {
    while let Some(command) = inbox.blocking_recv() {
        // Published before the answer, so that a caller sees what its own call did.
        let publish = |shard: &Shard| {
            let now = shard.fill();
            wants_barrier.store(now.wants_barrier, Ordering::Release);
            *fill.lock() = now;
        };
        match command {
            Command::Write { id, parts, covers, done } => {
                shard.write(id, &parts, &covers);
                publish(&shard);
                let _ = done.send(());
            }
            Command::Barrier { done } => {
                let outcome = shard.barrier();
                publish(&shard);
                if let Err(Ok(settled)) = done.send(outcome) {
                    shard.untold(settled);
                }
            }
            Command::Reset { done } => {
                shard.reset();
                publish(&shard);
                let _ = done.send(());
            }
        }
    }
}

impl ShardWriter for FilesWriter {
    fn write<'a>(&'a self, batch: &'a SealedBatch) -> BoxFuture<'a, Result<Written, SinkError>> {
        Box::pin(async move {
            if self.shared.holds(&batch.covers) {
                return Ok(Written::AlreadyThere);
            }
            let (id, parts, covers) = (batch.id, batch.parts.clone(), batch.covers.clone());
            if !self.is_lost.load(Ordering::Acquire) {
                let written = self.ask(|done| Command::Write { id, parts, covers, done }).await;
                if !self.is_lost.load(Ordering::Acquire) {
                    written?;
                }
            }
            Ok(Written::Accepted)
        })
    }

    fn barrier<'a>(&'a self) -> BoxFuture<'a, Result<Settled, BarrierError>> {
        Box::pin(async move {
            if self.is_lost.load(Ordering::Acquire) {
                return Err(self.lost());
            }
            let outcome = self.ask(|done| Command::Barrier { done }).await;
            if self.is_lost.load(Ordering::Acquire) {
                return Err(self.lost());
            }
            let settled = outcome.map_err(|error| BarrierError { error, lost: Vec::new() })??;
            self.shared.moved(&settled.positions);
            Ok(settled)
        })
    }

    fn was_committed<'a>(&'a self, _: &'a CommitId) -> BoxFuture<'a, Result<Option<bool>, SinkError>> {
        // Positions tell, ids do not: a file is named by its first batch.
        Box::pin(async { Ok(None) })
    }

    fn probe<'a>(&'a self) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(self.shared.probe())
    }

    fn wants_barrier(&self) -> bool {
        self.wants_barrier.load(Ordering::Acquire)
    }

    fn reset<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.replace_lost();
            // A thread that has ended, or was never started, has nothing to forget.
            let _ = self.ask(|done| Command::Reset { done }).await;
            self.replace_lost();
        })
    }
}
