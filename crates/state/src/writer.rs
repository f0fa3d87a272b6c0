//! The writer thread: all requests that wait share one durable transaction (C68).
//!
//! It is the only writer of `state.redb` (I5). A failed transaction answers no request with success; because such a
//! transaction may still have become durable, the database is opened again before the next one.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::handle::{Answer, Change};
use crate::store::Database;

/// Requests that may wait.
pub(crate) const QUEUE_REQUESTS_MAX: usize = 256;

/// An idle thread shows that it lives so often; health calls it stale much later (E78).
const BEAT_EVERY: Duration = Duration::from_secs(1);

/// What the thread is asked for.
pub(crate) enum Request {
    Commit { changes: Vec<Change>, owner: u64, answer: Answer<()> },
    TakeOver { answer: Answer<u64> },
    Close,
}

/// Runs until [`Request::Close`], or until every handle is gone. Requests behind a close are answered by their drop.
pub(crate) fn run(database: Arc<Database>, requests: Receiver<Request>) {
    let mut is_open = true;
    while is_open {
        database.beat();
        let first = match requests.recv_timeout(BEAT_EVERY) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut turn = Vec::new();
        let mut waiting = Some(first);
        while let Some(request) = waiting.take() {
            match request {
                Request::Close => {
                    is_open = false;
                    break;
                }
                Request::TakeOver { answer } => {
                    // What was handed over before it still belongs to the old owner.
                    settle(&database, std::mem::take(&mut turn));
                    answer.give(database.take_over());
                }
                Request::Commit { changes, owner, answer } => turn.push((changes, owner, answer)),
            }
            if turn.len() < QUEUE_REQUESTS_MAX {
                waiting = requests.try_recv().ok();
            }
        }
        settle(&database, turn);
    }
}

fn settle(database: &Database, turn: Vec<(Vec<Change>, u64, Answer<()>)>) {
    if turn.is_empty() {
        return;
    }
    let requests: Vec<(&[Change], u64)> = turn.iter().map(|(changes, owner, _)| (changes.as_slice(), *owner)).collect();
    let outcomes = database.commit(&requests);
    for ((_, _, answer), outcome) in turn.into_iter().zip(outcomes) {
        answer.give(outcome);
    }
}
