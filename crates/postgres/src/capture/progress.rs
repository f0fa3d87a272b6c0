//! How far a source has come (P44, P97–P103): from the watermarks of partitions to one end LSN.
//!
//! Synchronous, and told everything. A round is what was cut at one position; `through` moves over whole rounds, in
//! order, once every partition of a round is settled to its end, and only to ends of transactions (P98). So an idle
//! table's old watermark holds nothing back, and a transaction is passed only when all of it is durable (P101).

use std::collections::{BTreeMap, VecDeque};

use landfall_types::{PartitionId, Place};

use crate::Lsn;

/// Rounds that are kept apart. Behind one that waits for long, as a table's whose copy takes hours, more of them are joined two
/// by two: `through` then moves in longer steps, and no further (I6).
const ROUNDS_MAX: usize = 4_096;

/// What was cut at one position.
#[derive(Debug)]
struct Round {
    /// Partitions with rows in it, and where those end.
    parts: Vec<(PartitionId, Place)>,
    /// The end LSN of the last transaction that is whole with it; `None` inside the first.
    end: Option<Lsn>,
}

impl Round {
    /// Both as one.
    fn join(&mut self, next: Round) {
        for (partition, end) in next.parts {
            match self.parts.iter_mut().find(|(known, _)| *known == partition) {
                Some((_, known)) => *known = end.max(*known),
                None => self.parts.push((partition, end)),
            }
        }
        self.end = next.end.max(self.end);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    through: Lsn,
    /// Not to be passed: what is about to begin reads from here on.
    hold: Option<Lsn>,
    rounds: VecDeque<Round>,
}

impl Progress {
    /// Starts at a checkpoint.
    pub(crate) fn new(through: Lsn) -> Self {
        Progress { through, ..Progress::default() }
    }

    /// Everything before it is settled.
    pub(crate) fn through(&self) -> Lsn {
        self.hold.map_or(self.through, |hold| hold.min(self.through))
    }

    /// `through` stays where it is: the log from here on is read again by what is about to begin.
    pub(crate) fn hold(&mut self) {
        self.hold = Some(self.through());
    }

    /// Nothing is about to begin any more.
    pub(crate) fn release(&mut self) {
        self.hold = None;
    }

    /// The stream starts again at a stored place, and may bring rows of tables that were not followed before: what was
    /// settled since is so no more.
    pub(crate) fn go_back(&mut self, stored: Lsn) {
        self.rounds.clear();
        self.through = stored;
    }

    /// Whether rows are on their way that are not settled.
    pub(crate) fn has_unsettled(&self) -> bool {
        !self.rounds.is_empty()
    }

    /// A round was cut. One without rows is settled at once, or goes with the one before it (P103).
    pub(crate) fn issued(&mut self, parts: Vec<(PartitionId, Place)>, end: Option<Lsn>) {
        if !parts.is_empty() {
            self.rounds.push_back(Round { parts, end });
            if self.rounds.len() > ROUNDS_MAX {
                self.join_pairs();
            }
            return;
        }
        match (self.rounds.back_mut(), end) {
            (Some(last), Some(_)) => last.end = end.max(last.end),
            (None, Some(end)) => self.through = self.through.max(end),
            (_, None) => {}
        }
    }

    fn join_pairs(&mut self) {
        let mut rounds = std::mem::take(&mut self.rounds).into_iter();
        while let Some(mut round) = rounds.next() {
            if let Some(next) = rounds.next() {
                round.join(next);
            }
            self.rounds.push_back(round);
        }
    }

    /// Nothing up to `end` is for us, and nothing is on its way (P45).
    pub(crate) fn idle(&mut self, end: Lsn) {
        if self.rounds.is_empty() {
            self.through = self.through.max(end);
        }
    }

    /// Below these places everything is durable in every sink, and what is stored says so. True if `through` moved.
    pub(crate) fn settled(&mut self, below: &BTreeMap<PartitionId, Place>) -> bool {
        let before = self.through();
        while let Some(round) = self.rounds.front_mut() {
            round.parts.retain(|(partition, end)| below.get(partition).is_none_or(|place| place < end));
            if !round.parts.is_empty() {
                break;
            }
            if let Some(end) = round.end {
                self.through = self.through.max(end);
            }
            self.rounds.pop_front();
        }
        self.through() > before
    }

    /// A partition is given up: nothing waits for it any more.
    pub(crate) fn forget(&mut self, partition: PartitionId) {
        for round in &mut self.rounds {
            round.parts.retain(|(known, _)| *known != partition);
        }
        self.settled(&BTreeMap::new());
    }

