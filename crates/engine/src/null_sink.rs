//! The null sink: counts rows and drops them. What is left of a pipeline's cost without a destination; for benches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_schema::SchemaRef;
use futures::future::BoxFuture;

use crate::contract::{
    BarrierError, CommitId, Guarantee, PlanCx, PlanError, Positions, SealedBatch, Settled, ShardId, ShardWriter, Sink,
    SinkError, SinkIdentity, SinkPlan, Written,
};

/// See the module. Clones are one sink.
#[derive(Clone, Debug, Default)]
pub struct NullSink {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    rows: AtomicU64,
    batches: AtomicU64,
    bytes: AtomicU64,
}

impl NullSink {
    /// A sink that has counted nothing.
    pub fn new() -> Self {
        NullSink::default()
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.counts.rows.load(Ordering::Relaxed)
    }
}

impl Sink for NullSink {
    fn plan<'a>(&'a self, rows: &'a SchemaRef, _: &'a PlanCx) -> BoxFuture<'a, Result<SinkPlan, PlanError>> {
        let plan = SinkPlan {
            schema: rows.clone(),
            notes: vec!["null: counts rows and drops them".to_owned()],
            detail: Box::new(()),
        };
        Box::pin(async move { Ok(plan) })
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::AtLeastOnce { why: "the null sink keeps nothing".to_owned() }
    }

    fn open<'a>(&'a self, _: &'a SinkPlan, _: &'a PlanCx) -> BoxFuture<'a, Result<SinkIdentity, SinkError>> {
        Box::pin(async { Ok(SinkIdentity("null".to_owned())) })
    }

    fn committed_positions<'a>(&'a self, _: &'a PlanCx) -> BoxFuture<'a, Result<Positions, SinkError>> {
        Box::pin(async { Ok(Positions::new()) })
    }

    fn reshape<'a>(&'a self, _: u32, _: &'a SinkPlan, _: &'a PlanCx) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async { Ok(()) })
    }

    fn writer(&self, _: ShardId) -> Arc<dyn ShardWriter> {
        Arc::new(self.clone())
    }

    fn refuses_rows(&self) -> bool {
        false
    }

    fn report(&self) -> serde_json::Value {
        serde_json::json!({
            "rows": self.rows(),
            "batches": self.counts.batches.load(Ordering::Relaxed),
            "bytes": self.counts.bytes.load(Ordering::Relaxed),
        })
    }
}

impl ShardWriter for NullSink {
    fn write<'a>(&'a self, batch: &'a SealedBatch) -> BoxFuture<'a, Result<Written, SinkError>> {
        Box::pin(async move {
            self.counts.rows.fetch_add(batch.rows() as u64, Ordering::Relaxed);
            self.counts.batches.fetch_add(1, Ordering::Relaxed);
            self.counts.bytes.fetch_add(batch.bytes as u64, Ordering::Relaxed);
            Ok(Written::Durable)
        })
    }

    fn barrier<'a>(&'a self) -> BoxFuture<'a, Result<Settled, BarrierError>> {
        Box::pin(async { Ok(Settled::default()) })
    }

    fn was_committed<'a>(&'a self, _: &'a CommitId) -> BoxFuture<'a, Result<Option<bool>, SinkError>> {
        Box::pin(async { Ok(None) })
    }

    fn probe<'a>(&'a self) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async { Ok(()) })
    }

    fn reset<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}
