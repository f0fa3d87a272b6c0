//! A place to run the binary in: a directory of its own, a configuration, the peers.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use landfall_testkit::{HttpClient, Landfall, Python, Running, repository};
use serde_json::Value;
use tempfile::TempDir;

/// How long a server may take to listen; recovery of what a kill left included.
pub(crate) const START_WITHIN: Duration = Duration::from_secs(60);
/// How long a pipeline may take to land what it was given.
pub(crate) const LAND_WITHIN: Duration = Duration::from_secs(120);
/// How long a command may take.
pub(crate) const COMMAND_WITHIN: Duration = Duration::from_secs(120);

/// The two-partition storefront of most tests: every record lands or is a dead letter, nothing is filtered.
pub(crate) const STOREFRONT: &str = r#"
data_dir: ./data
server: { listen: "127.0.0.1:0" }
process: { drain_timeout: 15s }
channels:
  storefront.events: { partitions: 2, validate: "off" }
pipelines:
  orders:
    from: { channel: storefront.events }
    decode:
      json:
        schema:
          event_id: string not null
          type: string not null
          order_id: bigint not null
          customer: "struct<id: bigint, country: string>"
          amount: "decimal(12,2)"
          currency: string
          placed_at: timestamp
    sql: |
      SELECT event_id, type, order_id, customer.id AS customer_id, customer.country, amount, currency, placed_at
      FROM input
    to: { delta: { path: ./lake/orders, commit_every: 300ms } }
    checkpoint: { interval: 200ms }
"#;

/// A directory with a configuration in it; gone with the test.
pub(crate) struct Site {
    dir: TempDir,
}

impl Site {
    pub(crate) fn with(config: &str) -> Site {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("landfall.yaml"), config).expect("the configuration is written");
        Site { dir }
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    pub(crate) fn write(&self, below: &str, text: &str) -> PathBuf {
        let path = self.path(below);
        std::fs::write(&path, text).expect("the file is written");
        path
    }

    /// The binary, in this directory.
    pub(crate) fn landfall<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Landfall {
        Landfall::at(env!("CARGO_BIN_EXE_landfall")).current_dir(self.dir.path()).args(args)
    }

    /// A server on this directory's configuration, listening.
    pub(crate) fn serve(&self) -> Running {
        self.landfall(["run", "landfall.yaml"]).serve(START_WITHIN).expect("the server listens")
    }
}

pub(crate) fn repository_file(below: &str) -> PathBuf {
    repository(env!("CARGO_MANIFEST_DIR")).join(below)
}

/// The status of the only pipeline, once it says what keeps it from running.
pub(crate) fn kept_from_running(client: &mut HttpClient) -> Value {
    let deadline = Instant::now() + LAND_WITHIN;
    loop {
        let status: Value = client.get("/v1/status").expect("the status").json().expect("JSON");
        let pipeline = status["pipelines"][0].clone();
        if pipeline["why"].is_object() {
            return pipeline;
        }
        assert!(Instant::now() < deadline, "the pipeline does not say what is wrong: {pipeline}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn python() -> Python {
    Python::find(&repository(env!("CARGO_MANIFEST_DIR"))).expect("the Python environment of the tests")
}

/// One column of a table as an independent reader sees it, a value a line.
pub(crate) fn read_column(table: &Path, column: &str) -> Vec<String> {
    let out = tempfile::NamedTempFile::new().expect("a file");
    let args = [table.as_os_str(), column.as_ref(), out.path().as_os_str()];
    let summary = python().run("read_table.py", args, COMMAND_WITHIN).expect("the table is read");
    let text = std::fs::read_to_string(out.path()).expect("the values are read");
    let values: Vec<String> = text.lines().map(str::to_owned).collect();
    assert_eq!(summary["rows"].as_u64(), Some(values.len() as u64));
    values
}
