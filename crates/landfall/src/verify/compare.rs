//! Two sides of one table compared: buckets first, then the rows of unequal buckets (P106, P108).
//!
//! Each side can be read again and gives the same rows each time. The first pass holds 4,096 sums a side. Unequal
//! buckets are taken in groups of at most [`HELD_ROWS_MAX`] rows: one pass over the source keeps hashes, one over the
//! target meets them, and a last one over the source fetches the rows to show. What is not looked into is said.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use anyhow::Context;
use arrow::array::new_null_array;
use arrow::compute::{CastOptions, cast_with_options, take_record_batch};
use arrow::row::{RowConverter, SortField};
use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::SchemaRef;
use futures::StreamExt;
use futures::stream::BoxStream;

use super::digest::{BUCKETS, Buckets, Digest, RowHash};

/// Hashes held while buckets are narrowed: some 250 MiB at most. A single bucket may have more.
const HELD_ROWS_MAX: u64 = 4_000_000;
/// So many groups are looked into; each costs three reads.
const GROUPS_MAX: usize = 4;
/// So many unequal rows are kept with their values.
pub(crate) const ROWS_SHOWN_MAX: usize = 1_000;

/// One side: its rows, each once, the same at every read.
pub(crate) trait Side {
    /// Reads them all.
    fn read(&self) -> impl Future<Output = anyhow::Result<BoxStream<'_, anyhow::Result<RecordBatch>>>>;
}

/// What rows of both sides are brought to.
#[derive(Debug)]
pub(crate) struct Compared {
    /// The compared columns, with the target's types: a value is cast as the pipeline casts it.
    pub(crate) schema: SchemaRef,
    /// Which of them are the key.
    pub(crate) key: Vec<usize>,
}

impl Compared {
    /// A batch as columns of the compared schema. A column that it lacks is NULL.
    fn align(&self, batch: &RecordBatch) -> anyhow::Result<RecordBatch> {
        let strict = CastOptions { safe: false, ..CastOptions::default() };
        let columns = self.schema.fields().iter().map(|field| match batch.column_by_name(field.name()) {
            None => Ok(new_null_array(field.data_type(), batch.num_rows())),
            Some(column) if column.data_type() == field.data_type() => Ok(column.clone()),
            Some(column) => cast_with_options(column, field.data_type(), &strict)
                .with_context(|| format!("column `{}` does not fit the target's type", field.name())),
        });
        Ok(RecordBatch::try_new(self.schema.clone(), columns.collect::<anyhow::Result<_>>()?)?)
    }
}

/// How a row differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// The target lacks it.
    Missing,
    /// Only the target has it.
    Extra,
    /// Both have it, with other values.
    Different,
}

/// An unequal row.
#[derive(Debug)]
pub(crate) struct UnequalRow {
    /// How.
    pub(crate) kind: Kind,
    /// The columns that differ, of a row that both sides have.
    pub(crate) columns: Vec<String>,
    /// The source's row, as a batch of one.
    pub(crate) source: Option<RecordBatch>,
    /// The target's.
    pub(crate) target: Option<RecordBatch>,
}

/// What a comparison found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Rows of the source.
    pub(crate) source_rows: u64,
    /// Rows of the target.
    pub(crate) target_rows: u64,
    /// Buckets that differ.
    pub(crate) unequal_buckets: usize,
    /// Of them, those whose rows were looked at; the numbers below are theirs.
    pub(crate) narrowed_buckets: usize,
    /// Rows that the target lacks.
    pub(crate) missing: u64,
    /// Rows that only the target has.
    pub(crate) extra: u64,
    /// Rows with other values.
    pub(crate) different: u64,
    /// The first of them.
    pub(crate) rows: Vec<UnequalRow>,
}

impl Found {
    /// Whether both sides have the same rows.
    pub(crate) fn is_equal(&self) -> bool {
        self.unequal_buckets == 0
    }
}

/// Compares all rows of both sides.
pub(crate) async fn compare(
    source: &impl Side,
    target: &impl Side,
    compared: &Compared,
    seed: (u64, u64),
) -> anyhow::Result<Found> {
    let digest = Digest::new(&compared.schema, &compared.key, seed)?;
    let (own, other) =
        futures::try_join!(sums(source, compared, &digest, "source"), sums(target, compared, &digest, "target"))?;
    let unequal = own.unequal(&other);
    let mut found = Found {
        source_rows: own.rows(),
        target_rows: other.rows(),
        unequal_buckets: unequal.len(),
        ..Found::default()
    };
    let mut left = unequal.as_slice();
    for _ in 0..GROUPS_MAX {
        let (group, rest) = first_group(left);
        if group.is_empty() || found.rows.len() >= ROWS_SHOWN_MAX {
            break;
        }
        left = rest;
        found.narrowed_buckets += group.len();
        narrow(source, target, compared, &digest, group, &mut found).await?;
    }
    found.rows.sort_by_key(|row| row.kind);
    Ok(found)
}

/// A bucket's number, and how many rows it has.
type Bucket = (usize, u64);

