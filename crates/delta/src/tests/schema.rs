//! Which tables a query may land in, and what it makes of them (E125, E132, F-C7, F-L12).

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use deltalake_core::kernel::DataType as KernelType;
use deltalake_core::operations::create::CreateBuilder;
use landfall_engine::contract::{PlanCx, ShardId, ShardWriter, Sink, SinkError};

use super::faults::{Fault, FaultStore};
use super::harness::{cx, directory, landed, numbers, open, open_over, rows, sealed};
use crate::local_store::LocalStore;
use crate::table::log_store;
use crate::{DeltaOptions, DeltaSink, Evolve, Timestamps, table_files};

async fn refused(options: DeltaOptions, rows: &SchemaRef) -> String {
    let sink = DeltaSink::new(options).expect("in bounds");
    sink.plan(rows, &cx()).await.expect_err("does not fit").to_string()
}

/// Catches a plan that writes, or one that does not say what will be made.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_has_no_side_effect() {
    let place = directory();
    let sink = DeltaSink::new(DeltaOptions { partition_by: vec!["country".into()], ..DeltaOptions::new(&place.path) })
        .expect("in bounds");
    let plan = sink.plan(&rows(), &cx()).await.expect("a plan");
    assert!(
        plan.notes.iter().any(|note| note.contains("creates a table") && note.contains("country")),
        "{:?}",
        plan.notes
    );
    assert_eq!(
        plan.schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>(),
        ["n", "country", "amount"]
    );
    let offline = PlanCx { online: false, ..cx() };
    assert!(sink.plan(&rows(), &offline).await.expect("a plan").notes.iter().any(|note| note.contains("offline")));
    assert_eq!(std::fs::read_dir(place.root.path()).expect("the directory").count(), 0);
}

/// Catches hidden columns in a table that did not ask for them, or missing in one that did.
#[tokio::test(flavor = "multi_thread")]
async fn hidden_columns_are_kept_where_asked_for() {
    let place = directory();
    let opened = open(DeltaOptions { hidden: true, ..DeltaOptions::new(&place.path) }).await;
    opened.writer.write(&sealed(&opened.plan.schema, 3, 1, 5..9)).await.expect("taken");
    opened.writer.barrier().await.expect("settled");
    let listing = table_files(&place.path).await.expect("a table");
    let field = |name: &str| listing.schema.field_with_name(name).expect("a column").data_type().clone();
    assert_eq!((field("__partition"), field("__offset")), (DataType::Int64, DataType::Int64));
    let commit = std::fs::read_to_string(place.path.join("_delta_log/00000000000000000001.json")).expect("the commit");
    assert!(commit.contains(r#"\"__offset\":5"#) && commit.contains(r#"\"__offset\":8"#), "{commit}");
    assert_eq!(landed(&place.path).await, numbers(&[(3, 5..9)]));
}

/// Catches a partitioned table whose values or rows are mixed up, and one that is opened again without the option.
#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_table_keeps_its_partitions() {
    let place = directory();
    let partitioned = DeltaOptions { partition_by: vec!["country".into()], ..DeltaOptions::new(&place.path) };
    for (options, from) in [(partitioned, 0), (DeltaOptions::new(&place.path), 9)] {
        let opened = open(options).await;
        opened.writer.write(&sealed(&opened.plan.schema, 0, 1, from..from + 9)).await.expect("taken");
        opened.writer.barrier().await.expect("settled");
    }
    let listing = table_files(&place.path).await.expect("a table");
    assert_eq!((listing.files.len(), listing.partition_columns.as_slice()), (6, &["country".to_owned()][..]));
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..18)]));
    let other = DeltaOptions { partition_by: vec!["amount".into()], ..DeltaOptions::new(&place.path) };
    let text = refused(other, &rows()).await;
    assert!(text.contains("partitioned by (country)") && text.contains("(amount)"), "{text}");
}

/// Catches a missing table taken for a row's fault, or a pipeline that needs a restart once it is there (F-L12).
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_is_waited_for() {
    let place = directory();
    let sink = DeltaSink::new(DeltaOptions { create: false, ..DeltaOptions::new(&place.path) }).expect("in bounds");
    let plan = sink.plan(&rows(), &cx()).await.expect("a plan");
    for _ in 0..2 {
        let error = sink.open(&plan, &cx()).await.expect_err("missing");
        assert!(matches!(error, SinkError::Destination { code: crate::code::MISSING, .. }), "{error}");
    }
    open(DeltaOptions::new(&place.path)).await;
    sink.open(&plan, &cx()).await.expect("there now");
    let writer = sink.writer(ShardId(0));
    writer.write(&sealed(&plan.schema, 0, 1, 0..3)).await.expect("taken");
    writer.barrier().await.expect("settled");
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..3)]));
}

