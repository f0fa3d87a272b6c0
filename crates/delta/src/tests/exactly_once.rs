//! Each row is in the table exactly once (I7, I9): F-D3, F-C8, F-C10, E128 to E131.

use std::sync::Arc;

use deltalake_core::kernel::{Action, Add};
use futures::FutureExt;
use landfall_engine::contract::{ShardWriter, Sink, SinkError, Written};
use landfall_types::{Offset, PartitionId, Place};

use super::faults::{Fault, FaultStore};
use super::harness::{cx, directory, landed, numbers, open, open_over, sealed, together};
use crate::table::log_store;
use crate::{DeltaOptions, DeltaSink};

fn at(offset: u64) -> Option<Place> {
    Some(Place::of(Offset(offset)))
}

const P: PartitionId = PartitionId(0);
const Q: PartitionId = PartitionId(1);

/// Catches a straight path that loses, repeats or reorders: create, write, commit, go on, read back.
#[tokio::test(flavor = "multi_thread")]
async fn rows_and_positions_land_in_one_commit() {
    let place = directory();
    let opened = open(DeltaOptions::new(&place.path)).await;
    let schema = &opened.plan.schema;
    for batch in [sealed(schema, 0, 1, 0..10), sealed(schema, 0, 1, 10..15), sealed(schema, 1, 1, 0..4)] {
        assert_eq!(opened.writer.write(&batch).await.expect("taken"), Written::Accepted);
    }
    assert_eq!(landed(&place.path).await, numbers(&[]), "nothing is visible before the barrier");
    let settled = opened.writer.barrier().await.expect("settled");
    assert_eq!((settled.version, settled.batches, settled.rows), (Some(1), 3, 19));
    assert_eq!((settled.positions.get(&P).copied(), settled.positions.get(&Q).copied()), (at(15), at(4)));
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..15), (1, 0..4)]));

    opened.writer.write(&sealed(schema, 0, 1, 15..20)).await.expect("taken");
    assert_eq!(opened.writer.barrier().await.expect("settled").version, Some(2));
    let settled = opened.writer.barrier().await.expect("nothing to do");
    assert_eq!((settled.version, settled.batches), (None, 0), "an empty barrier makes no version");
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..20), (1, 0..4)]));
}

/// Catches positions lost with the process, or read wrongly once a checkpoint stands between.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_goes_on_where_the_table_ends() {
    let place = directory();
    let options = || DeltaOptions { checkpoint_every: 2, ..DeltaOptions::new(&place.path) };
    for round in 0..5u64 {
        let opened = open(options()).await;
        let positions = opened.sink.committed_positions(&cx()).await.expect("positions");
        assert_eq!(positions.get(&P).copied(), (round > 0).then(|| Place::of(Offset(round * 10))));
        let epoch = u32::try_from(round).expect("small");
        opened.writer.write(&sealed(&opened.plan.schema, 0, epoch, round * 10..round * 10 + 10)).await.expect("taken");
        let mut done = opened.sink.housekeeping().watch();
        let version = opened.writer.barrier().await.expect("settled").version.expect("a commit");
        if version % 2 == 0 {
            done.wait_for(|done| done.written == 1).await.expect("a checkpoint");
        }
        // A staged group of a process that is killed here is referenced by nothing.
        opened
            .writer
            .write(&sealed(&opened.plan.schema, 0, epoch, round * 10 + 10..round * 10 + 15))
            .await
            .expect("taken");
    }
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..50)]));
    let other = landfall_engine::contract::PlanCx { source: "channel:0b".into(), ..cx() };
    let sink = DeltaSink::new(options()).expect("in bounds");
    assert!(sink.committed_positions(&other).await.expect("positions").is_empty(), "another source inherits nothing");
}

