//! `check` is the build path of `run` without its side effects: what the one refuses, the other does not pass.

use std::time::Duration;

use landfall::storefront;
use landfall_testkit::{Ended, HttpClient, Running, wait_until_landed};

use crate::site::{COMMAND_WITHIN, LAND_WITHIN, STOREFRONT, Site, kept_from_running, read_column};

const DRAIN_WITHIN: Duration = Duration::from_secs(30);

fn refused(site: &Site, command: &str, words: &[&str]) -> Ended {
    let ended = site.landfall([command, "landfall.yaml"]).run(COMMAND_WITHIN).expect("it ends");
    let ended = ended.expect_code(1).expect("refused");
    for word in words {
        assert!(ended.stderr.contains(word), "{command} does not say `{word}`:\n{}", ended.stderr);
    }
    ended
}

fn served_once(site: &Site) {
    let ended = site.serve().terminate(DRAIN_WITHIN).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

/// Would catch a check that does not look at the channels that are there (C94).
#[test]
fn a_changed_partition_count_is_refused_by_both_at_its_channel() {
    let site = Site::with(STOREFRONT);
    served_once(&site);
    site.write("landfall.yaml", &STOREFRONT.replace("partitions: 2", "partitions: 3"));
    for command in ["check", "run"] {
        refused(&site, command, &["LF-CH0072", "storefront.events", "2 partitions", "says 3", "landfall.yaml:6:"]);
    }
    // As it was, it still passes; and check beside a running server changes nothing.
    site.write("landfall.yaml", STOREFRONT);
    let running = site.serve();
    let check = site.landfall(["check", "landfall.yaml"]).run(COMMAND_WITHIN).expect("check ends");
    check.expect_code(0).expect("passes");
    let ended = running.terminate(DRAIN_WITHIN).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

/// Would catch a state that was lost beside channels and is only found by the start (I12).
#[test]
fn a_lost_state_beside_channels_is_refused_by_both() {
    let site = Site::with(STOREFRONT);
    served_once(&site);
    std::fs::rename(site.path("data/state.redb"), site.path("aside")).expect("moved");
    for command in ["check", "run"] {
        refused(&site, command, &["LF-CH0058", "state.redb", "landfall.yaml:2:"]);
    }
    assert!(!site.path("data/state.redb").exists(), "a refused start makes no new state");
}

/// Would catch a data directory that cannot be and that only the start finds, without a code or a place.
#[test]
fn a_data_directory_that_cannot_be_is_refused_by_both_with_its_place() {
    for (data_dir, named) in [("./taken", "taken` is not a directory"), ("./taken/below", "taken` is not a directory")]
    {
        let site = Site::with(&STOREFRONT.replace("data_dir: ./data", &format!("data_dir: {data_dir}")));
        site.write("taken", "a file");
        for command in ["check", "run"] {
            refused(&site, command, &["LF-CF0012", named, "landfall.yaml:2:11", "^^^^^^^"]);
        }
    }
}

/// Would catch a table's path that can never be written and that the check passes.
#[test]
fn a_path_that_cannot_be_written_is_found_by_check() {
    let site = Site::with(STOREFRONT);
    site.write("lake", "a file where the folder should be");
    refused(&site, "check", &["LF-CF0012", "pipeline orders", "lake` is not a directory", "landfall.yaml:23:"]);
    let offline = site.landfall(["check", "--offline", "landfall.yaml"]).run(COMMAND_WITHIN).expect("check ends");
    offline.expect_code(0).expect("offline nothing outside of the file is asked");
}

/// Would catch a plan that opens scratch channels on disk, or that tells of partitions nobody has.
#[test]
fn planning_writes_nowhere_and_opens_nothing() {
    let site = Site::with(STOREFRONT);
    let nowhere = site.path("no-such-directory");
    let check = site.landfall(["check", "landfall.yaml"]).env("TMPDIR", &nowhere).run(COMMAND_WITHIN);
    let check = check.expect("check ends").expect_code(0).expect("passes");
    assert!(!check.stderr.contains("opened"), "{}", check.stderr);
    let running = site.landfall(["run", "landfall.yaml"]).env("TMPDIR", &nowhere);
    let running = running.serve(crate::site::START_WITHIN).expect("the server listens");
    let ended = running.terminate(DRAIN_WITHIN).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let opened = ended.stderr.lines().filter(|line| line.contains("partition opened")).count();
    assert_eq!(opened, 3, "two of the channel and one of its dead letters:\n{}", ended.stderr);
    assert!(!nowhere.exists());
}

/// Would catch a table inside another one, or around the data directory: a clean-up of the outer one deletes what it does
/// not know.
#[test]
fn a_table_around_other_data_is_refused_by_both() {
    for (path, named) in
        [("./", "`data_dir`"), (".", "`data_dir`"), ("./data/channels/storefront.events", "`data_dir`")]
    {
        let site = Site::with(&STOREFRONT.replace("path: ./lake/orders", &format!("path: {path}")));
        for command in ["check", "run"] {
            refused(&site, command, &["LF-CF0008", "pipeline `orders`", named, "landfall.yaml:23:"]);
        }
    }
}

fn publish(running: &Running, number: u64) {
    let mut record = String::new();
    storefront::write_record(1, number, &mut record);
    let url = "/v1/channels/storefront.events/records";
    let mut client = HttpClient::new(running.address());
    let answer = client.post(url, &[("content-type", "application/x-ndjson")], record.as_bytes()).expect("an answer");
    assert_eq!(answer.status, 200);
}

fn ended_well(running: Running) {
    let ended = running.terminate(DRAIN_WITHIN).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

/// Would catch an empty table made in place of one that holds rows (a lake that is not mounted), which then stands in the
/// way when the other is back (E125).
#[test]
fn a_table_that_is_gone_is_waited_for_and_not_made_anew() {
    let site = Site::with(STOREFRONT);
    let running = site.serve();
    publish(&running, 1);
    wait_until_landed(running.address(), "orders", LAND_WITHIN).expect("it lands");
    ended_well(running);
    std::fs::rename(site.path("lake"), site.path("elsewhere")).expect("moved");
    let running = site.serve();
    publish(&running, 2);
    let mut client = HttpClient::new(running.address());
    let why = kept_from_running(&mut client);
    assert_eq!((why["state"].as_str(), why["why"]["code"].as_str()), (Some("blocked"), Some("LF-DT0006")), "{why}");
    assert!(!site.path("lake").exists(), "nothing is made in its place");
    std::fs::rename(site.path("elsewhere"), site.path("lake")).expect("moved back");
    wait_until_landed(running.address(), "orders", LAND_WITHIN).expect("it lands without a restart");
    ended_well(running);
    let mut landed = read_column(&site.path("lake/orders"), "event_id");
    landed.sort_unstable();
    assert_eq!(landed, ["1", "2"]);
}
