//! How the query's columns lie in the table: what the chain casts to, which columns go into data files, which name
//! the partition, and which are new to the table (E125, E132).
//!
//! Judged at `plan`, again at `open`, and whenever another engine changes the table's metadata: a commit never goes on
//! with a layout that is not the planned one. No I/O.

use std::sync::Arc;

use arrow_schema::{Field, Schema, SchemaRef};
use deltalake_core::kernel::engine::arrow_conversion::TryIntoKernel;
use deltalake_core::kernel::{StructField, StructType};
use landfall_engine::contract::{columns, is_hidden};

use crate::code::DeltaError;
use crate::column::{POSITION_COLUMNS, can_partition, check_fields, fit, planned};
use crate::options::{DeltaOptions, Evolve};
use crate::protocol::{Metadata, check_protocol, check_retention};
use crate::table::Table;

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    /// The plan's schema: types to cast to, in the query's order.
    pub(crate) schema: SchemaRef,
    /// Partition columns as indices into `schema`.
    pub(crate) partition: Vec<usize>,
    /// The other columns, which data files hold.
    pub(crate) data: Vec<usize>,
    /// Columns that the table gets with the next commit (`evolve: add_columns`).
    pub(crate) added: Vec<Field>,
}

/// The query's columns that reach the table: those of the user, and the two hidden ones where they are asked for.
pub(crate) fn wanted(rows: &Schema, options: &DeltaOptions) -> Result<Vec<Field>, DeltaError> {
    let kept_hidden = [columns::PARTITION, columns::OFFSET];
    let mut wanted: Vec<Field> =
        rows.fields().iter().filter(|field| !is_hidden(field.name())).map(|field| field.as_ref().clone()).collect();
    if options.hidden {
        for name in kept_hidden {
            let field = rows.field_with_name(name).map_err(|_| DeltaError::Option {
                text: format!("`hidden: true` needs the column `{name}`, which this source does not give"),
            })?;
            wanted.push(field.clone());
        }
    }
    check_fields(&wanted)?;
    if wanted.is_empty() {
        return Err(DeltaError::Schema { text: "the query has no columns: select at least one".into() });
    }
    Ok(wanted)
}

impl Layout {
    /// The layout of a table that is to be created.
    pub(crate) fn of_new(rows: &Schema, options: &DeltaOptions) -> Result<Layout, DeltaError> {
        let query = wanted(rows, options)?;
        let fields = query.iter().map(|field| planned(field, options.timestamps));
        let fields = fields.collect::<Result<Vec<Field>, DeltaError>>()?;
        Layout::over(fields, &options.partition_by, Vec::new())
    }

    /// The layout over a table that exists, or all that stands against it.
    pub(crate) fn of_table(rows: &Schema, table: &Table, options: &DeltaOptions) -> Result<Layout, DeltaError> {
        check_protocol(&table.protocol, &table.metadata)?;
        check_retention(&table.metadata)?;
        let columns = table.arrow_schema()?;
        let query = wanted(rows, options)?;
        let (mut fields, mut added, mut differences) = (Vec::new(), Vec::new(), Vec::new());
        for field in &query {
            let name = field.name();
            let position = POSITION_COLUMNS.contains(&name.as_str());
            match columns.fields().iter().find(|column| column.name() == name) {
                Some(column) => match fit(field.data_type(), column.data_type(), position) {
                    // Whether a NOT NULL holds is judged row by row, by the chain.
                    Ok(data_type) => fields.push(Field::new(name, data_type, column.is_nullable())),
                    Err(why) => differences.push(format!(
                        "column `{name}`: {why}; cast it in the query to what the table has, or write to another table"
                    )),
                },
                None => {
                    let similar = columns.fields().iter().find(|column| column.name().eq_ignore_ascii_case(name));
                    let field = planned(field, options.timestamps)?;
                    if let Some(similar) = similar {
                        let similar = similar.name();
                        differences
                            .push(format!("the table has `{similar}`, not `{name}`: write `\"{name}\" AS {similar}`"));
                    } else if options.evolve == Evolve::AddColumns {
                        // Rows that are in the table already have no value for it.
                        let field = field.with_nullable(true);
                        added.push(field.clone());
                        fields.push(field);
                    } else {
                        let delta_type = sql_type(&field)?;
                        differences.push(format!(
                            "the table has no column `{name}`: ALTER TABLE … ADD COLUMNS ({name} {delta_type}), set `evolve: \
                             add_columns`, or take it out of the query"
                        ));
                    }
                }
            }
        }
        for column in columns.fields() {
            let name = column.name();
            if !column.is_nullable() && !query.iter().any(|field| field.name() == name) {
                differences.push(format!(
                    "the table's column `{name}` is NOT NULL and the query has none: select it, or ALTER TABLE … ALTER \
                     COLUMN {name} DROP NOT NULL"
                ));
            }
        }
        let partition_by = &table.metadata.partition_columns;
        if !options.partition_by.is_empty() && options.partition_by != *partition_by {
            differences.push(format!(
                "the table is partitioned by ({}), the configuration says ({}): partition columns of a table cannot change",
                partition_by.join(", "),
                options.partition_by.join(", ")
            ));
        }
        // A missing partition column is all NULL: the value is written without a column.
        let missing = partition_by.iter().filter(|name| !fields.iter().any(|field| field.name() == *name));
        for name in missing {
            differences.push(format!("the table is partitioned by `{name}`, which the query does not have: select it"));
        }
        if !differences.is_empty() {
            return Err(DeltaError::Schema {
                text: format!("the query does not fit the table: {}", differences.join("; ")),
            });
        }
        Layout::over(fields, partition_by, added)
    }

