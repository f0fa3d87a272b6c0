//! A record source in memory that is appended to while it is read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::builder::{BinaryBuilder, ListBuilder, StringBuilder, StructBuilder};
use arrow_array::{
    ArrayRef, BinaryViewArray, RecordBatch, TimestampMicrosecondArray, UInt32Array, UInt64Array, new_null_array,
};
use arrow_schema::{DataType, Fields};
use bytes::Bytes;
use landfall_types::{Code, Epoch, Offset, PartitionId, Place};
use parking_lot::Mutex;

use crate::PollCx;
use crate::contract::{
    LaneId, LaneWaker, PlanError, PollLimit, Polled, Source, SourceCx, SourceError, SourceEvent, SourceLane,
    SourcePlan, SourceProfile, payload_schema,
};

#[derive(Default)]
struct Inside {
    records: BTreeMap<PartitionId, Vec<String>>,
    wakers: Vec<LaneWaker>,
    committed: BTreeMap<PartitionId, Place>,
    opened_at: Vec<(PartitionId, Place)>,
    events: Vec<SourceEvent>,
    lane_errors: u32,
    record: Option<Bytes>,
}

/// See the module. Clones share the records.
#[derive(Clone)]
pub struct MemorySource {
    inside: Arc<Mutex<Inside>>,
    identity: String,
    is_bounded: bool,
    is_open: bool,
    has_drained: bool,
    assigned: bool,
}

impl MemorySource {
    /// A source of so many partitions without records.
    pub fn new(identity: &str, partitions: u32) -> Self {
        let records = (0..partitions).map(|partition| (PartitionId(partition), Vec::new())).collect();
        MemorySource {
            inside: Arc::new(Mutex::new(Inside { records, ..Inside::default() })),
            identity: identity.to_owned(),
            is_bounded: false,
            is_open: false,
            has_drained: false,
            assigned: false,
        }
    }

    /// The same, ending with what it holds when everything is read.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.is_bounded = true;
        self
    }

    /// The same records under another identity, as after a channel was made anew.
    #[must_use]
    pub fn recreated(&self, identity: &str) -> Self {
        MemorySource { identity: identity.to_owned(), is_open: false, assigned: false, ..self.clone() }
    }

    /// Adds records and wakes the lanes.
    pub fn append<T: ToString>(&self, partition: u32, payloads: impl IntoIterator<Item = T>) {
        let wakers = {
            let mut inside = self.inside.lock();
            let records = inside.records.entry(PartitionId(partition)).or_default();
            records.extend(payloads.into_iter().map(|payload| payload.to_string()));
            inside.wakers.clone()
        };
        wakers.iter().for_each(LaneWaker::wake);
    }

    /// The next polls fail in a passing way.
    pub fn fail_polls(&self, times: u32) {
        self.inside.lock().lane_errors = times;
    }

    /// What the source was told to commit.
    pub fn committed(&self, partition: u32) -> Option<Place> {
        self.inside.lock().committed.get(&PartitionId(partition)).copied()
    }

    /// Where lanes were opened, in order.
    pub fn opened_at(&self) -> Vec<(PartitionId, Place)> {
        self.inside.lock().opened_at.clone()
    }

    /// An event for the controller.
    pub fn send(&self, event: SourceEvent) {
        let wakers = {
            let mut inside = self.inside.lock();
            inside.events.push(event);
            inside.wakers.clone()
        };
        wakers.iter().for_each(LaneWaker::wake);
    }

    /// The ends of all partitions.
    pub fn ends(&self) -> BTreeMap<PartitionId, Place> {
        let inside = self.inside.lock();
        inside
            .records
            .iter()
            .map(|(partition, records)| (*partition, Place::of(Offset(records.len() as u64))))
            .collect()
    }
}

impl Source for MemorySource {
    type Lane = MemoryLane;

    fn profile(&self) -> SourceProfile {
        SourceProfile { kind: "memory", identity: self.identity.clone(), bounded: self.is_bounded }
    }

    fn plan(&self) -> Result<SourcePlan, PlanError> {
        let partitions = self.inside.lock().records.keys().copied().collect();
        Ok(SourcePlan { partitions, ..SourcePlan::default() })
    }

    fn open(&mut self, cx: SourceCx) -> Result<(), SourceError> {
        self.is_open = true;
        self.assigned = false;
        self.has_drained = false;
        let mut inside = self.inside.lock();
        inside.record = cx.record;
        inside.wakers = vec![cx.waker];
        Ok(())
    }

    fn poll_event(&mut self) -> Result<Option<SourceEvent>, SourceError> {
        let mut inside = self.inside.lock();
        if !std::mem::replace(&mut self.assigned, true) {
            return Ok(Some(SourceEvent::Assigned(inside.records.keys().copied().collect())));
        }
        if !inside.events.is_empty() {
            return Ok(Some(inside.events.remove(0)));
        }
        if self.is_bounded && !self.has_drained {
            let is_over = inside.records.iter().all(|(partition, records)| {
                records.is_empty()
                    || inside.committed.get(partition).is_some_and(|place| place.at >= records.len() as u64)
            });
            if is_over {
                self.has_drained = true;
                return Ok(Some(SourceEvent::Drained));
            }
        }
        Ok(None)
    }

