//! Tables that are set aside or set back, so that they hold up no other (P86, P87, P90, I13).

use std::sync::Arc;
use std::time::Instant;

use landfall_engine::contract::TableId;
use landfall_types::PartitionId;

use super::{Answer, Decoder};
use crate::capture::table::Parked;
use crate::record::{ParkNote, TablePhase};
use crate::{Lsn, RelationId, code};

impl Decoder {
    /// A table of which nothing is taken for long, and whose rows fill what all tables share, would stop its neighbours
    /// (P90): it is parked, and what waits of it is passed by, so that the slot moves on (P86). One that is slow is not.
    pub(super) fn park_backlogs(&mut self) {
        self.park_unfit();
        self.set_back_held();
        for (relation, parts, parked) in self.stuck() {
            self.set_aside(relation, parts, &parked);
        }
    }

    fn stuck(&self) -> Vec<(RelationId, Vec<PartitionId>, Parked)> {
        let (handover, patience) = (&self.shared.handover, self.shared.options.backlog_patience);
        let most = handover.bytes_max() / 4;
        let waited = |since: Instant| {
            let waited = self.now.saturating_duration_since(since);
            (waited >= patience).then_some(waited)
        };
        let stuck = self.tables.values().filter(|table| !table.is_parked).filter_map(|table| {
            let parts: Vec<_> = std::iter::once(table.stream).chain(table.copying).collect();
            let refused = || self.shared.refused(TableId(table.relation.0));
            // A stream that waits for its copy is no backlog, unless that copy's own rows are refused.
            let in_log = table.set_back.and_then(waited).filter(|_| refused().is_some());
            let in_memory = || {
                parts.iter().find_map(|partition| {
                    let (held, since) = handover.waiting_of(*partition)?;
                    let waited = waited(since).filter(|_| held >= most)?;
                    (!handover.is_held(*partition)).then_some((held, waited))
                })
            };
            let (what, waited) = match in_log {
                Some(waited) => ("its stream waits in the log for its copy".to_owned(), waited),
                None => {
                    let (held, waited) = in_memory()?;
                    (format!("{held} bytes of them wait, at most {most} may"), waited)
                }
            };
            let why = refused().map_or(String::new(), |cause| format!(" ({})", cause.text));
            let reason = format!("none of its rows was taken for {waited:.0?}{why}, and {what}");
            Some((table.relation, parts, Parked { code: code::BACKLOG, reason }))
        });
        stuck.collect()
    }

    /// Streams that wait for their copies share a quarter of what all tables share. Past it the longest is set back: its rows
    /// are dropped and no more are made, `through` stays below them, and the log is read again once the copy is settled. So
    /// a table that is long to copy and busy costs log at the server, and no neighbour its turn (P90).
    fn set_back_held(&mut self) {
        let most = self.shared.handover.bytes_max() / 4;
        while let Some((partition, bytes)) = self.shared.handover.set_back_past(most) {
            let Some(table) = self.tables.values_mut().find(|table| table.stream == partition) else { continue };
            table.set_back = Some(self.now);
            let relation = table.relation;
            tracing::info!(pipeline = %self.shared.options.pipeline, table = %table.target, bytes,
                "rows of the stream wait in the server's log until the table's copy is settled; the slot stands still meanwhile");
            // What is open of it goes with the rest: handed over now, it would stand for what was dropped before it.
            if let Some((partition, ready)) = self.rounds.cut_table(relation) {
                self.cut_before.push((partition, ready.end));
            }
        }
    }

    /// Tables that cannot be carried hold nothing up (P86).
    fn park_unfit(&mut self) {
        let unfit: Vec<(RelationId, Vec<PartitionId>, Parked)> = {
            let unfit = self.shared.unfit.borrow();
            let told = unfit.iter().filter_map(|(relation, cause)| {
                let table = self.tables.get(relation).filter(|table| !table.is_parked)?;
                let parts = std::iter::once(table.stream).chain(table.copying).collect();
                Some((*relation, parts, Parked { code: cause.code, reason: cause.text.to_string() }))
            });
            told.collect()
        };
        for (relation, parts, parked) in unfit {
            self.set_aside(relation, parts, &parked);
        }
    }

    /// Parks a table that takes nothing, and drops what waits of it once the note is stored.
    fn set_aside(&mut self, relation: RelationId, parts: Vec<PartitionId>, parked: &Parked) {
        self.show_commit();
        let at = self.shared.sight.lock().last_commit.map_or(Lsn::ZERO, |(lsn, _)| lsn);
        self.park(relation, at, parked);
        let shared = Arc::clone(&self.shared);
        let noted = self.answer.take();
        self.answer = Some(Box::pin(async move {
            if let Some(noted) = noted {
                noted.await;
            }
            shared.retire(parts);
            Answer::Stored
        }));
        self.shared.handover.nudge();
    }

    /// Sets a table aside. The note is stored before the first of its rows is passed by: nothing is read until it is.
    pub(super) fn park(&mut self, relation: RelationId, at: Lsn, parked: &Parked) {
        if let Some((partition, ready)) = self.rounds.cut_table(relation) {
            self.cut_before.push((partition, ready.end));
            self.hand_over(partition, ready);
        }
        let Some(table) = self.tables.get_mut(&relation) else { return };
        if std::mem::replace(&mut table.is_parked, true) {
            return;
        }
        let note = ParkNote { at, passed: at, code: parked.code.to_string(), reason: parked.reason.clone() };
        let mut is_new = false;
        let change = self.shared.change_record(|record| {
            // Its copy may have come before: one note, and one line of the log.
            if let Some(table) = record.table_mut(relation).filter(|table| table.phase != TablePhase::Parked) {
                table.phase = TablePhase::Parked;
                table.park = Some(note);
                is_new = true;
            }
        });
        if is_new {
            tracing::error!(pipeline = %self.shared.options.pipeline, table = %table.target, code = %parked.code, lsn = %at,
                "table parked, its neighbours go on: {}; `landfall tables CONFIG {} resync {}` copies it anew",
                parked.reason, self.shared.options.pipeline, table.target);
        }
        // At once: what is waited for here is begun only with the next record, which a quiet stream may not have for long.
        self.shared.want_stored();
        let shared = Arc::clone(&self.shared);
        self.wait(Box::pin(async move {
            shared.stored(change).await;
            Answer::Stored
        }));
    }
}