/// Catches a batch that a restarted engine sends again although the table has it (F-D3).
#[tokio::test(flavor = "multi_thread")]
async fn the_same_txn_is_not_committed_twice() {
    let place = directory();
    let first = open(DeltaOptions::new(&place.path)).await;
    first.writer.write(&sealed(&first.plan.schema, 0, 1, 0..5)).await.expect("taken");
    first.writer.barrier().await.expect("settled");

    // A writer that read positions before that commit, and never asked again.
    let second = open(DeltaOptions::new(&place.path)).await;
    assert_eq!(
        second.writer.write(&sealed(&second.plan.schema, 0, 2, 0..5)).await.expect("known"),
        Written::AlreadyThere
    );
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..5)]));
}

/// Catches a position that moves backwards (T1), and half a group that is written again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lower_txn_is_refused() {
    let place = directory();
    let late = open(DeltaOptions::new(&place.path)).await;
    let first = open(DeltaOptions::new(&place.path)).await;
    first.writer.write(&sealed(&first.plan.schema, 0, 1, 0..9)).await.expect("taken");
    first.writer.barrier().await.expect("settled");

    let batch = sealed(&late.plan.schema, 0, 1, 0..12);
    late.writer.write(&batch).await.expect("taken");
    let error = late.writer.barrier().await.expect_err("another writer is ahead");
    let SinkError::Superseded { text, partitions, .. } = &error.error else { panic!("{error:?}") };
    assert_eq!(partitions.as_slice(), [P]);
    assert!(text.contains("0 to 12") && text.contains("holds 9"), "{text}");
    assert_eq!(error.lost, [batch.id]);
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..9)]));

    // After a restart of the partition it goes on.
    late.writer.reset().await;
    assert_eq!(late.sink.committed_positions(&cx()).await.expect("positions").get(&P).copied(), at(9));
    late.writer.write(&sealed(&late.plan.schema, 0, 2, 9..12)).await.expect("taken");
    late.writer.barrier().await.expect("settled");
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..12)]));
}

/// Catches a commit taken for lost because its answer was (T10, F-C8).
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_response_after_commit_counts_once() {
    let place = directory();
    let store = FaultStore::new();
    let opened = open_over(DeltaOptions::new(&place.path), Arc::new(store.clone())).await;
    store.on_put("00000000000000000001.json", Fault::AnswerLost);
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..5)).await.expect("taken");
    let error = opened.writer.barrier().await.expect_err("the answer is lost");
    assert!(matches!(error.error, SinkError::Later { .. }) && error.lost.is_empty(), "{error:?}");
    // More rows come before the outcome is known: they are another commit's.
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 5..8)).await.expect("taken");
    let settled = opened.writer.barrier().await.expect("settled");
    assert_eq!((settled.batches, settled.rows), (2, 8));
    assert_eq!(settled.positions.get(&P).copied(), at(8));
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..8)]));
}

/// Catches a group thrown away on an error that passes, or a commit that is not tried again.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_put_keeps_the_group() {
    let place = directory();
    let store = FaultStore::new();
    let opened = open_over(DeltaOptions::new(&place.path), Arc::new(store.clone())).await;
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..5)).await.expect("taken");
    for _ in 0..3 {
        store.on_put("00000000000000000001.json", Fault::Fails);
        let error = opened.writer.barrier().await.expect_err("503");
        assert!(matches!(&error.error, SinkError::Later { text, .. } if text.contains("503")), "{error:?}");
    }
    assert_eq!(opened.writer.barrier().await.expect("settled").rows, 5);
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..5)]));
}

