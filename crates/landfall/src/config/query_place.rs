//! Where a byte of a query stands in the file it came from.
//!
//! A query is mostly a block scalar, whose lines are the file's lines without their indentation; so its lines are
//! looked for where the value begins. A query in another style whose lines do not stand there as they are (folded,
//! escaped, with variables put in) is shown by its beginning.

use std::ops::Range;

use super::pipelines::QueryText;
use super::text::Mark;

/// The place of `span` of the query, or of the query's beginning.
pub(crate) fn place_in_file(source: &str, query: &QueryText, span: Option<&Range<usize>>) -> Mark {
    let Some(span) = span else { return query.mark };
    let Some(before) = query.text.get(..span.start) else { return query.mark };
    let line_at = before.matches('\n').count();
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
    let lines: Vec<&str> = source.lines().collect();
    let query_lines: Vec<&str> = query.text.trim_end().lines().collect();
    let first = (query.mark.line as usize).saturating_sub(1);
    // The value begins on the line of its mark, or on the next one below a `|`.
    let base = (first..first + 3).find(|base| {
        query_lines.iter().enumerate().all(|(at, wanted)| {
            let found = lines.get(base + at).copied().unwrap_or_default();
            if at == 0 {
                found.trim_end().ends_with(wanted.trim()) || found.contains(wanted.trim())
            } else {
                found.trim() == wanted.trim()
            }
        })
    });
    let Some(base) = base else { return query.mark };
    let (Some(found), Some(wanted)) = (lines.get(base + line_at), query_lines.get(line_at)) else { return query.mark };
    let Some(at) = found.find(wanted.trim_end()) else { return query.mark };
    let indent = found.get(..at).unwrap_or_default().chars().count();
    let shown = query.text.get(span.clone()).unwrap_or_default();
    let width = shown.lines().next().unwrap_or_default().chars().count();
    let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Mark { line: narrow(base + line_at + 1), column: narrow(indent + column + 1), width: narrow(width.max(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(source: &str, mark_line: u32, text: &str, word: &str) -> (u32, u32) {
        let start = text.find(word).expect("the word is in the query");
        let query = QueryText { text: text.to_owned(), mark: Mark { line: mark_line, column: 1, width: 1 } };
        let mark = place_in_file(source, &query, Some(&(start..start + word.len())));
        (mark.line, mark.column)
    }

    /// Would catch a caret under another word than the one that the planner means.
    #[test]
    fn a_byte_of_a_query_is_found_in_a_block_and_on_one_line() {
        let block = "a:\n  sql: |\n    SELECT x,\n           wrong\n    FROM input\nb: 1\n";
        assert_eq!(place(block, 2, "SELECT x,\n       wrong\nFROM input\n", "wrong"), (4, 12));
        assert_eq!(place(block, 3, "SELECT x,\n       wrong\nFROM input\n", "input"), (5, 10));
        let one = "a:\n  sql: SELECT é, wrong FROM input\n";
        assert_eq!(place(one, 2, "SELECT é, wrong FROM input", "wrong"), (2, 18));
        let folded = "a:\n  sql: >\n    SELECT x\n    FROM input\n";
        assert_eq!(place(folded, 2, "SELECT x FROM input\n", "input"), (2, 1));
    }
}
