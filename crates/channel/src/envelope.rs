//! The stored row: everything that is delivered, in the form of C74, and nothing else (C70).
//!
//! A unit's rows are encoded once by the publisher and decoded by each reader; ring, replay and export share these
//! bytes, so live delivery equals replay (I2). Decoding trusts nothing: every length is checked against what is there,
//! and nothing is allocated from an unchecked one (I14). The form is described in `docs/formats/envelope.md`.

use std::sync::Arc;

use bytes::{BufMut, Bytes};
use landfall_types::{ChannelId, Offset, PartitionId, Timestamp};

use crate::error::PublishError;
use crate::options::{
    HEADER_NAME_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX, Limits, PUBLISHER_BYTES_MAX, RECORD_KEY_BYTES_MAX,
    TRACE_STATE_BYTES_MAX,
};
use crate::record::{Header, Parent, Record, Trace};

/// Presence bits, in the order of the fields.
mod bit {
    pub(super) const EVENT_TIME: u16 = 1 << 0;
    pub(super) const PUBLISHER: u16 = 1 << 1;
    pub(super) const IDEMPOTENCY_KEY: u16 = 1 << 2;
    pub(super) const RECORD_KEY: u16 = 1 << 3;
    pub(super) const PARENT: u16 = 1 << 4;
    pub(super) const TRACE: u16 = 1 << 5;
    pub(super) const SCHEMA: u16 = 1 << 6;
    pub(super) const HEADERS: u16 = 1 << 7;
    pub(super) const PAYLOAD: u16 = 1 << 8;
    pub(super) const KNOWN: u16 = (1 << 9) - 1;
}

const PARENT_BYTES: usize = 16 + 4 + 8;
const TRACE_FIXED_BYTES: usize = 16 + 8 + 1;

