//! Row arithmetic over a batch with hidden columns: records are counted as changes of `__offset`, and refused rows
//! take the other rows of their record with them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{Array, BooleanArray, RecordBatch, UInt64Array};
use landfall_types::Code;

use crate::codes;
use crate::contract::{EngineError, RowErrors, Stage};
use crate::dead_letter::offsets_of;

/// Why a record was refused.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) stage: Stage,
    pub(super) code: Code,
    pub(super) text: Arc<str>,
}

/// Refused records of a slice, by offset. The first refusal of a record counts.
pub(super) type Refusals = BTreeMap<u64, Refusal>;

/// The `__offset` column of a stage's output.
pub(super) fn offsets(rows: &RecordBatch, after: &str) -> Result<UInt64Array, EngineError> {
    offsets_of(rows).filter(|offsets| offsets.null_count() == 0).ok_or_else(|| EngineError {
        code: codes::STAGE_FAILED,
        text: format!("{after} lost the hidden column `__offset`, or put nulls into it"),
    })
}

/// How many records there are in a column of rising offsets.
pub(super) fn records(offsets: &UInt64Array) -> usize {
    let values = offsets.values();
    values.windows(2).filter(|pair| pair[0] != pair[1]).count() + usize::from(!values.is_empty())
}

/// Whether offsets rise: order is kept by every stage, or rows could not be told apart.
pub(super) fn is_rising(offsets: &UInt64Array) -> bool {
    offsets.values().windows(2).all(|pair| pair[0] <= pair[1])
}

/// Moves a stage's row errors into `refusals`. `input` are the offsets of the rows that the stage was given.
pub(super) fn refuse(
    bad: &mut RowErrors,
    input: &UInt64Array,
    stage: Stage,
    refusals: &mut Refusals,
) -> Result<(), EngineError> {
    for error in bad.drain() {
        let row = error.row as usize;
        if row >= input.len() {
            return Err(EngineError {
                code: codes::STAGE_FAILED,
                text: format!("a stage refused row {row} of a batch of {} rows", input.len()),
            });
        }
        refusals.entry(input.value(row)).or_insert_with(|| Refusal {
            stage,
            code: error.code,
            text: Arc::from(error.text),
        });
    }
    Ok(())
}

/// The rows without those of refused records.
pub(super) fn without(rows: RecordBatch, refusals: &Refusals, after: &str) -> Result<RecordBatch, EngineError> {
    if refusals.is_empty() || rows.num_rows() == 0 {
        return Ok(rows);
    }
    let offsets = offsets(&rows, after)?;
    let kept: BooleanArray = offsets.values().iter().map(|offset| Some(!refusals.contains_key(offset))).collect();
    if kept.true_count() == rows.num_rows() {
        return Ok(rows);
    }
    arrow_select::filter::filter_record_batch(&rows, &kept).map_err(|error| EngineError {
        code: codes::STAGE_FAILED,
        text: format!("refused rows cannot be taken out after {after}: {error}"),
    })
}
