//! A channel as a source (C69): the engine's watermark is the only word on where reading starts.
//!
//! `Source::commit` raises the floor of consumer `pipeline:<id>`, after the watermark is durable, for retention and
//! `top`. No lease, no acks. No call blocks but those that the contract lets.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use landfall_engine::OnTrimmed;
use landfall_engine::contract::{
    LaneId, LaneWaker, PipelineId, PlanError, Source, SourceCx, SourceError, SourceEvent, SourcePlan, SourceProfile,
};
use landfall_types::{Coded, Durability, Epoch, Offset, PartitionId, Place, Timestamp};
use parking_lot::{Condvar, Mutex};

use super::epochs::{self, Epochs, Known};
use super::lane::ChannelLane;
use crate::channel::Channel;
use crate::error::ch;
use crate::partition::Partition;
use crate::subscription::Start;

/// A channel as a source.
#[derive(Debug)]
pub struct ChannelSource {
    channel: Channel,
    start: Start,
    consumer: String,
    feed: Arc<Feed>,
    /// As read at open and as written since.
    known: Known,
}

/// What the source, its lanes and its commits share.
#[derive(Debug, Default)]
pub(super) struct Feed {
    events: Mutex<Events>,
    /// Told when a commit has ended.
    committed: Condvar,
    pub(super) epochs: Epochs,
    is_stopped: AtomicBool,
    pub(super) on_trimmed: OnTrimmed,
}

#[derive(Debug, Default)]
struct Events {
    queue: VecDeque<SourceEvent>,
    waker: Option<LaneWaker>,
    /// Commits under way.
    commits: usize,
}

impl Feed {
    /// Tells the controller. Bounded by what the source has partitions, gaps and commits for: a commit follows only the
    /// end of the one before, and a gap moves the cursor.
    pub(super) fn tell(&self, event: SourceEvent) {
        let waker = {
            let mut events = self.events.lock();
            events.queue.push_back(event);
            events.waker.clone()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }
}

impl ChannelSource {
    /// A source that reads from `start` where nothing is known, and stands in the channel as consumer
    /// `pipeline:<consumer>`.
    pub fn new(channel: Channel, start: Start, consumer: PipelineId) -> Self {
        let consumer = format!("pipeline:{consumer}");
        ChannelSource { channel, start, consumer, feed: Arc::default(), known: Known::new() }
    }

    fn partition(&self, partition: PartitionId) -> Result<&Arc<Partition>, SourceError> {
        self.channel.partition(partition).ok_or_else(|| SourceError::Fatal {
            code: ch(6),
            text: format!("channel {} has no partition {partition}", self.channel.name()),
        })
    }

    fn start_by_time(&self, partition: &Arc<Partition>, at: Timestamp) -> Result<Offset, SourceError> {
        const PATIENCE: Duration = Duration::from_secs(10);
        let later = |text: String| SourceError::Later { code: ch(59), text };
        let (answer, answered) = mpsc::channel();
        let own = Arc::clone(partition);
        partition.threads.read.spawn(move || {
            let tail = own.tail.get();
            let found = own.reader().map(|reader| reader.at_time(at, landfall_log::VisibleTail(tail)));
            // Nobody waits any more where this fails.
            let _ = answer.send(found);
        });
        match answered.recv_timeout(PATIENCE) {
            Ok(Some(Ok(offset))) => Ok(offset),
            Ok(Some(Err(error))) => Err(later(format!("looking up a start by time: {error}"))),
            Ok(None) => Err(later(format!("partition {} is not open", partition.id))),
            Err(_) => Err(later(format!("looking up a start by time took over {PATIENCE:?}"))),
        }
    }
}

impl Source for ChannelSource {
    type Lane = ChannelLane;

    fn profile(&self) -> SourceProfile {
        SourceProfile { kind: "channel", identity: format!("channel:{}", self.channel.id()), bounded: false }
    }

    fn plan(&self) -> Result<SourcePlan, PlanError> {
        if self.channel.durability() == Durability::Memory {
            let text = format!(
                "channel {} is of class memory, which has no durable positions: no pipeline can read from it; choose fsync or written",
                self.channel.name()
            );
            return Err(PlanError::new(ch(3), text));
        }
        let partitions: Vec<PartitionId> = self.channel.positions().into_keys().collect();
        let notes = vec![format!(
            "reads channel {} ({} partition(s), class {})",
            self.channel.name(),
            partitions.len(),
            self.channel.durability()
        )];
        Ok(SourcePlan { partitions, notes, ..SourcePlan::default() })
    }

