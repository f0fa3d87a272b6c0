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
    let status = client.get("/v1/status")?.json()?;
    let entries = status.get("pipelines").and_then(Value::as_array).context("no pipelines in the status")?;
    let found = entries.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some(pipeline));
    let found = found.with_context(|| format!("no pipeline `{pipeline}` in {status}"))?;
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

/// Asks until nothing is left to read and nothing is on its way, and gives the balance of that moment.
pub fn wait_until_landed(address: &str, pipeline: &str, deadline: Duration) -> Result<Vec<PipelineBalance>> {
    const BETWEEN_QUESTIONS: Duration = Duration::from_millis(50);
    let mut client = HttpClient::new(address);
    let until = Instant::now() + deadline;
    loop {
        let balances = balance_of(&mut client, pipeline)?;
        if balances.iter().all(|balance| balance.lag_records == 0 && balance.in_flight == 0) {
            return Ok(balances);
        }
        if Instant::now() > until {
            bail!("pipeline `{pipeline}` has not caught up within {deadline:?}: {balances:?}");
        }
        // Another process's progress is asked for, not waited on: a pause between questions, bounded above.
        std::thread::sleep(BETWEEN_QUESTIONS);
    }
}
