//! Logging: one line an event, as text or JSON, in the format of Istio's node proxy.
//!
//! Text: `time\tlevel\tscope[:span{…}]\tmessage\tkey=value key="string"`. JSON: `level`, `time`, `scope`, the fields,
//! `message`, one object a span. The scope is the event's target. Both are contracts with readers of Istio's logs that
//! none of tracing-subscriber's own formats fulfils, so [`LogFormat`] is a format for its `fmt` layer. Lines go through
//! a bounded queue to a separate thread: if standard output blocks, lines are dropped, and no traffic waits.
//! tracing-appender's queue would take an allocation and a system call a line, and could not be flushed.

mod format;
mod line;
mod records;
mod writer;

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tracing_subscriber::{
    EnvFilter, Registry, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

use crate::Env;
use records::RecordLayer;
use writer::LineQueue;

pub use records::{FieldValue, LogRecord, RecordSink, unrecorded};

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Tab-separated text (`LOG_FORMAT` unset or `plain`).
    #[default]
    Text,
    /// One JSON object a line (`LOG_FORMAT=json`).
    Json,
}

/// Error of setting up or changing logging.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The log filter is invalid.
    #[error("log filter {filter:?} is not of the form info,scope=debug")]
    Filter {
        /// Text of the filter.
        filter: String,
        /// Cause of the error.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// Another `tracing` subscriber is installed already.
    #[error("logging is already set up in this process")]
    AlreadySet(#[source] tracing_subscriber::util::TryInitError),
    /// The thread that writes the lines cannot be started.
    #[error("cannot start the log writer")]
    Writer(#[source] io::Error),
}

const DEFAULT_FILTER: &str = "info";
/// Log levels of dependencies whose logs do not help operators, or repeat this program's own.
const DEPENDENCY_LEVELS: &str = "hickory_server::server=off,hyper=info,h2=info,kube_client::client::builder=off,\
     rustls=info,tonic=info,tower=info";

static QUEUE: OnceLock<LineQueue> = OnceLock::new();
/// Receiver of log records in addition to standard output, such as an exporter.
static SINK: OnceLock<Arc<dyn RecordSink>> = OnceLock::new();

/// Sets up logging to standard output from `RUST_LOG` and `LOG_FORMAT`.
pub fn init(env: &Env) -> Result<LogHandle, LoggingError> {
    init_with_sink(env, None)
}

/// Sets up logging to standard output from `RUST_LOG` and `LOG_FORMAT`, and in addition to a receiver of records.
pub fn init_with_sink(
    env: &Env,
    sink: Option<Arc<dyn RecordSink>>,
) -> Result<LogHandle, LoggingError> {
    let format = match env.get("LOG_FORMAT") {
        Some("json") => LogFormat::Json,
        _ => LogFormat::Text,
    };
    let filter = env
        .get("RUST_LOG")
        .filter(|filter| !filter.is_empty())
        .unwrap_or(DEFAULT_FILTER);
    start(format, filter, io::stdout(), sink)
}

/// Sets up logging to any writer, with this format and filter.
pub fn init_with(
    format: LogFormat,
    filter: &str,
    output: impl io::Write + Send + 'static,
) -> Result<LogHandle, LoggingError> {
    start(format, filter, output, None)
}

fn start(
    format: LogFormat,
    filter: &str,
    output: impl io::Write + Send + 'static,
    sink: Option<Arc<dyn RecordSink>>,
) -> Result<LogHandle, LoggingError> {
    let queue = LineQueue::start(output).map_err(LoggingError::Writer)?;
    let (subscriber, handle) = subscriber(format, filter, queue.clone(), sink.clone())?;
    subscriber.try_init().map_err(LoggingError::AlreadySet)?;
    // A second set-up in one process has failed above.
    QUEUE.get_or_init(|| queue);
    if let Some(sink) = sink {
        SINK.get_or_init(|| sink);
    }
    Ok(handle)
}

/// Runs `work`, and captures the log lines of this thread in `output`. For tests of log lines: the process's own
/// logging does not change.
pub fn capture<T>(
    format: LogFormat,
    filter: &str,
    output: impl io::Write + Send + 'static,
    work: impl FnOnce() -> T,
) -> Result<T, LoggingError> {
    let queue = LineQueue::start(output).map_err(LoggingError::Writer)?;
    let (subscriber, _) = subscriber(format, filter, queue.clone(), None)?;
    let done = tracing::dispatcher::with_default(&subscriber.into(), work);
    queue.flush(Duration::from_secs(5));
    Ok(done)
}

fn subscriber(
    format: LogFormat,
    filter: &str,
    queue: LineQueue,
    sink: Option<Arc<dyn RecordSink>>,
) -> Result<(impl SubscriberInitExt, LogHandle), LoggingError> {
    let (filter_layer, reload) = reload::Layer::new(parse_filter(filter)?);
    let lines = fmt::layer()
        .with_ansi(false)
        .log_internal_errors(false)
        .fmt_fields(format)
        .event_format(format)
        .with_writer(queue);
    let subscriber = Registry::default()
        .with(filter_layer)
        .with(lines)
        .with(sink.map(RecordLayer));
    Ok((
        subscriber,
        LogHandle {
            reload,
            initial: filter.into(),
        },
    ))
}

fn parse_filter(filter: &str) -> Result<EnvFilter, LoggingError> {
    // Configured levels come last and so override the quiet defaults.
    EnvFilter::builder()
        .parse(format!("{DEPENDENCY_LEVELS},{filter}"))
        .map_err(|source| LoggingError::Filter {
            filter: filter.to_owned(),
            source,
        })
}

/// Writes a line that is already formatted (an access log's), including its line feed, and passes it to the receiver of
/// records, if any. The line is dropped if logging is not set up.
pub fn write_line(line: &str) {
    if let Some(queue) = QUEUE.get() {
        queue.push(line.as_bytes());
    }
    if let Some(sink) = SINK.get() {
        records::record_line(&**sink, line);
    }
}

/// Waits until the lines logged so far are written, for at most `timeout`.
pub fn flush(timeout: Duration) {
    if let Some(queue) = QUEUE.get() {
        queue.flush(timeout);
    }
}

/// Handle that changes log levels while the process runs.
#[derive(Clone, Debug)]
pub struct LogHandle {
    reload: reload::Handle<EnvFilter, Registry>,
    initial: Arc<str>,
}

impl LogHandle {
    /// Returns the current log filter.
    pub fn current(&self) -> String {
        self.reload
            .with_current(ToString::to_string)
            .unwrap_or_default()
    }

    /// Changes the default level (`debug`) or those of scopes (`scope=debug`), comma-separated; other scopes keep their
    /// levels. The notation `scope:debug` is accepted as well.
    pub fn change(&self, directives: &str) -> Result<(), LoggingError> {
        let directives = directives.replace(':', "=").replace("==", "::");
        let parsed = directives
            .split(',')
            .map(str::trim)
            .filter(|directive| !directive.is_empty())
            .map(|directive| {
                directive.parse().map_err(|source| LoggingError::Filter {
                    filter: directive.to_owned(),
                    source,
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut filter = parse_filter(&self.current())?;
        for directive in parsed {
            filter = filter.add_directive(directive);
        }
        self.set(filter);
        Ok(())
    }

    /// Restores the log filter that the process started with.
    pub fn reset(&self) -> Result<(), LoggingError> {
        self.set(parse_filter(&self.initial)?);
        Ok(())
    }

    fn set(&self, filter: EnvFilter) {
        if let Err(error) = self.reload.reload(filter) {
            tracing::warn!(%error, "log level unchanged");
        }
    }
}

#[cfg(test)]
mod tests;
