//! Values inside JSON texts by path.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use datafusion_common::{Result, exec_datafusion_err, exec_err};

use crate::json::{JsonPath, ValueForm};

/// `json_get(text, path)`: the value as JSON text, NULL where the path leads nowhere.
pub(super) fn get(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    at_path(args, rows, ValueForm::Json, "json_get")
}

/// `json_get_text(text, path)`: a string's content, another value's text; NULL for null and where the path leads
/// nowhere.
pub(super) fn get_text(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    at_path(args, rows, ValueForm::Text, "json_get_text")
}

fn at_path(args: &[ArrayRef], rows: usize, form: ValueForm, function: &str) -> Result<ArrayRef> {
    let [text, path] = args else { return exec_err!("{function} takes a text and a path") };
    let (texts, paths) = (text.as_string::<i32>(), path.as_string::<i32>());
    let mut found = StringBuilder::with_capacity(rows, 0);
    // A path is nearly always a constant.
    let mut last: Option<(&str, JsonPath)> = None;
    let mut value = Vec::new();
    for row in 0..rows {
        if texts.is_null(row) || paths.is_null(row) {
            found.append_null();
            continue;
        }
        let path = paths.value(row);
        if last.as_ref().is_none_or(|(text, _)| *text != path) {
            let parsed = JsonPath::parse(path).map_err(|why| exec_datafusion_err!("{function}: {why}"))?;
            last = Some((path, parsed));
        }
        let Some((_, path)) = &last else { continue };
        value.clear();
        let is_there = path
            .find(texts.value(row).as_bytes(), form, &mut value)
            .map_err(|why| exec_datafusion_err!("{function}: {why}"))?;
        match std::str::from_utf8(&value) {
            Ok(value) if is_there => found.append_value(value),
            _ => found.append_null(),
        }
    }
    Ok(Arc::new(found.finish()))
}
