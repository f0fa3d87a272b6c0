//! A segment: rows that one slice of one source batch gave to one shard, with the places they stand for and the hold
//! on them. Cut between records only, covers cut and holds shared with the rows (E115).

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array, UInt64Array};
use arrow_schema::DataType;
use landfall_types::Timestamp;

use super::Charge;
use crate::contract::{Covered, TableNote};
use crate::core::Ack;
use crate::source_rows::SourceRows;

/// See the module.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The rows, in the sink's planned schema.
    pub(crate) rows: RecordBatch,
    /// The offset of each row's record, rising; rows of one record lie together.
    pub(crate) offsets: UInt64Array,
    /// The slice's source rows, where the sink may refuse rows: what dead letters are made of.
    pub(crate) origin: Option<RecordBatch>,
    /// Where the slice's source rows stand.
    pub(crate) source: SourceRows,
    /// Of a table's rows: their shape and the mark of a copy.
    pub(crate) note: Option<TableNote>,
    /// The source rows that the segment stands for.
    pub(crate) cover: Covered,
    /// The hold on its source batch for its sink.
    pub(crate) hold: Ack,
    /// The oldest record's time.
    pub(crate) oldest: Timestamp,
    /// The memory that the segment keeps alive.
    pub(crate) bytes: usize,
    /// Its part of the shard's share, from the moment it is queued.
    pub(crate) charge: Option<Charge>,
}

impl Segment {
    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.rows.num_rows()
    }

    /// Whether its rows will be read again, because its epoch has ended.
    pub(crate) fn is_stale(&self) -> bool {
        self.hold.is_stale()
    }

    /// Cuts off the first `rows` rows or a few more, so that the cut lies between records. `Err` gives the segment
    /// back whole: there is no cut before its end.
    pub(crate) fn cut(mut self, rows: usize) -> Result<(Segment, Segment), Box<Segment>> {
        let length = self.len();
        let offsets = self.offsets.values();
        let mut at = rows.max(1);
        while at < length && offsets[at] == offsets[at - 1] {
            at += 1;
        }
        if at >= length {
            return Err(Box::new(self));
        }
        let boundary = self.source.place_of(offsets[at]);
        let source_at = self.source.before(offsets[at]);
        let source_rest = self.source.len() - source_at;
        let head_bytes = self.bytes / length * at;
        let head = Segment {
            rows: self.rows.slice(0, at),
            offsets: self.offsets.slice(0, at),
            origin: self.origin.as_ref().map(|origin| origin.slice(0, source_at.min(origin.num_rows()))),
            source: self.source.slice(0, source_at),
            note: self.note,
            cover: Covered {
                range: self.cover.range.start..boundary,
                // A cover that was joined in front of the slice's own rows keeps its rows in the head.
                rows: self.cover.rows.saturating_sub(u32::try_from(source_rest).unwrap_or(u32::MAX)),
                ..self.cover.clone()
            },
            hold: self.hold.again(),
            oldest: self.oldest,
            bytes: head_bytes,
            charge: self.charge.as_mut().map(|charge| charge.split(head_bytes)),
        };
        self.rows = self.rows.slice(at, length - at);
        self.offsets = self.offsets.slice(at, length - at);
        self.origin = self.origin.map(|origin| {
            let at = source_at.min(origin.num_rows());
            origin.slice(at, origin.num_rows() - at)
        });
        self.source = self.source.slice(source_at, source_rest);
        self.cover.range.start = boundary;
        self.cover.rows -= head.cover.rows;
        self.bytes -= head_bytes;
        Ok((head, self))
    }
}

/// Segments on their way into a shard's queue.
#[derive(Debug, Default)]
pub(crate) struct Chunk {
    /// In order; per partition their covers chain.
    pub(crate) segments: Vec<Segment>,
    /// Rows of all segments.
    pub(crate) rows: usize,
    /// Bytes of all segments.
    pub(crate) bytes: usize,
}

impl Chunk {
    /// Adds a segment.
    pub(crate) fn push(&mut self, segment: Segment) {
        self.rows += segment.len();
        self.bytes += segment.bytes;
        self.segments.push(segment);
    }

    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether a segment would bring another note than those that are in it.
    pub(crate) fn differs_from(&self, segment: &Segment) -> bool {
        self.segments.first().is_some_and(|first| first.note != segment.note)
    }
}

/// The bytes of an array's own values, without what a view or slice pins besides.
fn own_bytes(array: &ArrayRef) -> usize {
    match array.data_type() {
        DataType::BinaryView => array.len() * 16 + array.as_binary_view().total_buffer_bytes_used(),
        DataType::Utf8View => array.len() * 16 + array.as_string_view().total_buffer_bytes_used(),
        _ => array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size()),
    }
}

/// The memory that a batch keeps alive.
pub(crate) fn memory_of(rows: &RecordBatch) -> usize {
    rows.get_array_memory_size()
}

/// The batch, copied where it would pin more than twice its own bytes (E91).
pub(crate) fn compacted(rows: RecordBatch) -> RecordBatch {
    // Below this a copy costs more than what it frees.
    const PINNED_BYTES_MIN: usize = 64 * 1024;
    let pinned = memory_of(&rows);
    if pinned < PINNED_BYTES_MIN {
        return rows;
    }
    let own: usize = rows.columns().iter().map(own_bytes).sum();
    if pinned <= own.saturating_mul(2).saturating_add(PINNED_BYTES_MIN) {
        return rows;
    }
    let every = UInt32Array::from_iter_values(0..u32::try_from(rows.num_rows()).unwrap_or(u32::MAX));
    let columns: Option<Vec<ArrayRef>> = rows
        .columns()
        .iter()
        .map(|column| match column.data_type() {
            DataType::BinaryView => Some(std::sync::Arc::new(column.as_binary_view().gc()) as ArrayRef),
            DataType::Utf8View => Some(std::sync::Arc::new(column.as_string_view().gc()) as ArrayRef),
            _ => arrow_select::take::take(column, &every, None).ok(),
        })
        .collect();
    let copied = columns.and_then(|columns| {
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        RecordBatch::try_new_with_options(rows.schema(), columns, &options).ok()
    });
    // A type that cannot be copied stays pinned: memory is counted as it is, nothing is lost.
    copied.unwrap_or(rows)
}
