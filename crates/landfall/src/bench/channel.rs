//! Publish against raw append and `fdatasync` of the same batch sizes.
//!
//! Publishers wait for each acknowledgement before they send the next record, so P publishers of a partition make turns of
//! up to P records; the limit writes P records at a time, with a file and a thread for each partition. Both sides have made
//! what they write before the clock starts. Afterwards every record is read back in offset order, and a chain of checksums
//! over what was read is compared with one over what each publisher was told it had committed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use landfall_channel::{Channel, ChannelOptions, Channels, ProcessOptions, PublishOptions, PublishOutcome, Record};
use landfall_state::{DataDirLock, StateStore};
use landfall_types::{Offset, PartitionId, SystemClock};
use tokio::runtime::Runtime;

use super::raw_log::RawLog;
use super::{Line, Workspace, median};
use crate::cli::BenchArgs;

const RECORD_BYTES: usize = 256;
/// Publishers and partitions.
const CASES: [(usize, u32); 6] = [(1, 1), (16, 1), (64, 1), (512, 1), (64, 16), (512, 16)];
const RAW_BYTES: u64 = 64 << 20;
const AGAINST: &str = "raw append + fdatasync";

struct Plan {
    rounds: usize,
    /// How long a round of either side takes, about.
    round: Duration,
}

