//! Infers a schema from sampled records (E101): bigint, double, boolean, string, struct, array; an integer that meets
//! a fraction becomes double, every other mixture `json`; no timestamp is guessed. The answer depends on the samples
//! and their order alone. It does not choose the samples and does not store what it finds.

use std::fmt;

use landfall_engine::contract::PlanError;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{Column, ColumnType, Item, Schema};
use crate::code;

/// Names of one object: an object with more is a map in disguise and is kept as `json`.
const NAMES_MAX: usize = 256;

/// Columns of the record itself; fields beyond count as unknown.
const COLUMNS_MAX: usize = 1024;

/// The schema of the records that parse as JSON objects; the others will be row errors later.
pub fn infer<'a>(samples: impl IntoIterator<Item = &'a [u8]>) -> Result<Schema, PlanError> {
    let mut seen: Vec<(String, Shape)> = Vec::new();
    let mut records = 0u64;
    for sample in samples {
        if let Ok(Shape::Object(fields)) = serde_json::from_slice::<Shape>(sample) {
            records += 1;
            merge_fields(&mut seen, fields, COLUMNS_MAX);
        }
    }
    let columns: Vec<Column> = seen
        .into_iter()
        .filter(|(name, _)| super::check_name(name).is_ok())
        .map(|(name, shape)| column(name, shape))
        .collect();
    if columns.is_empty() {
        return Err(PlanError::new(
            code::NOTHING_TO_INFER,
            format!(
                "no schema can be inferred: {records} of the sampled records are JSON objects, none has a usable field"
            ),
        ));
    }
    Ok(Schema { columns })
}

fn column(name: String, shape: Shape) -> Column {
    Column { name, kind: kind(shape), not_null: false, default: None, round: None }
}

fn kind(shape: Shape) -> ColumnType {
    match shape {
        Shape::Boolean => ColumnType::Boolean,
        Shape::Integer => ColumnType::BigInt,
        Shape::Double => ColumnType::Double,
        Shape::Text => ColumnType::String,
        Shape::Array(item) => match *item {
            Shape::Nothing => ColumnType::Json,
            item => ColumnType::Array(Box::new(Item { kind: kind(item), not_null: false })),
        },
        Shape::Object(fields) if !fields.is_empty() && fields.iter().all(|(name, _)| is_nameable(name)) => {
            ColumnType::Struct(fields.into_iter().map(|(name, shape)| column(name, shape)).collect())
        }
        // Only nulls so far, an empty object, a mixture: the text itself loses nothing, whatever comes later.
        Shape::Nothing | Shape::Object(_) | Shape::Mixed => ColumnType::Json,
    }
}

/// Whether a type text can name the field.
fn is_nameable(name: &str) -> bool {
    !name.is_empty() && name.len() <= 255 && !(name.contains('`') && name.contains('"'))
}

#[derive(Debug, PartialEq)]
enum Shape {
    Nothing,
    Boolean,
    Integer,
    Double,
    Text,
    Array(Box<Shape>),
    Object(Vec<(String, Shape)>),
    Mixed,
}

impl Shape {
    fn merge(self, other: Shape) -> Shape {
        match (self, other) {
            (Shape::Nothing, shape) | (shape, Shape::Nothing) => shape,
            (Shape::Integer, Shape::Double) | (Shape::Double, Shape::Integer) => Shape::Double,
            (Shape::Array(one), Shape::Array(other)) => Shape::Array(Box::new(one.merge(*other))),
            (Shape::Object(mut fields), Shape::Object(others)) => {
                if merge_fields(&mut fields, others, NAMES_MAX) {
                    Shape::Object(fields)
                } else {
                    Shape::Mixed
                }
            }
            (one, other) if one == other => one,
            _ => Shape::Mixed,
        }
    }
}

/// Adds fields, up to a limit on names; false where a name was left out.
fn merge_fields(into: &mut Vec<(String, Shape)>, fields: Vec<(String, Shape)>, names_max: usize) -> bool {
    let mut all = true;
    for (name, shape) in fields {
        let is_full = into.len() >= names_max;
        match into.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = std::mem::replace(known, Shape::Nothing).merge(shape),
            None if is_full => all = false,
            None => into.push((name, shape)),
        }
    }
    all
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Look;

        impl<'de> Visitor<'de> for Look {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any JSON value")
            }

            fn visit_unit<E>(self) -> Result<Shape, E> {
                Ok(Shape::Nothing)
            }

            fn visit_bool<E>(self, _: bool) -> Result<Shape, E> {
                Ok(Shape::Boolean)
            }

            fn visit_i64<E>(self, _: i64) -> Result<Shape, E> {
                Ok(Shape::Integer)
            }

            fn visit_u64<E>(self, value: u64) -> Result<Shape, E> {
                // Past bigint a double would lose digits; the text keeps them.
                Ok(if i64::try_from(value).is_ok() { Shape::Integer } else { Shape::Mixed })
            }

            fn visit_f64<E>(self, _: f64) -> Result<Shape, E> {
                Ok(Shape::Double)
            }

            fn visit_str<E>(self, _: &str) -> Result<Shape, E> {
                Ok(Shape::Text)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Shape, A::Error> {
                let mut item = Shape::Nothing;
                while let Some(next) = items.next_element::<Shape>()? {
                    item = item.merge(next);
                }
                Ok(Shape::Array(Box::new(item)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Shape, A::Error> {
                let mut fields: Vec<(String, Shape)> = Vec::new();
                let mut all = true;
                while let Some((name, shape)) = entries.next_entry::<String, Shape>()? {
                    // The last of two fields of one name wins, as it does in decoding.
                    let is_full = fields.len() >= COLUMNS_MAX;
                    match fields.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, known)) => *known = shape,
                        None if is_full => all = false,
                        None => fields.push((name, shape)),
                    }
                }
                // The record itself may be this wide; whether an inner object may is judged where it is merged.
                Ok(if all { Shape::Object(fields) } else { Shape::Mixed })
            }
        }

        deserializer.deserialize_any(Look)
    }
}
