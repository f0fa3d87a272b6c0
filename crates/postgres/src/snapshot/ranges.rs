//! Ranges of a table's heap: planned, and done.

use serde::{Deserialize, Serialize};

use crate::RelationId;
use crate::catalog::TableFacts;

/// The blocks that one COPY reads. The last range of a leaf is open-ended: the heap may have grown since it was
/// measured, and rows of the snapshot may stand there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CopyRange {
    /// The table: a partitioned table's root.
    pub table: RelationId,
    /// The relation that holds the rows.
    pub leaf: RelationId,
    /// Its number inside the table, from 0.
    pub number: u32,
    /// The first block.
    pub from_block: u32,
    /// The block after the last; `None` for all that follow.
    pub to_block: Option<u32>,
    /// How much heap it is, for progress.
    pub heap_bytes: u64,
}

/// Blocks whose rows were all issued, or issued and acked: who keeps it says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopiedRange {
    /// The relation that holds the rows.
    pub leaf: RelationId,
    /// The first block.
    pub from_block: u32,
    /// The block after the last; `None` for all that follow.
    pub to_block: Option<u32>,
    /// How many rows it had.
    pub rows: u64,
}

/// Done ranges, neighbours joined, so that a large table's record stays small.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CopiedRanges(Vec<CopiedRange>);

impl CopiedRanges {
    /// Adds a range that no other overlaps.
    pub fn insert(&mut self, range: CopiedRange) {
        let at = self.0.partition_point(|other| (other.leaf.0, other.from_block) < (range.leaf.0, range.from_block));
        self.0.insert(at, range);
        self.join(at);
        if let Some(before) = at.checked_sub(1) {
            self.join(before);
        }
    }

    /// Joins the range at `at` with the next, if they touch.
    fn join(&mut self, at: usize) {
        let (Some(range), Some(next)) = (self.0.get(at).copied(), self.0.get(at + 1).copied()) else { return };
        if range.leaf == next.leaf && range.to_block == Some(next.from_block) {
            self.0.remove(at + 1);
            if let Some(range) = self.0.get_mut(at) {
                range.to_block = next.to_block;
                range.rows = range.rows.saturating_add(next.rows);
            }
        }
    }

    /// Whether all blocks of a range are done.
    pub fn contains(&self, range: &CopyRange) -> bool {
        self.0.iter().any(|done| {
            done.leaf == range.leaf
                && done.from_block <= range.from_block
                && match (done.to_block, range.to_block) {
                    (None, _) => true,
                    (Some(_), None) => false,
                    (Some(done), Some(end)) => end <= done,
                }
        })
    }

    /// Rows in all ranges.
    pub fn rows(&self) -> u64 {
        self.0.iter().map(|range| range.rows).sum()
    }

    /// The ranges, by leaf and block.
    pub fn iter(&self) -> impl Iterator<Item = &CopiedRange> {
        self.0.iter()
    }
}

/// A table's ranges of about `range_bytes`, without those that are done. Every leaf has at least one.
pub fn plan_ranges(table: &TableFacts, block_bytes: u32, range_bytes: u64, done: &CopiedRanges) -> Vec<CopyRange> {
    let block_bytes = u64::from(block_bytes.max(1));
    let blocks_per_range = u32::try_from((range_bytes / block_bytes).max(1)).unwrap_or(u32::MAX);
    let mut ranges = Vec::new();
    let mut number = 0_u32;
    for leaf in table.leaves.iter().filter(|leaf| !leaf.is_foreign) {
        let blocks = u32::try_from(leaf.heap_bytes.div_ceil(block_bytes)).unwrap_or(u32::MAX);
        let mut from_block = 0_u32;
        loop {
            let to_block = from_block.checked_add(blocks_per_range).filter(|end| *end < blocks);
            let measured = u64::from(to_block.unwrap_or(blocks).saturating_sub(from_block)) * block_bytes;
            ranges.push(CopyRange {
                table: table.shape.relation,
                leaf: leaf.relation,
                number,
                from_block,
                to_block,
                heap_bytes: measured,
            });
            number = number.saturating_add(1);
            match to_block {
                Some(end) => from_block = end,
                None => break,
            }
        }
    }
    ranges.retain(|range| !done.contains(range));
    ranges
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::catalog::LeafFacts;
    use crate::fixtures;

    fn table(heaps: &[u64]) -> TableFacts {
        let leaf = |(at, heap_bytes): (usize, &u64)| LeafFacts {
            heap_bytes: *heap_bytes,
            ..fixtures::leaf(100 + at as u32, "leaf")
        };
        TableFacts { leaves: heaps.iter().enumerate().map(leaf).collect(), ..fixtures::table(1, "t") }
    }

    /// Catches an empty table that gets no COPY at all, and a last range that ends where the heap was measured.
    #[test]
    fn the_last_range_of_every_leaf_is_open() {
        let ranges = plan_ranges(&table(&[0, 8_192 * 10]), 8_192, 8_192 * 4, &CopiedRanges::default());
        let ends: Vec<_> = ranges.iter().map(|range| (range.leaf.0, range.from_block, range.to_block)).collect();
        assert_eq!(ends, [(100, 0, None), (101, 0, Some(4)), (101, 4, Some(8)), (101, 8, None)]);
    }

    proptest! {
        /// Catches a block that two ranges read or none, and a done range that is planned again.
        #[test]
        fn every_block_is_in_exactly_one_range(
            heaps in proptest::collection::vec(0_u64..200 * 8_192, 1..4),
            range in 1_u64..64 * 8_192,
            order in any::<proptest::sample::Index>(),
            finish in 0_usize..40,
        ) {
            let table = table(&heaps);
            let all = plan_ranges(&table, 8_192, range, &CopiedRanges::default());
            for leaf in &table.leaves {
                let mut next = Some(0);
                for range in all.iter().filter(|range| range.leaf == leaf.relation) {
                    prop_assert_eq!(next, Some(range.from_block));
                    next = range.to_block;
                }
                prop_assert_eq!(next, None);
            }
            let mut done = CopiedRanges::default();
            let mut rows = 0;
            let start = order.index(all.len());
            let finished: Vec<_> = all.iter().cycle().skip(start).take(finish.min(all.len())).collect();
            for range in &finished {
                rows += 1;
                let CopyRange { leaf, from_block, to_block, .. } = **range;
                done.insert(CopiedRange { leaf, from_block, to_block, rows: 1 });
            }
            prop_assert_eq!(done.rows(), rows);
            let left = plan_ranges(&table, 8_192, range, &done);
            prop_assert_eq!(left.len() + finished.len(), all.len());
            prop_assert!(left.iter().all(|range| !finished.contains(&range)));
            // Neighbours are joined: no more pieces than gaps allow.
            prop_assert!(done.iter().count() <= 2 * table.leaves.len() + 1);
        }
    }
}
