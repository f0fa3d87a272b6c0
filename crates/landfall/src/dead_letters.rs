//! Dead letters of a pipeline, read over HTTP: what was set aside, as it was, with why (E111).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::endpoint::{Endpoint, escaped};

/// What the headers of a letter's record begin with.
pub(crate) const HEADER_PREFIX: &str = "landfall-";

/// A record as the server's JSON gives it (G39).
#[derive(Debug, Deserialize)]
pub(crate) struct ReadRecord<'a> {
    /// Where it lies.
    pub(crate) partition: u32,
    /// Where it lies.
    pub(crate) offset: u64,
    /// Event time, else append time.
    pub(crate) timestamp: String,
    /// Its key, if it is text.
    pub(crate) key: Option<String>,
    /// Its key, if it is not.
    pub(crate) key_base64: Option<String>,
    /// Its headers.
    #[serde(default)]
    pub(crate) headers: Vec<ReadHeader>,
    /// Its payload, if that is JSON without a line break.
    #[serde(borrow)]
    pub(crate) payload: Option<&'a RawValue>,
    /// Its payload, if it is anything else.
    pub(crate) payload_base64: Option<String>,
}

/// A header in that JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct ReadHeader {
    /// Its name.
    pub(crate) name: String,
    /// Its value, if it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    /// Its value, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value_base64: Option<String>,
}

/// The headers of E111 as fields: `pipeline`, `sink`, `stage`, `code`, `text`, `source`, `partition`, `offset`.
pub(crate) fn fields(headers: &[ReadHeader]) -> BTreeMap<&str, &str> {
    headers
        .iter()
        .filter_map(|header| {
            Some((header.name.strip_prefix(HEADER_PREFIX)?, header.value.as_deref().unwrap_or_default()))
        })
        .collect()
}

/// Where a pipeline reads and where it sets records aside, by the server's status.
#[derive(Debug)]
pub(crate) struct PipelineChannels {
    /// The channel it reads; none of a captured database.
    source: Option<String>,
    /// The channel of its dead letters.
    pub(crate) dead_letters: String,
}

/// Asks the server.
pub(crate) async fn channels_of(endpoint: &Endpoint, pipeline: &str) -> anyhow::Result<PipelineChannels> {
    let status = endpoint.status().await?;
    let pipelines = status.get("pipelines").and_then(Value::as_array).cloned().unwrap_or_default();
    let name_of = |entry: &Value| entry.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let Some(found) = pipelines.iter().find(|entry| name_of(entry) == pipeline) else {
        let known: Vec<String> = pipelines.iter().map(name_of).collect();
        anyhow::bail!("the server runs no pipeline `{pipeline}`; it runs: {}", known.join(", "));
    };
    let channel = |key: &str| found.get(key).and_then(Value::as_str).map(str::to_owned);
    let Some(dead_letters) = channel("dead_letter_channel") else {
        anyhow::bail!("pipeline `{pipeline}` keeps no dead letters");
    };
    Ok(PipelineChannels { source: channel("source_channel"), dead_letters })
}

/// Reads a pipeline's letters from the first on, as envelopes to publish again.
pub(crate) struct Reader {
    endpoint: Endpoint,
    source: String,
    dead_letters: String,
    /// Per partition, the next offset and where reading stops: what comes later is not part of this run, or letters
    /// refused again would be read for ever.
    left: Vec<(u32, u64, u64)>,
}

impl Reader {
    /// Finds the channels and their ends.
    pub(crate) async fn open(endpoint: Endpoint, pipeline: &str) -> anyhow::Result<Self> {
        let PipelineChannels { source, dead_letters } = channels_of(&endpoint, pipeline).await?;
        let Some(source) = source else {
            anyhow::bail!("pipeline `{pipeline}` does not read a channel, so its letters cannot be published again");
        };
        let left = partitions(&endpoint, &dead_letters).await?;
        let left = left.into_iter().map(|entry| (entry.partition, entry.log_start, entry.tail)).collect();
        Ok(Reader { endpoint, source, dead_letters, left })
    }

    /// The channel that the letters came from.
    pub(crate) fn source_channel(&self) -> &str {
        &self.source
    }

    /// The next letters as envelopes of G35; `None` at the end. Each is named by where its letter lies.
    pub(crate) async fn next_page(&mut self) -> anyhow::Result<Option<Vec<String>>> {
        while let Some((partition, from, end)) = self.left.last().copied() {
            if from >= end {
                self.left.pop();
                continue;
            }
            let limit = (end - from).min(500);
            let path = format!(
                "/v1/channels/{}/records?partition={partition}&from={from}&limit={limit}",
                escaped(&self.dead_letters)
            );
            let answer = self.endpoint.get(&path).await?;
            let mut envelopes = Vec::new();
            let mut next = from;
            for line in answer.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let record: ReadRecord<'_> = serde_json::from_slice(line)?;
                next = record.offset + 1;
                envelopes.push(envelope(record)?);
            }
            if let Some(last) = self.left.last_mut() {
                last.1 = next.max(from);
            }
            if envelopes.is_empty() {
                self.left.pop();
                continue;
            }
            return Ok(Some(envelopes));
        }
        Ok(None)
    }
}

/// The record as it was before it was set aside: without the headers of the letter.
fn envelope(record: ReadRecord<'_>) -> anyhow::Result<String> {
    #[derive(Serialize)]
    struct Envelope<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        payload: Option<&'a RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        payload_base64: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        key_base64: Option<String>,
        headers: Vec<ReadHeader>,
        timestamp: String,
        idempotency_key: String,
    }
    let idempotency_key = format!("letter-{}-{}", record.partition, record.offset);
    let headers = record.headers.into_iter().filter(|header| !header.name.starts_with(HEADER_PREFIX)).collect();
    Ok(serde_json::to_string(&Envelope {
        payload: record.payload,
        payload_base64: record.payload_base64,
        key: record.key,
        key_base64: record.key_base64,
        headers,
        timestamp: record.timestamp,
        idempotency_key,
    })?)
}

/// A partition's bounds, by the server's status.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartitionBounds {
    /// Its number.
    pub(crate) partition: u32,
    /// Its first offset.
    pub(crate) log_start: u64,
    /// The offset after its last.
    pub(crate) tail: u64,
}

/// The partitions of a channel, by the server's status.
pub(crate) async fn partitions(endpoint: &Endpoint, channel: &str) -> anyhow::Result<Vec<PartitionBounds>> {
    let status = endpoint.status().await?;
    let channels = status.get("channels").and_then(Value::as_array).cloned().unwrap_or_default();
    let name_of = |entry: &Value| entry.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let Some(found) = channels.iter().find(|entry| name_of(entry) == channel) else {
        let known: Vec<String> = channels.iter().map(name_of).collect();
        anyhow::bail!("the server has no channel `{channel}`; it has: {}", known.join(", "));
    };
    let mut partitions = Vec::new();
    for entry in found.get("partitions").and_then(Value::as_array).into_iter().flatten() {
        let number = |key: &str| entry.get(key).and_then(Value::as_u64).unwrap_or(0);
        let partition = u32::try_from(number("partition")).unwrap_or(0);
        partitions.push(PartitionBounds { partition, log_start: number("log_start"), tail: number("tail") });
    }
    Ok(partitions)
}
