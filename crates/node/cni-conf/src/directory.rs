//! The directory of CNI network configurations (`/etc/cni/net.d`), and which of its files the container runtime uses.
//!
//! Runtimes use the first valid file by name that ends in `.conf`, `.conflist` or `.json`; some stop at an invalid file
//! that sorts before it. A recently written invalid file is assumed to be incomplete: the agent and the plugin wait for
//! it, since the next file would give pods another network.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
    time::{Duration, SystemTime},
};

use crate::network::{InvalidConf, Network};

/// Time for which an invalid file is assumed to be still being written.
pub const FILE_SETTLE_TIME: Duration = Duration::from_secs(2);

/// Maximum size of a configuration file, in bytes.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// File in the directory of CNI network configurations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfFile {
    /// File name in the directory.
    pub name: String,
    /// Text of the file, or the error of reading it.
    pub text: Result<String, String>,
    /// Time since the file was last written.
    pub age: Duration,
}

/// Result of the search for the primary CNI's network configuration, the one in use that is not Ambit's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrimaryConf<'a> {
    /// Primary configuration in use: the file and its contents.
    Valid(&'a ConfFile, Network),
    /// Invalid file that sorts before every valid one and was written less than [`FILE_SETTLE_TIME`] ago, so that it
    /// may be incomplete; with the parse error.
    Settling(&'a ConfFile, InvalidConf),
    /// File that sorts before every valid one and cannot be read by this process, with the error. The runtime may be
    /// able to read it: a symbolic link may resolve on the node and dangle in the agent's container.
    Unreadable(&'a ConfFile, &'a str),
    /// The directory has no primary configuration.
    None,
}

/// Whether runtimes read a file of this name, judging by its extension.
pub fn is_candidate(name: &str) -> bool {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension);
    matches!(extension, Some("conf" | "conflist" | "json"))
}

/// Finds the first valid configuration that is not Ambit's. `pinned` names the only file to consider, with either of
/// the extensions `.conf` and `.conflist`. `files` are sorted by name.
pub fn find_primary_conf<'a>(files: &'a [ConfFile], pinned: Option<&str>) -> PrimaryConf<'a> {
    for file in files {
        if pinned.is_some_and(|pinned| stem(pinned) != stem(&file.name)) {
            continue;
        }
        if let Err(error) = &file.text {
            return PrimaryConf::Unreadable(file, error);
        }
        match file.network() {
            Ok(network) if network.is_ours() => {}
            Ok(network) => return PrimaryConf::Valid(file, network),
            Err(error) if file.age < FILE_SETTLE_TIME => return PrimaryConf::Settling(file, error),
            Err(_) => {}
        }
    }
    PrimaryConf::None
}

fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

impl ConfFile {
    /// Parses the file as a network configuration.
    ///
    /// # Errors
    /// When a runtime could not use it.
    pub fn network(&self) -> Result<Network, InvalidConf> {
        match &self.text {
            Ok(text) => Network::parse(&self.name, text),
            Err(error) => Err(InvalidConf::Json(error.clone())),
        }
    }
}

