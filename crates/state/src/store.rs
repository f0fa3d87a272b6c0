//! `state.redb`: opening, the owner number, transactions and snapshots.
//!
//! The file is made under another name and renamed once it is whole, so a crash leaves none or a good one. Where
//! it is gone although channels exist, opening refuses (C68, E86): an empty state would start consumers over (I12).

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use redb::backends::InMemoryBackend;
use redb::{ReadableDatabase, ReadableTable, TableDefinition};

use crate::error::StateError;
use crate::handle::{Change, StateHandle};
use crate::lock::DataDirLock;
use crate::writer::{QUEUE_REQUESTS_MAX, Request, run};

pub(crate) const FILE: &str = "state.redb";
const FILE_NEW: &str = "state.redb.new";
/// The store holds small rows; the library's own default would take a gigabyte.
const CACHE_BYTES: usize = 16 << 20;
/// The crate's own table; names beginning with `_` are not for owners.
const OWNER_TABLE: &str = "_owner";
const OWNER_KEY: &[u8] = b"owner";

pub(crate) type Table<'a> = TableDefinition<'a, &'static [u8], &'static [u8]>;

/// The open state store: owns the writer thread.
#[derive(Debug)]
pub struct StateStore {
    handle: StateHandle,
    thread: Option<JoinHandle<()>>,
}

impl StateStore {
    /// Opens `state.redb` of a held data directory and takes the next owner number. A fresh directory gets a new
    /// file; a missing one beside channels is an error.
    pub fn open(lock: &DataDirLock) -> Result<StateStore, StateError> {
        let path = lock.data_dir().join(FILE);
        if is_absent(&path)? {
            let channels = lock.data_dir().join("channels");
            if has_entries(&channels)? {
                return Err(StateError::Missing { path, channels });
            }
            create(lock.data_dir())?;
        }
        Self::start(Database::file(path)?)
    }

    /// Makes a new `state.redb` where one was lost, by an operator's command (`positions --new-state`). Refuses if
    /// there is one.
    pub fn create_new(lock: &DataDirLock) -> Result<StateStore, StateError> {
        let path = lock.data_dir().join(FILE);
        if !is_absent(&path)? {
            return Err(StateError::Exists { path });
        }
        create(lock.data_dir())?;
        Self::start(Database::file(path)?)
    }

    /// A store without a file; for tests and for checks without side effects.
    pub fn in_memory() -> Result<StateStore, StateError> {
        Self::start(Database::memory()?)
    }

    fn start(database: Database) -> Result<StateStore, StateError> {
        let owner = database.take_over()?;
        let database = Arc::new(database);
        let (requests, waiting) = sync_channel(QUEUE_REQUESTS_MAX);
        let theirs = Arc::clone(&database);
        let thread = std::thread::Builder::new()
            .name("state".to_owned())
            .spawn(move || run(theirs, waiting))
            .map_err(|error| StateError::Failed { reason: format!("starting the thread: {error}") })?;
        Ok(StateStore { handle: StateHandle { requests, database, owner }, thread: Some(thread) })
    }

    /// A handle for an owner.
    pub fn handle(&self) -> StateHandle {
        self.handle.clone()
    }

    /// Commits what waits and ends the thread; later requests get [`StateError::Closed`]. Drop does the same.
    pub fn close(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // An error means that the thread is gone already.
            let _ = self.handle.requests.send(Request::Close);
            if thread.join().is_err() {
                tracing::error!("the state thread panicked; waiting requests were not answered with success");
            }
            self.handle.database.close();
        }
    }
}

impl Drop for StateStore {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Absent, or of length zero: the library would fill an empty file with an empty database.
pub(crate) fn is_absent(path: &Path) -> Result<bool, StateError> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(found.len() == 0),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(StateError::Unreadable { path: path.to_path_buf(), reason: error.to_string() }),
    }
}

