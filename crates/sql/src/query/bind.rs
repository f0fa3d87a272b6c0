//! A plan bound to the batches it gets: columns by position, expressions in physical form.
//!
//! The decoder may hand over less than was declared, structs included (E98): the first steps are bound to what is
//! there. Hidden columns stand behind the visible ones at every step (E106).

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions, UInt32Array};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, DataFusionError, Result, TableReference};
use datafusion_expr::Expr;
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_physical_expr::expressions::{BinaryExpr, cast};
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr};
use landfall_engine::contract::{EngineError, PlanError, RowErrors, columns, is_hidden};

use super::Plan;
use super::evaluate::{self, Named};
use super::record;
use super::steps::Step;
use super::unnest::{self, BoundUnnest};
use crate::code;

type Visible = Vec<(Option<TableReference>, FieldRef)>;

enum BoundStep {
    Filter(Named),
    Project { columns: Vec<Named>, output: SchemaRef },
    Unnest(BoundUnnest),
}

/// A plan that can be applied to batches of one schema.
pub(super) struct Bound {
    input: SchemaRef,
    /// Positions in the input: the columns that are read, then the hidden ones.
    scan: Vec<usize>,
    scanned: SchemaRef,
    steps: Vec<BoundStep>,
    output: SchemaRef,
}

/// A batch between two steps, and the row of the input that each of its rows came from.
pub(super) struct Rows {
    pub(super) batch: RecordBatch,
    pub(super) origins: UInt32Array,
}

impl Bound {
    pub(super) fn new(plan: &Plan, input: &SchemaRef) -> Result<Bound, PlanError> {
        Self::bind(plan, input).map_err(|error| {
            let code = match error.find_root() {
                DataFusionError::Plan(_) | DataFusionError::NotImplemented(_) => code::CANNOT_PLAN,
                _ => code::NOT_BOUND,
            };
            PlanError::new(code, error.find_root().strip_backtrace())
        })
    }

    fn bind(plan: &Plan, input: &SchemaRef) -> Result<Bound> {
        let mut scan = Vec::new();
        let mut visible: Visible = Vec::new();
        for (qualifier, field) in plan.steps.scan.iter() {
            // A column that no step reads may be missing; those that are read are asked for by name later.
            if let Some((at, field)) = input.fields().find(field.name()) {
                scan.push(at);
                visible.push((qualifier.cloned(), field.clone()));
            }
        }
        let mut hidden: Vec<FieldRef> = Vec::new();
        for (at, field) in input.fields().iter().enumerate() {
            if is_hidden(field.name()) {
                scan.push(at);
                hidden.push(field.clone());
            }
        }
        let scanned = schema_of(&visible, &hidden);
        let mut steps = Vec::with_capacity(plan.steps.steps.len());
        let is_rename = |step: &Step| matches!(step, Step::Rename { .. });
        let last = plan.steps.steps.iter().rposition(|step| !is_rename(step));
        for (number, step) in plan.steps.steps.iter().enumerate() {
            match step {
                Step::Rename { output } => {
                    // Qualifiers by name: what is not there was not read.
                    for (qualifier, field) in &mut visible {
                        let new = output.iter().find(|(_, renamed)| renamed.name() == field.name());
                        *qualifier = new.and_then(|(qualifier, _)| qualifier.cloned());
                    }
                }
                Step::Filter { condition } => {
                    let level = level(&visible, &hidden)?;
                    steps.push(BoundStep::Filter(Named {
                        name: "WHERE".to_owned(),
                        expression: physical(condition, &level)?,
                    }));
                }
                Step::Project { columns, output } => {
                    let level = level(&visible, &hidden)?;
                    let mut bound = Vec::with_capacity(columns.len());
                    let mut next: Visible = Vec::with_capacity(columns.len());
                    for (column, (qualifier, field)) in columns.iter().zip(output.iter()) {
                        let mut expression = physical(column, &level)?;
                        let kind = expression.data_type(level.as_arrow())?;
                        let landed = landed_type(&kind);
                        if last == Some(number) && landed != kind {
                            expression = cast(expression, level.as_arrow(), landed)?;
                        }
                        let kind = expression.data_type(level.as_arrow())?;
                        // Only a column that is passed on keeps its promise never to be null: what the library
                        // promises of other expressions is not checked by anyone.
                        let is_nullable = match column.clone().unalias() {
                            Expr::Column(_) => expression.nullable(level.as_arrow())?,
                            _ => true,
                        };
                        next.push((qualifier.cloned(), Arc::new(Field::new(field.name(), kind, is_nullable))));
                        bound.push(Named { name: format!("column `{}`", field.name()), expression });
                    }
                    visible = next;
                    steps.push(BoundStep::Project { columns: bound, output: schema_of(&visible, &hidden) });
                }
                Step::Unnest(step) => {
                    let mut next: Visible = Vec::with_capacity(step.columns.len());
                    for (column, (qualifier, field)) in step.columns.iter().zip(step.output.iter()) {
                        let kind = unnest::type_of(column, &visible)?;
                        let is_nullable = unnest::is_nullable(column, &visible, plan.keep_empty);
                        next.push((qualifier.cloned(), Arc::new(Field::new(field.name(), kind, is_nullable))));
                    }
                    let inputs = visible.len();
                    hidden.retain(|field| field.name() != columns::UNNEST);
                    hidden.push(Arc::new(Field::new(columns::UNNEST, DataType::UInt32, false)));
                    visible = next;
                    steps.push(BoundStep::Unnest(BoundUnnest {
                        columns: step.columns.clone(),
                        inputs,
                        output: schema_of(&visible, &hidden),
                        keep_empty: plan.keep_empty,
                    }));
                }
            }
        }
        let output = schema_of(&visible, &hidden);
        Ok(Bound { input: input.clone(), scan, scanned, steps, output })
    }

