//! What `tables` and `columns` of a configuration name and nothing answers to: a typo there sets no policy, without a word.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Finding;
use crate::catalog::{MatchedTables, TablePattern};
use crate::sql::{self, SqlConnection, SqlError};
use crate::{TableName, code};

/// One entry of `tables`.
#[derive(Debug)]
pub(crate) struct Choice<'a> {
    pub(crate) pattern: &'a TablePattern,
    /// The columns that it names.
    pub(crate) columns: Vec<&'a Arc<str>>,
}

/// The tables that have names like those that were meant and are not there, by the pattern's place in the list.
pub(crate) async fn nearest_tables(
    sql: &SqlConnection,
    patterns: &[TablePattern],
    matched: &MatchedTables,
) -> Result<BTreeMap<usize, TableName>, SqlError> {
    const LOOKED_AT_MAX: i64 = 5_000;
    let meant: Vec<(usize, &TablePattern)> =
        matched.unmatched.iter().filter_map(|at| Some((*at, patterns.get(*at)?))).collect();
    if meant.is_empty() {
        return Ok(BTreeMap::new());
    }
    let doing = "look for tables of a like name";
    let query = "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                 WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
                 ORDER BY 1, 2 LIMIT $1";
    let mut names = Vec::new();
    for row in sql.rows(doing, query, &[&LOOKED_AT_MAX]).await? {
        let read = || -> Result<TableName, tokio_postgres::Error> {
            Ok(TableName { schema: row.try_get::<_, &str>(0)?.into(), table: row.try_get::<_, &str>(1)?.into() })
        };
        names.push(read().map_err(|cause| sql.failed(doing, cause))?);
    }
    let spelled: Vec<String> = names.iter().map(ToString::to_string).collect();
    let near = |pattern: &TablePattern| nearest(&pattern.to_string(), spelled.iter().map(String::as_str));
    Ok(meant.into_iter().filter_map(|(at, pattern)| Some((at, names.get(near(pattern)?)?.clone()))).collect())
}

/// What of `tables` and `columns` decides nothing.
pub(crate) fn unused(
    matched: &MatchedTables,
    choices: &[Choice<'_>],
    near: &BTreeMap<usize, TableName>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let did_you_mean = |at: usize| near.get(&at).map(|table| format!("did you mean `{}`?", sql::relation(table)));
    for (at, choice) in choices.iter().enumerate() {
        let pattern = choice.pattern;
        if matched.unmatched.contains(&at) {
            let text = format!("`{pattern}` matches no table");
            findings.push(if pattern.is_exact() {
                let more =
                    "names are case-sensitive; the table may be in another database, or its schema closed to this role";
                Finding::error(code::NO_TABLE, text).help(did_you_mean(at).unwrap_or_else(|| more.to_owned()))
            } else {
                let more = "tables that come later are taken in by themselves";
                Finding::warn(code::NO_TABLE, text).help(did_you_mean(at).unwrap_or_else(|| more.to_owned()))
            });
            continue;
        }
        if matched.idle.contains(&at) {
            let before = choices.iter().take(at).map(|before| format!("`{}`", before.pattern)).collect::<Vec<_>>();
            let text = format!("`{pattern}` decides no table: each that it matches is decided by one before it");
            let help = format!("the first pattern that matches decides: put it before {}", before.join(", "));
            findings.push(Finding::warn(code::UNUSED_CHOICE, text).help(help));
            continue;
        }
        let decides = |name: &TableName| {
            choices.iter().position(|one| one.pattern.matches(&name.schema, &name.table)) == Some(at)
        };
        let decided: Vec<_> = matched.tables.iter().filter(|table| decides(&table.shape.name)).collect();
        if decided.is_empty() {
            continue;
        }
        let known = || decided.iter().flat_map(|table| &table.shape.columns).map(|column| &*column.name);
        for column in choice.columns.iter().filter(|column| known().all(|own| *own != ****column)) {
            let text = format!("`columns` of `{pattern}` names `{column}`, which no table that it decides sends");
            let near = nearest(column, known()).and_then(|at| known().nth(at));
            let help = match near {
                Some(near) => format!("did you mean `{near}`? as it stands, its policies count for nothing"),
                None => "as it stands, its policies count for nothing; names are case-sensitive".to_owned(),
            };
            findings.push(Finding::warn(code::UNUSED_CHOICE, text).help(help));
        }
    }
    findings
}

/// The place of the word that was most likely meant, if one is near.
fn nearest<'w>(written: &str, words: impl Iterator<Item = &'w str>) -> Option<usize> {
    const LENGTH_MAX: usize = 130;
    if written.len() > LENGTH_MAX {
        return None;
    }
    let distance = |word: &str| strsim::damerau_levenshtein(written, word);
    let (distance, at) = words.enumerate().map(|(at, word)| (distance(word), at)).min()?;
    (distance <= written.chars().count().max(3) / 4 + 1).then_some(at)
}
