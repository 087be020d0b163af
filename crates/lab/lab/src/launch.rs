//! Starts a lab: from the user's command to the supervisor, in stages.
//!
//! 1. `launch` (in the user's process) writes the options and starts stage *guard*.
//! 2. *guard* moves into new namespaces, starts *init*, and stays outside as a witness: when *init* is
//!    gone it removes the lab's directory.
//! 3. *init* is process 1 of the lab. When it dies, even of SIGKILL, the kernel kills every process of
//!    the lab, and all namespaces go with them. It mounts private file systems, starts the supervisor,
//!    reaps orphans, and ends with the supervisor.
//! 4. *supervise* is [`crate::supervisor`].
//!
//! Each stage before the last has a single thread: namespaces cannot be left otherwise.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    str::FromStr,
};

use ambit_netlab::{IsolatedPrivileges, Isolation};
use ambit_rt::ErrorChain;
use rustix::{
    mount::{MountFlags, MountPropagationFlags, UnmountFlags},
    process::{Signal, WaitOptions},
};

use crate::{
    Options, StateDir,
    announcement::{READY_LINE, hand_over_stdout},
    cgroups,
    layout::Layout,
    state_dir::StateError,
};

/// Stage in which a process of `ambit` starts a lab; the module describes their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Process outside the lab's namespaces, which removes the lab's directory at the end.
    Guard,
    /// Process 1 of the lab's PID namespace.
    Init,
    /// Supervisor of the lab, the child of *init*.
    Supervise,
}

impl Stage {
    fn as_str(self) -> &'static str {
        match self {
            Self::Guard => "guard",
            Self::Init => "init",
            Self::Supervise => "supervise",
        }
    }
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Guard, Self::Init, Self::Supervise]
            .into_iter()
            .find(|stage| stage.as_str() == text)
            .ok_or_else(|| format!("there is no stage {text:?}"))
    }
}

/// Reason why a lab could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The options are invalid.
    #[error("{0}")]
    Options(String),
    /// The lab's directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// A process cannot be started, or a file not be written.
    #[error("cannot {what}")]
    Io {
        /// Action that failed, as a phrase for the message.
        what: String,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// The supervisor failed, with this message.
    #[error("the lab did not come up: {0}")]
    Failed(String),
}

fn io_failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> LaunchError {
    let what = what.into();
    move |source| LaunchError::Io { what, source }
}

/// Starts a lab and returns when its supervisor accepts requests. Pods may still be starting.
///
/// # Errors
/// When a lab of that name is running, or any step fails; in both cases the lab's processes and files are removed.
pub fn launch(base: &Path, options: &Options) -> Result<StateDir, LaunchError> {
    options.check().map_err(LaunchError::Options)?;
    check_binaries(options).map_err(LaunchError::Options)?;
    let (state, lock) = StateDir::create(base, &options.name)?;
    let started = start(&state, lock, options);
    if started.is_err() {
        // The guard removes the directory too; the second removal finds nothing.
        let _gone = state.remove();
    }
    started.map(|()| state)
}

/// Checks that the mesh's programs exist, since the lab would never become ready without them.
fn check_binaries(options: &Options) -> Result<(), String> {
    let mut needed = Vec::new();
    if options.mesh {
        needed.extend(["ambit-control", "ambit-agent", "ambit-cni"]);
        if options.requires_waypoint {
            needed.push("ambit-waypoint");
        }
        let ours = (1..=options.nodes)
            .any(|number| !options.node_proxies.contains_key(&format!("node-{number}")));
        if ours {
            needed.push("ambit-node-proxy");
        }
    }
    let missing: Vec<_> = needed
        .into_iter()
        .filter(|name| !options.bin_dir.join(name).is_file())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} has no {}: build all binaries (`cargo build --bins`), or say with --bin-dir where they \
         are; --no-mesh runs the pods alone",
        options.bin_dir.display(),
        missing.join(", ")
    ))
}

