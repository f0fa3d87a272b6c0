//! Whether records decode by their own type: JSON text, protobuf message (G17).
//!
//! A stream or request has one [`Validator`], made from the channel's `validate` option and the record's type and
//! schema. Bounded in depth and memory; what it says names places, never payload bytes.

use std::sync::Arc;

mod json;
mod proto;

pub(crate) use json::{check as check_json, elements as json_elements};
pub(crate) use proto::ProtoSchema;

/// How the records of one stream or request are checked.
#[derive(Clone, Debug)]
pub(crate) enum Validator {
    /// Any bytes.
    Off,
    /// One JSON text each.
    Json,
    /// One message of the schema each.
    Proto(Arc<ProtoSchema>),
}

impl Validator {
    /// Why `record` does not decode.
    pub(crate) fn check(&self, record: &[u8]) -> Result<(), String> {
        match self {
            Validator::Off => Ok(()),
            Validator::Json => json::check(record).map_err(|error| error.to_string()),
            Validator::Proto(schema) => schema.check(record).map_err(|error| error.to_string()),
        }
    }
}
