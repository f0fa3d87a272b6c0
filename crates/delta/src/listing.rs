//! Which data files the newest version of a table consists of, for readers that scan Parquet themselves (`landfall query`).
//!
//! Every file entry is read into memory: this is for questions asked by a person, not for the write path.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use arrow_schema::SchemaRef;
use deltalake_core::DeltaTable;
use deltalake_core::kernel::Remove;
use deltalake_core::logstore::LogStoreRef;
use landfall_engine::contract::columns;
use object_store::local::LocalFileSystem;

use crate::code::DeltaError;
use crate::protocol::Metadata;
use crate::table::{AppIds, Table, log_store};

/// The newest version of a table.
#[derive(Clone, Debug)]
pub struct TableFiles {
    /// Its number.
    pub version: u64,
    /// The table's id.
    pub table_id: String,
    /// All columns in the table's order, partition columns included. A column that a file lacks is NULL.
    pub schema: SchemaRef,
    /// Partition columns: in no data file, their values stand in [`TableFile::partition_values`].
    pub partition_columns: Vec<String>,
    /// The files.
    pub files: Vec<TableFile>,
}

/// A data file.
#[derive(Clone, Debug)]
pub struct TableFile {
    /// Its path on this machine.
    pub path: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// A text per partition column, in their order; `None` is NULL.
    pub partition_values: Vec<Option<String>>,
}

/// Lists the newest version of the local table at `path`. Needs a tokio runtime.
pub async fn table_files(path: &Path) -> Result<TableFiles, DeltaError> {
    let log = log_store(path, Arc::new(LocalFileSystem::new()))?;
    let reading = || format!("reading the table at `{}`", path.display());
    let missing = || DeltaError::Missing { path: path.display().to_string() };
    let none = AppIds::of(&landfall_engine::contract::PipelineId(String::new()), "");
    let head = Table::load(&log, &none).await?.ok_or_else(missing)?;
    refuse_mapped(&head.metadata)?;
    let mut table = DeltaTable::new(log.clone());
    table.load_version(head.version).await.map_err(|error| DeltaError::unreadable(reading(), error))?;
    let state = table.snapshot().map_err(|error| DeltaError::unreadable(reading(), error))?;
    let root = std::path::absolute(path).map_err(|error| DeltaError::unavailable(reading(), error))?;
    let partition_columns = head.metadata.partition_columns.clone();
    let mut files = Vec::new();
    for file in state.log_data().iter() {
        if file.deletion_vector_descriptor().is_some() {
            return Err(DeltaError::NotListable {
                text: format!(
                    "the table at `{}` has deletion vectors: its files hold deleted rows too",
                    path.display()
                ),
            });
        }
        let name = file.path();
        let inside = Path::new(name.as_ref()).components().all(|part| matches!(part, Component::Normal(_)));
        if !inside || name.contains("://") {
            return Err(DeltaError::NotListable {
                text: format!("a data file of the table at `{}` lies outside of it", path.display()),
            });
        }
        let values = file.partition_values_map();
        let partition_values = partition_columns.iter().map(|column| values.get(column).cloned().flatten());
        files.push(TableFile {
            path: root.join(name.as_ref()),
            size: u64::try_from(file.size()).unwrap_or(0),
            partition_values: partition_values.collect(),
        });
    }
    Ok(TableFiles {
        version: head.version,
        table_id: head.metadata.id.clone(),
        schema: head.arrow_schema()?,
        partition_columns,
        files,
    })
}

/// The bounds of a file's statistics, as far as a copy is known by them.
#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Bounds {
    min_values: serde_json::Map<String, serde_json::Value>,
    max_values: serde_json::Map<String, serde_json::Value>,
}

impl Bounds {
    fn is_of_other_copy(&self, copy: u64) -> bool {
        let both = |name: &str| self.min_values.get(name).zip(self.max_values.get(name));
        let is_copied = both(columns::OP).is_some_and(|(least, most)| least == "s" && most == "s");
        let is_this_one = both(columns::COMMIT_LSN)
            .and_then(|(least, most)| least.as_u64().zip(most.as_u64()))
            .is_none_or(|(least, most)| (least..=most).contains(&copy));
        is_copied && !is_this_one
    }
}

/// What takes the data files of copies other than the one at this commit position out of the table. Every file entry is read, as seldom as a copy begins.
pub(crate) async fn copied_files(log: &LogStoreRef, version: u64, copy: u64) -> Result<Vec<Remove>, DeltaError> {
    let reading = || format!("reading the files of `{}`", log.root_url());
    let mut table = DeltaTable::new(log.clone());
    table.load_version(version).await.map_err(|error| DeltaError::unavailable(reading(), error))?;
    let state = table.snapshot().map_err(|error| DeltaError::unreadable(reading(), error))?;
    let mut found = Vec::new();
    for file in state.log_data().iter() {
        let Some(stats) = file.stats() else { continue };
        let bounds: Bounds = serde_json::from_str(&stats).map_err(|error| DeltaError::unreadable(reading(), error))?;
        if bounds.is_of_other_copy(copy) {
            found.push(file.remove_action(true));
        }
    }
    Ok(found)
}

fn refuse_mapped(metadata: &Metadata) -> Result<(), DeltaError> {
    match metadata.property("delta.columnMapping.mode") {
        None | Some("none") => Ok(()),
        Some(mode) => Err(DeltaError::NotListable {
            text: format!(
                "the table's columns are mapped (`delta.columnMapping.mode` is `{mode}`): its files have other names"
            ),
        }),
    }
}
