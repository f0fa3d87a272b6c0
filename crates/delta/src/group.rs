//! The group: what was Accepted since the last commit, as data files and the source ranges they stand for (E126).
//!
//! A group knows its batches by id, so that one that comes again is not written again; its ranges per partition chain,
//! so that one Txn per partition can stand for all of them (T3, E127). A group that cannot be completed is *lost*: it goes
//! on taking batches without writing them, until the barrier names them all and the engine reads them again (E130).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow_array::RecordBatch;
use deltalake_core::kernel::Add;
use landfall_engine::contract::{CommitId, CopyMark, Covered, Positions, TableNote};
use landfall_types::{Epoch, PartitionId, Place};
use object_store::ObjectStoreExt;
use object_store::path::Path;

use crate::data_file::{DataFile, DataFiles};
use crate::partition::{PartitionValue, split};
use crate::shape::{Shape, apart};

/// The source range of a partition that a group stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) epoch: Epoch,
    pub(crate) start: Place,
    pub(crate) end: Place,
}

/// Ranges per partition.
pub(crate) type Spans = BTreeMap<PartitionId, Span>;

/// What a group took in, whether its files are open or not.
#[derive(Default)]
pub(crate) struct Taken {
    /// In the order they came.
    pub(crate) batches: Vec<CommitId>,
    pub(crate) rows: u64,
    pub(crate) spans: Spans,
    /// The shapes of its files, in the order they came.
    pub(crate) shapes: Vec<Arc<Shape>>,
    /// A copy at this commit position begins with it: what copies of another one left is to go (P56).
    pub(crate) begins: Option<u64>,
}

impl Taken {
    /// Whether it ends inside a transaction or a copy.
    pub(crate) fn is_inside(&self) -> bool {
        self.spans.values().any(|span| span.end.within > 0)
    }

    /// The ends, as positions. An empty range has none.
    pub(crate) fn ends(&self) -> Positions {
        let moved = self.spans.iter().filter(|(_, span)| span.start != span.end);
        moved.map(|(partition, span)| (*partition, span.end)).collect()
    }
}

/// A group whose files are complete; only the commit is missing. It never changes again.
pub(crate) struct Sealed {
    pub(crate) taken: Taken,
    pub(crate) adds: Vec<Add>,
}

/// The group that is being written.
#[derive(Default)]
pub(crate) struct Group {
    taken: Taken,
    ids: HashSet<CommitId>,
    open: Vec<DataFile>,
    adds: Vec<Add>,
    bytes: u64,
    lost: Option<String>,
}

/// How a group's memory and files stand; for the status and for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) open_files: usize,
    pub(crate) memory: usize,
    pub(crate) closed_files: usize,
    pub(crate) closed_bytes: u64,
    pub(crate) closed_early: usize,
}

impl Group {
    pub(crate) fn is_empty(&self) -> bool {
        self.taken.batches.is_empty()
    }

    /// Whether it ends inside a transaction or a copy, whose end is worth a wait (E129).
    pub(crate) fn is_inside(&self) -> bool {
        self.taken.is_inside()
    }

    /// A copy begins with what is taken next.
    pub(crate) fn begins(&mut self, note: Option<TableNote>) {
        if let Some(TableNote { copy: CopyMark::Begins(place), .. }) = note {
            self.taken.begins = Some(place.at);
        }
    }

    /// Why the group cannot be completed any more.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Ids of all that was taken.
    pub(crate) fn batches(&self) -> &[CommitId] {
        &self.taken.batches
    }

    pub(crate) fn held(&self, closed_early: usize) -> Held {
        Held {
            open_files: self.open.len(),
            memory: self.open.iter().map(DataFile::memory).sum(),
            closed_files: self.adds.len(),
            closed_bytes: self.bytes,
            closed_early,
        }
    }

    /// Gives the group up. No commit was tried with its files, so they are removed: a full disk would otherwise get fuller
    /// with every try.
    pub(crate) async fn lose(&mut self, files: &DataFiles, why: String) {
        for file in self.open.drain(..) {
            file.abort().await;
        }
        for add in self.adds.drain(..) {
            if let Err(error) = files.store.delete(&Path::from(add.path.as_str())).await {
                tracing::debug!(path = %add.path, %error, "a data file of a lost group was left behind");
            }
        }
        self.lost.get_or_insert(why);
    }

    /// Marks the group as lost without waiting for anything; for a thread that unwinds.
    pub(crate) fn lose_now(&mut self, why: &str) {
        self.adds.clear();
        self.open.clear();
        self.lost.get_or_insert_with(|| why.to_owned());
    }

