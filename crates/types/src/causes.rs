//! An error and its causes as one text, for a log line, a status or a message.

use std::error::Error;

/// The error's words with those of its causes, each behind a colon.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        // Some errors quote what lies below them already.
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = inner.source();
    }
    text
}

/// The words of what lies below all others: of some libraries' errors, the only one that says anything.
pub fn root_cause(error: &dyn Error) -> String {
    let Some(mut root) = error.source() else { return error.to_string() };
    while let Some(cause) = root.source() {
        root = cause;
    }
    root.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Told {
        text: &'static str,
        source: Option<Box<Told>>,
    }

    fn told(texts: &[&'static str]) -> Told {
        let (text, rest) = texts.split_first().expect("one at least");
        Told { text, source: (!rest.is_empty()).then(|| Box::new(told(rest))) }
    }

    /// Catches a cause that is left out, which is often all that helps, and one that is told twice.
    #[test]
    fn every_cause_is_told_once() {
        assert_eq!(with_causes(&told(&["alone"])), "alone");
        assert_eq!(with_causes(&told(&["outer: inner", "inner", "deepest"])), "outer: inner: deepest");
        assert_eq!(root_cause(&told(&["outer", "inner", "deepest"])), "deepest");
        assert_eq!(root_cause(&told(&["alone"])), "alone");
    }
}
