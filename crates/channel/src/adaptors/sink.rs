//! A channel as a sink (E124): one record per row, in source order, under sequence keys (C53).
//!
//! Each source partition is a producer; a row's number is (offset, unnest index), that of a table's change its place, since
//! its offset does not outlive a restart (P98). The committer passes over what is in the log already, so the same batch may
//! come again, cut as it may be, and each row is there once while its producer is inside the key window. An unresolved
//! outcome is awaited by sending the same rows again, never guessed.
//!
//! A change is keyed by its table and that table's key, so all changes of a row are in one partition, in their order. Where
//! the table gets another key, its rows are keyed by that from there on: each shape has its own (P84). A log takes nothing
//! back: what an interrupted copy has published stays, and the copy that replaces it follows (P56).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use landfall_engine::contract::{
    BarrierError, CommitId, Guarantee, PlanCx, PlanError, Positions, SealedBatch, Settled, ShardId, ShardWriter, Sink,
    SinkError, SinkIdentity, SinkPlan, TableAbilities, TableSpec, TokenScope, Written, columns, is_hidden,
};
use landfall_types::{Coded, Durability, Kind, Offset, PartitionId};
use parking_lot::Mutex;

use super::encoding::{TABLE, cells, change_keys, objects};
use crate::channel::{Channel, PublishOptions};
use crate::error::{PublishError, ch};
use crate::keys::{KeySeed, Sequences};
use crate::outcome::PublishOutcome;
use crate::record::Record;

/// How rows become records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelSinkOptions {
    /// The sink's name, part of who numbers: two sinks of a pipeline may publish into one channel.
    pub name: String,
    /// The column that is the payload, text or binary; `None`: each row as one JSON object.
    pub payload_column: Option<String>,
    /// The column that is the record key, and routes; text, binary or whole numbers. `None`: the source partition routes,
    /// changes go by their table and its key. Where it is NULL, the source partition routes.
    pub key_column: Option<String>,
    /// The table whose changes the rows are; `None`: rows of records.
    pub changes_of: Option<ChangesOf>,
}

/// A table whose changes are published: JSON objects of its columns, of what each change is, and of `_table`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangesOf {
    /// `schema.table`.
    pub table: Arc<str>,
    /// The columns that tell its rows apart, in the shape in which it is opened.
    pub key: Arc<[Arc<str>]>,
}

/// What further shapes of the table say of it, by their numbers; of one that is not here, the options do.
type Shapes = Arc<Mutex<BTreeMap<u32, ChangesOf>>>;

/// A channel as a sink.
#[derive(Debug)]
pub struct ChannelSink {
    channel: Channel,
    options: ChannelSinkOptions,
    /// (pipeline, source), known once it is opened.
    origin: Mutex<Option<(String, String)>>,
    shapes: Shapes,
}

/// How long one publish of a write may wait for room and answer.
const DEADLINE: Duration = Duration::from_secs(60);
/// Producer names must be the same in every process, so their hash has a fixed seed.
const PRODUCER_SEED: KeySeed = KeySeed(*b"landfall-channel");

impl ChannelSink {
    /// Each record is whole by itself, so types and keys may change from one to the next. Whoever reads a channel takes what
    /// comes later for what happened later.
    pub const ABILITIES: TableAbilities =
        TableAbilities { orders_by_position: false, takes_new_types: true, takes_new_keys: true };

