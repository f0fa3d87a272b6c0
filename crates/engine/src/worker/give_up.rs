//! What a worker gives up: one batch, a partition that is taken away, or everything at its end (E121, I11). Rows that are
//! given up are read again; no hold is delivered for them (I7).

use std::collections::HashSet;

use futures::FutureExt;
use landfall_types::PartitionId;

use super::{InWriting, Ledger, Worker};
use crate::codes;
use crate::core::FailCause;

impl Worker {
    /// Gives up a batch in writing, and the writer's group with it: the group may hold a part of the batch, or all of
    /// it, and would be committed beside its replay.
    pub(super) fn give_up(&mut self, written: InWriting, cause: &FailCause) {
        self.abandon(written.ledger, cause);
        self.lose_accepted(cause);
    }

    pub(super) fn abandon(&mut self, ledger: Ledger, cause: &FailCause) {
        self.cx.meters.abandoned.increment(1);
        let ranges: Vec<String> = ledger
            .covers
            .iter()
            .map(|cover| format!("{}:{}..{}", cover.partition, cover.range.start, cover.range.end))
            .collect();
        tracing::warn!(
            code = %cause.code, pipeline = %self.cx.pipeline, sink = %self.cx.sink_name,
            ranges = ranges.join(" "), "a batch was given up: {}; its rows are read again", cause.text
        );
        ledger.fail(cause);
        self.cx.view.is_running();
    }

    /// Gives up what holds rows of a partition. A group that was accepted cannot be cut, so it goes whole.
    pub(super) fn abort(&mut self, partition: PartitionId) {
        let cause = FailCause::new(codes::ABANDONED, format!("partition {partition} was given up before its deadline"));
        drop(self.cx.queue.remove(|segment| segment.cover.partition == partition));
        self.open.remove(partition);
        if self.sealed.as_ref().is_some_and(|sealed| sealed.ledger.holds(partition))
            && let Some(sealed) = self.sealed.take()
        {
            self.abandon(sealed.ledger, &cause);
        }
        let hit: HashSet<u64> = self
            .writing
            .iter()
            .filter(|(_, writing)| writing.ledger.holds(partition))
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in hit {
            if let Some(writing) = self.writing.remove(&sequence) {
                writing.task.abort();
                self.give_up(writing, &cause);
            }
        }
        if self.accepted.iter().any(|ledger| ledger.holds(partition)) {
            if let Some((task, _)) = self.barrier.take() {
                task.abort();
            }
            self.lose_accepted(&cause);
        }
    }

    /// What is left at a stop or a drain's deadline fails and is named; tasks that ignore their abort are left behind.
    pub(super) fn give_up_everything(&mut self) {
        let cause = FailCause::new(codes::DRAIN_DEADLINE, "shutdown ended before the rows were settled");
        drop(self.cx.queue.remove(|_| true));
        drop(self.open.take());
        if let Some(sealed) = self.sealed.take() {
            sealed.ledger.fail(&cause);
        }
        for (_, writing) in self.writing.drain() {
            writing.task.abort();
            writing.ledger.fail(&cause);
        }
        if let Some((task, _)) = self.barrier.take() {
            // A commit that ended just now still counts: what is durable must not be named as lost.
            let ended = task.is_finished().then(|| task.now_or_never()).flatten();
            match ended {
                Some(Ok(Ok(settled))) => {
                    self.cx.view.move_positions(settled.positions);
                    let group = std::mem::take(&mut self.accepted);
                    self.settle(group);
                }
                _ => self.accepted.drain(..).for_each(|ledger| ledger.fail(&cause)),
            }
        }
        self.accepted.drain(..).for_each(|ledger| ledger.fail(&cause));
        self.writes.detach_all();
    }
}
