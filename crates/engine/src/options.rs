//! A pipeline's numbers with their bounds (E140), and what is derived from them (E94).
//!
//! Out of range names the key, the value and the bound. The defaults pass their own cross-checks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use landfall_types::ByteSize;

use crate::codes;
use crate::contract::{PlanError, Stage, Transform};

/// What happens to a row that cannot be handled (E111). All three are counted, never sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnError {
    /// Set aside with its original bytes.
    #[default]
    DeadLetter,
    /// Dropped and counted.
    Skip,
    /// The partition stops there and is tried again at the longest back-off.
    Fail,
}

/// [`OnError`] per stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnErrors {
    /// Bytes to columns.
    pub decode: OnError,
    /// Query and casts.
    pub sql: OnError,
    /// The destination.
    pub sink: OnError,
}

impl OnErrors {
    /// One policy for every stage.
    pub fn all(policy: OnError) -> Self {
        OnErrors { decode: policy, sql: policy, sink: policy }
    }

    pub(crate) fn of(&self, stage: Stage) -> OnError {
        match stage {
            Stage::Decode => self.decode,
            Stage::Sql => self.sql,
            Stage::Sink => self.sink,
        }
    }
}

/// What happens where retention has passed rows that were not read (E67).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnTrimmed {
    /// The partition waits for a decision.
    #[default]
    Stop,
    /// It goes on behind them; the range is counted and named.
    Continue,
}

/// A growing delay with jitter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The first delay.
    pub initial: Duration,
    /// The longest.
    pub max: Duration,
    /// The factor from one to the next.
    pub multiplier: f64,
    /// How far a delay may be off, as a fraction.
    pub jitter: f64,
}

impl Backoff {
    /// The delay before attempt `attempt` (from 1), with `random` in 0..1 deciding the jitter.
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        let exponent = i32::try_from(attempt.saturating_sub(1).min(64)).unwrap_or(64);
        let grown = self.initial.as_secs_f64() * self.multiplier.powi(exponent);
        let capped = grown.min(self.max.as_secs_f64());
        let off = 1.0 + self.jitter * (random.clamp(0.0, 1.0) * 2.0 - 1.0);
        Duration::try_from_secs_f64(capped * off).unwrap_or(self.max)
    }
}

/// How a write is tried again (E116).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryOptions {
    /// The delays.
    pub backoff: Backoff,
    /// When a batch is given up; never by default.
    pub max_elapsed: Option<Duration>,
    /// The bound of one attempt.
    pub attempt_timeout: Duration,
}

impl Default for RetryOptions {
    fn default() -> Self {
        RetryOptions {
            backoff: Backoff {
                initial: Duration::from_millis(100),
                max: Duration::from_secs(10),
                multiplier: 2.0,
                jitter: 0.2,
            },
            max_elapsed: None,
            attempt_timeout: Duration::from_secs(30),
        }
    }
}

/// Which shard a row goes to (E139). Partition is forced for sinks that hold positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// By source partition.
    #[default]
    Partition,
    /// By a hash of columns.
    Columns(Vec<String>),
    /// In turn, a slice at a time.
    RoundRobin,
}

/// Makes a filter; one for each chain.
pub type FilterFactory = Arc<dyn Fn() -> Result<Box<dyn Transform>, PlanError> + Send + Sync>;

/// One sink's numbers.
#[derive(Clone)]
pub struct SinkOptions {
    /// Which rows the sink gets; all by default.
    pub filter: Option<FilterFactory>,
    /// Which shard a row goes to.
    pub route: Route,
    /// How many queues and workers.
    pub shards: u16,
    /// Rows of a sealed batch.
    pub batch_rows: usize,
    /// Bytes of a sealed batch (B).
    pub batch_bytes: ByteSize,
    /// How long a batch may stay open.
    pub batch_age: Duration,
    /// Batches in writing at once (F); 1 for ordered sinks and those that hold positions.
    pub concurrency: usize,
    /// Chunks in a shard's queue.
    pub queue_max_chunks: usize,
    /// Bytes in a shard's queue (Q); derived where `None`.
    pub queue_max_bytes: Option<ByteSize>,
    /// How large a chunk grows before it is handed over (C).
    pub chunk_target_bytes: ByteSize,
    /// How writes are tried again.
    pub retry: RetryOptions,
}

