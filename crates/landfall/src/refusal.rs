//! A part's error as a command tells it: its words, its causes, and the code that `landfall explain` knows.

use landfall_types::{Coded, with_causes};

/// The error with its code.
pub(crate) fn coded(error: impl Coded) -> anyhow::Error {
    let text = with_causes(&error);
    let code = error.code().to_string();
    if text.contains(&code) { anyhow::anyhow!(text) } else { anyhow::anyhow!("{text} ({code})") }
}
