//! Opening a stream: every check of a create, in the contract's order (G9–G13).

use std::sync::Arc;

use landfall_channel::{Channel, PublishError, RecordFormat, Validate};
use landfall_protocol::header::{self, Slot};
use landfall_protocol::wire::{CreateIngestStreamRequest, RecordType};
use landfall_protocol::{IngestCode, Refusal};
use landfall_types::PartitionId;
use tonic::metadata::MetadataMap;

use crate::core::{Core, draining, shown};
use crate::refusal;
use crate::stream::schema;
use crate::streams::StreamEntry;
use crate::validate::Validator;

/// What the request's metadata says.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    table: Option<String>,
    slot: Option<Slot>,
}

impl Asked {
    pub(crate) fn of(metadata: &MetadataMap) -> Self {
        // A value that is not text equals no table.
        let text = |value: &tonic::metadata::AsciiMetadataValue| value.to_str().unwrap_or("\u{fffd}").to_owned();
        Asked {
            table: metadata.get(header::TABLE_NAME).map(text),
            // A slot that does not parse is of a client that we do not know: without it the stream is only placed
            // by load.
            slot: metadata.get(header::LANDFALL_SLOT).and_then(|value| text(value).parse().ok()),
        }
    }
}

/// An open stream.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) channel: Channel,
    pub(crate) entry: StreamEntry,
    pub(crate) format: RecordFormat,
    pub(crate) validator: Validator,
    /// The id of the stream's schema in the channel.
    pub(crate) schema: Option<u32>,
}

/// Opens a stream or says why not.
pub(crate) async fn open(core: &Core, asked: &Asked, create: CreateIngestStreamRequest) -> Result<Opened, Refusal> {
    let table = create.table_name();
    if let Some(named) = &asked.table
        && named != table
    {
        return Err(Refusal::new(
            IngestCode::TableMismatch,
            format!("header `{}` names another table than `{}` of the create", header::TABLE_NAME, shown(table)),
        ));
    }
    let channel = core.channel_of_table(table).await?;
    let format = format_of(&create)?;
    // The schema is read before the format is fixed: a create that fails fixes nothing.
    let schema = match format {
        RecordFormat::Proto => Some(Arc::new(schema::parse(create.descriptor_proto())?)),
        _ => None,
    };
    let validator = match &schema {
        _ if channel.options().validate == Validate::Off => Validator::Off,
        Some(schema) => Validator::Proto(Arc::clone(schema)),
        None => Validator::Json,
    };
    compare_format(&channel, format)?;
    let schema = match (schema, create.descriptor_proto) {
        (Some(parsed), Some(bytes)) => Some(schema::offer(core, &channel, parsed, bytes).await?),
        _ => None,
    };
    fix_format(&channel, format).await?;
    let entry = place(core, &channel, asked.slot)?;
    Ok(Opened { channel, entry, format, validator, schema })
}

fn format_of(create: &CreateIngestStreamRequest) -> Result<RecordFormat, Refusal> {
    let wrong = |why: &str| Err(Refusal::new(IngestCode::RecordType, why));
    let declared = match create.record_type {
        Some(number) => RecordType::try_from(number).ok().filter(|kind| *kind != RecordType::Unspecified),
        None if create.descriptor_proto.is_some() => Some(RecordType::Proto),
        None => return wrong("`record_type` is missing: say PROTO (1) or JSON (2)"),
    };
    match declared {
        Some(RecordType::Json) => Ok(RecordFormat::Json),
        Some(RecordType::Proto) if create.descriptor_proto.is_none() => {
            Err(Refusal::new(IngestCode::SchemaInvalid, "a stream of PROTO records needs `descriptor_proto`"))
        }
        Some(RecordType::Proto) => Ok(RecordFormat::Proto),
        Some(RecordType::Avro) => wrong("AVRO records are not taken by this version: send PROTO (1) or JSON (2)"),
        Some(RecordType::Unspecified) | None => {
            wrong(&format!("`record_type` {} is not known: say PROTO (1) or JSON (2)", create.record_type.unwrap_or(0)))
        }
    }
}

/// Compares the stream's type with the channel's, if that is fixed (G11).
fn compare_format(channel: &Channel, format: RecordFormat) -> Result<(), Refusal> {
    match channel.format() {
        None | Some(RecordFormat::Any) => Ok(()),
        Some(fixed) if fixed == format => Ok(()),
        Some(fixed) => Err(Refusal::new(
            IngestCode::RecordType,
            format!(
                "channel {} takes {} records, the stream would send {}",
                channel.name(),
                fixed.as_str(),
                format.as_str()
            ),
        )),
    }
}

/// A channel without a type takes the stream's, durably, before the stream is open; of two at once one wins.
async fn fix_format(channel: &Channel, format: RecordFormat) -> Result<(), Refusal> {
    if channel.format().is_none() {
        let channel = channel.clone();
        let done = tokio::task::spawn_blocking(move || channel.fix_format(format)).await;
        done.map_err(|_| draining())?.map_err(|error| refusal::of(&error))?;
    }
    compare_format(channel, format)
}

/// Binds the stream to a partition (G13, G20).
fn place(core: &Core, channel: &Channel, slot: Option<Slot>) -> Result<StreamEntry, Refusal> {
    let status = channel.status();
    let serves = |state: &str| matches!(state, "ready" | "committing");
    let ready: Vec<PartitionId> = status
        .partitions
        .iter()
        .filter(|partition| serves(partition.state))
        .map(|partition| partition.partition)
        .collect();
    let named = slot.map(|slot| PartitionId(u32::from(slot.index) % channel.partitions().max(1)));
    let stream_id = uuid::Uuid::now_v7().to_string();
    let entry = match named {
        Some(partition) if !ready.contains(&partition) => None,
        named => core.streams.bind(stream_id, channel, named, &ready),
    };
    entry.ok_or_else(|| {
        let partition = named.unwrap_or_default();
        let cause = status.partitions.iter().find(|status| status.partition == partition);
        let reason = match cause {
            Some(status) => status.cause.clone().unwrap_or_else(|| status.state.to_owned()),
            None => "it is not open".to_owned(),
        };
        let error = match cause {
            // It ends by itself, or with room.
            Some(status) if status.state == "fenced" => {
                PublishError::AtCapacity { channel: channel.name().into(), reason }
            }
            _ => PublishError::PartitionStopped { partition, cause: reason.into() },
        };
        refusal::of(&error).retry_after(crate::core::COME_BACK_AFTER)
    })
}