fn start(state: &StateDir, lock: File, options: &Options) -> Result<(), LaunchError> {
    let layout = state.layout();
    let text = serde_json::to_vec_pretty(options).map_err(io::Error::from);
    text.and_then(|text| fs::write(layout.options(), text))
        .map_err(io_failed("write the lab's options"))?;
    let log = File::create(layout.log()).map_err(io_failed("open the lab's log"))?;
    let mut guard = stage_command(&options.ambit, Stage::Guard, layout)
        // See `inherited_lock`.
        .stdin(lock)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(io_failed(format!("start {}", options.ambit.display())))?;
    // The supervisor writes one line to the standard output it inherits; no line means it died.
    let mut line = String::new();
    if let Some(stdout) = guard.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut line)
            .map_err(io_failed("read from the lab"))?;
    }
    if line.trim() == READY_LINE {
        return Ok(());
    }
    let log = fs::read_to_string(layout.log()).unwrap_or_default();
    let _ended = guard.wait();
    let last = log.lines().rev().find(|line| !line.trim().is_empty());
    Err(LaunchError::Failed(
        last.unwrap_or("it died without a message").to_owned(),
    ))
}

fn stage_command(ambit: &Path, stage: Stage, layout: &Layout) -> Command {
    let mut command = Command::new(ambit);
    command
        .args(["lab", "run", "--stage", stage.as_str(), "--state"])
        .arg(layout.root());
    command
}

/// Runs one stage of the start of a lab; called by a hidden subcommand. The process must have a single thread.
pub fn run_stage(stage: Stage, state: PathBuf) -> ExitCode {
    let layout = Layout::new(state);
    let options = match read_options(&layout) {
        Ok(options) => options,
        Err(error) => return print_error(&error),
    };
    let result = match stage {
        Stage::Guard => run_guard(&layout, &options),
        Stage::Init => run_init(&layout, &options),
        Stage::Supervise => crate::supervisor::run(layout, options)
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| LaunchError::Failed(error.to_string())),
    };
    result.unwrap_or_else(|error| print_error(&error))
}

