//! The cluster's DNS: names of services and of the pods of headless ones, and SRV records of their named
//! ports. Each node has a server at its own address; all answer from the same zone.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, OpCode, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA, SRV},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::watch,
    time::timeout,
};

use crate::{cluster::ServiceView, fabric::Node};

/// The domain of the cluster.
pub(crate) const DOMAIN: &str = "cluster.local";
/// Seconds that answers may be cached.
const TTL: u32 = 5;
/// The largest answer over UDP to a client that did not say more.
const UDP_PAYLOAD: usize = 1232;
/// How long a client may hold a TCP connection without a question.
const IDLE: Duration = Duration::from_secs(10);

/// Every name, lower case and without the final dot, with its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zone {
    names: BTreeMap<String, Vec<IpAddr>>,
    /// `_port._protocol.service…` with number and host.
    ports: BTreeMap<String, Vec<(u16, Name)>>,
}

impl Zone {
    pub(crate) fn new(views: &[ServiceView]) -> Self {
        let mut names: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        let mut ports: BTreeMap<String, Vec<(u16, Name)>> = BTreeMap::new();
        for view in views {
            let name = format!("{}.{}.svc.{DOMAIN}", view.name, view.namespace).to_lowercase();
            let mut hosts = vec![name.clone()];
            if view.ips.is_empty() {
                hosts.clear();
                for (host, ip) in &view.endpoints {
                    let host = format!("{}.{name}", host.to_lowercase());
                    names.entry(host.clone()).or_default().push(*ip);
                    hosts.push(host);
                }
            }
            hosts.dedup();
            for port in view.ports.iter().filter(|port| !port.name.is_empty()) {
                let protocol = if port.udp { "udp" } else { "tcp" };
                let host = |host: &String| Name::from_ascii(format!("{host}.")).ok();
                let found = hosts.iter().filter_map(host);
                ports
                    .entry(format!("_{}._{protocol}.{name}", port.name.to_lowercase()))
                    .or_default()
                    .extend(found.map(|host| (port.port, host)));
            }
            let addresses = names.entry(name).or_default();
            if view.ips.is_empty() {
                addresses.extend(view.endpoints.iter().map(|(_, ip)| *ip));
            } else {
                addresses.extend(&view.ips);
            }
        }
        Self { names, ports }
    }

    /// The answer to a question in wire form; `None` if it is not a question.
    pub(crate) fn answer(&self, question: &[u8]) -> Option<Message> {
        let question = Message::from_vec(question).ok()?;
        if question.metadata.message_type != MessageType::Query {
            return None;
        }
        let mut answer = Message::response(question.metadata.id, question.metadata.op_code);
        answer.metadata.recursion_desired = question.metadata.recursion_desired;
        answer.metadata.recursion_available = true;
        answer.metadata.authoritative = true;
        if question.metadata.op_code != OpCode::Query {
            answer.metadata.response_code = ResponseCode::NotImp;
            return Some(answer);
        }
        for query in &question.queries {
            answer.add_query(query.clone());
            let text = query.name().to_ascii().to_lowercase();
            let text = text.trim_end_matches('.');
            if let Some(targets) = self.ports.get(text) {
                let targets = targets
                    .iter()
                    .filter(|_| query.query_type() == RecordType::SRV);
                answer.add_answers(targets.map(|(port, host)| {
                    let data = RData::SRV(SRV::new(0, 100, *port, host.clone()));
                    Record::from_rdata(query.name().clone(), TTL, data)
                }));
                continue;
            }
            let Some(addresses) = self.names.get(text) else {
                answer.metadata.response_code = ResponseCode::NXDomain;
                continue;
            };
            for ip in addresses {
                let data = match (query.query_type(), ip) {
                    (RecordType::A, IpAddr::V4(ip)) => RData::A(A(*ip)),
                    (RecordType::AAAA, IpAddr::V6(ip)) => RData::AAAA(AAAA(*ip)),
                    _ => continue,
                };
                answer.add_answer(Record::from_rdata(query.name().clone(), TTL, data));
            }
        }
        Some(answer)
    }
}

/// Serves the zone on a node's addresses until the lab ends.
pub(crate) fn serve(node: &Node, zone: &watch::Receiver<Arc<Zone>>) -> io::Result<()> {
    for ip in &node.ips {
        let address = SocketAddr::new(*ip, 53);
        let (udp, tcp) = node.host.run(|| {
            let udp = std::net::UdpSocket::bind(address)?;
            let tcp = std::net::TcpListener::bind(address)?;
            udp.set_nonblocking(true)?;
            tcp.set_nonblocking(true)?;
            Ok::<_, io::Error>((udp, tcp))
        })??;
        let (udp, tcp) = (UdpSocket::from_std(udp)?, TcpListener::from_std(tcp)?);
        drop(ambit_rt::spawn(
            "dns over udp",
            serve_udp(udp, zone.clone()),
        ));
        drop(ambit_rt::spawn(
            "dns over tcp",
            serve_tcp(tcp, zone.clone()),
        ));
    }
    Ok(())
}

