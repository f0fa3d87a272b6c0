//! A throw-away Postgres of this machine's own installation, for the demo and the benches.
//!
//! The newest installation that is found makes a cluster in a directory of its own, on a free loopback port, with the
//! settings that a capture source needs. Postgres refuses to run as root, so root starts it as user `postgres`. A small
//! shell holds the other end of a pipe: when this process ends, however it ends, the shell stops that cluster and
//! removes its directory. Nothing else on the machine is touched.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;

/// Where Debian and its children keep their installations, by major version.
const INSTALLATIONS: &str = "/usr/lib/postgresql";
/// Majors that a capture is made for (P6).
const MAJORS: std::ops::RangeInclusive<u32> = 14..=18;
/// What every cluster is set to.
const SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
wal_level = logical
max_replication_slots = 10
max_wal_senders = 10
max_connections = 60
fsync = off
shared_buffers = 128MB
log_min_messages = warning
";

/// A server of its own. Dropping it stops the server and removes its directory.
#[derive(Debug)]
pub(crate) struct Cluster {
    installation: Installation,
    directory: PathBuf,
    port: u16,
    keeper: Child,
}

#[derive(Clone, Debug)]
struct Installation {
    major: u32,
    bin: PathBuf,
    /// Whom it runs as, if we are root.
    user: Option<(u32, u32)>,
}

