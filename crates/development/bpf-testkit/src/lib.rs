//! Support for tests of capture by BPF programs: cgroups, a BPF file system, and a program of system calls that no
//! library has. This crate is only ever a dev-dependency.
#![forbid(unsafe_code)]
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "only tests use this crate"
)]

use std::{
    fs,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
    thread::gettid,
};

/// Maximum time that the threads of a cgroup take to end.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);

/// BPF file system that is mounted nowhere: its root is reached by its descriptor, and it ends with it.
#[derive(Debug)]
pub struct Bpffs(OwnedFd);

impl Bpffs {
    /// Creates an empty file system.
    #[expect(clippy::new_without_default, reason = "each call makes a file system")]
    pub fn new() -> Self {
        let context = fsopen("bpf", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
        fsconfig_create(context.as_fd()).unwrap();
        let (flags, none) = (FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty());
        Self(fsmount(context.as_fd(), flags, none).unwrap())
    }

    /// Returns the path of the root, which is valid in this process.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }
}

/// Returns the root of the cgroup hierarchy of version 2.
pub fn cgroup_root() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut mounts = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = mounts.find(|fields| fields[2] == "cgroup2");
    mount.expect("no cgroup of version 2 is mounted")[1].into()
}

/// Creates a cgroup of single threads below the process' own, which the caller [removes](remove_cgroup).
pub fn new_cgroup() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("ambit-test-{}-{number}", std::process::id());
    let cgroup = cgroup_root().join(own.unwrap()).join(name);
    create_threaded_cgroup(&cgroup);
    cgroup
}

/// Creates a cgroup of single threads at this path.
pub fn create_threaded_cgroup(path: &Path) {
    fs::create_dir(path).unwrap();
    fs::write(path.join("cgroup.type"), "threaded").unwrap();
}

/// Moves the calling thread into a cgroup of single threads.
pub fn enter_cgroup(cgroup: &Path) {
    let id = gettid().as_raw_nonzero().to_string();
    fs::write(cgroup.join("cgroup.threads"), id).unwrap();
}

/// Removes a cgroup once its last thread has ended.
pub fn remove_cgroup(cgroup: &Path) {
    let until = Instant::now() + REMOVAL_TIMEOUT;
    while fs::remove_dir(cgroup).is_err() && Instant::now() < until {
        thread::yield_now();
    }
}

/// Attaches a program to the opening of IPv4 connections in a cgroup, with the flags of this mode (`alone`, `overridable`
/// or `beside`; see `tools.c`), and returns the outcome. It sets the destination, if there is one.
pub fn try_attach(cgroup: &Path, mode: &str, destination: Option<&str>) -> Output {
    let mut command = Command::new(tools());
    command.arg("hook").arg(cgroup).arg(mode).args(destination);
    command.output().unwrap()
}

/// Attaches a program like [`try_attach`], which must succeed.
#[track_caller]
pub fn attach(cgroup: &Path, mode: &str, destination: Option<&str>) {
    let output = try_attach(cgroup, mode, destination);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

/// Returns the path of the program `tools.c`, which the first call compiles.
pub fn tools() -> &'static Path {
    static TOOLS: LazyLock<PathBuf> = LazyLock::new(|| {
        // Test programs are in `target/<profile>/deps`, and may run at the same time.
        let test = std::env::current_exe().unwrap();
        let name = format!("bpf-tools-{}", std::process::id());
        let (own, program) = (test.with_file_name(name), test.with_file_name("bpf-tools"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tools.c");
        let compiled = Command::new("cc").arg("-o").arg(&own).arg(source).status();
        assert!(compiled.unwrap().success(), "{source} cannot be compiled");
        fs::rename(&own, &program).unwrap();
        program
    });
    &TOOLS
}
