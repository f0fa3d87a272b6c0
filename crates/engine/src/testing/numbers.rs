//! A decoder of decimal numbers and a filter over them: the smallest chain that has rows, bad rows and dropped rows.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use landfall_types::Code;

use crate::contract::{Decoded, Decoder, EngineError, PlanError, RowErrors, Transform, Wanted, columns};
use crate::{ChainFactory, ChainParts};

const NOT_A_NUMBER: Code = Code::new("DC", 1);

/// Payloads that are decimal numbers become the column `value`; anything else is a bad row; `panic` panics.
#[derive(Debug, Default)]
pub struct NumberDecoder;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("value", DataType::Int64, true),
        Field::new(columns::PARTITION, DataType::UInt32, false),
        Field::new(columns::OFFSET, DataType::UInt64, false),
    ]))
}

impl Decoder for NumberDecoder {
    fn plan(&mut self, _wanted: &Wanted) -> Result<SchemaRef, PlanError> {
        Ok(schema())
    }

    fn decode(&mut self, records: &RecordBatch, bad: &mut RowErrors) -> Result<Decoded, EngineError> {
        let payloads = records.column(0).as_binary_view();
        let mut values = Vec::new();
        let mut kept = Vec::new();
        for (row, payload) in (0u32..).zip(payloads.iter()) {
            let text = std::str::from_utf8(payload.unwrap_or_default()).unwrap_or_default();
            assert!(text != "panic", "a record that panics");
            match text.parse::<i64>() {
                Ok(value) => {
                    values.push(value);
                    kept.push(row);
                }
                Err(error) => bad.push(row, NOT_A_NUMBER, format!("not a number: {error}")),
            }
        }
        let kept = UInt32Array::from(kept);
        let take = |name: &str| -> ArrayRef {
            let column = records.column_by_name(name).expect("the payload schema has it");
            arrow_select::take::take(column, &kept, None).expect("indices lie inside")
        };
        let batch = RecordBatch::try_new(
            schema(),
            vec![Arc::new(Int64Array::from(values)), take(columns::PARTITION), take(columns::OFFSET)],
        );
        Ok(Decoded::Rows(batch.expect("columns have the schema's types")))
    }
}

/// Keeps the rows whose value it likes.
pub struct KeepIf(pub fn(i64) -> bool);

impl Transform for KeepIf {
    fn plan(&self, input: &SchemaRef) -> Result<SchemaRef, PlanError> {
        Ok(input.clone())
    }

    fn apply(&mut self, rows: RecordBatch, _bad: &mut RowErrors) -> Result<RecordBatch, EngineError> {
        let values = rows.column(0).as_primitive::<Int64Type>();
        let kept: BooleanArray = values.iter().map(|value| Some(value.is_some_and(self.0))).collect();
        Ok(arrow_select::filter::filter_record_batch(&rows, &kept).expect("a mask of the batch's length"))
    }
}

/// The chain of numbers, with or without a filter.
pub fn numbers(keep: Option<fn(i64) -> bool>) -> ChainFactory {
    Arc::new(move || {
        Ok(ChainParts {
            decoder: Box::new(NumberDecoder),
            transforms: keep.map(|keep| Box::new(KeepIf(keep)) as Box<dyn Transform>).into_iter().collect(),
            wanted: Wanted::default(),
        })
    })
}
