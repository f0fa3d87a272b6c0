//! Identifiers and literals in statements: no name reaches a statement any other way.

use crate::TableName;

/// `"name"`.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A name as a person would write it: bare where Postgres reads it back the same, else quoted.
pub(crate) fn name(name: &str) -> String {
    let mut bytes = name.bytes();
    let is_plain = bytes.next().is_some_and(|first| first.is_ascii_lowercase() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        && !RESERVED.contains(&name);
    if is_plain { name.to_owned() } else { quoted(name) }
}

/// `schema.table`, each part by [`name`].
pub(crate) fn relation(of: &TableName) -> String {
    format!("{}.{}", name(&of.schema), name(&of.table))
}

/// `'text'`, right under any setting of `standard_conforming_strings`.
pub(crate) fn literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    if doubled.contains('\\') { format!(" E'{}'", doubled.replace('\\', "\\\\")) } else { format!("'{doubled}'") }
}

/// The server's reserved key words: a table `order` must be quoted.
const RESERVED: &[&str] = &[
    "all",
    "analyse",
    "analyze",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "asymmetric",
    "authorization",
    "binary",
    "both",
    "case",
    "cast",
    "check",
    "collate",
    "collation",
    "column",
    "concurrently",
    "constraint",
    "create",
    "cross",
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "default",
    "deferrable",
    "desc",
    "distinct",
    "do",
    "else",
    "end",
    "except",
    "false",
    "fetch",
    "for",
    "foreign",
    "freeze",
    "from",
    "full",
    "grant",
    "group",
    "having",
    "ilike",
    "in",
    "initially",
    "inner",
    "intersect",
    "into",
    "is",
    "isnull",
    "join",
    "lateral",
    "leading",
    "left",
    "like",
    "limit",
    "localtime",
    "localtimestamp",
    "natural",
    "not",
    "notnull",
    "null",
    "offset",
    "on",
    "only",
    "or",
    "order",
    "outer",
    "overlaps",
    "placing",
    "primary",
    "references",
    "returning",
    "right",
    "select",
    "session_user",
    "similar",
    "some",
    "symmetric",
    "system_user",
    "table",
    "tablesample",
    "then",
    "to",
    "trailing",
    "true",
    "union",
    "unique",
    "user",
    "using",
    "variadic",
    "verbose",
    "when",
    "where",
    "window",
    "with",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a statement that a table's name can leave.
    #[test]
    fn a_name_never_ends_its_own_quotes() {
        assert_eq!(quoted(r#"a"; DROP TABLE b; --"#), r#""a""; DROP TABLE b; --""#);
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal(r"a\' OR 1=1"), r" E'a\\'' OR 1=1'");
    }

    /// Catches printed statements that the server reads as another table or not at all.
    #[test]
    fn names_are_bare_only_where_they_read_back_the_same() {
        for (given, printed) in [
            ("orders", "orders"),
            ("Orders", "\"Orders\""),
            ("order", "\"order\""),
            ("1a", "\"1a\""),
            ("é", "\"é\""),
            ("", "\"\""),
        ] {
            assert_eq!(name(given), printed);
        }
    }
}
