//! Tests of log lines in both formats, of levels, and of an output that blocks.

use std::sync::Mutex;

use super::*;
use crate::http::testing::{body_text, get, request};

#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `work` with its own logging; returns the lines, without their times.
fn log_lines(format: LogFormat, filter: &str, work: impl FnOnce(&LogHandle)) -> Vec<String> {
    let output = Output::default();
    let queue = LineQueue::start(output.clone()).unwrap();
    let (subscriber, handle) = subscriber(format, filter, queue.clone(), None).unwrap();
    tracing::dispatcher::with_default(&subscriber.into(), || work(&handle));
    queue.flush(Duration::from_secs(5));
    let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
    text.lines().map(without_time).collect()
}

fn without_time(line: &str) -> String {
    if let Some((_, rest)) = line.split_once('\t') {
        return rest.to_owned();
    }
    let (head, rest) = line.split_once("\"time\":\"").expect("a time");
    let (time, rest) = rest.split_once('"').unwrap();
    assert!(time.ends_with('Z') && time.contains('T'), "{time}");
    format!("{head}\"time\":\"{rest}")
}

#[test]
fn text_lines_have_tabs_and_quoted_strings() {
    let lines = log_lines(LogFormat::Text, "info", |_| {
        tracing::event!(
            target: "access",
            tracing::Level::INFO,
            src.addr = %"10.0.0.1:80",
            src.workload = "client",
            bytes_sent = 7,
            failed = false,
            "connection complete"
        );
        tracing::warn!("no fields");
    });
    assert_eq!(
        lines,
        [
            "info\taccess\tconnection complete\tsrc.addr=10.0.0.1:80 src.workload=\"client\" \
             bytes_sent=7 failed=false",
            "warn\tambit_rt::logging::tests\tno fields",
        ]
    );
}

#[test]
fn spans_are_printed_after_the_scope() {
    let lines = log_lines(LogFormat::Text, "info", |_| {
        let span = tracing::info_span!("inbound", id = "7", peer = tracing::field::Empty);
        span.record("peer", 9);
        let _entered = span.enter();
        let _inner = tracing::info_span!("tls").entered();
        tracing::info!(target: "proxy", "hello");
    });
    assert_eq!(lines, ["info\tproxy:inbound{id=\"7\" peer=9}:tls\thello"]);
}

#[test]
fn json_lines_are_objects() {
    let lines = log_lines(LogFormat::Json, "info", |_| {
        let _span = tracing::info_span!("inbound", id = "7").entered();
        tracing::event!(
            target: "access",
            tracing::Level::INFO,
            src.addr = %"1.2.3.4:5",
            n = 3,
            odd = "a\"b\n",
            "done"
        );
    });
    assert_eq!(
        lines,
        [
            r#"{"level":"info","time":","scope":"access","src.addr":"1.2.3.4:5","n":3,"odd":"a\"b\n","message":"done","inbound":{"id":"7"}}"#
        ]
    );
}

