//! The handle that owners keep: requests to the writer thread, and reads beside it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::error::StateError;
use crate::store::Database;
use crate::writer::{QUEUE_REQUESTS_MAX, Request};

/// One row to set or to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The table; its owner gives the name.
    pub table: &'static str,
    /// The key.
    pub key: Bytes,
    /// The new value; `None` removes the row.
    pub value: Option<Bytes>,
}

impl Change {
    /// Sets a row.
    pub fn put(table: &'static str, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Change {
        Change { table, key: key.into(), value: Some(value.into()) }
    }

    /// Removes a row.
    pub fn remove(table: &'static str, key: impl Into<Bytes>) -> Change {
        Change { table, key: key.into(), value: None }
    }
}

type Callback<T> = Box<dyn FnOnce(Result<T, StateError>) + Send>;

/// An answer that is owed. Dropped unanswered (a closed queue, a panic of the thread) it answers
/// [`StateError::Closed`], so no owner waits for ever.
pub(crate) struct Answer<T: 'static>(Option<Callback<T>>);

impl<T> Answer<T> {
    fn new(answer: Callback<T>) -> Self {
        Answer(Some(answer))
    }

    pub(crate) fn give(mut self, result: Result<T, StateError>) {
        if let Some(answer) = self.0.take() {
            answer(result);
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(answer) = self.0.take() {
            answer(Err(StateError::Closed));
        }
    }
}

/// Access to the store. Clone freely; it stays valid until the store is closed.
#[derive(Clone, Debug)]
pub struct StateHandle {
    pub(crate) requests: SyncSender<Request>,
    pub(crate) database: Arc<Database>,
    pub(crate) owner: u64,
}

impl StateHandle {
    /// This start's owner number: every open of the store takes the next one, durably. Give it to each commit.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// Hands the changes over at once, as one durable transaction with whatever else waits. The future only waits for the
    /// answer: dropping it withdraws nothing. `owner` is the number its owner was started with; an older one than the
    /// store's is refused and changes nothing (F-L13).
    pub fn commit(&self, changes: Vec<Change>, owner: u64) -> Commit {
        let slot = Arc::new(Slot::default());
        let answered = Arc::clone(&slot);
        self.commit_with(changes, owner, Box::new(move |result| answered.fill(result)));
        Commit { slot }
    }

    /// [`StateHandle::commit`] for a plain thread, with a callback. It runs on the writer thread (or here, if the
    /// request is refused at once), so it must be short and must not block.
    pub fn commit_with(
        &self,
        changes: Vec<Change>,
        owner: u64,
        answer: Box<dyn FnOnce(Result<(), StateError>) + Send>,
    ) {
        let request = Request::Commit { changes, owner, answer: Answer::new(answer) };
        if let Err(TrySendError::Full(Request::Commit { answer, .. })) = self.requests.try_send(request) {
            answer.give(Err(StateError::Busy { limit: QUEUE_REQUESTS_MAX }));
        }
    }

    /// [`StateHandle::commit`] for a plain thread: blocks until the answer is there. Waits for a place in the queue.
    pub fn commit_blocking(&self, changes: Vec<Change>, owner: u64) -> Result<(), StateError> {
        let slot = Arc::new(Slot::default());
        let answered = Arc::clone(&slot);
        let answer = Answer::new(Box::new(move |result| answered.fill(result)));
        // A refused request is dropped here, which answers it.
        drop(self.requests.send(Request::Commit { changes, owner, answer }));
        slot.wait()
    }

    /// Raises the owner number durably and gives a handle with it; commits under older numbers are refused from then
    /// on. Blocks.
    pub fn take_over(&self) -> Result<StateHandle, StateError> {
        let slot = Arc::new(Slot::default());
        let answered = Arc::clone(&slot);
        let answer = Answer::new(Box::new(move |result| answered.fill(result)));
        drop(self.requests.send(Request::TakeOver { answer }));
        let owner = slot.wait()?;
        Ok(StateHandle { owner, ..self.clone() })
    }

    /// When the writer thread last showed that it lives; a transaction that hangs makes this old (E78).
    pub fn last_beat(&self) -> Instant {
        self.database.last_beat()
    }

    /// One row, as of the last durable transaction. Reads the file: for plain threads.
    pub fn read(&self, table: &str, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        self.database.read(table, key)
    }

    /// The rows whose key begins with `prefix`, ascending, of one snapshot. Reads the file: for plain threads.
    pub fn scan(&self, table: &str, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Bytes)>, StateError> {
        self.database.scan(table, prefix)
    }
}

/// Waits for the answer to [`StateHandle::commit`].
#[derive(Debug)]
#[must_use = "a commit is durable only once it has answered"]
pub struct Commit {
    slot: Arc<Slot<()>>,
}

impl Future for Commit {
    type Output = Result<(), StateError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut inside = self.slot.inside.lock();
        match inside.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                inside.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// One answer, awaited by a task or by a thread.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    inside: Mutex<Inside<T>>,
    filled: Condvar,
}

#[derive(Debug)]
struct Inside<T> {
    result: Option<Result<T, StateError>>,
    waker: Option<Waker>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot { inside: Mutex::new(Inside { result: None, waker: None }), filled: Condvar::new() }
    }
}

impl<T> Slot<T> {
    pub(crate) fn fill(&self, result: Result<T, StateError>) {
        let waker = {
            let mut inside = self.inside.lock();
            inside.result = Some(result);
            inside.waker.take()
        };
        self.filled.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends, because every request is answered, by its drop if by nothing else.
    pub(crate) fn wait(&self) -> Result<T, StateError> {
        let mut inside = self.inside.lock();
        loop {
            if let Some(result) = inside.result.take() {
                return result;
            }
            self.filled.wait(&mut inside);
        }
    }
}
