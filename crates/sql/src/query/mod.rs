//! Row-wise SQL: a query is checked and planned once, and becomes a list of filter, projection and unnest steps that
//! are evaluated directly on batches (E103–E109).
//!
//! Promises: order kept; a row's result and a row's error depend on that row alone (E108); the same row gives the same
//! result every time (E105); hidden columns ride through (E106). What is not row-wise is refused when the query is
//! compiled, with its place and a next step. There is no stream, no task and no repartition here.

mod bind;
mod context;
mod evaluate;
mod record;
mod steps;
mod syntax;
mod unnest;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema, SchemaRef};
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchemaRef, DataFusionError, ScalarValue};
use datafusion_expr::{Expr, LogicalPlan, Volatility};
use datafusion_optimizer::analyzer::Analyzer;
use datafusion_optimizer::analyzer::type_coercion::TypeCoercion;
use datafusion_optimizer::optimize_projections::OptimizeProjections;
use datafusion_optimizer::simplify_expressions::SimplifyExpressions;
use datafusion_optimizer::{Optimizer, OptimizerContext};
use datafusion_sql::planner::{ParserOptions, SqlToRel};
use datafusion_sql::sqlparser::ast::Statement;
use landfall_engine::contract::{EngineError, PlanError, RowErrors, Transform, Wanted, is_hidden};

use self::bind::Bound;
use self::context::Context;
use self::steps::Steps;
use crate::code;
use crate::function::record as record_functions;
use crate::hidden::Hidden;

/// Compiles queries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sql {
    /// A row whose list is empty or null gives one row with NULL, instead of none.
    pub keep_empty: bool,
}

/// A query that was checked and planned. Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct CompiledSql {
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    steps: Steps,
    /// The visible columns.
    output: SchemaRef,
    keep_empty: bool,
    /// The library's plan, for people.
    text: String,
}

impl Sql {
    /// Compiles a SELECT over `input`. The schema is that of the decoder's output for all columns; hidden ones may be
    /// there and are not part of `*`.
    pub fn compile(self, query: &str, input: &SchemaRef) -> Result<CompiledSql, PlanError> {
        on_a_deep_stack(|| self.plan(syntax::query(query)?, query, input))
    }

    /// Compiles a condition, as a sink's `where` has it: the rows for which it is true stay as they are.
    pub fn compile_where(self, condition: &str, input: &SchemaRef) -> Result<CompiledSql, PlanError> {
        on_a_deep_stack(|| self.plan(syntax::condition(condition)?, condition, input))
    }

    fn plan(self, statement: Statement, text: &str, input: &SchemaRef) -> Result<CompiledSql, PlanError> {
        let visible: Vec<_> = input.fields().iter().filter(|field| !is_hidden(field.name())).cloned().collect();
        let context = Context::new(Arc::new(Schema::new(visible)));
        let options = ParserOptions::new()
            .with_parse_float_as_decimal(true)
            .with_map_string_types_to_utf8view(false)
            .with_collect_spans(true);
        let cannot = |error: DataFusionError| plan_error(&error, text, code::CANNOT_PLAN);
        let planned = SqlToRel::new_with_options(&context, options).sql_statement_to_plan(statement).map_err(cannot)?;
        let analyzed = Analyzer::with_rules(vec![Arc::new(TypeCoercion::new())])
            .execute_and_check(planned, &ConfigOptions::default(), |_, _| {})
            .map_err(cannot)?;
        check_deterministic(&analyzed)?;
        let rules: Vec<Arc<dyn datafusion_optimizer::OptimizerRule + Send + Sync>> =
            vec![Arc::new(SimplifyExpressions::new()), Arc::new(OptimizeProjections::new())];
        let optimized = Optimizer::with_rules(rules)
            .optimize(analyzed, &OptimizerContext::new().without_query_execution_start_time(), |_, _| {})
            .map_err(|error| plan_error(&error, text, code::BAD_CONSTANT))?;
        check_names(optimized.schema())?;
        check_sizes(&optimized)?;
        let steps = Steps::of(&optimized)?;
        let mut plan = Plan {
            steps,
            output: context.input().clone(),
            keep_empty: self.keep_empty,
            text: optimized.display_indent().to_string(),
        };
        // Binds once against the whole input, so that what cannot be evaluated is refused now.
        let every = Wanted { paths: None, record_key: true, record_timestamp: true, record_headers: true };
        let bound = Bound::new(&plan, &Hidden::new(&every).append_to(context.input().fields()))?;
        let output = bound.output().fields().iter().filter(|field| !is_hidden(field.name())).cloned();
        plan.output = Arc::new(Schema::new(output.collect::<Vec<_>>()));
        Ok(CompiledSql { plan: Arc::new(plan) })
    }
}

