//! What every decoder does around its columns: reading payloads out of the payload schema, and putting the hidden
//! columns behind what was decoded, so that each row keeps its origin (overview §4, E106).

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, BinaryViewArray, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use landfall_engine::contract::{EngineError, Wanted, columns, payload_schema};

use crate::code;

/// The payload column in either form.
pub(crate) enum Payloads<'a> {
    View(&'a BinaryViewArray),
    Plain(&'a BinaryArray),
}

impl<'a> Payloads<'a> {
    pub(crate) fn of(records: &'a RecordBatch) -> Result<Self, EngineError> {
        let found = records.column_by_name(columns::PAYLOAD);
        match found.map(|column| (column, column.data_type())) {
            Some((column, DataType::BinaryView)) => Ok(Payloads::View(column.as_binary_view())),
            Some((column, DataType::Binary)) => Ok(Payloads::Plain(column.as_binary())),
            Some((_, other)) => Err(wrong(format!("column `{}` is {other}, expected BinaryView", columns::PAYLOAD))),
            None => Err(wrong(format!("the batch has no column `{}`", columns::PAYLOAD))),
        }
    }

    #[inline]
    pub(crate) fn get(&self, row: usize) -> &'a [u8] {
        match self {
            Payloads::View(array) => array.value(row),
            Payloads::Plain(array) => array.value(row),
        }
    }
}

fn wrong(text: String) -> EngineError {
    EngineError { code: code::WRONG_PAYLOAD, text }
}

/// The hidden columns of a decoder's output.
pub(crate) struct Hidden {
    /// Name in the payload schema, and the field of the output.
    columns: Vec<(&'static str, FieldRef)>,
}

impl Hidden {
    pub(crate) fn new(wanted: &Wanted) -> Self {
        let names = [
            (columns::PARTITION, columns::PARTITION, true),
            (columns::OFFSET, columns::OFFSET, true),
            (columns::KEY, columns::RECORD_KEY, wanted.record_key),
            (columns::TIMESTAMP, columns::RECORD_TIMESTAMP, wanted.record_timestamp),
            (columns::HEADERS, columns::RECORD_HEADERS, wanted.record_headers),
        ];
        let payload = payload_schema();
        let columns = names
            .into_iter()
            .filter(|(_, _, is_wanted)| *is_wanted)
            .filter_map(|(from, to, _)| {
                let (_, field) = payload.fields().find(from)?;
                Some((from, Arc::new(Field::new(to, field.data_type().clone(), field.is_nullable()))))
            })
            .collect();
        Hidden { columns }
    }

    pub(crate) fn append_to(&self, decoded: &Fields) -> SchemaRef {
        let fields: Vec<FieldRef> =
            decoded.iter().cloned().chain(self.columns.iter().map(|(_, field)| field.clone())).collect();
        Arc::new(Schema::new(fields))
    }

    /// Puts the hidden columns of `records` behind `decoded`; row n of it came from record `origins[n]`.
    pub(crate) fn assemble(
        &self,
        records: &RecordBatch,
        origins: &[u32],
        mut decoded: Vec<ArrayRef>,
        output: &SchemaRef,
    ) -> Result<RecordBatch, EngineError> {
        let is_whole = origins.len() == records.num_rows()
            && origins.iter().enumerate().all(|(row, origin)| *origin as usize == row);
        let rows = (!is_whole).then(|| UInt32Array::from(origins.to_vec()));
        for (name, _) in &self.columns {
            let column =
                records.column_by_name(name).ok_or_else(|| wrong(format!("the batch has no column `{name}`")))?;
            decoded.push(match &rows {
                None => column.clone(),
                Some(rows) => arrow_select::take::take(column, rows, None)
                    .map_err(|error| wrong(format!("column `{name}` cannot be taken: {error}")))?,
            });
        }
        RecordBatch::try_new(output.clone(), decoded).map_err(|error| EngineError {
            code: code::BAD_ROWS,
            text: format!("decoded columns do not make a batch: {error}"),
        })
    }
}
