//! Bad input of every kind: a clear error that names thing, value and next step; nothing acknowledged is lost;
//! neighbours go on.

use std::time::Duration;

use landfall::storefront;
use landfall_testkit::{Ended, HttpClient, wait_until_landed};

use crate::site::{COMMAND_WITHIN, LAND_WITHIN, STOREFRONT, Site, kept_from_running, read_column};

const RECORDS: &str = "/v1/channels/storefront.events/records";
const NDJSON: [(&str, &str); 1] = [("content-type", "application/x-ndjson")];

/// `run` and `check` both refuse, with the same words, and nothing is made.
fn refused(config: &str, words: &[&str]) -> Ended {
    let site = Site::with(config);
    let run =
        site.landfall(["run", "landfall.yaml"]).run(COMMAND_WITHIN).expect("run ends").expect_code(1).expect("refused");
    let check = site.landfall(["check", "landfall.yaml"]).run(COMMAND_WITHIN).expect("check ends");
    let check = check.expect_code(1).expect("refused");
    for word in words {
        assert!(run.stderr.contains(word), "run does not say `{word}`:\n{}", run.stderr);
        assert!(check.stderr.contains(word), "check does not say `{word}`:\n{}", check.stderr);
    }
    let left: Vec<_> =
        std::fs::read_dir(site.path("")).expect("the directory").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["landfall.yaml"], "a refused configuration leaves nothing behind");
    run
}

/// Would catch a mistyped key that is ignored.
#[test]
fn an_unknown_key_is_refused_with_a_caret_and_a_suggestion() {
    refused(
        &STOREFRONT.replace("partitions: 2", "partitons: 2"),
        &["LF-CF0003", "partitons", "did you mean `partitions`?", "landfall.yaml:6:24", "^^^^^^^^^"],
    );
}

/// Would catch a query that is only found to be wrong when records come.
#[test]
fn a_bad_query_is_refused_before_anything_starts() {
    refused(&STOREFRONT.replace("customer.country,", "custmer.country,"), &["LF-SQ", "custmer", "landfall.yaml:21:"]);
    let grouped = STOREFRONT.replace("FROM input\n", "FROM input GROUP BY type\n");
    refused(&grouped, &["LF-SQ", "landfall query"]);
}

/// Would catch a sink without a place.
#[test]
fn a_missing_table_path_is_named() {
    refused(&STOREFRONT.replace("path: ./lake/orders, ", ""), &["LF-CF0006", "pipelines.orders.to.delta.path"]);
}

/// Would catch a table that cannot be made and a server that then pretends to work (F-L1): the pipeline says so, and
/// ingest goes on.
#[test]
fn a_table_that_cannot_be_made_blocks_its_pipeline_and_not_ingest() {
    let site = Site::with(STOREFRONT);
    site.write("lake", "a file where the folder should be");
    let running = site.serve();
    let mut client = HttpClient::new(running.address());
    let mut record = String::new();
    storefront::write_record(1, 1, &mut record);
    let answer = client.post(RECORDS, &NDJSON, record.as_bytes()).expect("an answer");
    assert_eq!(answer.status, 200, "ingest goes on");
    let why = kept_from_running(&mut client);
    assert!(why["why"]["code"].as_str().is_some_and(|code| code.starts_with("LF-DT")), "{why}");
    // The obstacle goes away: the pipeline mends itself, and nothing was lost.
    std::fs::remove_file(site.path("lake")).expect("the file is removed");
    let balances = wait_until_landed(running.address(), "orders", LAND_WITHIN).expect("it lands after all");
    assert_eq!(balances[0].delivered, 1, "{balances:?}");
    let ended = running.terminate(Duration::from_secs(30)).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

/// Would catch a port in use that is reported as something else, or only after records were taken.
#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let site = Site::with(&STOREFRONT.replace("127.0.0.1:0", &format!("127.0.0.1:{port}")));
    for command in ["run", "check"] {
        let ended = site
            .landfall([command, "landfall.yaml"])
            .run(COMMAND_WITHIN)
            .expect("ends")
            .expect_code(1)
            .expect("refused");
        let said = &ended.stderr;
        assert!(
            said.contains(&port.to_string()) && said.contains("LF-IN") && said.contains("server.listen"),
            "{command}: {said}"
        );
    }
}

