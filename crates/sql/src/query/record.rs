//! Puts hidden columns in the place of the `record_` functions and of `row_id()` (E106, E107), at the level where they
//! stand: hidden columns ride through every step, so inside and outside of sub-selects they mean the same.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, StringArray};
use arrow_schema::{DataType, Schema};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{Column, Result, exec_err, plan_err};
use datafusion_expr::expr::ScalarFunction;
use datafusion_expr::{Expr, ScalarUDF, TypeSignature, cast};
use landfall_engine::contract::columns;

use crate::function::{RowFunction, record};

/// The expression with hidden columns of `level` in place.
pub(super) fn resolved(expression: Expr, level: &Schema) -> Result<Expr> {
    let hidden = |name: &str| {
        if level.field_with_name(name).is_ok() {
            Ok(Expr::Column(Column::new_unqualified(name)))
        } else {
            plan_err!("the input has no hidden column `{name}`")
        }
    };
    let replace = |part: Expr| {
        let Expr::ScalarFunction(function) = &part else { return Ok(Transformed::no(part)) };
        Ok(Transformed::yes(match function.name() {
            record::KEY => hidden(columns::RECORD_KEY)?,
            record::TIMESTAMP => hidden(columns::RECORD_TIMESTAMP)?,
            record::OFFSET => cast(hidden(columns::OFFSET)?, DataType::Int64),
            record::PARTITION => cast(hidden(columns::PARTITION)?, DataType::Int64),
            record::HEADER => {
                let mut args = vec![hidden(columns::RECORD_HEADERS)?];
                args.extend(function.args.iter().cloned());
                let headers = level.field_with_name(columns::RECORD_HEADERS)?.data_type().clone();
                call(
                    RowFunction::pure(
                        "header_value",
                        TypeSignature::Exact(vec![headers, DataType::Utf8]),
                        DataType::Utf8,
                        header_value,
                    ),
                    args,
                )
            }
            record::ROW_ID => {
                let mut args = vec![hidden(columns::PARTITION)?, hidden(columns::OFFSET)?];
                let mut takes = vec![DataType::UInt32, DataType::UInt64];
                if level.field_with_name(columns::UNNEST).is_ok() {
                    args.push(hidden(columns::UNNEST)?);
                    takes.push(DataType::UInt32);
                }
                call(RowFunction::pure("row_id_text", TypeSignature::Exact(takes), DataType::Utf8, row_id_text), args)
            }
            _ => return Ok(Transformed::no(part)),
        }))
    };
    expression.transform_up(replace).map(|transformed| transformed.data)
}

fn call(function: ScalarUDF, args: Vec<Expr>) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(function), args))
}

/// The first header of a name as text, NULL where there is none.
fn header_value(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let [headers, name] = args else { return exec_err!("record_header takes a name") };
    let (Some(headers), name) = (headers.as_list_opt::<i32>(), name.as_string::<i32>()) else {
        return exec_err!("record_header: the headers have another type");
    };
    let mut values = StringBuilder::new();
    for row in 0..rows {
        if headers.is_null(row) || name.is_null(row) {
            values.append_null();
            continue;
        }
        let of_row = headers.value(row);
        let Some(of_row) = of_row.as_struct_opt() else {
            return exec_err!("record_header: the headers have another type");
        };
        let (Some(names), Some(bytes)) =
            (of_row.column(0).as_string_opt::<i32>(), of_row.column(1).as_binary_opt::<i32>())
        else {
            return exec_err!("record_header: the headers have another type");
        };
        match (0..names.len()).find(|at| names.value(*at) == name.value(row)) {
            None => values.append_null(),
            Some(at) => match std::str::from_utf8(bytes.value(at)) {
                Ok(text) => values.append_value(text),
                Err(_) => return exec_err!("record_header: the header `{}` is not UTF-8", name.value(row)),
            },
        }
    }
    Ok(Arc::new(values.finish()))
}

/// `partition-offset`, and the number among the rows of one record where rows are unnested.
fn row_id_text(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let [partition, offset, unnest @ ..] = args else { return exec_err!("row_id needs the row's position") };
    let (partition, offset) = (partition.as_primitive::<UInt32Type>(), offset.as_primitive::<UInt64Type>());
    let unnest = unnest.first().map(|unnest| unnest.as_primitive::<UInt32Type>());
    let ids = (0..rows).map(|row| match unnest {
        Some(unnest) => format!("{}-{}-{}", partition.value(row), offset.value(row), unnest.value(row)),
        None => format!("{}-{}", partition.value(row), offset.value(row)),
    });
    Ok(Arc::new(StringArray::from_iter_values(ids)))
}