fn has_entries(dir: &Path) -> Result<bool, StateError> {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StateError::Unreadable { path: dir.to_path_buf(), reason: error.to_string() }),
    }
}

fn create(data_dir: &Path) -> Result<(), StateError> {
    let (new, path) = (data_dir.join(FILE_NEW), data_dir.join(FILE));
    let made = || -> std::io::Result<()> {
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let database = redb::Builder::new().create(&new).map_err(std::io::Error::other)?;
        let transaction = database.begin_write().map_err(std::io::Error::other)?;
        transaction.open_table(Table::new(OWNER_TABLE)).map_err(std::io::Error::other)?;
        transaction.commit().map_err(std::io::Error::other)?;
        drop(database);
        std::fs::File::open(&new)?.sync_all()?;
        std::fs::rename(&new, &path)?;
        std::fs::File::open(data_dir)?.sync_all()
    };
    made().map_err(|error| StateError::Failed { reason: format!("creating {}: {error}", path.display()) })
}

/// The database, and how to open it again after a failed commit.
pub(crate) struct Database {
    path: Option<PathBuf>,
    held: RwLock<Held>,
    beat: Mutex<Instant>,
}

enum Held {
    Open(Arc<redb::Database>),
    /// A commit failed; the writer thread opens the file again.
    Failed,
    Closed,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("path", &self.path).finish_non_exhaustive()
    }
}

pub(crate) fn failed(error: impl fmt::Display) -> StateError {
    StateError::Failed { reason: error.to_string() }
}

impl Database {
    fn file(path: PathBuf) -> Result<Database, StateError> {
        let open = open_file(&path)?;
        Ok(Database {
            path: Some(path),
            held: RwLock::new(Held::Open(Arc::new(open))),
            beat: Mutex::new(Instant::now()),
        })
    }

    fn memory() -> Result<Database, StateError> {
        let open = redb::Builder::new()
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(InMemoryBackend::new())
            .map_err(failed)?;
        Ok(Database { path: None, held: RwLock::new(Held::Open(Arc::new(open))), beat: Mutex::new(Instant::now()) })
    }

    fn current(&self) -> Result<Arc<redb::Database>, StateError> {
        match &*self.held.read() {
            Held::Open(database) => Ok(Arc::clone(database)),
            Held::Failed => Err(failed("the file is to be opened again after a failed write")),
            Held::Closed => Err(StateError::Closed),
        }
    }

    /// For the writer thread alone: opens the file again if a failed commit closed it.
    fn current_or_reopened(&self) -> Result<Arc<redb::Database>, StateError> {
        match (self.current(), &self.path) {
            (Err(StateError::Failed { .. }), Some(path)) => {
                let open = Arc::new(open_file(path)?);
                *self.held.write() = Held::Open(Arc::clone(&open));
                Ok(open)
            }
            (current, _) => current,
        }
    }

    /// After a failed commit the library refuses further writes, and the transaction may be durable or not: the next
    /// request looks again from the file.
    fn give_up(&self) {
        let mut held = self.held.write();
        if matches!(*held, Held::Open(_)) {
            *held = Held::Failed;
        }
    }

    pub(crate) fn close(&self) {
        *self.held.write() = Held::Closed;
    }

    pub(crate) fn beat(&self) {
        *self.beat.lock() = Instant::now();
    }

    pub(crate) fn last_beat(&self) -> Instant {
        *self.beat.lock()
    }

    /// Raises the owner number durably.
    pub(crate) fn take_over(&self) -> Result<u64, StateError> {
        let database = self.current_or_reopened()?;
        self.or_give_up(next_owner(&database))
    }

    /// An engine that has met an I/O error answers with it for ever: the file is opened anew before the next commit.
    fn or_give_up<T>(&self, outcome: Result<T, StateError>) -> Result<T, StateError> {
        outcome.inspect_err(|_| self.give_up())
    }

