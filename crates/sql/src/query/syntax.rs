//! The syntax tree of a query: what it may contain (E104, E105), and the names of its columns.
//!
//! Refusals happen here wherever the tree can tell, because only the tree knows places. What is accepted comes out
//! with every output column named and every hidden column read through its `record_` function, so that `*` never
//! drags hidden columns along.

use std::collections::HashSet;
use std::ops::{ControlFlow, Range};

use datafusion_common::DataFusionError;
use datafusion_sql::parser::{DFParserBuilder, Statement as DfStatement};
use datafusion_sql::sqlparser::ast::{
    Expr, Function, GroupByExpr, Ident, ObjectName, Query, Select, SelectItem, SetExpr, Spanned, Statement,
    TableFactor, VisitMut, VisitorMut,
};
use datafusion_sql::sqlparser::parser::ParserError;
use datafusion_sql::sqlparser::tokenizer::{Location, Span};
use landfall_engine::contract::{PlanError, columns};

use crate::code;

/// The one table that a query reads.
pub(super) const INPUT: &str = "input";

/// Queries and conditions longer than this are refused.
const QUERY_BYTES_MAX: usize = 64 << 10;

/// Levels of an expression: planning, binding and evaluation go down one by one, on stacks of any thread.
const EXPRESSION_DEPTH_MAX: usize = 128;

const ROWS_OF_OTHERS: &str = "needs rows of other batches: land the rows, then aggregate there or in `landfall query`";

/// Parses a query, checks it against E104 and E105, and names its columns.
pub(super) fn query(text: &str) -> Result<Statement, PlanError> {
    check_length(text)?;
    let statements = DFParserBuilder::new(text)
        .build()
        .and_then(|mut parser| parser.parse_statements())
        .map_err(|error| syntax_error(text, &error))?;
    let mut statements = statements.into_iter();
    let (Some(statement), None) = (statements.next(), statements.next()) else {
        return Err(PlanError::new(code::NOT_ROW_WISE, "a pipeline's SQL is exactly one SELECT"));
    };
    let mut statement = match statement {
        DfStatement::Statement(statement) => *statement,
        other => return Err(not_a_select(&other.to_string())),
    };
    let place = Place { text };
    match &mut statement {
        Statement::Query(query) => place.query(query)?,
        other => return Err(not_a_select(&other.to_string())),
    }
    place.expressions(&mut statement)?;
    Ok(statement)
}

/// Parses and checks a condition on its own, as a sink's `where` has it.
pub(super) fn condition(text: &str) -> Result<Statement, PlanError> {
    check_length(text)?;
    let expr = DFParserBuilder::new(text)
        .build()
        .and_then(|mut parser| parser.parse_into_expr())
        .map_err(|error| syntax_error(text, &error))?;
    let mut expr = expr.expr;
    Place { text }.expressions(&mut expr)?;
    let template = DFParserBuilder::new("SELECT * FROM input WHERE true")
        .build()
        .and_then(|mut parser| parser.parse_statements())
        .map_err(|error| syntax_error("", &error))?;
    if let Some(DfStatement::Statement(statement)) = template.into_iter().next()
        && let Statement::Query(mut query) = *statement
        && let SetExpr::Select(select) = query.body.as_mut()
    {
        select.selection = Some(expr);
        return Ok(Statement::Query(query));
    }
    Err(PlanError::new(code::SYNTAX, "the condition cannot be put into a query"))
}

fn check_length(text: &str) -> Result<(), PlanError> {
    if text.len() <= QUERY_BYTES_MAX {
        return Ok(());
    }
    Err(PlanError::new(code::SYNTAX, format!("the query has {} bytes, the limit is {QUERY_BYTES_MAX}", text.len())))
}

fn not_a_select(statement: &str) -> PlanError {
    let verb: String = statement.split_whitespace().next().unwrap_or("this").chars().take(20).collect();
    PlanError::new(code::NOT_ROW_WISE, format!("a pipeline's SQL is one SELECT over `{INPUT}`, not {verb}"))
}

