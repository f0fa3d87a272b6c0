//! The data directory in this process's hands: LOCK, state, channels; opened in that order, closed in the reverse.

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use landfall_channel::Channels;
use landfall_state::{DataDirLock, StateHandle, StateStore};
use landfall_types::{ByteSize, Clock};

use super::channel_options;
use crate::config::Config;
use crate::refusal::coded;

/// An opened data directory. Keeps LOCK until [`Storage::close`] or its drop; once LOCK is another's, the channels write
/// no more (C93, I5).
pub(crate) struct Storage {
    /// The channels.
    pub(crate) channels: Channels,
    state: StateStore,
    lock: Arc<DataDirLock>,
}

impl Storage {
    /// Opens what is there and creates what is missing.
    pub(crate) fn open(config: &Config, memory_limit: ByteSize, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        let data_dir: &Path = &config.data_dir;
        let lock = Arc::new(DataDirLock::acquire(data_dir, clock.as_ref()).map_err(coded)?);
        let state = StateStore::open(&lock).map_err(coded)?;
        let process = channel_options::process(&config.process, memory_limit);
        let channels = Channels::open(data_dir, channel_options::all(config), process, state.handle(), clock);
        let channels = channels.map_err(coded)?;
        // Weak: a clone of the channels that lives on must not keep LOCK from whoever comes after the close.
        let watched = Arc::downgrade(&lock);
        channels.watch_owner(move || watched.upgrade().is_some_and(|lock| lock.still_ours()));
        Ok(Storage { channels, state, lock })
    }

    /// The small state.
    pub(crate) fn state(&self) -> StateHandle {
        self.state.handle()
    }

    /// Closes channels, then state, then gives LOCK back. Blocks on I/O.
    pub(crate) fn close(self) {
        self.channels.close();
        self.state.close();
        drop(self.lock);
    }
}
