//! Tests queries against programs that are attached to cgroups in each mode.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use ambit_bpf_query::{Attached, Hook, attached, effective_count};
use ambit_bpf_testkit::{attach, create_threaded_cgroup, new_cgroup, remove_cgroup};

/// Cgroup of a test, and one below it.
struct Cgroups {
    parent: PathBuf,
    child: PathBuf,
}

impl Cgroups {
    fn new() -> Self {
        let parent = new_cgroup();
        let child = parent.join("child");
        create_threaded_cgroup(&child);
        Self { parent, child }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        remove_cgroup(&self.child);
        remove_cgroup(&self.parent);
    }
}

fn at(cgroup: &Path, hook: Hook) -> (u32, bool, u32) {
    let directory = File::open(cgroup).unwrap();
    let Attached {
        count,
        is_overridable,
    } = attached(&directory, hook).unwrap();
    let effective = effective_count(&directory, hook).unwrap();
    (count, is_overridable, effective)
}

#[test]
fn programs_are_reported_with_the_mode_of_their_attachment() {
    for (mode, is_overridable) in [("alone", false), ("overridable", true), ("beside", false)] {
        let cgroups = Cgroups::new();
        let before = at(&cgroups.parent, Hook::Connect4);
        assert_eq!(before, (0, false, 0), "programs above the tests' cgroup");
        attach(&cgroups.parent, mode, None);
        let parent = at(&cgroups.parent, Hook::Connect4);
        assert_eq!(parent, (1, is_overridable, 1), "{mode}");
        let child = at(&cgroups.child, Hook::Connect4);
        assert_eq!(child, (0, false, parent.2), "{mode}");
        assert_eq!(at(&cgroups.parent, Hook::Connect6).0, 0, "{mode}");
        assert_eq!(at(&cgroups.parent, Hook::SockOps).0, 0, "{mode}");
    }
}

#[test]
fn other_directories_than_cgroups_are_refused() {
    let directory = File::open("/").unwrap();
    assert!(attached(&directory, Hook::Connect4).is_err());
    assert!(effective_count(&directory, Hook::SockOps).is_err());
}