    fn over(fields: Vec<Field>, partition_by: &[String], added: Vec<Field>) -> Result<Layout, DeltaError> {
        let mut partition = Vec::new();
        for name in partition_by {
            let Some(at) = fields.iter().position(|field| field.name() == name) else {
                let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
                return Err(DeltaError::Option {
                    text: format!("`partition_by` names `{name}`, but the query has the columns {}", names.join(", ")),
                });
            };
            if fields.get(at).is_some_and(|field| !can_partition(field.data_type())) {
                return Err(DeltaError::Option {
                    text: format!(
                        "`partition_by` names `{name}`: a list, struct, map or binary value names no partition"
                    ),
                });
            }
            partition.push(at);
        }
        let data: Vec<usize> = (0..fields.len()).filter(|at| !partition.contains(at)).collect();
        if data.is_empty() {
            return Err(DeltaError::Option {
                text: "`partition_by` names every column: leave at least one for the data files".into(),
            });
        }
        Ok(Layout { schema: Arc::new(Schema::new(fields)), partition, data, added })
    }

    /// Whether what is written by `other` fits: the same columns, types and partitions, whatever is added to the table. A
    /// column that takes NULL may get none.
    pub(crate) fn takes(&self, other: &Layout) -> bool {
        self.schema.contains(&other.schema) && self.partition == other.partition
    }

    /// The schema of data files.
    pub(crate) fn data_schema(&self) -> SchemaRef {
        let fields: Vec<Field> = self.data.iter().map(|at| self.schema.field(*at).clone()).collect();
        Arc::new(Schema::new(fields))
    }

    /// Names of the partition columns, in order.
    pub(crate) fn partition_names(&self) -> Vec<String> {
        self.partition.iter().map(|at| self.schema.field(*at).name().clone()).collect()
    }

    /// The table's schema as its log writes it.
    pub(crate) fn kernel_schema(&self) -> Result<StructType, DeltaError> {
        self.schema
            .as_ref()
            .try_into_kernel()
            .map_err(|error: arrow_schema::ArrowError| DeltaError::Type { text: error.to_string() })
    }

    /// The table's metadata with the new columns, where there are any.
    pub(crate) fn evolved(&self, table: &Table) -> Result<Option<Metadata>, DeltaError> {
        if self.added.is_empty() {
            return Ok(None);
        }
        let schema = table.schema()?;
        let mut fields: Vec<StructField> = schema.fields().cloned().collect();
        for field in &self.added {
            fields.push(kernel_field(field)?);
        }
        let unreadable = |error: String| DeltaError::unreadable("adding columns to the table's schema", error);
        let schema = StructType::try_new(fields).map_err(|error| unreadable(error.to_string()))?;
        let text = serde_json::to_string(&schema).map_err(|error| unreadable(error.to_string()))?;
        let ntz = text.contains("\"timestamp_ntz\"") && !table.metadata.schema_string.contains("\"timestamp_ntz\"");
        if ntz {
            return Err(DeltaError::Schema {
                text:
                    "a new column is a timestamp without zone, for which the table's protocol would have to be raised: \
                       set `timestamps: utc`, or add the column by ALTER TABLE"
                        .into(),
            });
        }
        Ok(Some(table.metadata.with_schema(text)))
    }
}

fn kernel_field(field: &Field) -> Result<StructField, DeltaError> {
    field.try_into_kernel().map_err(|error: arrow_schema::ArrowError| DeltaError::Type { text: error.to_string() })
}

fn sql_type(field: &Field) -> Result<String, DeltaError> {
    Ok(kernel_field(field)?.data_type().to_string().to_uppercase())
}
