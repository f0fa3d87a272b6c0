//! The files sink: plans, locks and opens a directory, finishes what a crash left, answers positions (E123).
//!
//! Carries I9 by [`Guarantee::Positions`]: the ledger moves positions and decides publication in one rename, and every
//! start rolls forward. One process per pipeline id and directory, by a lock on a file.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_schema::{Schema, SchemaRef};
use futures::future::BoxFuture;
use landfall_engine::contract::{
    Covered, Guarantee, PlanCx, PlanError, Positions, ShardId, ShardWriter, Sink, SinkError, SinkIdentity, SinkPlan,
    columns, is_hidden,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::code::FilesError;
use crate::encode::{check_schema, memory_max};
use crate::ledger::{FOLDER, Ledger, StepHook, sync_directory};
use crate::options::FilesOptions;
use crate::shard::{Fill, ShardCx};
use crate::writer::FilesWriter;

/// A destination that publishes files in a local directory. Cheap to clone; all clones are one sink.
#[derive(Clone)]
pub struct FilesSink {
    shared: Arc<Shared>,
}

/// What the sink's parts share.
pub(crate) struct Shared {
    options: FilesOptions,
    directory: PathBuf,
    hook: Option<StepHook>,
    memory: Mutex<Memory>,
}

/// Short looks only; never held across I/O (I5).
#[derive(Default)]
struct Memory {
    opened: Option<Opened>,
    known: Positions,
    fills: Vec<Arc<Mutex<Fill>>>,
}

struct Opened {
    pipeline: String,
    source: String,
    schema: SchemaRef,
    /// Held as long as the sink lives.
    _lock: Arc<File>,
}

const IDENTITY: &str = "directory.json";

/// `_landfall/directory.json`: a directory that is emptied or replaced is another one.
#[derive(Serialize, Deserialize)]
struct Identity {
    id: uuid::Uuid,
}

impl FilesSink {
    /// A sink with these options.
    pub fn new(options: FilesOptions) -> Result<FilesSink, PlanError> {
        FilesSink::with_hook(options, None)
    }

    pub(crate) fn with_hook(options: FilesOptions, hook: Option<StepHook>) -> Result<FilesSink, PlanError> {
        options.check().map_err(FilesError::into_plan)?;
        let directory = std::path::absolute(&options.path)
            .map_err(|error| FilesError::unavailable("making `path` absolute", error).into_plan())?;
        Ok(FilesSink { shared: Arc::new(Shared { options, directory, hook, memory: Mutex::default() }) })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.shared.directory
    }

    fn schema(&self, rows: &Schema) -> Result<SchemaRef, FilesError> {
        let options = &self.shared.options;
        let wanted =
            |name: &str| !is_hidden(name) || (options.hidden && [columns::PARTITION, columns::OFFSET].contains(&name));
        let fields: Vec<_> = rows.fields().iter().filter(|field| wanted(field.name())).cloned().collect();
        if !fields.iter().any(|field| !is_hidden(field.name())) {
            return Err(FilesError::Option { text: "the query has no columns: select at least one".into() });
        }
        let schema = Schema::new(fields);
        check_schema(&schema, options.format)?;
        Ok(Arc::new(schema))
    }
}

impl Shared {
    /// Takes the lock, makes what is missing, finishes what a crash left. Blocks. `before`: the directory that the
    /// pipeline's positions are of; no other is made in its place.
    fn open(&self, schema: SchemaRef, cx: &PlanCx, before: Option<SinkIdentity>) -> Result<SinkIdentity, FilesError> {
        let pipeline = cx.pipeline.to_string();
        let folder = self.directory.join(FOLDER);
        let failed = |error| FilesError::unavailable(format!("opening `{}`", self.directory.display()), error);
        if let Some(SinkIdentity(id)) = before
            && !folder.join(IDENTITY).try_exists().map_err(failed)?
        {
            return Err(FilesError::Gone { path: self.directory.display().to_string(), id });
        }
        let is_new = !folder.try_exists().map_err(failed)?;
        std::fs::create_dir_all(&folder).map_err(failed)?;
        if is_new {
            for directory in folder.ancestors().take(3) {
                sync_directory(directory).map_err(failed)?;
            }
        }
        // What is read is as durable as what was written: a process may have ended between giving a name and syncing it.
        for directory in [&folder, &self.directory] {
            sync_directory(directory).map_err(failed)?;
        }
        let known = self.memory.lock().opened.as_ref().map(|opened| (opened.pipeline.clone(), opened._lock.clone()));
        let lock = match known {
            Some((of, lock)) if of == pipeline => lock,
            _ => Arc::new(self.lock(&pipeline)?),
        };
        let id = identity(&folder)?;
        let ledgers = Ledger::all(&self.directory, &pipeline)?;
        for ledger in &ledgers {
            ledger.roll_forward(&self.directory, self.hook.as_ref())?;
        }
        let needed: HashSet<&str> = ledgers.iter().filter_map(Ledger::needs).collect();
        remove_unfinished(&folder, &pipeline, &needed).map_err(failed)?;
        let mut memory = self.memory.lock();
        memory.known = merge(&ledgers, &cx.source);
        memory.opened = Some(Opened { pipeline, source: cx.source.clone(), schema, _lock: lock });
        Ok(SinkIdentity(id.to_string()))
    }

    fn lock(&self, pipeline: &str) -> Result<File, FilesError> {
        let path = self.directory.join(FOLDER).join(format!("{pipeline}.lock"));
        let failed = |error: io::Error| FilesError::unavailable(format!("locking `{}`", path.display()), error);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(FilesError::InUse {
                directory: self.directory.display().to_string(),
                pipeline: pipeline.to_owned(),
            }),
            Err(error) => Err(failed(error.into())),
        }
    }

    pub(crate) fn shard_cx(&self, shard: ShardId) -> Result<ShardCx, SinkError> {
        let memory = self.memory.lock();
        let Some(opened) = &memory.opened else {
            let source = io::Error::other("the sink is not open");
            return Err(
                FilesError::unavailable(format!("writing to `{}`", self.directory.display()), source).into_sink()
            );
        };
        Ok(ShardCx {
            options: self.options.clone(),
            directory: self.directory.clone(),
            schema: opened.schema.clone(),
            pipeline: opened.pipeline.clone(),
            source: opened.source.clone(),
            shard: shard.0,
            hook: self.hook.clone(),
        })
    }

    /// Whether the directory holds all of these ranges, as far as is known without looking.
    pub(crate) fn holds(&self, covers: &[Covered]) -> bool {
        let memory = self.memory.lock();
        let mut ranges = covers.iter().filter(|cover| cover.range.start != cover.range.end).peekable();
        ranges.peek().is_some()
            && ranges.all(|cover| memory.known.get(&cover.partition).is_some_and(|end| *end >= cover.range.end))
    }

    pub(crate) fn moved(&self, positions: &Positions) {
        self.memory.lock().known.extend(positions.iter().map(|(partition, end)| (*partition, *end)));
    }

    pub(crate) fn track_fill(&self) -> Arc<Mutex<Fill>> {
        let fill = Arc::new(Mutex::new(Fill::default()));
        self.memory.lock().fills.push(fill.clone());
        fill
    }

    pub(crate) async fn probe(&self) -> Result<(), SinkError> {
        let folder = self.directory.join(FOLDER);
        let looked = tokio::fs::metadata(&folder).await;
        looked
            .map(|_| ())
            .map_err(|error| FilesError::unavailable(format!("looking at `{}`", folder.display()), error).into_sink())
    }
}

