//! The webhooks example: real nested input into typed columns, compared value by value by an independent reader.

use std::time::Duration;

use landfall_testkit::{Landfall, wait_until_landed};

use crate::site::{COMMAND_WITHIN, LAND_WITHIN, START_WITHIN, Site, python, repository_file};

/// Would catch a value that is decoded, computed, cast or written differently from what the file says.
#[test]
fn every_value_of_the_webhooks_table_is_that_of_the_file() {
    let site = Site::with("");
    let example = repository_file("examples/webhooks.yaml");
    let running = Landfall::at(env!("CARGO_BIN_EXE_landfall"))
        .args(["run".as_ref(), example.as_os_str()])
        .env("LANDFALL_DATA", site.path("data"))
        .env("LANDFALL_LAKE", site.path("lake"))
        .env("LANDFALL_LISTEN", "127.0.0.1:0")
        .serve(START_WITHIN)
        .expect("the example serves");
    let data = repository_file("examples/data/webhook-events.ndjson");
    let published = site
        .landfall(["publish", "code.webhooks", "--json", "--server", running.address()])
        .args(["--file".as_ref(), data.as_os_str()])
        .run(COMMAND_WITHIN)
        .expect("publish ends")
        .expect_code(0)
        .expect("all committed");
    let summary = published.last_json().expect("a summary");
    assert_eq!((summary["records"].as_u64(), summary["committed"].as_u64()), (Some(329), Some(329)), "{summary}");
    let balances = wait_until_landed(running.address(), "webhooks", LAND_WITHIN).expect("everything lands");
    assert_eq!((balances[0].delivered, balances[0].dead_lettered), (329, 0), "{balances:?}");
    let ended = running.terminate(Duration::from_secs(30)).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let table = site.path("lake/webhooks");
    let compared = python().run("compare_webhooks.py", [table.as_os_str(), data.as_os_str()], COMMAND_WITHIN);
    let compared = compared.expect("every value is the file's");
    assert_eq!(compared["rows"].as_u64(), Some(329), "{compared}");
    assert_eq!(compared["problems"].as_u64(), Some(0), "{compared}");
}
