//! The local file system as an object store that keeps I1: when a put answers, file and name are on the disk.
//!
//! The library's store never syncs (T9), and a sync after its link would come too late: another process could
//! read a commit that a power cut takes back. So puts are made here (E133): written under a temporary name,
//! synced, given their name by a hard link (never over an existing name) or by a rename where overwriting is asked
//! for, then the directory is synced, and the parent of every directory that was new. A failed sync fails the put
//! and is not repeated on that file. Names of staged files end in `#` and digits, which the library's listing leaves out.
//!
//! What is read is as durable as what was written: a process may have ended between giving a name and syncing it, so
//! the first read in a directory syncs it, and so does the first one after a sync of it failed. It may have ended just so
//! between making a directory and syncing its parent: the first put or read below a directory syncs all above it, up to
//! the file system's root. Lists and deletes are the library's.

use std::collections::HashSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};
use parking_lot::Mutex;

const STORE: &str = "LocalStore";

/// A step of a put, in the order they happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The staged file's bytes and length.
    SyncFile,
    /// The name is given: from here on others see it.
    Publish,
    /// The name itself.
    SyncDirectory,
}

/// Called before each step; an error is the step's failure. Tests record and break steps with it.
pub(crate) type StepHook = Arc<dyn Fn(Step, &FsPath) -> io::Result<()> + Send + Sync>;

/// See the module.
#[derive(Clone)]
pub(crate) struct LocalStore {
    inner: Arc<LocalFileSystem>,
    disk: Disk,
}

/// Syncs, and which directories have all their names on the disk.
#[derive(Clone, Default)]
struct Disk {
    hook: Option<StepHook>,
    synced: Arc<Mutex<HashSet<PathBuf>>>,
}

impl Disk {
    fn before(&self, step: Step, path: &FsPath) -> io::Result<()> {
        self.hook.as_ref().map_or(Ok(()), |hook| hook(step, path))
    }

    fn sync_directory(&self, directory: &FsPath) -> io::Result<()> {
        let outcome = self.before(Step::SyncDirectory, directory).and_then(|()| sync_directory(directory));
        match &outcome {
            Ok(()) => self.synced.lock().insert(directory.to_path_buf()),
            Err(_) => self.synced.lock().remove(directory),
        };
        outcome
    }

    /// The directory's names, and those by which it is found, where this process has not seen them synced.
    fn sync_path(&self, directory: &FsPath) -> io::Result<()> {
        self.sync_directory(directory)?;
        let device = std::fs::metadata(directory)?.dev();
        for above in directory.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
            if self.is_synced(above) {
                continue;
            }
            // A mount point has its name from another file system, which nobody here writes to.
            if std::fs::metadata(above)?.dev() != device {
                break;
            }
            match self.sync_directory(above) {
                // Nor does anybody here make names where he may not even look.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// The directory has a new name in it.
    fn forget(&self, directory: &FsPath) {
        self.synced.lock().remove(directory);
    }

    fn is_synced(&self, directory: &FsPath) -> bool {
        self.synced.lock().contains(directory)
    }
}

impl LocalStore {
    pub(crate) fn new() -> Self {
        LocalStore { inner: Arc::new(LocalFileSystem::new()), disk: Disk::default() }
    }

    #[cfg(test)]
    pub(crate) fn with_hook(hook: StepHook) -> Self {
        LocalStore { inner: Arc::new(LocalFileSystem::new()), disk: Disk { hook: Some(hook), ..Disk::default() } }
    }
}

impl fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(STORE)
    }
}

impl fmt::Display for LocalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(STORE)
    }
}

/// A file under its temporary name; removed on drop unless it was published.
struct Staged {
    file: File,
    stage: PathBuf,
    destination: PathBuf,
    /// Directories that did not exist before, outermost first.
    new_directories: Vec<PathBuf>,
    disk: Disk,
    published: bool,
}

impl Staged {
    fn create(destination: PathBuf, disk: Disk) -> io::Result<Staged> {
        let parent = parent_of(&destination)?;
        let new_directories = create_directories(parent)?;
        let mut name = destination.clone().into_os_string();
        name.push(format!("#{}", uuid::Uuid::new_v4().as_u64_pair().0));
        let stage = PathBuf::from(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&stage)?;
        Ok(Staged { file, stage, destination, new_directories, disk, published: false })
    }

    fn publish(&mut self, overwrite: bool) -> io::Result<()> {
        self.disk.before(Step::SyncFile, &self.destination)?;
        self.file.sync_all()?;
        self.disk.before(Step::Publish, &self.destination)?;
        if overwrite {
            std::fs::rename(&self.stage, &self.destination)?;
            self.published = true;
        } else {
            std::fs::hard_link(&self.stage, &self.destination)?;
            // The staged name is a second name of the same file: losing it costs nothing, so a failure is no failure.
            let _ = std::fs::remove_file(&self.stage);
            self.published = true;
        }
        for directory in self.new_directories.iter().rev() {
            self.disk.forget(parent_of(directory)?);
        }
        self.disk.sync_path(parent_of(&self.destination)?)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published {
            let _ = std::fs::remove_file(&self.stage);
        }
    }
}