impl CompiledSql {
    /// What the query reads, for the decoder's plan.
    pub fn wanted(&self) -> Wanted {
        self.plan.steps.wanted()
    }

    /// The step list, as `check` shows it.
    pub fn steps(&self) -> Vec<String> {
        self.plan.steps.describe()
    }

    /// The library's plan after the two rules, as `check` shows it.
    pub fn plan_text(&self) -> &str {
        &self.plan.text
    }

    /// The visible output columns.
    pub fn output(&self) -> SchemaRef {
        self.plan.output.clone()
    }

    /// Whether an output column is the input's column of the same name, handed on as it is.
    pub fn carries(&self, column: &str) -> bool {
        self.plan.output.column_with_name(column).is_some()
            && self.plan.steps.origin(column).is_some_and(|origin| origin == column)
    }

    /// A transform of this query; each chain takes its own.
    pub fn into_transform(&self) -> Box<dyn Transform> {
        Box::new(SqlTransform { plan: self.plan.clone(), bound: None })
    }
}

/// A compiled query at work.
struct SqlTransform {
    plan: Arc<Plan>,
    bound: Option<Bound>,
}

impl Transform for SqlTransform {
    fn plan(&self, input: &SchemaRef) -> Result<SchemaRef, PlanError> {
        Bound::new(&self.plan, input).map(|bound| bound.output().clone())
    }

    fn apply(&mut self, rows: RecordBatch, bad: &mut RowErrors) -> Result<RecordBatch, EngineError> {
        let is_bound = self.bound.as_ref().is_some_and(|bound| bound.fits(rows.schema_ref()));
        if !is_bound {
            let bound = Bound::new(&self.plan, rows.schema_ref())
                .map_err(|error| EngineError { code: code::NOT_BOUND, text: error.text })?;
            self.bound = Some(bound);
        }
        match &self.bound {
            Some(bound) => bound.apply(rows, bad),
            None => Err(EngineError { code: code::NOT_BOUND, text: "the query is not bound".to_owned() }),
        }
    }
}

/// Planning goes down the tree of the query: here it has room for the deepest text that passes the length check. A
/// panic of the library is an error too (I14).
fn on_a_deep_stack<T: Send>(compile: impl FnOnce() -> Result<T, PlanError> + Send) -> Result<T, PlanError> {
    const STACK_BYTES: usize = 256 << 20;
    let failed = |why: &str| PlanError::new(code::NOT_BOUND, format!("the query cannot be compiled: {why}"));
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("sql-compile".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, compile)
            .map_err(|error| failed(&error.to_string()))?
            .join()
            .unwrap_or_else(|_| Err(failed("the planner panicked")))
    })
}

