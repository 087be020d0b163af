//! Lab for one test: a directory of manifests that the test writes, and calls of `ambit` for it.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// Timeout of every operation in these tests, long enough for a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// User id of `nobody`, as a user without rights.
pub(crate) const NOBODY_UID: u32 = 65534;

pub(crate) struct Lab {
    base: TempDir,
    manifests: TempDir,
    user: Option<u32>,
}

impl Lab {
    /// Creates the directories of a lab that the current user runs.
    pub(crate) fn new() -> Self {
        Self::with_user(None)
    }

    /// Creates the directories of a lab that the user `nobody` runs.
    pub(crate) fn unprivileged() -> Self {
        Self::with_user(Some(NOBODY_UID))
    }

    fn with_user(user: Option<u32>) -> Self {
        let lab = Self {
            base: tempfile::tempdir().unwrap(),
            manifests: tempfile::tempdir().unwrap(),
            user,
        };
        for dir in [lab.base.path(), lab.manifests.path()] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
            chown(dir, user, user).unwrap();
        }
        lab
    }

    pub(crate) fn write(&self, file: &str, text: &str) -> &Self {
        fs::write(self.manifests.path().join(file), text).unwrap();
        self
    }

    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.manifests.path().join(file)).unwrap();
    }

    /// Returns the state directory of a running lab.
    pub(crate) fn state(&self) -> PathBuf {
        self.base.path().join("default")
    }

    /// Runs `ambit lab` with these arguments; `MANIFESTS` is replaced by the manifests' directory.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(&[&["lab"], args].concat())
    }

    /// Runs `ambit` with these arguments; `MANIFESTS` is replaced by the manifests' directory.
    pub(crate) fn command(&self, args: &[&str]) -> Output {
        let mut command = match self.user {
            None => Command::new(ambit()),
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", &user.to_string(), "--regid", &user.to_string()]);
                command.args(["--clear-groups", "--"]).arg(ambit());
                command
            }
        };
        let manifests = self.manifests.path().to_str().unwrap();
        command.args(args.iter().map(|arg| arg.replace("MANIFESTS", manifests)));
        command
            .env("AMBIT_LAB_DIR", self.base.path())
            .env("KUBECONFIG", self.base.path().join("no-kubeconfig"))
            .output()
            .unwrap()
    }

    /// Runs a shell command from the documentation for this lab, in the root of the repository. `/tmp/` is replaced by
    /// the manifests' directory, whose `bin` is first in `PATH`.
    pub(crate) fn shell(&self, command: &str) -> Output {
        let bin = Path::new(ambit()).parent().unwrap().display().to_string();
        let path = std::env::var("PATH").unwrap();
        let own = format!("{}/", self.manifests.path().display());
        Command::new("sh")
            .args(["-ec", &command.replace("/tmp/", &own)])
            .current_dir(ambit_testkit::documents::repository_root())
            .env("PATH", format!("{own}bin:{bin}:{path}"))
            .env("AMBIT_LAB_DIR", self.base.path())
            .env("KUBECONFIG", self.base.path().join("no-kubeconfig"))
            .output()
            .unwrap()
    }

    /// Runs `ambit` like [`Lab::command`], asserts success, and returns standard output.
    pub(crate) fn command_ok(&self, args: &[&str]) -> String {
        let output = self.command(args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "ambit {args:?}: {text}{errors}{}",
            self.log()
        );
        text
    }

    /// Runs `ambit lab` like [`Lab::run`], asserts success, and returns standard output.
    pub(crate) fn run_ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "ambit lab {args:?}: {text}{errors}{}",
            self.log()
        );
        text
    }

    /// Runs `ambit lab` like [`Lab::run_ok`], by another copy of `ambit`, and with a `PATH` without programs of the
    /// mesh.
    pub(crate) fn run_program_ok(&self, ambit: &Path, args: &[&str]) {
        let manifests = self.manifests.path().to_str().unwrap();
        let output = Command::new(ambit)
            .arg("lab")
            .args(args.iter().map(|arg| arg.replace("MANIFESTS", manifests)))
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("AMBIT_LAB_DIR", self.base.path())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}{}", self.log());
    }

    pub(crate) fn up(&self, args: &[&str]) -> String {
        self.run_ok(&[&["up", "MANIFESTS", "--no-mesh"], args].concat())
    }

    /// Runs a command in a pod, and returns its exit code and trimmed standard output.
    pub(crate) fn exec(&self, pod: &str, command: &[&str]) -> (i32, String) {
        let output = self.run(&[&["exec", pod, "--"], command].concat());
        (
            output.status.code().unwrap(),
            String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        )
    }

    /// Waits until `is_reached` accepts the output of `ambit lab status`.
    pub(crate) fn wait_for(&self, what: &str, is_reached: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let status = self.run_ok(&["status"]);
            if is_reached(&status) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{what} did not come:\n{status}{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20)); // tidy: between two looks
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.state().join("lab.log")).unwrap_or_default()
    }

    /// Returns the process id of the lab's init process, in the test's own PID namespace.
    pub(crate) fn init_process(&self) -> i32 {
        fs::read_to_string(self.state().join("pid"))
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }

    /// Returns the ids of all processes in the lab's PID namespace.
    pub(crate) fn processes(&self) -> BTreeSet<i32> {
        let ns = pid_namespace(self.init_process()).unwrap();
        all_processes()
            .filter(|pid| pid_namespace(*pid) == Some(ns))
            .collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _it_may_be_down = self.run(&["down"]);
    }
}

pub(crate) fn ambit() -> &'static str {
    env!("CARGO_BIN_EXE_ambit")
}

fn pid_namespace(pid: i32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/pid"))
        .ok()
        .map(|meta| meta.ino())
}

fn all_processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Waits until none of the processes with these ids is running.
pub(crate) fn wait_until_gone(processes: &BTreeSet<i32>) {
    wait_until("no process is left", || {
        !processes.iter().any(|pid| is_alive(*pid))
    });
}

/// Waits until `condition` holds, and panics after [`TIMEOUT`].
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5)); // tidy: between two looks
    }
}

/// Whether a process is running. A zombie counts as ended: its namespaces and files are released.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .starts_with(" Z")
    })
}

pub(crate) fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Formats the manifest of a pod that runs a command.
pub(crate) fn pod_manifest(name: &str, command: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: test, labels: {{app: {name}}}}}\n\
         spec:\n  containers: [{{name: c, command: {command}}}]\n---\n"
    )
}

/// Formats the manifest of a Service for the pod of the same name.
pub(crate) fn service_manifest(name: &str, extra: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: test}}\n\
         spec: {{selector: {{app: {name}}}, ports: [{{port: 80, targetPort: 8080}}]{extra}}}\n---\n"
    )
}

pub(crate) const SLEEP_COMMAND: &str = "[ambit-lab-tool, sleep]";
pub(crate) const SERVE_COMMAND: &str = "[ambit-lab-tool, serve, --name, web]";
