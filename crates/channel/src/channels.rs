//! All channels of a process: opening, creating, draining, closing.
//!
//! A channel that is found on disk is opened whether or not the configuration names it. What cannot be read is reported
//! and left alone; nothing is deleted for it (I12). A partition that does not open is stopped, the others serve (I13).

mod directory;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use landfall_log::{DiskVfs, KeyWindow, LogIdentity, LogOptions, Vfs};
use landfall_state::{Change, StateHandle};
use landfall_types::{ByteSize, Clock, Code, Coded, Durability, Offset, PartitionId};
use parking_lot::{Mutex, RwLock};

use crate::budget::ProcessBudget;
use crate::channel::{Channel, ChannelShared};
use crate::error::{OpenError, PublishError, ch};
use crate::floors::Floors;
use crate::identity::Identity;
use crate::intake::Gate;
use crate::known_tails::KnownTails;
use crate::options::{ChannelOptions, ProcessOptions, check_name};
use crate::outcome::UnresolvedCause;
use crate::partition::{Partition, PartitionParts};
use crate::schemas::Schemas;
use crate::store::{LogStore, MemoryStore, PartitionStore};
use crate::threads::{DiskReserve, Threads, wake_all};
use crate::ticket::Settlement;

/// The process's channels; clones share them. The last clone's drop closes them.
#[derive(Clone, Debug)]
pub struct Channels {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// `data_dir/channels`. None: stand-ins, which are in memory whatever their class.
    dir: Option<PathBuf>,
    process: ProcessOptions,
    state: StateHandle,
    clock: Arc<dyn Clock>,
    vfs: Arc<dyn Vfs>,
    threads: Arc<Threads>,
    budget: ProcessBudget,
    open_subscriptions: Arc<AtomicU32>,
    channels: RwLock<BTreeMap<String, Channel>>,
    /// Names that are being created, so that two creations of one name do not meet on disk.
    creating: Mutex<Vec<String>>,
    is_draining: AtomicBool,
    is_closed: AtomicBool,
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

/// How long closing waits for threads that are in the device.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// Partitions that open at the same time (C91).
const OPENING_MAX: usize = 8;
/// The smallest part of the ring budget that a partition gets (C55).
const RING_BYTES_MIN: usize = 64 << 10;

impl Channels {
    /// Opens the configured channels, creates those that are not there yet, and opens those found on disk. The caller
    /// holds LOCK of `data_dir`. Blocks on I/O.
    pub fn open(
        data_dir: &Path,
        configs: Vec<(String, ChannelOptions)>,
        process: ProcessOptions,
        state: StateHandle,
        clock: Arc<dyn Clock>,
    ) -> Result<Channels, OpenError> {
        let vfs: Arc<dyn Vfs> = Arc::new(DiskVfs);
        let reserve = DiskReserve {
            dir: data_dir.to_path_buf(),
            bytes: directory::reserve(data_dir, &process),
            vfs: Arc::clone(&vfs),
        };
        Self::open_on(vfs, Some(reserve), data_dir, configs, process, state, clock)
    }

    /// The same over another file system for the segments. Identities and schemas are in `data_dir` all the same.
    pub(crate) fn open_on(
        vfs: Arc<dyn Vfs>,
        reserve: Option<DiskReserve>,
        data_dir: &Path,
        configs: Vec<(String, ChannelOptions)>,
        process: ProcessOptions,
        state: StateHandle,
        clock: Arc<dyn Clock>,
    ) -> Result<Channels, OpenError> {
        let process = process.validated().map_err(|cause| OpenError::Option { channel: "process".into(), cause })?;
        let dir = data_dir.join("channels");
        directory::make(&dir)?;
        Self::begin(vfs, reserve, Some(dir), configs, process, state, clock)
    }

