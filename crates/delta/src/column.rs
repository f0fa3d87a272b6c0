//! Which Arrow type a column of the query has in a Delta table (E125), and whether it fits a column that exists
//! (E132).
//!
//! Two rules: no value changes silently, and no cast is made that is not needed (a string view stays one). The
//! engine's chain does the casts row by row, so a value that does not fit is that row's error. Names are judged
//! here too. No I/O.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, TimeUnit};

use crate::code::DeltaError;
use crate::options::Timestamps;

/// Columns that hold a place: always with statistics, stored as bigint, as a Txn version is.
pub(crate) const POSITION_COLUMNS: &[&str] = &["__partition", "__offset", "_op", "_commit_lsn", "_seq"];

const FORBIDDEN: &[char] = &[' ', ',', ';', '{', '}', '(', ')', '\n', '\t', '='];

/// Why a type has no place in a table, and the SQL that gives it one.
struct Refusal {
    why: &'static str,
    cast: &'static str,
}

/// Names are allowed, and differ by more than case.
pub(crate) fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), DeltaError> {
    let mut seen: Vec<(String, &str)> = Vec::new();
    for name in names {
        if name.is_empty() || name.contains(FORBIDDEN) {
            let alias: String = name.chars().map(|c| if FORBIDDEN.contains(&c) { '_' } else { c }).collect();
            return Err(DeltaError::Name {
                text: format!(
                    "column `{name}` has a name that Delta forbids (none of ` ,;{{}}()`, newline, tab, `=`): write \
                     `\"{name}\" AS {}`",
                    if alias.is_empty() { "column_1" } else { &alias }
                ),
            });
        }
        let folded = name.to_lowercase();
        if let Some((_, other)) = seen.iter().find(|(earlier, _)| *earlier == folded) {
            return Err(DeltaError::Name {
                text: format!("columns `{other}` and `{name}` differ only by case: write `\"{name}\" AS {folded}_2`"),
            });
        }
        seen.push((folded, name));
    }
    Ok(())
}

/// The same for columns and all that lies inside them.
pub(crate) fn check_fields<'a>(fields: impl IntoIterator<Item = &'a Field> + Clone) -> Result<(), DeltaError> {
    check_names(fields.clone().into_iter().map(|field| field.name().as_str()))?;
    fields.into_iter().try_for_each(|field| check_inside(field.data_type()))
}

fn check_inside(data_type: &DataType) -> Result<(), DeltaError> {
    match data_type {
        DataType::Struct(fields) => check_fields(fields.iter().map(AsRef::as_ref)),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _) => check_inside(field.data_type()),
        DataType::Map(entries, _) => check_inside(entries.data_type()),
        _ => Ok(()),
    }
}

/// The column as a new table would hold it.
pub(crate) fn planned(field: &Field, timestamps: Timestamps) -> Result<Field, DeltaError> {
    let position = POSITION_COLUMNS.contains(&field.name().as_str());
    match planned_type(field.data_type(), timestamps, position) {
        Ok(data_type) => Ok(Field::new(field.name(), data_type, field.is_nullable())),
        Err(Refusal { why, cast }) => Err(DeltaError::Type {
            text: format!(
                "column `{name}` is {}: {why}; write `{}`",
                field.data_type(),
                cast.replace("{}", &format!("\"{}\"", field.name())),
                name = field.name(),
            ),
        }),
    }
}

fn planned_type(data_type: &DataType, timestamps: Timestamps, position: bool) -> Result<DataType, Refusal> {
    use DataType as T;
    let nested = |field: &Arc<Field>| -> Result<Arc<Field>, Refusal> {
        let inner = planned_type(field.data_type(), timestamps, false)?;
        Ok(Arc::new(Field::new(field.name(), inner, field.is_nullable())))
    };
    Ok(match data_type {
        T::Boolean | T::Int8 | T::Int16 | T::Int32 | T::Int64 | T::Float32 | T::Float64 => data_type.clone(),
        T::Utf8 | T::LargeUtf8 | T::Utf8View | T::Binary | T::LargeBinary | T::BinaryView => data_type.clone(),
        T::Date32 => data_type.clone(),
        T::FixedSizeBinary(_) => T::Binary,
        T::Date64 => T::Date32,
        // The library would keep the width and turn large values negative.
        T::UInt8 => T::Int16,
        T::UInt16 => T::Int32,
        T::UInt32 => T::Int64,
        T::UInt64 if position => T::Int64,
        T::UInt64 => {
            return Err(Refusal {
                why: "Delta has no unsigned 64-bit integer",
                cast: "CAST({} AS DECIMAL(20, 0)) AS {}",
            });
        }
        T::Float16 => T::Float32,
        T::Decimal32(precision, scale) | T::Decimal64(precision, scale) | T::Decimal128(precision, scale)
            if *scale >= 0 =>
        {
            T::Decimal128(*precision, *scale)
        }
        T::Decimal256(precision, scale) if *precision <= 38 && *scale >= 0 => T::Decimal128(*precision, *scale),
        T::Decimal32(..) | T::Decimal64(..) | T::Decimal128(..) | T::Decimal256(..) => {
            return Err(Refusal {
                why: "Delta decimals have up to 38 digits and no negative scale",
                cast: "CAST({} AS DECIMAL(38, 9)) AS {}",
            });
        }
        T::Timestamp(_, None) if timestamps == Timestamps::Ntz => T::Timestamp(TimeUnit::Microsecond, None),
        T::Timestamp(..) => T::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        T::List(field)
        | T::LargeList(field)
        | T::FixedSizeList(field, _)
        | T::ListView(field)
        | T::LargeListView(field) => T::List(nested(field)?),
        T::Struct(fields) if fields.is_empty() => {
            return Err(Refusal { why: "Parquet has no struct without fields", cast: "CAST({} AS STRING) AS {}" });
        }
        T::Struct(fields) => T::Struct(fields.iter().map(nested).collect::<Result<Fields, Refusal>>()?),
        T::Map(entries, sorted) => T::Map(nested(entries)?, *sorted),
        T::Dictionary(_, value) => planned_type(value, timestamps, position)?,
        T::RunEndEncoded(_, value) => planned_type(value.data_type(), timestamps, position)?,
        T::Null => {
            return Err(Refusal { why: "it has no type, only NULL", cast: "CAST({} AS STRING) AS {}" });
        }
        T::Time32(_) | T::Time64(_) => {
            return Err(Refusal { why: "Delta has no time of day", cast: "CAST({} AS STRING) AS {}" });
        }
        T::Duration(_) | T::Interval(_) => {
            return Err(Refusal { why: "Delta has no interval", cast: "CAST({} AS STRING) AS {}" });
        }
        T::Union(..) => return Err(Refusal { why: "Delta has no union", cast: "CAST({} AS STRING) AS {}" }),
    })
}

