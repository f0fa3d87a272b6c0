//! `data_dir/channels`: what is there, and making a channel's directory (C84, C94).

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use landfall_types::ByteSize;

use super::RESERVE_MIN;
use crate::error::OpenError;
use crate::identity::{Identity, sync_dir};
use crate::options::{ChannelOptions, ProcessOptions, check_name};

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path: PathBuf = path.to_path_buf();
    move |source| OpenError::Failed { step, path, source }
}

/// Makes a directory and syncs its parent.
pub(super) fn make(dir: &Path) -> Result<(), OpenError> {
    if dir.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(failed("creating", dir))?;
    dir.parent().map_or(Ok(()), sync_dir)
}

/// What stands in the directory.
#[derive(Default)]
pub(super) struct Found {
    /// The channels, by name.
    pub(super) channels: Vec<(String, Identity)>,
    /// What is none; left alone.
    pub(super) strays: Vec<Stray>,
}

/// An entry beside the channels.
pub(super) struct Stray {
    path: PathBuf,
    why: &'static str,
}

impl Stray {
    pub(super) fn tell(&self) {
        tracing::warn!(path = %self.path.display(), why = self.why, "foreign entry beside the channels; left alone");
        metrics::counter!("landfall_stray_files_total").increment(1);
    }
}

/// Reads the identities of all channels.
pub(super) fn scan(dir: &Path) -> Result<Found, OpenError> {
    let mut found = Found::default();
    let entries = fs::read_dir(dir).map_err(failed("listing", dir))?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| Ok(entry.map_err(failed("listing", dir))?.path())).collect::<Result<_, OpenError>>()?;
    // A directory keeps its own name, of links the first one counts.
    paths.sort_by_cached_key(|path| (path.is_symlink(), path.clone()));
    let mut directories = HashSet::new();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if !path.is_dir() || check_name(&name).is_err() {
            found.strays.push(Stray { path, why: "not a channel's directory" });
            continue;
        }
        // Two names for one directory would be two writers of one log. A link to elsewhere is a channel like any other.
        if !directories.insert(fs::canonicalize(&path).map_err(failed("resolving", &path))?) {
            found.strays.push(Stray { path, why: "a second name of another channel's directory" });
            continue;
        }
        // An identity that cannot be read stops the start: going on would make the channel look empty.
        match Identity::read(&path)? {
            Some(identity) => found.channels.push((name, identity)),
            None if holds_partitions(&path)? => return Err(OpenError::IdentityLost { path }),
            None => found.strays.push(Stray { path, why: "no channel.yaml in it" }),
        }
    }
    Ok(found)
}

/// Whether a directory has partitions with segments in it.
fn holds_partitions(dir: &Path) -> Result<bool, OpenError> {
    for entry in fs::read_dir(dir).map_err(failed("listing", dir))? {
        let path = entry.map_err(failed("listing", dir))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_digit()) || !path.is_dir() {
            continue;
        }
        let mut files = fs::read_dir(&path).map_err(failed("listing", &path))?;
        if files.any(|file| file.is_ok_and(|file| file.path().extension().is_some_and(|ext| ext == "seg"))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes a new channel: directory, then identity, each durable. A crash in between leaves an empty directory, which the
/// next creation takes.
pub(super) fn create(dir: &Path, options: &ChannelOptions) -> Result<Identity, OpenError> {
    if dir.is_dir() && holds_partitions(dir)? {
        return Err(OpenError::IdentityLost { path: dir.to_path_buf() });
    }
    fs::create_dir_all(dir).map_err(failed("creating", dir))?;
    dir.parent().map_or(Ok(()), sync_dir)?;
    let identity = Identity::fresh(options);
    identity.write(dir)?;
    Ok(identity)
}

/// The disk reserve: as configured, else the larger of 1 GiB and 2 % of the device.
pub(super) fn reserve(data_dir: &Path, process: &ProcessOptions) -> ByteSize {
    process.disk_reserve.unwrap_or_else(|| {
        let device = rustix::fs::statvfs(data_dir).map(|stat| stat.f_blocks.saturating_mul(stat.f_frsize));
        RESERVE_MIN.max(ByteSize(device.unwrap_or_default() / 50))
    })
}
