//! The facts of the library that rule the design (T1–T11): one that differs in a later version fails here.

use std::collections::HashMap;
use std::sync::Arc;

use buoyant_kernel::Snapshot;
use deltalake_core::DeltaTable;
use deltalake_core::kernel::transaction::{CommitBuilder, CommitData, CommitProperties, TransactionError};
use deltalake_core::kernel::{Action, DataType, Transaction};
use deltalake_core::logstore::{CommitOrBytes, LogStoreRef};
use deltalake_core::operations::create::CreateBuilder;
use deltalake_core::protocol::{DeltaOperation, SaveMode};
use futures::FutureExt;
use landfall_engine::contract::{PipelineId, ShardWriter, Sink};

use super::faults::{Fault, FaultStore};
use super::harness::{cx, directory, landed, numbers, open, open_over, rows, sealed};
use crate::local_store::LocalStore;
use crate::table::{AppIds, Table, log_store};
use crate::{DeltaOptions, DeltaSink};

fn write() -> DeltaOperation {
    DeltaOperation::Write { mode: SaveMode::Append, partition_by: None, predicate: None }
}

/// Puts a commit at a version, as the sink does.
pub(super) async fn commit(
    log: &LogStoreRef,
    version: u64,
    actions: Vec<Action>,
    transactions: Vec<Transaction>,
) -> Result<(), TransactionError> {
    let bytes = CommitData::new(actions, write(), HashMap::new(), transactions).get_bytes().expect("JSON");
    log.write_commit_entry(version, CommitOrBytes::LogBytes(bytes), uuid::Uuid::new_v4()).await
}

fn local(path: &std::path::Path) -> LogStoreRef {
    log_store(path, Arc::new(LocalStore::new())).expect("a log")
}

async fn txn(log: &LogStoreRef, app_id: &'static str) -> Option<i64> {
    let (engine, url) = (log.engine(None), log.root_url().clone());
    let read = move || {
        let snapshot = Snapshot::builder_for(url.as_str()).build(engine.as_ref()).expect("a snapshot");
        snapshot.get_app_id_version(app_id, engine.as_ref()).expect("readable")
    };
    tokio::task::spawn_blocking(read).await.expect("read")
}

/// T1: the library compares no Txn: twice the same is kept, a lower one becomes current. Our loop checks (E128).
#[tokio::test(flavor = "multi_thread")]
async fn t1_a_commit_never_compares_its_txn() {
    let place = directory();
    open(DeltaOptions::new(&place.path)).await;
    let log = local(&place.path);
    commit(&log, 1, vec![], vec![Transaction::new("app", 5)]).await.expect("put");
    commit(&log, 2, vec![], vec![Transaction::new("app", 5)]).await.expect("put again");
    assert_eq!(txn(&log, "app").await, Some(5));
    commit(&log, 3, vec![], vec![Transaction::new("app", 3)]).await.expect("put a lower one");
    assert_eq!(txn(&log, "app").await, Some(3));
}

/// T2: the library's own loop takes a concurrent commit with the same app id for a conflict.
#[tokio::test(flavor = "multi_thread")]
async fn t2_the_library_refuses_a_concurrent_commit_of_the_same_app_id() {
    let place = directory();
    open(DeltaOptions::new(&place.path)).await;
    let log = local(&place.path);
    let mut table = DeltaTable::new(log.clone());
    table.load().await.expect("loaded");
    commit(&log, 1, vec![], vec![Transaction::new("app", 6)]).await.expect("put");
    let properties = CommitProperties::default().with_application_transaction(Transaction::new("app", 6));
    let built = CommitBuilder::from(properties)
        .build(Some(table.snapshot().expect("loaded")), log.clone(), write())
        .await
        .map(|commit| commit.version());
    let error = built.expect_err("a conflict").to_string();
    assert!(error.to_lowercase().contains("transaction"), "{error}");
}

