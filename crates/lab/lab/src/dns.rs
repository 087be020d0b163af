//! DNS of a lab's cluster: names of services and of the pods of headless services, and SRV records of their named
//! ports. Each node has a server at its own addresses; all serve the same zone.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use hickory_server::{
    Server,
    net::runtime::Time,
    proto::{
        op::{Header, HeaderCounts, Metadata, OpCode, ResponseCode},
        rr::{
            Name, RData, Record, RecordType,
            rdata::{A, AAAA, SRV},
        },
    },
    server::{Request, RequestHandler, ResponseHandler, ResponseInfo},
    zone_handler::MessageResponseBuilder,
};
use k8s_openapi::api::core::v1::PodSpec;
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::watch,
};

use crate::{cluster::ServiceView, fabric::Node};

/// Domain of the cluster's services.
pub(crate) const CLUSTER_DOMAIN: &str = "cluster.local";
/// TTL of all records, in seconds.
const RECORD_TTL_SECONDS: u32 = 5;
/// Idle timeout of a TCP connection without a query.
const TCP_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of queued answers of a TCP connection.
const MAX_QUEUED_RESPONSES: usize = 16;

/// Records of the cluster by name, in lower case and without the final dot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zone {
    address_records: BTreeMap<String, Vec<IpAddr>>,
    /// SRV records: port and host by `_PORT._PROTOCOL.SERVICE…`.
    srv_records: BTreeMap<String, Vec<(u16, Name)>>,
}

impl Zone {
    pub(crate) fn new(views: &[ServiceView]) -> Self {
        let mut names: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        let mut ports: BTreeMap<String, Vec<(u16, Name)>> = BTreeMap::new();
        for view in views {
            let name =
                format!("{}.{}.svc.{CLUSTER_DOMAIN}", view.name, view.namespace).to_lowercase();
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
                let protocol = if port.is_udp { "udp" } else { "tcp" };
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
        Self {
            address_records: names,
            srv_records: ports,
        }
    }

    /// Returns the records of a type at a name, possibly none; an error code if the name does not exist.
    fn look_up(&self, name: &Name, kind: RecordType) -> Result<Vec<Record>, ResponseCode> {
        let text = name.to_ascii().to_lowercase();
        let text = text.trim_end_matches('.');
        let record = |data| Record::from_rdata(name.clone(), RECORD_TTL_SECONDS, data);
        if let Some(targets) = self.srv_records.get(text) {
            let targets = targets.iter().filter(|_| kind == RecordType::SRV);
            let data = |(port, host): &(u16, Name)| SRV::new(0, 100, *port, host.clone());
            return Ok(targets
                .map(|target| record(RData::SRV(data(target))))
                .collect());
        }
        let addresses = self
            .address_records
            .get(text)
            .ok_or(ResponseCode::NXDomain)?;
        let data = |ip: &IpAddr| match (kind, ip) {
            (RecordType::A, IpAddr::V4(ip)) => Some(RData::A(A(*ip))),
            (RecordType::AAAA, IpAddr::V6(ip)) => Some(RData::AAAA(AAAA(*ip))),
            _ => None,
        };
        Ok(addresses.iter().filter_map(data).map(record).collect())
    }
}

/// Handler of DNS queries, which answers from the current zone.
struct DnsHandler(watch::Receiver<Arc<Zone>>);

#[async_trait]
impl RequestHandler for DnsHandler {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut response_handle: R,
    ) -> ResponseInfo {
        let zone = Arc::clone(&self.0.borrow());
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.authoritative = true;
        metadata.recursion_available = true;
        let found = match request.request_info() {
            Ok(_) if request.metadata.op_code != OpCode::Query => Err(ResponseCode::NotImp),
            Ok(info) => zone.look_up(info.query.original().name(), info.query.query_type()),
            Err(_) => Err(ResponseCode::FormErr),
        };
        let records = found.unwrap_or_else(|code| {
            metadata.response_code = code;
            Vec::new()
        });
        let answer = MessageResponseBuilder::from_message_request(request).build(
            metadata,
            &records,
            [],
            [],
            [],
        );
        let sent = response_handle.send_response(answer).await;
        sent.unwrap_or_else(|error| {
            tracing::debug!(%error, "a DNS answer could not be sent");
            ResponseInfo::from(Header {
                metadata,
                counts: HeaderCounts::default(),
            })
        })
    }
}