/// Catches a difference that is not named, or named without a way out.
#[tokio::test(flavor = "multi_thread")]
async fn every_difference_to_an_existing_table_is_named_with_its_solution() {
    let place = directory();
    let log = log_store(&place.path, Arc::new(LocalStore::new())).expect("a log");
    CreateBuilder::new()
        .with_log_store(log)
        .with_column("n", KernelType::INTEGER, false, None)
        .with_column("Country", KernelType::STRING, true, None)
        .with_column("needed", KernelType::STRING, false, None)
        .with_column("spare", KernelType::STRING, true, None)
        .await
        .expect("created");
    let text = refused(DeltaOptions::new(&place.path), &rows()).await;
    for part in ["`n`: the query has Int64", "`Country`, not `country`", "ADD COLUMNS (amount", "`needed` is NOT NULL"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("spare"), "an extra nullable column is NULL: {text}");
}

/// Catches a schema change that gets in without its rows, or rows without it (F-C7).
#[tokio::test(flavor = "multi_thread")]
async fn evolution_and_first_data_are_one_commit() {
    let place = directory();
    let narrow: SchemaRef = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
    let first = DeltaSink::new(DeltaOptions::new(&place.path)).expect("in bounds");
    let plan = first.plan(&narrow, &cx()).await.expect("a plan");
    first.open(&plan, &cx()).await.expect("opened");

    let text = refused(DeltaOptions::new(&place.path), &rows()).await;
    assert!(text.contains("evolve: add_columns"), "{text}");

    let store = FaultStore::new();
    let options = DeltaOptions { evolve: Evolve::AddColumns, ..DeltaOptions::new(&place.path) };
    let opened = open_over(options, Arc::new(store.clone())).await;
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..3)).await.expect("taken");
    store.on_put("00000000000000000001.json", Fault::Fails);
    opened.writer.barrier().await.expect_err("full disk");
    let columns = |listing: &crate::TableFiles| listing.schema.fields().len();
    let listing = table_files(&place.path).await.expect("a table");
    assert_eq!((columns(&listing), listing.files.len()), (1, 0), "neither column nor rows");
    opened.writer.barrier().await.expect("settled");
    let listing = table_files(&place.path).await.expect("a table");
    assert_eq!((columns(&listing), listing.version), (3, 1));
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 3..5)).await.expect("taken");
    opened.writer.barrier().await.expect("the column is there now");
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..5)]));
}

/// Catches a commit over a schema that another engine changed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_changed_by_another_engine_is_planned_again() {
    let place = directory();
    let opened = open(DeltaOptions::new(&place.path)).await;
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..3)).await.expect("taken");
    let first = std::fs::read_to_string(place.path.join("_delta_log/00000000000000000000.json")).expect("the commit");
    let metadata = first.lines().find(|line| line.contains("metaData")).expect("the action");
    // A new nullable column asks nothing of us; a column that is no longer there does.
    let entry = |version: u64| place.path.join(format!("_delta_log/{version:020}.json"));
    let extra = r#"\"fields\":[{\"name\":\"extra\",\"type\":\"string\",\"nullable\":true,\"metadata\":{}},"#;
    std::fs::write(entry(1), metadata.replace(r#"\"fields\":["#, extra)).expect("written");
    assert_eq!(opened.writer.barrier().await.expect("goes on").version, Some(2));
    std::fs::write(entry(3), metadata.replace("amount", "total")).expect("written");
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 3..6)).await.expect("taken");
    let error = opened.writer.barrier().await.expect_err("no such column").error;
    assert!(matches!(&error, SinkError::Destination { text, .. } if text.contains("`amount`")), "{error}");
    std::fs::write(entry(4), metadata).expect("mended");
    assert_eq!(opened.writer.barrier().await.expect("without a restart").rows, 3);
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..6)]));
}

