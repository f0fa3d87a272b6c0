//! The declared schema of a record: column → SQL type text (E101), and how each type looks in Arrow.
//!
//! Promises: what is declared in one order comes out in that order; a schema that was written by
//! [`Schema::to_json`] reads back the same, so a pinned schema never changes by itself. It holds no data and does
//! not decode.

mod infer;
mod text;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema as ArrowSchema, SchemaRef, TimeUnit};
use landfall_engine::contract::PlanError;
use serde::{Deserialize, Serialize};

use crate::code;

pub use infer::infer;

/// What rounds a number or a timestamp that has more digits than its column keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Round {
    /// To the nearest, a tie to the even one.
    HalfEven,
}

/// One column as a configuration writes it: a bare type text, or an object with options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ColumnText {
    /// `bigint not null`.
    Bare(String),
    /// `{type: "decimal(12,2)", default: 0, round: half_even}`.
    WithOptions(ColumnOptions),
}

/// A column with options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnOptions {
    /// The type text.
    #[serde(rename = "type")]
    pub type_text: String,
    /// What stands in for a missing field or null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<serde_json::Value>,
    /// Rounds excess digits instead of refusing the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<Round>,
}

impl From<&str> for ColumnText {
    fn from(text: &str) -> Self {
        ColumnText::Bare(text.to_owned())
    }
}

/// What an integer in a timestamp column counts, or that it is a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimestampForm {
    Text,
    Seconds,
    Millis,
    Micros,
    Nanos,
}

/// A column's type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ColumnType {
    Boolean,
    SmallInt,
    Int,
    BigInt,
    Float,
    Double,
    Decimal { precision: u8, scale: i8 },
    String,
    Json,
    Date,
    Timestamp(TimestampForm),
    Struct(Vec<Column>),
    Array(Box<Item>),
    Map(Box<Item>),
}

/// An element of an array or a value of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) kind: ColumnType,
    pub(crate) not_null: bool,
}

/// A named field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: ColumnType,
    pub(crate) not_null: bool,
    /// JSON text.
    pub(crate) default: Option<String>,
    pub(crate) round: Option<Round>,
}

/// The columns of a record, in the order they were declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    pub(crate) columns: Vec<Column>,
}

/// Columns of a schema, nested ones included: more is a mistake or an attack.
pub(crate) const FIELDS_MAX: usize = 4096;

impl Schema {
    /// Reads a declared schema; names the column and the place of the first mistake.
    pub fn declare(columns: impl IntoIterator<Item = (String, ColumnText)>) -> Result<Schema, PlanError> {
        let mut declared: Vec<Column> = Vec::new();
        let mut fields = 0;
        for (name, column) in columns {
            let options = match column {
                ColumnText::Bare(type_text) => ColumnOptions { type_text, default: None, round: None },
                ColumnText::WithOptions(options) => options,
            };
            check_name(&name)?;
            if declared.iter().any(|other| other.name == name) {
                return Err(PlanError::new(code::BAD_SCHEMA, format!("column `{name}` is declared twice")));
            }
            let item = text::parse(&options.type_text).map_err(|error| {
                let mut caret = String::new();
                caret.extend(std::iter::repeat_n(
                    ' ',
                    options.type_text.get(..error.at).map_or(0, |before| before.chars().count()),
                ));
                PlanError::new(
                    code::BAD_SCHEMA,
                    format!("column `{name}`: {}\n  {}\n  {caret}^", error.text, options.type_text),
                )
            })?;
            fields += 1 + item.kind.fields();
            if fields > FIELDS_MAX {
                return Err(PlanError::new(
                    code::BAD_SCHEMA,
                    format!("the schema has more than {FIELDS_MAX} fields, nested ones included"),
                ));
            }
            if options.round.is_some() && !matches!(item.kind, ColumnType::Decimal { .. } | ColumnType::Timestamp(_)) {
                return Err(PlanError::new(
                    code::BAD_SCHEMA,
                    format!("column `{name}`: `round` goes with decimal and timestamp, not with {}", item.kind),
                ));
            }
            declared.push(Column {
                name,
                kind: item.kind,
                not_null: item.not_null,
                default: options.default.map(|value| value.to_string()),
                round: options.round,
            });
        }
        if declared.is_empty() {
            return Err(PlanError::new(code::BAD_SCHEMA, "the schema declares no column"));
        }
        let schema = Schema { columns: declared };
        crate::json::check_defaults(&schema)?;
        Ok(schema)
    }

