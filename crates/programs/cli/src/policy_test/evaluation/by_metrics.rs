//! Decisions about calls that only metrics record. If ports, paths or addresses matter, the result is undecided.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use ambit_authz::Connection;
use ambit_l7::authz::{self as l7, Scope};
use ambit_model::{GatewayName, NamespacedHostname, Protocol, Workload};

use super::{PolicyMesh, decision_from_explanation};
use crate::policy_test::{
    at_waypoint::WaypointPolicies,
    counted_calls::{CallCounter, CountedCalls},
    decision::CallDecision,
    observed::{ObservedCall, Observer, Request},
    readings::CallSource,
};

/// Caller, server and observing proxy of a call, by which counted calls are matched with log lines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CallPair {
    is_at_waypoint: bool,
    from: Caller,
    to: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Caller {
    /// Caller with a verified SPIFFE identity.
    Identified(String),
    /// Plaintext caller that is a known workload, `namespace/name`.
    NamedWorkload(String),
    /// Plaintext caller that is no known workload.
    Unknown,
    /// Caller that is missing in the metrics, since a Telemetry removed or changed the label.
    Unlabeled,
}

impl CallPair {
    /// Whether calls of this pair in log lines may be among the `counted` ones. Until a proxy has resolved an address,
    /// it counts the address's calls as from an unknown caller; log lines have the address.
    pub(super) fn covers(&self, counted: &Self) -> bool {
        let may_be = match counted.from {
            Caller::Unknown => !matches!(self.from, Caller::Identified(_)),
            Caller::Unlabeled => true,
            Caller::Identified(_) | Caller::NamedWorkload(_) => false,
        };
        (self.is_at_waypoint, &self.to) == (counted.is_at_waypoint, &counted.to)
            && (may_be || self.from == counted.from)
    }
}

