//! A checked plan as a list of steps, and what those read of the input (E98, E103).

use std::collections::BTreeSet;

use arrow_schema::{DataType, Schema};
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{Column, DFSchemaRef, ScalarValue};
use datafusion_expr::utils::split_conjunction_owned;
use datafusion_expr::{Expr, LogicalPlan, Operator};
use landfall_engine::contract::{PlanError, Wanted};

use crate::code;
use crate::function::record;

/// One step over the rows that the step before left.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Keeps the rows for which the condition is true.
    Filter { condition: Expr },
    /// Computes new columns from those at hand.
    Project { columns: Vec<Expr>, output: DFSchemaRef },
    /// The same columns under another table's name.
    Rename { output: DFSchemaRef },
    /// Rows become one row per element of their lists.
    Unnest(Unnest),
}

/// How each output column of an unnest comes about.
#[derive(Clone, Debug)]
pub(super) struct Unnest {
    pub(super) columns: Vec<Unnested>,
    pub(super) output: DFSchemaRef,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unnested {
    /// The input column, repeated.
    Kept(usize),
    /// The elements of the input column.
    Elements(usize),
    /// A field of the input column, by number.
    Field(usize, usize),
}

/// A plan taken apart.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    /// The input's columns that the first step sees, in order.
    pub(super) scan: DFSchemaRef,
    pub(super) steps: Vec<Step>,
}

impl Steps {
    /// Takes an optimised plan apart, or refuses what has no step.
    pub(super) fn of(plan: &LogicalPlan) -> Result<Steps, PlanError> {
        match plan {
            LogicalPlan::TableScan(scan) => {
                if let Some(filter) = scan.filters.first() {
                    return Err(PlanError::new(
                        code::NOT_BOUND,
                        format!("a condition was moved where nobody applies it: {filter}"),
                    ));
                }
                if scan.fetch.is_some() {
                    return Err(PlanError::new(code::NOT_ROW_WISE, "LIMIT is not offered: use WHERE"));
                }
                Ok(Steps { scan: scan.projected_schema.clone(), steps: Vec::new() })
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let mut steps = Steps::of(&alias.input)?;
                steps.steps.push(Step::Rename { output: alias.schema.clone() });
                Ok(steps)
            }
            LogicalPlan::Filter(filter) => {
                let mut steps = Steps::of(&filter.input)?;
                let conditions = split_conjunction_owned(filter.predicate.clone());
                // Conditions that cannot fail are evaluated at once; one that can has its own step, so that it sees
                // exactly the rows that those before it left.
                let mut joined: Option<Expr> = None;
                for condition in conditions {
                    if can_fail(&condition) {
                        steps.steps.extend(joined.take().map(|condition| Step::Filter { condition }));
                        steps.steps.push(Step::Filter { condition });
                    } else {
                        joined = Some(match joined {
                            Some(before) => before.and(condition),
                            None => condition,
                        });
                    }
                }
                steps.steps.extend(joined.map(|condition| Step::Filter { condition }));
                Ok(steps)
            }
            LogicalPlan::Projection(projection) => {
                let mut steps = Steps::of(&projection.input)?;
                steps.steps.push(Step::Project { columns: projection.expr.clone(), output: projection.schema.clone() });
                Ok(steps)
            }
            LogicalPlan::Unnest(unnest) => {
                let mut steps = Steps::of(&unnest.input)?;
                steps.steps.push(Step::Unnest(unnested(unnest)?));
                Ok(steps)
            }
            LogicalPlan::EmptyRelation(_) => {
                Err(PlanError::new(code::NOT_ROW_WISE, "the query never gives a row: its WHERE is always false"))
            }
            other => {
                let name = other.display().to_string();
                let name = name.split([':', ' ']).next().unwrap_or_default().to_owned();
                Err(PlanError::new(
                    code::NOT_ROW_WISE,
                    format!(
                        "{name} needs rows of other batches: land the rows, then aggregate there or in `landfall query`"
                    ),
                ))
            }
        }
    }

