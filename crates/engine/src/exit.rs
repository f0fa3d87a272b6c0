//! How a pipeline ended (E75): what was committed, what was left, and the exit code that follows.

use std::collections::BTreeMap;

use landfall_types::Code;
use serde::Serialize;

use crate::contract::PipelineId;
use crate::sight::Balance;

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Everything that was read is settled and committed.
    Settled,
    /// It failed, or its last commit did.
    Failed,
    /// The drain's deadline passed with ranges unfinished, or it came to its end while a destination that does not
    /// answer kept it from running.
    Unfinished,
    /// Ended at once by a second signal.
    Aborted,
}

/// A range that was read and not settled; it is read again at the next start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnfinishedRange {
    /// The partition.
    pub partition: u32,
    /// The sink that has not settled it; null: the chain's dead letters.
    pub sink: Option<String>,
    /// Its first offset.
    pub from: u64,
    /// Behind its last offset.
    pub to: u64,
    /// Why.
    pub cause: String,
}

/// The report of a pipeline that has ended.
#[derive(Clone, Debug, Serialize)]
pub struct ExitReport {
    /// The pipeline.
    pub pipeline: PipelineId,
    /// How it ended.
    pub ending: Ending,
    /// The code of what went wrong.
    pub code: Option<Code>,
    /// What went wrong.
    pub cause: Option<String>,
    /// Per partition the offset below which everything is committed.
    pub committed: BTreeMap<String, u64>,
    /// What was left.
    pub unfinished: Vec<UnfinishedRange>,
    /// The final balance, by sink.
    pub balance: BTreeMap<String, Balance>,
}

impl ExitReport {
    /// 0: all settled. 1: failed. 3: the deadline passed. 130: aborted by a second signal.
    pub fn exit_code(&self) -> u8 {
        match self.ending {
            Ending::Settled => 0,
            Ending::Failed => 1,
            Ending::Unfinished => 3,
            Ending::Aborted => 130,
        }
    }
}