    /// A sink that publishes one record per row.
    pub fn new(channel: Channel, options: ChannelSinkOptions) -> Self {
        ChannelSink { channel, options, origin: Mutex::new(None), shapes: Shapes::default() }
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
            other if option == "key" && other.is_integer() => Ok(field),
            other => {
                let expected = if option == "key" { "text, binary or a whole number" } else { "text or binary" };
                let text = format!("`{option}: {name}` is {other}, expected {expected}: cast it in the query");
                Err(PlanError::new(ch(3), text))
            }
        }
    }

    /// What only changes cannot have.
    fn check_changes(&self, rows: &Schema, of: &ChangesOf) -> Result<(), PlanError> {
        let refused = |text: String| Err(PlanError::new(ch(3), format!("table {}: {text}", of.table)));
        if let Some(payload) = &self.options.payload_column {
            return refused(format!(
                "`payload: {payload}` would leave out what each change is and of which table: remove it, a change is a JSON \
                 object"
            ));
        }
        if rows.column_with_name(columns::UNNEST).is_some() {
            return refused(
                "its query makes several rows of one change, which have one number in a channel: leave `unnest` to the \
                 pipeline that reads the channel"
                    .to_owned(),
            );
        }
        if rows.column_with_name(TABLE).is_some() {
            return refused(format!(
                "the column `{TABLE}` has the name under which a change says its table: give it another name in the \
                 table's `sql`"
            ));
        }
        let missing = of.key.iter().find(|column| rows.column_with_name(column).is_none());
        match (missing, &self.options.key_column) {
            (Some(column), None) => refused(format!(
                "its query leaves out `{column}`, by which the changes of a row stay together: select it, or name \
                 another column with `key`"
            )),
            _ => Ok(()),
        }
    }

    /// `changes_of`: the table in the shape that `rows` have.
    fn schema_for(&self, rows: &SchemaRef, changes_of: Option<&ChangesOf>) -> Result<SchemaRef, PlanError> {
        let options = &self.options;
        for (option, name) in [("payload", &options.payload_column), ("key", &options.key_column)] {
            if let Some(name) = name {
                self.named(rows, option, name)?;
            }
        }
        let positions: &[&str] = match changes_of {
            None => &[columns::PARTITION, columns::OFFSET, columns::UNNEST],
            Some(of) => {
                self.check_changes(rows, of)?;
                &[columns::PARTITION]
            }
        };
        let is_wanted = |field: &&FieldRef| {
            let name = field.name().as_str();
            let is_position = positions.contains(&name);
            let is_own = match &options.payload_column {
                None => !is_hidden(name),
                Some(payload) => name == payload || options.key_column.as_deref() == Some(name),
            };
            is_position || is_own
        };
        let mut fields: Vec<FieldRef> = rows.fields().iter().filter(is_wanted).cloned().collect();
        if changes_of.is_some() {
            fields
                .extend([columns::AT, columns::WITHIN].map(|name| Arc::new(Field::new(name, DataType::UInt64, false))));
        }
        let numbered_by = if changes_of.is_some() { columns::AT } else { columns::OFFSET };
        for needed in [columns::PARTITION, numbered_by] {
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
                RecordBatch::try_new(nulls, row).map_err(|error| error.to_string()).and_then(|row| objects(&row, None));
            encoded.map_err(|error| {
                PlanError::new(ch(3), format!("the query's columns cannot be JSON: {error}; cast the column to STRING"))
            })?;
        }
        Ok(schema)
    }
}

impl ChannelSink {
    fn plan_for(&self, rows: &SchemaRef, changes_of: Option<ChangesOf>) -> Result<SinkPlan, PlanError> {
        let schema = self.schema_for(rows, changes_of.as_ref())?;
        Ok(SinkPlan { schema, notes: self.notes(changes_of.as_ref()), detail: Box::new(changes_of) })
    }

    fn notes(&self, changes_of: Option<&ChangesOf>) -> Vec<String> {
        let (name, partitions) = (self.channel.name(), self.channel.partitions());
        let Some(of) = changes_of else {
            return vec![format!("publishes one record per row into channel {name} ({partitions} partition(s))")];
        };
        let key = match &self.options.key_column {
            Some(column) => format!("`{column}`"),
            None if of.key.is_empty() => "its table, which has no key".to_owned(),
            None => format!("its table and {}", of.key.join(", ")),
        };
        vec![
            format!("publishes one record per change into channel {name} ({partitions} partition(s)), keyed by {key}"),
            "a copy that is interrupted begins anew, and what it has published stays: of a table's copied rows, those of \
             the highest _commit_lsn count"
                .to_owned(),
        ]
    }
}