fn syntax_error(text: &str, error: &DataFusionError) -> PlanError {
    let message = match error.find_root() {
        DataFusionError::SQL(error, _) => match error.as_ref() {
            ParserError::TokenizerError(text) | ParserError::ParserError(text) => text.clone(),
            ParserError::RecursionLimitExceeded => "the query nests too deep".to_owned(),
        },
        other => other.strip_backtrace(),
    };
    let (message, span) = match message.rsplit_once(" at Line: ") {
        Some((message, place)) => {
            let numbers: Vec<u64> = place.split(", Column: ").filter_map(|number| number.trim().parse().ok()).collect();
            let at = match numbers[..] {
                [line, column] => Place { text }.byte(Location { line, column }),
                _ => text.len(),
            };
            (message.to_owned(), at..at)
        }
        None => (message, text.len()..text.len()),
    };
    PlanError::new(code::SYNTAX, message).at(span)
}

/// Makes errors with their place in the query.
struct Place<'a> {
    text: &'a str,
}

impl Place<'_> {
    /// The byte at a line and column, both from 1, columns in characters.
    fn byte(&self, location: Location) -> usize {
        let mut start = 0;
        for _ in 1..location.line {
            match self.text.get(start..).and_then(|rest| rest.find('\n')) {
                Some(end) => start += end + 1,
                None => return self.text.len(),
            }
        }
        let column = usize::try_from(location.column.saturating_sub(1)).unwrap_or(usize::MAX);
        let line = self.text.get(start..).unwrap_or_default();
        line.char_indices().nth(column).map_or(self.text.len(), |(at, _)| start + at)
    }

    fn bytes(&self, span: Span) -> Option<Range<usize>> {
        if span == Span::empty() {
            return None;
        }
        let start = self.byte(span.start);
        let mut end = self.byte(span.end).max(start);
        // The parser's place of a call ends with its last argument: the brackets that it opens are closed behind it.
        let inside = self.text.get(start..end)?;
        let mut open = inside.matches('(').count().saturating_sub(inside.matches(')').count());
        while open > 0 && self.text.get(end..).is_some_and(|rest| rest.starts_with(')')) {
            end += 1;
            open -= 1;
        }
        Some(start..end)
    }

    fn error(&self, code: landfall_types::Code, span: Span, text: impl Into<String>) -> PlanError {
        let error = PlanError::new(code, text);
        match self.bytes(span) {
            Some(bytes) => error.at(bytes),
            None => error,
        }
    }

    fn refuse<T>(&self, span: Span, text: impl Into<String>) -> Result<T, PlanError> {
        Err(self.error(code::NOT_ROW_WISE, span, text))
    }

    fn query(&self, query: &mut Query) -> Result<(), PlanError> {
        if let Some(with) = &mut query.with {
            if with.recursive {
                return self.refuse(with.span(), "WITH RECURSIVE is not offered: a pipeline's SQL looks at one row");
            }
            for table in &mut with.cte_tables {
                self.query(&mut table.query)?;
            }
        }
        if let Some(order) = &query.order_by {
            return self.refuse(order.span(), format!("ORDER BY {ROWS_OF_OTHERS}; rows keep the order they came in"));
        }
        if let Some(limit) = &query.limit_clause {
            return self.refuse(limit.span(), "LIMIT is not offered: a pipeline has no last row; use WHERE");
        }
        if let Some(fetch) = &query.fetch {
            return self.refuse(fetch.span(), "FETCH is not offered: a pipeline has no last row; use WHERE");
        }
        if !query.locks.is_empty() || query.for_clause.is_some() {
            return self.refuse(Span::empty(), "FOR is not offered: remove it");
        }
        if query.settings.is_some() || query.format_clause.is_some() {
            return self.refuse(Span::empty(), "SETTINGS and FORMAT are not offered: remove them");
        }
        if !query.pipe_operators.is_empty() {
            return self.refuse(Span::empty(), "pipe operators are not offered: write a SELECT");
        }
        let span = query.body.span();
        match query.body.as_mut() {
            SetExpr::Select(select) => self.select(select),
            SetExpr::Query(query) => self.query(query),
            SetExpr::SetOperation { op, .. } => {
                self.refuse(span, format!("{op} is not offered: make one pipeline for each SELECT"))
            }
            SetExpr::Values(_) => self.refuse(span, format!("VALUES is not offered: a query reads FROM {INPUT}")),
            _ => self.refuse(span, format!("a pipeline's SQL is one SELECT over `{INPUT}`")),
        }
    }

    fn select(&self, select: &mut Select) -> Result<(), PlanError> {
        let whole = select.select_token.0.span;
        if select.distinct.is_some() {
            return self.refuse(whole, format!("DISTINCT {ROWS_OF_OTHERS}"));
        }
        match &select.group_by {
            GroupByExpr::Expressions(keys, _) if keys.is_empty() => {}
            clause => return self.refuse(clause.span(), format!("GROUP BY {ROWS_OF_OTHERS}")),
        }
        if let Some(having) = &select.having {
            return self.refuse(having.span(), format!("HAVING {ROWS_OF_OTHERS}"));
        }
        if let Some(qualify) = &select.qualify {
            return self.refuse(qualify.span(), format!("QUALIFY {ROWS_OF_OTHERS}"));
        }
        if !select.named_window.is_empty() {
            return self.refuse(whole, format!("WINDOW {ROWS_OF_OTHERS}"));
        }
        let others = [
            (select.top.is_some(), "TOP"),
            (select.into.is_some(), "INTO"),
            (!select.lateral_views.is_empty(), "LATERAL VIEW"),
            (select.prewhere.is_some(), "PREWHERE"),
            (!select.connect_by.is_empty(), "CONNECT BY"),
            (!select.cluster_by.is_empty(), "CLUSTER BY"),
            (!select.distribute_by.is_empty(), "DISTRIBUTE BY"),
            (!select.sort_by.is_empty(), "SORT BY"),
            (select.value_table_mode.is_some(), "SELECT AS"),
        ];
        if let Some((_, clause)) = others.iter().find(|(is_there, _)| *is_there) {
            return self.refuse(whole, format!("{clause} is not offered: remove it"));
        }
        self.from(select)?;
        self.names(select)
    }

    fn from(&self, select: &mut Select) -> Result<(), PlanError> {
        let whole = select.select_token.0.span;
        let [from] = select.from.as_mut_slice() else {
            return match select.from.get(1) {
                None => self.refuse(whole, format!("the query has no FROM: write FROM {INPUT}")),
                Some(second) if is_unnest(&second.relation) => self.refuse(second.span(), UNNEST_IN_FROM),
                Some(second) => self.refuse(second.span(), format!("a join {ROWS_OF_OTHERS}")),
            };
        };
        if let Some(join) = from.joins.first() {
            if is_unnest(&join.relation) {
                return self.refuse(join.relation.span(), UNNEST_IN_FROM);
            }
            return self.refuse(join.relation.span(), format!("JOIN {ROWS_OF_OTHERS}"));
        }
        let span = from.relation.span();
        match &mut from.relation {
            TableFactor::Table { name, args: None, with_ordinality: false, sample: None, .. } => {
                if name.0.len() > 1 {
                    return self.refuse(span, format!("`{name}` is not known: a query reads FROM {INPUT}"));
                }
                Ok(())
            }
            TableFactor::Derived { lateral: false, subquery, sample: None, .. } => self.query(subquery),
            TableFactor::UNNEST { .. } => self.refuse(span, UNNEST_IN_FROM),
            _ => self.refuse(span, format!("this FROM is not offered: a query reads FROM {INPUT} or a sub-select")),
        }
    }

    /// Gives each output column its name, or refuses.
    fn names(&self, select: &mut Select) -> Result<(), PlanError> {
        let mut seen: HashSet<String> = HashSet::new();
        for item in &mut select.projection {
            let span = item.span();
            let name = match item {
                SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => continue,
                SelectItem::ExprWithAlias { alias, .. } => alias.clone(),
                SelectItem::ExprWithAliases { .. } => {
                    return self.refuse(span, "several aliases for one expression are not offered");
                }
                SelectItem::UnnamedExpr(expr) => {
                    let Some(name) = path_name(expr) else {
                        return Err(self.error(
                            code::ALIAS_REQUIRED,
                            span,
                            "alias required: this column has no name, write `… AS name`",
                        ));
                    };
                    let taken = std::mem::replace(expr, Expr::Identifier(name.clone()));
                    *item = SelectItem::ExprWithAlias { expr: taken, alias: name.clone() };
                    name
                }
            };
            let name = normalized(&name);
            if name.starts_with("__") {
                return Err(self.error(
                    code::RESERVED_NAME,
                    span,
                    format!(
                        "`{name}` is reserved: names that start with `__` belong to hidden columns; give it an alias"
                    ),
                ));
            }
            if !seen.insert(name.clone()) {
                return Err(self.error(
                    code::COLUMN_TWICE,
                    span,
                    format!("two columns are named `{name}`: give one of them another alias"),
                ));
            }
        }
        Ok(())
    }

    fn expressions<T: VisitMut>(&self, tree: &mut T) -> Result<(), PlanError> {
        match tree.visit(&mut Expressions { place: self, depth: 0 }) {
            ControlFlow::Break(error) => Err(error),
            ControlFlow::Continue(()) => Ok(()),
        }
    }

    fn function(&self, function: &Function) -> Result<(), PlanError> {
        let name = function.name.to_string().to_ascii_lowercase();
        let span = function.name.span();
        if function.over.is_some() {
            return self.refuse(span, format!("a window function {ROWS_OF_OTHERS}"));
        }
        if function.filter.is_some() || !function.within_group.is_empty() || is_aggregate(&name) {
            return self.refuse(span, format!("{name}() {ROWS_OF_OTHERS}"));
        }
        if WINDOWS.contains(&name.as_str()) {
            return self.refuse(span, format!("{name}() {ROWS_OF_OTHERS}"));
        }
        if NOT_DETERMINISTIC.contains(&name.as_str()) {
            return Err(self.error(code::NOT_DETERMINISTIC, span, not_deterministic(&name)));
        }
        Ok(())
    }
}