/// Catches a commit that panicked and is told as settled, or as lost where it is in, or a shard that it leaves stuck.
#[tokio::test(flavor = "multi_thread")]
async fn a_panicked_commit_is_unknown_and_its_rows_land_once() {
    for is_stored in [false, true] {
        let place = directory();
        let store = FaultStore::new();
        let opened = open_over(DeltaOptions::new(&place.path), Arc::new(store.clone())).await;
        let schema = &opened.plan.schema;
        for batch in [sealed(schema, 0, 1, 0..6), sealed(schema, 0, 1, 6..10)] {
            assert_eq!(opened.writer.write(&batch).await.expect("taken"), Written::Accepted);
        }
        store.on_put("00000000000000000001.json", Fault::Panics { is_stored });
        let error = opened.writer.barrier().await.expect_err("it panicked");
        assert!(store.done());
        assert!(
            matches!(&error.error, SinkError::Unknown { code, .. } if *code == crate::code::GROUP_LOST),
            "{error:?}"
        );
        assert!(error.lost.is_empty(), "nobody can name what is lost: {error:?}");
        // What the engine does with a group of which nothing is known.
        opened.writer.reset().await;
        let positions = opened.sink.committed_positions(&cx()).await.expect("positions");
        assert_eq!(positions.get(&P).copied(), if is_stored { at(10) } else { None });
        for batch in [sealed(schema, 0, 2, 0..6), sealed(schema, 0, 2, 6..10)] {
            let expected = if is_stored { Written::AlreadyThere } else { Written::Accepted };
            assert_eq!(opened.writer.write(&batch).await.expect("taken"), expected);
        }
        opened.writer.barrier().await.expect("settled");
        opened.writer.write(&sealed(schema, 0, 2, 10..12)).await.expect("taken");
        opened.writer.barrier().await.expect("settled");
        assert_eq!(landed(&place.path).await, numbers(&[(0, 0..12)]));
    }
}

/// Catches positions that were read before a commit in flight and are told after it: the engine would read rows again
/// that the table holds (I9).
#[tokio::test(flavor = "multi_thread")]
async fn positions_wait_for_a_commit_in_flight() {
    let place = directory();
    let store = FaultStore::new();
    let opened = open_over(DeltaOptions::new(&place.path), Arc::new(store.clone())).await;
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..5)).await.expect("taken");
    let (entered, gate) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (tell, wait) = (entered.clone(), gate.clone());
    store.on_put(
        "00000000000000000001.json",
        Fault::After(Arc::new(move || {
            let (tell, wait) = (tell.clone(), wait.clone());
            async move {
                tell.notify_one();
                wait.notified().await;
            }
            .boxed()
        })),
    );
    let asking = async {
        entered.notified().await;
        let sink = opened.sink.clone();
        let mut asked = tokio::spawn(async move { sink.committed_positions(&cx()).await });
        let early = tokio::time::timeout(std::time::Duration::from_millis(300), &mut asked).await;
        assert!(early.is_err(), "told before the commit has ended: {early:?}");
        gate.notify_one();
        asked.await.expect("no panic").expect("positions")
    };
    let (settled, positions) = tokio::join!(opened.writer.barrier(), asking);
    settled.expect("settled");
    assert_eq!(positions.get(&P).copied(), at(5));
}

/// Catches a retry that puts without looking: between two tries another process of the same pipeline committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_rechecks_txn_before_every_try() {
    let place = directory();
    let store = FaultStore::new();
    let opened = open_over(DeltaOptions::new(&place.path), Arc::new(store.clone())).await;
    let path = place.path.clone();
    let twin = move || {
        let path = path.clone();
        async move {
            let twin = open(DeltaOptions::new(path)).await;
            twin.writer.write(&sealed(&twin.plan.schema, 0, 1, 0..5)).await.expect("taken");
            twin.writer.barrier().await.expect("settled");
        }
        .boxed()
    };
    store.on_put("00000000000000000001.json", Fault::After(Arc::new(twin)));
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..5)).await.expect("taken");
    let settled = opened.writer.barrier().await.expect("the twin's rows are ours");
    assert!(store.done());
    assert_eq!(settled.rows, 5);
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..5)]));
}