fn identity(folder: &Path) -> Result<uuid::Uuid, FilesError> {
    let path = folder.join(IDENTITY);
    let failed = |error| FilesError::unavailable(format!("reading `{}`", path.display()), error);
    let read = || match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice::<Identity>(&bytes)
            .map(|identity| Some(identity.id))
            .map_err(|error| FilesError::Ledger { path: path.display().to_string(), cause: error.to_string() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    };
    if let Some(id) = read()? {
        return Ok(id);
    }
    // Pipelines of other processes may open the directory at the same time: the first name stays.
    let id = uuid::Uuid::new_v4();
    let temporary = folder.join(format!("directory.{}.new", id.simple()));
    let make = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        file.write_all(&serde_json::to_vec(&Identity { id })?)?;
        file.sync_all()?;
        match std::fs::hard_link(&temporary, &path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => std::fs::remove_file(&temporary)?,
        }
        sync_directory(folder)
    };
    make().map_err(failed)?;
    read()?.ok_or_else(|| failed(io::Error::other("it is gone")))
}

/// Files of this pipeline that no ledger needs: a process ended before it committed them. The lock says that it is gone.
fn remove_unfinished(folder: &Path, pipeline: &str, needed: &HashSet<&str>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        let rest = name.strip_prefix(pipeline).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".part"));
        // `<shard>.<uuid>`; a pipeline whose id begins with ours has more dots, or no number there.
        let is_ours = rest.and_then(|rest| rest.split_once('.')).is_some_and(|(shard, id)| {
            shard.parse::<u16>().is_ok() && id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        if is_ours && !needed.contains(name) {
            std::fs::remove_file(folder.join(name))?;
        }
    }
    Ok(())
}

