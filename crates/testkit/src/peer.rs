//! Peers in Python: the official client and an independent table reader, in the environment that `scripts/setup.sh`
//! makes.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The root of the repository, from any crate's folder.
pub fn repository(manifest_dir: &str) -> PathBuf {
    let from = Path::new(manifest_dir);
    from.ancestors().nth(2).unwrap_or(from).to_path_buf()
}

/// The folder of the tests' Python environment, whether it is there or not.
pub(crate) fn python_environment() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("LANDFALL_PYTHON_ENV") {
        return Some(PathBuf::from(dir));
    }
    if let Some(cache) = std::env::var_os("XDG_CACHE_HOME") {
        return Some(PathBuf::from(cache).join("landfall/python"));
    }
    std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/landfall/python"))
}

/// The interpreter of the tests' environment.
#[derive(Clone, Debug)]
pub struct Python {
    interpreter: PathBuf,
    scripts: PathBuf,
}

/// A script on its way.
#[derive(Debug)]
pub struct Ran {
    child: Child,
    lines: Receiver<String>,
    last: String,
}

impl Python {
    /// Finds the environment; without it, says which command makes it.
    pub fn find(repository: &Path) -> Result<Self> {
        let environment = python_environment().context("HOME is not set")?;
        let interpreter = environment.join("bin/python");
        if !interpreter.exists() {
            bail!("no Python environment at {}: run `scripts/setup.sh test`", environment.display());
        }
        Ok(Python { interpreter, scripts: repository.join("tests/python") })
    }

    /// Runs a script to its end and gives the last line of its stdout as JSON; fails with its stderr if it fails.
    pub fn run<S: AsRef<OsStr>>(
        &self,
        script: &str,
        args: impl IntoIterator<Item = S>,
        deadline: Duration,
    ) -> Result<serde_json::Value> {
        let mut ran = self.start(script, args)?;
        let until = Instant::now() + deadline;
        while ran.next_line(until.saturating_duration_since(Instant::now()))?.is_some() {}
        ran.finish()
    }

    /// Starts a script.
    pub fn start<S: AsRef<OsStr>>(&self, script: &str, args: impl IntoIterator<Item = S>) -> Result<Ran> {
        let mut command = Command::new(&self.interpreter);
        command.arg("-B").arg(self.scripts.join(script)).args(args).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        // A proxy of the machine must not stand between a test and its own loopback server.
        for name in ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env_remove(name);
        }
        let mut child = command.spawn().with_context(|| format!("start {script}"))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // A library of the script may log to stdout as well; what the script says is JSON.
                if line.starts_with('{') && send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Ran { child, lines, last: String::new() })
    }
}

impl Ran {
    /// The next thing that the script says, a JSON object a line; `None` at its end.
    pub fn next_line(&mut self, within: Duration) -> Result<Option<String>> {
        use std::sync::mpsc::RecvTimeoutError;
        match self.lines.recv_timeout(within) {
            Ok(line) => {
                self.last.clone_from(&line);
                Ok(Some(line))
            }
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => bail!("the script said nothing within {within:?}"),
        }
    }

    /// Waits for the end, after the last line; gives the last line as JSON.
    pub fn finish(mut self) -> Result<serde_json::Value> {
        let status = self.child.wait()?;
        if !status.success() {
            bail!("the script failed ({status}): {}", self.last);
        }
        serde_json::from_str(&self.last).with_context(|| format!("not JSON: {}", self.last))
    }
}

impl Drop for Ran {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
