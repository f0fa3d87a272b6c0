//! Stored positions: per pipeline, source identity, partition and sink the watermark, with what the destination held
//! then (E65, E66, E86); and the source's own record. One durable transaction per commit (I7).
//!
//! Keys never mix identities: a channel made anew under an old name has another identity and inherits nothing. The
//! form on disk is described in `docs/formats/watermarks.md`.

#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use landfall_state::{Change, StateError, StateHandle};
use landfall_types::{PartitionId, Place, Timestamp};
use serde::{Deserialize, Serialize};

use crate::codes;
use crate::contract::{PipelineId, Positions, SinkIdentity};
use crate::core::FailCause;

const WATERMARKS: &str = "watermarks";
const SOURCES: &str = "sources";

/// One sink's position in one partition, as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// The version of this form.
    v: u8,
    /// The end of the contiguous settled prefix.
    pub(crate) end: Place,
    /// What the destination held then, where it holds positions.
    pub(crate) held: Option<Place>,
    /// Which destination it was.
    pub(crate) destination: Option<String>,
    /// When it was written.
    at: Timestamp,
}

impl Mark {
    pub(crate) fn new(end: Place, held: Option<Place>, destination: Option<String>, at: Timestamp) -> Self {
        Mark { v: 1, end, held, destination, at }
    }
}

/// Everything that is stored of a pipeline. The chain's own marks have the name "".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) marks: BTreeMap<PartitionId, BTreeMap<String, Mark>>,
    pub(crate) record: Option<Bytes>,
}

impl Stored {
    /// Which destination a sink was when its positions were stored.
    pub(crate) fn destination(&self, sink: &str) -> Option<SinkIdentity> {
        let mut marks = self.marks.values().filter_map(|marks| marks.get(sink));
        marks.find_map(|mark| mark.destination.clone()).map(SinkIdentity)
    }
}

fn key(pipeline: &PipelineId, identity: &str, partition: PartitionId, sink: &str) -> Vec<u8> {
    let mut key = prefix(pipeline);
    key.extend_from_slice(identity.as_bytes());
    key.push(0);
    key.extend_from_slice(&partition.0.to_be_bytes());
    key.extend_from_slice(sink.as_bytes());
    key
}

fn prefix(pipeline: &PipelineId) -> Vec<u8> {
    let mut key = pipeline.0.as_bytes().to_vec();
    key.push(0);
    key
}

fn source_key(pipeline: &PipelineId, identity: &str) -> Vec<u8> {
    let mut key = prefix(pipeline);
    key.extend_from_slice(identity.as_bytes());
    key
}

/// Sets a mark.
pub(crate) fn put(
    pipeline: &PipelineId,
    identity: &str,
    partition: PartitionId,
    sink: &str,
    mark: &Mark,
) -> Result<Change, FailCause> {
    let value = serde_json::to_vec(mark)
        .map_err(|error| FailCause::new(codes::STATE_UNREADABLE, format!("a watermark cannot be written: {error}")))?;
    Ok(Change::put(WATERMARKS, key(pipeline, identity, partition, sink), value))
}

/// Where a source's own record lies in the state, for tools that work on the data directory while nothing runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRecordPlace {
    /// The table.
    pub table: &'static str,
    /// The key.
    pub key: Vec<u8>,
}

impl SourceRecordPlace {
    /// Of a pipeline and the identity of its source ([`crate::contract::SourceProfile`]).
    pub fn of(pipeline: &PipelineId, identity: &str) -> Self {
        SourceRecordPlace { table: SOURCES, key: source_key(pipeline, identity) }
    }

    /// Replaces the record.
    pub fn put(&self, record: Bytes) -> Change {
        Change::put(self.table, self.key.clone(), record)
    }
}

/// Sets the source's own record.
pub(crate) fn put_record(pipeline: &PipelineId, identity: &str, record: Bytes) -> Change {
    Change::put(SOURCES, source_key(pipeline, identity), record)
}

fn unreadable(error: &StateError) -> FailCause {
    FailCause::new(codes::STATE_UNREADABLE, format!("stored positions cannot be read: {error}"))
}

