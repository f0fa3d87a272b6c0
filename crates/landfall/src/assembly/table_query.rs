//! `tables.<pattern>.sql`: a query over a captured table's changes, beside which what makes each a change rides on (P85).
//!
//! A query reads `_op`, `_commit_lsn`, `_seq`, `_commit_ts` and `_xid` like other columns, and need not select them: they
//! come out behind its columns as they went in. It cannot give these names to anything else, for a destination would take
//! its word for what happened to a row.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Field, FieldRef, Schema, SchemaRef};
use landfall_engine::contract::{EngineError, PlanError, RowErrors, Transform, columns, is_hidden};
use landfall_sql::{CompiledSql, Sql};

use crate::config::codes;

/// Each with the name under which it rides past the query: hidden columns do.
const CHANGE_COLUMNS: [(&str, &str); 5] = [
    (columns::OP, "___op"),
    (columns::COMMIT_LSN, "___commit_lsn"),
    (columns::SEQ, "___seq"),
    (columns::COMMIT_TS, "___commit_ts"),
    (columns::XID, "___xid"),
];

/// See the module.
pub(super) struct TableQuery {
    query: Box<dyn Transform>,
}

impl TableQuery {
    /// Compiles the query over one shape of a table.
    pub(super) fn compile(text: &str, rows: &SchemaRef) -> Result<TableQuery, PlanError> {
        let compiled = Sql::default().compile(text, rows)?;
        refuse_other_meanings(&compiled)?;
        Ok(TableQuery { query: compiled.into_transform() })
    }
}

/// Which of these columns of a table its query does not hand on under their own names.
pub(super) fn lost_columns<'a>(
    text: &str,
    rows: &SchemaRef,
    columns: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<&'a str>, PlanError> {
    let compiled = Sql::default().compile(text, rows)?;
    Ok(columns.into_iter().filter(|column| !compiled.carries(column)).collect())
}

fn refuse_other_meanings(compiled: &CompiledSql) -> Result<(), PlanError> {
    for (name, _) in CHANGE_COLUMNS {
        if compiled.output().column_with_name(name).is_some() && !compiled.carries(name) {
            let text = format!("`{name}` says what happened to a row: give what the query computes another name");
            return Err(PlanError::new(codes::CONTRADICTION, text));
        }
    }
    Ok(())
}

/// The rows with a second name for each column that rides.
fn with_riders(schema: &SchemaRef) -> (SchemaRef, Vec<usize>) {
    let mut fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
    let mut riders = Vec::with_capacity(CHANGE_COLUMNS.len());
    for (name, rider) in CHANGE_COLUMNS {
        if let Some((at, field)) = schema.fields().find(name) {
            fields.push(Arc::new(Field::new(rider, field.data_type().clone(), field.is_nullable())));
            riders.push(at);
        }
    }
    (Arc::new(Schema::new(fields)), riders)
}

/// The query's own columns, then those of the change under their own names, then the hidden ones: where each lies in
/// what comes out of the query.
fn settled(schema: &SchemaRef) -> (SchemaRef, Vec<usize>) {
    let is_rider = |name: &str| CHANGE_COLUMNS.iter().any(|(_, rider)| *rider == name);
    let is_of_change = |name: &str| CHANGE_COLUMNS.iter().any(|(own, _)| *own == name);
    let (mut fields, mut from): (Vec<FieldRef>, Vec<usize>) = (Vec::new(), Vec::new());
    let numbered = || schema.fields().iter().enumerate();
    for (at, field) in numbered().filter(|(_, field)| !is_hidden(field.name()) && !is_of_change(field.name())) {
        fields.push(field.clone());
        from.push(at);
    }
    for (own, rider) in CHANGE_COLUMNS {
        if let Some((at, field)) = schema.fields().find(rider) {
            fields.push(Arc::new(Field::new(own, field.data_type().clone(), field.is_nullable())));
            from.push(at);
        }
    }
    for (at, field) in numbered().filter(|(_, field)| is_hidden(field.name()) && !is_rider(field.name())) {
        fields.push(field.clone());
        from.push(at);
    }
    (Arc::new(Schema::new(fields)), from)
}

impl Transform for TableQuery {
    fn plan(&self, input: &SchemaRef) -> Result<SchemaRef, PlanError> {
        Ok(settled(&self.query.plan(&with_riders(input).0)?).0)
    }

    fn apply(&mut self, rows: RecordBatch, bad: &mut RowErrors) -> Result<RecordBatch, EngineError> {
        let defect = |error: arrow_schema::ArrowError| EngineError {
            code: codes::CONTRADICTION,
            text: format!("the rows of a table's query do not fit its plan: {error}"),
        };
        let (schema, riders) = with_riders(&rows.schema());
        let mut arrays = rows.columns().to_vec();
        arrays.extend(riders.into_iter().filter_map(|at| rows.columns().get(at).cloned()));
        let rows = RecordBatch::try_new(schema, arrays).map_err(defect)?;
        let rows = self.query.apply(rows, bad)?;
        let (schema, from) = settled(&rows.schema());
        let arrays = from.into_iter().filter_map(|at| rows.columns().get(at).cloned()).collect();
        RecordBatch::try_new(schema, arrays).map_err(defect)
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Int64Type, UInt64Type};
    use arrow_array::{ArrayRef, Int64Array, StringArray, TimestampMicrosecondArray, UInt32Array, UInt64Array};

