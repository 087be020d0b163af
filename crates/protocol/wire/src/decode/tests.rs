//! Tests of round trips through [`crate::encode`], and of records that are rejected.

use std::net::IpAddr;

use ambit_model::{self as model, ArcStr};
use bytes::Bytes;
use ipnet::IpNet;
use proptest::{collection::vec, option, prelude::*};
use prost::Message;

use super::*;
use crate::{security, workload as wire};

fn text() -> impl Strategy<Value = ArcStr> {
    "[a-z][a-z0-9.-]{0,8}".prop_map(ArcStr::from)
}

fn address() -> impl Strategy<Value = IpAddr> {
    any::<IpAddr>().prop_map(|ip| ip.to_canonical())
}

fn net() -> impl Strategy<Value = IpNet> {
    (address(), 0..=128u8).prop_map(|(ip, length)| {
        let length = if ip.is_ipv4() { length.min(32) } else { length };
        IpNet::new(ip, length).unwrap().trunc()
    })
}

fn network_address() -> impl Strategy<Value = model::NetworkAddress> {
    (text(), address()).prop_map(|(network, ip)| model::NetworkAddress::new(network, ip))
}

fn hostname() -> impl Strategy<Value = model::NamespacedHostname> {
    (text(), text()).prop_map(|(ns, host)| model::NamespacedHostname::new(ns, host))
}

fn gateway_address() -> impl Strategy<Value = model::GatewayAddress> {
    let destination = prop_oneof![
        network_address().prop_map(model::GatewayDestination::Address),
        hostname().prop_map(model::GatewayDestination::Hostname),
    ];
    (destination, any::<u16>()).prop_map(|(destination, hbone_mtls_port)| model::GatewayAddress {
        destination,
        hbone_mtls_port,
    })
}

prop_compose! {
    fn waypoint_rule()(
        ports in vec(any::<u16>(), 0..3),
        principals in vec(string_match(), 0..3),
        namespaces in vec(string_match(), 0..3),
    ) -> model::WaypointRule {
        model::WaypointRule { ports, principals, namespaces }
    }
}

prop_compose! {
    fn endpoint_waypoint()(
        waypoint in gateway_address(),
        ids in vec((text(), text(), text()), 0..3),
        enforce in any::<bool>(),
        refuse in any::<bool>(),
        for_services in any::<bool>(),
        rules in option::of(vec(waypoint_rule(), 0..3)),
    ) -> model::EndpointWaypoint {
        let identities =
            ids.into_iter().map(|(td, ns, sa)| model::Identity::new(td, ns, sa)).collect();
        model::EndpointWaypoint { waypoint, identities, enforce, refuse, for_services, rules }
    }
}

prop_compose! {
    fn workload()(
        names in vec(text(), 8),
        ips in vec(address(), 0..3),
        (trust_domain, service_account, cluster_id) in (text(), text(), text()),
        flags in any::<[bool; 4]>(),
        waypoint in option::of(gateway_address()),
        network_gateway in option::of(gateway_address()),
        attached in option::of(endpoint_waypoint()),
        services in proptest::collection::btree_map(
            hostname(),
            vec((any::<u16>(), any::<u16>()), 0..3),
            0..3,
        ),
        policies in vec(text(), 0..3),
        capacity in any::<u32>(),
        kind in 0..4usize,
        tunnel in option::of((any::<bool>(), option::of(1..=u16::MAX))),
    ) -> model::Workload {
        use model::{AppTunnelProtocol, NetworkMode, Protocol, WorkloadKind, WorkloadStatus};
        let mut names = names.into_iter();
        let mut next = || names.next().unwrap_or_default();
        model::Workload {
            uid: next(),
            name: next(),
            namespace: next(),
            network: next(),
            node: next(),
            workload_name: next(),
            canonical_name: next(),
            hostname: next(),
            workload_ips: ips,
            trust_domain,
            service_account,
            cluster_id,
            protocol: if flags[0] { Protocol::Hbone } else { Protocol::Tcp },
            network_mode: if flags[1] { NetworkMode::HostNetwork } else { NetworkMode::Standard },
            status: if flags[2] { WorkloadStatus::Unhealthy } else { WorkloadStatus::Healthy },
            native_tunnel: flags[3],
            workload_type: [
                WorkloadKind::Deployment, WorkloadKind::Cronjob, WorkloadKind::Pod, WorkloadKind::Job,
            ][kind],
            waypoint,
            network_gateway,
            endpoint_waypoint: attached,
            services: services
                .into_iter()
                .map(|(name, ports)| (name, ports.into_iter().collect()))
                .collect(),
            authorization_policies: policies,
            capacity,
            application_tunnel: tunnel.map(|(proxy, port)| model::AppTunnel {
                protocol: if proxy { AppTunnelProtocol::Proxy } else { AppTunnelProtocol::None },
                port,
            }),
            ..model::Workload::default()
        }
    }
}

