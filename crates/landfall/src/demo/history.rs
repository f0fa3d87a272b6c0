//! Which numbers were ever published into a demo's directory, kept beside the data.
//!
//! A range is written down before its first record is published and marked complete after its last acknowledgement,
//! so a run that was interrupted or killed leaves a range whose records may be there or not, but never twice.

use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

const FILE: &str = "demo.json";
const SEED: u64 = 7;

/// What the file holds.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    seed: u64,
    next: u64,
    /// Ranges whose every record was acknowledged, merged where they touch.
    complete: Vec<(u64, u64)>,
}

/// The history of one directory.
#[derive(Debug)]
pub(super) struct History {
    path: PathBuf,
    kept: Kept,
}

impl History {
    /// Reads what is there.
    pub(super) fn open(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(FILE);
        let kept = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("{} is not what the demo wrote; use another --data-dir", path.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Kept { seed: SEED, next: 0, complete: Vec::new() }
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        Ok(History { path, kept })
    }

    /// The generator's seed.
    pub(super) fn seed(&self) -> u64 {
        self.kept.seed
    }

    /// The end of all numbers ever taken.
    pub(super) fn published(&self) -> u64 {
        self.kept.next
    }

    /// Takes the next numbers, durably.
    pub(super) fn begin(&mut self, records: u64) -> anyhow::Result<Range<u64>> {
        // Another run may have ended between our reading and our getting the directory's LOCK.
        *self = History::open(self.path.parent().unwrap_or(Path::new(".")))?;
        let end = self.kept.next.checked_add(records).context("this directory has used up all numbers")?;
        let range = self.kept.next..end;
        self.kept.next = end;
        self.write()?;
        Ok(range)
    }

    /// Every record of the range was acknowledged.
    pub(super) fn complete(&mut self, range: &Range<u64>) -> anyhow::Result<()> {
        match self.kept.complete.last_mut() {
            Some((_, end)) if *end == range.start => *end = range.end,
            _ => self.kept.complete.push((range.start, range.end)),
        }
        self.write()
    }

    /// Whether a number's record was acknowledged.
    pub(super) fn is_complete(&self, n: u64) -> bool {
        self.kept.complete.iter().any(|(start, end)| (*start..*end).contains(&n))
    }

    fn write(&self) -> anyhow::Result<()> {
        use std::io::Write;
        let beside = self.path.with_extension("json.new");
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(&serde_json::to_vec(&self.kept)?)?;
        file.sync_all()?;
        std::fs::rename(&beside, &self.path)?;
        if let Some(dir) = self.path.parent() {
            std::fs::File::open(dir)?.sync_all()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a re-run that publishes a number a second time, or counts an interrupted run's records as lost.
    #[test]
    fn a_rerun_goes_on_at_the_next_number_and_an_interrupted_one_is_not_complete() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut first = History::open(dir.path()).expect("new");
        assert_eq!(first.begin(10).expect("begin"), 0..10);
        first.complete(&(0..10)).expect("complete");
        let mut killed = History::open(dir.path()).expect("reopen");
        assert_eq!(killed.begin(5).expect("begin"), 10..15);
        drop(killed);
        let mut third = History::open(dir.path()).expect("reopen");
        assert_eq!(third.begin(5).expect("begin"), 15..20);
        third.complete(&(15..20)).expect("complete");
        let read = History::open(dir.path()).expect("reopen");
        assert_eq!(read.published(), 20);
        assert!(read.is_complete(9) && !read.is_complete(10) && !read.is_complete(14) && read.is_complete(19));
        std::fs::write(dir.path().join(FILE), b"{").expect("write");
        assert!(History::open(dir.path()).is_err());
    }
}
