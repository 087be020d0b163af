//! Socket to which the CNI plugin sends its log lines; the agent writes the lines to its own log.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path};

use ambit_rt::{
    DrainWatcher,
    http::{Request, Response, ServerOptions, not_found, serve, text},
    spawn,
};
use serde::Deserialize;
use tokio::net::UnixListener;

/// Name of the socket in the run directory.
const SOCKET_NAME: &str = "log.sock";

/// Log scope under which the plugin's lines are written.
const LOG_SCOPE: &str = "cni-plugin";

#[derive(Debug, Deserialize)]
struct LogLine {
    #[serde(default)]
    level: String,
    #[serde(default)]
    time: String,
    #[serde(default)]
    msg: String,
}

/// Serves the socket until the drain starts. If it cannot be bound, the lines are in the plugin's file only.
pub fn start(run_dir: &Path, drain: DrainWatcher) {
    match bind(run_dir) {
        Ok(listener) => drop(spawn("plugin log", run(listener, drain))),
        Err(error) => {
            let path = run_dir.join(SOCKET_NAME);
            tracing::warn!(path = %path.display(), %error, "the plugin's lines stay in its file");
        }
    }
}

/// Binds the socket, replacing an earlier agent's file.
fn bind(run_dir: &Path) -> io::Result<UnixListener> {
    let path = run_dir.join(SOCKET_NAME);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

async fn run(listener: UnixListener, drain: DrainWatcher) {
    let options = ServerOptions {
        max_body: 256 * 1024,
        ..ServerOptions::default()
    };
    let handler = |request: Request| std::future::ready(handle_request(&request));
    serve("plugin log", listener, options, drain, handler).await;
}

fn handle_request(request: &Request) -> Response {
    if request.uri().path() != "/log" {
        return not_found();
    }
    let lines: Vec<String> = match serde_json::from_slice(request.body()) {
        Ok(lines) => lines,
        Err(error) => return text(400, format!("not a list of lines: {error}\n")),
    };
    for line in lines {
        log_line(&line);
    }
    text(200, "")
}

fn log_line(line: &str) {
    let parsed = serde_json::from_str(line).unwrap_or_else(|_| LogLine {
        level: "info".to_owned(),
        time: String::new(),
        msg: line.to_owned(),
    });
    let LogLine { level, time, msg } = parsed;
    match level.as_str() {
        "error" | "fatal" => tracing::error!(target: LOG_SCOPE, written = time, "{msg}"),
        "warn" | "warning" => tracing::warn!(target: LOG_SCOPE, written = time, "{msg}"),
        "debug" => tracing::debug!(target: LOG_SCOPE, written = time, "{msg}"),
        _ => tracing::info!(target: LOG_SCOPE, written = time, "{msg}"),
    }
}
