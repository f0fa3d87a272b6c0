//! Opening: reading what is there, deciding where the log ends, and beginning a segment of a higher epoch (C79–C84).
//!
//! What lies above the last durable mark is adopted by copy as far as it verifies without a break, and is torn from
//! there on. It is never adopted in place: the page cache may show what no sync has confirmed. The switch is one rename
//! after a sync, so an acknowledged append survives a crash at any point of this, and a second open follows the headers
//! past whatever was torn (C81). Damage below a mark is named, never cut (I12).

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use landfall_types::{Epoch, Offset, SegmentNumber, Timestamp};

use crate::catalog::Catalog;
use crate::directory::{Directory, Member, Unreadable, read_directory};
use crate::error::{OpenError, StoppedCause};
use crate::format::{HEADER_BYTES, Kind, Predecessor, Reason, SegmentHeader, Summary};
use crate::gather::Gather;
use crate::options::{LogIdentity, LogOptions};
use crate::outcome::{Opened, Stray, StrayReason};
use crate::prepare::{Chore, Preparer, Space};
use crate::read::LogReader;
use crate::scan::{self, Found, Run, Stop, Survey, Window};
use crate::segment::{Segment, segment_name};
use crate::split::Split;
use crate::successor::{Copied, Draft, SuccessionError};
use crate::summarize::Summarizer;
use crate::vfs::{Vfs, VfsFile};
use crate::window::KeyHistory;
use crate::writer::{Active, Cut, LogWriter, SUMMARY_PART};

/// One partition's log in a directory of its own.
#[derive(Debug)]
pub struct PartitionLog;

impl PartitionLog {
    /// Takes the tail; creates the directory and an empty log where there is none. When it returns, the epoch is above
    /// every epoch ever used here and durable as such. Blocks on I/O.
    ///
    /// The caller holds the data directory's LOCK: two opens at a time would be two owners (I5).
    pub fn open(
        vfs: Arc<dyn Vfs>,
        dir: &Path,
        identity: LogIdentity,
        options: LogOptions,
    ) -> Result<Opened, OpenError> {
        vfs.create_dir_all(dir).map_err(failed("creating", dir))?;
        let directory = read_directory(vfs.as_ref(), dir, identity)?;
        let catalog = Arc::new(Catalog::new(vfs, dir.to_path_buf(), Stop(options.stop.clone())));
        Opening { catalog, identity, options, directory, damaged: Vec::new() }.run()
    }
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> OpenError {
    move |source| OpenError::Failed { step, path: path.to_path_buf(), source }
}

struct Opening {
    catalog: Arc<Catalog>,
    identity: LogIdentity,
    options: LogOptions,
    directory: Directory,
    damaged: Vec<Range<Offset>>,
}

/// What was found out about the newest segment.
struct Ending {
    segment: Arc<Segment>,
    file: Arc<dyn VfsFile>,
    /// What stays, and where the next segment begins.
    cut: Cut,
    /// Copied into the next segment.
    adopted: Option<Run>,
    torn_bytes: u64,
    /// Of what stays.
    summarizer: Summarizer,
    last_append_time: Option<Timestamp>,
}

impl Opening {
    fn run(mut self) -> Result<Opened, OpenError> {
        let chain = std::mem::take(&mut self.directory.chain);
        self.catalog.set_segments(chain.iter().map(|member| Arc::clone(&member.segment)).collect());
        self.close_all_but_last(&chain)?;
        if let Some(newest) = chain.last() {
            self.catalog.raise_log_start(newest.segment.header.log_start);
        }
        self.stop_at_unreadable_tail(chain.last())?;
        let ending = match chain.last() {
            Some(newest) => Some(self.find_ending(&newest.segment)?),
            None => None,
        };
        self.name_gaps(chain.first().map(|oldest| oldest.segment.base()));
        self.check_floor(ending.as_ref())?;
        self.begin(ending)
    }

    /// Behind the chain, a file whose header cannot be read may hold acknowledged records, and what is no file may stand
    /// where they were: the tail is not known (C83).
    fn stop_at_unreadable_tail(&mut self, newest: Option<&Member>) -> Result<(), OpenError> {
        for Unreadable { base, path, is_file } in std::mem::take(&mut self.directory.unreadable) {
            if newest.is_none_or(|newest| base > newest.segment.base()) {
                let cause = match is_file {
                    true => StoppedCause::HeaderDamaged { path },
                    false => StoppedCause::NotAFile { path },
                };
                return Err(self.stopped(newest.map(|newest| &newest.segment), cause));
            }
            let name = path.file_name().map(PathBuf::from).unwrap_or_default();
            let reason = if is_file { StrayReason::HeaderDamaged } else { StrayReason::NotAFile };
            self.directory.strays.push(Stray { name, reason });
            // Its numbers are not known; those after the highest known one are passed over.
            let passed = |it: SegmentNumber| SegmentNumber(it.0.saturating_add(1));
            self.directory.highest_number = self.directory.highest_number.map(passed);
            self.directory.highest_epoch = Epoch(self.directory.highest_epoch.0.saturating_add(1));
        }
        Ok(())
    }

