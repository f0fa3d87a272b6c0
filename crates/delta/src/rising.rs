//! Columns that only rise, like counters and clocks: their values do not come back, so a dictionary of them would fill up
//! for nothing before the encoder gives it up.
//!
//! A guess from a file's first rows, and a cautious one: values rise, and most are new. A column whose values come back in
//! turns does not rise, unless one turn is longer than these rows. A wrong guess costs space, never a value.

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, ArrowPrimitiveType, RecordBatch};
use arrow_schema::{DataType, Schema, TimeUnit};
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

/// Fewer rows say nothing.
const ROWS_MIN: usize = 4_096;

/// The properties of a file that begins with these rows.
pub(crate) fn properties(of_all: &WriterProperties, schema: &Schema, rows: &[RecordBatch]) -> WriterProperties {
    let mut builder = of_all.clone().into_builder();
    if rows.iter().map(RecordBatch::num_rows).sum::<usize>() >= ROWS_MIN {
        for (at, field) in schema.fields().iter().enumerate() {
            let columns: Vec<&dyn Array> =
                rows.iter().filter_map(|part| part.columns().get(at)).map(|column| &**column).collect();
            if is_rising(&columns) {
                let path = ColumnPath::new(vec![field.name().clone()]);
                builder = builder.set_column_dictionary_enabled(path, false);
            }
        }
    }
    builder.build()
}

/// Whether no value is below the one before it, and at least half are above it.
fn is_rising(columns: &[&dyn Array]) -> bool {
    match columns.first().map(|column| column.data_type()) {
        Some(DataType::Int32) => numbers::<Int32Type>(columns),
        Some(DataType::Int64) => numbers::<Int64Type>(columns),
        Some(DataType::Timestamp(TimeUnit::Microsecond, _)) => numbers::<TimestampMicrosecondType>(columns),
        // Shorter ones first: so numbers that are written out rise too.
        Some(DataType::Utf8) => rises(
            columns
                .iter()
                .filter_map(|column| column.as_string_opt::<i32>())
                .flat_map(|texts| texts.iter().map(|text| text.map(|text| (text.len(), text)))),
        ),
        _ => false,
    }
}

fn numbers<T: ArrowPrimitiveType<Native: Ord>>(columns: &[&dyn Array]) -> bool {
    rises(columns.iter().filter_map(|column| column.as_primitive_opt::<T>()).flat_map(|numbers| numbers.iter()))
}

fn rises<V: Ord + Copy>(values: impl Iterator<Item = Option<V>>) -> bool {
    let (mut count, mut above) = (0usize, 0usize);
    let mut last: Option<V> = None;
    for value in values {
        let Some(value) = value else { return false };
        match last {
            Some(last) if value < last => return false,
            Some(last) if value == last => {}
            _ => above += 1,
        }
        count += 1;
        last = Some(value);
    }
    above >= count.div_ceil(2)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, BooleanArray, Int64Array, StringArray};

    use super::*;

    fn with_dictionary(columns: Vec<(&str, ArrayRef)>, cut: usize) -> Vec<bool> {
        let all = RecordBatch::try_from_iter(columns).expect("columns of one length");
        let parts = [all.slice(0, cut), all.slice(cut, all.num_rows() - cut)];
        let made = properties(&WriterProperties::builder().build(), &all.schema(), &parts);
        let schema = all.schema();
        let paths = schema.fields().iter().map(|field| ColumnPath::new(vec![field.name().clone()]));
        paths.map(|path| made.dictionary_enabled(&path)).collect()
    }

    /// Catches a dictionary that is left out where values come back, or where too little was seen to say so.
    #[test]
    fn only_a_column_that_rises_goes_without_a_dictionary() {
        let numbers = |of: fn(i64) -> i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values((0..5_000).map(of))) };
        let texts = |of: fn(i64) -> String| -> ArrayRef { Arc::new(StringArray::from_iter_values((0..5_000).map(of))) };
        let columns = vec![
            ("counter", numbers(|n| n)),
            ("pairs", numbers(|n| n / 2)),
            ("seldom", numbers(|n| n / 3)),
            ("turns", numbers(|n| n % 4_900)),
            ("falling", numbers(|n| -n)),
            ("constant", numbers(|_| 7)),
            ("number in text", texts(|n| n.to_string())),
            ("name", texts(|n| format!("name {}", n % 7))),
            ("flag", Arc::new(BooleanArray::from(vec![true; 5_000])) as ArrayRef),
            ("gaps", Arc::new((0..5_000).map(|n| (n != 4_000).then_some(n)).collect::<Int64Array>()) as ArrayRef),
        ];
        let expected = [false, false, true, true, true, true, false, true, true, true];
        assert_eq!(with_dictionary(columns.clone(), 3_000), expected);
        let few = columns.into_iter().map(|(name, column)| (name, column.slice(0, 4_000))).collect();
        assert_eq!(with_dictionary(few, 10), [true; 10]);
    }
}