/// Would catch two processes that write one data directory.
#[test]
fn a_second_process_on_a_data_directory_is_refused_and_the_first_goes_on() {
    let site = Site::with(STOREFRONT);
    let first = site.serve();
    let second =
        site.landfall(["run", "landfall.yaml"]).run(COMMAND_WITHIN).expect("ends").expect_code(1).expect("refused");
    assert!(
        second.stderr.contains("LF-CH0070") || second.stderr.contains(&first.id().to_string()),
        "{}",
        second.stderr
    );
    let answer = HttpClient::new(first.address()).post(RECORDS, &NDJSON, b"{\"event_id\":\"1\"}\n").expect("an answer");
    assert_eq!(answer.status, 200);
    let ended = first.terminate(Duration::from_secs(30)).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

/// Would catch a record that is refused without saying why, or that takes its neighbours with it.
#[test]
fn a_broken_and_an_oversized_record_are_refused_and_their_neighbours_land() {
    let validated = STOREFRONT.replace("validate: \"off\"", "validate: syntax, limits: { record_bytes: 64KiB }");
    let site = Site::with(&validated);
    let running = site.serve();
    let mut client = HttpClient::new(running.address());
    let mut good = String::new();
    storefront::write_record(1, 1, &mut good);
    let broken = client.post(RECORDS, &NDJSON, format!("{good}\n{{\"event_id\":\n").as_bytes()).expect("an answer");
    assert_eq!(broken.status, 422, "{}", String::from_utf8_lossy(&broken.body));
    let problem = broken.json().expect("a problem");
    assert_eq!(
        (problem["record_index"].as_u64(), problem["outcome"].as_str()),
        (Some(1), Some("not_stored")),
        "{problem}"
    );
    let large = format!("{{\"event_id\":\"{}\"}}\n", "x".repeat(100_000));
    let large = client.post(RECORDS, &NDJSON, large.as_bytes()).expect("an answer");
    assert!(matches!(large.status, 413 | 422), "{}", String::from_utf8_lossy(&large.body));
    let problem = large.json().expect("a problem");
    let said = problem.to_string();
    assert!(said.contains("65536") || said.contains("64KiB"), "the limit is named: {said}");
    let answer = client.post(RECORDS, &NDJSON, good.as_bytes()).expect("an answer");
    assert_eq!(answer.status, 200);
    let balances = wait_until_landed(running.address(), "orders", LAND_WITHIN).expect("the good one lands");
    assert_eq!((balances[0].taken, balances[0].delivered), (1, 1), "{balances:?}");
    let ended = running.terminate(Duration::from_secs(30)).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

/// Would catch a process that dies of a torn tail or a stranger's file, or that deletes either (I12).
#[test]
fn a_torn_segment_and_a_foreign_file_are_survived_and_left_alone() {
    let site = Site::with(STOREFRONT);
    let running = site.serve();
    let mut client = HttpClient::new(running.address());
    let (mut record, mut body) = (String::new(), String::new());
    for n in 0..200 {
        storefront::write_record(1, n, &mut record);
        body.push_str(&record);
        body.push('\n');
    }
    let answer = client.post(RECORDS, &NDJSON, body.as_bytes()).expect("an answer");
    assert_eq!(answer.status, 200);
    running.kill().expect("killed");
    let partitions = site.path("data/channels/storefront.events");
    let foreign = partitions.join("notes.txt");
    std::fs::write(&foreign, "not ours").expect("written");
    std::fs::write(partitions.join("0/readme"), "not ours either").expect("written");
    let torn = tear_last_segments(&partitions);
    assert!(torn > 0, "a segment was torn");
    for _ in 0..2 {
        let running = site.serve();
        wait_until_landed(running.address(), "orders", LAND_WITHIN).expect("balanced");
        let ended = running.terminate(Duration::from_secs(30)).expect("the server drains");
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    }
    assert_eq!(std::fs::read_to_string(&foreign).expect("still there"), "not ours");
    let mut numbers: Vec<u64> =
        read_column(&site.path("lake/orders"), "event_id").iter().map(|id| id.parse().expect("a number")).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..200).collect::<Vec<u64>>(), "what was acknowledged is there, once");
}