    /// Readable as far as the newest segment verifies without a break, and nothing more.
    fn stopped(&self, newest: Option<&Arc<Segment>>, cause: StoppedCause) -> OpenError {
        let run = newest.and_then(|segment| self.survey(segment, u64::MAX).ok()?.runs.first().copied());
        if let Some(segment) = newest {
            let (end, end_byte) = run.map_or((segment.base(), HEADER_BYTES as u64), |run| (run.end, run.end_byte));
            segment.close_at(end, end_byte);
        }
        self.stopped_at(newest.map_or(Offset::ZERO, |segment| segment.end()), cause)
    }

    fn stopped_at(&self, readable_end: Offset, cause: StoppedCause) -> OpenError {
        OpenError::Stopped {
            dir: self.catalog.dir.clone(),
            cause,
            log_start: self.catalog.log_start(),
            readable_end,
            reader: Box::new(LogReader::new(Arc::clone(&self.catalog))),
        }
    }

    fn survey(&self, segment: &Arc<Segment>, end: u64) -> Result<Survey, OpenError> {
        let file = self.catalog.file(segment).map_err(failed("opening", &segment.path))?;
        scan::survey(&file, segment.seed, segment.header_crc, segment.base(), end, &self.catalog.stop)
            .map_err(failed("scanning", &segment.path))
    }

    /// Sets the ends of all segments but the newest by their successors' headers.
    fn close_all_but_last(&mut self, chain: &[Member]) -> Result<(), OpenError> {
        for pair in chain.windows(2) {
            let [Member { segment, bytes }, Member { segment: next, .. }] = pair else { continue };
            let predecessor = next.header.predecessor.filter(|it| it.number == segment.number());
            let end_byte = predecessor.map(|it| it.end);
            match end_byte {
                Some(end_byte) if *bytes >= end_byte => segment.close_at(next.base(), end_byte),
                // The next file is missing, or this one is too short: what verifies of it is there, the rest is lost.
                _ => {
                    let survey = self.survey(segment, end_byte.unwrap_or(u64::MAX))?;
                    let last = survey.runs.last();
                    let end = last.map_or(segment.base(), |run| run.end).min(next.base());
                    segment.close_at(end, last.map_or(HEADER_BYTES as u64, |run| run.end_byte));
                    if end_byte.is_some() {
                        segment.set_damaged();
                    }
                    self.damaged.push(end..next.base());
                }
            }
        }
        Ok(())
    }

    /// Scans the newest segment and decides what stays, what is adopted, and what is torn or lost.
    fn find_ending(&mut self, segment: &Arc<Segment>) -> Result<Ending, OpenError> {
        let scanning = || failed("scanning", &segment.path);
        let survey = self.survey(segment, u64::MAX)?;
        if !survey.is_complete {
            let cause = StoppedCause::TailUnknown { path: segment.path.clone() };
            return Err(self.stopped(Some(segment), cause));
        }
        let file = &self.catalog.file(segment).map_err(failed("opening", &segment.path))?;
        let summary_bytes_max = (self.options.segment_bytes.get() / SUMMARY_PART) as usize;
        let mut split = Split::new(segment, survey.mark, summary_bytes_max);
        for run in &survey.runs {
            let visited = scan::visit(file, segment.seed, run, &self.catalog.stop, |found| {
                split.take(&found);
                Ok(())
            });
            visited.map_err(scanning())?;
        }
        self.catalog.raise_log_start(split.log_start);
        let kept = split.kept;
        let base = match (&split.adopted, split.passed) {
            (Some(run), _) => run.first,
            // Where the break lies below the mark, offsets up to what verifies behind it were acknowledged: they are
            // lost, and never given out again.
            (None, Some(passed)) if kept.end_byte < survey.mark => passed,
            _ => kept.end,
        };
        split.lost.push(kept.end..base);
        split.lost.retain(|range| !range.is_empty());
        if !split.lost.is_empty() {
            segment.set_damaged();
        }
        self.damaged.append(&mut split.lost);
        let torn_from = split.adopted.map_or(kept.end_byte.max(survey.mark), |run| run.end_byte);
        let torn_bytes = Window::scanning(Arc::clone(file), survey.file_bytes, &self.catalog.stop)
            .non_zero(torn_from, survey.file_bytes)
            .map_err(scanning())?;
        let cut = if base == segment.base() {
            let predecessor = segment.header.predecessor;
            Cut { base, predecessor, summary: split.predecessor_summary, closes: None }
        } else {
            let end = kept.end_byte.max(survey.mark);
            let predecessor = Some(Predecessor { number: segment.number(), end, chain: kept.chain });
            let summary = split.summarizer.encode(base);
            Cut { base, predecessor, summary, closes: Some((Arc::clone(segment), end)) }
        };
        Ok(Ending {
            segment: Arc::clone(segment),
            file: Arc::clone(file),
            cut,
            adopted: split.adopted,
            torn_bytes,
            summarizer: split.summarizer,
            last_append_time: split.last_append_time,
        })
    }