    fn open(&mut self, cx: SourceCx) -> Result<(), SourceError> {
        if let Some(record) = &cx.record {
            self.known = epochs::decode(record).ok_or_else(|| SourceError::Fatal {
                code: ch(58),
                text: format!(
                    "the stored record of channel {} cannot be read: written by a newer version, or damaged",
                    self.channel.name()
                ),
            })?;
        }
        self.feed = Arc::new(Feed { on_trimmed: cx.on_trimmed, ..Feed::default() });
        let assigned = SourceEvent::Assigned(self.channel.positions().into_keys().collect());
        {
            let mut events = self.feed.events.lock();
            events.waker = Some(cx.waker);
        }
        self.feed.tell(assigned);
        Ok(())
    }

    fn poll_event(&mut self) -> Result<Option<SourceEvent>, SourceError> {
        Ok(self.feed.events.lock().queue.pop_front())
    }

    fn start_of(&mut self, partition: PartitionId) -> Result<Place, SourceError> {
        let partition = self.partition(partition)?;
        let (log_start, tail) = (partition.log_start(), partition.tail.get());
        let offset = match self.start {
            Start::Earliest => log_start,
            Start::Latest => tail,
            Start::Offset(offset) if offset > tail => {
                let text = format!("start offset {offset} is past the tail {tail} of partition {}", partition.id);
                return Err(SourceError::Fatal { code: ch(3), text });
            }
            Start::Offset(offset) => offset.max(log_start),
            Start::Time(at) => self.start_by_time(partition, at)?,
        };
        Ok(Place::of(offset))
    }

    fn open_lane(&mut self, id: LaneId, at: &[(PartitionId, Place, Epoch)]) -> Result<ChannelLane, SourceError> {
        let mut parts = Vec::with_capacity(at.len());
        for (number, place, _) in at {
            let partition = Arc::clone(self.partition(*number)?);
            let (cursor, tail) = (place.offset(), partition.tail.get());
            if cursor > tail {
                // F-L14: both numbers, never a silent wait.
                let text = format!(
                    "channel {}, partition {number}: the pipeline's position {cursor} is past the tail {tail}; see `landfall positions`",
                    self.channel.name()
                );
                let number = if self.channel.durability() == Durability::Written { 52 } else { 75 };
                return Err(SourceError::Fatal { code: ch(number), text });
            }
            let expects = self.known.get(number).filter(|(known, _)| *known == cursor).map(|(_, epoch)| *epoch);
            self.feed.epochs.restart(*number);
            parts.push((partition, cursor, expects));
        }
        Ok(ChannelLane::new(id, parts, Arc::clone(&self.feed)))
    }

    fn record(&mut self, below: &[(PartitionId, Place)]) -> Option<Bytes> {
        let mut is_news = false;
        for (partition, place) in below {
            let offset = place.offset();
            let epoch = self.feed.epochs.before(*partition, offset);
            match (epoch, self.known.get(partition)) {
                (Some(epoch), known) if known != Some(&(offset, epoch)) => {
                    self.known.insert(*partition, (offset, epoch));
                    is_news = true;
                }
                _ => {}
            }
        }
        is_news.then(|| epochs::encode(&self.known))
    }

    fn commit(&mut self, below: &[(PartitionId, Place)]) {
        let places: Vec<(PartitionId, Place)> = below.to_vec();
        let floors: Vec<(PartitionId, Offset)> =
            below.iter().map(|(partition, place)| (*partition, place.offset())).collect();
        self.feed.events.lock().commits += 1;
        let feed = Arc::clone(&self.feed);
        self.channel.shared.floors.raise(&self.consumer, floors, move |result| {
            let event = match result {
                Ok(()) => SourceEvent::Committed(places),
                Err(error) => {
                    SourceEvent::CommitFailed(SourceError::Later { code: error.code(), text: error.to_string() })
                }
            };
            feed.tell(event);
            feed.events.lock().commits -= 1;
            feed.committed.notify_all();
        });
    }

    fn flush_commits(&mut self, deadline: Instant) -> Result<(), SourceError> {
        let mut events = self.feed.events.lock();
        while events.commits > 0 {
            if self.feed.committed.wait_until(&mut events, deadline).timed_out() {
                let text = format!("{} commit(s) of {} are not answered", events.commits, self.consumer);
                return Err(SourceError::Later { code: ch(58), text });
            }
        }
        Ok(())
    }

    fn stop_reading(&mut self) {
        self.feed.is_stopped.store(true, Ordering::Release);
    }

    fn tails(&self) -> Vec<(PartitionId, Place)> {
        self.channel.positions().into_iter().map(|(partition, tail)| (partition, Place::of(tail))).collect()
    }

    fn report(&self) -> serde_json::Value {
        let floors: BTreeMap<String, u64> = self
            .channel
            .shared
            .floors
            .all()
            .into_iter()
            .filter(|(name, _)| *name == self.consumer)
            .flat_map(|(_, floors)| floors)
            .map(|(partition, floor)| (partition.to_string(), floor.0))
            .collect();
        serde_json::json!({ "channel": self.channel.name(), "consumer": self.consumer, "floors": floors })
    }
}