    /// Takes a batch in. False: it is in the group already. A batch that breaks the chain makes the group lost: a
    /// position could not tell its rows from those written before.
    pub(crate) async fn take(&mut self, files: &DataFiles, id: CommitId, rows: u64, covers: &[Covered]) -> bool {
        if !self.ids.insert(id) {
            return false;
        }
        self.taken.batches.push(id);
        self.taken.rows += rows;
        let mut broken = None;
        for cover in covers {
            let range = &cover.range;
            match self.taken.spans.get_mut(&cover.partition) {
                None => {
                    let span = Span { epoch: cover.epoch, start: range.start, end: range.end };
                    self.taken.spans.insert(cover.partition, span);
                }
                Some(span) if span.epoch == cover.epoch && span.end <= range.start => span.end = range.end,
                Some(span) => {
                    broken.get_or_insert_with(|| {
                        format!(
                            "partition {} was read anew: the group holds {} to {} of epoch {}, and {} to {} of epoch {} \
                             came",
                            cover.partition, span.start, span.end, span.epoch, range.start, range.end, cover.epoch
                        )
                    });
                }
            }
        }
        if let Some(why) = broken {
            self.lose(files, why).await;
        }
        true
    }

    /// Writes rows into the open files of their partition values. Returns how many files were closed early, because more
    /// values came than `max_open_files`.
    pub(crate) async fn append(&mut self, shape: &Arc<Shape>, parts: &[RecordBatch], max_open_files: usize) -> usize {
        let mut closed_early = 0;
        if parts.iter().any(|part| part.num_rows() > 0)
            && !self.taken.shapes.iter().any(|known| Arc::ptr_eq(known, shape))
        {
            self.taken.shapes.push(shape.clone());
        }
        for part in parts {
            if self.lost.is_some() {
                break;
            }
            if let Err(why) = self.append_part(shape, part, max_open_files, &mut closed_early).await {
                self.lose(&shape.files, why).await;
            }
        }
        // Who gave the rows may forget them now: their memory is not the group's.
        if let Err(why) = self.encode().await {
            self.lose(&shape.files, why).await;
        }
        closed_early
    }

    async fn encode(&mut self) -> Result<(), String> {
        for file in &mut self.open {
            file.encode().await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    async fn append_part(
        &mut self,
        shape: &Arc<Shape>,
        part: &RecordBatch,
        max_open_files: usize,
        closed_early: &mut usize,
    ) -> Result<(), String> {
        for (rows, is_copied) in apart(part).map_err(|error| error.to_string())? {
            for (value, rows) in split(&rows, &shape.layout, &shape.files.schema).map_err(|error| error.to_string())? {
                self.append_rows(shape, is_copied, value, &rows, max_open_files, closed_early).await?;
            }
        }
        Ok(())
    }

    async fn append_rows(
        &mut self,
        shape: &Arc<Shape>,
        is_copied: bool,
        value: PartitionValue,
        rows: &RecordBatch,
        max_open_files: usize,
        closed_early: &mut usize,
    ) -> Result<(), String> {
        let text = |error: parquet::errors::ParquetError| error.to_string();
        let is_it =
            |file: &DataFile| file.value == value && file.is_copied == is_copied && Arc::ptr_eq(&file.shape, shape);
        let at = match self.open.iter().position(is_it) {
            Some(at) => at,
            None => {
                if self.open.len() >= max_open_files {
                    *closed_early += self.open.len();
                    self.close_files().await?;
                }
                self.open.push(DataFile::open(shape, is_copied, value).map_err(text)?);
                self.open.len() - 1
            }
        };
        let Some(file) = self.open.get_mut(at) else { return Ok(()) };
        file.append(rows).await.map_err(text)?;
        if file.size() >= shape.files.target_bytes {
            let file = self.open.swap_remove(at);
            self.close_file(file).await?;
        }
        Ok(())
    }

    async fn close_file(&mut self, file: DataFile) -> Result<(), String> {
        let add = file.close().await.map_err(|error| error.to_string())?;
        self.bytes += u64::try_from(add.size).unwrap_or(0);
        self.adds.push(add);
        Ok(())
    }

    async fn close_files(&mut self) -> Result<(), String> {
        while let Some(file) = self.open.pop() {
            self.close_file(file).await?;
        }
        Ok(())
    }

    /// Completes all files. `Err`: the group is lost, and why.
    pub(crate) async fn seal(mut self, files: &DataFiles) -> Result<Sealed, String> {
        if self.lost.is_none()
            && let Err(why) = self.close_files().await
        {
            self.lose(files, why).await;
        }
        match self.lost {
            Some(why) => Err(why),
            None => Ok(Sealed { taken: self.taken, adds: self.adds }),
        }
    }
}
