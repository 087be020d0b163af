//! Hosts below a wildcard: the waypoint resolves what the client names, only below the wildcard, and never to what is
//! the mesh's or the node's own.

use std::{io::Write as _, sync::Arc};

use ambit_system_tests::{Mesh, Place, answer_ok, read_head, until};

use crate::outside::{
    Authority, Outside, PREFIX, entry, listen, log, mesh, until_answer, waypoint,
};

const PORT: u16 = 8080;
const TLS_PORT: u16 = 8443;

/// Serves HTTP that says which host was asked for.
fn serve(mesh: &Mesh, place: Place) {
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
fn the_host_that_is_named_is_called_and_no_other() {
    let authority = Authority::new();
    let files = tempfile::tempdir().unwrap();
    let spec = format!(
        "hosts: ['*.outside.example']\n  resolution: DYNAMIC_DNS\n  ports:\n  - {{number: 80, name: http, protocol: HTTP, targetPort: {PORT}}}\n  - {{number: 443, name: tls, protocol: TLS, targetPort: {TLS_PORT}}}"
    );
    let mesh = mesh(files.path(), &entry("shop", "wild", 2, &spec));
    let node = Place::Node("node-2".to_owned());
    serve(&mesh, node.clone());
    let signed = authority.sign(&["secure.outside.example"]);
    let server = Outside {
        port: TLS_PORT,
        signed: &signed,
        clients: None,
    };
    server.serve(&mesh, node);
    let node = mesh.node_ip("node-2").to_string();
    let pod = mesh.ip("legacy/server").to_string();
    let vip = mesh.service("server.shop.svc", 80).ip().to_string();
    waypoint(
        &mesh,
        &[
            ("api.outside.example", &node),
            ("secure.outside.example", &node),
            ("api.elsewhere.example", &node),
            ("pod.outside.example", &pod),
            ("vip.outside.example", &vip),
            ("loop.outside.example", "127.0.0.1"),
            ("metadata.outside.example", "169.254.169.254"),
        ],
    );
    let told = |host: &str, text: &str| until_answer(&mesh, "shop/client", 2, host, text);
    told("api.outside.example", "outside api.outside.example");
    until("the log names the host", || {
        log(&mesh).contains(" remote=\"api.outside.example\"\n")
    });
    told("API.outside.example:80", "outside api.outside.example:80");
    // Beside the wildcard, not below it.
    for host in ["api.elsewhere.example", "outside.example", "127.0.0.1"] {
        told(host, "404");
    }
    // Below it, but not outside.
    for (host, why) in [
        ("pod.outside.example", "an address of the mesh"),
        ("vip.outside.example", "an address of the mesh"),
        ("loop.outside.example", "an address of this machine"),
        (
            "metadata.outside.example",
            "an address of the node's own network",
        ),
        ("nowhere.outside.example", "cannot resolve"),
    ] {
        told(host, "503");
        until(&format!("the log says {why} of {host}"), || {
            log(&mesh)
                .lines()
                .any(|line| line.contains(host) && line.contains(why))
        });
    }

    // The same by the name in a client hello.
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let secured = |name: &'static str| -> std::io::Result<String> {
        let to = format!("{PREFIX}.2:443").parse().unwrap();
        let stream = mesh
            .client()
            .dial(Place::Pod("shop/client".to_owned()), to)
            .map_err(std::io::Error::other)?;
        stream.set_read_timeout(Some(ambit_system_tests::PATIENCE))?;
        let name = name.try_into().unwrap();
        let tls = rustls::ClientConnection::new(config.clone(), name).unwrap();
        let mut stream = rustls::StreamOwned::new(tls, stream);
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")?;
        let head = read_head(&mut stream)?;
        Ok(head.unwrap_or_default())
    };
    until("TLS passes through to the host in the client hello", || {
        secured("secure.outside.example").is_ok_and(|head| head.contains("200 OK"))
    });
    for name in [
        "api.elsewhere.example",
        "pod.outside.example",
        "loop.outside.example",
    ] {
        secured(name).unwrap_err();
    }
    until("the log names the host beside the wildcard", || {
        log(&mesh).contains("is no host below *.outside.example")
    });
}
