//! Real Postgres clusters: started on a free loopback port, stopped, killed, frozen, and gone when the test is.
//!
//! A cluster is a directory of its own with the settings of a capture source. Postgres refuses to run as root, so a
//! root test starts it as user `postgres`. A small shell keeps watch on a pipe that only the test process holds: if
//! the test is killed, the shell ends the cluster and removes its directory, so that nothing outlives a test run.

mod install;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

pub use install::PostgresInstall;
use install::User;

use crate::unused_port;

/// How long a server may take to start, stop or die on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Between two looks at a process that says nothing by itself.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What each cluster is set to; [`Postgres::start_with`] adds to it.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("wal_level", "logical"),
    ("max_replication_slots", "10"),
    ("max_wal_senders", "10"),
    ("max_prepared_transactions", "10"),
    ("fsync", "off"),
    ("shared_buffers", "32MB"),
    ("max_connections", "60"),
    ("log_min_messages", "warning"),
];

/// A cluster. Dropping it stops the server and removes its directory.
#[derive(Debug)]
pub struct Postgres {
    install: PostgresInstall,
    user: Option<User>,
    /// Holds `data`, the socket and the log.
    directory: PathBuf,
    port: u16,
    server: Option<Child>,
    keeper: Option<Child>,
}

impl Postgres {
    /// A new cluster of this installation, ready to take connections.
    pub fn start(install: &PostgresInstall) -> Result<Self> {
        Self::start_with(install, &[])
    }

    /// The same with settings of its own, like `("wal_sender_timeout", "5s")`; they win over the kit's.
    pub fn start_with(install: &PostgresInstall, settings: &[(&str, &str)]) -> Result<Self> {
        let user = User::to_run_as()?;
        let directory = new_directory(user)?;
        let mut cluster =
            Postgres { install: install.clone(), user, directory, port: unused_port()?, server: None, keeper: None };
        cluster.keeper = Some(cluster.start_keeper()?);
        cluster.run_tool(
            "initdb",
            ["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C", "-D"],
            &[&cluster.data().display().to_string()],
        )?;
        for (name, value) in SETTINGS.iter().chain(settings) {
            cluster.set(name, value)?;
        }
        cluster.set("unix_socket_directories", &cluster.directory.display().to_string())?;
        cluster.start_again()?;
        Ok(cluster)
    }

    /// Its major version.
    pub fn major(&self) -> u32 {
        self.install.major()
    }

