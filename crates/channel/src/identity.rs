//! `channel.yaml`: who a channel is, and what it was last opened with (C94).
//!
//! Plain `key: value` lines that we write ourselves: temporary file, sync, rename, directory sync. What is fixed for good
//! is the id, the key seed and the number of partitions; the rest is what applies where the configuration does not name
//! the channel, as for dead letters. The file is small, so a reader takes at most 64 KiB of it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use landfall_types::{ByteSize, ChannelId, Durability};

use crate::error::OpenError;
use crate::keys::KeySeed;
use crate::options::{ChannelOptions, RecordFormat};

/// The file's name inside the channel's directory.
pub(crate) const FILE: &str = "channel.yaml";
const VERSION: u32 = 1;
const BYTES_MAX: u64 = 64 << 10;

/// What `channel.yaml` holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Identity {
    pub(crate) id: ChannelId,
    pub(crate) seed: KeySeed,
    pub(crate) partitions: u32,
    pub(crate) format: Option<RecordFormat>,
    pub(crate) durability: Durability,
    pub(crate) max_age: Option<Duration>,
    pub(crate) max_bytes: Option<ByteSize>,
    pub(crate) record_bytes: ByteSize,
    pub(crate) batch_bytes: ByteSize,
    pub(crate) headers: u32,
    pub(crate) header_bytes: ByteSize,
}

impl Identity {
    /// A new channel's.
    pub(crate) fn fresh(options: &ChannelOptions) -> Identity {
        let mut identity = Identity {
            id: ChannelId(uuid::Uuid::now_v7().into_bytes()),
            seed: KeySeed(rand::random()),
            partitions: options.partitions,
            format: None,
            durability: options.durability,
            max_age: None,
            max_bytes: None,
            record_bytes: options.limits.record_bytes,
            batch_bytes: options.limits.batch_bytes,
            headers: options.limits.headers,
            header_bytes: options.limits.header_bytes,
        };
        identity.apply(options);
        identity
    }

    /// The number of partitions is fixed at creation (C94).
    pub(crate) fn check_partitions(&self, name: &str, options: &ChannelOptions) -> Result<(), OpenError> {
        if self.partitions != options.partitions {
            let (stored, configured) = (self.partitions, options.partitions);
            return Err(OpenError::PartitionsChanged { name: name.into(), stored, configured });
        }
        Ok(())
    }

    /// Takes over what applies from this start.
    pub(crate) fn apply(&mut self, options: &ChannelOptions) {
        self.format = options.format.or(self.format);
        self.durability = options.durability;
        self.max_age = options.retention.max_age;
        self.max_bytes = options.retention.max_bytes;
        self.record_bytes = options.limits.record_bytes;
        self.batch_bytes = options.limits.batch_bytes;
        self.headers = options.limits.headers;
        self.header_bytes = options.limits.header_bytes;
    }

    /// The options of a channel that the configuration does not name.
    pub(crate) fn options(&self) -> ChannelOptions {
        let mut options =
            ChannelOptions { partitions: self.partitions, durability: self.durability, ..Default::default() };
        options.format = self.format;
        options.retention.max_age = self.max_age;
        options.retention.max_bytes = self.max_bytes;
        options.limits.record_bytes = self.record_bytes;
        options.limits.batch_bytes = self.batch_bytes;
        options.limits.headers = self.headers;
        options.limits.header_bytes = self.header_bytes;
        options.queue.bytes = options.queue.bytes.max(self.batch_bytes);
        let least = 2 * options.turn.bytes.0.max(self.batch_bytes.0);
        options.segment_bytes = options.segment_bytes.max(ByteSize(least));
        options
    }

