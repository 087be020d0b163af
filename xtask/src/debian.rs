//! Debian packages for another architecture than this machine's: downloaded and unpacked below the target directory,
//! with a separate package database, so that this machine's packages do not change.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use ambit_images::Architecture;
use anyhow::{Context, Result, ensure};

use crate::shell;

/// Returns the directory of a package's unpacked files. A package that was unpacked before is not downloaded again.
pub(crate) fn unpack_package(architecture: Architecture, package: &str) -> Result<PathBuf> {
    unpack(architecture, package, |database, archives| {
        let mut apt = database.command("apt-get");
        apt.args(["-q", "download", package]).current_dir(archives);
        Ok(apt)
    })
}

/// Returns a directory with the unpacked files of a package and of all its dependencies.
pub(crate) fn unpack_with_dependencies(
    architecture: Architecture,
    package: &str,
) -> Result<PathBuf> {
    let name = format!("{package}-and-dependencies");
    unpack(architecture, &name, |database, archives| {
        let mut apt = database.command("apt-get");
        apt.arg("-o")
            .arg(format!("Dir::Cache::archives={}", archives.display()))
            .args(["-q", "-y", "--download-only", "--no-install-recommends"])
            .args(["install", package]);
        Ok(apt)
    })
}

/// Returns the directory with the unpacked files of a metapackage's first dependency, such as the newest kernel.
pub(crate) fn unpack_newest(architecture: Architecture, metapackage: &str) -> Result<PathBuf> {
    unpack(architecture, metapackage, |database, archives| {
        let newest = database.dependency(metapackage);
        let package = newest?
            .with_context(|| format!("Debian has no {metapackage} for {}", architecture.name()))?;
        let mut apt = database.command("apt-get");
        apt.args(["-q", "download", &package]).current_dir(archives);
        Ok(apt)
    })
}

/// Runs a command that downloads packages into a directory, and unpacks them; returns the directory of their files.
fn unpack(
    architecture: Architecture,
    name: &str,
    download: impl FnOnce(&PackageDatabase, &Path) -> Result<Command>,
) -> Result<PathBuf> {
    let directory = package_directory(architecture).join(name);
    let contents = directory.join("contents");
    if contents.exists() {
        return Ok(contents);
    }
    let database = PackageDatabase::open(architecture)?;
    let (archives, unfinished) = (directory.join("archives"), directory.join("unfinished"));
    for old in [&archives, &unfinished]
        .into_iter()
        .filter(|old| old.exists())
    {
        fs::remove_dir_all(old)?;
    }
    fs::create_dir_all(archives.join("partial"))?;
    let of = format!("{name} of {}", architecture.name());
    shell::run(
        &format!("download {of}"),
        &mut download(&database, &archives)?,
    )?;
    let packages = fs::read_dir(&archives)?.collect::<Result<Vec<_>, _>>()?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "deb");
    let packages = packages.iter().map(fs::DirEntry::path).filter(is_package);
    let mut count = 0;
    for package in packages {
        let mut dpkg = Command::new("dpkg-deb");
        let status = dpkg.arg("-x").arg(&package).arg(&unfinished).status();
        let status = status.context("cannot start dpkg-deb")?;
        ensure!(status.success(), "cannot unpack {}", package.display());
        count += 1;
    }
    ensure!(count > 0, "apt-get downloaded no package: {of}");
    fs::remove_dir_all(archives)?;
    fs::rename(unfinished, &contents)?;
    Ok(contents)
}

fn package_directory(architecture: Architecture) -> PathBuf {
    shell::target_dir().join("debian").join(architecture.name())
}

/// Package database of another architecture. With this machine's database, apt would have to know the other
/// architecture.
struct PackageDatabase {
    options: Vec<String>,
}

impl PackageDatabase {
    /// Creates the database, with the package lists of this machine's repositories.
    fn open(architecture: Architecture) -> Result<Self> {
        let directory = package_directory(architecture).join("database");
        for part in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(directory.join(part))?;
        }
        fs::write(directory.join("state/status"), "")?;
        let database = Self {
            options: vec![
                format!("Dir::State={}/state", directory.display()),
                format!("Dir::State::status={}/state/status", directory.display()),
                format!("Dir::Cache={}/cache", directory.display()),
                format!("APT::Architecture={}", architecture.name()),
                format!("APT::Architectures={}", architecture.name()),
                // Its user has no access to the target directory.
                "APT::Sandbox::User=root".to_owned(),
            ],
        };
        let mut update = database.command("apt-get");
        update.args(["-q", "update"]);
        shell::run(
            &format!("lists of Debian's packages for {}", architecture.name()),
            &mut update,
        )?;
        Ok(database)
    }

    /// Returns the first dependency of a package.
    fn dependency(&self, package: &str) -> Result<Option<String>> {
        let mut apt = self.command("apt-cache");
        let output = apt.args(["depends", package]).output();
        let output = output.context("cannot start apt-cache")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines = text.lines();
        let dependency = lines.find_map(|line| line.trim().strip_prefix("Depends: "));
        Ok(dependency.map(str::to_owned))
    }

    /// Returns a command that runs a program of apt with this database.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }
}
