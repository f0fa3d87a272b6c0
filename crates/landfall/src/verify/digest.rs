//! Rows as hashes: 128 bits of each row's canonical bytes, summed per bucket without regard to order (P106).
//!
//! The canonical bytes are those of Arrow's row format, which are equal exactly if the values are; both sides have the
//! same types by then. The hash is keyed anew for each run, so that no stored data can be made to collide. Memory is
//! fixed: [`BUCKETS`] counts and sums a side.

use std::hash::Hasher;

use arrow::row::{RowConverter, Rows, SortField};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, Schema};
use siphasher::sip128::{Hasher128, SipHasher13};

/// Into so many buckets rows fall by the hash of their key.
pub(crate) const BUCKETS: usize = 4_096;

/// A row by its hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowHash {
    /// Of its key.
    pub(crate) key: u128,
    /// Of all of it.
    pub(crate) row: u128,
}

impl RowHash {
    /// The bucket of its key.
    pub(crate) fn bucket(self) -> usize {
        (self.key % BUCKETS as u128) as usize
    }
}

/// Makes hashes of rows of one schema.
#[derive(Debug)]
pub(crate) struct Digest {
    row: RowConverter,
    key: RowConverter,
    key_columns: Vec<usize>,
    seed: (u64, u64),
}

impl Digest {
    /// For rows of `schema` whose key is made of these columns.
    pub(crate) fn new(schema: &Schema, key_columns: &[usize], seed: (u64, u64)) -> Result<Self, ArrowError> {
        let field = |at: usize| schema.field(at).data_type().clone();
        let row = (0..schema.fields().len()).map(|at| SortField::new(field(at))).collect();
        let key = key_columns.iter().map(|at| SortField::new(field(*at))).collect();
        Ok(Digest {
            row: RowConverter::new(row)?,
            key: RowConverter::new(key)?,
            key_columns: key_columns.to_vec(),
            seed,
        })
    }

    /// The hashes of a batch's rows.
    pub(crate) fn of(&self, batch: &RecordBatch) -> Result<Vec<RowHash>, ArrowError> {
        let key: Vec<ArrayRef> = self.key_columns.iter().map(|at| batch.column(*at).clone()).collect();
        let (rows, keys) = (self.row.convert_columns(batch.columns())?, self.key.convert_columns(&key)?);
        let hash = |rows: &Rows, at: usize| {
            let mut hasher = SipHasher13::new_with_keys(self.seed.0, self.seed.1);
            hasher.write(rows.row(at).as_ref());
            hasher.finish128().as_u128()
        };
        Ok((0..batch.num_rows()).map(|at| RowHash { key: hash(&keys, at), row: hash(&rows, at) }).collect())
    }
}

/// What a bucket holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// How many rows.
    pub(crate) rows: u64,
    /// Their hashes' sum mod 2^128.
    pub(crate) sum: u128,
}

/// One side's buckets.
#[derive(Debug)]
pub(crate) struct Buckets(Vec<Bucket>);

impl Buckets {
    /// Of no row.
    pub(crate) fn new() -> Self {
        Buckets(vec![Bucket::default(); BUCKETS])
    }

    /// Takes a row in.
    pub(crate) fn add(&mut self, row: RowHash) {
        if let Some(bucket) = self.0.get_mut(row.bucket()) {
            bucket.rows += 1;
            bucket.sum = bucket.sum.wrapping_add(row.row);
        }
    }

    /// All rows.
    pub(crate) fn rows(&self) -> u64 {
        self.0.iter().map(|bucket| bucket.rows).sum()
    }

    /// The buckets in which two sides differ, with the rows that both have in them.
    pub(crate) fn unequal(&self, other: &Buckets) -> Vec<(usize, u64)> {
        let pairs = self.0.iter().zip(&other.0).enumerate();
        pairs.filter(|(_, (own, other))| own != other).map(|(at, (own, other))| (at, own.rows + other.rows)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Float64Array, Int64Array, StringArray};
    use arrow_schema::{DataType, Field};

    use super::*;

    fn batch(rows: &[(i64, Option<&str>, f64)]) -> RecordBatch {
        let schema = Schema::new(vec![
            Field::new("id", DataType::Int64, true),
            Field::new("text", DataType::Utf8, true),
            Field::new("number", DataType::Float64, true),
        ]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0))),
            Arc::new(StringArray::from_iter(rows.iter().map(|row| row.1))),
            Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.2))),
        ];
        RecordBatch::try_new(Arc::new(schema), columns).expect("columns of one length")
    }

    fn buckets(digest: &Digest, batches: &[RecordBatch]) -> Buckets {
        let mut buckets = Buckets::new();
        for row in batches.iter().flat_map(|batch| digest.of(batch).expect("hashed")) {
            buckets.add(row);
        }
        buckets
    }

    /// Catches a sum that depends on the order of rows or on how they are cut into batches, and one that two changes can
    /// cancel out.
    #[test]
    fn order_and_batches_do_not_count_and_values_do() {
        let rows: Vec<(i64, Option<&str>, f64)> = (0..10_000).map(|id| (id, Some("x"), id as f64 / 3.0)).collect();
        let whole = batch(&rows);
        let digest = Digest::new(&whole.schema(), &[0], (1, 2)).expect("a digest");
        let one = buckets(&digest, std::slice::from_ref(&whole));
        let turned: Vec<_> = rows.iter().rev().copied().collect();
        let pieces: Vec<RecordBatch> = turned.chunks(37).map(batch).collect();
        assert!(one.unequal(&buckets(&digest, &pieces)).is_empty());
        assert_eq!(one.rows(), 10_000);
        for changed in [(77, None, 77.0 / 3.0), (77, Some(""), 77.0 / 3.0), (77, Some("x"), 77.0)] {
            let mut other = rows.clone();
            other[77] = changed;
            assert_eq!(one.unequal(&buckets(&digest, &[batch(&other)])).len(), 1, "{changed:?}");
        }
        // Two rows exchange their texts: counts and multisets of values stay.
        let mut swapped = rows.clone();
        (swapped[1].1, swapped[2].2) = (Some("y"), 1.0);
        let mut other = rows;
        (other[2].1, other[1].2) = (Some("y"), 1.0);
        assert!(!buckets(&digest, &[batch(&swapped)]).unequal(&buckets(&digest, &[batch(&other)])).is_empty());
    }

    /// Catches rows that fall on a few buckets, whose narrowing would then hold the whole table.
    #[test]
    fn keys_spread_over_all_buckets() {
        let rows: Vec<_> = (0..100_000).map(|id| (id * 1_000, None, 0.0)).collect();
        let whole = batch(&rows);
        let digest = Digest::new(&whole.schema(), &[0], (3, 4)).expect("a digest");
        let most = buckets(&digest, &[whole]).0.iter().map(|bucket| bucket.rows).max();
        assert!(most.is_some_and(|most| most < 100), "{most:?} of about 24");
    }
}
