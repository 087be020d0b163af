//! Builders of mesh objects; every other field has the value that most tests need.

use ambit_model::{
    Action, ArcStr, Authorization, Identity, Match, NamespacedHostname, NetworkAddress, Protocol,
    Scope, Service, StringMatch, Workload, WorkloadKind,
};

/// Returns a captured pod of namespace `ns` on node `node1` with these addresses. The pod, its service account, its
/// workload and its canonical service are all called `name`.
pub fn workload(name: &str, ips: &[&str]) -> Workload {
    Workload {
        uid: format!("Kubernetes//Pod/ns/{name}").into(),
        name: name.into(),
        namespace: "ns".into(),
        workload_ips: ips
            .iter()
            .map(|ip| ip.parse().expect("an address"))
            .collect(),
        protocol: Protocol::Hbone,
        service_account: name.into(),
        workload_name: name.into(),
        workload_type: WorkloadKind::Pod,
        canonical_name: name.into(),
        canonical_revision: "latest".into(),
        node: "node1".into(),
        ..Workload::default()
    }
}

/// Returns a workload outside the mesh.
pub fn workload_outside_mesh(name: &str, ips: &[&str]) -> Workload {
    Workload {
        protocol: Protocol::Tcp,
        ..workload(name, ips)
    }
}

/// Makes a workload an endpoint of a service (`namespace/hostname`) with its own target ports.
pub fn make_endpoint(mut workload: Workload, service: &str, ports: &[(u16, u16)]) -> Workload {
    let service: NamespacedHostname = service.parse().expect("namespace/hostname");
    workload
        .services
        .insert(service, ports.iter().copied().collect());
    workload
}

/// Returns a service of namespace `ns` with host name `name.ns.svc.cluster.local`, virtual
/// addresses (`network/ip`, the network may be empty) and ports.
pub fn service(name: &str, vips: &[&str], ports: &[(u16, u16)]) -> Service {
    Service {
        name: name.into(),
        namespace: "ns".into(),
        hostname: format!("{name}.ns.svc.cluster.local").into(),
        vips: vips.iter().map(|vip| network_address(vip)).collect(),
        ports: ports.iter().copied().collect(),
        canonical: true,
        ..Service::default()
    }
}

/// Parses `network/ip`, or just `ip` in the empty network.
pub fn network_address(text: &str) -> NetworkAddress {
    let text = if text.contains('/') {
        text.to_owned()
    } else {
        format!("/{text}")
    };
    text.parse().expect("network/ip")
}

/// Returns an identity of the default trust domain.
pub fn identity(namespace: &str, service_account: &str) -> Identity {
    Identity::new("cluster.local", namespace, service_account)
}

/// Returns a policy of namespace `ns` that applies to the whole namespace, with one rule of one match.
pub fn policy(name: &str, action: Action, matching: Match) -> Authorization {
    Authorization {
        name: name.into(),
        namespace: "ns".into(),
        scope: Scope::Namespace,
        action,
        rules: vec![vec![vec![matching]]],
        dry_run: false,
        not_understood: None,
    }
}

/// Returns a match of one principal pattern (without `spiffe://`).
pub fn from_principal(pattern: &str) -> Match {
    Match {
        principals: vec![StringMatch::from_pattern(pattern)],
        ..Match::default()
    }
}

/// Returns a match of clients without an identity.
pub fn from_unauthenticated() -> Match {
    Match {
        not_principals: vec![StringMatch::Presence],
        ..Match::default()
    }
}

/// Makes a policy apply only to workloads that reference it, and adds the reference to a workload.
pub fn select_workload(workload: &mut Workload, policy: &mut Authorization) {
    policy.scope = Scope::WorkloadSelector;
    workload
        .authorization_policies
        .push(ArcStr::from(policy.key().to_string()));
}
