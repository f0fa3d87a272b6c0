//! Rows that panic a table's chain, each by itself: they end as dead letters with the panic's text, and the rest of
//! their batch goes on (E61, I13).
//!
//! A record source reads such a range again, one record a poll. A table shares its lane with others, which would crawl
//! along; so here the slice is tried row by row, once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use landfall_types::Place;

use super::rows::{Refusal, Refusals};
use super::slice::Slices;
use super::{Chain, PushOutcome, Stages, Unfinished};
use crate::codes;
use crate::contract::{Decoded, RowErrors, Stage};
use crate::poll::SourceBatch;
use crate::worker::panic_text;

impl Chain {
    /// The slice once more, without the rows that panic decoder or transforms each by itself: those are set aside with
    /// the panic's text. The panic as it was, if none does.
    pub(super) fn work_without_culprits(
        &mut self,
        batch: &SourceBatch,
        slices: &Slices,
        at: u32,
        skip: &[Place],
        first: std::thread::Result<Result<Unfinished, PushOutcome>>,
    ) -> std::thread::Result<Result<Unfinished, PushOutcome>> {
        self.cx.meters.panics.increment(1);
        let mut culprits = Refusals::new();
        const CULPRITS_MAX: usize = 16;
        let mut has_panicked = true;
        for row in slices.rows_of(at) {
            // What panicked may be left in any state: it is made anew before anything else is tried.
            if std::mem::take(&mut has_panicked) {
                match Stages::plan(&self.cx.factory, self.cx.sinks.iter().map(|path| path.filter.clone())) {
                    Ok(stages) => self.stages = stages,
                    Err(_) => return first,
                }
            }
            let one = batch.rows.slice(row, 1);
            let tried = catch_unwind(AssertUnwindSafe(|| {
                let mut bad = RowErrors::default();
                let Ok(Decoded::Rows(mut rows)) = self.stages.decoder.decode(&one, &mut bad) else { return };
                for transform in &mut self.stages.transforms {
                    match transform.apply(rows, &mut bad) {
                        Ok(after) => rows = after,
                        Err(_) => return,
                    }
                }
            }));
            if let Err(panic) = tried {
                if culprits.len() == CULPRITS_MAX {
                    // Not bad rows, but a defect: the table waits, and nothing is set aside.
                    return first;
                }
                let text = Arc::from(format!("decoder or query panicked: {}", panic_text(panic)));
                has_panicked = true;
                culprits.insert(slices.offset(row), Refusal { stage: Stage::Sql, code: codes::PANIC, text });
            }
        }
        if culprits.is_empty() {
            return first;
        }
        if let Ok(stages) = Stages::plan(&self.cx.factory, self.cx.sinks.iter().map(|path| path.filter.clone())) {
            self.stages = stages;
        }
        catch_unwind(AssertUnwindSafe(|| self.work_slice(batch, slices, at, skip, culprits)))
    }
}
