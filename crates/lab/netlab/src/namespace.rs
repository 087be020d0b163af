//! Network namespace that a process holds, configured by the command `ip`; for tests without a tokio runtime.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use ambit_sys::netns::Netns;

/// Reason why a test network could not be built.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A program could not be started.
    #[error("cannot start `{program}`; is it installed?")]
    Start {
        /// Name of the program.
        program: String,
        /// Cause of the failure to start.
        #[source]
        source: io::Error,
    },
    /// A program in a namespace exited with an error.
    #[error("`{program}` in {namespace} failed: {stderr}")]
    Failed {
        /// Name of the program.
        program: String,
        /// Name of the namespace in which the program ran.
        namespace: String,
        /// Standard error of the program.
        stderr: String,
    },
    /// A namespace could not be created or entered.
    #[error("cannot make or enter the namespace {namespace}")]
    Namespace {
        /// Name of the namespace.
        namespace: String,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
}

/// Process that keeps a network namespace alive; it is killed when this value is dropped.
#[derive(Debug)]
pub struct NamespaceHolder(Child);

impl NamespaceHolder {
    /// Returns the id of the process, in the PID namespace of the caller.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for NamespaceHolder {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Network namespace with a name for error messages; it exists as long as this value.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    netns: Netns,
    holder: NamespaceHolder,
}

impl Namespace {
    /// Creates a network namespace with loopback up. `env` is added to the environment of the process that holds it.
    ///
    /// # Errors
    /// When the caller may not create namespaces, or a program is missing.
    pub fn new(name: impl Into<String>, env: &[(&str, &str)]) -> Result<Self, LabError> {
        let name = name.into();
        let failed = |source| LabError::Namespace {
            namespace: name.clone(),
            source,
        };
        let before = Netns::current().map_err(failed)?;
        let mut command = Command::new("unshare");
        command
            .args(["--net", "--", "sleep", "infinity"])
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let child = command.spawn().map_err(|source| LabError::Start {
            program: "unshare".into(),
            source,
        })?;
        let holder = NamespaceHolder(child);
        let netns = wait_for_namespace(&holder, &before).map_err(failed)?;
        let namespace = Self {
            name,
            netns,
            holder,
        };
        namespace.run_ip_batch("link set lo up")?;
        Ok(namespace)
    }

    /// Returns the name in error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the handle of the network namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Returns the id of the process that holds the namespace, for tools that name a namespace by a process.
    pub fn pid(&self) -> u32 {
        self.holder.pid()
    }

    /// Returns the path of the namespace in `/proc`, as CNI plugins need it.
    pub fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.pid())
    }

    /// Runs a batch of `ip` commands in the namespace, one on each line.
    ///
    /// # Errors
    /// When `ip` rejects a command; the error has its output.
    pub fn run_ip_batch(&self, batch: &str) -> Result<(), LabError> {
        for line in batch.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.run("ip", line.split_ascii_whitespace())?;
        }
        Ok(())
    }

    /// Runs a program in the namespace until it ends, and returns its output.
    ///
    /// # Errors
    /// When the program cannot be started, or exits with an error.
    pub fn run<S: AsRef<OsStr>>(
        &self,
        program: &str,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Output, LabError> {
        let mut command = Command::new(program);
        command.args(args);
        let output = self
            .run_inside(|| command.stdin(Stdio::null()).output())?
            .map_err(|source| LabError::Start {
                program: program.to_owned(),
                source,
            })?;
        if output.status.success() {
            return Ok(output);
        }
        Err(LabError::Failed {
            program: format!("{command:?}").replace('"', ""),
            namespace: self.name.clone(),
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    /// Starts a program in the namespace.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(&self, command: &mut Command) -> Result<Child, LabError> {
        self.run_inside(|| command.spawn())?
            .map_err(|source| LabError::Start {
                program: command.get_program().to_string_lossy().into_owned(),
                source,
            })
    }

    /// Writes a sysctl of the namespace, such as `net/ipv4/ip_forward`.
    ///
    /// # Errors
    /// When the kernel has no such setting or refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<(), LabError> {
        let path = Path::new("/proc/sys").join(key);
        self.run_inside(|| fs::write(path, value))?
            .map_err(|source| LabError::Namespace {
                namespace: self.name.clone(),
                source,
            })
    }

    /// Runs `work` with the calling thread in the namespace, as [`Netns::run`] does.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn run_inside<T>(&self, work: impl FnOnce() -> T) -> Result<T, LabError> {
        self.netns.run(work).map_err(|source| LabError::Namespace {
            namespace: self.name.clone(),
            source,
        })
    }
}

/// Waits until `unshare` has created the namespace and executed the holder's program, and opens the namespace.
fn wait_for_namespace(holder: &NamespaceHolder, before: &Netns) -> io::Result<Netns> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let netns = Netns::open(format!("/proc/{}/ns/net", holder.pid()))?;
        let comm = fs::read_to_string(format!("/proc/{}/comm", holder.pid()))?;
        if netns != *before && comm.trim() == "sleep" {
            return Ok(netns);
        }
        if Instant::now() > deadline {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "network namespaces cannot be made here: run as root, or inside a user namespace",
            ));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
