//! A channel as a sink (E124): one record per row, in source order, under sequence keys (C53).
//!
//! Each source partition is a producer; a row's number is (offset, unnest index). The committer passes over what is in the
//! log already, so the same batch may come again, cut as it may be, and each row is there once while its producer is
//! inside the key window. An unresolved outcome is awaited by sending the same rows again, never guessed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::json::writer::{LineDelimited, WriterBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, FieldRef, Schema, SchemaRef};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use landfall_engine::contract::{
    BarrierError, CommitId, Guarantee, PlanCx, PlanError, Positions, SealedBatch, Settled, ShardId, ShardWriter, Sink,
    SinkError, SinkIdentity, SinkPlan, TokenScope, Written, columns, is_hidden,
};
use landfall_types::{Coded, Durability, Kind, Offset, PartitionId};
use parking_lot::Mutex;

use crate::channel::{Channel, PublishOptions};
use crate::error::{PublishError, ch};
use crate::keys::{KeySeed, Sequences};
use crate::outcome::PublishOutcome;
use crate::record::Record;

/// How rows become records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelSinkOptions {
    /// The column that is the payload, text or binary; `None`: each row as one JSON object.
    pub payload_column: Option<String>,
    /// The column that is the record key, and routes; text or binary. `None`, or where it is NULL: the source partition
    /// routes.
    pub key_column: Option<String>,
}

/// A channel as a sink.
#[derive(Debug)]
pub struct ChannelSink {
    channel: Channel,
    options: ChannelSinkOptions,
    /// (pipeline, source), known once it is opened.
    origin: Mutex<Option<(String, String)>>,
}

/// How long one publish of a write may wait for room and answer.
const DEADLINE: Duration = Duration::from_secs(60);
/// Producer names must be the same in every process, so their hash has a fixed seed.
const PRODUCER_SEED: KeySeed = KeySeed(*b"landfall-channel");

impl ChannelSink {
    /// A sink that publishes one record per row.
    pub fn new(channel: Channel, options: ChannelSinkOptions) -> Self {
        ChannelSink { channel, options, origin: Mutex::new(None) }
    }

    fn named<'a>(&self, rows: &'a Schema, option: &str, name: &str) -> Result<&'a FieldRef, PlanError> {
        let text = || {
            let known: Vec<&str> =
                rows.fields().iter().map(|field| field.name().as_str()).filter(|own| !is_hidden(own)).collect();
            format!("`{option}: {name}` names no column of the query; it has {}", known.join(", "))
        };
        let (_, field) = rows.fields().find(name).ok_or_else(|| PlanError::new(ch(3), text()))?;
        match field.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Ok(field),
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Ok(field),
            other => Err(PlanError::new(
                ch(3),
                format!("`{option}: {name}` is {other}, expected text or binary: cast it in the query"),
            )),
        }
    }

    fn schema_for(&self, rows: &SchemaRef) -> Result<SchemaRef, PlanError> {
        let options = &self.options;
        for (option, name) in [("payload", &options.payload_column), ("key", &options.key_column)] {
            if let Some(name) = name {
                self.named(rows, option, name)?;
            }
        }
        let is_wanted = |field: &&FieldRef| {
            let name = field.name().as_str();
            let is_position = [columns::PARTITION, columns::OFFSET, columns::UNNEST].contains(&name);
            let is_own = match &options.payload_column {
                None => !is_hidden(name),
                Some(payload) => name == payload || options.key_column.as_deref() == Some(name),
            };
            is_position || is_own
        };
        let fields: Vec<FieldRef> = rows.fields().iter().filter(is_wanted).cloned().collect();
        for needed in [columns::PARTITION, columns::OFFSET] {
            if !fields.iter().any(|field| field.name() == needed) {
                return Err(PlanError::new(ch(3), format!("the rows carry no {needed}, so they cannot be numbered")));
            }
        }
        let schema = Arc::new(Schema::new(fields));
        // The encoder looks at types no earlier than at rows, so it is shown one row here.
        if options.payload_column.is_none() {
            let nulls: Vec<_> =
                schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
            let nulls = Arc::new(Schema::new(nulls));
            let row = nulls.fields().iter().map(|field| arrow_array::new_null_array(field.data_type(), 1)).collect();
            let encoded =
                RecordBatch::try_new(nulls, row).map_err(|error| error.to_string()).and_then(|row| json(&row));
            encoded.map_err(|error| {
                PlanError::new(ch(3), format!("the query's columns cannot be JSON: {error}; cast the column to STRING"))
            })?;
        }
        Ok(schema)
    }
}