    /// The columns as type texts, as `check --schema` shows them.
    pub fn column_texts(&self) -> Vec<(String, String)> {
        let not_null = |column: &Column| if column.not_null { " not null" } else { "" };
        self.columns
            .iter()
            .map(|column| (column.name.clone(), format!("{}{}", column.kind, not_null(column))))
            .collect()
    }

    /// The whole record in Arrow: every column, no hidden ones.
    pub fn arrow(&self) -> SchemaRef {
        Arc::new(ArrowSchema::new(arrow_fields(&self.columns)))
    }

    /// The form that is pinned in state: a JSON array of columns, in order.
    pub fn to_json(&self) -> String {
        let pinned: Vec<Pinned> = self
            .column_texts()
            .into_iter()
            .zip(&self.columns)
            .map(|((name, type_text), column)| Pinned {
                name,
                options: ColumnOptions {
                    type_text,
                    // The text was made from a value, so it reads back; were it damaged the column has none.
                    default: column.default.as_deref().and_then(|text| serde_json::from_str(text).ok()),
                    round: column.round,
                },
            })
            .collect();
        serde_json::to_string(&pinned).unwrap_or_default()
    }

    /// Reads what [`Schema::to_json`] wrote.
    pub fn from_json(text: &str) -> Result<Schema, PlanError> {
        let unreadable =
            |why: String| PlanError::new(code::BAD_PINNED_SCHEMA, format!("the stored schema cannot be read: {why}"));
        let pinned: Vec<Pinned> = serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))?;
        Schema::declare(pinned.into_iter().map(|column| (column.name, ColumnText::WithOptions(column.options))))
            .map_err(|error| unreadable(error.text))
    }
}

#[derive(Serialize, Deserialize)]
struct Pinned {
    name: String,
    #[serde(flatten)]
    options: ColumnOptions,
}

fn check_name(name: &str) -> Result<(), PlanError> {
    let wrong = if name.is_empty() {
        "a column needs a name".to_owned()
    } else if name.len() > 255 {
        format!("a column's name has {} bytes, the limit is 255", name.len())
    } else if name.starts_with("__") {
        format!("column `{name}`: names that start with `__` are reserved for hidden columns")
    } else {
        return Ok(());
    };
    Err(PlanError::new(code::BAD_SCHEMA, wrong))
}

impl ColumnType {
    fn fields(&self) -> usize {
        match self {
            ColumnType::Struct(columns) => columns.iter().map(|column| 1 + column.kind.fields()).sum(),
            ColumnType::Array(item) | ColumnType::Map(item) => 1 + item.kind.fields(),
            _ => 0,
        }
    }

    pub(crate) fn arrow(&self) -> DataType {
        let utc = || Some("UTC".into());
        match self {
            ColumnType::Boolean => DataType::Boolean,
            ColumnType::SmallInt => DataType::Int16,
            ColumnType::Int => DataType::Int32,
            ColumnType::BigInt => DataType::Int64,
            ColumnType::Float => DataType::Float32,
            ColumnType::Double => DataType::Float64,
            ColumnType::Decimal { precision, scale } => DataType::Decimal128(*precision, *scale),
            ColumnType::String | ColumnType::Json => DataType::Utf8,
            ColumnType::Date => DataType::Date32,
            ColumnType::Timestamp(_) => DataType::Timestamp(TimeUnit::Microsecond, utc()),
            ColumnType::Struct(columns) => DataType::Struct(arrow_fields(columns)),
            ColumnType::Array(item) => DataType::List(Arc::new(Field::new("item", item.kind.arrow(), !item.not_null))),
            ColumnType::Map(item) => {
                let entries = Fields::from(vec![
                    Field::new("key", DataType::Utf8, false),
                    Field::new("value", item.kind.arrow(), !item.not_null),
                ]);
                DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries), false)), false)
            }
        }
    }
}

pub(crate) fn arrow_fields(columns: &[Column]) -> Fields {
    columns.iter().map(|column| Field::new(&column.name, column.kind.arrow(), !column.not_null)).collect()
}