/// Catches two processes of one pipeline that both believe to be alone.
#[tokio::test(flavor = "multi_thread")]
async fn two_writers_one_pipeline_id_never_duplicate() {
    let place = directory();
    let path = place.path.clone();
    open(DeltaOptions::new(&path)).await;
    let run = |path: std::path::PathBuf, step: u64| async move {
        let opened = open(DeltaOptions { commit_retries: 1_000, ..DeltaOptions::new(path) }).await;
        let mut epoch = 0;
        loop {
            epoch += 1;
            opened.writer.reset().await;
            let positions = opened.sink.committed_positions(&cx()).await.expect("positions");
            let mut from = positions.get(&P).map_or(0, |at| at.at);
            loop {
                if from >= 60 {
                    return;
                }
                let to = (from + step).min(60);
                opened.writer.write(&sealed(&opened.plan.schema, 0, epoch, from..to)).await.expect("taken");
                match opened.writer.barrier().await {
                    Ok(_) => from = to,
                    Err(error) if matches!(error.error, SinkError::Superseded { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    };
    let both = [tokio::spawn(run(path.clone(), 7)), tokio::spawn(run(path.clone(), 5))];
    for one in both {
        one.await.expect("ends");
    }
    assert_eq!(landed(&path).await, numbers(&[(0, 0..60)]));
}

/// Catches an append that fails, or a position that is lost, because others write too (F-C10).
#[tokio::test(flavor = "multi_thread")]
async fn foreign_appends_and_removes_interleave() {
    let place = directory();
    let opened = open(DeltaOptions::new(&place.path)).await;
    let schema = &opened.plan.schema;
    let log = log_store(&place.path, Arc::new(crate::local_store::LocalStore::new())).expect("a log");
    opened.writer.write(&sealed(schema, 0, 1, 0..5)).await.expect("taken");
    opened.writer.barrier().await.expect("settled");

    // Another engine rewrites our file and adds nothing of its own, in two commits.
    let listing = crate::table_files(&place.path).await.expect("a table");
    let old = &listing.files[0];
    let name = old.path.file_name().expect("a name").to_string_lossy().into_owned();
    std::fs::copy(&old.path, place.path.join("compacted.parquet")).expect("a copy");
    let add = Add {
        path: "compacted.parquet".into(),
        size: i64::try_from(old.size).expect("small"),
        data_change: false,
        ..Add::default()
    };
    let remove = deltalake_core::kernel::Remove { path: name, data_change: false, ..Default::default() };
    super::facts::commit(&log, 2, vec![Action::Add(add), Action::Remove(remove)], vec![]).await.expect("put");
    super::facts::commit(&log, 3, vec![], vec![deltalake_core::kernel::Transaction::new("spark", 12)])
        .await
        .expect("put");

    opened.writer.write(&sealed(schema, 0, 1, 5..9)).await.expect("taken");
    let settled = opened.writer.barrier().await.expect("goes on past them");
    assert_eq!(settled.version, Some(4));
    assert_eq!(settled.positions.len(), 1, "another application's Txn is not ours");
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..9)]));
}

/// Catches a write after a half-done one: the same batch under the same id comes again (cancelled write).
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_write_that_comes_again_is_written_once() {
    let place = directory();
    let opened = open(DeltaOptions::new(&place.path)).await;
    let batch = sealed(&opened.plan.schema, 0, 1, 0..5_000);
    let first = opened.writer.write(&batch);
    assert!(
        tokio::time::timeout(std::time::Duration::ZERO, first).await.is_err() || landed(&place.path).await.is_empty()
    );
    opened.writer.write(&batch).await.expect("taken");
    let settled = opened.writer.barrier().await.expect("settled");
    assert_eq!((settled.batches, settled.rows), (1, 5_000));
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..5_000)]));
}

/// Catches a group whose files failed and that is committed without them (E130).
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_group_names_all_its_batches() {
    let place = directory();
    let store = FaultStore::new();
    let opened = open_over(DeltaOptions::new(&place.path), Arc::new(store.clone())).await;
    let batches = [sealed(&opened.plan.schema, 0, 1, 0..5), sealed(&opened.plan.schema, 1, 1, 0..5)];
    for batch in &batches {
        opened.writer.write(batch).await.expect("taken");
    }
    store.on_put(".parquet", Fault::Fails);
    let error = opened.writer.barrier().await.expect_err("the file is not complete");
    assert_eq!(error.lost, batches.each_ref().map(|batch| batch.id));
    assert!(matches!(error.error, SinkError::Unknown { .. }), "neither Later nor Destination: it is dropped");
    assert!(landed(&place.path).await.is_empty());
    opened.writer.reset().await;
    opened.writer.write(&together(batches.into())).await.expect("taken");
    opened.writer.barrier().await.expect("settled");
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..5), (1, 0..5)]));
}

