//! Tests that no object can make a waypoint call an address that nothing in the mesh may call ([`ambit_egress`]):
//! endpoints of ServiceEntries, with a tunnel or without, mirrors, collectors, authorization providers and rate-limit
//! services.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use ambit_model::{
    GlobalLimit, HttpAction, HttpFilter, HttpMirror, HttpPolicy, HttpProvider, HttpRoute,
    HttpRouteMatch, HttpRouteRule, HttpRule, LimitDescriptor, LimitValue, NamespacedHostname,
    OtlpCollector, PolicyKey, Provider, ProviderProtocol, RateLimit, TelemetryLog,
    TelemetryTracing, WaypointGateway, WaypointRecord, WaypointService, WaypointTelemetry,
};
use ambit_testkit::{build, wait_until};
use ambit_xds::WaypointUpdate;
use tokio::net::TcpListener;

use crate::{
    application::StrictServer,
    fixture::{HTTP1, HTTP2, World, log_lines_about, record_name},
};

const WEB: &str = "10.0.0.1";
const TARGET: &str = "10.0.0.2";
/// Port of HBONE tunnels.
const HBONE: u16 = 15008;

/// Feature by which an object makes the waypoint call the forbidden address.
#[derive(Clone, Copy, Debug)]
enum Cause {
    Endpoint,
    TunnelEndpoint,
    Mirror,
    SpanCollector,
    LogCollector,
    GrpcProvider,
    HttpProvider,
    RateLimitService,
}

const CAUSES: [Cause; 8] = [
    Cause::Endpoint,
    Cause::TunnelEndpoint,
    Cause::Mirror,
    Cause::SpanCollector,
    Cause::LogCollector,
    Cause::GrpcProvider,
    Cause::HttpProvider,
    Cause::RateLimitService,
];

fn name(service: &str) -> NamespacedHostname {
    NamespacedHostname::new("ns", build::service(service, &[], &[]).hostname)
}

fn mirroring_service() -> WaypointUpdate {
    let mirror = HttpMirror {
        service: name("target"),
        port: HTTP1,
        numerator: 1,
        denominator: 1,
    };
    let rule = HttpRouteRule {
        matches: vec![HttpRouteMatch::default()],
        filters: vec![HttpFilter::Mirror(mirror)],
        backends: vec![ambit_model::HttpBackend {
            service: Ok(name("web")),
            port: HTTP1,
            subset: None,
            weight: 1,
            filters: Vec::new(),
        }],
        ..HttpRouteRule::default()
    };
    let route = HttpRoute {
        rules: vec![rule],
        ..HttpRoute::default()
    };
    WaypointUpdate::Upserted(
        "gw/web".into(),
        WaypointRecord::from(WaypointService {
            service: name("web"),
            routes: vec![route],
            ..WaypointService::default()
        }),
    )
}

fn telemetry(is_log: bool) -> WaypointUpdate {
    let collector = OtlpCollector {
        service: name("target"),
        port: HTTP2,
        http_path: None,
        timeout: None,
        headers: Vec::new(),
    };
    let log = TelemetryLog {
        collector: Some(collector.clone()),
        name: "log".into(),
        format: ambit_model::TelemetryFormat::Default,
        filter: None,
    };
    let tracing = TelemetryTracing {
        collector,
        sampling: 10_000,
        by_request_id: false,
        istio_tags: false,
        propagates: true,
        tags: Vec::new(),
        max_tag: 256,
    };
    let telemetry = WaypointTelemetry {
        tracing: (!is_log).then_some(tracing),
        logs: is_log.then(|| vec![log]),
        ..WaypointTelemetry::default()
    };
    WaypointUpdate::Upserted(record_name("telemetry"), WaypointRecord::from(telemetry))
}

fn custom_policy(protocol: ProviderProtocol) -> WaypointUpdate {
    let port = match protocol {
        ProviderProtocol::Grpc => HTTP2,
        ProviderProtocol::Http(_) => HTTP1,
    };
    let provider = Provider {
        name: "authz".into(),
        target: Ok((name("target"), port)),
        timeout: Duration::from_secs(10),
        status_on_error: 403,
        fail_open: false,
        body: None,
        protocol,
    };
    let policy = HttpPolicy {
        key: PolicyKey::from_resource_name("ns/ask"),
        services: vec![name("web")],
        action: HttpAction::Custom,
        rules: vec![HttpRule::default()],
        provider: Some(Arc::new(provider)),
        ..HttpPolicy::default()
    };
    WaypointUpdate::Upserted(record_name("ask"), WaypointRecord::from(policy))
}

fn rate_limit() -> WaypointUpdate {
    let global = GlobalLimit {
        target: Ok((name("target"), HTTP2)),
        domain: "tenant".into(),
        timeout: Duration::from_secs(10),
        hits: 1,
        descriptors: vec![LimitDescriptor {
            matches: Vec::new(),
            entries: vec![("key".into(), LimitValue::Text("value".into()))],
        }],
    };
    let object = RateLimit {
        key: PolicyKey::from_resource_name("ns/limit"),
        services: vec![name("web")],
        global: Some(global),
        ..RateLimit::default()
    };
    WaypointUpdate::Upserted(record_name("limit"), WaypointRecord::from(object))
}

