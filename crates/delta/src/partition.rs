//! Splits batches by partition value, and writes values as Delta's log does (E126).
//!
//! Order inside a partition value is kept. An empty string and NULL are one value, as the Delta protocol says.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{ArrowError, DataType, SchemaRef, TimeUnit};
use arrow_select::take::take_record_batch;

use crate::layout::Layout;

/// The partition values of a data file, by column; `None` is NULL. Empty where the table has no partition columns.
pub(crate) type PartitionValue = Vec<Option<String>>;

/// Splits the rows of a batch with the planned schema into batches with the schema of data files, by value, in the
/// order in which values appear. Without partition columns nothing is copied.
pub(crate) fn split(
    batch: &RecordBatch,
    layout: &Layout,
    data_schema: &SchemaRef,
) -> Result<Vec<(PartitionValue, RecordBatch)>, ArrowError> {
    let columns: Vec<ArrayRef> = layout.data.iter().map(|at| batch.column(*at).clone()).collect();
    let data = RecordBatch::try_new(data_schema.clone(), columns)?;
    if data.num_rows() == 0 {
        return Ok(Vec::new());
    }
    if layout.partition.is_empty() {
        return Ok(vec![(Vec::new(), data)]);
    }
    let texts: Vec<ArrayRef> =
        layout.partition.iter().map(|at| without_zone(batch.column(*at))).collect::<Result<_, _>>()?;
    let options = FormatOptions::new().with_timestamp_format(Some("%Y-%m-%d %H:%M:%S%.6f"));
    let formatters =
        texts.iter().map(|array| ArrayFormatter::try_new(array.as_ref(), &options)).collect::<Result<Vec<_>, _>>()?;
    let mut found: HashMap<PartitionValue, usize> = HashMap::new();
    let mut rows_of: Vec<(PartitionValue, Vec<u32>)> = Vec::new();
    // Sources tend to repeat a value, so the last one is tried before the map; the buffers are reused.
    let mut value: PartitionValue = vec![None; texts.len()];
    let mut last: Option<usize> = None;
    for row in 0..batch.num_rows() {
        for ((array, formatter), text) in texts.iter().zip(&formatters).zip(value.iter_mut()) {
            *text = match array.is_null(row) {
                true => None,
                false => Some(formatter.value(row).try_to_string()?).filter(|text| !text.is_empty()),
            };
        }
        let same = last.filter(|at| rows_of.get(*at).is_some_and(|(known, _)| *known == value));
        let at = same.or_else(|| found.get(&value).copied()).unwrap_or_else(|| {
            found.insert(value.clone(), rows_of.len());
            rows_of.push((value.clone(), Vec::new()));
            rows_of.len() - 1
        });
        last = Some(at);
        let row = u32::try_from(row).map_err(|_| ArrowError::ComputeError("a batch has over 2^32 rows".into()))?;
        if let Some((_, rows)) = rows_of.get_mut(at) {
            rows.push(row);
        }
    }
    if let [(_, rows)] = rows_of.as_slice()
        && rows.len() == data.num_rows()
    {
        return Ok(rows_of.into_iter().map(|(value, _)| (value, data.clone())).collect());
    }
    rows_of.into_iter().map(|(value, rows)| Ok((value, take_record_batch(&data, &UInt32Array::from(rows))?))).collect()
}

/// Zoned timestamps are UTC here; their text in the log has no zone.
fn without_zone(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match array.data_type() {
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => {
            let array = array
                .as_primitive_opt::<TimestampMicrosecondType>()
                .ok_or_else(|| ArrowError::CastError("a timestamp column is no timestamp array".into()))?;
            Ok(Arc::new(array.clone().with_timezone_opt(None::<Arc<str>>)))
        }
        _ => Ok(array.clone()),
    }
}

#[cfg(test)]
mod tests;
