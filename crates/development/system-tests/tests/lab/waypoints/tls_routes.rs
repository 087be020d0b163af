//! Tests of TLSRoutes with real TLS clients and servers: the SNI selects the application, which holds the key, and the
//! waypoint reads only the SNI.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
    sync::Arc,
};

use ambit_system_tests::{LabNetns, Mesh, TIMEOUT, wait_until, with_waypoint};
use rustls::{RootCertStore, SupportedProtocolVersion, crypto::CryptoProvider};

const SERVICES: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: tls, port: 443, targetPort: 8443}]
---
apiVersion: v1
kind: Service
metadata: {name: next, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: tls, port: 443, targetPort: 8444}]
---
apiVersion: v1
kind: Service
metadata: {name: plain, namespace: shop}
spec:
  selector: {app: server}
  ports: [{name: tcp, port: 9443, targetPort: 8443}]
";

const ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: front, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: front, port: 443}]
  hostnames: [next.example, '*.below.example']
  rules: [{backendRefs: [{name: next, port: 443}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: own, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: front, port: 443}]
  hostnames: [front.example]
  rules: [{backendRefs: [{name: front, port: 443}]}]
";

/// TLSRoute for any SNI at a plain TCP port.
const ANY_NAME: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: any, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: plain, port: 9443}]
  rules: [{backendRefs: [{name: next, port: 443}]}]
";

fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Serves TLS for these names with its own key; sends its identity and the requested SNI first.
fn serve(mesh: &Mesh, port: u16, names: &[&str], roots: &mut RootCertStore) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let signed = rcgen::generate_simple_self_signed(names).unwrap();
    roots.add(signed.cert.der().clone()).unwrap();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der());
    let server = rustls::ServerConfig::builder_with_provider(crypto_provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key.into())
        .unwrap();
    let server = Arc::new(server);
    mesh.serve_connections("shop/server", port, move |stream| {
        let tls = rustls::ServerConnection::new(server.clone()).map_err(std::io::Error::other)?;
        let mut stream = rustls::StreamOwned::new(tls, stream);
        let mut received = [0; 5];
        stream.read_exact(&mut received)?;
        let name = stream.conn.server_name().unwrap_or_default().to_owned();
        write!(stream, "{port} as {name}")?;
        stream.conn.send_close_notify();
        stream.flush()
    });
}

/// Opens a TLS connection; returns the name of the application to which the SNI is routed, empty if the connection is
/// closed before.
fn routed_name(
    mesh: &Mesh,
    address: SocketAddr,
    name: &'static str,
    (roots, version): (&RootCertStore, &'static SupportedProtocolVersion),
) -> Option<String> {
    let config = rustls::ClientConfig::builder_with_provider(crypto_provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots.clone())
        .with_no_client_auth();
    let place = LabNetns::Pod("shop/client".into());
    let stream = mesh.client().dial(place, address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let name = name.try_into().unwrap();
    let tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = rustls::StreamOwned::new(tls, stream);
    stream.write_all(b"hello").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn tls_clients_reach_the_application_of_their_server_name() {
    let (mesh, _) = with_waypoint(SERVICES);
    let mut roots = RootCertStore::empty();
    serve(&mesh, 8443, &["front.example", "other.example"], &mut roots);
    let below = ["next.example", "a.below.example", "other.example"];
    serve(&mesh, 8444, &below, &mut roots);
    let front = mesh.service_address("front.shop.svc", 443);
    let both = [&rustls::version::TLS12, &rustls::version::TLS13];
    let ask = |name, version| routed_name(&mesh, front, name, (&roots, version));
    wait_until("connections reach the service itself", || {
        ask("front.example", both[1]).as_deref() == Some("8443 as front.example")
    });
    mesh.apply("route", ROUTE);
    wait_until("the name is routed to the next", || {
        ask("next.example", both[1]).as_deref() == Some("8444 as next.example")
    });
    for version in both {
        for (name, expected) in [
            ("next.example", Some("8444 as next.example")),
            ("a.below.example", Some("8444 as a.below.example")),
            ("front.example", Some("8443 as front.example")),
            // Both applications have a certificate for the name, and no route matches it.
            ("other.example", None),
        ] {
            assert_eq!(
                ask(name, version).as_deref(),
                expected,
                "{name} {version:?}"
            );
        }
    }
}

#[test]
fn route_without_names_matches_every_name_on_a_tcp_port() {
    let (mesh, _) = with_waypoint(SERVICES);
    let mut roots = RootCertStore::empty();
    serve(&mesh, 8443, &["any.example"], &mut roots);
    serve(&mesh, 8444, &["any.example", "other.example"], &mut roots);
    mesh.apply("any", ANY_NAME);
    let plain = mesh.service_address("plain.shop.svc", 9443);
    let ask = |name| routed_name(&mesh, plain, name, (&roots, &rustls::version::TLS13));
    for name in ["any.example", "other.example"] {
        wait_until("every name is routed to the route's backend", || {
            ask(name) == Some(format!("8444 as {name}"))
        });
    }
}
