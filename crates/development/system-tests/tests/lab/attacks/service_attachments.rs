//! Tests that objects attached to a Service apply to every caller of its pods, on every path: policies of each action,
//! tokens, claims that callers forge, rate limits and plugins; and that other tenants cannot attach any.
//!
//! Each cell ([`matrix::check_cell`]) is tested with AuthorizationPolicies ALLOW, DENY and CUSTOM, a RequestAuthentication, a
//! RateLimit and a WasmPlugin, over HTTP/1.1 and over HTTP/2. The pod is on `node-2`.
//!
//! | caller | VIP | pod address | alias (ServiceEntry) | headless name | NodePort | own route | another waypoint |
//! |---|---|---|---|---|---|---|---|
//! | captured pod, another node (`shop/client`) | yes | yes | yes | a | yes, of both nodes | b | yes, f |
//! | captured pod, same node (`shop/near`) | yes | yes | yes | a | c | b | d |
//! | captured pod of another namespace (`tenant/near`) | yes | yes | e | a | c | yes, f | e |
//! | uncaptured pod, another node (`legacy/client`) | yes | yes | g | a | yes, of both nodes | g | g |
//! | uncaptured pod, same node (`legacy/near`) | yes | yes | g | a | c | g | d |
//! | either node itself | yes | yes | g | a | h | g | g |
//! | another network (`other_network`) | yes, i | yes | yes, i | a | j | yes, f, i | yes, f, i |
//!
//! - a: a name without VIP resolves to the pod's address. ALLOW and DENY are tested by name from `shop/client`; all
//!   else is as in the column of the pod's address.
//! - b: a route of the caller's own namespace is the owner's.
//! - c: kube-proxy forwards with the node's source address, so that all callers look alike. The lab has no NodePorts;
//!   nftables rules of a pod in the host network replace them.
//! - d: policies of the other Service deny such calls (`another_waypoint`).
//! - e: it is not visible in other namespaces; their own entries and Services for the same pod are tested below.
//! - f: without CUSTOM, which is attached to another port than that of the route or of the other waypoint.
//! - g: only the mesh knows the ServiceEntry, the route and the waypoint: outside of it, the VIP of a Service is
//!   translated to the pod's address, and the alias has no route.
//! - h: kube-proxy's rules for forwarded packets do not apply to the node's own packets; the node calls the VIP.
//! - i: by host name, as clients of an east-west gateway name their targets. The gateway is part of the test: the lab
//!   has one network.
//! - j: NodePorts are not reachable from another network.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

use ambit_system_tests::{
    EchoConnection, LabNetns, Mesh, Options, answer_ok, idle_pod, is_closed, is_complete_response,
    options, read_head, wait_until, with_gateway,
};

mod matrix;
mod other_network;

use matrix::{
    Dial, HOST_NETWORK_PODS, check_cell, check_client_route, check_owner_cells, is_http2,
    serve_http2,
};
use other_network::{CLIENT_PODS, OtherNetwork};

/// Port of the pod to which the tested objects are attached; [`CUSTOM_POLICY_PORT`] is another port of the pod, to which a CUSTOM
/// policy is attached.
const APP_PORT: u16 = 8081;
const CUSTOM_POLICY_PORT: u16 = 8082;

const OBJECTS: &str = "
---
apiVersion: v1
kind: Namespace
metadata: {name: tenant, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: http, port: 80, targetPort: 8081}, {name: asked, port: 81, targetPort: 8082}]
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: shop}
spec:
  clusterIP: None
  selector: {app: server}
  ports: [{name: http, port: 8081}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: alias, namespace: shop, labels: {istio.io/use-waypoint: waypoint}}
spec:
  hosts: [alias.example.com]
  addresses: [240.240.7.7]
  resolution: STATIC
  workloadSelector: {labels: {app: server}}
  ports: [{number: 80, name: http-alias, protocol: HTTP, targetPort: 8081}, {number: 81, name: http-asked, protocol: HTTP, targetPort: 8082}]
";

