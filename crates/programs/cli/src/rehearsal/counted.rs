//! What a proxy has counted, read from its metrics: who called whom and how often, and nothing else. Where nobody writes
//! logs it is all that is known.

use std::collections::BTreeMap;

use ambit_model::Identity;

/// Calls between two parties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Whose metrics tell it.
    pub(crate) at: Counter,
    /// That the caller proved.
    pub(crate) identity: Option<Identity>,
    /// Labels may be left out or changed (Telemetry): then nobody knows who called, or what.
    pub(crate) tells_caller: bool,
    pub(crate) tells_called: bool,
    /// Namespace and name of the caller's workload, where it is known.
    pub(crate) caller: Option<(String, String)>,
    /// The same of the one that was called.
    pub(crate) called: Option<(String, String)>,
    /// Namespace, host name and name of the service that was called.
    pub(crate) service: Option<(String, String, String)>,
    pub(crate) times: usize,
}

/// Who counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// The node proxy of the pod that was called: connections.
    Pod,
    /// A waypoint: connections that are not HTTP.
    WaypointConnections,
    /// A waypoint: requests.
    WaypointRequests,
}

/// Reads what a scrape tells.
pub(crate) fn read(scrape: &str) -> Vec<Counted> {
    let mut all: Vec<Counted> = Vec::new();
    for one in scrape.lines().filter_map(line) {
        // They may differ in what is not read: codes, flags, localities.
        let same = all.iter_mut().find(|other| {
            let with_own = Counted {
                times: other.times,
                ..one.clone()
            };
            **other == with_own
        });
        match same {
            Some(other) => other.times += one.times,
            None => all.push(one),
        }
    }
    all
}

fn line(line: &str) -> Option<Counted> {
    let (family, rest) = line.split_once('{')?;
    let (labels, value) = labels(rest)?;
    let known = |name: &str| {
        let text = labels.get(name)?;
        (!text.is_empty() && text != "unknown").then(|| text.clone())
    };
    let at = match (family, labels.get("reporter")?.as_str()) {
        ("istio_tcp_connections_opened_total", "destination") => Counter::Pod,
        ("istio_tcp_connections_opened_total", "waypoint") => Counter::WaypointConnections,
        ("istio_requests_total", "waypoint") => Counter::WaypointRequests,
        _ => return None,
    };
    let workload = |namespace: &str, name: &str| known(namespace).zip(known(name));
    let identity: Option<Identity> = known("source_principal").and_then(|text| text.parse().ok());
    let is_nobody = labels
        .get("source_principal")
        .is_some_and(|text| text == "unknown");
    let tells_called = at == Counter::Pod || labels.contains_key("destination_service");
    let service = known("destination_service_namespace")
        .zip(known("destination_service"))
        .zip(known("destination_service_name"));
    let times: f64 = value.split_whitespace().next()?.parse().ok()?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counters are whole numbers, and larger ones are cut"
    )]
    let times = times as usize;
    (times > 0).then_some(Counted {
        at,
        tells_caller: identity.is_some() || is_nobody,
        tells_called,
        identity,
        caller: workload("source_workload_namespace", "source_workload"),
        called: workload("destination_workload_namespace", "destination_workload"),
        service: service.map(|((namespace, host), name)| (namespace, host, name)),
        times,
    })
}

/// Reads labels, and what follows them.
fn labels(mut rest: &str) -> Option<(BTreeMap<&str, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        loop {
            let (at, c) = chars.next()?;
            match c {
                '"' => {
                    rest = quoted.get(at + 1..)?;
                    break;
                }
                '\\' => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                other => value.push(other),
            }
        }
        labels.insert(name, value);
    }
}