/// Refuses functions whose result is as long as a row says: a payload could ask for any amount of memory (I14).
fn check_sizes(plan: &LogicalPlan) -> Result<(), PlanError> {
    const ELEMENTS_MAX: i128 = 65_536;
    let is_small = |arg: &Expr| match arg {
        Expr::Literal(value, _) => match value.cast_to(&DataType::Int64) {
            Ok(ScalarValue::Int64(Some(value))) => i128::from(value).abs() <= ELEMENTS_MAX,
            Ok(_) => true,
            Err(_) => false,
        },
        _ => false,
    };
    let mut refused = None;
    let looked = plan.apply(|node| {
        node.apply_expressions(|expression| {
            expression.apply(|part| {
                let Expr::ScalarFunction(function) = part else { return Ok(TreeNodeRecursion::Continue) };
                let is_bounded = match function.name() {
                    "repeat" | "lpad" | "rpad" | "array_repeat" | "array_resize" => {
                        function.args.get(1).is_none_or(is_small)
                    }
                    "range" | "generate_series" => function.args.iter().all(is_small),
                    _ => true,
                };
                if !is_bounded {
                    refused = Some(function.name().to_owned());
                    return Ok(TreeNodeRecursion::Stop);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    match (refused, looked) {
        (Some(name), _) => Err(PlanError::new(
            code::CANNOT_PLAN,
            format!(
                "{name}(): the length must be a constant of at most {ELEMENTS_MAX}, so that no row can ask for more"
            ),
        )),
        (None, Ok(_)) => Ok(()),
        (None, Err(error)) => Err(PlanError::new(code::CANNOT_PLAN, error.strip_backtrace())),
    }
}

/// The library's error as ours, with its place where it knows one.
fn plan_error(error: &DataFusionError, text: &str, fallback: landfall_types::Code) -> PlanError {
    let span = error.diagnostic().and_then(|diagnostic| diagnostic.span);
    let root = error.find_root();
    let message = root.strip_backtrace();
    let message = message
        .trim_start_matches("Error during planning: ")
        .trim_start_matches("Schema error: ")
        .trim_start_matches("Execution error: ")
        .trim_start_matches("Arrow error: ")
        .to_owned();
    if message.contains("unique expression names") {
        return PlanError::new(code::COLUMN_TWICE, format!("two columns have one name: {message}"));
    }
    let code = match root {
        DataFusionError::Plan(_) | DataFusionError::SchemaError(..) => code::CANNOT_PLAN,
        _ => fallback,
    };
    let error = PlanError::new(code, message);
    match span {
        Some(span) => error.at(syntax::bytes_of(text, span.start.line, span.start.column)
            ..syntax::bytes_of(text, span.end.line, span.end.column)),
        None => error,
    }
}

/// E105, before any rule can fold a call into a constant.
fn check_deterministic(plan: &LogicalPlan) -> Result<(), PlanError> {
    let mut refused = None;
    let looked = plan.apply(|node| {
        node.apply_expressions(|expression| {
            expression.apply(|part| {
                if let Expr::ScalarFunction(function) = part
                    && function.func.signature().volatility != Volatility::Immutable
                    && !record_functions::ALL.contains(&function.name())
                {
                    refused = Some(function.name().to_owned());
                    return Ok(TreeNodeRecursion::Stop);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    match (refused, looked) {
        (Some(name), _) => Err(PlanError::new(code::NOT_DETERMINISTIC, syntax::not_deterministic(&name))),
        (None, Ok(_)) => Ok(()),
        (None, Err(error)) => Err(PlanError::new(code::CANNOT_PLAN, error.strip_backtrace())),
    }
}

fn check_names(output: &DFSchemaRef) -> Result<(), PlanError> {
    let mut seen = std::collections::HashSet::new();
    for field in output.fields() {
        if !seen.insert(field.name()) {
            return Err(PlanError::new(
                code::COLUMN_TWICE,
                format!("two columns are named `{}`: give one of them another alias", field.name()),
            ));
        }
        if is_hidden(field.name()) {
            return Err(PlanError::new(
                code::RESERVED_NAME,
                format!("`{}` is reserved: names that start with `__` belong to hidden columns", field.name()),
            ));
        }
    }
    Ok(())
}