const ATTACHED_OBJECTS: &str = "
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: deny, namespace: shop}
spec:
  targetRefs: TARGETS
  action: DENY
  rules: [{to: [{operation: {paths: [/open/denied]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: allow, namespace: shop}
spec:
  targetRefs: TARGETS
  rules: [{to: [{operation: {paths: ['/open*']}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: shop}
spec:
  targetRefs: TARGETS
  action: CUSTOM
  provider: {name: authorizer}
  rules: [{to: [{operation: {ports: ['81']}}]}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: shop}
spec:
  targetRefs: TARGETS
  jwtRules: [{issuer: i, jwks: '{\"keys\":[{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\"}]}', outputClaimToHeaders: [{header: x-user, claim: sub}]}]
---
apiVersion: ambit.io/v1alpha1
kind: RateLimit
metadata: {name: limit, namespace: shop}
spec:
  targetRefs: TARGETS
  local: [{requests: 1, per: 1h, burst: 1, by: [{header: x-cell}], matches: [{path: {type: Exact, value: /open/limited}}]}]
";

/// Extension provider without a server, so that its CUSTOM policies deny.
const AUTHORIZER: &str = "
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders:
    - {name: authorizer, envoyExtAuthzGrpc: {service: server.shop.svc.cluster.local, port: 9000, timeout: 1s}}
";

fn plugin(module: &str, name: &str, targets: &str) -> String {
    format!(
        "
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {{name: {name}, namespace: shop}}
spec:
  targetRefs: {targets}
  url: file://{module}
  pluginConfig: {{}}
"
    )
}

const HEADERS: &str = include_str!("../../../../../dataplane/wasm/tests/modules/headers.wat");

/// Host name that resolves to the victim's address; its owner may choose any address.
const DIVERTING_HOST: &str = "headless.shop.svc.cluster.local";

/// Returns Services of the tenant whose endpoint is the victim's address, and objects that the tenant attaches to them.
fn tenant_objects(victim: IpAddr) -> String {
    format!(
        "
---
apiVersion: v1
kind: Service
metadata: {{name: grip, namespace: tenant, labels: {{istio.io/use-waypoint: waypoint, istio.io/use-waypoint-namespace: shop}}}}
spec: {{clusterIP: 10.96.0.78, ports: [{{name: http, port: 80, targetPort: 8081}}]}}
---
apiVersion: v1
kind: Service
metadata: {{name: twin, namespace: tenant, labels: {{istio.io/use-waypoint: waypoint, istio.io/use-waypoint-namespace: shop}}}}
spec: {{selector: {{app: server}}, ports: [{{name: http, port: 80, targetPort: 8081}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: grip, namespace: tenant, labels: {{kubernetes.io/service-name: grip}}}}
addressType: IPv4
endpoints:
- {{addresses: [{victim}]}}
- {{addresses: [{victim}], targetRef: {{kind: Pod, name: server, namespace: shop}}}}
ports: [{{name: http, port: 8081}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: grip, namespace: tenant, labels: {{istio.io/use-waypoint: waypoint, istio.io/use-waypoint-namespace: shop}}}}
spec:
  hosts: [grip.example.com]
  addresses: [240.240.7.8]
  resolution: STATIC
  endpoints: [{{address: {victim}}}]
  ports: [{{number: 80, name: http, protocol: HTTP, targetPort: 8081}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: tunnel, namespace: tenant, labels: {{istio.io/use-waypoint: waypoint, istio.io/use-waypoint-namespace: shop}}}}
spec:
  hosts: [tunnel.example.com]
  addresses: [240.240.7.9]
  resolution: STATIC
  endpoints: [{{address: {victim}, labels: {{networking.istio.io/tunnel: http}}}}]
  subjectAltNames: ['spiffe://cluster.local/ns/shop/sa/server']
  ports: [{{number: 80, name: http, protocol: HTTP, targetPort: 8081}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: tunnel-by-name, namespace: tenant, labels: {{istio.io/use-waypoint: waypoint, istio.io/use-waypoint-namespace: shop}}}}
spec:
  hosts: [named.example.com]
  addresses: [240.240.7.10]
  resolution: DNS
  endpoints: [{{address: {DIVERTING_HOST}, labels: {{networking.istio.io/tunnel: http}}}}]
  subjectAltNames: ['spiffe://cluster.local/ns/shop/sa/server']
  ports: [{{number: 80, name: http, protocol: HTTP, targetPort: 8081}}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: grip, namespace: tenant}}
spec:
  targetRefs: [{{kind: Service, name: grip}}, {{kind: Service, name: twin}}, {{group: networking.istio.io, kind: ServiceEntry, name: grip}}]
  action: DENY
  rules: [{{}}]
"
    )
}

/// Grant that lets the objects attached to the tenant's Services and ServiceEntries apply to a pod of another
/// namespace.
const GRANT: &str = "
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: pods, namespace: shop}
spec:
  from: [{group: '', kind: Service, namespace: tenant}]
  to: [{group: '', kind: Pod, name: server}]
";

/// Service with its own waypoint, whose pod is behind a different waypoint.
const OTHER_WAYPOINT_SERVICE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: xtra, namespace: shop, labels: {istio.io/waypoint-for: service}}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE, allowedRoutes: {namespaces: {from: All}}}]
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: shop, labels: {istio.io/use-waypoint: xtra}}
spec: {clusterIP: 10.96.0.79, selector: {app: server}, ports: [{name: http, port: 80, targetPort: 8081}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: far, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: far}]
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]}]
";

