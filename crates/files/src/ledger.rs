//! The ledger of a shard: which ends of ranges the directory holds, and which file is about to get its name.
//!
//! It is one small JSON file under `_landfall`, replaced by rename. That replacement is the commit: with it positions
//! move and publication of the complete, synced file is decided, both or neither (I9). Publication itself — giving the file
//! its name — may be repeated: [`Ledger::roll_forward`] does it at every start, and never takes anything back.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use landfall_engine::contract::Positions;
use landfall_types::{PartitionId, Place};
use serde::{Deserialize, Serialize};

use crate::code::FilesError;

/// The folder inside the directory that holds ledgers and unfinished files.
pub(crate) const FOLDER: &str = "_landfall";

const FORMAT: u32 = 1;

/// A step of a commit, in the order they happen. Tests break each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The file's bytes are synced.
    SyncFile,
    /// The ledger is replaced: the commit.
    ReplaceLedger,
    /// The file gets its name.
    Publish,
    /// The unfinished name goes.
    Tidy,
}

/// Called before each step; an error is the step's failure.
pub(crate) type StepHook = std::sync::Arc<dyn Fn(Step) -> io::Result<()> + Send + Sync>;

/// A file that is complete under one name and gets another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Publication {
    /// Its name under [`FOLDER`].
    pub(crate) from: String,
    /// Its name in the directory.
    pub(crate) to: String,
}

/// See the module. Places are pairs; partitions are keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ledger {
    format: u32,
    pipeline: String,
    shard: u16,
    sources: BTreeMap<String, BTreeMap<u32, (u64, u64)>>,
    /// The last file, which may not have its name yet.
    published: Option<Publication>,
}

impl Ledger {
    pub(crate) fn new(pipeline: &str, shard: u16) -> Self {
        Ledger { format: FORMAT, pipeline: pipeline.to_owned(), shard, sources: BTreeMap::new(), published: None }
    }

    fn path(directory: &Path, pipeline: &str, shard: u16) -> PathBuf {
        directory.join(FOLDER).join(format!("{pipeline}.{shard}.json"))
    }

    /// The ledger of a shard, or a new one where there is none.
    pub(crate) fn load(directory: &Path, pipeline: &str, shard: u16) -> Result<Ledger, FilesError> {
        match Ledger::read(&Ledger::path(directory, pipeline, shard))? {
            Some(ledger) => Ok(ledger),
            None => Ok(Ledger::new(pipeline, shard)),
        }
    }

    fn read(path: &Path) -> Result<Option<Ledger>, FilesError> {
        let wrong = |cause: String| FilesError::Ledger { path: path.display().to_string(), cause };
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FilesError::unavailable(format!("reading `{}`", path.display()), error)),
        };
        let ledger: Ledger = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        if ledger.format != FORMAT {
            return Err(wrong(format!("it has format {}, this version reads {FORMAT}", ledger.format)));
        }
        if let Some(Publication { from, to }) = &ledger.published
            && [from, to].into_iter().any(|name| name.is_empty() || name.contains('/') || name.starts_with('.'))
        {
            return Err(wrong("it names a file outside the directory".into()));
        }
        Ok(Some(ledger))
    }

    /// All ledgers of a pipeline in a directory.
    pub(crate) fn all(directory: &Path, pipeline: &str) -> Result<Vec<Ledger>, FilesError> {
        let folder = directory.join(FOLDER);
        let reading = |error| FilesError::unavailable(format!("listing `{}`", folder.display()), error);
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(reading(error)),
        };
        let mut ledgers = Vec::new();
        for entry in entries {
            let entry = entry.map_err(reading)?;
            let name = entry.file_name();
            let shard = name.to_str().and_then(|name| {
                name.strip_prefix(pipeline)?.strip_prefix('.')?.strip_suffix(".json")?.parse::<u16>().ok()
            });
            if let Some(shard) = shard
                && let Some(ledger) = Ledger::read(&Ledger::path(directory, pipeline, shard))?
            {
                ledgers.push(ledger);
            }
        }
        Ok(ledgers)
    }

    /// Ends of what the directory holds of a source.
    pub(crate) fn positions(&self, source: &str) -> Positions {
        let ends = self.sources.get(source).into_iter().flatten();
        ends.map(|(partition, (at, within))| (PartitionId(*partition), Place { at: *at, within: *within })).collect()
    }

    /// The unfinished file that the ledger still needs.
    pub(crate) fn needs(&self) -> Option<&str> {
        self.published.as_ref().map(|publication| publication.from.as_str())
    }

    /// The same with other ends and another file.
    pub(crate) fn next(&self, source: &str, ends: &Positions, publication: Publication) -> Ledger {
        let mut next = self.clone();
        let positions = next.sources.entry(source.to_owned()).or_default();
        positions.extend(ends.iter().map(|(partition, end)| (partition.0, (end.at, end.within))));
        next.published = Some(publication);
        next
    }

    /// Replaces the ledger on disk: the commit. An error leaves either the old or the new one there; storing the same
    /// again is no second commit.
    pub(crate) fn store(&self, directory: &Path, hook: Option<&StepHook>) -> Result<(), FilesError> {
        let path = Ledger::path(directory, &self.pipeline, self.shard);
        let replace = || -> io::Result<()> {
            before(hook, Step::ReplaceLedger)?;
            let temporary = path.with_extension("json.new");
            let mut file = File::create(&temporary)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            sync_directory(&directory.join(FOLDER))
        };
        replace().map_err(|error| FilesError::unavailable(format!("writing `{}`", path.display()), error))
    }

    /// Gives the last file its name, if it has it not yet. Never overwrites another file.
    pub(crate) fn roll_forward(&self, directory: &Path, hook: Option<&StepHook>) -> Result<(), FilesError> {
        let Some(publication) = &self.published else { return Ok(()) };
        let from = directory.join(FOLDER).join(&publication.from);
        let to = directory.join(&publication.to);
        let failed = |error| FilesError::unavailable(format!("publishing `{}`", to.display()), error);
        if !from.try_exists().map_err(failed)? {
            // It has its name, or a reader took it away after it had.
            return Ok(());
        }
        before(hook, Step::Publish).map_err(failed)?;
        match std::fs::hard_link(&from, &to) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !same_file(&from, &to).map_err(failed)? {
                    return Err(FilesError::NameTaken { path: to.display().to_string() });
                }
            }
            Err(error) => return Err(failed(error)),
        }
        sync_directory(directory).map_err(failed)?;
        before(hook, Step::Tidy).map_err(failed)?;
        std::fs::remove_file(&from).map_err(failed)
    }
}

pub(crate) fn before(hook: Option<&StepHook>, step: Step) -> io::Result<()> {
    hook.map_or(Ok(()), |hook| hook(step))
}

/// Whether both names are of one file: a link whose other name was not removed yet.
fn same_file(one: &Path, other: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (one, other) = (std::fs::metadata(one)?, std::fs::metadata(other)?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
