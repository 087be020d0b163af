//! `ambit workloads`, `services`, `policies`, `certificates`, `connections` and `log-level`.

use serde_json::{Value, json};

use crate::{
    CliError, ErrorKind,
    dump::{Dump, destination, text, texts},
    output::{self, Format, say, table},
    source::Source,
};

/// What most of these commands share.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Only this namespace
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

impl Inspect {
    fn show(
        &self,
        key: &str,
        header: &[&str],
        row: impl Fn(&Value) -> Vec<String>,
    ) -> Result<(), CliError> {
        let dump = self.source.dump()?;
        let wanted = |value: &&Value| {
            self.namespace
                .as_deref()
                .is_none_or(|namespace| text(value, "namespace") == namespace)
        };
        let mut values: Vec<_> = dump.list(key).into_iter().filter(wanted).collect();
        values.sort_by_key(|value| {
            (
                text(value, "namespace").to_owned(),
                text(value, "name").to_owned(),
            )
        });
        output::print(self.output, &values, || {
            table(header, values.iter().map(|value| row(value)))
        })
    }
}

pub(crate) fn workloads(args: &Inspect) -> Result<(), CliError> {
    let header = [
        "NAMESPACE",
        "NAME",
        "ADDRESS",
        "NODE",
        "PROTOCOL",
        "STATUS",
        "SERVICE ACCOUNT",
        "WAYPOINT",
    ];
    args.show("workloads", &header, |value| {
        vec![
            text(value, "namespace").into(),
            text(value, "name").into(),
            texts(value, "workloadIps").join(","),
            text(value, "node").into(),
            or(text(value, "protocol"), "TCP"),
            or(text(value, "status"), "Healthy"),
            or(text(value, "serviceAccount"), "default"),
            or(&destination(value, "waypoint"), "None"),
        ]
    })
}

pub(crate) fn services(args: &Inspect) -> Result<(), CliError> {
    let header = [
        "NAMESPACE",
        "NAME",
        "VIPS",
        "PORTS",
        "ENDPOINTS",
        "WAYPOINT",
    ];
    args.show("services", &header, |value| {
        let endpoints: Vec<_> = match value.get("endpoints") {
            Some(Value::Object(map)) => map.values().collect(),
            Some(Value::Array(list)) => list.iter().collect(),
            _ => Vec::new(),
        };
        let healthy = endpoints
            .iter()
            .filter(|e| or(text(e, "status"), "Healthy") == "Healthy");
        let count = match value.get("endpoints") {
            None => String::new(),
            Some(_) => format!("{}/{}", healthy.count(), endpoints.len()),
        };
        let vips = texts(value, "vips");
        let vips: Vec<_> = vips
            .iter()
            .map(|vip| vip.rsplit('/').next().unwrap_or(vip).to_owned())
            .collect();
        let ports = value.get("ports").and_then(Value::as_object);
        let ports = ports
            .into_iter()
            .flatten()
            .map(|(port, target)| format!("{port}>{target}"));
        vec![
            text(value, "namespace").into(),
            text(value, "name").into(),
            vips.join(","),
            ports.collect::<Vec<_>>().join(","),
            count,
            or(&destination(value, "waypoint"), "None"),
        ]
    })
}

pub(crate) fn policies(args: &Inspect) -> Result<(), CliError> {
    args.show(
        "policies",
        &["NAMESPACE", "NAME", "ACTION", "SCOPE", "RULES"],
        |value| {
            let dry = if value.get("dryRun").and_then(Value::as_bool) == Some(true) {
                " (dry run)"
            } else {
                ""
            };
            let rules = value
                .get("rules")
                .and_then(Value::as_array)
                .map_or(0, Vec::len);
            vec![
                text(value, "namespace").into(),
                text(value, "name").into(),
                format!("{}{dry}", or(text(value, "action"), "Allow")),
                or(text(value, "scope"), "Global"),
                rules.to_string(),
            ]
        },
    )
}

