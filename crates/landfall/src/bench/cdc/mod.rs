//! Change capture against its peers on the same server, in the same run (`cdc.md` §14).
//!
//! Streaming into the null sink against `pg_recvlogical` over the same log: the walsender is the limit of both. Our
//! processor time against the walsender's. The queue alone against a plain channel. The copy, to Arrow, against `psql`
//! that writes the same ranges to /dev/null as text. Memory during one large transaction against that during many small
//! ones; asked for by name, that of 5,000,000 rows against 50,000. Numbers of rows are checked against what was written.
//! The server is one of its own and gone afterwards.

mod copy;
mod stream;

use tokio::runtime::Runtime;

use super::Line;
use crate::cli::{BenchArgs, CdcPart};
use crate::cluster::Cluster;

pub(super) const BENCH: &str = "cdc";

/// How much of each is done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Amounts {
    /// Measured pairs; one more is done before them to warm up.
    pairs: usize,
    /// Transactions of one insert and one update.
    small_transactions: u64,
    /// Rows of the one large insert.
    large_rows: u64,
    /// Rows of the one large update.
    updated_rows: u64,
    /// Rows of a transaction that no memory may depend on, and of one that is no burden.
    memory_rows: (u64, u64),
    /// Rows of the narrow table that is copied; the wide one has a fifth.
    copied_rows: u64,
    /// Log records through the queue.
    queued_records: u64,
}

const WHOLE: Amounts = Amounts {
    pairs: 3,
    small_transactions: 100_000,
    large_rows: 400_000,
    updated_rows: 200_000,
    memory_rows: (5_000_000, 50_000),
    copied_rows: 2_000_000,
    queued_records: 3_000_000,
};

const QUICK: Amounts = Amounts {
    pairs: 1,
    small_transactions: 500,
    large_rows: 5_000,
    updated_rows: 2_000,
    memory_rows: (50_000, 5_000),
    copied_rows: 20_000,
    queued_records: 50_000,
};

pub(super) fn run(args: &BenchArgs, runtime: &Runtime) -> anyhow::Result<bool> {
    let amounts = if args.quick { QUICK } else { WHOLE };
    let mut verified = true;
    let mut print = |line: Line| -> anyhow::Result<()> {
        verified &= line.verified;
        line.print(args.json)
    };
    let is_wanted = |part| args.only.map_or(part != CdcPart::Large, |only| only == part);
    if is_wanted(CdcPart::Queue) {
        print(runtime.block_on(queue(&amounts))?)?;
    }
    if args.only == Some(CdcPart::Queue) {
        return Ok(verified);
    }
    let cluster = Cluster::start()?;
    runtime.block_on(async {
        let bench = stream::StreamBench::open(&cluster, amounts).await?;
        if is_wanted(CdcPart::Stream) {
            for line in bench.run().await? {
                print(line)?;
            }
        }
        if is_wanted(CdcPart::Copy) {
            for line in copy::run(&cluster, bench.options(), &amounts).await? {
                print(line)?;
            }
        }
        if is_wanted(CdcPart::Large) {
            print(bench.large().await?)?;
        }
        anyhow::Ok(())
    })?;
    Ok(verified)
}

/// The queue alone. It verifies contents itself: a difference is an error.
async fn queue(amounts: &Amounts) -> anyhow::Result<Line> {
    let mut pairs = Vec::new();
    for _ in 0..amounts.pairs {
        let result = landfall_postgres::bench_queue(amounts.queued_records, 200).await?;
        pairs.push((result.queue_per_second, result.channel_per_second));
    }
    Ok(Line::of(BENCH, "queue, 200 B".to_owned(), "records/s", "plain bounded channel", &pairs, true))
}
