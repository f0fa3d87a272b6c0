//! The housekeeping thread: prepared space, spares and freeing beside the committers; once a second, retention, marks of
//! quiet partitions, and the disk reserve (C28, C75, C78, C85).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use landfall_types::{ByteSize, Durability, Offset};
use parking_lot::{Condvar, Mutex};

use crate::committer::at_capacity;
use crate::error::PublishError;
use crate::partition::Partition;

const TICK: Duration = Duration::from_secs(1);
/// Ticks between looks at retention where nothing was appended: age alone can make it due.
const QUIET_TICKS: u64 = 5;

/// Free space below which publishes are refused (C10).
#[derive(Debug)]
pub(crate) struct DiskReserve {
    pub(crate) dir: PathBuf,
    pub(crate) bytes: ByteSize,
    pub(crate) vfs: Arc<dyn landfall_log::Vfs>,
}

#[derive(Debug)]
pub(crate) struct Housekeeping {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    inside: Mutex<Inside>,
    called: Condvar,
    reserve: Option<DiskReserve>,
    /// Free space was below the reserve at the last look.
    is_short: AtomicBool,
}

#[derive(Debug, Default)]
struct Inside {
    /// Partitions that the thread has not taken over yet.
    added: Vec<Weak<Partition>>,
    is_called: bool,
    is_closed: bool,
}

impl Housekeeping {
    pub(crate) fn new(reserve: Option<DiskReserve>) -> Housekeeping {
        let shared = Arc::new(Shared { reserve, ..Shared::default() });
        Housekeeping { shared, thread: Mutex::default() }
    }

    /// Looks after this partition from now on. The disk reserve holds from its first publish on: it is looked at here,
    /// before anybody has the partition, and not at the next tick.
    pub(crate) fn add(&self, partition: &Arc<Partition>) {
        if let Some(reserve) = &self.shared.reserve {
            check_reserve(reserve, std::slice::from_ref(partition), &self.shared.is_short);
        }
        self.shared.inside.lock().added.push(Arc::downgrade(partition));
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            match std::thread::Builder::new().name("housekeeping".into()).spawn(move || run(&shared)) {
                Ok(started) => *thread = Some(started),
                Err(error) => {
                    tracing::error!(cause = %error, "no housekeeping thread: space is prepared in turns, retention stands still")
                }
            }
        }
        drop(thread);
        self.call();
    }

    /// Some partition's space is due. Never blocks.
    pub(crate) fn call(&self) {
        let mut inside = self.shared.inside.lock();
        if !inside.is_called {
            inside.is_called = true;
            self.shared.called.notify_one();
        }
    }

    /// Ends the thread; waits for it until then.
    pub(crate) fn close(&self, by: Instant) {
        self.shared.inside.lock().is_closed = true;
        self.shared.called.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            while !thread.is_finished() && Instant::now() < by {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            if thread.is_finished() {
                let _ = thread.join();
            } else {
                tracing::error!("the housekeeping thread hangs in the device; it is left behind");
            }
        }
    }
}

/// What the thread remembers of a partition between ticks.
#[derive(Debug)]
struct Seen {
    partition: Weak<Partition>,
    tail: Offset,
    /// The tail at the last mark.
    marked: Offset,
    /// Set while preparing fails, so that it is logged once.
    is_failing: bool,
}