prop_compose! {
    fn service()(
        (name, namespace, host) in (text(), text(), text()),
        vips in vec(network_address(), 0..3),
        cidrs in vec((text(), net()), 0..3),
        ports in vec((any::<u16>(), any::<u16>()), 0..3),
        sans in vec(text(), 0..2),
        waypoint in option::of(gateway_address()),
        weighted in vec((gateway_address(), any::<u32>()), 0..3),
        lb in option::of((vec(0..6usize, 0..4), 0..4usize, any::<bool>())),
        families in 0..4usize,
        flags in any::<[bool; 3]>(),
    ) -> model::Service {
        use model::{HealthPolicy, IpFamilies, LbMode, LbScope, Visibility};
        let scopes = [
            LbScope::Region, LbScope::Zone, LbScope::Subzone, LbScope::Node, LbScope::Cluster,
            LbScope::Network,
        ];
        let modes = [LbMode::Standard, LbMode::Strict, LbMode::Failover, LbMode::Passthrough];
        model::Service {
            name,
            namespace,
            hostname: host,
            vips,
            cidr_vips: cidrs
                .into_iter()
                // A prefix of one address is written, and read, as that address.
                .filter(|(_, cidr)| cidr.prefix_len() != cidr.max_prefix_len())
                .map(|(network, cidr)| model::CidrVip { network, cidr })
                .collect(),
            // Of a port that is given twice the last counts.
            app_protocols: ports
                .iter()
                .map(|(number, _)| (*number, model::AppProtocol::Http2))
                .collect(),
            ports: ports.into_iter().collect(),
            subject_alt_names: sans,
            waypoint,
            weighted_waypoints: weighted
                .into_iter()
                .map(|(destination, weight)| model::WeightedWaypoint { destination, weight })
                .collect(),
            load_balancing: lb.map(|(preferences, mode, all)| model::LoadBalancing {
                routing_preferences: preferences.into_iter().map(|index| scopes[index]).collect(),
                mode: modes[mode],
                health_policy:
                    if all { HealthPolicy::AllowAll } else { HealthPolicy::OnlyHealthy },
            }),
            ip_families: [
                None, Some(IpFamilies::Ipv4), Some(IpFamilies::Ipv6), Some(IpFamilies::Dual),
            ][families],
            session_affinity: flags[2],
            canonical: flags[0],
            visibility: if flags[1] { Visibility::Namespace } else { Visibility::Public },
        }
    }
}

fn string_match() -> impl Strategy<Value = model::StringMatch> {
    prop_oneof![
        text().prop_map(model::StringMatch::Exact),
        text().prop_map(model::StringMatch::Prefix),
        text().prop_map(model::StringMatch::Suffix),
        Just(model::StringMatch::Presence),
    ]
}