/// The refusal of a function that answers differently each time.
pub(super) fn not_deterministic(name: &str) -> String {
    format!(
        "{name}() answers differently each time, so a row that is computed again would come out another: use \
         record_timestamp(), row_id(), or the sink option `loaded_at`"
    )
}

const UNNEST_IN_FROM: &str = "UNNEST in FROM is not offered: write `unnest(items)` in the SELECT list";

fn is_unnest(factor: &TableFactor) -> bool {
    match factor {
        TableFactor::UNNEST { .. } => true,
        TableFactor::Table { name, args: Some(_), .. } => name.to_string().eq_ignore_ascii_case("unnest"),
        TableFactor::Function { name, .. } => name.to_string().eq_ignore_ascii_case("unnest"),
        _ => false,
    }
}

/// The last identifier of a plain path.
fn path_name(expr: &Expr) -> Option<Ident> {
    match expr {
        Expr::Identifier(name) => Some(name.clone()),
        Expr::CompoundIdentifier(path) => path.last().cloned(),
        Expr::Nested(inner) => path_name(inner),
        _ => None,
    }
}

/// A name as the planner reads it: lower case unless quoted.
fn normalized(name: &Ident) -> String {
    if name.quote_style.is_some() { name.value.clone() } else { name.value.to_lowercase() }
}

