//! Evaluates expressions over a batch so that a failing row is found and the others are not lost (E108).
//!
//! Where all goes well, each expression is evaluated once over the whole batch. Where one fails, the batch is halved
//! until the failing rows are alone. A row is refused exactly if the expressions fail over that row alone: the library
//! may evaluate one side of an AND over more rows than need it, never over fewer, so a whole batch that succeeds has no
//! row that would fail alone, and a batch that fails is decided row by row.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, BooleanArray, RecordBatch, UInt32Array, new_empty_array};
use arrow_schema::{ArrowError, SchemaRef};
use datafusion_common::DataFusionError;
use datafusion_physical_expr::PhysicalExpr;
use landfall_engine::contract::EngineError;
use landfall_types::Code;

use super::bind::{Rows, assemble, defect};
use crate::code;

/// An expression and what a message calls it.
pub(super) struct Named {
    pub(super) name: String,
    pub(super) expression: Arc<dyn PhysicalExpr>,
}

/// Takes the input row that failed, and why.
pub(super) type Report<'a> = &'a mut dyn FnMut(u32, Code, String);

/// Keeps the rows for which the condition is true.
pub(super) fn filter(condition: &Named, rows: Rows, report: Report<'_>) -> Result<Rows, EngineError> {
    let (rows, mut columns) = evaluate(std::slice::from_ref(condition), rows, report)?;
    match columns.pop().as_ref().and_then(|column| column.as_boolean_opt()) {
        Some(mask) => kept(rows, mask),
        None => Err(defect("a condition is not boolean".to_owned())),
    }
}

/// Computes the visible columns anew; hidden ones stay.
pub(super) fn project(
    columns: &[Named],
    output: &SchemaRef,
    rows: Rows,
    report: Report<'_>,
) -> Result<Rows, EngineError> {
    let (rows, mut computed) = evaluate(columns, rows, report)?;
    let hidden = output.fields().len() - computed.len();
    let first_hidden = rows.batch.num_columns() - hidden;
    computed.extend(rows.batch.columns().iter().skip(first_hidden).cloned());
    Ok(Rows { batch: assemble(output, computed, rows.batch.num_rows())?, origins: rows.origins })
}

/// The rows that a mask marks.
pub(super) fn kept(rows: Rows, mask: &BooleanArray) -> Result<Rows, EngineError> {
    if mask.true_count() == rows.batch.num_rows() {
        return Ok(rows);
    }
    let failed = |error: ArrowError| defect(format!("rows cannot be filtered: {error}"));
    let batch = arrow_select::filter::filter_record_batch(&rows.batch, mask).map_err(failed)?;
    let origins = arrow_select::filter::filter(&rows.origins, mask).map_err(failed)?;
    Ok(Rows { batch, origins: origins.as_primitive().clone() })
}

/// One column per expression over the rows that do not fail, which are handed back with them.
fn evaluate(named: &[Named], rows: Rows, report: Report<'_>) -> Result<(Rows, Vec<ArrayRef>), EngineError> {
    if let Ok(columns) = whole(named, &rows.batch) {
        return Ok((rows, columns));
    }
    let mut pieces: Vec<Vec<ArrayRef>> = Vec::new();
    let mut good = vec![false; rows.batch.num_rows()];
    // The next range to look at is the last one.
    let mut ranges: Vec<Range<usize>> = std::iter::once(0..rows.batch.num_rows()).collect();
    while let Some(range) = ranges.pop() {
        let slice = rows.batch.slice(range.start, range.len());
        match whole(named, &slice) {
            Ok(columns) => {
                good.iter_mut().take(range.end).skip(range.start).for_each(|good| *good = true);
                pieces.push(columns);
            }
            Err(error) if range.len() <= 1 => {
                let origin = rows.origins.values().get(range.start).copied().unwrap_or_default();
                let (code, text) = reason(named, &slice, error);
                report(origin, code, text);
            }
            Err(_) => {
                let middle = range.start + range.len() / 2;
                ranges.push(middle..range.end);
                ranges.push(range.start..middle);
            }
        }
    }
    let columns = named.iter().enumerate().map(|(at, named)| {
        let of_column: Vec<&dyn arrow_array::Array> =
            pieces.iter().filter_map(|piece| piece.get(at)).map(|piece| piece.as_ref()).collect();
        if of_column.is_empty() {
            let kind =
                named.expression.data_type(rows.batch.schema_ref()).map_err(|error| defect(error.to_string()))?;
            return Ok(new_empty_array(&kind));
        }
        arrow_select::concat::concat(&of_column).map_err(|error| defect(format!("halves do not fit: {error}")))
    });
    let columns = columns.collect::<Result<Vec<_>, EngineError>>()?;
    Ok((kept(rows, &BooleanArray::from(good))?, columns))
}

fn whole(named: &[Named], batch: &RecordBatch) -> Result<Vec<ArrayRef>, DataFusionError> {
    named
        .iter()
        .map(|named| {
            if batch.num_rows() == 0 {
                return named.expression.data_type(batch.schema_ref()).map(|kind| new_empty_array(&kind));
            }
            named.expression.evaluate(batch)?.into_array(batch.num_rows())
        })
        .collect()
}

/// Why a row that is alone in its batch fails.
fn reason(named: &[Named], row: &RecordBatch, error: DataFusionError) -> (Code, String) {
    let failing = named.iter().find_map(|named| {
        let result = named.expression.evaluate(row).and_then(|value| value.into_array(row.num_rows()));
        result.err().map(|error| (named.name.as_str(), error))
    });
    let (name, error) = failing.unwrap_or(("the query", error));
    let root = error.find_root();
    let code = match root {
        DataFusionError::ArrowError(error, _) => match error.as_ref() {
            ArrowError::CastError(_) | ArrowError::ParseError(_) => code::BAD_CAST,
            _ => code::FAILED_EXPRESSION,
        },
        _ => code::FAILED_EXPRESSION,
    };
    const REASON_CHARS_MAX: usize = 200;
    let text = root.strip_backtrace();
    let text = ["Arrow error: ", "Execution error: ", "Cast error: ", "Parser error: "]
        .iter()
        .fold(text.as_str(), |text, label| text.strip_prefix(label).unwrap_or(text));
    let text: String = text.chars().take(REASON_CHARS_MAX).collect();
    (code, format!("{name}: {text}"))
}

/// Takes rows by number; for steps that repeat rows.
pub(super) fn take(column: &ArrayRef, rows: &UInt32Array) -> Result<ArrayRef, EngineError> {
    arrow_select::take::take(column, rows, None).map_err(|error| defect(format!("rows cannot be taken: {error}")))
}