prop_compose! {
    fn rbac_match()(
        texts in vec(vec(string_match(), 0..2), 4),
        nets in vec(vec(net(), 0..2), 4),
        ports in vec(vec(any::<u16>(), 0..2), 2),
        accounts in vec(vec((text(), text()), 0..2), 2),
    ) -> model::Match {
        let account = |index: usize| accounts[index]
            .iter()
            .map(|(namespace, account)| model::ServiceAccountMatch {
                namespace: namespace.clone(),
                service_account: account.clone(),
            })
            .collect();
        model::Match {
            namespaces: texts[0].clone(),
            not_namespaces: texts[1].clone(),
            principals: texts[2].clone(),
            not_principals: texts[3].clone(),
            service_accounts: account(0),
            not_service_accounts: account(1),
            source_ips: nets[0].clone(),
            not_source_ips: nets[1].clone(),
            destination_ips: nets[2].clone(),
            not_destination_ips: nets[3].clone(),
            destination_ports: ports[0].clone(),
            not_destination_ports: ports[1].clone(),
        }
    }
}

proptest! {
    #[test]
    fn a_workload_comes_back_as_it_was_sent(workload in workload()) {
        let bytes = wire::Address::from(wire::Workload::from(&workload)).encode_to_vec();
        prop_assert_eq!(
            AddressRecord::decode(&bytes).unwrap(),
            AddressRecord::Workload(Box::new(workload))
        );
    }

    #[test]
    fn a_service_comes_back_as_it_was_sent(service in service()) {
        let bytes = wire::Address::from(wire::Service::from(&service)).encode_to_vec();
        prop_assert_eq!(
            AddressRecord::decode(&bytes).unwrap(),
            AddressRecord::Service(Box::new(service))
        );
    }

    #[test]
    fn a_policy_comes_back_as_it_was_sent(
        (name, namespace) in (text(), text()),
        rules in vec(vec(vec(rbac_match(), 1..3), 0..3), 0..3),
        flags in any::<[bool; 2]>(),
        scope in 0..3usize,
    ) {
        let policy = model::Authorization {
            name,
            namespace,
            scope: [
                model::Scope::Global, model::Scope::Namespace, model::Scope::WorkloadSelector,
            ][scope],
            action: if flags[0] { model::Action::Allow } else { model::Action::Deny },
            rules,
            dry_run: flags[1],
            not_understood: None,
        };
        let bytes = security::Authorization::from(&policy).encode_to_vec();
        prop_assert_eq!(decode_authorization(&bytes).unwrap(), policy);
    }

    #[test]
    fn no_bytes_whatever_panic(bytes in vec(any::<u8>(), 0..200)) {
        drop(AddressRecord::decode(&bytes));
        drop(decode_authorization(&bytes));
        drop(decode_policy("ns/p", &bytes));
        AddressRecord::unknown_field_count(&bytes);
        drop(LazyDeltaResponse::decode(bytes.as_slice()));
        drop(LazyResource::decode_envelope(Bytes::from(bytes)));
    }
}

fn valid_workload() -> wire::Workload {
    wire::Workload {
        uid: "c//Pod/ns/a".into(),
        ..wire::Workload::default()
    }
}

fn decode_error_text(workload: wire::Workload) -> String {
    model::Workload::try_from(workload).unwrap_err().to_string()
}

#[test]
fn defaults_are_filled_in() {
    let workload = model::Workload::try_from(valid_workload()).unwrap();
    assert_eq!(
        workload.identity().to_string(),
        "spiffe://cluster.local/ns//sa/default"
    );
    assert_eq!(
        (workload.cluster_id.as_str(), workload.capacity),
        ("Kubernetes", 1)
    );
}

