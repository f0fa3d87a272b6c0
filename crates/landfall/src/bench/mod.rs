//! `landfall bench`: each measure against its limit in the same run, contents verified.
//!
//! Rounds of ours and of the limit alternate in short pairs, and the ratio is the median of the pairs' own ratios: a
//! disk that changes between fast and slow by the second would otherwise show one side fast and the other slow. The
//! first pair is dropped. The middle nine tenths of the pairs' ratios stand beside the ratio (`ratio_low`,
//! `ratio_high`): where they lie far apart, the machine was too busy for the ratio to mean anything.

mod cdc;
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
    ratio_low: f64,
    ratio_high: f64,
    pairs: usize,
    verified: bool,
}

impl Line {
    /// A case of `pairs`: ours and the limit's, measured next to each other.
    fn of(
        bench: &'static str,
        case: String,
        unit: &'static str,
        against: &'static str,
        pairs: &[(f64, f64)],
        verified: bool,
    ) -> Line {
        let ratios: Vec<f64> = pairs.iter().map(|(ours, limit)| ours / limit).collect();
        let of = |pick: fn(&(f64, f64)) -> f64| median(&pairs.iter().map(pick).collect::<Vec<_>>());
        Line {
            bench,
            case,
            value: of(|pair| pair.0),
            unit,
            against,
            against_value: of(|pair| pair.1),
            ratio: median(&ratios),
            ratio_low: quantile(&ratios, 0.05),
            ratio_high: quantile(&ratios, 0.95),
            pairs: pairs.len(),
            verified,
        }
    }

    fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            stdout::line(serde_json::to_string(self)?)?;
        } else {
            stdout::line(format!(
                "{:<9} {:<22} {:>12.1} {:<10} against {:<34} {:>12.1}   ratio {:.2} ({:.2} to {:.2})   {}",
                self.bench,
                self.case,
                self.value,
                self.unit,
                self.against,
                self.against_value,
                self.ratio,
                self.ratio_low,
                self.ratio_high,
                if self.verified { "verified" } else { "NOT VERIFIED" }
            ))?;
        }
        Ok(())
    }
}

/// Runs one bench; fails if what was read is not what was written.
pub(crate) fn run(args: &BenchArgs) -> anyhow::Result<Exit> {
    let workspace = Workspace::new(args.dir.clone())?;
    // Who publishes runs here; a core stays for the threads that commit and encode.
    let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let threads = match args.name {
        // The queue has one task on either side of it.
        BenchName::Cdc => cores.clamp(2, 8),
        BenchName::Channel | BenchName::Pipeline => (cores - 1).clamp(1, 8),
    };
    let runtime = crate::run::runtime(threads)?;
    let verified = match args.name {
        BenchName::Channel => channel::run(args, &workspace, &runtime)?,
        BenchName::Pipeline => pipeline::run(args, &workspace, &runtime)?,
        BenchName::Cdc => cdc::run(args, &runtime)?,
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

/// The value below which a fraction of all lies; the nearest one there is.
fn quantile(values: &[f64], fraction: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (fraction * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
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
        assert_eq!(quantile(&[5.0, 1.0, 3.0], 0.05), 1.0);
        assert_eq!(quantile(&[5.0, 1.0, 3.0], 0.95), 5.0);
    }

    /// Would catch a ratio of medians: a disk that is slow in every other pair makes that one 10 here, though both
    /// sides are equally fast in each pair.
    #[test]
    fn a_ratio_is_that_of_neighbours_in_time() {
        let pairs = [(100.0, 100.0), (10.0, 10.0), (100.0, 100.0), (10.0, 10.0), (100.0, 100.0)];
        let line = Line::of("b", "c".to_owned(), "u", "a", &pairs, true);
        assert_eq!((line.ratio, line.ratio_low, line.ratio_high, line.pairs), (1.0, 1.0, 1.0, 5));
        let apart = Line::of("b", "c".to_owned(), "u", "a", &[(100.0, 10.0), (10.0, 100.0), (50.0, 50.0)], true);
        assert!(apart.ratio_low < 0.2 && apart.ratio_high > 5.0, "a busy machine shows in the interval");
    }
}
