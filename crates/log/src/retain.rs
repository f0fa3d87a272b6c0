//! Marks, trims and what retention goes by.
//!
//! A mark makes later damage tell itself from a torn tail (C78). A trim makes its log start durable before readers see it
//! and before anything is freed (C87). Which segments may go is the channel's rule; this only never takes the active
//! one, nor one that holds damage (I12).

use std::sync::Arc;

use landfall_types::Offset;

use crate::error::{CloseError, RefusedError, TrimError, UncertainCause};
use crate::format::Kind;
use crate::outcome::SegmentSummary;
use crate::prepare::Chore;
use crate::segment::Segment;
use crate::writer::{Failure, LogWriter};

impl LogWriter {
    /// Writes a durable mark if units came since the last one; for a partition that has been quiet for 1 s (C78).
    pub fn mark(&mut self) -> Result<(), UncertainCause> {
        if self.pending.is_some() || self.active.is_marked {
            return Ok(());
        }
        self.sync()?;
        match self.append_control(Kind::Mark, &[]) {
            Ok(()) => {
                self.active.is_marked = true;
                Ok(())
            }
            // Without room there is no mark; the next roll closes the segment anyway.
            Err(Failure::Refused(_)) => Ok(()),
            Err(Failure::Uncertain(cause)) => Err(cause),
        }
    }

    /// Makes a new log start durable and shows it; housekeeping frees what lies below (C87). Whole segments only,
    /// never above `before`, never the active one, and none at or past a damaged one. Gives the log start in force.
    pub fn trim(&mut self, before: Offset) -> Result<Offset, TrimError> {
        if let Some(pending) = &self.pending {
            return Err(TrimError::Refused(RefusedError::Unsettled { first: pending.tail }));
        }
        let mut log_start = self.catalog.log_start();
        for segment in self.catalog.segments() {
            if segment.is_active() || segment.is_damaged() || segment.end() > before {
                break;
            }
            log_start = log_start.max(segment.end());
        }
        if log_start > self.catalog.log_start() {
            self.write_trim(log_start).map_err(|failure| match failure {
                Failure::Refused(refused) => TrimError::Refused(refused),
                Failure::Uncertain(cause) => TrimError::Uncertain(cause),
            })?;
            self.catalog.raise_log_start(log_start);
            let below = self.catalog.take_below_log_start();
            self.space.add_chores(below.iter().map(|segment| Chore::Free(segment.path.clone())));
        }
        Ok(self.catalog.log_start())
    }

    fn write_trim(&mut self, log_start: Offset) -> Result<(), Failure> {
        match self.append_control(Kind::Trim, &log_start.0.to_le_bytes()) {
            // A full segment: the header of the next one says it as well.
            Err(Failure::Refused(_)) if self.pending.is_none() => self.roll(log_start),
            outcome => outcome,
        }
    }

    /// The segments, ascending, for retention (C85). Blocks on I/O where a summary has to be read.
    pub fn segments(&self) -> Vec<SegmentSummary> {
        let segments = self.catalog.segments();
        let summary = |segment: &Arc<Segment>| {
            let is_active = segment.is_active();
            if !is_active && segment.last_append_time().is_none() {
                // Unknown stays unknown: retention by age then passes over it.
                let _ = self.catalog.load_index(segment);
            }
            SegmentSummary {
                number: segment.number(),
                base: segment.base(),
                end: if is_active { self.next } else { segment.end() },
                bytes: if is_active { self.active.tip.byte } else { segment.end_byte() },
                last_append_time: segment.last_append_time(),
                is_active,
                is_damaged: segment.is_damaged(),
            }
        };
        segments.iter().map(summary).collect()
    }

    /// Writes a closing mark. Skipping it costs recovery time only.
    pub fn close(mut self) -> Result<(), CloseError> {
        self.mark().map_err(CloseError)
    }
}
