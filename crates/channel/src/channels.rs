//! All channels of a process.
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use landfall_state::StateHandle;
use landfall_types::{Clock, Code, PartitionId};

use crate::*;

/// The process's channels; clones share them.
#[derive(Clone, Debug)]
pub struct Channels {
    never: std::convert::Infallible,
}

/// What a drain left behind (C32).
#[derive(Clone, Debug, Default)]
pub struct DrainReport {
    /// Publishes without a commit, per partition; empty: everything was answered in time.
    pub left: Vec<LeftOver>,
}

/// Publishes of one partition that a drain could not finish.
#[derive(Clone, Debug)]
pub struct LeftOver {
    /// The channel.
    pub channel: Arc<str>,
    /// The partition.
    pub partition: PartitionId,
    /// Queued ones, answered NotStored.
    pub queued: usize,
    /// Claimed ones, answered Unresolved.
    pub claimed: usize,
    /// The code they were answered with: that of the claimed ones if there are any.
    pub code: Code,
}

impl Channels {
    /// Opens the configured channels and those found on disk.
    pub fn open(
        data_dir: &Path,
        _configs: Vec<(String, ChannelOptions)>,
        _process: ProcessOptions,
        _state: StateHandle,
        _clock: Arc<dyn Clock>,
    ) -> Result<Channels, OpenError> {
        let source = std::io::Error::from(std::io::ErrorKind::Unsupported);
        Err(OpenError::Failed { step: "open", path: data_dir.to_path_buf(), source })
    }
    /// A channel by name.
    pub fn get(&self, _name: &str) -> Option<Channel> {
        match self.never {}
    }
    /// All channels, by name.
    pub fn list(&self) -> Vec<Channel> {
        match self.never {}
    }
    /// Creates a channel, or gives the one there is. Blocks on I/O.
    pub fn create(&self, _name: &str, _options: ChannelOptions) -> Result<Channel, OpenError> {
        match self.never {}
    }
    /// Refuses new publishes, finishes those there are until the deadline (C32).
    pub async fn drain(&self, _deadline: Instant) -> DrainReport {
        match self.never {}
    }
    /// Stops the threads; idempotent. Blocks on I/O.
    pub fn close(self) {
        match self.never {}
    }
}
