//! Tests of access-log lines, field by field.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use ambit_rt::logging::{LogFormat, capture};

use super::*;

/// Writer that captures log output.
#[derive(Clone, Default)]
struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

impl io::Write for CapturedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn logged(format: LogFormat, filter: &str, work: impl FnOnce()) -> String {
    let output = CapturedOutput::default();
    capture(format, filter, output.clone(), work).unwrap();
    let bytes = output.0.lock().unwrap().clone();
    let text = String::from_utf8(bytes).unwrap();
    match format {
        LogFormat::Text => text
            .split_once('\t')
            .map_or(String::new(), |(_, rest)| rest.to_owned()),
        LogFormat::Json => text,
    }
}

fn full_record() -> AccessLog {
    AccessLog {
        src_workload: Some("client".into()),
        src_namespace: Some("a".into()),
        src_identity: Some(Identity::new("td", "a", "client")),
        src_cluster: Some("c1".into()),
        dst_hbone: Some("10.0.2.7:8080".into()),
        dst_service: Some("svc.b.svc.cluster.local".into()),
        dst_workload: Some("server".into()),
        dst_namespace: Some("b".into()),
        dst_identity: Some(Identity::new("td", "b", "server")),
        dst_cluster: Some("c1".into()),
        ..AccessLog::new(
            Direction::Outbound,
            "10.0.1.5:41234".parse().unwrap(),
            "10.0.2.7:15008".parse().unwrap(),
        )
    }
}

#[test]
fn full_line_has_the_fields_of_the_contract_in_order() {
    let line = logged(LogFormat::Text, "info", || {
        full_record().log_completed(7, 9, Duration::from_micros(13_900), None);
    });
    assert_eq!(
        line,
        "info\taccess\tconnection complete\tsrc.addr=10.0.1.5:41234 src.workload=\"client\" \
         src.namespace=\"a\" src.identity=\"spiffe://td/ns/a/sa/client\" src.cluster=\"c1\" \
         dst.addr=10.0.2.7:15008 dst.hbone_addr=10.0.2.7:8080 \
         dst.service=\"svc.b.svc.cluster.local\" dst.workload=\"server\" dst.namespace=\"b\" \
         dst.identity=\"spiffe://td/ns/b/sa/server\" dst.cluster=\"c1\" direction=\"outbound\" \
         bytes_sent=7 bytes_recv=9 duration=\"13ms\"\n"
    );
}

#[test]
fn unknown_fields_are_omitted_and_failures_are_errors() {
    let log = AccessLog::new(
        Direction::Inbound,
        "[::1]:80".parse().unwrap(),
        "10.0.0.2:15008".parse().unwrap(),
    );
    let line = logged(LogFormat::Text, "info", || {
        log.log_completed(0, 0, Duration::ZERO, Some("explicitly denied by: ns/p"));
    });
    assert_eq!(
        line,
        "error\taccess\tconnection complete\tsrc.addr=[::1]:80 dst.addr=10.0.0.2:15008 \
         direction=\"inbound\" bytes_sent=0 bytes_recv=0 duration=\"0ms\" \
         error=\"explicitly denied by: ns/p\"\n"
    );
}

#[test]
fn openings_are_debug() {
    assert_eq!(
        logged(LogFormat::Text, "info", || full_record().log_opened()),
        ""
    );
    let line = logged(LogFormat::Text, "access=debug", || {
        full_record().log_opened()
    });
    assert!(line.starts_with("debug\taccess\tconnection opened\tsrc.addr=10.0.1.5:41234 "));
}

#[test]
fn early_refusals_are_warnings() {
    let line = logged(LogFormat::Text, "info", || {
        log_denied(
            "1.2.3.4:5".parse().unwrap(),
            "1.2.3.5:15006".parse().unwrap(),
            Direction::Inbound,
            "no",
        );
    });
    assert_eq!(
        line,
        "warn\taccess\tconnection failed\tsrc.addr=1.2.3.4:5 dst.addr=1.2.3.5:15006 \
         direction=\"inbound\" error=\"no\"\n"
    );
}

#[test]
fn json_has_the_same_fields() {
    let line = logged(LogFormat::Json, "info", || {
        full_record().log_completed(7, 9, Duration::from_millis(1), None);
    });
    assert!(
        line.contains(r#""scope":"access","src.addr":"10.0.1.5:41234","src.workload":"client","#),
        "{line}"
    );
    assert!(
        line.ends_with("\"message\":\"connection complete\"}\n"),
        "{line}"
    );
}