#[test]
fn mapped_addresses_are_read_as_ipv4() {
    let mapped = "::ffff:10.0.0.1"
        .parse::<std::net::Ipv6Addr>()
        .unwrap()
        .octets();
    let workload = wire::Workload {
        addresses: vec![Bytes::copy_from_slice(&mapped)],
        ..valid_workload()
    };
    let workload = model::Workload::try_from(workload).unwrap();
    assert_eq!(
        workload.workload_ips,
        ["10.0.0.1".parse::<IpAddr>().unwrap()]
    );
    assert_eq!(
        decode_prefix("x", &mapped, 104).unwrap(),
        "10.0.0.0/8".parse().unwrap()
    );
    assert_eq!(
        decode_prefix("x", &mapped, 64).unwrap(),
        "::/64".parse().unwrap()
    );
}

#[test]
fn what_cannot_be_understood_in_full_is_refused_with_its_field() {
    let odd = wire::Workload {
        addresses: vec![Bytes::from_static(b"12345")],
        ..valid_workload()
    };
    assert!(decode_error_text(odd).starts_with("workload.addresses: an address of 5 bytes"));

    let nameless = wire::Workload::default();
    assert_eq!(decode_error_text(nameless), "workload.uid: is missing");

    let legacy = wire::Workload {
        tunnel_protocol: 2,
        ..valid_workload()
    };
    assert!(decode_error_text(legacy).contains("legacy"));

    let unknown = wire::Workload {
        status: 9,
        ..valid_workload()
    };
    assert_eq!(
        decode_error_text(unknown),
        "workload.status: unknown value 9"
    );

    let nowhere = wire::Workload {
        waypoint: Some(wire::GatewayAddress::default()),
        ..valid_workload()
    };
    assert_eq!(decode_error_text(nowhere), "workload.waypoint: is missing");

    let mut flat = valid_workload();
    flat.services
        .insert("no-namespace".into(), wire::PortList::default());
    assert!(decode_error_text(flat).contains("no-namespace"));

    let extension = wire::Extension {
        name: "ambit.io/waypoint".into(),
        config: None,
    };
    let attached = wire::Workload {
        extensions: vec![extension],
        ..valid_workload()
    };
    assert!(decode_error_text(attached).contains("ambit.io/waypoint"));
}

#[test]
fn an_unknown_visibility_means_public() {
    let service = wire::Service {
        hostname: "a".into(),
        visibility: 7,
        ..wire::Service::default()
    };
    let service = model::Service::try_from(service).unwrap();
    assert_eq!(service.visibility, model::Visibility::Public);
}

#[test]
fn a_prefix_of_one_address_is_that_address() {
    let at = wire::NetworkAddress {
        network: String::new(),
        address: Bytes::from_static(&[10, 0, 0, 1]),
        length: Some(32),
    };
    let service = wire::Service {
        hostname: "a".into(),
        addresses: vec![at],
        ..wire::Service::default()
    };
    let service = model::Service::try_from(service).unwrap();
    assert_eq!(service.vips[0].to_string(), "/10.0.0.1");
    assert!(service.cidr_vips.is_empty());
}

#[test]
fn a_policy_that_would_lose_a_part_is_refused() {
    let with = |m: security::Match| {
        let policy = security::Authorization {
            name: "p".into(),
            rules: vec![security::Rule {
                clauses: vec![security::Clause { matches: vec![m] }],
            }],
            ..security::Authorization::default()
        };
        decode_authorization(&policy.encode_to_vec())
            .unwrap_err()
            .to_string()
    };
    let net = |bytes: &'static [u8], length| security::Address {
        address: Bytes::from_static(bytes),
        length,
    };
    let m = security::Match {
        source_ips: vec![net(b"abc", 8)],
        ..security::Match::default()
    };
    assert!(with(m).starts_with("match.source_ips: an address of 3 bytes"));
    let m = security::Match {
        not_destination_ips: vec![net(b"abcd", 33)],
        ..security::Match::default()
    };
    assert!(with(m).starts_with("match.not_destination_ips: a prefix of 33 bits"));
    let m = security::Match {
        principals: vec![security::StringMatch { match_type: None }],
        ..security::Match::default()
    };
    assert_eq!(with(m), "match.principals: a match without a value");
    let m = security::Match {
        destination_ports: vec![65536],
        ..security::Match::default()
    };
    assert_eq!(with(m), "match.destination_ports: 65536 is not a port");
}

