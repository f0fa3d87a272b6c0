use landfall_channel::{PublishOptions, Record};
use landfall_types::{Code, Coded};

use super::*;

const WITHIN: Duration = Duration::from_secs(30);

/// A server with one pipeline whose schema is inferred from its first record.
async fn inferring(dir: &std::path::Path) -> Running {
    inferring_from(dir, 1).await
}

/// The same from so many records.
async fn inferring_from(dir: &std::path::Path, records: u32) -> Running {
    let quoted = |name: &str| serde_json::to_string(&dir.join(name)).expect("a path that is text");
    let text = format!(
        "data_dir: {data}\nserver: {{ listen: \"127.0.0.1:0\" }}\nchannels: {{ a: {{ partitions: 1 }} }}\n\
         pipelines:\n  p:\n    from: {{ channel: a }}\n    decode: {{ json: {{ infer: {{ records: {records}, within: 60s }} }} }}\n    \
         to: {{ files: {{ path: {out} }} }}\n",
        data = quoted("data"),
        out = quoted("out"),
    );
    let (config, findings) = crate::config::read(&text, &|_| None);
    let config = config.unwrap_or_else(|| panic!("{findings:?}"));
    let source = ConfigText { file: "test.yaml".to_owned(), text };
    Running::start(config, source, None).await.expect("it starts")
}

/// Would catch a pipeline that could not infer its schema and is in no report: exit code 0, and nothing lands.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_cannot_infer_its_schema_has_failed() {
    let dir = tempfile::tempdir().expect("a directory");
    let running = inferring(dir.path()).await;
    let failed = async {
        let (name, outcome) = tokio::join!(running.any_failed(), async {
            let channel = running.channel("a").expect("the channel is open");
            channel.publish(Record::new("17"), PublishOptions::default()).await
        });
        assert!(outcome.committed().is_some(), "{outcome:?}");
        name
    };
    assert_eq!(tokio::time::timeout(WITHIN, failed).await.expect("the failure is seen"), "p");
    let report = running.shutdown().await;
    assert_eq!(report.exit(), Exit::Failed);
    let [pipeline] = report.pipelines.as_slice() else { panic!("{report:?}") };
    assert!(pipeline.cause.as_ref().is_some_and(|cause| cause.contains("inferred")), "{report:?}");
}

/// Would catch a pipeline that waits for its first record and makes a shutdown a failure or an endless one.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_no_record_has_come_for_ends_well() {
    let dir = tempfile::tempdir().expect("a directory");
    let report = inferring(dir.path()).await.shutdown().await;
    assert_eq!(report.exit(), Exit::Ok);
    assert!(report.pipelines.is_empty(), "{report:?}");
}

/// Would catch a pipeline that does not run yet and shows that nothing waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_that_does_not_run_yet_lags_by_what_waits_for_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let running = inferring_from(dir.path(), 1_000).await;
    let channel = running.channel("a").expect("the channel is open");
    for _ in 0..5 {
        let outcome = channel.publish(Record::new("{}"), PublishOptions::default()).await;
        assert!(outcome.committed().is_some(), "{outcome:?}");
    }
    let status: Vec<_> = running.pipelines.iter().map(|slot| slot.status(&running.storage.channels)).collect();
    assert_eq!((&status[0]["state"], &status[0]["lag"]["records"]), (&"starting".into(), &5.into()), "{status:?}");
    drop(running.shutdown().await);
}

/// Would catch an error that passes and is taken for the end, or one that does not and is tried for ever.
#[test]
fn only_errors_that_pass_are_tried_again() {
    let closed = landfall_channel::ReadError::Closed;
    let code = closed.code();
    let passing = NotStarted::from(anyhow::Error::from(closed).context("reading samples"));
    assert!(passing.is_passing && passing.code == Some(code), "{passing:?}");
    let plan = landfall_engine::contract::PlanError::new(Code::new("SQ", 1), "no schema");
    let lasting = NotStarted::from(anyhow::Error::from(plan));
    assert!(!lasting.is_passing && lasting.code == Some(Code::new("SQ", 1)), "{lasting:?}");
    assert!(!NotStarted::from(anyhow::anyhow!("unknown")).is_passing);
}