    /// The stream starts again at `through`: what was on its way comes again.
    pub(crate) fn restart(&mut self) {
        self.rounds.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn place(at: u64, within: u64) -> Place {
        Place { at, within }
    }

    fn below(places: &[(u32, Place)]) -> BTreeMap<PartitionId, Place> {
        places.iter().map(|(partition, place)| (PartitionId(*partition), *place)).collect()
    }

    /// Catches a checkpoint inside a transaction, or past a round that some table has not settled (P98, P101, I7).
    #[test]
    fn only_whole_transactions_that_every_table_has_settled_are_passed() {
        let mut progress = Progress::new(Lsn(10));
        progress.issued(vec![(PartitionId(1), place(20, 5))], None);
        progress.issued(vec![(PartitionId(1), place(30, 0)), (PartitionId(2), place(30, 0))], Some(Lsn(30)));
        assert!(!progress.settled(&below(&[(1, place(20, 5))])));
        assert!(!progress.settled(&below(&[(1, place(30, 0))])), "partition 2 is not known to be settled");
        assert!(!progress.settled(&below(&[(1, place(30, 0)), (2, place(29, 9))])));
        assert!(progress.settled(&below(&[(1, place(30, 0)), (2, place(30, 0))])));
        assert_eq!((progress.through(), progress.has_unsettled()), (Lsn(30), false));
    }

    /// Catches an idle table that holds everybody's progress, and an empty transaction that waits for an ack (P103).
    #[test]
    fn idle_tables_and_empty_transactions_hold_nothing() {
        let mut progress = Progress::new(Lsn(10));
        progress.issued(Vec::new(), Some(Lsn(15)));
        assert_eq!(progress.through(), Lsn(15));
        progress.issued(vec![(PartitionId(1), place(20, 0))], Some(Lsn(20)));
        progress.issued(Vec::new(), Some(Lsn(25)));
        progress.idle(Lsn(90));
        assert_eq!(progress.through(), Lsn(15), "rows are on their way");
        assert!(progress.settled(&below(&[(1, place(20, 0)), (2, Place::START)])));
        assert_eq!(progress.through(), Lsn(25));
        progress.idle(Lsn(90));
        assert_eq!(progress.through(), Lsn(90));
    }

    /// Catches memory that grows for as long as one table waits, and a checkpoint past it or short of it because of that (I6).
    #[test]
    fn however_long_one_table_waits_few_rounds_are_kept_and_none_is_passed_early() {
        let mut progress = Progress::new(Lsn(1));
        progress.issued(vec![(PartitionId(1), place(10, 0))], Some(Lsn(10)));
        let last = 100_000;
        for at in 11..=last {
            // Of a transaction, its first part is cut inside.
            progress.issued(vec![(PartitionId(2), place(at, 5))], None);
            progress.issued(
                vec![(PartitionId(2), place(at + 1, 0)), (PartitionId(3), place(at + 1, 0))],
                Some(Lsn(at + 1)),
            );
            assert!(progress.rounds.len() <= ROUNDS_MAX);
        }
        let half = last / 2;
        progress.settled(&below(&[(2, place(half, 0)), (3, place(half, 0))]));
        assert_eq!(progress.through(), Lsn(1), "the first waits");
        progress.settled(&below(&[(1, place(10, 0)), (2, place(half, 0)), (3, place(half, 0))]));
        assert!(progress.through() <= Lsn(half), "{}", progress.through());
        progress.settled(&below(&[(2, place(last + 1, 0)), (3, place(last, 0))]));
        assert!(progress.through() <= Lsn(last), "{}", progress.through());
        progress.settled(&below(&[(1, place(10, 0)), (2, place(last + 1, 0)), (3, place(last + 1, 0))]));
        assert_eq!((progress.through(), progress.has_unsettled()), (Lsn(last + 1), false));
    }

    /// Catches a log that is let go of although a table begins in the middle of it, and one that is held for ever.
    #[test]
    fn what_is_held_is_passed_only_after_it_is_read_again() {
        let mut progress = Progress::new(Lsn(10));
        progress.hold();
        progress.issued(vec![(PartitionId(1), place(20, 0))], Some(Lsn(20)));
        assert!(!progress.settled(&below(&[(1, place(20, 0))])));
        assert_eq!(progress.through(), Lsn(10));
        let mut released = Progress::new(Lsn(10));
        released.hold();
        released.idle(Lsn(40));
        assert_eq!(released.through(), Lsn(10));
        released.release();
        assert_eq!(released.through(), Lsn(40), "nothing begins there: what was settled is");
        progress.go_back(Lsn(10));
        progress.release();
        progress.idle(Lsn(15));
        assert_eq!(progress.through(), Lsn(15));
    }

    /// Catches a table that was given up and holds the slot for ever.
    #[test]
    fn a_partition_that_is_given_up_holds_nothing() {
        let mut progress = Progress::new(Lsn(1));
        progress.issued(vec![(PartitionId(1), place(5, 0)), (PartitionId(2), place(5, 0))], Some(Lsn(5)));
        progress.settled(&below(&[(2, place(5, 0))]));
        progress.forget(PartitionId(1));
        assert_eq!(progress.through(), Lsn(5));
    }

    proptest! {
        /// Catches any order of acks that lets `through` pass a row that is not settled.
        #[test]
        fn through_never_passes_an_unsettled_row(
            rounds in prop::collection::vec(prop::collection::vec(0u32..4, 0..4), 1..12),
            acks in prop::collection::vec((0u32..4, 0usize..12), 0..40),
        ) {
            let mut progress = Progress::new(Lsn(0));
            let mut ends = Vec::new();
            for (number, tables) in rounds.iter().enumerate() {
                let end = Lsn((number as u64 + 1) * 10);
                let mut parts: Vec<_> = tables.iter().map(|table| (PartitionId(*table), place(end.0, 0))).collect();
                parts.sort_unstable();
                parts.dedup();
                ends.push((end, parts.clone()));
                progress.issued(parts, Some(end));
            }
            let mut settled: BTreeMap<PartitionId, Place> = BTreeMap::new();
            for (table, round) in acks {
                let mark = settled.entry(PartitionId(table)).or_default();
                *mark = (*mark).max(place((round as u64 + 1) * 10, 0));
                progress.settled(&settled);
                let is_settled = |(_, parts): &(Lsn, Vec<(PartitionId, Place)>)| {
                    parts.iter().all(|(part, end)| settled.get(part).is_some_and(|mark| mark >= end))
                };
                let expected = ends.iter().take_while(|round| is_settled(round)).last().map_or(Lsn(0), |(end, _)| *end);
                prop_assert_eq!(progress.through(), expected);
            }
        }
    }
}
