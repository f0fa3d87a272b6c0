//! `landfall bench`: each measure against its limit in the same run, contents verified.
//!
//! Rounds of ours and of the limit alternate, so that a disk or a neighbour that slows down slows both; the first
//! pair is dropped; a case's value is the median of its rounds.

mod channel;
mod pipeline;
mod raw_log;

use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

use crate::cli::{BenchArgs, BenchName};
use crate::exit::Exit;
use crate::stdout;

/// One case's line.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    bench: &'static str,
    case: String,
    value: f64,
    unit: &'static str,
    against: &'static str,
    against_value: f64,
    ratio: f64,
    verified: bool,
}

impl Line {
    fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            stdout::line(serde_json::to_string(self)?)?;
        } else {
            stdout::line(format!(
                "{:<9} {:<22} {:>12.1} {:<10} against {:<34} {:>12.1}   ratio {:.2}   {}",
                self.bench,
                self.case,
                self.value,
                self.unit,
                self.against,
                self.against_value,
                self.ratio,
                if self.verified { "verified" } else { "NOT VERIFIED" }
            ))?;
        }
        Ok(())
    }
}

/// Runs one bench; fails if what was read is not what was written.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<Exit> {
    let workspace = Workspace::new(args.dir.clone())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let verified = match args.name {
        BenchName::Channel => channel::run(args, &workspace, &runtime)?,
        BenchName::Pipeline => pipeline::run(args, &workspace, &runtime)?,
    };
    Ok(if verified { Exit::Ok } else { Exit::Failed })
}

/// A directory of its own on the disk that is measured; gone afterwards.
struct Workspace {
    path: PathBuf,
}

impl Workspace {
    fn new(parent: Option<PathBuf>) -> anyhow::Result<Self> {
        let parent = parent.unwrap_or_else(|| PathBuf::from("."));
        let path = parent.join(format!("landfall-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot make the directory {}", path.display()))?;
        Ok(Workspace { path })
    }

    fn folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.path.join(name);
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("could not remove {}: {error}", self.path.display());
        }
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len(), sorted.len() / 2) {
        (0, _) => 0.0,
        (len, half) if len % 2 == 1 => sorted.get(half).copied().unwrap_or(0.0),
        (_, half) => {
            let (low, high) = (sorted.get(half - 1).copied().unwrap_or(0.0), sorted.get(half).copied().unwrap_or(0.0));
            f64::midpoint(low, high)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a median that is a mean, or one of the wrong element.
    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 100.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
