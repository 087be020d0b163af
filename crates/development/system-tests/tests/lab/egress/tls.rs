//! Tests of TLS origination at the waypoint: the waypoint uses the DestinationRule's SNI and CA certificates, and sends
//! no data if TLS fails.

use std::fs;

use ambit_system_tests::{LabNetns, Mesh, wait_until};

use crate::egress::outside::{
    Authority, OutsideServer, SignedCertificate, send_request, service_entry, start_mesh,
    start_waypoint, wait_for_response, waypoint_access_log,
};

const PORT: u16 = 8443;

fn rule(tls: &str) -> String {
    format!(
        "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: api, namespace: shop}}
spec:
  host: api.outside.example
  trafficPolicy:
    portLevelSettings:
    - {{port: {{number: 80}}, tls: {tls}}}
"
    )
}

fn serve_outside(mesh: &Mesh, port: u16, signed: &SignedCertificate, clients: Option<&Authority>) {
    let server = OutsideServer {
        port,
        signed,
        client_ca: clients,
    };
    server.serve(mesh, LabNetns::Pod("legacy/server".to_owned()));
}

fn api_entry(port: u16) -> String {
    let spec = format!(
        "hosts: [api.outside.example]\n  resolution: DNS\n  ports: [{{number: 80, name: http, protocol: HTTP, targetPort: {port}}}]"
    );
    service_entry("shop", "api", 1, &spec)
}

#[test]
fn server_certificates_are_verified_by_the_rule() {
    let authority = Authority::new();
    let files = tempfile::tempdir().unwrap();
    let own = files.path().join("shop");
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("ca.crt"), authority.pem()).unwrap();
    fs::write(own.join("other.crt"), Authority::new().pem()).unwrap();
    let client = Authority::new();
    let shown = client.sign(&["client.example"]);
    fs::write(own.join("tls.crt"), &shown.certificate).unwrap();
    fs::write(own.join("tls.key"), &shown.key).unwrap();
    let mesh = start_mesh(files.path(), &api_entry(PORT));
    let server = authority.sign(&["api.outside.example"]);
    serve_outside(&mesh, PORT, &server, None);
    serve_outside(&mesh, PORT + 1, &server, Some(&client));
    let ip = mesh.ip("legacy/server").to_string();
    start_waypoint(&mesh, &[("api.outside.example", &ip)]);
    let until_answered =
        |text: &str| wait_for_response(&mesh, "shop/client", 1, "api.outside.example", text);

    // Without a rule a TLS server receives HTTP, and closes.
    until_answered("502");
    let simple = |more: &str| {
        rule(&format!(
            "{{mode: SIMPLE, caCertificates: /etc/certs/shop/{more}}}"
        ))
    };
    mesh.apply("rule", &simple("ca.crt"));
    let answer = until_answered("200 OK");
    assert!(
        answer.ends_with("tls api.outside.example http/1.1 host api.outside.example\n"),
        "{answer}"
    );
    wait_until("the log names the server", || {
        waypoint_access_log(&mesh)
            .contains("remote=\"api.outside.example\" remote_identity=\"api.outside.example\"")
    });
    // Another authority, another name, the system's authorities, and files that are missing or of
    // another owner.
    for (tls, why) in [
        (
            "{mode: SIMPLE, caCertificates: /etc/certs/shop/other.crt}",
            "UnknownIssuer",
        ),
        (
            "{mode: SIMPLE, caCertificates: /etc/certs/shop/ca.crt, sni: other.example}",
            "other.example",
        ),
        (
            "{mode: SIMPLE, caCertificates: /etc/certs/shop/ca.crt, subjectAltNames: [other.example]}",
            "SubjectAltNameMismatch(",
        ),
        ("{mode: SIMPLE}", "TLS with api.outside.example failed"),
        (
            "{mode: SIMPLE, caCertificates: /etc/certs/shop/none.crt}",
            "none.crt of the waypoint cannot be read",
        ),
    ] {
        mesh.apply("rule", &rule(tls));
        until_answered("503");
        wait_until(&format!("the log has {why}"), || {
            send_request(&mesh, "shop/client", 1, "api.outside.example");
            waypoint_access_log(&mesh).contains(why)
        });
    }
    for (tls, why) in [
        (
            "{mode: SIMPLE, caCertificates: /etc/certs/bank/ca.crt}",
            "where the files of the namespace are",
        ),
        (
            "{mode: SIMPLE, caCertificates: /etc/certs/shop/../bank/ca.crt}",
            "where the files of the namespace are",
        ),
        (
            "{mode: SIMPLE, credentialName: secret}",
            "Secrets are not read",
        ),
        (
            "{mode: MUTUAL, caCertificates: /etc/certs/shop/ca.crt}",
            "is needed for the mode MUTUAL",
        ),
    ] {
        mesh.apply("rule", &rule(tls));
        until_answered(why);
    }
    // Any server, if the rule disables verification.
    mesh.apply("rule", &rule("{mode: SIMPLE, insecureSkipVerify: true}"));
    until_answered("200 OK");
    mesh.apply("rule", &rule("{mode: SIMPLE}"));
    until_answered("503");
    // A certificate for another name than the requested one.
    mesh.apply("rule", &rule("{mode: SIMPLE, caCertificates: /etc/certs/shop/ca.crt, sni: front.example, subjectAltNames: [api.outside.example]}"));
    until_answered("tls front.example http/1.1 host api.outside.example");

    // A server that requires a client certificate.
    mesh.apply("entry", &api_entry(PORT + 1));
    mesh.apply("rule", &simple("ca.crt"));
    until_answered("503");
    mesh.apply("rule", &rule("{mode: MUTUAL, caCertificates: /etc/certs/shop/ca.crt, clientCertificate: /etc/certs/shop/tls.crt, privateKey: /etc/certs/shop/tls.key}"));
    until_answered("200 OK");
}

