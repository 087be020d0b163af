//! Parsing of Telemetry objects: expressions and formats are parsed by the same code as in waypoints.

use ambit_k8s_api::telemetry::{
    AccessLogging, CustomTag, Metrics, MetricsOverride, ProviderRef, Tracing,
};
use ambit_model::{ArcStr, TelemetryFamily, TelemetryTag, TelemetryTagValue};
use ambit_observation::{Expression, LogFormat};

use crate::problem::{FieldError, Note};

/// Maximum number of span tags, and of changed labels of a metric.
const MAX_TAGS: usize = 64;

/// Tracing settings of a Telemetry object. A field that is `None` is inherited from a less specific level (namespace,
/// mesh).
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TracingSettings {
    pub(crate) providers: Vec<ArcStr>,
    /// Number of requests per 10,000 that are traced; `None` if inherited.
    pub(crate) sampling: Option<u32>,
    pub(crate) is_disabled: Option<bool>,
    pub(crate) tags: Option<Vec<TelemetryTag>>,
    pub(crate) samples_by_request_id: Option<bool>,
    pub(crate) adds_istio_tags: Option<bool>,
    /// Whether requests are forwarded without their trace context.
    pub(crate) omits_trace_context: Option<bool>,
}

/// Access log settings of a Telemetry object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AccessLogSettings {
    pub(crate) providers: Vec<ArcStr>,
    pub(crate) is_disabled: bool,
    pub(crate) filter: Option<ArcStr>,
}

/// Metric settings of a Telemetry object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MetricSettings {
    pub(crate) providers: Vec<ArcStr>,
    pub(crate) overrides: Vec<MetricOverride>,
}

/// Override of some metric families: disabled, or with changed labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MetricOverride {
    pub(crate) families: Vec<TelemetryFamily>,
    pub(crate) is_disabled: Option<bool>,
    /// Labels to set, with the expression of their value; a label with `None` is removed.
    pub(crate) labels: Vec<(ArcStr, Option<ArcStr>)>,
}

fn provider_names(of: &[ProviderRef]) -> Vec<ArcStr> {
    of.iter().map(|one| one.name.as_str().into()).collect()
}

/// Whether the `mode` of a match applies to waypoints, which report as servers.
fn applies_to_servers(
    mode: Option<&str>,
    field: &str,
    notes: &mut Vec<Note>,
) -> Result<bool, FieldError> {
    match mode {
        None | Some("" | "CLIENT_AND_SERVER" | "SERVER") => Ok(true),
        Some("CLIENT") => {
            let message =
                "is for proxies of clients: a waypoint acts for servers, and does not follow it";
            notes.push(Note::new(field, message));
            Ok(false)
        }
        Some(other) => {
            let message = format!("{other:?} is none of CLIENT_AND_SERVER, CLIENT and SERVER");
            Err(FieldError::new(field, message))
        }
    }
}

pub(crate) fn parse_tracing(
    all: &[Tracing],
    notes: &mut Vec<Note>,
) -> Result<Vec<TracingSettings>, FieldError> {
    let mut parts = Vec::new();
    for (at, one) in all.iter().enumerate() {
        let field = |name: &str| format!("spec.tracing[{at}].{name}");
        let mode = one.r#match.as_ref().and_then(|one| one.mode.as_deref());
        if !applies_to_servers(mode, &field("match.mode"), notes)? {
            continue;
        }
        if one.providers.len() > 1 {
            let message = "names several providers: one can have the spans";
            return Err(FieldError::new(field("providers"), message));
        }
        let sampling = match one.random_sampling_percentage {
            None => None,
            Some(percentage) if (0.0..=100.0).contains(&percentage) =>
            {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "it is from 0 to 10000"
                )]
                Some((percentage * 100.0).round() as u32)
            }
            Some(other) => {
                let field = field("randomSamplingPercentage");
                return Err(FieldError::new(
                    field,
                    format!("{other} is not from 0 to 100"),
                ));
            }
        };
        parts.push(TracingSettings {
            providers: provider_names(&one.providers),
            sampling,
            is_disabled: one.disable_span_reporting,
            tags: (!one.custom_tags.is_empty())
                .then(|| parse_tags(one, &field("customTags")))
                .transpose()?,
            samples_by_request_id: one.use_request_id_for_trace_sampling,
            adds_istio_tags: one.enable_istio_tags,
            omits_trace_context: one.disable_context_propagation,
        });
    }
    Ok(parts)
}

fn parse_tags(of: &Tracing, field: &str) -> Result<Vec<TelemetryTag>, FieldError> {
    if of.custom_tags.len() > MAX_TAGS {
        return Err(FieldError::new(
            field,
            format!("has more than {MAX_TAGS} tags"),
        ));
    }
    let tag = |(name, tag): (&String, &CustomTag)| {
        let field = format!("{field}.{name}");
        let value = parse_tag_value(tag).map_err(|message| FieldError::new(field, message))?;
        Ok(TelemetryTag {
            name: name.as_str().into(),
            value,
        })
    };
    of.custom_tags.iter().map(tag).collect()
}

