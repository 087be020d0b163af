//! Decisions about calls that only metrics record. If ports, paths or addresses matter, the result is undecided.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use ambit_authz::Connection;
use ambit_l7::authz::{self as l7, Scope};
use ambit_model::{GatewayName, NamespacedHostname, Protocol, Workload};

use super::{Mesh, of_explanation};
use crate::rehearsal::{
    at_waypoint::AtWaypoint,
    counted::{CountedCalls, Counter},
    decision::CallDecision,
    observed::{ObservedCall, Observer, Request},
    readings::Knowledge,
};

/// Caller, server and observing proxy of a call, by which counted calls are matched with log lines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pair {
    is_at_waypoint: bool,
    from: Caller,
    to: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Caller {
    /// Caller with a verified SPIFFE identity.
    Proved(String),
    /// Plaintext caller that is a known workload, `namespace/name`.
    Named(String),
    /// Plaintext caller that is no known workload.
    Unknown,
    /// Caller that the metrics do not have, since a Telemetry removed or changed the label.
    Unlabeled,
}

impl Pair {
    /// Whether calls of this pair in log lines may be among the `counted` ones. Proxies count the first calls of an
    /// address as from an unknown caller until they have resolved it; log lines have the address.
    pub(super) fn covers(&self, counted: &Self) -> bool {
        let may_be = match counted.from {
            Caller::Unknown => !matches!(self.from, Caller::Proved(_)),
            Caller::Unlabeled => true,
            Caller::Proved(_) | Caller::Named(_) => false,
        };
        (self.is_at_waypoint, &self.to) == (counted.is_at_waypoint, &counted.to)
            && (may_be || self.from == counted.from)
    }
}

