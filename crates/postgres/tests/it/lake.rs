//! A destination in memory for captured tables: commits rows with positions at a barrier, outlives pipelines, and knows the
//! current state of each table.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, RecordBatch};
use futures::future::BoxFuture;
use landfall_engine::contract::{
    BarrierError, CommitId, CopyMark, Guarantee, PlanCx, PlanError, Positions, SealedBatch, Settled, ShardId,
    ShardWriter, Sink, SinkError, SinkIdentity, SinkPlan, TableSpec, Written,
};
use landfall_engine::{ChainParts, TableChainFactory, TableSinkFactory};
use parking_lot::Mutex;

/// A row that landed: operation, commit LSN, number in it, and the columns as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Landed {
    pub(crate) op: String,
    pub(crate) at: (u64, u64),
    pub(crate) values: BTreeMap<String, Option<String>>,
}

#[derive(Default)]
struct Table {
    rows: Vec<Landed>,
    positions: Positions,
    accepted: Vec<(CommitId, Vec<Landed>, Positions, Option<u64>)>,
    is_refusing: bool,
    is_withheld: bool,
    loses_groups: u32,
}

/// See the module. Clones are the same lake.
#[derive(Clone, Default)]
pub(crate) struct Lake {
    tables: Arc<Mutex<BTreeMap<String, Table>>>,
}

impl Lake {
    pub(crate) fn sinks(&self) -> TableSinkFactory {
        let lake = self.clone();
        Arc::new(move |spec: &TableSpec| {
            Ok(Arc::new(TableSink { lake: lake.clone(), name: spec.name.to_string() }) as Arc<dyn Sink>)
        })
    }

    /// Whether a table's destination refuses every write.
    pub(crate) fn refuse(&self, table: &str, refuses: bool) {
        self.tables.lock().entry(table.to_owned()).or_default().is_refusing = refuses;
    }

    /// Whether a table takes rows and commits none of them.
    pub(crate) fn withhold(&self, table: &str, withholds: bool) {
        self.tables.lock().entry(table.to_owned()).or_default().is_withheld = withholds;
    }

    /// All rows of a table, in the order in which they came.
    pub(crate) fn arrivals(&self, table: &str) -> Vec<Landed> {
        self.tables.lock().get(table).map(|table| table.rows.clone()).unwrap_or_default()
    }

    /// So many groups of a table are lost before they land.
    pub(crate) fn lose_groups(&self, table: &str, groups: u32) {
        self.tables.lock().entry(table.to_owned()).or_default().loses_groups = groups;
    }

    /// All rows of a table, in the order of their commits.
    pub(crate) fn rows(&self, table: &str) -> Vec<Landed> {
        let mut rows = self.tables.lock().get(table).map(|table| table.rows.clone()).unwrap_or_default();
        rows.sort_by_key(|row| row.at);
        rows
    }

    /// The last row of each key, as `SELECT *` would show it; keys are texts.
    pub(crate) fn current(&self, table: &str, key: &[&str]) -> BTreeMap<Vec<String>, BTreeMap<String, Option<String>>> {
        let rows = self.rows(table);
        let copied = rows.iter().filter(|row| row.op == "s").map(|row| row.at.0).max().unwrap_or_default();
        let mut state = BTreeMap::new();
        for row in rows.into_iter().filter(|row| row.at.0 >= copied) {
            let of_key = || key.iter().map(|name| row.values[*name].clone().unwrap_or_default()).collect::<Vec<_>>();
            match row.op.as_str() {
                "t" => state.clear(),
                "d" => drop(state.remove(&of_key())),
                _ => drop(state.insert(of_key(), row.values.clone())),
            }
        }
        state
    }

    /// Changes that landed more than once.
    pub(crate) fn doubles(&self, table: &str) -> usize {
        let rows = self.rows(table);
        let streamed: Vec<_> = rows.iter().filter(|row| row.op != "s").map(|row| row.at).collect();
        streamed.windows(2).filter(|pair| pair[0] == pair[1]).count()
    }
}

pub(crate) fn chain() -> TableChainFactory {
    Arc::new(|spec: &TableSpec| {
        Ok(ChainParts {
            decoder: Box::new(landfall_engine::contract::TableDecoder::new(spec.schema.clone())),
            transforms: Vec::new(),
            wanted: Default::default(),
        })
    })
}

struct TableSink {
    lake: Lake,
    name: String,
}