    /// Channels of these names, partitions and classes for a plan: in memory, so that making them leaves nothing behind
    /// and finds nothing there. What they are given goes with the process.
    pub fn stand_ins(
        configs: Vec<(String, ChannelOptions)>,
        process: ProcessOptions,
        state: StateHandle,
        clock: Arc<dyn Clock>,
    ) -> Result<Channels, OpenError> {
        let process = process.validated().map_err(|cause| OpenError::Option { channel: "process".into(), cause })?;
        Self::begin(Arc::new(DiskVfs), None, None, configs, process, state, clock)
    }

    /// What stands against opening these channels in a data directory, by channel where it is one's. Reads identities
    /// and changes nothing, beside a running process too; what the records themselves hold is found by opening.
    pub fn preview(data_dir: &Path, configs: &[(String, ChannelOptions)]) -> Vec<(Option<String>, OpenError)> {
        let dir = data_dir.join("channels");
        let found = match directory::scan(&dir) {
            Ok(found) => found.channels,
            Err(OpenError::Failed { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Vec::new();
            }
            Err(error) => return vec![(None, error)],
        };
        let mut against = Vec::new();
        for (name, options) in configs.iter().filter(|(_, options)| options.durability != Durability::Memory) {
            let refused = match found.iter().find(|(own, _)| own == name) {
                Some((_, identity)) => identity.check_partitions(name, options),
                None => check_free(name, found.iter().map(|(own, _)| own)),
            };
            against.extend(refused.err().map(|error| (Some(name.clone()), error)));
        }
        against
    }

    fn begin(
        vfs: Arc<dyn Vfs>,
        reserve: Option<DiskReserve>,
        dir: Option<PathBuf>,
        configs: Vec<(String, ChannelOptions)>,
        process: ProcessOptions,
        state: StateHandle,
        clock: Arc<dyn Clock>,
    ) -> Result<Channels, OpenError> {
        let shared = Arc::new(Shared {
            threads: Arc::new(Threads::new(&process, reserve)),
            budget: ProcessBudget::new(process.queued_bytes.as_usize()),
            dir,
            process,
            state,
            clock,
            vfs,
            open_subscriptions: Arc::default(),
            channels: RwLock::default(),
            creating: Mutex::default(),
            is_draining: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        });
        let channels = Channels { shared };
        channels.open_all(configs)?;
        Ok(channels)
    }

    fn open_all(&self, configs: Vec<(String, ChannelOptions)>) -> Result<(), OpenError> {
        let found = match &self.shared.dir {
            Some(dir) => directory::scan(dir)?,
            None => directory::Found::default(),
        };
        found.strays.iter().for_each(directory::Stray::tell);
        let mut wanted: BTreeMap<String, (Option<Identity>, ChannelOptions)> = BTreeMap::new();
        for (name, identity) in found.channels {
            let options = identity.options();
            wanted.insert(name, (Some(identity), options));
        }
        for (name, options) in configs {
            let options = checked(&name, options)?;
            match wanted.get_mut(&name) {
                Some((_, known)) => *known = options,
                None => {
                    check_free(&name, wanted.keys())?;
                    wanted.insert(name, (None, options));
                }
            }
        }
        let partitions: u32 = wanted.values().map(|(_, options)| options.partitions).sum();
        for (name, (identity, options)) in wanted {
            let channel = self.open_one(&name, identity, options, partitions.max(1))?;
            self.shared.channels.write().insert(name, channel);
        }
        Ok(())
    }

    fn open_one(
        &self,
        name: &str,
        identity: Option<Identity>,
        options: ChannelOptions,
        partitions_of_all: u32,
    ) -> Result<Channel, OpenError> {
        let shared = &self.shared;
        let dir = shared.dir.as_ref().filter(|_| options.durability != Durability::Memory).map(|dir| dir.join(name));
        let is_in_memory = dir.is_none();
        let identity = match (&dir, identity) {
            (None, _) => Identity::fresh(&options),
            (Some(dir), None) => directory::create(dir, &options)?,
            (Some(dir), Some(mut identity)) => {
                identity.check_partitions(name, &options)?;
                let before = identity.clone();
                identity.apply(&options);
                if identity != before {
                    tracing::info!(channel = name, "options that differ from the last start apply from now on");
                    identity.write(dir)?;
                }
                identity
            }
        };
        let state = || (!is_in_memory).then(|| shared.state.clone());
        let unread = |step: &'static str| {
            let path = dir.clone().unwrap_or_default();
            move |error| OpenError::Failed { step, path, source: std::io::Error::other(error) }
        };
        let floors = Floors::open(identity.id, state()).map_err(unread("reading consumers' floors"))?;
        let known_tails =
            KnownTails::open(identity.id, state()).map_err(unread("reading the tails of earlier runs"))?;
        let (floors, known_tails) = (Arc::new(floors), Arc::new(known_tails));
        let schemas = dir.as_deref().map_or_else(|| Ok(Schemas::in_memory()), Schemas::open)?;
        let name: Arc<str> = name.into();
        let options = Arc::new(options);
        let equal_part = shared.process.ring_bytes.as_usize() / partitions_of_all as usize;
        let ring_bytes = equal_part.clamp(RING_BYTES_MIN, options.ring.bytes.as_usize().max(RING_BYTES_MIN));
        let open = |number: u32| {
            let id = PartitionId(number);
            let parts = PartitionParts {
                channel: Arc::clone(&name),
                channel_id: identity.id,
                id,
                options: Arc::clone(&options),
                ring_bytes,
                budget: shared.budget.clone(),
                threads: Arc::clone(&shared.threads),
                floors: Arc::clone(&floors),
                known_tails: Arc::clone(&known_tails),
                clock: Arc::clone(&shared.clock),
            };
            // A consumer of class `written` may have read what a power cut took: it is told so, the log goes on (C83).
            let floor = match options.durability {
                Durability::Fsync => floors.highest(id),
                Durability::Written | Durability::Memory => None,
            };
            let durable = floor.max(known_tails.of(id));
            let partition = Partition::open(parts, self.store(&identity, &options, dir.as_deref(), id, durable));
            shared.threads.housekeeping.add(&partition);
            shared.threads.deadlines.add(&partition);
            partition
        };
        let partitions = in_parallel(options.partitions, open);
        Ok(Channel {
            shared: Arc::new(ChannelShared {
                name,
                id: identity.id,
                seed: identity.seed,
                options,
                partitions,
                floors,
                schemas,
                dir,
                identity: Mutex::new(identity),
                decided_format: Mutex::new(None),
                rotation: AtomicU64::new(0),
                open_subscriptions: Arc::clone(&shared.open_subscriptions),
                subscriptions_max: shared.process.subscriptions,
            }),
        })
    }