/// The type to cast to so that the query's column fits the table's, or why it does not.
pub(crate) fn fit(query: &DataType, table: &DataType, position: bool) -> Result<DataType, String> {
    use DataType as T;
    let timestamps = if matches!(table, T::Timestamp(_, None)) { Timestamps::Ntz } else { Timestamps::Utc };
    let differs = || format!("the query has {query}, the table {table}");
    match (query, table) {
        (T::Struct(query), T::Struct(table)) => {
            let same = query.len() == table.len()
                && query.iter().zip(table.iter()).all(|(query, table)| query.name() == table.name());
            if !same {
                return Err(differs());
            }
            let fields = query.iter().zip(table.iter()).map(|(query, table)| fit_nested(query, table));
            return Ok(T::Struct(fields.collect::<Result<Fields, String>>()?));
        }
        (
            T::List(query)
            | T::LargeList(query)
            | T::FixedSizeList(query, _)
            | T::ListView(query)
            | T::LargeListView(query),
            T::List(table),
        ) => return Ok(T::List(fit_nested(query, table)?)),
        (T::Map(query, sorted), T::Map(table, _)) => {
            let (T::Struct(query_entry), T::Struct(table_entry)) = (query.data_type(), table.data_type()) else {
                return Err(differs());
            };
            // The names of a map's parts are not part of its type.
            let ([query_key, query_value], [table_key, table_value]) = (query_entry.as_ref(), table_entry.as_ref())
            else {
                return Err(differs());
            };
            let entry = Fields::from(vec![fit_nested(query_key, table_key)?, fit_nested(query_value, table_value)?]);
            return Ok(T::Map(Arc::new(Field::new(query.name(), T::Struct(entry), false)), *sorted));
        }
        _ => {}
    }
    let planned =
        planned_type(query, timestamps, position).map_err(|refusal| format!("{}: {}", differs(), refusal.why))?;
    let fits = match (&planned, table) {
        (planned, table) if planned == table => return Ok(planned.clone()),
        (T::Utf8 | T::LargeUtf8 | T::Utf8View, T::Utf8) => return Ok(planned),
        (T::Binary | T::LargeBinary | T::BinaryView, T::Binary) => return Ok(planned),
        (T::Int8, T::Int16 | T::Int32 | T::Int64) | (T::Int16, T::Int32 | T::Int64) | (T::Int32, T::Int64) => true,
        (T::Float32, T::Float64) => true,
        (T::Decimal128(precision, scale), T::Decimal128(table_precision, table_scale)) => {
            let whole = i16::from(*precision) - i16::from(*scale);
            let table_whole = i16::from(*table_precision) - i16::from(*table_scale);
            table_scale >= scale && table_whole >= whole
        }
        _ => false,
    };
    if fits { Ok(table.clone()) } else { Err(differs()) }
}

fn fit_nested(query: &Arc<Field>, table: &Arc<Field>) -> Result<Arc<Field>, String> {
    if query.is_nullable() && !table.is_nullable() {
        return Err(format!("`{}` may be NULL in the query and not in the table", query.name()));
    }
    let data_type = fit(query.data_type(), table.data_type(), false)?;
    Ok(Arc::new(Field::new(query.name(), data_type, query.is_nullable())))
}

/// Whether values of the type can name a partition.
pub(crate) fn can_partition(data_type: &DataType) -> bool {
    use DataType as T;
    !(data_type.is_nested() || matches!(data_type, T::Binary | T::LargeBinary | T::BinaryView))
}

#[cfg(test)]
mod tests;