/// Catches a full disk that gets fuller with every try: files of a group that was never committed have to go.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_group_leaves_no_files_behind() {
    let place = directory();
    let store = FaultStore::new();
    let options = DeltaOptions { partition_by: vec!["country".into()], ..DeltaOptions::new(&place.path) };
    let opened = open_over(options, Arc::new(store.clone())).await;
    let files = || {
        let entries = std::fs::read_dir(&place.path).expect("the table");
        entries.filter(|entry| entry.as_ref().expect("an entry").file_name() != "_delta_log").count()
    };
    store.on_put(".parquet", Fault::Passes);
    store.on_put(".parquet", Fault::Fails);
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..9)).await.expect("taken");
    opened.writer.barrier().await.expect_err("one of three files failed");
    assert!(store.done());
    assert_eq!(files(), 0);
    opened.writer.reset().await;
    opened.writer.write(&sealed(&opened.plan.schema, 0, 2, 0..9)).await.expect("taken");
    opened.writer.barrier().await.expect("settled");
    assert_eq!(files(), 3);
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..9)]));
}

/// Catches rows of a restarted partition that are written behind those of its closed epoch.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_read_anew_inside_a_group_loses_the_group() {
    let place = directory();
    let opened = open(DeltaOptions::new(&place.path)).await;
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..5)).await.expect("taken");
    assert!(!opened.writer.wants_barrier());
    opened.writer.write(&sealed(&opened.plan.schema, 0, 2, 0..9)).await.expect("taken");
    assert!(opened.writer.wants_barrier(), "to be told at once");
    let error = opened.writer.barrier().await.expect_err("lost");
    assert_eq!(error.lost.len(), 2);
    assert!(landed(&place.path).await.is_empty());
}

/// Catches a commit for ranges of which every row was filtered, or a later one that takes them for another writer's.
#[tokio::test(flavor = "multi_thread")]
async fn filtered_ranges_make_no_version_and_no_gap() {
    let place = directory();
    let opened = open(DeltaOptions::new(&place.path)).await;
    let schema = &opened.plan.schema;
    opened.writer.write(&sealed(schema, 0, 1, 0..5)).await.expect("taken");
    opened.writer.barrier().await.expect("settled");
    let mut filtered = sealed(schema, 0, 1, 5..30);
    filtered.parts = vec![filtered.parts[0].slice(0, 0)];
    opened.writer.write(&filtered).await.expect("taken");
    let settled = opened.writer.barrier().await.expect("settled");
    assert_eq!((settled.version, settled.batches, settled.rows), (None, 1, 0));
    opened.writer.write(&sealed(schema, 0, 1, 30..32)).await.expect("taken");
    assert_eq!(opened.writer.barrier().await.expect("settled").version, Some(2));
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..5), (0, 30..32)]));
}

/// Catches a pipeline that writes on into a table which took the place of its own (E65).
#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_was_replaced_blocks() {
    let place = directory();
    let opened = open(DeltaOptions::new(&place.path)).await;
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..5)).await.expect("taken");
    std::fs::remove_dir_all(&place.path).expect("removed");
    let other = open(DeltaOptions::new(&place.path)).await;
    drop(other);
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 5..6)).await.expect("taken");
    let error = opened.writer.barrier().await.expect_err("another table");
    assert!(matches!(error.error, SinkError::Destination { code: crate::code::REPLACED, .. }), "{error:?}");
    assert!(landed(&place.path).await.is_empty());
}
