//! The tools around a running server: publish, tail, top, query, explain, check.

use landfall::storefront;
use landfall_testkit::{HttpClient, wait_until_landed};

use crate::site::{COMMAND_WITHIN, LAND_WITHIN, STOREFRONT, Site, repository_file};

fn events(numbers: std::ops::Range<u64>) -> String {
    let (mut record, mut text) = (String::new(), String::new());
    for n in numbers {
        storefront::write_record(1, n, &mut record);
        text.push_str(&record);
        text.push('\n');
    }
    text
}

/// Would catch a tool whose JSON or exit code is not the documented one, or a query that sees other rows than landed.
#[test]
fn the_tools_tell_one_story() {
    let site = Site::with(STOREFRONT);
    let running = site.serve();
    let server = running.address();
    let file = site.write("events.ndjson", &events(0..3_000));
    let file = file.to_str().expect("a path");
    let publish = site.landfall(["publish", "storefront.events", "--file", file, "--json", "--server", server]);
    let summary =
        publish.run(COMMAND_WITHIN).expect("ends").expect_code(0).expect("committed").last_json().expect("JSON");
    let number = |key: &str| summary[key].as_u64().unwrap_or_else(|| panic!("no {key} in {summary}"));
    assert_eq!(
        (number("records"), number("committed"), number("not_stored"), number("unresolved")),
        (3_000, 3_000, 0, 0)
    );
    let positions = summary["positions"].as_array().expect("positions");
    let stored: u64 = positions.iter().map(|one| one["records"].as_u64().expect("a count")).sum();
    assert_eq!(stored, 3_000, "{summary}");

    let balances = wait_until_landed(server, "orders", LAND_WITHIN).expect("everything lands");
    assert_eq!((balances[0].delivered, balances[0].dead_lettered), (2_997, 3), "{balances:?}");

    let top = site.landfall(["top", "--once", "--json", "--server", server]).run(COMMAND_WITHIN).expect("ends");
    let top = top.expect_code(0).expect("shown").last_json().expect("JSON");
    assert_eq!(top["pipelines"][0]["in"].as_u64(), Some(3_000), "{top}");
    assert_eq!(top["pipelines"][0]["lag_records"].as_u64(), Some(0), "{top}");
    let channel = top["channels"].as_array().expect("channels").iter().find(|one| one["name"] == "storefront.events");
    assert_eq!(channel.expect("the channel")["tail"].as_u64(), Some(3_000), "{top}");

    let tail =
        site.landfall(["tail", "storefront.events", "-n", "5", "--server", server]).run(COMMAND_WITHIN).expect("ends");
    assert_eq!(tail.expect_code(0).expect("read").json_lines().expect("JSON").len(), 5);
    let first =
        ["tail", "storefront.events", "--partition", "0", "--from", "0", "-n", "1", "-o", "raw", "--server", server];
    let first = site.landfall(first).run(COMMAND_WITHIN).expect("ends").expect_code(0).expect("read");
    assert!(events(0..3_000).contains(first.stdout.trim_end()), "a payload comes back byte for byte: {}", first.stdout);

    let letters = ["tail", "orders", "--dead-letters", "-n", "10", "--server", server];
    let letters = site.landfall(letters).run(COMMAND_WITHIN).expect("ends").expect_code(0).expect("read");
    let letters = letters.json_lines().expect("JSON");
    assert_eq!(letters.len(), 3);
    for letter in &letters {
        let cause = &letter["dead_letter"];
        assert!(cause["code"].as_str().is_some_and(|code| code.starts_with("LF-")), "{letter}");
        assert_eq!(cause["pipeline"], "orders");
        let code = cause["code"].as_str().expect("a code");
        site.landfall(["explain", code])
            .run(COMMAND_WITHIN)
            .expect("ends")
            .expect_code(0)
            .expect("every code has a page");
    }

    let table = format!("orders={}", site.path("lake/orders").display());
    let sql = "SELECT count(*) AS n, count(DISTINCT event_id) AS ids, sum(amount) AS amount FROM orders";
    let query = site.landfall(["query", sql, "--table", &table, "-o", "json"]).run(COMMAND_WITHIN).expect("ends");
    let row = query.expect_code(0).expect("read").last_json().expect("a row");
    assert_eq!((row["n"].as_u64(), row["ids"].as_u64()), (Some(2_997), Some(2_997)), "{row}");
    let cents: u64 =
        (0..3_000).filter(|n| storefront::fault(*n).is_none()).map(|n| storefront::facts(1, n).amount_cents).sum();
    let amount = row["amount"].as_f64().expect("a number");
    assert_eq!((amount * 100.0).round() as u64, cents, "{row}");
    let write =
        site.landfall(["query", "CREATE TABLE x (a INT)", "--table", &table]).run(COMMAND_WITHIN).expect("ends");
    write.expect_code(1).expect("a query only reads");

    let metrics = HttpClient::new(server).get("/metrics").expect("metrics");
    assert!(String::from_utf8_lossy(&metrics.body).contains("landfall_"), "metrics are exported");
    let ended = running.terminate(LAND_WITHIN).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

/// Would catch an example that does not pass its own check, or a check that leaves something behind.
#[test]
fn every_example_passes_check_without_side_effects() {
    // Which tables a database has is only known by asking it.
    let examples = [
        ("examples/storefront.yaml", true),
        ("examples/webhooks.yaml", true),
        ("examples/postgres-shop.yaml", false),
        ("examples/postgres-changes.yaml", false),
    ];
    for (example, is_known) in examples {
        let site = Site::with("");
        let path = repository_file(example);
        let check = site
            .landfall(["check", "--offline", "--json", "--schema"])
            .args([path.as_os_str()])
            .run(COMMAND_WITHIN)
            .expect("check ends")
            .expect_code(0)
            .unwrap_or_else(|error| panic!("{example}: {error}"));
        let report = check.last_json().expect("JSON");
        assert_eq!(report["ok"], true, "{report}");
        match is_known {
            true => assert_eq!(report["paths"][0]["guarantee"], "exactly once", "{report}"),
            false => assert!(report["left_out"].to_string().contains("the server of pipeline"), "{report}"),
        }
        assert!(report["memory"]["total"].as_u64() <= report["memory"]["limit"].as_u64(), "{report}");
        let left: Vec<_> =
            std::fs::read_dir(site.path("")).expect("the directory").flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, ["landfall.yaml"], "{example}: check has side effects");
    }
}