impl Sink for TableSink {
    fn plan<'a>(
        &'a self,
        rows: &'a arrow_schema::SchemaRef,
        _cx: &'a PlanCx,
    ) -> BoxFuture<'a, Result<SinkPlan, PlanError>> {
        Box::pin(async move { Ok(SinkPlan { schema: rows.clone(), notes: Vec::new(), detail: Box::new(()) }) })
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::Positions
    }

    fn open<'a>(&'a self, _plan: &'a SinkPlan, _cx: &'a PlanCx) -> BoxFuture<'a, Result<SinkIdentity, SinkError>> {
        Box::pin(async move { Ok(SinkIdentity(self.name.clone())) })
    }

    fn committed_positions<'a>(&'a self, _cx: &'a PlanCx) -> BoxFuture<'a, Result<Positions, SinkError>> {
        Box::pin(async move {
            let mut tables = self.lake.tables.lock();
            let table = tables.entry(self.name.clone()).or_default();
            table.accepted.clear();
            Ok(table.positions.clone())
        })
    }

    fn reshape<'a>(
        &'a self,
        _shape: u32,
        _plan: &'a SinkPlan,
        _cx: &'a PlanCx,
    ) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async { Ok(()) })
    }

    fn writer(&self, _shard: ShardId) -> Arc<dyn ShardWriter> {
        Arc::new(TableWriter { lake: self.lake.clone(), name: self.name.clone() })
    }

    fn barrier_every(&self) -> Option<Duration> {
        Some(Duration::from_millis(20))
    }
}

struct TableWriter {
    lake: Lake,
    name: String,
}

impl TableWriter {
    fn with<T>(&self, act: impl FnOnce(&mut Table) -> T) -> T {
        act(self.lake.tables.lock().entry(self.name.clone()).or_default())
    }
}

impl ShardWriter for TableWriter {
    fn write<'a>(&'a self, batch: &'a SealedBatch) -> BoxFuture<'a, Result<Written, SinkError>> {
        Box::pin(async move {
            self.with(|table| {
                if table.is_refusing {
                    let code = landfall_types::Code::new("DT", 1);
                    return Err(SinkError::Destination { code, text: "refused by the test".to_owned() });
                }
                let rows = batch.parts.iter().flat_map(landed).collect();
                let positions = batch.covers.iter().map(|cover| (cover.partition, cover.range.end)).collect();
                let begins = match batch.note.map(|note| note.copy) {
                    Some(CopyMark::Begins(place)) => Some(place.at),
                    _ => None,
                };
                table.accepted.push((batch.id, rows, positions, begins));
                Ok(Written::Accepted)
            })
        })
    }

    fn barrier<'a>(&'a self) -> BoxFuture<'a, Result<Settled, BarrierError>> {
        Box::pin(async move {
            self.with(|table| {
                if table.is_withheld {
                    let code = landfall_types::Code::new("DT", 9);
                    let error = SinkError::Later { code, after: None, text: "withheld by the test".to_owned() };
                    return Err(BarrierError { error, lost: Vec::new() });
                }
                if table.loses_groups > 0 && !table.accepted.is_empty() {
                    table.loses_groups -= 1;
                    let lost = std::mem::take(&mut table.accepted).into_iter().map(|(id, ..)| id).collect();
                    let code = landfall_types::Code::new("DT", 9);
                    let error = SinkError::Unknown { code, text: "lost by the test".to_owned() };
                    return Err(BarrierError { error, lost });
                }
                let mut settled = Settled::default();
                for (_, rows, positions, begins) in std::mem::take(&mut table.accepted) {
                    if let Some(point) = begins {
                        table.rows.retain(|row| row.op != "s" || row.at.0 == point);
                    }
                    settled.batches += 1;
                    settled.rows += rows.len() as u64;
                    table.rows.extend(rows);
                    table.positions.extend(positions);
                }
                settled.positions = table.positions.clone();
                Ok(settled)
            })
        })
    }

    fn was_committed<'a>(&'a self, _id: &'a CommitId) -> BoxFuture<'a, Result<Option<bool>, SinkError>> {
        Box::pin(async { Ok(None) })
    }

    fn probe<'a>(&'a self) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async { Ok(()) })
    }

    fn reset<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(async move { self.with(|table| table.accepted.clear()) })
    }
}

fn landed(part: &RecordBatch) -> Vec<Landed> {
    let column = |name: &str| part.column_by_name(name).expect("every shape has it").clone();
    let (op, lsn, seq) = (column("_op"), column("_commit_lsn"), column("_seq"));
    let own: Vec<(String, Arc<dyn Array>)> = part
        .schema_ref()
        .fields()
        .iter()
        .zip(part.columns())
        .filter(|(field, _)| !field.name().starts_with('_'))
        .map(|(field, column)| (field.name().clone(), column.clone()))
        .collect();
    (0..part.num_rows())
        .map(|row| Landed {
            op: op.as_string::<i32>().value(row).to_owned(),
            at: (lsn.as_primitive::<UInt64Type>().value(row), seq.as_primitive::<UInt64Type>().value(row)),
            values: own.iter().map(|(name, column)| (name.clone(), text(column, row))).collect(),
        })
        .collect()
}

fn text(column: &Arc<dyn Array>, row: usize) -> Option<String> {
    use arrow_array::types::{Int32Type, Int64Type};
    use arrow_schema::DataType;
    if column.is_null(row) {
        return None;
    }
    Some(match column.data_type() {
        DataType::Int32 => column.as_primitive::<Int32Type>().value(row).to_string(),
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
        DataType::Utf8 => column.as_string::<i32>().value(row).to_owned(),
        other => panic!("the tests use no {other}"),
    })
}
