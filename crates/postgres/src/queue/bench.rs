//! The queue alone against its peer in the same run: the same loop over a plain bounded channel, one send per log record
//! (§14). What arrives is counted and hashed without regard to order on both sides; a difference is an error.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::sync::Arc;
use super::{CloseError, Need, QueueError, QueueParts, QueueSettings, QueueingSink};
use crate::Lsn;
use crate::log_record::{LogRecord, RecordSink, RecordSinkError};

/// How often the transport's read ends, in records: as with a read-ahead of 256 KiB.
const READ_RECORDS: u64 = 1_000;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueBench {
    /// Log records through the queue per second.
    pub queue_per_second: f64,
    /// Log records through the plain channel per second.
    pub channel_per_second: f64,
    /// The first over the second.
    pub ratio: f64,
    /// The most memory that the queue held, against its cap.
    pub held_bytes_max: u64,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum QueueBenchError {
    /// The queue failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// It did not end.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// The receiving side of the plain channel is gone.
    #[error("the plain channel's receiver ended early")]
    Channel,
    /// What came out is not what went in.
    #[error("what came out is not what went in: {got:?} for {sent:?} (count, hash)")]
    Contents {
        /// Count and hash of what was sent.
        sent: (u64, u64),
        /// Count and hash of what came.
        got: (u64, u64),
    },
}

#[derive(Debug, Default)]
struct Tally {
    count: AtomicU64,
    hash: AtomicU64,
}

impl Tally {
    fn read(&self) -> (u64, u64) {
        (self.count.load(Ordering::Acquire), self.hash.load(Ordering::Acquire))
    }
}

/// A record's hash: its position and the ends of its bytes, so that both sides touch what they got.
fn hash_of(lsn: u64, bytes: &[u8]) -> u64 {
    let ends =
        bytes.first().copied().unwrap_or_default() as u64 | (bytes.last().copied().unwrap_or_default() as u64) << 8;
    (lsn ^ ends << 40 ^ bytes.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

struct Counts {
    count: u64,
    hash: u64,
    tally: Arc<Tally>,
}

impl RecordSink for Counts {
    fn on_record(&mut self, record: &LogRecord<'_>) -> Result<(), RecordSinkError> {
        self.count += 1;
        self.hash = self.hash.wrapping_add(hash_of(record.lsn.0, record.bytes));
        Ok(())
    }

    fn on_close(&mut self) -> Result<(), RecordSinkError> {
        self.tally.count.store(self.count, Ordering::Release);
        self.tally.hash.store(self.hash, Ordering::Release);
        Ok(())
    }
}

/// Moves `records` of `bytes` each through both; one warm-up of a tenth, then the measured run. Wants a runtime with two
/// threads.
pub async fn bench_queue(records: u64, bytes: usize) -> Result<QueueBench, QueueBenchError> {
    through_queue(records / 10, bytes).await?;
    through_channel(records / 10, bytes).await?;
    let (queue_time, held_bytes_max) = through_queue(records, bytes).await?;
    let channel_time = through_channel(records, bytes).await?;
    let per_second = |time: Duration| records as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE);
    let (queue_per_second, channel_per_second) = (per_second(queue_time), per_second(channel_time));
    let ratio = queue_per_second / channel_per_second;
    Ok(QueueBench { queue_per_second, channel_per_second, ratio, held_bytes_max })
}

/// The bytes that the transport's buffer would hold: a different place of it for each record.
fn source(bytes: usize) -> Vec<u8> {
    (0..bytes + 256).map(|at| (at * 31) as u8).collect()
}

fn piece(source: &[u8], number: u64, bytes: usize) -> &[u8] {
    let from = usize::from(number as u8);
    source.get(from..from + bytes).unwrap_or_default()
}

async fn through_queue(records: u64, bytes: usize) -> Result<(Duration, u64), QueueBenchError> {
    let tally = Arc::new(Tally::default());
    let sink = Counts { count: 0, hash: 0, tally: tally.clone() };
    let task = tokio::spawn(async move {
        let (source, mut hash, mut held) = (source(bytes), 0u64, 0);
        let mut queue = QueueingSink::start(Box::new(sink), QueueParts::new(QueueSettings::default()));
        let view = queue.view();
        let began = Instant::now();
        for number in 0..records {
            let bytes = piece(&source, number, bytes);
            hash = hash.wrapping_add(hash_of(number, bytes));
            let room = queue.room(Need::bytes(bytes.len())).await?;
            let record = LogRecord { lsn: Lsn(number), end_lsn: Lsn(number), bytes, ..LogRecord::default() };
            queue.on_record(room, &record)?;
            if number % READ_RECORDS == 0 {
                held = view.counts().held_bytes.max(held);
                queue.flush()?;
                tokio::task::consume_budget().await;
            }
        }
        queue.close(Duration::from_secs(600)).await?;
        Ok::<_, QueueBenchError>((began.elapsed(), held, (records, hash)))
    });
    let (time, held, sent) = task.await.map_err(|_| QueueError::Ended)??;
    verify(sent, tally.read())?;
    Ok((time, held))
}

/// A log record that owns its bytes, as a channel of single records needs it.
struct Owned {
    lsn: Lsn,
    bytes: Box<[u8]>,
}

async fn through_channel(records: u64, bytes: usize) -> Result<Duration, QueueBenchError> {
    let capacity = usize::try_from(QueueSettings::default().max_records).unwrap_or(usize::MAX);
    let (send, mut receive) = tokio::sync::mpsc::channel::<Owned>(capacity);
    let receiver = tokio::spawn(async move {
        let (mut count, mut hash) = (0u64, 0u64);
        while let Some(record) = receive.recv().await {
            count += 1;
            hash = hash.wrapping_add(hash_of(record.lsn.0, &record.bytes));
        }
        (count, hash)
    });
    let sender = tokio::spawn(async move {
        let (source, mut hash) = (source(bytes), 0u64);
        let began = Instant::now();
        for number in 0..records {
            let bytes = piece(&source, number, bytes);
            hash = hash.wrapping_add(hash_of(number, bytes));
            let record = Owned { lsn: Lsn(number), bytes: bytes.into() };
            send.send(record).await.map_err(|_| QueueBenchError::Channel)?;
        }
        drop(send);
        let got = receiver.await.map_err(|_| QueueBenchError::Channel)?;
        verify((records, hash), got)?;
        Ok::<_, QueueBenchError>(began.elapsed())
    });
    sender.await.map_err(|_| QueueBenchError::Channel)?
}

fn verify(sent: (u64, u64), got: (u64, u64)) -> Result<(), QueueBenchError> {
    if sent == got { Ok(()) } else { Err(QueueBenchError::Contents { sent, got }) }
}
