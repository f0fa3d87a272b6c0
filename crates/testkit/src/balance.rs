//! The balance of I8, as `/v1/status` gives it, and waiting until a pipeline has caught up.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::http::HttpClient;

/// A pipeline's numbers, those of one sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineBalance {
    /// Rows taken in.
    pub taken: u64,
    /// Rows that landed.
    pub delivered: u64,
    /// Rows that the query passed over.
    pub filtered: u64,
    /// Rows set aside.
    pub dead_lettered: u64,
    /// Rows on their way.
    pub in_flight: u64,
    /// Records not taken in yet.
    pub lag_records: u64,
    /// The pipeline's state.
    pub state: String,
}

impl PipelineBalance {
    /// Fails unless `in = delivered + filtered + dead_lettered + in_flight`.
    pub fn assert_balanced(&self) -> Result<()> {
        let sum = self.delivered + self.filtered + self.dead_lettered + self.in_flight;
        ensure!(self.taken == sum, "the balance is off: {self:?} adds up to {sum}");
        Ok(())
    }
}

/// Every sink's balance of a pipeline, each checked.
pub fn balance_of(client: &mut HttpClient, pipeline: &str) -> Result<Vec<PipelineBalance>> {
    balances(&client.get("/v1/status")?.json()?, pipeline)
}

fn named<'a>(status: &'a Value, list: &str, name: &str) -> Result<&'a Value> {
    let entries = status.get(list).and_then(Value::as_array).with_context(|| format!("no {list} in the status"))?;
    let found = entries.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some(name));
    found.with_context(|| format!("no `{name}` among the {list} of {status}"))
}

fn balances(status: &Value, pipeline: &str) -> Result<Vec<PipelineBalance>> {
    let found = named(status, "pipelines", pipeline)?;
    let lag_records = found.pointer("/lag/records").and_then(Value::as_u64).context("no lag")?;
    let state = found.get("state").and_then(Value::as_str).context("no state")?;
    let sinks = found.get("sinks").and_then(Value::as_array).context("no sinks")?;
    sinks
        .iter()
        .map(|sink| {
            let number = |key: &str| {
                let found = sink.pointer(&format!("/balance/{key}")).and_then(Value::as_u64);
                found.with_context(|| format!("no balance/{key} in {sink}"))
            };
            let balance = PipelineBalance {
                taken: number("in")?,
                delivered: number("delivered")?,
                filtered: number("filtered")?,
                dead_lettered: number("dead_lettered")?,
                in_flight: number("in_flight")?,
                lag_records,
                state: state.to_owned(),
            };
            balance.assert_balanced()?;
            Ok(balance)
        })
        .collect()
}

/// Whether the watermark of every partition stands at the tail of the channel that the pipeline reads.
fn has_caught_up(status: &Value, pipeline: &str) -> Result<bool> {
    let found = named(status, "pipelines", pipeline)?;
    let source = found.get("source_channel").and_then(Value::as_str).context("no source channel")?;
    let channel = named(status, "channels", source)?;
    let partitions = channel.get("partitions").and_then(Value::as_array).context("no partitions")?;
    for partition in partitions {
        let tail = partition.get("tail").and_then(Value::as_u64).context("no tail")?;
        let number = partition.get("partition").and_then(Value::as_u64).context("no number")?;
        let mark = found.pointer(&format!("/watermarks/{number}")).and_then(Value::as_u64).unwrap_or(0);
        if mark < tail {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Asks until every committed record is settled, and gives the balance of that moment.
pub fn wait_until_landed(address: &str, pipeline: &str, deadline: Duration) -> Result<Vec<PipelineBalance>> {
    const BETWEEN_QUESTIONS: Duration = Duration::from_millis(50);
    let mut client = HttpClient::new(address);
    let until = Instant::now() + deadline;
    loop {
        let status = client.get("/v1/status")?.json()?;
        let balances = balances(&status, pipeline)?;
        if has_caught_up(&status, pipeline)? && balances.iter().all(|balance| balance.in_flight == 0) {
            return Ok(balances);
        }
        if Instant::now() > until {
            bail!(
                "pipeline `{pipeline}` has not caught up within {deadline:?}: {}",
                named(&status, "pipelines", pipeline)?
            );
        }
        // Another process's progress is asked for, not waited on: a pause between questions, bounded above.
        std::thread::sleep(BETWEEN_QUESTIONS);
    }
}
