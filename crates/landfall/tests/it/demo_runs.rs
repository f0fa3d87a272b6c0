//! `landfall demo` as a script sees it.

use std::time::Duration;

use crate::site::{COMMAND_WITHIN, Site, read_column};

/// Would catch a demo that loses, doubles or misplaces a record, a re-run that starts over, or JSON without a
/// documented field.
#[test]
fn two_demos_in_one_directory_land_every_record_once() {
    let site = Site::with("");
    let mut table = String::new();
    for run in 1..=2u64 {
        let demo = site.landfall(["demo", "--records", "20000", "--data-dir", "demo", "--json"]);
        let ended = demo.run(COMMAND_WITHIN).expect("the demo ends").expect_code(0).expect("the demo is balanced");
        let result = ended.last_json().expect("the last line is an object");
        let number = |key: &str| result[key].as_u64().unwrap_or_else(|| panic!("no {key} in {result}"));
        assert_eq!((number("published"), number("committed")), (20_000, 20_000), "{result}");
        assert_eq!((number("landed"), number("dead_lettered")), (19_980, 20), "{result}");
        assert_eq!((number("duplicates"), number("lost")), (0, 0), "{result}");
        assert_eq!(number("table_rows"), run * 19_980, "{result}");
        assert_eq!(result["balanced"], true, "{result}");
        assert!(result["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
        assert!(result["records_per_second"].as_f64().is_some_and(|rate| rate > 0.0));
        table = result["table"].as_str().expect("the table's path").to_owned();
    }
    let ids = read_column(table.as_ref(), "event_id");
    let mut numbers: Vec<u64> = ids.iter().map(|id| id.parse().expect("a number")).collect();
    numbers.sort_unstable();
    let expected: Vec<u64> = (0..40_000).filter(|n| landfall::storefront::fault(*n).is_none()).collect();
    assert!(numbers == expected, "the independent reader finds {} rows, expected {}", numbers.len(), expected.len());
}

/// Would catch an interrupted demo that hangs, corrupts its directory, or makes the next run fail.
#[test]
fn an_interrupted_demo_leaves_a_directory_that_the_next_run_goes_on_with() {
    let site = Site::with("");
    let demo = site.landfall(["demo", "--records", "50000000", "--data-dir", "demo"]);
    let running = demo.start().expect("the demo starts");
    // Once the table has a commit, records are on their way at every stage.
    let log = site.path("demo/lake/orders/_delta_log/00000000000000000001.json");
    wait_for_file(&log, Duration::from_secs(60));
    running.signal(rustix::process::Signal::INT).expect("the signal is sent");
    let ended = running.wait(Duration::from_secs(60)).expect("the demo ends");
    assert_eq!(ended.code(), Some(130), "{}", ended.stderr);
    let again = site.landfall(["demo", "--records", "1000", "--data-dir", "demo", "--json"]);
    let ended = again.run(COMMAND_WITHIN).expect("the demo ends").expect_code(0).expect("the demo is balanced");
    let result = ended.last_json().expect("an object");
    assert_eq!((result["landed"].as_u64(), result["dead_lettered"].as_u64()), (Some(999), Some(1)), "{result}");
}

fn wait_for_file(path: &std::path::Path, within: Duration) {
    let until = std::time::Instant::now() + within;
    while !path.exists() {
        assert!(std::time::Instant::now() < until, "{} did not appear within {within:?}", path.display());
        // Another process's progress: asked for with a pause, bounded above.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Would catch a database demo whose tables are not equal in the end, that copies or follows nothing, that leaves a server
/// behind, or that works only once.
#[test]
fn two_database_demos_in_one_directory_end_equal() {
    let site = Site::with("");
    for _ in 0..2 {
        let args = ["demo-postgres", "--customers", "500", "--seconds", "2", "--data-dir", "demo", "--json"];
        let ended = site.landfall(args).run(Duration::from_secs(300)).expect("the demo ends");
        let ended = ended.expect_code(0).expect("every table is equal");
        let result = ended.last_json().expect("the last line is an object");
        let number = |key: &str| result[key].as_u64().unwrap_or_else(|| panic!("no {key} in {result}"));
        assert_eq!((number("tables"), &result["verified"]), (3, &serde_json::Value::Bool(true)), "{result}");
        assert!(number("rows_copied") >= 500 + 2_000 + 6_000, "{result}");
        assert!(number("changes") >= 5 && number("transactions") > 0, "{result}");
        assert!(result["seconds"].as_f64().is_some_and(|seconds| seconds > 2.0), "{result}");
    }
}
