//! One shape of the rows that are written: what the query gives, how that lies in the table, and how its data files are
//! made (E132).
//!
//! A record source has one. A table of a change source gets further ones while rows of earlier ones are on their way:
//! each batch names its own, and a data file holds rows of one.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, BooleanArray, RecordBatch};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use arrow_select::filter::filter_record_batch;
use landfall_engine::contract::{TableNote, columns};
use parking_lot::Mutex;

use crate::data_file::DataFiles;
use crate::layout::Layout;

/// See the module.
pub(crate) struct Shape {
    pub(crate) rows: SchemaRef,
    pub(crate) layout: Layout,
    pub(crate) files: DataFiles,
}

/// The shapes of an open sink. Short looks only.
pub(crate) struct Shapes {
    first: Arc<Shape>,
    later: Mutex<BTreeMap<u32, Arc<Shape>>>,
}

impl Shapes {
    pub(crate) fn new(first: Shape) -> Self {
        Shapes { first: Arc::new(first), later: Mutex::default() }
    }

    /// The one that the table was opened with.
    pub(crate) fn first(&self) -> &Arc<Shape> {
        &self.first
    }

    /// The shape of a batch.
    pub(crate) fn of(&self, note: Option<TableNote>) -> Arc<Shape> {
        let later = note.and_then(|note| self.later.lock().get(&note.shape).cloned());
        later.unwrap_or_else(|| self.first.clone())
    }

    /// Takes a further shape.
    pub(crate) fn add(&self, number: u32, shape: Shape) {
        self.later.lock().insert(number, Arc::new(shape));
    }
}

/// Whether rows are changes of a table, with the columns that say so.
pub(crate) fn is_changes(rows: &Schema) -> bool {
    rows.field_with_name(columns::OP).is_ok() && rows.field_with_name(columns::COMMIT_LSN).is_ok()
}

/// Copied and streamed rows apart: a data file never mixes them (E129). (rows, whether they are copied), without empty
/// ones.
pub(crate) fn apart(rows: &RecordBatch) -> Result<Vec<(RecordBatch, bool)>, ArrowError> {
    let copied = rows.column_by_name(columns::OP).and_then(|ops| is_copied(ops.as_ref()));
    let Some(copied) = copied else { return Ok(vec![(rows.clone(), false)]) };
    match copied.true_count() {
        0 => Ok(vec![(rows.clone(), false)]),
        all if all == rows.num_rows() => Ok(vec![(rows.clone(), true)]),
        _ => {
            let streamed: BooleanArray = copied.values().iter().map(|is_copied| Some(!is_copied)).collect();
            Ok(vec![(filter_record_batch(rows, &copied)?, true), (filter_record_batch(rows, &streamed)?, false)])
        }
    }
}

fn is_copied(ops: &dyn Array) -> Option<BooleanArray> {
    const COPIED: &str = "s";
    let of = |op: Option<&str>| Some(op == Some(COPIED));
    if let Some(ops) = ops.as_string_opt::<i32>() {
        return Some(ops.iter().map(of).collect());
    }
    ops.as_string_view_opt().map(|ops| ops.iter().map(of).collect())
}
