//! What `verify` says: per table equal, unequal, parked or unknown, the unequal rows by key, and the exit code (P108).
//!
//! Values other than the key's are shown only where they were asked for.

use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_array::{Array, RecordBatch};
use serde::Serialize;
use serde_json::{Map, Value};

use super::compare::{Compared, Found, Kind, UnequalRow};
use crate::exit::Exit;
use crate::stdout;

/// So many unequal rows of a table are printed for people; `--json` has all that were kept.
const ROWS_PRINTED_MAX: usize = 20;

/// The verdict on a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// Both sides have the same rows.
    Equal,
    /// They do not.
    Unequal,
    /// The pipeline has set the table aside: not compared.
    Parked,
    /// It could not be said.
    Unknown,
}

/// One table.
#[derive(Debug, Serialize)]
pub(crate) struct TableVerdict {
    /// `schema.table`.
    pub(crate) table: String,
    /// The verdict.
    pub(crate) verdict: Word,
    /// Why, where it is parked or unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Rows of the source at S.
    pub(crate) source_rows: u64,
    /// Rows of the target's current state at S.
    pub(crate) target_rows: u64,
    /// Rows of the source that the table's policies refuse: dead letters, no part of either number.
    pub(crate) refused_rows: u64,
    /// Rows that the target lacks.
    pub(crate) missing: u64,
    /// Rows that only the target has.
    pub(crate) extra: u64,
    /// Rows with other values.
    pub(crate) different: u64,
    /// Unequal buckets whose rows were not looked at: the three numbers are without theirs.
    pub(crate) buckets_left: usize,
    /// Columns of the target that the source has not: not compared.
    pub(crate) columns_not_compared: Vec<String>,
    /// Unequal rows.
    pub(crate) rows: Vec<RowVerdict>,
}

/// An unequal row.
#[derive(Debug, Serialize)]
pub(crate) struct RowVerdict {
    /// How.
    pub(crate) kind: Kind,
    /// Its key: column → text.
    pub(crate) key: Map<String, Value>,
    /// Which columns differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) columns: Vec<String>,
    /// The source's values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<Map<String, Value>>,
    /// The target's values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<Map<String, Value>>,
}

