//! Tests of hosts below a wildcard: the waypoint resolves the client's host name, only below the
//! wildcard, and never to addresses of the mesh or the node.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{Arc, mpsc},
};

use ambit_system_tests::{LabNetns, Mesh, TIMEOUT, answer_ok, is_closed, read_head, wait_until};
use rustls::ClientConfig;

use crate::egress::outside::{
    ADDRESS_PREFIX, Authority, OutsideServer, listen, service_entry, start_mesh, start_waypoint,
    wait_for_response, waypoint_access_log,
};

const API_POLICY: &str = "
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: api, namespace: shop}
spec:
  targetRefs: [{group: networking.istio.io, kind: ServiceEntry, name: api}]
  action: DENY
  rules: [{}]
";

/// MeshConfig that makes ServiceEntries visible to all namespaces.
const VISIBLE_TO_ALL: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'defaultServiceExportTo: [\"*\"]'}
";

const PORT: u16 = 8080;
/// Port of a server that accepts connections and records the received bytes.
const RAW_PORT: u16 = 8445;
const TLS_PORT: u16 = 8443;

/// Serves HTTP in a network namespace; responses contain the requested host.
fn serve(mesh: &Mesh, place: LabNetns) {
    listen(mesh, place, PORT, |mut stream| {
        while let Some(head) = read_head(&mut stream)? {
            let head = head.to_ascii_lowercase();
            let host = head.lines().find_map(|line| line.strip_prefix("host: "));
            let body = format!("outside {}\n", host.unwrap_or_default());
            answer_ok(&mut stream, &body)?;
        }
        Ok(())
    });
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table is as long as it is")]
fn only_the_named_host_is_called() {
    let authority = Authority::new();
    let files = tempfile::tempdir().unwrap();
    let spec = format!(
        "hosts: ['*.outside.example']\n  resolution: DYNAMIC_DNS\n  ports:\n  - {{number: 80, name: http, protocol: HTTP, targetPort: {PORT}}}\n  - {{number: 443, name: tls, protocol: TLS, targetPort: {TLS_PORT}}}"
    );
    let mesh = start_mesh(files.path(), &service_entry("shop", "wild", 2, &spec));
    let node = LabNetns::Node("node-2".to_owned());
    serve(&mesh, node.clone());
    let signed = authority.sign(&[
        "secure.outside.example",
        "api.outside.example",
        "api.raw.example",
        "other.raw.example",
    ]);
    let server = OutsideServer {
        port: TLS_PORT,
        signed: &signed,
        client_ca: None,
    };
    server.serve(&mesh, node.clone());
    let (seen, of_raw) = mpsc::channel();
    listen(&mesh, node, RAW_PORT, move |mut stream| {
        seen.send(Vec::new()).map_err(std::io::Error::other)?;
        let mut bytes = vec![0; 4096];
        let read = stream.read(&mut bytes)?;
        bytes.truncate(read);
        seen.send(bytes).map_err(std::io::Error::other)
    });
    let node = mesh.node_ip("node-2").to_string();
    let pod = mesh.ip("legacy/server").to_string();
    let vip = mesh.service_address("server.shop.svc", 80).ip().to_string();
    start_waypoint(
        &mesh,
        &[
            ("api.outside.example", &node),
            ("other.outside.example", &node),
            ("secure.outside.example", &node),
            ("api.elsewhere.example", &node),
            ("pod.outside.example", &pod),
            ("vip.outside.example", &vip),
            ("loop.outside.example", "127.0.0.1"),
            ("metadata.outside.example", "169.254.169.254"),
        ],
    );
    let until_answered =
        |host: &str, text: &str| wait_for_response(&mesh, "shop/client", 2, host, text);
    until_answered("api.outside.example", "outside api.outside.example");
    wait_until("the log names the host", || {
        waypoint_access_log(&mesh).contains(" remote=\"api.outside.example\"\n")
    });
    until_answered("API.outside.example:80", "outside api.outside.example:80");
    // A host beside the wildcard, not below it.
    for host in ["api.elsewhere.example", "outside.example", "127.0.0.1"] {
        until_answered(host, "404");
    }
    // A host below it, but not outside of the mesh.
    for (host, why) in [
        ("pod.outside.example", "an address of the mesh"),
        ("vip.outside.example", "an address of the mesh"),
        (
            "loop.outside.example",
            "a loopback, unspecified, multicast or broadcast address",
        ),
        (
            "metadata.outside.example",
            "an address of the node's own network",
        ),
        ("nowhere.outside.example", "cannot resolve"),
    ] {
        until_answered(host, "503");
        wait_until(&format!("the log has {why} for {host}"), || {
            waypoint_access_log(&mesh)
                .lines()
                .any(|line| line.contains(host) && line.contains(why))
        });
    }

    // The same by the name in a ClientHello.
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let secured = |name: &'static str| request_over_tls(&mesh, &config, "2:443", name);
    wait_until("TLS passes through to the host in the client hello", || {
        secured("secure.outside.example").is_ok_and(|head| head.contains("200 OK"))
    });
    for name in [
        "api.elsewhere.example",
        "pod.outside.example",
        "loop.outside.example",
    ] {
        secured(name).unwrap_err();
    }
    wait_until("the log names the host beside the wildcard", || {
        waypoint_access_log(&mesh).contains("is no host below *.outside.example")
    });

    // A host with its own entry is authorized as that entry's, whichever address is called.
    let spec = spec.replace("*.outside.example", "api.outside.example");
    let spec = spec.replace("DYNAMIC_DNS", "DNS");
    let own = service_entry("shop", "api", 3, &spec);
    mesh.apply("api", &format!("{own}{API_POLICY}"));
    wait_for_response(&mesh, "shop/client", 3, "api.outside.example", "403");
    for host in [
        "api.outside.example",
        "API.outside.example.:80",
        "api.outside.example:8080",
    ] {
        until_answered(host, "403");
    }
    until_answered("other.outside.example", "outside other.outside.example");
    wait_until(
        "TLS for that host is refused at the wildcard's address",
        || {
            !secured("api.outside.example").is_ok_and(|head| head.contains("200 OK"))
                && waypoint_access_log(&mesh)
                    .contains("rbac_access_denied_matched_policy[ns[shop]-policy[api]")
        },
    );
    wait_until("TLS for others passes", || {
        secured("secure.outside.example").is_ok_and(|head| head.contains("200 OK"))
    });
    mesh.remove("api");
    until_answered("api.outside.example", "outside api.outside.example");

    // A host that another waypoint serves is rejected.
    let elsewhere = own.replace("use-waypoint: out,", "use-waypoint: absent,");
    assert_ne!(elsewhere, own);
    mesh.apply("api", &elsewhere);
    until_answered("api.outside.example", " 421 ");
    wait_until("TLS for it is refused, too", || {
        !secured("api.outside.example").is_ok_and(|head| head.contains("200 OK"))
    });
    until_answered("other.outside.example", "outside other.outside.example");
    mesh.remove("api");
    until_answered("api.outside.example", "outside api.outside.example");
    test_private_entry(&mesh, &spec);
    test_other_protocols(&mesh, &config, (&node, &of_raw));
}

fn dial(mesh: &Mesh, to: &str) -> std::io::Result<TcpStream> {
    let to: SocketAddr = format!("{ADDRESS_PREFIX}.{to}").parse().unwrap();
    let place = LabNetns::Pod("shop/client".to_owned());
    let stream = mesh.client().dial(place, to);
    let stream = stream.map_err(std::io::Error::other)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Sends a request over TLS to `to`, an address below [`ADDRESS_PREFIX`] with a port, and returns the response.
fn request_over_tls(
    mesh: &Mesh,
    config: &Arc<ClientConfig>,
    to: &str,
    name: &'static str,
) -> std::io::Result<String> {
    let stream = dial(mesh, to)?;
    let tls = rustls::ClientConnection::new(config.clone(), name.try_into().unwrap()).unwrap();
    let mut stream = rustls::StreamOwned::new(tls, stream);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let head = read_head(&mut stream)?;
    Ok(head.unwrap_or_default())
}

/// Checks that a ServiceEntry visible only to the caller's namespace does not apply to calls at another namespace's
/// wildcard.
fn test_private_entry(mesh: &Mesh, spec: &str) {
    mesh.apply("open", VISIBLE_TO_ALL);
    wait_for_response(mesh, "bank/client", 2, "api.outside.example", "outside api");
    let own = service_entry("bank", "api", 4, &format!("{spec}\n  exportTo: ['.']"));
    let policy = API_POLICY.replace("namespace: shop", "namespace: bank");
    mesh.apply("api", &format!("{own}{policy}"));
    wait_for_response(mesh, "bank/client", 4, "api.outside.example", " 403 ");
    for (host, expected) in [
        ("api.outside.example", " 403 "),
        ("API.outside.example.:80", " 403 "),
        ("other.outside.example", "outside other.outside.example"),
    ] {
        wait_for_response(mesh, "bank/client", 2, host, expected);
    }
    wait_for_response(mesh, "shop/client", 2, "api.outside.example", "outside api");
    mesh.remove("api");
    mesh.remove("open");
}

/// Checks that the SNI applies at wildcards whose ports declare another protocol, or none.
fn test_other_protocols(
    mesh: &Mesh,
    config: &Arc<ClientConfig>,
    (node, of_raw): (&str, &mpsc::Receiver<Vec<u8>>),
) {
    let spec = format!(
        "hosts: ['*.raw.example']\n  resolution: STATIC\n  endpoints: [{{address: {node}}}]\n  ports:\n  \
         - {{number: 443, name: tcp, protocol: TCP, targetPort: {TLS_PORT}}}\n  \
         - {{number: 444, name: any, targetPort: {TLS_PORT}}}\n  \
         - {{number: 445, name: tcp-raw, protocol: TCP, targetPort: {RAW_PORT}}}"
    );
    mesh.apply("raw", &service_entry("shop", "raw", 5, &spec));
    let passes = |to: &str, name| {
        request_over_tls(mesh, config, to, name).is_ok_and(|head| head.contains("200 OK"))
    };
    let ports = ["5:443", "5:444"];
    for to in ports {
        wait_until(&format!("TLS passes at {to}"), || {
            passes(to, "api.raw.example")
        });
    }
    let own = service_entry("shop", "api", 3, &spec.replace("*.raw", "api.raw"));
    mesh.apply("api", &format!("{own}{API_POLICY}"));
    for to in ports {
        wait_until(&format!("TLS for the host is refused at {to}"), || {
            !passes(to, "api.raw.example")
        });
        assert!(passes(to, "other.raw.example"), "{to}");
    }
    // A client that begins only after the server was connected is rejected, too.
    let name = |name: &'static str| name.try_into().unwrap();
    for (host, is_read) in [("other.raw.example", true), ("api.raw.example", false)] {
        while of_raw.try_recv().is_ok() {}
        let mut stream = dial(mesh, "5:445").unwrap();
        of_raw.recv_timeout(TIMEOUT).unwrap();
        let mut tls = rustls::ClientConnection::new(config.clone(), name(host)).unwrap();
        tls.write_tls(&mut stream).unwrap();
        match stream.read(&mut [0]) {
            Ok(read) => assert_eq!(read, 0, "{host}"),
            Err(error) => assert!(is_closed(&error), "{host}: {error}"),
        }
        let read = of_raw
            .recv_timeout(TIMEOUT)
            .is_ok_and(|bytes| !bytes.is_empty());
        assert_eq!(read, is_read, "{host}");
    }
    mesh.remove("api");
    mesh.remove("raw");
}