impl Sink for ChannelSink {
    fn plan<'a>(&'a self, rows: &'a SchemaRef, _cx: &'a PlanCx) -> BoxFuture<'a, Result<SinkPlan, PlanError>> {
        let plan = self.plan_for(rows, self.options.changes_of.clone());
        async move { plan }.boxed()
    }

    fn plan_shape<'a>(
        &'a self,
        spec: &'a TableSpec,
        rows: &'a SchemaRef,
        _cx: &'a PlanCx,
    ) -> BoxFuture<'a, Result<SinkPlan, PlanError>> {
        let of = self.options.changes_of.as_ref();
        let changes_of = of.map(|of| ChangesOf { table: Arc::clone(&of.table), key: Arc::clone(&spec.key) });
        let plan = self.plan_for(rows, changes_of);
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

    /// Rows bring their columns along, so a record of another shape has other fields; its key is kept for the writer (P84).
    fn reshape<'a>(&'a self, shape: u32, plan: &'a SinkPlan, _: &'a PlanCx) -> BoxFuture<'a, Result<(), SinkError>> {
        if let Some(Some(of)) = plan.detail.downcast_ref::<Option<ChangesOf>>() {
            self.shapes.lock().insert(shape, of.clone());
        }
        async { Ok(()) }.boxed()
    }

    fn writer(&self, _shard: ShardId) -> Arc<dyn ShardWriter> {
        let (pipeline, source) = self.origin.lock().clone().unwrap_or_default();
        let (channel, options, shapes) = (self.channel.clone(), self.options.clone(), Arc::clone(&self.shapes));
        Arc::new(ChannelWriter { channel, options, shapes, pipeline, source })
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
    shapes: Shapes,
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
    /// Who numbers: one producer per pipeline, sink, source partition and destination, and per way to route: a row is known
    /// by its number in one partition alone, so rows that go elsewhere now are told by numbers of their own.
    fn producer(&self, partition: PartitionId, changes_of: Option<&ChangesOf>) -> [u8; 16] {
        let (pipeline, source, channel) = (&self.pipeline, &self.source, self.channel.id());
        let ChannelSinkOptions { name, key_column, .. } = &self.options;
        let key = match (key_column, changes_of) {
            (Some(column), _) => format!("column {column}"),
            (None, Some(of)) => format!("key {}", of.key.join("\0")),
            (None, None) => String::new(),
        };
        PRODUCER_SEED.name(format!("{pipeline}\0{name}\0{channel}\0{source}\0{partition}\0{key}").as_bytes())
    }

    /// The table in the shape that a batch has.
    fn changes_of(&self, batch: &SealedBatch) -> Option<ChangesOf> {
        let of = batch.note.and_then(|note| self.shapes.lock().get(&note.shape).cloned());
        of.or_else(|| self.options.changes_of.clone())
    }

    fn runs(&self, batch: &SealedBatch, changes_of: Option<&ChangesOf>) -> Result<BTreeMap<PartitionId, Run>, String> {
        let mut runs: BTreeMap<PartitionId, Run> = BTreeMap::new();
        let mut row = 0u32;
        for part in &batch.parts {
            let column =
                |name: &str| part.column_by_name(name).ok_or_else(|| format!("the rows have no column {name}"));
            let partitions = column(columns::PARTITION)?;
            let partitions = partitions.as_primitive_opt::<UInt32Type>().ok_or("__partition is not UInt32")?;
            let numbers = self.numbers(part)?;
            let payloads = match &self.options.payload_column {
                Some(name) => cells(column(name)?)?,
                None => {
                    let table = changes_of.map(|of| of.table.as_ref());
                    objects(part, table)?.into_iter().map(Some).collect()
                }
            };
            let keys: Option<Vec<Option<Bytes>>> = match (&self.options.key_column, changes_of) {
                (Some(name), _) => Some(cells(column(name)?)?),
                (None, Some(of)) => Some(change_keys(part, &of.table, &of.key)?.into_iter().map(Some).collect()),
                (None, None) => None,
            };
            for (at, (payload, number)) in payloads.into_iter().zip(numbers).enumerate() {
                let key = keys.as_ref().and_then(|keys| keys.get(at).cloned().flatten());
                let run = runs.entry(PartitionId(partitions.value(at))).or_default();
                run.records.push(Record { key, ..Record::new(payload.unwrap_or_default()) });
                run.numbers.push(number);
                run.rows.push(row);
                row += 1;
            }
        }
        Ok(runs)
    }

    /// What each row is known by, rising within a partition.
    fn numbers(&self, part: &RecordBatch) -> Result<Vec<(u64, u64)>, String> {
        let longs = |name: &str| {
            let column = part.column_by_name(name).ok_or_else(|| format!("the rows have no column {name}"))?;
            column.as_primitive_opt::<UInt64Type>().ok_or_else(|| format!("{name} is not UInt64"))
        };
        if self.options.changes_of.is_some() {
            let (at, within) = (longs(columns::AT)?, longs(columns::WITHIN)?);
            return Ok(at.values().iter().copied().zip(within.values().iter().copied()).collect());
        }
        let unnest = part.column_by_name(columns::UNNEST);
        let unnest = unnest.and_then(|column| column.as_primitive_opt::<UInt32Type>());
        let index = |row| unnest.filter(|unnest| !unnest.is_null(row)).map_or(0, |unnest| u64::from(unnest.value(row)));
        Ok(longs(columns::OFFSET)?.values().iter().enumerate().map(|(row, offset)| (*offset, index(row))).collect())
    }

    async fn publish(&self, batch: &SealedBatch) -> Result<Written, SinkError> {
        let defect = |text: String| SinkError::Destination { code: ch(3), text };
        let changes_of = self.changes_of(batch);
        let runs = self.runs(batch, changes_of.as_ref()).map_err(defect)?;
        let mut all_known = true;
        let chain = self.channel.new_chain();
        for (partition, run) in runs {
            let target = PartitionId(partition.0 % self.channel.partitions().max(1));
            // A row is known by its number in one partition alone, so where it goes must follow from the row: by its
            // key, or, where that is NULL, with its source partition.
            let options = PublishOptions {
                partition: (self.options.key_column.is_none() && self.options.changes_of.is_none()).then_some(target),
                keyless: Some(target),
                chain: Some(chain.clone()),
                deadline: Some(DEADLINE),
                expect: None,
                sequences: Some(Sequences {
                    producer: self.producer(partition, changes_of.as_ref()),
                    numbers: run.numbers.into(),
                }),
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
