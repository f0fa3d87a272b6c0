//! A channel's append-only list of schemas: one file per id under `schemas/` (C70).
//!
//! An id is never given to other bytes. Whether a new schema fits the old ones is judged by ingest before it offers
//! it (G12); here only `fixed` is enforced. The bytes are opaque.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use landfall_types::{Code, Coded, Kind, Retry};
use parking_lot::Mutex;

use crate::error::{OpenError, ch};
use crate::identity::sync_dir;
use crate::options::{RecordFormat, SchemaPolicy};

const SCHEMA_BYTES_MAX: usize = 1 << 20;
const SCHEMAS_MAX: u32 = 65_535;

/// A schema was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// The channel takes known ones only.
    #[error("the schema is new, and schema_policy is fixed: publish under a known one, or change the policy")]
    Fixed,
    /// Too large, or too many of them.
    #[error("{what} {value} is above the limit of {limit}")]
    Limit {
        /// `schema bytes` or `schema id`.
        what: &'static str,
        /// Which.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// The file could not be written.
    #[error(transparent)]
    Failed(#[from] OpenError),
}

impl Coded for SchemaError {
    fn code(&self) -> Code {
        match self {
            SchemaError::Fixed => ch(4),
            SchemaError::Limit { .. } => ch(3),
            SchemaError::Failed(error) => error.code(),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            SchemaError::Fixed | SchemaError::Limit { .. } => Kind::Invalid,
            SchemaError::Failed(error) => error.kind(),
        }
    }

    fn retry(&self) -> Retry {
        match self {
            SchemaError::Failed(error) => error.retry(),
            _ => Retry::Never,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Schemas {
    /// None: class `memory`, whose list lives as long as its records.
    dir: Option<PathBuf>,
    known: Mutex<Vec<(RecordFormat, Bytes)>>,
}

/// The first line of a schema's file; the schema's bytes follow.
fn head(format: RecordFormat) -> String {
    format!("landfall-schema 1 {}\n", format.as_str())
}

fn file_name(id: u32) -> String {
    format!("{id:010}.schema")
}

impl Schemas {
    pub(crate) fn in_memory() -> Schemas {
        Schemas { dir: None, known: Mutex::default() }
    }

    /// Reads the list: ids 1, 2, … up to the first that is missing. Other files are left alone.
    pub(crate) fn open(channel_dir: &Path) -> Result<Schemas, OpenError> {
        let dir = channel_dir.join("schemas");
        let mut known = Vec::new();
        for id in 1..=SCHEMAS_MAX {
            match read(&dir.join(file_name(id)))? {
                Some(schema) => known.push(schema),
                None => break,
            }
        }
        Ok(Schemas { dir: Some(dir), known: Mutex::new(known) })
    }

    pub(crate) fn is_known(&self, id: u32) -> bool {
        id >= 1 && id as usize <= self.known.lock().len()
    }

    pub(crate) fn get(&self, id: u32) -> Option<(RecordFormat, Bytes)> {
        self.known.lock().get((id as usize).checked_sub(1)?).cloned()
    }

    pub(crate) fn offer(&self, format: RecordFormat, schema: &[u8], policy: SchemaPolicy) -> Result<u32, SchemaError> {
        if schema.len() > SCHEMA_BYTES_MAX {
            let (value, limit) = (schema.len() as u64, SCHEMA_BYTES_MAX as u64);
            return Err(SchemaError::Limit { what: "schema bytes", value, limit });
        }
        let schema = Bytes::copy_from_slice(schema);
        loop {
            let id = {
                let mut known = self.known.lock();
                if let Some(at) = known.iter().position(|(own, bytes)| *own == format && *bytes == schema) {
                    return Ok(at as u32 + 1);
                }
                if policy == SchemaPolicy::Fixed {
                    return Err(SchemaError::Fixed);
                }
                let id = known.len() as u32 + 1;
                if id > SCHEMAS_MAX {
                    let (value, limit) = (u64::from(id), u64::from(SCHEMAS_MAX));
                    return Err(SchemaError::Limit { what: "schema id", value, limit });
                }
                if self.dir.is_none() {
                    known.push((format, schema));
                    return Ok(id);
                }
                id
            };
            // No lock over I/O (I5): the directory decides who gets the id, and who comes second looks again.
            let Some(dir) = &self.dir else { continue };
            write(dir, id, format, &schema)?;
            let Some(stored) = read(&dir.join(file_name(id)))? else {
                let path = dir.join(file_name(id));
                return Err(OpenError::Identity { path, reason: "it is gone after it was written".into() }.into());
            };
            let mut known = self.known.lock();
            if known.len() as u32 + 1 == id {
                known.push(stored);
            }
        }
    }
}

fn read(path: &Path) -> Result<Option<(RecordFormat, Bytes)>, OpenError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(OpenError::Failed { step: "opening", path: path.to_path_buf(), source }),
    };
    let mut bytes = Vec::new();
    let read = file.take(SCHEMA_BYTES_MAX as u64 + 64).read_to_end(&mut bytes);
    read.map_err(|source| OpenError::Failed { step: "reading", path: path.to_path_buf(), source })?;
    let formats = [RecordFormat::Json, RecordFormat::Proto, RecordFormat::Avro, RecordFormat::Any];
    let found = formats.into_iter().find(|format| bytes.starts_with(head(*format).as_bytes()));
    match found {
        Some(format) => Ok(Some((format, Bytes::from(bytes).slice(head(format).len()..)))),
        None => {
            let reason = "does not begin with `landfall-schema 1`".to_owned();
            Err(OpenError::Identity { path: path.to_path_buf(), reason })
        }
    }
}

/// Puts the schema under its id, durably, unless another one is there already.
fn write(dir: &Path, id: u32, format: RecordFormat, schema: &[u8]) -> Result<(), OpenError> {
    let path = dir.join(file_name(id));
    let fresh = dir.join(format!("{id:010}.{:08x}.new", rand::random::<u32>()));
    let write = || {
        fs::create_dir_all(dir)?;
        let mut file = File::create(&fresh)?;
        file.write_all(head(format).as_bytes())?;
        file.write_all(schema)?;
        file.sync_all()?;
        let linked = match fs::hard_link(&fresh, &path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        };
        fs::remove_file(&fresh)?;
        linked
    };
    write().map_err(|source| OpenError::Failed { step: "writing", path: path.clone(), source })?;
    sync_dir(dir)?;
    dir.parent().map_or(Ok(()), sync_dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches an id that changes over a restart or that is given to other bytes.
    #[test]
    fn a_schema_keeps_its_id() {
        let dir = tempfile::tempdir().unwrap();
        let schemas = Schemas::open(dir.path()).unwrap();
        assert!(!schemas.is_known(0) && !schemas.is_known(1));
        assert_eq!(schemas.offer(RecordFormat::Json, b"{}", SchemaPolicy::Any).unwrap(), 1);
        assert_eq!(schemas.offer(RecordFormat::Proto, b"{}", SchemaPolicy::Any).unwrap(), 2);
        let again = Schemas::open(dir.path()).unwrap();
        assert_eq!(again.offer(RecordFormat::Json, b"{}", SchemaPolicy::Fixed).unwrap(), 1);
        assert!(matches!(again.offer(RecordFormat::Json, b"[]", SchemaPolicy::Fixed), Err(SchemaError::Fixed)));
        assert_eq!(again.get(2), Some((RecordFormat::Proto, Bytes::from_static(b"{}"))));
        assert_eq!(again.get(3), None);
    }
}
