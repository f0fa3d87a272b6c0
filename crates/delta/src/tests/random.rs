//! A worker's life in random order, with faults of the store, restarts and a twin: no row is lost or there twice (I7, I9).

use std::sync::Arc;

use futures::FutureExt;
use landfall_engine::contract::{ShardWriter, Sink, SinkError};
use landfall_types::PartitionId;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::faults::{Fault, FaultStore};
use super::harness::{Opened, cx, directory, landed, numbers, open, open_over, sealed, together};
use crate::DeltaOptions;

const PARTITIONS: usize = 2;

/// The engine's side: where each partition is read from, and the epoch it is read in.
struct Lanes {
    next: [u64; PARTITIONS],
    epoch: u32,
}

impl Lanes {
    async fn restart(&mut self, opened: &Opened) {
        opened.writer.reset().await;
        let positions = opened.sink.committed_positions(&cx()).await.expect("positions");
        for (partition, next) in self.next.iter_mut().enumerate() {
            let partition = PartitionId(u32::try_from(partition).expect("small"));
            *next = positions.get(&partition).map_or(0, |place| place.at);
        }
        self.epoch += 1;
    }
}

/// Another process of the same pipeline that does one group and goes away.
fn twin(path: std::path::PathBuf, rows: u64) -> Fault {
    Fault::After(Arc::new(move || {
        let path = path.clone();
        async move {
            let twin = open(DeltaOptions::new(path)).await;
            let positions = twin.sink.committed_positions(&cx()).await.expect("positions");
            let from = positions.get(&PartitionId(0)).map_or(0, |place| place.at);
            twin.writer.write(&sealed(&twin.plan.schema, 0, 99, from..from + rows)).await.expect("taken");
            twin.writer.barrier().await.expect("settled");
        }
        .boxed()
    }))
}

async fn live(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let place = directory();
    let store = FaultStore::new();
    let options = || DeltaOptions { checkpoint_every: 3, ..DeltaOptions::new(&place.path) };
    let mut opened = open_over(options(), Arc::new(store.clone())).await;
    let mut lanes = Lanes { next: [0; PARTITIONS], epoch: 0 };
    lanes.restart(&opened).await;
    for _ in 0..40 {
        match random.random_range(0..10) {
            0..5 => {
                let mut batches = Vec::new();
                for (partition, next) in lanes.next.iter_mut().enumerate() {
                    if random.random_bool(0.7) {
                        let partition = u32::try_from(partition).expect("small");
                        let to = *next + random.random_range(1..6);
                        batches.push(sealed(&opened.plan.schema, partition, lanes.epoch, *next..to));
                        *next = to;
                    }
                }
                if !batches.is_empty() {
                    let batch = together(batches);
                    opened.writer.write(&batch).await.expect("taken");
                    if random.random_bool(0.2) {
                        opened.writer.write(&batch).await.expect("the same again");
                    }
                }
            }
            5..8 => {
                match random.random_range(0..5) {
                    0 => store.on_put(".json", Fault::Fails),
                    1 => store.on_put(".json", Fault::AnswerLost),
                    2 => store.on_put(".json", twin(place.path.clone(), random.random_range(1..8))),
                    3 => store.on_put(".parquet", Fault::Fails),
                    _ => {}
                }
                while let Err(error) = opened.writer.barrier().await {
                    match error.error {
                        // Kept: the worker asks again.
                        SinkError::Later { .. } => {}
                        SinkError::Unknown { .. } | SinkError::Superseded { .. } => {
                            lanes.restart(&opened).await;
                            break;
                        }
                        other => panic!("seed {seed}: {other}"),
                    }
                }
            }
            8 => lanes.restart(&opened).await,
            _ => {
                // The process is gone and another starts.
                opened = open_over(options(), Arc::new(store.clone())).await;
                lanes.restart(&opened).await;
            }
        }
    }
    store.forget();
    if let Err(error) = opened.writer.barrier().await {
        assert!(
            matches!(error.error, SinkError::Unknown { .. } | SinkError::Superseded { .. }),
            "seed {seed}: {error}"
        );
    }
    let positions = opened.sink.committed_positions(&cx()).await.expect("positions");
    let ranges: Vec<_> = positions.iter().map(|(partition, place)| (partition.0, 0..place.at)).collect();
    assert_eq!(landed(&place.path).await, numbers(&ranges), "seed {seed}");
}

/// Catches any order of faults, repeats, restarts and rivals that loses a row or lands it twice.
#[tokio::test(flavor = "multi_thread")]
async fn no_order_of_faults_and_restarts_loses_or_repeats_a_row() {
    for seed in 0..10 {
        live(seed).await;
    }
}
