//! The tables of running captures, as the server lists them and gives them orders.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use landfall_channel::Channels;
use landfall_postgres::{Order, OrderError};
use landfall_server::{PipelineTables, TableOrder, TablesRefusal};
use landfall_types::{Code, Coded, Kind, Retry};
use serde_json::Value;

use super::code_pages;
use super::slot::Slot;
use crate::config::codes;
use crate::tables::{Listing, Outcome, command_of, order_of};

/// How long a capture may take to come to an order; a command waits longer for its answer.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct SlotTables {
    slots: Arc<Vec<Slot>>,
    channels: Channels,
}

impl SlotTables {
    pub(super) fn new(slots: Arc<Vec<Slot>>, channels: Channels) -> Self {
        SlotTables { slots, channels }
    }

    /// The capture of that name.
    fn slot(&self, pipeline: &str) -> Result<&Slot, TablesRefusal> {
        const SHOWN_MAX: usize = 20;
        let captures = || {
            let captures = self.slots.iter().filter(|slot| slot.config.capture().is_some());
            let names: Vec<&str> = captures.take(SHOWN_MAX).map(|slot| slot.config.name.as_str()).collect();
            if names.is_empty() { "none here does".to_owned() } else { format!("these do: {}", names.join(", ")) }
        };
        let Some(slot) = self.slots.iter().find(|slot| slot.config.name == pipeline) else {
            let shown: String = pipeline.chars().take(64).collect();
            let text = format!(
                "no pipeline is called `{}`; of those that capture a database, {}",
                shown.escape_debug(),
                captures()
            );
            return Err(TablesRefusal {
                is_unknown: true,
                ..refusal(codes::ARGUMENT, Kind::Invalid, Retry::Never, text)
            });
        };
        if slot.config.capture().is_none() {
            let text = format!(
                "pipeline `{pipeline}` reads a channel, which has no tables; of those that capture a database, {}",
                captures()
            );
            return Err(refusal(codes::ARGUMENT, Kind::Conflict, Retry::Never, text));
        }
        Ok(slot)
    }
}

impl PipelineTables for SlotTables {
    fn list(&self, pipeline: &str) -> Result<Value, TablesRefusal> {
        let slot = self.slot(pipeline)?;
        let listing = Listing::of_pipeline(pipeline, &slot.status(&self.channels));
        Ok(serde_json::to_value(listing).unwrap_or_default())
    }

    fn order(&self, pipeline: &str, order: TableOrder) -> BoxFuture<'static, Result<Value, TablesRefusal>> {
        let prepared = self.slot(pipeline).and_then(|slot| {
            let TableOrder { command, table, is_rehearsal } = order;
            let command =
                command_of(&command).map_err(|text| refusal(codes::ARGUMENT, Kind::Invalid, Retry::Never, text))?;
            let order = order_of(command, table.as_deref()).map_err(of_order)?;
            let Some(orders) = slot.orders() else {
                let why = slot.lack().unwrap_or_else(|| "it is starting".to_owned());
                let text = format!("pipeline `{pipeline}` has not been started: {why}");
                return Err(refusal(codes::SERVER, Kind::Unavailable, Retry::Later, text));
            };
            Ok((order, orders, is_rehearsal))
        });
        let pipeline = pipeline.to_owned();
        Box::pin(async move {
            let (order, orders, is_rehearsal): (Order, _, _) = prepared?;
            let ordered = orders.give(order.clone(), is_rehearsal, TAKEN_WITHIN).await.map_err(of_order)?;
            let outcome = Outcome::of(&pipeline, &order, ordered.tables, !is_rehearsal, true);
            Ok(serde_json::to_value(outcome).unwrap_or_default())
        })
    }
}

fn of_order(error: OrderError) -> TablesRefusal {
    refusal(error.code(), error.kind(), error.retry(), error.to_string())
}

fn refusal(code: Code, kind: Kind, retry: Retry, text: String) -> TablesRefusal {
    let pages = code_pages();
    let page = pages.into_iter().flatten().find(|page| page.code == code);
    let name = page.map_or("Unknown", |page| page.name).to_owned();
    TablesRefusal { code, name, kind, retry, text, is_unknown: false }
}
