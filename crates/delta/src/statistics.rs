//! The statistics of a data file, as its `Add` carries them (T8).
//!
//! Bounds come from the Parquet footer and never cut a value off: decimals are exact digits, a long text has a
//! shorter lower bound and a larger upper one. What cannot be exact is left out: bounds of binary values, the upper bound of
//! floating-point columns (NaN sorts last and is in no footer), anything inside lists and maps. The first
//! `delta.dataSkippingNumIndexedCols` leaves (32) are written, and the position columns always.

use arrow_schema::{DataType, Field, Schema, TimeUnit};
use parquet::data_type::AsBytes;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::statistics::Statistics;

use crate::column::POSITION_COLUMNS;

/// How many leaves have statistics where the table does not say.
pub(crate) const INDEXED_COLUMNS: usize = 32;

/// A bound in the order of its type.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
enum Bound {
    Boolean(bool),
    Integer(i128),
    Float(f64),
    Text(Vec<u8>),
}

/// What a column's row groups say together. A bound that one of them lacks is no bound.
#[derive(Clone, Debug)]
struct Column<'a> {
    path: Vec<&'a str>,
    data_type: &'a DataType,
    nulls: Option<u64>,
    min: Option<Bound>,
    max: Option<Bound>,
    bounded: bool,
}

/// The JSON text of `stats`.
pub(crate) fn of_file(schema: &Schema, metadata: &ParquetMetaData, indexed_columns: usize) -> String {
    let rows: i64 = metadata.row_groups().iter().map(|group| group.num_rows()).sum();
    let mut columns: Vec<Column<'_>> = Vec::new();
    let leaves = metadata.file_metadata().schema_descr().columns();
    for (at, leaf) in leaves.iter().enumerate() {
        if leaf.max_rep_level() > 0 {
            continue;
        }
        let path: Vec<&str> = leaf.path().parts().iter().map(String::as_str).collect();
        let position = matches!(path.as_slice(), [name] if POSITION_COLUMNS.contains(name));
        if at >= indexed_columns && !position {
            continue;
        }
        let Some(data_type) = leaf_type(schema, &path) else { continue };
        let mut column = Column { path, data_type, nulls: Some(0), min: None, max: None, bounded: true };
        for group in metadata.row_groups() {
            let statistics = group.columns().get(at).and_then(|chunk| chunk.statistics());
            column.add(statistics, u64::try_from(group.num_rows()).unwrap_or(u64::MAX));
        }
        columns.push(column);
    }
    let object = |value: &dyn Fn(&Column<'_>) -> Option<String>| {
        let mut root = Node::default();
        for column in &columns {
            if let Some(json) = value(column) {
                root.insert(&column.path, json);
            }
        }
        root.json()
    };
    let bound = |column: &Column<'_>, bound: &Option<Bound>| {
        bound.as_ref().filter(|_| column.bounded).and_then(|bound| bound_json(column.data_type, bound))
    };
    let min = object(&|column| bound(column, &column.min));
    let max = object(&|column| bound(column, &column.max).filter(|_| !column.data_type.is_floating()));
    let nulls = object(&|column| column.nulls.map(|nulls| nulls.to_string()));
    format!(r#"{{"numRecords":{rows},"minValues":{min},"maxValues":{max},"nullCount":{nulls}}}"#)
}

impl Column<'_> {
    fn add(&mut self, statistics: Option<&Statistics>, rows: u64) {
        let Some(statistics) = statistics else {
            (self.nulls, self.bounded) = (None, false);
            return;
        };
        let nulls = statistics.null_count_opt();
        self.nulls = self.nulls.zip(nulls).map(|(sum, nulls)| sum + nulls);
        match bounds(statistics, self.data_type) {
            Some((min, max)) => {
                let smaller = self.min.as_ref().is_none_or(|known| min < *known);
                let larger = self.max.as_ref().is_none_or(|known| max > *known);
                if smaller {
                    self.min = Some(min);
                }
                if larger {
                    self.max = Some(max);
                }
            }
            // A group of NULLs alone has no bounds and needs none.
            None => self.bounded &= nulls == Some(rows),
        }
    }
}