#[expect(
    clippy::print_stderr,
    reason = "standard error is the lab's log, nothing else is set up"
)]
fn print_error(error: &(dyn std::error::Error + 'static)) -> ExitCode {
    eprintln!("{}", ErrorChain(error));
    ExitCode::FAILURE
}

fn read_options(layout: &Layout) -> Result<Options, LaunchError> {
    let read = fs::read(layout.options());
    read.and_then(|bytes| Ok(serde_json::from_slice(&bytes)?))
        .map_err(io_failed("read the lab's options"))
}

fn run_guard(layout: &Layout, options: &Options) -> Result<ExitCode, LaunchError> {
    // Away from the user's terminal, so that no signal meant for the command reaches the lab.
    rustix::process::setsid().map_err(|error| io_failed("leave the session")(error.into()))?;
    let lock = inherited_lock().map_err(io_failed("keep the lab's lock"))?;
    let isolation = match options.user_namespace {
        true => Isolation::UserNamespace,
        false => Isolation::AsNeeded,
    };
    let how = ambit_netlab::isolate(isolation).map_err(io_failed(
        "make namespaces (neither the right to, nor user namespaces: see the sysctls \
         user.max_user_namespaces and kernel.unprivileged_userns_clone)",
    ))?;
    let mut child = stage_command(&options.ambit, Stage::Init, layout)
        .env(
            USER_NAMESPACE_VARIABLE,
            if how == IsolatedPrivileges::InUserNamespace {
                "1"
            } else {
                ""
            },
        )
        .spawn()
        .map_err(io_failed("start the lab's first process"))?;
    let noted = fs::write(layout.pid(), child.id().to_string());
    noted.map_err(io_failed("note the lab's process id"))?;
    hand_over_stdout().map_err(io_failed("close the standard output"))?;
    let ended = wait(&mut child)?;
    if let Some(cgroups) = cgroups::of_lab(layout, options) {
        cgroups::remove(&cgroups);
    }
    // It ended by itself with an error: the log has the reason, so it stays until the next `up` or `down`.
    if ended.code().is_none_or(|code| code == 0) {
        // Its private part is a mount of this process' namespace; none, if it ended before that.
        let _absent = rustix::mount::unmount(layout.run(), UnmountFlags::DETACH);
        StateDir::from_layout(layout.clone()).remove_own(lock)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes over the lock of the lab's directory from standard input, where the launching process has passed it, so that a
/// starting lab always holds the lock. Processes inside the lab do not inherit the lock.
fn inherited_lock() -> io::Result<File> {
    let lock = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(lock.into())
}

/// Environment variable for the supervisor: `1` if the lab's root user is root only in a user namespace, else empty.
const USER_NAMESPACE_VARIABLE: &str = "AMBIT_LAB_USER_NAMESPACE";

fn wait(child: &mut Child) -> Result<std::process::ExitStatus, LaunchError> {
    child.wait().map_err(io_failed("wait for the lab"))
}

fn run_init(layout: &Layout, options: &Options) -> Result<ExitCode, LaunchError> {
    // If the guard is killed, the lab ends too.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| io_failed("bind the lab's life to its guard's")(error.into()))?;
    mount_private_filesystems(layout)?;
    let name = format!("lab-{}", options.name);
    rustix::system::sethostname(name.as_bytes())
        .map_err(|error| io_failed("set the host name")(error.into()))?;
    let child = stage_command(&options.ambit, Stage::Supervise, layout)
        .spawn()
        .map_err(io_failed("start the lab's supervisor"))?;
    hand_over_stdout().map_err(io_failed("close the standard output"))?;
    let supervisor = i32::try_from(child.id()).unwrap_or_default();
    loop {
        // Orphans of the whole lab come here too.
        let waited = rustix::io::retry_on_intr(|| rustix::process::wait(WaitOptions::empty()))
            .map_err(|error| io_failed("wait for the lab's processes")(error.into()))?;
        let Some((pid, status)) = waited else {
            continue;
        };
        if pid.as_raw_nonzero().get() == supervisor {
            let well = status.exit_status() == Some(0) || status.terminating_signal().is_some();
            return Ok(if well {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
    }
}

fn mount_private_filesystems(layout: &Layout) -> Result<(), LaunchError> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: rustix::io::Errno| io_failed(what)(error.into())
    };
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(failed("make the mounts private"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("proc", "/proc", "proc", flags, None)
        .map_err(failed("mount /proc of the lab's own processes"))?;
    fs::create_dir_all(layout.run()).map_err(io_failed("make the lab's private directory"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(
        "ambit-lab",
        layout.run(),
        "tmpfs",
        flags,
        Some(c"mode=0700,size=1g"),
    )
    .map_err(failed("mount the lab's private directory"))?;
    fs::create_dir_all(layout.bpffs()).map_err(io_failed("make the directory of BPF programs"))?;
    // Without it agents capture by rules.
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let _not_vital = rustix::mount::mount("bpf", layout.bpffs(), "bpf", flags, Some(c"mode=0700"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IpFamily, options};

    #[test]
    fn waypoint_program_is_required_unless_it_is_added_later() {
        let directory = tempfile::tempdir().unwrap();
        for program in [
            "ambit-control",
            "ambit-agent",
            "ambit-cni",
            "ambit-node-proxy",
        ] {
            fs::write(directory.path().join(program), "").unwrap();
        }
        let mut options = options::for_tests(1, IpFamily::Ipv4);
        options.bin_dir = directory.path().to_owned();
        let error = check_binaries(&options).unwrap_err();
        assert!(error.contains("has no ambit-waypoint:"), "{error}");
        options.requires_waypoint = false;
        assert_eq!(check_binaries(&options), Ok(()));
        fs::remove_file(directory.path().join("ambit-cni")).unwrap();
        let error = check_binaries(&options).unwrap_err();
        assert!(error.contains("has no ambit-cni:"), "{error}");
    }
}