/// As many buckets as may be held at once, one at least.
fn first_group(buckets: &[Bucket]) -> (&[Bucket], &[Bucket]) {
    let mut held = 0;
    let end = buckets.iter().position(|(_, rows)| {
        held += rows;
        held > HELD_ROWS_MAX
    });
    buckets.split_at(end.map_or(buckets.len(), |end| end.max(1)))
}

async fn sums(side: &impl Side, compared: &Compared, digest: &Digest, name: &str) -> anyhow::Result<Buckets> {
    let mut buckets = Buckets::new();
    each_row(side, compared, digest, |row, _| buckets.add(row)).await.with_context(|| format!("reading the {name}"))?;
    Ok(buckets)
}

/// Reads a side; `take` gets each row with its place.
async fn each_row(
    side: &impl Side,
    compared: &Compared,
    digest: &Digest,
    mut take: impl FnMut(RowHash, (&RecordBatch, usize)),
) -> anyhow::Result<()> {
    let mut batches = side.read().await?;
    while let Some(batch) = batches.next().await.transpose()? {
        let batch = compared.align(&batch)?;
        for (at, row) in digest.of(&batch)?.into_iter().enumerate() {
            take(row, (&batch, at));
        }
        tokio::task::consume_budget().await;
    }
    Ok(())
}

/// A row by itself, so that it does not hold its whole batch.
fn one_row((batch, at): (&RecordBatch, usize)) -> anyhow::Result<RecordBatch> {
    Ok(take_record_batch(batch, &UInt32Array::from(vec![u32::try_from(at)?]))?)
}

async fn narrow(
    source: &impl Side,
    target: &impl Side,
    compared: &Compared,
    digest: &Digest,
    group: &[(usize, u64)],
    found: &mut Found,
) -> anyhow::Result<()> {
    let mut is_wanted = vec![false; BUCKETS];
    for (bucket, _) in group {
        if let Some(wanted) = is_wanted.get_mut(*bucket) {
            *wanted = true;
        }
    }
    let wanted = |row: &RowHash| is_wanted.get(row.bucket()).copied().unwrap_or(false);

    let mut unmet: HashMap<u128, u128> = HashMap::new();
    each_row(source, compared, digest, |row, _| {
        if wanted(&row) {
            unmet.insert(row.key, row.row);
        }
    })
    .await
    .context("reading the source again")?;

    let mut shown: HashMap<u128, UnequalRow> = HashMap::new();
    let mut room = ROWS_SHOWN_MAX.saturating_sub(found.rows.len());
    let mut failed = None;
    each_row(target, compared, digest, |row, place| {
        if !wanted(&row) {
            return;
        }
        let kind = match unmet.remove(&row.key) {
            Some(hash) if hash == row.row => return,
            Some(_) => Kind::Different,
            None => Kind::Extra,
        };
        match kind {
            Kind::Different => found.different += 1,
            _ => found.extra += 1,
        }
        if room > 0 {
            room -= 1;
            match one_row(place) {
                Ok(target) => {
                    let row_found = UnequalRow { kind, columns: Vec::new(), source: None, target: Some(target) };
                    shown.insert(row.key, row_found);
                }
                Err(error) => failed = Some(error),
            }
        }
    })
    .await
    .context("reading the target again")?;
    found.missing += unmet.len() as u64;

    let missing: HashSet<u128> = unmet.into_keys().take(room).collect();
    let fetches = !missing.is_empty() || shown.values().any(|row| row.kind == Kind::Different);
    if fetches {
        each_row(source, compared, digest, |row, place| {
            let different = shown.get_mut(&row.key).filter(|shown| shown.kind == Kind::Different);
            if different.is_none() && !missing.contains(&row.key) {
                return;
            }
            match (one_row(place), different) {
                (Err(error), _) => failed = Some(error),
                (Ok(source), Some(shown)) => shown.source = Some(source),
                (Ok(source), None) => {
                    let row_found =
                        UnequalRow { kind: Kind::Missing, columns: Vec::new(), source: Some(source), target: None };
                    shown.insert(row.key, row_found);
                }
            }
        })
        .await
        .context("reading the source's unequal rows")?;
    }
    if let Some(error) = failed {
        return Err(error);
    }
    for (_, mut row) in shown {
        if let (Some(source), Some(target)) = (&row.source, &row.target) {
            row.columns = unequal_columns(source, target)?;
        }
        found.rows.push(row);
    }
    Ok(())
}

/// Which columns of two rows differ, by the bytes that were hashed.
fn unequal_columns(source: &RecordBatch, target: &RecordBatch) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for (field, (own, other)) in source.schema_ref().fields().iter().zip(source.columns().iter().zip(target.columns()))
    {
        let bytes = RowConverter::new(vec![SortField::new(field.data_type().clone())])?;
        let (own, other) = (bytes.convert_columns(&[Arc::clone(own)])?, bytes.convert_columns(&[Arc::clone(other)])?);
        if own.row(0) != other.row(0) {
            names.push(field.name().clone());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