async fn serve_udp(socket: UdpSocket, zone: watch::Receiver<Arc<Zone>>) {
    let mut buffer = [0_u8; 4096];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let question = buffer.get(..length).unwrap_or_default();
        let answer = zone.borrow().answer(question);
        let Some(answer) = answer else { continue };
        let Ok(mut bytes) = answer.to_vec() else {
            continue;
        };
        if bytes.len() > UDP_PAYLOAD {
            let Ok(short) = answer.truncate().to_vec() else {
                continue;
            };
            bytes = short;
        }
        let _client_is_gone = socket.send_to(&bytes, client).await;
    }
}

async fn serve_tcp(listener: TcpListener, zone: watch::Receiver<Arc<Zone>>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                drop(ambit_rt::spawn(
                    "dns connection",
                    serve_stream(stream, zone.clone()),
                ));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve_stream(mut stream: TcpStream, zone: watch::Receiver<Arc<Zone>>) {
    while let Ok(Ok(length)) = timeout(IDLE, stream.read_u16()).await {
        let mut question = vec![0; length.into()];
        let Ok(Ok(_)) = timeout(IDLE, stream.read_exact(&mut question)).await else {
            return;
        };
        let answer = zone.borrow().answer(&question);
        let Some(bytes) = answer.and_then(|answer| answer.to_vec().ok()) else {
            return;
        };
        let Ok(length) = u16::try_from(bytes.len()) else {
            return;
        };
        let framed = [&length.to_be_bytes()[..], &bytes].concat();
        if stream.write_all(&framed).await.is_err() {
            return;
        }
    }
}

/// `/etc/resolv.conf` of a pod in `namespace`, or of a node's processes.
pub(crate) fn resolv_conf(servers: &[IpAddr], namespace: &str) -> String {
    let mut text = String::new();
    for server in servers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    text.push_str(&format!(
        "search {namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}\n"
    ));
    text.push_str("options ndots:5\n");
    text
}

#[cfg(test)]
mod tests {
    use hickory_proto::{op::Query, rr::Name};

    use super::*;

    fn ask(zone: &Zone, name: &str, kind: RecordType) -> (ResponseCode, Vec<String>) {
        let mut question = Message::query();
        question.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        let answer = zone.answer(&question.to_vec().unwrap()).unwrap();
        let texts = answer
            .answers
            .iter()
            .map(|record| record.data.to_string())
            .collect();
        (answer.metadata.response_code, texts)
    }

    #[test]
    fn services_headless_pods_and_unknown_names() {
        let view = |name: &str, ips: &[&str], endpoints: &[(&str, &str)]| ServiceView {
            namespace: "shop".into(),
            name: name.into(),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            ports: vec![crate::cluster::PortView {
                name: "http".into(),
                port: 80,
                udp: false,
                targets: Vec::new(),
            }],
            endpoints: endpoints
                .iter()
                .map(|(host, ip)| ((*host).to_owned(), ip.parse().unwrap()))
                .collect(),
        };
        let zone = Zone::new(&[
            view(
                "web",
                &["10.96.1.0", "fd00:10:96::100"],
                &[("web-1", "10.244.1.2")],
            ),
            view("db", &[], &[("db-0", "10.244.1.3"), ("db-1", "10.244.2.3")]),
        ]);
        let none: &[&str] = &[];
        let cases: [(&str, RecordType, ResponseCode, &[&str]); 8] = [
            (
                "Web.shop.svc.cluster.local.",
                RecordType::A,
                ResponseCode::NoError,
                &["10.96.1.0"],
            ),
            (
                "web.shop.svc.cluster.local.",
                RecordType::AAAA,
                ResponseCode::NoError,
                &["fd00:10:96::100"],
            ),
            (
                "db.shop.svc.cluster.local.",
                RecordType::A,
                ResponseCode::NoError,
                &["10.244.1.3", "10.244.2.3"],
            ),
            (
                "db-1.db.shop.svc.cluster.local.",
                RecordType::A,
                ResponseCode::NoError,
                &["10.244.2.3"],
            ),
            (
                "db.shop.svc.cluster.local.",
                RecordType::AAAA,
                ResponseCode::NoError,
                none,
            ),
            ("example.com.", RecordType::A, ResponseCode::NXDomain, none),
            (
                "_http._tcp.web.shop.svc.cluster.local.",
                RecordType::SRV,
                ResponseCode::NoError,
                &["0 100 80 web.shop.svc.cluster.local."],
            ),
            (
                "_http._tcp.db.shop.svc.cluster.local.",
                RecordType::SRV,
                ResponseCode::NoError,
                &[
                    "0 100 80 db-0.db.shop.svc.cluster.local.",
                    "0 100 80 db-1.db.shop.svc.cluster.local.",
                ],
            ),
        ];
        for (name, kind, code, expected) in cases {
            let (got, answers) = ask(&zone, name, kind);
            assert_eq!(
                (got, answers.as_slice()),
                (
                    code,
                    expected
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .as_slice()
                ),
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_no_question_gets_no_answer() {
        let zone = Zone::default();
        assert!(zone.answer(b"").is_none());
        assert!(zone.answer(&[0xff; 30]).is_none());
        let reply = Message::response(1, OpCode::Query).to_vec().unwrap();
        assert!(zone.answer(&reply).is_none());
    }
}
