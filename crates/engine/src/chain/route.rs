//! The router of one sink: which shard each row goes to (E139).

use std::hash::Hasher;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{Array, BooleanArray, RecordBatch, UInt32Array, UInt64Array};
use arrow_schema::{DataType, SchemaRef};
use landfall_types::PartitionId;
use siphasher::sip::SipHasher13;

use crate::codes;
use crate::contract::{EngineError, PlanError};
use crate::options::Route;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Router {
    shards: usize,
    by: By,
}

#[derive(Clone, Debug)]
enum By {
    Partition,
    Columns(Vec<usize>),
    Turn(usize),
}

/// Where the rows of one batch go.
#[derive(Debug)]
pub(super) enum Routed {
    /// All rows to one shard, the only one that stands for the partition.
    Alone(usize),
    /// All rows to one of several shards; each stands for the range.
    Turn { shard: usize, shards: usize },
    /// Row by row.
    Each { shard_of: Vec<u16>, shards: usize },
}

impl Router {
    pub(crate) fn plan(route: &Route, rows: &SchemaRef, shards: usize, sink: &str) -> Result<Router, PlanError> {
        let by = match route {
            _ if shards <= 1 => By::Partition,
            Route::Partition => By::Partition,
            Route::RoundRobin => By::Turn(0),
            Route::Columns(names) => By::Columns(
                names
                    .iter()
                    .map(|name| {
                        rows.index_of(name).map_err(|_| {
                            let text =
                                format!("`to.{sink}.route` names column `{name}`, which the query does not have");
                            PlanError::new(codes::PLAN, text)
                        })
                    })
                    .collect::<Result<_, _>>()?,
            ),
        };
        Ok(Router { shards: shards.max(1), by })
    }

    pub(super) fn route(&mut self, rows: &RecordBatch, partition: PartitionId) -> Result<Routed, EngineError> {
        match &mut self.by {
            By::Partition => Ok(Routed::Alone(partition.0 as usize % self.shards)),
            By::Turn(next) => {
                let shard = *next % self.shards;
                *next = next.wrapping_add(1);
                Ok(Routed::Turn { shard, shards: self.shards })
            }
            By::Columns(columns) => {
                let mut hashers = vec![SipHasher13::new(); rows.num_rows()];
                for column in columns.iter() {
                    // Text is the one form that every type has and that stays the same from version to version.
                    let texts =
                        arrow_cast::cast(rows.column(*column), &DataType::Utf8).map_err(|error| EngineError {
                            code: codes::STAGE_FAILED,
                            text: format!("rows cannot be routed by column {column}: {error}"),
                        })?;
                    let texts = texts.as_string::<i32>();
                    for (row, hasher) in hashers.iter_mut().enumerate() {
                        hasher.write_u8(u8::from(texts.is_null(row)));
                        hasher.write(texts.value(row).as_bytes());
                        hasher.write_u8(0xff);
                    }
                }
                let shards = self.shards as u64;
                let shard_of =
                    hashers.into_iter().map(|hasher| u16::try_from(hasher.finish() % shards).unwrap_or(0)).collect();
                Ok(Routed::Each { shard_of, shards: self.shards })
            }
        }
    }
}

impl Routed {
    /// The same without the rows that were dropped in between.
    pub(super) fn without(self, kept: &Option<BooleanArray>) -> Routed {
        match (self, kept) {
            (Routed::Each { shard_of, shards }, Some(kept)) => {
                let shard_of = shard_of
                    .into_iter()
                    .zip(kept.values().iter())
                    .filter_map(|(shard, is_kept)| is_kept.then_some(shard))
                    .collect();
                Routed::Each { shard_of, shards }
            }
            (routed, _) => routed,
        }
    }

    /// The rows of each shard; a shard that stands for the range without rows gets an empty batch.
    pub(super) fn split(
        self,
        rows: RecordBatch,
        offsets: UInt64Array,
    ) -> Result<Vec<(usize, RecordBatch, UInt64Array)>, EngineError> {
        let failed = |error: arrow_schema::ArrowError| EngineError {
            code: codes::STAGE_FAILED,
            text: format!("rows cannot be split over shards: {error}"),
        };
        match self {
            Routed::Alone(shard) => Ok(vec![(shard, rows, offsets)]),
            Routed::Turn { shard, shards } => {
                let (empty, none) = (rows.slice(0, 0), offsets.slice(0, 0));
                let mut split: Vec<_> = (0..shards).map(|other| (other, empty.clone(), none.clone())).collect();
                split[shard] = (shard, rows, offsets);
                Ok(split)
            }
            Routed::Each { shard_of, shards } => (0..shards)
                .map(|shard| {
                    let mine: UInt32Array = shard_of
                        .iter()
                        .enumerate()
                        .filter(|(_, of)| usize::from(**of) == shard)
                        .map(|(row, _)| u32::try_from(row).unwrap_or(u32::MAX))
                        .collect();
                    let taken = arrow_select::take::take_record_batch(&rows, &mine).map_err(failed)?;
                    let taken_offsets = arrow_select::take::take(&offsets, &mine, None).map_err(failed)?;
                    Ok((shard, taken, taken_offsets.as_primitive::<UInt64Type>().clone()))
                })
                .collect(),
        }
    }
}
