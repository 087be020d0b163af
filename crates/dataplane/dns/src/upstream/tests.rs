//! Tests with upstream servers that respond late, never, wrongly, or with unrelated datagrams.

use ambit_rt::testing::within;
use std::{net::Ipv4Addr, time::Duration};

use hickory_proto::{
    op::{Message, MessageType, Query},
    rr::{Name, RecordType},
};
use tokio::net::TcpListener;

use super::*;
use crate::question::DnsQuery;

const LIMITS: DnsLimits = DnsLimits {
    max_waiting_queries: 8,
    max_connections: 8,
    idle_timeout: Duration::from_millis(300),
    attempt_timeout: Duration::from_millis(100),
    total_timeout: Duration::from_millis(400),
    retransmit_interval: Duration::from_millis(50),
};

fn forwarded_query() -> ForwardedQuery {
    let mut message = Message::query();
    let name = Name::from_ascii("example.com.").unwrap();
    message.add_query(Query::query(name, RecordType::A));
    ForwardedQuery::new(&DnsQuery::parse(&message.to_vec().unwrap()).unwrap(), 1)
}

fn error_response(question: &[u8], code: ResponseCode) -> Vec<u8> {
    let mut message = Message::from_vec(question).unwrap();
    message.metadata.message_type = MessageType::Response;
    message.metadata.response_code = code;
    message.to_vec().unwrap()
}

/// Starts a DNS server that ignores the first `deaf` datagrams, and responds to each further one with `code`.
async fn start_dns_server(deaf: usize, code: ResponseCode) -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    ambit_rt::spawn("server", async move {
        let mut buffer = [0; 512];
        for received in 0.. {
            let (len, client) = socket.recv_from(&mut buffer).await.unwrap();
            if received >= deaf {
                let answer = error_response(&buffer[..len], code);
                socket.send_to(&answer, client).await.unwrap();
            }
        }
    });
    address
}

fn egress(fallback: &[SocketAddr]) -> UpstreamSocketOptions {
    UpstreamSocketOptions {
        fallback_servers: fallback.to_vec(),
        ..UpstreamSocketOptions::default()
    }
}

async fn forward_query(fallback: &[SocketAddr]) -> Result<ResponseCode, RelayError> {
    exchange_with_servers(
        &egress(fallback),
        &LIMITS,
        None,
        &forwarded_query(),
        Transport::Udp,
    )
    .await
    .map(|(_, code)| code)
}

#[tokio::test]
async fn lost_query_is_sent_again() {
    within(async {
        let server = start_dns_server(1, ResponseCode::NoError).await;
        assert_eq!(
            forward_query(&[server]).await.unwrap(),
            ResponseCode::NoError
        );
    })
    .await;
}

#[tokio::test]
async fn next_server_is_queried_when_one_fails() {
    within(async {
        let good = start_dns_server(0, ResponseCode::NXDomain).await;
        let silent = start_dns_server(usize::MAX, ResponseCode::NoError).await;
        let failing = start_dns_server(0, ResponseCode::ServFail).await;
        let gone = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let gone_at = gone.local_addr().unwrap();
        drop(gone);
        for first in [silent, failing, gone_at] {
            assert_eq!(forward_query(&[first, good]).await.unwrap(), ResponseCode::NXDomain);
        }
        assert_eq!(forward_query(&[failing]).await.unwrap(), ResponseCode::ServFail);
        assert!(matches!(forward_query(&[silent]).await, Err(RelayError::NoResponse(at)) if at == silent));
        assert!(matches!(forward_query(&[]).await, Err(RelayError::NoServer)));
    })
    .await;
}

#[tokio::test]
async fn datagrams_before_the_answer_are_skipped() {
    within(async {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        ambit_rt::spawn("server", async move {
            let mut buffer = [0; 512];
            let (len, client) = socket.recv_from(&mut buffer).await.unwrap();
            for noise in [&b""[..], &[0xff; 40], &buffer[..len]] {
                socket.send_to(noise, client).await.unwrap();
            }
            let answer = error_response(&buffer[..len], ResponseCode::NoError);
            socket.send_to(&answer, client).await.unwrap();
        });
        assert_eq!(
            forward_query(&[address]).await.unwrap(),
            ResponseCode::NoError
        );
    })
    .await;
}

#[tokio::test]
async fn tcp_queries_are_forwarded_over_tcp() {
    within(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        ambit_rt::spawn("server", async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let len = stream.read_u16().await.unwrap();
            let mut question = vec![0; len.into()];
            stream.read_exact(&mut question).await.unwrap();
            let answer = error_response(&question, ResponseCode::NoError);
            let len = u16::try_from(answer.len()).unwrap();
            let framed = [&len.to_be_bytes()[..], &answer].concat();
            stream.write_all(&framed).await.unwrap();
        });
        let (_, code) = exchange_with_servers(
            &egress(&[address]),
            &LIMITS,
            None,
            &forwarded_query(),
            Transport::Tcp,
        )
        .await
        .unwrap();
        assert_eq!(code, ResponseCode::NoError);
    })
    .await;
}

#[test]
fn only_redirected_queries_have_an_original_server() {
    for (address, is) in [
        ("10.96.0.10:53", true),
        ("[fd00::10]:53", true),
        ("10.96.0.10:15053", false),
        ("127.0.0.1:53", false),
        ("[::1]:53", false),
        ("0.0.0.0:53", false),
        ("224.0.0.251:53", false),
    ] {
        assert_eq!(is_usable_server(&address.parse().unwrap()), is, "{address}");
    }
}