fn parent_of(path: &FsPath) -> io::Result<&FsPath> {
    path.parent().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path has no directory"))
}

fn create_directories(directory: &FsPath) -> io::Result<Vec<PathBuf>> {
    let mut missing: Vec<PathBuf> =
        directory.ancestors().take_while(|ancestor| !ancestor.exists()).map(FsPath::to_path_buf).collect();
    missing.reverse();
    std::fs::create_dir_all(directory)?;
    Ok(missing)
}

fn sync_directory(directory: &FsPath) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn failed(path: &FsPath, error: io::Error) -> Error {
    let path = path.display().to_string();
    match error.kind() {
        io::ErrorKind::AlreadyExists => Error::AlreadyExists { path, source: error.into() },
        io::ErrorKind::PermissionDenied => Error::PermissionDenied { path, source: error.into() },
        _ => Error::Generic { store: STORE, source: format!("`{path}`: {error}").into() },
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|source| Error::JoinError { source })?
}

fn written() -> PutResult {
    PutResult { e_tag: None, version: None }
}

#[async_trait]
impl ObjectStore for LocalStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let overwrite = match opts.mode {
            PutMode::Overwrite => true,
            PutMode::Create => false,
            PutMode::Update(_) => {
                return Err(Error::NotImplemented {
                    operation: "put with a version to update".into(),
                    implementer: STORE.into(),
                });
            }
        };
        let destination = self.inner.path_to_filesystem(location)?;
        let disk = self.disk.clone();
        blocking(move || {
            let put = || {
                let mut staged = Staged::create(destination.clone(), disk)?;
                let mut at = 0;
                for chunk in payload.iter() {
                    staged.file.write_all_at(chunk, at)?;
                    at += chunk.len() as u64;
                }
                staged.publish(overwrite)
            };
            put().map_err(|error| failed(&destination, error))
        })
        .await?;
        Ok(written())
    }

    async fn put_multipart_opts(&self, location: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let destination = self.inner.path_to_filesystem(location)?;
        let disk = self.disk.clone();
        let staged =
            blocking(move || Staged::create(destination.clone(), disk).map_err(|error| failed(&destination, error)))
                .await?;
        Ok(Box::new(Upload { staged: Some(Arc::new(staged)), end: 0 }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.make_durable(location).await?;
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[std::ops::Range<u64>]) -> Result<Vec<Bytes>> {
        self.make_durable(location).await?;
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await?;
        self.sync_parent(to).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await?;
        self.sync_parent(from).await?;
        self.sync_parent(to).await
    }
}

impl LocalStore {
    async fn sync_parent(&self, of: &Path) -> Result<()> {
        let path = self.inner.path_to_filesystem(of)?;
        let disk = self.disk.clone();
        let sync = move || {
            parent_of(&path).and_then(|parent| disk.sync_directory(parent)).map_err(|error| failed(&path, error))
        };
        blocking(sync).await
    }

    /// What is about to be read has its name on the disk.
    async fn make_durable(&self, location: &Path) -> Result<()> {
        let path = self.inner.path_to_filesystem(location)?;
        if path.parent().is_none_or(|parent| self.disk.is_synced(parent)) {
            return Ok(());
        }
        let disk = self.disk.clone();
        let sync = move || match parent_of(&path).and_then(|parent| disk.sync_path(parent)) {
            // Nothing to read: that is the answer of the read itself.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome.map_err(|error| failed(&path, error)),
        };
        blocking(sync).await
    }
}

/// A file that arrives in parts. Parts are placed by the order of `put_part` calls, so they may be written at once.
struct Upload {
    staged: Option<Arc<Staged>>,
    end: u64,
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("end", &self.end).finish_non_exhaustive()
    }
}

fn over(path: &str) -> Error {
    Error::Generic { store: STORE, source: format!("{path}: the upload is over").into() }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let at = self.end;
        self.end += data.content_length() as u64;
        let staged = self.staged.clone();
        Box::pin(async move {
            let staged = staged.ok_or_else(|| over("put_part"))?;
            blocking(move || {
                let mut at = at;
                for chunk in data.iter() {
                    staged.file.write_all_at(chunk, at).map_err(|error| failed(&staged.destination, error))?;
                    at += chunk.len() as u64;
                }
                Ok(())
            })
            .await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let staged = self.staged.take().ok_or_else(|| over("complete"))?;
        // A part that is still being written would be missing from the file.
        let mut staged = Arc::try_unwrap(staged).map_err(|_| over("complete before all parts ended"))?;
        blocking(move || staged.publish(true).map_err(|error| failed(&staged.destination.clone(), error))).await?;
        Ok(written())
    }

    async fn abort(&mut self) -> Result<()> {
        self.staged = None;
        Ok(())
    }
}
