//! What an append costs beside the device: the log against one raw write and `fdatasync` of the same bytes on the same
//! kind of file (allocated, zero-filled), in interleaved rounds.
//!
//! `cargo run --release -p landfall-log --example append_cost -- DIR` prints a line per number of records an append.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use landfall_log::{
    Access, Append, Codec, DiskVfs, LogIdentity, LogOptions, PartitionLog, Tag, Unit, UnitBody, Vfs, VfsFile,
};
use landfall_types::{ChannelId, Offset, PartitionId, TicketNumber, Timestamp};

const ROUNDS: usize = 20;
const APPENDS: usize = 100;
const RECORD_BYTES: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("usage: append_cost DIR")?;
    for records in [1usize, 16, 64, 512] {
        let dir = Path::new(&dir).join(format!("append_cost.{records}"));
        let _ = std::fs::remove_dir_all(&dir);
        let (ours, raw) = measure(&dir, records)?;
        std::fs::remove_dir_all(&dir)?;
        println!(
            "{records:>4} records of {RECORD_BYTES} B: log p50 {:>6.0} us, raw p50 {:>6.0} us, latency ratio {:.2}, \
             throughput ratio {:.2}",
            micros(median(&ours)),
            micros(median(&raw)),
            micros(median(&ours)) / micros(median(&raw)),
            micros(raw.iter().sum()) / micros(ours.iter().sum()),
        );
    }
    Ok(())
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn measure(dir: &Path, records: usize) -> Result<(Vec<Duration>, Vec<Duration>), Box<dyn std::error::Error>> {
    let identity = LogIdentity { channel: ChannelId([1; 16]), partition: PartitionId(0) };
    let mut opened = PartitionLog::open(Arc::new(DiskVfs), dir, identity, LogOptions::default())?;
    let rows = Bytes::from(vec![0x5a; RECORD_BYTES]);
    let bytes = vec![0x5a; records * (RECORD_BYTES + 56)];
    let file = DiskVfs.open(&dir.join("raw"), Access::Create)?;
    zero_fill(file.as_ref(), (bytes.len() * APPENDS * ROUNDS) as u64)?;
    let (mut ours, mut raw, mut at) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        for _ in 0..APPENDS {
            // Housekeeping runs beside the committer in a real process; here its time is simply not counted.
            while opened.preparer.is_due() {
                opened.preparer.prepare()?;
            }
            let units: Vec<Unit> = (0..records)
                .map(|n| Unit {
                    body: UnitBody::new(Tag::None, Codec::None, rows.clone(), 1),
                    ticket: TicketNumber(n as u64),
                    append_time: Timestamp(0),
                })
                .collect();
            let tail: Offset = opened.writer.tail();
            let began = Instant::now();
            let append = opened.writer.append(tail, &units);
            ours.push(began.elapsed());
            let Append::Durable { .. } = append else { return Err(format!("{append:?}").into()) };
        }
        for _ in 0..APPENDS {
            let began = Instant::now();
            file.write_at(&[IoSlice::new(&bytes)], at)?;
            file.sync_data()?;
            raw.push(began.elapsed());
            at += bytes.len() as u64;
        }
    }
    Ok((ours, raw))
}

fn zero_fill(file: &dyn VfsFile, len: u64) -> std::io::Result<()> {
    let zeros = vec![0u8; 1 << 20];
    let mut at = 0;
    while at < len {
        at += file.write_at(&[IoSlice::new(&zeros)], at)? as u64;
    }
    file.sync_data()
}
