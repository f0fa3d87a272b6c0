//! `landfall bench --quick`: the lines that scripts read, and that what was read is what was written.

use crate::site::{COMMAND_WITHIN, Site};

fn lines(name: &str) -> Vec<serde_json::Value> {
    let site = Site::with("");
    let bench = site.landfall(["bench", name, "--json", "--quick"]).run(COMMAND_WITHIN).expect("the bench ends");
    let ended = bench.expect_code(0).expect("everything is verified");
    let leftovers: Vec<_> =
        std::fs::read_dir(site.path("")).expect("the directory").flatten().map(|e| e.file_name()).collect();
    assert_eq!(leftovers, ["landfall.yaml"], "the bench leaves nothing behind");
    let lines = ended.json_lines().expect("an object a line");
    for line in &lines {
        assert_eq!(line["bench"], name);
        assert_eq!(line["verified"], true, "{line}");
        for key in ["case", "unit", "against"] {
            assert!(line[key].is_string(), "no {key} in {line}");
        }
        for key in ["value", "against_value", "ratio"] {
            assert!(line[key].as_f64().is_some_and(|number| number > 0.0), "no {key} in {line}");
        }
    }
    lines
}

/// Would catch a bench that measures the wrong thing quietly: contents that do not verify, a case that is missing.
#[test]
fn the_channel_bench_verifies_every_case() {
    let cases: Vec<String> =
        lines("channel").iter().map(|line| line["case"].as_str().unwrap_or("").to_owned()).collect();
    let expected = [
        "publishers=1",
        "lone publish p50",
        "publishers=16",
        "publishers=64",
        "publishers=512",
        "publishers=64 partitions=16",
        "publishers=512 partitions=16",
    ];
    assert_eq!(cases, expected);
}

/// Would catch a pipeline that lands other rows than the query makes.
#[test]
fn the_pipeline_bench_verifies_its_table() {
    assert_eq!(lines("pipeline").len(), 1);
}

/// Would catch a capture that delivers other rows than were written, a peer that did not read the same, a case missing.
#[test]
fn the_cdc_bench_verifies_every_case() {
    let cases: Vec<String> = lines("cdc").iter().map(|line| line["case"].as_str().unwrap_or("").to_owned()).collect();
    let kinds: Vec<&str> = cases.iter().map(|case| case.split([',', '(']).next().unwrap_or("").trim()).collect();
    let expected = ["queue", "stream", "stream", "stream", "peak memory", "copy", "copy"];
    assert_eq!(kinds, expected, "{cases:?}");
}
