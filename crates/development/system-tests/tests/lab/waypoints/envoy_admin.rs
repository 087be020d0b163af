//! Tests of a waypoint's responses to `istioctl proxy-config`, decoded as Envoy's own protobuf messages: a field or
//! type that these do not have, or a value that Envoy would reject, is an error.

use std::{
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    process::{Command, Stdio},
};

use ambit_system_tests::{LabNetns, Mesh, built_binary, wait_until, with_waypoint};

/// Value of every field that may hold a secret.
const SECRET: &str = "hunter2";

const OBJECTS: &str = "
apiVersion: v1
kind: Service
metadata: {name: app, namespace: shop}
spec:
  selector: {app: server}
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: any, port: 81, targetPort: 8080, appProtocol: ''}
  - {name: tcp, port: 82, targetPort: 8080}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: shop, labels: {istio.io/use-waypoint: waypoint}}
spec:
  hosts: [outside.example]
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8443}]
  resolution: STATIC
  endpoints: [{address: 192.0.2.7}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: outside, namespace: shop}
spec:
  host: outside.example
  trafficPolicy:
    tls: {mode: SIMPLE, sni: outside.example}
    loadBalancer: {consistentHash: {httpHeaderName: x-user}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: app, namespace: shop}
spec:
  host: app.shop.svc.cluster.local
  trafficPolicy:
    connectionPool:
      http: {http2MaxRequests: 7, maxRequestsPerConnection: 9, idleTimeout: 90s}
      tcp: {connectTimeout: 2s, tcpKeepalive: {probes: 3, time: 60s, interval: 5s}}
    outlierDetection: {consecutive5xxErrors: 3, interval: 2500ms, maxEjectionPercent: 50}
    loadBalancer: {simple: ROUND_ROBIN, warmup: {duration: 10s}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: canary, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: app, port: 80}]
  rules:
  - matches:
    - path: {type: PathPrefix, value: /new}
      method: GET
      headers: [{name: x-user, value: ann}, {name: authorization, value: hunter2}]
      queryParams: [{name: page, type: RegularExpression, value: '[0-9]+'}]
    filters:
    - type: RequestHeaderModifier
      requestHeaderModifier: {set: [{name: authorization, value: hunter2}], remove: [x-gone]}
    - type: URLRewrite
      urlRewrite: {hostname: inside, path: {type: ReplacePrefixMatch, replacePrefixMatch: /v2}}
    - type: RequestMirror
      requestMirror: {backendRef: {name: app, port: 80}, percent: 25}
    - type: CORS
      cors: {allowOrigins: ['https://*.example'], allowMethods: [GET], maxAge: 60}
    timeouts: {request: 3s, backendRequest: 500ms}
    retry: {attempts: 3, codes: [503], backoff: 100ms}
    backendRefs: [{name: app, port: 80, weight: 3}, {name: gone, port: 80, weight: 1}]
  - matches: [{path: {type: Exact, value: /old}}]
    filters:
    - type: RequestRedirect
      requestRedirect: {scheme: https, statusCode: 301, path: {type: ReplaceFullPath, replaceFullPath: /}}
  - matches: [{path: {type: RegularExpression, value: '/a.*b'}}]
    filters:
    - type: URLRewrite
      urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: /c}}
    backendRefs: [{name: app, port: 80}]
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: tag, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: app}]
  url: file:///nowhere/tag.wasm
  failStrategy: FAIL_OPEN
  pluginConfig: {password: hunter2}
  vmConfig: {env: [{name: TOKEN, value: hunter2}]}
";

/// Fails unless `text` is the JSON of an Envoy message.
fn assert_decodes(message: &[&str], text: &str) {
    let mut decoder = Command::new(built_binary("envoy-admin-decoder"))
        .args(message)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = decoder.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    let output = decoder.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}: {text}");
}

/// Returns the body of a page of the waypoint's admin port.
fn admin_page(mesh: &Mesh, page: &str) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 15000));
    let place = LabNetns::Pod("shop/waypoint".into());
    // A response of HTTP/1.0 has no framing.
    let request = format!("GET /{page} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    let mut connection = mesh.dial_from(place, address).unwrap();
    let response = connection.send_raw(request.as_bytes(), |_| false).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{head}: {body}");
    body.to_owned()
}

#[test]
fn istioctl_gets_responses_in_envoys_own_types() {
    let (mesh, _) = with_waypoint("");
    mesh.apply("objects", OBJECTS);
    let whole = || admin_page(&mesh, "config_dump?include_eds=true");
    let needed = [
        "inbound-vip|80|http|app.shop.svc.cluster.local",
        "inbound-vip|82|tcp|app.shop.svc.cluster.local",
        "inbound-vip|80|http|outside.example",
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "\"consecutive_5xx\":3",
        "HTTPRoute~canary",
        "\"address\":\"192.0.2.7\"",
        "\"MOVED_PERMANENTLY\"",
        "shop.tag",
        "ROOTCA",
    ];
    wait_until("the dump has all objects", || {
        let dump = whole();
        needed.iter().all(|one| dump.contains(one))
    });
    let dump = whole();
    assert_decodes(&[], &dump);
    for secret in [SECRET, "private_key", "PRIVATE KEY"] {
        assert!(!dump.contains(secret), "{secret} in {dump}");
    }
    for mask in [
        "dynamic_active_clusters,dynamic_warming_clusters,static_clusters",
        "dynamic_listeners,static_listeners",
        "dynamic_route_configs,static_route_configs",
        "dynamic_active_secrets,dynamic_warming_secrets",
        "bootstrap",
    ] {
        let section = admin_page(&mesh, &format!("config_dump?mask={mask}"));
        assert_decodes(&[], &section);
        let section: serde_json::Value = serde_json::from_str(&section).unwrap();
        assert_eq!(section["configs"].as_array().unwrap().len(), 1, "{mask}");
    }
    let clusters = admin_page(&mesh, "clusters?format=json");
    assert_decodes(&["clusters"], &clusters);
    assert!(clusters.contains("eds_health_status"), "{clusters}");
}