struct Expressions<'a, 'b> {
    place: &'a Place<'b>,
    depth: usize,
}

impl VisitorMut for Expressions<'_, '_> {
    type Break = PlanError;

    fn post_visit_expr(&mut self, _: &mut Expr) -> ControlFlow<PlanError> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<PlanError> {
        self.depth += 1;
        if self.depth > EXPRESSION_DEPTH_MAX {
            return ControlFlow::Break(PlanError::new(
                code::CANNOT_PLAN,
                format!(
                    "an expression nests deeper than {EXPRESSION_DEPTH_MAX} levels, of which each operator in a row \
                     is one: compute parts of it in a sub-select, or use IN"
                ),
            ));
        }
        let found = match expr {
            Expr::Function(function) => self.place.function(function),
            Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. } => {
                self.place.refuse(expr.span(), format!("a subquery in an expression {ROWS_OF_OTHERS}"))
            }
            Expr::AnyOp { right, .. } | Expr::AllOp { right, .. } if matches!(right.as_ref(), Expr::Subquery(_)) => {
                self.place.refuse(expr.span(), format!("a subquery in an expression {ROWS_OF_OTHERS}"))
            }
            Expr::Identifier(name) => match hidden_function(self.place, name) {
                Ok(Some(function)) => {
                    *expr = function;
                    Ok(())
                }
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            },
            Expr::CompoundIdentifier(path) => match path.as_slice() {
                [table, name] if normalized(table) == INPUT => match hidden_function(self.place, name) {
                    Ok(Some(function)) => {
                        *expr = function;
                        Ok(())
                    }
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                },
                _ => Ok(()),
            },
            _ => Ok(()),
        };
        match found {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}

/// What reads a hidden column.
fn hidden_function(place: &Place<'_>, name: &Ident) -> Result<Option<Expr>, PlanError> {
    let function = match normalized(name).as_str() {
        columns::OFFSET => "record_offset",
        columns::PARTITION => "record_partition",
        columns::RECORD_KEY => "record_key",
        columns::RECORD_TIMESTAMP => "record_timestamp",
        columns::RECORD_HEADERS => {
            return Err(place.error(
                code::CANNOT_PLAN,
                name.span,
                "headers are read one at a time: record_header('name')",
            ));
        }
        _ => return Ok(None),
    };
    Ok(Some(Expr::Function(Function {
        name: ObjectName::from(vec![Ident::with_span(name.span, function)]),
        uses_odbc_syntax: false,
        parameters: datafusion_sql::sqlparser::ast::FunctionArguments::None,
        args: datafusion_sql::sqlparser::ast::FunctionArguments::List(
            datafusion_sql::sqlparser::ast::FunctionArgumentList {
                duplicate_treatment: None,
                args: Vec::new(),
                clauses: Vec::new(),
            },
        ),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })))
}

const NOT_DETERMINISTIC: &[&str] = &[
    "clock_timestamp",
    "current_date",
    "current_time",
    "current_timestamp",
    "gen_random_uuid",
    "localtime",
    "localtimestamp",
    "now",
    "rand",
    "random",
    "today",
    "uuid",
];

const WINDOWS: &[&str] = &[
    "cume_dist",
    "dense_rank",
    "first_value",
    "lag",
    "last_value",
    "lead",
    "nth_value",
    "ntile",
    "percent_rank",
    "rank",
    "row_number",
];

fn is_aggregate(name: &str) -> bool {
    const AGGREGATES: &[&str] = &[
        "any_value",
        "approx_distinct",
        "approx_median",
        "approx_percentile_cont",
        "approx_percentile_cont_with_weight",
        "array_agg",
        "avg",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bool_and",
        "bool_or",
        "corr",
        "count",
        "covar",
        "covar_pop",
        "covar_samp",
        "every",
        "grouping",
        "group_concat",
        "json_agg",
        "listagg",
        "max",
        "mean",
        "median",
        "min",
        "percentile_cont",
        "percentile_disc",
        "regr_avgx",
        "regr_avgy",
        "regr_count",
        "regr_intercept",
        "regr_r2",
        "regr_slope",
        "regr_sxx",
        "regr_sxy",
        "regr_syy",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "string_agg",
        "sum",
        "var",
        "var_pop",
        "var_population",
        "var_samp",
        "var_sample",
        "variance",
    ];
    AGGREGATES.binary_search(&name).is_ok()
}

/// The byte at a line and column, both from 1, columns in characters.
pub(super) fn bytes_of(text: &str, line: u64, column: u64) -> usize {
    Place { text }.byte(Location { line, column })
}
