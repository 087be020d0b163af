//! Counters from a proxy's metrics: numbers of calls by caller and server, for traffic without access logs.

use std::collections::{BTreeMap, HashMap};

use ambit_model::Identity;

/// Number of calls between one caller and one server, from metrics.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CountedCalls {
    /// Proxy and kind of the metric.
    pub(crate) counter: CallCounter,
    /// SPIFFE identity that the caller proved; `None` for plaintext.
    pub(crate) identity: Option<Identity>,
    /// Whether the metric has the caller's labels: a Telemetry may remove or change labels.
    pub(crate) has_source: bool,
    pub(crate) has_destination: bool,
    /// Namespace and name of the caller's workload, if known.
    pub(crate) source_workload: Option<(String, String)>,
    /// Namespace and name of the called workload, if known.
    pub(crate) destination_workload: Option<(String, String)>,
    /// Namespace, host name and name of the service that was called.
    pub(crate) service: Option<(String, String, String)>,
    pub(crate) count: usize,
}

/// Proxy that counted the calls, and the unit that it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CallCounter {
    /// Node proxy of the called pod, which counts connections.
    PodConnections,
    /// Waypoint, counting connections that are not HTTP.
    WaypointConnections,
    /// Waypoint, counting HTTP requests.
    WaypointRequests,
}

/// Parses the counters of calls in Prometheus text format, and adds up those with equal labels.
pub(crate) fn parse_metrics(scrape: &str) -> Vec<CountedCalls> {
    let mut all: Vec<CountedCalls> = Vec::new();
    let mut places = HashMap::new();
    for one in scrape.lines().filter_map(parse_line) {
        // They may differ in what is not read: codes, flags, localities.
        let between = CountedCalls {
            count: 0,
            ..one.clone()
        };
        let place = *places.entry(between).or_insert(all.len());
        match all.get_mut(place) {
            Some(same) => same.count += one.count,
            None => all.push(one),
        }
    }
    all
}

fn parse_line(line: &str) -> Option<CountedCalls> {
    let (family, rest) = line.split_once('{')?;
    let (labels, value) = parse_labels(rest)?;
    let known = |name: &str| {
        let text = labels.get(name)?;
        (!text.is_empty() && text != "unknown").then(|| text.clone())
    };
    let at = match (family, labels.get("reporter")?.as_str()) {
        ("istio_tcp_connections_opened_total", "destination") => CallCounter::PodConnections,
        ("istio_tcp_connections_opened_total", "waypoint") => CallCounter::WaypointConnections,
        ("istio_requests_total", "waypoint") => CallCounter::WaypointRequests,
        _ => return None,
    };
    let workload = |namespace: &str, name: &str| known(namespace).zip(known(name));
    let identity: Option<Identity> = known("source_principal").and_then(|text| text.parse().ok());
    let is_nobody = labels
        .get("source_principal")
        .is_some_and(|text| text == "unknown");
    let has_called =
        at == CallCounter::PodConnections || labels.contains_key("destination_service");
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
    (times > 0).then_some(CountedCalls {
        counter: at,
        has_source: identity.is_some() || is_nobody,
        has_destination: has_called,
        identity,
        source_workload: workload("source_workload_namespace", "source_workload"),
        destination_workload: workload("destination_workload_namespace", "destination_workload"),
        service: service.map(|((namespace, host), name)| (namespace, host, name)),
        count: times,
    })
}

/// Parses the labels of a Prometheus series, and returns them with the rest of the line.
fn parse_labels(mut rest: &str) -> Option<(BTreeMap<&str, String>, &str)> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(caller: &str, code: u16, count: usize) -> String {
        format!(
            "istio_requests_total{{reporter=\"waypoint\",source_workload=\"{caller}\",\
             source_workload_namespace=\"shop\",source_principal=\"spiffe://td/ns/shop/sa/{caller}\",\
             destination_service=\"web.shop.svc\",response_code=\"{code}\"}} {count}\n"
        )
    }

    #[test]
    fn only_relevant_labels_separate_counted_calls() {
        let scrape = [
            "# TYPE istio_requests counter\n".to_owned(),
            requests("a", 200, 2),
            requests("b", 200, 1),
            requests("a", 404, 3),
            "istio_requests_total{reporter=\"client\"} 7\n".to_owned(),
            requests("c", 200, 0),
        ];
        let counted: Vec<_> = parse_metrics(&scrape.concat())
            .into_iter()
            .map(|one| {
                (
                    one.identity.unwrap().to_string(),
                    one.source_workload,
                    one.count,
                )
            })
            .collect();
        let of = |name: &str, times| {
            let identity = format!("spiffe://td/ns/shop/sa/{name}");
            (identity, Some(("shop".to_owned(), name.to_owned())), times)
        };
        assert_eq!(counted, [of("a", 5), of("b", 1)]);
    }

    #[test]
    fn label_values_may_contain_escaped_delimiters() {
        let line = r#"istio_requests_total{reporter="waypoint",source_workload="a\"},b\\\nc",source_workload_namespace="n",source_principal="unknown"} 1"#;
        let counted = parse_metrics(line);
        assert_eq!(counted.len(), 1);
        let caller = counted.first().and_then(|one| one.source_workload.clone());
        assert_eq!(caller, Some(("n".to_owned(), "a\"},b\\\nc".to_owned())));
        assert!(
            counted
                .iter()
                .all(|one| one.has_source && !one.has_destination)
        );
        // Cut anywhere, nothing is made up.
        for end in 0..line.len() {
            assert_eq!(
                parse_metrics(line.get(..end).unwrap_or_default()),
                [],
                "{end}"
            );
        }
    }
}
