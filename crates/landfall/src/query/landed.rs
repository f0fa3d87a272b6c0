//! A landed Delta table as the query engine sees it: the files of one version, partition values beside them.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::datasource::{TableProvider, TableType};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::logical_expr::Expr;
use datafusion::object_store::ObjectMeta;
use datafusion::object_store::path::Path as StorePath;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use landfall_delta::{DeltaError, TableFiles, table_files};

/// The newest version of a table at the time it was opened.
#[derive(Debug)]
pub(crate) struct LandedTable {
    schema: TableSchema,
    files: Vec<PartitionedFile>,
}

impl LandedTable {
    /// Lists the table's files.
    pub(crate) async fn open(path: &Path) -> anyhow::Result<Self> {
        let listed = table_files(path).await.map_err(|error| match error {
            // What the other ways out of it would be is for pipelines.
            DeltaError::Missing { path } => anyhow::anyhow!("there is no Delta table at `{path}`"),
            error => error.into(),
        })?;
        let schema = split_schema(&listed);
        let types: Vec<DataType> =
            schema.table_partition_cols().iter().map(|field| field.data_type().clone()).collect();
        let files = listed
            .files
            .iter()
            .map(|file| {
                let values = file
                    .partition_values
                    .iter()
                    .zip(&types)
                    .map(|(value, of)| match value {
                        // An empty text is how the format writes NULL.
                        Some(text) if !text.is_empty() => ScalarValue::try_from_string(text.clone(), of),
                        _ => ScalarValue::try_from(of),
                    })
                    .collect::<Result<Vec<_>>>()?;
                let meta = ObjectMeta {
                    location: StorePath::from_absolute_path(&file.path)?,
                    last_modified: std::time::UNIX_EPOCH.into(),
                    size: file.size,
                    e_tag: None,
                    version: None,
                };
                Ok(PartitionedFile::from(meta).with_partition_values(values))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        Ok(LandedTable { schema, files })
    }
}

/// Data columns as they stand in the files, then the partition columns in the order of their values.
fn split_schema(listed: &TableFiles) -> TableSchema {
    let is_partition = |field: &FieldRef| listed.partition_columns.contains(field.name());
    let data: Vec<FieldRef> = listed.schema.fields().iter().filter(|field| !is_partition(field)).cloned().collect();
    let partition: Vec<FieldRef> = listed
        .partition_columns
        .iter()
        .filter_map(|name| listed.schema.fields().iter().find(|field| field.name() == name).cloned())
        .collect();
    TableSchema::builder(Arc::new(Schema::new(data))).with_table_partition_cols(partition).build()
}

#[async_trait]
impl TableProvider for LandedTable {
    fn schema(&self) -> SchemaRef {
        self.schema.table_schema().clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if self.files.is_empty() {
            let schema = match projection {
                Some(columns) => Arc::new(self.schema.table_schema().project(columns).map_err(DataFusionError::from)?),
                None => self.schema(),
            };
            return Ok(Arc::new(EmptyExec::new(schema)));
        }
        // A group a thread; files go around so that large and small ones mix.
        let groups = state.config().target_partitions().clamp(1, self.files.len());
        let mut file_groups = vec![Vec::new(); groups];
        for (at, file) in self.files.iter().enumerate() {
            if let Some(group) = file_groups.get_mut(at % groups) {
                group.push(file.clone());
            }
        }
        let source = Arc::new(ParquetSource::new(self.schema.clone()));
        let config = FileScanConfigBuilder::new(ObjectStoreUrl::local_filesystem(), source)
            .with_file_groups(file_groups.into_iter().map(FileGroup::new).collect())
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        Ok(DataSourceExec::from_data_source(config))
    }
}
