//! Tests of hosts whose DNS server changes its answers, lies, or sends invalid answers or none: resolved addresses are
//! checked each time, for the TTL of the answer, and one host's server does not affect others.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    sync::{Arc, Mutex},
};

use ambit_system_tests::{LabNetns, Mesh, answer_ok, read_head, wait_until};

use crate::egress::outside::{
    listen, send_request, service_entry, start_mesh, start_waypoint_with, wait_for_response,
    waypoint_access_log,
};

const PORT: u16 = 8080;
/// TTL of DNS answers in seconds.
const TTL: u32 = 1;

/// Scripted behaviour of the DNS server for one name.
#[derive(Clone)]
enum NameResult {
    Addresses(Vec<Ipv4Addr>),
    InvalidAnswer,
    NoAnswer,
}

/// Scripted DNS server, with the behaviour for each name.
#[derive(Clone, Default)]
struct ScriptedDns(Arc<Mutex<BTreeMap<String, NameResult>>>);

impl ScriptedDns {
    fn set_result(&self, name: &str, result: NameResult) {
        self.0.lock().unwrap().insert(name.to_owned(), result);
    }

    fn set_addresses(&self, name: &str, addresses: &[IpAddr]) {
        let v4 = addresses.iter().map(|ip| match ip {
            IpAddr::V4(ip) => *ip,
            IpAddr::V6(ip) => panic!("{ip} is not of IPv4"),
        });
        self.set_result(name, NameResult::Addresses(v4.collect()));
    }

    fn serve(&self, socket: UdpSocket) {
        let names = self.clone();
        std::thread::spawn(move || {
            let mut question = [0; 512];
            // The thread ends with the lab.
            while let Ok((length, from)) = socket.recv_from(&mut question) {
                if let Some(answer) = names.answer(&question[..length]) {
                    socket.send_to(&answer, from).ok();
                }
            }
        });
    }

    /// Builds the DNS answer (RFC 1035, section 4) to one query, with IPv4 addresses.
    fn answer(&self, question: &[u8]) -> Option<Vec<u8>> {
        let mut labels = Vec::new();
        let mut at = 12;
        while question[at] != 0 {
            let end = at + 1 + usize::from(question[at]);
            labels.push(String::from_utf8_lossy(&question[at + 1..end]).to_lowercase());
            at = end;
        }
        let end = at + 5;
        let is_a = question[at + 2] == 1;
        let result = self.0.lock().unwrap().get(&labels.join(".")).cloned();
        let addresses = match result {
            None => Vec::new(),
            Some(NameResult::Addresses(addresses)) if is_a => addresses,
            Some(NameResult::Addresses(_)) => Vec::new(),
            Some(NameResult::NoAnswer) => return None,
            Some(NameResult::InvalidAnswer) => {
                let mut nonsense = question[..2].to_vec();
                nonsense.extend([0x81, 0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xc0, 0x0c]);
                return Some(nonsense);
            }
        };
        let mut answer = question[..2].to_vec();
        answer.extend([0x81, 0x80, 0, 1, 0, u8::try_from(addresses.len()).unwrap()]);
        answer.extend([0; 4]);
        answer.extend(&question[12..end]);
        for ip in addresses {
            answer.extend([0xc0, 0x0c, 0, 1, 0, 1]);
            answer.extend(TTL.to_be_bytes());
            answer.extend([0, 4]);
            answer.extend(ip.octets());
        }
        Some(answer)
    }
}

/// Serves HTTP in a network namespace; responses contain the server's `name`.
fn serve(mesh: &Mesh, place: LabNetns, name: &'static str) {
    listen(mesh, place, PORT, move |mut stream| {
        while read_head(&mut stream)?.is_some() {
            answer_ok(&mut stream, &format!("this is {name}\n"))?;
        }
        Ok(())
    });
}