pub(crate) fn certificates(args: &Inspect) -> Result<(), CliError> {
    let header = [
        "IDENTITY",
        "KIND",
        "STATE",
        "SERIAL",
        "VALID FROM",
        "EXPIRES",
    ];
    let dump = args.source.dump()?;
    let certificates = dump.list("certificates");
    let rows = || {
        let mut rows = Vec::new();
        for entry in &certificates {
            for (kind, key) in [("Leaf", "certChain"), ("Root", "rootCerts")] {
                let chain = entry.get(key).and_then(Value::as_array);
                for (index, cert) in chain.into_iter().flatten().enumerate() {
                    let kind = if kind == "Leaf" && index > 0 {
                        "Intermediate"
                    } else {
                        kind
                    };
                    rows.push(vec![
                        text(entry, "identity").into(),
                        kind.into(),
                        text(entry, "state").into(),
                        text(cert, "serialNumber").into(),
                        text(cert, "validFrom").into(),
                        text(cert, "expirationTime").into(),
                    ]);
                }
            }
            if entry
                .get("certChain")
                .and_then(Value::as_array)
                .is_none_or(Vec::is_empty)
            {
                let mut row = vec![
                    text(entry, "identity").into(),
                    "-".into(),
                    text(entry, "state").into(),
                ];
                row.resize(header.len(), String::new());
                rows.push(row);
            }
        }
        rows
    };
    output::print(args.output, &certificates, || table(&header, rows()))
}

pub(crate) fn connections(args: &Inspect) -> Result<(), CliError> {
    let dump = args.source.dump()?;
    let states = open_connections(&dump, args.namespace.as_deref());
    let header = ["POD", "DIRECTION", "FROM", "TO", "VIA", "PROTOCOL"];
    output::print(args.output, &states, || {
        let row = |value: &Value| {
            [
                "pod",
                "direction",
                "src",
                "originalDst",
                "actualDst",
                "protocol",
            ]
            .map(|key| text(value, key).to_owned())
            .to_vec()
        };
        table(&header, states.iter().map(row))
    })
}

fn open_connections(dump: &Dump, namespace: Option<&str>) -> Vec<Value> {
    let mut all = Vec::new();
    for state in dump
        .map("workloadState")
        .into_iter()
        .flat_map(serde_json::Map::values)
    {
        let info = state.get("info").unwrap_or(&Value::Null);
        if namespace.is_some_and(|namespace| text(info, "namespace") != namespace) {
            continue;
        }
        let pod = format!("{}/{}", text(info, "namespace"), text(info, "name"));
        let connections = state.get("connections").and_then(Value::as_object);
        for (direction, list) in connections.into_iter().flatten() {
            for connection in list.as_array().into_iter().flatten() {
                let mut connection = connection.clone();
                if let Some(map) = connection.as_object_mut() {
                    map.insert("pod".into(), json!(pod));
                    map.insert("direction".into(), json!(direction));
                    all.push(connection);
                }
            }
        }
    }
    all
}

/// See [`log_level`].
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LogLevel {
    #[command(flatten)]
    pub(crate) source: Source,
    /// `level` or `level,scope=level`; shows the current one if left out
    pub(crate) level: Option<String>,
    /// Back to what the process was started with
    #[arg(long, conflicts_with = "level")]
    pub(crate) reset: bool,
}

pub(crate) fn log_level(args: &LogLevel) -> Result<(), CliError> {
    let path = match &args.level {
        Some(level) => {
            let fine = |c: char| c.is_ascii_alphanumeric() || "_-:=,.".contains(c);
            if !level.chars().all(fine) {
                let what = format!("{level:?} is no log level: write info, or info,access=debug");
                return Err(CliError::new(ErrorKind::Usage, what));
            }
            format!("/logging?level={level}")
        }
        None if args.reset => "/logging?reset".to_owned(),
        None => "/logging".to_owned(),
    };
    let answer = args.source.succeed("POST", &path)?;
    say(String::from_utf8_lossy(&answer).trim_end())
}

fn or(text: &str, default: &str) -> String {
    if text.is_empty() {
        default.to_owned()
    } else {
        text.to_owned()
    }
}