fn parse_tag_value(tag: &CustomTag) -> Result<TelemetryTagValue, String> {
    let CustomTag {
        literal,
        environment,
        header,
        formatter,
    } = tag;
    match (literal, environment, header, formatter) {
        (Some(literal), None, None, None) => {
            Ok(TelemetryTagValue::Literal(literal.value.as_str().into()))
        }
        (None, Some(named), None, None) if !named.name.is_empty() => {
            let (name, default) = (named.name.as_str(), named.default_value.as_str());
            Ok(TelemetryTagValue::Environment(name.into(), default.into()))
        }
        (None, None, Some(named), None) if is_header_name(&named.name) => {
            let name = named.name.to_ascii_lowercase();
            let default = named.default_value.as_str();
            Ok(TelemetryTagValue::Header(name.into(), default.into()))
        }
        (None, None, Some(named), None) => Err(format!("{:?} is no header's name", named.name)),
        (None, None, None, Some(formatter)) => {
            LogFormat::parse_text(&formatter.value).map_err(|error| error.to_string())?;
            Ok(TelemetryTagValue::Formatter(
                formatter.value.as_str().into(),
            ))
        }
        _ => Err("is not one of literal, environment, header and formatter".to_owned()),
    }
}

fn is_header_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

pub(crate) fn parse_access_logging(
    all: &[AccessLogging],
    notes: &mut Vec<Note>,
) -> Result<Vec<AccessLogSettings>, FieldError> {
    let mut parts = Vec::new();
    for (at, one) in all.iter().enumerate() {
        let field = |name: &str| format!("spec.accessLogging[{at}].{name}");
        let mode = one.r#match.as_ref().and_then(|one| one.mode.as_deref());
        if !applies_to_servers(mode, &field("match.mode"), notes)? {
            continue;
        }
        let filter = one.filter.as_ref().map(|filter| filter.expression.as_str());
        let filter = filter.filter(|text| !text.is_empty());
        if let Some(text) = filter {
            let error = |error| FieldError::new(field("filter.expression"), format!("{error}"));
            Expression::new(text).map_err(error)?;
        }
        parts.push(AccessLogSettings {
            providers: provider_names(&one.providers),
            is_disabled: one.disabled.unwrap_or_default(),
            filter: filter.map(ArcStr::from),
        });
    }
    Ok(parts)
}

pub(crate) fn parse_metrics(
    all: &[Metrics],
    notes: &mut Vec<Note>,
) -> Result<Vec<MetricSettings>, FieldError> {
    let mut parts = Vec::new();
    for (at, one) in all.iter().enumerate() {
        let field = |name: &str| format!("spec.metrics[{at}].{name}");
        if one.reporting_interval.is_some() {
            let message = "has no effect: the scraper of the metrics sets the interval";
            notes.push(Note::new(field("reportingInterval"), message));
        }
        let mut overrides = Vec::new();
        for (place, of) in one.overrides.iter().enumerate() {
            let field = field(&format!("overrides[{place}]"));
            overrides.extend(parse_override(of, &field, notes)?);
        }
        parts.push(MetricSettings {
            providers: provider_names(&one.providers),
            overrides,
        });
    }
    Ok(parts)
}

fn parse_override(
    of: &MetricsOverride,
    field: &str,
    notes: &mut Vec<Note>,
) -> Result<Option<MetricOverride>, FieldError> {
    let selector = of.r#match.clone().unwrap_or_default();
    if !applies_to_servers(
        selector.mode.as_deref(),
        &format!("{field}.match.mode"),
        notes,
    )? {
        return Ok(None);
    }
    if selector
        .custom_metric
        .as_ref()
        .is_some_and(|name| !name.is_empty())
    {
        let message = "is not supported: waypoints have Istio's standard metrics";
        notes.push(Note::new(format!("{field}.match.customMetric"), message));
        return Ok(None);
    }
    use TelemetryFamily as Family;
    let families = match selector.metric.as_deref() {
        None | Some("" | "ALL_METRICS") => Family::ALL.to_vec(),
        Some("REQUEST_COUNT") => vec![Family::RequestCount],
        Some("REQUEST_DURATION") => vec![Family::RequestDuration],
        Some("REQUEST_SIZE") => vec![Family::RequestSize],
        Some("RESPONSE_SIZE") => vec![Family::ResponseSize],
        Some("GRPC_REQUEST_MESSAGES") => vec![Family::RequestMessages],
        Some("GRPC_RESPONSE_MESSAGES") => vec![Family::ResponseMessages],
        Some("TCP_OPENED_CONNECTIONS") => vec![Family::OpenedConnections],
        Some("TCP_CLOSED_CONNECTIONS") => vec![Family::ClosedConnections],
        Some("TCP_SENT_BYTES") => vec![Family::SentBytes],
        Some("TCP_RECEIVED_BYTES") => vec![Family::ReceivedBytes],
        Some(other) => {
            let field = format!("{field}.match.metric");
            return Err(FieldError::new(
                field,
                format!("{other:?} is no metric of Istio's"),
            ));
        }
    };
    if of.tag_overrides.len() > MAX_TAGS {
        let message = format!("has more than {MAX_TAGS} tags");
        return Err(FieldError::new(format!("{field}.tagOverrides"), message));
    }
    let mut labels = Vec::new();
    for (name, one) in &of.tag_overrides {
        let field = format!("{field}.tagOverrides.{name}");
        let error = |message: String| FieldError::new(field.clone(), message);
        let is_name = name.bytes().enumerate().all(|(at, byte)| {
            byte.is_ascii_alphabetic() || byte == b'_' || at > 0 && byte.is_ascii_digit()
        });
        if name.is_empty() || !is_name || name == "le" {
            return Err(error("is no label's name".to_owned()));
        }
        let value = match one.operation.as_deref() {
            Some("REMOVE") => None,
            None | Some("" | "UPSERT") => {
                Expression::new(&one.value).map_err(|cause| error(cause.to_string()))?;
                Some(one.value.as_str().into())
            }
            Some(other) => return Err(error(format!("{other:?} is neither UPSERT nor REMOVE"))),
        };
        labels.push((name.as_str().into(), value));
    }
    Ok(Some(MetricOverride {
        families,
        is_disabled: of.disabled,
        labels,
    }))
}