impl Cluster {
    /// Makes and starts one.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let installation = Installation::newest()?;
        let directory = new_directory(installation.user)?;
        let keeper = keeper(&installation, &directory);
        let keeper = keeper.inspect_err(|_| drop(fs::remove_dir_all(&directory)))?;
        let cluster = Cluster { installation, directory, port: free_port()?, keeper };
        let data = cluster.directory.join("data");
        let data = data.to_str().context("a path of ASCII")?;
        let init = ["-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync"];
        cluster.run_tool("initdb", &init)?;
        let configuration = cluster.directory.join("data/postgresql.conf");
        let settings =
            format!("{SETTINGS}port = {}\nunix_socket_directories = '{}'\n", cluster.port, cluster.directory.display());
        let written = fs::read_to_string(&configuration)? + &settings;
        fs::write(&configuration, written).with_context(|| format!("cannot write {}", configuration.display()))?;
        let log = cluster.directory.join("log");
        let log = log.to_str().context("a path of ASCII")?;
        cluster.run_tool("pg_ctl", &["-D", data, "-l", log, "-w", "-t", "120", "start"])?;
        Ok(cluster)
    }

    /// The server's major version.
    pub(crate) fn major(&self) -> u32 {
        self.installation.major
    }

    /// For connections to a database of it.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// A client tool of the installation, set to this server and a database.
    pub(crate) fn tool(&self, name: &str, database: &str) -> Command {
        let mut command = self.installation.command(name);
        let port = self.port.to_string();
        command.envs([("PGHOST", "127.0.0.1"), ("PGPORT", &port), ("PGUSER", "postgres"), ("PGDATABASE", database)]);
        command
    }

    fn run_tool(&self, name: &str, args: &[&str]) -> anyhow::Result<()> {
        let mut command = self.installation.command(name);
        // A server that inherited a pipe would keep it open as long as it runs.
        let errors = self.directory.join(format!("{name}.log"));
        let file = fs::File::create(&errors)?;
        command.args(args).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let status = command.status().with_context(|| format!("cannot start {name}"))?;
        if !status.success() {
            let said = fs::read_to_string(&errors).unwrap_or_default();
            let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
            anyhow::bail!("{name} of Postgres {} failed ({status}): {said}{log}", self.installation.major);
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The end of its input is the keeper's sign.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

impl Installation {
    fn newest() -> anyhow::Result<Self> {
        let majors = fs::read_dir(INSTALLATIONS).into_iter().flatten().flatten().filter_map(|entry| {
            let major: u32 = entry.file_name().to_str()?.parse().ok()?;
            let bin = entry.path().join("bin");
            (MAJORS.contains(&major) && bin.join("initdb").exists()).then_some((major, bin))
        });
        let (major, bin) = majors.max_by_key(|(major, _)| *major).with_context(|| {
            format!(
                "no Postgres {} to {} in {INSTALLATIONS}: run `scripts/setup.sh demo-postgres`, or install the package \
                 `postgresql`",
                MAJORS.start(),
                MAJORS.end()
            )
        })?;
        let user = if rustix::process::geteuid().is_root() { Some(postgres_user()?) } else { None };
        Ok(Installation { major, bin, user })
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        self.as_user(&mut command);
        command
    }

    fn as_user(&self, command: &mut Command) {
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        // The caller's directory may be closed to that user.
        command.current_dir("/");
    }
}

fn postgres_user() -> anyhow::Result<(u32, u32)> {
    let refused =
        "Postgres refuses to run as root, and there is no user `postgres`: run `scripts/setup.sh demo-postgres`";
    let users = fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    let line = users.lines().find(|line| line.starts_with("postgres:")).context(refused)?;
    let mut fields = line.split(':').skip(2).map(str::parse);
    match (fields.next(), fields.next()) {
        (Some(Ok(uid)), Some(Ok(gid))) => Ok((uid, gid)),
        _ => anyhow::bail!("the line of `postgres` in /etc/passwd has no user and group number"),
    }
}

fn new_directory(user: Option<(u32, u32)>) -> anyhow::Result<PathBuf> {
    // Where another user can go, and short enough for the name of a socket.
    let parent = if user.is_some() { PathBuf::from("/tmp") } else { std::env::temp_dir() };
    let directory = parent.join(format!("landfall-cluster-{}", uuid::Uuid::new_v4().simple()));
    let cannot = || format!("cannot make the directory {}", directory.display());
    fs::create_dir(&directory).with_context(cannot)?;
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).with_context(cannot)?;
    if let Some((uid, gid)) = user {
        chown(&directory, Some(uid), Some(gid)).with_context(cannot)?;
    }
    Ok(directory)
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Ends the cluster when this process does.
fn keeper(installation: &Installation, directory: &Path) -> anyhow::Result<Child> {
    const WATCH: &str = r#"cat >/dev/null; "$1" -D "$2/data" -m immediate -w stop; rm -rf "$2""#;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", WATCH, "sh"]).arg(installation.bin.join("pg_ctl")).arg(directory);
    installation.as_user(&mut command);
    // Its own group: the terminal's interrupt is for us to answer.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().context("cannot start /bin/sh")
}

/// Processor time that a process has taken, in seconds; none of one that has ended.
pub(crate) fn cpu_seconds(pid: u32) -> Option<f64> {
    // USER_HZ is 100 wherever this is built for.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, but the last parenthesis ends it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).map(str::parse::<u64>);
    match (fields.next(), fields.next()) {
        (Some(Ok(user)), Some(Ok(system))) => Some((user + system) as f64 / TICKS_PER_SECOND),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a cluster that outlives its owner, and one that cannot be reached.
    #[test]
    fn a_cluster_takes_connections_and_is_gone_with_its_owner() {
        let cluster = Cluster::start().expect("starts");
        let answer = cluster.tool("psql", "postgres").args(["-Atc", "SHOW wal_level"]).output().expect("psql");
        assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "logical");
        let directory = cluster.directory.clone();
        let mut again = cluster.tool("psql", "postgres");
        drop(cluster);
        assert!(!directory.exists());
        assert!(!again.args(["-Atc", "SELECT 1"]).output().expect("psql").status.success());
    }

    /// Catches fields that are counted from the wrong place.
    #[test]
    fn processor_time_is_that_of_the_process() {
        let before = cpu_seconds(std::process::id()).expect("our own");
        let until = before + 0.05;
        let mut sum = 0_u64;
        while cpu_seconds(std::process::id()).expect("our own") < until {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(1));
        }
        assert_eq!(cpu_seconds(u32::MAX), None);
    }
}