    /// The input column that an output column is, where no step made another of it.
    pub(super) fn origin(&self, output: &str) -> Option<String> {
        let mut name = output.to_owned();
        for (at, step) in self.steps.iter().enumerate().rev() {
            match step {
                Step::Filter { .. } | Step::Rename { .. } => {}
                Step::Project { columns, output } => {
                    let made = output.fields().iter().position(|field| *field.name() == name)?;
                    match columns.get(made)?.clone().unalias() {
                        Expr::Column(column) => name = column.name,
                        _ => return None,
                    }
                }
                Step::Unnest(step) => {
                    let made = step.output.fields().iter().position(|field| *field.name() == name)?;
                    let Unnested::Kept(from) = step.columns.get(made)? else { return None };
                    name = self.columns_before(at).fields().get(*from)?.name().clone();
                }
            }
        }
        Some(name)
    }

    /// The columns that a step sees.
    fn columns_before(&self, at: usize) -> &DFSchemaRef {
        let before = self.steps.iter().take(at).rev();
        let output = before.filter_map(|step| match step {
            Step::Filter { .. } => None,
            Step::Project { output, .. } | Step::Rename { output } => Some(output),
            Step::Unnest(step) => Some(&step.output),
        });
        output.into_iter().next().unwrap_or(&self.scan)
    }

    /// For people: one line a step.
    pub(super) fn describe(&self) -> Vec<String> {
        let mut lines = vec![format!("read {}", names(&self.scan))];
        lines.extend(self.steps.iter().filter_map(|step| match step {
            Step::Rename { .. } => None,
            Step::Filter { condition } => Some(format!("filter {condition}")),
            Step::Project { columns, .. } => {
                let columns: Vec<String> = columns.iter().map(Expr::to_string).collect();
                Some(format!("project {}", columns.join(", ")))
            }
            Step::Unnest(unnest) => Some(format!("unnest into {}", names(&unnest.output))),
        }));
        lines
    }

    /// The paths and hidden columns that the steps read.
    pub(super) fn wanted(&self) -> Wanted {
        let mut paths: BTreeSet<Vec<String>> = BTreeSet::new();
        let mut functions: BTreeSet<String> = BTreeSet::new();
        let mut is_narrowed = false;
        for step in &self.steps {
            let expressions: &[Expr] = match step {
                Step::Filter { condition } => std::slice::from_ref(condition),
                Step::Project { columns, .. } => columns,
                Step::Rename { .. } | Step::Unnest(_) => &[],
            };
            for expression in expressions {
                walk(expression, self.scan.as_arrow(), (!is_narrowed).then_some(&mut paths), &mut functions);
            }
            // Above the first projection, columns are no longer the input's.
            is_narrowed |= matches!(step, Step::Project { .. } | Step::Unnest(_));
        }
        if !is_narrowed {
            paths.extend(self.scan.fields().iter().map(|field| vec![field.name().clone()]));
        }
        Wanted {
            paths: Some(paths.into_iter().collect()),
            record_key: functions.contains(record::KEY),
            record_timestamp: functions.contains(record::TIMESTAMP),
            record_headers: functions.contains(record::HEADER),
        }
    }
}

fn names(schema: &DFSchemaRef) -> String {
    schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
}

/// Notes what an expression reads: each path of `get_field` over a column, every other use of a column whole, and
/// the `record_` functions.
fn walk(
    expression: &Expr,
    input: &Schema,
    mut paths: Option<&mut BTreeSet<Vec<String>>>,
    functions: &mut BTreeSet<String>,
) {
    if let Some(path) = path_of(expression, input) {
        if let Some(paths) = &mut paths {
            paths.insert(path);
        }
        return;
    }
    if let Expr::ScalarFunction(function) = expression
        && record::ALL.contains(&function.name())
    {
        functions.insert(function.name().to_owned());
    }
    // The closure never fails.
    let _ = expression.apply_children(|child| {
        walk(child, input, paths.as_deref_mut(), functions);
        Ok(TreeNodeRecursion::Continue)
    });
}