/// Returns a Service of the tenant that uses the waypoint `xtra`. The Service's endpoint is the victim's pod, which
/// uses another waypoint.
fn diverting_service(victim: IpAddr) -> String {
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: hook, namespace: tenant, labels: {{istio.io/use-waypoint: xtra, istio.io/use-waypoint-namespace: shop}}}}
spec: {{clusterIP: 10.96.0.81, selector: {{app: hook}}, ports: [{{name: http, port: 80, targetPort: 8081}}]}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {{name: hook, namespace: tenant, labels: {{app: hook, istio.io/use-waypoint: waypoint, istio.io/use-waypoint-namespace: shop}}}}
spec: {{address: {victim}}}
"
    )
}

/// Waypoint that serves Services of other namespaces, too.
const SHARED_WAYPOINT: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: waypoint, namespace: shop, labels: {istio.io/waypoint-for: all}}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE, allowedRoutes: {namespaces: {from: All}}}]
";

struct AttachmentFixture {
    mesh: Mesh,
    modules: tempfile::TempDir,
}

impl AttachmentFixture {
    fn new() -> Self {
        Self::with(options())
    }

    fn with(options: Options) -> Self {
        let callers = [
            ("legacy/near", "node-2"),
            ("shop/near", "node-2"),
            ("tenant/near", "node-2"),
        ];
        let callers = callers.map(|(pod, node)| idle_pod(pod, node, ""));
        let more = format!(
            "{OBJECTS}{AUTHORIZER}{HOST_NETWORK_PODS}{CLIENT_PODS}{}",
            callers.concat()
        );
        let (mesh, _) = with_gateway(SHARED_WAYPOINT, &more, options);
        for port in [APP_PORT, CUSTOM_POLICY_PORT] {
            mesh.serve_connections("shop/server", port, |mut stream| {
                if is_http2(&stream)? {
                    return serve_http2(stream);
                }
                while let Some(head) = read_head(&mut stream)? {
                    if head.starts_with("GET /open/endless ") {
                        serve_endless_body(&mut stream)?;
                    }
                    answer_ok(&mut stream, &head.to_ascii_lowercase())?;
                }
                Ok(())
            });
        }
        let modules = tempfile::tempdir().unwrap();
        std::fs::write(
            modules.path().join("headers.wasm"),
            wat::parse_str(HEADERS).unwrap(),
        )
        .unwrap();
        Self { mesh, modules }
    }

    fn module(&self) -> String {
        self.modules
            .path()
            .join("headers.wasm")
            .display()
            .to_string()
    }

