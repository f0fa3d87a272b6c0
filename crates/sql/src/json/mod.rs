//! JSON to Arrow by a declared schema (E98–E102).
//!
//! Payload bytes are read once, straight into columns that can be cut back; there is no tree between. Fields that
//! nobody wants are passed over. One bad record never costs its batch, and no payload can panic the decoder or make it
//! allocate beyond its own size (I13, I14). Nothing is allocated per row once the columns have grown.
//!
//! It does not infer schemas (`schema::infer`) and knows no channel.

mod column;
mod lanes;
mod number;
mod object;
mod path;
mod predict;
mod quick;
mod rules;
mod scan;
mod time;
mod value;

#[cfg(test)]
mod quick_tests;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use landfall_engine::contract::{Decoded, Decoder, EngineError, PlanError, RowErrors, Wanted};
use landfall_types::Code;

use self::object::Object;
use self::rules::Rules;
use self::scan::{Failed, Scanner};
use crate::code;
use crate::hidden::{Hidden, Payloads};
use crate::schema::{self, Schema};
use crate::wanted;

pub(crate) use path::{JsonPath, ValueForm};
pub use rules::{DecodeCounters, Framing, JsonOptions, Unknown};

/// Decodes JSON objects by a schema.
pub struct JsonDecoder {
    schema: Schema,
    options: JsonOptions,
    counters: Arc<DecodeCounters>,
    planned: Option<Planned>,
}

/// What `plan` fixed.
struct Planned {
    output: SchemaRef,
    hidden: Hidden,
    rows: Rows,
}

/// The columns under construction, and the record that each of their rows came from.
struct Rows {
    object: Object,
    rules: Rules,
    framing: Framing,
    origins: Vec<u32>,
    quick: Quick,
}

/// Whether the short way is tried. After each record that it gave up it rests for twice as many, so that it costs next to
/// nothing where records are not for it.
#[derive(Debug, Default)]
struct Quick {
    is_possible: bool,
    rests: u32,
    resting: u32,
}

impl Quick {
    /// Whether the next record is one to try.
    #[inline]
    fn is_due(&mut self) -> bool {
        let is_due = self.is_possible && self.resting == 0;
        self.resting = self.resting.saturating_sub(1);
        is_due
    }

    #[inline]
    fn was(&mut self, has_read: bool) {
        const RESTS_MAX: u32 = 64;
        self.rests = if has_read { 0 } else { (self.rests * 2 + 1).min(RESTS_MAX) };
        self.resting = self.rests;
    }
}

impl std::fmt::Debug for JsonDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JsonDecoder").field("schema", &self.schema).field("options", &self.options).finish()
    }
}

impl JsonDecoder {
    /// A decoder of records of this schema. It must be planned before it decodes.
    pub fn new(schema: Schema, options: JsonOptions) -> Self {
        JsonDecoder { schema, options, counters: Arc::default(), planned: None }
    }

    /// What it counts beside rows.
    pub fn counters(&self) -> Arc<DecodeCounters> {
        self.counters.clone()
    }
}

impl Decoder for JsonDecoder {
    fn plan(&mut self, wanted: &Wanted) -> Result<SchemaRef, PlanError> {
        let columns = match &wanted.paths {
            None => self.schema.columns.clone(),
            Some(paths) => wanted::prune(&self.schema.columns, paths)?,
        };
        let hidden = Hidden::new(wanted);
        let mut object = Object::new(&columns);
        if self.options.unknown != Unknown::Ignore {
            object.declare_unwanted(&self.schema.columns);
        }
        let output = hidden.append_to(&schema::arrow_fields(&columns));
        // Unknown names are told by the long way alone, and texts that stand for numbers are read by it.
        let is_possible = self.options.framing == Framing::Single
            && self.options.unknown == Unknown::Ignore
            && !self.options.coerce
            && quick::can_read(&object);
        let rows = Rows {
            object,
            rules: Rules::new(&self.options, self.counters.clone()),
            framing: self.options.framing,
            origins: Vec::new(),
            quick: Quick { is_possible, ..Quick::default() },
        };
        self.planned = Some(Planned { output: output.clone(), hidden, rows });
        Ok(output)
    }

    fn decode(&mut self, records: &RecordBatch, bad: &mut RowErrors) -> Result<Decoded, EngineError> {
        let defect = |code: Code, text: String| EngineError { code, text };
        let planned = self
            .planned
            .as_mut()
            .ok_or_else(|| defect(code::WRONG_PAYLOAD, "decode was called before plan".to_owned()))?;
        let payloads = Payloads::of(records)?;
        let rows = &mut planned.rows;
        rows.origins.clear();
        for record in 0..records.num_rows() {
            let Ok(number) = u32::try_from(record) else { break };
            if let Err(refused) = rows.record(payloads.get(record), number) {
                bad.push(number, refused.0, refused.1);
            }
        }
        let columns = rows
            .object
            .finish()
            .map_err(|error| defect(code::BAD_ROWS, format!("decoded columns do not fit together: {error}")))?;
        planned.hidden.assemble(records, &rows.origins, columns, &planned.output).map(Decoded::Rows)
    }
}