#[test]
fn resolved_addresses_are_checked_each_time() {
    let files = tempfile::tempdir().unwrap();
    let port = format!("ports: [{{number: 80, name: http, protocol: HTTP, targetPort: {PORT}}}]");
    let wild = format!("hosts: ['*.outside.example']\n  resolution: DYNAMIC_DNS\n  {port}");
    let exact = format!("hosts: [one.example]\n  resolution: DNS\n  {port}");
    let fixed = format!(
        "hosts: [fixed.example]\n  resolution: STATIC\n  {port}\n  endpoints: [{{address: NODE}}]"
    );
    let more = service_entry("shop", "wild", 2, &wild) + &service_entry("shop", "one", 3, &exact);
    let mesh = start_mesh(files.path(), &more);
    let names = ScriptedDns::default();
    let server = SocketAddr::new(mesh.ip("legacy/server"), 53);
    let place = LabNetns::Pod("legacy/server".to_owned());
    names.serve(mesh.client().bind(place, server).unwrap());
    let [first, second] = ["node-1", "node-2"].map(|name| mesh.node_ip(name));
    serve(&mesh, LabNetns::Node("node-1".to_owned()), "the first");
    serve(&mesh, LabNetns::Node("node-2".to_owned()), "the second");
    names.set_addresses("api.outside.example", &[first]);
    names.set_addresses("one.example", &[first]);
    let own = format!(
        "dnsPolicy: None, dnsConfig: {{nameservers: [{}]}}",
        server.ip()
    );
    start_waypoint_with(&mesh, &own);
    let wild = |text: &str| wait_for_response(&mesh, "shop/client", 2, "api.outside.example", text);
    let exact = |text: &str| wait_for_response(&mesh, "shop/client", 3, "one.example", text);
    let log_says = |why: &str| {
        wait_until(&format!("the log has {why}"), || {
            waypoint_access_log(&mesh).contains(why)
        })
    };

    // The name moves, and requests follow.
    wild("this is the first");
    exact("this is the first");
    names.set_addresses("api.outside.example", &[second]);
    names.set_addresses("one.example", &[second]);
    wild("this is the second");
    exact("this is the second");

    // The name resolves to a pod of the mesh, alone or among others, or to the waypoint itself.
    let pod = mesh.ip("shop/server");
    names.set_addresses("api.outside.example", &[pod]);
    wild("503");
    log_says("an address of the mesh");
    names.set_addresses("api.outside.example", &[pod, first]);
    wild("this is the first");
    for _ in 0..20 {
        let answer = send_request(&mesh, "shop/client", 2, "api.outside.example");
        assert!(answer.contains("this is the first"), "{answer}");
    }
    let itself = IpAddr::V4(Ipv4Addr::LOCALHOST);
    names.set_addresses("api.outside.example", &[itself]);
    names.set_addresses("one.example", &[itself]);
    wild("503");
    exact("503");
    log_says("127.0.0.1 is a loopback, unspecified, multicast or broadcast address");

    // Its server sends invalid answers, or none: other names still resolve.
    names.set_result("api.outside.example", NameResult::InvalidAnswer);
    names.set_addresses("one.example", &[second]);
    wild("503");
    exact("this is the second");
    names.set_result("api.outside.example", NameResult::NoAnswer);
    let answers = std::thread::scope(|scope| {
        let ask = || send_request(&mesh, "shop/client", 2, "api.outside.example");
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        exact("this is the second");
        let answers = asking.into_iter().map(|one| one.join().unwrap());
        answers.collect::<Vec<_>>()
    });
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    }
    log_says("no answer within 5s");
    names.set_addresses("api.outside.example", &[first]);
    wild("this is the first");

    // Addresses in the entry itself.
    let fixed = fixed.replace("NODE", &second.to_string());
    mesh.apply("fixed", &service_entry("shop", "fixed", 4, &fixed));
    wait_for_response(
        &mesh,
        "shop/client",
        4,
        "fixed.example",
        "this is the second",
    );
}