/// Reads what is stored. Positions of another source under this pipeline's id are an error that names both: they are
/// never merged and never silently left behind.
pub(crate) fn read(state: &StateHandle, pipeline: &PipelineId, identity: &str) -> Result<Stored, FailCause> {
    let mut stored = Stored::default();
    for (key, value) in state.scan(WATERMARKS, &prefix(pipeline)).map_err(|error| unreadable(&error))? {
        let damaged = |what: &str| {
            FailCause::new(codes::STATE_UNREADABLE, format!("a stored position of pipeline `{pipeline}` {what}"))
        };
        let rest = key.get(pipeline.0.len() + 1..).unwrap_or_default();
        let end = rest.iter().position(|byte| *byte == 0).ok_or_else(|| damaged("has a key of another form"))?;
        let (found, rest) = rest.split_at(end);
        if found != identity.as_bytes() {
            let found = String::from_utf8_lossy(found);
            return Err(FailCause::new(
                codes::SOURCE_CHANGED,
                format!(
                    "pipeline `{pipeline}` has positions of source `{found}`, but its source is `{identity}` now: give \
                     the pipeline a new `id` to read it from its start"
                ),
            ));
        }
        let rest = rest.get(1..).unwrap_or_default();
        let partition = rest
            .first_chunk::<4>()
            .map(|bytes| PartitionId(u32::from_be_bytes(*bytes)))
            .ok_or_else(|| damaged("has a key of another form"))?;
        let sink = String::from_utf8_lossy(rest.get(4..).unwrap_or_default()).into_owned();
        let mark: Mark =
            serde_json::from_slice(&value).map_err(|error| damaged(&format!("cannot be read: {error}")))?;
        if mark.v != 1 {
            return Err(damaged(&format!("has version {}, which this version does not know", mark.v)));
        }
        stored.marks.entry(partition).or_default().insert(sink, mark);
    }
    let record = state.read(SOURCES, &source_key(pipeline, identity)).map_err(|error| unreadable(&error))?;
    stored.record = record;
    Ok(stored)
}

/// A sink, as far as positions go.
#[derive(Clone, Debug)]
pub(crate) struct SinkMark<'a> {
    pub(crate) name: &'a str,
    pub(crate) destination: &'a str,
    /// What it says it holds; None for sinks that hold no positions.
    pub(crate) committed: Option<&'a Positions>,
}

/// Where a partition starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartAt {
    /// Where reading starts: the least of `skip`.
    pub(crate) resume: Place,
    /// Per sink (0: the chain) the place below which it has everything.
    pub(crate) skip: Vec<Place>,
}

/// Where a partition starts (E65), or why that cannot be said (E66). `None`: nothing is known of it.
pub(crate) fn start_at(
    stored: &Stored,
    partition: PartitionId,
    sinks: &[SinkMark<'_>],
) -> Result<Option<StartAt>, FailCause> {
    let none = BTreeMap::new();
    let marks = stored.marks.get(&partition).unwrap_or(&none);
    let mut skip = Vec::with_capacity(sinks.len() + 1);
    // A sink that was added later starts where the pipeline is (E138).
    let pipeline = marks.values().map(|mark| mark.end).min();
    skip.push(marks.get("").map(|mark| mark.end).or(pipeline));
    for sink in sinks {
        let mark = marks.get(sink.name);
        let committed = sink.committed.and_then(|positions| positions.get(&partition)).copied();
        if let Some(mark) = mark {
            if let Some(before) = mark.destination.as_deref().filter(|before| *before != sink.destination) {
                return Err(FailCause::new(
                    codes::SINK_CHANGED,
                    format!(
                        "sink `{}` was `{before}` when the positions were stored and is `{}` now: give the pipeline a \
                         new `id` to fill it from the start",
                        sink.name, sink.destination
                    ),
                ));
            }
            if sink.committed.is_some()
                && let Some(held) = mark.held
                && committed.is_none_or(|committed| committed < held)
            {
                let now = committed.map_or("nothing".to_owned(), |place| format!("up to {place}"));
                return Err(FailCause::new(
                    codes::POSITION_WENT_BACK,
                    format!(
                        "sink `{}` held partition {partition} up to {held} and holds {now} now: it was restored or \
                         replaced; restore it, or start the pipeline under a new `id`",
                        sink.name
                    ),
                ));
            }
        }
        let own = mark.map(|mark| mark.end).or(pipeline);
        skip.push(own.max(committed));
    }
    let Some(known) = skip.iter().flatten().copied().min() else { return Ok(None) };
    // A sink of which nothing is known beside others that are: it gets what is read from there on.
    let is_unknown = skip.iter().any(Option::is_none);
    if is_unknown && pipeline.is_none() {
        // Only a destination remembers; the chain has nothing stored, so reading starts where the source does.
        return Ok(None);
    }
    let skip: Vec<Place> = skip.into_iter().map(|place| place.unwrap_or(known)).collect();
    Ok(Some(StartAt { resume: skip.iter().copied().min().unwrap_or(known), skip }))
}

/// Per sink the place below which it has everything, where nothing is stored: what the destinations say.
pub(crate) fn skip_unknown(partition: PartitionId, sinks: &[SinkMark<'_>]) -> Vec<Place> {
    let committed = |sink: &SinkMark<'_>| {
        sink.committed.and_then(|positions| positions.get(&partition)).copied().unwrap_or(Place::START)
    };
    std::iter::once(Place::START).chain(sinks.iter().map(committed)).collect()
}
