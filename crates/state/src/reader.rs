//! A look into `state.redb` of a data directory that nobody runs on, without a trace: no LOCK, no owner number.
//!
//! For commands that show what is stored (`check`, `tables … list`). Beside a running process, or after one that was
//! killed and has not come back, the library cannot read the file: that is an answer of its own, not an error.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::Bytes;
use redb::{DatabaseError, ReadOnlyDatabase, ReadableDatabase};

use crate::error::StateError;
use crate::store::{FILE, Table, failed, is_absent};

/// What a look finds.
#[derive(Debug)]
pub enum StateLook {
    /// Nothing is stored there yet.
    Absent,
    /// A process has it open.
    InUse,
    /// Its last process was killed: the next start, or a command that takes LOCK, brings it in order.
    NeedsRecovery,
    /// It can be read.
    Readable(StateReader),
}

/// An open look. It keeps a process from starting on the directory: drop it soon.
pub struct StateReader {
    database: ReadOnlyDatabase,
}

impl std::fmt::Debug for StateReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StateReader")
    }
}

impl StateReader {
    /// Looks. Blocks on I/O.
    pub fn look(data_dir: &Path) -> Result<StateLook, StateError> {
        let path = data_dir.join(FILE);
        if is_absent(&path)? {
            return Ok(StateLook::Absent);
        }
        let unreadable = |reason: String| StateError::Unreadable { path: path.clone(), reason };
        // A damaged file must end in an error, whatever the library makes of it (I14).
        match catch_unwind(AssertUnwindSafe(|| ReadOnlyDatabase::open(&path))) {
            Ok(Ok(database)) => Ok(StateLook::Readable(StateReader { database })),
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => Ok(StateLook::InUse),
            Ok(Err(DatabaseError::RepairAborted)) => Ok(StateLook::NeedsRecovery),
            Ok(Err(error)) => Err(unreadable(error.to_string())),
            Err(_) => Err(unreadable("the file is damaged".to_owned())),
        }
    }

    /// One row.
    pub fn read(&self, table: &str, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        let transaction = self.database.begin_read().map_err(failed)?;
        let table = match transaction.open_table(Table::new(table)) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let row = table.get(key).map_err(failed)?;
        Ok(row.map(|value| Bytes::copy_from_slice(value.value())))
    }
}
