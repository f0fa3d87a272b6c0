//! What is held of a table between commits: its newest version, protocol, metadata and our positions (E128, E131).
//!
//! [`Table::load`] replays the log once, checkpoint included, without materialising a file entry (T11). After that
//! [`Table::advance`] reads one new commit after the other. Version n + 1 is only ever derived from a version that was
//! just seen: when n + 1 is missing, n must still be there as it was, or a clean-up of the log may have taken both, or
//! another table took the place of this one: then all is read anew. It writes nothing.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, StructArray};
use arrow_schema::SchemaRef;
use buoyant_kernel::Snapshot;
use buoyant_kernel::actions::LOG_TXN_SCHEMA;
use buoyant_kernel::engine::arrow_data::ArrowEngineData;
use deltalake_core::kernel::StructType;
use deltalake_core::kernel::engine::arrow_conversion::TryIntoArrow;
use deltalake_core::logstore::{LogStore, LogStoreRef, StorageConfig, logstore_with};
use landfall_engine::contract::{PipelineId, Positions};
use landfall_types::{PartitionId, Place};
use object_store::ObjectStore;
use serde::Deserialize;
use serde_json::Value;

use crate::code::DeltaError;
use crate::protocol::{Metadata, Protocol};

/// What the app ids of a pipeline and a source begin with; the partition's number follows (E127), and for a place inside a
/// transaction its commit position (E129).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppIds {
    prefix: String,
}

impl AppIds {
    pub(crate) fn of(pipeline: &PipelineId, source: &str) -> Self {
        AppIds { prefix: format!("landfall:{pipeline}:{source}:") }
    }

    pub(crate) fn name(&self, partition: PartitionId) -> String {
        format!("{}{partition}", self.prefix)
    }

    /// The app id under which a commit says how far inside `at` it ends (E129).
    pub(crate) fn name_inside(&self, partition: PartitionId, at: u64) -> String {
        format!("{}{partition}:{at}", self.prefix)
    }

    /// The partition of an app id of ours, and the `at` that it speaks of the inside of.
    fn parse(&self, app_id: &str) -> Option<(PartitionId, Option<u64>)> {
        let rest = app_id.strip_prefix(self.prefix.as_str())?;
        let (number, inside) = match rest.split_once(':') {
            Some((number, at)) => (number, Some(canonical::<u64>(at)?)),
            None => (rest, None),
        };
        Some((PartitionId(canonical(number)?), inside))
    }
}

/// A number in the one form that we write: `+1` and `01` parse too, but are names of something else.
fn canonical<N: std::str::FromStr + ToString>(text: &str) -> Option<N> {
    text.parse().ok().filter(|number: &N| number.to_string() == text)
}

/// Txn of ours on the way to positions: where each partition ends, and how far inside.
#[derive(Default)]
struct Txns {
    ends: BTreeMap<PartitionId, u64>,
    inside: BTreeMap<(PartitionId, u64), u64>,
}

impl Txns {
    /// The first of an app id counts.
    fn add(&mut self, ids: &AppIds, app_id: &str, version: i64) -> Result<(), String> {
        let Some((partition, inside)) = ids.parse(app_id) else { return Ok(()) };
        let version =
            u64::try_from(version).map_err(|_| format!("a Txn of ours has version {version}, which is no offset"))?;
        match inside {
            None => self.ends.entry(partition).or_insert(version),
            Some(at) => self.inside.entry((partition, at)).or_insert(version),
        };
        Ok(())
    }

    fn positions(&self) -> Positions {
        let within = |partition: PartitionId, at: u64| self.inside.get(&(partition, at)).copied().unwrap_or(0);
        self.ends
            .iter()
            .map(|(partition, at)| (*partition, Place { at: *at, within: within(*partition, *at) }))
            .collect()
    }
}

/// The log store over a table's directory: everything goes through `store`, checkpoints included.
pub(crate) fn log_store(path: &std::path::Path, store: Arc<dyn ObjectStore>) -> Result<LogStoreRef, DeltaError> {
    let refuse =
        |cause: String| DeltaError::Option { text: format!("`path` `{}` is no path: {cause}", path.display()) };
    let absolute = std::path::absolute(path).map_err(|error| refuse(error.to_string()))?;
    let url = url::Url::from_directory_path(&absolute).map_err(|()| refuse("it cannot be made absolute".into()))?;
    logstore_with(store, &url, StorageConfig::default()).map_err(|error| refuse(error.to_string()))
}