/// Placeholder for an address that metrics do not have.
const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl Mesh {
    /// Returns caller and server of a log line or an open connection; `None` if the server is unknown.
    pub(super) fn pair_of_seen(&self, seen: &ObservedCall) -> Option<Pair> {
        let is_at_waypoint = seen.at != Observer::Pod;
        let caller = self.pod(seen.from.ip());
        let identity = seen.identity.clone().or_else(|| {
            let caller = caller.filter(|pod| is_at_waypoint && pod.protocol == Protocol::Hbone);
            caller.map(|pod| pod.identity())
        });
        let from = match (identity, caller) {
            (Some(identity), _) => Caller::Proved(identity.to_string()),
            (None, Some(pod)) => Caller::Named(workload_name(pod)),
            (None, None) => Caller::Unknown,
        };
        let to = match self.service(seen) {
            Some(service) => format!("{}/{}", service.namespace, service.hostname),
            None => workload_name(self.pod(seen.to.ip())?),
        };
        Some(Pair {
            is_at_waypoint,
            from,
            to,
        })
    }

    /// Returns caller and server of counted calls; `None` if the server is unknown.
    pub(super) fn pair_of_counted(counted: &CountedCalls) -> Option<Pair> {
        let is_at_waypoint = counted.at != Counter::Pod;
        let of = |(namespace, name): &(String, String)| format!("{namespace}/{name}");
        let from = match (&counted.identity, &counted.caller) {
            _ if !counted.has_caller => Caller::Unlabeled,
            (Some(identity), _) => Caller::Proved(identity.to_string()),
            (None, Some(caller)) => Caller::Named(of(caller)),
            (None, None) => Caller::Unknown,
        };
        if !counted.has_called {
            return None;
        }
        let service = counted.service.as_ref().filter(|_| is_at_waypoint);
        let to = match service {
            Some((namespace, host, _)) => format!("{namespace}/{host}"),
            None => of(counted.called.as_ref()?),
        };
        Some(Pair {
            is_at_waypoint,
            from,
            to,
        })
    }

    pub(super) fn judge_counted(&self, counted: &CountedCalls) -> CallDecision {
        let unknown = |what: &str, label: &str| {
            CallDecision::Undecided(format!(
                "metrics do not contain {what}: the label {label} is missing or replaced"
            ))
        };
        match counted.at {
            _ if !counted.has_caller => unknown("the caller", "source_principal"),
            _ if !counted.has_called => unknown("the destination", "destination_service"),
            Counter::Pod => self.counted_at_pod(counted),
            Counter::WaypointConnections | Counter::WaypointRequests => {
                self.counted_at_waypoint(counted)
            }
        }
    }

    /// Returns the pods of a workload (namespace, name), sorted by uid.
    fn pods_of(&self, workload: Option<&(String, String)>) -> Vec<&Workload> {
        let Some((namespace, name)) = workload else {
            return Vec::new();
        };
        let all = self.by_address.values().map(|pod| &**pod);
        let found = all.filter(|pod| pod.namespace == *namespace && pod.workload_name == *name);
        let mut found: Vec<_> = found.collect();
        found.sort_by(|one, other| one.uid.cmp(&other.uid));
        found.dedup_by(|one, other| one.uid == other.uid);
        found
    }

    fn counted_at_pod(&self, counted: &CountedCalls) -> CallDecision {
        let pods = self.pods_of(counted.called.as_ref());
        let mut decisions: Vec<_> = pods
            .into_iter()
            .map(|pod| self.at_any_port_of(pod, counted))
            .collect();
        decisions.dedup();
        match decisions.as_slice() {
            [one] => one.clone(),
            [] => gone(counted),
            _ => {
                CallDecision::Undecided("the pods of the workload are not treated alike".to_owned())
            }
        }
    }

    fn at_any_port_of(&self, pod: &Workload, counted: &CountedCalls) -> CallDecision {
        if pod.protocol != Protocol::Hbone {
            return CallDecision::Allowed;
        }
        let connection = Connection {
            source: counted.identity.clone(),
            source_ip: NO_ADDRESS,
            destination: (NO_ADDRESS, 0).into(),
        };
        let must_pass_waypoint = Self::must_pass_waypoint(pod, counted.identity.as_ref());
        let [most, least] = self
            .by_metrics
            .each_ref()
            .map(|policies| match must_pass_waypoint {
                true => policies.explain_peer_authentication(pod, &connection),
                false => policies.explain(pod, &connection),
            });
        if most.decision.allowed == least.decision.allowed {
            return of_explanation(&least);
        }
        let differ = least.policies.iter().zip(&most.policies);
        let differ = differ.filter(|(least, most)| least.outcome != most.outcome);
        let names: Vec<_> = differ.map(|(one, _)| one.policy.to_string()).collect();
        CallDecision::Undecided(format!(
            "it depends on fields that metrics do not contain: ports or addresses in {}",
            names.join(", ")
        ))
    }

    fn counted_at_waypoint(&self, counted: &CountedCalls) -> CallDecision {
        let host = counted
            .service
            .as_ref()
            .map(|(namespace, host, _)| NamespacedHostname::new(namespace.as_str(), host.as_str()));
        let gateways: BTreeSet<GatewayName> = match &host {
            Some(host) => {
                let of_it = self.served.iter().filter(|(_, served)| served == host);
                of_it.map(|(gateway, _)| gateway.clone()).collect()
            }
            None => {
                let pods = self.pods_of(counted.called.as_ref());
                pods.into_iter().filter_map(Self::waypoint_of).collect()
            }
        };
        if gateways.is_empty() {
            return CallDecision::Undecided("no waypoint is before it now".to_owned());
        }
        let connection = l7::Connection {
            source: counted.identity.as_ref(),
            source_ip: NO_ADDRESS,
            remote_ip: NO_ADDRESS,
            destination: (NO_ADDRESS, 0).into(),
            sni: None,
        };
        let request = Request {
            path: "/".to_owned(),
            ..Request::default()
        };
        let request = (counted.at == Counter::WaypointRequests).then_some(&request);
        let none = AtWaypoint::new(Knowledge::ByMetrics);
        for gateway in &gateways {
            let policies = self.counted_at_waypoints.get(gateway).unwrap_or(&none);
            let Some(host) = &host else {
                // The called port is not recorded, nor so the services that forward to it.
                let pods = self.pods_of(counted.called.as_ref());
                let ports = pods.into_iter();
                let ports: Vec<_> = ports
                    .flat_map(|pod| self.service_ports(gateway, pod, (NO_ADDRESS, 0).into()))
                    .collect();
                let [none, all] = [&[][..], &ports]
                    .map(|ports| policies.judge(Scope::Pod(ports), &connection, request));
                if none != all {
                    return CallDecision::Undecided(
                        "it depends on fields that metrics do not contain: which services forward to the port"
                            .to_owned(),
                    );
                }
                if all != CallDecision::Allowed {
                    return all;
                }
                continue;
            };
            let decision = policies.judge(Scope::Service(host), &connection, request);
            if decision != CallDecision::Allowed {
                return decision;
            }
        }
        CallDecision::Allowed
    }
}

fn workload_name(pod: &Workload) -> String {
    format!("{}/{}", pod.namespace, pod.workload_name)
}

fn gone(counted: &CountedCalls) -> CallDecision {
    let called = counted.called.as_ref();
    let called = called.map(|(namespace, name)| format!("{namespace}/{name}"));
    CallDecision::Undecided(format!(
        "the destination {} is no longer a known workload",
        called.unwrap_or_else(|| "without a name".to_owned())
    ))
}