    fn store(
        &self,
        identity: &Identity,
        options: &ChannelOptions,
        dir: Option<&Path>,
        partition: PartitionId,
        durable: Option<Offset>,
    ) -> Box<dyn PartitionStore> {
        let Some(dir) = dir else { return Box::new(MemoryStore::new(options.segment_bytes)) };
        let keys = &options.keys;
        Box::new(LogStore {
            vfs: Arc::clone(&self.shared.vfs),
            dir: dir.join(partition.to_string()),
            identity: LogIdentity { channel: identity.id, partition },
            options: LogOptions {
                segment_bytes: options.segment_bytes,
                durability: options.durability,
                clock: Arc::clone(&self.shared.clock),
                key_window: KeyWindow {
                    max_age: keys.window,
                    keys: keys.count as usize,
                    producers: keys.producers as usize,
                },
                floor: durable,
                ..LogOptions::default()
            },
        })
    }

    /// Asks `is_ours` before each turn of a committer: whether LOCK is still this process's (C93). Once it is not, nothing
    /// is written any more and publishes are answered CH0035. It must be quick; it may look at a file.
    pub fn watch_owner(&self, is_ours: impl Fn() -> bool + Send + Sync + 'static) {
        self.shared.threads.watch_owner(Box::new(is_ours));
    }