/// Puts garbage behind the last unit of each partition's last segment: what a crash in the middle of a write leaves.
fn tear_last_segments(channel: &std::path::Path) -> usize {
    use std::os::unix::fs::FileExt;
    let mut torn = 0;
    for partition in ["0", "1"] {
        let folder = channel.join(partition);
        let mut segments: Vec<_> = std::fs::read_dir(&folder)
            .expect("the partition")
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
            .collect();
        segments.sort();
        let Some(last) = segments.last() else { continue };
        let bytes = std::fs::read(last).expect("the segment");
        // The data ends where only zeros follow; eight-byte steps keep the garbage where a unit would begin.
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| (at + 8) / 8 * 8);
        let file = std::fs::OpenOptions::new().write(true).open(last).expect("the segment");
        file.write_all_at(&[0xA5; 300], end as u64).expect("written");
        torn += 1;
    }
    torn
}

/// What a full disk says: definite, named, and nothing that was acknowledged is harmed.
fn publish_until_refused(
    address: &str,
    ledger: &mut landfall_testkit::Ledger,
    batches: u64,
) -> Option<serde_json::Value> {
    let mut client = HttpClient::new(address);
    let (mut record, mut body) = (String::new(), String::new());
    for batch in 0..batches {
        body.clear();
        for n in batch * 1_000..(batch + 1) * 1_000 {
            storefront::write_record(1, n, &mut record);
            body.push_str(&record);
            body.push('\n');
        }
        let answer = client.post(RECORDS, &NDJSON, body.as_bytes()).expect("an answer");
        if answer.status != 200 {
            return Some(answer.json().expect("a problem"));
        }
        (batch * 1_000..(batch + 1) * 1_000).for_each(|n| ledger.acknowledge(n));
    }
    None
}

/// Would catch a publish that is acknowledged although there is no room for it, or one that is refused without saying
/// what to do.
#[test]
fn no_room_on_the_disk_is_a_definite_refusal() {
    let reserve = "process: { channels: { disk_reserve: 1TiB }, drain_timeout: 15s }";
    let site = Site::with(&STOREFRONT.replace("process: { drain_timeout: 15s }", reserve));
    let free = rustix::fs::statvfs(site.path("")).expect("the file system");
    if free.f_bavail * free.f_frsize > 1 << 40 {
        println!("skipped: more than 1 TiB is free here, and no reserve can be larger");
        return;
    }
    let running = site.serve();
    let mut ledger = landfall_testkit::Ledger::default();
    let problem = publish_until_refused(running.address(), &mut ledger, 10_000).expect("refused");
    assert_eq!(problem["outcome"], "not_stored", "{problem}");
    let said = problem["detail"].as_str().expect("words");
    assert!(said.contains("disk_reserve") || said.contains("1TiB"), "the limit is named: {problem}");
    assert_eq!(ledger.acknowledged(), 0, "the reserve holds from the first publish on");
    let mut client = HttpClient::new(running.address());
    let ready = client.get("/readyz").expect("an answer");
    assert_eq!(ready.status, 503, "{}", String::from_utf8_lossy(&ready.body));
    let body = ready.json().expect("JSON");
    let lacks: Vec<&str> = body["lacks"].as_array().expect("a list").iter().filter_map(|lack| lack.as_str()).collect();
    let fenced: Vec<&&str> = lacks.iter().filter(|lack| lack.contains(" is fenced")).collect();
    assert_eq!(fenced.len(), 3, "{lacks:?}");
    assert!(fenced.iter().all(|lack| lack.contains("disk_reserve")), "{lacks:?}");
    let status = client.get("/v1/status").expect("an answer").json().expect("JSON");
    let channels = status["channels"].as_array().expect("channels");
    assert!(channels.iter().all(|channel| channel["health"] == "full"), "{status}");
    assert!(channels[0]["partitions"][0]["cause"].as_str().is_some_and(|why| why.contains("disk_reserve")), "{status}");
    // Dead letters have no room either: what has not finished is read again once there is.
    running.terminate(Duration::from_secs(30)).expect("the server ends in its time");
    site.write("landfall.yaml", STOREFRONT);
    let running = site.serve();
    wait_until_landed(running.address(), "orders", LAND_WITHIN).expect("what was acknowledged lands");
    let ended = running.terminate(Duration::from_secs(30)).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let whole = (0..ledger.acknowledged()).filter(|n| storefront::fault(*n).is_none()).count();
    let landed = if whole == 0 { 0 } else { read_column(&site.path("lake/orders"), "event_id").len() };
    assert_eq!(landed, whole, "of {} acknowledged", ledger.acknowledged());
}