/// Placeholder for an address that metrics do not record.
const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl PolicyMesh {
    /// Returns caller and server of a log line or an open connection; `None` if the server is unknown.
    pub(super) fn pair_of_observed(&self, call: &ObservedCall) -> Option<CallPair> {
        let is_at_waypoint = call.observer != Observer::NodeProxy;
        let caller = self.pod(call.from.ip());
        let identity = call.identity.clone().or_else(|| {
            let caller = caller.filter(|pod| is_at_waypoint && pod.protocol == Protocol::Hbone);
            caller.map(|pod| pod.identity())
        });
        let from = match (identity, caller) {
            (Some(identity), _) => Caller::Identified(identity.to_string()),
            (None, Some(pod)) => Caller::NamedWorkload(workload_name(pod)),
            (None, None) => Caller::Unknown,
        };
        let to = match self.service(call) {
            Some(service) => format!("{}/{}", service.namespace, service.hostname),
            None => workload_name(self.pod(call.to.ip())?),
        };
        Some(CallPair {
            is_at_waypoint,
            from,
            to,
        })
    }

    /// Returns caller and server of counted calls; `None` if the server is unknown.
    pub(super) fn pair_of_counted(counted: &CountedCalls) -> Option<CallPair> {
        let is_at_waypoint = counted.counter != CallCounter::PodConnections;
        let of = |(namespace, name): &(String, String)| format!("{namespace}/{name}");
        let from = match (&counted.identity, &counted.source_workload) {
            _ if !counted.has_source => Caller::Unlabeled,
            (Some(identity), _) => Caller::Identified(identity.to_string()),
            (None, Some(caller)) => Caller::NamedWorkload(of(caller)),
            (None, None) => Caller::Unknown,
        };
        if !counted.has_destination {
            return None;
        }
        let service = counted.service.as_ref().filter(|_| is_at_waypoint);
        let to = match service {
            Some((namespace, host, _)) => format!("{namespace}/{host}"),
            None => of(counted.destination_workload.as_ref()?),
        };
        Some(CallPair {
            is_at_waypoint,
            from,
            to,
        })
    }

    pub(super) fn decide_counted(&self, counted: &CountedCalls) -> CallDecision {
        let unknown = |what: &str, label: &str| {
            CallDecision::Undecided(format!(
                "metrics do not contain {what}: the label {label} is missing or replaced"
            ))
        };
        match counted.counter {
            _ if !counted.has_source => unknown("the caller", "source_principal"),
            _ if !counted.has_destination => unknown("the destination", "destination_service"),
            CallCounter::PodConnections => self.decide_counted_at_pod(counted),
            CallCounter::WaypointConnections | CallCounter::WaypointRequests => {
                self.decide_counted_at_waypoint(counted)
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

    fn decide_counted_at_pod(&self, counted: &CountedCalls) -> CallDecision {
        let pods = self.pods_of(counted.destination_workload.as_ref());
        let mut decisions: Vec<_> = pods
            .into_iter()
            .map(|pod| self.decide_at_any_port(pod, counted))
            .collect();
        decisions.dedup();
        match decisions.as_slice() {
            [one] => one.clone(),
            [] => undecided_for_missing_pod(counted),
            _ => {
                CallDecision::Undecided("the pods of the workload are not treated alike".to_owned())
            }
        }
    }

    fn decide_at_any_port(&self, pod: &Workload, counted: &CountedCalls) -> CallDecision {
        if pod.protocol != Protocol::Hbone {
            return CallDecision::Allowed;
        }
        let connection = Connection {
            source: counted.identity.clone(),
            source_ip: NO_ADDRESS,
            destination: (NO_ADDRESS, 0).into(),
        };
        let must_pass_waypoint = Self::must_pass_waypoint(pod, counted.identity.as_ref());
        let [most, least] =
            self.metric_policies
                .each_ref()
                .map(|policies| match must_pass_waypoint {
                    true => policies.explain_peer_authentication(pod, &connection),
                    false => policies.explain(pod, &connection),
                });
        if most.decision.allowed == least.decision.allowed {
            return decision_from_explanation(&least);
        }
        let differ = least.policies.iter().zip(&most.policies);
        let differ = differ.filter(|(least, most)| least.outcome != most.outcome);
        let names: Vec<_> = differ.map(|(one, _)| one.policy.to_string()).collect();
        CallDecision::Undecided(format!(
            "it depends on fields that metrics do not contain: ports or addresses in {}",
            names.join(", ")
        ))
    }

    fn decide_counted_at_waypoint(&self, counted: &CountedCalls) -> CallDecision {
        let host = counted
            .service
            .as_ref()
            .map(|(namespace, host, _)| NamespacedHostname::new(namespace.as_str(), host.as_str()));
        let gateways: BTreeSet<GatewayName> = match &host {
            Some(host) => {
                let of_it = self
                    .waypoint_services
                    .iter()
                    .filter(|(_, served)| served == host);
                of_it.map(|(gateway, _)| gateway.clone()).collect()
            }
            None => {
                let pods = self.pods_of(counted.destination_workload.as_ref());
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
        let request = (counted.counter == CallCounter::WaypointRequests).then_some(&request);
        let none = WaypointPolicies::new(CallSource::Metrics);
        for gateway in &gateways {
            let policies = self.metric_waypoint_policies.get(gateway).unwrap_or(&none);
            let Some(host) = &host else {
                // The called port is not recorded, nor so the services that forward to it.
                let pods = self.pods_of(counted.destination_workload.as_ref());
                let ports = pods.into_iter();
                let ports: Vec<_> = ports
                    .flat_map(|pod| self.service_ports(gateway, pod, (NO_ADDRESS, 0).into()))
                    .collect();
                let [none, all] = [&[][..], &ports]
                    .map(|ports| policies.decide(Scope::Pod(ports), &connection, request));
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
            let decision = policies.decide(Scope::Service(host), &connection, request);
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

fn undecided_for_missing_pod(counted: &CountedCalls) -> CallDecision {
    let called = counted.destination_workload.as_ref();
    let called = called.map(|(namespace, name)| format!("{namespace}/{name}"));
    CallDecision::Undecided(format!(
        "the destination {} is no longer a known workload",
        called.unwrap_or_else(|| "without a name".to_owned())
    ))
}
