//! Rows become one row per element of their lists (E104): a kernel on `take`.
//!
//! Several lists of a row go side by side, the shorter ones filled up with NULL. An empty or null list gives no row,
//! or one with NULL where `keep_empty` says so. `__unnest` numbers the rows that came of one input row.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ListArray, UInt32Array};
use arrow_schema::{DataType, Field, FieldRef, SchemaRef};
use datafusion_common::{Result, TableReference, plan_err};
use landfall_engine::contract::{EngineError, columns};

use super::bind::{Rows, assemble, defect};
use super::evaluate::{Report, take};
use super::steps::Unnested;
use crate::code;

/// Bytes that the repeated columns of one input row may grow to (I14).
const GROWTH_MAX: usize = 16 << 20;

/// From this many elements on, the growth of a row is looked at.
const ELEMENTS_LOOKED_AT: usize = 64;

pub(super) struct BoundUnnest {
    pub(super) columns: Vec<Unnested>,
    /// Visible columns of the input.
    pub(super) inputs: usize,
    pub(super) output: SchemaRef,
    pub(super) keep_empty: bool,
}

/// The type of an output column.
pub(super) fn type_of(column: &Unnested, inputs: &[(Option<TableReference>, FieldRef)]) -> Result<DataType> {
    let at = match column {
        Unnested::Kept(at) | Unnested::Elements(at) | Unnested::Field(at, _) => *at,
    };
    let Some((_, input)) = inputs.get(at) else { return plan_err!("unnest reads a column that is not there") };
    Ok(match (column, input.data_type()) {
        (Unnested::Kept(_), kind) => kind.clone(),
        (
            Unnested::Elements(_),
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _),
        ) => item.data_type().clone(),
        (Unnested::Field(_, number), DataType::Struct(fields)) => match fields.get(*number) {
            Some(field) => field.data_type().clone(),
            None => return plan_err!("unnest reads a field that is not there"),
        },
        (_, kind) => return plan_err!("unnest takes a list or a struct, not {kind}"),
    })
}

/// Whether an output column can hold NULL.
pub(super) fn is_nullable(column: &Unnested, inputs: &[(Option<TableReference>, FieldRef)], keep_empty: bool) -> bool {
    let lists = inputs.iter().filter(|(_, field)| field.data_type().is_list()).count();
    match column {
        Unnested::Kept(at) => inputs.get(*at).is_none_or(|(_, field)| field.is_nullable()),
        Unnested::Elements(at) => match inputs.get(*at).map(|(_, field)| field.data_type()) {
            Some(DataType::List(item)) => item.is_nullable() || keep_empty || lists > 1,
            _ => true,
        },
        Unnested::Field(..) => true,
    }
}

fn lists_of(column: &ArrayRef) -> Result<ListArray, EngineError> {
    if let Some(list) = column.as_list_opt::<i32>() {
        return Ok(list.clone());
    }
    let item = match column.data_type() {
        DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item.clone(),
        other => return Err(defect(format!("unnest got {other}"))),
    };
    let item: FieldRef = Arc::new(Field::new(item.name(), item.data_type().clone(), item.is_nullable()));
    let list = arrow_cast::cast(column, &DataType::List(item)).map_err(|error| defect(error.to_string()))?;
    Ok(list.as_list::<i32>().clone())
}

