//! Runs another CNI plugin with the execution protocol of the CNI specification, as container runtimes do.

use std::{
    env,
    io::{self, Write as _},
    path::PathBuf,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use serde::Deserialize;

use crate::{
    environment::{DELEGATION_VARIABLE, Environment},
    error::{CniError, code},
};

/// Maximum attempts to execute a plugin, and their interval, while its file is being replaced in place (`ETXTBSY`).
const BUSY_RETRY: (u32, Duration) = (50, Duration::from_millis(100));

/// Runs the plugin `kind` with this configuration on its stdin; returns its stdout.
pub(crate) fn run(environment: &Environment, kind: &str, config: &str) -> Result<String, CniError> {
    let program = find_plugin(kind, &environment.path)?;
    let failed = |error: &io::Error| {
        CniError::new(
            code::PLUGIN_FAILURE,
            format!("the plugin {} cannot be run", program.display()),
            error.to_string(),
        )
    };
    let mut left = BUSY_RETRY.0;
    let output = loop {
        match run_program(&program, environment, config) {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && left > 0 => {
                left -= 1;
                thread::sleep(BUSY_RETRY.1);
            }
            result => break result.map_err(|error| failed(&error))?,
        }
    };
    if output.status.success() {
        return String::from_utf8(output.stdout)
            .map_err(|error| failed(&io::Error::new(io::ErrorKind::InvalidData, error)));
    }
    Err(plugin_error(kind, &output))
}

fn run_program(program: &PathBuf, environment: &Environment, config: &str) -> io::Result<Output> {
    let mut command = Command::new(program);
    for (name, value) in [
        ("CNI_COMMAND", &environment.command),
        ("CNI_CONTAINERID", &environment.container_id),
        ("CNI_NETNS", &environment.netns),
        ("CNI_IFNAME", &environment.interface),
        ("CNI_PATH", &environment.path),
        ("CNI_ARGS", &environment.args),
    ] {
        if value.is_empty() {
            command.env_remove(name);
        } else {
            command.env(name, value);
        }
    }
    let mut child = command
        .env(DELEGATION_VARIABLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(config.as_bytes()) {
            // The plugin may have ended without reading its stdin.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    child.wait_with_output()
}

fn find_plugin(kind: &str, path: &str) -> Result<PathBuf, CniError> {
    let is_name = !kind.contains('/');
    env::split_paths(path)
        .filter(|directory| is_name && !directory.as_os_str().is_empty())
        .map(|directory| directory.join(kind))
        .find(|file| file.is_file())
        .ok_or_else(|| {
            CniError::new(
                code::PLUGIN_FAILURE,
                format!("the plugin {kind:?} of the primary CNI does not exist"),
                format!("looked for it in {path}; is the primary CNI installed?"),
            )
        })
}

/// Returns the error that the failed plugin printed, unchanged, or an error with its output.
fn plugin_error(kind: &str, output: &Output) -> CniError {
    #[derive(Deserialize)]
    struct PrintedError {
        code: u32,
        #[serde(default)]
        msg: String,
        #[serde(default)]
        details: String,
    }
    serde_json::from_slice::<PrintedError>(&output.stdout).map_or_else(
        |_| {
            let output_text = String::from_utf8_lossy(&output.stdout);
            let message = format!("the plugin {kind} failed: {}", output.status);
            CniError::new(code::PLUGIN_FAILURE, message, output_text.trim())
        },
        |wire| CniError::new(wire.code, wire.msg, wire.details),
    )
}
