//! A channel for dead letters (E111): the record as it was, and why it was set aside as headers.

use futures::FutureExt;
use futures::future::BoxFuture;
use landfall_engine::contract::{DeadLetter, Letter, SinkError, Stage};
use landfall_types::{Coded, Kind};

use crate::channel::{Channel, PublishOptions};
use crate::error::PublishError;
use crate::options::{HEADER_NAME_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX, Limits, RECORD_KEY_BYTES_MAX};
use crate::outcome::PublishOutcome;
use crate::record::{Header, Record};

/// A channel for dead letters. A letter is stored once inside the channel's key window, however often it is handed in.
#[derive(Clone, Debug)]
pub struct ChannelDeadLetters {
    channel: Channel,
}

/// The headers that a letter gets; what the record brought stays in front of them.
const OWN_HEADERS_MAX: usize = 10;
/// Their names, and room for numbers and words in them, beside what is counted exactly.
const OWN_HEADER_BYTES: usize = 256;

impl ChannelDeadLetters {
    /// Dead letters go to `channel`, whose limits are those of [`Limits::for_dead_letters`].
    pub fn new(channel: Channel) -> Self {
        ChannelDeadLetters { channel }
    }

    async fn publish(&self, letters: &[Letter]) -> Result<(), SinkError> {
        let limits = &self.channel.options().limits;
        let records = letters.iter().map(|letter| record_of(letter, limits)).collect();
        let outcomes = self.channel.publish_group(records, PublishOptions::default()).await;
        let mut worst = None;
        for outcome in outcomes {
            match outcome {
                PublishOutcome::Committed(_) => {}
                PublishOutcome::NotStored(not) => match not.error {
                    // Stored before, with another wording of the same error: one letter per row and stage.
                    PublishError::KeyReused { .. } => {}
                    error => worst = worse(worst, &error),
                },
                PublishOutcome::Unresolved(unresolved) => worst = worse(worst, &unresolved.cause),
            }
        }
        worst.map_or(Ok(()), Err)
    }
}

/// Any error parks the lane and is tried again with the same letters; one that no retry mends is the destination's fault.
fn worse(known: Option<SinkError>, error: &impl Coded) -> Option<SinkError> {
    let (code, text) = (error.code(), error.to_string());
    Some(match (known, error.kind()) {
        (Some(SinkError::Destination { code, text }), _) => SinkError::Destination { code, text },
        (_, Kind::Invalid | Kind::Conflict | Kind::Internal) => SinkError::Destination { code, text },
        (Some(known), _) => known,
        (None, _) => SinkError::Later { code, after: None, text },
    })
}

impl DeadLetter for ChannelDeadLetters {
    fn store<'a>(&'a self, letters: &'a [Letter]) -> BoxFuture<'a, Result<(), SinkError>> {
        self.publish(letters).boxed()
    }
}

fn stage_word(stage: Stage) -> &'static str {
    match stage {
        Stage::Decode => "decode",
        Stage::Sql => "sql",
        Stage::Sink => "sink",
    }
}

/// The letter as a record that the channel can hold: what it cannot is cut and marked `landfall-cut`.
fn record_of(letter: &Letter, limits: &Limits) -> Record {
    let source = &letter.record;
    let mut own: Vec<(&str, String)> = vec![
        ("landfall-pipeline", letter.pipeline.0.clone()),
        ("landfall-stage", stage_word(letter.stage).to_owned()),
        ("landfall-code", letter.code.to_string()),
        ("landfall-text", letter.text.clone()),
        ("landfall-source", letter.source.clone()),
        ("landfall-partition", source.partition.to_string()),
        ("landfall-offset", source.offset.to_string()),
    ];
    if source.within > 0 {
        own.push(("landfall-within", source.within.to_string()));
    }
    if let Some(sink) = &letter.sink {
        own.insert(1, ("landfall-sink", sink.clone()));
    }
    let mut cut: Vec<&str> = Vec::new();
    let key = source.key.as_ref().map(|key| {
        if key.len() > RECORD_KEY_BYTES_MAX {
            cut.push("key");
        }
        key.slice(..key.len().min(RECORD_KEY_BYTES_MAX))
    });
    let own_bytes: usize = own.iter().map(|(name, value)| name.len() + value.len()).sum();
    let room = limits.header_bytes.as_usize().saturating_sub(own_bytes + OWN_HEADER_BYTES);
    let count = (limits.headers as usize).saturating_sub(OWN_HEADERS_MAX);
    let mut headers = Vec::with_capacity(source.headers.len() + OWN_HEADERS_MAX);
    let mut bytes = 0;
    for header in &source.headers {
        let size = header.name.len() + header.value.len();
        if headers.len() < count && header.name.len() <= HEADER_NAME_BYTES_MAX && bytes + size <= room {
            bytes += size;
            headers.push(header.clone());
        }
    }
    if headers.len() < source.headers.len() {
        cut.push("headers");
    }
    let taken = key.as_ref().map_or(0, |key| key.len()) + bytes + own_bytes + OWN_HEADER_BYTES;
    let payload_max = limits.record_bytes.as_usize().saturating_sub(taken);
    if source.payload.len() > payload_max {
        cut.push("payload");
    }
    let payload = source.payload.slice(..source.payload.len().min(payload_max));
    if !cut.is_empty() {
        own.push(("landfall-cut", cut.join(",")));
    }
    headers.extend(own.into_iter().map(|(name, value)| Header { name: name.to_owned(), value: value.into() }));
    Record {
        payload,
        key,
        headers,
        event_time: Some(source.timestamp),
        idempotency_key: Some(letter_key(letter).into()),
        // A schema id is a number of the source channel's list and means nothing here.
        schema: None,
        ..Record::default()
    }
}

/// (pipeline, position, stage, sink): one letter per source row and stage.
fn letter_key(letter: &Letter) -> String {
    let sink = letter.sink.as_deref().unwrap_or_default();
    let (record, stage) = (&letter.record, stage_word(letter.stage));
    // A table's row is named by its place; a record's key is as it always was.
    let inside = if record.within > 0 { format!("/{}", record.within) } else { String::new() };
    let key = format!(
        "{}\0{}\0{}\0{}{inside}\0{stage}\0{sink}",
        letter.pipeline, letter.source, record.partition, record.offset
    );
    if key.len() <= IDEMPOTENCY_KEY_BYTES_MAX {
        return key;
    }
    // Too long as it is: a hash of it. The seed is fixed, since the name must be the same after every restart.
    let hash = crate::keys::KeySeed([0; 16]).name(key.as_bytes());
    landfall_types::ChannelId(hash).to_string()
}