impl BoundUnnest {
    pub(super) fn apply(&self, rows: Rows, report: Report<'_>) -> Result<Rows, EngineError> {
        let count = rows.batch.num_rows();
        let mut lists: Vec<Option<ListArray>> = Vec::with_capacity(self.inputs);
        for (at, column) in rows.batch.columns().iter().take(self.inputs).enumerate() {
            lists.push(if self.columns.contains(&Unnested::Elements(at)) { Some(lists_of(column)?) } else { None });
        }
        let length = |list: &ListArray, row: usize| if list.is_null(row) { 0 } else { list.value_length(row) as usize };
        let has_lists = lists.iter().any(Option::is_some);
        let mut repeated: Vec<u32> = Vec::new();
        for row in 0..count {
            let mut elements = if has_lists { 0 } else { 1 };
            for list in lists.iter().flatten() {
                elements = elements.max(length(list, row));
            }
            if elements == 0 && self.keep_empty {
                elements = 1;
            }
            if elements >= ELEMENTS_LOOKED_AT {
                let bytes = elements.saturating_mul(self.kept_bytes(&rows, row));
                if bytes > GROWTH_MAX {
                    let origin = rows.origins.value(row);
                    let text = format!(
                        "{elements} elements beside the other columns make {bytes} bytes, the limit is {GROWTH_MAX}"
                    );
                    report(origin, code::UNNEST_TOO_LARGE, text);
                    continue;
                }
            }
            repeated.extend(std::iter::repeat_n(row as u32, elements));
        }
        let repeated = UInt32Array::from(repeated);
        let mut output: Vec<ArrayRef> = Vec::with_capacity(self.output.fields().len());
        for column in &self.columns {
            output.push(match column {
                Unnested::Kept(at) => take(rows.batch.column(*at), &repeated)?,
                Unnested::Field(at, number) => {
                    let of_row = take(rows.batch.column(*at), &repeated)?;
                    let Some(of_row) = of_row.as_struct_opt() else {
                        return Err(defect("unnest got no struct".to_owned()));
                    };
                    // A field of a null struct is null, whatever its own column says.
                    let (_, fields, nulls) = of_row.clone().into_parts();
                    let Some(field) = fields.get(*number) else { return Err(defect("a field is missing".to_owned())) };
                    let nulls = arrow_buffer::NullBuffer::union(nulls.as_ref(), field.logical_nulls().as_ref());
                    let data = field.to_data().into_builder().nulls(nulls).build();
                    arrow_array::make_array(data.map_err(|error| defect(error.to_string()))?)
                }
                Unnested::Elements(at) => {
                    let Some(Some(list)) = lists.get(*at) else { return Err(defect("a list is missing".to_owned())) };
                    let mut last = None;
                    let mut number = 0usize;
                    let places = repeated.values().iter().map(|row| {
                        number = if last == Some(*row) { number + 1 } else { 0 };
                        last = Some(*row);
                        let row = *row as usize;
                        let start = list.value_offsets().get(row).copied().unwrap_or_default();
                        // Both are within the child's length, which an i32 counts.
                        (number < length(list, row)).then(|| start as u32 + number as u32)
                    });
                    let places: UInt32Array = places.collect();
                    take(list.values(), &places)?
                }
            });
        }
        let origins = take(&(Arc::new(rows.origins.clone()) as ArrayRef), &repeated)?;
        let origins: UInt32Array = origins.as_primitive().clone();
        let schema = rows.batch.schema();
        for (field, column) in schema.fields().iter().zip(rows.batch.columns()).skip(self.inputs) {
            if field.name() != columns::UNNEST {
                output.push(take(column, &repeated)?);
            }
        }
        output.push(Arc::new(numbers(&origins)));
        Ok(Rows { batch: assemble(&self.output, output, origins.len())?, origins })
    }

    /// Bytes of one row in the columns that are repeated with each element.
    fn kept_bytes(&self, rows: &Rows, row: usize) -> usize {
        let kept = |at: &usize| self.columns.contains(&Unnested::Kept(*at)) || *at >= self.inputs;
        let columns = (0..rows.batch.num_columns()).filter(kept).filter_map(|at| rows.batch.columns().get(at));
        columns.map(|column| column.slice(row, 1).to_data().get_slice_memory_size().unwrap_or(0)).sum()
    }
}

/// The number of each row among those of its origin; rows of one origin are neighbours.
fn numbers(origins: &UInt32Array) -> UInt32Array {
    let mut last = None;
    let mut number = 0u32;
    UInt32Array::from_iter_values(origins.values().iter().map(|origin| {
        number = if last == Some(*origin) { number + 1 } else { 0 };
        last = Some(*origin);
        number
    }))
}
