//! Cuts a schema down to the paths that a query reads (E98).

use landfall_engine::contract::PlanError;

use crate::code;
use crate::schema::{Column, ColumnType};

/// The declared columns that `paths` name, in declared order; inside a struct only the fields that are named, unless
/// some path takes the struct whole.
pub(crate) fn prune(declared: &[Column], paths: &[Vec<String>]) -> Result<Vec<Column>, PlanError> {
    let paths: Vec<&[String]> = paths.iter().map(Vec::as_slice).collect();
    if let Some(unknown) = paths.iter().find(|path| !exists(declared, path)) {
        return Err(PlanError::new(
            code::UNKNOWN_PATH,
            format!("`{}` is wanted, but the declared schema has no such field", unknown.join(".")),
        ));
    }
    Ok(kept(declared, &paths))
}

fn exists(declared: &[Column], path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else { return true };
    let Some(column) = declared.iter().find(|column| column.name == *first) else { return false };
    match &column.kind {
        ColumnType::Struct(columns) => exists(columns, rest),
        _ => rest.is_empty(),
    }
}

fn kept(declared: &[Column], paths: &[&[String]]) -> Vec<Column> {
    let mut columns = Vec::new();
    for column in declared {
        let inner: Vec<&[String]> = paths
            .iter()
            .filter_map(|path| path.split_first())
            .filter(|(first, _)| **first == column.name)
            .map(|(_, rest)| rest)
            .collect();
        if inner.is_empty() {
            continue;
        }
        let mut column = column.clone();
        if let ColumnType::Struct(fields) = &column.kind
            && inner.iter().all(|path| !path.is_empty())
        {
            column.kind = ColumnType::Struct(kept(fields, &inner));
        }
        columns.push(column);
    }
    columns
}