/// Stored bytes are not rows as this version writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvelopeError {
    /// A length passes the end of what holds it.
    #[error("row {row} ends before its {field}: the unit was not written by this version")]
    Short { row: u32, field: &'static str },
    /// A presence bit that this version does not know.
    #[error("row {row} has presence bits {bits:#06x}: written by a newer version")]
    UnknownBits { row: u32, bits: u16 },
    /// A text is not UTF-8.
    #[error("row {row}: {field} is not UTF-8")]
    NotText { row: u32, field: &'static str },
    /// Bytes are left behind the last field of a row, or behind the last row.
    #[error("row {row}: bytes are left over")]
    LeftOver { row: u32 },
}

/// Checks one record against the fixed limits and the channel's, before anything is reserved for it (C8).
pub(crate) fn check(index: usize, record: &Record, limits: &Limits) -> Result<(), PublishError> {
    let bad = |field: &'static str, reason: String| Err(PublishError::BadField { index, field, reason });
    let lengths = [
        ("idempotency key", record.idempotency_key.as_ref().map(Bytes::len), 1, IDEMPOTENCY_KEY_BYTES_MAX),
        ("record key", record.key.as_ref().map(Bytes::len), 0, RECORD_KEY_BYTES_MAX),
        ("publisher", record.publisher.as_ref().map(|name| name.len()), 1, PUBLISHER_BYTES_MAX),
        (
            "tracestate",
            record.trace.as_ref().and_then(|trace| trace.state.as_ref()).map(|state| state.len()),
            0,
            TRACE_STATE_BYTES_MAX,
        ),
    ];
    for (field, len, least, most) in lengths {
        if let Some(len) = len.filter(|len| *len < least || *len > most) {
            return bad(field, format!("has {len} bytes, expected {least} to {most}"));
        }
    }
    if record.headers.len() > limits.headers as usize {
        let reason = format!("are {}, the limit is {} (limits.headers)", record.headers.len(), limits.headers);
        return bad("headers", reason);
    }
    if let Some(header) = record.headers.iter().find(|header| header.name.len() > HEADER_NAME_BYTES_MAX) {
        return bad(
            "header name",
            format!("has {} bytes, expected at most {HEADER_NAME_BYTES_MAX}", header.name.len()),
        );
    }
    let headers: u64 = record.headers.iter().map(|header| (header.name.len() + header.value.len()) as u64).sum();
    if headers > limits.header_bytes.0 {
        let reason = format!("take {headers} bytes, the limit is {} (limits.header_bytes)", limits.header_bytes);
        return bad("headers", reason);
    }
    let bytes = record.payload.len() as u64 + record.key.as_ref().map_or(0, Bytes::len) as u64 + headers;
    if bytes > limits.record_bytes.0 {
        return Err(PublishError::RecordTooLarge { index, bytes, limit: limits.record_bytes });
    }
    Ok(())
}

/// The bytes of a record as a row, its own length field included.
pub(crate) fn row_len(record: &Record) -> usize {
    let variable = |len: usize| 4 + len;
    4 + 2
        + record.event_time.map_or(0, |_| 8)
        + record.publisher.as_ref().map_or(0, |name| variable(name.len()))
        + record.idempotency_key.as_ref().map_or(0, |key| variable(key.len()))
        + record.key.as_ref().map_or(0, |key| variable(key.len()))
        + record.parent.map_or(0, |_| PARENT_BYTES)
        + record
            .trace
            .as_ref()
            .map_or(0, |trace| TRACE_FIXED_BYTES + variable(trace.state.as_ref().map_or(0, |state| state.len())))
        + record.schema.map_or(0, |_| 4)
        + if record.headers.is_empty() { 0 } else { variable(headers_len(&record.headers)) }
        + variable(record.payload.len())
}

fn headers_len(headers: &[Header]) -> usize {
    headers.iter().map(|header| 2 + header.name.len() + 4 + header.value.len()).sum()
}

/// The rows of a unit. The records have passed [`check`], so every length fits its field.
pub(crate) fn encode(records: &[Record]) -> Bytes {
    let mut rows = Vec::with_capacity(records.iter().map(row_len).sum());
    for record in records {
        put_row(&mut rows, record);
    }
    // Shared from the start: else the first clone, which is the committer's, would allocate.
    Bytes::from_owner(rows)
}

fn put_row(rows: &mut Vec<u8>, record: &Record) {
    let bits = [
        (bit::EVENT_TIME, record.event_time.is_some()),
        (bit::PUBLISHER, record.publisher.is_some()),
        (bit::IDEMPOTENCY_KEY, record.idempotency_key.is_some()),
        (bit::RECORD_KEY, record.key.is_some()),
        (bit::PARENT, record.parent.is_some()),
        (bit::TRACE, record.trace.is_some()),
        (bit::SCHEMA, record.schema.is_some()),
        (bit::HEADERS, !record.headers.is_empty()),
        (bit::PAYLOAD, true),
    ];
    let bits = bits.into_iter().filter(|(_, present)| *present).fold(0, |all, (bit, _)| all | bit);
    rows.put_u32_le((row_len(record) - 4) as u32);
    rows.put_u16_le(bits);
    if let Some(time) = record.event_time {
        rows.put_i64_le(time.0);
    }
    if let Some(name) = &record.publisher {
        put_variable(rows, name.as_bytes());
    }
    if let Some(key) = &record.idempotency_key {
        put_variable(rows, key);
    }
    if let Some(key) = &record.key {
        put_variable(rows, key);
    }
    if let Some(parent) = &record.parent {
        rows.put_slice(&parent.channel.0);
        rows.put_u32_le(parent.partition.0);
        rows.put_u64_le(parent.offset.0);
    }
    if let Some(trace) = &record.trace {
        rows.put_slice(&trace.trace_id);
        rows.put_slice(&trace.span_id);
        rows.put_u8(trace.flags);
        put_variable(rows, trace.state.as_deref().unwrap_or_default().as_bytes());
    }
    if let Some(schema) = record.schema {
        rows.put_u32_le(schema);
    }
    if !record.headers.is_empty() {
        rows.put_u32_le(headers_len(&record.headers) as u32);
        for header in &record.headers {
            rows.put_u16_le(header.name.len() as u16);
            rows.put_slice(header.name.as_bytes());
            put_variable(rows, &header.value);
        }
    }
    put_variable(rows, &record.payload);
}

fn put_variable(rows: &mut Vec<u8>, bytes: &[u8]) {
    rows.put_u32_le(bytes.len() as u32);
    rows.put_slice(bytes);
}

/// One row, borrowed: what a lane needs to fill columns without a record in between.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row<'a> {
    pub(crate) event_time: Option<i64>,
    pub(crate) publisher: Option<&'a str>,
    pub(crate) idempotency_key: Option<&'a [u8]>,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) parent: Option<Parent>,
    pub(crate) trace: Option<(&'a [u8], &'a str)>,
    pub(crate) schema: Option<u32>,
    headers: &'a [u8],
    pub(crate) payload: &'a [u8],
}