/// A table as last seen.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) version: u64,
    pub(crate) protocol: Protocol,
    pub(crate) metadata: Metadata,
    positions: Positions,
    app_ids: AppIds,
    /// What commit `version` said, by its hash; `None`: a clean-up took it before it was read.
    entry: Option<u64>,
}

/// One line of a commit, as far as we read it. Other actions and other fields pass by.
#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    txn: Option<Txn>,
    #[serde(default, rename = "metaData")]
    metadata: Option<Value>,
    #[serde(default)]
    protocol: Option<Protocol>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Txn {
    app_id: String,
    version: i64,
}

impl Table {
    /// Replays the log. `None`: there is no table.
    pub(crate) async fn load(log: &LogStoreRef, app_ids: &AppIds) -> Result<Option<Table>, DeltaError> {
        let root = log.root_url().to_string();
        let reading = || format!("reading the log of `{root}`");
        let exists = log.is_delta_table_location().await.map_err(|error| DeltaError::unavailable(reading(), error))?;
        if !exists {
            return Ok(None);
        }
        // The library's engine needs this runtime's handle; its replay blocks, so it gets a thread that may.
        let engine = log.engine(None);
        let (url, ids) = (log.root_url().clone(), app_ids.clone());
        let replay = move || -> Result<Table, String> {
            let text = |error: buoyant_kernel::Error| error.to_string();
            let snapshot = Snapshot::builder_for(url.as_str()).build(engine.as_ref()).map_err(text)?;
            let configuration = snapshot.table_configuration();
            let json = |value: serde_json::Result<Value>| value.map_err(|error| error.to_string());
            let metadata = Metadata::read(json(serde_json::to_value(configuration.metadata()))?)?;
            let protocol = json(serde_json::to_value(configuration.protocol()))?;
            let protocol = serde_json::from_value(protocol).map_err(|error| error.to_string())?;
            let mut txns = Txns::default();
            let batches = snapshot.log_segment().read_actions(engine.as_ref(), LOG_TXN_SCHEMA.clone()).map_err(text)?;
            for batch in batches {
                let actions = batch.map_err(text)?.actions;
                let actions = ArrowEngineData::try_from_engine_data(actions).map_err(text)?;
                // Newest first, so the first of an app id is the one that counts.
                read_txns(actions.record_batch(), |app_id, version| txns.add(&ids, app_id, version))?;
            }
            let positions = txns.positions();
            Ok(Table { version: snapshot.version(), protocol, metadata, positions, app_ids: ids, entry: None })
        };
        let mut table = match tokio::task::spawn_blocking(replay).await {
            Ok(Ok(table)) => table,
            Ok(Err(cause)) => return Err(DeltaError::unreadable(reading(), cause)),
            Err(error) => return Err(DeltaError::unreadable(reading(), error)),
        };
        table.entry = read_entry(log, table.version).await?.as_deref().map(hash);
        Ok(Some(table))
    }

    /// Reads what was committed since. Returns whether metadata or protocol changed.
    pub(crate) async fn advance(&mut self, log: &LogStoreRef) -> Result<bool, DeltaError> {
        let (protocol, metadata) = (self.protocol.clone(), self.metadata.clone());
        let mut reloaded = false;
        loop {
            let next = self.version + 1;
            if let Some(bytes) = read_entry(log, next).await? {
                let doing = || format!("reading commit {next} of `{}`", log.root_url());
                self.apply(next, &bytes).map_err(|cause| DeltaError::unreadable(doing(), cause))?;
                continue;
            }
            if reloaded || self.is_as_it_was(log).await? {
                break;
            }
            // Commit n is gone or another: a clean-up took it, and perhaps n + 1 with it. Putting n + 1 now would give an
            // old version new content, so the newest version has to be found again.
            *self = Table::load(log, &self.app_ids).await?.ok_or_else(|| {
                DeltaError::unreadable(format!("reading the log of `{}`", log.root_url()), "the table is gone")
            })?;
            reloaded = true;
        }
        Ok(protocol != self.protocol || metadata != self.metadata)
    }

