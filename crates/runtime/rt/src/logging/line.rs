//! Line format of `tracing-subscriber`: the text around an event's fields.

use std::fmt;

use tracing::{Event, Level, Subscriber, span};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{
        FmtContext, FormatEvent, FormatFields, FormattedFields,
        format::Writer,
        time::{FormatTime as _, SystemTime},
    },
    registry::LookupSpan,
};

use super::{
    LogFormat,
    format::{JsonFields, TextFields, json_string},
};

impl<'writer> FormatFields<'writer> for LogFormat {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, of: R) -> fmt::Result {
        match self {
            Self::Text => {
                let mut fields = TextFields::new();
                of.record(&mut fields);
                writer.write_str(&fields.fields)
            }
            Self::Json => {
                let mut fields = JsonFields::default();
                of.record(&mut fields);
                writer.write_str(&fields.members)
            }
        }
    }

    fn add_fields(
        &self,
        current: &'writer mut FormattedFields<Self>,
        fields: &span::Record<'_>,
    ) -> fmt::Result {
        // Members of JSON bring their own comma.
        if *self == Self::Text && !current.fields.is_empty() {
            current.fields.push(' ');
        }
        self.format_fields(current.as_writer(), fields)
    }
}

impl<S> FormatEvent<S, Self> for LogFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, Self>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match self {
            Self::Text => text_line(context, writer, event),
            Self::Json => json_line(context, writer, event),
        }
    }
}

fn text_line<S>(
    context: &FmtContext<'_, S, LogFormat>,
    mut line: Writer<'_>,
    event: &Event<'_>,
) -> fmt::Result
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let metadata = event.metadata();
    SystemTime.format_time(&mut line)?;
    write!(
        line,
        "\t{}\t{}",
        level_name(metadata.level()),
        metadata.target()
    )?;
    for span in context
        .event_scope()
        .into_iter()
        .flat_map(|s| s.from_root())
    {
        write!(line, ":{}", span.name())?;
        let extensions = span.extensions();
        let fields = extensions.get::<FormattedFields<LogFormat>>();
        if let Some(fields) = fields.filter(|fields| !fields.is_empty()) {
            write!(line, "{{{fields}}}")?;
        }
    }
    let mut fields = TextFields::new();
    event.record(&mut fields);
    let TextFields { message, fields } = fields;
    match (message.as_str(), fields.trim_end()) {
        ("", "") => writeln!(line),
        (message, "") => writeln!(line, "\t{}", message.trim_end()),
        (message, fields) => writeln!(line, "\t{message}\t{fields}"),
    }
}

fn json_line<S>(
    context: &FmtContext<'_, S, LogFormat>,
    mut line: Writer<'_>,
    event: &Event<'_>,
) -> fmt::Result
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let mut fields = JsonFields::default();
    event.record(&mut fields);
    let metadata = event.metadata();
    let level = level_name(metadata.level());
    write!(line, "{{\"level\":\"{level}\",\"time\":\"")?;
    SystemTime.format_time(&mut line)?;
    let scope = json_string(metadata.target());
    write!(line, "\",\"scope\":{scope}{}", fields.members)?;
    if !fields.message.is_empty() {
        write!(line, ",\"message\":{}", json_string(&fields.message))?;
    }
    for span in context
        .event_scope()
        .into_iter()
        .flat_map(|s| s.from_root())
    {
        let extensions = span.extensions();
        let fields = extensions.get::<FormattedFields<LogFormat>>();
        let members = fields.map_or("", |fields| fields.trim_start_matches(','));
        write!(line, ",{}:{{{members}}}", json_string(span.name()))?;
    }
    line.write_str("}\n")
}

fn level_name(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}
