//! Where the newest segment ends: what stays below the last durable mark, what is adopted above it, what is lost (C80, C82).
//!
//! Pure: it is shown the units that verify, in order, and decides by their places alone.

use std::ops::Range;

use landfall_types::{Offset, Timestamp};

use crate::format::{HEADER_BYTES, Kind};
use crate::scan::{Found, Run};
use crate::segment::Segment;
use crate::summarize::Summarizer;

/// The newest segment's units, sorted by the last durable mark.
pub(crate) struct Split {
    mark: u64,
    pub log_start: Offset,
    /// The end of what lies below the mark and stays; as a run it has no start.
    pub kept: Run,
    pub adopted: Option<Run>,
    /// The first offset that a unit above the mark names, adopted or not.
    pub passed: Option<Offset>,
    pub lost: Vec<Range<Offset>>,
    pub summarizer: Summarizer,
    pub predecessor_summary: Option<Vec<u8>>,
    pub last_append_time: Option<Timestamp>,
}

impl Split {
    pub(crate) fn new(segment: &Segment, mark: u64, summary_bytes_max: usize) -> Split {
        let (start, base) = (HEADER_BYTES as u64, segment.base());
        Split {
            mark,
            log_start: segment.header.log_start,
            kept: Run { start_byte: start, end_byte: start, first: base, end: base, chain: segment.header_crc },
            adopted: None,
            passed: None,
            lost: Vec::new(),
            summarizer: Summarizer::new(segment.number(), base, summary_bytes_max),
            predecessor_summary: None,
            last_append_time: None,
        }
    }

    /// Units come in order of bytes.
    pub(crate) fn take(&mut self, found: &Found) {
        if found.at < self.mark {
            if found.head.first > self.kept.end {
                self.lost.push(self.kept.end..found.head.first);
            }
            self.kept = Run { end_byte: found.end_byte(), end: found.end(), chain: found.crc, ..self.kept };
            self.summarizer.add(found);
            self.look_at(found);
            return;
        }
        self.passed.get_or_insert(found.head.first);
        let continues = match &self.adopted {
            // What is adopted begins at the mark itself.
            None => found.at == self.mark,
            Some(run) => found.at == run.end_byte && found.head.first == run.end && found.head.chain == run.chain,
        };
        if continues {
            let (start_byte, first) =
                self.adopted.map_or((found.at, found.head.first), |run| (run.start_byte, run.first));
            let (end_byte, end, chain) = (found.end_byte(), found.end(), found.crc);
            self.adopted = Some(Run { start_byte, end_byte, first, end, chain });
            self.look_at(found);
        }
    }

    fn look_at(&mut self, found: &Found) {
        match found.head.kind {
            Kind::Trim => self.log_start = self.log_start.max(found.trim().unwrap_or_default()),
            Kind::Summary => self.predecessor_summary = Some(found.body.to_vec()),
            Kind::Data => self.last_append_time = self.last_append_time.max(Some(found.head.append_time)),
            Kind::Mark => {}
        }
    }
}
