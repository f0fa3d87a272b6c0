//! The owner of a shard's open file: one thread that encodes, commits and publishes (I5).
//!
//! Commands come one after the other; a caller that goes away changes nothing, and what it did not hear is told to the
//! next one. Steps of a commit: the file is finished and synced under an unfinished name; the ledger is replaced; the
//! file gets its name. Before the second step nothing of the group is there, after it all of it is, whatever fails.

use std::collections::{BTreeMap, HashSet};
use std::fs::OpenOptions;
use std::io;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use landfall_engine::contract::{BarrierError, CommitId, Covered, Positions, Settled, SinkError};
use landfall_types::{Epoch, PartitionId, Place};

use crate::code::{self, FilesError};
use crate::encode::Encoder;
use crate::ledger::{FOLDER, Ledger, Publication, Step, StepHook, before};
use crate::options::FilesOptions;

/// What a shard is made with.
#[derive(Clone)]
pub(crate) struct ShardCx {
    pub(crate) options: FilesOptions,
    pub(crate) directory: PathBuf,
    pub(crate) schema: SchemaRef,
    pub(crate) pipeline: String,
    pub(crate) source: String,
    pub(crate) shard: u16,
    pub(crate) hook: Option<StepHook>,
}

/// The group that is being written, or that waits for its commit.
#[derive(Default)]
struct Group {
    batches: Vec<CommitId>,
    ids: HashSet<CommitId>,
    rows: u64,
    spans: BTreeMap<PartitionId, (Epoch, Place, Place)>,
    file: Option<(String, Encoder)>,
    bytes: u64,
    lost: Option<String>,
}

impl Group {
    fn ends(&self) -> Positions {
        let moved = self.spans.iter().filter(|(_, (_, start, end))| start != end);
        moved.map(|(partition, (_, _, end))| (*partition, *end)).collect()
    }
}

/// A group whose file is complete. `ledger` is the one that commits it.
struct Complete {
    group: Group,
    ledger: Ledger,
    is_committed: bool,
}

/// See the module.
pub(crate) struct Shard {
    cx: ShardCx,
    ledger: Option<Ledger>,
    group: Group,
    complete: Option<Complete>,
    settled: Settled,
}

/// How full the open file is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fill {
    pub(crate) bytes: u64,
    pub(crate) rows: u64,
    pub(crate) wants_barrier: bool,
}

/// A group is published early once it has so many batches: their ids are in memory.
const GROUP_BATCHES_MAX: usize = 4_096;

impl Shard {
    pub(crate) fn new(cx: ShardCx) -> Self {
        Shard { cx, ledger: None, group: Group::default(), complete: None, settled: Settled::default() }
    }

    pub(crate) fn fill(&self) -> Fill {
        Fill {
            bytes: self.group.bytes,
            rows: self.group.rows,
            wants_barrier: self.group.lost.is_some()
                || self.group.bytes >= self.cx.options.roll_max_bytes.0
                || self.group.batches.len() >= GROUP_BATCHES_MAX,
        }
    }

