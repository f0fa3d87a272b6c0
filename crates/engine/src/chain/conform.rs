//! Conform: the query's rows in the sink's schema, with a row error where a value does not fit (E109). A refusal that
//! can be known here is never left to the destination. A sink that numbers rows by their places plans with the columns of
//! a place, and gets them here: behind this point rows are cut, joined and sent again without their source.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array, new_null_array};
use arrow_cast::{CastOptions, can_cast_types, cast_with_options};
use arrow_schema::{DataType, SchemaRef};
use landfall_types::Place;

use super::rows::{Refusal, Refusals};
use crate::codes;
use crate::contract::{EngineError, PlanError, Stage, columns};
use crate::source_rows::SourceRows;

#[derive(Clone, Debug)]
enum Column {
    /// The input's column as it is.
    Same(usize),
    /// Cast to the sink's type.
    Cast(usize),
    /// The sink has a nullable column that the query does not fill.
    Null,
    /// The first number of the row's place.
    At,
    /// The second number of the row's place.
    Within,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Conform {
    columns: Vec<Column>,
    schema: SchemaRef,
}

/// Rows in the sink's schema.
#[derive(Debug)]
pub(super) struct Conformed {
    pub(super) rows: RecordBatch,
    pub(super) offsets: UInt64Array,
    /// Which input rows were dropped, where any were.
    pub(super) dropped: Option<BooleanArray>,
}

impl Conform {
    /// Matches columns by name; what cannot fit in any row is refused here.
    pub(crate) fn plan(rows: &SchemaRef, sink: &SchemaRef, name: &str) -> Result<Conform, PlanError> {
        let refused = |text: String| Err(PlanError::new(codes::PLAN, text));
        let mut columns = Vec::with_capacity(sink.fields().len());
        for field in sink.fields() {
            let of_place = match field.name().as_str() {
                columns::AT => Some(Column::At),
                columns::WITHIN => Some(Column::Within),
                _ => None,
            };
            if let Some(of_place) = of_place {
                if field.data_type() != &DataType::UInt64 {
                    return refused(format!(
                        "sink `{name}` wants `{}` as {}; it is UInt64",
                        field.name(),
                        field.data_type()
                    ));
                }
                columns.push(of_place);
                continue;
            }
            let Some((at, input)) = rows.column_with_name(field.name()) else {
                if field.is_nullable() {
                    columns.push(Column::Null);
                    continue;
                }
                return refused(format!(
                    "sink `{name}` requires a value for column `{}`, which the query does not have: add it to the \
                     SELECT list",
                    field.name()
                ));
            };
            if input.data_type() == field.data_type() {
                columns.push(Column::Same(at));
            } else if can_cast_types(input.data_type(), field.data_type()) {
                columns.push(Column::Cast(at));
            } else {
                return refused(format!(
                    "column `{}` is {} in the query and {} in sink `{name}`: add a CAST",
                    field.name(),
                    input.data_type(),
                    field.data_type()
                ));
            }
        }
        Ok(Conform { columns, schema: sink.clone() })
    }