impl TableVerdict {
    fn bare(table: &str, verdict: Word, reason: Option<String>) -> Self {
        TableVerdict {
            table: table.to_owned(),
            verdict,
            reason,
            source_rows: 0,
            target_rows: 0,
            refused_rows: 0,
            missing: 0,
            extra: 0,
            different: 0,
            buckets_left: 0,
            columns_not_compared: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// It could not be said.
    pub(crate) fn unknown(table: &str, reason: String) -> Self {
        Self::bare(table, Word::Unknown, Some(reason))
    }

    /// The pipeline has set it aside.
    pub(crate) fn parked(table: &str, reason: &str) -> Self {
        Self::bare(table, Word::Parked, Some(reason.to_owned()))
    }

    /// Only counts were compared.
    pub(crate) fn counted(table: &str, source_rows: u64, target_rows: u64) -> Self {
        let verdict = if source_rows == target_rows { Word::Equal } else { Word::Unequal };
        TableVerdict { source_rows, target_rows, ..Self::bare(table, verdict, None) }
    }

    /// Rows were compared.
    pub(crate) fn compared(
        table: &str,
        found: &Found,
        compared: &Compared,
        shows_values: bool,
    ) -> anyhow::Result<Self> {
        let verdict = if found.is_equal() { Word::Equal } else { Word::Unequal };
        let rows = found.rows.iter().map(|row| RowVerdict::new(row, compared, shows_values));
        Ok(TableVerdict {
            source_rows: found.source_rows,
            target_rows: found.target_rows,
            missing: found.missing,
            extra: found.extra,
            different: found.different,
            buckets_left: found.unequal_buckets - found.narrowed_buckets,
            rows: rows.collect::<anyhow::Result<_>>()?,
            ..Self::bare(table, verdict, None)
        })
    }

    fn print(&self) -> anyhow::Result<()> {
        let word = match self.verdict {
            Word::Equal => "equal",
            Word::Unequal => "UNEQUAL",
            Word::Parked => "parked",
            Word::Unknown => "unknown",
        };
        let mut line = format!("{word:<8} {:<40}", self.table);
        match &self.reason {
            Some(reason) => line.push_str(reason),
            None => {
                line.push_str(&format!("{} rows at the source, {} in the target", self.source_rows, self.target_rows))
            }
        }
        if self.refused_rows > 0 {
            line.push_str(&format!("; {} rows of the source are dead letters by its policies", self.refused_rows));
        }
        stdout::line(line)?;
        if !self.columns_not_compared.is_empty() {
            let columns = self.columns_not_compared.join(", ");
            stdout::line(format!("         not compared, as the source has no such column: {columns}"))?;
        }
        if self.missing + self.extra + self.different > 0 {
            stdout::line(format!(
                "         {} missing, {} extra, {} different",
                self.missing, self.extra, self.different
            ))?;
        }
        for row in self.rows.iter().take(ROWS_PRINTED_MAX) {
            stdout::line(format!("         {}", row.line()))?;
        }
        let unshown =
            (self.missing + self.extra + self.different).saturating_sub(self.rows.len().min(ROWS_PRINTED_MAX) as u64);
        if unshown > 0 {
            stdout::line(format!("         and {unshown} more"))?;
        }
        if self.buckets_left > 0 {
            stdout::line(format!(
                "         {} unequal parts of the table were not looked into; mend these rows and verify again",
                self.buckets_left
            ))?;
        }
        Ok(())
    }
}

impl RowVerdict {
    fn new(row: &UnequalRow, compared: &Compared, shows_values: bool) -> anyhow::Result<Self> {
        let whole: Vec<usize> = (0..compared.schema.fields().len()).collect();
        let either = row.source.as_ref().or(row.target.as_ref());
        let values = |batch: &Option<RecordBatch>| match batch {
            Some(batch) if shows_values => texts(batch, &whole).map(Some),
            _ => Ok(None),
        };
        Ok(RowVerdict {
            kind: row.kind,
            key: either.map(|batch| texts(batch, &compared.key)).transpose()?.unwrap_or_default(),
            columns: row.columns.clone(),
            source: values(&row.source)?,
            target: values(&row.target)?,
        })
    }

    fn line(&self) -> String {
        let list = |values: &Map<String, Value>| {
            values.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        let kind = match self.kind {
            Kind::Missing => "missing  ",
            Kind::Extra => "extra    ",
            Kind::Different => "different",
        };
        let mut line = format!("{kind} {}", list(&self.key));
        if !self.columns.is_empty() {
            line.push_str(&format!("  in {}", self.columns.join(", ")));
        }
        for (side, values) in [("source", &self.source), ("target", &self.target)] {
            if let Some(values) = values {
                line.push_str(&format!("\n           {side}: {}", list(values)));
            }
        }
        line
    }
}

/// Columns of a batch's only row as texts; NULL is null.
fn texts(batch: &RecordBatch, columns: &[usize]) -> anyhow::Result<Map<String, Value>> {
    // Inside of arrays, where there is no JSON null.
    let options = FormatOptions::default().with_null("NULL");
    let mut texts = Map::new();
    for at in columns {
        let column = batch.column(*at);
        let value = match column.is_null(0) {
            true => Value::Null,
            false => Value::String(ArrayFormatter::try_new(column, &options)?.value(0).try_to_string()?),
        };
        texts.insert(batch.schema_ref().field(*at).name().clone(), value);
    }
    Ok(texts)
}

/// All tables of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Verdict {
    /// The pipeline.
    pub(crate) pipeline: String,
    /// S: both sides as of all commits before it.
    pub(crate) position: String,
    /// Whether every table that was compared is equal, and at least one was.
    pub(crate) equal: bool,
    /// The tables.
    pub(crate) tables: Vec<TableVerdict>,
}

impl Verdict {
    /// Of these tables.
    pub(crate) fn new(pipeline: &str, position: String, tables: Vec<TableVerdict>) -> Self {
        let mut verdict = Verdict { pipeline: pipeline.to_owned(), position, equal: false, tables };
        verdict.equal = verdict.exit() == Exit::Ok;
        verdict
    }

    /// 1 if a table is unequal; else 2 if one is unknown, or none was compared; else 0. Parked tables are shown and
    /// not counted.
    pub(crate) fn exit(&self) -> Exit {
        let has = |word: Word| self.tables.iter().any(|table| table.verdict == word);
        match (has(Word::Unequal), has(Word::Unknown), has(Word::Equal)) {
            (true, _, _) => Exit::Failed,
            (false, false, true) => Exit::Ok,
            (false, _, _) => Exit::Second,
        }
    }

    /// Prints it, for people or for programs.
    pub(crate) fn print(&self, json: bool) -> anyhow::Result<()> {
        if json {
            return Ok(stdout::line(serde_json::to_string(self)?)?);
        }
        for table in &self.tables {
            table.print()?;
        }
        let compared = self.tables.iter().filter(|table| matches!(table.verdict, Word::Equal | Word::Unequal)).count();
        let equal = self.tables.iter().filter(|table| table.verdict == Word::Equal).count();
        Ok(stdout::line(format!("{equal} of {compared} compared tables are equal at {}", self.position))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(words: &[Word]) -> Verdict {
        let tables = words.iter().map(|word| TableVerdict::bare("public.t", *word, None)).collect();
        Verdict::new("shop", "0/1".to_owned(), tables)
    }

    /// Catches a run that says equal where a table is not, or where nothing was compared.
    #[test]
    fn equal_is_said_only_of_what_was_compared() {
        assert_eq!(verdict(&[Word::Equal, Word::Equal]).exit(), Exit::Ok);
        assert_eq!(verdict(&[Word::Equal, Word::Parked]).exit(), Exit::Ok);
        assert_eq!(verdict(&[Word::Equal, Word::Unequal, Word::Unknown]).exit(), Exit::Failed);
        assert_eq!(verdict(&[Word::Equal, Word::Unknown]).exit(), Exit::Second);
        assert_eq!(verdict(&[Word::Parked]).exit(), Exit::Second);
        assert_eq!(verdict(&[]).exit(), Exit::Second);
        assert!(verdict(&[Word::Equal]).equal && !verdict(&[Word::Parked]).equal);
    }
}
