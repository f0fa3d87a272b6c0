//! What a table asks of its writers, and our own list of what we may meet (E125).
//!
//! The library's commit checks no protocol (T11), so a feature that it does not know would be broken silently. The
//! rule is an allow list: `appendOnly`, `changeDataFeed`, `deletionVectors` and `timestampNtz` ask nothing of an
//! append; five others pass where the table defines none; all else is refused by its name. No I/O.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::code::DeltaError;

/// The action `protocol`, as text in and out of the log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Protocol {
    pub(crate) min_reader_version: i32,
    pub(crate) min_writer_version: i32,
    #[serde(default)]
    pub(crate) reader_features: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) writer_features: Option<Vec<String>>,
}

/// The action `metaData`. What is not read here is kept, so that it can be written again with another schema.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Metadata {
    raw: Map<String, Value>,
    pub(crate) id: String,
    pub(crate) schema_string: String,
    pub(crate) partition_columns: Vec<String>,
    pub(crate) configuration: Vec<(String, String)>,
}

impl Metadata {
    /// Reads the action; an error says what is missing.
    pub(crate) fn read(value: Value) -> Result<Metadata, String> {
        let Value::Object(raw) = value else { return Err("`metaData` is not an object".into()) };
        let text = |key: &str| {
            raw.get(key)
                .and_then(Value::as_str)
                .map(str::to_owned)
                .ok_or_else(|| format!("`metaData.{key}` is no text"))
        };
        let partition_columns = match raw.get("partitionColumns") {
            Some(Value::Array(columns)) => columns.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        };
        let configuration = match raw.get("configuration") {
            Some(Value::Object(map)) => {
                map.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
            }
            _ => Vec::new(),
        };
        Ok(Metadata { id: text("id")?, schema_string: text("schemaString")?, partition_columns, configuration, raw })
    }

    /// The same table with another schema.
    pub(crate) fn with_schema(&self, schema_string: String) -> Metadata {
        let mut raw = self.raw.clone();
        raw.insert("schemaString".into(), Value::String(schema_string.clone()));
        Metadata { raw, schema_string, ..self.clone() }
    }

    /// The action's JSON.
    pub(crate) fn json(&self) -> Value {
        Value::Object(self.raw.clone())
    }

    /// A table property.
    pub(crate) fn property(&self, key: &str) -> Option<&str> {
        self.configuration.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// Refuses a table that asks for something that we do not do.
pub(crate) fn check_protocol(protocol: &Protocol, metadata: &Metadata) -> Result<(), DeltaError> {
    let refuse = |text: String| Err(DeltaError::Feature { text });
    if !(1..=3).contains(&protocol.min_reader_version) || !(1..=7).contains(&protocol.min_writer_version) {
        return refuse(format!(
            "the table needs protocol (reader {}, writer {}); Landfall writes up to (3, 7)",
            protocol.min_reader_version, protocol.min_writer_version
        ));
    }
    for feature in features(protocol) {
        let defined = match feature.as_str() {
            "appendOnly" | "changeDataFeed" | "deletionVectors" | "timestampNtz" => None,
            "invariants" => schema_has(metadata, "\"delta.invariants\"").then_some("an invariant"),
            "checkConstraints" => metadata
                .configuration
                .iter()
                .any(|(key, _)| key.starts_with("delta.constraints."))
                .then_some("a check constraint"),
            "generatedColumns" => {
                schema_has(metadata, "\"delta.generationExpression\"").then_some("a generated column")
            }
            "identityColumns" => schema_has(metadata, "\"delta.identity.").then_some("an identity column"),
            "columnMapping" => {
                let mode = metadata.property("delta.columnMapping.mode").unwrap_or("none");
                (mode != "none").then_some("mapped columns")
            }
            _ => Some("that feature"),
        };
        if let Some(defined) = defined {
            return refuse(format!(
                "the table has {defined} (table feature `{feature}`), which Landfall does not keep: write to a table \
                 without it"
            ));
        }
    }
    Ok(())
}

/// Features listed, and those that a lower version implies.
fn features(protocol: &Protocol) -> BTreeSet<String> {
    let listed = protocol.reader_features.iter().chain(&protocol.writer_features).flatten().cloned();
    let implied: &[(i32, &[&str])] = &[
        (2, &["appendOnly", "invariants"]),
        (3, &["checkConstraints"]),
        (4, &["changeDataFeed", "generatedColumns"]),
        (5, &["columnMapping"]),
        (6, &["identityColumns"]),
    ];
    let writer = protocol.min_writer_version;
    let implied = implied
        .iter()
        .filter(|(version, _)| writer < 7 && writer >= *version)
        .flat_map(|(_, names)| names.iter().map(|name| name.to_string()));
    listed.chain(implied).collect()
}

/// Property values hold column metadata as JSON keys of the schema's text; a column named like one costs a refusal
/// too many, never one too few.
fn schema_has(metadata: &Metadata, key: &str) -> bool {
    metadata.schema_string.contains(key)
}

/// The property that makes positions expire (T6), and whether it lets us write.
pub(crate) const RETENTION_PROPERTY: &str = "delta.setTransactionRetentionDuration";

const RETENTION_MIN: Duration = Duration::from_secs(30 * 86_400);

/// Refuses a table that forgets positions within 30 days. A text that is not understood is refused too: it may
/// mean less.
pub(crate) fn check_retention(metadata: &Metadata) -> Result<(), DeltaError> {
    let Some(text) = metadata.property(RETENTION_PROPERTY) else { return Ok(()) };
    match read_interval(text) {
        Some(retention) if retention >= RETENTION_MIN => Ok(()),
        _ => Err(DeltaError::Retention {
            text: format!(
                "table property `{RETENTION_PROPERTY}` is `{text}`: below 30 days positions would be forgotten and rows \
                 written twice; unset it or set at least `interval 30 days`"
            ),
        }),
    }
}

/// `interval 30 days`, `interval 2 weeks`: one number, one unit.
fn read_interval(text: &str) -> Option<Duration> {
    let mut words = text.split_whitespace();
    let mut word = words.next()?;
    if word.eq_ignore_ascii_case("interval") {
        word = words.next()?;
    }
    let number: u64 = word.parse().ok()?;
    let unit = words.next()?.to_ascii_lowercase();
    if words.next().is_some() {
        return None;
    }
    let seconds = match unit.trim_end_matches('s') {
        "second" => 1,
        "minute" => 60,
        "hour" => 3_600,
        "day" => 86_400,
        "week" => 7 * 86_400,
        _ => return None,
    };
    number.checked_mul(seconds).map(Duration::from_secs)
}

#[cfg(test)]
mod tests;
