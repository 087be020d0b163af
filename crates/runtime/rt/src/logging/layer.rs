//! The `tracing` layer that writes lines.

use tracing::{Event, Subscriber, span};
use tracing_subscriber::{
    Layer,
    fmt::{format::Writer, time::FormatTime},
    layer::Context,
    registry::LookupSpan,
};

use super::{
    LogFormat,
    format::{JsonFields, TextFields, json_string},
    writer::LineQueue,
};

pub(super) struct LineLayer {
    format: LogFormat,
    queue: LineQueue,
}

/// A span's fields, rendered once.
struct SpanFields(String);

impl LineLayer {
    pub(super) fn new(format: LogFormat, queue: LineQueue) -> Self {
        Self { format, queue }
    }

    fn text_line<S>(&self, event: &Event<'_>, context: &Context<'_, S>) -> String
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let mut fields = TextFields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let mut line = String::with_capacity(256);
        push_time(&mut line);
        line.push('\t');
        line.push_str(level(metadata.level()));
        line.push('\t');
        line.push_str(metadata.target());
        for span in context
            .event_scope(event)
            .into_iter()
            .flat_map(|scope| scope.from_root())
        {
            line.push(':');
            line.push_str(span.name());
            if let Some(SpanFields(fields)) = span.extensions().get()
                && !fields.is_empty()
            {
                line.push('{');
                line.push_str(fields);
                line.push('}');
            }
        }
        line.push('\t');
        line.push_str(&fields.message);
        line.push('\t');
        line.push_str(&fields.fields);
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }

    fn json_line<S>(&self, event: &Event<'_>, context: &Context<'_, S>) -> String
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let mut fields = JsonFields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let mut line = String::with_capacity(512);
        line.push_str("{\"level\":\"");
        line.push_str(level(metadata.level()));
        line.push_str("\",\"time\":\"");
        push_time(&mut line);
        line.push_str("\",\"scope\":");
        line.push_str(&json_string(metadata.target()));
        line.push_str(&fields.members);
        if !fields.message.is_empty() {
            line.push_str(",\"message\":");
            line.push_str(&json_string(&fields.message));
        }
        for span in context
            .event_scope(event)
            .into_iter()
            .flat_map(|scope| scope.from_root())
        {
            line.push(',');
            line.push_str(&json_string(span.name()));
            line.push_str(":{");
            if let Some(SpanFields(fields)) = span.extensions().get() {
                line.push_str(fields.trim_start_matches(','));
            }
            line.push('}');
        }
        line.push_str("}\n");
        line
    }
}

impl<S> Layer<S> for LineLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, ctx: Context<'_, S>) {
        let fields = match self.format {
            LogFormat::Text => {
                let mut fields = TextFields::default();
                attributes.record(&mut fields);
                fields.fields
            }
            LogFormat::Json => {
                let mut fields = JsonFields::default();
                attributes.record(&mut fields);
                fields.members
            }
        };
        if let Some(span) = ctx.span(id) {
            span.extensions_mut().insert(SpanFields(fields));
        }
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, ctx: Context<'_, S>) {
        let Some(span) = ctx.span(id) else { return };
        let mut extensions = span.extensions_mut();
        let Some(SpanFields(known)) = extensions.get_mut() else {
            return;
        };
        match self.format {
            LogFormat::Text => {
                let mut fields = TextFields {
                    fields: std::mem::take(known),
                    ..Default::default()
                };
                values.record(&mut fields);
                *known = fields.fields;
            }
            LogFormat::Json => {
                let mut fields = JsonFields {
                    members: std::mem::take(known),
                    ..Default::default()
                };
                values.record(&mut fields);
                *known = fields.members;
            }
        }
    }

    fn on_event(&self, event: &Event<'_>, ctx: Context<'_, S>) {
        let line = match self.format {
            LogFormat::Text => self.text_line(event, &ctx),
            LogFormat::Json => self.json_line(event, &ctx),
        };
        self.queue.push(&line);
    }
}

fn level(level: &tracing::Level) -> &'static str {
    match *level {
        tracing::Level::ERROR => "error",
        tracing::Level::WARN => "warn",
        tracing::Level::INFO => "info",
        tracing::Level::DEBUG => "debug",
        tracing::Level::TRACE => "trace",
    }
}

fn push_time(line: &mut String) {
    // Writing to a string does not fail.
    let _ = tracing_subscriber::fmt::time::SystemTime.format_time(&mut Writer::new(line));
}