    fn pod(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.mesh.ip("shop/server"), port)
    }

    fn ask(&self, from: &dyn Dial, to: SocketAddr, path: &str, headers: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: app.shop\r\n{headers}\r\n");
        let connection = from.dial(self, to).and_then(EchoConnection::from_stream);
        let Ok(mut connection) = connection else {
            return "no connection".to_owned();
        };
        let answer = connection.send_raw(request.as_bytes(), is_complete_response);
        answer.unwrap_or_else(|error| format!("broken: {error}"))
    }

    /// Sends a request whose response body does not end; returns the connection.
    fn send_endless_request(&self, from: &LabNetns, to: SocketAddr) -> EchoConnection {
        let request = b"GET /open/endless HTTP/1.1\r\nHost: app.shop\r\n\r\n";
        let mut connection = self.mesh.dial_from(from.clone(), to).unwrap();
        let begun = connection.send_raw(request, |answer| answer.contains("\r\n1\r\nx"));
        assert!(begun.unwrap().contains(" 200 "));
        connection
    }
}

/// Sends pieces of a body at intervals, until the client has disconnected.
fn serve_endless_body(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_millis(50)))?;
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
    loop {
        stream.write_all(b"1\r\nx\r\n")?;
        if let Ok(0) = stream.read(&mut [0]) {
            return Ok(());
        }
    }
}

/// Reads until the other side closes the connection, before the body has ended.
fn assert_ended_early(mut connection: EchoConnection, why: &str) {
    match connection.send_raw(b"", |_| false) {
        Ok(rest) => assert!(!rest.ends_with("0\r\n\r\n"), "{why}: {rest}"),
        Err(error) => assert!(is_closed(&error), "{why}: {error}"),
    }
}

fn pod_netns(pod: &str) -> LabNetns {
    LabNetns::Pod(pod.to_owned())
}

#[test]
fn service_attachments_apply_on_every_path() {
    let scene = AttachmentFixture::new();
    let mesh = &scene.mesh;
    let app = mesh.service_address("app.shop.svc", 80);
    let alias: SocketAddr = "240.240.7.7:80".parse().unwrap();
    let client = pod_netns("shop/client");
    let to_all = "[{kind: Service, name: app}, {group: networking.istio.io, kind: ServiceEntry, name: alias}]";
    let both = ATTACHED_OBJECTS.replace("TARGETS", to_all);
    mesh.apply(
        "attached",
        &(both + &plugin(&scene.module(), "headers", to_all)),
    );
    wait_until("everything is in force for requests to the Service", || {
        let ask = |path, headers| scene.ask(&client, app, path, headers);
        ask("/open", "").contains("x-plugin: ")
            && ask("/closed", "").contains(" 403 ")
            && ask("/open", "authorization: Bearer x\r\n").contains(" 401 ")
            && ask("/open/limited", "x-cell: first\r\n").contains(" 429 ")
            && scene.ask(&client, alias, "/closed", "").contains(" 403 ")
    });
    check_owner_cells(&scene, app, alias);
    let other_network = OtherNetwork::new(mesh);
    other_network.check_owner_cells(&scene);
    check_client_route(&scene, app, &other_network);

    // Objects of other tenants add nothing, whatever they are attached to.
    mesh.apply("tenant", &tenant_objects(mesh.ip("shop/server")));
    wait_until(
        "the tenant's policy is in force for its own Service",
        || {
            scene
                .ask(&client, "10.96.0.78:80".parse().unwrap(), "/open", "")
                .contains(" 403 ")
        },
    );
    for from in [pod_netns("shop/client"), pod_netns("legacy/near")] {
        for to in [scene.pod(APP_PORT), app] {
            let answer = scene.ask(&from, to, "/open", "");
            assert!(answer.contains(" 200 "), "{from:?} to {to}: {answer}");
        }
    }
    // Unless the pods' namespace grants it.
    let until_each = |what: &str, to: SocketAddr, status: &str| {
        for from in [pod_netns("shop/client"), pod_netns("legacy/near")] {
            wait_until(&format!("{from:?}: {what}"), || {
                scene.ask(&from, to, "/open", "").contains(status)
            });
        }
    };
    mesh.apply("grant", GRANT);
    until_each(
        "the tenant's policy is granted",
        scene.pod(APP_PORT),
        " 403 ",
    );
    // Outside of the mesh, kube-proxy translates the Service's address to a pod's.
    wait_until("requests to the Service are not concerned", || {
        scene.ask(&client, app, "/open", "").contains(" 200 ")
    });
    mesh.remove("grant");
    until_each("it is granted no more", scene.pod(APP_PORT), " 200 ");
    // A Service of the tenant with the pod as endpoint does not bypass objects attached to the
    // pod's own Services, either.
    let policy = tenant_objects(mesh.ip("shop/server"));
    let unjudged = policy.split("---\napiVersion: security").next().unwrap();
    mesh.apply("tenant", unjudged);
    let grips: [SocketAddr; 4] = [
        "10.96.0.78:80",
        "240.240.7.8:80",
        "240.240.7.9:80",
        "240.240.7.10:80",
    ]
    .map(|grip| grip.parse().unwrap());
    wait_until("the tenant's policy is gone", || {
        !scene.ask(&client, grips[0], "/open", "").contains(" 403 ")
    });
    for from in [pod_netns("shop/client"), pod_netns("legacy/near")] {
        for to in grips {
            for path in ["/open/denied", "/closed"] {
                let answer = scene.ask(&from, to, path, "");
                assert!(!answer.contains(" 200 "), "{from:?} to {to}: {answer}");
            }
        }
    }
    // The tenant's own pods see its entries.
    for to in grips {
        for path in ["/open/denied", "/closed"] {
            wait_until(&format!("{path} at {to} is refused in the mesh"), || {
                let answer = scene.ask(&pod_netns("tenant/near"), to, path, "");
                answer.contains(" 403 ") || answer.contains(" 503 ")
            });
        }
    }
    mesh.remove("tenant");
    another_waypoint(&scene, &other_network);
}

