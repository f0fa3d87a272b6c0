//! What a files sink is told: options with their bounds (E140).

use std::path::PathBuf;
use std::time::Duration;

use landfall_types::ByteSize;

use crate::code::FilesError;

/// What a file holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A JSON object a line.
    #[default]
    Ndjson,
    /// Parquet.
    Parquet,
}

/// How a file is compressed: NDJSON as a whole, Parquet page by page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip; NDJSON only.
    Gzip,
    /// Zstandard, level 3.
    #[default]
    Zstd,
}

/// The options of one sink.
#[derive(Clone, Debug)]
pub struct FilesOptions {
    /// The directory; created if missing.
    pub path: PathBuf,
    /// What files hold.
    pub format: Format,
    /// How they are compressed.
    pub compression: Compression,
    /// A file is published at this size: 64KiB to 8GiB.
    pub roll_max_bytes: ByteSize,
    /// A file is published after this long: 1s to 1d.
    pub roll_every: Duration,
    /// What file names begin with; the pipeline's id if unset.
    pub prefix: Option<String>,
    /// Whether files keep `__partition` and `__offset` of each row.
    pub hidden: bool,
}

impl FilesOptions {
    /// The defaults for a directory.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        FilesOptions {
            path: path.into(),
            format: Format::Ndjson,
            compression: Compression::Zstd,
            roll_max_bytes: ByteSize::mib(128),
            roll_every: Duration::from_secs(60),
            prefix: None,
            hidden: false,
        }
    }

    pub(crate) fn check(&self) -> Result<(), FilesError> {
        let refuse = |text: String| Err(FilesError::Option { text });
        if self.path.as_os_str().is_empty() {
            return refuse("`path` is empty: name a directory".into());
        }
        let (low, high) = (ByteSize::kib(64), ByteSize::gib(8));
        if !(low..=high).contains(&self.roll_max_bytes) {
            return refuse(format!("`roll.max_bytes` is {}: it must be between {low} and {high}", self.roll_max_bytes));
        }
        let (low, high) = (Duration::from_secs(1), Duration::from_secs(86_400));
        if !(low..=high).contains(&self.roll_every) {
            return refuse(format!("`roll.every` is {:?}: it must be between 1s and 1d", self.roll_every));
        }
        if self.format == Format::Parquet && self.compression == Compression::Gzip {
            return refuse("`compression: gzip` is for ndjson: use zstd or none with parquet".into());
        }
        if let Some(prefix) = &self.prefix {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if prefix.is_empty() || prefix.len() > 64 || prefix.starts_with(['.', '_']) || !prefix.chars().all(allowed)
            {
                return refuse(format!(
                    "`prefix` is `{prefix}`: it must be 1 to 64 of letters, digits, `.`, `_`, `-`, and not begin with `.` or `_`"
                ));
            }
        }
        Ok(())
    }

    /// What file names end with.
    pub(crate) fn extension(&self) -> &'static str {
        match (self.format, self.compression) {
            (Format::Parquet, _) => "parquet",
            (Format::Ndjson, Compression::None) => "ndjson",
            (Format::Ndjson, Compression::Gzip) => "ndjson.gz",
            (Format::Ndjson, Compression::Zstd) => "ndjson.zst",
        }
    }
}