/// The path into structs that an expression is, cut where something else than a struct is entered.
fn path_of(expression: &Expr, input: &Schema) -> Option<Vec<String>> {
    let (column, names) = accesses(expression)?;
    let mut path = vec![column.name.clone()];
    let mut kind = input.field_with_name(&column.name).ok()?.data_type();
    for name in names {
        let DataType::Struct(fields) = kind else { break };
        kind = fields.find(&name)?.1.data_type();
        path.push(name);
    }
    Some(path)
}

fn accesses(expression: &Expr) -> Option<(&Column, Vec<String>)> {
    match expression {
        Expr::Column(column) => Some((column, Vec::new())),
        Expr::ScalarFunction(function) if function.name() == "get_field" => {
            let (base, keys) = function.args.split_first()?;
            let (column, mut names) = accesses(base)?;
            for key in keys {
                match key {
                    Expr::Literal(
                        ScalarValue::Utf8(Some(name))
                        | ScalarValue::LargeUtf8(Some(name))
                        | ScalarValue::Utf8View(Some(name)),
                        _,
                    ) => names.push(name.clone()),
                    _ => return None,
                }
            }
            Some((column, names))
        }
        _ => None,
    }
}

/// Whether evaluating an expression can fail for some row. A doubt counts as yes.
fn can_fail(expression: &Expr) -> bool {
    let mut fails = false;
    let _ = expression.apply(|part| {
        fails |= match part {
            Expr::Column(_)
            | Expr::Literal(..)
            | Expr::Alias(_)
            | Expr::Not(_)
            | Expr::IsNull(_)
            | Expr::IsNotNull(_)
            | Expr::IsTrue(_)
            | Expr::IsFalse(_)
            | Expr::IsUnknown(_)
            | Expr::IsNotTrue(_)
            | Expr::IsNotFalse(_)
            | Expr::IsNotUnknown(_)
            | Expr::Between(_)
            | Expr::InList(_)
            | Expr::TryCast(_) => false,
            Expr::BinaryExpr(binary) => !matches!(
                binary.op,
                Operator::Eq
                    | Operator::NotEq
                    | Operator::Lt
                    | Operator::LtEq
                    | Operator::Gt
                    | Operator::GtEq
                    | Operator::IsDistinctFrom
                    | Operator::IsNotDistinctFrom
                    | Operator::And
                    | Operator::Or
            ),
            Expr::ScalarFunction(function) => {
                !(function.name() == "get_field"
                    || record::ALL.contains(&function.name()) && function.name() != record::HEADER)
            }
            _ => true,
        };
        Ok(if fails { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    fails
}

fn unnested(unnest: &datafusion_expr::logical_plan::Unnest) -> Result<Unnest, PlanError> {
    let refuse = |text: &str| Err(PlanError::new(code::UNNEST_FORM, text));
    let mut columns = Vec::with_capacity(unnest.dependency_indices.len());
    for (output, input) in unnest.dependency_indices.iter().enumerate() {
        let mut lists = unnest.list_type_columns.iter().filter(|(column, _)| column == input);
        match (lists.next(), lists.next()) {
            (Some((_, list)), None) if list.depth == 1 => columns.push(Unnested::Elements(*input)),
            (Some(_), None) => return refuse("unnest goes one level at a time: use a sub-select for the next level"),
            (Some(_), Some(_)) => {
                return refuse("one list is unnested twice: unnest it once in a sub-select and use it from there");
            }
            (None, _) if unnest.struct_type_columns.contains(input) => {
                // The fields of a struct come out side by side, in order.
                let field = unnest.dependency_indices.iter().take(output).filter(|earlier| *earlier == input).count();
                columns.push(Unnested::Field(*input, field));
            }
            (None, _) => columns.push(Unnested::Kept(*input)),
        }
    }
    Ok(Unnest { columns, output: unnest.schema.clone() })
}
