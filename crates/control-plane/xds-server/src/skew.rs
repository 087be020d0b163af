//! Detects waypoints of an earlier version that do not subscribe to every record type that their Gateways have. Does no
//! IO.
//!
//! A waypoint subscribes to all types that it knows as soon as it has connected. Objects of a type that it does not
//! know have no effect there, which the conditions of these objects do not report.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use ambit_derive::problem::{Problem, Severity};
use ambit_k8s_api::{Kind, ObjectKey};
use ambit_model::{GatewayName, WaypointRecordType};

use crate::{resource::ResourceType, scope::Client, sessions::SessionStatus, store::Store};

/// Time after a waypoint connects until all its subscriptions are expected.
const SUBSCRIPTION_GRACE_PERIOD: Duration = Duration::from_secs(10);

/// Returns a problem for each Gateway that has records of a type to which its connected waypoints do not subscribe.
pub fn subscription_problems(
    sessions: &[SessionStatus],
    store: &Store,
    now: SystemTime,
) -> Vec<Problem> {
    let mut behind = BTreeMap::<_, Vec<String>>::new();
    for session in sessions {
        let since = now.duration_since(session.opened_at).unwrap_or_default();
        if since < SUBSCRIPTION_GRACE_PERIOD || !is_waypoint(session) {
            continue;
        }
        let caller = &session.caller;
        let gateway = GatewayName::new(caller.namespace.clone(), caller.service_account.clone());
        for of in WaypointRecordType::ALL {
            if !is_subscribed_to(session, *of) && count_records(store, &gateway, *of) > 0 {
                let pods = behind.entry((gateway.clone(), *of)).or_default();
                pods.push(pod_name_and_version(session));
            }
        }
    }
    let problem = |((gateway, of), mut pods): ((GatewayName, WaypointRecordType), Vec<String>)| {
        pods.sort();
        let message = format!(
            "{} do not follow {}, of which the Gateway has {}: these objects have no effect there until the waypoint \
             has this control plane's version, {}",
            pods.join(", "),
            of.config_dump_key(),
            count_records(store, &gateway, of),
            env!("CARGO_PKG_VERSION"),
        );
        Problem {
            severity: Severity::Warning,
            object: ObjectKey::new(Kind::Gateway, gateway.namespace, gateway.name),
            field: "status".to_owned(),
            message,
            origin: None,
        }
    };
    behind.into_iter().map(problem).collect()
}

/// Returns whether a client is a waypoint, by its subscriptions: only waypoints may subscribe to waypoints' records.
fn is_waypoint(session: &SessionStatus) -> bool {
    let mut types = WaypointRecordType::ALL.iter();
    types.any(|of| is_subscribed_to(session, *of))
}

fn is_subscribed_to(session: &SessionStatus, of: WaypointRecordType) -> bool {
    let mut all = session.subscriptions.iter();
    all.any(|one| one.resource_type == ResourceType::Waypoint(of))
}

/// Returns the number of records of one type that a Gateway has.
fn count_records(store: &Store, gateway: &GatewayName, of: WaypointRecordType) -> usize {
    let client = Client {
        node: "".into(),
        waypoint: Some(gateway.clone()),
    };
    let view = client.view(ResourceType::Waypoint(of));
    view.map_or(0, |view| store.visible_records(&view).count())
}

/// Returns name and version of the waypoint pod that opened a stream.
fn pod_name_and_version(session: &SessionStatus) -> String {
    let pod = session.caller.pod.as_ref();
    let name = pod.map_or(session.peer_address.as_str(), |pod| pod.name.as_str());
    let version = session.node.as_ref().map(|node| node.version.as_str());
    match version.filter(|version| !version.is_empty()) {
        Some(version) => format!("{name} (version {version})"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ambit_caller_auth::{BoundPod, Caller};
    use ambit_derive::Delta;
    use ambit_model::{PolicyKey, RateLimit, WaypointGateway, WaypointRecord, WaypointRecordKey};

    use super::*;
    use crate::{node::NodeInfo, session::SubscriptionStatus};

    const START: SystemTime = SystemTime::UNIX_EPOCH;

    /// Returns a store with a Gateway's own record and a rate limit.
    fn store(gateway: &str) -> Store {
        let gateway = GatewayName::new("shop", gateway);
        let key = PolicyKey {
            namespace: "shop".into(),
            name: "limit".into(),
        };
        let records: [WaypointRecord; 2] = [
            WaypointGateway {
                gateway: gateway.clone(),
                ..WaypointGateway::default()
            }
            .into(),
            RateLimit {
                key,
                ..RateLimit::default()
            }
            .into(),
        ];
        let changed = |record: WaypointRecord| {
            let key = WaypointRecordKey::new(gateway.clone(), &record);
            (key, Some(Arc::new(record)))
        };
        let mut store = Store::default();
        store.update(&Delta {
            waypoint_records: records.map(changed).into(),
            ..Delta::default()
        });
        store
    }

    fn session(pod: &str, account: &str, subscribed: &[WaypointRecordType]) -> SessionStatus {
        let subscription = |of: &WaypointRecordType| SubscriptionStatus {
            resource_type: ResourceType::Waypoint(*of),
            sent_nonce: String::new(),
            acknowledged_nonce: String::new(),
            is_wildcard: true,
            name_count: 0,
            error: None,
        };
        SessionStatus {
            node: Some(NodeInfo {
                id: "waypoint~10.0.0.1~wp.shop~local".into(),
                node_name: "n1".into(),
                version: "0.0.1".into(),
            }),
            caller: Caller {
                namespace: "shop".into(),
                service_account: account.into(),
                pod: Some(BoundPod {
                    name: pod.into(),
                    uid: "1".to_owned(),
                }),
            },
            peer_address: "10.0.0.1:1".to_owned(),
            opened_at: START,
            subscriptions: subscribed.iter().map(subscription).collect(),
        }
    }

    fn problems_after(sessions: &[SessionStatus], gateway: &str, after: u64) -> Vec<String> {
        let now = START + Duration::from_secs(after);
        let problems = subscription_problems(sessions, &store(gateway), now);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn waypoint_without_a_subscription_is_reported() {
        let earlier: Vec<_> = WaypointRecordType::ALL
            .iter()
            .copied()
            .filter(|of| *of != WaypointRecordType::RateLimit)
            .collect();
        let current = session("wp-3", "wp", WaypointRecordType::ALL);
        let sessions = [
            session("wp-2", "wp", &earlier),
            session("wp-1", "wp", &earlier),
            current,
        ];
        let problems = problems_after(&sessions, "wp", 60);
        let [problem] = problems.as_slice() else {
            panic!("{problems:?}");
        };
        assert!(problem.starts_with("Gateway shop/wp: "), "{problem}");
        let pods = "wp-1 (version 0.0.1), wp-2 (version 0.0.1) do not follow";
        assert!(problem.contains(pods), "{problem}");
        assert!(problem.contains("of which the Gateway has 1"), "{problem}");
        // The subscriptions of a new stream may be incomplete.
        assert_eq!(problems_after(&sessions, "wp", 5), [""; 0]);
        // Without such objects nothing is missing.
        assert_eq!(problems_after(&sessions, "other", 60), [""; 0]);
    }

    #[test]
    fn clients_other_than_waypoints_are_not_reported() {
        assert_eq!(
            problems_after(&[session("zt", "wp", &[])], "wp", 60),
            [""; 0]
        );
    }
}