/// A partition belongs to one shard at a time and its positions rise, so the largest is the newest.
fn merge(ledgers: &[Ledger], source: &str) -> Positions {
    let mut positions = Positions::new();
    for (partition, end) in ledgers.iter().flat_map(|ledger| ledger.positions(source)) {
        positions.entry(partition).and_modify(|held| *held = end.max(*held)).or_insert(end);
    }
    positions
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FilesError> + Send + 'static,
) -> Result<T, FilesError> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.unwrap_or_else(|error| Err(FilesError::unavailable("waiting for the file system", io::Error::other(error))))
}

impl Sink for FilesSink {
    fn plan<'a>(&'a self, rows: &'a SchemaRef, _: &'a PlanCx) -> BoxFuture<'a, Result<SinkPlan, PlanError>> {
        Box::pin(async move {
            let schema = self.schema(rows).map_err(FilesError::into_plan)?;
            let options = &self.shared.options;
            let notes = vec![format!(
                "files: publishes .{} files in `{}`, each up to {} or {:?} of rows",
                options.extension(),
                self.shared.directory.display(),
                options.roll_max_bytes,
                options.roll_every
            )];
            Ok(SinkPlan { schema, notes, detail: Box::new(()) })
        })
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Positions
    }

    fn open<'a>(&'a self, plan: &'a SinkPlan, cx: &'a PlanCx) -> BoxFuture<'a, Result<SinkIdentity, SinkError>> {
        Box::pin(async move {
            let (shared, schema, cx) = (self.shared.clone(), plan.schema.clone(), cx.clone());
            blocking(move || shared.open(schema, &cx, None)).await.map_err(FilesError::into_sink)
        })
    }

    fn open_again<'a>(
        &'a self,
        plan: &'a SinkPlan,
        cx: &'a PlanCx,
        before: &'a SinkIdentity,
    ) -> BoxFuture<'a, Result<SinkIdentity, SinkError>> {
        Box::pin(async move {
            let (shared, schema, cx, before) = (self.shared.clone(), plan.schema.clone(), cx.clone(), before.clone());
            blocking(move || shared.open(schema, &cx, Some(before))).await.map_err(FilesError::into_sink)
        })
    }

    fn committed_positions<'a>(&'a self, cx: &'a PlanCx) -> BoxFuture<'a, Result<Positions, SinkError>> {
        Box::pin(async move {
            let (shared, cx) = (self.shared.clone(), cx.clone());
            let read = move || {
                let ledgers = Ledger::all(&shared.directory, &cx.pipeline.to_string())?;
                let positions = merge(&ledgers, &cx.source);
                shared.memory.lock().known = positions.clone();
                Ok(positions)
            };
            blocking(read).await.map_err(FilesError::into_sink)
        })
    }

    fn writer(&self, shard: ShardId) -> Arc<dyn ShardWriter> {
        Arc::new(FilesWriter::new(shard, self.shared.clone()))
    }

    fn barrier_every(&self) -> Option<Duration> {
        Some(self.shared.options.roll_every)
    }

    fn refuses_rows(&self) -> bool {
        false
    }

    fn writer_bytes(&self) -> u64 {
        memory_max(self.shared.options.format)
    }

    fn report(&self) -> serde_json::Value {
        let fills: Vec<Fill> = self.shared.memory.lock().fills.iter().map(|fill| *fill.lock()).collect();
        json!({
            "path": self.shared.directory,
            "open_rows": fills.iter().map(|fill| fill.rows).sum::<u64>(),
            "open_bytes": fills.iter().map(|fill| fill.bytes).sum::<u64>(),
        })
    }
}
