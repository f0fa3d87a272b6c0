//! What a Delta sink is told: options with their bounds (E140).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use landfall_types::ByteSize;

use crate::code::DeltaError;

/// How timestamps without a zone are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timestamps {
    /// As instants: the text is read as UTC.
    #[default]
    Utc,
    /// As they are, which raises the table to the feature `timestampNtz`.
    Ntz,
}

/// What happens when the query has a column that the table has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evolve {
    /// The sink waits and says which ALTER solves it.
    #[default]
    Fail,
    /// A nullable column is added in the very commit that first has rows for it (F-C7).
    AddColumns,
}

/// How pages of data files are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Zstandard at a level, 1 to 22.
    Zstd(i32),
    /// Snappy.
    Snappy,
    /// Not at all.
    None,
}

/// The options of one sink. Fields are public: the binary fills them from YAML, tests by hand.
#[derive(Clone, Debug)]
pub struct DeltaOptions {
    /// The table's directory.
    pub path: PathBuf,
    /// Whether a missing table is created.
    pub create: bool,
    /// Partition columns of a table that is created. Empty for an existing table: as it is.
    pub partition_by: Vec<String>,
    /// Table properties of a table that is created.
    pub properties: BTreeMap<String, String>,
    /// Zone-less timestamps.
    pub timestamps: Timestamps,
    /// New columns.
    pub evolve: Evolve,
    /// How long rows may wait for their commit: 100ms to 1h.
    pub commit_every: Duration,
    /// A data file is closed at this size: 1MiB to 2GiB.
    pub target_file_size: ByteSize,
    /// A row group is closed when it holds this much memory: 1MiB to 256MiB.
    pub row_group_bytes: ByteSize,
    /// How many partition values may have an open file: 1 to 1024.
    pub max_open_files: usize,
    /// Compression of pages.
    pub compression: Compression,
    /// How often in a row the next version may be taken by others before the commit backs off: 1 to 10000.
    pub commit_retries: u32,
    /// A checkpoint of the log every so many commits: 0 (off) to 1000000.
    pub checkpoint_every: u64,
    /// Whether the table keeps `__partition` and `__offset` of each row.
    pub hidden: bool,
}

impl DeltaOptions {
    /// The defaults for a table at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        DeltaOptions {
            path: path.into(),
            create: true,
            partition_by: Vec::new(),
            properties: BTreeMap::new(),
            timestamps: Timestamps::Utc,
            evolve: Evolve::Fail,
            commit_every: Duration::from_secs(10),
            target_file_size: ByteSize::mib(128),
            row_group_bytes: ByteSize::mib(16),
            max_open_files: 8,
            compression: Compression::Zstd(3),
            commit_retries: 64,
            checkpoint_every: 10,
            hidden: false,
        }
    }

    /// How many files a writer may have open: one without partition columns, two for a table of changes (copied and
    /// streamed rows).
    pub(crate) fn open_files(&self, is_partitioned: bool, is_changes: bool) -> usize {
        match (is_partitioned, is_changes) {
            (true, _) => self.max_open_files,
            (false, true) => 2,
            (false, false) => 1,
        }
    }

    /// The memory that a writer may hold (X of E126): open files × (2 row groups + 3 upload parts). Without partition
    /// columns one file is open, or two where rows are changes of a table.
    pub fn memory_max(&self, is_partitioned: bool, is_changes: bool) -> ByteSize {
        let files = self.open_files(is_partitioned, is_changes) as u64;
        let each = self.row_group_bytes.0.saturating_mul(2).saturating_add(3 * UPLOAD_PART_BYTES as u64);
        ByteSize(files.saturating_mul(each))
    }

    pub(crate) fn check(&self) -> Result<(), DeltaError> {
        let refuse = |text: String| Err(DeltaError::Option { text });
        if self.path.as_os_str().is_empty() {
            return refuse("`path` is empty: name the table's directory".into());
        }
        between("commit_every", self.commit_every, Duration::from_millis(100), Duration::from_secs(3600), |d| {
            format!("{d:?}")
        })?;
        between("target_file_size", self.target_file_size, ByteSize::mib(1), ByteSize::gib(2), ByteSize::to_string)?;
        between("row_group_bytes", self.row_group_bytes, ByteSize::mib(1), ByteSize::mib(256), ByteSize::to_string)?;
        between("max_open_files", self.max_open_files, 1, 1024, usize::to_string)?;
        between("commit_retries", self.commit_retries, 1, 10_000, u32::to_string)?;
        between("checkpoint_every", self.checkpoint_every, 0, 1_000_000, u64::to_string)?;
        if let Compression::Zstd(level) = self.compression {
            between("compression zstd level", level, 1, 22, i32::to_string)?;
        }
        for (at, column) in self.partition_by.iter().enumerate() {
            if self.partition_by.iter().take(at).any(|earlier| earlier == column) {
                return refuse(format!("`partition_by` names `{column}` twice: name each column once"));
            }
        }
        for key in self.properties.keys() {
            if key.starts_with("delta.") && !SETTABLE_PROPERTIES.contains(&key.as_str()) {
                return refuse(format!(
                    "table property `{key}` is not set by Landfall: it would change the protocol or make positions expire; \
                     of the `delta.` properties it sets {}",
                    SETTABLE_PROPERTIES.join(", ")
                ));
            }
        }
        Ok(())
    }
}

/// Data files go to the store in parts of this size.
pub(crate) const UPLOAD_PART_BYTES: usize = 5 << 20;

/// An allow list: an unknown property may switch on a feature that asks something of every writer.
const SETTABLE_PROPERTIES: &[&str] = &[
    "delta.appendOnly",
    "delta.checkpointInterval",
    "delta.dataSkippingNumIndexedCols",
    "delta.deletedFileRetentionDuration",
    "delta.enableChangeDataFeed",
    "delta.enableDeletionVectors",
    "delta.enableExpiredLogCleanup",
    "delta.logRetentionDuration",
    "delta.targetFileSize",
];

fn between<T: PartialOrd + Copy>(
    name: &str,
    value: T,
    low: T,
    high: T,
    show: impl Fn(&T) -> String,
) -> Result<(), DeltaError> {
    if value < low || value > high {
        return Err(DeltaError::Option {
            text: format!("`{name}` is {}: it must be between {} and {}", show(&value), show(&low), show(&high)),
        });
    }
    Ok(())
}