/// Code and text of a refused record.
struct Refused(Code, String);

impl Rows {
    /// Decodes one record into no row, one or several; a refused one leaves none behind.
    fn record(&mut self, payload: &[u8], record: u32) -> Result<(), Refused> {
        let before = self.origins.len();
        let result = self.framed(payload, record);
        if result.is_err() {
            self.origins.truncate(before);
            self.object.cut(before);
        }
        result
    }

    fn framed(&mut self, payload: &[u8], record: u32) -> Result<(), Refused> {
        if self.quick.is_due() {
            let len = self.origins.len();
            let has_read = quick::record(&mut self.object, payload, len);
            self.quick.was(has_read);
            if has_read {
                self.origins.push(record);
                return Ok(());
            }
            self.object.cut(len);
        }
        if simdutf8::basic::from_utf8(payload).is_err() {
            let at = std::str::from_utf8(payload).map_or_else(|error| error.valid_up_to(), str::len);
            return Err(Refused(code::BAD_UTF8, format!("at byte {at}: the payload is not UTF-8")));
        }
        match self.framing {
            Framing::Single => self.line(payload, record, 0),
            Framing::Ndjson => {
                let mut start = 0;
                for end in memchr::memchr_iter(b'\n', payload).chain([payload.len()]) {
                    let line = payload.get(start..end).unwrap_or_default();
                    if !line.iter().all(u8::is_ascii_whitespace) {
                        self.line(line, record, start)?;
                    }
                    start = end + 1;
                }
                Ok(())
            }
            Framing::Array => {
                let mut scanner = Scanner::new(payload);
                let result = self.elements(&mut scanner, record);
                result.map_err(|Failed| refused(&mut scanner, 0))
            }
        }
    }

    /// One object and nothing behind it; `base` is where it starts in the payload.
    fn line(&mut self, text: &[u8], record: u32, base: usize) -> Result<(), Refused> {
        let mut scanner = Scanner::new(text);
        self.object(&mut scanner, record).and_then(|()| end(&mut scanner)).map_err(|Failed| refused(&mut scanner, base))
    }

    fn elements(&mut self, scanner: &mut Scanner<'_>, record: u32) -> Result<(), Failed> {
        if !scanner.takes(b'[') {
            scanner.skip_value(true)?;
            return Err(scanner.fail_at(code::NOT_AN_OBJECT, 0, "the payload is not an array of objects"));
        }
        if !scanner.takes(b']') {
            let mut index = 0;
            loop {
                if let Err(failed) = self.object(scanner, record) {
                    scanner.inside_index(index);
                    return Err(failed);
                }
                index += 1;
                if !scanner.more(b']')? {
                    break;
                }
            }
        }
        end(scanner)
    }

    #[inline]
    fn object(&mut self, scanner: &mut Scanner<'_>, record: u32) -> Result<(), Failed> {
        if !scanner.takes(b'{') {
            let at = scanner.position();
            // Not JSON at all is the stronger reason.
            scanner.skip_value(true)?;
            return Err(scanner.fail_at(code::NOT_AN_OBJECT, at, "the payload is JSON but not an object"));
        }
        let len = self.origins.len();
        self.object.read(scanner, &mut self.rules, len)?;
        self.origins.push(record);
        Ok(())
    }
}

fn end(scanner: &mut Scanner<'_>) -> Result<(), Failed> {
    if scanner.is_at_end() {
        return Ok(());
    }
    Err(scanner.fail(code::TRAILING_BYTES, "something follows the JSON value"))
}

#[cold]
fn refused(scanner: &mut Scanner<'_>, base: usize) -> Refused {
    let fault = scanner.take_fault();
    Refused(fault.code, fault.message(base))
}

/// Whether each default fits its column, by the rules that records are read by.
pub(crate) fn check_defaults(schema: &Schema) -> Result<(), PlanError> {
    for column in &schema.columns {
        let Some(default) = &column.default else { continue };
        let mut rules = Rules::new(&JsonOptions::default(), Arc::default());
        let bare = schema::Column { default: None, ..column.clone() };
        let mut scanner = Scanner::new(default.as_bytes());
        if let Err(Failed) = column::Column::new(&bare).read(&mut scanner, &mut rules) {
            return Err(PlanError::new(
                code::BAD_DEFAULT,
                format!("column `{}`: its default does not fit: {}", column.name, scanner.take_fault().message(0)),
            ));
        }
    }
    Ok(())
}

/// Microseconds since 1970 of an RFC 3339 text with zone.
pub(crate) fn rfc_3339(text: &str) -> Option<i64> {
    time::timestamp(text.as_bytes(), false).ok()
}
