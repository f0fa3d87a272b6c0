//! Decoders and transforms: pure functions over Arrow batches that report bad rows beside the good ones.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use landfall_types::Code;

use super::{EngineError, PlanError};

/// Where in the chain a row was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Bytes to columns.
    Decode,
    /// Query, transforms, and the casts to the sink's types.
    Sql,
    /// The destination refused it.
    Sink,
}

/// A row that cannot be handled.
#[derive(Clone, Debug)]
pub struct RowError {
    /// Its index in the batch that was given to the decoder or transform.
    pub row: u32,
    /// Why, for programs.
    pub code: Code,
    /// Why, for people: names path and reason, at most 1 KiB, never more of the payload than a short excerpt.
    pub text: String,
}

/// The bad rows of one call. Rows are reported at most once each; order does not matter.
#[derive(Debug, Default)]
pub struct RowErrors {
    errors: Vec<RowError>,
}

impl RowErrors {
    /// Reports a row. A text over 1 KiB is cut.
    pub fn push(&mut self, row: u32, code: Code, mut text: String) {
        const TEXT_BYTES_MAX: usize = 1024;
        if text.len() > TEXT_BYTES_MAX {
            let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
        }
        self.errors.push(RowError { row, code, text });
    }

    /// Whether no row was reported.
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// How many rows were reported.
    pub fn len(&self) -> usize {
        self.errors.len()
    }

    /// Takes what was reported; the buffer can be used again.
    pub fn drain(&mut self) -> impl Iterator<Item = RowError> + '_ {
        self.errors.drain(..)
    }

    /// What was reported so far.
    pub fn as_slice(&self) -> &[RowError] {
        &self.errors
    }
}

/// What the rest of the chain needs of a decoder's output (E98).
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Paths into the decoded columns (`["customer", "country"]`), or `None` for all of them.
    pub paths: Option<Vec<Vec<String>>>,
    /// Whether `__key`, `__timestamp` and `__headers` are read.
    pub record_key: bool,
    /// See `record_key`.
    pub record_timestamp: bool,
    /// See `record_key`.
    pub record_headers: bool,
}

/// Wakes the chain once a decoder that was not ready can go on.
#[derive(Clone)]
pub struct ReadyHandle {
    ready: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl ReadyHandle {
    /// A handle over a question that is cheap to ask.
    pub fn new(ready: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        ReadyHandle { ready: Arc::new(ready) }
    }

    /// Whether decoding can go on.
    pub fn is_ready(&self) -> bool {
        (self.ready)()
    }
}

impl std::fmt::Debug for ReadyHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadyHandle").field("ready", &self.is_ready()).finish()
    }
}

/// What came of a decode.
#[derive(Debug)]
pub enum Decoded {
    /// Decoded columns, then the hidden ones; row order kept.
    Rows(RecordBatch),
    /// Nothing was decoded: something is being fetched. Ask again once the handle is ready.
    NotReady(ReadyHandle),
}

/// Bytes to columns. One bad row never costs its batch (E102).
pub trait Decoder: Send {
    /// The output's schema: the decoded columns that `wanted` names, then `__partition`, `__offset`, and those of
    /// `__key`, `__timestamp`, `__headers` that are wanted. Fixed for the decoder's life.
    fn plan(&mut self, wanted: &Wanted) -> Result<SchemaRef, PlanError>;

    /// Decodes `records` (payload schema). Each record becomes no row, one or several; a record that cannot be
    /// decoded goes to `bad` by its index in `records` and leaves no row behind. `Err` is a defect, not a bad row.
    fn decode(&mut self, records: &RecordBatch, bad: &mut RowErrors) -> Result<Decoded, EngineError>;
}

/// A function over batches: order kept, rows independent of each other.
pub trait Transform: Send {
    /// The output's schema. Hidden columns come out as they went in.
    fn plan(&self, input: &SchemaRef) -> Result<SchemaRef, PlanError>;

    /// Rows that cannot be handled go to `bad` by their index in `rows` and leave no row behind. `Err` is a defect.
    fn apply(&mut self, rows: RecordBatch, bad: &mut RowErrors) -> Result<RecordBatch, EngineError>;
}
