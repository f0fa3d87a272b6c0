//! Dead letters: what is kept of a row that cannot be handled, and the bounded queue of the chain's letters (E111).
//!
//! A source batch is held until its letters are durable, so a letter that cannot be stored holds back the watermark
//! and, once the queue is full, parks the lane: nothing is dropped (I7). A record is one letter, however many of its
//! rows were refused, and none of its rows lands in that sink: so publishing a letter again makes no second row.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampMicrosecondType, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use bytes::Bytes;
use landfall_types::{Code, Offset, PartitionId, Place, Timestamp};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::contract::{BadRow, DeadLetter, Header, Letter, OwnedRecord, PipelineId, Stage, columns, is_hidden};
use crate::core::{Ack, FailCause, Wake, Waker};
use crate::options::Backoff;

/// A source record, copied out of its batch. A row without a payload is a table's: its columns stand for it, as text.
pub(crate) fn record_at(rows: &RecordBatch, row: usize, partition: PartitionId, place: Place) -> OwnedRecord {
    let bytes = |name: &str| -> Option<Bytes> {
        let column = rows.column_by_name(name)?;
        if row >= column.len() || column.is_null(row) {
            return None;
        }
        if let Some(views) = column.as_binary_view_opt() {
            return Some(Bytes::copy_from_slice(views.value(row)));
        }
        if let Some(texts) = column.as_string_opt::<i32>() {
            return Some(Bytes::copy_from_slice(texts.value(row).as_bytes()));
        }
        column.as_binary_opt::<i32>().map(|binary| Bytes::copy_from_slice(binary.value(row)))
    };
    let headers = rows.column_by_name(columns::HEADERS).and_then(|column| {
        let list = column.as_list_opt::<i32>()?;
        if row >= list.len() || list.is_null(row) {
            return None;
        }
        let entries = list.value(row);
        let entries = entries.as_struct_opt()?;
        let names = entries.column_by_name("name")?.as_string_opt::<i32>()?;
        let values = entries.column_by_name("value")?.as_binary_opt::<i32>()?;
        Some(
            (0..entries.len())
                .map(|at| Header { name: names.value(at).to_owned(), value: Bytes::copy_from_slice(values.value(at)) })
                .collect(),
        )
    });
    let timestamp = times_of(rows)
        .and_then(|column| column.as_primitive_opt::<TimestampMicrosecondType>())
        .filter(|times| row < times.len())
        .map_or(0, |times| times.value(row));
    let schema = rows
        .column_by_name(columns::SCHEMA)
        .and_then(|column| column.as_primitive_opt::<UInt32Type>())
        .filter(|schemas| row < schemas.len() && schemas.is_valid(row))
        .map(|schemas| schemas.value(row));
    OwnedRecord {
        partition,
        offset: Offset(place.at),
        within: place.within,
        payload: match rows.column_by_name(columns::PAYLOAD) {
            Some(_) => bytes(columns::PAYLOAD).unwrap_or_default(),
            None => columns_as_text(rows, row),
        },
        key: bytes(columns::KEY),
        headers: headers.unwrap_or_default(),
        timestamp: Timestamp(timestamp),
        schema,
    }
}

/// When rows were published, or committed.
pub(crate) fn times_of(rows: &RecordBatch) -> Option<&arrow_array::ArrayRef> {
    rows.column_by_name(columns::TIMESTAMP).or_else(|| rows.column_by_name(columns::COMMIT_TS))
}

/// A JSON object of column → text, hidden columns left out; NULL is null.
fn columns_as_text(rows: &RecordBatch, row: usize) -> Bytes {
    let options = FormatOptions::new();
    let mut object = serde_json::Map::with_capacity(rows.num_columns());
    for (field, column) in rows.schema_ref().fields().iter().zip(rows.columns()) {
        if is_hidden(field.name()) || row >= column.len() {
            continue;
        }
        let text = if column.is_null(row) {
            serde_json::Value::Null
        } else {
            let formatter = ArrayFormatter::try_new(column.as_ref(), &options);
            let text = formatter.map(|formatter| formatter.value(row).to_string());
            serde_json::Value::String(text.unwrap_or_else(|error| format!("({error})")))
        };
        object.insert(field.name().clone(), text);
    }
    Bytes::from(serde_json::Value::Object(object).to_string())
}