fn policy(name: &str, validation: &str) -> String {
    format!(
        "
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {{name: {name}, namespace: shop}}
spec:
  targetRefs: [{{group: networking.istio.io, kind: ServiceEntry, name: api, sectionName: http}}]
  validation: {validation}
"
    )
}

#[test]
fn backend_tls_policy_names_trusted_authorities() {
    let authority = Authority::new();
    let files = tempfile::tempdir().unwrap();
    let mesh = start_mesh(files.path(), &api_entry(PORT));
    let server = authority.sign(&["api.outside.example"]);
    serve_outside(&mesh, PORT, &server, None);
    let ip = mesh.ip("legacy/server").to_string();
    start_waypoint(&mesh, &[("api.outside.example", &ip)]);
    let until_answered =
        |text: &str| wait_for_response(&mesh, "shop/client", 1, "api.outside.example", text);
    let by_map = "{hostname: api.outside.example, caCertificateRefs: [{group: '', kind: ConfigMap, name: roots}]}";
    // The referenced object does not exist: no data is sent.
    mesh.apply("policy", &policy("api", by_map));
    until_answered("ConfigMap shop/roots does not exist");
    let map = |authority: &Authority| {
        let pem = authority.pem().replace('\n', "\n    ");
        format!(
            "
apiVersion: v1
kind: ConfigMap
metadata: {{name: roots, namespace: shop}}
data:
  ca.crt: |
    {pem}
"
        )
    };
    mesh.apply("roots", &map(&authority));
    until_answered("tls api.outside.example http/1.1 host api.outside.example");
    mesh.apply("roots", &map(&Authority::new()));
    until_answered("503");
    mesh.apply("roots", &map(&authority));
    until_answered("200 OK");
    mesh.apply(
        "policy",
        &policy("api", &by_map.replace("hostname: api", "hostname: other")),
    );
    until_answered("503");
    mesh.apply(
        "policy",
        &policy(
            "api",
            "{hostname: api.outside.example, wellKnownCACertificates: System}",
        ),
    );
    until_answered("503");
}

#[test]
fn waypoints_own_calls_originate_tls_too() {
    const HOST: &str = "api.outside.example";
    let authority = Authority::new();
    let files = tempfile::tempdir().unwrap();
    let own = files.path().join("shop");
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("ca.crt"), authority.pem()).unwrap();
    fs::write(own.join("other.crt"), Authority::new().pem()).unwrap();
    // The provider's entry has no waypoint: requests of clients do not use this one for it.
    let provider = format!(
        "
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: decider, namespace: shop}}
spec:
  hosts: [decider.outside.example]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{{number: 80, name: http, protocol: HTTP, targetPort: {}}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: istio, namespace: istio-system}}
data:
  mesh: |
    extensionProviders:
    - name: decides
      envoyExtAuthzHttp: {{service: shop/decider.outside.example, port: 80}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: asked, namespace: shop}}
spec:
  targetRefs: [{{group: networking.istio.io, kind: ServiceEntry, name: api}}]
  action: CUSTOM
  provider: {{name: decides}}
  rules: [{{}}]
",
        PORT + 1
    );
    let mesh = start_mesh(files.path(), &(api_entry(PORT) + &provider));
    serve_outside(&mesh, PORT, &authority.sign(&[HOST]), None);
    let decider = authority.sign(&["decider.outside.example"]);
    serve_outside(&mesh, PORT + 1, &decider, None);
    let ip = mesh.ip("legacy/server").to_string();
    let ip = ip.as_str();
    start_waypoint(&mesh, &[(HOST, ip), ("decider.outside.example", ip)]);
    let ca = "{mode: SIMPLE, caCertificates: /etc/certs/shop/ca.crt}";
    mesh.apply("rule", &rule(ca));
    let until_answered = |text: &str| wait_for_response(&mesh, "shop/client", 1, HOST, text);
    // Without a rule the provider receives HTTP, does not respond, and so allows nothing.
    until_answered("403");
    let of_decider = |tls: &str| {
        let named = rule(tls).replace("name: api", "name: decider");
        named.replace("host: api", "host: decider")
    };
    mesh.apply("deciders", &of_decider(ca));
    until_answered("tls api.outside.example http/1.1 host api.outside.example");
    for tls in [
        "{mode: SIMPLE, caCertificates: /etc/certs/shop/other.crt}",
        "{mode: SIMPLE, caCertificates: /etc/certs/shop/ca.crt, sni: other.example}",
        "{mode: SIMPLE, credentialName: secret}",
    ] {
        mesh.apply("deciders", &of_decider(tls));
        until_answered("403");
        mesh.apply("deciders", &of_decider(ca));
        until_answered("200 OK");
    }
}
