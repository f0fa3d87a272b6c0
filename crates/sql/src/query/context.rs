//! What the library's planner asks of us: the one table, the functions, and the types of SQL texts (E104).

use std::sync::{Arc, LazyLock};

use arrow_schema::{DataType, Field, FieldRef, SchemaRef, TimeUnit};
use datafusion_common::config::ConfigOptions;
use datafusion_common::{Result, TableReference, plan_err};
use datafusion_expr::logical_plan::builder::LogicalTableSource;
use datafusion_expr::planner::{ContextProvider, ExprPlanner, TypePlanner};
use datafusion_expr::{AggregateUDF, HigherOrderUDF, ScalarUDF, TableSource, WindowUDF};
use datafusion_functions::core::planner::CoreFunctionPlanner;
use datafusion_functions::datetime::planner::DatetimeFunctionPlanner;
use datafusion_functions::unicode::planner::UnicodeFunctionPlanner;
use datafusion_functions_nested::planner::{FieldAccessPlanner, NestedFunctionPlanner};
use datafusion_sql::sqlparser::ast::{DataType as SqlType, TimezoneInfo};

use super::syntax::INPUT;
use crate::function;

/// The planner's view of one query's surroundings.
pub(super) struct Context {
    input: SchemaRef,
    options: ConfigOptions,
}

impl Context {
    pub(super) fn new(input: SchemaRef) -> Self {
        Context { input, options: ConfigOptions::default() }
    }

    /// The visible columns.
    pub(super) fn input(&self) -> &SchemaRef {
        &self.input
    }
}

impl ContextProvider for Context {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>> {
        if name.table() == INPUT && name.schema().is_none() {
            return Ok(Arc::new(LogicalTableSource::new(self.input.clone())));
        }
        plan_err!("table `{name}` is not known: a query reads FROM {INPUT}")
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        static PLANNERS: LazyLock<Vec<Arc<dyn ExprPlanner>>> = LazyLock::new(|| {
            vec![
                Arc::new(CoreFunctionPlanner::default()),
                Arc::new(NestedFunctionPlanner),
                Arc::new(FieldAccessPlanner),
                Arc::new(DatetimeFunctionPlanner),
                Arc::new(UnicodeFunctionPlanner),
            ]
        });
        &PLANNERS
    }

    fn get_type_planner(&self) -> Option<Arc<dyn TypePlanner>> {
        Some(Arc::new(Microseconds))
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        function::scalar_functions().get(name).cloned()
    }

    fn get_higher_order_meta(&self, _: &str) -> Option<Arc<HigherOrderUDF>> {
        None
    }

    fn get_aggregate_meta(&self, _: &str) -> Option<Arc<AggregateUDF>> {
        None
    }

    fn get_window_meta(&self, _: &str) -> Option<Arc<WindowUDF>> {
        None
    }

    fn get_variable_type(&self, _: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.options
    }

    fn udf_names(&self) -> Vec<String> {
        function::scalar_functions().keys().cloned().collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// `TIMESTAMP` is microseconds, with a zone microseconds in UTC; the library's nanoseconds end in 2262.
#[derive(Debug)]
struct Microseconds;

impl TypePlanner for Microseconds {
    fn plan_type_field(&self, sql_type: &SqlType) -> Result<Option<FieldRef>> {
        let kind = match sql_type {
            SqlType::Timestamp(precision, zone) => {
                if precision.is_some_and(|precision| precision > 6) {
                    return plan_err!("{sql_type} is finer than microseconds, which is what a TIMESTAMP holds here");
                }
                let is_zoned = matches!(zone, TimezoneInfo::WithTimeZone | TimezoneInfo::Tz);
                DataType::Timestamp(TimeUnit::Microsecond, is_zoned.then(|| "UTC".into()))
            }
            SqlType::Datetime(_) => DataType::Timestamp(TimeUnit::Microsecond, None),
            _ => return Ok(None),
        };
        Ok(Some(Arc::new(Field::new("", kind, true))))
    }
}