/// A row that the source could not make, as a record.
pub(crate) fn bad_record(bad: &BadRow, partition: PartitionId, timestamp: Timestamp) -> OwnedRecord {
    OwnedRecord {
        partition,
        offset: Offset(bad.place.at),
        within: bad.place.within,
        payload: bad.bytes.clone(),
        key: None,
        headers: Vec::new(),
        timestamp,
        schema: None,
    }
}

/// The offsets of a batch, if it has them.
pub(crate) fn offsets_of(rows: &RecordBatch) -> Option<arrow_array::UInt64Array> {
    rows.column_by_name(columns::OFFSET)?.as_primitive_opt::<UInt64Type>().cloned()
}

/// Who a letter is from: the same for every letter of a pipeline.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    pub(crate) pipeline: PipelineId,
    pub(crate) source: String,
}

impl Sender {
    /// A letter.
    pub(crate) fn letter(
        &self,
        record: OwnedRecord,
        sink: Option<&str>,
        stage: Stage,
        code: Code,
        text: &str,
    ) -> Letter {
        const TEXT_BYTES_MAX: usize = 1024;
        let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        Letter {
            record,
            pipeline: self.pipeline.clone(),
            sink: sink.map(str::to_owned),
            stage,
            code,
            text: text[..end].to_owned(),
            source: self.source.clone(),
        }
    }
}

/// The memory of a letter, about.
pub(crate) fn letter_bytes(letter: &Letter) -> usize {
    let headers: usize = letter.record.headers.iter().map(|header| header.name.len() + header.value.len() + 48).sum();
    letter.record.payload.len() + letter.record.key.as_ref().map_or(0, Bytes::len) + headers + letter.text.len() + 256
}

/// Stores letters, trying again until it works; cancelled by whoever waits for it. `blocked` hears of failures.
pub(crate) async fn store_until_durable(
    store: &Arc<dyn DeadLetter>,
    letters: &[Letter],
    backoff: &Backoff,
    mut blocked: impl FnMut(Option<FailCause>),
) {
    let mut attempt = 0u32;
    loop {
        match store.store(letters).await {
            Ok(()) => {
                if attempt > 0 {
                    blocked(None);
                }
                return;
            }
            Err(error) => {
                attempt = attempt.saturating_add(1);
                let delay = backoff.delay(attempt, crate::random::fraction());
                let text = format!("dead letters cannot be stored: {error}");
                blocked(Some(FailCause::new(crate::codes::DEAD_LETTERS_BLOCKED, text)));
                tokio::time::sleep(delay).await;
            }
        }
    }
}

/// Letters of one slice, with the holds on their source batch.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) letters: Vec<Letter>,
    pub(crate) bytes: usize,
    pub(crate) holds: Vec<Ack>,
}

#[derive(Debug, Default)]
struct Inside {
    parcels: VecDeque<Parcel>,
    letters: usize,
    bytes: usize,
    is_shut: bool,
    is_closed: bool,
    cause: Option<FailCause>,
}

/// The queue of the chain's letters, bounded in letters and bytes (I6).
#[derive(Debug)]
pub(crate) struct LetterQueue {
    inside: Mutex<Inside>,
    work: Notify,
    drivers: Mutex<Vec<Arc<Waker>>>,
}

const QUEUED_LETTERS_MAX: usize = 16_384;
const QUEUED_BYTES_MAX: usize = 16 << 20;
/// One call of the store takes at most so many.
const STORED_LETTERS_MAX: usize = 1_000;
const STORED_BYTES_MAX: usize = 4 << 20;

