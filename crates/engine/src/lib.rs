//! The pipeline engine.

pub mod contract;

/// Where a lane makes its batches. (The engine's core replaces this in its first commit.)
#[derive(Debug)]
pub struct PollCx<'a>(std::marker::PhantomData<&'a ()>);

/// One partition's rows with the hold on them.
#[derive(Debug)]
pub struct SourceBatch {
    /// Rows in the payload schema.
    pub rows: arrow_array::RecordBatch,
}
