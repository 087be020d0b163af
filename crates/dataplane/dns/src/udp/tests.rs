//! Tests of the UDP server over real sockets.

use ambit_rt::testing::within;
use std::{net::Ipv4Addr, sync::atomic::Ordering};

use ambit_rt::{Drain, drain};
use hickory_proto::op::{Message, ResponseCode};

use super::*;
use crate::{
    DnsLimits,
    server::fake::{FakeDnsHost, encode_query, fake_server},
};

struct TestServer {
    server: Arc<Server<FakeDnsHost>>,
    drain: Drain,
    task: tokio::task::JoinHandle<()>,
    client: UdpSocket,
}

async fn start_test_server() -> TestServer {
    let server = fake_server(DnsLimits {
        retransmit_interval: Duration::from_millis(50),
        ..DnsLimits::default()
    });
    let local = (Ipv4Addr::LOCALHOST, 0);
    let socket = UdpSocket::bind(local).await.unwrap();
    let client = UdpSocket::bind(local).await.unwrap();
    client.connect(socket.local_addr().unwrap()).await.unwrap();
    let (drain, watcher) = drain::channel();
    let task = ambit_rt::spawn("dns", serve_datagrams(socket, server.clone(), watcher));
    TestServer {
        server,
        drain,
        task,
        client,
    }
}

impl TestServer {
    async fn send_query(&self, question: &[u8]) -> Message {
        self.client.send(question).await.unwrap();
        let mut buffer = [0; 512];
        let len = timeout(Duration::from_secs(20), self.client.recv(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        Message::from_vec(&buffer[..len]).unwrap()
    }
}

#[tokio::test]
async fn questions_are_answered_and_noise_is_not() {
    within(async {
        let rig = start_test_server().await;
        rig.client.send(b"noise").await.unwrap();
        let answer = rig.send_query(&encode_query("web")).await;
        assert_eq!(answer.answers.len(), 1);
        // There is no upstream server.
        let answer = rig.send_query(&encode_query("elsewhere")).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
        assert_eq!(rig.server.host.reports.load(Ordering::Relaxed), 2);
    })
    .await;
}

#[tokio::test]
async fn queries_are_not_forwarded_before_the_mesh_is_known() {
    within(async {
        let rig = start_test_server().await;
        rig.server
            .host
            .has_no_mesh_state
            .store(true, Ordering::Relaxed);
        let answer = rig.send_query(&encode_query("web")).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    })
    .await;
}

#[tokio::test]
async fn draining_server_answers_until_queries_stop() {
    within(async {
        let rig = start_test_server().await;
        rig.drain
            .start(DrainMode::graceful(Duration::from_secs(60)));
        let answer = rig.send_query(&encode_query("web")).await;
        assert_eq!(answer.answers.len(), 1);
        rig.task.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn process_ends_at_once_when_terminated() {
    within(async {
        let rig = start_test_server().await;
        rig.drain.start(DrainMode::Immediate);
        rig.task.await.unwrap();
    })
    .await;
}
