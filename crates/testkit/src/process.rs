//! The binary under test as a child process: started, waited for, killed.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How much of a process's stderr is kept for messages.
const KEPT_LINES_MAX: usize = 2_000;

/// A command line of the binary, not started yet.
#[derive(Debug)]
pub struct Landfall {
    command: Command,
}

/// A started process. Dropping it kills it, so that a failed test leaves nothing behind.
#[derive(Debug)]
pub struct Running {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    events: Receiver<Event>,
    address: Option<String>,
}

enum Event {
    Listening(String),
    StderrEnded,
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr.
    pub stderr: String,
}

impl Landfall {
    /// The binary at `path`, which a test gets as `env!("CARGO_BIN_EXE_landfall")`.
    pub fn at(path: impl AsRef<Path>) -> Self {
        let mut command = Command::new(path.as_ref());
        command.stdin(Stdio::null()).env_remove("LANDFALL_SERVER").env_remove("LANDFALL_TOKEN");
        Landfall { command }
    }

    /// Adds arguments.
    pub fn args<S: AsRef<std::ffi::OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// Sets a variable.
    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Starts in a directory.
    pub fn current_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Gives a file as stdin.
    pub fn stdin(mut self, file: impl AsRef<Path>) -> Result<Self> {
        self.command.stdin(std::fs::File::open(file.as_ref())?);
        Ok(self)
    }

    /// Runs to the end, which must come within `deadline`.
    pub fn run(mut self, deadline: Duration) -> Result<Ended> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().context("start the binary")?;
        let stdout = drain(child.stdout.take());
        let stderr = drain(child.stderr.take());
        let until = Instant::now() + deadline;
        let out = wait_for_end(&stdout, until);
        let err = wait_for_end(&stderr, until);
        let (Some(out), Some(err)) = (out, err) else {
            let _ = child.kill();
            let _ = child.wait();
            bail!("the command did not end within {deadline:?}: {:?}", self.command);
        };
        // Both pipes are closed: the process is over or about to be.
        Ok(Ended { status: child.wait()?, stdout: out, stderr: err })
    }

    /// Starts a server and waits until it listens.
    pub fn serve(self, deadline: Duration) -> Result<Running> {
        let mut running = self.start()?;
        running.wait_listening(deadline)?;
        Ok(running)
    }

    /// Starts and does not wait.
    pub fn start(mut self) -> Result<Running> {
        self.command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.command.spawn().context("start the binary")?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let (send, events) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                let Ok(line) = line else { break };
                if let Some(at) = line.find("listening on http://") {
                    let address = line.split_at(at + "listening on ".len()).1.trim().to_owned();
                    let _ = send.send(Event::Listening(address));
                }
                let mut kept = kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                if kept.len() < KEPT_LINES_MAX {
                    kept.push(line);
                }
            }
            let _ = send.send(Event::StderrEnded);
        });
        Ok(Running { child, lines, events, address: None })
    }
}

/// Reads a pipe to its end on a thread of its own, so that a full pipe never stops the process.
fn drain(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receive
}

fn wait_for_end(pipe: &Receiver<String>, until: Instant) -> Option<String> {
    pipe.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
}

impl Running {
    fn wait_listening(&mut self, deadline: Duration) -> Result<()> {
        match self.events.recv_timeout(deadline) {
            Ok(Event::Listening(address)) => {
                self.address = Some(address);
                Ok(())
            }
            Ok(Event::StderrEnded) | Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                bail!("ended ({status}) before it listened:\n{}", self.stderr())
            }
            Err(RecvTimeoutError::Timeout) => bail!("did not listen within {deadline:?}:\n{}", self.stderr()),
        }
    }

    /// Where it listens, like `http://127.0.0.1:40123`.
    pub fn address(&self) -> &str {
        self.address.as_deref().unwrap_or_default()
    }

    /// What it wrote to stderr so far.
    pub fn stderr(&self) -> String {
        self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner).join("\n")
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The largest resident memory it has had, in bytes.
    pub fn peak_memory(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM is not in the status")?;
        let kib: u64 = line.split_whitespace().next().context("no number")?.parse()?;
        Ok(kib * 1024)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).context("a process id")?;
        rustix::process::kill_process(pid, signal)?;
        Ok(())
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    pub fn terminate(self, deadline: Duration) -> Result<Ended> {
        self.signal(rustix::process::Signal::TERM)?;
        self.wait(deadline)
    }

    /// Waits for the end.
    pub fn wait(mut self, deadline: Duration) -> Result<Ended> {
        let until = Instant::now() + deadline;
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Event::Listening(_)) => {}
                Ok(Event::StderrEnded) | Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    return Ok(Ended { status, stdout: String::new(), stderr: self.stderr() });
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!("did not end within {deadline:?}:\n{}", self.stderr());
                }
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The exit code; killed by a signal: none.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The last line of stdout as JSON.
    pub fn last_json(&self) -> Result<serde_json::Value> {
        let line = self.stdout.lines().rev().find(|line| !line.trim().is_empty()).context("stdout is empty")?;
        serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))
    }

    /// All lines of stdout as JSON.
    pub fn json_lines(&self) -> Result<Vec<serde_json::Value>> {
        let lines = self.stdout.lines().filter(|line| !line.trim().is_empty());
        lines.map(|line| serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))).collect()
    }

    /// Fails with both outputs unless the code is `expected`.
    pub fn expect_code(self, expected: i32) -> Result<Ended> {
        if self.code() == Some(expected) {
            return Ok(self);
        }
        bail!("exit {:?}, expected {expected}\nstdout:\n{}\nstderr:\n{}", self.status, self.stdout, self.stderr)
    }
}

/// A port that was free a moment ago, for a test that must know it before the server does.
pub fn unused_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