fn bounds(statistics: &Statistics, data_type: &DataType) -> Option<(Bound, Bound)> {
    let decimal = matches!(data_type, DataType::Decimal128(..));
    let text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    match statistics {
        Statistics::Boolean(s) => Some((Bound::Boolean(*s.min_opt()?), Bound::Boolean(*s.max_opt()?))),
        Statistics::Int32(s) => {
            Some((Bound::Integer(i128::from(*s.min_opt()?)), Bound::Integer(i128::from(*s.max_opt()?))))
        }
        Statistics::Int64(s) => {
            Some((Bound::Integer(i128::from(*s.min_opt()?)), Bound::Integer(i128::from(*s.max_opt()?))))
        }
        Statistics::Float(s) => Some((Bound::Float(f64::from(*s.min_opt()?)), Bound::Float(f64::from(*s.max_opt()?)))),
        Statistics::Double(s) => Some((Bound::Float(*s.min_opt()?), Bound::Float(*s.max_opt()?))),
        Statistics::ByteArray(s) if text => {
            Some((Bound::Text(s.min_opt()?.as_bytes().to_vec()), Bound::Text(s.max_opt()?.as_bytes().to_vec())))
        }
        Statistics::FixedLenByteArray(s) if decimal => Some((
            Bound::Integer(big_endian(s.min_opt()?.as_bytes())?),
            Bound::Integer(big_endian(s.max_opt()?.as_bytes())?),
        )),
        _ => None,
    }
}

/// A signed big-endian number of up to 16 bytes.
fn big_endian(bytes: &[u8]) -> Option<i128> {
    let negative = bytes.first()? & 0x80 != 0;
    if bytes.len() > 16 {
        return None;
    }
    let mut whole = [if negative { 0xff } else { 0 }; 16];
    whole.get_mut(16 - bytes.len()..)?.copy_from_slice(bytes);
    Some(i128::from_be_bytes(whole))
}

fn leaf_type<'a>(schema: &'a Schema, path: &[&str]) -> Option<&'a DataType> {
    let (first, rest) = path.split_first()?;
    let mut data_type = schema.field_with_name(first).ok()?.data_type();
    for name in rest {
        let DataType::Struct(fields) = data_type else { return None };
        data_type = fields.iter().find(|field: &&std::sync::Arc<Field>| field.name() == name)?.data_type();
    }
    (!data_type.is_nested()).then_some(data_type)
}

fn bound_json(data_type: &DataType, bound: &Bound) -> Option<String> {
    match (bound, data_type) {
        (Bound::Boolean(value), _) => Some(value.to_string()),
        (Bound::Integer(value), DataType::Date32) => {
            let date = arrow_array::temporal_conversions::date32_to_datetime(i32::try_from(*value).ok()?)?;
            quoted(date.format("%Y-%m-%d").to_string(), 10)
        }
        (Bound::Integer(value), DataType::Timestamp(TimeUnit::Microsecond, zone)) => {
            let at = arrow_array::temporal_conversions::timestamp_us_to_datetime(i64::try_from(*value).ok()?)?;
            match zone {
                Some(_) => quoted(at.format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(), 27),
                None => quoted(at.format("%Y-%m-%dT%H:%M:%S%.6f").to_string(), 26),
            }
        }
        (Bound::Integer(value), DataType::Decimal128(_, scale)) => decimal_text(*value, *scale),
        (Bound::Integer(value), _) => Some(value.to_string()),
        (Bound::Float(value), _) if value.is_finite() => serde_json::to_string(value).ok(),
        (Bound::Float(_), _) => None,
        (Bound::Text(value), _) => serde_json::to_string(std::str::from_utf8(value).ok()?).ok(),
    }
}

/// Years outside 0 to 9999 have another length and are not understood by every reader.
fn quoted(text: String, length: usize) -> Option<String> {
    (text.len() == length && !text.starts_with('-')).then(|| format!("\"{text}\""))
}

/// The digits of a decimal: a JSON number that is exact, which a floating-point one is not above 2^53.
fn decimal_text(unscaled: i128, scale: i8) -> Option<String> {
    let scale = usize::try_from(scale).ok()?;
    let sign = if unscaled < 0 { "-" } else { "" };
    let digits = unscaled.unsigned_abs().to_string();
    if scale == 0 {
        return Some(format!("{sign}{digits}"));
    }
    let digits = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = digits.split_at_checked(digits.len() - scale)?;
    Some(format!("{sign}{whole}.{fraction}"))
}

/// A JSON object by path; leaves are JSON texts.
#[derive(Default)]
struct Node<'a> {
    children: Vec<(&'a str, Node<'a>)>,
    leaf: Option<String>,
}

impl<'a> Node<'a> {
    fn insert(&mut self, path: &[&'a str], json: String) {
        let Some((first, rest)) = path.split_first() else {
            self.leaf = Some(json);
            return;
        };
        let at = match self.children.iter().position(|(name, _)| name == first) {
            Some(at) => at,
            None => {
                self.children.push((first, Node::default()));
                self.children.len() - 1
            }
        };
        if let Some((_, child)) = self.children.get_mut(at) {
            child.insert(rest, json);
        }
    }

    fn json(&self) -> String {
        if let Some(leaf) = &self.leaf {
            return leaf.clone();
        }
        let fields = self.children.iter().map(|(name, child)| {
            let name = serde_json::Value::from(*name);
            format!("{name}:{}", child.json())
        });
        format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests;
