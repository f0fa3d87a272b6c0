//! Rows of units as a batch in the payload schema (overview §4), without a record in between.

use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, BinaryBuilder, BinaryViewBuilder, StringBuilder};
use arrow_array::{
    ArrayRef, ListArray, RecordBatch, StructArray, TimestampMicrosecondArray, UInt32Array, UInt64Array, new_null_array,
};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DataType};
use landfall_engine::contract::{columns, payload_schema};
use landfall_log::StoredUnit;
use landfall_types::{Offset, PartitionId};

use crate::envelope::{EnvelopeError, Row, Rows};

/// Units of at least so many bytes are shared with the batch instead of copied: below, a buffer of its own would cost
/// every kernel that walks the buffers more than the copy does.
const SHARE_UNIT_BYTES: usize = 16 << 10;

/// Why no batch came of the units.
#[derive(Debug, thiserror::Error)]
pub(super) enum ColumnsError {
    #[error("the units begin at {first} where {expected} was due")]
    NotContiguous { expected: Offset, first: Offset },
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    #[error(transparent)]
    Arrow(#[from] ArrowError),
}

/// Columns in the making.
pub(super) struct Columns {
    partition: PartitionId,
    first: Offset,
    rows: usize,
    bytes: usize,
    payload: BinaryViewBuilder,
    /// From the first key on; the rows before it have none.
    key: Option<BinaryViewBuilder>,
    times: Vec<i64>,
    header_ends: Vec<i32>,
    header_names: StringBuilder,
    header_values: BinaryBuilder,
    schemas: Vec<Option<u32>>,
}

impl Columns {
    pub(super) fn new(partition: PartitionId, first: Offset) -> Columns {
        Columns {
            partition,
            first,
            rows: 0,
            bytes: 0,
            payload: BinaryViewBuilder::new(),
            key: None,
            times: Vec::new(),
            header_ends: vec![0],
            header_names: StringBuilder::new(),
            header_values: BinaryBuilder::new(),
            schemas: Vec::new(),
        }
    }

    /// The offset after the last row.
    pub(super) fn end(&self) -> Offset {
        Offset(self.first.0 + self.rows as u64)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Adds rows of a unit until it ends or the limits are met (one row always fits); true: it ended.
    pub(super) fn add(&mut self, unit: &StoredUnit, rows_max: usize, bytes_max: usize) -> Result<bool, ColumnsError> {
        let expected = self.end();
        if unit.first > expected || unit.end() <= expected {
            return Err(ColumnsError::NotContiguous { expected, first: unit.first });
        }
        let mut rows = Rows::new(&unit.rows);
        rows.skip_rows(u32::try_from(expected.since(unit.first)).unwrap_or(u32::MAX))?;
        let block =
            (unit.rows.len() >= SHARE_UNIT_BYTES).then(|| self.payload.append_block(Buffer::from(unit.rows.clone())));
        let is_full = |columns: &Columns, payload: &[u8]| {
            columns.rows > 0 && (columns.rows >= rows_max || columns.bytes + payload.len() > bytes_max)
        };
        loop {
            let before = self.rows;
            let mut is_cut = false;
            while let Some(payload) = rows.next_bare() {
                is_cut = is_full(self, payload);
                if is_cut {
                    break;
                }
                self.add_payload(unit, payload, block)?;
            }
            self.bare_since(before, unit);
            if is_cut {
                return Ok(false);
            }
            let Some(row) = rows.next_row()? else { return Ok(true) };
            if is_full(self, row.payload) {
                return Ok(false);
            }
            self.add_row(unit, &row, block)?;
        }
    }

    #[inline]
    fn add_payload(&mut self, unit: &StoredUnit, payload: &[u8], block: Option<u32>) -> Result<(), ColumnsError> {
        match block {
            Some(block) => {
                // The row lies inside the unit, whose length is below 2^32.
                let at = payload.as_ptr() as usize - unit.rows.as_ptr() as usize;
                self.payload.try_append_view(block, at as u32, payload.len() as u32)?;
            }
            None => self.payload.try_append_value(payload)?,
        }
        self.rows += 1;
        self.bytes += payload.len();
        Ok(())
    }

    /// Fills the other columns for rows that have nothing but a payload, from row `before` on.
    fn bare_since(&mut self, before: usize, unit: &StoredUnit) {
        if let Some(key) = &mut self.key {
            (before..self.rows).for_each(|_| key.append_null());
        }
        self.times.resize(self.rows, unit.append_time.0);
        self.header_ends.resize(self.rows + 1, self.header_ends.last().copied().unwrap_or(0));
        self.schemas.resize(self.rows, None);
    }

    fn add_row(&mut self, unit: &StoredUnit, row: &Row<'_>, block: Option<u32>) -> Result<(), ColumnsError> {
        let before = self.rows;
        self.add_payload(unit, row.payload, block)?;
        if row.key.is_some() && self.key.is_none() {
            let mut none_yet = BinaryViewBuilder::new();
            (0..before).for_each(|_| none_yet.append_null());
            self.key = Some(none_yet);
        }
        match (&mut self.key, row.key) {
            (Some(keys), Some(key)) => keys.try_append_value(key)?,
            (Some(keys), None) => keys.append_null(),
            (None, _) => {}
        }
        self.times.push(row.event_time.unwrap_or(unit.append_time.0));
        for (name, value) in row.headers() {
            self.header_names.append_value(name);
            self.header_values.append_value(value);
            self.bytes += name.len() + value.len();
        }
        // At most 256 headers a record and some thousand records a batch: far below 2^31.
        self.header_ends.push(self.header_names.len() as i32);
        self.schemas.push(row.schema);
        self.bytes += row.key.map_or(0, <[u8]>::len);
        Ok(())
    }

    /// The batch, and about how much memory it keeps alive.
    pub(super) fn finish(mut self) -> Result<(RecordBatch, usize), ColumnsError> {
        let schema = payload_schema();
        let rows = self.rows;
        let headers = schema.field_with_name(columns::HEADERS)?;
        let DataType::List(item) = headers.data_type() else {
            return Err(ArrowError::SchemaError("headers are not a list".into()).into());
        };
        let DataType::Struct(fields) = item.data_type() else {
            return Err(ArrowError::SchemaError("headers are not a list of structs".into()).into());
        };
        let parts: Vec<ArrayRef> = vec![Arc::new(self.header_names.finish()), Arc::new(self.header_values.finish())];
        let entries = StructArray::try_new(fields.clone(), parts, None::<NullBuffer>)?;
        let ends = OffsetBuffer::new(self.header_ends.into());
        let headers = ListArray::try_new(Arc::clone(item), ends, Arc::new(entries), None)?;
        let offsets = UInt64Array::from_iter_values(self.first.0..self.first.0 + rows as u64);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.payload.finish()),
            match self.key {
                Some(mut key) => Arc::new(key.finish()),
                None => new_null_array(&DataType::BinaryView, rows),
            },
            Arc::new(TimestampMicrosecondArray::from(self.times).with_timezone("UTC")),
            Arc::new(headers),
            Arc::new(UInt32Array::from_value(self.partition.0, rows)),
            Arc::new(offsets),
            Arc::new(UInt32Array::from(self.schemas)),
        ];
        // Views, offsets, times: what the fixed columns take.
        let bytes = self.bytes + rows * 64;
        Ok((RecordBatch::try_new(schema, columns)?, bytes))
    }
}