/// Checks a pod behind another waypoint: requests that the Service's waypoint has allowed go on to it, and those that
/// bypass that waypoint do not.
fn another_waypoint(scene: &AttachmentFixture, other_network: &OtherNetwork<'_>) {
    let mesh = &scene.mesh;
    mesh.apply("far", OTHER_WAYPOINT_SERVICE);
    let far: SocketAddr = "10.96.0.79:80".parse().unwrap();
    let ask = |pod: &str, to| scene.ask(&pod_netns(pod), to, "/open", "");
    // Until the client's proxy knows the Service, its address is outside of the mesh, and the pod's
    // own waypoint responds.
    wait_until("the client's proxy knows the Service's waypoint", || {
        let dump = mesh.proxy_dump("node-1");
        let services = dump.get("services").and_then(|all| all.as_array());
        let mut services = services.into_iter().flatten();
        services.any(|service| service["name"] == "far" && !service["waypoint"].is_null())
    });
    wait_until("its own waypoint lets the client pass", || {
        ask("shop/client", far).contains(" 200 ")
    });
    check_cell(
        scene,
        "another waypoint",
        &pod_netns("shop/client"),
        far,
        None,
    );
    other_network.check_other_waypoint(scene);
    for (pod, to) in [
        ("shop/near", far),
        ("legacy/near", far),
        ("shop/near", scene.pod(APP_PORT)),
        ("legacy/near", scene.pod(APP_PORT)),
    ] {
        wait_until(&format!("{pod} to {to} is denied"), || {
            ask(pod, to).contains(" 403 ")
        });
    }
    let answer = ask("shop/client", far);
    assert!(answer.contains(" 200 "), "{answer}");
    // The same for requests of another Service that pass the same waypoint.
    mesh.apply("hook", &diverting_service(mesh.ip("shop/server")));
    let hook = "10.96.0.81:80".parse().unwrap();
    for pod in ["shop/near", "tenant/near"] {
        wait_until(&format!("{pod} by the tenant's Service is denied"), || {
            ask(pod, hook).contains(" 403 ")
        });
    }
}

