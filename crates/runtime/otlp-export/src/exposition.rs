//! Parses metrics in OpenMetrics' text format.
//!
//! The text is the one that a scrape returns, so that Prometheus and a collector cannot receive different numbers.
//! prometheus-client has a protobuf encoder as well; it would add a protobuf compiler to the build of every program,
//! and its messages would have to be converted all the same. The text comes from this process: malformed lines are
//! skipped.

/// Type of a metric family, from its `# TYPE` line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
    Info,
    /// OpenMetrics' type `unknown`.
    Unknown,
}

/// Metric family with its samples.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Family {
    /// Name of the family, with which its samples' names begin.
    pub(crate) name: String,
    pub(crate) kind: MetricKind,
    pub(crate) help: String,
    /// Unit in OpenMetrics' notation, such as `seconds`; empty if there is none.
    pub(crate) unit: String,
    pub(crate) samples: Vec<Sample>,
}

/// Sample of a metric family: one line with labels and a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    /// Part of the sample's name that follows the family's: `_total`, `_bucket`, or nothing.
    pub(crate) suffix: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) value: Value,
}

/// Value of a sample; integers are stored exactly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Integer(i64),
    Float(f64),
}

impl Value {
    fn parse(text: &str) -> Option<Self> {
        text.parse()
            .map(Self::Integer)
            .or_else(|_| text.parse().map(Self::Float))
            .ok()
    }

    #[expect(clippy::cast_precision_loss, reason = "the type of sums and bounds")]
    pub(crate) fn as_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

/// Parses the metric families of a complete scrape response.
pub(crate) fn parse(text: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    let mut help = ("", "");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').unwrap_or((rest, ""));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
            families.push(Family {
                name: name.to_owned(),
                kind: match kind {
                    "counter" => MetricKind::Counter,
                    "gauge" => MetricKind::Gauge,
                    "histogram" => MetricKind::Histogram,
                    "info" => MetricKind::Info,
                    _ => MetricKind::Unknown,
                },
                help: match help {
                    (of, text) if of == name => text.to_owned(),
                    _ => String::new(),
                },
                unit: String::new(),
                samples: Vec::new(),
            });
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            if let (Some(family), Some((name, unit))) = (families.last_mut(), rest.split_once(' '))
                && family.name == name
            {
                family.unit = unit.to_owned();
            }
        } else if !line.starts_with('#')
            && let Some(family) = families.last_mut()
            && let Some(sample) = parse_sample(line, &family.name)
        {
            family.samples.push(sample);
        }
    }
    families
}

/// Parses a sample, `name_suffix{labels} value`; text after the value, such as an exemplar, is ignored.
fn parse_sample(line: &str, family: &str) -> Option<Sample> {
    let rest = line.strip_prefix(family)?;
    let (suffix, rest) = rest.split_at_checked(rest.find(['{', ' '])?)?;
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest)?,
        None => (Vec::new(), rest),
    };
    Some(Sample {
        suffix: suffix.to_owned(),
        labels,
        value: Value::parse(rest.split_ascii_whitespace().next()?)?,
    })
}

/// Label names and values of a sample.
type Labels = Vec<(String, String)>;

/// Parses `name="value",…}`, with the escapes `\\`, `\"` and `\n`; also returns the rest of the
/// line.
fn parse_labels(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, text) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = text.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((name.to_owned(), value));
        rest = text.get(end + 1..)?;
    }
}