/// A file system of its own, unmounted with the test.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn tmpfs(path: std::path::PathBuf, mebibytes: u32) -> Option<Mounted> {
        std::fs::create_dir_all(&path).expect("the mount point");
        let options = format!("size={mebibytes}m");
        let mount =
            std::process::Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&path).output();
        mount.is_ok_and(|output| output.status.success()).then_some(Mounted(path))
    }

    fn grow(&self, mebibytes: u32) {
        let options = format!("remount,size={mebibytes}m");
        let grown = std::process::Command::new("mount").args(["-o", &options]).arg(&self.0).status();
        assert!(grown.expect("mount runs").success(), "the file system grows");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Would catch a process that dies of a full disk, or loses what it had acknowledged before it was full (F-L1).
#[test]
fn a_disk_that_fills_up_loses_nothing_that_was_acknowledged() {
    let reserve = "process: { channels: { disk_reserve: 64MiB }, drain_timeout: 15s }";
    let site = Site::with(&STOREFRONT.replace("process: { drain_timeout: 15s }", reserve));
    let Some(mounted) = Mounted::tmpfs(site.path("data"), 160) else {
        println!("skipped: mounting a small file system needs root");
        return;
    };
    let running = site.serve();
    let mut ledger = landfall_testkit::Ledger::default();
    let problem = publish_until_refused(running.address(), &mut ledger, 2_000).expect("the disk fills up");
    assert_eq!(problem["outcome"], "not_stored", "{problem}");
    assert!(problem["code"].as_str().is_some_and(|code| code.starts_with("LF-CH")), "{problem}");
    assert!(ledger.acknowledged() > 0, "something fitted");
    // Dead letters had no room either, so the pipeline may be waiting: room comes, and all of it lands.
    mounted.grow(400);
    wait_until_landed(running.address(), "orders", LAND_WITHIN).expect("what was acknowledged lands");
    let ended = running.terminate(Duration::from_secs(30)).expect("the server drains");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let landed: Vec<u64> =
        read_column(&site.path("lake/orders"), "event_id").iter().map(|id| id.parse().expect("a number")).collect();
    // The dead letters of this range are the broken ones; they lie in the channel that the other tests read.
    let dead: Vec<u64> = (0..ledger.acknowledged()).filter(|n| storefront::fault(*n).is_some()).collect();
    let verdict = ledger.judge(&landed, &dead, |n| storefront::fault(n).is_some());
    assert!(verdict.is_clean(), "{verdict:?}");
}