/// Returns a Service with this pod selector, and, if `policy` is true, a policy attached to the Service.
fn late_service(selector: &str, policy: bool) -> String {
    let service = format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: late, namespace: shop}}
spec: {{clusterIP: 10.96.0.80, selector: {{app: {selector}}}, ports: [{{name: http, port: 80, targetPort: 8081}}]}}
"
    );
    let of_it = "
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: late, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: late}]
  action: DENY
  rules: [{}]
";
    if policy { service + of_it } else { service }
}

/// Returns a Service without a selector, with an EndpointSlice of a pod's address, and a policy attached to it.
fn service_with_manual_endpoints(victim: IpAddr) -> String {
    let service = late_service("nobody", true)
        .replace("selector: {app: nobody}, ", "")
        .replace(
            "name: late, namespace: shop}\nspec: {",
            "name: late, namespace: shop, labels: {istio.io/use-waypoint: waypoint}}\nspec: {",
        );
    format!(
        "{service}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: late, namespace: shop, labels: {{kubernetes.io/service-name: late}}}}
addressType: IPv4
endpoints: [{{addresses: [{victim}]}}]
ports: [{{name: http, port: 8081}}]
"
    )
}

#[test]
fn administrator_may_exclude_requests_to_pods() {
    let scope = ("AMBIT_SERVICE_POLICY_SCOPE".to_owned(), "istio".to_owned());
    let options = Options {
        env: [scope].into(),
        ..options()
    };
    let scene = AttachmentFixture::with(options);
    let mesh = &scene.mesh;
    mesh.apply("late", &late_service("server", true));
    let client = pod_netns("shop/client");
    let late = "10.96.0.80:80".parse().unwrap();
    let is_service_denied = || scene.ask(&client, late, "/open", "").contains(" 403 ");
    wait_until("requests to the Service are denied", is_service_denied);
    for pod in ["shop/client", "legacy/client"] {
        let answer = scene.ask(&pod_netns(pod), scene.pod(APP_PORT), "/open", "");
        assert!(answer.contains(" 200 "), "{pod}: {answer}");
    }
}

#[test]
fn requests_to_pods_follow_changes_of_services_and_policies() {
    let scene = AttachmentFixture::new();
    let mesh = &scene.mesh;
    let to = scene.pod(APP_PORT);
    let callers = ["shop/client", "legacy/client"].map(pod_netns);
    let until_each = |what: &str, status: &str| {
        for from in &callers {
            wait_until(&format!("{from:?}: {what}"), || {
                scene.ask(from, to, "/open", "").contains(status)
            });
        }
    };
    let begin = || {
        callers
            .each_ref()
            .map(|from| scene.send_endless_request(from, to))
    };
    until_each("nothing is attached", " 200 ");
    let begun = begin();
    mesh.apply("late", &late_service("server", true));
    until_each("the Service and its policy are there", " 403 ");
    for one in begun {
        assert_ended_early(one, "a policy and its Service came");
    }

    mesh.apply("late", &late_service("nobody", true));
    until_each("the Service selects others", " 200 ");
    let begun = begin();
    mesh.apply("late", &late_service("server", true));
    until_each("it selects the pod again", " 403 ");
    for one in begun {
        assert_ended_early(one, "the Service selects the pod");
    }

    mesh.apply("late", &late_service("server", false));
    until_each("the policy is gone", " 200 ");
    let begun = begin();
    mesh.apply("late", &late_service("server", true));
    for one in begun {
        assert_ended_early(one, "the policy is there again");
    }
    mesh.remove("late");
    until_each("the Service is gone", " 200 ");

    // The pod's own namespace may write its address by hand.
    mesh.apply("written", &service_with_manual_endpoints(to.ip()));
    until_each("an endpoint with its address is there", " 403 ");
    mesh.remove("written");
    until_each("the endpoint is gone", " 200 ");
}