#[test]
fn what_is_unknown_in_a_policy_is_found_at_any_depth() {
    /// Encoded field with the unknown number 99 and an empty text.
    const UNKNOWN_FIELD: [u8; 3] = [0x9a, 0x06, 0];
    let nested = |message: &[u8], field: u8| {
        let length = u8::try_from(message.len()).unwrap();
        [&[field << 3 | 2, length], message].concat()
    };
    let presence = nested(&UNKNOWN_FIELD, 4);
    let matching = nested(&presence, 3);
    let clause = nested(&matching, 2);
    let rule = nested(&clause, 1);
    let name = nested(b"p", 1);
    for (bytes, message) in [
        (UNKNOWN_FIELD.to_vec(), "istio.security.Authorization"),
        (nested(&UNKNOWN_FIELD, 5), "istio.security.Rule"),
        (
            nested(&nested(&UNKNOWN_FIELD, 1), 5),
            "istio.security.Clause",
        ),
        (
            nested(&nested(&nested(&UNKNOWN_FIELD, 2), 1), 5),
            "istio.security.Match",
        ),
        (nested(&rule, 5), "google.protobuf.Empty"),
    ] {
        let error = decode_authorization(&[&name[..], &bytes].concat()).unwrap_err();
        assert_eq!(error.to_string(), format!("{message}: field 99 is unknown"));
    }
    // The place of `matches` is not the first, which earlier versions of Ambit took it for.
    let old = [&name[..], &nested(&nested(&nested(&[], 1), 1), 5)].concat();
    let error = decode_authorization(&old).unwrap_err().to_string();
    assert_eq!(error, "istio.security.Clause: field 1 is unknown");
}

#[test]
fn a_policy_not_understood_is_replaced_by_a_deny_all_in_its_scope() {
    let sent =
        |policy: &security::Authorization, tail: &[u8]| [&policy.encode_to_vec(), tail].concat();
    let of = |scope: i32| security::Authorization {
        name: "p".into(),
        namespace: "ns".into(),
        scope,
        ..security::Authorization::default()
    };
    let substitute = |name: &str, bytes: &[u8]| {
        let substitute = decode_policy(name, bytes).unwrap_err().substitute_record();
        assert_eq!(substitute.action, model::Action::Deny);
        assert_eq!(substitute.rules, [model::Rule::new()]);
        assert!(substitute.not_understood.is_some());
        substitute
    };
    const UNKNOWN_FIELD: &[u8] = &[0x9a, 0x06, 0];
    for (scope, expected) in [
        (0, model::Scope::Global),
        (1, model::Scope::Namespace),
        (2, model::Scope::WorkloadSelector),
    ] {
        let substitute = substitute("ns/p", &sent(&of(scope), UNKNOWN_FIELD));
        assert_eq!((substitute.scope, substitute.dry_run), (expected, false));
        assert_eq!(substitute.key().to_string(), "ns/p");
    }
    // The scope cannot be read, or the record is none at all: an absent scope would be global.
    let unreadable = [
        sent(&of(7), &[]),
        b"\xff".to_vec(),
        sent(&of(2), b"\x0a"),
        Vec::new(),
    ];
    for bytes in unreadable {
        assert_eq!(substitute("ns/p", &bytes).scope, model::Scope::Namespace);
    }
    assert_eq!(substitute("p", b"\xff").scope, model::Scope::Global);
    // It is another policy's.
    let other = substitute("elsewhere/p", &sent(&of(0), &[]));
    assert_eq!(other.key().to_string(), "elsewhere/p");
    assert_eq!(other.scope, model::Scope::Namespace);
    assert!(decode_policy("ns/p", &sent(&of(1), &[])).is_ok());
    let dry = security::Authorization {
        dry_run: true,
        ..of(1)
    };
    assert!(substitute("ns/p", &sent(&dry, UNKNOWN_FIELD)).dry_run);
}

