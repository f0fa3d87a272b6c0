//! A part's error as a command tells it: its words, its causes, and the code that `landfall explain` knows.

use landfall_types::Coded;

/// The error with its code.
pub(crate) fn coded<E: Coded>(error: E) -> anyhow::Error {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        // Some errors already quote what lies below them.
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = inner.source();
    }
    let code = error.code().to_string();
    if text.contains(&code) { anyhow::anyhow!(text) } else { anyhow::anyhow!("{text} ({code})") }
}