/// Catches a pipeline that stops because another engine asks less of the table than before: a column that was NOT NULL
/// takes what it took (E132). One that is NOT NULL from now on may not take it.
#[tokio::test(flavor = "multi_thread")]
async fn a_column_that_may_be_null_now_stops_nothing() {
    let place = directory();
    let opened = open(DeltaOptions::new(&place.path)).await;
    let first = std::fs::read_to_string(place.path.join("_delta_log/00000000000000000000.json")).expect("the commit");
    let metadata = first.lines().find(|line| line.contains("metaData")).expect("the action");
    let entry = |version: u64| place.path.join(format!("_delta_log/{version:020}.json"));
    let not_null = r#"\"nullable\":false"#;
    assert_eq!(metadata.matches(not_null).count(), 1, "{metadata}");
    let relaxed = metadata.replace(not_null, r#"\"nullable\":true"#);
    std::fs::write(entry(1), &relaxed).expect("written");
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..3)).await.expect("taken");
    assert_eq!(opened.writer.barrier().await.expect("goes on").version, Some(2));
    let stricter = relaxed.replace(r#"\"nullable\":true"#, not_null);
    std::fs::write(entry(3), stricter).expect("written");
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 3..6)).await.expect("taken");
    let error = opened.writer.barrier().await.expect_err("a null could get in").error;
    assert!(matches!(&error, SinkError::Destination { text, .. } if text.contains("restart")), "{error}");
    std::fs::write(entry(4), relaxed).expect("mended");
    assert_eq!(opened.writer.barrier().await.expect("goes on").rows, 3);
    assert_eq!(landed(&place.path).await, numbers(&[(0, 0..6)]));
}

/// Catches a protocol raised between two commits, which we would break.
#[tokio::test(flavor = "multi_thread")]
async fn a_feature_that_comes_later_is_refused_by_name() {
    let place = directory();
    let opened = open(DeltaOptions::new(&place.path)).await;
    let raised =
        r#"{"protocol":{"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["rowTracking","domainMetadata"]}}"#;
    std::fs::write(place.path.join("_delta_log/00000000000000000001.json"), raised).expect("written");
    opened.writer.write(&sealed(&opened.plan.schema, 0, 1, 0..3)).await.expect("taken");
    let error = opened.writer.barrier().await.expect_err("refused").error;
    assert!(matches!(&error, SinkError::Destination { text, .. } if text.contains("domainMetadata")), "{error}");
    let text = refused(DeltaOptions::new(&place.path), &rows()).await;
    assert!(text.contains("domainMetadata"), "{text}");
}

/// Catches a time stored as another one, or a table raised to a feature nobody asked for.
#[tokio::test(flavor = "multi_thread")]
async fn zoneless_timestamps_are_utc_unless_told_otherwise() {
    for (timestamps, feature) in [(Timestamps::Utc, false), (Timestamps::Ntz, true)] {
        let place = directory();
        let query: SchemaRef = Arc::new(Schema::new(vec![
            Field::new("n", DataType::Int64, false),
            Field::new("at", DataType::Timestamp(TimeUnit::Nanosecond, None), true),
        ]));
        let options = DeltaOptions { timestamps, ..DeltaOptions::new(&place.path) };
        let sink = DeltaSink::new(options.clone()).expect("in bounds");
        let plan = sink.plan(&query, &cx()).await.expect("a plan");
        sink.open(&plan, &cx()).await.expect("opened");
        let again = DeltaSink::new(options).expect("in bounds").plan(&query, &cx()).await.expect("fits what it made");
        assert_eq!(again.schema, plan.schema);
        let commit =
            std::fs::read_to_string(place.path.join("_delta_log/00000000000000000000.json")).expect("the commit");
        assert_eq!(commit.contains("timestampNtz"), feature, "{commit}");
    }
}

/// Catches an option that does harm far from where it was written.
#[test]
fn options_out_of_bounds_are_named() {
    let with = |change: &dyn Fn(&mut DeltaOptions)| {
        let mut options = DeltaOptions::new("lake/orders");
        change(&mut options);
        DeltaSink::new(options).map(|_| ()).expect_err("out of bounds").to_string()
    };
    type Change = Box<dyn Fn(&mut DeltaOptions)>;
    let cases: [(&str, Change); 7] = [
        ("commit_every", Box::new(|options| options.commit_every = std::time::Duration::from_millis(5))),
        ("target_file_size", Box::new(|options| options.target_file_size.0 = 1)),
        ("max_open_files", Box::new(|options| options.max_open_files = 0)),
        ("zstd level", Box::new(|options| options.compression = crate::Compression::Zstd(40))),
        ("path", Box::new(|options| options.path = "".into())),
        ("partition_by", Box::new(|options| options.partition_by = vec!["a".into(), "a".into()])),
        (
            "delta.setTransactionRetentionDuration",
            Box::new(|options| {
                options.properties.insert("delta.setTransactionRetentionDuration".into(), "interval 1 day".into());
            }),
        ),
    ];
    for (name, change) in cases {
        let text = with(&change);
        assert!(text.contains(name), "{name} in {text}");
    }
}