/// The rows of a unit, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Rows<'a> {
    left: &'a [u8],
    row: u32,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(rows: &'a [u8]) -> Self {
        Rows { left: rows, row: 0 }
    }

    /// Passes over up to `count` rows without decoding them.
    pub(crate) fn skip_rows(&mut self, count: u32) -> Result<(), EnvelopeError> {
        for _ in 0..count {
            if self.take_row()?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// The bytes that are not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.left
    }

    /// Takes a row that is a payload and nothing else, as most are. `None`: the next one is more, or not whole, or there is
    /// none; then nothing is taken.
    #[inline]
    pub(crate) fn next_bare(&mut self) -> Option<&'a [u8]> {
        let ([l0, l1, l2, l3, b0, b1, p0, p1, p2, p3], rest) = self.left.split_first_chunk::<10>()?;
        let (length, payload) = (u32::from_le_bytes([*l0, *l1, *l2, *l3]), u32::from_le_bytes([*p0, *p1, *p2, *p3]));
        // The presence bits and the payload's own length.
        if u16::from_le_bytes([*b0, *b1]) != bit::PAYLOAD || length.checked_sub(2 + 4) != Some(payload) {
            return None;
        }
        let (payload, left) = rest.split_at_checked(payload as usize)?;
        self.left = left;
        self.row += 1;
        Some(payload)
    }

    fn take_row(&mut self) -> Result<Option<&'a [u8]>, EnvelopeError> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let mut fields = Fields { left: self.left, row: self.row };
        let row = fields.variable("length")?;
        self.left = fields.left;
        self.row += 1;
        Ok(Some(row))
    }

    /// The next row; `None` behind the last.
    pub(crate) fn next_row(&mut self) -> Result<Option<Row<'a>>, EnvelopeError> {
        let number = self.row;
        match self.take_row()? {
            None => Ok(None),
            Some(bytes) => parse_row(Fields { left: bytes, row: number }).map(Some),
        }
    }
}

struct Fields<'a> {
    left: &'a [u8],
    row: u32,
}

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], EnvelopeError> {
        match self.left.split_at_checked(len) {
            Some((taken, left)) => {
                self.left = left;
                Ok(taken)
            }
            None => Err(EnvelopeError::Short { row: self.row, field }),
        }
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], EnvelopeError> {
        let taken = self.take(N, field)?;
        taken.try_into().map_err(|_| EnvelopeError::Short { row: self.row, field })
    }

    fn variable(&mut self, field: &'static str) -> Result<&'a [u8], EnvelopeError> {
        let len = u32::from_le_bytes(self.array(field)?);
        self.take(len as usize, field)
    }

    fn text(&self, bytes: &'a [u8], field: &'static str) -> Result<&'a str, EnvelopeError> {
        std::str::from_utf8(bytes).map_err(|_| EnvelopeError::NotText { row: self.row, field })
    }
}