    async fn is_as_it_was(&self, log: &LogStoreRef) -> Result<bool, DeltaError> {
        let entry = read_entry(log, self.version).await?;
        Ok(entry.is_some() && entry.as_deref().map(hash) == self.entry)
    }

    fn apply(&mut self, version: u64, commit: &[u8]) -> Result<(), String> {
        let mut txns = Txns::default();
        let (mut metadata, mut protocol) = (None, None);
        for (number, line) in commit.split(|byte| *byte == b'\n').enumerate() {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let line: Line = serde_json::from_slice(line).map_err(|error| format!("line {}: {error}", number + 1))?;
            if let Some(txn) = line.txn {
                // Two of one app id read back as the first (T3).
                txns.add(&self.app_ids, &txn.app_id, txn.version)?;
            }
            if let Some(value) = line.metadata {
                metadata = Some(Metadata::read(value)?);
            }
            protocol = line.protocol.or(protocol);
        }
        // Nothing is taken over before the whole commit was understood.
        self.positions.extend(txns.positions());
        self.metadata = metadata.unwrap_or_else(|| self.metadata.clone());
        self.protocol = protocol.unwrap_or_else(|| self.protocol.clone());
        self.version = version;
        self.entry = Some(hash(commit));
        Ok(())
    }

    /// Takes over our own commit without reading it back.
    pub(crate) fn committed(&mut self, version: u64, commit: &[u8], ends: &Positions, metadata: Option<Metadata>) {
        self.version = version;
        self.entry = Some(hash(commit));
        self.positions.extend(ends.iter().map(|(partition, end)| (*partition, *end)));
        if let Some(metadata) = metadata {
            self.metadata = metadata;
        }
    }

    /// Ends of what the table holds of this pipeline and source.
    pub(crate) fn positions(&self) -> &Positions {
        &self.positions
    }

    /// The columns, partition columns included.
    pub(crate) fn schema(&self) -> Result<StructType, DeltaError> {
        serde_json::from_str(&self.metadata.schema_string)
            .map_err(|error| DeltaError::unreadable("reading the table's schema", error))
    }

    /// The same as an Arrow schema.
    pub(crate) fn arrow_schema(&self) -> Result<SchemaRef, DeltaError> {
        let schema: arrow_schema::Schema = (&self.schema()?)
            .try_into_arrow()
            .map_err(|error: arrow_schema::ArrowError| DeltaError::unreadable("reading the table's schema", error))?;
        Ok(Arc::new(schema))
    }
}

async fn read_entry(log: &LogStoreRef, version: u64) -> Result<Option<bytes::Bytes>, DeltaError> {
    let doing = || format!("reading commit {version} of `{}`", log.root_url());
    log.read_commit_entry(version).await.map_err(|error| DeltaError::unavailable(doing(), error))
}

fn hash(commit: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    commit.hash(&mut hasher);
    hasher.finish()
}

/// The version that stands for one half of a place (E127, E129).
pub(crate) fn txn_version(partition: PartitionId, end: Place, half: u64) -> Result<i64, DeltaError> {
    i64::try_from(half).map_err(|_| DeltaError::Place {
        text: format!("partition {partition} ends at {end}, which is no transaction version (0 to {})", i64::MAX),
    })
}

fn read_txns(
    batch: &arrow_array::RecordBatch,
    mut found: impl FnMut(&str, i64) -> Result<(), String>,
) -> Result<(), String> {
    let txn = batch.column_by_name("txn").and_then(|column| column.as_any().downcast_ref::<StructArray>());
    let txn = txn.ok_or("the log's replay has no `txn` column")?;
    let app_ids = txn.column_by_name("appId").and_then(|column| column.as_string_opt::<i32>());
    let versions = txn.column_by_name("version").and_then(|column| column.as_primitive_opt::<Int64Type>());
    let (Some(app_ids), Some(versions)) = (app_ids, versions) else {
        return Err("the log's replay has another form of `txn`".into());
    };
    for row in 0..txn.len() {
        if txn.is_valid(row) && app_ids.is_valid(row) && versions.is_valid(row) {
            found(app_ids.value(row), versions.value(row))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
