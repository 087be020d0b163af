//! Tests of `DestinationRule.proxyProtocol`: nginx reads the client's and the destination's address from the waypoint's
//! PROXY header.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
};

use ambit_system_tests::{
    LabNetns, Mesh, TIMEOUT, is_complete_response, wait_until, with_waypoint,
};

/// Port of nginx for HTTP. [`TLS_PORT`] is its port for HTTP over TLS, and [`TCP_PORT`] is that of an application that sends
/// first.
const HTTP_PORT: u16 = 8180;
const TLS_PORT: u16 = 8143;
const TCP_PORT: u16 = 8190;

const SERVICE: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: nginx, namespace: shop}
spec:
  selector: {app: nginx}
  ports:
  - {name: http, port: 80, targetPort: 8180}
  - {name: tcp, port: 90, targetPort: 8190}
  - {name: http-tls, port: 81, targetPort: 8143}
";

/// Response format of nginx: `CLIENT PORT SERVER PORT`, from the PROXY header.
const PROXY_HEADER_FORMAT: &str = "$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr $proxy_protocol_server_port";

fn pod(scratch: &std::path::Path) -> String {
    let config = scratch.join("nginx.conf");
    let key = rcgen::generate_simple_self_signed(["nginx.shop".to_owned()]).unwrap();
    let (certificate, private) = (scratch.join("cert.pem"), scratch.join("key.pem"));
    fs::write(&certificate, key.cert.pem()).unwrap();
    fs::write(&private, key.signing_key.serialize_pem()).unwrap();
    let (certificate, private) = (certificate.display(), private.display());
    let pid = scratch.join("nginx.pid");
    let text = format!(
        "worker_processes 1; daemon off; error_log /dev/null; pid {}; user root;
events {{}}
http {{ access_log off;
  server {{ listen {HTTP_PORT} proxy_protocol; location / {{ return 200 \"{PROXY_HEADER_FORMAT}\"; }} }}
  server {{
    listen {TLS_PORT} ssl proxy_protocol; ssl_certificate {certificate}; ssl_certificate_key {private};
    location / {{ return 200 \"{PROXY_HEADER_FORMAT} $ssl_server_name\"; }}
  }} }}
\n",
        pid.display(),
    );
    fs::write(&config, text).unwrap();
    format!(
        "
---
apiVersion: v1
kind: Pod
metadata: {{name: nginx, namespace: shop, labels: {{app: nginx}}}}
spec:
  nodeName: node-1
  containers:
  - {{name: web, image: none, command: [nginx, -c, {}], readinessProbe: {{tcpSocket: {{port: {HTTP_PORT}}}}}}}
",
        config.display()
    )
}

fn rule(version: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: nginx, namespace: shop}}\nspec:\n  \
         host: nginx\n  trafficPolicy:\n    proxyProtocol: {{{version}}}\n    portLevelSettings:\n    - port: {{number: 81}}\n      \
         tls: {{mode: SIMPLE, insecureSkipVerify: true, sni: nginx.shop}}\n"
    )
}

/// Sends two requests on one connection; returns the connection's local port, and the responses.
fn ask(mesh: &Mesh, to: SocketAddr) -> Option<(u16, [String; 2])> {
    let place = LabNetns::Pod("shop/client".to_owned());
    let mut stream = mesh.client().dial(place, to).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    let own = stream.local_addr().ok()?.port();
    let mut answers = [String::new(), String::new()];
    for answer in &mut answers {
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: nginx\r\n\r\n")
            .ok()?;
        let mut bytes = [0; 512];
        while !is_complete_response(answer) {
            let read = stream.read(&mut bytes).ok().filter(|read| *read > 0)?;
            answer.push_str(std::str::from_utf8(&bytes[..read]).ok()?);
        }
    }
    let bodies = answers.map(|answer| {
        answer
            .split("\r\n\r\n")
            .nth(1)
            .unwrap_or_default()
            .to_owned()
    });
    Some((own, bodies))
}

/// Reads a PROXY header (haproxy's `proxy-protocol.txt`, 2.1 and 2.2, for IPv4), and responds as nginx does.
fn respond_with_header(mut stream: TcpStream) -> io::Result<()> {
    let mut first = [0; 16];
    stream.read_exact(&mut first)?;
    let expected = if first.starts_with(b"PROXY TCP4 ") {
        let mut line = first[11..].to_vec();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            line.extend(byte);
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        let parts: Vec<_> = line.split_whitespace().collect();
        format!("{} {} {} {}", parts[0], parts[2], parts[1], parts[3])
    } else {
        assert_eq!(&first, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c");
        let mut of = [0; 12];
        stream.read_exact(&mut of)?;
        let ip = |at: usize| Ipv4Addr::new(of[at], of[at + 1], of[at + 2], of[at + 3]);
        let port = |at: usize| u16::from_be_bytes([of[at], of[at + 1]]);
        format!("{} {} {} {}", ip(0), port(8), ip(4), port(10))
    };
    stream.write_all(expected.as_bytes())
}

#[test]
fn endpoints_get_caller_and_destination_in_both_versions() {
    let scratch = tempfile::tempdir().unwrap();
    let (mesh, _) = with_waypoint(&format!("{}{SERVICE}", pod(scratch.path())));
    mesh.serve_connections("shop/nginx", TCP_PORT, respond_with_header);
    let client = mesh.ip("shop/client");
    let at = |port| mesh.service_address("nginx.shop.svc", port);
    for version in ["version: V1", "version: V2", ""] {
        mesh.apply("rule", &rule(version));
        let mut ports = BTreeSet::new();
        let expected = |own: u16, to: SocketAddr, sni: &str| {
            let (ip, port) = (to.ip(), to.port());
            format!("{client} {own} {ip} {port}{sni}")
        };
        for (port, sni) in [(80, ""), (81, " nginx.shop")] {
            let to = at(port);
            wait_until(
                &format!("nginx says who calls port {port}, {version}"),
                || {
                    let Some((own, answers)) = ask(&mesh, to) else {
                        return false;
                    };
                    let is_expected = answers
                        .iter()
                        .all(|answer| *answer == expected(own, to, sni));
                    is_expected && {
                        ports.insert(own);
                        ports.len() > 1
                    }
                },
            );
        }
        let to = at(90);
        wait_until(
            &format!("the application says who connects, {version}"),
            || {
                let place = LabNetns::Pod("shop/client".to_owned());
                let mut stream = mesh.client().dial(place, to).unwrap();
                let own = stream.local_addr().unwrap().port();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).is_ok() && answer == expected(own, to, "")
            },
        );
        // Between versions, connections without a header show that the next version's rule is in
        // force.
        mesh.remove("rule");
        wait_until("nginx refuses connections without a header", || {
            ask(&mesh, at(80)).is_none_or(|(_, answers)| !answers[0].contains(&client.to_string()))
        });
    }
}