    /// One durable transaction for all requests; those of an older owner are left out of it and refused.
    pub(crate) fn commit(&self, requests: &[(&[Change], u64)]) -> Vec<Result<(), StateError>> {
        match self.try_commit(requests) {
            Ok(outcomes) => outcomes,
            Err(error) => {
                tracing::error!(%error, requests = requests.len(), "a state transaction failed");
                requests.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    fn try_commit(&self, requests: &[(&[Change], u64)]) -> Result<Vec<Result<(), StateError>>, StateError> {
        let database = self.current_or_reopened()?;
        self.or_give_up(write_all(&database, requests))
    }

    pub(crate) fn read(&self, table: &str, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let transaction = self.current()?.begin_read().map_err(failed)?;
        let table = match transaction.open_table(Table::new(table)) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let row = table.get(key).map_err(failed)?;
        Ok(row.map(|value| Bytes::copy_from_slice(value.value())))
    }

    pub(crate) fn scan(&self, table: &str, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Bytes)>, StateError> {
        let transaction = self.current()?.begin_read().map_err(failed)?;
        let table = match transaction.open_table(Table::new(table)) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut rows = Vec::new();
        for row in table.range(prefix..).map_err(failed)? {
            let (key, value) = row.map_err(failed)?;
            if !key.value().starts_with(prefix) {
                break;
            }
            rows.push((key.value().to_vec(), Bytes::copy_from_slice(value.value())));
        }
        Ok(rows)
    }
}

fn open_file(path: &Path) -> Result<redb::Database, StateError> {
    let unreadable = |reason: String| StateError::Unreadable { path: path.to_path_buf(), reason };
    // A damaged file must end in an error, whatever the library makes of it (I14).
    let opened = catch_unwind(AssertUnwindSafe(|| redb::Builder::new().set_cache_size(CACHE_BYTES).open(path)));
    match opened {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(error)) => Err(unreadable(error.to_string())),
        Err(_) => Err(unreadable("the file is damaged".to_owned())),
    }
}

fn next_owner(database: &redb::Database) -> Result<u64, StateError> {
    let transaction = database.begin_write().map_err(failed)?;
    let owner = {
        let mut table = transaction.open_table(Table::new(OWNER_TABLE)).map_err(failed)?;
        let owner = stored_owner(&table)?.checked_add(1).ok_or_else(|| failed("owner numbers are exhausted"))?;
        table.insert(OWNER_KEY, owner.to_le_bytes().as_slice()).map_err(failed)?;
        owner
    };
    transaction.commit().map_err(failed)?;
    Ok(owner)
}

fn write_all(
    database: &redb::Database,
    requests: &[(&[Change], u64)],
) -> Result<Vec<Result<(), StateError>>, StateError> {
    let transaction = database.begin_write().map_err(failed)?;
    let current = stored_owner(&transaction.open_table(Table::new(OWNER_TABLE)).map_err(failed)?)?;
    let mut outcomes = Vec::with_capacity(requests.len());
    for (changes, owner) in requests {
        if *owner != current {
            outcomes.push(Err(StateError::StaleOwner { given: *owner, current }));
            continue;
        }
        for change in *changes {
            let mut table = transaction.open_table(Table::new(change.table)).map_err(failed)?;
            match &change.value {
                Some(value) => table.insert(change.key.as_ref(), value.as_ref()).map_err(failed)?,
                None => table.remove(change.key.as_ref()).map_err(failed)?,
            };
        }
        outcomes.push(Ok(()));
    }
    transaction.commit().map_err(failed)?;
    Ok(outcomes)
}

fn stored_owner(table: &impl ReadableTable<&'static [u8], &'static [u8]>) -> Result<u64, StateError> {
    match table.get(OWNER_KEY).map_err(failed)? {
        None => Ok(0),
        Some(row) => match <[u8; 8]>::try_from(row.value()) {
            Ok(bytes) => Ok(u64::from_le_bytes(bytes)),
            Err(_) => Err(failed("the owner row has another size than 8 bytes")),
        },
    }
}
