//! How far a copy is and how long it will take (P55): pure, time is an argument.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::CopyRange;

/// The rate is taken over this long.
const WINDOW: Duration = Duration::from_secs(30);

/// Samples are not taken closer together: the window holds at most 30 of them.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Counts a copy's progress in bytes of heap.
#[derive(Debug)]
pub struct CopyMeter {
    taken_at: Instant,
    total_bytes: u64,
    done_bytes: u64,
    /// Heap and text bytes of the ranges that this copy has done: how much text a byte of heap makes here.
    measured: (u64, u64),
    rows: u64,
    ranges_done: u32,
    ranges_total: u32,
    /// Text bytes of each range under way.
    open: HashMap<CopyRange, u64>,
    samples: VecDeque<(Instant, u64)>,
}

/// What is shown of a copy.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyReport {
    /// Heap done of heap in all, 0 to 1.
    pub ratio: f64,
    /// Rows issued.
    pub rows: u64,
    /// Ranges done and in all.
    pub ranges: (u32, u32),
    /// Bytes of heap a second over the last 30 s; none before there is anything to measure.
    pub bytes_per_second: Option<f64>,
    /// What is left at that rate.
    pub left: Option<Duration>,
    /// How old the snapshot is: so long the server keeps row versions for it.
    pub snapshot_age: Duration,
}

impl CopyMeter {
    /// A copy of these ranges, of which `done_bytes` were done before; `taken_at`: when its snapshot was.
    pub fn new(taken_at: Instant, ranges: &[CopyRange], done_bytes: u64) -> Self {
        let left: u64 = ranges.iter().map(|range| range.heap_bytes).sum();
        CopyMeter {
            taken_at,
            total_bytes: left.saturating_add(done_bytes),
            done_bytes,
            measured: (0, 0),
            rows: 0,
            ranges_done: 0,
            ranges_total: u32::try_from(ranges.len()).unwrap_or(u32::MAX),
            open: HashMap::new(),
            samples: VecDeque::new(),
        }
    }

    /// Rows of a range were issued.
    pub fn issued(&mut self, now: Instant, range: &CopyRange, rows: u64, text_bytes: u64) {
        self.rows = self.rows.saturating_add(rows);
        *self.open.entry(*range).or_default() += text_bytes;
        self.sample(now);
    }

    /// A range is done.
    pub fn finished(&mut self, now: Instant, range: &CopyRange) {
        let (heap, text) = self.measured;
        let of_range = self.open.remove(range).unwrap_or_default();
        self.measured = (heap.saturating_add(range.heap_bytes), text.saturating_add(of_range));
        self.done_bytes = self.done_bytes.saturating_add(range.heap_bytes);
        self.ranges_done = self.ranges_done.saturating_add(1);
        self.sample(now);
    }

    /// What to show.
    pub fn report(&self, now: Instant) -> CopyReport {
        let so_far = self.so_far();
        let left_bytes = self.total_bytes.saturating_sub(so_far);
        let rate = self.samples.front().and_then(|(at, bytes)| {
            let seconds = now.saturating_duration_since(*at).as_secs_f64();
            (seconds >= 0.5 && so_far > *bytes).then(|| (so_far - bytes) as f64 / seconds)
        });
        let left = rate.map(|rate| Duration::from_secs_f64((left_bytes as f64 / rate).min(86_400.0 * 365.0)));
        CopyReport {
            ratio: if self.total_bytes == 0 {
                if self.ranges_done >= self.ranges_total { 1.0 } else { 0.0 }
            } else {
                so_far as f64 / self.total_bytes as f64
            },
            rows: self.rows,
            ranges: (self.ranges_done, self.ranges_total),
            bytes_per_second: rate,
            left,
            snapshot_age: now.saturating_duration_since(self.taken_at),
        }
    }

    /// Done ranges, and of open ones what their text makes at the ratio seen so far, never more than they are.
    fn so_far(&self) -> u64 {
        let heap_per_text = match self.measured {
            (0, _) | (_, 0) => 1.0,
            (heap, text) => heap as f64 / text as f64,
        };
        let open: u64 =
            self.open.iter().map(|(range, text)| range.heap_bytes.min((*text as f64 * heap_per_text) as u64)).sum();
        self.done_bytes.saturating_add(open).min(self.total_bytes)
    }

    fn sample(&mut self, now: Instant) {
        if self.samples.back().is_some_and(|(at, _)| now.saturating_duration_since(*at) < SAMPLE_EVERY) {
            return;
        }
        self.samples.push_back((now, self.so_far()));
        // The oldest stays just outside of the window, so that the rate spans all of it.
        while self.samples.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= WINDOW) {
            self.samples.pop_front();
        }
    }
}

impl std::fmt::Display for CopyReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "copying {} %", (self.ratio * 100.0).floor())?;
        let Some(left) = self.left else { return Ok(()) };
        match left.as_secs() {
            seconds @ 0..90 => write!(f, ", {seconds} s"),
            seconds @ 90..5_400 => write!(f, ", {} min", seconds.div_ceil(60)),
            seconds => write!(f, ", {} h", seconds.div_ceil(3_600)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RelationId;

    const MIB: u64 = 1 << 20;

    fn ranges(count: u32) -> Vec<CopyRange> {
        let range = |number| CopyRange {
            table: RelationId(1),
            leaf: RelationId(1),
            number,
            from_block: number * 8_192,
            to_block: (number + 1 < count).then_some((number + 1) * 8_192),
            heap_bytes: 64 * MIB,
        };
        (0..count).map(range).collect()
    }

    /// Catches an estimate that is taken over the whole copy: it must follow the last 30 s.
    #[test]
    fn the_estimate_follows_the_last_thirty_seconds() {
        let start = Instant::now();
        let ranges = ranges(100);
        let mut meter = CopyMeter::new(start, &ranges, 0);
        // A minute at a range every 10 s, then a minute at one every second.
        let mut now = start;
        for (at, range) in ranges.iter().take(66).enumerate() {
            now += Duration::from_secs(if at < 6 { 10 } else { 1 });
            meter.issued(now, range, 1_000, 32 * MIB);
            meter.finished(now, range);
        }
        let report = meter.report(now);
        assert_eq!((report.ranges, report.rows), ((66, 100), 66_000));
        let left = report.left.unwrap().as_secs_f64();
        assert!((33.0..36.0).contains(&left), "34 ranges at one a second, said {left}");
        assert_eq!(report.to_string(), format!("copying 66 %, {} s", left as u64));
        assert_eq!(report.snapshot_age, now - start);
    }

    /// Catches progress that stands still inside a large range, and progress above what a range is.
    #[test]
    fn an_open_range_counts_up_to_its_size() {
        let start = Instant::now();
        let ranges = ranges(2);
        let mut meter = CopyMeter::new(start, &ranges, 0);
        meter.issued(start, &ranges[0], 10, 16 * MIB);
        assert_eq!(meter.report(start).ratio, 0.125);
        meter.issued(start, &ranges[0], 10, 500 * MIB);
        assert_eq!(meter.report(start).ratio, 0.5);
        meter.finished(start, &ranges[0]);
        meter.finished(start, &ranges[1]);
        assert_eq!(meter.report(start).ratio, 1.0);
        assert_eq!(CopyMeter::new(start, &[], 0).report(start).ratio, 1.0, "nothing to copy is done");
    }
}
