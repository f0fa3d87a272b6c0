//! What is shown of a change source's tables: each by itself, those first that are not simply running.

use std::collections::BTreeMap;
use std::sync::Arc;

use landfall_types::{PartitionId, Place};
use serde::Serialize;

use super::{Balance, Books, PipelineState, Sight, SinkSight, Why, severity, worst_view};
use crate::contract::TableId;
use crate::worker::ShardView;

/// A table, as the controller sees it.
#[derive(Clone, Debug)]
pub(crate) struct TableSight {
    pub(crate) id: TableId,
    pub(crate) name: Arc<str>,
    pub(crate) shape: u32,
    pub(crate) state: PipelineState,
    pub(crate) why: Option<Why>,
    pub(crate) partitions: Vec<PartitionId>,
    /// Per sink, those of its workers.
    pub(crate) views: Vec<Vec<Arc<ShardView>>>,
}

/// One table's part.
#[derive(Clone, Debug, Serialize)]
pub struct TableStatus {
    /// Its number.
    pub id: TableId,
    /// Its name.
    pub name: String,
    /// Its worst state.
    pub state: PipelineState,
    /// Why it is not simply running.
    pub why: Option<Why>,
    /// The newest shape that rows can go through.
    pub shape: u32,
    /// Its partitions: the stream, and copies.
    pub partitions: Vec<u32>,
    /// How far its slowest partition is behind what the source holds, in the source's own unit (bytes of log).
    pub lag: u64,
    /// Source rows settled, of the slowest sink.
    pub rows: u64,
    /// Source rows not settled, of the slowest sink.
    pub in_flight: u64,
    /// Its balance in each sink, by name.
    pub balance: BTreeMap<String, Balance>,
}

pub(super) fn table_statuses(sight: &Sight, sinks: &[SinkSight]) -> Vec<TableStatus> {
    const TABLES_MAX: usize = 1_000;
    let none = Books::default();
    let tails: BTreeMap<PartitionId, Place> = sight.tails.iter().copied().collect();
    let mut tables: Vec<TableStatus> = sight
        .table_sights
        .iter()
        .map(|table| {
            let books = sight.tables.get(&table.id).unwrap_or(&none);
            let live = || sight.live.values().filter(|live| live.table == Some(table.id));
            let balance: BTreeMap<String, Balance> =
                sinks.iter().enumerate().map(|(at, sink)| (sink.name.to_string(), books.balance(live(), at))).collect();
            let (mut state, mut why) = (table.state, table.why.clone());
            for (views, sink) in table.views.iter().zip(sinks) {
                let views: Vec<_> = views.iter().map(|view| view.sight()).collect();
                let (word, failure) = worst_view(&views, &format!("sink {}", sink.name));
                if severity(word) > severity(state) {
                    (state, why) = (word, failure);
                }
            }
            let restarts = sight.restarts.iter().filter(|restart| restart.table == Some(table.id));
            if let (0, Some(restart)) = (severity(state), restarts.max_by_key(|restart| restart.blocked)) {
                state = if restart.blocked { PipelineState::Blocked } else { PipelineState::Retrying };
                why = Some(restart.why());
            }
            let behind = |partition: &PartitionId| {
                let tail = tails.get(partition)?;
                let reached = sight.watermarks.get(partition).copied().unwrap_or(Place::START);
                Some(tail.at.saturating_sub(reached.at))
            };
            let settled = |balance: &Balance| balance.delivered + balance.filtered + balance.dead_lettered;
            TableStatus {
                id: table.id,
                name: table.name.to_string(),
                state,
                why,
                shape: table.shape,
                partitions: table.partitions.iter().map(|partition| partition.0).collect(),
                lag: table.partitions.iter().filter_map(behind).max().unwrap_or_default(),
                rows: balance.values().map(settled).min().unwrap_or_default(),
                in_flight: balance.values().map(|balance| balance.in_flight).max().unwrap_or_default(),
                balance,
            }
        })
        .collect();
    tables.sort_by_key(|table| std::cmp::Reverse(severity(table.state)));
    tables.truncate(TABLES_MAX);
    tables
}
