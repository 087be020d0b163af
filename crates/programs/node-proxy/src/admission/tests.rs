//! Tests policy decisions about connections while they are admitted.

use std::time::Duration;

use ambit_certificates::{Certificates, CertificatesOptions};
use ambit_codec::Authority;
use ambit_handover::Gate;
use ambit_model::{Action, ArcStr, PodName};
use ambit_proxy::{
    ConnectionDetails,
    connection_table::TrackedConnection,
    recheck::{GracePeriods, denial_reason},
    state::{MeshUpdate, SharedState, StateConfig},
};
use ambit_rt::Env;
use ambit_telemetry::Metrics;
use ambit_testkit::{FakeCa, Pki, build};
use tokio::time::Instant;

use super::*;
use crate::{config::Config, pod::Proxy};

fn pod(state: &SharedState) -> Arc<Pod> {
    pod_with(state, Arc::new(Metrics::default()))
}

fn pod_with(state: &SharedState, metrics: Arc<Metrics>) -> Arc<Pod> {
    let ca = FakeCa::new(Arc::new(Pki::new()), Duration::from_secs(3600));
    let proxy = Proxy {
        config: Arc::new(Config::from_env(&Env::from_pairs([("", ""); 0])).unwrap()),
        state: state.clone(),
        certificates: Certificates::start(Arc::new(ca), CertificatesOptions::default()),
        metrics,
        gate: Gate::default(),
    };
    let name = PodName {
        name: "server".into(),
        namespace: "ns".into(),
        service_account: "server".into(),
    };
    Pod::without_listeners(&proxy, name)
}

fn tracked(pod: &Pod) -> (TrackedConnection, Peer) {
    let shown = ConnectionDetails {
        src: ([10, 9, 0, 1], 40_000).into(),
        original_dst: Authority::Ip(([10, 9, 0, 4], 8080).into()),
        actual_dst: None,
        protocol: "TCP",
    };
    let who = Peer {
        source: None,
        source_ip: [10, 9, 0, 1].into(),
        destination: ([10, 9, 0, 4], 8080).into(),
    };
    (pod.connections().add_inbound(shown, who.clone()), who)
}

/// Checks the race in which a policy is attached, and connections are re-evaluated, between the authorization of a
/// connection and its entry in the connection table.
#[tokio::test]
async fn policy_attached_during_admission_applies() {
    let state = SharedState::new(StateConfig::default());
    state.mark_addresses_known();
    state.mark_policies_known();
    let mut workload = build::workload("server", &["10.9.0.4"]);
    let mut policy = build::policy("strict", Action::Deny, build::from_unauthenticated());
    state.apply(&mut vec![MeshUpdate::Workload(Box::new(workload.clone()))]);
    let pod = pod(&state);
    let read_before = pod.local_workload.wait_until_published().await.unwrap();
    assert!(read_before.workload.authorization_policies.is_empty());

    build::select_workload(&mut workload, &mut policy);
    state.apply(&mut vec![
        MeshUpdate::Policy(policy),
        MeshUpdate::Workload(Box::new(workload)),
    ]);
    let now = state.local_workload(pod.name()).unwrap();
    let mut graces = GracePeriods::new(Duration::ZERO, Some(Duration::ZERO));
    let cut = graces.recheck(pod.connections(), Instant::now(), |peer, course| {
        denial_reason(&state, &now, peer, course)
    });
    assert_eq!(cut, 0);

    let (tracked, who) = tracked(&pod);
    assert!(matches!(
        DenialReason::authorize(&pod, &who, &tracked.handle()),
        Err(DenialReason::ByPolicy(_))
    ));
}

#[tokio::test]
async fn dry_run_policy_denies_nothing_and_counts_denials() {
    let state = SharedState::new(StateConfig::default());
    state.mark_addresses_known();
    state.mark_policies_known();
    let mut workload = build::workload("server", &["10.9.0.4"]);
    let mut policy = build::policy("trial", Action::Deny, build::from_unauthenticated());
    build::select_workload(&mut workload, &mut policy);
    policy.dry_run = true;
    let name = policy.key().to_string();
    state.apply(&mut vec![
        MeshUpdate::Policy(policy),
        MeshUpdate::Workload(Box::new(workload)),
    ]);
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = Arc::new(Metrics::register(&mut registry));
    let pod = pod_with(&state, metrics);
    assert!(pod.local_workload.wait_until_published().await.is_some());
    let (tracked, who) = tracked(&pod);
    assert!(DenialReason::authorize(&pod, &who, &tracked.handle()).is_ok());
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let line = format!("ambit_connections_dry_run_denied_total{{policy=\"{name}\"}} 1");
    assert!(text.contains(&line), "{text}");
}

#[tokio::test]
async fn connection_to_a_pod_without_a_record_is_denied() {
    let state = SharedState::new(StateConfig::default());
    state.mark_addresses_known();
    state.mark_policies_known();
    let workload = build::workload("server", &["10.9.0.4"]);
    let uid: ArcStr = workload.uid.clone();
    state.apply(&mut vec![MeshUpdate::Workload(Box::new(workload))]);
    let pod = pod(&state);
    assert!(pod.local_workload.wait_until_published().await.is_some());
    let (tracked, who) = tracked(&pod);
    assert!(DenialReason::authorize(&pod, &who, &tracked.handle()).is_ok());
    state.apply(&mut vec![MeshUpdate::AddressRemoved(uid)]);
    assert!(matches!(
        DenialReason::authorize(&pod, &who, &tracked.handle()),
        Err(DenialReason::PodGone)
    ));
}