impl fmt::Debug for SinkOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkOptions")
            .field("filtered", &self.filter.is_some())
            .field("route", &self.route)
            .field("shards", &self.shards)
            .field("batch_rows", &self.batch_rows)
            .field("batch_bytes", &self.batch_bytes)
            .finish_non_exhaustive()
    }
}

impl Default for SinkOptions {
    fn default() -> Self {
        SinkOptions {
            filter: None,
            route: Route::Partition,
            shards: 1,
            batch_rows: 500_000,
            batch_bytes: ByteSize::mib(32),
            batch_age: Duration::from_secs(1),
            concurrency: 1,
            queue_max_chunks: 64,
            queue_max_bytes: None,
            chunk_target_bytes: ByteSize::kib(256),
            retry: RetryOptions::default(),
        }
    }
}

/// The numbers of a pipeline.
#[derive(Clone, Debug)]
pub struct PipelineOptions {
    /// Driver threads; `None`: max(1, min(partitions, cores − 1)).
    pub threads: Option<usize>,
    /// Rows of one poll.
    pub poll_max_rows: usize,
    /// Payload bytes of one poll (P).
    pub poll_max_bytes: ByteSize,
    /// What happens to bad rows.
    pub on_error: OnErrors,
    /// The flood guard's fraction (E112).
    pub max_bad_fraction: f64,
    /// The flood guard's rows.
    pub max_bad_rows: u32,
    /// What happens where retention has passed unread rows.
    pub on_trimmed: OnTrimmed,
    /// How often watermarks are persisted.
    pub checkpoint_interval: Duration,
    /// Source batches that may be pending per partition.
    pub max_pending_batches: usize,
    /// Their bytes.
    pub max_pending_bytes: ByteSize,
    /// When an unsettled row makes the pipeline stalled.
    pub stalled_after: Duration,
    /// How long after the last row what is coalesced is handed over.
    pub idle_flush: Duration,
    /// The delays of restarts in process.
    pub restart: Backoff,
    /// The fraction of a share under which a shut shard opens again.
    pub low_ratio: f64,
    /// The decoder's growth (V): JSON 4, raw 1.
    pub decode_growth: u32,
}

impl Default for PipelineOptions {
    fn default() -> Self {
        PipelineOptions {
            threads: None,
            poll_max_rows: 8192,
            poll_max_bytes: ByteSize::mib(1),
            on_error: OnErrors::default(),
            max_bad_fraction: 0.1,
            max_bad_rows: 1000,
            on_trimmed: OnTrimmed::Stop,
            checkpoint_interval: Duration::from_secs(1),
            max_pending_batches: 1024,
            max_pending_bytes: ByteSize::gib(1),
            stalled_after: Duration::from_secs(120),
            idle_flush: Duration::from_millis(50),
            restart: Backoff {
                initial: Duration::from_secs(1),
                max: Duration::from_secs(60),
                multiplier: 2.0,
                jitter: 0.2,
            },
            low_ratio: 0.5,
            decode_growth: 4,
        }
    }
}

fn out_of_bounds(key: &str, value: impl fmt::Display, bounds: &str) -> PlanError {
    PlanError::new(codes::OPTION_BOUNDS, format!("`{key}` is {value}, but must be {bounds}"))
}

fn number(key: &str, value: u64, low: u64, high: u64) -> Result<(), PlanError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(out_of_bounds(key, value, &format!("{low} to {high}")))
}

fn size(key: &str, value: ByteSize, low: ByteSize, high: ByteSize) -> Result<(), PlanError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(out_of_bounds(key, value, &format!("{low} to {high}")))
}

fn duration(key: &str, value: Duration, low: Duration, high: Duration) -> Result<(), PlanError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(out_of_bounds(key, format_args!("{value:?}"), &format!("{low:?} to {high:?}")))
}