/// Starts the DNS server on a node's addresses; it runs until the lab ends.
pub(crate) fn serve(node: &Node, zone: &watch::Receiver<Arc<Zone>>) -> io::Result<()> {
    let mut server = Server::new(DnsHandler(zone.clone()));
    for ip in &node.ips {
        let address = SocketAddr::new(*ip, 53);
        let (udp, tcp) = node.host.run(|| {
            let udp = std::net::UdpSocket::bind(address)?;
            let tcp = std::net::TcpListener::bind(address)?;
            udp.set_nonblocking(true)?;
            tcp.set_nonblocking(true)?;
            Ok::<_, io::Error>((udp, tcp))
        })??;
        server.register_socket(UdpSocket::from_std(udp)?);
        server.register_listener(
            TcpListener::from_std(tcp)?,
            TCP_IDLE_TIMEOUT,
            MAX_QUEUED_RESPONSES,
        );
    }
    drop(ambit_rt::spawn("DNS of a node", async move {
        if let Err(error) = server.block_until_done().await {
            tracing::error!(%error, "a node's DNS server has ended");
        }
    }));
    Ok(())
}

/// Formats `/etc/resolv.conf` for a pod in `namespace`, or for a node's processes.
pub(crate) fn resolv_conf(servers: &[IpAddr], namespace: &str) -> String {
    let mut text = String::new();
    for server in servers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    text.push_str(&format!(
        "search {namespace}.svc.{CLUSTER_DOMAIN} svc.{CLUSTER_DOMAIN} {CLUSTER_DOMAIN}\n"
    ));
    text.push_str("options ndots:5\n");
    text
}

/// Formats `/etc/resolv.conf` for a pod with `dnsPolicy: None`; `None` for other pods.
pub(crate) fn own_resolv_conf(spec: &PodSpec) -> Option<String> {
    let policy = spec.dns_policy.as_deref();
    let config = spec
        .dns_config
        .as_ref()
        .filter(|_| policy == Some("None"))?;
    let mut text = String::new();
    for server in config.nameservers.iter().flatten() {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if let Some(searches) = &config.searches {
        text.push_str(&format!("search {}\n", searches.join(" ")));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use hickory_server::proto::op::{Message, MessageType, Query};
    use tokio::time::timeout;

    use super::*;

    fn query(zone: &Zone, name: &str, kind: RecordType) -> (ResponseCode, Vec<String>) {
        match zone.look_up(&Name::from_ascii(name).unwrap(), kind) {
            Ok(records) => {
                let texts = records.iter().map(|record| record.data.to_string());
                (ResponseCode::NoError, texts.collect())
            }
            Err(code) => (code, Vec::new()),
        }
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
                is_udp: false,
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
            let (got, answers) = query(&zone, name, kind);
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

    #[tokio::test]
    async fn queries_get_matching_answers_and_responses_get_none() {
        let replicas = (0..100).map(|number| IpAddr::from([10, 244, 1, number]));
        let names = [
            (
                "web.shop.svc.cluster.local".into(),
                vec![[10, 96, 0, 1].into()],
            ),
            ("db.shop.svc.cluster.local".into(), replicas.collect()),
        ];
        let zone = Zone {
            address_records: names.into(),
            srv_records: BTreeMap::new(),
        };
        let (_zone, zones) = watch::channel(Arc::new(zone));
        let served = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.connect(served.local_addr().unwrap()).await.unwrap();
        let mut server = Server::new(DnsHandler(zones));
        server.register_socket(served);
        let message = |id, kind, name| {
            let mut message = Message::new(id, kind, OpCode::Query);
            let name = Name::from_ascii(name).unwrap();
            message.add_query(Query::query(name, RecordType::A));
            message.to_vec().unwrap()
        };
        let reply = message(1, MessageType::Response, "web.shop.svc.cluster.local.");
        let ask = |id, name| message(id, MessageType::Query, name);
        for datagram in [
            Vec::new(),
            vec![0xff; 30],
            reply,
            ask(2, "web.shop.svc.cluster.local."),
            ask(3, "db.shop.svc.cluster.local."),
        ] {
            client.send(&datagram).await.unwrap();
        }
        let mut answers = BTreeMap::new();
        let mut buffer = [0; 4096];
        while answers.len() < 3 {
            let received = timeout(Duration::from_secs(20), client.recv(&mut buffer)).await;
            let length = received.unwrap().unwrap();
            let answer = Message::from_vec(&buffer[..length]).unwrap();
            answers.insert(answer.metadata.id, answer);
        }
        // Neither the reply nor the empty datagram has one.
        assert_eq!(answers.keys().collect::<Vec<_>>(), [&2, &3, &0xffff]);
        assert_eq!(
            answers[&0xffff].metadata.response_code,
            ResponseCode::FormErr
        );
        assert_eq!(answers[&2].answers.len(), 1);
        assert!(!answers[&2].metadata.truncation && answers[&3].metadata.truncation);
    }
}