/// Runs a service on the waypoint's own machine that counts connections and sends nothing.
async fn run_counting_service(address: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    ambit_rt::spawn("own service", async move {
        while listener.accept().await.is_ok() {
            counted.fetch_add(1, Relaxed);
        }
    });
    (address, count)
}

/// Publishes a ServiceEntry endpoint with the target's address.
fn publish_endpoint(world: &World, target: SocketAddr, has_tunnel: bool) {
    world.serve("target", TARGET, &[]);
    let ip = target.ip().to_string();
    let mut endpoint = if has_tunnel {
        build::workload("target", &[&ip])
    } else {
        build::workload_outside_mesh("target", &[&ip])
    };
    endpoint.uid = "Kubernetes/networking.istio.io/ServiceEntry/ns/target/0".into();
    let targets = [HTTP1, HTTP2].map(|port| (port, target.port()));
    let service = name("target").to_string();
    world.publish_workload(build::make_endpoint(endpoint, &service, &targets));
}

/// Makes the waypoint call the forbidden address, and waits until the call has failed.
async fn provoke_call(world: &World, cause: Cause) {
    let client = world.client().await;
    let failed = |family: &'static str, label: &'static str| {
        move || world.metric_sum(family, &["outcome=\"failed\"", label]) > 0
    };
    match cause {
        Cause::Endpoint | Cause::TunnelEndpoint => {
            assert_eq!(client.get(TARGET, HTTP1).await, 503, "{cause:?}");
            return;
        }
        Cause::Mirror => world.publish(mirroring_service()),
        Cause::SpanCollector | Cause::LogCollector => {
            world.publish(telemetry(matches!(cause, Cause::LogCollector)));
        }
        Cause::GrpcProvider => world.publish(custom_policy(ProviderProtocol::Grpc)),
        Cause::HttpProvider => {
            world.publish(custom_policy(ProviderProtocol::Http(
                HttpProvider::default(),
            )));
        }
        Cause::RateLimitService => world.publish(rate_limit()),
    }
    let status = client.get(WEB, HTTP1).await;
    match cause {
        Cause::Mirror => {
            assert_eq!(status, 200);
            wait_until(
                "the mirror has failed",
                failed("ambit_requests_mirrored_total", ""),
            )
            .await;
        }
        Cause::SpanCollector | Cause::LogCollector => {
            assert_eq!(status, 200);
            wait_until(
                "the export has failed",
                failed("ambit_telemetry_exported_total", ""),
            )
            .await;
        }
        _ => assert!(status >= 400, "{cause:?}: {status}"),
    }
}

/// Whether the waypoint connects to the target because of this feature, despite the egress guard with these exceptions.
async fn is_called(cause: Cause, target: IpAddr, exceptions: &'static str) -> bool {
    let world = World::with_env(&[("AMBIT_WILDCARD_ADDRESSES", exceptions)]).await;
    let web = StrictServer::start().await;
    world.serve("web", WEB, &[web.address]);
    let has_tunnel = matches!(cause, Cause::TunnelEndpoint);
    let port = if has_tunnel { HBONE } else { 0 };
    let (address, count) = run_counting_service(SocketAddr::new(target, port)).await;
    publish_endpoint(&world, address, has_tunnel);
    if exceptions.contains("127.0.0.0/8") {
        // The target never responds, and neither do calls that wait for it.
        let provoking = provoke_call(&world, cause);
        let called = wait_until("the target is called", || count.load(Relaxed) > 0);
        tokio::select! {
            () = provoking => {}
            () = called => {}
        }
    } else {
        provoke_call(&world, cause).await;
    }
    count.load(Relaxed) > 0
}

#[tokio::test]
async fn objects_cannot_make_a_waypoint_call_its_own_machine() {
    for (cause, last) in CAUSES.into_iter().zip(1..) {
        let target = IpAddr::from([127, 0, 10, last]);
        // Allowed by the administrator: only the address decides.
        assert!(is_called(cause, target, "127.0.0.0/8").await, "{cause:?}");
        let target = IpAddr::from([127, 0, 11, last]);
        assert!(!is_called(cause, target, "127.0.7.0/24").await, "{cause:?}");
    }
}

#[tokio::test]
async fn endpoints_at_forbidden_addresses_are_refused_by_name() {
    let world = World::new().await;
    let api_server = IpAddr::from([10, 255, 255, 254]);
    world.publish(WaypointUpdate::Upserted(
        "gw".into(),
        WaypointRecord::from(WaypointGateway {
            cluster_addresses: [api_server].into(),
            ..WaypointGateway::default()
        }),
    ));
    let client = world.client().await;
    let forbidden = [
        api_server,
        IpAddr::V6(Ipv4Addr::new(10, 255, 255, 254).to_ipv6_mapped()),
        IpAddr::from([169, 254, 169, 254]),
        IpAddr::from([100, 100, 100, 200]),
        "fd00:ec2::254".parse().unwrap(),
        "fe80::1".parse().unwrap(),
    ];
    for ip in forbidden {
        for (has_tunnel, port) in [(false, 6443), (true, 6444)] {
            let address = SocketAddr::new(ip, port);
            publish_endpoint(&world, address, has_tunnel);
            assert_eq!(client.get(TARGET, HTTP1).await, 503, "{address}");
            let lines = log_lines_about(client.address);
            let why = format!("{} is an address of ", ip.to_canonical());
            assert!(
                lines.iter().any(|line| line.contains(&why)),
                "{address}: {lines:?}"
            );
        }
    }
}
