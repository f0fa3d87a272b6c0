//! The account of a demo's directory: every number found in the table or among the dead letters, a bit each.
//!
//! Independent of the engine: the table is read from its own log and Parquet files, the dead letters from their
//! channel. Memory is a bit per number ever published, whatever a record's size.

use std::ops::Range;

use anyhow::Context;
use arrow_array::Array;
use arrow_array::cast::AsArray;
use landfall_delta::TableFiles;
use landfall_types::{Offset, PartitionId};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::history::History;
use crate::assembly::Running;
use crate::storefront;

/// What was found so far.
#[derive(Debug)]
pub(super) struct Account {
    seen: Vec<u64>,
    published: u64,
    run: Range<u64>,
    verdict: Verdict,
}

/// What the account says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Of this run: in the table.
    pub(super) landed: u64,
    /// Of this run: named dead letters.
    pub(super) dead_lettered: u64,
    /// Of all runs: acknowledged and nowhere.
    pub(super) lost: u64,
    /// Of all runs: found once more than they were published.
    pub(super) duplicates: u64,
    /// Rows of the table.
    pub(super) table_rows: u64,
    /// Found, and never published here.
    foreign: u64,
    /// In the table although broken, or set aside although whole, or without a cause.
    misplaced: u64,
}

impl Verdict {
    /// Whether nothing is wrong.
    pub(super) fn is_clean(&self) -> bool {
        self.lost == 0 && self.duplicates == 0 && self.foreign == 0 && self.misplaced == 0
    }
}

impl Account {
    /// An account of numbers below `published`, with the ones of this run.
    pub(super) fn new(published: u64, run: Range<u64>) -> Self {
        let words = usize::try_from(published.div_ceil(64)).unwrap_or(usize::MAX);
        Account { seen: vec![0; words], published, run, verdict: Verdict::default() }
    }

    fn find(&mut self, n: Option<u64>, is_dead: bool) {
        let Some(n) = n.filter(|n| *n < self.published) else {
            self.verdict.foreign += 1;
            return;
        };
        if storefront::fault(n).is_some() != is_dead {
            self.verdict.misplaced += 1;
        }
        let Some(word) = usize::try_from(n / 64).ok().and_then(|at| self.seen.get_mut(at)) else { return };
        let bit = 1 << (n % 64);
        if *word & bit != 0 {
            self.verdict.duplicates += 1;
            return;
        }
        *word |= bit;
        if self.run.contains(&n) {
            if is_dead {
                self.verdict.dead_lettered += 1;
            } else {
                self.verdict.landed += 1;
            }
        }
    }

    /// Reads the dead-letter channel from its first record to its tail.
    pub(super) async fn read_dead_letters(&mut self, running: &Running, channel: &str) -> anyhow::Result<()> {
        const PAGE_RECORDS: u32 = 1_000;
        const PAGE_BYTES: usize = 4 << 20;
        let channel = running.channel(channel).context("the dead-letter channel is open")?;
        for partition in (0..channel.partitions()).map(PartitionId) {
            let mut at = channel.log_start(partition).unwrap_or(Offset::ZERO);
            let end = channel.tail(partition).unwrap_or(Offset::ZERO);
            while at < end {
                let page = channel.read(partition, at, PAGE_RECORDS, PAGE_BYTES).await?;
                let last = page.last().context("a page below the tail has a record")?.offset;
                for delivered in page {
                    let is_named = delivered.record.headers.iter().any(|header| &*header.name == "landfall-code");
                    if !is_named {
                        self.verdict.misplaced += 1;
                    }
                    self.find(storefront::number_of(&delivered.record.payload), true);
                }
                at = Offset(last.get() + 1);
            }
        }
        Ok(())
    }

    /// Reads the one column that names the record from every file of the table.
    pub(super) fn read_table(mut self, files: &TableFiles) -> anyhow::Result<Self> {
        for file in &files.files {
            let opened = std::fs::File::open(&file.path)
                .with_context(|| format!("cannot read the table's file {}", file.path.display()))?;
            let builder = ParquetRecordBatchReaderBuilder::try_new(opened)?;
            let mask = ProjectionMask::columns(builder.parquet_schema(), ["event_id"]);
            for batch in builder.with_projection(mask).with_batch_size(8_192).build()? {
                let batch = batch?;
                let ids = batch.column(0).as_string_opt::<i32>().context("`event_id` is text in the table")?;
                self.verdict.table_rows += ids.len() as u64;
                for id in ids {
                    self.find(id.and_then(|text| text.parse().ok()), false);
                }
            }
        }
        Ok(self)
    }

    /// What is missing is only known when everything was read.
    pub(super) fn verdict(&self, history: &History) -> Verdict {
        let mut verdict = self.verdict.clone();
        for (at, word) in self.seen.iter().enumerate() {
            let first = at as u64 * 64;
            if *word == u64::MAX {
                continue;
            }
            let missing =
                (0..64).map(|bit| (bit, first + bit)).filter(|(bit, n)| word & (1 << bit) == 0 && *n < self.published);
            verdict.lost += missing.filter(|(_, n)| history.is_complete(*n)).count() as u64;
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch an account that lets a lost, doubled, foreign or misplaced record pass.
    #[test]
    fn every_kind_of_wrong_is_counted() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut history = History::open(dir.path()).expect("new");
        let range = history.begin(2_000).expect("begin");
        history.complete(&range).expect("complete");
        let fill = |skip: &[u64]| {
            let mut account = Account::new(2_000, 1_000..2_000);
            (0..2_000u64)
                .filter(|n| !skip.contains(n))
                .for_each(|n| account.find(Some(n), storefront::fault(n).is_some()));
            account
        };
        let clean = fill(&[]).verdict(&history);
        assert!(clean.is_clean());
        assert_eq!((clean.landed, clean.dead_lettered), (999, 1));
        assert_eq!(fill(&[3, 1_999]).verdict(&history).lost, 2);
        let mut account = fill(&[]);
        account.find(Some(5), false);
        account.find(Some(2_000), false);
        account.find(None, true);
        let verdict = account.verdict(&history);
        assert_eq!((verdict.duplicates, verdict.foreign), (1, 2));
        let mut account = fill(&[6]);
        account.find(Some(6), true);
        assert_eq!(account.verdict(&history).misplaced, 1);
    }
}
