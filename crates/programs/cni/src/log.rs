//! Log of the CNI plugin: to a rotated file, and to the agent, whose log the operator reads. Runtimes log a plugin's
//! output only when the plugin fails.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::{Duration, SystemTime},
};

use serde::Serialize;

use crate::{
    config::{Config, LogLevel},
    http,
};

/// Names of the log file in the agent's run directory, before and after rotation.
const FILE_NAMES: (&str, &str) = ("ambit-cni.log", "ambit-cni.log.1");

/// Size in bytes at which the file is rotated.
const MAX_FILE_BYTES: u64 = 10 * 1024 * 1024;

/// Name of the agent's socket for log lines, in its run directory.
const SOCKET_NAME: &str = "log.sock";

/// Timeout of sending a line to the agent.
const DELIVERY_TIMEOUT: Duration = Duration::from_millis(300);

#[derive(Serialize)]
struct LogLine<'a> {
    level: LogLevel,
    time: String,
    msg: &'a str,
}

/// Logs a line to the file and to the agent. A line that cannot be delivered is dropped, since logging must not fail
/// the pod.
pub(crate) fn log_line(config: &Config, level: LogLevel, message: &str) {
    let Some(text) = log_line_to_file(config, level, message) else {
        return;
    };
    if let Ok(body) = serde_json::to_string(&[&text]) {
        let socket = config.cni_agent_run_dir.join(SOCKET_NAME);
        drop(http::request(
            &socket,
            "/log",
            Some(&body),
            DELIVERY_TIMEOUT,
        ));
    }
}

/// Logs a line to the file only, for when the agent does not respond. Returns the formatted line.
pub(crate) fn log_line_to_file(config: &Config, level: LogLevel, message: &str) -> Option<String> {
    if level < config.plugin_log_level {
        return None;
    }
    let line = LogLine {
        level,
        time: format_time(SystemTime::now()),
        msg: message,
    };
    let text = serde_json::to_string(&line).ok()?;
    append_to_file(&config.cni_agent_run_dir, &text);
    Some(text)
}

fn append_to_file(run_dir: &Path, text: &str) {
    let path = run_dir.join(FILE_NAMES.0);
    if fs::metadata(&path).is_ok_and(|file| file.len() > MAX_FILE_BYTES) {
        fs::rename(&path, run_dir.join(FILE_NAMES.1)).ok();
    }
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path);
    if let Ok(mut file) = file {
        // One write, so that lines of concurrent plugins do not mix.
        file.write_all(format!("{text}\n").as_bytes()).ok();
    }
}

/// Formats a time by RFC 3339 in UTC.
fn format_time(now: SystemTime) -> String {
    let since = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = since.as_secs();
    let (year, month, day) = civil_date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let millis = since.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Converts days since 1970-01-01 to year, month and day, counting eras of 400 years that begin in March.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_by_rfc_3339() {
        for (millis, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_123, "2000-02-29T00:00:00.123Z"),
            (1_767_225_599_999, "2025-12-31T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            let at = SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
            assert_eq!(format_time(at), expected);
        }
    }

    #[test]
    fn lines_go_to_a_rotated_file() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            r#"{{"cni_agent_run_dir":{:?},"plugin_log_level":"warn"}}"#,
            dir.path()
        );
        let config = Config::parse(text.as_bytes()).unwrap();
        log_line(&config, LogLevel::Info, "not worth it");
        log_line(&config, LogLevel::Warn, "one");
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap_or_default();
        assert!(read(FILE_NAMES.0).starts_with(r#"{"level":"warn","time":""#));
        assert!(read(FILE_NAMES.0).ends_with("\"msg\":\"one\"}\n"));
        let file = OpenOptions::new()
            .write(true)
            .open(dir.path().join(FILE_NAMES.0));
        file.unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        log_line(&config, LogLevel::Error, "two");
        assert_eq!(read(FILE_NAMES.0).lines().count(), 1);
        assert!(dir.path().join(FILE_NAMES.1).exists());
    }
}
