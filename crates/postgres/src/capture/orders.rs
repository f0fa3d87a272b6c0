//! Orders to a running capture (P1): given from anywhere, carried out by the capture's own task, answered once they are
//! durable in its record.
//!
//! The mailbox outlives openings of the source: an order that is given while the pipeline waits for its next try is taken by
//! that try. One that nobody took in time is withdrawn, so that it is never carried out behind its giver's back.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use landfall_types::PartitionId;
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::arrivals;
use super::report::Stage;
use super::shared::Shared;
use crate::orders::{Order, OrderCommand, OrderError, Ordered, OrderedTables};

/// Orders that wait to be taken, at most.
const WAITING_MAX: usize = 16;
/// How long a taken order may take to be stored.
const STORED_WITHIN: Duration = Duration::from_secs(30);
/// How long an order that is being stored holds up the end of an opening.
const FINISH_WITHIN: Duration = Duration::from_secs(10);

/// An order on its way.
pub(super) struct Given {
    order: Order,
    /// It is only said what it would do.
    is_rehearsal: bool,
    /// Whoever sets it first, giver or taker, decides whether the order is withdrawn or carried out.
    is_decided: Arc<AtomicBool>,
    answer: oneshot::Sender<Result<Ordered, OrderError>>,
}

/// Where the task of one opening after the other takes orders from.
pub(super) type Mailbox = Mutex<mpsc::Receiver<Given>>;

/// Gives orders to the tables of one capture, whether or not it runs at the moment. Clones give to the same one.
#[derive(Clone)]
pub struct Orders {
    given: mpsc::Sender<Given>,
}

impl std::fmt::Debug for Orders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Orders").finish_non_exhaustive()
    }
}

pub(super) fn mailbox() -> (Orders, Arc<Mailbox>) {
    let (given, taken) = mpsc::channel(WAITING_MAX);
    (Orders { given }, Arc::new(Mutex::new(taken)))
}

impl Orders {
    /// Gives an order, which the capture has `within` to take. It is answered when it is durable in the record, not when
    /// the work is done. `is_rehearsal`: nothing is changed, and the answer is what would be.
    ///
    /// Not cancel-safe: an order whose future is dropped may be carried out all the same.
    pub async fn give(&self, order: Order, is_rehearsal: bool, within: Duration) -> Result<Ordered, OrderError> {
        let is_decided = Arc::new(AtomicBool::new(false));
        let (answer, mut answered) = oneshot::channel();
        let not_taken = || OrderError::NotTaken { seconds: within.as_secs() };
        let given = Given { order, is_rehearsal, is_decided: Arc::clone(&is_decided), answer };
        self.given.try_send(given).map_err(|_| not_taken())?;
        match timeout(within, &mut answered).await {
            Ok(Ok(outcome)) => return outcome,
            // The opening that took it ended.
            Ok(Err(_)) => return Err(OrderError::Unresolved),
            Err(_) => {}
        }
        if !is_decided.swap(true, Ordering::AcqRel) {
            return Err(not_taken());
        }
        match timeout(STORED_WITHIN, answered).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => Err(OrderError::Unresolved),
        }
    }
}

/// The orders' side of one opening.
pub(super) struct Desk {
    shared: Arc<Shared>,
    given: OwnedMutexGuard<mpsc::Receiver<Given>>,
    is_busy: Arc<AtomicBool>,
}

impl Desk {
    /// Waits until the opening before has let go of the mailbox.
    pub(super) async fn open(shared: &Arc<Shared>, mailbox: &Arc<Mailbox>) -> Desk {
        let given = Arc::clone(mailbox).lock_owned().await;
        Desk { shared: Arc::clone(shared), given, is_busy: Arc::default() }
    }

    /// Whether an order is being carried out.
    pub(super) fn is_busy(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_busy)
    }

    /// Carries orders out, and looks for tables that are new; ends only when everything begins anew.
    pub(super) async fn serve(mut self) {
        let poll = self.shared.options.schema_poll;
        let mut looks = interval_at(Instant::now() + poll, poll);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let given = tokio::select! {
                given = self.given.recv() => given,
                _ = looks.tick() => {
                    self.look().await;
                    continue;
                }
            };
            // Nobody can give an order any more: the capture goes on without.
            let Some(given) = given else { return std::future::pending().await };
            if given.is_decided.swap(true, Ordering::AcqRel) {
                continue;
            }
            self.is_busy.store(true, Ordering::Release);
            let outcome = self.carry_out(&given.order, given.is_rehearsal).await;
            let starts_over = outcome.as_ref().is_ok_and(|done| done.starts_over) && !given.is_rehearsal;
            let _ = given.answer.send(outcome);
            self.is_busy.store(false, Ordering::Release);
            if starts_over {
                return;
            }
        }
    }

    /// Takes tables in that are new and that `tables` chooses (P59).
    async fn look(&self) {
        if self.shared.sight.lock().stage != Stage::Streaming {
            return;
        }
        match arrivals::take_in(&self.shared, None, false).await {
            Ok(found) if found.is_empty() => {}
            Ok(found) => {
                tracing::info!(pipeline = %self.shared.options.pipeline, tables = found.join(", "), "new tables were found");
            }
            Err(error) => {
                tracing::warn!(pipeline = %self.shared.options.pipeline, "new tables were not looked for: {error}");
            }
        }
    }

    async fn carry_out(&self, order: &Order, is_rehearsal: bool) -> Result<Ordered, OrderError> {
        let shared = &self.shared;
        let mut new = Vec::new();
        if order.command == OrderCommand::Add {
            if !shared.options.copies {
                return Err(OrderError::NeverCopies);
            }
            let pattern = match &order.tables {
                OrderedTables::All => None,
                OrderedTables::Named(pattern) => Some(pattern),
            };
            new = arrivals::take_in(shared, pattern, is_rehearsal).await?;
        }
        let copies = shared.options.copies;
        let applied = if is_rehearsal {
            let record = shared.record();
            record
                .map_or(Err(OrderError::NothingStored), |mut record| order.apply(&mut record, copies))
                .map(|done| (0, done))
        } else {
            shared.try_change_record(|record| order.apply(record.ok_or(OrderError::NothingStored)?, copies))
        };
        let (change, mut ordered) = match applied {
            Ok(applied) => applied,
            Err(OrderError::NotCarried { .. }) if !new.is_empty() => {
                return Ok(Ordered { tables: new, starts_over: false, given_up: Vec::new() });
            }
            Err(OrderError::NotCarried { name, .. }) if order.command == OrderCommand::Add => {
                return Err(OrderError::NotChosen { name });
            }
            Err(error) => return Err(error),
        };
        if !is_rehearsal {
            shared.stored(change).await;
            let tables = ordered.tables.join(", ");
            tracing::info!(pipeline = %shared.options.pipeline, order = order.command.word(), tables, "order stored");
            shared.retire(std::mem::take(&mut ordered.given_up).into_iter().map(PartitionId).collect());
            shared.carry_out();
        }
        ordered.tables.extend(new);
        Ok(ordered)
    }
}

/// Waits until the order that is being carried out, if there is one, is answered.
pub(super) async fn finish(mut serving: Pin<&mut impl Future<Output = ()>>, is_busy: &AtomicBool) {
    let answered = std::future::poll_fn(|cx| {
        if is_busy.load(Ordering::Acquire) && serving.as_mut().poll(cx).is_pending() {
            return match is_busy.load(Ordering::Acquire) {
                true => std::task::Poll::Pending,
                false => std::task::Poll::Ready(()),
            };
        }
        std::task::Poll::Ready(())
    });
    let _ = timeout(FINISH_WITHIN, answered).await;
}