/// T3: of two Txn of one app id in a commit the first is read back, by the library and by us.
#[tokio::test(flavor = "multi_thread")]
async fn t3_two_txn_of_one_app_id_read_back_as_the_first() {
    let place = directory();
    open(DeltaOptions::new(&place.path)).await;
    let log = local(&place.path);
    let ids = AppIds::of(&PipelineId("p".into()), "s");
    let mut held = Table::load(&log, &ids).await.expect("readable").expect("a table");
    let two = vec![Transaction::new("landfall:p:s:0", 7), Transaction::new("landfall:p:s:0", 9)];
    commit(&log, 1, vec![], two).await.expect("put");
    assert_eq!(txn(&log, "landfall:p:s:0").await, Some(7));
    held.advance(&log).await.expect("readable");
    let loaded = Table::load(&log, &ids).await.expect("readable").expect("a table");
    assert_eq!(held.positions(), loaded.positions());
    assert_eq!(loaded.positions().values().map(|at| at.at).collect::<Vec<_>>(), [7]);
}

/// T4: with retries, who loses the race for version 0 commits its own metadata as version 1. Catches `create` done so.
#[tokio::test(flavor = "multi_thread")]
async fn t4_the_loser_of_the_creation_race_commits_again_unless_told_not_to() {
    let place = directory();
    let store = FaultStore::new();
    let winner_path = place.path.clone();
    let winner = move || {
        let path = winner_path.clone();
        async move {
            open(DeltaOptions::new(path)).await;
        }
        .boxed()
    };
    store.on_put("00000000000000000000.json", Fault::After(Arc::new(winner)));
    let log = log_store(&place.path, Arc::new(store)).expect("a log");
    let created = CreateBuilder::new().with_log_store(log).with_column("other", DataType::LONG, true, None).await;
    assert_eq!(created.expect("it believes to have created the table").version(), Some(1));
}

/// Catches a loser that overwrites the winner's table (T4), or that fails although the winner's fits.
#[tokio::test(flavor = "multi_thread")]
async fn lost_creation_race_keeps_the_winner() {
    let place = directory();
    let store = FaultStore::new();
    let winner_path = place.path.clone();
    let winner = move || {
        let path = winner_path.clone();
        async move {
            open(DeltaOptions::new(path)).await;
        }
        .boxed()
    };
    store.on_put("00000000000000000000.json", Fault::After(Arc::new(winner)));
    let opened = open_over(DeltaOptions::new(&place.path), Arc::new(store.clone())).await;
    assert!(store.done());
    assert!(!place.path.join("_delta_log/00000000000000000001.json").exists());
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..3)).await.expect("taken");
    assert_eq!(opened.writer.barrier().await.expect("settled").version, Some(1));
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..3)]));
}

/// T6: a Txn older than the table's retention is no longer read. Such a table is refused before it can lose a position.
#[tokio::test(flavor = "multi_thread")]
async fn t6_an_expired_txn_is_not_read_and_such_a_table_is_refused() {
    let place = directory();
    let log = local(&place.path);
    CreateBuilder::new()
        .with_log_store(log.clone())
        .with_column("n", DataType::LONG, false, None)
        .with_configuration([("delta.setTransactionRetentionDuration", Some("interval 1 days"))])
        .await
        .expect("created");
    let old = Transaction::new_with_last_update("app", 5, Some(1_000));
    commit(&log, 1, vec![], vec![old]).await.expect("put");
    assert_eq!(txn(&log, "app").await, None);
    let sink = DeltaSink::new(DeltaOptions::new(&place.path)).expect("in bounds");
    let error = sink.plan(&rows(), &cx()).await.expect_err("positions would expire");
    assert_eq!(error.code, crate::code::RETENTION);
}

/// T7: RESTORE does not move a Txn back: positions stay, and the sink goes on from them.
#[tokio::test(flavor = "multi_thread")]
async fn t7_a_restore_leaves_positions_where_they_are() {
    let place = directory();
    let opened = open(DeltaOptions::new(&place.path)).await;
    for from in [0, 5] {
        opened.writer.write(&sealed(&opened.plan.schema, 0, 1, from..from + 5)).await.expect("taken");
        opened.writer.barrier().await.expect("settled");
    }
    let mut table = DeltaTable::new(local(&place.path));
    table.load().await.expect("loaded");
    table.restore().with_version_to_restore(1).await.expect("restored");
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 10..12)).await.expect("taken");
    let settled = opened.writer.barrier().await.expect("settled");
    assert_eq!(settled.version, Some(4));
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..5), (0, 10..12)]));
}