    /// Reads it; `None`: there is no such file.
    pub(crate) fn read(dir: &Path) -> Result<Option<Identity>, OpenError> {
        let path = dir.join(FILE);
        let failed = |source| OpenError::Failed { step: "reading", path: path.clone(), source };
        let mut text = String::new();
        match File::open(&path) {
            Ok(file) => file.take(BYTES_MAX).read_to_string(&mut text).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        Self::parse(&text).map(Some).map_err(|reason| OpenError::Identity { path, reason })
    }

    /// Writes it durably: a crash leaves the old one or this one.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), OpenError> {
        let path = dir.join(FILE);
        // A name of its own: several may write at once.
        let fresh = dir.join(format!("{FILE}.{:08x}.new", rand::random::<u32>()));
        let failed = |step: &'static str, path: &PathBuf| {
            let path = path.clone();
            move |source| OpenError::Failed { step, path, source }
        };
        let mut file = File::create(&fresh).map_err(failed("creating", &fresh))?;
        file.write_all(self.text().as_bytes()).map_err(failed("writing", &fresh))?;
        file.sync_all().map_err(failed("syncing", &fresh))?;
        fs::rename(&fresh, &path).map_err(failed("renaming", &path))?;
        sync_dir(dir)
    }

    fn text(&self) -> String {
        let mut text =
            String::from("# Written by landfall. Identity of this channel: without it the records cannot be opened.\n");
        let mut line = |key: &str, value: String| {
            text.push_str(key);
            text.push_str(": ");
            text.push_str(&value);
            text.push('\n');
        };
        line("version", VERSION.to_string());
        line("id", self.id.to_string());
        line("key_seed", ChannelId(self.seed.0).to_string());
        line("partitions", self.partitions.to_string());
        line("durability", self.durability.to_string());
        if let Some(format) = self.format {
            line("format", format.as_str().to_owned());
        }
        if let Some(age) = self.max_age {
            line("retention_max_age_ms", age.as_millis().to_string());
        }
        if let Some(bytes) = self.max_bytes {
            line("retention_max_bytes", bytes.0.to_string());
        }
        line("record_bytes", self.record_bytes.0.to_string());
        line("batch_bytes", self.batch_bytes.0.to_string());
        line("headers", self.headers.to_string());
        line("header_bytes", self.header_bytes.0.to_string());
        text
    }

    fn parse(text: &str) -> Result<Identity, String> {
        let mut fields = std::collections::BTreeMap::new();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        for line in lines {
            let (key, value) = line.split_once(':').ok_or_else(|| format!("no `key: value` in {line:?}"))?;
            if fields.insert(key.trim(), value.trim()).is_some() {
                return Err(format!("{} stands there twice", key.trim()));
            }
        }
        let version: u32 = required(&fields, "version")?;
        if version != VERSION {
            return Err(format!("version is {version}, this build reads {VERSION}: use a newer landfall"));
        }
        let partitions: u32 = required(&fields, "partitions")?;
        if partitions == 0 || partitions > 1_024 {
            return Err(format!("partitions is {partitions}, expected 1 to 1024"));
        }
        let durability = match *fields.get("durability").ok_or("durability is missing")? {
            "fsync" => Durability::Fsync,
            "written" => Durability::Written,
            other => return Err(format!("durability is {other:?}, expected fsync or written")),
        };
        let format = match fields.get("format") {
            Some(text) => Some(RecordFormat::parse(text).ok_or_else(|| format!("format is {text:?}"))?),
            None => None,
        };
        let limits = crate::options::Limits::default();
        Ok(Identity {
            id: required(&fields, "id")?,
            seed: KeySeed(required::<ChannelId>(&fields, "key_seed")?.0),
            partitions,
            format,
            durability,
            max_age: optional(&fields, "retention_max_age_ms")?.map(Duration::from_millis),
            max_bytes: optional(&fields, "retention_max_bytes")?.map(ByteSize),
            record_bytes: optional(&fields, "record_bytes")?.map_or(limits.record_bytes, ByteSize),
            batch_bytes: optional(&fields, "batch_bytes")?.map_or(limits.batch_bytes, ByteSize),
            headers: optional(&fields, "headers")?.unwrap_or(limits.headers),
            header_bytes: optional(&fields, "header_bytes")?.map_or(limits.header_bytes, ByteSize),
        })
    }
}

type FieldMap<'a> = std::collections::BTreeMap<&'a str, &'a str>;

fn optional<T: FromStr>(fields: &FieldMap<'_>, key: &str) -> Result<Option<T>, String> {
    let read = |value: &&str| value.parse().map_err(|_| format!("{key} is {value:?}, which cannot be read"));
    fields.get(key).map(read).transpose()
}

fn required<T: FromStr>(fields: &FieldMap<'_>, key: &str) -> Result<T, String> {
    optional(fields, key)?.ok_or_else(|| format!("{key} is missing"))
}

/// Makes a directory's entries durable.
pub(crate) fn sync_dir(dir: &Path) -> Result<(), OpenError> {
    let sync = || File::open(dir)?.sync_all();
    sync().map_err(|source| OpenError::Failed { step: "syncing", path: dir.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a field that does not survive the file, and a half-written file that is taken.
    #[test]
    fn an_identity_reads_back_or_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Identity::read(dir.path()).unwrap(), None);
        let mut options = ChannelOptions { partitions: 3, format: Some(RecordFormat::Json), ..Default::default() };
        options.retention.max_age = Some(Duration::from_secs(60));
        options.retention.max_bytes = Some(ByteSize::gib(1));
        let identity = Identity::fresh(&options);
        identity.write(dir.path()).unwrap();
        assert_eq!(Identity::read(dir.path()).unwrap(), Some(identity.clone()));
        assert!(identity.options().validated().is_ok());
        let text = identity.text();
        for line in ["version", "id:", "key_seed", "partitions", "durability"] {
            let cut: String = text.lines().filter(|own| !own.starts_with(line)).map(|own| format!("{own}\n")).collect();
            assert!(Identity::parse(&cut).is_err(), "{line}");
        }
        for wrong in ["", "version: 2\n", "partitions: 0\nversion: 1", "\u{0}", ":", "version: 1\nversion: 1"] {
            assert!(Identity::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