#[test]
fn what_the_contract_never_leaves_empty_is_not_understood() {
    let read = |clause: security::Clause| {
        let policy = security::Authorization {
            name: "p".into(),
            rules: vec![security::Rule {
                clauses: vec![clause],
            }],
            ..security::Authorization::default()
        };
        decode_authorization(&policy.encode_to_vec()).map_err(|error| error.to_string())
    };
    let with = |m: security::Match| read(security::Clause { matches: vec![m] }).unwrap_err();
    let none = read(security::Clause::default()).unwrap_err();
    assert_eq!(none, "clause.matches: is empty");
    let prefix = security::string_match::MatchType::Prefix(String::new());
    let m = security::Match {
        principals: vec![security::StringMatch {
            match_type: Some(prefix),
        }],
        ..security::Match::default()
    };
    assert_eq!(with(m), "match.principals: a match without a value");
    let m = security::Match {
        service_accounts: vec![security::ServiceAccountMatch::default()],
        ..security::Match::default()
    };
    assert_eq!(with(m), "match.service_accounts: a match without a value");
    let m = security::Match {
        extensions: vec![security::Extension {
            name: "x".into(),
            config: None,
        }],
        ..security::Match::default()
    };
    assert!(with(m).contains("extension \"x\" is unknown"));
    // A match with nothing set is one that never matches: what is left of layer-7 conditions.
    let empty = security::Clause {
        matches: vec![security::Match::default()],
    };
    assert!(read(empty).unwrap().rules[0][0][0].is_empty());
}

#[test]
fn unknown_fields_of_workloads_are_ignored_and_counted() {
    let mut bytes = wire::Address::from(valid_workload()).encode_to_vec();
    assert_eq!(AddressRecord::unknown_field_count(&bytes), 0);
    let known = AddressRecord::decode(&bytes).unwrap();
    // Two in the workload, which is merged with what came before, and one beside it.
    bytes.extend([0x0a, 6, 0x9a, 0x06, 0, 0x98, 0x06, 1, 0x9a, 0x06, 0]);
    assert_eq!(AddressRecord::unknown_field_count(&bytes), 3);
    assert_eq!(AddressRecord::decode(&bytes).unwrap(), known);
}

#[test]
fn a_response_is_read_without_copying_its_resources() {
    let value = wire::Address::from(valid_workload()).encode_to_vec();
    let response = crate::discovery::DeltaDiscoveryResponse {
        type_url: "t".into(),
        nonce: "n".into(),
        removed_resources: vec!["gone".into()],
        resources: vec![crate::discovery::Resource {
            name: "c//Pod/ns/a".into(),
            version: "v".into(),
            aliases: vec!["/10.0.0.1".into()],
            resource: Some(prost_types::Any {
                type_url: "x".into(),
                value: value.clone(),
            }),
            ttl: None,
        }],
        ..Default::default()
    };
    let bytes = Bytes::from(response.encode_to_vec());
    let lean = LazyDeltaResponse::decode(bytes.clone()).unwrap();
    assert_eq!((lean.type_url.as_str(), lean.nonce.as_str()), ("t", "n"));
    assert_eq!(lean.removed_resources, ["gone"]);
    assert!(bytes.as_ptr_range().contains(&lean.resources[0].as_ptr()));
    let resource = LazyResource::decode_envelope(lean.resources[0].clone()).unwrap();
    assert_eq!(
        (resource.name.as_str(), resource.version.as_str()),
        ("c//Pod/ns/a", "v")
    );
    assert_eq!(resource.aliases, ["/10.0.0.1"]);
    assert_eq!(resource.value(), value);
    assert!(bytes.as_ptr_range().contains(&resource.value().as_ptr()));
}