    use super::*;

    /// What SQL can hold of a log position, of which it has no unsigned one.
    const LSN_MAX: u64 = i64::MAX as u64;

    fn rows() -> RecordBatch {
        let column = |name: &str, array: ArrayRef| (name.to_owned(), array, true);
        RecordBatch::try_from_iter_with_nullable([
            column("id", Arc::new(Int64Array::from(vec![1, 2, 3]))),
            column("price", Arc::new(Int64Array::from(vec![10, 20, 30]))),
            column(columns::OP, Arc::new(StringArray::from(vec!["s", "u", "d"]))),
            column(columns::COMMIT_LSN, Arc::new(UInt64Array::from(vec![LSN_MAX - 2, LSN_MAX - 1, LSN_MAX]))),
            column(columns::SEQ, Arc::new(UInt64Array::from(vec![0, 2, 3]))),
            column(columns::COMMIT_TS, Arc::new(TimestampMicrosecondArray::from(vec![1, 2, 3]).with_timezone("UTC"))),
            column(columns::XID, Arc::new(UInt32Array::from(vec![None, Some(7), Some(8)]))),
            column(columns::PARTITION, Arc::new(UInt32Array::from(vec![4, 4, 4]))),
            column(columns::OFFSET, Arc::new(UInt64Array::from(vec![0, 1, 2]))),
        ])
        .expect("a batch")
    }

    fn names(rows: &RecordBatch) -> Vec<String> {
        rows.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    fn run(query: &str) -> RecordBatch {
        let rows = rows();
        let mut query = TableQuery::compile(query, &rows.schema()).expect("it compiles");
        let planned = query.plan(&rows.schema()).expect("it is planned");
        let mut bad = RowErrors::default();
        let out = query.apply(rows, &mut bad).expect("it is applied");
        assert!(bad.as_slice().is_empty());
        assert_eq!(out.schema(), planned, "what comes is what was planned");
        out
    }

    /// Catches a query whose rows no longer say what happened to them, or say it in other types than the source did.
    #[test]
    fn what_makes_a_row_a_change_rides_past_the_query() {
        const TAIL: [&str; 7] = ["_op", "_commit_lsn", "_seq", "_commit_ts", "_xid", "__partition", "__offset"];
        for query in [
            "SELECT id, price * 2 AS double FROM input WHERE id <> 2",
            "SELECT id, _op, _commit_lsn, price * 2 AS double FROM input WHERE _op <> 'u'",
        ] {
            let out = run(query);
            assert_eq!(names(&out), [["id", "double"].as_slice(), TAIL.as_slice()].concat(), "{query}");
            assert_eq!(out.column(1).as_primitive::<Int64Type>().values(), &[20, 60]);
            assert_eq!(out.column(3).as_primitive::<UInt64Type>().values(), &[LSN_MAX - 2, LSN_MAX]);
            assert_eq!(out.column(8).as_primitive::<UInt64Type>().values(), &[0, 2]);
        }
        let out = run("SELECT * FROM input");
        assert_eq!(names(&out), [["id", "price"].as_slice(), TAIL.as_slice()].concat());
    }

    /// Catches a key that a query drops, renames or computes, and that is taken for the table's own.
    #[test]
    fn a_key_that_does_not_come_through_is_lost() {
        for (query, lost) in [
            ("SELECT * FROM input", vec![]),
            ("SELECT price, id FROM input WHERE price > 1", vec![]),
            ("SELECT price FROM input", vec!["id"]),
            ("SELECT id AS order_id, price FROM input", vec!["id"]),
            ("SELECT id + 1 AS id, price FROM input", vec!["id"]),
            ("SELECT price AS id, id AS price FROM input", vec!["id", "price"]),
        ] {
            let found = lost_columns(query, &rows().schema(), ["id", "price"]).expect("it compiles");
            assert_eq!(found, lost, "{query}");
        }
    }

    /// Catches a query that can call a deleted row an inserted one.
    #[test]
    fn a_query_cannot_say_that_something_else_happened() {
        for query in [
            "SELECT id, 'i' AS _op FROM input",
            "SELECT id, _seq AS _commit_lsn FROM input",
            "SELECT * FROM (SELECT id, upper(_op) AS _op FROM input) AS t",
        ] {
            let Err(error) = TableQuery::compile(query, &rows().schema()) else { panic!("{query} was taken") };
            assert!(error.text.contains("another name"), "{}", error.text);
        }
        let out = run("SELECT t._op, t.id FROM (SELECT id, _op FROM input) AS t WHERE t._op = 'd'");
        assert_eq!(out.num_rows(), 1);
    }
}
