use ambit_rt::testing::within;
use std::{net::Ipv4Addr, sync::Arc};

use hickory_proto::op::{Message, ResponseCode};
use tokio::net::TcpListener;

use super::*;
use crate::{
    DnsLimits,
    server::fake::{FakeDnsHost, encode_query, fake_server},
};

async fn connect(server: &Arc<Server<FakeDnsHost>>) -> TcpStream {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (server, (stream, _)) = (server.clone(), accepted.unwrap());
    ambit_rt::spawn("dns", async move {
        serve_connection(stream, &server).await;
    });
    client.unwrap()
}

async fn send(client: &mut TcpStream, message: &[u8]) {
    let len = u16::try_from(message.len()).unwrap();
    client.write_u16(len).await.unwrap();
    client.write_all(message).await.unwrap();
}

async fn receive(client: &mut TcpStream) -> std::io::Result<Message> {
    let len = client.read_u16().await?;
    let mut bytes = vec![0; len.into()];
    client.read_exact(&mut bytes).await?;
    Ok(Message::from_vec(&bytes).unwrap())
}

fn limits() -> DnsLimits {
    DnsLimits {
        max_connections: 1,
        idle_timeout: Duration::from_millis(100),
        ..DnsLimits::default()
    }
}

#[tokio::test]
async fn connection_serves_queries_until_it_is_idle() {
    within(async {
        let server = fake_server(limits());
        let mut client = connect(&server).await;
        for _ in 0..3 {
            send(&mut client, &encode_query("web")).await;
            assert_eq!(receive(&mut client).await.unwrap().answers.len(), 1);
        }
        send(&mut client, &encode_query("elsewhere")).await;
        let code = receive(&mut client).await.unwrap().metadata.response_code;
        assert_eq!(code, ResponseCode::ServFail);
        assert!(receive(&mut client).await.is_err(), "it is closed");
    })
    .await;
}

#[tokio::test]
async fn incomplete_query_times_out() {
    within(async {
        let server = fake_server(limits());
        let mut client = connect(&server).await;
        client.write_all(&[0, 60, 1, 2, 3]).await.unwrap();
        assert!(receive(&mut client).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed() {
    within(async {
        let server = fake_server(DnsLimits {
            idle_timeout: Duration::from_secs(60),
            ..limits()
        });
        let mut first = connect(&server).await;
        send(&mut first, &encode_query("web")).await;
        receive(&mut first).await.unwrap();
        let mut second = connect(&server).await;
        assert!(receive(&mut second).await.is_err());
        send(&mut first, &encode_query("web")).await;
        receive(&mut first).await.unwrap();
    })
    .await;
}