#[test]
fn a_peers_text_cannot_forge_a_line() {
    let lines = log_lines(LogFormat::Text, "info", |_| {
        let hostile = "x\ninfo\taccess\tforged";
        tracing::info!(target: "a", a = %hostile, b = hostile, "{hostile}");
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn long_values_are_truncated() {
    let lines = log_lines(LogFormat::Text, "info", |_| {
        let long = "x".repeat(1_000_000);
        tracing::info!(target: "a", a = %long, b = long, "m");
    });
    assert!(lines[0].len() < 10_000, "{}", lines[0].len());
}

#[test]
fn an_error_is_written_with_its_causes() {
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);
    let lines = log_lines(LogFormat::Text, "info", |_| {
        let error = Outer(io::Error::other("inner"));
        let error: &(dyn std::error::Error + 'static) = &error;
        tracing::info!(target: "a", error, "failed");
    });
    assert_eq!(lines, ["info\ta\tfailed\terror=outer: inner"]);
}

#[test]
fn levels_change_while_running() {
    let lines = log_lines(LogFormat::Text, "warn", |handle| {
        tracing::info!(target: "one", "hidden");
        handle.change("info,two=debug").unwrap();
        tracing::info!(target: "one", "shown");
        tracing::debug!(target: "two", "shown");
        tracing::debug!(target: "one", "hidden");
        handle.change("three:trace").unwrap();
        tracing::debug!(target: "two", "kept");
        tracing::trace!(target: "three", "shown");
        handle.reset().unwrap();
        tracing::info!(target: "one", "hidden");
        assert!(handle.change("one=loud").is_err());
    });
    assert_eq!(
        lines,
        [
            "info\tone\tshown",
            "debug\ttwo\tshown",
            "debug\ttwo\tkept",
            "trace\tthree\tshown"
        ]
    );
}

#[test]
fn the_logging_endpoint_changes_and_shows_levels() {
    log_lines(LogFormat::Text, "warn", |handle| {
        assert_eq!(handle.respond(&get("/logging")).status(), 405);
        let shown = body_text(handle.respond(&request("POST", "/logging?level=debug")));
        assert!(
            shown.starts_with("current log level is ") && shown.contains("debug"),
            "{shown}"
        );
        let bad = handle.respond(&request("POST", "/logging?level=a=b=c"));
        assert_eq!(bad.status(), 400);
        let shown = body_text(handle.respond(&request("POST", "/logging?reset")));
        assert!(
            shown.contains("warn") && !shown.contains("debug"),
            "{shown}"
        );
    });
}

#[test]
fn a_stuck_output_costs_lines_not_time() {
    /// Output that blocks until the test releases it.
    struct BlockedOutput(std::sync::mpsc::Receiver<()>, Output);
    impl io::Write for BlockedOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            self.1.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (release, stuck) = std::sync::mpsc::channel();
    let output = Output::default();
    let queue = LineQueue::start(BlockedOutput(stuck, output.clone())).unwrap();
    // Far more than may wait.
    for _ in 0..100 {
        queue.push("x".repeat(100_000).as_bytes());
        queue.push(b"\n");
    }
    queue.flush(Duration::from_millis(1));
    drop(release);
    queue.flush(Duration::from_secs(20));
    let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains(" lines dropped\n"), "{} bytes", text.len());
    assert!(text.len() < 9_000_000, "{} bytes", text.len());
}

#[test]
fn the_writer_ends_with_its_last_queue() {
    /// Value that signals when it is dropped.
    struct DropSignal(std::sync::mpsc::Sender<()>);
    impl io::Write for DropSignal {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    impl Drop for DropSignal {
        fn drop(&mut self) {
            self.0.send(()).ok();
        }
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    let queue = LineQueue::start(DropSignal(sender)).unwrap();
    let clone = queue.clone();
    drop(queue);
    clone.push(b"line\n");
    drop(clone);
    receiver.recv_timeout(Duration::from_secs(20)).unwrap();
}

/// Receiver that collects log records.
#[derive(Debug, Default)]
struct Records(Mutex<Vec<LogRecord>>);

impl RecordSink for Records {
    fn record(&self, record: LogRecord) {
        self.0.lock().unwrap().push(record);
    }
}

/// Runs `work` with a receiver of records; returns the records and the lines of standard output.
fn capture_records(filter: &str, work: impl FnOnce()) -> (Vec<LogRecord>, String) {
    let (output, records) = (Output::default(), Arc::new(Records::default()));
    let queue = LineQueue::start(output.clone()).unwrap();
    let sink: Arc<dyn RecordSink> = records.clone();
    let (subscriber, _handle) =
        subscriber(LogFormat::Text, filter, queue.clone(), Some(sink)).unwrap();
    tracing::dispatcher::with_default(&subscriber.into(), work);
    queue.flush(Duration::from_secs(5));
    let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
    (std::mem::take(&mut *records.0.lock().unwrap()), text)
}

#[test]
fn records_carry_level_target_message_and_typed_fields() {
    let (records, lines) = capture_records("info", || {
        tracing::warn!(
            target: "access",
            bytes_sent = 7,
            huge = u64::MAX,
            ratio = 0.5,
            failed = true,
            src.addr = %"10.0.0.1:80",
            "connection\n{}",
            "complete"
        );
        tracing::debug!("below the filter");
    });
    assert_eq!(lines.lines().count(), 1);
    let [record] = &records[..] else {
        panic!("{records:?}");
    };
    let text = |text: &str| FieldValue::Text(text.to_owned());
    assert_eq!(
        (record.level, record.target, record.message.as_str()),
        (tracing::Level::WARN, "access", "connection\ncomplete")
    );
    assert_eq!(
        record.fields,
        [
            ("bytes_sent", FieldValue::Integer(7)),
            ("huge", text("18446744073709551615")),
            ("ratio", FieldValue::Float(0.5)),
            ("failed", FieldValue::Bool(true)),
            ("src.addr", text("10.0.0.1:80")),
        ]
    );
}

#[test]
fn long_record_values_are_truncated_at_characters() {
    let (records, _) = capture_records("info", || {
        let long = "ä".repeat(1_000_000);
        tracing::info!(a = %long, b = long, "{long}");
    });
    for (_, value) in &records[0].fields {
        let FieldValue::Text(text) = value else {
            panic!("{value:?}");
        };
        assert_eq!(text.len(), 4096);
    }
    assert_eq!(records[0].message.len(), 4096);
}

#[test]
fn unrecorded_futures_and_the_resolver_log_to_standard_output_alone() {
    let runtime = crate::current_thread_runtime().unwrap();
    let (records, lines) = capture_records("trace", || {
        runtime.block_on(async {
            unrecorded(async {
                tracing::info!("before");
                tokio::task::yield_now().await;
                tracing::info!("after");
            })
            .await;
            tracing::info!(target: "hickory_resolver::lookup", "query");
            tracing::info!(target: "ambit", "recorded");
        });
    });
    let records: Vec<_> = records
        .iter()
        .filter(|one| one.target.starts_with("ambit"))
        .collect();
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(records[0].message, "recorded");
    for line in ["before", "after", "query", "recorded"] {
        assert!(lines.contains(line), "{line} in {lines}");
    }
}

#[test]
fn lines_with_a_format_of_their_own_become_records() {
    let records = Records::default();
    records::record_line(&records, "GET / 200\n");
    records::record_line(&records, &"ä".repeat(1_000_000));
    let records = records.0.into_inner().unwrap();
    assert_eq!(
        (
            records[0].target,
            records[0].message.as_str(),
            records[0].level
        ),
        ("access", "GET / 200", tracing::Level::INFO)
    );
    assert_eq!(records[1].message.len(), 32 * 1024);
}
