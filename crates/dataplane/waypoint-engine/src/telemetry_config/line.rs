//! Formats access log lines, and writes them to standard output or queues them for a collector.

use ambit_observation::RequestObservation;
use ambit_otlp::LogEntry;
use ambit_telemetry::http::HttpMetrics;

use super::{AccessLog, ExportItem};

/// Trace id and span id to which a log line belongs.
pub(crate) type SpanIds = ([u8; 16], [u8; 8]);

impl AccessLog {
    /// Writes or queues the access log line of a request or connection, if the log's filter matches.
    pub(crate) fn write(
        &self,
        of: &RequestObservation<'_>,
        span: Option<SpanIds>,
        metrics: &HttpMetrics,
    ) {
        if !self.matches(of) {
            return;
        }
        let mut line = String::with_capacity(512);
        self.format.write_line(of, &mut line);
        let Some((queue, name)) = &self.collector else {
            if !line.ends_with('\n') {
                line.push('\n');
            }
            return ambit_rt::logging::write_line(&line);
        };
        let attributes = self.format.json_members(of);
        let body = match attributes.is_empty() {
            true => line.trim_end_matches('\n').to_owned(),
            false => String::new(),
        };
        let line = LogEntry {
            time: of.start_time,
            log_name: name.to_string(),
            body,
            attributes,
            span,
        };
        queue.push(metrics, ExportItem::LogLine(Box::new(line)));
    }
}