impl Sink for ChannelSink {
    fn plan<'a>(&'a self, rows: &'a SchemaRef, _cx: &'a PlanCx) -> BoxFuture<'a, Result<SinkPlan, PlanError>> {
        let plan = self.schema_for(rows).map(|schema| SinkPlan {
            schema,
            notes: vec![format!(
                "publishes one record per row into channel {} ({} partition(s))",
                self.channel.name(),
                self.channel.partitions()
            )],
            detail: Box::new(()),
        });
        async move { plan }.boxed()
    }

    fn guarantee(&self) -> Guarantee {
        match self.channel.durability() {
            Durability::Memory => Guarantee::AtLeastOnce {
                why: "the channel is of class memory, so what was published is gone after a restart".into(),
            },
            _ => Guarantee::Token { per: TokenScope::Row, window: Some(self.channel.options().keys.window) },
        }
    }

    fn open<'a>(&'a self, _plan: &'a SinkPlan, cx: &'a PlanCx) -> BoxFuture<'a, Result<SinkIdentity, SinkError>> {
        *self.origin.lock() = Some((cx.pipeline.0.clone(), cx.source.clone()));
        let identity = SinkIdentity(format!("channel:{}", self.channel.id()));
        async move { Ok(identity) }.boxed()
    }

    fn committed_positions<'a>(&'a self, _cx: &'a PlanCx) -> BoxFuture<'a, Result<Positions, SinkError>> {
        async { Ok(Positions::new()) }.boxed()
    }

    fn writer(&self, _shard: ShardId) -> Arc<dyn ShardWriter> {
        let (pipeline, source) = self.origin.lock().clone().unwrap_or_default();
        Arc::new(ChannelWriter { channel: self.channel.clone(), options: self.options.clone(), pipeline, source })
    }

    fn ordered(&self) -> bool {
        true
    }

    fn report(&self) -> serde_json::Value {
        serde_json::json!({ "channel": self.channel.name() })
    }
}

/// Writes one shard's batches into the channel.
#[derive(Debug)]
pub struct ChannelWriter {
    channel: Channel,
    options: ChannelSinkOptions,
    pipeline: String,
    source: String,
}

/// The rows of one source partition, in order.
#[derive(Default)]
struct Run {
    records: Vec<Record>,
    numbers: Vec<(u64, u64)>,
    /// Where they stand in the sealed batch.
    rows: Vec<u32>,
}

impl ChannelWriter {
    /// Who numbers: one producer per pipeline, source partition and destination.
    fn producer(&self, partition: PartitionId) -> [u8; 16] {
        let (pipeline, source, channel) = (&self.pipeline, &self.source, self.channel.id());
        PRODUCER_SEED.name(format!("{pipeline}\0{channel}\0{source}\0{partition}").as_bytes())
    }

    fn runs(&self, batch: &SealedBatch) -> Result<BTreeMap<PartitionId, Run>, String> {
        let mut runs: BTreeMap<PartitionId, Run> = BTreeMap::new();
        let mut row = 0u32;
        for part in &batch.parts {
            let column =
                |name: &str| part.column_by_name(name).ok_or_else(|| format!("the rows have no column {name}"));
            let partitions = column(columns::PARTITION)?;
            let partitions = partitions.as_primitive_opt::<UInt32Type>().ok_or("__partition is not UInt32")?;
            let offsets = column(columns::OFFSET)?;
            let offsets = offsets.as_primitive_opt::<UInt64Type>().ok_or("__offset is not UInt64")?;
            let unnest = part.column_by_name(columns::UNNEST);
            let unnest = unnest.and_then(|column| column.as_primitive_opt::<UInt32Type>());
            let payloads = match &self.options.payload_column {
                Some(name) => cells(column(name)?)?,
                None => json(part)?.into_iter().map(Some).collect(),
            };
            let keys = self.options.key_column.as_ref().map(|name| column(name).and_then(cells)).transpose()?;
            if payloads.len() != part.num_rows() {
                return Err(format!("{} rows made {} JSON objects", part.num_rows(), payloads.len()));
            }
            for (at, payload) in payloads.into_iter().enumerate() {
                let index = unnest.filter(|unnest| !unnest.is_null(at)).map_or(0, |unnest| u64::from(unnest.value(at)));
                let key = keys.as_ref().and_then(|keys| keys.get(at).cloned().flatten());
                let run = runs.entry(PartitionId(partitions.value(at))).or_default();
                run.records.push(Record { key, ..Record::new(payload.unwrap_or_default()) });
                run.numbers.push((offsets.value(at), index));
                run.rows.push(row);
                row += 1;
            }
        }
        Ok(runs)
    }