    fn start_of(&mut self, _partition: PartitionId) -> Result<Place, SourceError> {
        Ok(Place::START)
    }

    fn open_lane(&mut self, id: LaneId, at: &[(PartitionId, Place, Epoch)]) -> Result<MemoryLane, SourceError> {
        let mut inside = self.inside.lock();
        inside.opened_at.extend(at.iter().map(|(partition, place, _)| (*partition, *place)));
        Ok(MemoryLane {
            id,
            inside: self.inside.clone(),
            partitions: at.iter().map(|(partition, ..)| *partition).collect(),
            next: at.iter().map(|(_, place, _)| *place).collect(),
            has_waker: false,
        })
    }

    fn record(&mut self, _below: &[(PartitionId, Place)]) -> Option<Bytes> {
        None
    }

    fn commit(&mut self, below: &[(PartitionId, Place)]) {
        let wakers = {
            let mut inside = self.inside.lock();
            inside.committed.extend(below.iter().copied());
            inside.wakers.clone()
        };
        wakers.iter().for_each(LaneWaker::wake);
    }

    fn flush_commits(&mut self, _deadline: Instant) -> Result<(), SourceError> {
        Ok(())
    }

    fn stop_reading(&mut self) {
        self.is_open = false;
    }

    fn tails(&self) -> Vec<(PartitionId, Place)> {
        self.ends().into_iter().collect()
    }
}

/// A lane of [`MemorySource`].
pub struct MemoryLane {
    id: LaneId,
    inside: Arc<Mutex<Inside>>,
    partitions: Vec<PartitionId>,
    next: Vec<Place>,
    has_waker: bool,
}

impl std::fmt::Debug for MemoryLane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryLane").field("id", &self.id).field("next", &self.next).finish_non_exhaustive()
    }
}

impl SourceLane for MemoryLane {
    fn id(&self) -> LaneId {
        self.id
    }

    fn partitions(&self) -> &[PartitionId] {
        &self.partitions
    }

    fn poll(&mut self, cx: &mut PollCx<'_>, limit: PollLimit) -> Result<Polled, SourceError> {
        let mut inside = self.inside.lock();
        if !std::mem::replace(&mut self.has_waker, true) {
            inside.wakers.push(cx.waker());
        }
        if inside.lane_errors > 0 {
            inside.lane_errors -= 1;
            return Err(SourceError::Later { code: Code::new("CH", 9), text: "a scripted failure".to_owned() });
        }
        for (at, partition) in self.partitions.iter().enumerate() {
            if !cx.takes(*partition) {
                continue;
            }
            let records = &inside.records[partition];
            let start = usize::try_from(self.next[at].at).unwrap_or(usize::MAX);
            let end = records.len().min(start.saturating_add(limit.rows));
            if start < end {
                let range = start as u64..end as u64;
                let rows = self::payloads(*partition, range.clone(), &records[start..end]);
                let bytes = rows.get_array_memory_size();
                self.next[at] = Place::of(Offset(range.end));
                let places = Place::of(Offset(range.start))..Place::of(Offset(range.end));
                return Ok(Polled::Batch(cx.batch(*partition, rows, places, bytes)));
            }
        }
        Ok(Polled::Empty)
    }
}

/// Records in the payload schema, without keys and headers.
pub fn payloads(partition: PartitionId, offsets: Range<u64>, texts: &[String]) -> RecordBatch {
    let rows = texts.len();
    let schema = payload_schema();
    let DataType::List(item) = schema.field(3).data_type() else { unreachable!("headers are a list") };
    let DataType::Struct(fields) = item.data_type() else { unreachable!("of structs") };
    let mut headers = ListBuilder::new(struct_builder(fields)).with_field(item.clone());
    (0..rows).for_each(|_| headers.append(true));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(BinaryViewArray::from_iter_values(texts.iter().map(String::as_bytes))),
        new_null_array(schema.field(1).data_type(), rows),
        Arc::new(TimestampMicrosecondArray::from(vec![0; rows]).with_timezone("UTC")),
        Arc::new(headers.finish()),
        Arc::new(UInt32Array::from(vec![partition.0; rows])),
        Arc::new(UInt64Array::from_iter_values(offsets)),
        new_null_array(schema.field(6).data_type(), rows),
    ];
    RecordBatch::try_new(schema, columns).expect("columns have the payload schema's types")
}

fn struct_builder(fields: &Fields) -> StructBuilder {
    StructBuilder::new(fields.clone(), vec![Box::new(StringBuilder::new()), Box::new(BinaryBuilder::new())])
}