fn parse_row(mut fields: Fields<'_>) -> Result<Row<'_>, EnvelopeError> {
    let bits = u16::from_le_bytes(fields.array("presence bits")?);
    if bits & !bit::KNOWN != 0 {
        return Err(EnvelopeError::UnknownBits { row: fields.row, bits });
    }
    let has = |bit: u16| bits & bit != 0;
    let mut row = Row::default();
    if has(bit::EVENT_TIME) {
        row.event_time = Some(i64::from_le_bytes(fields.array("event time")?));
    }
    if has(bit::PUBLISHER) {
        let name = fields.variable("publisher")?;
        row.publisher = Some(fields.text(name, "publisher")?);
    }
    if has(bit::IDEMPOTENCY_KEY) {
        row.idempotency_key = Some(fields.variable("idempotency key")?);
    }
    if has(bit::RECORD_KEY) {
        row.key = Some(fields.variable("record key")?);
    }
    if has(bit::PARENT) {
        row.parent = Some(Parent {
            channel: ChannelId(fields.array("parent")?),
            partition: PartitionId(u32::from_le_bytes(fields.array("parent")?)),
            offset: Offset(u64::from_le_bytes(fields.array("parent")?)),
        });
    }
    if has(bit::TRACE) {
        let fixed = fields.take(TRACE_FIXED_BYTES, "trace")?;
        let state = fields.variable("tracestate")?;
        row.trace = Some((fixed, fields.text(state, "tracestate")?));
    }
    if has(bit::SCHEMA) {
        row.schema = Some(u32::from_le_bytes(fields.array("schema id")?));
    }
    if has(bit::HEADERS) {
        row.headers = fields.variable("headers")?;
        let mut headers = Headers { fields: Fields { left: row.headers, row: fields.row } };
        while headers.next_header()?.is_some() {}
    }
    if has(bit::PAYLOAD) {
        row.payload = fields.variable("payload")?;
    }
    if !fields.left.is_empty() {
        return Err(EnvelopeError::LeftOver { row: fields.row });
    }
    Ok(row)
}

struct Headers<'a> {
    fields: Fields<'a>,
}

impl<'a> Headers<'a> {
    fn next_header(&mut self) -> Result<Option<(&'a str, &'a [u8])>, EnvelopeError> {
        if self.fields.left.is_empty() {
            return Ok(None);
        }
        let len = u16::from_le_bytes(self.fields.array("header name")?);
        let name = self.fields.take(len as usize, "header name")?;
        let name = self.fields.text(name, "header name")?;
        let value = self.fields.variable("header value")?;
        Ok(Some((name, value)))
    }
}

impl<'a> Row<'a> {
    /// The headers, in order. They were checked when the row was parsed.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let mut headers = Headers { fields: Fields { left: self.headers, row: 0 } };
        std::iter::from_fn(move || headers.next_header().ok().flatten())
    }

    /// The record; its bytes share `unit`, which the row was read from.
    pub(crate) fn to_record(self, unit: &Bytes) -> Record {
        Record {
            payload: unit.slice_ref(self.payload),
            key: self.key.map(|key| unit.slice_ref(key)),
            headers: self
                .headers()
                .map(|(name, value)| Header { name: name.to_owned(), value: unit.slice_ref(value) })
                .collect(),
            event_time: self.event_time.map(Timestamp),
            idempotency_key: self.idempotency_key.map(|key| unit.slice_ref(key)),
            parent: self.parent,
            trace: self.trace.and_then(|(fixed, state)| {
                let (trace_id, rest) = fixed.split_first_chunk::<16>()?;
                let (span_id, flags) = rest.split_first_chunk::<8>()?;
                let state = (!state.is_empty()).then(|| Arc::from(state));
                Some(Trace { trace_id: *trace_id, span_id: *span_id, flags: *flags.first()?, state })
            }),
            schema: self.schema,
            publisher: self.publisher.map(Arc::from),
        }
    }
}

/// The records of a unit.
pub(crate) fn decode(unit: &Bytes) -> Result<Vec<Record>, EnvelopeError> {
    let mut records = Vec::new();
    let mut rows = Rows::new(unit);
    while let Some(row) = rows.next_row()? {
        records.push(row.to_record(unit));
    }
    Ok(records)
}

#[cfg(test)]
mod tests;