    async fn publish(&self, batch: &SealedBatch) -> Result<Written, SinkError> {
        let defect = |text: String| SinkError::Destination { code: ch(3), text };
        let runs = self.runs(batch).map_err(defect)?;
        let mut all_known = true;
        let chain = self.channel.new_chain();
        for (partition, run) in runs {
            let target = PartitionId(partition.0 % self.channel.partitions().max(1));
            // A row is known by its number in one partition alone, so where it goes must follow from the row: by its
            // key, or, where that is NULL, with its source partition.
            let options = PublishOptions {
                partition: self.options.key_column.is_none().then_some(target),
                keyless: Some(target),
                chain: Some(chain.clone()),
                deadline: Some(DEADLINE),
                expect: None,
                sequences: Some(Sequences { producer: self.producer(partition), numbers: run.numbers.into() }),
            };
            let outcomes = self.channel.publish_group(run.records, options).await;
            let mut first_failure = None;
            for (outcome, row) in outcomes.iter().zip(&run.rows) {
                match outcome {
                    PublishOutcome::Committed(at) => all_known &= at.duplicate && at.first == Offset::MAX,
                    failure => {
                        first_failure.get_or_insert((failure, *row));
                    }
                }
            }
            // What follows the first failure on the chain was not stored because of it; it goes again with the batch.
            if let Some((failure, row)) = first_failure {
                return Err(sink_error(failure, row));
            }
        }
        Ok(if all_known { Written::AlreadyThere } else { Written::Durable })
    }
}

fn sink_error(failure: &PublishOutcome, row: u32) -> SinkError {
    match failure {
        PublishOutcome::NotStored(not) => {
            let (code, text) = (not.error.code(), not.error.to_string());
            match (&not.error, not.error.kind()) {
                (PublishError::RecordTooLarge { .. } | PublishError::BadField { .. }, _) => {
                    SinkError::Row { code, rows: Some(vec![row]), text }
                }
                (_, Kind::Invalid | Kind::Conflict | Kind::Internal) => SinkError::Destination { code, text },
                _ => SinkError::Later { code, after: None, text },
            }
        }
        // Sent again under the same numbers, it is stored once whatever became of it: not unknown to who asks again.
        PublishOutcome::Unresolved(unresolved) => {
            SinkError::Later { code: unresolved.cause.code(), after: None, text: unresolved.cause.to_string() }
        }
        PublishOutcome::Committed(_) => SinkError::Later { code: ch(3), after: None, text: "committed".into() },
    }
}

impl ShardWriter for ChannelWriter {
    fn write<'a>(&'a self, batch: &'a SealedBatch) -> BoxFuture<'a, Result<Written, SinkError>> {
        self.publish(batch).boxed()
    }

    fn barrier<'a>(&'a self) -> BoxFuture<'a, Result<Settled, BarrierError>> {
        async { Ok(Settled::default()) }.boxed()
    }

    fn was_committed<'a>(&'a self, _id: &'a CommitId) -> BoxFuture<'a, Result<Option<bool>, SinkError>> {
        async { Ok(None) }.boxed()
    }

    fn probe<'a>(&'a self) -> BoxFuture<'a, Result<(), SinkError>> {
        let status = self.channel.status();
        let serves = status.partitions.iter().any(|partition| partition.state == "ready");
        async move {
            match serves {
                true => Ok(()),
                false => Err(SinkError::Later {
                    code: ch(33),
                    after: None,
                    text: format!("no partition of channel {} takes records", status.name),
                }),
            }
        }
        .boxed()
    }

    fn reset<'a>(&'a self) -> BoxFuture<'a, ()> {
        async {}.boxed()
    }
}

/// Each row as one JSON object, hidden columns left out; a NULL is there as null.
fn json(rows: &RecordBatch) -> Result<Vec<Bytes>, String> {
    let visible: Vec<usize> =
        (0..rows.num_columns()).filter(|at| !is_hidden(rows.schema_ref().field(*at).name())).collect();
    let rows = rows.project(&visible).map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut text);
    writer.write(&rows).and_then(|()| writer.finish()).map_err(|error| error.to_string())?;
    drop(writer);
    let text = Bytes::from(text);
    // A line end inside of a text is escaped, so each one ends a row.
    let mut lines = Vec::with_capacity(rows.num_rows());
    let mut start = 0;
    for end in memchr::memchr_iter(b'\n', &text) {
        lines.push(text.slice(start..end));
        start = end + 1;
    }
    Ok(lines)
}

/// The cells of a text or binary column.
fn cells(column: &ArrayRef) -> Result<Vec<Option<Bytes>>, String> {
    fn all<'a>(cells: impl Iterator<Item = Option<&'a [u8]>>) -> Vec<Option<Bytes>> {
        cells.map(|cell| cell.map(Bytes::copy_from_slice)).collect()
    }
    Ok(match column.data_type() {
        DataType::Utf8 => all(column.as_string::<i32>().iter().map(|cell| cell.map(str::as_bytes))),
        DataType::LargeUtf8 => all(column.as_string::<i64>().iter().map(|cell| cell.map(str::as_bytes))),
        DataType::Utf8View => all(column.as_string_view().iter().map(|cell| cell.map(str::as_bytes))),
        DataType::Binary => all(column.as_binary::<i32>().iter()),
        DataType::LargeBinary => all(column.as_binary::<i64>().iter()),
        DataType::BinaryView => all(column.as_binary_view().iter()),
        other => return Err(format!("a column of {other} is neither text nor binary")),
    })
}
