//! The schema of a table's batches: its columns as Arrow has them, then what each change carries (P91).

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use landfall_engine::contract::columns as engine_columns;
use landfall_types::{Code, Coded, Kind, Retry};

use crate::row_codes as codes;
use crate::values::{Policies, Target, arrow_field, arrow_type};
use crate::{ColumnShape, TableName, TableShape};

/// Names of the columns behind a table's own.
pub mod meta_columns {
    /// What happened: `s`, `i`, `u`, `d`, `t`.
    pub const OP: &str = "_op";
    /// The commit LSN.
    pub const COMMIT_LSN: &str = "_commit_lsn";
    /// The number in the transaction.
    pub const SEQ: &str = "_seq";
    /// The time of the commit.
    pub const COMMIT_TS: &str = "_commit_ts";
    /// The transaction.
    pub const XID: &str = "_xid";
    /// Which columns an update left out. Kept free for `toast: merge`.
    pub const UNCHANGED: &str = "_unchanged";
    /// The row before. Kept free for `before: true`.
    pub const BEFORE: &str = "_before";
}

static META_FIELDS: LazyLock<Vec<FieldRef>> = LazyLock::new(|| {
    let commit_ts = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    [
        Field::new(meta_columns::OP, DataType::Utf8, false),
        Field::new(meta_columns::COMMIT_LSN, DataType::UInt64, false),
        Field::new(meta_columns::SEQ, DataType::UInt64, false),
        Field::new(meta_columns::COMMIT_TS, commit_ts, false),
        Field::new(meta_columns::XID, DataType::UInt32, true),
        Field::new(engine_columns::PARTITION, DataType::UInt32, false),
        Field::new(engine_columns::OFFSET, DataType::UInt64, false),
    ]
    .map(Arc::new)
    .into()
});

/// How a table's rows are made.
#[derive(Clone, Debug)]
pub struct RowOptions {
    /// What the target can hold.
    pub target: Target,
    /// What becomes of values that do not fit.
    pub policies: Policies,
    /// The same for single columns, instead.
    pub columns: HashMap<Arc<str>, Policies>,
    /// Whether a TRUNCATE is a row, `t`, which has no key: columns of the key are nullable then. Without it
    /// [`super::TableRows::truncate`] makes no row.
    pub truncate_rows: bool,
}

impl Default for RowOptions {
    fn default() -> Self {
        RowOptions {
            target: Target::default(),
            policies: Policies::default(),
            columns: HashMap::new(),
            truncate_rows: true,
        }
    }
}

impl RowOptions {
    pub(super) fn policies_of(&self, column: &ColumnShape) -> &Policies {
        self.columns.get(&column.name).unwrap_or(&self.policies)
    }
}

/// A shape with the schema of its batches. Made once per shape, shared by its builders.
#[derive(Clone, Debug)]
pub struct RowPlan {
    pub(super) shape: Arc<TableShape>,
    key: Arc<[Arc<str>]>,
    pub(super) schema: SchemaRef,
    pub(super) options: RowOptions,
}

/// LF-PG0409: a column's name is taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{table} has a column `{column}`, a name that Landfall needs for itself: rename it at the source, or leave it out of \
     the column list of a publication of your own"
)]
pub struct RowPlanError {
    /// The table.
    pub table: TableName,
    /// The column.
    pub column: Arc<str>,
}

impl Coded for RowPlanError {
    fn code(&self) -> Code {
        codes::COLUMN_NAME
    }

    fn kind(&self) -> Kind {
        codes::kind_of(self.code())
    }

    fn retry(&self) -> Retry {
        codes::retry_of(self.code())
    }
}

impl RowPlan {
    /// Plans a table's rows.
    pub fn new(shape: Arc<TableShape>, options: RowOptions) -> Result<Self, RowPlanError> {
        let schema = table_schema(&shape, &options)?;
        let key = shape.key_names().map(Arc::clone).collect();
        Ok(RowPlan { shape, key, schema, options })
    }

    /// The columns that tell its rows apart, in the table's order.
    pub fn key(&self) -> &Arc<[Arc<str>]> {
        &self.key
    }

    /// The schema of its batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The table's shape.
    pub fn shape(&self) -> &Arc<TableShape> {
        &self.shape
    }
}

/// The schema of a table's batches: its columns in the stream's order, `_op`, `_commit_lsn`, `_seq`, `_commit_ts`,
/// `_xid`, `__partition`, `__offset`.
pub fn table_schema(shape: &TableShape, options: &RowOptions) -> Result<SchemaRef, RowPlanError> {
    let mut fields = Vec::with_capacity(shape.columns.len() + META_FIELDS.len());
    for column in &shape.columns {
        if is_taken(&column.name) {
            return Err(RowPlanError { table: shape.name.clone(), column: column.name.clone() });
        }
        let data_type = arrow_type(&column.kind, options.policies_of(column), options.target);
        // A deleted row has only its key, a truncate not even that.
        let is_nullable = !(column.is_key && column.is_not_null) || options.truncate_rows;
        fields.push(Arc::new(arrow_field(&column.name, &column.kind, data_type, is_nullable)));
    }
    fields.extend(META_FIELDS.iter().cloned());
    Ok(Arc::new(Schema::new(fields)))
}

fn is_taken(name: &str) -> bool {
    landfall_engine::contract::is_hidden(name)
        || matches!(name, meta_columns::UNCHANGED | meta_columns::BEFORE)
        || META_FIELDS.iter().any(|field| field.name() == name)
}