fn fraction(key: &str, value: f64, low: f64, high: f64) -> Result<(), PlanError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(out_of_bounds(key, value, &format!("{low} to {high}")))
}

impl Backoff {
    fn validate(&self, key: &str) -> Result<(), PlanError> {
        let (low, high) = (Duration::from_millis(1), Duration::from_secs(3600));
        duration(&format!("{key}.initial"), self.initial, low, high)?;
        duration(&format!("{key}.max"), self.max, self.initial, high)?;
        fraction(&format!("{key}.multiplier"), self.multiplier, 1.0, 10.0)?;
        fraction(&format!("{key}.jitter"), self.jitter, 0.0, 1.0)
    }
}

impl PipelineOptions {
    /// Every bound of E140 that concerns the pipeline as a whole.
    pub fn validate(&self) -> Result<(), PlanError> {
        if let Some(threads) = self.threads {
            number("threads", threads as u64, 1, 64)?;
        }
        number("poll.max_rows", self.poll_max_rows as u64, 1, 65_536)?;
        size("poll.max_bytes", self.poll_max_bytes, ByteSize::kib(4), ByteSize::mib(64))?;
        fraction("max_bad_fraction", self.max_bad_fraction, 0.0, 1.0)?;
        number("max_bad_rows", u64::from(self.max_bad_rows), 1, 1_000_000)?;
        duration(
            "checkpoint.interval",
            self.checkpoint_interval,
            Duration::from_millis(100),
            Duration::from_secs(300),
        )?;
        number("checkpoint.max_pending_batches", self.max_pending_batches as u64, 16, 65_536)?;
        if !self.max_pending_batches.is_power_of_two() {
            return Err(out_of_bounds(
                "checkpoint.max_pending_batches",
                self.max_pending_batches,
                &format!("a power of two, like {}", self.max_pending_batches.next_power_of_two()),
            ));
        }
        duration("stalled_after", self.stalled_after, Duration::from_secs(5), Duration::from_secs(86_400))?;
        duration("idle_flush", self.idle_flush, Duration::from_millis(1), Duration::from_secs(10))?;
        self.restart.validate("restart")?;
        fraction("backpressure.low_ratio", self.low_ratio, 0.1, 0.9)
    }
}

impl SinkOptions {
    /// Every bound of E140 that concerns one sink, and the cross-checks of E94 against the pipeline's numbers.
    pub fn validate(&self, sink: &str, pipeline: &PipelineOptions) -> Result<(), PlanError> {
        let key = |name: &str| format!("to.{sink}.{name}");
        number(&key("shards"), u64::from(self.shards), 1, 64)?;
        number(&key("batch.rows"), self.batch_rows as u64, 1, 10_000_000)?;
        size(&key("batch.bytes"), self.batch_bytes, ByteSize::mib(1), ByteSize::gib(1))?;
        duration(&key("batch.age"), self.batch_age, Duration::from_millis(1), Duration::from_secs(3600))?;
        number(&key("concurrency"), self.concurrency as u64, 1, 64)?;
        number(&key("queue.max_chunks"), self.queue_max_chunks as u64, 2, 4096)?;
        size(&key("chunk.target_bytes"), self.chunk_target_bytes, ByteSize::kib(16), ByteSize::mib(16))?;
        self.retry.backoff.validate(&key("retry"))?;
        if let Some(elapsed) = self.retry.max_elapsed {
            duration(&key("retry.max_elapsed"), elapsed, Duration::from_secs(1), Duration::from_secs(86_400))?;
        }
        duration(
            &key("retry.attempt_timeout"),
            self.retry.attempt_timeout,
            Duration::from_secs(1),
            Duration::from_secs(3600),
        )?;
        let poll = pipeline.poll_max_bytes.get();
        let queue = self.queue_bytes(pipeline);
        if queue < 2 * poll {
            return Err(out_of_bounds(
                &key("queue.max_bytes"),
                ByteSize(queue),
                &format!("at least {}, twice `poll.max_bytes`", ByteSize(2 * poll)),
            ));
        }
        if self.chunk_target_bytes.get() > queue / 4 {
            return Err(out_of_bounds(
                &key("chunk.target_bytes"),
                self.chunk_target_bytes,
                &format!("at most {}, a quarter of `queue.max_bytes`", ByteSize(queue / 4)),
            ));
        }
        let share = self.share_bytes(pipeline);
        if pipeline.low_ratio * (share as f64) < self.batch_bytes.get() as f64 {
            return Err(out_of_bounds(
                "backpressure.low_ratio",
                pipeline.low_ratio,
                &format!(
                    "at least {:.2}, so that a full batch of {} is still there when reading resumes",
                    self.batch_bytes.get() as f64 / share as f64 + 0.005,
                    self.batch_bytes
                ),
            ));
        }
        if (pipeline.max_pending_batches as u64).saturating_mul(poll) < self.batch_bytes.get() {
            return Err(out_of_bounds(
                "checkpoint.max_pending_batches",
                pipeline.max_pending_batches,
                &format!("at least {}, to fill a batch", self.batch_bytes.get().div_ceil(poll).next_power_of_two()),
            ));
        }
        if pipeline.max_pending_bytes < self.batch_bytes {
            return Err(out_of_bounds(
                "checkpoint.max_pending_bytes",
                pipeline.max_pending_bytes,
                &format!("at least {}, one batch", self.batch_bytes),
            ));
        }
        Ok(())
    }