/// T11: the log store takes any version, gaps included. So n + 1 only ever comes from a version just seen.
#[tokio::test(flavor = "multi_thread")]
async fn t11_the_log_store_takes_a_version_with_a_gap() {
    let place = directory();
    open(DeltaOptions::new(&place.path)).await;
    let log = local(&place.path);
    commit(&log, 77, vec![], vec![]).await.expect("put far ahead");
    let taken = commit(&log, 77, vec![], vec![]).await.expect_err("but not twice");
    assert!(matches!(taken, TransactionError::VersionAlreadyExists(77)), "{taken}");
}

/// Catches an old version that gets new content, because a clean-up took the commits a stalled writer looks at (E128).
#[tokio::test(flavor = "multi_thread")]
async fn a_cleaned_up_log_never_gets_an_old_version() {
    let place = directory();
    let stalled = open(DeltaOptions { checkpoint_every: 0, ..DeltaOptions::new(&place.path) }).await;
    let busy = open(DeltaOptions { checkpoint_every: 4, ..DeltaOptions::new(&place.path) }).await;
    let mut done = busy.sink.housekeeping().watch();
    for round in 0..4 {
        busy.writer.write(&sealed(&busy.plan.schema, 1, 1, round * 5..round * 5 + 5)).await.expect("taken");
        busy.writer.barrier().await.expect("settled");
    }
    done.wait_for(|done| done.written == 1).await.expect("a checkpoint");
    for version in 0..4 {
        std::fs::remove_file(place.path.join(format!("_delta_log/{version:020}.json"))).expect("cleaned up");
    }
    stalled.writer.write(&sealed(&stalled.plan.schema, 0, 1, 0..5)).await.expect("taken");
    let settled = stalled.writer.barrier().await.expect("settled");
    assert_eq!(settled.version, Some(5), "not one that was there before");
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..5), (1, 0..20)]));
}

/// Catches T5 by the back door: housekeeping that fails takes the commit with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_checkpoint_is_not_a_failed_commit() {
    let place = directory();
    let store = FaultStore::new();
    let options = DeltaOptions { checkpoint_every: 1, ..DeltaOptions::new(&place.path) };
    let opened = open_over(options, Arc::new(store.clone())).await;
    let mut done = opened.sink.housekeeping().watch();
    store.on_put("00000000000000000001.checkpoint.parquet", Fault::Fails);
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..3)).await.expect("taken");
    assert_eq!(opened.writer.barrier().await.expect("the commit is in").version, Some(1));
    done.wait_for(|done| done.failed == 1).await.expect("the checkpoint failed");
    assert!(store.done());
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 3..6)).await.expect("taken");
    assert_eq!(opened.writer.barrier().await.expect("goes on").version, Some(2));
    done.wait_for(|done| done.written == 1).await.expect("the next checkpoint");
    assert!(store.puts().iter().any(|path| path.ends_with("_last_checkpoint")), "through our store");
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..6)]));
    assert_eq!(opened.sink.report()["checkpoints_failed"], 1);
}

/// Catches a commit entry that we cannot read: broken JSON must stop us, an action of tomorrow must not.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_actions_pass_and_broken_commits_stop() {
    let place = directory();
    let opened = open(DeltaOptions::new(&place.path)).await;
    let entry = |version: u64| place.path.join(format!("_delta_log/{version:020}.json"));
    std::fs::write(
        entry(1),
        "{\"ofTomorrow\":{\"x\":1}}\n\n{\"txn\":{\"appId\":\"landfall:orders:channel:0a:+1\",\"version\":4}}\n",
    )
    .expect("written");
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..3)).await.expect("taken");
    let settled = opened.writer.barrier().await.expect("passes by it");
    assert_eq!((settled.version, settled.positions.len()), (Some(2), 1));
    std::fs::write(entry(3), "{\"txn\":{\"appId\":").expect("written");
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 3..6)).await.expect("taken");
    let error = opened.writer.barrier().await.expect_err("broken").error.to_string();
    assert!(error.contains("commit 3") && error.contains("line 1"), "{error}");
    std::fs::remove_file(entry(3)).expect("repaired");
    assert_eq!(opened.writer.barrier().await.expect("kept meanwhile").rows, 3);
}