    /// The port on 127.0.0.1; it stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the unix socket.
    pub fn socket_directory(&self) -> &Path {
        &self.directory
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Where a client finds a database, as user `postgres`.
    pub fn url(&self, database: &str) -> String {
        self.url_as("postgres", database)
    }

    /// Where a client finds a database as another user; nobody needs a password unless `pg_hba.conf` is changed.
    pub fn url_as(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{database}", self.port)
    }

    /// What the server wrote to its log.
    pub fn log(&self) -> String {
        fs::read(self.directory.join("log"))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Writes a setting into `postgresql.conf`; it counts from the next start or [`Postgres::reload`] on.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        let mut file = fs::OpenOptions::new().append(true).open(self.data().join("postgresql.conf"))?;
        writeln!(file, "{name} = '{}'", value.replace('\'', "''"))?;
        Ok(())
    }

    /// Replaces `pg_hba.conf`; it counts from the next start or [`Postgres::reload`] on.
    pub fn set_hba(&self, lines: &str) -> Result<()> {
        fs::write(self.data().join("pg_hba.conf"), lines)?;
        Ok(())
    }

    /// Has the server read its configuration again.
    pub fn reload(&self) -> Result<()> {
        self.psql("postgres", "SELECT pg_reload_conf()").map(drop)
    }

    /// Makes a database and gives its url.
    pub fn create_database(&self, name: &str) -> Result<String> {
        self.psql("postgres", &format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\"")))?;
        Ok(self.url(name))
    }

    /// Runs statements, each in a transaction of its own, and gives what they print: a row a line, columns parted by
    /// `|`. Fails with the server's text at the first that fails.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String> {
        let mut command = self.tool("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", database, "-f", "-"]);
        command.arg("-h").arg(&self.directory).arg("-p").arg(self.port.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("start psql")?;
        let mut stdin = child.stdin.take().context("stdin is piped")?;
        let text = sql.to_owned();
        // A thread of its own, or a long script and a long answer could wait for each other.
        let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
        let output = child.wait_with_output()?;
        let written = writer.join();
        if !output.status.success() {
            bail!("psql: {}\n{sql}", String::from_utf8_lossy(&output.stderr).trim());
        }
        match written {
            Ok(written) => written.context("write to psql")?,
            Err(_) => bail!("the thread that writes to psql panicked"),
        }
        Ok(String::from_utf8(output.stdout)?.trim_end_matches('\n').to_owned())
    }

    /// A tool of this installation (`pg_recvlogical`, `pgbench`…), set up to run as the cluster's user.
    pub fn tool(&self, name: &str) -> Command {
        let mut command = self.install.command(name);
        if let Some(user) = self.user {
            command.uid(user.uid).gid(user.gid);
        }
        // The test's own directory may be closed to the other user.
        command.current_dir(&self.directory).stdin(Stdio::null());
        for (variable, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(variable);
        }
        command
    }

    /// Stops the server in order: open connections are ended, a checkpoint is written.
    pub fn stop(&mut self) -> Result<()> {
        let Some(server) = &mut self.server else { return Ok(()) };
        signal(server.id(), Signal::INT)?;
        wait_for_exit(server, DEADLINE)?;
        self.server = None;
        Ok(())
    }

    /// `kill -9` of the server and all its processes, and waits until they are gone.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let children = children_of(server.id())?;
        server.kill()?;
        server.wait()?;
        for child in &children {
            // One that has just ended by itself is as gone as one that is killed.
            let _ = signal(*child, Signal::KILL);
        }
        let until = Instant::now() + DEADLINE;
        while children.iter().any(|child| is_postgres(*child)) {
            if Instant::now() > until {
                bail!("processes of a killed server are still there after {DEADLINE:?}");
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Starts the server again on the same port and directory.
    pub fn start_again(&mut self) -> Result<()> {
        if self.server.is_some() {
            return Ok(());
        }
        let log = fs::OpenOptions::new().create(true).append(true).open(self.directory.join("log"))?;
        let mut command = self.tool("postgres");
        command.arg("-D").arg(self.data()).arg("-p").arg(self.port.to_string());
        command.stdout(log.try_clone()?).stderr(log);
        // A signal that a terminal or a test runner sends to the test's group is not meant for the server.
        command.process_group(0);
        let mut server = command.spawn().context("start postgres")?;
        let until = Instant::now() + DEADLINE;
        while !self.says_ready(server.id()) {
            if let Some(status) = server.try_wait()? {
                bail!("postgres ended ({status}) before it was ready:\n{}", self.log());
            }
            if Instant::now() > until {
                server.kill()?;
                server.wait()?;
                bail!("postgres was not ready within {DEADLINE:?}:\n{}", self.log());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.server = Some(server);
        Ok(())
    }

    /// Stops and starts.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.start_again()
    }

    /// Stops the processes without ending them: connections stay open and silent, as when a host hangs.
    pub fn freeze(&self) -> Result<()> {
        self.signal_all(Signal::STOP)
    }

    /// Lets frozen processes go on.
    pub fn thaw(&self) -> Result<()> {
        self.signal_all(Signal::CONT)
    }

    fn signal_all(&self, which: Signal) -> Result<()> {
        let server = self.server.as_ref().context("the server is not running")?;
        // The postmaster first: once it stands still no new child appears.
        signal(server.id(), which)?;
        for child in children_of(server.id())? {
            let _ = signal(child, which);
        }
        Ok(())
    }

    /// The last line that a server writes into its pid file when it takes connections.
    fn says_ready(&self, pid: u32) -> bool {
        let Ok(text) = fs::read_to_string(self.data().join("postmaster.pid")) else { return false };
        let mut lines = text.lines();
        lines.next().is_some_and(|first| first.trim() == pid.to_string())
            && lines.nth(6).is_some_and(|status| status.trim() == "ready")
    }

    fn run_tool<'a>(&self, name: &str, args: impl IntoIterator<Item = &'a str>, more: &[&str]) -> Result<()> {
        let output = self.tool(name).args(args).args(more).output().with_context(|| format!("start {name}"))?;
        if !output.status.success() {
            bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    fn start_keeper(&self) -> Result<Child> {
        const WATCH: &str = r#"
            cat >/dev/null
            pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
            if [ -n "$pid" ] && [ "$(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -c -- "$1/data")" = 1 ]; then
              kill -CONT "$pid"; kill -QUIT "$pid"
              for look in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" 2>/dev/null || break; sleep 0.2; done
              kill -KILL "$pid" 2>/dev/null
            fi
            rm -rf "$1"
        "#;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", WATCH, "sh"]).arg(&self.directory);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        command.spawn().context("start /bin/sh")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.thaw();
        if let Some(mut server) = self.server.take() {
            // SIGQUIT: at once, without a checkpoint; nobody will read this directory again.
            let _ = signal(server.id(), Signal::QUIT);
            if wait_for_exit(&mut server, Duration::from_secs(10)).is_err() {
                let _ = server.kill();
                let _ = server.wait();
            }
        }
        if let Some(mut keeper) = self.keeper.take() {
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A directory that the server's user owns and can reach.
fn new_directory(user: Option<User>) -> Result<PathBuf> {
    // As root the usual temporary directory may be closed to the other user, and a socket's path must stay short.
    let parent = if user.is_some() { PathBuf::from("/tmp") } else { std::env::temp_dir() };
    let mut name = [0_u8; 8];
    fs::File::open("/dev/urandom")?.read_exact(&mut name)?;
    let directory = parent.join(format!("landfall-pg-{:016x}", u64::from_le_bytes(name)));
    fs::create_dir(&directory).with_context(|| format!("create {}", directory.display()))?;
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
    if let Some(user) = user {
        chown(&directory, Some(user.uid), Some(user.gid))?;
    }
    Ok(directory)
}

fn signal(pid: u32, which: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process id")?;
    kill_process(pid, which)?;
    Ok(())
}

fn wait_for_exit(child: &mut Child, deadline: Duration) -> Result<()> {
    let until = Instant::now() + deadline;
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            bail!("process {} did not end within {deadline:?}", child.id());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// The direct children of a process, which for a postmaster are all its processes.
fn children_of(parent: u32) -> Result<Vec<u32>> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let of = status.lines().find_map(|line| line.strip_prefix("PPid:")).and_then(|text| text.trim().parse().ok());
        if of == Some(parent) {
            children.push(pid);
        }
    }
    Ok(children)
}

/// Whether a process still runs as a Postgres process: one that ended and waits to be reaped does not.
fn is_postgres(pid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    field("Name:") == Some("postgres") && !field("State:").is_some_and(|state| state.starts_with('Z'))
}