    /// Q: as set, or max(4 · P, B / 4).
    pub fn queue_bytes(&self, pipeline: &PipelineOptions) -> u64 {
        match self.queue_max_bytes {
            Some(bytes) => bytes.get(),
            None => (4 * pipeline.poll_max_bytes.get()).max(self.batch_bytes.get() / 4),
        }
    }

    /// H = (F + 1) · B + Q, the share of one shard (E92).
    pub fn share_bytes(&self, pipeline: &PipelineOptions) -> u64 {
        (self.concurrency as u64 + 1) * self.batch_bytes.get() + self.queue_bytes(pipeline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a default that its own checks refuse.
    #[test]
    fn defaults_pass_their_own_cross_checks() {
        let pipeline = PipelineOptions::default();
        pipeline.validate().expect("bounds");
        SinkOptions::default().validate("delta", &pipeline).expect("cross-checks");
        let channel = SinkOptions { batch_bytes: ByteSize::mib(4), batch_rows: 10_000, ..SinkOptions::default() };
        channel.validate("channel", &pipeline).expect("cross-checks");
    }

    /// Would catch a bound that lets its value through, or a message that does not say what to write instead.
    #[test]
    fn a_number_out_of_bounds_names_key_value_and_bound() {
        let pipeline = PipelineOptions { max_pending_batches: 1000, ..PipelineOptions::default() };
        let text = pipeline.validate().expect_err("1000 is no power of two").text;
        assert!(text.contains("checkpoint.max_pending_batches") && text.contains("1000") && text.contains("1024"));
        let sink = SinkOptions { shards: 65, ..SinkOptions::default() };
        let text = sink.validate("out", &PipelineOptions::default()).expect_err("65 shards").text;
        assert!(text.contains("to.out.shards") && text.contains("65") && text.contains("64"));
        let sink = SinkOptions { queue_max_bytes: Some(ByteSize::mib(1)), ..SinkOptions::default() };
        assert!(sink.validate("out", &PipelineOptions::default()).is_err());
    }

    /// Would catch a back-off that overflows, or passes its cap by more than its jitter.
    #[test]
    fn a_back_off_grows_to_its_cap_and_stays_there() {
        let backoff = RetryOptions::default().backoff;
        assert_eq!(backoff.delay(1, 0.5), Duration::from_millis(100));
        assert_eq!(backoff.delay(2, 0.5), Duration::from_millis(200));
        for attempt in [20, 1000, u32::MAX] {
            assert!(backoff.delay(attempt, 1.0) <= Duration::from_secs(12));
            assert!(backoff.delay(attempt, 0.0) >= Duration::from_secs(8));
        }
    }
}