    /// A channel by name.
    pub fn get(&self, name: &str) -> Option<Channel> {
        self.shared.channels.read().get(name).cloned()
    }

    /// All channels, by name.
    pub fn list(&self) -> Vec<Channel> {
        self.shared.channels.read().values().cloned().collect()
    }

    /// Creates a channel, or gives the one there is, with the options it has. Blocks on I/O.
    pub fn create(&self, name: &str, options: ChannelOptions) -> Result<Channel, OpenError> {
        let options = checked(name, options)?;
        if self.shared.is_draining.load(Ordering::Acquire) {
            return Err(OpenError::Draining);
        }
        {
            let mut creating = self.shared.creating.lock();
            let channels = self.shared.channels.read();
            if let Some(channel) = channels.get(name) {
                return Ok(channel.clone());
            }
            check_free(name, channels.keys().chain(creating.iter()))?;
            creating.push(name.to_owned());
        }
        let opened = self.create_new(name, options);
        self.shared.creating.lock().retain(|own| own != name);
        opened
    }

    fn create_new(&self, name: &str, options: ChannelOptions) -> Result<Channel, OpenError> {
        let partitions: u32 = self.list().iter().map(Channel::partitions).sum();
        let identity = match (options.durability, &self.shared.dir) {
            (Durability::Memory, _) | (_, None) => None,
            (_, Some(dir)) => Identity::read(&dir.join(name))?,
        };
        let channel = self.open_one(name, identity, options.clone(), partitions + options.partitions)?;
        self.shared.channels.write().insert(name.to_owned(), channel.clone());
        Ok(channel)
    }

    /// Refuses new publishes, finishes those there are until the deadline; what is left is answered NotStored if it was
    /// queued and Unresolved if it was under way (C32). Reading goes on until [`Channels::close`].
    pub async fn drain(&self, deadline: Instant) -> DrainReport {
        self.shared.is_draining.store(true, Ordering::Release);
        let partitions = self.all_partitions();
        for partition in &partitions {
            close_gate(partition);
        }
        let mut report = DrainReport::default();
        for partition in &partitions {
            let emptied = async {
                loop {
                    let told = partition.intake.emptied.notified();
                    tokio::pin!(told);
                    // Enabled before the look, so that an end in between is not missed.
                    told.as_mut().enable();
                    if partition.intake.is_empty() {
                        return;
                    }
                    told.await;
                }
            };
            if tokio::time::timeout_at(deadline.into(), emptied).await.is_err() {
                report.left.extend(give_up(partition));
            }
        }
        for left in &report.left {
            tracing::error!(channel = %left.channel, partition = %left.partition, queued = left.queued, claimed = left.claimed, code = %left.code, "publishes left over by the drain");
        }
        report
    }

    /// Ends subscriptions and threads and closes the logs; what is still queued is answered NotStored. Idempotent.
    /// Blocks on I/O, for at most some seconds where the device hangs.
    pub fn close(self) {
        self.shared.close();
    }

    fn all_partitions(&self) -> Vec<Arc<Partition>> {
        self.shared.all_partitions()
    }
}

impl Shared {
    fn all_partitions(&self) -> Vec<Arc<Partition>> {
        let channels = self.channels.read();
        channels.values().flat_map(|channel| channel.shared.partitions.iter().cloned()).collect()
    }

    fn close(&self) {
        self.is_draining.store(true, Ordering::Release);
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let by = Instant::now() + CLOSE_PATIENCE;
        let partitions = self.all_partitions();
        for partition in &partitions {
            close_gate(partition);
            partition.tail.close();
        }
        self.threads.housekeeping.close(by);
        self.threads.commit.close(by);
        let mut tails = Vec::new();
        for partition in &partitions {
            let _ = give_up(partition);
            if let Some(tail) = partition.intake.unpark().and_then(|committer| committer.close()) {
                tails.extend(partition.known_tails.news(partition.id, tail));
            }
        }
        self.keep_tails(tails, by);
        self.threads.read.close();
    }