    /// Takes a batch. A group that cannot be completed goes on taking batches without writing them, until the barrier names
    /// them all.
    pub(crate) fn write(&mut self, id: CommitId, parts: &[RecordBatch], covers: &[Covered]) {
        if !self.group.ids.insert(id) {
            return;
        }
        self.group.batches.push(id);
        for cover in covers {
            let (start, end) = (cover.range.start, cover.range.end);
            match self.group.spans.get_mut(&cover.partition) {
                None => {
                    self.group.spans.insert(cover.partition, (cover.epoch, start, end));
                }
                Some((epoch, _, last)) if *epoch == cover.epoch && *last <= start => *last = end,
                Some((epoch, _, last)) => {
                    let why = format!(
                        "partition {} was read anew: the group ends at {last} of epoch {epoch}, and {start} of epoch {} came",
                        cover.partition, cover.epoch
                    );
                    self.lose(why);
                }
            }
        }
        if self.group.lost.is_some() {
            return;
        }
        self.group.rows += parts.iter().map(|part| part.num_rows() as u64).sum::<u64>();
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| self.append(parts)));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.lose(error.to_string()),
            Err(_) => self.lose("the encoder panicked".into()),
        }
    }

    fn append(&mut self, parts: &[RecordBatch]) -> io::Result<()> {
        for part in parts.iter().filter(|part| part.num_rows() > 0) {
            if self.group.file.is_none() {
                let name = format!("{}.{}.{}.part", self.cx.pipeline, self.cx.shard, uuid::Uuid::now_v7().simple());
                let file = OpenOptions::new().write(true).create_new(true).open(self.unfinished(&name))?;
                self.group.file = Some((name, Encoder::over(file, &self.cx.schema, &self.cx.options)?));
            }
            if let Some((name, encoder)) = &mut self.group.file {
                encoder.append(part)?;
                let path = self.cx.directory.join(FOLDER).join(name.as_str());
                self.group.bytes = std::fs::metadata(path)?.len();
            }
        }
        Ok(())
    }

    fn unfinished(&self, name: &str) -> PathBuf {
        self.cx.directory.join(FOLDER).join(name)
    }

    fn lose(&mut self, why: String) {
        if let Some((name, encoder)) = self.group.file.take() {
            drop(encoder);
            let _ = std::fs::remove_file(self.unfinished(&name));
        }
        self.group.lost.get_or_insert(why);
    }

    /// Forgets what is not committed. What is committed gets its name, here or at the next start.
    pub(crate) fn reset(&mut self) {
        self.lose("the engine started its partitions anew".into());
        self.group = Group::default();
        if self.complete.take().is_some() {
            // A replacement that failed may be on the disk all the same, and one that is there waits for its name: the
            // ledger is read again, and rolled forward, before it is used.
            self.ledger = None;
        }
        self.settled = Settled::default();
    }

    /// Commits and publishes all that was taken.
    pub(crate) fn barrier(&mut self) -> Result<Settled, BarrierError> {
        loop {
            self.publish().map_err(|error| BarrierError { error: error.into_sink(), lost: Vec::new() })?;
            if self.group.batches.is_empty() {
                let mut settled = std::mem::take(&mut self.settled);
                settled.positions =
                    self.ledger.as_ref().map(|ledger| ledger.positions(&self.cx.source)).unwrap_or_default();
                return Ok(settled);
            }
            self.seal()?;
        }
    }

    /// What a caller did not hear is told again.
    pub(crate) fn untold(&mut self, settled: Settled) {
        self.settled.batches += settled.batches;
        self.settled.rows += settled.rows;
    }

    fn ledger(&mut self) -> Result<&Ledger, FilesError> {
        if self.ledger.is_none() {
            let ledger = Ledger::load(&self.cx.directory, &self.cx.pipeline, self.cx.shard)?;
            // Before anything else is committed, or the file would never get its name.
            ledger.roll_forward(&self.cx.directory, self.cx.hook.as_ref())?;
            self.ledger = Some(ledger);
        }
        Ok(self.ledger.get_or_insert_with(|| Ledger::new(&self.cx.pipeline, self.cx.shard)))
    }

    /// Completes the group's file, or says that the group is lost.
    fn seal(&mut self) -> Result<(), BarrierError> {
        let source = self.cx.source.clone();
        let ledger = match self.ledger() {
            Ok(ledger) => ledger.clone(),
            Err(error) => return Err(BarrierError { error: error.into_sink(), lost: Vec::new() }),
        };
        let positions = ledger.positions(&source);
        let behind = self.group.spans.iter().find_map(|(partition, (_, start, end))| {
            let held = positions.get(partition)?;
            (start != end && held > start).then(|| {
                let text = format!(
                    "partition {partition}: the group is {start} to {end}, the directory holds {held}: these rows were \
                     published before"
                );
                SinkError::Superseded { code: code::SUPERSEDED, text, partitions: vec![*partition] }
            })
        });
        if let Some(error) = behind {
            self.lose(error.to_string());
            return Err(BarrierError { error, lost: std::mem::take(&mut self.group).batches });
        }
        let finished = match self.group.lost {
            Some(_) => Ok(None),
            None => self.finish(),
        };
        let finished = finished.unwrap_or_else(|error| {
            self.lose(error.to_string());
            None
        });
        let group = std::mem::take(&mut self.group);
        if let Some(why) = &group.lost {
            let text = format!("the group's file is not complete: {why}");
            let error = SinkError::Unknown { code: code::GROUP_LOST, text };
            return Err(BarrierError { error, lost: group.batches });
        }
        let Some(from) = finished else {
            // Rows that were all filtered leave nothing to publish; the engine's watermark passes them.
            self.settle(&group);
            return Ok(());
        };
        let publication = Publication { from, to: self.name(&group) };
        let ledger = ledger.next(&source, &group.ends(), publication);
        self.complete = Some(Complete { group, ledger, is_committed: false });
        Ok(())
    }

    /// Ends the file and syncs it. Returns its unfinished name; none where there were no rows.
    fn finish(&mut self) -> io::Result<Option<String>> {
        let Some((name, encoder)) = self.group.file.take() else { return Ok(None) };
        let finished = encoder.finish().and_then(|file| {
            before(self.cx.hook.as_ref(), Step::SyncFile)?;
            file.sync_all()
        });
        match finished {
            Ok(()) => Ok(Some(name)),
            Err(error) => {
                let _ = std::fs::remove_file(self.unfinished(&name));
                Err(error)
            }
        }
    }

    /// Prefix, shard, first range, commit id: a group that is formed again from the same rows has the same name.
    fn name(&self, group: &Group) -> String {
        let prefix = self.cx.options.prefix.as_deref().unwrap_or(&self.cx.pipeline);
        let first = group.spans.iter().next().map(|(partition, (_, start, _))| format!("p{partition}-{}", start.at));
        let id = group.batches.first().map(ToString::to_string).unwrap_or_default();
        let extension = self.cx.options.extension();
        format!("{prefix}-{}-{}-{id}.{extension}", self.cx.shard, first.unwrap_or_default())
    }

    /// Commits the complete group and gives its file the name. An error keeps it: both steps may be repeated.
    fn publish(&mut self) -> Result<(), FilesError> {
        let Some(complete) = &mut self.complete else { return Ok(()) };
        let (directory, hook) = (&self.cx.directory, self.cx.hook.as_ref());
        if !complete.is_committed {
            complete.ledger.store(directory, hook)?;
            complete.is_committed = true;
            self.ledger = Some(complete.ledger.clone());
        }
        complete.ledger.roll_forward(directory, hook)?;
        if let Some(complete) = self.complete.take() {
            let labels = [("pipeline", self.cx.pipeline.clone())];
            metrics::counter!("landfall_files_published_total", &labels).increment(1);
            self.settle(&complete.group);
        }
        Ok(())
    }

    fn settle(&mut self, group: &Group) {
        self.settled.batches += group.batches.len() as u64;
        self.settled.rows += group.rows;
    }
}
