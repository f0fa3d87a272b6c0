//! Which tables a configuration means: `public.orders`, `audit.*`, `public."Order.Lines"`.

use std::fmt;
use std::str::FromStr;

/// A key of `tables`: a schema and a table, each a name or a pattern with `*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TablePattern {
    text: String,
    schema: Part,
    table: Part,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Part {
    Name(String),
    /// The texts between the stars.
    Stars(Vec<String>),
}

/// A text that is no table pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` names no table: {why}; write schema.table, as in public.orders or audit.* (LF-PG0502)")]
pub struct PatternError {
    /// The text, cut.
    pub text: String,
    /// What is wrong.
    pub why: &'static str,
}

/// Postgres cuts longer names.
const NAME_BYTES_MAX: usize = 63;

impl TablePattern {
    /// Whether it names exactly one table, so that a table that is not there is a mistake.
    pub fn is_exact(&self) -> bool {
        matches!((&self.schema, &self.table), (Part::Name(_), Part::Name(_)))
    }

    /// Whether a table is meant.
    pub fn matches(&self, schema: &str, table: &str) -> bool {
        self.schema.matches(schema) && self.table.matches(table)
    }

    /// Both parts as patterns of SQL's LIKE.
    pub(super) fn like(&self) -> (String, String) {
        (self.schema.like(), self.table.like())
    }
}

impl Part {
    fn matches(&self, name: &str) -> bool {
        let pieces = match self {
            Part::Name(own) => return own == name,
            Part::Stars(pieces) => pieces,
        };
        let Some((first, rest)) = pieces.split_first() else { return false };
        let Some((last, middle)) = rest.split_last() else { return first == name };
        let Some(name) = name.strip_prefix(first.as_str()) else { return false };
        let Some(mut name) = name.strip_suffix(last.as_str()) else { return false };
        // The leftmost place of each piece leaves the most room for the next.
        for piece in middle {
            match name.split_once(piece.as_str()) {
                Some((_, after)) => name = after,
                None => return false,
            }
        }
        true
    }

    fn like(&self) -> String {
        let escape = |text: &str| text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
        match self {
            Part::Name(own) => escape(own),
            Part::Stars(pieces) => pieces.iter().map(|piece| escape(piece)).collect::<Vec<_>>().join("%"),
        }
    }
}

impl FromStr for TablePattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let bad = |why| PatternError { text: text.chars().take(140).collect(), why };
        let mut parts: Vec<Part> = Vec::new();
        let mut rest = text;
        loop {
            let (part, after) = if let Some(inner) = rest.strip_prefix('"') {
                quoted_part(inner).ok_or_else(|| bad("a quoted name has no end"))?
            } else {
                let end = rest.find('.').unwrap_or(rest.len());
                let (own, after) = rest.split_at(end);
                if own.contains('"') {
                    return Err(bad("a quote stands inside a name"));
                }
                let part = if own.contains('*') {
                    Part::Stars(own.split('*').map(str::to_owned).collect())
                } else {
                    Part::Name(own.to_owned())
                };
                (part, after)
            };
            let bytes = match &part {
                Part::Name(own) => own.len(),
                Part::Stars(pieces) => pieces.iter().map(String::len).sum::<usize>().max(1),
            };
            if bytes == 0 {
                return Err(bad("a part is empty"));
            }
            if bytes > NAME_BYTES_MAX {
                return Err(bad("a part is longer than 63 bytes, the most a name may have"));
            }
            parts.push(part);
            match after.strip_prefix('.') {
                Some(after) => rest = after,
                None if after.is_empty() => break,
                None => return Err(bad("something stands behind a closing quote")),
            }
            if parts.len() == 2 {
                return Err(bad("it has more than two parts"));
            }
        }
        let mut parts = parts.into_iter();
        match (parts.next(), parts.next()) {
            (Some(schema), Some(table)) => Ok(TablePattern { text: text.to_owned(), schema, table }),
            _ => Err(bad("the schema is missing")),
        }
    }
}

/// The name up to its closing quote, and what follows.
fn quoted_part(mut rest: &str) -> Option<(Part, &str)> {
    let mut own = String::new();
    loop {
        let (before, after) = rest.split_once('"')?;
        own.push_str(before);
        match after.strip_prefix('"') {
            Some(after) => {
                own.push('"');
                rest = after;
            }
            None => return Some((Part::Name(own), after)),
        }
    }
}

impl fmt::Display for TablePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> TablePattern {
        text.parse().unwrap()
    }

    /// Catches patterns that take in a neighbour or leave out a table that they name.
    #[test]
    fn a_pattern_means_what_it_says() {
        for (text, schema, table, expected) in [
            ("public.orders", "public", "orders", true),
            ("public.orders", "public", "orders_old", false),
            ("public.orders", "Public", "orders", false),
            ("audit.*", "audit", "anything", true),
            ("audit.*", "audits", "anything", false),
            ("*.*", "a", "b", true),
            ("a.log_*_2026*", "a", "log_x_2026", true),
            ("a.log_*_2026*", "a", "log_2026", false),
            ("a.*x*x*", "a", "x", false),
            ("a.*x*x*", "a", "xx", true),
            ("a.ab*ba", "a", "aba", false),
            (r#"public."Order.Lines""#, "public", "Order.Lines", true),
            (r#"public."a*""#, "public", "a*", true),
            (r#"public."a*""#, "public", "ab", false),
            (r#""sa""y".t"#, "sa\"y", "t", true),
        ] {
            assert_eq!(pattern(text).matches(schema, table), expected, "{text} against {schema}.{table}");
        }
        assert!(pattern("a.b").is_exact() && !pattern("a.*").is_exact() && pattern(r#"a."*""#).is_exact());
    }

    /// Catches texts that are taken for something else than was meant.
    #[test]
    fn what_names_no_table_is_refused() {
        let long = format!("a.{}", "x".repeat(64));
        for text in
            ["", "orders", ".orders", "public.", "a.b.c", r#"a."b"#, r#"a."b"c"#, r#"a.b"c"#, "a..b", long.as_str()]
        {
            assert!(text.parse::<TablePattern>().is_err(), "{text}");
        }
    }

    /// Catches LIKE's own wildcards in names: `order_items` must not match `orderXitems` on the server.
    #[test]
    fn wildcards_of_sql_are_letters_here() {
        assert_eq!(pattern(r"a%.order_*\x").like(), (r"a\%".to_owned(), r"order\_%\\x".to_owned()));
    }

    proptest! {
        /// Catches a panic or an endless loop on any key of a configuration.
        #[test]
        fn any_text_is_read_or_refused(text in "[a\"*.%]{0,12}", schema in "[a.]{0,3}", table in "[a\"*]{0,3}") {
            if let Ok(pattern) = text.parse::<TablePattern>() {
                let _ = pattern.matches(&schema, &table);
                prop_assert_eq!(pattern.to_string(), text);
            }
        }
    }
}