    /// Offsets that no file holds (C84).
    fn name_gaps(&mut self, oldest: Option<Offset>) {
        let log_start = self.catalog.log_start();
        if let Some(oldest) = oldest {
            self.damaged.push(log_start..oldest);
        }
        for range in std::mem::take(&mut self.damaged) {
            let range = range.start.max(log_start)..range.end;
            if !range.is_empty() {
                tracing::error!(
                    dir = %self.catalog.dir.display(), from = range.start.0, to = range.end.0,
                    "LF-CH0051: records are lost to damage; they are named to readers, the rest is served"
                );
                self.catalog.add_damage(range);
            }
        }
    }

    /// An ack floor is a durable mark, and so is the tail of an earlier run: the tail cannot lie below it.
    fn check_floor(&self, ending: Option<&Ending>) -> Result<(), OpenError> {
        let tail = ending.map_or(Offset::ZERO, |ending| ending.adopted.map_or(ending.cut.base, |run| run.end));
        let Some(cursor) = self.options.floor.filter(|floor| *floor > tail) else { return Ok(()) };
        if let Some(ending) = ending {
            ending.segment.close_at(tail, u64::MAX - 1);
        }
        Err(self.stopped_at(tail, StoppedCause::CursorPastTail { cursor, tail }))
    }

