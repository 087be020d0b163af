//! Runs `ambit flows` during a test.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use ambit_testkit::built_binary;
use serde_json::Value;

use crate::{Mesh, TIMEOUT};

/// Process that reads flow events, which is killed on drop.
#[derive(Debug)]
pub struct FlowsCommand {
    child: Child,
    events: Receiver<Value>,
    received_events: Vec<Value>,
}

impl Mesh {
    /// Starts `ambit flows -o json` with additional flags; returns once it reads the events of this number of proxies.
    pub fn flows(&self, proxies: usize, flags: &[&str]) -> FlowsCommand {
        let lab = self.client().status().expect("the lab answers").name;
        let mut child = Command::new(built_binary("ambit"))
            .args(["flows", "-o", "json"])
            .args(flags)
            .env("AMBIT_LAB_DIR", self.directory())
            .env("AMBIT_LAB", lab)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command line runs");
        let (sender, events) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line).expect("a JSON object a line");
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut begun = 0;
        while begun < proxies {
            let mut line = String::new();
            let read = stderr.read_line(&mut line).expect("readable");
            assert_ne!(read, 0, "ambit flows {flags:?} has ended");
            begun += usize::from(line.contains("reading "));
        }
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).for_each(drop));
        FlowsCommand {
            child,
            events,
            received_events: Vec::new(),
        }
    }
}

impl FlowsCommand {
    /// Suspends the process (SIGSTOP), which keeps its connections without reading.
    pub fn stop(&self) {
        self.signal("-STOP");
    }

    /// Resumes the suspended process.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let mut kill = Command::new("kill");
        let sent = kill.args([signal, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits for a flow event that has these values at JSON pointers; returns it.
    #[track_caller]
    pub fn wait_for_flow(&mut self, fields: &[(&str, &str)]) -> Value {
        let matches = |event: &Value| {
            fields
                .iter()
                .all(|(pointer, value)| match event.pointer(pointer) {
                    Some(Value::String(text)) => text == value,
                    Some(other) => {
                        serde_json::from_str::<Value>(value).is_ok_and(|value| value == *other)
                    }
                    None => *value == "none",
                })
        };
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(at) = self.received_events.iter().position(matches) {
                return self.received_events.remove(at);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(event) => self.received_events.push(event),
                Err(error) => panic!(
                    "{error}: no event with {fields:?} in {:#?}",
                    self.received_events
                ),
            }
        }
    }

    /// Returns the flow events so far, and those that arrive within `time`.
    pub fn collect_for(&mut self, time: Duration) -> Vec<Value> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(event) => self.received_events.push(event),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return std::mem::take(&mut self.received_events);
                }
            }
        }
    }
}

impl Drop for FlowsCommand {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}