    pub(super) fn output(&self) -> &SchemaRef {
        &self.output
    }

    pub(super) fn fits(&self, input: &SchemaRef) -> bool {
        Arc::ptr_eq(&self.input, input) || self.input == *input
    }

    /// Applies every step. A row that failed anywhere leaves no row behind, those unnested from it included.
    pub(super) fn apply(&self, batch: RecordBatch, bad: &mut RowErrors) -> Result<RecordBatch, EngineError> {
        let rows = u32::try_from(batch.num_rows())
            .map_err(|_| defect(format!("a batch of {} rows is more than a transform takes", batch.num_rows())))?;
        let scanned = self.scan.iter().filter_map(|at| batch.columns().get(*at).cloned()).collect();
        let mut rows = Rows {
            batch: assemble(&self.scanned, scanned, rows as usize)?,
            origins: UInt32Array::from_iter_values(0..rows),
        };
        let mut failed: HashSet<u32> = HashSet::new();
        let mut is_unnested = false;
        for step in &self.steps {
            let mut report = |origin: u32, code, text| {
                if failed.insert(origin) {
                    bad.push(origin, code, text);
                }
            };
            rows = match step {
                BoundStep::Filter(condition) => evaluate::filter(condition, rows, &mut report)?,
                BoundStep::Project { columns, output } => evaluate::project(columns, output, rows, &mut report)?,
                BoundStep::Unnest(step) => {
                    is_unnested = true;
                    step.apply(rows, &mut report)?
                }
            };
        }
        if is_unnested && !failed.is_empty() {
            let kept = rows.origins.values().iter().map(|origin| Some(!failed.contains(origin))).collect();
            rows = evaluate::kept(rows, &kept)?;
        }
        assemble(&self.output, rows.batch.columns().to_vec(), rows.batch.num_rows())
    }
}

/// SQL has no unsigned integers, and its timestamps are microseconds (E104): what functions give otherwise becomes so
/// where it leaves the query.
fn landed_type(kind: &DataType) -> DataType {
    match kind {
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => DataType::Int64,
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Microsecond, zone.as_ref().map(|_| "UTC".into())),
        other => other.clone(),
    }
}

fn schema_of(visible: &Visible, hidden: &[FieldRef]) -> SchemaRef {
    let fields: Vec<FieldRef> = visible.iter().map(|(_, field)| field.clone()).chain(hidden.iter().cloned()).collect();
    Arc::new(Schema::new(fields))
}

/// What an expression at this level can name.
fn level(visible: &Visible, hidden: &[FieldRef]) -> Result<DFSchema> {
    let fields = visible.iter().cloned().chain(hidden.iter().map(|field| (None, field.clone()))).collect();
    DFSchema::new_with_metadata(fields, std::collections::HashMap::new())
}

fn physical(expression: &Expr, level: &DFSchema) -> Result<Arc<dyn PhysicalExpr>> {
    let expression = record::resolved(expression.clone(), level.as_arrow())?;
    let physical =
        create_physical_expr(&expression, level, &ExecutionProps::new(), &PhysicalPlanningContext::default())?;
    // An integer that wraps would be wrong data; as an error it is a row error.
    let checked = physical.transform_up(|part| {
        let binary = part.downcast_ref::<BinaryExpr>().filter(|binary| binary.op().is_numerical_operators());
        Ok(match binary {
            Some(binary) => {
                let (left, op, right) = (binary.left().clone(), *binary.op(), binary.right().clone());
                Transformed::yes(Arc::new(BinaryExpr::new(left, op, right).with_fail_on_overflow(true)) as _)
            }
            None => Transformed::no(part),
        })
    })?;
    Ok(checked.data)
}

pub(super) fn assemble(
    schema: &SchemaRef,
    columns: Vec<arrow_array::ArrayRef>,
    rows: usize,
) -> Result<RecordBatch, EngineError> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options)
        .map_err(|error| defect(format!("the columns of a step do not fit together: {error}")))
}

pub(super) fn defect(text: String) -> EngineError {
    EngineError { code: code::NOT_BOUND, text }
}
