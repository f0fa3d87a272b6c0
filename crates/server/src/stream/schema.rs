//! A stream's schema on its way into its channel: read, compared with those before it, and given an id (G12).

use std::sync::Arc;

use bytes::Bytes;
use landfall_channel::{Channel, RecordFormat, SchemaError, SchemaPolicy};
use landfall_protocol::{IngestCode, Refusal};

use crate::core::{Core, draining};
use crate::refusal;
use crate::validate::ProtoSchema;

/// Schemas of one channel.
const MOST_SCHEMAS: u32 = 1_000;

/// Reads a descriptor.
pub(super) fn parse(descriptor: &[u8]) -> Result<ProtoSchema, Refusal> {
    ProtoSchema::parse(descriptor).map_err(|error| Refusal::new(IngestCode::SchemaInvalid, error.to_string()))
}

/// Gives a schema its id in the channel, durably, if it goes together with every schema before it.
pub(super) async fn offer(
    core: &Core,
    channel: &Channel,
    parsed: Arc<ProtoSchema>,
    bytes: Bytes,
) -> Result<u32, Refusal> {
    // The semaphore is never closed.
    let _turn = core.schema_offers.acquire().await.map_err(|_| draining())?;
    let channel = channel.clone();
    let offered = tokio::task::spawn_blocking(move || compare_and_offer(&channel, &parsed, &bytes)).await;
    offered.map_err(|_| draining())?
}

fn compare_and_offer(channel: &Channel, parsed: &ProtoSchema, bytes: &Bytes) -> Result<u32, Refusal> {
    let policy = channel.options().schema_policy;
    for id in 1.. {
        let Some((format, known)) = channel.schema(id) else { break };
        if format != RecordFormat::Proto {
            continue;
        }
        if known == *bytes {
            return Ok(id);
        }
        if id >= MOST_SCHEMAS {
            let text = format!("channel {} has {MOST_SCHEMAS} schemas, which is the limit", channel.name());
            return Err(Refusal::new(IngestCode::SchemaInvalid, text));
        }
        // One that does not parse was taken under `any`, or by a later version: it forbids nothing.
        if policy == SchemaPolicy::Compatible
            && let Ok(old) = ProtoSchema::parse(&known)
        {
            let contradictions = parsed.contradictions(&old);
            if !contradictions.is_empty() {
                let text =
                    format!("contradicts schema {id} of channel {}: {}", channel.name(), contradictions.join("; "));
                return Err(Refusal::new(IngestCode::SchemaIncompatible, text));
            }
        }
    }
    channel.offer_schema(RecordFormat::Proto, bytes).map_err(|error| match error {
        SchemaError::Fixed => Refusal::new(IngestCode::SchemaIncompatible, error.to_string()),
        SchemaError::Limit { .. } => Refusal::new(IngestCode::SchemaInvalid, error.to_string()),
        SchemaError::Failed(error) => refusal::of(&error),
    })
}
