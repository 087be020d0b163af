//! Directory of all pods' programs on a node's bpffs, which the agent writes and the node proxy reads.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use aya::programs::links::{FdLink, PinnedLink};

use crate::{
    Capture, CaptureError, NetnsCookie,
    capture::{absent_is_ok, pin_error},
};

/// Directory of all pods' programs on a node's bpffs.
///
/// A pod's own directory is named by the cookie of its network namespace, which agent and proxy can both read: a pod
/// whose sandbox is replaced starts without programs, and no name is used twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    root: PathBuf,
}

impl Pins {
    /// Default of agent and proxy.
    pub const ROOT: &str = "/sys/fs/bpf/ambit";

    /// Names the directory at this path, which need not exist.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the path of the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Creates the directory, unless it exists.
    ///
    /// # Errors
    /// When its parent does not exist, or is not on a bpffs, where no pin could be made.
    pub fn create(&self) -> Result<(), CaptureError> {
        let error = |error| pin_error(&self.root, error);
        match fs::create_dir(&self.root) {
            Err(exists) if exists.kind() == ErrorKind::AlreadyExists => {}
            result => result.map_err(error)?,
        }
        const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
        let found = rustix::fs::statfs(&self.root).map_err(|errno| error(errno.into()))?;
        if found.f_type == BPF_FS_MAGIC {
            return Ok(());
        }
        // Left in another file system, it would be taken for one of a mounted bpffs.
        let _not_empty = fs::remove_dir(&self.root);
        Err(pin_error(&self.root, "it is not on a bpffs"))
    }

    /// Returns the programs of the pod with this network namespace.
    pub fn of(&self, netns: NetnsCookie) -> Capture {
        Capture::at(self.path_of(netns))
    }

    /// Returns the directory of the pod with this network namespace.
    pub fn path_of(&self, netns: NetnsCookie) -> PathBuf {
        self.root.join(netns.0.to_string())
    }

    /// Removes the pins of pods whose network namespace does not exist any more, whose programs the kernel has detached,
    /// and the maps of pods that were prepared but have no programs, except those of `preparing`. Returns the number of
    /// pods.
    ///
    /// No pod outside of `preparing` may be prepared meanwhile.
    ///
    /// # Errors
    /// When a directory cannot be read or removed.
    pub fn sweep(&self, preparing: &BTreeSet<NetnsCookie>) -> Result<usize, CaptureError> {
        let (mut gone, mut captured) = (Vec::new(), Vec::new());
        for netns in self.pods()? {
            let capture = self.of(netns);
            if capture.has_programs()? {
                let links = links_at(&capture.steering()?)?;
                captured.push((capture, links));
            } else if !preparing.contains(&netns) {
                gone.push(capture);
            }
        }
        if !captured.is_empty() {
            let namespaces = namespaces_of_links();
            let is_detached = |(id, _): &(u32, FdLink)| namespaces.get(id) == Some(&0);
            captured.retain(|(_, links)| !links.is_empty() && links.iter().all(is_detached));
        }
        gone.extend(captured.into_iter().map(|(capture, _)| capture));
        gone.iter().try_for_each(Capture::remove)?;
        Ok(gone.len())
    }

    /// Returns the pods whose capture was [stopped](Capture::pause).
    ///
    /// # Errors
    /// When the directory cannot be read. A pod whose programs cannot be read counts as captured.
    pub fn stopped(&self) -> Result<BTreeSet<NetnsCookie>, CaptureError> {
        let is_stopped = |netns: &NetnsCookie| {
            let capture = self.of(*netns);
            matches!(capture.is_complete(), Ok(true)) && matches!(capture.is_paused(), Ok(true))
        };
        let pods = self.pods()?.into_iter();
        Ok(pods.filter(is_stopped).collect())
    }

    /// Removes the programs of these pods: of all of them, even if some cannot be removed.
    ///
    /// # Errors
    /// When a pin cannot be removed; the first error.
    pub fn remove_all(&self, pods: &BTreeSet<NetnsCookie>) -> Result<(), CaptureError> {
        pods.iter()
            .map(|netns| self.of(*netns).remove())
            .fold(Ok(()), Result::and)
    }

    /// Removes the directory, if no pod has programs.
    ///
    /// # Errors
    /// When it is empty and cannot be removed.
    pub fn remove_if_empty(&self) -> Result<(), CaptureError> {
        match fs::remove_dir(&self.root) {
            Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => absent_is_ok(removed).map_err(|error| pin_error(&self.root, error)),
        }
    }

    /// Returns the network namespaces of the pods that have a directory.
    ///
    /// # Errors
    /// When the directory of all pods cannot be read.
    pub fn pods(&self) -> Result<BTreeSet<NetnsCookie>, CaptureError> {
        let error = |error| pin_error(&self.root, error);
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(absent) if absent.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(other) => return Err(error(other)),
        };
        let mut pods = BTreeSet::new();
        for entry in entries {
            let name = entry.map_err(error)?.file_name();
            let netns = name.to_str().and_then(|name| name.parse().ok());
            pods.extend(netns.map(NetnsCookie));
        }
        Ok(pods)
    }
}

/// Opens pinned links, and reads their ids.
fn links_at(pins: &[PathBuf]) -> Result<Vec<(u32, FdLink)>, CaptureError> {
    let open = |path: &PathBuf| {
        let link = PinnedLink::from_pin(path).map_err(|error| pin_error(path, error))?;
        let link = FdLink::from(link);
        let info = link.info().map_err(|error| pin_error(path, error))?;
        Ok((info.id(), link))
    };
    pins.iter().map(open).collect()
}

/// Returns the inode of the network namespace of each link that this process has open, by the link's id: 0 if the
/// namespace does not exist any more. No other interface of the kernel reports it without an `unsafe` call.
fn namespaces_of_links() -> BTreeMap<u32, u64> {
    let Ok(descriptors) = fs::read_dir("/proc/self/fdinfo") else {
        return BTreeMap::new();
    };
    let texts = descriptors.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    texts.filter_map(|text| namespace_of_link(&text)).collect()
}

/// Parses the id and network namespace of a link from the `fdinfo` of its descriptor.
fn namespace_of_link(text: &str) -> Option<(u32, u64)> {
    let field = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    };
    Some((
        field("link_id")?.parse().ok()?,
        field("netns_ino")?.parse().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_of_a_link_is_read_from_its_descriptor() {
        let text = "pos:\t0\nflags:\t02000002\nlink_type:\tnetns\nlink_id:\t7\n\
                    prog_tag:\tab12\nprog_id:\t90\nnetns_ino:\t4026532345\nattach_type:\t36\n";
        assert_eq!(namespace_of_link(text), Some((7, 4_026_532_345)));
        assert_eq!(namespace_of_link("link_type:\tcgroup\nlink_id:\t8\n"), None);
        assert_eq!(namespace_of_link("pos:\t0\n"), None);
    }

    #[test]
    fn directory_outside_of_a_bpffs_is_an_error_and_is_not_left() {
        let directory = tempfile::tempdir().unwrap();
        let pins = Pins::at(directory.path().join("ambit"));
        let error = pins.create().unwrap_err().to_string();
        assert!(error.contains("must be on a mounted bpffs"), "{error}");
        assert!(!pins.root().exists());
    }
}