fn run(shared: &Shared) {
    let mut seen: Vec<Seen> = Vec::new();
    let mut next_tick = Instant::now() + TICK;
    let mut ticks = 0u64;
    loop {
        {
            let mut inside = shared.inside.lock();
            while !inside.is_called && !inside.is_closed {
                if shared.called.wait_until(&mut inside, next_tick).timed_out() {
                    break;
                }
            }
            if inside.is_closed {
                return;
            }
            inside.is_called = false;
            seen.retain(|known| known.partition.strong_count() > 0);
            for partition in inside.added.drain(..) {
                let Some(tail) = partition.upgrade().map(|partition| partition.tail.get()) else { continue };
                seen.push(Seen { partition, tail, marked: tail, is_failing: false });
            }
        }
        for known in &mut seen {
            if let Some(partition) = known.partition.upgrade() {
                prepare(&partition, &mut known.is_failing);
            }
        }
        if Instant::now() >= next_tick {
            next_tick = Instant::now() + TICK;
            ticks += 1;
            for known in &mut seen {
                if let Some(partition) = known.partition.upgrade() {
                    tick(&partition, known, ticks);
                }
            }
            if let Some(partition) = seen.iter().find_map(|known| known.partition.upgrade()) {
                metrics::gauge!("landfall_budget_bytes").set(partition.intake.process_used() as f64);
            }
            if let Some(reserve) = &shared.reserve {
                let partitions: Vec<_> = seen.iter().filter_map(|known| known.partition.upgrade()).collect();
                check_reserve(reserve, &partitions, &shared.is_short);
            }
        }
    }
}

fn prepare(partition: &Arc<Partition>, is_failing: &mut bool) {
    let Some(upkeep) = partition.upkeep() else { return };
    // Each run does one step, so that one partition's need does not keep the others waiting.
    if !upkeep.is_due() || !partition.threads.is_owner() {
        return;
    }
    match upkeep.run() {
        Ok(()) => {
            *is_failing = false;
            if upkeep.is_due() {
                partition.threads.housekeeping.call();
            }
        }
        Err(error) => {
            // Tried again at the next tick or call; committers extend inline meanwhile.
            if !*is_failing {
                tracing::warn!(channel = %partition.channel, partition = %partition.id, cause = %error, "space could not be prepared ahead");
            }
            *is_failing = true;
        }
    }
}

fn tick(partition: &Arc<Partition>, known: &mut Seen, ticks: u64) {
    let tail = partition.tail.get();
    let has_moved = tail != known.tail;
    known.tail = tail;
    let retention = &partition.options.retention;
    let is_limited = retention.max_age.is_some() || retention.max_bytes.is_some();
    let retain = has_moved || (is_limited && ticks.is_multiple_of(QUIET_TICKS));
    let sync = partition.class() == Durability::Written && has_moved;
    let mark = !has_moved && tail != known.marked;
    if mark {
        known.marked = tail;
    }
    if retain || sync || mark {
        let committer = partition.intake.errand(|errands| {
            errands.retain |= retain;
            errands.sync |= sync;
            errands.mark |= mark;
        });
        if let Some(committer) = committer {
            partition.threads.commit.submit(committer);
        }
    }
}

/// Closes the gates of these partitions while free space is below the reserve, and opens them again. Their health
/// follows from the gate (C98).
fn check_reserve(reserve: &DiskReserve, partitions: &[Arc<Partition>], was_short: &AtomicBool) {
    let free = match reserve.vfs.free_bytes(&reserve.dir) {
        Ok(free) => free,
        Err(error) => {
            tracing::warn!(path = %reserve.dir.display(), cause = %error, "free space could not be read");
            return;
        }
    };
    let is_short = free < reserve.bytes.0;
    let was_short = was_short.swap(is_short, Ordering::AcqRel);
    if is_short && !was_short {
        tracing::error!(path = %reserve.dir.display(), free, reserve = %reserve.bytes, code = "LF-CH0023", "the disk reserve is met: publishes are refused until space is free again");
    }
    if was_short && !is_short {
        tracing::info!(path = %reserve.dir.display(), free, reserve = %reserve.bytes, "the disk reserve is back: publishes are taken");
    }
    for partition in partitions {
        if partition.class() == Durability::Memory {
            continue;
        }
        if is_short {
            let reason =
                format!("disk_reserve: {free} bytes are free, {} must stay free; free disk space", reserve.bytes);
            partition.intake.close_if_open_with(at_capacity(&partition.channel, reason));
        } else {
            // Whatever the last look said: a partition that was being opened then may have missed its end.
            let is_own = |error: &PublishError| matches!(error, PublishError::AtCapacity { reason, .. } if reason.starts_with("disk_reserve"));
            partition.intake.reopen_gate(is_own);
        }
    }
}