    /// The closing marks are durable: a segment that goes missing from now on is noticed at the next start.
    fn keep_tails(&self, tails: Vec<Change>, by: Instant) {
        if tails.is_empty() {
            return;
        }
        let (told, tell) = std::sync::mpsc::sync_channel(1);
        let told = move |result| {
            // Nobody waits any more: it took too long.
            let _ = told.try_send(result);
        };
        self.state.commit_with(tails, self.state.owner(), Box::new(told));
        let cause = match tell.recv_timeout(by.saturating_duration_since(Instant::now())) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the state does not answer".to_owned(),
        };
        tracing::warn!(
            cause,
            "the last tails were not kept; a segment that goes missing before the next start may not be noticed"
        );
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close();
    }
}

/// Names are unique without regard to case (C10).
fn check_free<'a>(name: &str, mut taken: impl Iterator<Item = &'a String>) -> Result<(), OpenError> {
    match taken.find(|own| own.eq_ignore_ascii_case(name)) {
        Some(existing) => Err(OpenError::NameTaken { name: name.into(), existing: existing.clone() }),
        None => Ok(()),
    }
}

fn checked(name: &str, options: ChannelOptions) -> Result<ChannelOptions, OpenError> {
    let failed = |cause| OpenError::Option { channel: name.chars().take(64).collect(), cause };
    check_name(name).map_err(failed)?;
    options.validated().map_err(failed)
}

/// A stopped partition keeps its own answer.
fn close_gate(partition: &Partition) {
    let error = PublishError::Draining { channel: Arc::clone(&partition.channel) };
    if partition.condition().state != "stopped" {
        partition.intake.set_gate(Gate::Closed(error));
    }
}

/// Answers what is left in a partition.
fn give_up(partition: &Partition) -> Option<LeftOver> {
    let queued = partition.intake.take_all();
    let left = queued.len();
    for unit in queued {
        partition.refuse(unit, PublishError::Draining { channel: Arc::clone(&partition.channel) });
    }
    // They stay the committer's, which may yet come back from the device; only their holders are answered.
    let mut wake = Vec::new();
    let claimed = {
        let claimed = partition.claimed.lock();
        for claimed in claimed.iter() {
            claimed.queued.cell.settle(Settlement::Unresolved(UnresolvedCause::CommitterLost), &mut wake);
        }
        claimed.len()
    };
    wake_all(&mut wake);
    (left + claimed > 0).then(|| LeftOver {
        channel: Arc::clone(&partition.channel),
        partition: partition.id,
        queued: left,
        claimed,
        code: if claimed > 0 { UnresolvedCause::CommitterLost.code() } else { ch(34) },
    })
}

/// Opens partitions in parallel; their order is that of their numbers.
fn in_parallel<T: Send>(count: u32, open: impl Fn(u32) -> T + Sync) -> Vec<T> {
    if count <= 1 {
        return (0..count).map(open).collect();
    }
    let next = AtomicU32::new(0);
    let opened = Mutex::new(Vec::with_capacity(count as usize));
    std::thread::scope(|scope| {
        for _ in 0..OPENING_MAX.min(count as usize) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let one = open(number);
                    opened.lock().push((number, one));
                }
            });
        }
    });
    let mut opened = opened.into_inner();
    opened.sort_by_key(|(number, _)| *number);
    opened.into_iter().map(|(_, one)| one).collect()
}

/// What must stay free unless configured: the larger of this and 2 % of the device (C10).
const RESERVE_MIN: ByteSize = ByteSize::gib(1);

impl Shared {
    /// Bytes queued and claimed now, for tests of the budget.
    #[cfg(test)]
    fn queued_bytes(&self) -> usize {
        self.budget.used()
    }
}

#[cfg(test)]
mod tests;
