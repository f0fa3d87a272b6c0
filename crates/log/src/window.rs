//! The key tags and producer sequences of the window, gathered at open from summaries (C46, C79).

use std::collections::HashMap;
use std::io;

use landfall_types::{Offset, Timestamp};

use crate::catalog::Catalog;
use crate::format::Summary;
use crate::options::KeyWindow;
use crate::outcome::{RecentSequence, RecentTag};

/// What the channel rebuilds its key tables from.
#[derive(Debug, Default)]
pub(crate) struct KeyHistory {
    pub window_start: Offset,
    pub tags: Vec<RecentTag>,
    pub sequences: Vec<RecentSequence>,
}

impl KeyHistory {
    /// Takes the newest summaries, which the open has made itself, then goes back through the segments until the window
    /// ends by age or by count.
    pub(crate) fn collect(
        catalog: &Catalog,
        own: Vec<Summary>,
        window: KeyWindow,
        now: Timestamp,
    ) -> io::Result<KeyHistory> {
        let mut gathered = Gathered { tags: Vec::new(), sequences: HashMap::new(), window };
        let mut window_start = own.first().map_or(Offset::ZERO, |newest| newest.end);
        if window.keys == 0 && window.producers == 0 {
            return Ok(KeyHistory { window_start, ..KeyHistory::default() });
        }
        let known: Vec<_> = own.iter().map(|summary| summary.number).collect();
        for summary in own {
            window_start = window_start.min(summary.base);
            gathered.add(summary);
        }
        let max_age_us = i64::try_from(window.max_age.as_micros()).unwrap_or(i64::MAX);
        let oldest = Timestamp(now.0.saturating_sub(max_age_us));
        let segments = catalog.segments();
        let is_older = |segment: &&std::sync::Arc<crate::segment::Segment>| {
            !segment.is_active() && !known.contains(&segment.number())
        };
        let mut is_whole = true;
        for segment in segments.iter().rev().filter(is_older) {
            if gathered.tags.len() > window.keys {
                is_whole = false;
                break;
            }
            let summary = match catalog.stored_summary(segment.number())? {
                Some(summary) => summary,
                None => catalog.rebuild_summary(segment)?,
            };
            // Times never go back, so everything before this segment is older too.
            if summary.last_append_time.0 != i64::MIN && summary.last_append_time < oldest {
                is_whole = false;
                break;
            }
            window_start = segment.base();
            gathered.add(summary);
        }
        if is_whole {
            window_start = catalog.log_start();
        }
        Ok(gathered.finish(window_start))
    }
}

struct Gathered {
    tags: Vec<RecentTag>,
    sequences: HashMap<[u8; 16], RecentSequence>,
    window: KeyWindow,
}

impl Gathered {
    /// Newest summary first.
    fn add(&mut self, summary: Summary) {
        for entry in summary.tags {
            let (tag, first, records, append_time) = (entry.tag, entry.first, entry.records, entry.append_time);
            self.tags.push(RecentTag { tag, first, records, append_time });
        }
        for (block, append_time) in summary.sequences {
            self.sequences.entry(block.producer).or_insert(RecentSequence { block, append_time });
        }
    }

    fn finish(mut self, mut window_start: Offset) -> KeyHistory {
        self.tags.sort_unstable_by_key(|tag| tag.first);
        let surplus = self.tags.len().saturating_sub(self.window.keys);
        if let Some(first) = self.tags.get(surplus).filter(|_| surplus > 0) {
            window_start = window_start.max(first.first);
        }
        self.tags.drain(..surplus);
        let mut sequences: Vec<_> = self.sequences.into_values().collect();
        sequences.sort_unstable_by_key(|last| (std::cmp::Reverse(last.append_time), last.block.producer));
        sequences.truncate(self.window.producers);
        KeyHistory { window_start, tags: self.tags, sequences }
    }
}
