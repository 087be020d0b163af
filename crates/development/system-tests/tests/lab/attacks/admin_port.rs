//! Tests that a waypoint's dumps and commands are available only to its own pod, and so to users whom the API server
//! allows into it (`pods/portforward`, `pods/exec`): no address of the pod serves the admin port, in whatever spelling,
//! and on loopback no page of another origin gets a response.

use std::net::{IpAddr, SocketAddr};

use ambit_system_tests::{
    IpFamily, LabNetns, Mesh, Options, is_complete_response, options, with_waypoint_options,
};

const PORT: u16 = 15000;

/// Sends a request to an admin port, and returns the response; `None` without a connection.
fn send_request(
    mesh: &Mesh,
    from: &LabNetns,
    ip: IpAddr,
    method: &str,
    path: &str,
    headers: &str,
) -> String {
    let request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    let connection = mesh.dial_from(from.clone(), SocketAddr::new(ip, PORT));
    let answer =
        connection.and_then(|mut one| one.send_raw(request.as_bytes(), is_complete_response));
    answer.unwrap_or_default()
}

#[test]
fn admin_port_answers_on_loopback_and_to_no_other_origin() {
    let (mesh, _) = with_waypoint_options(
        "",
        Options {
            ip_family: IpFamily::Dual,
            ..options()
        },
    );
    let pod = |name: &str| LabNetns::Pod(name.to_owned());
    let node = |name: &str| LabNetns::Node(name.to_owned());
    let itself = pod("shop/waypoint");
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let is_alive = || {
        let answer = send_request(
            &mesh,
            &itself,
            loopback,
            "GET",
            "/config_dump",
            "Host: localhost:15000\r\n",
        );
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    is_alive();

    let mut ips = mesh.pod("shop/waypoint").ips;
    assert_eq!(ips.len(), 2);
    let mapped = ips.iter().filter_map(|ip| match ip {
        IpAddr::V4(v4) => Some(IpAddr::V6(v4.to_ipv6_mapped())),
        IpAddr::V6(_) => None,
    });
    ips.extend(mapped.collect::<Vec<_>>());
    let callers = [
        pod("shop/client"),
        pod("legacy/client"),
        pod("legacy/server"),
        node("node-1"),
        node("node-2"),
        itself.clone(),
    ];
    for from in &callers {
        for ip in &ips {
            for host in ["localhost:15000".to_owned(), ip.to_string()] {
                let host = format!("Host: {host}\r\n");
                let answer = send_request(&mesh, from, *ip, "GET", "/config_dump", &host);
                assert_eq!(answer, "", "{from:?} at {ip}");
            }
        }
    }

    for headers in [
        "Host: waypoint.shop.svc\r\n",
        "Host: attacker.example:15000\r\n",
        "Host: localhost:15000\r\nOrigin: http://attacker.example\r\n",
        "Host: localhost:15000\r\nOrigin: null\r\n",
        "Host: localhost:15000\r\nOrigin: http://localhost:3000\r\n",
        "Host: localhost:15000\r\nSec-Fetch-Site: cross-site\r\n",
    ] {
        for (method, path) in [
            ("POST", "/quitquitquit"),
            ("POST", "/logging?level=trace"),
            ("GET", "/config_dump"),
        ] {
            let answer = send_request(&mesh, &itself, loopback, method, path, headers);
            assert!(
                answer.starts_with("HTTP/1.1 403"),
                "{method} {path} {headers}: {answer}"
            );
        }
    }
    is_alive();
}