/// Reads every file that a runtime would look at, sorted by name. A missing directory counts as empty.
///
/// # Errors
/// When the directory cannot be read.
pub fn read(directory: &Path) -> io::Result<Vec<ConfFile>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        if !is_candidate(&name) || entry.file_type()?.is_dir() {
            continue;
        }
        let (text, age) = match read_with_age(&entry.path()) {
            Ok((text, age)) => (Ok(text), age),
            // The file was removed since the directory was read.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && !entry.file_type()?.is_symlink() =>
            {
                continue;
            }
            Err(error) => (Err(error.to_string()), Duration::MAX),
        };
        files.push(ConfFile { name, text, age });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn read_with_age(path: &Path) -> io::Result<(String, Duration)> {
    let file = fs::File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    // A modification time in the future was written before the clock was set.
    let age = SystemTime::now().duration_since(metadata.modified()?);
    let mut text = String::new();
    file.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
    Ok((text, age.unwrap_or(Duration::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLED_AGE: Duration = Duration::from_secs(100);

    fn file(name: &str, text: &str, age: Duration) -> ConfFile {
        ConfFile {
            name: name.to_owned(),
            text: Ok(text.to_owned()),
            age,
        }
    }

    fn conf_list_text(kind: &str) -> String {
        format!(r#"{{"name":"n","plugins":[{{"type":"{kind}"}}]}}"#)
    }

    fn primary_name<'a>(files: &'a [ConfFile], pinned: Option<&str>) -> Option<&'a str> {
        match find_primary_conf(files, pinned) {
            PrimaryConf::Valid(file, _) => Some(&file.name),
            _ => None,
        }
    }

    #[test]
    fn the_first_usable_foreign_file_is_the_primary() {
        let files = [
            file("00-broken.conflist", "{", SETTLED_AGE),
            file("01-list.conf", &conf_list_text("x"), SETTLED_AGE),
            file(
                "02-ambit-cni.conflist",
                &conf_list_text("ambit-cni"),
                SETTLED_AGE,
            ),
            file("10-a.conflist", &conf_list_text("a"), SETTLED_AGE),
            file("20-b.conflist", &conf_list_text("b"), SETTLED_AGE),
        ];
        assert_eq!(primary_name(&files, None), Some("10-a.conflist"));
        assert_eq!(
            primary_name(&files, Some("20-b.conf")),
            Some("20-b.conflist")
        );
        assert_eq!(primary_name(&files, Some("30-c.conf")), None);
        assert_eq!(find_primary_conf(&files[..3], None), PrimaryConf::None);
    }

    #[test]
    fn recently_written_broken_file_is_waited_for() {
        let files = [
            file("10-a.conflist", "{\"na", Duration::from_millis(5)),
            file("20-b.conflist", &conf_list_text("b"), SETTLED_AGE),
        ];
        let PrimaryConf::Settling(settling, _) = find_primary_conf(&files, None) else {
            panic!("not waited for");
        };
        assert_eq!(settling.name, "10-a.conflist");
        assert_eq!(primary_name(&files[1..], None), Some("20-b.conflist"));
    }

    #[test]
    fn file_readable_only_by_the_runtime_is_not_skipped() {
        let mut linked = file("10-a.conflist", "", Duration::MAX);
        linked.text = Err("no such file".to_owned());
        let files = [
            file("00-broken.conflist", "{", SETTLED_AGE),
            linked,
            file("20-b.conflist", &conf_list_text("b"), SETTLED_AGE),
        ];
        let PrimaryConf::Unreadable(unreadable, _) = find_primary_conf(&files, None) else {
            panic!("passed over");
        };
        assert_eq!(unreadable.name, "10-a.conflist");
        assert_eq!(
            primary_name(&files, Some("20-b.conflist")),
            Some("20-b.conflist")
        );
    }

    #[test]
    fn symbolic_links_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("net.d");
        fs::create_dir(&conf).unwrap();
        fs::write(dir.path().join("elsewhere"), conf_list_text("a")).unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, conf.join(name));
        link("../elsewhere", "10-a.conflist").unwrap();
        link("/nowhere/on/this/machine", "20-b.conflist").unwrap();
        link("..", "30-c.conflist").unwrap();
        let files = read(&conf).unwrap();
        assert_eq!(primary_name(&files, None), Some("10-a.conflist"));
        for file in &files[1..] {
            assert!(matches!(
                find_primary_conf(std::slice::from_ref(file), None),
                PrimaryConf::Unreadable(_, _)
            ));
        }
    }

    #[test]
    fn a_directory_is_read_as_runtimes_do() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&dir.path().join("none")).unwrap(), []);
        for name in [
            "b.conflist",
            "a.conf",
            "c.json",
            "d.conf.bak",
            "e.conf.tmp.1",
            "README",
        ] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        fs::create_dir(dir.path().join("f.conf")).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("g.conf")).unwrap();
        let files = read(dir.path()).unwrap();
        let names: Vec<_> = files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["a.conf", "b.conflist", "c.json", "g.conf"]);
        assert_eq!(files[0].text.as_deref(), Ok("a.conf"));
        assert!(files[3].text.is_err());
        assert!(files[0].age < Duration::from_secs(60));
    }
}
