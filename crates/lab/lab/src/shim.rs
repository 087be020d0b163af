//! Shim: the last steps of a process before it runs in a pod or on a node. It creates a mount namespace with the pod's
//! `/etc/resolv.conf` and `/etc/hosts`, sets host name and working directory, and executes the program.
//!
//! A separate process, since these steps must happen between fork and exec; it inherits the network namespace from the
//! thread that started it.

use std::{
    fs, io,
    os::{
        fd::AsFd as _,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use rustix::{
    mount::{MountFlags, MountPropagationFlags},
    net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with},
    thread::UnshareFlags,
};
use serde::{Deserialize, Serialize};

use crate::{
    LAB_TOOL,
    protocol::{self, Reply},
};

/// Steps of the shim, and the command that it executes afterwards; passed to the shim as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shim {
    pub(crate) hostname: String,
    /// Bind mounts (source and target); a target that does not exist is skipped.
    pub(crate) binds: Vec<(PathBuf, PathBuf)>,
    pub(crate) working_dir: Option<PathBuf>,
    /// Directory of the pod's cgroup, which the process enters.
    pub(crate) cgroup: Option<PathBuf>,
    /// Order to create a socket, which takes the place of the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) socket: Option<SocketOrder>,
    /// Command to execute; if empty, the shim waits for ever and so keeps the namespaces alive.
    pub(crate) command: Vec<String>,
}

/// Order to the shim to create a TCP socket, and to send it over its standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SocketOrder {
    /// Whether the socket is of IPv6.
    pub(crate) is_ipv6: bool,
}

impl SocketOrder {
    /// Creates the socket and sends it.
    fn carry_out(self) -> io::Result<()> {
        let family = match self.is_ipv6 {
            true => AddressFamily::INET6,
            false => AddressFamily::INET,
        };
        let (kind, protocol) = (SocketType::STREAM, Some(ipproto::TCP));
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?;
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        protocol::send(&stream, &Reply::Done, &[socket.as_fd()])
    }
}

impl Shim {
    /// Builds the command that starts the shim; the caller sets environment and standard streams.
    pub(crate) fn command(&self, ambit: &Path) -> io::Result<Command> {
        let mut command = Command::new(ambit);
        command
            .args(["lab", "shim"])
            .arg(serde_json::to_string(self)?);
        // A group of its own: signals go to all of it, and none comes from the lab's group.
        command.process_group(0);
        Ok(command)
    }
}

/// Runs the shim with its steps as JSON; called by a hidden subcommand. Returns only if it fails, or was ordered to create
/// a socket.
#[expect(clippy::print_stderr, reason = "standard error is the pod's log")]
pub fn run_shim(text: &str) -> ExitCode {
    let shim: Shim = match serde_json::from_str(text) {
        Ok(shim) => shim,
        Err(error) => {
            eprintln!("ambit lab shim: {error}");
            return ExitCode::from(125);
        }
    };
    if let Err(error) = prepare(&shim) {
        eprintln!("ambit lab shim: cannot prepare the process: {error}");
        return ExitCode::from(125);
    }
    if let Some(order) = shim.socket {
        if let Err(error) = order.carry_out() {
            eprintln!("ambit lab shim: cannot create the socket: {error}");
            return ExitCode::from(125);
        }
        return ExitCode::SUCCESS;
    }
    let Some((program, args)) = shim.command.split_first() else {
        loop {
            std::thread::park();
        }
    };
    let error = Command::new(program).args(args).exec();
    eprintln!("cannot run {program}: {error}");
    if program == LAB_TOOL && error.kind() == io::ErrorKind::NotFound {
        eprintln!(
            "the lab looks for {LAB_TOOL} beside ambit, in --bin-dir and in PATH: build it (`cargo build --bins`)"
        );
    }
    // As shells do: 127 for not found, 126 for not executable.
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    })
}

fn prepare(shim: &Shim) -> io::Result<()> {
    if let Some(cgroup) = &shim.cgroup {
        // 0 stands for the process itself.
        fs::write(cgroup.join("cgroup.procs"), "0")?;
    }
    #[expect(
        deprecated,
        reason = "rustix marks it unsafe because of UnshareFlags::FILES, which is not passed"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNS | UnshareFlags::NEWUTS)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    for (source, target) in &shim.binds {
        // Follow a link by hand: /etc/resolv.conf often is one into a directory that is not there.
        let target = fs::canonicalize(target).unwrap_or_else(|_| target.clone());
        if target.exists() {
            rustix::mount::mount_bind(source, &target)?;
        }
    }
    // sysfs shows the interfaces of the namespace it was mounted in; ours differ.
    let _not_vital = rustix::mount::mount("sysfs", "/sys", "sysfs", MountFlags::RDONLY, None);
    if !shim.hostname.is_empty() {
        rustix::system::sethostname(shim.hostname.as_bytes())?;
    }
    if let Some(dir) = &shim.working_dir {
        std::env::set_current_dir(dir)?;
    }
    Ok(())
}