    /// Casts and checks; refused records are left out whole. `places`: of the source rows, by the same offsets.
    pub(super) fn apply(
        &self,
        rows: &RecordBatch,
        offsets: &UInt64Array,
        places: &SourceRows,
        refusals: &mut Refusals,
    ) -> Result<Conformed, EngineError> {
        let length = rows.num_rows();
        let place_of = |number: fn(Place) -> u64| -> ArrayRef {
            Arc::new(offsets.values().iter().map(|offset| number(places.place_of(*offset))).collect::<UInt64Array>())
        };
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.columns.len());
        for (column, field) in self.columns.iter().zip(self.schema.fields()) {
            let array = match column {
                Column::Same(at) => rows.column(*at).clone(),
                Column::Null => new_null_array(field.data_type(), length),
                Column::At => place_of(|place| place.at),
                Column::Within => place_of(|place| place.within),
                Column::Cast(at) => {
                    let input = rows.column(*at);
                    let array = cast(input, field.data_type())?;
                    if array.logical_null_count() > input.logical_null_count() {
                        let (from, to) = (input.logical_nulls(), array.logical_nulls());
                        let is_null = |nulls: &Option<arrow_buffer::NullBuffer>, row: usize| {
                            nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
                        };
                        let text = format!("column `{}` does not fit {}", field.name(), field.data_type());
                        let failed = (0..length).filter(|row| is_null(&to, *row) && !is_null(&from, *row));
                        refuse_rows(failed, offsets, codes::CAST, &text, refusals);
                    }
                    array
                }
            };
            if !field.is_nullable() && array.logical_null_count() > 0 {
                let nulls = array.logical_nulls();
                let failed = (0..length).filter(|row| nulls.as_ref().is_some_and(|nulls| nulls.is_null(*row)));
                let text = format!("column `{}` is NOT NULL, but the row has no value for it", field.name());
                refuse_rows(failed, offsets, codes::NULL_IN_NOT_NULL, &text, refusals);
            }
            columns.push(array);
        }
        let failed = |what: arrow_schema::ArrowError| EngineError {
            code: codes::STAGE_FAILED,
            text: format!("rows cannot be given the sink's schema: {what}"),
        };
        let mut offsets = offsets.clone();
        let mut dropped = None;
        let mut kept_rows = length;
        if !refusals.is_empty() {
            let kept: BooleanArray =
                offsets.values().iter().map(|offset| Some(!refusals.contains_key(offset))).collect();
            kept_rows = kept.true_count();
            for column in &mut columns {
                *column = arrow_select::filter::filter(column, &kept).map_err(failed)?;
            }
            let filtered = arrow_select::filter::filter(&offsets, &kept).map_err(failed)?;
            offsets = arrow_array::cast::AsArray::as_primitive::<arrow_array::types::UInt64Type>(&filtered).clone();
            dropped = Some(kept);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(kept_rows));
        let rows = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options).map_err(failed)?;
        Ok(Conformed { rows, offsets, dropped })
    }
}

/// A cast that gives NULL where a value does not fit. A fraction does not fit an integer: it is never cut off.
fn cast(input: &ArrayRef, to: &DataType) -> Result<ArrayRef, EngineError> {
    let failed = |what: arrow_schema::ArrowError| EngineError {
        code: codes::STAGE_FAILED,
        text: format!("cannot cast {} to {to}: {what}", input.data_type()),
    };
    let options = CastOptions { safe: true, ..CastOptions::default() };
    let array = cast_with_options(input, to, &options).map_err(failed)?;
    if input.data_type().is_floating() && to.is_integer() {
        let back = cast_with_options(&array, input.data_type(), &options).map_err(failed)?;
        let same = |row: usize| -> bool {
            use arrow_array::cast::AsArray;
            use arrow_array::types::{Float32Type, Float64Type};
            match (input.data_type(), input.is_null(row) || back.is_null(row)) {
                (_, true) => true,
                (DataType::Float64, _) => {
                    input.as_primitive::<Float64Type>().value(row) == back.as_primitive::<Float64Type>().value(row)
                }
                (DataType::Float32, _) => {
                    input.as_primitive::<Float32Type>().value(row) == back.as_primitive::<Float32Type>().value(row)
                }
                _ => true,
            }
        };
        let is_cut: BooleanArray = (0..input.len()).map(|row| Some(!same(row))).collect();
        if is_cut.true_count() > 0 {
            let kept = arrow_buffer::NullBuffer::new(!is_cut.values());
            let data = array.to_data();
            let nulls = arrow_buffer::NullBuffer::union(data.nulls(), Some(&kept));
            let data = data.into_builder().nulls(nulls).build().map_err(failed)?;
            return Ok(arrow_array::make_array(data));
        }
    }
    Ok(array)
}

fn refuse_rows(
    rows: impl Iterator<Item = usize>,
    offsets: &UInt64Array,
    code: landfall_types::Code,
    text: &str,
    refusals: &mut Refusals,
) {
    let text: Arc<str> = Arc::from(text);
    for row in rows {
        refusals.entry(offsets.value(row)).or_insert_with(|| Refusal { stage: Stage::Sql, code, text: text.clone() });
    }
}
