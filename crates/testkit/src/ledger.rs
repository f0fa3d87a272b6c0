//! The ledger: what was acknowledged, and what a reader found, number by number.
//!
//! Each number is published once and never again, so a number found twice is a duplicate that Landfall made.

use std::collections::BTreeMap;

/// A growing set of numbers from 0, a bit each.
#[derive(Clone, Debug, Default)]
pub struct NumberSet {
    words: Vec<u64>,
    count: u64,
}

impl NumberSet {
    /// Adds a number; false if it was there.
    pub fn insert(&mut self, n: u64) -> bool {
        let word = usize::try_from(n / 64).unwrap_or(usize::MAX);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let Some(bits) = self.words.get_mut(word) else { return false };
        let new = *bits & (1 << (n % 64)) == 0;
        *bits |= 1 << (n % 64);
        self.count += u64::from(new);
        new
    }

    /// Whether a number is there.
    pub fn contains(&self, n: u64) -> bool {
        let word = usize::try_from(n / 64).unwrap_or(usize::MAX);
        self.words.get(word).is_some_and(|bits| bits & (1 << (n % 64)) != 0)
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// What happened to each number on the publishing side.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    acknowledged: NumberSet,
    unknown: NumberSet,
}

/// What a comparison found wrong; empty lists: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Acknowledged, and neither landed nor a dead letter.
    pub lost: Vec<u64>,
    /// Found more than once.
    pub duplicated: Vec<u64>,
    /// Found, and never sent.
    pub foreign: Vec<u64>,
    /// Landed although broken, or a dead letter although whole.
    pub misplaced: Vec<u64>,
}

impl Verdict {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        *self == Verdict::default()
    }
}

impl Ledger {
    /// A committed number.
    pub fn acknowledge(&mut self, n: u64) {
        self.acknowledged.insert(n);
    }

    /// A number that was sent and not answered: it may be there or not.
    pub fn leave_unknown(&mut self, n: u64) {
        self.unknown.insert(n);
    }

    /// How many were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.len()
    }

    /// How many are unknown.
    pub fn unknown(&self) -> u64 {
        self.unknown.len()
    }

    /// Compares with what was found: `landed` and `dead` list numbers as often as they were found; `is_broken` says
    /// which belong among the dead letters.
    pub fn judge(&self, landed: &[u64], dead: &[u64], is_broken: impl Fn(u64) -> bool) -> Verdict {
        let mut verdict = Verdict::default();
        let mut seen: BTreeMap<u64, u32> = BTreeMap::new();
        for (found, broken) in landed.iter().map(|n| (*n, false)).chain(dead.iter().map(|n| (*n, true))) {
            *seen.entry(found).or_default() += 1;
            if is_broken(found) != broken {
                verdict.misplaced.push(found);
            }
            if !self.acknowledged.contains(found) && !self.unknown.contains(found) {
                verdict.foreign.push(found);
            }
        }
        verdict.duplicated = seen.iter().filter(|(_, times)| **times > 1).map(|(n, _)| *n).collect();
        let end = self.acknowledged.words.len() as u64 * 64;
        verdict.lost = (0..end).filter(|n| self.acknowledged.contains(*n) && !seen.contains_key(n)).collect();
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a judge that lets a lost, doubled, foreign or misplaced number pass.
    #[test]
    fn each_kind_of_wrong_is_named() {
        let mut ledger = Ledger::default();
        (0..100).for_each(|n| ledger.acknowledge(n));
        (100..110).for_each(|n| ledger.leave_unknown(n));
        let broken = |n: u64| n % 50 == 49;
        let all: Vec<u64> = (0..105).filter(|n| !broken(*n)).collect();
        assert!(ledger.judge(&all, &[49, 99], broken).is_clean());
        let lost = ledger.judge(&all[1..], &[49], broken);
        assert_eq!(lost.lost, [0, 99]);
        let mut twice = all.clone();
        twice.push(7);
        assert_eq!(ledger.judge(&twice, &[49, 99], broken).duplicated, [7]);
        twice.push(200);
        assert_eq!(ledger.judge(&twice, &[49, 99], broken).foreign, [200]);
        assert_eq!(ledger.judge(&all, &[49, 99, 3], broken).misplaced, [3]);
    }
}