impl LetterQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(LetterQueue {
            inside: Mutex::new(Inside::default()),
            work: Notify::new(),
            drivers: Mutex::new(Vec::new()),
        })
    }

    /// Takes the parcel or gives it back. A parcel larger than the room enters an empty queue.
    pub(crate) fn try_send(&self, parcel: Parcel) -> Result<(), Parcel> {
        let mut inside = self.inside.lock();
        let fits = inside.parcels.is_empty()
            || (inside.letters + parcel.letters.len() <= QUEUED_LETTERS_MAX
                && inside.bytes + parcel.bytes <= QUEUED_BYTES_MAX);
        if inside.is_closed || inside.is_shut || !fits {
            inside.is_shut = true;
            return Err(parcel);
        }
        inside.letters += parcel.letters.len();
        inside.bytes += parcel.bytes;
        inside.parcels.push_back(parcel);
        drop(inside);
        self.work.notify_one();
        Ok(())
    }

    pub(crate) fn add_driver(&self, waker: Arc<Waker>) {
        self.drivers.lock().push(waker);
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.inside.lock().is_shut
    }

    /// Why letters cannot be stored now.
    pub(crate) fn cause(&self) -> Option<FailCause> {
        self.inside.lock().cause.clone()
    }

    /// No more letters; the worker ends once the rest is stored.
    pub(crate) fn close(&self) {
        self.inside.lock().is_closed = true;
        self.work.notify_one();
    }

    fn take(&self) -> (Vec<Parcel>, bool) {
        let mut inside = self.inside.lock();
        let (mut letters, mut bytes) = (0, 0);
        let mut taken = Vec::new();
        while let Some(next) = inside.parcels.front() {
            if !taken.is_empty()
                && (letters + next.letters.len() > STORED_LETTERS_MAX || bytes + next.bytes > STORED_BYTES_MAX)
            {
                break;
            }
            letters += next.letters.len();
            bytes += next.bytes;
            taken.extend(inside.parcels.pop_front());
        }
        inside.letters -= letters;
        inside.bytes -= bytes;
        let is_over = taken.is_empty() && inside.is_closed;
        let opens = inside.letters <= QUEUED_LETTERS_MAX / 2
            && inside.bytes <= QUEUED_BYTES_MAX / 2
            && std::mem::take(&mut inside.is_shut);
        drop(inside);
        if opens {
            for driver in self.drivers.lock().iter() {
                driver.wake(Wake::ROOM);
            }
        }
        (taken, is_over)
    }

    /// The next parcel, as the worker would take it.
    #[cfg(all(test, not(feature = "loom")))]
    pub(crate) fn take_for_test(&self) -> Option<Parcel> {
        self.inside.lock().parcels.pop_front()
    }

    /// The dead-letter worker: stores and delivers until the queue is closed and empty.
    pub(crate) async fn work(self: Arc<Self>, store: Arc<dyn DeadLetter>, backoff: Backoff) {
        loop {
            let (parcels, is_over) = self.take();
            if is_over {
                return;
            }
            if parcels.is_empty() {
                self.work.notified().await;
                continue;
            }
            let mut holds = Vec::new();
            let mut letters = Vec::new();
            for parcel in parcels {
                letters.extend(parcel.letters);
                holds.extend(parcel.holds);
            }
            // A parcel may be larger than one call takes; the holds go once all of it is stored.
            for part in letters.chunks(STORED_LETTERS_MAX) {
                store_until_durable(&store, part, &backoff, |cause| {
                    if let Some(cause) = &cause {
                        tracing::warn!(code = %cause.code, "{}; the partition waits", cause.text);
                    }
                    self.inside.lock().cause = cause;
                })
                .await;
            }
            holds.into_iter().for_each(Ack::deliver);
        }
    }
}
