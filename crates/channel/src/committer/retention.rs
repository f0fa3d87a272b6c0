//! Retention: whole segments, oldest first, never the active one (C85, C86).

use std::sync::Arc;

use landfall_log::{SegmentSummary, TrimError};
use landfall_types::{Offset, Timestamp, with_causes};

use super::Committer;
use crate::error::PublishError;
use crate::intake::Gate;
use crate::options::Retention;

/// What retention decided.
#[derive(Debug, PartialEq, Eq)]
struct Decision {
    /// Everything below may go.
    before: Offset,
    /// A consumer holds segments that `max_bytes` would free: publishes are refused instead (C86).
    is_held: bool,
}

/// `share`: this partition's part of `max_bytes`. `floor`: nothing at or above it goes.
fn decide(
    retention: &Retention,
    share: Option<u64>,
    segments: &[SegmentSummary],
    floor: Option<Offset>,
    now: Timestamp,
) -> Decision {
    let mut bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let mut decision = Decision { before: Offset::ZERO, is_held: false };
    let oldest = retention.max_age.map(|age| now.0.saturating_sub(i64::try_from(age.as_micros()).unwrap_or(i64::MAX)));
    for segment in segments.iter().filter(|segment| !segment.is_active) {
        // Damage stays until an operator has looked (C82); what follows it stays with it, since only a front can go.
        if segment.is_damaged {
            break;
        }
        let is_empty = segment.base == segment.end;
        let is_old = match (oldest, segment.last_append_time) {
            (Some(oldest), Some(last)) => last.0 < oldest,
            (Some(_), None) => is_empty,
            (None, _) => false,
        };
        let is_over = share.is_some_and(|most| bytes > most);
        if !is_old && !is_over {
            break;
        }
        if floor.is_some_and(|floor| segment.end > floor) {
            decision.is_held = is_over;
            break;
        }
        decision.before = segment.end;
        bytes = bytes.saturating_sub(segment.bytes);
    }
    decision
}

impl Committer {
    pub(super) fn retain(&mut self) {
        let partition = Arc::clone(&self.partition);
        let Some(writer) = self.writer.as_mut() else { return };
        let segments = writer.segments();
        partition.metrics.segments.set(segments.len() as f64);
        partition.metrics.log_bytes.set(segments.iter().map(|segment| segment.bytes).sum::<u64>() as f64);
        let retention = &partition.options.retention;
        let share = retention.max_bytes.map(|most| most.0 / u64::from(partition.options.partitions.max(1)));
        let floor = retention.retain_consumers.then(|| partition.floors.lowest(partition.id, &retention.consumers));
        let decision = decide(retention, share, &segments, floor, partition.clock.now());
        if decision.is_held {
            let most = share.unwrap_or_default();
            let reason = format!(
                "retained_for_consumers: a consumer holds the log from offset {} on and max_bytes leaves {most} for this partition; advance the consumer or raise max_bytes",
                floor.unwrap_or_default()
            );
            if partition.intake.is_open() {
                tracing::warn!(channel = %partition.channel, partition = %partition.id, code = "LF-CH0023", %reason, "publishes are refused");
            }
            let channel = Arc::clone(&partition.channel);
            partition.intake.close_if_open(PublishError::AtCapacity { channel, reason });
        } else {
            partition.intake.reopen_gate(
                |error| matches!(error, PublishError::AtCapacity { reason, .. } if reason.starts_with("retained_for")),
            );
        }
        if decision.before <= partition.log_start() {
            return;
        }
        match writer.trim(decision.before) {
            Ok(log_start) => {
                partition.metrics.log_start_offset.set(log_start.0 as f64);
                tracing::info!(channel = %partition.channel, partition = %partition.id, %log_start, "retention freed the records below");
                self.look_after_space();
            }
            Err(TrimError::Refused(cause)) => {
                tracing::warn!(channel = %partition.channel, partition = %partition.id, before = %decision.before, cause = %with_causes(&cause), "retention could not free records; it will be tried again");
            }
            Err(TrimError::Uncertain(cause)) => self.note_control(Err(cause)),
        }
    }
}

/// A gate that capacity closed.
pub(crate) fn at_capacity(channel: &Arc<str>, reason: String) -> Gate {
    Gate::Closed(PublishError::AtCapacity { channel: Arc::clone(channel), reason })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use landfall_types::{ByteSize, SegmentNumber};

    use super::*;

    fn segments() -> Vec<SegmentSummary> {
        (0..4u64)
            .map(|n| SegmentSummary {
                number: SegmentNumber(n),
                base: Offset(n * 10),
                end: Offset(n * 10 + 10),
                bytes: 100,
                last_append_time: Some(Timestamp(n as i64 * 1_000_000)),
                is_active: n == 3,
                is_damaged: false,
            })
            .collect()
    }

    /// Catches retention that takes the active segment, more than it must, or what a consumer still needs.
    #[test]
    fn whole_segments_go_oldest_first_and_never_the_active_one() {
        let by_bytes = Retention { max_bytes: Some(ByteSize(250)), ..Retention::default() };
        let go =
            |retention: &Retention, share, floor, now| decide(retention, share, &segments(), floor, Timestamp(now));
        assert_eq!(go(&by_bytes, Some(250), None, 0), Decision { before: Offset(20), is_held: false });
        assert_eq!(go(&by_bytes, Some(1), None, 0).before, Offset(30), "the active one stays");
        assert_eq!(go(&by_bytes, Some(400), None, 0).before, Offset(0));
        assert_eq!(go(&by_bytes, Some(250), Some(Offset(15)), 0), Decision { before: Offset(10), is_held: true });
        let by_age = Retention { max_age: Some(Duration::from_secs(1)), ..Retention::default() };
        assert_eq!(go(&by_age, None, None, 2_000_001).before, Offset(20));
        assert_eq!(go(&by_age, None, Some(Offset(10)), 2_000_001), Decision { before: Offset(10), is_held: false });
        assert_eq!(go(&Retention::default(), None, None, i64::MAX).before, Offset(0), "no limit keeps all");
    }

    /// Catches a trim across damage, which would delete records that nobody has looked at (I12).
    #[test]
    fn damage_holds_what_follows_it() {
        let mut with_damage = segments();
        with_damage[1].is_damaged = true;
        let retention = Retention { max_bytes: Some(ByteSize(1)), ..Retention::default() };
        assert_eq!(decide(&retention, Some(1), &with_damage, None, Timestamp(0)).before, Offset(10));
    }
}