pub(super) fn run(args: &BenchArgs, workspace: &Workspace, runtime: &Runtime) -> anyhow::Result<bool> {
    let plan = if args.quick {
        Plan { rounds: 2, round: Duration::from_millis(50) }
    } else {
        Plan { rounds: 40, round: Duration::from_millis(100) }
    };
    let data_dir = workspace.folder("data")?;
    let lock = DataDirLock::acquire(&data_dir, &SystemClock)?;
    let state = StateStore::open(&lock)?;
    let configs =
        [1, 16].map(|partitions| (name(partitions), ChannelOptions { partitions, ..ChannelOptions::default() }));
    let clock = Arc::new(SystemClock);
    // The channel's threads start on the runtime's clock and wake its tasks.
    let channels = {
        let _inside = runtime.enter();
        Channels::open(&data_dir, configs.into(), ProcessOptions::default(), state.handle(), clock)?
    };
    let mut all_verified = true;
    for (publishers, partitions) in CASES {
        let channel = channels.get(&name(partitions)).context("the channel was just opened")?;
        let mut raw = RawLog::prepare_all(&workspace.path, partitions, RAW_BYTES)?;
        let (line, latency) = case(publishers, &plan, &channel, &mut raw, runtime)?;
        all_verified &= line.verified;
        line.print(args.json)?;
        if let Some(latency) = latency {
            latency.print(args.json)?;
        }
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    runtime.block_on(channels.drain(deadline));
    channels.close();
    state.close();
    Ok(all_verified)
}

fn name(partitions: u32) -> String {
    format!("bench-{partitions}")
}

/// One number of publishers. A lone publisher's median latency is a case of its own.
fn case(
    publishers: usize,
    plan: &Plan,
    channel: &Channel,
    raw: &mut [RawLog],
    runtime: &Runtime,
) -> anyhow::Result<(Line, Option<Line>)> {
    let partitions = channel.partitions();
    let together = (publishers / partitions as usize).max(1);
    let batch: Vec<u8> = (0..together).flat_map(|at| payload(at as u64, 0).to_vec()).collect();
    let (mut rates, mut latencies, mut verified) = (Vec::new(), Vec::new(), true);
    for round in 0..=plan.rounds {
        let (raw_rate, raw_latencies) = raw_round(raw, &batch, together, plan.round)?;
        let published = runtime.block_on(our_round(channel, publishers, plan.round))?;
        verified &= runtime.block_on(reads_back(channel, &published))?;
        if round > 0 {
            rates.push((published.records.len() as f64 / published.took.as_secs_f64(), raw_rate));
            latencies.push((median(&published.latencies_us), median(&raw_latencies)));
        }
    }
    let mut label = format!("publishers={publishers}");
    if partitions > 1 {
        label.push_str(&format!(" partitions={partitions}"));
    }
    let rate = Line::of("channel", label, "records/s", AGAINST, &rates, verified);
    let latency = (publishers == 1)
        .then(|| Line::of("channel", "lone publish p50".to_owned(), "us", AGAINST, &latencies, verified));
    Ok((rate, latency))
}

/// A publisher sends so many payloads in turn.
const PAYLOADS: u64 = 64;

fn payload(publisher: u64, n: u64) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    let mut word = (publisher * PAYLOADS + n % PAYLOADS).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for chunk in bytes.chunks_exact_mut(8) {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// A thread for each file.
fn raw_round(raw: &mut [RawLog], batch: &[u8], records: usize, round: Duration) -> anyhow::Result<(f64, Vec<f64>)> {
    let start = Instant::now();
    let append = |raw: &mut RawLog| -> anyhow::Result<Vec<f64>> {
        let mut latencies = Vec::new();
        while start.elapsed() < round {
            latencies.push(raw.append(batch)?.as_secs_f64() * 1e6);
        }
        Ok(latencies)
    };
    let latencies: Vec<f64> = std::thread::scope(|scope| {
        let threads: Vec<_> = raw.iter_mut().map(|raw| scope.spawn(|| append(raw))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect::<anyhow::Result<Vec<_>>>()
    })?
    .concat();
    Ok(((latencies.len() * records) as f64 / start.elapsed().as_secs_f64(), latencies))
}

/// What a round committed: by partition and offset, which record it was.
struct Published {
    records: Vec<((PartitionId, Offset), u64, u64)>,
    latencies_us: Vec<f64>,
    took: Duration,
}

async fn our_round(channel: &Channel, publishers: usize, lasts: Duration) -> anyhow::Result<Published> {
    let payloads = |publisher| (0..PAYLOADS).map(|n| Bytes::copy_from_slice(&payload(publisher, n))).collect();
    let payloads: Vec<Vec<Bytes>> = (0..publishers as u64).map(payloads).collect();
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (publisher, payloads) in payloads.into_iter().enumerate() {
        let channel = channel.clone();
        let partition = Some(PartitionId(publisher as u32 % channel.partitions()));
        tasks.spawn(async move {
            let (mut records, mut latencies) = (Vec::new(), Vec::new());
            let mut asked = start;
            for (n, payload) in payloads.iter().cycle().enumerate() {
                let options = PublishOptions { partition, ..PublishOptions::default() };
                match channel.publish(Record::new(payload.clone()), options).await {
                    PublishOutcome::Committed(committed) => {
                        let answered = Instant::now();
                        latencies.push(answered.duration_since(asked).as_secs_f64() * 1e6);
                        records.push(((committed.partition, committed.first), publisher as u64, n as u64));
                        asked = answered;
                    }
                    other => anyhow::bail!("a publish was not committed: {other:?}"),
                }
                if asked.duration_since(start) >= lasts {
                    break;
                }
            }
            Ok((records, latencies))
        });
    }
    let (mut records, mut latencies_us) = (Vec::new(), Vec::new());
    while let Some(ended) = tasks.join_next().await {
        let (committed, latencies) = ended??;
        records.extend(committed);
        latencies_us.extend(latencies);
    }
    let took = start.elapsed();
    records.sort_unstable();
    Ok(Published { records, latencies_us, took })
}

/// Reads the round back and compares the chains.
async fn reads_back(channel: &Channel, published: &Published) -> anyhow::Result<bool> {
    let by_partition = published.records.chunk_by(|((one, _), ..), ((other, _), ..)| one == other);
    let mut is_equal = true;
    for records in by_partition {
        let Some((((partition, first), ..), ((_, last), ..))) = records.first().zip(records.last()) else { continue };
        let mut expected = 0;
        for ((_, offset), publisher, n) in records {
            expected = crc32c::crc32c_append(expected, &offset.get().to_le_bytes());
            expected = crc32c::crc32c_append(expected, &payload(*publisher, *n));
        }
        let (mut found, mut at) = (0, *first);
        while at <= *last {
            let page = channel.read(*partition, at, 4_096, 4 << 20).await?;
            ensure!(!page.is_empty(), "nothing to read at offset {at} of partition {partition}, below the tail");
            for delivered in page.iter().take_while(|delivered| delivered.offset <= *last) {
                found = crc32c::crc32c_append(found, &delivered.offset.get().to_le_bytes());
                found = crc32c::crc32c_append(found, &delivered.record.payload);
            }
            at = page.last().map_or(at, |delivered| Offset(delivered.offset.get() + 1));
        }
        let dense = last.get() - first.get() + 1 == records.len() as u64;
        is_equal &= dense && found == expected;
    }
    Ok(is_equal)
}