    /// Puts the segment of the new epoch in place.
    fn begin(self, ending: Option<Ending>) -> Result<Opened, OpenError> {
        let Opening { catalog, identity, options, directory, .. } = self;
        let exhausted = |number, limit| OpenError::NumbersExhausted { number, limit };
        let epoch = directory.highest_epoch.checked_add(1).ok_or(exhausted("epoch", u64::from(Epoch::MAX.0)))?;
        let number = match directory.highest_number {
            None => SegmentNumber(1),
            Some(highest) => highest.checked_add(1).ok_or(exhausted("segment number", SegmentNumber::MAX.0))?,
        };
        let first = Cut { base: Offset::ZERO, predecessor: None, summary: None, closes: None };
        let (cut, reason) = match &ending {
            Some(ending) => (ending.cut.clone(), Reason::Open),
            None => (first, Reason::First),
        };
        let header = SegmentHeader {
            identity,
            epoch,
            number,
            base: cut.base,
            predecessor: cut.predecessor,
            reason,
            log_start: catalog.log_start(),
            created: options.clock.now(),
        };
        let segment_bytes = options.segment_bytes.get();
        let space =
            Arc::new(Space::new(Arc::clone(&catalog.vfs), catalog.dir.clone(), options.preparation, segment_bytes));
        let spare = space.take_or_make_spare().map_err(failed("making a spare file in", &catalog.dir))?;
        let mut draft = Draft::begin(spare, header, (segment_bytes / SUMMARY_PART) as usize);
        // Bytes that do not verify may be somebody's: a file that loses its name to the new one keeps another.
        let name = PathBuf::from(segment_name(cut.base));
        let is_stray = directory.strays.iter().any(|it| it.name == name && it.reason != StrayReason::Empty);
        let is_torn = ending.as_ref().is_some_and(|ending| cut.closes.is_none() && ending.torn_bytes > 0);
        let filled = fill(&mut draft, ending.as_ref(), &cut, options.clock.now(), &catalog.stop);
        let placed = filled.and_then(|()| draft.place(&catalog, is_stray || is_torn));
        let placed =
            placed.map_err(|error| OpenError::Failed { step: error.step, path: error.path, source: error.source })?;
        let (tail, adopted_units, prepared) = (placed.next, placed.data_units, placed.prepared);
        if let Some((segment, end_byte)) = &cut.closes {
            segment.close_at(cut.base, *end_byte);
        }

        let (torn_bytes, last_append_time, history_tail) = match ending {
            Some(ending) => {
                let kept = ending.summarizer.summary(cut.base);
                if cut.closes.is_some() {
                    ending.segment.set_index(kept.index.clone());
                    if kept.last_append_time.0 != i64::MIN {
                        ending.segment.set_last_append_time(kept.last_append_time);
                    }
                    catalog.keep_open(&ending.segment);
                }
                (ending.torn_bytes, ending.last_append_time, Some(kept))
            }
            None => (0, None, None),
        };
        let adopted = placed.summarizer.summary(tail);
        let writer = LogWriter {
            active: Active::placed(placed, cut.summary.clone()),
            space: Arc::clone(&space),
            identity,
            next: tail,
            epoch,
            highest_epoch: epoch,
            highest_number: number,
            pending: None,
            unsynced: Vec::new(),
            gather: Gather::default(),
            last_settled: None,
            catalog: Arc::clone(&catalog),
            options,
        };
        writer.enter(prepared);
        let below = catalog.take_below_log_start();
        let left_overs = below.len() as u64;
        space.add_chores(below.iter().map(|segment| Chore::Free(segment.path.clone())));

        let window = writer.options.key_window;
        let now = writer.options.clock.now();
        let own: Vec<Summary> = [Some(adopted), history_tail].into_iter().flatten().collect();
        let history =
            KeyHistory::collect(&catalog, own, window, now).map_err(failed("reading summaries in", &catalog.dir))?;
        let last_append_time = match last_append_time {
            Some(time) => Some(time),
            None => last_time_of(&catalog),
        };
        let log_start = catalog.log_start().min(tail);
        if torn_bytes > 0 {
            tracing::warn!(
                dir = %catalog.dir.display(), tail = tail.0, torn_bytes,
                "a torn tail was cut: bytes of a turn that the disk does not hold whole and that no later one confirms"
            );
        }
        for stray in &directory.strays {
            tracing::warn!(
                dir = %catalog.dir.display(), file = %stray.name.display(), reason = ?stray.reason,
                "a file is not part of the log and is left alone"
            );
        }
        tracing::info!(
            dir = %catalog.dir.display(), epoch = epoch.0, log_start = log_start.0, tail = tail.0, adopted_units,
            torn_bytes, "a partition's log is open"
        );
        Ok(Opened {
            reader: LogReader::new(Arc::clone(&catalog)),
            preparer: Preparer { space },
            log_start,
            tail,
            epoch,
            last_append_time: last_append_time.unwrap_or_default(),
            adopted_units,
            torn_bytes,
            damaged: catalog.damaged(),
            window_start: history.window_start.max(log_start),
            tags: history.tags,
            sequences: history.sequences,
            strays: directory.strays,
            left_overs,
            summary_rebuilds: catalog.summary_rebuilds(),
            writer,
        })
    }
}

/// What the new segment begins with.
fn fill(
    draft: &mut Draft,
    ending: Option<&Ending>,
    cut: &Cut,
    now: Timestamp,
    stop: &Stop,
) -> Result<(), SuccessionError> {
    if let Some(summary) = &cut.summary {
        draft.push_control(Kind::Summary, summary, now)?;
    }
    let Some((ending, run)) = ending.and_then(|ending| Some((ending, ending.adopted.as_ref()?))) else {
        return Ok(());
    };
    let mut outcome = Ok(());
    let mut has_data = false;
    let visited = scan::visit(&ending.file, ending.segment.seed, run, stop, |found| {
        if found.head.kind == Kind::Data && outcome.is_ok() {
            has_data = true;
            outcome = copy(draft, &found, ending);
        }
        Ok(())
    });
    let path = ending.segment.path.clone();
    visited.map_err(|source| SuccessionError { step: "reading", path, source, was_renamed: false })?;
    outcome?;
    // A mark behind them tells later damage from a torn tail.
    if has_data { draft.push_control(Kind::Mark, &[], now) } else { Ok(()) }
}

fn copy(draft: &mut Draft, found: &Found, ending: &Ending) -> Result<(), SuccessionError> {
    let head = &found.head;
    draft.push(&Copied {
        front: head.front,
        tag: head.front.read(&found.body).unwrap_or_default(),
        codec: head.codec,
        records: head.records,
        ticket: head.ticket,
        origin_epoch: head.origin_epoch,
        append_time: head.append_time,
        body: [&found.body, &[]],
        plain_crc: head.body_crc ^ ending.segment.seed.0,
    })
}

/// The append time of the newest record, from the newest segment that knows one.
fn last_time_of(catalog: &Catalog) -> Option<Timestamp> {
    catalog.segments().iter().rev().find_map(|segment| {
        if !segment.is_active() {
            // Unknown means that times start anew; the channel takes the later of this and the clock.
            let _ = catalog.load_index(segment);
        }
        segment.last_append_time()
    })
}
