//! The payload as one column, for queries that take it apart themselves and for sinks that keep it as it is.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, builder::StringBuilder};
use arrow_schema::{DataType, Field, Fields, SchemaRef};
use landfall_engine::contract::{Decoded, Decoder, EngineError, PlanError, RowErrors, Wanted, columns};

use crate::code;
use crate::hidden::{Hidden, Payloads};

/// What the one column holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RawForm {
    /// BinaryView: any bytes, shared with the source batch.
    #[default]
    Binary,
    /// Utf8: a payload that is not UTF-8 is a row error.
    Text,
}

/// Hands the payload on as the column `payload`.
#[derive(Debug)]
pub struct RawDecoder {
    form: RawForm,
    planned: Option<Planned>,
}

struct Planned {
    output: SchemaRef,
    hidden: Hidden,
    has_payload: bool,
}

impl std::fmt::Debug for Planned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Planned").field("output", &self.output).finish_non_exhaustive()
    }
}

impl RawDecoder {
    /// A decoder of either form. It must be planned before it decodes.
    pub fn new(form: RawForm) -> Self {
        RawDecoder { form, planned: None }
    }
}

impl Decoder for RawDecoder {
    fn plan(&mut self, wanted: &Wanted) -> Result<SchemaRef, PlanError> {
        let unknown = wanted.paths.iter().flatten().find(|path| **path != [columns::PAYLOAD]);
        if let Some(path) = unknown {
            return Err(PlanError::new(
                code::UNKNOWN_PATH,
                format!("`{}` is wanted, but a raw record has the one column `{}`", path.join("."), columns::PAYLOAD),
            ));
        }
        let has_payload = wanted.paths.as_ref().is_none_or(|paths| !paths.is_empty());
        let kind = match self.form {
            RawForm::Binary => DataType::BinaryView,
            RawForm::Text => DataType::Utf8,
        };
        let hidden = Hidden::new(wanted);
        let fields: Fields =
            has_payload.then(|| Field::new(columns::PAYLOAD, kind, false)).into_iter().collect::<Vec<_>>().into();
        let output = hidden.append_to(&fields);
        self.planned = Some(Planned { output: output.clone(), hidden, has_payload });
        Ok(output)
    }

    fn decode(&mut self, records: &RecordBatch, bad: &mut RowErrors) -> Result<Decoded, EngineError> {
        let planned = self.planned.as_ref().ok_or_else(|| EngineError {
            code: code::WRONG_PAYLOAD,
            text: "decode was called before plan".to_owned(),
        })?;
        let payloads = Payloads::of(records)?;
        let rows = u32::try_from(records.num_rows()).unwrap_or(u32::MAX);
        let mut origins: Vec<u32> = (0..rows).collect();
        let mut decoded: Vec<ArrayRef> = Vec::new();
        if planned.has_payload {
            match (self.form, records.column_by_name(columns::PAYLOAD)) {
                (RawForm::Binary, Some(column)) => {
                    let column = arrow_cast::cast(column, &DataType::BinaryView).map_err(|error| EngineError {
                        code: code::WRONG_PAYLOAD,
                        text: format!("payloads cannot be shared: {error}"),
                    })?;
                    decoded.push(column);
                }
                _ => {
                    origins.clear();
                    let mut texts = StringBuilder::new();
                    let mut bytes = 0usize;
                    for row in 0..rows {
                        let payload = payloads.get(row as usize);
                        match std::str::from_utf8(payload) {
                            Ok(_) if bytes + payload.len() > i32::MAX as usize => bad.push(
                                row,
                                code::BATCH_TOO_LARGE,
                                "the column would pass 2 GiB in this batch".to_owned(),
                            ),
                            Ok(text) => {
                                bytes += text.len();
                                texts.append_value(text);
                                origins.push(row);
                            }
                            Err(error) => {
                                let at = error.valid_up_to();
                                bad.push(row, code::BAD_TEXT_COLUMN, format!("at byte {at}: the payload is not UTF-8"));
                            }
                        }
                    }
                    decoded.push(Arc::new(texts.finish()));
                }
            }
        }
        planned.hidden.assemble(records, &origins, decoded, &planned.output).map(Decoded::Rows)
    }
}
